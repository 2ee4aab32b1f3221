// The core over the fake platform. core.cpp compiles it; the tests only declare it, so that each
// compiles little more than itself. What is missing in the list is compiled in each test that uses
// it, which takes longer, and is right all the same.
// Called by: fixture.h, core.cpp.
#pragma once

#include "core/engine/engine.h"
#include "fake.h"
#include "fronts/arena/arena.h"
#include "fronts/heap/heap.h"
#include "fronts/pool/pool.h"

namespace lanemalloc {

// how: extern, or nothing where they are compiled.
#define INSTANTIATE_CORE(how)           \
  how template class AnyLane<Fake>;     \
  how template class Arena<Fake>;       \
  how template class Collection<Fake>;  \
  how template class Depot<Fake>;       \
  how template class Engine<Fake>;      \
  how template class EntryChoice<Fake>; \
  how template class Epochs<Fake>;      \
  how template class Exits<Fake>;       \
  how template class Fork<Fake>;        \
  how template class Heap<Fake>;        \
  how template class Here<Fake>;        \
  how template class KindObjects<Fake>; \
  how template class Kinds<Fake>;       \
  how template class Lane<Fake>;        \
  how template class LaneTable<Fake>;   \
  how template class Large<Fake>;       \
  how template class Lock<Fake>;        \
  how template class Misses<Fake>;      \
  how template class Pointers<Fake>;    \
  how template class Pool<Fake>;        \
  how template class Region<Fake>;      \
  how template class Runs<Fake>;        \
  how template class Safepoints<Fake>;  \
  how template class Sampler<Fake>;     \
  how template class Sampling<Fake>;    \
  how template class Scavenger<Fake>;   \
  how template class Searches<Fake>;    \
  how template class Shared<Fake>;      \
  how template class ShortStay<Fake>;   \
  how template class Stacks<Fake>;      \
  how template class Stay<Fake>;        \
  how template class Threads<Fake>;     \
  how template class Upkeep<Fake>;      \
  how template struct Layout<Fake>;     \
  how template struct Slabs<Fake>;      \
  how template struct World<Fake>;

INSTANTIATE_CORE(extern)

using FakeHeap = Heap<Fake>;
// Where heaps of tests have their kinds from.
inline constexpr FakeHeap::KindSource kSource{
    []() -> void* { return ::operator new(sizeof(Kind), std::align_val_t{alignof(Kind)}); },
    [](void* kind) { ::operator delete(kind, std::align_val_t{alignof(Kind)}); }};

}  // namespace lanemalloc
