// A library that is loaded before the allocator. It has a pthread_create of its own, and a fork
// handler that may start threads.
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

typedef int create_function(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);

static int created, helpers;
static int wanted;
static void (*in_child)(void);

// The number of pthread_create calls that came through here, and the number of helpers that ran.
int plugin_created(void) { return __atomic_load_n(&created, __ATOMIC_SEQ_CST); }
int plugin_helpers(void) { return __atomic_load_n(&helpers, __ATOMIC_SEQ_CST); }
// The next pthread_create starts a helper first, as libraries that watch threads do.
void plugin_wants_a_helper(void) { wanted = 1; }
// The fork handler calls this function in the child.
void plugin_calls_in_child(void (*call)(void)) { in_child = call; }

static void* help(void* unused) {
  free(malloc(100));
  __atomic_fetch_add(&helpers, 1, __ATOMIC_SEQ_CST);
  return unused;
}

// Calls pthread_create by its name, as any function of the library would.
__attribute__((noinline)) static void start_helper(void) {
  pthread_t helper;
  if (pthread_create(&helper, NULL, help, NULL) != 0 || pthread_join(helper, NULL) != 0) abort();
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                   void* argument) {
  create_function* next = (create_function*)dlsym(RTLD_NEXT, "pthread_create");
  __atomic_fetch_add(&created, 1, __ATOMIC_SEQ_CST);
  if (wanted) {
    wanted = 0;
    start_helper();
  }
  return next(thread, attributes, run, argument);
}

static void child(void) {
  if (in_child != NULL) in_child();
}
__attribute__((constructor)) static void begin(void) { pthread_atfork(NULL, NULL, child); }
