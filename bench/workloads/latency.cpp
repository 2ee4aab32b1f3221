// server-latency: the time of every single call of malloc and free in threads that work as a
// server's do. Each thread holds a table of objects of 16 bytes to 64 KiB, small ones more often,
// and replaces them at random; every fourth object goes to another thread, which frees it. What
// counts is the tail: the calls that refill, take a lock, return memory or fault.
// A call lies between two reads of the time stamp counter, which wait for the instructions before
// them. The time of the reads, some ten nanoseconds, is in every figure, and is the same for every
// allocator.
// A call in which the scheduler gives the CPU to another thread says nothing about the allocator,
// and with more threads than CPUs one call in ten thousand is like that. Such calls are counted
// separately (malloc_preempted), and are in no other figure. A call in which the thread waits for a
// lock is the allocator's, and counts like any other.
// Calls before the steady state are in no figure.
#if defined(__x86_64__)
#include <sys/resource.h>
#include <sys/rseq.h>
#include <x86intrin.h>
#endif

#include "../measure.h"
#include "workloads.h"

namespace workloads {

namespace {

inline uint64_t stamp() {
#if defined(__x86_64__)
  unsigned cpu;
  return __rdtscp(&cpu);
#else
  return ticks();
#endif
}

// Tells whether the kernel has taken the CPU away from this thread. The kernel then forgets the
// restartable sequence that the thread has set, if the thread is not inside it (rseq(2)); ours is
// empty. An allocator that uses sequences itself overwrites ours.
class Watch {
 public:
#if defined(__x86_64__)
  Watch() : is_there_(__rseq_size > 0), waits_(waits()) {}

  void start() {
    if (is_there_) area()->rseq_cs = reinterpret_cast<uint64_t>(sequence());
  }
  // True if the thread had to stop between start() and now, and did not wait by itself.
  bool was_preempted() {
    if (!is_there_ || __builtin_expect(area()->rseq_cs != 0, 1)) return false;
    const long waits_before = waits_;
    waits_ = waits();
    return waits_ == waits_before;
  }

 private:
  struct alignas(32) Sequence {
    uint32_t version, flags;
    uint64_t begin, length, handler;
  };
  static volatile struct rseq* area() {
    return reinterpret_cast<volatile struct rseq*>(static_cast<char*>(__builtin_thread_pointer()) +
                                                   __rseq_offset);
  }
  // The kernel wants its signature before the handler, which never runs.
  static const Sequence* sequence() {
    uint64_t handler;
    __asm__(
        ".pushsection .text.watch, \"ax\"\n\t"
        ".long 0x53053053\n"
        "1:\n\t"
        "ud2\n\t"
        ".popsection\n\t"
        "leaq 1b(%%rip), %0"
        : "=r"(handler));
    static const Sequence empty{0, 0, handler, 0, handler};
    return &empty;
  }
  static long waits() {
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
  }

  bool is_there_;
  long waits_;
#else
  void start() {}
  bool was_preempted() { return false; }
#endif
};

// Counts by value; each power of two has kParts parts of equal width, so a value is known to 1.6 %.
class Histogram {
 public:
  void add(uint64_t value) {
    counts_[place(value)]++;
    max_ = std::max(max_, value);
  }
  void leave_out() { left_out_++; }

  void add(const Histogram& other) {
    for (size_t i = 0; i < kPlaces; i++) counts_[i] += other.counts_[i];
    max_ = std::max(max_, other.max_);
    left_out_ += other.left_out_;
  }

  // The least value that at least this part of all values does not exceed.
  double quantile(double part) const {
    uint64_t all = 0, seen = 0;
    for (uint32_t count : counts_) all += count;
    uint64_t wanted = static_cast<uint64_t>(part * static_cast<double>(all));
    for (size_t i = 0; i < kPlaces; i++) {
      seen += counts_[i];
      if (seen > wanted) return std::min(middle(i), static_cast<double>(max_));
    }
    return static_cast<double>(max_);
  }

  Tail tail(double ns_a_tick) const {
    return {quantile(0.5) * ns_a_tick,
            quantile(0.99) * ns_a_tick,
            quantile(0.999) * ns_a_tick,
            quantile(0.9999) * ns_a_tick,
            static_cast<double>(max_) * ns_a_tick,
            left_out_};
  }

 private:
  static constexpr unsigned kPartBits = 6, kMostBits = 40;  // 2^40 ticks are minutes
  static constexpr size_t kParts = size_t{1} << kPartBits;
  static constexpr size_t kPlaces = (kMostBits - kPartBits + 1) * kParts;

  static size_t place(uint64_t value) {
    if (value < kParts) return value;
    unsigned shift = 63 - static_cast<unsigned>(__builtin_clzll(value)) - kPartBits;
    return std::min(kPlaces - 1, (shift << kPartBits) + (value >> shift));
  }

  static double middle(size_t place) {
    if (place < 2 * kParts) return static_cast<double>(place);
    size_t shift = place / kParts - 1;
    return (static_cast<double>(place % kParts + kParts) + 0.5) *
           static_cast<double>(size_t{1} << shift);
  }

  uint32_t counts_[kPlaces];
  uint64_t max_;
  uint64_t left_out_;
};

struct Letter {
  Letter* next;
};

// The data of one thread. It lies in a book: zeroed, and on cache lines of its own. The inbox is
// bounded, because with more threads than CPUs its owner may not look for a long time.
struct alignas(64) Seat {
  static constexpr int kMostLetters = 64;
  alignas(64) std::atomic<Letter*> inbox;
  std::atomic<int> letters;
  alignas(64) Histogram mallocs;
  Histogram frees;
};

size_t server_bytes(Random& random) {
  size_t choice = random.below(1000);
  if (choice < 600) return random.between(16, 256);
  if (choice < 850) return random.between(257, 2048);
  if (choice < 950) return random.between(2049, 8192);
  if (choice < 990) return random.between(8193, 32'768);
  return random.between(32'769, 65'536);
}

// The means by which a thread times its calls. `seat` counts the calls if `is_measured` is true.
struct Timer {
  Watch watch;
  Seat& seat;
  bool is_measured;

  void count(Histogram& times, uint64_t time) {
    const bool was_preempted = watch.was_preempted();
    if (is_measured) was_preempted ? times.leave_out() : times.add(time);
  }
};

char* timed_make(size_t bytes, Timer& timer, Tally& tally) {
  timer.watch.start();
  uint64_t from = stamp();
  char* object = static_cast<char*>(std::malloc(bytes));
  uint64_t time = stamp() - from;
  timer.count(timer.seat.mallocs, time);
  if (object == nullptr) broken("malloc returned null");
  // Writes the head of the object and every page of it, as a server does that fills its answer.
  std::memset(object, static_cast<int>(bytes & 255), std::min<size_t>(bytes, 128));
  for (size_t at = 4096; at < bytes; at += 4096) object[at] = 1;
  object[bytes - 1] = 1;
  tally.operations++;
  tally.checksum += bytes;
  return object;
}

void timed_free(void* object, Timer& timer) {
  timer.watch.start();
  uint64_t from = stamp();
  std::free(object);
  uint64_t time = stamp() - from;
  timer.count(timer.seat.frees, time);
}

// Returns false if the inbox is full.
bool post(Seat& to, char* object) {
  if (to.letters.load(std::memory_order_relaxed) >= Seat::kMostLetters) return false;
  to.letters.fetch_add(1, std::memory_order_relaxed);
  Letter* letter = reinterpret_cast<Letter*>(object);
  letter->next = to.inbox.load(std::memory_order_relaxed);
  while (!to.inbox.compare_exchange_weak(letter->next, letter, std::memory_order_release,
                                         std::memory_order_relaxed)) {
  }
  return true;
}

void read_inbox(Timer& timer) {
  Seat& seat = timer.seat;
  if (seat.inbox.load(std::memory_order_relaxed) == nullptr) return;
  seat.letters.store(0, std::memory_order_relaxed);
  for (Letter* letter = seat.inbox.exchange(nullptr, std::memory_order_acquire);
       letter != nullptr;) {
    Letter* next = letter->next;
    timed_free(letter, timer);
    letter = next;
  }
}

}  // namespace

void server_latency(Run& run) {
  constexpr size_t kObjects = 8192, kStepsPerLook = 32;
  size_t objects = kObjects / static_cast<size_t>(run.threads);
  Book<Seat> seats(static_cast<size_t>(run.threads));
  uint64_t from_ticks = stamp(), from_ns = wall_ns();
  run.in_threads([&](int number) {
    size_t me = static_cast<size_t>(number), threads = static_cast<size_t>(run.threads);
    Random random(me);
    Worker worker(run, number);
    Timer timer{Watch(), seats[me], worker.is_measured()};
    Book<char*> table(objects);
    for (char*& object : table) object = timed_make(server_bytes(random), timer, worker.tally);
    do {
      timer.is_measured = worker.is_measured();
      for (size_t i = 0; i < kStepsPerLook; i++) {
        char*& object = table[random.below(objects)];
        size_t to = random.one_in(4) ? random.below(threads) : me;
        if (to == me || !post(seats[to], object)) timed_free(object, timer);
        object = timed_make(server_bytes(random), timer, worker.tally);
      }
      read_inbox(timer);
    } while (worker.goes_on());
    timer.is_measured = false;
    for (char* object : table) timed_free(object, timer);
    read_inbox(timer);
  });
  double ns_a_tick =
      static_cast<double>(wall_ns() - from_ns) / static_cast<double>(stamp() - from_ticks);
  Book<Histogram> all(2);
  for (Seat& seat : seats) {
    // Objects that were posted to threads that had ended.
    Timer timer{Watch(), seat, false};
    read_inbox(timer);
    all[0].add(seat.mallocs);
    all[1].add(seat.frees);
  }
  run.malloc_tail = all[0].tail(ns_a_tick);
  run.free_tail = all[1].tail(ns_a_tick);
}

}  // namespace workloads
