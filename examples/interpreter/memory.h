// Where an interpreter's frames, environments, objects and code come from: a heap of its own, or
// malloc. A caller that gives something back knows its size, so frees are sized.
// Called by: machine.h, interpreter.cpp. Threads: any.
#pragma once

#include <lanemalloc/heap.h>

#include <cstdio>
#include <cstdlib>

class HeapMemory {
 public:
  HeapMemory() : heap_(make()) {}
  HeapMemory(const HeapMemory&) = delete;
  // All objects that are left go with the heap.
  ~HeapMemory() { lane_heap_destroy(heap_); }
  void* take(size_t size) { return lane_heap_alloc(heap_, size); }
  void give(void* object, size_t size) { lane_heap_free_sized(heap_, object, size); }
  // Objects that were taken and not given back.
  long left() const {
    lane_heap_statistics s;
    lane_heap_get_statistics(heap_, &s);
    return static_cast<long>(s.live_objects);
  }

 private:
  static lane_heap* make() {
    lane_heap_options options{};
    options.name = "interpreter";
    lane_heap* heap = lane_heap_create(&options);
    if (heap == nullptr) std::perror("interpreter: a heap"), std::exit(1);
    return heap;
  }
  lane_heap* const heap_;
};

class MallocMemory {
 public:
  void* take(size_t size) { return std::malloc(size); }
  void give(void* object, size_t) { std::free(object); }
  long left() const { return -1; }  // unknown
};
