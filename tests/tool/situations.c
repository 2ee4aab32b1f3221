// Programs in situations that the tool is to tell of. Usage: situations NAME [N] Prints "ready"
// once the situation is there, and stays in it until SIGTERM or the end of standard input; then
// exits normally.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kMiB = 1 << 20, kSlots = 4096 };
static atomic_int done, waiting;
static int number;

static void ready(void) {
  puts("ready");
  fflush(stdout);
}
static void stay(void) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  int which;
  sigwait(&set, &which);
  atomic_store(&done, 1);
}
static void* touched(size_t n) {
  char* p = malloc(n);
  if (p == NULL) abort();
  memset(p, 1, n);
  return p;
}
static unsigned next(unsigned* seed) { return *seed = *seed * 1664525u + 1013904223u; }

static void start(void* (*work)(void*), int threads) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 64 << 10);
  for (long i = 0; i < threads; ++i) {
    pthread_t thread;
    if (pthread_create(&thread, &attributes, work, (void*)i) != 0) {
      fprintf(stderr, "only %ld threads\n", i);
      break;
    }
    char name[32];
    snprintf(name, sizeof name, "worker-%ld", i);
    name[15] = 0;
    pthread_setname_np(thread, name);
    pthread_detach(thread);
  }
}
static void wait_for(int threads) {
  while (atomic_load(&waiting) < threads) usleep(1000);
}
static void sleep_on(void) {
  atomic_fetch_add(&waiting, 1);
  while (!atomic_load(&done)) sleep(1000);
}

// --- busy: threads that hand objects to each other through common slots.
static _Atomic(void*) slots[kSlots];
static void* work_busily(void* argument) {
  unsigned seed = (unsigned)(long)argument + 1;
  atomic_fetch_add(&waiting, 1);
  while (!atomic_load_explicit(&done, memory_order_relaxed)) {
    const unsigned r = next(&seed);
    void* p = malloc(16 + (r >> 8) % 2000);
    *(char*)p = 1;
    free(atomic_exchange(&slots[(r >> 4) % kSlots], p));
    if ((r & 0xFFFF) == 0) free(touched(2 * kMiB));
  }
  atomic_fetch_sub(&waiting, 1);
  return NULL;
}
static void busy(void) {
  start(work_busily, number);
  wait_for(number);
  ready();
  stay();
  while (atomic_load(&waiting) > 0) usleep(1000);
}

// --- rest: the same, for a moment; then nothing moves, and threads are still there.
static void* work_and_rest(void* argument) {
  unsigned seed = (unsigned)(long)argument + 1;
  for (int i = 0; i < 200000; ++i) {
    const unsigned r = next(&seed);
    free(atomic_exchange(&slots[(r >> 4) % kSlots], malloc(16 + (r >> 8) % 5000)));
  }
  sleep_on();
  return NULL;
}
static void rest(void) {
  start(work_and_rest, number);
  wait_for(number);
  ready();
  stay();
}

// --- lanes: N threads that allocate a little and sleep.
static void* have_little(void* argument) {
  (void)argument;
  void* volatile p = touched(100);
  (void)p;
  sleep_on();
  return NULL;
}
static void lanes(void) {
  start(have_little, number);
  sleep(1);
  const int before = atomic_load(&waiting);
  usleep(500000);
  if (atomic_load(&waiting) != before) wait_for(number);
  ready();
  stay();
}

// --- backlog: objects of threads that sleep are freed by another; of each fewer than makes a
// sender look after the sleeper.
enum { kBacklog = 25 };
static void** of_thread[1024];
static void* make_and_sleep(void* argument) {
  void** mine = touched(kBacklog * sizeof(void*));
  for (int i = 0; i < kBacklog; ++i) mine[i] = touched(30000);
  of_thread[(long)argument] = mine;
  sleep_on();
  return NULL;
}
static void backlog(void) {
  start(make_and_sleep, number);
  wait_for(number);
  for (int t = 0; t < number; ++t)
    for (int i = 0; i < kBacklog; ++i) free(of_thread[t][i]);
  ready();
  stay();
}

// --- idle: threads that have freed much of their own and sleep; each less than makes others take
// it away.
static void* free_and_sleep(void* argument) {
  (void)argument;
  enum { kObjects = 220 };
  void** mine = touched(kObjects * sizeof(void*));
  for (int i = 0; i < kObjects; ++i) mine[i] = touched(4000);
  for (int i = 0; i < kObjects; ++i) free(mine[i]);
  free(mine);
  sleep_on();
  return NULL;
}
static void idle(void) {
  start(free_and_sleep, number);
  wait_for(number);
  ready();
  stay();
}

// --- fragments: of many objects one of a hundred stays.
static void fragments(void) {
  enum { kObjects = 400000, kEach = 100 };
  void** all = malloc(kObjects * sizeof(void*));
  for (int i = 0; i < kObjects; ++i) all[i] = touched(480);
  for (int i = 0; i < kObjects; ++i)
    if (i % kEach != 0) free(all[i]);
  free(all);
  ready();
  stay();
}

// --- cached: large pieces that were freed.
static void cached(void) {
  void* all[64];
  for (int i = 0; i < 64; ++i) all[i] = touched(4 * kMiB);
  for (int i = 0; i < 64; ++i) free(all[i]);
  ready();
  stay();
}

// --- mapped: much memory that is not the heap's.
static void mapped(void) {
  char* p = mmap(NULL, 300 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memset(p, 1, 300 * kMiB);
  void* volatile q = touched(kMiB);
  (void)q;
  ready();
  stay();
}

// --- live: objects in use.
static void live(void) {
  for (int i = 0; i < number * 1000; ++i) {
    void* volatile p = touched(1000);
    (void)p;
  }
  ready();
  stay();
}

// --- crash: by signal N, after it has allocated.
static void crash(void) {
  void* volatile p = touched(kMiB);
  (void)p;
  usleep(2000000);  // seen even where the machine is busy
  signal(number, SIG_DFL);
  raise(number);
}

// --- grow: until the system ends it; slowly, so that it is seen.
static void grow(void) {
  for (int i = 0;; ++i) {
    void* volatile p = touched(1000);
    (void)p;
    if (i % 100 == 0) usleep(1000);
  }
}

// --- peak: N MiB once, and what the kernel says of it (in KiB).
static void peak(void) {
  const size_t n = (size_t)number << 20;
  if (n > 0) {
    char* p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(p, 1, n);
    munmap(p, n);
  }
  free(touched(100));
  FILE* status = fopen("/proc/self/status", "r");
  char line[256];
  while (status != NULL && fgets(line, sizeof line, status) != NULL)
    if (strncmp(line, "VmHWM:", 6) == 0) printf("%d\n", atoi(line + 6));
}

// --- leak: N thousand objects; fork: the same, of which a child has a copy and N more.
static void leak(void) {
  for (int i = 0; i < number * 1000; ++i) {
    void* volatile p = touched(1000);
    (void)p;
  }
}
static void forked(void) {
  enum { kMine = 20000 };
  static void* mine[kMine];
  for (int i = 0; i < kMine; ++i) mine[i] = touched(1000);
  const pid_t child = fork();
  if (child == 0) {
    leak();
    exit(0);
  }
  int status;
  waitpid(child, &status, 0);
  for (int i = 0; i < kMine; ++i) free(mine[i]);
}

int main(int argc, char** argv) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  const char* name = argc > 1 ? argv[1] : "";
  number = argc > 2 ? atoi(argv[2]) : 4;
  if (strcmp(name, "crash") != 0) pthread_sigmask(SIG_BLOCK, &set, NULL);
  static const struct {
    const char* name;
    void (*run)(void);
  } all[] = {{"busy", busy}, {"rest", rest},     {"lanes", lanes},         {"backlog", backlog},
             {"idle", idle}, {"cached", cached}, {"fragments", fragments}, {"mapped", mapped},
             {"live", live}, {"crash", crash},   {"grow", grow},           {"peak", peak},
             {"leak", leak}, {"fork", forked}};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) {
    if (strcmp(name, all[i].name) != 0) continue;
    all[i].run();
    return 0;
  }
  fprintf(stderr, "situations: no '%s'\n", name);
  return 2;
}
