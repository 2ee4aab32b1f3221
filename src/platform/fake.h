// Fake: a platform for tests (platform.h says what each function promises). Its clock, page size, limits and failures are
// set by the test, and it keeps books: every address range is claimed only when unclaimed, opened only when reserved,
// emptied, moved and released only when claimed. Real memory lies underneath, inaccessible while not claimed, so that a
// wild access crashes.
// Called by: tests/unit. Never part of a library. State belongs to the type; FakeTest resets it. What several threads may
// touch is a relaxed atomic, so that the fake orders no thread with another where the system would not.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "platform/linux.h"

namespace lanemalloc {

struct Fake {
  // --- What a test sets.
  enum Call { kReserve, kMakeReadable, kOpen, kClaim, kEmpty, kMove, kAnyMemory, kStartThread, kRelease };

  // Calls number `from` up to, but not including, `until` fail; the first call after arm() is number 1.
  struct Fault {
    std::atomic<uint64_t> calls = 0;
    std::atomic<uint64_t> from = ~uint64_t{0};
    std::atomic<uint64_t> until = 0;

    Fault() {}
    void arm(uint64_t first, uint64_t end = ~uint64_t{0}) {
      calls = 0;
      from = first;
      until = end;
    }
    void disarm() { from = ~uint64_t{0}; }
    bool next() {
      const uint64_t n = calls.fetch_add(1, std::memory_order_relaxed) + 1;
      return n >= from.load(std::memory_order_relaxed) && n < until.load(std::memory_order_relaxed);
    }
  };

  static inline Bytes page = 4096;
  static inline Bytes memory = Bytes{1} << 30;
  static inline Bytes limit = Bytes{1} << 30;  // of addresses; keeps the region small
  static inline bool maps_are_charged = false;
  static inline bool has_barrier = true;
  static inline std::atomic<bool> single{false};
  static inline std::atomic<uint64_t> clock{1};
  static inline std::atomic<uint64_t> ns{0};       // 0: the machine's
  static inline std::function<void()> on_release;  // after the next release, once
  static inline std::function<void()> on_pause;    // while a thread spins for a lock
  static inline std::atomic<int> sleepers{0};      // threads in wait()
  static inline void (*on_sleep)() = nullptr;
  static inline std::function<void()> on_barrier;            // runs in the middle of a revocation
  static inline std::function<void()> on_restart;            // the same, of a lane that is entered by its CPU
  static inline thread_local std::function<void()> on_wake;  // before this thread's next, once
  static inline uint32_t cpu_count = 2;
  static inline thread_local uint32_t number =
      0;  // of the CPU that the thread runs on; kNoNumber: none to be had
  static inline thread_local uint32_t interrupt_next =
      0;                                        // so many of the next restartable sequences are interrupted
  static inline std::function<void()> on_step;  // runs before the next of them, once
  static inline std::atomic<uint64_t> interrupted{0};
  static inline bool number_hits = true;
  static inline Fault taken;  // claims that find somebody else's mapping

  static void fail(Call call, uint64_t from, uint64_t until = ~uint64_t{0}) { fault(call).arm(from, until); }
  static void fail_once(Call call, uint64_t nth) { fail(call, nth, nth + 1); }
  static void fail_never() {
    for (Fault& f : faults_) f.disarm();
    taken.disarm();
  }
  // Somebody else maps something at blocks of the body that are not claimed.
  static void take_away(Address a, Bytes n) {
    each_block(a, n, [](std::atomic<State>& s) { s.store(State::kForeign, std::memory_order_relaxed); });
  }

  // --- What a test reads.
  static uint64_t calls(Call call) {
    return total_[static_cast<size_t>(call)].load(std::memory_order_relaxed);
  }
  static uint64_t claimed_blocks() { return claimed_.load(std::memory_order_relaxed); }
  static uint64_t most_claimed_blocks() { return most_claimed_.load(std::memory_order_relaxed); }
  // The first breach of the contract by the core; empty if there was none.
  static std::string misuse() { return misused_.load() ? misuse_ : std::string(); }
  static inline std::string said;                                  // by say(); one thread only
  static inline std::atomic<void (*)(void*)> thread_run{nullptr};  // what start_thread was asked to run
  static inline std::atomic<void*> thread_argument{nullptr};

  // Gives the region back, as the end of a process does; settings and counters stay, the books are empty again.
  static void release_all() {
    unmap();
    claimed_ = 0;
  }
  static void reset() {
    release_all();
    page = 4096;
    memory = limit = Bytes{1} << 30;
    maps_are_charged = false;
    has_barrier = true;
    single = false;
    clock = 1;
    ns = 0;
    on_release = nullptr;
    on_pause = nullptr;
    on_sleep = nullptr;
    on_barrier = nullptr;
    on_restart = nullptr;
    on_wake = nullptr;
    cpu_count = 2;
    number = interrupt_next = 0;
    interrupted = 0;
    on_step = nullptr;
    number_hits = true;
    fail_never();
    for (auto& n : total_) n = 0;
    most_claimed_ = 0;
    misused_ = false;
    said.clear();
    thread_run = nullptr;
    thread_argument = nullptr;
  }

  // --- The contract.
  static Bytes page_size() noexcept { return page; }
  static Bytes physical_memory() noexcept { return memory; }
  static Bytes address_limit() noexcept { return limit; }
  static bool charges_by_mapping() noexcept { return maps_are_charged; }

  static Address reserve(Bytes meta, Bytes body) noexcept {
    if (fails(Call::kReserve)) return 0;
    if (body == 0) return asides_.emplace_back(Linux::reserve(meta, 0), meta).first;
    if (mapping_ != 0) return misuse("reserve: a region is there already"), 0;
    if (meta % kHugePage != 0) misuse("reserve: metadata that is no whole number of huge pages");
    length_ = meta + body + kHugePage;
    const long at =
        call_system(SYS_mmap, 0, length_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
    if (at < 0) return 0;
    mapping_ = static_cast<Address>(at);
    meta_ = round_up(mapping_, kHugePage);
    body_ = meta_ + meta;
    end_ = body_ + body;
    pages_ = std::vector<std::atomic<State>>(meta / page);
    blocks_ = std::vector<std::atomic<State>>(body / kBlockSize);
    return meta_;
  }

  static bool make_readable(Address a, Bytes n) noexcept {
    if (fails(Call::kMakeReadable)) return false;
    each_page(a, n, "make_readable",
              [](std::atomic<State>& s) { s.store(State::kReadable, std::memory_order_relaxed); });
    return protect(a, n, PROT_READ);
  }

  static bool open(Address a, Bytes n) noexcept {
    if (fails(Call::kOpen)) return false;
    each_page(a, n, "open", [](std::atomic<State>& s) { s.store(State::kOpen, std::memory_order_relaxed); });
    return protect(a, n, PROT_READ | PROT_WRITE);
  }

  static void release(Address a, Bytes n) noexcept {
    count(Call::kRelease);
    if (a == meta_) return unmap();
    if (is_aside(a)) return Linux::release(a, n);
    change(a, n, State::kClaimed, State::kNone, "release of what is not claimed");
    claimed_.fetch_sub(n / kBlockSize, std::memory_order_relaxed);
    protect(a, n, PROT_NONE);
    call_system(SYS_madvise, a, n, MADV_DONTNEED);
    if (on_release) std::exchange(on_release, nullptr)();
  }

  static Claim claim(Address a, Bytes n) noexcept {
    if (fails(Call::kClaim)) return Claim::kNoMemory;
    if (taken.next()) {
      take_away(a, n);
      return Claim::kTaken;
    }
    bool foreign = false;
    each_block(a, n, [&](std::atomic<State>& s) {
      foreign |= s.load(std::memory_order_relaxed) == State::kForeign;
    });
    if (foreign) return Claim::kTaken;
    protect(a, n, PROT_READ | PROT_WRITE);
    change(a, n, State::kNone, State::kClaimed, "claim of what is claimed");
    const uint64_t now = claimed_.fetch_add(n / kBlockSize, std::memory_order_relaxed) + n / kBlockSize;
    uint64_t most = most_claimed_.load(std::memory_order_relaxed);
    while (most < now && !most_claimed_.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
    }
    return Claim::kDone;
  }

  static bool empty(Address a, Bytes n) noexcept {
    if (fails(Call::kEmpty)) return false;
    change(a, n, State::kClaimed, State::kClaimed, "empty of what is not claimed");
    return call_system(SYS_madvise, a, n, MADV_DONTNEED) == 0;
  }

  static bool move(Address from, Address to, Bytes n) noexcept {
    if (fails(Call::kMove)) {  // as Linux: what lay at the target is gone
      call_system(SYS_madvise, to, n, MADV_DONTNEED);
      return false;
    }
    change(to, n, State::kClaimed, State::kClaimed, "move to what is not claimed");
    change(from, n, State::kClaimed, State::kNone, "move of what is not claimed");
    if (from < to + n && to < from + n) misuse("move: the ranges overlap");
    memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), n);
    claimed_.fetch_sub(n / kBlockSize, std::memory_order_relaxed);
    protect(from, n, PROT_NONE);
    call_system(SYS_madvise, from, n, MADV_DONTNEED);
    return true;
  }

  static uint64_t now_ms() noexcept { return clock.load(std::memory_order_relaxed); }
  static uint64_t interruptions() noexcept { return interrupted; }
  static uint32_t thread_id() noexcept { return Linux::thread_id(); }
  static bool is_gone(uint32_t thread) noexcept { return Linux::is_gone(thread); }
  static uint64_t now_ns() noexcept {
    const uint64_t set = ns.load(std::memory_order_relaxed);
    return set != 0 ? set : Linux::now_ns();
  }
  static uint32_t cpus() noexcept { return cpu_count; }
  static uint32_t lane_number() noexcept { return number; }
  // A compare-exchange: the steps of all threads come one after the other, also of those with other numbers.
  static Restartable take_here(std::atomic<uint32_t>& word, uint16_t lower, uint32_t mark,
                               uint32_t& before) noexcept {
    if (on_step) std::exchange(on_step, nullptr)();
    if (interrupt_next > 0) return --interrupt_next, ++interrupted, Restartable::kInterrupted;
    before = number << 16 | lower;
    return word.compare_exchange_strong(before, mark, std::memory_order_acquire, std::memory_order_relaxed)
               ? Restartable::kDone
               : Restartable::kElsewhere;
  }
  // Real steps start again if a revoker comes in between; this one finds out afterwards.
  static Restartable hit_take_here(std::atomic<uint32_t>& word, const std::atomic<uint64_t>& who,
                                   uint32_t mark, uint32_t& before, uint64_t& seen) noexcept {
    const auto lower = static_cast<uint16_t>(who.load(std::memory_order_relaxed));
    const Restartable taken = take_here(word, lower, mark, before);
    if (taken != Restartable::kDone) return taken;
    seen = who.load(std::memory_order_relaxed);
    if (static_cast<uint16_t>(seen) == lower) return taken;
    word.store(before, std::memory_order_release);
    return Restartable::kInterrupted;
  }
  static Restartable hit_pop_here(std::atomic<uint32_t>& word, void** head, void*& object) noexcept {
    constexpr uint32_t kBusy = 0xFFFFFFFF;
    uint32_t before = word.load(std::memory_order_relaxed);
    if (before >> 16 != number) return Restartable::kElsewhere;
    const Restartable taken = take_here(word, static_cast<uint16_t>(before), kBusy, before);
    if (taken != Restartable::kDone) return taken;
    object = *head;
    if (object != nullptr) *head = *static_cast<void**>(object);
    word.store(before, std::memory_order_release);
    return object != nullptr ? Restartable::kDone : Restartable::kEmpty;
  }
  static bool numbers_for_hits() noexcept { return number_hits && number != kNoNumber; }
  static bool restart_here() noexcept {
    if (on_restart != nullptr) on_restart();
    return has_barrier && Linux::barrier();
  }
  static bool single_threaded() noexcept { return single.load(std::memory_order_relaxed); }
  static bool barrier() noexcept {
    if (!has_barrier) return false;
    if (on_barrier != nullptr) on_barrier();
    return Linux::barrier();
  }
  static void wait(std::atomic<uint32_t>& word, uint32_t value) noexcept {
    ++sleepers;
    Linux::wait(word, value);
    --sleepers;
  }
  static void wake(std::atomic<uint32_t>& word, int n) noexcept {
    if (on_wake) std::exchange(on_wake, nullptr)();
    Linux::wake(word, n);
  }
  static void sleep_ms(uint64_t ms) noexcept {
    clock.fetch_add(ms, std::memory_order_relaxed);
    if (on_sleep != nullptr) on_sleep();
  }
  static void pause() noexcept {
    if (on_pause) on_pause();
    Linux::pause();
  }
  // Only notes what is to be run; a test runs it by hand.
  static bool start_thread(BareThread&, void (*run)(void*), void* argument) noexcept {
    if (fails(Call::kStartThread)) return false;
    thread_argument.store(argument, std::memory_order_relaxed);
    thread_run.store(run, std::memory_order_release);
    return true;
  }
  static void say(const char* text, Bytes n) noexcept { said.append(text, n); }

 private:
  enum class State : uint8_t { kNone, kReadable, kOpen, kClaimed, kForeign };
  static constexpr size_t kCalls = static_cast<size_t>(Call::kRelease) + 1;

  static Fault& fault(Call call) { return faults_[static_cast<size_t>(call)]; }
  static void count(Call call) { total_[static_cast<size_t>(call)].fetch_add(1, std::memory_order_relaxed); }
  static bool fails(Call call) {
    count(call);
    bool any = false;
    if (call < Call::kAnyMemory) {
      count(Call::kAnyMemory);
      any = fault(Call::kAnyMemory).next();
    }
    return fault(call).next() || any;
  }

  static void misuse(const char* what) {
    if (misused_.exchange(true)) return;
    misuse_ = what;
    std::fprintf(stderr, "Fake: the contract is broken: %s\n", what);
  }

  template <class Visit>
  static void each_page(Address a, Bytes n, const char* what, Visit visit) {
    if (a % page != 0 || n % page != 0) misuse("an address or a size that is no whole number of pages");
    if (is_aside(a)) return;
    if (a < meta_ || a + n > body_) return misuse(what);
    for (Address at = a; at < a + n; at += page) visit(pages_[(at - meta_) / page]);
  }
  template <class Visit>
  static void each_block(Address a, Bytes n, Visit visit) {
    if (a % kBlockSize != 0 || n % kBlockSize != 0 || n == 0)
      misuse("a range that is no whole number of blocks");
    if (a < body_ || a + n > end_) return misuse("a range outside the body");
    for (Address at = a; at < a + n; at += kBlockSize) visit(blocks_[(at - body_) / kBlockSize]);
  }
  static void change(Address a, Bytes n, State before, State after, const char* what) {
    each_block(a, n, [&](std::atomic<State>& s) {
      if (s.exchange(after, std::memory_order_relaxed) != before) misuse(what);
    });
  }
  // Directly: what the sanitizers would do about gigabytes of addresses takes most of a test's time.
  static long call_system(long number, Address a, Bytes n, int c = 0, int d = 0, int e = 0) {
    return arch::system_call(number, static_cast<long>(a), static_cast<long>(n), c, d, e);
  }
  static bool protect(Address a, Bytes n, int protection) {
    return call_system(SYS_mprotect, a, n, protection) == 0;
  }
  // Metadata apart from the region; there may be several.
  static bool is_aside(Address a) {
    return std::any_of(asides_.begin(), asides_.end(), [a](const auto& r) { return a - r.first < r.second; });
  }
  static void unmap() {
    for (const auto& [begin, n] : asides_) Linux::release(begin, n);
    asides_.clear();
    if (mapping_ != 0) call_system(SYS_munmap, mapping_, length_);
    mapping_ = meta_ = body_ = end_ = 0;
  }

  static inline Fault faults_[kCalls];
  static inline std::atomic<uint64_t> total_[kCalls]{};
  static inline std::atomic<uint64_t> claimed_{0};
  static inline std::atomic<uint64_t> most_claimed_{0};
  static inline std::atomic<bool> misused_{false};
  static inline std::string misuse_;
  static inline Address mapping_ = 0;  // whole, with what alignment wastes
  static inline Bytes length_ = 0;
  static inline Address meta_ = 0, body_ = 0, end_ = 0;
  static inline std::vector<std::pair<Address, Bytes>> asides_;
  static inline std::vector<std::atomic<State>> pages_;   // of the metadata
  static inline std::vector<std::atomic<State>> blocks_;  // of the body
};
static_assert(Platform<Fake>);

}  // namespace lanemalloc
