// Deferred frees and readers, by include/lanemalloc/safepoint.h; link/safepoint_fronts.c has those
// of heaps' and pools' objects. An object counts as freed once its block is handed out again, or by
// the figures of lane_safepoint_get_statistics.
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>

#include "../../include/lanemalloc/safepoint.h"
#include "child.h"

// The library is preloaded.
#define LANE(name) ((__typeof__(&name))function(#name))
static void* function(const char* name) {
  void* address = dlsym(RTLD_DEFAULT, name);
  if (address == NULL) SKIP("no %s in this library", name);
  return address;
}

static struct lane_safepoint_statistics figures(void) {
  struct lane_safepoint_statistics s;
  LANE(lane_safepoint_get_statistics_into)(&s, sizeof s);
  return s;
}
static uint64_t waiting(void) {
  struct lane_safepoint_statistics s = figures();
  return s.deferred - s.freed;
}
// The function is looked up once, because handlers use it.
static int defer(void* object) {
  static int (*safepoint_free)(void*);
  if (safepoint_free == NULL) safepoint_free = LANE(lane_safepoint_free);
  return safepoint_free(object);
}

static struct lane_reader main_reader;

// A thread that takes a step when it is told to, and tells when it has taken it.
struct Worker {
  pthread_t thread;
  atomic_int wanted, done;
  void (*step)(struct Worker* worker, int number);
  struct lane_reader reader;
};
static void* work(void* argument) {
  struct Worker* worker = argument;
  for (int number = 1;; number++) {
    while (atomic_load(&worker->wanted) < number) sched_yield();
    worker->step(worker, number);
    atomic_store(&worker->done, number);
    if (worker->wanted == 1000) return NULL;
  }
}
static void start(struct Worker* worker, void (*step)(struct Worker*, int)) {
  memset(worker, 0, sizeof *worker);
  worker->step = step;
  REQUIRE(pthread_create(&worker->thread, NULL, work, worker) == 0);
}
static void tell(struct Worker* worker, int number) { atomic_store(&worker->wanted, number); }
static void await(struct Worker* worker, int number) {
  tell(worker, number);
  while (atomic_load(&worker->done) < number) sched_yield();
}

CASE(lanemalloc_safepoints_free_at_stops_without_readers) {
  for (int i = 0; i < 1000; i++) CHECK(defer(malloc(100)) == 0);
  CHECK(defer(NULL) == 0);
  CHECK(defer(malloc(1 << 20)) == 0);
  CHECK(LANE(lane_safepoint_poll)() == 0);
  CHECK(LANE(lane_safepoint_wait)() == EDEADLK);
  CHECK(waiting() == 1002 || waiting() == 1001);
  const size_t freed = LANE(lane_safepoint)();
  CHECK_MSG(freed == 1002 || freed == 1001, "%zu", freed);
  CHECK(waiting() == 0);
  CHECK(LANE(lane_safepoint)() == 0);
  CHECK(figures().stops == 2 && figures().readers == 0 && figures().helped == 0);
}

CASE(lanemalloc_safepoints_readers_are_registered_once) {
  struct lane_reader reader;
  memset(&reader, 0xEE, sizeof reader);
  CHECK(LANE(lane_reader_unregister)(&reader) == EINVAL);
  CHECK(LANE(lane_reader_register)(&reader, "a name of more than twenty-three bytes") == 0);
  CHECK(strcmp(reader.name, "a name of more than twe") == 0);
  CHECK(LANE(lane_reader_register)(&reader, NULL) == EINVAL);
  CHECK(figures().readers == 1);
  lane_reader_enter(&reader);
  CHECK(LANE(lane_reader_unregister)(&reader) == EBUSY);
  lane_reader_exit(&reader);
  lane_reader_online(&reader);
  CHECK(LANE(lane_reader_unregister)(&reader) == EBUSY);
  lane_reader_offline(&reader);
  CHECK(LANE(lane_reader_unregister)(&reader) == 0);
  CHECK(figures().readers == 0);
  CHECK(LANE(lane_reader_register)(&reader, NULL) == 0);
  CHECK(strcmp(reader.name, "reader") == 0);
}

CASE(lanemalloc_safepoints_keep_errno) {
  errno = 77;
  CHECK(LANE(lane_reader_register)(&main_reader, NULL) == 0);
  for (int i = 0; i < 10000; i++) CHECK(defer(malloc(100)) == 0);
  LANE(lane_safepoint_poll)();
  CHECK(LANE(lane_safepoint_wait)() == 0);
  LANE(lane_safepoint)();
  CHECK(errno == 77);
}

static void enter_and_exit(struct Worker* worker, int number) {
  if (number == 1) CHECK(LANE(lane_reader_register)(&worker->reader, "worker") == 0);
  if (number % 2 == 0) lane_reader_enter(&worker->reader);
  if (number % 2 == 1 && number > 1) lane_reader_exit(&worker->reader);
}

static void* wait_for_all(void* done) {
  CHECK(LANE(lane_safepoint_wait)() == 0);
  CHECK(waiting() == 0);
  atomic_store((atomic_int*)done, 1);
  return NULL;
}
CASE(lanemalloc_safepoints_wait_lasts_as_long_as_the_section) {
  static struct Worker reader;
  static atomic_int done;
  pthread_t waiter;
  start(&reader, enter_and_exit);
  await(&reader, 2);
  CHECK(defer(malloc(100)) == 0);
  const uint64_t before = figures().epoch;
  REQUIRE(pthread_create(&waiter, NULL, wait_for_all, &done) == 0);
  while (figures().epoch == before) sched_yield();  // the wait has begun
  CHECK(atomic_load(&done) == 0 && waiting() == 1);
  tell(&reader, 3);
  pthread_join(waiter, NULL);
  CHECK(atomic_load(&done) == 1 && figures().waited_ns > 0);
}

// If a share is full, a thread that reads gets EBUSY.
CHILD(fill_the_share) {
  const uint64_t bound = 64;
  CHECK(LANE(lane_reader_register)(&main_reader, "main") == 0);
  lane_reader_enter(&main_reader);
  for (uint64_t i = 0; i < bound; i++) CHECK(defer(malloc(100)) == 0);
  void* object = malloc(100);
  CHECK(defer(object) == EBUSY);
  CHECK(LANE(lane_safepoint_call)(free, object) == 0);  // calls are counted apart
  CHECK(LANE(lane_safepoint_wait)() == EDEADLK);
  CHECK(figures().helped == 1 && waiting() == bound + 1);
  lane_reader_exit(&main_reader);
  CHECK(LANE(lane_safepoint_wait)() == 0 && waiting() == 0);

  lane_reader_online(&main_reader);
  for (uint64_t i = 0; i < bound; i++) CHECK(defer(malloc(100)) == 0);
  object = malloc(100);
  CHECK(defer(object) == EBUSY);
  lane_reader_quiescent(&main_reader);
  CHECK(defer(object) == 0);
  lane_reader_offline(&main_reader);
  CHECK(LANE(lane_safepoint_wait)() == 0 && waiting() == 0);
}
CASE(lanemalloc_safepoints_full_share_is_told_to_readers) {
  char options[100];
  const char* lanes = getenv("LANEMALLOC_OPTIONS");
  snprintf(options, sizeof options, "%s,deferred=64", lanes ? lanes : "");
  function("lane_safepoint_free");
  run_child_with("fill_the_share", options);
  CHECK_CHILD(child_succeeded() && child.err[0] == 0);
}

// Each function is called once, in order, outside the allocator.
static int calls;
static void call(void* number) {
  CHECK((size_t)number == (size_t)calls + 1);
  calls++;
  free(malloc(100));
  CHECK(defer(malloc(10)) == 0);
}
CASE(lanemalloc_safepoints_call_functions) {
  CHECK(LANE(lane_reader_register)(&main_reader, NULL) == 0);
  for (size_t i = 1; i <= 20000; i++) CHECK(LANE(lane_safepoint_call)(call, (void*)i) == 0);
  CHECK(calls > 10000);
  CHECK(LANE(lane_safepoint_wait)() == 0);
  CHECK(calls == 20000);
  CHECK(LANE(lane_safepoint)() > 0 || waiting() == 0);
}

// The child is forked while one thread is in a section and another one defers.
static atomic_bool churn_ends;
static void* churn(void* nothing) {
  while (!atomic_load(&churn_ends))
    if (defer(malloc(64)) == EBUSY) sched_yield();
  return nothing;
}
CASE(lanemalloc_safepoints_go_on_in_fork_children) {
  static struct Worker reader;
  pthread_t writer;
  start(&reader, enter_and_exit);
  await(&reader, 2);
  CHECK(LANE(lane_reader_register)(&main_reader, "main") == 0);
  CHECK(defer(malloc(100)) == 0);
  REQUIRE(pthread_create(&writer, NULL, churn, NULL) == 0);
  for (int round = 0; round < 30; round++) {
    lane_reader_enter(&main_reader);
    pid_t pid = fork();
    if (pid == 0) {
      alarm(60);
      if (figures().readers != 1 || reader.reader.shared != NULL) _exit(10);
      if (LANE(lane_safepoint_wait)() != EDEADLK) _exit(11);
      lane_reader_exit(&main_reader);
      if (LANE(lane_safepoint_wait)() != 0) _exit(12);
      for (int i = 0; i < 5000; i++)
        if (defer(malloc(64)) != 0) _exit(13);
      if (LANE(lane_safepoint_wait)() != 0) _exit(14);
      if (LANE(lane_reader_register)(&reader.reader, "again") != 0) _exit(15);
      if (LANE(lane_reader_unregister)(&main_reader) != 0) _exit(16);
      _exit(0);
    }
    lane_reader_exit(&main_reader);
    const int status = status_of(pid);
    CHECK_MSG(status == 0, "status 0x%x", status);
  }
  atomic_store(&churn_ends, 1);
  tell(&reader, 3);
  pthread_join(writer, NULL);
  CHECK(LANE(lane_safepoint_wait)() == 0 && waiting() == 0);
}

// A handler that defers interrupts the thread anywhere, in deferred frees too.
static volatile sig_atomic_t handled, refused;
static void on_alarm(int signal_number) {
  (void)signal_number;
  int saved = errno;
  for (int i = 0; i < 20; i++) {
    void* object = malloc(48);
    if (defer(object) == 0) continue;
    refused++;
    free(object);
  }
  handled++;
  errno = saved;
}
CASE(lanemalloc_safepoints_are_deferred_in_handlers) {
  CHECK(LANE(lane_reader_register)(&main_reader, NULL) == 0);
  CHECK(defer(malloc(1)) == 0);
  struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
  sigaction(SIGALRM, &action, NULL);
  struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
  setitimer(ITIMER_REAL, &often, NULL);
  for (uint64_t i = 0; handled < 500; i++) {
    CHECK(defer(malloc(64)) == 0);
    if (i % 1000 == 0) LANE(lane_safepoint_poll)();
  }
  setitimer(ITIMER_REAL, &never, NULL);
  CHECK(LANE(lane_safepoint_wait)() == 0);
  CHECK_MSG(waiting() == 0, "%d refused", (int)refused);
}

CHILD(defer_badly) {
  static char not_ours[64];
  if (strcmp(test_argument, "stack") == 0) defer(hide(not_ours));
  if (strcmp(test_argument, "inside") == 0) defer((char*)hide(malloc(100)) + 16);
  if (strcmp(test_argument, "late") == 0) {
    defer(hide(not_ours));
    LANE(lane_safepoint)();
  }
}
static void run_badly(const char* what, const char* options) {
  memset(&child, 0, offsetof(struct Child, out));
  child.options = options;
  child.argument = what;
  run_child("defer_badly");
}
CASE(lanemalloc_safepoints_bad_pointers_are_told) {
  function("lane_safepoint_free");
  run_badly("stack", "checked=1");
  CHECK_CHILD(child_aborted() && lines_with("lanemalloc: lane_safepoint_free(0x",
                                            "not a pointer of this allocator") == 1);
  run_badly("inside", "checked=1");
  CHECK_CHILD(child_aborted() &&
              lines_with("lanemalloc: lane_safepoint_free(0x", "not the start of an object") == 1);
  run_badly("late", NULL);
  CHECK_CHILD(child_aborted() &&
              lines_with("lanemalloc: free(0x", "not a pointer of this allocator") == 1);
}
