// Model: the platform contract (src/platform/platform.h) over the explorer. Memory is a static arena, a thread is a fiber,
// a futex is a list of fibers, the barrier empties every thread's store buffer, and a CPU is a number that fibers share.
// Called by: scenarios.cpp.
#pragma once

#include <cstring>

#include "explorer.h"
#include "platform/platform.h"

namespace explorer {

struct Model {
  static lanemalloc::Bytes page_size() noexcept { return 4096; }
  static lanemalloc::Bytes physical_memory() noexcept { return 8 << 20; }
  static lanemalloc::Bytes address_limit() noexcept { return 4 << 20; }  // keeps the region small
  static bool charges_by_mapping() noexcept { return false; }
  static lanemalloc::Address reserve(lanemalloc::Bytes meta, lanemalloc::Bytes body) noexcept {
    return meta + body <= kArenaSize ? reinterpret_cast<lanemalloc::Address>(arena) : 0;
  }
  static bool make_readable(lanemalloc::Address, lanemalloc::Bytes) noexcept { return true; }
  static bool open(lanemalloc::Address a, lanemalloc::Bytes n) noexcept {
    touched(reinterpret_cast<void*>(a), n);
    return true;
  }
  static void release(lanemalloc::Address, lanemalloc::Bytes) noexcept {}
  static lanemalloc::Claim claim(lanemalloc::Address, lanemalloc::Bytes) noexcept {
    return lanemalloc::Claim::kDone;
  }
  // What the memory holds is not looked at.
  static bool empty(lanemalloc::Address, lanemalloc::Bytes) noexcept { return true; }
  static bool move(lanemalloc::Address, lanemalloc::Address, lanemalloc::Bytes) noexcept { return false; }
  static uint64_t now_ms() noexcept { return 0; }
  // Of a thread always the same, so that schedules can be repeated.
  static uint64_t now_ns() noexcept { return 1 + static_cast<uint64_t>(current_thread()); }
  static uint32_t cpus() noexcept { return 2; }
  static uint32_t thread_id() noexcept { return 1; }
  static bool is_gone(uint32_t) noexcept { return false; }
  static uint32_t lane_number() noexcept { return static_cast<uint32_t>(cpu()); }
  static lanemalloc::Restartable take_here(std::atomic<uint32_t>& word, uint16_t lower, uint32_t mark,
                                           uint32_t& before) noexcept {
    return static_cast<lanemalloc::Restartable>(explorer::take_here(&word, lower, mark, before));
  }
  // *who is read in the step: had it changed meanwhile, somebody had restarted the step.
  static lanemalloc::Restartable hit_take_here(std::atomic<uint32_t>& word, const std::atomic<uint64_t>& who,
                                               uint32_t mark, uint32_t& before, uint64_t& seen) noexcept {
    seen = who.load(std::memory_order_relaxed);
    const lanemalloc::Restartable taken = take_here(word, static_cast<uint16_t>(seen), mark, before);
    if (taken != lanemalloc::Restartable::kDone || who.load(std::memory_order_relaxed) == seen) return taken;
    word.store(before, std::memory_order_release);
    return lanemalloc::Restartable::kInterrupted;
  }
  static lanemalloc::Restartable hit_pop_here(const std::atomic<uint32_t>& word, void** head,
                                              void*& object) noexcept {
    return static_cast<lanemalloc::Restartable>(explorer::pop_here(&word, head, object));
  }
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
  static void wait(std::atomic<uint32_t>& word, uint32_t value) noexcept { explorer::wait(&word, value); }
  static void wake(std::atomic<uint32_t>& word, int count) noexcept { explorer::wake(&word, count); }
  static void sleep_ms(uint64_t) noexcept { explorer::sleep(); }
  static void pause() noexcept { explorer::pause(); }
  static bool start_thread(lanemalloc::BareThread& thread, void (*run)(void*), void* argument) noexcept {
    return explorer::start_thread(reinterpret_cast<int*>(&thread.alive), run, argument);
  }
  static void say(const char*, lanemalloc::Bytes) noexcept {}
};
static_assert(lanemalloc::Platform<Model>);
static_assert(static_cast<int>(Step::kDone) == static_cast<int>(lanemalloc::Restartable::kDone));
static_assert(static_cast<int>(Step::kElsewhere) == static_cast<int>(lanemalloc::Restartable::kElsewhere));
static_assert(static_cast<int>(Step::kEmpty) == static_cast<int>(lanemalloc::Restartable::kEmpty));
static_assert(static_cast<int>(Step::kInterrupted) ==
              static_cast<int>(lanemalloc::Restartable::kInterrupted));

}  // namespace explorer
