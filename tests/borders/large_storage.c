// A program with much thread-local storage. Such storage lies on the stack of each thread, also on
// that of the scavenger, which is small.
#include <pthread.h>
#include <sched.h>

#include "check.h"
#include "tasks.h"

static __thread char storage[300 << 10];

static pthread_barrier_t both_are_there, may_end;
static void* idle(void* unused) {
  memset(storage, 1, sizeof storage);
  pthread_barrier_wait(&both_are_there);
  pthread_barrier_wait(&may_end);
  return unused;
}

// The scavenger runs all the same, with the ordinary policy.
CASE(lanemalloc_it_is_started_as_elsewhere) {
  REQUIRE(sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0}) == 0);
  pthread_barrier_init(&both_are_there, NULL, 2);
  pthread_barrier_init(&may_end, NULL, 2);
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, idle, NULL) == 0);
  pthread_barrier_wait(&both_are_there);
  CHECK(threads_with_policy(SCHED_BATCH) == 2);
  CHECK(threads_with_policy(SCHED_OTHER) == 1);
  pthread_barrier_wait(&may_end);
  REQUIRE(pthread_join(thread, NULL) == 0);
}
