// The compact form of a trace for a replay: the events of one process, with slots in the place of
// objects.
// Written by: lanemalloc-replay --prepare, from the events that the tool reads out of Parquet. Read
// by: lanemalloc-replay, as a stream.
//
// A slot is used again only kWindow events after its object was freed, and a replay has at most
// kWindow events under way. So an allocation never waits for a free, and an event waits only for an
// earlier one.
#pragma once

#include <stdint.h>

#include "trace_ring.h"

namespace lanemalloc::trace {

inline constexpr uint64_t kPlanMagic = 0x316e616c704d4c00;
inline constexpr uint32_t kWindow = 1 << 14;
inline constexpr uint8_t kThreadEnds = 31;  // beside the operations
inline constexpr uint16_t kHasObject = 1, kHasOld = 2;

// An event as the tool writes it.
struct RawEvent {
  int64_t time;
  uint64_t object, old_object;
  uint64_t size;
  uint32_t thread;
  uint8_t op;
  uint8_t alignment;  // 1 + its logarithm; 0: none
  uint16_t flags;
};
static_assert(sizeof(RawEvent) == 40);

struct PlanEvent {
  uint64_t time;  // since the first event
  uint64_t size;
  uint32_t slot, old_slot;
  uint32_t thread;
  uint8_t op;
  uint8_t alignment;
  uint16_t flags;
};
static_assert(sizeof(PlanEvent) == 32);

struct PlanHeader {
  uint64_t magic;
  uint32_t threads;
  uint32_t slots;
  uint64_t events;
  uint64_t skipped;  // calls that failed, or whose object is not of this process
  uint64_t peak_live_bytes;
  uint64_t peak_live_objects;
  uint64_t unused[2];
};
static_assert(sizeof(PlanHeader) == 64);

}  // namespace lanemalloc::trace
