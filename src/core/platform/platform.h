// The platform contract, once for people and once for the compiler. A platform is a type with
// static functions. The core takes it as a template argument, so that tests run the core over a
// fake with its own clock, page size and failures.
//
// Every function may be called from a signal handler, from a thread without thread-local storage of
// its own, and between fork and exec. It keeps errno and takes no lock.
//
//   page_size()            bytes; a power of two, at most the block size.
//   cpus()                 how many CPUs the process may keep busy: those that are allowed to it,
//                          and that its quota pays for. At least 1.
//   address_limit()        bytes of address space that the process may use (RLIMIT_AS); ~0 if
//                          unlimited.
//   charges_by_mapping()   true if mapped memory counts against a limit even after it was given
//                          back. Then freed memory is unmapped rather than emptied. Asked once:
//                          filters may forbid it later.
//   ground(attempt)        addresses that are probably free, aligned to kHugePage, where no other
//                          code maps anything by itself. Maps nothing. Each attempt returns another
//                          place. `at` is 0 if this attempt will not do, `bytes` is 0 when there
//                          are no more.
//   extend(a, n)           maps zeroed metadata at a, whole pages of such ground. Never replaces
//                          what is there.
//   claim(a, n)            the same for whole blocks of the body.
//   reserve(n)             n bytes of inaccessible addresses anywhere; 0 if there are none.
//   open(a, n)             makes reserved bytes readable and writable, and keeps what they hold.
//                          May be repeated, also by two threads at once. False if there is no
//                          memory.
//   release(a, n)          gives back what was extended, claimed or reserved. False, and nothing
//                          changed, if the system refuses. In a fork child the metadata may be
//                          missing.
//   empty(a, n)            gives the memory of a claimed range back. The range stays claimed and
//                          reads as zeros. False if that failed.
//   prefer_huge(a, n)      asks for huge pages where claimed memory is touched for the first time.
//                          n is a number of whole huge pages, in bytes.
//   move(from, to, n)      moves pages to claimed addresses `to`; `from` is then no longer claimed.
//                          See Move.
//   now_ms()               milliseconds of a steady clock, as coarse as is cheap.
//   now_ns()               nanoseconds of a steady clock; never 0.
//   waits()                how often threads of the process have waited so far (voluntary context
//                          switches). 0 if the system does not tell.
//   single_threaded()      true while the process has only ever had one thread; once false, always
//                          false.
//   barrier()              a full memory barrier on every thread of the process. False if the
//                          system has none.
//   thread_id()            the system's number of the calling thread; never 0.
//   lane_number()          the number of the CPU, or of the concurrency id, that the calling thread
//                          runs on. It is below kMostNumbers, and no two running threads have the
//                          same at once. kNoNumber if the next functions are not available.
//   take_here(word, lower, mark, before)
//                          if word == (lane_number() << 16 | lower): before = word, word = mark.
//                          One step for all threads with that number, without a locked instruction.
//   hit_take_here(word, lower, mark, before)
//                          the same for hits.
//   hit_take_here(word, who, mark, before, seen)
//                          the same, but lower is that of *who, which the step reads after the
//                          word: seen = *who.
//   hit_pop_here(word, bin, object)
//                          if the upper half of word is lane_number(): takes the first object off
//                          the bin's list, in one step. kEmpty also if that object does not lie in
//                          the bin's reach.
//   hit_push_here<at>(word, who, object, link)
//                          for hits. If word is as for hit_take_here(): puts the object first in a
//                          CountedList, and counts it, in one step. link: what leads to the object.
//                          The upper 48 bits of *who are an address; the list lies `at` bytes
//                          behind it. kLast: the push would leave a countdown of 0 or less. Even
//                          then the object's first word may have been written.
//   pushes_here()          false if hit_push_here() may not be called; always the same.
//   interruptions()        how many of these steps were interrupted so far, in all threads.
//   numbers_for_hits()     false if hit_*_here() may not be called.
//   restart_here()         makes every thread that is in the middle of one of these steps start it
//                          again; and a barrier(). False if the system has none.
//   wait(word, value, n)   sleeps while *word == value, at most n milliseconds; may wake early.
//                          wake(word, n) wakes at most n sleepers.
//   sleep_ms(n)            sleeps that long; may wake early.
//   pause()                a hint for a spinning CPU.
//   yield()                leaves the CPU to others for a moment, far less than a millisecond.
//   reads_as(at, value)    true if the eight bytes at `at` hold the value, with acquire order;
//                          false if there is no memory any more.
//   process_id()           the system's number of the process. A child's differs from its parent's,
//                          except in other name spaces.
//   secret()               a number that nobody outside the process can know; another one at each
//                          call.
//   thread_is_gone(id)     true if no thread of the process has this thread_id(). False if the
//                          system does not tell.
//   block_signals()        blocks every signal of the calling thread and returns the old mask;
//                          restore_signals(mask) puts it back.
//   say(text, n)           writes to standard error.
#pragma once

#include <atomic>
#include <concepts>

#include "core/base/restartable.h"
#include "core/base/units.h"

namespace lanemalloc {

inline constexpr Bytes kHugePage = Bytes{2} << 20;

inline constexpr uint32_t kMostNumbers = 8192;
inline constexpr uint32_t kNoNumber = ~uint32_t{0};

enum class Claim {
  kDone,
  kTaken,     // something else is mapped there
  kNoMemory,  // a limit was reached
};

inline constexpr uint64_t kForever = ~uint64_t{0};

enum class Move {
  kDone,
  kRefused,    // nothing changed
  kNoneThere,  // nothing moved, but `to` is no longer claimed
};

// Addresses that may be mapped.
struct Ground {
  Address at = 0;
  Bytes bytes = 0;
};

template <class P>
concept Platform = requires(Address a, Bytes n, unsigned attempt, std::atomic<uint32_t>& word,
                            std::atomic<uint64_t>& who, uint32_t number, uint64_t seen,
                            BinHead& bin, void* object, const char* text) {
  { P::page_size() } noexcept -> std::same_as<Bytes>;
  { P::address_limit() } noexcept -> std::same_as<Bytes>;
  { P::charges_by_mapping() } noexcept -> std::same_as<bool>;
  { P::ground(attempt) } noexcept -> std::same_as<Ground>;
  { P::extend(a, n) } noexcept -> std::same_as<Claim>;
  { P::claim(a, n) } noexcept -> std::same_as<Claim>;
  { P::reserve(n) } noexcept -> std::same_as<Address>;
  { P::open(a, n) } noexcept -> std::same_as<bool>;
  { P::release(a, n) } noexcept -> std::same_as<bool>;
  { P::empty(a, n) } noexcept -> std::same_as<bool>;
  { P::prefer_huge(a, n) } noexcept -> std::same_as<void>;
  { P::move(a, a, n) } noexcept -> std::same_as<Move>;
  { P::now_ms() } noexcept -> std::same_as<uint64_t>;
  { P::now_ns() } noexcept -> std::same_as<uint64_t>;
  { P::cpus() } noexcept -> std::same_as<uint32_t>;
  { P::waits() } noexcept -> std::same_as<uint64_t>;
  { P::thread_id() } noexcept -> std::same_as<uint32_t>;
  { P::process_id() } noexcept -> std::same_as<uint32_t>;
  { P::secret() } noexcept -> std::same_as<uint64_t>;
  { P::lane_number() } noexcept -> std::same_as<uint32_t>;
  { P::take_here(word, uint16_t{}, number, number) } noexcept -> std::same_as<Restartable>;
  { P::hit_take_here(word, uint16_t{}, number, number) } noexcept -> std::same_as<Restartable>;
  { P::hit_take_here(word, who, number, number, seen) } noexcept -> std::same_as<Restartable>;
  { P::hit_pop_here(word, bin, object) } noexcept -> std::same_as<Restartable>;
  { P::template hit_push_here<32>(word, who, object, a) } noexcept -> std::same_as<Restartable>;
  { P::pushes_here() } noexcept -> std::same_as<bool>;
  { P::interruptions() } noexcept -> std::same_as<uint64_t>;
  { P::numbers_for_hits() } noexcept -> std::same_as<bool>;
  { P::restart_here() } noexcept -> std::same_as<bool>;
  { P::single_threaded() } noexcept -> std::same_as<bool>;
  { P::barrier() } noexcept -> std::same_as<bool>;
  { P::wait(word, uint32_t{}) } noexcept;
  { P::wait(word, uint32_t{}, uint64_t{}) } noexcept;
  { P::wake(word, 1) } noexcept;
  { P::sleep_ms(uint64_t{}) } noexcept;
  { P::pause() } noexcept;
  { P::yield() } noexcept;
  { P::reads_as(object, seen) } noexcept -> std::same_as<bool>;
  { P::thread_is_gone(number) } noexcept -> std::same_as<bool>;
  { P::block_signals() } noexcept -> std::same_as<uint64_t>;
  { P::restore_signals(uint64_t{}) } noexcept;
  { P::say(text, n) } noexcept;
};

}  // namespace lanemalloc
