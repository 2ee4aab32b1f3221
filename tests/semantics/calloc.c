// calloc gives zeroes, also from memory that was dirty before: data that other functions left never
// shows in it.

#include "check.h"
#include "run_threads.h"

static int zero(const char* object, size_t size) { return all_bytes(object, size, 0); }

static void check_reuse(size_t size, int count, int rounds) {
  static char* objects[20000];
  for (int round = 0; round < rounds; round++) {
    for (int i = 0; i < count; i++) {
      objects[i] = (char*)((i + round) % 2 ? calloc(1, size) : calloc(size, 1));
      REQUIRE(objects[i]);
      CHECK_MSG(zero(objects[i], size), "size %zu, round %d, object %d", size, round, i);
      memset(objects[i], 0xA5, malloc_usable_size(objects[i]));
    }
    for (int i = 0; i < count; i++) free(objects[(i * 7 + round) % count]);
    for (int i = 0; i < count; i++) memset(objects[i] = (char*)malloc(size), 0x5A, size);
    for (int i = 0; i < count; i++) free(objects[i]);
  }
}

CASE(small_objects_after_dirty_reuse) {
  for (size_t size = 1; size <= 1100; size += size < 64 ? 1 : 13) check_reuse(size, 997, 3);
}
CASE(medium_objects_after_dirty_reuse) {
  for (size_t size = 1100; size <= 70000; size += size / 9) check_reuse(size, 101, 3);
}
CASE(large_objects_after_dirty_reuse) {
  for (size_t size = 70000; size <= ((size_t)40 << 20); size += size / 2) check_reuse(size, 5, 3);
}

// Memory changes its size class: old data of one size lies where another size must be zero.
CASE(zero_across_sizes) {
  const size_t sizes[] = {16, 48, 1000, 5000, 33000, 65536, 200000, 1 << 20, 5 << 20};
  for (int round = 0; round < 6; round++) {
    for (size_t d = 0; d < 9; d++) {
      static char* dirty[4000];
      int count = (int)(((size_t)16 << 20) / sizes[d]);
      if (count > 4000) count = 4000;
      for (int i = 0; i < count; i++) memset(dirty[i] = (char*)malloc(sizes[d]), 0xFF, sizes[d]);
      for (int i = 0; i < count; i++) free(dirty[i]);
      for (size_t z = 0; z < 9; z++) {
        char* object = (char*)calloc(sizes[z] / 8, 8);
        CHECK_MSG(zero(object, sizes[z]), "%zu after %zu", sizes[z], sizes[d]);
        free(object);
      }
    }
  }
}

CASE(zero_after_realloc_and_memalign_left_dirt) {
  for (int round = 0; round < 200; round++) {
    size_t size = (size_t)(round * 997 % 50000 + 1);
    char* object = (char*)memset(memalign(4096, size), 1, size);
    object = (char*)realloc(object, size * 3);
    memset(object, 2, size * 3);
    object = (char*)realloc(object, size / 2 + 1);
    free(object);
    for (size_t factor = 1; factor <= 4; factor++) {
      object = (char*)calloc(factor, size);
      CHECK_MSG(zero(object, factor * size), "%zu x %zu", factor, size);
      memset(object, 3, factor * size);
      free(object);
    }
  }
}

CASE(zero_after_trim) {
  for (int round = 0; round < 10; round++) {
    check_reuse(3000, 1000, 1);
    malloc_trim(0);
    check_reuse(3000, 1000, 1);
    check_reuse((size_t)2 << 20, 4, 1);
    malloc_trim(0);
    check_reuse((size_t)2 << 20, 4, 1);
  }
}

static void* dirty_and_free(void* argument) {
  void** objects = (void**)argument;
  for (int i = 0; i < 1000; i++) {
    memset(objects[i], 0xCC, malloc_usable_size(objects[i]));
    free(objects[i]);
  }
  return NULL;
}

CASE(zero_after_another_thread_left_dirt) {
  static void* objects[1000];
  for (int round = 0; round < 20; round++) {
    size_t size = (size_t)(8 << (round % 14));
    for (int i = 0; i < 1000; i++) {
      objects[i] = calloc(1, size);
      CHECK_MSG(zero((char*)objects[i], size), "size %zu", size);
    }
    run_thread(dirty_and_free, objects);
  }
}
