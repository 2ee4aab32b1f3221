// posix_memalign, aligned_alloc, memalign, valloc, pvalloc: alignment, errors, errno.
#include "check.h"

static int aligned_to(const void* object, size_t alignment) {
  return (uintptr_t)object % alignment == 0;
}

CASE(posix_memalign_refuses_bad_alignment) {
  const size_t bad[] = {
      0, 1, 2, 3, 4, 5, 7, 9, 12, 24, 40, 48, 100, 4095, 4097, SIZE_MAX, ((size_t)1 << 63) + 8};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    void* object = (void*)0x1234;
    errno = 99;
    int error = posix_memalign(&object, hide_size(bad[i]), 100);
    CHECK_MSG(error == EINVAL, "alignment %zu gives %d", bad[i], error);
    CHECK_MSG(object == (void*)0x1234 && errno == 99, "alignment %zu", bad[i]);
  }
}

CASE(posix_memalign_out_of_memory) {
  const size_t alignments[] = {8, 16, 64, 4096, (size_t)1 << 21, (size_t)1 << 62, (size_t)1 << 63};
  const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 100, (size_t)PTRDIFF_MAX + 1, PTRDIFF_MAX,
                          (size_t)1 << 60};
  for (size_t a = 0; a < sizeof alignments / sizeof alignments[0]; a++) {
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
      void* object = (void*)0x1234;
      int error = posix_memalign(&object, alignments[a], hide_size(sizes[i]));
      CHECK_MSG(error == ENOMEM && object == (void*)0x1234, "alignment %#zx, size %#zx: %d",
                alignments[a], sizes[i], error);
    }
  }
}

// POSIX gives the error as the result; glibc also writes errno.
CASE(lanemalloc_posix_memalign_out_of_memory_keeps_errno) {
  void* object = NULL;
  errno = 99;
  CHECK(posix_memalign(&object, 64, hide_size(SIZE_MAX - 100)) == ENOMEM);
  CHECK(errno == 99);
}

static void check_alignment(size_t alignment, size_t size) {
  void* objects[12];
  for (int i = 0; i < 12; i += 3) {
    objects[i] = NULL;
    int error = alignment < sizeof(void*) ? 0 : posix_memalign(&objects[i], alignment, size);
    CHECK_MSG(error == 0, "posix_memalign(%zu, %zu) gives %d", alignment, size, error);
    objects[i + 1] = memalign(alignment, size);
    objects[i + 2] = aligned_alloc(alignment, size);
    for (int j = i; j < i + 3; j++) {
      if (j == i && alignment < sizeof(void*)) continue;
      CHECK_MSG(objects[j] != NULL && aligned_to(objects[j], alignment),
                "function %d, alignment %zu, size %zu: %p", j % 3, alignment, size, objects[j]);
      CHECK_MSG(malloc_usable_size(objects[j]) >= size, "alignment %zu, size %zu", alignment, size);
      memset(objects[j], j, malloc_usable_size(objects[j]));
    }
  }
  for (int i = 0; i < 12; i++) {
    CHECK_MSG(objects[i] == NULL ||
                  all_bytes(objects[i], malloc_usable_size(objects[i]), (unsigned char)i),
              "alignment %zu, size %zu: objects overlap", alignment, size);
    free(objects[i]);
  }
}

CASE(every_alignment_with_every_kind_of_size) {
  const size_t sizes[] = {0,    1,    15,   16,   17,   48,    63,    64,    65,    100,
                          1000, 1024, 1040, 4096, 5000, 32768, 40000, 65536, 70000, 1000000};
  for (size_t alignment = 1; alignment <= ((size_t)4 << 20); alignment *= 2)
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
      check_alignment(alignment, sizes[i]);
}

CASE(many_small_objects_at_each_alignment) {
  static void* objects[3000];
  for (size_t alignment = 32; alignment <= 4096; alignment *= 2) {
    for (int i = 0; i < 3000; i++) {
      objects[i] = memalign(alignment, (size_t)i % 200);
      CHECK(objects[i] && aligned_to(objects[i], alignment));
      memset(objects[i], i, (size_t)i % 200);
    }
    for (int i = 0; i < 3000; i++) {
      CHECK(all_bytes(objects[i], (size_t)i % 200, (unsigned char)i));
      free(objects[i]);
    }
  }
}

CASE(alignment_up_to_one_gib) {
  for (size_t alignment = (size_t)8 << 20; alignment <= ((size_t)1 << 30); alignment *= 2) {
    for (size_t size = 1; size < ((size_t)64 << 20); size = size * 50 + 3) {
      char* object = (char*)memalign(alignment, size);
      CHECK_MSG(object != NULL && aligned_to(object, alignment), "alignment %zu, size %zu",
                alignment, size);
      if (object) object[0] = object[size - 1] = 1;
      free(object);
    }
  }
}

// glibc 2.36 rounds such an alignment up to a power of two; 0 counts as 1. An alignment past 2^63
// gives EINVAL.
CASE(alignment_that_is_no_power_of_two_is_rounded_up) {
  const size_t pairs[][2] = {{0, 16},    {3, 16},      {24, 32},     {33, 64},    {48, 64},
                             {100, 128}, {1000, 1024}, {3000, 4096}, {5000, 8192}};
  for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
    for (int round = 0; round < 3; round++) {
      void* object = aligned_alloc(hide_size(pairs[i][0]), 10);
      CHECK_MSG(object != NULL && aligned_to(object, pairs[i][1]), "aligned_alloc(%zu, 10)",
                pairs[i][0]);
      free(object);
      object = memalign(hide_size(pairs[i][0]), 1000);
      CHECK_MSG(object != NULL && aligned_to(object, pairs[i][1]), "memalign(%zu, 1000)",
                pairs[i][0]);
      free(object);
    }
  }
  const size_t too_large[] = {((size_t)1 << 63) + 1, SIZE_MAX};
  for (size_t i = 0; i < 2; i++) {
    errno = 0;
    CHECK_MSG(memalign(hide_size(too_large[i]), 10) == NULL && errno == EINVAL,
              "memalign(%#zx, 10)", too_large[i]);
    errno = 0;
    CHECK_MSG(aligned_alloc(hide_size(too_large[i]), 10) == NULL && errno == EINVAL,
              "aligned_alloc(%#zx, 10)", too_large[i]);
  }
  const size_t beyond_memory[] = {(size_t)1 << 62, ((size_t)1 << 62) + 1, ((size_t)1 << 63) - 1,
                                  (size_t)1 << 63};
  for (size_t i = 0; i < 4; i++) {
    errno = 0;
    CHECK_MSG(memalign(hide_size(beyond_memory[i]), 10) == NULL && errno == ENOMEM,
              "memalign(%#zx, 10)", beyond_memory[i]);
    errno = 0;
    CHECK_MSG(aligned_alloc(hide_size(beyond_memory[i]), 10) == NULL && errno == ENOMEM,
              "aligned_alloc(%#zx, 10)", beyond_memory[i]);
  }
}

CASE(valloc_and_pvalloc_give_pages) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  for (size_t size = 0; size < 10 * page; size += size / 5 + 1) {
    char* object = (char*)valloc(size);
    CHECK_MSG(object && aligned_to(object, page), "valloc(%zu)", size);
    memset(object, 1, size);
    char* pages = (char*)pvalloc(size);
    size_t rounded = (size + page - 1) / page * page;
    CHECK_MSG(pages && aligned_to(pages, page), "pvalloc(%zu)", size);
    CHECK_MSG(malloc_usable_size(pages) >= rounded, "pvalloc(%zu)", size);
    memset(pages, 2, rounded);
    CHECK(all_bytes(object, size, 1));
    free(object);
    free(pages);
  }
}
