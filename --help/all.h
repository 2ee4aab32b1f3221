#include <lanemalloc/arena.h>
#include <lanemalloc/heap.h>
#include <lanemalloc/hit.h>
#include <lanemalloc/lanemalloc.h>
#include <lanemalloc/pool.h>
#include <lanemalloc/safepoint.h>
#include <lanemalloc/stats.h>
