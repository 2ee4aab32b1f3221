// Memory that the program has locked goes back all the same, and limits of locked memory leave as
// much as they do with another malloc.
// Also linked with the static library.
#include <sys/mman.h>

#include "child.h"
#include "run_threads.h"

enum { kMiB = 1 << 20 };

static void* rest(void* unused) { return unused; }

static void have_threads(void) { run_thread(rest, NULL); }

// Waits until at most this much is resident. It calls free meanwhile, since a process without a
// scavenger gives memory back only in such calls.
static size_t wait_for_resident(size_t most) {
  size_t resident = 0;
  for (double end = seconds_now() + 10; seconds_now() < end; usleep(20000)) {
    if ((resident = status_bytes("VmRSS:")) <= most) break;
    free(hide(malloc(700000)));  // without a scavenger, frees of large memory look at the clock
  }
  return resident;
}

static void use_and_free(size_t size, size_t bytes) {
  const size_t count = bytes / size;
  char** all =
      mmap(NULL, count * sizeof(char*), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(all != MAP_FAILED);
  for (size_t i = 0; i < count; i++) {
    REQUIRE((all[i] = malloc(size)) != NULL);
    memset(all[i], 1, size);
  }
  for (size_t i = 0; i < count; i++) free(all[i]);
  munmap(all, count * sizeof(char*));
}

static void lock_all(void) {
  if (mlockall(MCL_CURRENT | MCL_FUTURE)) SKIP("mlockall is not allowed here");
}

// The process has another thread all the time.
static void* stay(void* unused) {
  for (;;) pause();
  return unused;
}
CASE(what_mlockall_has_locked_goes_back) {
  lock_all();
  pthread_t other;
  REQUIRE(pthread_create(&other, NULL, stay, NULL) == 0);
  const size_t before = status_bytes("VmRSS:");
  use_and_free(65536, (size_t)200 * kMiB);
  use_and_free(700000, (size_t)100 * kMiB);
  const size_t after = wait_for_resident(before + 16 * kMiB);
  CHECK_MSG(after <= before + 16 * kMiB, "%zu MiB before, %zu MiB afterwards", before / kMiB,
            after / kMiB);
  REQUIRE(pthread_cancel(other) == 0 && pthread_join(other, NULL) == 0);
}

CASE(what_mlockall_has_locked_goes_back_without_threads) {
  lock_all();
  const size_t before = status_bytes("VmRSS:");
  use_and_free(65536, (size_t)200 * kMiB);
  const size_t after = wait_for_resident(before + 48 * kMiB);
  CHECK_MSG(after <= before + 48 * kMiB, "%zu MiB before, %zu MiB afterwards", before / kMiB,
            after / kMiB);
  char* p = malloc((size_t)50 * kMiB);
  REQUIRE(p != NULL);
  fill(p, (size_t)50 * kMiB, 7);
  CHECK(filled(p, (size_t)50 * kMiB, 7));
  char* zeros = calloc((size_t)50, kMiB);
  REQUIRE(zeros != NULL);
  CHECK(all_bytes(zeros, (size_t)50 * kMiB, 0));
  free(p);
  free(zeros);
}

// The program has locked objects, and frees them without unlocking them. Neither these objects nor
// others stay resident.
CASE(what_mlock_has_locked_keeps_nothing) {
  have_threads();
  const size_t before = status_bytes("VmRSS:");
  char* locked[8];
  for (int i = 0; i < 8; i++) {
    REQUIRE((locked[i] = malloc((size_t)4 * kMiB)) != NULL);
    memset(locked[i], 1, (size_t)4 * kMiB);
    if (mlock(locked[i] + 8192, (size_t)2 * kMiB)) SKIP("mlock is not allowed here");
  }
  for (int i = 0; i < 8; i++) free(locked[i]);
  use_and_free(700000, (size_t)200 * kMiB);
  const size_t after = wait_for_resident(before + 16 * kMiB);
  CHECK_MSG(after <= before + 16 * kMiB, "%zu MiB before, %zu MiB afterwards", before / kMiB,
            after / kMiB);
}

CHILD(locks_itself) {
  free(hide(malloc(100)));
  CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
  void* p = malloc(100000);
  CHECK(p != NULL);
  free(p);
}

// A process of the user nobody, with the limit that systems grant by default.
CASE(mlockall_under_the_usual_limit) {
  if (geteuid() != 0) SKIP("only root becomes somebody else");
  memset(&child, 0, offsetof(struct Child, out));
  child.options = getenv("LANEMALLOC_OPTIONS");
  child.user = 65534;
  child.resource = RLIMIT_MEMLOCK;
  child.limit = 8 * kMiB;
  if (child.options && strstr(child.options, "checked=1")) SKIP("checked=1 takes 2 MiB more");
  run_child("locks_itself");
  CHECK_CHILD(child_succeeded());
}
