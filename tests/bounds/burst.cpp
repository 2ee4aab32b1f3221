// A burst of 1 GiB is allocated and freed; then no thread calls the allocator. Within ten seconds
// less than a tenth of the peak may be resident, whichever thread allocated, freed or sleeps. A
// process with one thread, which has no scavenger, gives memory back from its own frees and starts
// no thread.
// Run by: tests/bounds/run.sh. LANEMALLOC_OPTIONS=decay_ms=-1 must make the first group fail
// (run.sh --self-test).
#include <dirent.h>

#include "bounds.h"

namespace {
using namespace bounds;

constexpr int kThreads = 8;

struct Kind {
  const char* name;
  size_t low, high;
};
constexpr Kind kSmall = {"small", 16, 2048};
constexpr Kind kLarge = {"large", 64 * kKiB, 4 * kMiB};

size_t burst_bytes() { return scaled(1024) * kMiB; }

void judge(size_t peak) {
  size_t limit = peak / 10;
  double seconds = 0;
  stage("waiting for the memory to go back");
  size_t left = wait_for_resident_below(limit, &seconds);
  EXPECT(left < limit, "%zu MiB of %zu MiB still resident %.0f s after all was freed", left / kMiB,
         peak / kMiB, seconds);
  NOTE("peak %zu MiB, %zu MiB left %.1f s after the last free", peak / kMiB, left / kMiB, seconds);
}

enum class FreedBy { kOwner, kNeighbour, kOwnerThenExit };

// Eight threads take part, then sleep or end; the main thread only looks on.
void threads_burst(Kind kind, FreedBy freed_by) {
  Barrier full(kThreads + 1), measured(kThreads + 1), freed(kThreads + 1), end(kThreads + 1);
  static Burst bursts[kThreads];
  run_threads(
      kThreads,
      [&](int index) {
        Random random(static_cast<uint64_t>(index));
        stage("allocating");
        bursts[index].allocate(burst_bytes() / kThreads, kind.low, kind.high, random);
        full.wait();
        measured.wait();
        stage("freeing");
        bursts[freed_by == FreedBy::kNeighbour ? (index + 1) % kThreads : index].free();
        freed.wait();
        stage("sleeping");
        if (freed_by != FreedBy::kOwnerThenExit) end.wait();
      },
      [&] {
        full.wait();
        size_t peak = resident();
        measured.wait();
        freed.wait();
        judge(peak);
        if (freed_by != FreedBy::kOwnerThenExit) end.wait();
      });
}

// The main thread allocates and frees all, and sleeps; eight others sleep too, each with a lane and
// a few live objects.
void main_burst(Kind kind) {
  Barrier ready(kThreads + 1), end(kThreads + 1);
  run_threads(
      kThreads,
      [&](int index) {
        Owned o = take(100, static_cast<uint64_t>(index));
        ready.wait();
        end.wait();
        give(o, "sleeper");
      },
      [&] {
        ready.wait();
        Random random(1);
        Burst burst;
        stage("burst");
        burst.allocate(burst_bytes(), kind.low, kind.high, random);
        size_t peak = resident();
        burst.free();
        judge(peak);
        end.wait();
      });
}

// A thread allocates all and then sleeps in a read; the main thread frees all.
void sleeping_owner(Kind kind) {
  int ends[2];
  EXPECT(pipe(ends) == 0, "pipe: %s", strerror(errno));
  Barrier full(2);
  Burst burst;
  run_threads(
      1,
      [&](int) {
        Random random(2);
        burst.allocate(burst_bytes(), kind.low, kind.high, random);
        full.wait();
        stage("blocked in read");
        char byte;
        while (read(ends[0], &byte, 1) < 0 && errno == EINTR) {
        }
      },
      [&] {
        full.wait();
        size_t peak = resident();
        burst.free();
        judge(peak);
        EXPECT(write(ends[1], "x", 1) == 1, "write: %s", strerror(errno));
      });
}

size_t threads_now() {
  size_t count = 0;
  int fd = open("/proc/self/task", O_RDONLY | O_DIRECTORY);
  char entries[4096];
  for (long n; (n = syscall(SYS_getdents64, fd, entries, sizeof entries)) > 0;)
    for (long i = 0; i < n;) {
      auto* entry = reinterpret_cast<dirent64*>(entries + i);
      if (entry->d_name[0] != '.') count++;
      i += entry->d_reclen;
    }
  close(fd);
  return count;
}

void one_thread(Kind kind) {
  Random random(3);
  Burst burst;
  burst.allocate(burst_bytes(), kind.low, kind.high, random);
  size_t peak = resident();
  EXPECT(threads_now() == 1, "the process has %zu threads after allocating", threads_now());
  burst.free();
  size_t left = resident(), limit = peak / 4 > 64 * kMiB ? peak / 4 : 64 * kMiB;
  EXPECT(left < limit, "%zu MiB of %zu MiB still resident after the last free", left / kMiB,
         peak / kMiB);
  EXPECT(threads_now() == 1, "the process has %zu threads after freeing", threads_now());
  NOTE("peak %zu MiB, %zu MiB left at once, one thread", peak / kMiB, left / kMiB);
}
}  // namespace

int main(int argc, char** argv) {
  static const Case cases[] = {
      {"small-freed-by-owners", [] { threads_burst(kSmall, FreedBy::kOwner); }},
      {"small-freed-by-others", [] { threads_burst(kSmall, FreedBy::kNeighbour); }},
      {"small-owners-gone", [] { threads_burst(kSmall, FreedBy::kOwnerThenExit); }},
      {"large-freed-by-others", [] { threads_burst(kLarge, FreedBy::kNeighbour); }},
      {"small-main-sleeps", [] { main_burst(kSmall); }},
      {"large-main-sleeps", [] { main_burst(kLarge); }},
      {"small-owner-blocked-in-read", [] { sleeping_owner(kSmall); }},
      {"one-thread-small", [] { one_thread(kSmall); }},
      {"one-thread-large", [] { one_thread(kLarge); }},
  };
  return run_cases("burst", argc, argv, cases);
}
