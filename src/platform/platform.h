// The platform contract, once for people and once for the compiler. A platform is a type with static functions; the
// core takes it as a template argument, so that tests run it over a fake with its own clock, page size and failures.
//
// Rules for every function: callable from a signal handler, from a thread without thread-local storage of its own and
// between fork and exec; keeps errno; takes no lock.
//
//   page_size()            bytes; a power of two, at most the block size.
//   cpus()                 how many CPUs the process may keep busy: allowed to it, and paid for by its quota. At least 1.
//   physical_memory()      bytes of memory in the machine; 0 if unknown.
//   address_limit()        bytes of address space that the process may use (RLIMIT_AS); ~0 if unlimited.
//   charges_by_mapping()   true if mapped memory counts against a limit even when it was given back: freed memory is
//                          then unmapped rather than emptied.
//   reserve(meta, body)    finds meta + body bytes of free addresses, aligned to kHugePage. The first `meta` bytes stay
//                          reserved and inaccessible; the rest is merely known to be free. 0 if there are none.
//   make_readable(a, n)    of reserved bytes: they read as zeros until opened. False without memory.
//   open(a, n)             makes reserved bytes readable and writable, keeping what they hold. May be repeated, also
//                          by two threads at once. False without memory.
//   release(a, n)          gives reserved or claimed addresses back.
//   claim(a, n)            maps zeroed memory at a, which must lie in the body. Never replaces what is there.
//   empty(a, n)            gives claimed memory back; it stays claimed and reads as zeros. False if it could not.
//   move(from, to, n)      moves pages to claimed addresses `to`; `from` is then no longer claimed. False: nothing moved;
//                          what lay at `to` may be gone.
//   now_ms()               milliseconds of a steady clock, as coarse as is cheap.
//   now_ns()               nanoseconds of a steady clock; never 0.
//   single_threaded()      true while the process has only ever had one thread; once false, always false.
//   barrier()              a full memory barrier on every thread of the process. False if the system has none.
//   thread_id()            the system's number of the calling thread; never 0.
//   is_gone(id)            true if the process has no thread of that number. False also where that cannot be told.
//   lane_number()          of the CPU, or of the concurrency id, that the calling thread runs on: below kMostNumbers, and
//                          of no two running threads at once. kNoNumber where the next three are not to be had.
//   take_here(word, lower, mark, before)  if word == (lane_number() << 16 | lower): before = word, word = mark. One step for all
//                          threads with that number, no locked instruction.
//   hit_take_here(word, who, mark, before, seen)  the same for hits, where lower is that of *who, read in the step: seen = *who.
//   hit_pop_here(word, head, object)   if the upper half of word is lane_number(): takes the first object off a list, in one
//                          step.
//   interruptions()        how many of these steps were interrupted so far, of all threads.
//   numbers_for_hits()     false if hit_*_here() may not be called.
//   restart_here()         whoever is in the middle of one of these three starts again; and a barrier(). False: not to be had.
//   wait(word, value)      sleeps while *word == value; may wake early. wake(word, n) wakes at most n sleepers.
//   sleep_ms(n)            sleeps that long; may wake early.
//   pause()                a hint for a spinning CPU.
//   start_thread(t, run, argument)  starts a thread without thread-local storage, all signals blocked. t.alive is
//                          non-zero until it is gone. False if the system refused.
//   say(text, n)           writes to standard error.
#pragma once

#include <atomic>
#include <concepts>

#include "base/restartable.h"
#include "base/units.h"

namespace lanemalloc {

inline constexpr Bytes kHugePage = Bytes{2} << 20;

inline constexpr uint32_t kMostNumbers = 8192;
inline constexpr uint32_t kNoNumber = ~uint32_t{0};

enum class Claim {
  kDone,
  kTaken,     // somebody else has mapped something there
  kNoMemory,  // a limit was reached
};

// A thread without thread-local storage. Its stack is part of it.
struct BareThread {
  std::atomic<int> alive{0};
  Address stack = 0;
};

template <class P>
concept Platform =
    requires(Address a, Bytes n, std::atomic<uint32_t>& word, std::atomic<uint64_t>& who, uint32_t number,
             uint64_t seen, void* object, BareThread& thread, const char* text) {
      { P::page_size() } noexcept -> std::same_as<Bytes>;
      { P::physical_memory() } noexcept -> std::same_as<Bytes>;
      { P::address_limit() } noexcept -> std::same_as<Bytes>;
      { P::charges_by_mapping() } noexcept -> std::same_as<bool>;
      { P::reserve(n, n) } noexcept -> std::same_as<Address>;
      { P::make_readable(a, n) } noexcept -> std::same_as<bool>;
      { P::open(a, n) } noexcept -> std::same_as<bool>;
      { P::release(a, n) } noexcept;
      { P::claim(a, n) } noexcept -> std::same_as<Claim>;
      { P::empty(a, n) } noexcept -> std::same_as<bool>;
      { P::move(a, a, n) } noexcept -> std::same_as<bool>;
      { P::now_ms() } noexcept -> std::same_as<uint64_t>;
      { P::now_ns() } noexcept -> std::same_as<uint64_t>;
      { P::cpus() } noexcept -> std::same_as<uint32_t>;
      { P::thread_id() } noexcept -> std::same_as<uint32_t>;
      { P::is_gone(number) } noexcept -> std::same_as<bool>;
      { P::lane_number() } noexcept -> std::same_as<uint32_t>;
      { P::take_here(word, uint16_t{}, number, number) } noexcept -> std::same_as<Restartable>;
      { P::hit_take_here(word, who, number, number, seen) } noexcept -> std::same_as<Restartable>;
      { P::hit_pop_here(word, &object, object) } noexcept -> std::same_as<Restartable>;
      { P::interruptions() } noexcept -> std::same_as<uint64_t>;
      { P::numbers_for_hits() } noexcept -> std::same_as<bool>;
      { P::restart_here() } noexcept -> std::same_as<bool>;
      { P::single_threaded() } noexcept -> std::same_as<bool>;
      { P::barrier() } noexcept -> std::same_as<bool>;
      { P::wait(word, uint32_t{}) } noexcept;
      { P::wake(word, 1) } noexcept;
      { P::sleep_ms(uint64_t{}) } noexcept;
      { P::pause() } noexcept;
      {
        P::start_thread(thread, static_cast<void (*)(void*)>(nullptr), static_cast<void*>(nullptr))
      } noexcept -> std::same_as<bool>;
      { P::say(text, n) } noexcept;
    };

}  // namespace lanemalloc
