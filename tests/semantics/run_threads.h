// Threads of a case. Included after check.h.
#ifndef TESTS_SEMANTICS_RUN_THREADS_H_
#define TESTS_SEMANTICS_RUN_THREADS_H_

#include <pthread.h>

// Each thread gets its number.
UNUSED static void start_threads(pthread_t* threads, size_t n, void* (*run)(void*)) {
  for (size_t i = 0; i < n; i++) REQUIRE(pthread_create(&threads[i], NULL, run, (void*)i) == 0);
}
UNUSED static void join_threads(const pthread_t* threads, size_t n) {
  for (size_t i = 0; i < n; i++) REQUIRE(pthread_join(threads[i], NULL) == 0);
}

// Runs one thread to its end, and returns its result.
UNUSED static void* run_thread(void* (*run)(void*), void* argument) {
  pthread_t thread;
  void* result;
  REQUIRE(pthread_create(&thread, NULL, run, argument) == 0);
  REQUIRE(pthread_join(thread, &result) == 0);
  return result;
}

#endif  // TESTS_SEMANTICS_RUN_THREADS_H_
