// Threads end in every way there is. What they had comes back, and no thread reads memory that went
// with them.
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "child.h"
#include "run_threads.h"

static size_t resident(void) { return status_bytes("VmRSS:"); }

static void allocate_some(void) {
  void* objects[100];
  for (int i = 0; i < 100; i++) REQUIRE(objects[i] = malloc((size_t)i * 20 + 1));
  for (int i = 0; i < 100; i++) free(objects[i]);
}

// The scavenger makes a pass each quarter of a second while it has something to do. This makes work
// for some passes, whatever the threads that ended have left.
static void let_passes_go_by(void) {
  void* objects[64];
  for (int round = 0; round < 12; round++) {
    for (int i = 0; i < 64; i++) REQUIRE(objects[i] = malloc(40000));
    for (int i = 0; i < 64; i++) free(objects[i]);
    usleep(250000);
  }
}

static int stop_idling;
static void* idle(void* unused) {
  allocate_some();
  while (!__atomic_load_n(&stop_idling, __ATOMIC_ACQUIRE)) usleep(1000);
  return unused;
}
// Starts another thread, so that the scavenger returns memory while the program is idle.
static pthread_t start_idle(void) {
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, idle, NULL) == 0);
  return thread;
}
static void end_idle(pthread_t thread) {
  __atomic_store_n(&stop_idling, 1, __ATOMIC_RELEASE);
  REQUIRE(pthread_join(thread, NULL) == 0);
}

// --- Detached threads that never allocate. When the C library evicts stacks from its cache, it
// frees in a thread that is past its end.

static int ended;
static void* end_at_once(void* unused) {
  __atomic_fetch_add(&ended, 1, __ATOMIC_SEQ_CST);
  return unused;
}
CASE(detached_threads_that_never_allocate) {
  pthread_t other = start_idle();
  for (int i = 0; i < 24; i++) {
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, end_at_once, NULL) == 0);
    REQUIRE(pthread_detach(thread) == 0);
  }
  while (__atomic_load_n(&ended, __ATOMIC_SEQ_CST) != 24) usleep(1000);
  let_passes_go_by();
  end_idle(other);
}

// --- The first allocation comes in a round of key destructors.

static pthread_key_t late_key;
static __thread int rounds;
static int first_round;
static void late(void* value) {
  if (++rounds >= first_round) free(malloc(100));
  pthread_setspecific(late_key, value);
}
static void* set_late_key(void* unused) {
  pthread_setspecific(late_key, &late_key);
  return unused;
}
CASE(first_malloc_in_the_last_rounds_of_key_destructors) {
  pthread_t other = start_idle();
  REQUIRE(pthread_key_create(&late_key, late) == 0);
  for (first_round = 1; first_round <= 4; first_round++) {
    pthread_t threads[8];
    start_threads(threads, 8, set_late_key);
    join_threads(threads, 8);
  }
  let_passes_go_by();
  end_idle(other);
}

// --- A thread ends by the system call, and its stack is unmapped afterwards.

static void* end_by_system_call(void* unused) {
  allocate_some();
  syscall(SYS_exit, 0);
  return unused;
}
// The stack is a mapping of its own, which is gone when the thread is gone.
static void run_on_own_stack(void* (*run)(void*)) {
  const size_t size = 256 << 10;
  pthread_attr_t attributes;
  pthread_t thread;
  void* stack = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(stack != MAP_FAILED && pthread_attr_init(&attributes) == 0);
  REQUIRE(pthread_attr_setstack(&attributes, stack, size) == 0);
  REQUIRE(pthread_create(&thread, &attributes, run, NULL) == 0);
  REQUIRE(pthread_join(thread, NULL) == 0);
  REQUIRE(munmap(stack, size) == 0);
}
CASE(ended_by_the_system_call_and_unmapped) {
  pthread_t other = start_idle();
  for (int i = 0; i < 8; i++) run_on_own_stack(end_by_system_call);
  let_passes_go_by();
  pid_t pid = fork();
  if (pid == 0) {
    allocate_some();
    _exit(0);
  }
  CHECK(status_of(pid) == 0);
  end_idle(other);
}

// What such threads had is not lost. Otherwise each of them would cost a lane and what lies in it.
static void* burst_and_end_by_system_call(void* unused) {
  enum { kObjects = 1000 };
  static void* objects[kObjects];
  for (int i = 0; i < kObjects; i++) REQUIRE(objects[i] = memset(malloc(8000), 1, 8000));
  for (int i = 0; i < kObjects; i++) free(objects[i]);
  syscall(SYS_exit, 0);
  return unused;
}
CASE(lanemalloc_what_such_threads_had_comes_back) {
  pthread_t other = start_idle();
  for (int i = 0; i < 3; i++) run_on_own_stack(burst_and_end_by_system_call);
  let_passes_go_by();
  const size_t before = resident();
  for (int i = 0; i < 30; i++) {
    run_on_own_stack(burst_and_end_by_system_call);
    if (i % 10 == 9) let_passes_go_by();
  }
  let_passes_go_by();
  CHECK_MSG(resident() < before + (24 << 20), "%zu, then %zu", before, resident());
  end_idle(other);
}

// --- A handler leaves malloc or free by a long jump; then the thread ends.

static __thread sigjmp_buf out;
static __thread volatile int in_loop;
static void leave(int signal) {
  (void)signal;
  if (in_loop) siglongjmp(out, 1);
}
// Takes the object out of its place before it is freed: after a jump, it must not be freed again.
static void* take_out(void* volatile* object) {
  void* taken = *object;
  *object = NULL;
  return taken;
}
static void small_step(void* volatile* object, unsigned i) {
  free(take_out(object));
  *object = malloc(i * 7 % 400);
}
// Steps of every sort, so that every lock is taken: slabs of all size classes, runs that come and
// go, objects that another thread will get.
static void* left_to_others[64];
static size_t largest = 1200000;
static void any_step(void* volatile* object, unsigned i) {
  const size_t sizes[] = {100, 3000, 30000, 70000, 200000, largest, 16, 40000};
  const size_t size = sizes[i / 3 % 8] + i % 500;
  if (i % 5 == 0) {
    *object = __atomic_exchange_n(&left_to_others[i % 64], take_out(object), __ATOMIC_ACQ_REL);
  } else if (i % 5 == 1) {
    *object = realloc(take_out(object), size);
  } else {
    free(take_out(object));
    *object = i % 5 == 2 ? calloc(1, size) : malloc(size);
  }
  if (*object != NULL) *(volatile char*)*object = 1;
  if (i % 61 == 0) malloc_trim(0);
}
static void (*step)(void* volatile* object, unsigned i);
static int goes_on;  // after the jump the thread works on instead of ending
enum { kTornObjects = 64 };
static void* torn_off(void* given) {
  void* volatile* objects = (void* volatile*)given;
  if (sigsetjmp(out, 1) == 0) {
    in_loop = 1;
    for (unsigned i = 0;; i++) step(&objects[i % kTornObjects], i);
  }
  in_loop = 0;
  for (int i = 0; goes_on && i < 300; i++) {
    const size_t size = i % 30 == 0 ? 300000 : (size_t)i * 13 % 3000 + 1;
    char* object = (char*)malloc(size);
    REQUIRE(object != NULL);
    fill(object, size, (unsigned)i);
    if (i % 10 == 0) usleep(100);
    CHECK(filled(object, size, (unsigned)i));
    free(object);
  }
  return NULL;
}
// The objects of such a thread are freed when it is gone, except the one that it was working on.
static void tear_off(int n, int seed) {
  for (int i = 0; i < n; i++) {
    pthread_t thread;
    void* volatile objects[kTornObjects] = {NULL};
    REQUIRE(pthread_create(&thread, NULL, torn_off, (void*)objects) == 0);
    usleep((unsigned)(200 + (i * 37 + seed) % 400));
    int result;
    while ((result = pthread_kill(thread, SIGUSR1)) == 0 && pthread_tryjoin_np(thread, NULL) != 0)
      usleep(50);
    REQUIRE(result == 0);
    for (int k = 0; k < kTornObjects; k++) free(objects[k]);
  }
}
static void expect_objects_are_in_use_once(void) {
  enum { kObjects = 20000 };
  char** objects = (char**)malloc(kObjects * sizeof *objects);
  for (unsigned i = 0; i < kObjects; i++)
    fill(objects[i] = (char*)malloc(i * 7 % 400 + 1), i * 7 % 400 + 1, i);
  for (unsigned i = 0; i < kObjects; i++) CHECK(filled(objects[i], i * 7 % 400 + 1, i));
  for (unsigned i = 0; i < kObjects; i++) free(objects[i]);
  free(objects);
}
static void watch_signal(void) {
  struct sigaction action = {.sa_handler = leave};
  REQUIRE(sigaction(SIGUSR1, &action, NULL) == 0);
}
CASE(lanemalloc_a_handler_leaves_malloc_by_siglongjmp_and_the_thread_ends) {
  watch_signal();
  pthread_t other = start_idle();
  step = small_step;
  tear_off(60, 1);
  let_passes_go_by();
  allocate_some();
  expect_objects_are_in_use_once();
  end_idle(other);
}

// The same anywhere in the allocator, while other threads work there. They go on, and in one case
// the thread that was torn off goes on too.
static int stop_working;
static void* work(void* seed) {
  void* volatile objects[64] = {NULL};
  unsigned i = (unsigned)(uintptr_t)seed;
  for (; !__atomic_load_n(&stop_working, __ATOMIC_ACQUIRE); i++) any_step(&objects[i % 64], i);
  for (int k = 0; k < 64; k++) free(objects[k]);
  return NULL;
}
static void tear_off_beside_others(void) {
  watch_signal();
  pthread_t others[2];
  for (uintptr_t i = 0; i < 2; i++)
    REQUIRE(pthread_create(&others[i], NULL, work, (void*)(i * 7)) == 0);
  step = any_step;
  for (int seed = 0; seed < 3; seed++) {
    tear_off(40, seed);
    allocate_some();
  }
  __atomic_store_n(&stop_working, 1, __ATOMIC_RELEASE);
  join_threads(others, 2);
  expect_objects_are_in_use_once();
}
CASE(lanemalloc_handlers_leave_every_function_by_siglongjmp_and_the_threads_end) {
  tear_off_beside_others();
}
CASE(lanemalloc_handlers_leave_every_function_by_siglongjmp_and_the_threads_go_on) {
  goes_on = 1;
  tear_off_beside_others();
}

// What such threads held comes back. Otherwise a lock that stays held would keep all memory that is
// free from then on.
CASE(lanemalloc_what_torn_off_threads_had_comes_back) {
  watch_signal();
  step = any_step;
  largest = 150000;
  pthread_t other = start_idle();
  tear_off(20, 1);
  let_passes_go_by();
  const size_t before = resident();
  for (int round = 0; round < 6; round++) tear_off(20, round);
  let_passes_go_by();
  // Each thread may lose the object that it was working on, and now and then what a bin held.
  CHECK_MSG(resident() < before + (32 << 20), "%zu, then %zu", before, resident());
  end_idle(other);
}

// --- The usual ways to end.

static void* by_exit(void* unused) {
  allocate_some();
  pthread_exit(unused);
}
static void* by_cancel(void* unused) {
  allocate_some();
  for (;;) pause();
  return unused;
}
CHILD(main_ends_first) {
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, by_exit, NULL) == 0);
  pthread_exit(NULL);
}
CHILD(main_ends_first_and_the_others_last) {
  pthread_t thread = start_idle();
  pthread_detach(thread);
  allocate_some();
  __atomic_store_n(&stop_idling, 1, __ATOMIC_RELEASE);
  pthread_exit(NULL);
}
CASE(by_pthread_exit_cancel_and_main_first) {
  pthread_t other = start_idle();
  for (int i = 0; i < 50; i++) {
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, i % 2 ? by_exit : by_cancel, NULL) == 0);
    if (i % 2 == 0) REQUIRE(pthread_cancel(thread) == 0);
    REQUIRE(pthread_join(thread, NULL) == 0);
  }
  end_idle(other);
  run_child_with("main_ends_first", getenv("LANEMALLOC_OPTIONS"));
  CHECK_CHILD(child_succeeded());
  run_child_with("main_ends_first_and_the_others_last", getenv("LANEMALLOC_OPTIONS"));
  CHECK_CHILD(child_succeeded());
}

static void* exec_true(void* unused) {
  allocate_some();
  execl("/bin/true", "true", (char*)NULL);
  _exit(9);
  return unused;
}
CHILD(exec_in_a_thread) {
  pthread_t other = start_idle(), thread;
  REQUIRE(pthread_create(&thread, NULL, exec_true, NULL) == 0);
  pthread_join(other, NULL);
}
CASE(exec_from_a_thread) {
  run_child_with("exec_in_a_thread", getenv("LANEMALLOC_OPTIONS"));
  CHECK_CHILD(child_succeeded());
}
