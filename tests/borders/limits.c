// Limits of addresses and of locked memory that a process sets for itself: how much of them malloc
// can use, and what else needs some.
// Also linked with the static library.
#include <sys/mman.h>
#include <sys/time.h>

#include "child.h"
#include "run_threads.h"

enum { kMiB = 1 << 20 };

static void limit_addresses(rlim_t bytes) {
  struct rlimit limit = {bytes, bytes};
  REQUIRE(setrlimit(RLIMIT_AS, &limit) == 0);
}

// --- What an idle program takes.

CHILD(tells_its_addresses) {
  free(hide(malloc(100)));
  say("%zu %zu\n", status_bytes("VmSize:"), status_bytes("VmPeak:"));
}

CASE(an_idle_program_takes_few_addresses) {
  size_t size[2], peak[2];
  for (int plain = 0; plain < 2; plain++) {
    if (plain) unsetenv("LD_PRELOAD");
    run_child_with("tells_its_addresses", getenv("LANEMALLOC_OPTIONS"));
    CHECK_CHILD(child_succeeded() && sscanf(child.out, "%zu %zu", &size[plain], &peak[plain]) == 2);
  }
  // If the library is linked in, both runs have it. Then the figure to compare with is what a
  // program has with the C library.
  const size_t others = size[1] < 8 * kMiB ? size[1] : 8 * kMiB;
  CHECK_MSG(size[0] <= others + 16 * kMiB, "%zu against %zu KiB", size[0] >> 10, size[1] >> 10);
  CHECK_MSG(peak[0] <= others + 32 * kMiB, "%zu against %zu KiB", peak[0] >> 10, peak[1] >> 10);
}

// --- How much a program can take.

// Takes objects until there are no more, touches each, and gives them back.
static size_t take_all(size_t size) {
  size_t sum = 0;
  void** all = NULL;
  for (void** p; (p = malloc(size)) != NULL; sum += size) {
    *p = all;
    all = p;
  }
  CHECK(errno == ENOMEM);
  while (all) {
    void** next = *all;
    free(all);
    all = next;
  }
  return sum;
}

static void have_nearly_all(const size_t* sizes, int count) {
  // checked=1 keeps a bit for each object, and the empty slabs of the object's thread.
  const char* options = getenv("LANEMALLOC_OPTIONS");
  const size_t least = options && strstr(options, "checked=1") ? 450 : 490;
  free(hide(malloc(100)));
  limit_addresses((rlim_t)500 * kMiB);
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < count; i++) {
      const size_t sum = take_all(sizes[i]);
      CHECK_MSG(sum >= least * kMiB, "round %d: %zu MiB of 500, in objects of %zu", round,
                sum / kMiB, sizes[i]);
    }
  }
}

CASE(who_limits_himself_has_nearly_all) {
  const size_t sizes[] = {1 << 20, 65536, 4096};
  have_nearly_all(sizes, 3);
}

CASE(lanemalloc_who_limits_himself_has_nearly_all_in_small_objects) {
  const size_t sizes[] = {1024, 128, 1 << 20};
  have_nearly_all(sizes, 3);
}

// --- What else needs addresses.

static pthread_barrier_t all_here;

static void* use_memory(void* unused) {
  void* p = malloc(100000);
  REQUIRE(p != NULL);
  fill(p, 100000, 1);
  pthread_barrier_wait(&all_here);
  CHECK(filled(p, 100000, 1));
  free(p);
  return unused;
}

CASE(threads_start_under_a_limit) {
  enum { kThreads = 20 };
  limit_addresses((rlim_t)600 * kMiB);
  pthread_t threads[kThreads];
  pthread_barrier_init(&all_here, NULL, kThreads);
  start_threads(threads, kThreads, use_memory);
  join_threads(threads, kThreads);
}

// Like a server that limits, long after its start, how much its guests may have.
CASE(a_server_limits_itself_late_and_maps_a_file_of_its_own) {
  enum { kObjects = 20000 };
  static void* objects[kObjects];
  for (int i = 0; i < kObjects; i++) REQUIRE((objects[i] = malloc((size_t)(i % 1000 + 1))) != NULL);
  limit_addresses((rlim_t)200 * kMiB);
  void* map =
      mmap(NULL, (size_t)128 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(map != MAP_FAILED);
  void* p = malloc((size_t)16 * kMiB);
  REQUIRE(p != NULL);
  fill(p, (size_t)16 * kMiB, 3);
  for (int i = 0; i < kObjects; i++) free(objects[i]);
  CHECK(filled(p, (size_t)16 * kMiB, 3));
  free(p);
}

// After a refusal, memory that is freed is available to the program's own mappings.
CASE(after_a_refusal_freed_memory_does_not_count) {
  limit_addresses((rlim_t)400 * kMiB);
  const size_t sum = take_all(1 << 20);
  CHECK_MSG(sum >= (size_t)380 * kMiB, "%zu MiB", sum / kMiB);
  void* map = MAP_FAILED;
  for (double end = seconds_now() + 10; map == MAP_FAILED && seconds_now() < end; usleep(20000)) {
    free(hide(malloc(100000)));
    map =
        mmap(NULL, (size_t)200 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  CHECK(map != MAP_FAILED);
}

// --- Metadata that cannot grow.

// The blocks take nearly all of the address space. If the library needs more for its metadata, it
// must do without, and malloc must return null.
CASE(without_addresses_nothing_is_lost) {
  limit_addresses((rlim_t)700 * kMiB);
  char* blocks[64];
  int count = 0;
  while (count < 64 && (blocks[count] = malloc((size_t)16 * kMiB)) != NULL) {
    memset(blocks[count], count + 1, 4096);
    count++;
  }
  CHECK_MSG(count > 38, "%d blocks of 16 MiB", count);
  for (int i = 0; i < count; i++) CHECK(all_bytes(blocks[i], 4096, (unsigned char)(i + 1)));
  for (int i = 0; i < count; i++) free(blocks[i]);
}

// --- Other limits.

CASE(a_limit_of_data_is_told_and_what_is_freed_serves_again) {
  struct rlimit limit = {(rlim_t)200 * kMiB, (rlim_t)200 * kMiB};
  REQUIRE(setrlimit(RLIMIT_DATA, &limit) == 0);
  for (int round = 0; round < 3; round++) {
    const size_t size = round == 1 ? 4096 : 1 << 20;
    const size_t sum = take_all(size);
    CHECK_MSG(sum >= (size_t)170 * kMiB && sum <= (size_t)200 * kMiB, "%zu MiB in objects of %zu",
              sum / kMiB, size);
  }
}

CHILD(uses_memory_in_threads) {
  enum { kThreads = 8 };
  pthread_t threads[kThreads];
  pthread_attr_t attributes;  // the size of the stacks is the limit, if there is one
  REQUIRE(pthread_attr_init(&attributes) == 0);
  pthread_barrier_init(&all_here, NULL, kThreads);
  for (int i = 0; i < kThreads; i++)
    REQUIRE(pthread_create(&threads[i], &attributes, use_memory, NULL) == 0);
  join_threads(threads, kThreads);
  // If the stack has no limit, the kernel maps from the bottom up.
  void* large[64];
  for (int i = 0; i < 64; i++) {
    REQUIRE((large[i] = malloc(kMiB)) != NULL);
    fill(large[i], kMiB, (unsigned)i);
  }
  for (int i = 0; i < 64; i++) {
    CHECK(filled(large[i], kMiB, (unsigned)i));
    free(large[i]);
  }
}
CASE(a_stack_without_a_limit_and_a_small_one) {
  const rlim_t sizes[] = {RLIM_INFINITY, (rlim_t)128 << 10};
  for (int i = 0; i < 2; i++) {
    struct rlimit limit;
    REQUIRE(getrlimit(RLIMIT_STACK, &limit) == 0);
    if (sizes[i] > limit.rlim_max) SKIP("the stack is limited here");
    limit.rlim_cur = sizes[i];
    REQUIRE(setrlimit(RLIMIT_STACK, &limit) == 0);
    run_child_with("uses_memory_in_threads", getenv("LANEMALLOC_OPTIONS"));
    CHECK_CHILD(child_succeeded());
  }
}
