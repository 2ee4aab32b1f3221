// The platform contract (platform.h) for Linux, by raw system calls: no errno, no thread-local
// storage, no libc locks.
#pragma once

#include "core/base/arch.h"
#include "core/platform/c_library.h"
#include "core/platform/platform.h"

namespace lanemalloc {

struct Linux {
  static Bytes page_size() noexcept;
  static Bytes address_limit() noexcept;
  static bool charges_by_mapping() noexcept;
  static Ground ground(unsigned attempt) noexcept;
  static Claim extend(Address a, Bytes n) noexcept;
  static Claim claim(Address a, Bytes n) noexcept;
  static Address reserve(Bytes n) noexcept;
  static bool open(Address a, Bytes n) noexcept;
  static bool release(Address a, Bytes n) noexcept;
  static bool empty(Address a, Bytes n) noexcept;
  static void prefer_huge(Address a, Bytes n) noexcept;
  static Move move(Address from, Address to, Bytes n) noexcept;
  static uint64_t now_ms() noexcept;
  static uint64_t now_ns() noexcept;
  static uint32_t cpus() noexcept;
  static uint64_t waits() noexcept;
  static uint32_t thread_id() noexcept;
  static uint32_t process_id() noexcept;
  static uint64_t secret() noexcept;
  static uint32_t lane_number() noexcept;
  static Restartable take_here(std::atomic<uint32_t>& word, uint16_t lower, uint32_t mark,
                               uint32_t& before) noexcept;
  FAST static Restartable hit_take_here(std::atomic<uint32_t>& word, uint16_t lower, uint32_t mark,
                                        uint32_t& before) noexcept {
    return arch::rseq_take<kCidAt>(rseq_area, word, lower, mark, before);
  }
  FAST static Restartable hit_take_here(std::atomic<uint32_t>& word,
                                        const std::atomic<uint64_t>& who, uint32_t mark,
                                        uint32_t& before, uint64_t& seen) noexcept {
    return arch::rseq_take_for<kCidAt>(rseq_area, word, who, mark, before, seen);
  }
  FAST static Restartable hit_pop_here(const std::atomic<uint32_t>& word, BinHead& bin,
                                       void*& object) noexcept {
    return arch::rseq_pop<kCidAt>(rseq_area, word, bin, object);
  }
  template <int kAt>
  FAST static Restartable hit_push_here(const std::atomic<uint32_t>& word,
                                        const std::atomic<uint64_t>& who, void* object,
                                        uintptr_t link) noexcept {
    return arch::rseq_push<kCidAt, kAt>(rseq_area, word, who, object, link);
  }
  static constexpr bool pushes_here() noexcept { return arch::kPushesHere; }
  static uint64_t interruptions() noexcept {
    return lanemalloc_restarts.load(std::memory_order_relaxed);
  }
  static bool numbers_for_hits() noexcept;
  static bool restart_here() noexcept;
  FAST static bool single_threaded() noexcept {
    return !had_threads.load(std::memory_order_relaxed) &&
           (is_told_single_threaded() || still_single_threaded());
  }
  static bool barrier() noexcept;
  static void wait(std::atomic<uint32_t>& word, uint32_t value,
                   uint64_t most_ms = kForever) noexcept;
  static void wake(std::atomic<uint32_t>& word, int count) noexcept;
  static void sleep_ms(uint64_t ms) noexcept;
  static void pause() noexcept { arch::pause(); }
  static void yield() noexcept;
  static bool reads_as(const void* at, uint64_t value) noexcept;
  static bool thread_is_gone(uint32_t id) noexcept;
  static uint64_t block_signals() noexcept;
  static void restore_signals(uint64_t mask) noexcept;
  static void say(const char* text, Bytes n) noexcept;

  // Where the C library's registration of restartable sequences lies, from the thread pointer. Two
  // of its fields number a CPU: mm_cid, if the kernel has it, and cpu_id.
  static constexpr int kCidAt = 24;
  static constexpr int kCpuAt = 4;
  static constinit ptrdiff_t rseq_area __attribute__((visibility("hidden")));

  // It never goes back: the C library may reset its flag when all other threads are gone, but what
  // was begun with locks ends with them.
  static inline std::atomic<bool> had_threads{false};
  static bool still_single_threaded() noexcept;

  // Beyond the contract, for the abi layer.
  static bool runs_with_raised_privileges() noexcept;  // AT_SECURE
};
static_assert(Platform<Linux>);

}  // namespace lanemalloc
