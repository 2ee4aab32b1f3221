// Shared by the programs about pools. Included before any header of the library.
#ifndef TESTS_SEMANTICS_LINK_POOLS_H_
#define TESTS_SEMANTICS_LINK_POOLS_H_

#include <lanemalloc/heap.h>
#include <lanemalloc/lanemalloc.h>
#include <lanemalloc/pool.h>

#include "../child.h"

#ifdef PREFIXED
#define API(name) lane_##name
#else
#define API(name) name
#endif

UNUSED static lane_pool* made(const struct lane_pool_options* options) {
  lane_pool* pool = lane_pool_create(options);
  REQUIRE(pool != NULL);
  return pool;
}
UNUSED static lane_pool* pool_of(size_t size, const char* name) {
  const struct lane_pool_options options = {.name = name, .object_size = size};
  return made(&options);
}
UNUSED static struct lane_pool_statistics figures(lane_pool* pool) {
  struct lane_pool_statistics statistics;
  lane_pool_get_statistics(pool, &statistics);
  return statistics;
}

#endif  // TESTS_SEMANTICS_LINK_POOLS_H_
