// Many threads each fill some memory with objects of many sizes, and keep it. Shows what huge pages
// cost that slabs have not carved yet.
// Called by: run.py. Usage: threads THREADS MIB_EACH. Prints resident memory in MiB.
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../measure.h"

namespace {

pthread_barrier_t filled;
size_t bytes_each;

void* fill(void* argument) {
  uint64_t random = (reinterpret_cast<uintptr_t>(argument) + 1) * 0x9E3779B97F4A7C15;
  for (size_t got = 0; got < bytes_each;) {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    const size_t size = 16 + random % (random >> 63 != 0 ? 240 : 4080);
    void* object = malloc(size);
    if (object == nullptr) abort();
    memset(object, 1, size);
    got += size;
    if ((random >> 40) % 256 == 0) sched_yield();
  }
  pthread_barrier_wait(&filled);
  pthread_barrier_wait(&filled);
  return nullptr;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return fprintf(stderr, "usage: threads THREADS MIB_EACH\n"), 2;
  const unsigned threads = static_cast<unsigned>(strtoul(arguments[1], nullptr, 10));
  bytes_each = strtoul(arguments[2], nullptr, 10) << 20;
  pthread_barrier_init(&filled, nullptr, threads + 1);
  for (unsigned i = 0; i < threads; ++i) {
    pthread_t thread;
    if (pthread_create(&thread, nullptr, fill, reinterpret_cast<void*>(uintptr_t{i})) != 0) abort();
  }
  pthread_barrier_wait(&filled);
  printf("rss_mib=%lu\n", proc_kib("/proc/self/smaps_rollup", "Rss:") >> 10);
  fflush(stdout);
  _Exit(0);
}
