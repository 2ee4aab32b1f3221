// The 32-byte loop in the three phases of a process:
//   never    the process has only ever had one thread
//   inside   in a second thread
//   after    in the first thread, after another has come and gone
//   empty    the loop without its two calls
// Usage: phases PHASE PAIRS. Prints the thread CPU time of the loop.
// Called by: bench/seeds/experiments.py.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../measure.h"

#define NOINLINE __attribute__((noinline))
#define HIDE(pointer) __asm__ volatile("" : "+r"(pointer)::"memory")

static uint64_t spent_ns;

static NOINLINE void pairs(size_t n) {
  for (size_t i = 0; i < n; i++) {
    void* object = malloc(32);
    HIDE(object);
    free(object);
  }
}

static NOINLINE void no_pairs(size_t n) {
  for (size_t i = 0; i < n; i++) {
    void* object = &spent_ns;
    HIDE(object);
  }
}

static void* timed(void* count) {
  uint64_t start = thread_cpu_ns();
  pairs((size_t)count);
  spent_ns = thread_cpu_ns() - start;
  return NULL;
}

static void in_thread(size_t n) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, timed, (void*)n) != 0) abort();
  pthread_join(thread, NULL);
}

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: phases never|inside|after|empty PAIRS\n");
    return 2;
  }
  size_t n = strtoul(argv[2], NULL, 10);
  pairs(1000);
  if (strcmp(argv[1], "never") == 0) {
    timed((void*)n);
  } else if (strcmp(argv[1], "inside") == 0) {
    in_thread(n);
  } else if (strcmp(argv[1], "after") == 0) {
    in_thread(1000);
    timed((void*)n);
  } else {
    uint64_t start = thread_cpu_ns();
    no_pairs(n);
    spent_ns = thread_cpu_ns() - start;
  }
  printf("ns=%llu library=%s\n", (unsigned long long)spent_ns, malloc_file(NULL));
  return 0;
}
