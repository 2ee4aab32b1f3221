// The platform contract (platform.h) for Linux, by raw system calls: no errno, no thread-local storage, no libc locks.
#pragma once

#include "base/arch.h"
#include "platform/platform.h"

namespace lanemalloc {

struct Linux {
  static Bytes page_size() noexcept;
  static Bytes physical_memory() noexcept;
  static Bytes address_limit() noexcept;
  static bool charges_by_mapping() noexcept;
  static Address reserve(Bytes meta, Bytes body) noexcept;
  static bool make_readable(Address a, Bytes n) noexcept;
  static bool open(Address a, Bytes n) noexcept;
  static void release(Address a, Bytes n) noexcept;
  static Claim claim(Address a, Bytes n) noexcept;
  static bool empty(Address a, Bytes n) noexcept;
  static bool move(Address from, Address to, Bytes n) noexcept;
  static uint64_t now_ms() noexcept;
  static bool single_threaded() noexcept;
  static bool barrier() noexcept;
  static void wait(std::atomic<uint32_t>& word, uint32_t value) noexcept;
  static void wake(std::atomic<uint32_t>& word, int count) noexcept;
  static void sleep_ms(uint64_t ms) noexcept;
  static void pause() noexcept { arch::pause(); }
  static bool start_thread(BareThread& thread, void (*run)(void*), void* argument) noexcept;
  static void say(const char* text, Bytes n) noexcept;

  // Beyond the contract, for the abi layer.
  static bool runs_with_raised_privileges() noexcept;  // AT_SECURE
  // Blocks every signal of this thread and returns the old mask; restore_signals puts it back.
  static uint64_t block_signals() noexcept;
  static void restore_signals(uint64_t mask) noexcept;
};
static_assert(Platform<Linux>);

}  // namespace lanemalloc
