// How much freed memory a process with one thread keeps: little while little is live, the memory
// that it uses again, and nothing for long. The bounds are shares of the live memory and of the
// written memory.
#include <sys/resource.h>

#include "child.h"

enum { kKiB = 1 << 10, kMiB = 1 << 20, kPage = 4096 };

static uint64_t state = 88172645463325252u;
static size_t below(size_t n) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state % n;
}
static void touch(char* p, size_t from, size_t to) {
  for (size_t at = from; at < to; at += kPage) ((volatile char*)p)[at] = 1;
}
static size_t faults(void) {
  struct rusage usage;
  REQUIRE(getrusage(RUSAGE_SELF, &usage) == 0);
  return (size_t)usage.ru_minflt;
}

// The one live block, of 64 to 1024 KiB, is replaced by another, again and again.
CASE(one_live_block_of_many_sizes_keeps_no_more_than_a_few) {
  const size_t least = 64 * kKiB, most = kMiB;
  free(malloc(1));
  const size_t before = status_bytes("VmRSS:");
  for (int i = 0; i < 20000; i++) {
    const size_t size = least + below(most - least);
    char* p = malloc(size);
    REQUIRE(p != NULL);
    touch(p, 0, size);
    free(p);
  }
  const size_t peak = status_bytes("VmHWM:");
  CHECK_MSG(peak < before + 3 * most, "%zu KiB more", (peak - before) / kKiB);
}

// The same, but the new block is allocated before the old one is freed.
CASE(two_live_blocks_of_many_sizes_keep_no_more_than_a_few) {
  const size_t least = 64 * kKiB, most = kMiB;
  free(malloc(1));
  const size_t before = status_bytes("VmRSS:");
  char* old = NULL;
  for (int i = 0; i < 20000; i++) {
    const size_t size = least + below(most - least);
    char* p = malloc(size);
    REQUIRE(p != NULL);
    free(old);
    touch(p, 0, size);
    old = p;
  }
  free(old);
  const size_t peak = status_bytes("VmHWM:");
  CHECK_MSG(peak < before + 5 * most, "%zu KiB more", (peak - before) / kKiB);
}

CASE(a_block_that_grows_step_by_step_takes_little_more_than_it_has) {
  const size_t most = 8 * kMiB;
  free(malloc(1));
  const size_t before = status_bytes("VmRSS:");
  for (int round = 0; round < 20; round++) {
    char* p = NULL;
    size_t old = 0;
    for (size_t size = 32 * kKiB; size < most; size += size / 4 + 100) {
      p = realloc(p, size);
      REQUIRE(p != NULL);
      touch(p, old, size);
      old = size;
    }
    free(p);
  }
  const size_t peak = status_bytes("VmHWM:");
  CHECK_MSG(peak < before + most + most / 2, "%zu KiB more", (peak - before) / kKiB);
}

// Twenty buffers of 5 to 25 MiB are replaced at random. Only a small part of the written pages is
// faulted in.
CASE(lanemalloc_large_buffers_that_are_replaced_are_not_faulted_in_again) {
  enum { kBuffers = 20, kRounds = 600 };
  char* buffers[kBuffers] = {0};
  size_t written = 0;
  const size_t before = faults();
  for (int i = 0; i < kRounds; i++) {
    const size_t size = 5 * kMiB + below(20 * kMiB);
    char* p = malloc(size);
    REQUIRE(p != NULL);
    touch(p, 0, size);
    written += size / kPage;
    char** old = &buffers[below(kBuffers)];
    free(*old);
    *old = p;
  }
  const size_t part = faults() - before;
  CHECK_MSG(part < written / 6, "%zu faults in %zu pages", part, written);
  for (int i = 0; i < kBuffers; i++) free(buffers[i]);
}

// The program goes quiet, and then frees something again.
CASE(what_was_free_for_long_goes_back_at_the_next_large_free) {
  enum { kBlocks = 40 };
  char* blocks[kBlocks];
  char* later = malloc(2 * kMiB);
  touch(later, 0, 2 * kMiB);
  const size_t before = status_bytes("VmRSS:");
  for (int i = 0; i < kBlocks; i++) {
    REQUIRE((blocks[i] = malloc(kMiB)) != NULL);
    touch(blocks[i], 0, kMiB);
  }
  for (int i = 0; i < kBlocks; i++) free(blocks[i]);
  usleep(1500 * 1000);  // one and a half times the decay time
  free(later);
  const size_t after = status_bytes("VmRSS:");
  CHECK_MSG(after < before + kMiB, "%zu KiB more", (after - before) / kKiB);
}
