// Shared by the bounds programs: bursts of objects that are linked through their own memory, so
// that the test needs no other memory; and waits until the resident size falls.
// Used by: tests/bounds/*.cpp.
#pragma once

#include "../stress/stress.h"

namespace bounds {
using namespace stress;

// How long a program waits for its memory to go back. The promise is "ten seconds"; the rest is for
// a machine that is busy.
constexpr double kPatience = 12;

// True if lanes belong to CPUs. Then a thread that is stopped inside its lane sends others to
// overflow lanes, at most one for each thread. And an object that a thread allocated on one CPU and
// frees on another is on its way for a while.
inline bool lanes_by_cpu() {
  const char* options = getenv("LANEMALLOC_OPTIONS");
  return options != nullptr && strstr(options, "lanes=percpu") != nullptr;
}

// Objects of mixed sizes in 64 interleaved lists. Every page of every object is touched.
class Burst {
 public:
  // Allocates until `bytes` are reached; log-uniform sizes from low to high.
  void allocate(size_t bytes, size_t low, size_t high, Random& random) {
    for (size_t sum = 0; sum < bytes; count_++) {
      size_t size = random.log_uniform(low, high);
      auto* object = static_cast<Object*>(api::malloc(size));
      EXPECT(object != nullptr, "malloc(%zu): %s", size, strerror(errno));
      for (size_t i = 0; i < size; i += 2048) reinterpret_cast<unsigned char*>(object)[i] = 1;
      *object = {lists_[count_ % kLists], size};
      lists_[count_ % kLists] = object;
      sum += size;
    }
  }
  void free() {
    for (Object*& list : lists_)
      while (list != nullptr) {
        Object* next = list->next;
        EXPECT(list->size != 0, "object %p lost its contents", static_cast<void*>(list));
        api::free(list);
        list = next;
      }
  }

 private:
  struct Object {
    Object* next;
    size_t size;
  };
  static constexpr size_t kLists = 64;
  Object* lists_[kLists] = {};
  size_t count_ = 0;
};

// Waits until the resident size is below `limit`, with no call to the allocator. Returns the last
// reading.
inline size_t wait_for_resident_below(size_t limit, double* seconds = nullptr) {
  double begin = now();
  size_t size;
  while ((size = resident()) >= limit && now() - begin < kPatience) pause_for(0.1);
  if (seconds != nullptr) *seconds = now() - begin;
  return size;
}

// Lets threads meet at points of the program. Threads that wait here sleep.
class Barrier {
 public:
  explicit Barrier(unsigned threads) { pthread_barrier_init(&barrier_, nullptr, threads); }
  void wait() { pthread_barrier_wait(&barrier_); }

 private:
  pthread_barrier_t barrier_;
};
}  // namespace bounds
