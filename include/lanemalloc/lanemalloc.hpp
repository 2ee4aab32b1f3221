/// @file
/// lanemalloc for C++17 and later: all of it. Header only, over the C functions of
/// liblanemalloc.so, .a or liblanemalloc_prefixed.a (for the last, define LANEMALLOC_PREFIXED).
/// Works without exceptions and without RTTI.
#ifndef LANEMALLOC_LANEMALLOC_HPP
#define LANEMALLOC_LANEMALLOC_HPP

#include "lanemalloc/arena.hpp"
#include "lanemalloc/heap.hpp"
#include "lanemalloc/malloc.hpp"
#include "lanemalloc/pool.hpp"
#include "lanemalloc/safepoint.hpp"

#endif
