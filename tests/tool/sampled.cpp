// Allocates and waits at places that are known. Called by: test_profile.py, tests/profile/run.sh.
// sampled MODE [N]:
//   heap   the places below, once
//   stay   the same, then "ready", and until SIGTERM, at which it ends by returning from main
//   grow   "ready", then keep_grown() a thousand times a second for N tenths of a second
//   meet   four threads allocate all the time, for N tenths of a second
//   crash  the same as heap, then after a second signal N
//   forks  the same as heap; a child allocates in keep_in_child(), and another program runs in a
//          second one
//   clean  frees all
//   waves  40,000,000 bytes in matrix(), which are freed again, then a tenth of that in keep_few();
//          N times; with a second between
//   temporary  60,000 objects of 2,000 bytes: 20,000 in churn(), which are temporary; 40,000 in
//          pairs(), of which every second one is
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define APART [[gnu::noipa]]
#define NO_TAIL_CALL __asm__ volatile("")

namespace {
int number = 1;
void* volatile kept[100000];
int keeps = 0;
void* touched(size_t size) { return memset(malloc(size), 1, size); }
}  // namespace

// 20,000,000 bytes in 20,000 objects, all kept.
extern "C" APART void keep_small() {
  for (int i = 0; i < 20000; ++i) kept[keeps++] = touched(1000);
}
// 40,000,000 bytes in 20,000 objects, none kept.
extern "C" APART void churn() {
  for (int i = 0; i < 20000; ++i) free(touched(2000));
}
extern "C" APART void keep_in_child() {
  for (int i = 0; i < 10000; ++i) kept[keeps++] = touched(1000);
}
extern "C" APART void keep_grown() {
  kept[keeps++ % 100000] = touched(5000);
  NO_TAIL_CALL;
}

// 40,000,000 bytes in 20 objects, as a job over large arrays has them for a while.
extern "C" APART void matrix() {
  void* parts[20];
  for (void*& part : parts) part = touched(2000000);
  for (void* part : parts) free(part);
}
extern "C" APART void keep_few() {
  for (int i = 0; i < 4000; ++i) kept[keeps++] = touched(1000);
}
// Two at a time; the second one is freed at once.
extern "C" APART void pairs() {
  for (int i = 0; i < 20000; ++i) {
    void* first = touched(2000);
    free(touched(2000));
    free(first);
  }
}

namespace shop {
template <class Item>
struct Shelf {
  APART void* take(size_t size) { return touched(size); }
  // 30,000,000 bytes in 6,000 objects, all kept.
  APART void fill(Item size) {
    for (int i = 0; i < 6000; ++i) kept[keeps++] = take(static_cast<size_t>(size));
  }
};
}  // namespace shop

APART void all() {
  keep_small();
  churn();
  shop::Shelf<int>().fill(5000);
  NO_TAIL_CALL;
}

volatile bool is_over = false;
extern "C" APART void* meet(void*) {
  void* mine[64];
  while (!is_over) {
    for (void*& p : mine) p = touched(3000);
    for (void* p : mine) free(p);
  }
  return nullptr;
}

int main(int argc, char** argv) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  const char* mode = argc > 1 ? argv[1] : "";
  number = argc > 2 ? atoi(argv[2]) : 1;
  if (strcmp(mode, "clean") == 0) {
    churn();
  } else if (strcmp(mode, "waves") == 0) {
    for (int i = 0; i < number; ++i) {
      matrix();
      keep_few();
      if (i == 0) puts("ready"), fflush(stdout);
      if (i + 1 < number) sleep(1);
    }
  } else if (strcmp(mode, "temporary") == 0) {
    churn();
    pairs();
  } else if (strcmp(mode, "meet") == 0) {
    pthread_t threads[4];
    for (pthread_t& t : threads) pthread_create(&t, nullptr, meet, nullptr);
    puts("ready");
    fflush(stdout);
    usleep(static_cast<useconds_t>(number) * 100000);
    is_over = true;
    for (pthread_t t : threads) pthread_join(t, nullptr);
  } else if (strcmp(mode, "grow") == 0) {
    puts("ready");
    fflush(stdout);
    for (int i = 0; i < number * 100; ++i) {
      keep_grown();
      usleep(1000);
    }
  } else {
    all();
    if (strcmp(mode, "stay") == 0) {
      pthread_sigmask(SIG_BLOCK, &set, nullptr);
      puts("ready");
      fflush(stdout);
      int which;
      sigwait(&set, &which);
    } else if (strcmp(mode, "crash") == 0) {
      sleep(1);
      raise(number);
    } else if (strcmp(mode, "forks") == 0) {
      if (fork() == 0) {
        keep_in_child();
        return 0;
      }
      if (fork() == 0) execl(argv[0], argv[0], "clean", nullptr);
      while (wait(nullptr) > 0) {
      }
    }
  }
  return 0;
}
