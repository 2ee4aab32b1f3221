// cpu_facts: what the kernel offers to restartable sequences here and, with a number of threads,
// what each of them sees when thread n is bound to CPU n. All of them live at once.
// Run by: tests/aarch64/run.sh, and in the machines of tests/machines.
#define _GNU_SOURCE
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __aarch64__
#define SIGNATURE 0xd428bc00u
#else
#define SIGNATURE 0x53053053u
#endif
// AT_RSEQ_FEATURE_SIZE; newer than the C library's headers, as is the area
enum { kAuxFeatureSize = 27 };

struct area {
  uint32_t cpu_id_start, cpu_id;
  uint64_t rseq_cs;
  uint32_t flags, node_id, mm_cid, unused;
} __attribute__((aligned(32)));

extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned __rseq_size __attribute__((weak));
static long threads;
static atomic_long still_coming, looked;

struct view {
  long thread;
  int bound, cpu_id, mm_cid;
  unsigned cpu, node;
};

// This thread's area, registered by the C library or else here; NULL if the kernel has no rseq.
// Called once a thread.
static const volatile struct area* area_of_thread(void) {
  static _Thread_local struct area own;
  if (&__rseq_size != NULL && __rseq_size != 0)
    return (const struct area*)((char*)__builtin_thread_pointer() + __rseq_offset);
  return syscall(SYS_rseq, &own, sizeof own, 0, SIGNATURE) == 0 ? &own : NULL;
}

static const char* works(int register_command, int command) {
  const int ok = syscall(SYS_membarrier, register_command, 0, 0) == 0 &&
                 syscall(SYS_membarrier, command, 0, 0) == 0;
  return ok ? "yes" : "no";
}

// Nobody sleeps from the binding to the look, so all threads that are bound run at once.
static void* look(void* argument) {
  struct view* view = argument;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET((size_t)view->thread, &set);
  view->bound = sched_setaffinity(0, sizeof set, &set) == 0;
  const volatile struct area* area = area_of_thread();
  atomic_fetch_sub(&still_coming, 1);
  while (atomic_load(&still_coming) > 0)
    if (!view->bound) sched_yield();
  if (area != NULL) {
    view->cpu_id = (int)area->cpu_id;
    view->mm_cid = (int)area->mm_cid;
  }
  syscall(SYS_getcpu, &view->cpu, &view->node, NULL);
  atomic_fetch_add(&looked, 1);
  while (atomic_load(&looked) < threads)
    if (!view->bound) sched_yield();
  return NULL;
}

int main(int argc, char** argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  printf("page_size %ld\n", sysconf(_SC_PAGESIZE));
  printf("membarrier %s\n",
         works(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, MEMBARRIER_CMD_PRIVATE_EXPEDITED));
  printf("membarrier_rseq %s\n", works(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ,
                                       MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ));
  printf("rseq %s\n", area_of_thread() != NULL ? "yes" : "no");
  printf("rseq_feature_size %lu\n", getauxval(kAuxFeatureSize));

  enum { kMost = 256 };
  static pthread_t ids[kMost];
  static struct view views[kMost];
  threads = argc > 1 ? strtol(argv[1], NULL, 10) : 0;
  if (threads < 0 || threads > kMost) return 2;
  atomic_store(&still_coming, threads);
  for (long i = 0; i < threads; ++i) {
    views[i] = (struct view){.thread = i, .cpu_id = -1, .mm_cid = -1};
    if (pthread_create(&ids[i], NULL, look, &views[i]) != 0) return 1;
  }
  for (long i = 0; i < threads; ++i) {
    pthread_join(ids[i], NULL);
    const struct view* view = &views[i];
    printf("thread %ld %s cpu %u node %u cpu_id %d mm_cid %d\n", i,
           view->bound ? "bound" : "unbound", view->cpu, view->node, view->cpu_id, view->mm_cid);
  }
  return 0;
}
