// Fake: a platform for tests (platform.h says what each function promises). A test sets its clock,
// page size, limits and failures. The fake keeps books: an address range is claimed only when it is
// unclaimed, opened only when it is reserved, and emptied, moved and released only when it is
// claimed. Real memory lies underneath. It is inaccessible while it is not claimed, so that a wild
// access crashes.
// Called by: tests/unit. Never part of a library. State belongs to the type; FakeTest resets it.
// Words that several threads may touch are relaxed atomics, so that the fake orders no thread with
// another where the system would not.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/platform/linux.h"

namespace lanemalloc {

struct Fake {
  // --- What a test sets.
  enum Call { kGround, kExtend, kClaim, kReserve, kOpen, kEmpty, kMove, kAnyMemory, kRelease };

  // Calls number `from` up to, but not including, `until` fail. The first call after arm() is
  // number 1.
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
  static inline Bytes limit = Bytes{1} << 30;  // of addresses; keeps the region small
  static inline bool maps_are_charged = false;
  static inline bool has_barrier = true;
  static inline std::atomic<bool> single{false};
  static inline std::atomic<uint64_t> clock{1};
  static inline std::atomic<uint64_t> ns{0};       // 0: the machine's clock
  static inline std::function<void()> on_release;  // after the next release, once
  static inline std::function<void()> on_extend;   // after each extension
  static inline std::function<void()> on_claim;    // before the next claim, once
  static inline std::function<void()> on_pause;    // while a thread spins for a lock
  static inline std::function<void()> on_yield;    // once: when a thread gives up its CPU
  static inline std::atomic<int> sleepers{0};      // threads in wait()
  static inline void (*on_sleep)() = nullptr;
  // Called in place of this thread's waits. If it returns false, the thread waits.
  static inline thread_local bool (*on_wait)(const void* word, uint64_t most_ms) = nullptr;
  // What thread_id() returns in this thread; 0: the system's number.
  static inline thread_local uint32_t id = 0;
  static inline std::vector<uint32_t> gone;         // threads with these ids have ended
  static inline std::vector<const void*> unmapped;  // reads_as() finds no memory there
  static inline std::function<void()> on_barrier;   // runs in the middle of a revocation
  // The same, for a lane that is entered by its CPU.
  static inline std::function<void()> on_restart;
  // Runs before this thread's next wake(), once.
  static inline thread_local std::function<void()> on_wake;
  static inline thread_local bool signals_are_blocked = false;
  static inline uint32_t cpu_count = 2;
  // The number of the CPU that the thread runs on; kNoNumber: there is none.
  static inline thread_local uint32_t number = 0;
  // That many of the next restartable sequences are interrupted.
  static inline thread_local uint32_t interrupt_next = 0;
  static inline std::function<void()> on_step;  // runs before the next sequence, once
  static inline std::atomic<uint64_t> interrupted{0};
  static inline uint64_t fixed_secret = 0;  // of links; 0: another one each time
  static inline bool number_hits = true;
  static inline bool pushes = true;
  static inline Fault taken;            // claims that find a foreign mapping
  static inline Fault ground_taken;     // the same for metadata
  static inline bool is_child = false;  // a child of fork: it releases what may not be there
  static inline bool moves_leave_nothing = false;  // a failed move has unmapped its target

  static void fail(Call call, uint64_t from, uint64_t until = ~uint64_t{0}) {
    fault(call).arm(from, until);
  }
  static void fail_once(Call call, uint64_t nth) { fail(call, nth, nth + 1); }
  static void fail_never() {
    for (Fault& f : faults_) f.disarm();
    taken.disarm();
    ground_taken.disarm();
  }
  // Maps something that is not the allocator's at blocks of the body that are not claimed.
  static void take_away(Address a, Bytes n) {
    each_page(a, n,
              [](std::atomic<State>& s) { s.store(State::kForeign, std::memory_order_relaxed); });
  }

  // --- What a test reads.
  static uint64_t calls(Call call) {
    return total_[static_cast<size_t>(call)].load(std::memory_order_relaxed);
  }
  static uint64_t claimed_blocks() { return claimed_.load(std::memory_order_relaxed); }
  static uint64_t most_claimed_blocks() { return most_claimed_.load(std::memory_order_relaxed); }
  // The first breach of the contract by the core; empty if there is none.
  static std::string misuse() { return misused_.load() ? misuse_ : std::string(); }
  static inline std::string said;  // what say() wrote; one thread only

  // Gives the region back, as the end of a process does. Settings and counters stay; the books are
  // empty again.
  static void release_all() {
    unmap();
    claimed_ = 0;
  }
  static void reset() {
    release_all();
    page = 4096;
    limit = Bytes{1} << 30;
    maps_are_charged = false;
    has_barrier = true;
    moves_leave_nothing = is_child = false;
    single = false;
    clock = 1;
    ns = 0;
    on_release = nullptr;
    on_extend = nullptr;
    on_claim = nullptr;
    on_pause = nullptr;
    on_yield = nullptr;
    on_sleep = nullptr;
    on_wait = nullptr;
    id = 0;
    process = 1;
    gone.clear();
    unmapped.clear();
    on_barrier = nullptr;
    on_restart = nullptr;
    on_wake = nullptr;
    cpu_count = 2;
    number = interrupt_next = 0;
    interrupted = 0;
    on_step = nullptr;
    number_hits = pushes = true;
    fixed_secret = 0;
    fail_never();
    huge_from = huge_to = 0;
    huge_bytes = 0;
    for (auto& n : total_) n = 0;
    most_claimed_ = 0;
    misused_ = false;
    said.clear();
  }

  // --- The contract.
  static Bytes page_size() noexcept { return page; }
  static Bytes address_limit() noexcept { return limit; }
  static bool charges_by_mapping() noexcept { return maps_are_charged; }

  // Has room for a body of twice the limit and its metadata. Every attempt gets the same.
  static constexpr unsigned kAttempts = 4;
  static Ground ground(unsigned attempt) noexcept {
    if (attempt >= kAttempts) return {};
    const Bytes room = round_up(limit * 2 + limit / 2, kHugePage);
    if (fails(Call::kGround)) return {0, room};
    if (mapping_ == 0) {
      length_ = room + kHugePage;
      const long at = call_system(SYS_mmap, 0, length_, PROT_NONE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
      if (at < 0) return {};
      mapping_ = static_cast<Address>(at);
      ground_ = round_up(mapping_, kHugePage);
      pages_ = std::vector<std::atomic<State>>(room / page);
    }
    return {ground_, room};
  }

  static Claim extend(Address a, Bytes n) noexcept {
    if (fails(Call::kExtend)) return Claim::kNoMemory;
    if (ground_taken.next()) return Claim::kTaken;
    change(a, n, State::kNone, State::kMetadata, "extension of what is mapped");
    protect(a, n, PROT_READ | PROT_WRITE);
    if (on_extend) on_extend();
    return Claim::kDone;
  }

  static Address reserve(Bytes n) noexcept {
    if (fails(Call::kReserve)) return 0;
    return asides_.emplace_back(Linux::reserve(n), n).first;
  }

  static bool open(Address a, Bytes n) noexcept {
    if (fails(Call::kOpen)) return false;
    if (!is_aside(a) || a % page != 0 || n % page != 0)
      misuse("open of what is not reserved, or not of whole pages");
    return protect(a, n, PROT_READ | PROT_WRITE);
  }

  static bool release(Address a, Bytes n) noexcept {
    if (fails(Call::kRelease)) return false;
    if (is_aside(a)) {
      // The next mapping at this place is not the fake's.
      std::erase_if(asides_, [a](const auto& r) { return r.first == a; });
      return Linux::release(a, n);
    }
    const State was = page_at(a).load(std::memory_order_relaxed);
    change(a, n, was, State::kNone, "release of what is partly mapped");
    if (was == State::kClaimed) claimed_.fetch_sub(n / kBlockSize, std::memory_order_relaxed);
    if (was != State::kClaimed && was != State::kMetadata && !is_child)
      misuse("release of what is not mapped");
    protect(a, n, PROT_NONE);
    call_system(SYS_madvise, a, n, MADV_DONTNEED);
    if (on_release) std::exchange(on_release, nullptr)();
    return true;
  }

  static Claim claim(Address a, Bytes n) noexcept {
    if (on_claim) std::exchange(on_claim, nullptr)();
    if (fails(Call::kClaim)) return Claim::kNoMemory;
    if (taken.next()) {
      take_away(a, n);
      return Claim::kTaken;
    }
    check_blocks(a, n);
    bool foreign = false;
    each_page(a, n, [&](std::atomic<State>& s) {
      foreign |= s.load(std::memory_order_relaxed) == State::kForeign;
    });
    if (foreign) return Claim::kTaken;
    protect(a, n, PROT_READ | PROT_WRITE);
    change(a, n, State::kNone, State::kClaimed, "claim of what is claimed");
    const uint64_t now =
        claimed_.fetch_add(n / kBlockSize, std::memory_order_relaxed) + n / kBlockSize;
    uint64_t most = most_claimed_.load(std::memory_order_relaxed);
    while (most < now &&
           !most_claimed_.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
    }
    return Claim::kDone;
  }

  static bool empty(Address a, Bytes n) noexcept {
    if (fails(Call::kEmpty)) return false;
    change(a, n, State::kClaimed, State::kClaimed, "empty of what is not claimed");
    return call_system(SYS_madvise, a, n, MADV_DONTNEED) == 0;
  }

  // What prefer_huge() was asked for last, and how many bytes so far.
  static inline std::atomic<Address> huge_from, huge_to;
  static inline std::atomic<Bytes> huge_bytes;
  static void prefer_huge(Address a, Bytes n) noexcept {
    if (a % kHugePage != 0 || n % kHugePage != 0 || n == 0) misuse("no whole huge pages");
    huge_from = a;
    huge_to = a + n;
    huge_bytes += n;
  }

  static Move move(Address from, Address to, Bytes n) noexcept {
    check_blocks(to, n);
    if (fails(Call::kMove)) {
      if (!moves_leave_nothing) return Move::kRefused;
      change(to, n, State::kClaimed, State::kNone, "move to what is not claimed");
      claimed_.fetch_sub(n / kBlockSize, std::memory_order_relaxed);
      protect(to, n, PROT_NONE);
      call_system(SYS_madvise, to, n, MADV_DONTNEED);
      return Move::kNoneThere;
    }
    change(to, n, State::kClaimed, State::kClaimed, "move to what is not claimed");
    change(from, n, State::kClaimed, State::kNone, "move of what is not claimed");
    if (from < to + n && to < from + n) misuse("move: the ranges overlap");
    memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), n);
    claimed_.fetch_sub(n / kBlockSize, std::memory_order_relaxed);
    protect(from, n, PROT_NONE);
    call_system(SYS_madvise, from, n, MADV_DONTNEED);
    return Move::kDone;
  }

  static uint64_t now_ms() noexcept { return clock.load(std::memory_order_relaxed); }
  static uint64_t interruptions() noexcept { return interrupted; }
  static inline uint32_t process = 1;
  static uint32_t process_id() noexcept { return process; }
  static uint64_t secret() noexcept { return fixed_secret != 0 ? fixed_secret : Linux::secret(); }
  static uint32_t thread_id() noexcept { return id != 0 ? id : Linux::thread_id(); }
  static uint64_t now_ns() noexcept {
    const uint64_t set = ns.load(std::memory_order_relaxed);
    return set != 0 ? set : Linux::now_ns();
  }
  static inline uint32_t cpus_asked = 0;
  static uint32_t cpus() noexcept { return ++cpus_asked, cpu_count; }
  static inline uint64_t waited = 0;
  static uint64_t waits() noexcept { return waited; }
  static uint32_t lane_number() noexcept { return number; }
  // A compare-exchange: the steps of all threads come one after the other, also those of threads
  // with other numbers.
  static Restartable take_here(std::atomic<uint32_t>& word, uint16_t lower, uint32_t mark,
                               uint32_t& before) noexcept {
    if (on_step) std::exchange(on_step, nullptr)();
    if (interrupt_next > 0) return --interrupt_next, ++interrupted, Restartable::kInterrupted;
    before = number << 16 | lower;
    return word.compare_exchange_strong(before, mark, std::memory_order_acquire,
                                        std::memory_order_relaxed)
               ? Restartable::kDone
               : Restartable::kElsewhere;
  }
  static Restartable hit_take_here(std::atomic<uint32_t>& word, uint16_t lower, uint32_t mark,
                                   uint32_t& before) noexcept {
    return take_here(word, lower, mark, before);
  }
  // A real step starts again if a revoker comes in between. This one finds out afterwards.
  static Restartable hit_take_here(std::atomic<uint32_t>& word, const std::atomic<uint64_t>& who,
                                   uint32_t mark, uint32_t& before, uint64_t& seen) noexcept {
    const OneStep step;
    const auto lower = static_cast<uint16_t>(who.load(std::memory_order_relaxed));
    const Restartable taken = take_here(word, lower, mark, before);
    if (taken != Restartable::kDone) return taken;
    seen = who.load(std::memory_order_relaxed);
    if (static_cast<uint16_t>(seen) == lower) return taken;
    word.store(before, std::memory_order_release);
    return Restartable::kInterrupted;
  }
  static Restartable hit_pop_here(std::atomic<uint32_t>& word, BinHead& bin,
                                  void*& object) noexcept {
    constexpr uint32_t kBusy = 0xFFFFFFFF;
    const OneStep step;
    uint32_t before = word.load(std::memory_order_relaxed);
    if (before >> 16 != number) return Restartable::kElsewhere;
    const Restartable taken = take_here(word, static_cast<uint16_t>(before), kBusy, before);
    if (taken != Restartable::kDone) return taken;
    object = pop_hit(bin);
    word.store(before, std::memory_order_release);
    return object != nullptr ? Restartable::kDone : Restartable::kEmpty;
  }
  template <int kAt>
  static Restartable hit_push_here(std::atomic<uint32_t>& word, const std::atomic<uint64_t>& who,
                                   void* object, uintptr_t link) noexcept {
    const OneStep step;
    uint32_t before;
    uint64_t seen;
    const Restartable taken = hit_take_here(word, who, 0xFFFFFFFF, before, seen);
    if (taken == Restartable::kInterrupted)  // as late as may be
      *static_cast<uintptr_t*>(object) = link;
    if (taken != Restartable::kDone) return taken;
    auto* list = reinterpret_cast<CountedList*>((seen >> 16) + kAt);
    const bool is_last = list->countdown <= 1;
    if (!is_last) {
      *static_cast<uintptr_t*>(object) = list->first;
      list->first = link;
      --list->countdown;
    }
    word.store(before, std::memory_order_release);
    return is_last ? Restartable::kLast : Restartable::kDone;
  }
  static bool pushes_here() noexcept { return pushes; }
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
  static void wait(std::atomic<uint32_t>& word, uint32_t value,
                   uint64_t most_ms = kForever) noexcept {
    if (on_wait != nullptr && on_wait(&word, most_ms)) return;
    ++sleepers;
    Linux::wait(word, value, most_ms);
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
  static void yield() noexcept {
    if (on_yield) std::exchange(on_yield, nullptr)();
    Linux::yield();
  }
  static bool reads_as(const void* at, uint64_t value) noexcept {
    if (std::find(unmapped.begin(), unmapped.end(), at) != unmapped.end()) return false;
    return static_cast<const std::atomic<uint64_t>*>(at)->load(std::memory_order_acquire) == value;
  }
  static bool thread_is_gone(uint32_t thread) noexcept {
    if (std::find(gone.begin(), gone.end(), thread) != gone.end()) return true;
    return id == 0 && Linux::thread_is_gone(thread);
  }
  static uint64_t block_signals() noexcept {
    return std::exchange(signals_are_blocked, true) ? 1 : 0;
  }
  static void restore_signals(uint64_t mask) noexcept { signals_are_blocked = mask != 0; }
  static void say(const char* text, Bytes n) noexcept { said.append(text, n); }

 private:
  // No thread is torn off in the middle of what is one step on a real platform.
  struct OneStep {
    const uint64_t mask = block_signals();
    ~OneStep() { restore_signals(mask); }
  };
  enum class State : uint8_t { kNone, kMetadata, kClaimed, kForeign };
  static constexpr size_t kCalls = static_cast<size_t>(Call::kRelease) + 1;

  static Fault& fault(Call call) { return faults_[static_cast<size_t>(call)]; }
  static void count(Call call) {
    total_[static_cast<size_t>(call)].fetch_add(1, std::memory_order_relaxed);
  }
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

  static std::atomic<State>& page_at(Address a) { return pages_[(a - ground_) / page]; }
  template <class Visit>
  static void each_page(Address a, Bytes n, Visit visit) {
    if (a % page != 0 || n % page != 0 || n == 0)
      misuse("a range that is no whole number of pages");
    if (a < ground_ || a + n > ground_ + pages_.size() * page)
      return misuse("a range outside the ground");
    for (Address at = a; at < a + n; at += page) visit(page_at(at));
  }
  static void check_blocks(Address a, Bytes n) {
    if (a % kBlockSize != 0 || n % kBlockSize != 0)
      misuse("a range that is no whole number of blocks");
  }
  static void change(Address a, Bytes n, State before, State after, const char* what) {
    each_page(a, n, [&](std::atomic<State>& s) {
      if (s.exchange(after, std::memory_order_relaxed) != before) misuse(what);
    });
  }
  // Calls the system directly: what the sanitizers would do about gigabytes of addresses takes most
  // of a test's time.
  static long call_system(long number, Address a, Bytes n, int c = 0, int d = 0, int e = 0) {
    return arch::system_call(number, static_cast<long>(a), static_cast<long>(n), c, d, e);
  }
  static bool protect(Address a, Bytes n, int protection) {
    return call_system(SYS_mprotect, a, n, protection) == 0;
  }
  // Metadata that lies apart from the region. There may be several pieces of it.
  static bool is_aside(Address a) {
    return std::any_of(asides_.begin(), asides_.end(),
                       [a](const auto& r) { return a - r.first < r.second; });
  }
  static void unmap() {
    for (const auto& [begin, n] : asides_) Linux::release(begin, n);
    asides_.clear();
    if (mapping_ != 0) call_system(SYS_munmap, mapping_, length_);
    mapping_ = ground_ = 0;
  }

  static inline Fault faults_[kCalls];
  static inline std::atomic<uint64_t> total_[kCalls]{};
  static inline std::atomic<uint64_t> claimed_{0};
  static inline std::atomic<uint64_t> most_claimed_{0};
  static inline std::atomic<bool> misused_{false};
  static inline std::string misuse_;
  static inline Address mapping_ = 0;  // the whole mapping, with what alignment wastes
  static inline Bytes length_ = 0;
  static inline Address ground_ = 0;
  static inline std::vector<std::pair<Address, Bytes>> asides_;
  static inline std::vector<std::atomic<State>> pages_;  // of the ground
};
static_assert(Platform<Fake>);

}  // namespace lanemalloc
