// A program whose allocation calls are known: it counts them itself, by operation, and prints the
// counts as JSON.
// Called by: tests/trace/check.py, under `lanemalloc trace`. Usage: known CASE [ARGUMENT...]
#include <malloc.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <new>
#include <vector>

extern "C" void free_sized(void*, size_t) __attribute__((weak));
extern "C" void free_aligned_sized(void*, size_t, size_t) __attribute__((weak));

namespace {

// Hides a pointer from the compiler, which would otherwise leave out calls in pairs.
template <class T>
T* hide(T* p) {
  asm volatile("" : "+r"(p) : : "memory");
  return p;
}

enum { kMalloc, kFree, kRealloc, kOthers };
std::atomic<long> counts[kOthers];

void* get(size_t size) {
  counts[kMalloc].fetch_add(1, std::memory_order_relaxed);
  void* p = hide(malloc(size));
  *static_cast<volatile char*>(p) = 1;
  return p;
}
void put(void* p) {
  counts[kFree].fetch_add(1, std::memory_order_relaxed);
  free(hide(p));
}

void say() {
  char line[200];
  const int n = snprintf(line, sizeof line, "{\"malloc\": %ld, \"free\": %ld, \"realloc\": %ld}\n",
                         counts[kMalloc].load(), counts[kFree].load(), counts[kRealloc].load());
  if (write(STDOUT_FILENO, line, static_cast<size_t>(n)) != n) abort();
}

// Makes every kind of call as often as its place in this list says.
void kinds() {
  void* p;
  free(hide(malloc(101)));
  for (int i = 0; i < 2; ++i) free(hide(calloc(3, 67)));
  for (int i = 0; i < 3; ++i) {
    p = hide(realloc(nullptr, 301));
    p = hide(realloc(p, 30001));
    p = hide(realloc(p, 302));
    free(p);
  }
  for (int i = 0; i < 4; ++i) free(hide(reallocarray(nullptr, 4, 101)));
  for (int i = 0; i < 5; ++i) free(hide(memalign(64, 501)));
  for (int i = 0; i < 6; ++i) free(hide(aligned_alloc(128, 640)));
  for (int i = 0; i < 7; ++i)
    if (posix_memalign(&p, 4096, 701) == 0) free(hide(p));
  for (int i = 0; i < 8; ++i) free(hide(valloc(801)));
  for (int i = 0; i < 9; ++i) free(hide(pvalloc(901)));
  for (int i = 0; i < 10; ++i) free_sized(hide(malloc(1001)), 1001);
  for (int i = 0; i < 11; ++i) free_aligned_sized(hide(aligned_alloc(256, 1024)), 256, 1024);
  for (int i = 0; i < 12; ++i) operator delete(hide(operator new(1201)));
  for (int i = 0; i < 13; ++i) operator delete[](hide(operator new[](1301)));
  for (int i = 0; i < 14; ++i)
    operator delete(hide(operator new(1401, std::nothrow)), std::nothrow);
  for (int i = 0; i < 15; ++i)
    operator delete[](hide(operator new[](1501, std::nothrow)), std::nothrow);
  for (int i = 0; i < 16; ++i) operator delete(hide(operator new(1601)), size_t{1601});
  for (int i = 0; i < 17; ++i) operator delete[](hide(operator new[](1701)), size_t{1701});
  const auto line = std::align_val_t{64};
  for (int i = 0; i < 18; ++i) operator delete(hide(operator new(1801, line)), line);
  for (int i = 0; i < 19; ++i)
    operator delete[](hide(operator new[](1901, line, std::nothrow)), line, std::nothrow);
  for (int i = 0; i < 20; ++i) operator delete(hide(operator new(2001, line)), size_t{2001}, line);
  for (int i = 0; i < 21; ++i) free(hide(static_cast<void*>(nullptr)));
  // Calls that are refused.
  volatile size_t huge = ~size_t{0} / 4;
  if (hide(malloc(huge)) != nullptr) abort();
  p = hide(malloc(2301));
  if (hide(realloc(p, huge)) != nullptr) abort();
  free(p);
  p = hide(malloc(2302));
  hide(realloc(p, 0));
}

// N threads make M pairs each; the next thread frees every second object.
struct Worker {
  pthread_t thread;
  long rounds;
  size_t size;
  std::vector<void*>*mine, *before;
  pthread_barrier_t* meet;
};
void* work(void* argument) {
  auto& w = *static_cast<Worker*>(argument);
  for (long i = 0; i < w.rounds; ++i) {
    void* p = get(w.size);
    if (i % 2 == 0) {
      put(p);
    } else {
      (*w.mine)[static_cast<size_t>(i / 2)] = p;
    }
  }
  pthread_barrier_wait(w.meet);
  for (void* p : *w.before) put(p);
  return nullptr;
}
void threads(int n, long rounds) {
  std::vector<std::vector<void*>> objects(static_cast<size_t>(n),
                                          std::vector<void*>(static_cast<size_t>(rounds / 2)));
  std::vector<Worker> workers(static_cast<size_t>(n));
  pthread_barrier_t meet;
  pthread_barrier_init(&meet, nullptr, static_cast<unsigned>(n));
  for (int i = 0; i < n; ++i) {
    Worker& w = workers[static_cast<size_t>(i)];
    w.rounds = rounds;
    w.size = 1001 + static_cast<size_t>(i);
    w.mine = &objects[static_cast<size_t>(i)];
    w.before = &objects[static_cast<size_t>((i + n - 1) % n)];
    w.meet = &meet;
    pthread_create(&w.thread, nullptr, work, &w);
  }
  for (Worker& w : workers) pthread_join(w.thread, nullptr);
}

// One thread allocates, and another frees each object as soon as it sees it. That thread looks just
// when the object comes, in a line that its caches do not have. Its CPU may begin with what the
// thread does next before the line is there. So nothing that waits for the line comes between.
struct alignas(1024) Hand {
  std::atomic<void*> object;
};
constexpr unsigned kHands = 1 << 18;
Hand hands[kHands];
std::atomic<int> hands_ready;

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000U + static_cast<uint64_t>(now.tv_nsec);
}
Hand& hand(unsigned i) { return hands[i * 40503U % kHands]; }
void* give_by_hand(void* began) {
  put(get(32));
  ++hands_ready;
  while (hands_ready.load() < 2) {
  }
  for (unsigned i = 0; i < kHands; ++i) {
    while (now_ns() < *static_cast<uint64_t*>(began) + i * 600U) {
    }
    hand(i).object.store(hide(malloc(32)), std::memory_order_release);
  }
  counts[kMalloc].fetch_add(kHands, std::memory_order_relaxed);
  return nullptr;
}
void by_hand() {
  uint64_t began;
  pthread_t other;
  pthread_create(&other, nullptr, give_by_hand, &began);
  put(get(32));
  while (hands_ready.load() < 1) {
  }
  began = now_ns() + 100000;
  ++hands_ready;
  unsigned random = 7;
  for (unsigned i = 0; i < kHands; ++i) {
    random = random * 1664525 + 1013904223;
    while (now_ns() < began + i * 600U + (random >> 20) % 256) {
    }
    void* p;
    while ((p = hand(i).object.load(std::memory_order_acquire)) == nullptr) {
    }
    free(p);
  }
  counts[kFree].fetch_add(kHands, std::memory_order_relaxed);
  pthread_join(other, nullptr);
}

// A handler that allocates, at every place of a thread that allocates.
void on_alarm(int) {
  void* p = get(5001);
  counts[kRealloc].fetch_add(1, std::memory_order_relaxed);
  p = hide(realloc(p, 5002));
  put(p);
}
void signals(long rounds) {
  struct sigaction action = {};
  action.sa_handler = on_alarm;
  sigaction(SIGALRM, &action, nullptr);
  const itimerval often = {{0, 50}, {0, 50}};
  setitimer(ITIMER_REAL, &often, nullptr);
  for (long i = 0; i < rounds; ++i) {
    void* p = get(6001);
    counts[kRealloc].fetch_add(1, std::memory_order_relaxed);
    put(hide(realloc(p, 6002)));
  }
  const itimerval never = {};
  setitimer(ITIMER_REAL, &never, nullptr);
}

// Handlers that never come back.
sigjmp_buf back;
void jump(int) {
  put(get(7001));
  siglongjmp(back, 1);
}
void jumps(int n) {
  struct sigaction action = {};
  action.sa_handler = jump;
  sigaction(SIGALRM, &action, nullptr);
  volatile int done = 0;
  if (sigsetjmp(back, 1) != 0) done = done + 1;
  if (done >= n) return;
  const itimerval soon = {{0, 0}, {0, 200}};
  setitimer(ITIMER_REAL, &soon, nullptr);
  for (;;) asm volatile("" ::: "memory");
}

// Frees and allocations in destructors of thread-local things, to the very last round.
pthread_key_t key;
void late(void* p) {
  const long left = *static_cast<long*>(p);
  put(p);
  if (left == 0) return;
  void* next = get(8001);
  *static_cast<long*>(next) = left - 1;
  pthread_setspecific(key, next);
}
struct Last {
  void* p = get(8002);
  ~Last() { put(p); }
};
thread_local Last last;
void* leave(void*) {
  *static_cast<volatile char*>(last.p) = 1;
  void* p = get(8001);
  *static_cast<long*>(p) = 2;
  pthread_setspecific(key, p);
  return nullptr;
}
void exits(int n) {
  pthread_key_create(&key, late);
  for (int i = 0; i < n; ++i) {
    pthread_t thread;
    pthread_create(&thread, nullptr, leave, nullptr);
    pthread_join(thread, nullptr);
  }
}

// The child frees what the parent allocated, and has objects of its own. The parent does the same,
// and reuses the addresses.
void forks(const char* self) {
  std::vector<void*> shared;
  for (int i = 0; i < 100; ++i) shared.push_back(get(9001));
  if (fork() == 0) {
    counts[kMalloc] = counts[kFree] = 0;
    usleep(100000);  // the parent has reused the addresses by then
    for (void* p : shared) put(p);
    for (int i = 0; i < 50; ++i) put(get(9002));
    if (fork() == 0) {
      char rounds[] = "30";
      execl(self, self, "threads", "2", rounds, nullptr);
      _exit(1);
    }
    wait(nullptr);
    say();
    _exit(0);
  }
  for (void* p : shared) put(p);
  for (int i = 0; i < 100; ++i) put(get(9001));
  wait(nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "";
  const auto number = [&](int i) { return argc > i ? atol(argv[i]) : 0; };
  if (strcmp(what, "kinds") == 0) {
    kinds();
    return 0;
  }
  if (strcmp(what, "threads") == 0) {
    threads(static_cast<int>(number(2)), number(3));
  } else if (strcmp(what, "by-hand") == 0) {
    by_hand();
  } else if (strcmp(what, "signals") == 0) {
    signals(number(2));
  } else if (strcmp(what, "jumps") == 0) {
    jumps(static_cast<int>(number(2)));
  } else if (strcmp(what, "exits") == 0) {
    exits(static_cast<int>(number(2)));
  } else if (strcmp(what, "forks") == 0) {
    forks(argv[0]);
  } else if (strcmp(what, "killed") == 0) {
    for (long i = 0; i < number(2); ++i) put(get(3001));
    say();
    raise(static_cast<int>(number(3)));
  } else if (strcmp(what, "_exit") == 0) {
    for (long i = 0; i < number(2); ++i) put(get(3001));
    say();
    _exit(static_cast<int>(number(3)));
  } else {
    fprintf(stderr, "known: no case '%s'\n", what);
    return 2;
  }
  say();
  return 0;
}
