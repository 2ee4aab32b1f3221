// server-latency: the time of every single call of malloc and free in threads that work as a server's do. Each holds a
// table of objects of 16 bytes to 64 KiB, small ones more often, and replaces them at random; every fourth goes to another
// thread, which frees it. What counts is the tail: the calls that refill, take a lock, return memory or fault.
// A call lies between two reads of the time stamp counter, which wait for the instructions before them; their own time,
// some ten nanoseconds, is in every figure, and the same for every allocator. Of preempted calls the time of the others is
// in the figure too: with more threads than CPUs it is what the maximum shows.
#if defined(__x86_64__)
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

// Counts by value; each power of two has kParts parts of equal width, so a value is known to 1.6 %.
class Histogram {
 public:
  void add(uint64_t value) {
    counts_[place(value)]++;
    max_ = std::max(max_, value);
  }

  void add(const Histogram& other) {
    for (size_t i = 0; i < kPlaces; i++) counts_[i] += other.counts_[i];
    max_ = std::max(max_, other.max_);
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
    return {quantile(0.5) * ns_a_tick, quantile(0.99) * ns_a_tick, quantile(0.999) * ns_a_tick,
            quantile(0.9999) * ns_a_tick, static_cast<double>(max_) * ns_a_tick};
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
    return (static_cast<double>(place % kParts + kParts) + 0.5) * static_cast<double>(size_t{1} << shift);
  }

  uint32_t counts_[kPlaces];
  uint64_t max_;
};

struct Letter {
  Letter* next;
};

// Of one thread, in a book: zeroed, and on cache lines of its own. The inbox is bounded, for with more threads than CPUs
// its owner may not look for long.
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

char* timed_make(size_t bytes, Histogram& times, Tally& tally) {
  uint64_t from = stamp();
  char* object = static_cast<char*>(std::malloc(bytes));
  times.add(stamp() - from);
  if (object == nullptr) broken("malloc returned null");
  // The head of the object and every page of it, as a server that fills its answer.
  std::memset(object, static_cast<int>(bytes & 255), std::min<size_t>(bytes, 128));
  for (size_t at = 4096; at < bytes; at += 4096) object[at] = 1;
  object[bytes - 1] = 1;
  tally.operations++;
  tally.checksum += bytes;
  return object;
}

void timed_free(void* object, Histogram& times) {
  uint64_t from = stamp();
  std::free(object);
  times.add(stamp() - from);
}

// False: the inbox is full.
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

void read_inbox(Seat& seat) {
  if (seat.inbox.load(std::memory_order_relaxed) == nullptr) return;
  seat.letters.store(0, std::memory_order_relaxed);
  for (Letter* letter = seat.inbox.exchange(nullptr, std::memory_order_acquire); letter != nullptr;) {
    Letter* next = letter->next;
    timed_free(letter, seat.frees);
    letter = next;
  }
}

}  // namespace

void server_latency(Run& run) {
  constexpr size_t kObjects = 8192, kStepsPerLook = 32;
  size_t objects = kObjects / static_cast<size_t>(run.threads);
  size_t steps = run.share(1.3e6);
  Book<Seat> seats(static_cast<size_t>(run.threads));
  uint64_t from_ticks = stamp(), from_ns = wall_ns();
  run.in_threads([&](int number) {
    size_t me = static_cast<size_t>(number), threads = static_cast<size_t>(run.threads);
    Random random(me);
    Tally tally;
    Seat& seat = seats[me];
    Book<char*> table(objects);
    for (char*& object : table) object = timed_make(server_bytes(random), seat.mallocs, tally);
    for (size_t i = 0; i < steps; i++) {
      char*& object = table[random.below(objects)];
      size_t to = random.one_in(4) ? random.below(threads) : me;
      if (to == me || !post(seats[to], object)) timed_free(object, seat.frees);
      object = timed_make(server_bytes(random), seat.mallocs, tally);
      if (i % kStepsPerLook == 0) read_inbox(seat);
    }
    for (char* object : table) timed_free(object, seat.frees);
    read_inbox(seat);
    run.add(tally);
  });
  double ns_a_tick = static_cast<double>(wall_ns() - from_ns) / static_cast<double>(stamp() - from_ticks);
  // What was posted to threads that had ended.
  for (Seat& seat : seats) read_inbox(seat);
  Book<Histogram> all(2);
  for (Seat& seat : seats) {
    all[0].add(seat.mallocs);
    all[1].add(seat.frees);
  }
  run.malloc_tail = all[0].tail(ns_a_tick);
  run.free_tail = all[1].tail(ns_a_tick);
}

}  // namespace workloads
