// Fork, and locks that are not the allocator's: a thread that holds such a lock may allocate while
// another thread forks.
// Also linked with the static library.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "check.h"
#include "lanemalloc/heap.h"
#include "lanemalloc/pool.h"
#include "run_threads.h"

void plugin_lock(void);
void plugin_unlock(void);
void plugin_calls(void (*call)(void));

static int stop;
static void* volatile sink;

static int stopped(void) { return __atomic_load_n(&stop, __ATOMIC_RELAXED); }

// The heap that a child finds is whole: it serves all sizes, and it hands out no object twice.
static void use_memory(void) {
  enum { kObjects = 40 };
  unsigned char* objects[kObjects];
  for (unsigned i = 0; i < kObjects; i++) {
    const size_t size = i % 8 == 7 ? 600000 : (size_t)24 << i % 8;
    objects[i] = malloc(size);
    REQUIRE(objects[i] != NULL);
    fill(objects[i], size < 3000 ? size : 3000, i);
  }
  for (unsigned i = 0; i < kObjects; i++) {
    const size_t size = i % 8 == 7 ? 600000 : (size_t)24 << i % 8;
    CHECK(filled(objects[i], size < 3000 ? size : 3000, i));
    free(objects[i]);
  }
}

// Objects that a child has from its parent are not handed out again in the child.
enum { kInherited = 100 };
static unsigned char* inherited[kInherited];
static int has_inherited(void) {
  for (unsigned i = 0; i < kInherited; i++)
    if (inherited[i] != NULL && !filled(inherited[i], i * 3000 + 1, i)) return 0;
  return 1;
}

static void fork_once(void) {
  const pid_t pid = fork();
  if (pid == 0) {
    test_failures = 0;  // those of the parent do not count
    use_memory();
    CHECK(has_inherited());
    _exit(test_failures != 0);
  }
  int status = -1;
  REQUIRE(pid > 0 && waitpid(pid, &status, 0) == pid);
  CHECK_MSG(status == 0, "status 0x%x", status);
}

// --- A lock of another library.

static void* allocates_locked(void* size) {
  while (!stopped()) {
    plugin_lock();
    void* p = malloc((size_t)size);
    sink = p;
    free(p);
    plugin_unlock();
  }
  return NULL;
}

// Objects of many sizes, so that bins are refilled, slabs are given back, and objects grow and
// shrink.
static void* does_everything_locked(void* argument) {
  enum { kObjects = 400 };
  static __thread void* objects[kObjects];
  unsigned seed = (unsigned)(uintptr_t)argument;
  while (!stopped()) {
    plugin_lock();
    for (int i = 0; i < kObjects; i++) {
      seed = seed * 1664525 + 1013904223;
      void** object = &objects[(seed >> 8) % kObjects];
      const size_t size = (size_t)1 << (seed >> 20) % 20;
      switch (seed >> 28) {
        case 0:
        case 1:
        case 2:
        case 3: {
          void* grown = realloc(*object, size);
          CHECK(grown != NULL);
          *object = grown;
          break;
        }
        case 4:
          free(*object);
          *object = calloc(1, size);
          break;
        case 5:
          free(*object);
          *object = aligned_alloc(256, size < 256 ? 256 : size);
          break;
        case 6:
          malloc_trim(0);
          break;
        default:
          free(*object);
          *object = malloc(size);
      }
    }
    plugin_unlock();
  }
  for (int i = 0; i < kObjects; i++) free(objects[i]);
  return NULL;
}

static void fork_beside(void* (*run)(void*), void* argument, int threads, int forks) {
  pthread_t id[8];
  for (int i = 0; i < threads; i++) REQUIRE(pthread_create(&id[i], NULL, run, argument) == 0);
  for (int i = 0; i < forks; i++) fork_once();
  __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
  join_threads(id, threads);
}

CASE(large_objects_under_a_lock_that_a_fork_handler_takes) {
  fork_beside(allocates_locked, (void*)(uintptr_t)700000, 2, 300);
}
CASE(small_objects_under_a_lock_that_a_fork_handler_takes) {
  fork_beside(allocates_locked, (void*)(uintptr_t)3000, 2, 200);
}
CASE(everything_under_a_lock_that_a_fork_handler_takes) {
  fork_beside(does_everything_locked, (void*)7, 3, 100);
}

// --- The C library's locks: the lock of a FILE, and that of the list of FILEs, which fork takes
// after all handlers.

static void* reads_lines(void* unused) {
  (void)unused;
  static char text[20000];
  memset(text, 'x', sizeof text);
  FILE* file = fmemopen(text, sizeof text, "r");
  REQUIRE(file != NULL);
  while (!stopped()) {
    rewind(file);
    char* line = NULL;
    size_t size = 0;
    REQUIRE(getline(&line, &size, file) > 0);
    free(line);
    // The C library's locks go to the thread that comes first. On a busy machine that would be this
    // thread for long.
    usleep(50);
  }
  fclose(file);
  return NULL;
}
static void* flushes_all(void* unused) {
  while (!stopped()) fflush(NULL);
  return unused;
}

CASE(getline_and_fflush_while_another_thread_forks) {
  pthread_t readers[2], flusher;
  REQUIRE(pthread_create(&flusher, NULL, flushes_all, NULL) == 0);
  start_threads(readers, 2, reads_lines);
  for (int i = 0; i < 60; i++) fork_once();
  __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
  pthread_join(flusher, NULL);
  join_threads(readers, 2);
}

// --- Fork handlers of other libraries, which run before and after ours, allocate and take locks.

static pthread_mutex_t later = PTHREAD_MUTEX_INITIALIZER;
static void* later_object;
static int calls;

static void turn_over_later(void) {
  free(later_object);
  later_object = malloc(900000);
  CHECK(later_object != NULL);
  use_memory();
  calls++;
}
static void prepare_later(void) {
  pthread_mutex_lock(&later);
  turn_over_later();
}
static void after_later(void) {
  turn_over_later();
  pthread_mutex_unlock(&later);
}
static void* allocates_with_the_later_lock(void* unused) {
  while (!stopped()) {
    pthread_mutex_lock(&later);
    void* p = malloc(700000);
    sink = p;
    free(p);
    pthread_mutex_unlock(&later);
  }
  return unused;
}

CASE(handlers_before_and_after_that_allocate) {
  REQUIRE(pthread_atfork(prepare_later, after_later, after_later) == 0);
  pthread_t other;
  REQUIRE(pthread_create(&other, NULL, allocates_with_the_later_lock, NULL) == 0);
  fork_beside(allocates_locked, (void*)(uintptr_t)700000, 1, 100);
  pthread_join(other, NULL);
  CHECK(calls == 200);
}

// --- Several forks at once, and one within another.

static void* forks(void* unused) {
  for (int i = 0; i < 8; i++) fork_once();
  return unused;
}
CASE(many_threads_fork_at_once) {
  pthread_t forkers[20], workers[2];
  for (int i = 0; i < 2; i++)
    REQUIRE(pthread_create(&workers[i], NULL, allocates_locked, (void*)(uintptr_t)700000) == 0);
  start_threads(forkers, 20, forks);
  join_threads(forkers, 20);
  __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
  join_threads(workers, 2);
}

// Forks while it holds the lock that the other fork's handler wants.
static void* forks_under_a_lock(void* unused) {
  for (int i = 0; i < 60; i++) {
    pthread_mutex_lock(&later);
    void* p = malloc(700000);
    sink = p;
    const pid_t pid = fork();
    if (pid == 0) _exit(0);
    free(p);
    pthread_mutex_unlock(&later);
    int status = -1;
    REQUIRE(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK(status == 0);
  }
  return unused;
}
static __thread int forks_itself;
static void wait_for_the_other(void) {
  if (!forks_itself) return;
  pthread_mutex_lock(&later);
  pthread_mutex_unlock(&later);
}
CASE(a_fork_waits_for_a_lock_under_which_another_thread_forks) {
  pthread_t other;
  plugin_calls(wait_for_the_other);
  forks_itself = 1;
  REQUIRE(pthread_create(&other, NULL, forks_under_a_lock, NULL) == 0);
  for (int i = 0; i < 100; i++) fork_once();
  pthread_join(other, NULL);
}

static int depth;
static void fork_within(void) {
  if (depth != 0) return;
  depth = 1;
  fork_once();
  depth = 0;
}
CASE(fork_from_a_fork_handler) {
  plugin_calls(fork_within);
  // The threads leave the plugin's lock alone, since each fork within another wants it once more.
  fork_beside(allocates_with_the_later_lock, NULL, 2, 50);
}

// --- Free memory must be available while a fork is under way, even if the kernel refuses fresh
// memory.

static void* takes_most(void* unused) {
  while (!stopped()) {
    char* objects[40];
    for (int i = 0; i < 40; i++) {
      objects[i] = malloc(1000000);
      CHECK(objects[i] != NULL);
      if (objects[i] != NULL) objects[i][0] = 1;
    }
    for (int i = 0; i < 40; i++) {
      if (i % 4 == 0) {
        void* grown = realloc(objects[i], 1200000);
        CHECK(grown != NULL);
        if (grown != NULL) objects[i] = grown;
      }
      free(objects[i]);
    }
  }
  return unused;
}
CASE(memory_at_the_limit_is_not_refused_during_a_fork) {
  pthread_t id[2];
  for (unsigned i = 0; i < kInherited; i++) {
    REQUIRE((inherited[i] = malloc(i * 3000 + 1)) != NULL);
    fill(inherited[i], i * 3000 + 1, i);
  }
  start_threads(id, 2, takes_most);
  usleep(50000);  // by then the threads have the memory they need; no check depends on it
  struct rlimit limit = {status_bytes("VmSize:") + (120u << 20), RLIM_INFINITY};
  REQUIRE(setrlimit(RLIMIT_AS, &limit) == 0);
  for (int i = 0; i < 100; i++) fork_once();
  __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
  join_threads(id, 2);
}

// --- Memory that is freed during a fork serves the threads that allocate during that fork.

enum { kRounds = 2000 };
static unsigned rounds[2];

static void* takes_and_gives_all_sizes(void* of) {
  for (; !stopped(); __atomic_fetch_add((unsigned*)of, 1, __ATOMIC_RELAXED)) {
    for (size_t size = 8; size <= 2 << 20; size *= 2) {
      void* p = malloc(size);
      REQUIRE(p != NULL);
      sink = p;
      free(p);
    }
  }
  return NULL;
}
static void wait_for_rounds(void) {
  for (int i = 0; i < 2; i++) {
    const unsigned before = __atomic_load_n(&rounds[i], __ATOMIC_RELAXED);
    while (__atomic_load_n(&rounds[i], __ATOMIC_RELAXED) - before < kRounds) usleep(1000);
  }
}
CASE(a_long_fork_does_not_make_memory_grow) {
  pthread_t id[2];
  for (int i = 0; i < 2; i++)
    REQUIRE(pthread_create(&id[i], NULL, takes_and_gives_all_sizes, &rounds[i]) == 0);
  wait_for_rounds();
  const size_t before = status_bytes("VmSize:");
  plugin_calls(wait_for_rounds);
  fork_once();
  const size_t after = status_bytes("VmPeak:");
  CHECK_MSG(after < before + ((size_t)1 << 30), "%zu MiB, then %zu", before >> 20, after >> 20);
  plugin_calls(NULL);
  __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
  join_threads(id, 2);
}

// Each fork is short. The next fork uses the memory that the one before needed.
CASE(many_forks_do_not_make_memory_grow) {
  pthread_t id[4];
  for (int i = 0; i < 4; i++)
    REQUIRE(pthread_create(&id[i], NULL, takes_and_gives_all_sizes, &rounds[i % 2]) == 0);
  wait_for_rounds();
  fork_once();
  const size_t before = status_bytes("VmPeak:");
  for (int i = 0; i < 200; i++) fork_once();
  const size_t after = status_bytes("VmPeak:");
  CHECK_MSG(after < before + ((size_t)512 << 20), "%zu MiB, then %zu", before >> 20, after >> 20);
  __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
  join_threads(id, 4);
}

// --- Pools and heaps.

static struct {
  void* (*pool_create)(const struct lane_pool_options*, size_t);
  void* (*pool_alloc)(void*);
  void (*pool_free)(void*, void*);
  int (*pool_destroy)(void*);
  void* (*heap_create)(const struct lane_heap_options*, size_t);
  void* (*heap_alloc)(void*, size_t);
  void (*heap_free)(void*, void*, size_t);
  long (*heap_destroy)(void*);
} lane;
static void* pool;

static size_t size_of(int i) { return i == 0 ? 700000 : (size_t)i * 50; }
static void* makes_heaps_locked(void* unused) {
  while (!stopped()) {
    plugin_lock();
    const struct lane_heap_options options = {.name = "made under a lock"};
    void* heap = lane.heap_create(&options, sizeof options);
    CHECK(heap != NULL);
    void* objects[100];
    for (int i = 0; heap != NULL && i < 100; i++) {
      objects[i] = lane.heap_alloc(heap, size_of(i));
      CHECK(objects[i] != NULL);
      if (i % 3 == 0) lane.heap_free(heap, objects[i], size_of(i));
    }
    if (heap != NULL) lane.heap_destroy(heap);
    plugin_unlock();
  }
  return unused;
}
// The pool is at its limit nearly all the time. So threads gather again and again what other lanes
// have cut.
static void* uses_the_pool_locked(void* unused) {
  while (!stopped()) {
    plugin_lock();
    void* objects[90];
    for (int i = 0; i < 90; i++) CHECK((objects[i] = lane.pool_alloc(pool)) != NULL);
    for (int i = 0; i < 90; i++) lane.pool_free(pool, objects[i]);
    plugin_unlock();
  }
  return unused;
}

CASE(lanemalloc_pools_and_heaps_under_a_lock_that_a_fork_handler_takes) {
  const struct {
    void* place;
    const char* name;
  } functions[] = {
      {&lane.pool_create, "lane_pool_create_from"},
      {&lane.pool_alloc, "lane_pool_alloc_out_of_line"},
      {&lane.pool_free, "lane_pool_free_out_of_line"},
      {&lane.pool_destroy, "lane_pool_destroy"},
      {&lane.heap_free, "lane_heap_free_sized_out_of_line"},
      {&lane.heap_destroy, "lane_heap_destroy"},
      {&lane.heap_create, "lane_heap_create_from"},
      {&lane.heap_alloc, "lane_heap_alloc_out_of_line"},
  };
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    void* function = dlsym(RTLD_DEFAULT, functions[i].name);
    if (function == NULL) SKIP("no %s: linked statically", functions[i].name);
    memcpy(functions[i].place, &function, sizeof function);
  }
  const struct lane_pool_options options = {.name = "tight", .object_size = 200, .limit = 100};
  REQUIRE((pool = lane.pool_create(&options, sizeof options)) != NULL);
  pthread_t heaps;
  REQUIRE(pthread_create(&heaps, NULL, makes_heaps_locked, NULL) == 0);
  fork_beside(uses_the_pool_locked, NULL, 2, 100);
  pthread_join(heaps, NULL);
  CHECK(lane.pool_destroy(pool) == 0);
}
