// LANEMALLOC_OPTIONS: messages, strict=1, stats=exit. Each child starts with a string of its own.
#include <semaphore.h>
#include <sys/prctl.h>

#include "child.h"
#include "run_threads.h"

static void allocate_and_free(void) {
  for (size_t size = 1; size < 100000; size = size * 2 + 1) free(hide(malloc(size)));
}
CHILD(work) { allocate_and_free(); }

static const char kPrefix[] = "lanemalloc: LANEMALLOC_OPTIONS: ";

CASE(lanemalloc_unknown_key_is_named_with_the_nearest) {
  const char* const keys[][2] = {
      {"decoy_ms", "decay_ms"}, {"decay", "decay_ms"},         {"decay-ms", "decay_ms"},
      {"cheked", "checked"},    {"badpointer", "bad_pointer"}, {"bad_pointers", "bad_pointer"},
      {"stat", "stats"},        {"strickt", "strict"}};
  for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
    char option[100], line[200];
    snprintf(option, sizeof option, "%s=1", keys[i][0]);
    snprintf(line, sizeof line, "%sunknown option '%s' (did you mean '%s'?), ignored\n", kPrefix,
             keys[i][0], keys[i][1]);
    run_child_with("work", option);
    CHECK_CHILD(child_succeeded() && strcmp(child.err, line) == 0);
  }
}

// With odd strings the program runs, and prints at most one line for each entry.
CASE(odd_strings_do_no_harm) {
  const char* const odd[] = {"",
                             ",",
                             ",,,,",
                             "=",
                             "=1",
                             "=,=,=",
                             "decay_ms",
                             "decay_ms=1,",
                             ",decay_ms=1",
                             " decay_ms=1",
                             "decay_ms =1",
                             "decay_ms= 1",
                             "decay_ms=1=2",
                             "\"decay_ms=1\"",
                             "%s%n%n%s=%d",
                             "a=\n\nb",
                             "\xff\xfe\x01=\x80",
                             "decay_ms=1;checked=1"};
  for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
    run_child_with("work", odd[i]);
    CHECK_CHILD(child_succeeded() && line_count() <= 5);
  }
}

CASE(very_long_strings_do_no_harm) {
  static char text[120001];
  memset(text, 'a', 120000);
  run_child_with("work", text);
  CHECK_CHILD(child_succeeded() && line_count() <= 1);
  memcpy(text, "decay_ms=", 9);
  run_child_with("work", text);
  CHECK_CHILD(child_succeeded() && line_count() <= 1);
  memset(text + 9, '1', 119991);
  run_child_with("work", text);
  CHECK_CHILD(child_succeeded() && line_count() <= 1);
  for (int i = 0; i < 120000; i++) text[i] = "x=1,"[i % 4];
  run_child_with("work", text);
  CHECK_CHILD(child_succeeded() && line_count() <= 30000);
  memset(text, ',', 120000);
  memcpy(text + 119990, "checked=1", 9);
  text[119999] = 0;
  run_child_with("work", text);
  CHECK_CHILD(child_succeeded() && child.err[0] == 0);
}

CASE(lanemalloc_every_bad_entry_gets_its_line) {
  run_child_with("work", "decoy_ms=1,checked=9,stats=none,cheked=1");
  CHECK_CHILD(child_succeeded() && line_count() == 3 &&
              lines_with("unknown option 'decoy_ms'", "'decay_ms'") == 1 &&
              lines_with("bad value '9'", "'checked'") == 1 &&
              lines_with("unknown option 'cheked'", "'checked'") == 1);
}

CASE(lanemalloc_strict_makes_errors_fatal) {
  const char* const options[][2] = {{"strict=1,decoy_ms=1", "unknown option 'decoy_ms'"},
                                    {"decoy_ms=1,strict=1", "unknown option 'decoy_ms'"},
                                    {"strict=1,decay_ms=x", "bad value 'x'"},
                                    {"checked=maybe,strict=1", "bad value 'maybe'"}};
  for (size_t i = 0; i < 4; i++) {
    run_child_with("work", options[i][0]);
    CHECK_CHILD(child_aborted() && lines_with(kPrefix, options[i][1]) == 1);
  }
}

CHILD(fork_and_work) {
  for (int i = 0; i < 3; i++) {
    pid_t pid = fork();
    if (pid == 0) {
      allocate_and_free();
      _exit(0);
    }
    waitpid(pid, NULL, 0);
  }
}
CASE(lanemalloc_a_forked_child_does_not_repeat_messages) {
  run_child_with("fork_and_work", "decoy_ms=1");
  CHECK_CHILD(child_succeeded() && line_count() == 1);
}

static const char* const kStatNames[] = {
    "allocations",       "frees",           "live objects", "live bytes",
    "remote frees",      "remote batches",  "inbox drains", "failed lane entries",
    "overflow entries",  "rescue entries",  "revocations",  "depot lock waits",
    "region lock waits", "bytes committed", "bytes purged"};

CASE(lanemalloc_stats_lines_are_complete) {
  run_child_with("work", "stats=exit");
  CHECK_CHILD(child_succeeded());
  for (size_t i = 0; i < sizeof kStatNames / sizeof kStatNames[0]; i++)
    CHECK_MSG(child_stat(kStatNames[i]) >= 0, "%s", kStatNames[i]);
  CHECK_CHILD(lines_with("lanemalloc: allocations: ", "") == 1);
  CHECK_CHILD(lines_with("lanemalloc: ", ": ") == line_count());
  CHECK_CHILD(child_stat("live objects") == child_stat("allocations") - child_stat("frees"));
  run_child_with("work", "stats=none");
  CHECK_CHILD(child_succeeded() && child.err[0] == 0);
}

struct Stats {
  long long allocations, frees, live, bytes, remote;
};
static struct Stats stats_of(const char* name, const char* argument, const char* options) {
  memset(&child, 0, offsetof(struct Child, out));
  child.options = options;
  child.argument = argument;
  run_child(name);
  CHECK_CHILD(child_succeeded());
  struct Stats stats = {child_stat("allocations"), child_stat("frees"), child_stat("live objects"),
                        child_stat("live bytes"), child_stat("remote frees")};
  CHECK_CHILD(stats.live == stats.allocations - stats.frees);
  return stats;
}

// The count of a child is compared with that of the same child with argument 0, so start and end
// cancel out. Each thread that ends frees what pthread_create had noted about it. That is a remote
// free, unless the scavenger was just looking into the creator's lane.
static void check_counts_of(int threads, const char* name, long long allocations, long long frees,
                            long long remote, long long least_bytes) {
  const char* const options[] = {"stats=exit", "stats=exit,checked=1", "stats=exit,decay_ms=0"};
  for (int i = 0; i < 3; i++) {
    struct Stats zero = stats_of(name, "0", options[i]), some = stats_of(name, "1000", options[i]);
    CHECK_MSG(some.allocations - zero.allocations == allocations, "%s, %s: %lld", name, options[i],
              some.allocations - zero.allocations);
    CHECK_MSG(some.frees - zero.frees == frees, "%s, %s: %lld", name, options[i],
              some.frees - zero.frees);
    CHECK_MSG(remote < 0 || llabs(some.remote - zero.remote - remote) <= threads, "%s, %s: %lld",
              name, options[i], some.remote - zero.remote);
    long long bytes = some.bytes - zero.bytes;
    CHECK_MSG(bytes >= least_bytes && bytes <= least_bytes + least_bytes / 4, "%s, %s: %lld bytes",
              name, options[i], bytes);
  }
}

static int argument_count(void) { return atoi(test_argument); }

static void check_counts(const char* name, long long allocations, long long frees, long long remote,
                         long long least_bytes) {
  check_counts_of(0, name, allocations, frees, remote, least_bytes);
}

CHILD(plain_counts) {
  for (int i = 0; i < argument_count(); i++) {
    void* kept = malloc(1000);
    free(hide(malloc((size_t)i)));
    free(hide(calloc(1, 5000)));
    free(hide(memalign(64, 40)));
    free(hide(malloc(100000)));
    hide(kept);
  }
}
CASE(lanemalloc_stats_count_exactly) { check_counts("plain_counts", 5000, 4000, 0, 1000000); }

CHILD(no_counts) {
  for (int i = 0; i < argument_count(); i++) {
    free(hide(NULL));
    CHECK(malloc(hide_size(SIZE_MAX - 5)) == NULL);
    CHECK(calloc(hide_size(SIZE_MAX), 3) == NULL);
  }
}
CASE(lanemalloc_failures_and_null_do_not_count) { check_counts("no_counts", 0, 0, 0, 0); }

CHILD(realloc_counts) {
  for (int i = 0; i < argument_count(); i++) {
    void* object = realloc(NULL, 10);
    for (size_t size = 20; size < 1000000; size *= 3) object = realloc(object, size);
    CHECK(realloc(object, hide_size(0)) == NULL);
  }
}
CASE(lanemalloc_realloc_counts_stay_in_balance) {
  struct Stats zero = stats_of("realloc_counts", "0", "stats=exit"),
               some = stats_of("realloc_counts", "100", "stats=exit");
  CHECK_MSG(some.live == zero.live && some.bytes == zero.bytes, "live %lld, bytes %lld",
            some.live - zero.live, some.bytes - zero.bytes);
  CHECK(some.allocations - zero.allocations >= 100);
}

// The four threads live at the same time: pthread_create allocates for a thread only if it has no
// stack of an ended one.
static pthread_barrier_t all_live;
static void* thread_counts(void* argument) {
  pthread_barrier_wait(&all_live);
  for (int i = 0; i < argument_count(); i++) {
    void* kept = malloc(500);
    free(hide(malloc(100)));
    hide(kept);
  }
  return argument;
}
CHILD(four_threads) {
  pthread_t threads[4];
  pthread_barrier_init(&all_live, NULL, 4);
  start_threads(threads, 4, thread_counts);
  join_threads(threads, 4);
}
CASE(lanemalloc_counts_of_ended_threads_are_kept) {
  check_counts_of(4, "four_threads", 8000, 4000, 0, 2000000);
}

// The owner is alive while another thread frees its objects; the owner frees one in four itself.
static void* remote_objects[4000];
static sem_t allocated, freed;
static void* owner_thread(void* argument) {
  for (int i = 0; i < 4 * argument_count(); i++) remote_objects[i] = malloc(200);
  sem_post(&allocated);
  sem_wait(&freed);
  for (int i = 0; i < 4 * argument_count(); i += 4) free(remote_objects[i]);
  return argument;
}
CHILD(remote_counts) {
  pthread_t owner;
  sem_init(&allocated, 0, 0);
  sem_init(&freed, 0, 0);
  REQUIRE(pthread_create(&owner, NULL, owner_thread, NULL) == 0);
  sem_wait(&allocated);
  for (int i = 0; i < 4 * argument_count(); i++)
    if (i % 4 >= 1 && i % 4 <= 2) free(remote_objects[i]);
  sem_post(&freed);
  pthread_join(owner, NULL);
}
CASE(lanemalloc_remote_frees_count_exactly) {
  check_counts("remote_counts", 4000, 3000, 2000, 200000);
}

// Threads that exchange objects in both directions and still run at exit.
static void* exchange[2][1000];
static pthread_barrier_t barrier;
static void* exchange_thread(void* argument) {
  long self = (long)argument;
  for (int round = 0; round < 20; round++) {
    for (int i = 0; i < argument_count(); i++)
      exchange[self][i] = malloc((size_t)(16 + round * 40));
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < argument_count(); i++) free(exchange[1 - self][i]);
    pthread_barrier_wait(&barrier);
  }
  pthread_barrier_wait(&barrier);
  while (self == 1) pause();
  return NULL;
}
CHILD(exchange_counts) {
  pthread_barrier_init(&barrier, NULL, 2);
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, exchange_thread, (void*)1L) == 0);
  exchange_thread((void*)0L);
}
CASE(lanemalloc_counts_of_running_threads_are_exact_at_exit) {
  check_counts("exchange_counts", 40000, 40000, 40000, 0);
}

CHILD(exit_in_thread) {
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, (void* (*)(void*))(void (*)(void))exit, NULL) == 0);
  for (;;) pause();
}
CASE(lanemalloc_stats_come_once_from_exit_in_a_thread) {
  run_child_with("exit_in_thread", "stats=exit");
  CHECK_CHILD(child_succeeded() && lines_with("lanemalloc: allocations: ", "") == 1);
}

CASE(lanemalloc_stats_need_no_stderr) {
  memset(&child, 0, offsetof(struct Child, out));
  child.options = "stats=exit,decoy_ms=1";
  child.close_stderr = 1;
  run_child("work");
  CHECK_CHILD(child_succeeded());
}

// --- huge_pages

// Fills `mib` MiB with small objects; prints how many KiB of the process lie in huge pages.
static void fill_heap(size_t mib) {
  enum { kSize = 1000 };
  for (size_t i = 0; i < (mib << 20) / kSize; i++) memset(hide(malloc(kSize)), 1, kSize);
  char line[200];
  long kib = -1;
  FILE* rollup = fopen("/proc/self/smaps_rollup", "r");
  REQUIRE(rollup != NULL);
  while (fgets(line, sizeof line, rollup) != NULL) sscanf(line, "AnonHugePages: %ld kB", &kib);
  fclose(rollup);
  printf("%ld\n", kib);
}
CHILD(fill_64) { fill_heap(64); }
CHILD(fill_480) { fill_heap(480); }

static long huge_mib(const char* program, const char* option) {
  run_child_with(program, option);
  CHECK_CHILD(child_succeeded() && line_count() == 0);
  return atol(child.out) >> 10;
}

CASE(lanemalloc_huge_pages_are_given_as_the_option_says) {
  char modes[100] = "";
  FILE* file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
  if (file == NULL || fgets(modes, sizeof modes, file) == NULL || strstr(modes, "[never]") != NULL)
    SKIP("this system gives no transparent huge pages");
  fclose(file);
  if (prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1) SKIP("huge pages are forbidden to this process");
  if (sysconf(_SC_PAGESIZE) != 4096) SKIP("huge pages are not of 2 MiB here");
  const int asks_only = strstr(modes, "[always]") == NULL;
  if (asks_only)
    CHECK(huge_mib("fill_64", "huge_pages=off") == 0 &&
          huge_mib("fill_64", "huge_pages=auto") == 0);
  CHECK(huge_mib("fill_64", "huge_pages=on") >= 32);
  const long much = huge_mib("fill_480", "huge_pages=auto");
  CHECK_MSG(much >= 64, "%ld MiB", much);
}
