// Simulated: the platform contract (src/core/platform/platform.h) over the simulator. Memory is its
// arena, a thread is a core, and a futex is a list of cores.
// Called by: workloads.cpp.
#pragma once

#include <utility>

#include "core/platform/platform.h"
#include "simulator.h"

namespace simulator {

struct Simulated {
  // The beginning of the arena, for what lies outside the region.
  static constexpr lanemalloc::Bytes kRootSize = lanemalloc::kHugePage;

  static lanemalloc::Bytes page_size() noexcept { return 4096; }
  static lanemalloc::Bytes address_limit() noexcept { return ~lanemalloc::Bytes{0}; }
  static bool charges_by_mapping() noexcept { return false; }
  static lanemalloc::Ground ground(unsigned attempt) noexcept {
    if (attempt > 0) return {};
    body_has_begun = false;
    return {reinterpret_cast<lanemalloc::Address>(arena + kRootSize), kArenaSize - kRootSize};
  }
  static lanemalloc::Claim extend(lanemalloc::Address, lanemalloc::Bytes) noexcept {
    return lanemalloc::Claim::kDone;
  }
  static lanemalloc::Claim claim(lanemalloc::Address a, lanemalloc::Bytes) noexcept {
    if (!std::exchange(body_has_begun, true)) objects_begin_at(reinterpret_cast<const void*>(a));
    return lanemalloc::Claim::kDone;
  }
  static lanemalloc::Address reserve(lanemalloc::Bytes) noexcept { return 0; }
  static bool open(lanemalloc::Address, lanemalloc::Bytes) noexcept { return false; }
  static bool release(lanemalloc::Address, lanemalloc::Bytes) noexcept { return true; }
  static void prefer_huge(lanemalloc::Address, lanemalloc::Bytes) noexcept {}
  static bool empty(lanemalloc::Address, lanemalloc::Bytes) noexcept { return false; }
  static lanemalloc::Move move(lanemalloc::Address, lanemalloc::Address,
                               lanemalloc::Bytes) noexcept {
    return lanemalloc::Move::kRefused;
  }
  static uint64_t block_signals() noexcept { return 0; }
  static void restore_signals(uint64_t) noexcept {}
  static uint64_t now_ms() noexcept { return 0; }
  static uint32_t thread_id() noexcept { return 1; }
  static uint32_t process_id() noexcept { return 1; }
  static uint64_t secret() noexcept { return 0x1234567890ABCDEF; }
  static uint64_t now_ns() noexcept { return now() + 1; }
  static uint32_t cpus() noexcept { return static_cast<uint32_t>(core_count()); }
  static uint64_t waits() noexcept { return 0; }
  // A core has one thread, which never leaves it. So a restartable sequence is one step.
  static uint32_t lane_number() noexcept { return static_cast<uint32_t>(current_core()); }
  static lanemalloc::Restartable take_here(std::atomic<uint32_t>& word, uint16_t lower,
                                           uint32_t mark, uint32_t& before) noexcept {
    const Step step;
    const uint32_t here = word.load(std::memory_order_relaxed);
    if (here != (lane_number() << 16 | lower)) return lanemalloc::Restartable::kElsewhere;
    before = here;
    word.store(mark, std::memory_order_relaxed);
    return lanemalloc::Restartable::kDone;
  }
  static lanemalloc::Restartable hit_take_here(std::atomic<uint32_t>& word, uint16_t lower,
                                               uint32_t mark, uint32_t& before) noexcept {
    return take_here(word, lower, mark, before);
  }
  static lanemalloc::Restartable hit_take_here(std::atomic<uint32_t>& word,
                                               const std::atomic<uint64_t>& who, uint32_t mark,
                                               uint32_t& before, uint64_t& seen) noexcept {
    seen = who.load(std::memory_order_relaxed);
    return take_here(word, static_cast<uint16_t>(seen), mark, before);
  }
  static lanemalloc::Restartable hit_pop_here(const std::atomic<uint32_t>& word,
                                              lanemalloc::BinHead& bin, void*& object) noexcept {
    const Step step;
    if (word.load(std::memory_order_relaxed) >> 16 != lane_number())
      return lanemalloc::Restartable::kElsewhere;
    object = lanemalloc::pop_hit(bin);
    return object != nullptr ? lanemalloc::Restartable::kDone : lanemalloc::Restartable::kEmpty;
  }
  template <int kAt>
  static lanemalloc::Restartable hit_push_here(const std::atomic<uint32_t>& word,
                                               const std::atomic<uint64_t>& who, void* object,
                                               uintptr_t link) noexcept {
    const Step step;
    const uint64_t seen = who.load(std::memory_order_relaxed);
    if (word.load(std::memory_order_relaxed) != (lane_number() << 16 | static_cast<uint16_t>(seen)))
      return lanemalloc::Restartable::kElsewhere;
    auto* list = reinterpret_cast<lanemalloc::CountedList*>((seen >> 16) + kAt);
    if (list->countdown <= 1) return lanemalloc::Restartable::kLast;
    *static_cast<uintptr_t*>(object) = list->first;
    list->first = link;
    --list->countdown;
    return lanemalloc::Restartable::kDone;
  }
  static bool pushes_here() noexcept { return true; }
  static uint64_t interruptions() noexcept { return 0; }
  static bool numbers_for_hits() noexcept { return true; }
  static bool restart_here() noexcept { return barrier(); }
  static bool single_threaded() noexcept { return false; }
  static bool barrier() noexcept {
    idle(500);
    return true;
  }
  static void wait(std::atomic<uint32_t>& word, uint32_t value,
                   uint64_t = lanemalloc::kForever) noexcept {
    simulator::wait(&word, value);
  }
  static void wake(std::atomic<uint32_t>& word, int count) noexcept {
    simulator::wake(&word, count);
  }
  static void sleep_ms(uint64_t) noexcept {}
  static void pause() noexcept { idle(40); }
  static void yield() noexcept { idle(400); }
  static bool reads_as(const void* at, uint64_t value) noexcept {
    return static_cast<const std::atomic<uint64_t>*>(at)->load(std::memory_order_acquire) == value;
  }
  static bool thread_is_gone(uint32_t) noexcept { return false; }
  static void say(const char*, lanemalloc::Bytes) noexcept {}

  static inline bool body_has_begun = false;
};
static_assert(lanemalloc::Platform<Simulated>);

}  // namespace simulator
