// The memory that the traced processes and the collector share: one file, mapped by all of them.
// Written by: trace.cpp (chunks, process slots). Made and read by: collect.cpp, which also gives
// chunks back.
//
//   Session | processes: one slot each | chunks of 16 KiB: a thread fills one at a time
//
//   free --acquire()--> held by one thread --full or thread gone--> the collector reads the rest
//        --> free
//
// The collector reads held chunks too, as far as `state` says they are written. So nothing waits
// for a chunk to fill, and nothing is lost with a process that is killed. The memory has plain data
// and lock-free words only: any process may die anywhere.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <atomic>

namespace lanemalloc::trace {

inline constexpr uint64_t kMagic = 0x3165636172744d4c;  // "LMtrace1"
inline constexpr uint32_t kVersion = 1;
inline constexpr size_t kChunkBytes = 16 << 10;
inline constexpr uint32_t kMostProcesses = 1 << 15;

enum class Op : uint8_t {
  kNone,
  kMalloc,
  kCalloc,
  kRealloc,
  kReallocarray,
  kMemalign,
  kAlignedAlloc,
  kPosixMemalign,
  kValloc,
  kPvalloc,
  kFree,
  kFreeSized,
  kFreeAlignedSized,
  kNew,
  kNewArray,
  kNewNothrow,
  kNewArrayNothrow,
  kDelete,
  kDeleteArray,
  kDeleteSized,
  kDeleteArraySized,
  kDeleteNothrow,
  kDeleteArrayNothrow,
  // Not calls of their own: the free in a realloc, recorded before it is done, and a fork, recorded
  // before it is made.
  kReallocFrom,
  kFork,
};
inline constexpr unsigned kOps = static_cast<unsigned>(Op::kReallocFrom);

constexpr bool frees(Op op) {
  return (op >= Op::kFree && op <= Op::kFreeAlignedSized) ||
         (op >= Op::kDelete && op <= Op::kDeleteArrayNothrow);
}
constexpr bool has_size(Op op) {
  return !frees(op) || op == Op::kFreeSized || op == Op::kFreeAlignedSized ||
         op == Op::kDeleteSized || op == Op::kDeleteArraySized;
}

// head: ticks since the session began << 11 | alignment << 5 | op. alignment: 1 + its logarithm; 0
// if none was asked for.
struct Event {
  uint64_t head;
  uint64_t site;
  uint64_t pointer;
  uint64_t size;
};
inline constexpr unsigned kOpBits = 5;
inline constexpr unsigned kTickShift = 11;
static_assert(sizeof(Event) == 32 && static_cast<unsigned>(Op::kFork) < (1U << kOpBits));

// state: events written << 1 | the thread is about to write one. It tells the collector all that it
// needs: events below the count are whole; a thread that is not writing has no event with an
// earlier time than now.
inline constexpr uint32_t kEventsAChunk = (kChunkBytes - 64) / sizeof(Event);
inline constexpr uint32_t kFullState = kEventsAChunk << 1;

enum ChunkOwner : uint32_t { kFreeChunk, kHeldChunk, kRetiredChunk };

struct Chunk {
  std::atomic<uint32_t> state;
  std::atomic<uint32_t> owner;  // ChunkOwner
  uint32_t process;             // its slot
  uint32_t thread;              // from 0, in the order of their first calls
  uint32_t tid;
  std::atomic<uint32_t> next;  // in the list of free chunks: index + 1
  uint64_t unused[5];
  Event events[kEventsAChunk];
};
static_assert(sizeof(Chunk) == kChunkBytes);

enum ProcessEnd : uint32_t { kRunning, kExited };

struct ProcessSlot {
  std::atomic<uint32_t> ready;  // the rest is written
  uint32_t pid;
  int32_t parent;  // the slot that it was forked from; -1: it began with exec
  uint32_t fork;   // which of the parent's forks; 0: not known
  // In another PID namespace: the collector cannot ask whether its threads live
  uint32_t foreign;
  std::atomic<uint32_t> end;  // ProcessEnd
  std::atomic<uint32_t> threads;
  std::atomic<uint32_t> forks;
  std::atomic<uint64_t> lost;  // events that found no place
  uint64_t unused[3];
};
static_assert(sizeof(ProcessSlot) == 64);

struct Session {
  std::atomic<uint64_t> magic;
  uint32_t version;
  uint32_t chunks;
  uint64_t start_tick;
  uint32_t counter;  // 1: ticks are the CPU's counter; 0: nanoseconds of CLOCK_MONOTONIC
  uint32_t unused;
  uint64_t pid_namespace;
  alignas(128) std::atomic<uint64_t> free_head;  // changes << 32 | index + 1
  std::atomic<uint32_t> fresh;                   // chunks from here on were never used
  alignas(128) std::atomic<uint32_t> processes;
  std::atomic<uint32_t> closed;
  alignas(128) std::atomic<uint32_t> waiting;  // threads without a chunk
  std::atomic<uint32_t> given_back;            // those threads sleep on this
  std::atomic<uint64_t> heartbeat;
  alignas(128) ProcessSlot process[kMostProcesses];
};

inline constexpr size_t kSessionBytes =
    (sizeof(Session) + kChunkBytes - 1) / kChunkBytes * kChunkBytes;

// A list of chunks by index, so that it means the same in every process. The count of changes
// prevents this case: T1 reads head A and next B; T2 takes A and B and gives A back; T1's exchange
// would then make B, which T2 fills, the head.
inline Chunk* chunk_at(Session* session, uint32_t index) {
  return reinterpret_cast<Chunk*>(reinterpret_cast<char*>(session) + kSessionBytes) + index;
}
inline uint32_t index_of(Session* session, const Chunk* chunk) {
  return static_cast<uint32_t>(chunk - chunk_at(session, 0));
}
inline constexpr uint64_t kOneChange = uint64_t{1} << 32;

inline Chunk* take_chunk(Session* session) {
  uint64_t head =
      // [take.acquire] pairs with [give.release]
      session->free_head.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(head) != 0) {
    Chunk* chunk = chunk_at(session, static_cast<uint32_t>(head) - 1);
    const uint64_t next = chunk->next.load(std::memory_order_relaxed);
    if (session->free_head.compare_exchange_weak(
            head, ((head & ~(kOneChange - 1)) + kOneChange) | next, std::memory_order_acquire,
            std::memory_order_acquire))
      return chunk;
  }
  if (session->fresh.load(std::memory_order_relaxed) >= session->chunks) return nullptr;
  const uint32_t index = session->fresh.fetch_add(1, std::memory_order_relaxed);
  return index < session->chunks ? chunk_at(session, index) : nullptr;
}

inline void give_chunk(Session* session, Chunk* chunk) {
  uint64_t head = session->free_head.load(std::memory_order_relaxed);
  const uint64_t mine = index_of(session, chunk) + 1;
  do {
    chunk->next.store(static_cast<uint32_t>(head), std::memory_order_relaxed);
  } while (!session->free_head.compare_exchange_weak(
      head, ((head & ~(kOneChange - 1)) + kOneChange) | mine,
      std::memory_order_release,  // [give.release]
      std::memory_order_relaxed));
}

}  // namespace lanemalloc::trace
