// realloc and reallocarray: glibc's rules for null, zero and failure; content kept over every
// change of size.
#include "child.h"

CASE(realloc_of_null_is_malloc) {
  char* object = (char*)realloc(NULL, 100);
  REQUIRE(object);
  memset(object, 1, 100);
  free(object);
  object = (char*)reallocarray(NULL, 10, 10);
  REQUIRE(object && malloc_usable_size(object) >= 100);
  free(object);
}

// glibc frees the object and returns null, whatever its size. The objects make 4 GiB in all, so one
// that is not freed shows.
CASE(realloc_to_zero_frees) {
  const size_t sizes[] = {1, 16, 1000, 40000, 100000, 5000000};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    for (int round = 0; round < 800; round++) {
      char* object = (char*)malloc(sizes[i]);
      REQUIRE(object);
      memset(object, 1, sizes[i] < 4096 ? sizes[i] : 4096);
      errno = 55;
      void* result = round % 3 == 0   ? realloc(object, hide_size(0))
                     : round % 3 == 1 ? reallocarray(object, hide_size(0), 8)
                                      : reallocarray(object, 8, hide_size(0));
      CHECK_MSG(result == NULL && errno == 55, "size %zu, round %d", sizes[i], round);
    }
  }
  CHECK(status_bytes("VmSize:") < ((size_t)1 << 50));
}

CHILD(realloc_to_zero_a_million_times) {
  for (int i = 0; i < 1000000; i++)
    if (realloc(malloc(1000), hide_size(0)) != NULL) _exit(3);
  CHECK(status_bytes("VmRSS:") < ((size_t)200 << 20));
}
CASE(realloc_to_zero_does_not_leak) {
  run_child_with("realloc_to_zero_a_million_times", NULL);
  CHECK_CHILD(child_succeeded());
}

CASE(failed_realloc_keeps_the_object) {
  const size_t sizes[] = {1, 16, 100, 1000, 5000, 40000, 100000, 3000000};
  const size_t wanted[] = {SIZE_MAX, SIZE_MAX - 4096, (size_t)PTRDIFF_MAX + 1, (size_t)PTRDIFF_MAX,
                           (size_t)1 << 60};
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    char* object = (char*)malloc(sizes[i]);
    fill(object, sizes[i], 3);
    for (size_t w = 0; w < sizeof wanted / sizeof wanted[0]; w++) {
      errno = 0;
      void* result = realloc(object, hide_size(wanted[w]));
      CHECK_MSG(result == NULL && errno == ENOMEM, "%zu to %#zx", sizes[i], wanted[w]);
    }
    void* other = malloc(sizes[i]);  // would get the object if it had been freed
    CHECK(other != object);
    memset(other, 0, sizes[i]);
    CHECK_MSG(filled(object, sizes[i], 3), "size %zu", sizes[i]);
    free(other);
    free(object);
  }
}

static const size_t kSizes[] = {1,      8,       15,      16,      17,     31,    64,
                                100,    128,     129,     1000,    1024,   1025,  4096,
                                4097,   10000,   32768,   32769,   65536,  65537, 131073,
                                262144, 1000000, 1048577, 2500000, 4194305};
enum { kSizeCount = sizeof kSizes / sizeof kSizes[0] };

static void check_resized(char* object, size_t from, size_t to) {
  fill(object, from, (unsigned)(from + to));
  char* resized = (char*)realloc(object, to);
  REQUIRE(resized);
  CHECK_MSG(filled(resized, from < to ? from : to, (unsigned)(from + to)), "%zu to %zu", from, to);
  CHECK_MSG(malloc_usable_size(resized) >= to, "%zu to %zu", from, to);
  CHECK_MSG((uintptr_t)resized % 16 == 0, "%zu to %zu", from, to);
  memset(resized, 0x5A, to);
  free(resized);
}

CASE(content_is_kept_from_every_size_to_every_size) {
  for (int i = 0; i < kSizeCount; i++)
    for (int j = 0; j < kSizeCount; j++)
      check_resized((char*)malloc(kSizes[i]), kSizes[i], kSizes[j]);
}

CASE(content_of_aligned_objects_is_kept) {
  const size_t alignments[] = {32, 64, 512, 4096, 65536, 2097152};
  for (size_t a = 0; a < sizeof alignments / sizeof alignments[0]; a++)
    for (int i = 0; i < kSizeCount; i += 3)
      for (int j = 1; j < kSizeCount; j += 3)
        check_resized((char*)memalign(alignments[a], kSizes[i]), kSizes[i], kSizes[j]);
}

CASE(content_of_calloced_objects_is_kept) {
  for (int i = 0; i < kSizeCount; i += 2)
    for (int j = 0; j < kSizeCount; j += 2)
      check_resized((char*)calloc(1, kSizes[i]), kSizes[i], kSizes[j]);
}

// The object grows as a vector or a string buffer does; a neighbour allocated between the steps
// must not be touched.
CASE(grows_byte_by_byte_and_back) {
  char* object = NULL;
  for (size_t size = 1; size < 20000; size++) {
    object = (char*)realloc(object, size);
    REQUIRE(object);
    object[size - 1] = (char)(size * 7);
    char* neighbour = (char*)malloc(size % 300);
    memset(neighbour, 0xEE, size % 300);
    free(neighbour);
  }
  for (size_t size = 19999; size > 0; size--) {
    CHECK_MSG(object[size - 1] == (char)(size * 7), "at %zu", size);
    object = (char*)realloc(object, size);
    REQUIRE(object);
  }
  free(object);
}

CASE(grows_to_half_a_gib_and_shrinks_back) {
  const size_t limit = (size_t)512 << 20;
  size_t size = 4096;
  char* object = (char*)malloc(size);
  fill(object, 4096, 9);
  while (size < limit) {
    size *= 2;
    object = (char*)realloc(object, size);
    REQUIRE(object);
    CHECK_MSG(filled(object, 4096, 9), "size %zu", size);
    CHECK_MSG(size == 8192 || object[size / 2 - 1] == (char)(size / 8192), "size %zu", size);
    object[size - 1] = (char)(size / 4096);
  }
  while (size > 16) {
    size /= 2;
    object = (char*)realloc(object, size);
    REQUIRE(object);
    CHECK_MSG(filled(object, size < 4096 ? size : 4096, 9), "size %zu", size);
    CHECK_MSG(malloc_usable_size(object) < size * 4 + 65536, "size %zu keeps %zu", size,
              malloc_usable_size(object));
  }
  free(object);
}

CASE(random_resizing_of_many_objects) {
  enum { kObjects = 300 };
  static char* objects[kObjects];
  static size_t sizes[kObjects];
  static unsigned seeds[kObjects];
  uint64_t state = 88172645463325252u;
  for (int step = 0; step < 60000; step++) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    unsigned i = (unsigned)(state % kObjects);
    size_t size = (size_t)(state >> 32) % ((size_t)1 << (4 + (state >> 20) % 14)) + 1;
    objects[i] = (char*)realloc(objects[i], size);
    REQUIRE(objects[i]);
    size_t kept = sizes[i] < size ? sizes[i] : size;
    CHECK_MSG(filled(objects[i], kept, seeds[i]), "step %d: %zu to %zu", step, sizes[i], size);
    sizes[i] = size;
    seeds[i] = (unsigned)step;
    fill(objects[i], size, seeds[i]);
  }
  for (int i = 0; i < kObjects; i++) {
    CHECK(objects[i] == NULL || filled(objects[i], sizes[i], seeds[i]));
    free(objects[i]);
  }
}
