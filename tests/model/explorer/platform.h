// Model: the platform contract (src/core/platform/platform.h) over the explorer. Memory is a static
// arena, a thread is a fiber, a futex is a list of fibers, the barrier empties every thread's store
// buffer, and a CPU is a number that fibers share.
// Called by: scenarios.cpp.
#pragma once

#include <cstring>

#include "core/platform/platform.h"
#include "explorer.h"

namespace explorer {

struct Model {
  static inline uint64_t clock = 0;  // milliseconds; a thread that waits for a time moves it on

  static lanemalloc::Bytes page_size() noexcept { return 4096; }
  static lanemalloc::Bytes address_limit() noexcept { return ~lanemalloc::Bytes{0}; }
  static bool charges_by_mapping() noexcept { return false; }
  // A body of 8 MiB, and room for its metadata.
  static lanemalloc::Ground ground(unsigned attempt) noexcept {
    if (attempt > 0) return {};
    return {reinterpret_cast<lanemalloc::Address>(arena), 12 << 20};
  }
  static lanemalloc::Claim extend(lanemalloc::Address a, lanemalloc::Bytes n) noexcept {
    touched(reinterpret_cast<void*>(a), n);
    return lanemalloc::Claim::kDone;
  }
  static lanemalloc::Claim claim(lanemalloc::Address, lanemalloc::Bytes) noexcept {
    return lanemalloc::Claim::kDone;
  }
  static lanemalloc::Address reserve(lanemalloc::Bytes) noexcept { return 0; }
  static bool open(lanemalloc::Address, lanemalloc::Bytes) noexcept { return false; }
  static bool release(lanemalloc::Address, lanemalloc::Bytes) noexcept { return true; }
  static void prefer_huge(lanemalloc::Address, lanemalloc::Bytes) noexcept {}
  // No scenario looks at what the memory holds.
  static bool empty(lanemalloc::Address, lanemalloc::Bytes) noexcept { return true; }
  static lanemalloc::Move move(lanemalloc::Address, lanemalloc::Address,
                               lanemalloc::Bytes) noexcept {
    return lanemalloc::Move::kRefused;
  }
  static uint64_t block_signals() noexcept { return 0; }
  static void restore_signals(uint64_t) noexcept {}
  static uint64_t now_ms() noexcept { return clock; }
  // Always the same for one thread, so that schedules can be repeated.
  static uint64_t now_ns() noexcept { return 1 + static_cast<uint64_t>(current_thread()); }
  static uint32_t cpus() noexcept { return 2; }
  static uint64_t waits() noexcept { return 0; }
  static uint32_t thread_id() noexcept { return 1; }
  static uint32_t process_id() noexcept { return 1; }
  static uint64_t secret() noexcept { return 0x1234567890ABCDEF; }
  static uint32_t lane_number() noexcept { return static_cast<uint32_t>(cpu()); }
  static lanemalloc::Restartable take_here(std::atomic<uint32_t>& word, uint16_t lower,
                                           uint32_t mark, uint32_t& before) noexcept {
    uint64_t seen = lower;
    return static_cast<lanemalloc::Restartable>(
        explorer::take_here(&word, nullptr, seen, mark, before));
  }
  static lanemalloc::Restartable hit_take_here(std::atomic<uint32_t>& word, uint16_t lower,
                                               uint32_t mark, uint32_t& before) noexcept {
    return take_here(word, lower, mark, before);
  }
  static lanemalloc::Restartable hit_take_here(std::atomic<uint32_t>& word,
                                               const std::atomic<uint64_t>& who, uint32_t mark,
                                               uint32_t& before, uint64_t& seen) noexcept {
    return static_cast<lanemalloc::Restartable>(
        explorer::take_here(&word, &who, seen, mark, before));
  }
  static lanemalloc::Restartable hit_pop_here(const std::atomic<uint32_t>& word,
                                              lanemalloc::BinHead& bin, void*& object) noexcept {
    return static_cast<lanemalloc::Restartable>(
        explorer::pop_here(&word, &bin.end, bin.kReach, object));
  }
  template <int kAt>
  static lanemalloc::Restartable hit_push_here(const std::atomic<uint32_t>& word,
                                               const std::atomic<uint64_t>& who, void* object,
                                               uintptr_t link) noexcept {
    return static_cast<lanemalloc::Restartable>(
        explorer::push_here(&word, &who, kAt, object, link));
  }
  // Scenarios set it, since the core also ships what an architecture without such a store does.
  static inline bool pushes = true;
  static bool pushes_here() noexcept { return pushes; }
  static uint64_t interruptions() noexcept { return 0; }
  static bool numbers_for_hits() noexcept { return true; }
  static bool restart_here() noexcept {
    explorer::restart();
    return true;
  }
  static bool single_threaded() noexcept { return false; }
  static bool barrier() noexcept {
    explorer::barrier();
    return true;
  }
  static void wait(std::atomic<uint32_t>& word, uint32_t value,
                   uint64_t most_ms = lanemalloc::kForever) noexcept {
    if (most_ms == lanemalloc::kForever) return explorer::wait(&word, value);
    explorer::sleep();
    clock += most_ms;
  }
  static void wake(std::atomic<uint32_t>& word, int count) noexcept {
    explorer::wake(&word, count);
  }
  static void sleep_ms(uint64_t) noexcept { explorer::sleep(); }
  static void pause() noexcept { explorer::pause(); }
  static void yield() noexcept { explorer::pause(); }
  static bool reads_as(const void* at, uint64_t value) noexcept {
    return explorer::reads_as(at, value);
  }
  static bool thread_is_gone(uint32_t) noexcept { return false; }
  static void take_memory_as_it_is() noexcept {
    explorer::take_memory_as_it_is();
  }  // for ../run.py's substitute
  static void say(const char*, lanemalloc::Bytes) noexcept {}
};
static_assert(lanemalloc::Platform<Model>);
static_assert(static_cast<int>(Step::kDone) == static_cast<int>(lanemalloc::Restartable::kDone));
static_assert(static_cast<int>(Step::kElsewhere) ==
              static_cast<int>(lanemalloc::Restartable::kElsewhere));
static_assert(static_cast<int>(Step::kEmpty) == static_cast<int>(lanemalloc::Restartable::kEmpty));
static_assert(static_cast<int>(Step::kLast) == static_cast<int>(lanemalloc::Restartable::kLast));
static_assert(static_cast<int>(Step::kInterrupted) ==
              static_cast<int>(lanemalloc::Restartable::kInterrupted));

}  // namespace explorer
