// A program that was compiled for a later version of the library: options and statistics have one
// field more, `later`. Prints "ok" if the library serves it as long as it leaves the option out,
// and refuses what it does not know. Built by run.sh.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <lanemalloc/lanemalloc.hpp>

static bool is_refused_in_cpp(const lane_heap_options& options) {
  try {
    lane::Heap heap(options);
  } catch (const std::invalid_argument& e) {
    return std::strstr(e.what(), "an option that the library lacks") != nullptr;
  }
  return false;
}

int main() {
  lane_pool_options of_pool{};
  of_pool.object_size = 48;
  lane_pool* pool = lane_pool_create(&of_pool);
  if (pool == nullptr || lane_pool_alloc(pool) == nullptr) return 1;
  lane_pool_statistics statistics;
  std::memset(&statistics, 0xEE, sizeof statistics);
  lane_pool_get_statistics(pool, &statistics);
  if (statistics.live != 1 || statistics.later != 0) return 2;
  of_pool.later = 1;
  if (lane_pool_create(&of_pool) != nullptr || errno != E2BIG) return 3;

  lane_heap_options of_heap{};
  lane::Heap heap(of_heap);
  if (heap.allocate(100) == nullptr) return 4;
  of_heap.later = 1;
  if (!is_refused_in_cpp(of_heap)) return 5;
  std::puts("ok");
  return 0;
}
