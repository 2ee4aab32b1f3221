/* How the hits that are compiled into programs enter the calling thread's lane. pool.h and heap.h
 * share this file; programs do not include it by itself.
 *
 * A thread's slot points to the gate of its lane. One stored byte marks the slot busy, for threads
 * that revoke the lane and for the thread's own signal handlers. Then the gate says where the lane
 * keeps its bins, or that no hit may touch them now. */
#ifndef LANEMALLOC_HIT_H
#define LANEMALLOC_HIT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** @cond internals */

#define LANE_GATE_AREA \
  136 /* bytes into a gate: the address of the lane's area, or of zeros while no hit may enter */
#define LANE_BUSY_BYTE 8      /* marks a thread's slot as busy */
#define LANE_HIT_BYTES 65536u /* the part of a slab, from its start, that a hit reaches */
/* Bytes from the start of an area: where the labels of pools begin, the labels of heaps, and the
 * bins, 64 bytes for each label. */
#define LANE_LABELS_OF_POOLS 0u
#define LANE_LABELS_OF_HEAPS 65536u
#define LANE_BINS 131072u

/* The first word of a free object, whatever the program keeps there. It leads to the next free
 * object: an address less a number that the library keeps secret. */
typedef uintptr_t __attribute__((may_alias)) lane_hit_link;

/* What a lane has at the place that a value names: the label, if the value is a handle. */
typedef uintptr_t __attribute__((may_alias, aligned(1))) lane_hit_label;

/* A lane's objects of one kind. */
struct lane_bin {
  /* A hit reaches the LANE_HIT_BYTES before this address. 0: nothing, so null is no hit. */
  uintptr_t end;
  lane_hit_link end_link; /* what a link to that address would be */
  lane_hit_link first;    /* leads to the first free object */
  uint64_t others[5];
};

/* The number of the layout above. The thread's slot is a symbol with that number: a program that
 * was compiled for another layout does not link with the library, and does not start with it. */
#define LANE_HIT_LAYOUT 2
extern __thread void* lane_thread_slot __asm__("lane_thread_slot_of_layout_2")
    __attribute__((tls_model("initial-exec")));

static inline char* lane_hit_enter(void) {
  char* gate = (char*)__atomic_load_n(&lane_thread_slot, __ATOMIC_RELAXED);
  __atomic_store_n((unsigned char*)&lane_thread_slot, LANE_BUSY_BYTE, __ATOMIC_RELAXED);
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
  return gate;
}

static inline void lane_hit_leave(char* gate) {
  /* release: the next thread that holds the lane sees what was done inside. */
  __atomic_store_n(&lane_thread_slot, (void*)gate, __ATOMIC_RELEASE);
}

/* Leaves after nothing was done. If the thread had no lane, what a handler has put into the slot
 * between the two steps of entering stays there. */
static inline void lane_hit_miss(const char* gate) {
  __atomic_store_n((unsigned char*)&lane_thread_slot, (unsigned char)(uintptr_t)gate,
                   __ATOMIC_RELEASE);
}

/* Takes the first free object. Null if it does not lie in reach: there is none, or a program has
 * written to an object that it had freed. */
static inline void* lane_hit_pop(struct lane_bin* bin) {
  uintptr_t before_end = bin->first - bin->end_link;
  if (__builtin_expect(before_end >= (uintptr_t)0 - LANE_HIT_BYTES, 1)) {
    lane_hit_link* object = (lane_hit_link*)(bin->end + before_end);
    bin->first = *object;
    *object = 0;
    return object;
  }
  return NULL;
}

/* In the upper half-word of what a free object's first word holds. */
#define LANE_HIT_TAG 0xF5C1u

/* Frees the object if it lies in reach, which a null pointer never does, and does not look as if
 * it were free already. */
static inline int lane_hit_push(struct lane_bin* bin, void* object) {
  uintptr_t before_end = (uintptr_t)object - bin->end;
  if (__builtin_expect(before_end >= (uintptr_t)0 - LANE_HIT_BYTES, 1) &&
      __builtin_expect(*(lane_hit_link*)object >> 48 != LANE_HIT_TAG, 1)) {
    *(lane_hit_link*)object = bin->first;
    bin->first = bin->end_link + before_end;
    return 1;
  }
  return 0;
}

/* A handle is a number, not an address. Its lower half-word says where the lane keeps the handle's
 * label, which is the same number, and the bins. For any value at all, the look at the label stays
 * within the area, and only a handle finds itself there. */
static inline size_t lane_hit_place(const void* handle) { return (uint16_t)(uintptr_t)handle; }

/* The load is plain, since an atomic load would be an instruction of its own. */
static inline int lane_hit_is_labelled(const char* area, size_t labels, const void* handle) {
  const lane_hit_label* at = (const lane_hit_label*)(area + labels + lane_hit_place(handle));
#if defined(__SANITIZE_THREAD__)
  return __atomic_load_n(at, __ATOMIC_RELAXED) == (uintptr_t)handle;
#else
  return *at == (uintptr_t)handle;
#endif
}

static inline char* lane_hit_bins(char* area, const void* handle) {
  return area + LANE_BINS + lane_hit_place(handle) * 8;
}

static inline char* lane_hit_area(const char* gate) {
  return __atomic_load_n((char* const*)(gate + LANE_GATE_AREA), __ATOMIC_RELAXED);
}

/** @endcond */

#ifdef __cplusplus
}
#endif

#endif
