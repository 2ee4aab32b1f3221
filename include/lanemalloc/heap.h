/** @file
 * Heaps: memory that is counted, limited and given back together. A heap has slabs of its own in
 * every lane that uses it, so threads do not meet in it more than they do in malloc. Link with
 * liblanemalloc.so, .a or liblanemalloc_prefixed.a. C11 and C++17. docs/heaps.md has a complete
 * example.
 *
 * For every function here, where not said otherwise:
 * - sizes: in bytes; memory is aligned to 16 bytes, and belongs to the heap until it is freed or
 *   the heap destroyed
 * - errors: a null return, and errno = ENOMEM
 * - threads: any thread may use any heap, and free what another thread allocated
 * - signals: alloc, realloc and free may be called from handlers; create, destroy, walk and
 *   statistics may not
 * - fork: the child may go on with every heap
 * - bad input: an object of another heap, of a pool, of malloc or of nobody is one line on standard
 *   error that names both owners, and abort(), or what the option bad_pointer says
 * - bad heaps: null, a heap that has been destroyed, a pool, or any other value is one line on
 *   standard error that names the function, and abort(), or what the option bad_pointer says. Where
 *   the program goes on, nothing has happened, and the result is that of a failure: null with errno
 *   = ENOMEM from what allocates, realloc too but to size 0; EINVAL from set_limits, and in errno
 *   from create for a parent; 0 from walk, which visits nothing, usable_size, trim and destroy;
 *   zeros from get_statistics
 *
 * Source: MoarVM's fixed-size allocator (sized frees, checked sizes); mimalloc's and Windows'
 * heaps. */
#ifndef LANEMALLOC_HEAP_H
#define LANEMALLOC_HEAP_H

#include <stddef.h>
#include <stdint.h>

#include "lanemalloc/hit.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A heap; made by lane_heap_create(). What points to one is a number of its own, not the address
 * of anything. */
typedef struct lane_heap lane_heap;

/** What lane_heap_create() is asked for; all zero is a heap without limits. */
struct lane_heap_options {
  const char* name; /**< for messages and statistics; copied, cut after 31 bytes. Null: "heap". */
  /** To which, and to its parents, what this heap holds is charged too. Null: none. */
  lane_heap* parent;
  /** Bytes that may be handed out, of objects' real sizes, here and in child heaps; 0: no limit. */
  size_t limit;
  /** on_soft_limit is called before more bytes than these are handed out; 0: none. */
  size_t soft_limit;
  /** Called once each time the soft limit is passed, by the thread that passes it, before its
   * allocation returns; where several threads are about to pass it, by one of them. It may use this
   * heap and any other. `used` is what the heap will have handed out, in bytes. */
  void (*on_soft_limit)(lane_heap* heap, size_t used, void* argument);
  void* argument; /**< for on_soft_limit */
};

/** Makes a heap. Null options are all zero. EINVAL: a soft limit above the limit, or one without a
 * function. */
lane_heap* lane_heap_create(const struct lane_heap_options* options);

/** Frees every object of the heap and of its child heaps, and the heaps. Takes time by slabs, not
 * by objects. No other thread may use them any more; a thread that is just inside the allocator,
 * for something else, is waited for. Returns how many objects there were. Any use after that is
 * reported, also when another heap has its place. */
size_t lane_heap_destroy(lane_heap* heap);

/** As malloc(): size 0 gives an object of its own. Beyond the heap's limit, or a parent's: ENOMEM.
 * A heap counts what it has cut from its slabs, a page or two of objects at a time, so the limit is
 * never exceeded, and may be reached before every byte below it is in use. */
static inline void* lane_heap_alloc(lane_heap* heap, size_t size);

/** As calloc(): count * size zeroed bytes; an overflow is ENOMEM. */
void* lane_heap_alloc_zeroed(lane_heap* heap, size_t count, size_t size)
    __attribute__((malloc, alloc_size(2, 3)));

/** An object with an alignment of its own, in bytes: a power of two, else EINVAL. */
void* lane_heap_alloc_aligned(lane_heap* heap, size_t alignment, size_t size)
    __attribute__((malloc, alloc_size(3)));

/** As realloc(), within the heap: null allocates, size 0 frees and returns null; on failure the
 * object is as before. */
void* lane_heap_realloc(lane_heap* heap, void* object, size_t size) __attribute__((alloc_size(3)));

/** As free(): null does nothing; errno stays. */
void lane_heap_free(lane_heap* heap, void* object);

/** As lane_heap_free(); size is what the object was last asked for with, and makes this the quicker
 * one. A size that cannot be right is reported with both sizes; with checked=1 every wrong size,
 * and every byte written behind the object. */
static inline void lane_heap_free_sized(lane_heap* heap, void* object, size_t size);

/** How many bytes the object really has; all may be used. 0 for null. */
size_t lane_heap_usable_size(lane_heap* heap, const void* object);

/** Sets the limits, in bytes; 0: none. A limit below what is handed out holds for what comes.
 * Returns 0, or EINVAL where soft is above hard, or there is no function for it. */
int lane_heap_set_limits(lane_heap* heap, size_t soft, size_t hard);

/** Calls visit for each live object of this heap (not of its child heaps) until it returns other
 * than 0, and returns that. Meanwhile no other thread may use the heap, and visit may not free or
 * allocate in it. -1 and errno = ENOMEM without memory for notes. */
int lane_heap_walk(lane_heap* heap, int (*visit)(void* object, size_t usable_size, void* argument),
                   void* argument);

/** What lane_heap_get_statistics() says. */
struct lane_heap_statistics {
  uint64_t live_objects; /**< exact while no other thread is using the heap */
  uint64_t live_bytes;   /**< of their real sizes */
  /** What the limit is held against: cut from slabs, here and in child heaps */
  uint64_t used_bytes;
  uint64_t peak_bytes;     /**< the most of it so far */
  uint64_t slab_bytes;     /**< memory of the slabs and large objects of this heap */
  uint64_t limit_failures; /**< allocations that a limit of this heap has refused */
  uint64_t soft_calls;     /**< of on_soft_limit */
};

/** Fills the statistics in. No errors. Waits for threads that are inside the allocator. */
void lane_heap_get_statistics(lane_heap* heap, struct lane_heap_statistics* statistics);

/** Gives back what is cached for the heap in any lane; returns bytes that went. */
size_t lane_heap_trim(lane_heap* heap);

/** All that a hit of lane_heap_alloc() does not do. For languages that do not read this file. */
void* lane_heap_alloc_out_of_line(lane_heap* heap, size_t size)
    __attribute__((malloc, alloc_size(2)));

/** All that a hit of lane_heap_free_sized() does not do. For languages that do not read this file.
 */
void lane_heap_free_sized_out_of_line(lane_heap* heap, void* object, size_t size);

/* --- How a hit works. */

/** @cond internals */
/* NOLINTBEGIN(modernize-use-nullptr): also C */

#define LANE_HEAP_SMALL 1024u

/* A lane keeps a table of bins for a heap, one for each 16 bytes up to LANE_HEAP_SMALL; the first
 * is always empty. Null where the heap has no table there. */
static inline struct lane_bin* lane_heap_bin(const lane_heap* heap, char* area, size_t size) {
  char* table;
  if (__builtin_expect(!lane_hit_is_labelled(area, LANE_LABELS_OF_HEAPS, heap), 0)) return NULL;
  table = *(char**)lane_hit_bins(area, heap);
  return __builtin_expect(table != NULL, 1)
             ? (struct lane_bin*)(table + (size + 15) / 16 * sizeof(struct lane_bin))
             : NULL;
}

static inline void* lane_heap_alloc(lane_heap* heap, size_t size) {
  if (__builtin_expect(size <= LANE_HEAP_SMALL, 1)) {
    char* gate = lane_hit_enter();
    struct lane_bin* bin = lane_heap_bin(heap, lane_hit_area(gate), size);
    void* object = bin != NULL ? bin->head : NULL;
    if (__builtin_expect(object != NULL, 1)) {
      bin->head = *(lane_hit_link*)object;
      lane_hit_leave(gate);
      return object;
    }
    lane_hit_miss(gate);
  }
  return lane_heap_alloc_out_of_line(heap, size);
}

static inline void lane_heap_free_sized(lane_heap* heap, void* object, size_t size) {
  if (__builtin_expect(size <= LANE_HEAP_SMALL, 1)) {
    char* gate = lane_hit_enter();
    struct lane_bin* bin = lane_heap_bin(heap, lane_hit_area(gate), size);
    if (__builtin_expect(bin != NULL && lane_hit_may_free(bin, object), 1)) {
      *(lane_hit_link*)object = bin->head;
      bin->head = object;
      lane_hit_leave(gate);
      return;
    }
    lane_hit_miss(gate);
  }
  lane_heap_free_sized_out_of_line(heap, object, size);
}

/* NOLINTEND(modernize-use-nullptr) */
/** @endcond */

#ifdef __cplusplus
}
#endif

#endif
