// malloc and its kin follow glibc's rules: size zero, overflow, alignment, usable size, errno.

#include "child.h"
#include "run_threads.h"

// Every function that allocates, behind one signature.
static void* by_malloc(size_t size) { return malloc(size); }
static void* by_calloc(size_t size) { return calloc(1, size); }
static void* by_calloc_bytes(size_t size) { return calloc(size, 1); }
static void* by_realloc(size_t size) { return realloc(NULL, size); }
static void* by_reallocarray(size_t size) { return reallocarray(NULL, 1, size); }
static void* by_memalign(size_t size) { return memalign(64, size); }
static void* by_aligned_alloc(size_t size) { return aligned_alloc(256, size); }
static void* by_posix_memalign(size_t size) {
  void* object = NULL;
  int error = posix_memalign(&object, 128, size);
  if (error) errno = error;
  return error ? NULL : object;
}
static void* by_valloc(size_t size) { return valloc(size); }
static void* by_pvalloc(size_t size) { return pvalloc(size); }
static const struct {
  const char* name;
  void* (*allocate)(size_t);
} kFunctions[] = {{"malloc", by_malloc},
                  {"calloc(1, n)", by_calloc},
                  {"calloc(n, 1)", by_calloc_bytes},
                  {"realloc(NULL)", by_realloc},
                  {"reallocarray(NULL)", by_reallocarray},
                  {"memalign", by_memalign},
                  {"aligned_alloc", by_aligned_alloc},
                  {"posix_memalign", by_posix_memalign},
                  {"valloc", by_valloc},
                  {"pvalloc", by_pvalloc}};
enum { kFunctionCount = sizeof kFunctions / sizeof kFunctions[0] };

static int compare_pointers(const void* a, const void* b) {
  uintptr_t x = *(const uintptr_t*)a, y = *(const uintptr_t*)b;
  return (x > y) - (x < y);
}

CASE(size_zero_gives_unique_pointers) {
  static void* objects[kFunctionCount * 200];
  for (int i = 0; i < kFunctionCount * 200; i++) {
    objects[i] = kFunctions[i % kFunctionCount].allocate(hide_size(0));
    CHECK_MSG(objects[i] != NULL, "%s", kFunctions[i % kFunctionCount].name);
  }
  qsort(objects, kFunctionCount * 200, sizeof objects[0], compare_pointers);
  for (int i = 1; i < kFunctionCount * 200; i++) CHECK(objects[i] != objects[i - 1]);
  for (int i = 0; i < kFunctionCount * 200; i++) free(objects[i]);
  void* object = calloc(0, 8);
  CHECK(object != NULL);
  free(object);
  object = calloc(8, 0);
  CHECK(object != NULL);
  free(object);
}

CASE(sizes_past_ptrdiff_max_give_enomem) {
  const size_t sizes[] = {SIZE_MAX,
                          SIZE_MAX - 1,
                          SIZE_MAX - 15,
                          SIZE_MAX - 16,
                          SIZE_MAX - 4095,
                          SIZE_MAX - 65536,
                          SIZE_MAX / 2 + 2,
                          (size_t)PTRDIFF_MAX + 1,
                          (size_t)PTRDIFF_MAX,
                          (size_t)PTRDIFF_MAX - 4096,
                          (size_t)1 << 62,
                          (size_t)1 << 48};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    for (int f = 0; f < kFunctionCount; f++) {
      errno = 0;
      void* object = kFunctions[f].allocate(hide_size(sizes[i]));
      CHECK_MSG(object == NULL, "%s of %#zx", kFunctions[f].name, sizes[i]);
      CHECK_MSG(errno == ENOMEM, "%s of %#zx", kFunctions[f].name, sizes[i]);
    }
  }
}

CASE(products_that_overflow_give_enomem) {
  const size_t pairs[][2] = {{SIZE_MAX, 2},
                             {SIZE_MAX / 2, 3},
                             {(size_t)1 << 32, (size_t)1 << 32},
                             {SIZE_MAX / 2 + 1, 2},
                             {SIZE_MAX, SIZE_MAX},
                             {(size_t)1 << 33, ((size_t)1 << 31) + 8},
                             {(size_t)1 << 63, 2},
                             {((size_t)1 << 32) + 1, ((size_t)1 << 32) - 1}};
  char* kept = (char*)malloc(1000);
  fill(kept, 1000, 7);
  for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
    for (int swap = 0; swap < 2; swap++) {
      size_t count = hide_size(pairs[i][swap]), size = hide_size(pairs[i][1 - swap]);
      errno = 0;
      void* object = calloc(count, size);
      CHECK_MSG(object == NULL && errno == ENOMEM, "calloc(%#zx, %#zx)", count, size);
      errno = 0;
      object = reallocarray(NULL, count, size);
      CHECK_MSG(object == NULL && errno == ENOMEM, "reallocarray(NULL, %#zx, %#zx)", count, size);
      errno = 0;
      object = reallocarray(kept, count, size);
      CHECK_MSG(object == NULL && errno == ENOMEM, "reallocarray(p, %#zx, %#zx)", count, size);
    }
  }
  CHECK(filled(kept, 1000, 7));
  free(kept);
}

CASE(every_size_is_aligned_to_16) {
  static void* objects[4097];
  for (int f = 0; f < 5; f++) {
    for (size_t size = 0; size <= 4096; size++) {
      objects[size] = kFunctions[f].allocate(size);
      CHECK_MSG((uintptr_t)objects[size] % 16 == 0, "%s of %zu", kFunctions[f].name, size);
      memset(objects[size], (int)(size % 251), size);
    }
    for (size_t size = 0; size <= 4096; size++) {
      CHECK_MSG(all_bytes(objects[size], size, (unsigned char)(size % 251)),
                "size %zu: objects overlap", size);
      free(objects[size]);
    }
  }
  for (size_t size = 4097; size < ((size_t)64 << 20); size += size / 9) {
    void* object = malloc(size);
    CHECK_MSG((uintptr_t)object % 16 == 0, "size %zu", size);
    free(object);
  }
}

// All usable bytes of neighbours can be written without harm to each other.
CASE(usable_size_is_writable_to_the_last_byte) {
  enum { kEach = 8 };
  for (size_t size = 0; size < 3000000; size += size < 2100 ? 1 : size / 13) {
    char* objects[kEach];
    for (int i = 0; i < kEach; i++) {
      objects[i] = (char*)malloc(size);
      REQUIRE(objects[i]);
      size_t usable = malloc_usable_size(objects[i]);
      CHECK_MSG(usable >= size, "size %zu, usable %zu", size, usable);
      memset(objects[i], 'a' + i, usable);
    }
    for (int i = 0; i < kEach; i++) {
      CHECK_MSG(all_bytes(objects[i], malloc_usable_size(objects[i]), (unsigned char)('a' + i)),
                "size %zu", size);
      free(objects[i]);
    }
  }
  CHECK(malloc_usable_size(NULL) == 0);
}

// Inner waste: at most 15 bytes, or an eighth of the object, up to 1 MiB; at most 64 KiB above.
CASE(lanemalloc_inner_waste_is_bounded) {
  for (size_t size = 1; size <= ((size_t)1 << 20); size++) {
    void* object = malloc(size);
    size_t usable = malloc_usable_size(object), waste = usable - size;
    CHECK_MSG(usable >= size && (waste <= 15 || waste * 8 <= usable), "size %zu, usable %zu", size,
              usable);
    free(object);
  }
  for (size_t size = ((size_t)1 << 20) + 1; size < ((size_t)512 << 20); size += size / 37 + 1) {
    void* object = malloc(size);
    size_t usable = malloc_usable_size(object);
    CHECK_MSG(usable >= size && usable - size <= 65536, "size %zu, usable %zu", size, usable);
    free(object);
  }
}

static const size_t kTypical[] = {1, 16, 100, 1000, 5000, 40000, 70000, 300000, 3000000, 70000000};
enum { kTypicalCount = sizeof kTypical / sizeof kTypical[0] };

CASE(success_and_free_keep_errno) {
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < kTypicalCount; i++) {
      for (int f = 0; f < kFunctionCount; f++) {
        errno = 1234;
        void* object = kFunctions[f].allocate(kTypical[i]);
        CHECK_MSG(object && errno == 1234, "%s of %zu", kFunctions[f].name, kTypical[i]);
        CHECK_MSG(malloc_usable_size(object) >= kTypical[i] && errno == 1234, "malloc_usable_size");
        object = realloc(object, kTypical[i] + kTypical[i] / 2 + 1);
        CHECK_MSG(object && errno == 1234, "realloc to %zu", kTypical[i] + kTypical[i] / 2 + 1);
        free(object);
        CHECK_MSG(errno == 1234, "free of %zu bytes from %s", kTypical[i], kFunctions[f].name);
      }
    }
  }
  free(NULL);
  CHECK(errno == 1234);
}

static void* free_all_in_thread(void* argument) {
  void** objects = (void**)argument;
  for (int i = 0; i < kTypicalCount * 100; i++) {
    errno = 77;
    free(objects[i]);
    CHECK_MSG(errno == 77, "size %zu", kTypical[i % kTypicalCount]);
  }
  return NULL;
}

CASE(free_in_another_thread_keeps_errno) {
  static void* objects[kTypicalCount * 100];
  for (int i = 0; i < kTypicalCount * 100; i++) objects[i] = malloc(kTypical[i % kTypicalCount]);
  run_thread(free_all_in_thread, objects);
}

CASE(big_objects) {
  const size_t mib = 1 << 20;
  char* object = (char*)malloc(100 * mib);
  REQUIRE(object);
  for (size_t i = 0; i < 100; i++) object[i * mib] = (char)i;
  object[100 * mib - 1] = 'z';
  for (size_t i = 0; i < 100; i++) CHECK(object[i * mib] == (char)i);
  free(object);
  size_t before = status_bytes("VmRSS:");
  object = (char*)malloc(4096 * mib);
  REQUIRE(object);
  object[0] = object[4096 * mib - 1] = 1;
  CHECK(malloc_usable_size(object) >= 4096 * mib);
  CHECK(status_bytes("VmRSS:") < before + 64 * mib);  // untouched memory costs nothing
  free(object);
  object = (char*)calloc(2048, mib);
  REQUIRE(object);
  CHECK(object[0] == 0 && object[2048 * mib - 1] == 0);
  CHECK(status_bytes("VmRSS:") < before + 64 * mib);
  free(object);
}

// The memory of freed big objects goes back or is used again: rounds do not add up.
CASE(big_objects_do_not_pile_up) {
  for (int round = 0; round < 300; round++) {
    size_t size = ((size_t)20 << 20) + (size_t)round * 70000;
    char* object = (char*)malloc(size);
    REQUIRE(object);
    memset(object, round, size < ((size_t)4 << 20) ? size : (size_t)4 << 20);
    free(object);
  }
  CHECK(status_bytes("VmRSS:") < ((size_t)256 << 20));
}
