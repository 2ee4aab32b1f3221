// will-it-scale's lock1 with visible lock words: each thread locks and unlocks a word of its own,
// and the cost depends on how far apart the words lie.
//   0, 64, 128 ...   bytes from one thread's word to the next thread's; 0: side by side
//   malloc           each thread allocates its word
//   packed, line, pair   of a pool: as close as they may be, LANE_OWN_LINE, LANE_OWN_PAIR; compiled
//                    with FRONTS only
// Usage: neighbours DISTANCE THREADS MILLISECONDS. Each thread is pinned to a CPU. Prints the locks
// taken per second, and per thread.
// Called by: bench/seeds/experiments.py.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

#include "../measure.h"

#ifdef FRONTS
#include "../../include/lanemalloc/pool.h"
#endif

namespace {

constexpr size_t kWords = 64;
constexpr size_t kLargestDistance = 4096;
constexpr int kBetweenLooks = 256;

using Word = std::atomic<uint32_t>;

alignas(4096) char words[kWords * kLargestDistance];
std::atomic<bool> stopped;
pthread_barrier_t barrier;

void pin(unsigned index) {
  cpu_set_t allowed, one;
  sched_getaffinity(0, sizeof allowed, &allowed);
  unsigned skip = index % static_cast<unsigned>(CPU_COUNT(&allowed));
  for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &allowed) || skip-- != 0) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

uint64_t lock_and_unlock(Word& word) {
  uint64_t taken = 0;
  while (!stopped.load(std::memory_order_relaxed)) {
    for (int i = 0; i < kBetweenLooks; i++) {
      while (word.exchange(1, std::memory_order_acquire) != 0) cpu_pause();
      word.store(0, std::memory_order_release);
    }
    taken += kBetweenLooks;
  }
  return taken;
}

#ifdef FRONTS
lane_pool* pool_of(const char* name) {
  constexpr const char* kNames[] = {"packed", "line", "pair"};
  for (const lane_padding padding : {LANE_PACKED, LANE_OWN_LINE, LANE_OWN_PAIR}) {
    if (std::strcmp(name, kNames[padding]) != 0) continue;
    lane_pool_options options = {};
    options.object_size = sizeof(Word);
    options.padding = padding;
    return lane_pool_create(&options);
  }
  return nullptr;
}
#endif

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr,
                 "usage: neighbours DISTANCE|malloc|packed|line|pair THREADS MILLISECONDS\n");
    return 2;
  }
  bool from_malloc = std::strcmp(argv[1], "malloc") == 0;
  size_t distance = std::max(sizeof(Word), static_cast<size_t>(std::strtoul(argv[1], nullptr, 10)));
  unsigned threads = static_cast<unsigned>(std::strtoul(argv[2], nullptr, 10));
  uint64_t milliseconds = std::strtoull(argv[3], nullptr, 10);
  if (distance > kLargestDistance || threads == 0 || threads > kWords) return 2;
  std::vector<void*> places(threads);
  for (unsigned i = 0; i < threads; i++) places[i] = words + i * distance;
#ifdef FRONTS
  // By one thread: words that lie beside each other are the matter here.
  if (lane_pool* pool = pool_of(argv[1]); pool != nullptr)
    for (void*& place : places) place = lane_pool_alloc(pool);
#endif
  pthread_barrier_init(&barrier, nullptr, threads + 1);
  std::vector<uint64_t> taken(threads);
  std::vector<std::thread> all;
  for (unsigned i = 0; i < threads; i++) {
    all.emplace_back([&, i] {
      pin(i);
      void* place = from_malloc ? std::malloc(sizeof(Word)) : places[i];
      Word& word = *new (place) Word(0);
      pthread_barrier_wait(&barrier);
      uint64_t count = lock_and_unlock(word);
      taken[i] = count;
    });
  }
  pthread_barrier_wait(&barrier);
  struct timespec pause = {static_cast<time_t>(milliseconds / 1000),
                           static_cast<long>(milliseconds % 1000) * 1'000'000};
  uint64_t start = wall_ns();
  nanosleep(&pause, nullptr);
  stopped = true;
  double seconds = static_cast<double>(wall_ns() - start) / 1e9;
  for (std::thread& thread : all) thread.join();
  uint64_t total = 0;
  for (uint64_t n : taken) total += n;
  std::printf("per_s=%.0f least=%llu most=%llu total=%llu library=%s\n",
              static_cast<double>(total) / seconds,
              static_cast<unsigned long long>(*std::min_element(taken.begin(), taken.end())),
              static_cast<unsigned long long>(*std::max_element(taken.begin(), taken.end())),
              static_cast<unsigned long long>(total), malloc_file(nullptr));
  return 0;
}
