// Threads end in every way there is, and what they had comes back; nobody reads memory that went with them.
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "child.h"

static size_t resident(void) { return status_bytes("VmRSS:"); }

static void allocate_some(void) {
  void* objects[100];
  for (int i = 0; i < 100; i++) REQUIRE(objects[i] = malloc((size_t)i * 20 + 1));
  for (int i = 0; i < 100; i++) free(objects[i]);
}

// The scavenger does a pass each quarter of a second while there is something to do: some of them, whatever becomes of what ended.
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
// Another thread, so that memory is returned while the program is idle.
static pthread_t start_idle(void) {
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, idle, NULL) == 0);
  return thread;
}
static void end_idle(pthread_t thread) {
  __atomic_store_n(&stop_idling, 1, __ATOMIC_RELEASE);
  REQUIRE(pthread_join(thread, NULL) == 0);
}

// --- Detached, and never allocated. As stacks are evicted from the C library's cache, it frees in a thread that is past its end.

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
    for (int i = 0; i < 8; i++) REQUIRE(pthread_create(&threads[i], NULL, set_late_key, NULL) == 0);
    for (int i = 0; i < 8; i++) REQUIRE(pthread_join(threads[i], NULL) == 0);
  }
  let_passes_go_by();
  end_idle(other);
}

// --- By the system call, its stack unmapped afterwards.

static void* end_by_system_call(void* unused) {
  allocate_some();
  syscall(SYS_exit, 0);
  return unused;
}
// In a mapping of its own, which is gone when the thread is.
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
  int status = -1;
  REQUIRE(pid > 0 && waitpid(pid, &status, 0) == pid);
  CHECK(status == 0);
  end_idle(other);
}

// What such threads had is not lost: without that each of them would cost a lane and what lies in it.
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
static void* torn_off(void* unused) {
  static __thread void* objects[64];
  if (sigsetjmp(out, 1) == 0) {
    in_loop = 1;
    for (unsigned i = 0;; i++) {
      void** object = &objects[i % 64];
      free(*object);
      *object = NULL;
      *object = malloc(i * 7 % 400);
    }
  }
  in_loop = 0;
  return unused;
}
static void tear_off(int n, int seed) {
  for (int i = 0; i < n; i++) {
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, torn_off, NULL) == 0);
    usleep((unsigned)(200 + (i * 37 + seed) % 400));
    int result;
    while ((result = pthread_kill(thread, SIGUSR1)) == 0 && pthread_tryjoin_np(thread, NULL) != 0) usleep(50);
    REQUIRE(result == 0);
  }
}
CASE(lanemalloc_a_handler_leaves_malloc_by_siglongjmp_and_the_thread_ends) {
  const char* options = getenv("LANEMALLOC_OPTIONS");
  if (options != NULL && strstr(options, "lanes=shared") != NULL)
    SKIP("a thread that is torn off between taking a shared lane's lock and saying so leaves it locked");
  struct sigaction action = {.sa_handler = leave};
  REQUIRE(sigaction(SIGUSR1, &action, NULL) == 0);
  pthread_t other = start_idle();
  tear_off(60, 1);
  let_passes_go_by();
  allocate_some();
  // Objects that are in use are in use once.
  enum { kObjects = 20000 };
  char** objects = (char**)malloc(kObjects * sizeof *objects);
  for (unsigned i = 0; i < kObjects; i++)
    fill(objects[i] = (char*)malloc(i * 7 % 400 + 1), i * 7 % 400 + 1, i);
  for (unsigned i = 0; i < kObjects; i++) CHECK(filled(objects[i], i * 7 % 400 + 1, i));
  for (unsigned i = 0; i < kObjects; i++) free(objects[i]);
  free(objects);
  end_idle(other);
}

// --- And the usual ways.

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
