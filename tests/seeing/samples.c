// Samples: their number is what chance says, and nothing else changes.
#include "work.h"

static double expected_samples(double objects, double size, double interval) {
  return objects * (1 - exp(-size / interval));
}
static void check_count(const char* what, double count, double expected) {
  const double bound = 6 * sqrt(expected) + 6;
  CHECK_MSG(fabs(count - expected) <= bound, "%s: %.0f samples, %.0f +- %.0f expected", what, count,
            expected, bound);
}
static void allocate_and_free(size_t objects, size_t size) {
  static void* kept[64];
  for (size_t i = 0; i < objects; i++) {
    free(kept[i % 64]);
    kept[i % 64] = hide(malloc(size));
  }
  for (int i = 0; i < 64; i++) free(kept[i]), kept[i] = NULL;
}
CASE(so_many_are_sampled_as_chance_says) {
  CHECK(lane_set("sample", "64k") == 0);
  allocate_and_free(500000, 64);  // ends the count that began when sampling was off
  static const struct {
    size_t size, objects;
  } sizes[] = {{16, 2000000},  {100, 600000},  {1000, 200000},
               {20000, 20000}, {200000, 1000}, {600000, 500}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    void* p = hide(malloc(sizes[i].size));
    const double usable = (double)malloc_usable_size(p),
                 bytes = sizes[i].size > kSlabMax ? (double)sizes[i].size : usable;
    free(p);
    look(&before);
    allocate_and_free(sizes[i].objects, sizes[i].size);
    look(&now);
    char what[32];
    snprintf(what, sizeof what, "%zu bytes", sizes[i].size);
    check_count(what, (double)(now.samples - before.samples),
                expected_samples((double)sizes[i].objects, bytes, 65536));
    CHECK(now.live_objects == before.live_objects && now.live_bytes == before.live_bytes);
    CHECK(now.allocations == before.allocations + sizes[i].objects);
  }
  CHECK(lane_set("sample", "0") == 0);
  look(&before);
  allocate_and_free(100000, 1000);
  look(&now);
  CHECK(now.samples == before.samples);
}
CASE(a_sample_changes_nothing_for_its_object) {
  CHECK(lane_set("sample", "1") == 0);  // every one
  free(hide(malloc(40)));
  for (int i = 0; i < 100000 && (lane_stats(&now, sizeof now), now.samples < 5); i++)
    free(hide(malloc(1000)));
  static void* objects[LANE_STATS_CLASSES];
  look(&before);
  for (int c = 1; c < LANE_STATS_CLASSES; c++) {
    const size_t size = before.classes[c].size;
    objects[c] = hide(malloc(size));
    CHECK_MSG(malloc_usable_size(objects[c]) == size && (uintptr_t)objects[c] % 16 == 0, "%zu",
              size);
    fill(objects[c], size, (unsigned)c);
    void* aligned = hide(aligned_alloc(4096, size));
    CHECK((uintptr_t)aligned % 4096 == 0 && malloc_usable_size(aligned) >= size);
    free(aligned);
    unsigned char* zeroed = hide(calloc(1, size));
    CHECK(all_bytes(zeroed, size, 0));
    memset(zeroed, 0xAA, size);
    free(zeroed);
  }
  look(&now);
  // Sampled are all objects except those that bins had before.
  CHECK_MSG(now.samples >= before.samples + 5 * (LANE_STATS_CLASSES - 1) / 2, "%lu samples",
            now.samples - before.samples);
  CHECK(now.live_objects == before.live_objects + LANE_STATS_CLASSES - 1);
  for (int c = 1; c < LANE_STATS_CLASSES; c++) {
    const size_t size = before.classes[c].size;
    CHECK_MSG(now.classes[c].live == before.classes[c].live + 1, "class %d", c);
    CHECK(filled(objects[c], size, (unsigned)c));
    CHECK(hide(realloc(objects[c], size - size / 4)) == objects[c]);
    objects[c] = hide(realloc(objects[c], size * 2 + 1));
    CHECK(filled(objects[c], size, (unsigned)c) && malloc_usable_size(objects[c]) > size * 2);
    free(objects[c]);
  }
  look(&now);
  CHECK_MSG(now.live_objects == before.live_objects && now.live_bytes == before.live_bytes,
            "%ld more", (long)(now.live_objects - before.live_objects));
}
static void* arenas(void* nothing) {
  struct lane_arena arena = {0};
  for (int round = 0; round < 300; round++) {
    for (int i = 0; i < 100; i++)
      memset(lane_arena_alloc(&arena, (size_t)i * 30 + 1), 7, (size_t)i * 30 + 1);
    lane_arena_reset(&arena);
  }
  lane_arena_destroy(&arena);
  return nothing;
}
static void* defer(void* nothing) {
  for (int i = 0; i < 3000; i++) {
    void* p = hide(malloc((size_t)i % 3000));
    if (lane_safepoint_free(p) != 0) free(p);
  }
  return nothing;
}
CASE(samples_and_all_kinds_of_use_come_out_even) {
  CHECK(lane_set("sample", "8k") == 0);
  allocate_and_free(300000, 64);
  in_threads(3, run_nothing, NULL);
  look(&before);
  in_threads(6, work, (void*)(size_t)4000);
  in_threads(3, arenas, NULL);
  in_threads(3, defer, NULL);
  const pid_t child = fork();
  if (child == 0) {
    work((void*)(size_t)2000);
    clear_shelf();
    look(&now);
    check_sums(&now);
    CHECK_MSG(now.live_objects <= before.live_objects + 40, "%lu for %lu", now.live_objects,
              before.live_objects);
    _exit(test_failures != 0);
  }
  CHECK(status_of(child) == 0);
  clear_shelf();
  look(&now);
  check_sums(&now);
  CHECK(now.samples > before.samples + 100);
  CHECK_MSG(now.live_objects <= before.live_objects + 40, "%lu for %lu", now.live_objects,
            before.live_objects);
}
