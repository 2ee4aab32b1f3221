/* How the hits that are compiled into programs enter the calling thread's lane: what pool.h and
 * heap.h share. Not to be used by itself.
 *
 * A thread's word points at its lane's gate. Storing one byte marks it busy, for the lane's
 * revokers and the thread's own signal handlers; then the gate says where the lane keeps its bins,
 * or that nobody may touch them now. */
#ifndef LANEMALLOC_HIT_H
#define LANEMALLOC_HIT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** @cond internals */

#define LANE_GATE_AREA \
  984 /* bytes: in a gate, the address of its lane's area; one of zeros where nobody may hit */
#define LANE_BUSY_BYTE 8      /* marks a thread's word */
#define LANE_HIT_BYTES 65536u /* of a slab, from its beginning: what a free may hit */
/* Bytes from the start of an area: the labels of pools, the labels of heaps, and 64 bytes for each
 * of them. */
#define LANE_LABELS_OF_POOLS 0u
#define LANE_LABELS_OF_HEAPS 65536u
#define LANE_BINS 131072u

/* A free object's first word, whatever the program keeps there. */
typedef void* __attribute__((may_alias)) lane_hit_link;

/* What a lane has at the place of a handle's label, or of what is none. */
typedef uintptr_t __attribute__((may_alias, aligned(1))) lane_hit_label;

/* A lane's objects of one kind. */
struct lane_bin {
  void* head; /* free objects, by their first word */
  /* Of where they come from: LANE_HIT_BYTES up to here; 0: nowhere, and so null is no hit. */
  uintptr_t end;
  uint64_t others[6];
};

extern __thread void* lane_thread_slot __attribute__((tls_model("initial-exec")));

static inline char* lane_hit_enter(void) {
  char* gate = (char*)__atomic_load_n(&lane_thread_slot, __ATOMIC_RELAXED);
  __atomic_store_n((unsigned char*)&lane_thread_slot, LANE_BUSY_BYTE, __ATOMIC_RELAXED);
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
  return gate;
}

static inline void lane_hit_leave(char* gate) {
  /* release: what was done inside is visible to who holds the lane next. */
  __atomic_store_n(&lane_thread_slot, (void*)gate, __ATOMIC_RELEASE);
}

/* Leaves without having done anything: what a handler has put there between the two steps of
 * entering, where the thread had no lane, stays. */
static inline void lane_hit_miss(const char* gate) {
  __atomic_store_n((unsigned char*)&lane_thread_slot, (unsigned char)(uintptr_t)gate,
                   __ATOMIC_RELEASE);
}

/* Whether the object lies there; a null pointer never does. */
static inline int lane_hit_may_free(const struct lane_bin* bin, const void* object) {
  return (uintptr_t)object - bin->end >= (uintptr_t)0 - LANE_HIT_BYTES;
}

/* A handle is a number, not an address. Its lower half-word says where the lane keeps the handle's
 * label, which is the same number, and the bins. Whatever is given for a handle, the look at the
 * label stays within the area, and only a handle finds itself there. */
static inline size_t lane_hit_place(const void* handle) { return (uint16_t)(uintptr_t)handle; }

/* Plain, since an atomic load is an instruction of its own. */
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
