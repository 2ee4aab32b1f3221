// Where the map's nodes come from: malloc, or a pool. Both free a node at once, or once no reader
// can hold the node any more.
// Called by: map.h, hash_map.cpp.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <lanemalloc/pool.hpp>
#include <lanemalloc/safepoint.hpp>

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "hash-map: %s\n", what);
  std::exit(1);
}

struct MallocNodes {
  static constexpr size_t kNodeSize = 64;
  void* allocate() { return std::malloc(kNodeSize); }
  void free(void* node) { std::free(node); }
  bool free_later(void* node) { return lane::free_later(node); }
};

class PoolNodes {
 public:
  static constexpr size_t kNodeSize = 64;
  PoolNodes() {
    lane_pool_options options{};
    options.name = "nodes";
    options.object_size = kNodeSize;
    options.padding = LANE_OWN_LINE;
    pool_ = lane_pool_create(&options);
    if (pool_ == nullptr) fail("no pool");
  }
  PoolNodes(const PoolNodes&) = delete;
  // If a node was never freed, the program is wrong.
  ~PoolNodes() {
    if (lane_pool_destroy(pool_) != 0) fail("nodes are left in the pool");
  }
  void* allocate() { return lane_pool_alloc(pool_); }
  void free(void* node) { lane_pool_free(pool_, node); }
  bool free_later(void* node) { return lane_safepoint_pool_free(pool_, node) == 0; }

 private:
  lane_pool* pool_;
};
