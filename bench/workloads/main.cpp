// All synthetic workloads in one program. It goes on until an observer says stop, or does a fixed
// amount of work:
//   workloads NAME THREADS --board FILE                      bench/suite/observe.py is the observer
//   workloads NAME THREADS --operations N [--idle SECONDS]   at least N operations; all figures
//                                                            that depend on time include the start
//   workloads --list
// Each workload is written anew from its published description, which its file names; the sizes,
// the lifetimes and the threads that free are those of the description. Prints one line of
// key=value when it ends:
//   wall_ns cpu_ns             from the first to the last call, without phases of rest
//   operations checksum        allocations, and bytes asked for or received: with --operations they
//                              depend on the work alone
//   peak_kib end_kib           greatest resident memory; resident memory when all is freed
//   minor_faults major_faults  of the work
//   library                    the file that malloc comes from
//   malloc_p50_ns ... max, free_p50_ns ... max     of single calls, if the workload measures
//                                                  latency
//   malloc_preempted free_preempted                calls that are not among those
//   idle_kib                   with --idle: resident memory after that many seconds without a call
// Called by: bench/suite, tests/bench.
#include <inttypes.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmath>
#include <string_view>

#include "../measure.h"
#include "workloads.h"

namespace workloads {

namespace {

void sleep_for(double seconds) {
  timespec left{static_cast<time_t>(seconds),
                static_cast<long>((seconds - std::floor(seconds)) * 1e9)};
  while (nanosleep(&left, &left) != 0) {
  }
}

}  // namespace

Run::Clocks Run::Clocks::now() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return {wall_ns(), process_cpu_ns(), usage.ru_minflt, usage.ru_majflt};
}

void Run::rest(double seconds) {
  uint64_t from = wall_ns();
  sleep_for(seconds);
  rested_ns_ += wall_ns() - from;
}

void Run::start() { begin_ = Clocks::now(); }

void Run::end() {
  if (ended_) return;
  ended_ = true;
  Clocks now = Clocks::now();
  spent_ = {now.wall - begin_.wall - rested_ns_, now.cpu - begin_.cpu,
            now.minor_faults - begin_.minor_faults, now.major_faults - begin_.major_faults};
  end_kib_ = rss_kib();
  peak_kib_ = std::max(peak_rss_kib(), end_kib_);
  if (idle_seconds_ <= 0) return;
  sleep_for(idle_seconds_);
  idle_kib_ = rss_kib();
}

void Run::print() const {
  std::printf("wall_ns=%llu cpu_ns=%llu operations=%llu peak_kib=%lu end_kib=%lu",
              static_cast<unsigned long long>(spent_.wall),
              static_cast<unsigned long long>(spent_.cpu),
              static_cast<unsigned long long>(operations_.load()), peak_kib_, end_kib_);
  std::printf(" minor_faults=%ld major_faults=%ld checksum=%llu library=%s", spent_.minor_faults,
              spent_.major_faults, static_cast<unsigned long long>(checksum_.load()),
              malloc_file(nullptr));
  if (malloc_tail.max > 0) {
    struct {
      const char* call;
      const Tail& tail;
    } tails[] = {{"malloc", malloc_tail}, {"free", free_tail}};
    for (const auto& [call, tail] : tails) {
      std::printf(" %s_p50_ns=%.1f %s_p99_ns=%.1f %s_p999_ns=%.1f", call, tail.p50, call, tail.p99,
                  call, tail.p999);
      std::printf(" %s_p9999_ns=%.1f %s_max_ns=%.1f %s_preempted=%" PRIu64, call, tail.p9999, call,
                  tail.max, call, tail.preempted);
    }
  }
  if (idle_seconds_ > 0) std::printf(" idle_kib=%lu", idle_kib_);
  std::printf("\n");
}

namespace {

enum Marks : unsigned { kNone = 0, kSingle = 1, kLatency = 2, kIdle = 4 };

struct Entry {
  std::string_view name;
  void (*run)(Run&);
  unsigned marks;
  const char* about;
};

constexpr Entry kWorkloads[] = {
    {"larson", larson, kNone,
     "a server's tables of 1,000 blocks of 8 to 1,000 bytes, handed to the next thread"},
    {"replaced", replaced, kNone, "as larson, but a thread ends after 1,000 blocks"},
    {"xmalloc", xmalloc, kNone,
     "half of the threads allocate batches of 4,096 objects, the other half frees them"},
    {"t-test1", t_test1, kNone, "malloc, calloc, realloc and memalign mixed, up to 10,000 bytes"},
    {"cache-scratch", cache_scratch, kNone,
     "passive false sharing: objects handed out side by side are freed (thousands of writes)"},
    {"cache-thrash", cache_thrash, kNone,
     "active false sharing: each thread writes to small objects of its own (thousands of writes)"},
    {"threadtest", threadtest, kNone, "allocates many objects of one size, then frees them all"},
    {"alloc-test", alloc_test, kNone,
     "up to 1 KiB, slots after Pareto's law, all bytes written and read"},
    {"sh6", sh6, kNone, "waves of small sizes, freed forwards and backwards while a third stays"},
    {"sh8", sh8, kNone, "as sh6, and other threads free some of the objects"},
    {"mstress", mstress, kNone,
     "phases of new threads with uneven loads; objects move and survive"},
    {"rptest", rptest, kNone,
     "8 to 16,000 bytes, scattered frees, some blocks freed by another thread"},
    {"mleak", mleak, kNone, "threads that leave one small object and end"},
    {"glibc-simple", glibc_simple, kSingle,
     "blocks of one size, 25 to 1,600 at a time, freed in both orders"},
    {"glibc-thread", glibc_thread, kNone, "1,024 blocks a thread, replaced at random, mostly tiny"},
    {"malloc-large", malloc_large, kSingle,
     "20 buffers of 5 to 25 MiB, replaced at random, every byte written"},
    {"ring", ring, kNone, "pairs of a producer and a consumer"},
    {"fan-in", fan_in, kNone, "many producers, one consumer"},
    {"fan-out", fan_out, kNone, "one producer, many consumers"},
    {"asymmetric", asymmetric, kNone, "each thread allocates another share and frees another one"},
    {"realloc", realloc_growth, kNone, "strings and vectors that grow step by step"},
    {"cache", cache, kNone, "128 MiB of values that turn over, their sizes move, a few get old"},
    {"burst-idle", burst_idle, kIdle,
     "bursts of 200 MB, freed, with rests between; for memory, not for a rate"},
    {"size-shift", size_shift, kIdle,
     "one mix of sizes after the other; a scattered tenth of each stays"},
    {"server-latency", server_latency, kLatency, "a server's mix of sizes, every call timed"},
};

[[noreturn]] void usage() {
  std::fprintf(stderr,
               "usage: workloads NAME THREADS --board FILE\n"
               "       workloads NAME THREADS --operations N [--idle SECONDS]\n"
               "       workloads --list\n");
  std::exit(2);
}

[[noreturn]] void refuse(const char* why, const char* value) {
  std::fprintf(stderr, "workloads: %s: '%s'\n", why, value);
  std::exit(2);
}

// Parses a number that is above `above` and at most `most`.
double number(const char* text, const char* what, double above, double most) {
  char* rest;
  double value = std::strtod(text, &rest);
  if (rest == text || *rest != '\0' || !(value > above && value <= most)) refuse(what, text);
  return value;
}

void list() {
  for (const Entry& entry : kWorkloads) {
    std::printf(
        "%s\t%s\t%s\t%s\t%s\n", entry.name.data(), entry.marks & kSingle ? "single" : "threads",
        entry.marks & kLatency ? "latency" : "-", entry.marks & kIdle ? "idle" : "-", entry.about);
  }
}

// Returns the observer's file, or memory of our own if there is no observer.
Board& board_of(const char* path) {
  int file = path == nullptr ? -1 : open(path, O_RDWR | O_CLOEXEC);
  struct stat about;
  if (path != nullptr && (file < 0 || fstat(file, &about) != 0 || about.st_size != sizeof(Board)))
    refuse("--board must be a file of the observer's", path);
  void* p = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE,
                 path == nullptr ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, file, 0);
  if (p == MAP_FAILED) broken("no memory for the board");
  Board& board = *static_cast<Board*>(p);
  if (path == nullptr) {
    board.phase.store(kMeasured, std::memory_order_relaxed);
    return board;
  }
  close(file);
  if (board.magic != Board::kMagic) refuse("--board must be a file of the observer's", path);
  // Only the observer would end this process.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  return board;
}

int run_one(int argc, char** argv) {
  const Entry* entry = std::find_if(std::begin(kWorkloads), std::end(kWorkloads),
                                    [&](const Entry& e) { return e.name == argv[1]; });
  if (entry == std::end(kWorkloads)) refuse("no such workload", argv[1]);
  double threads = number(argv[2], "THREADS must be a whole number from 1 to 64", 0, kMaxThreads);
  if (threads != std::floor(threads))
    refuse("THREADS must be a whole number from 1 to 64", argv[2]);
  if ((entry->marks & kSingle) != 0 && threads != 1)
    refuse("this workload has one thread, not", argv[2]);
  double operations = 0, idle = 0;
  const char* board_file = nullptr;
  for (int i = 3; i < argc; i += 2) {
    std::string_view option = argv[i];
    if (option != "--operations" && option != "--idle" && option != "--board")
      refuse("no such option", argv[i]);
    if (i + 1 == argc) refuse("this option needs a value", argv[i]);
    if (option == "--operations") {
      operations =
          number(argv[i + 1], "--operations must be a number above 0, up to 1e15", 0, 1e15);
    } else if (option == "--idle") {
      idle = number(argv[i + 1], "--idle must be seconds above 0, up to 3600", 0, 3600);
    } else {
      board_file = argv[i + 1];
    }
  }
  if ((operations > 0) == (board_file != nullptr)) usage();
  Board& board = board_of(board_file);
  Run run(static_cast<int>(threads), static_cast<uint64_t>(std::ceil(operations)), idle, board);
  run.start();
  // Not ordered with anything: from here on the observer looks at counters, which are 0 until there
  // is work.
  board.pid.store(static_cast<uint64_t>(getpid()), std::memory_order_relaxed);
  entry->run(run);
  run.end();
  run.print();
  return 0;
}

}  // namespace

}  // namespace workloads

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--list") {
    workloads::list();
    return 0;
  }
  if (argc < 3) workloads::usage();
  return workloads::run_one(argc, argv);
}
