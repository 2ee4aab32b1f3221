// The C library's promises about calloc and alignments, checked to the last byte and up to the
// largest number.
#include <pthread.h>

#include "check.h"
#include "child.h"

// --- calloc.

static void check_zero_to_the_end(size_t size) {
  for (int round = 0; round < 3; round++) {
    // The place that the next object gets must not hold zeros.
    unsigned char* dirty = malloc(size);
    REQUIRE(dirty != NULL);
    memset(dirty, 0xA5, malloc_usable_size(dirty));
    free(hide(dirty));
    unsigned char* zero = calloc(1, size);
    REQUIRE(zero != NULL);
    CHECK_MSG(all_bytes(zero, malloc_usable_size(zero), 0), "calloc(1, %zu), %zu usable", size,
              malloc_usable_size(zero));
    free(hide(zero));
  }
}

CASE(calloc_is_zero_to_the_last_usable_byte) {
  for (size_t size = 0; size <= 4000; size++) check_zero_to_the_end(size);
  for (size_t size = 4001; size < (8u << 20); size += size / 7) check_zero_to_the_end(size);
}

// --- Alignments.

CASE(alignment_beyond_all_memory_is_no_memory) {
  const size_t alignments[] = {(size_t)1 << 40, (size_t)1 << 46,       ((size_t)1 << 47) + 1,
                               (size_t)1 << 62, ((size_t)1 << 62) + 1, ((size_t)1 << 63) - 1,
                               (size_t)1 << 63};
  for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++) {
    for (size_t size = 0; size < 200000; size = size * 3 + 1) {
      errno = 0;
      CHECK_MSG(memalign(hide_size(alignments[i]), size) == NULL && errno == ENOMEM,
                "memalign(%#zx, %zu)", alignments[i], size);
      errno = 0;
      CHECK_MSG(aligned_alloc(hide_size(alignments[i]), size) == NULL && errno == ENOMEM,
                "aligned_alloc(%#zx, %zu)", alignments[i], size);
    }
  }
  errno = 0;
  CHECK(memalign(hide_size(((size_t)1 << 63) + 1), 16) == NULL && errno == EINVAL);
}
