/** @file
 * Heaps: memory that is counted, limited and given back together. A heap has slabs of its own in
 * every lane that uses it, so threads do not meet in it more than they do in malloc. Link with
 * liblanemalloc.so, .a or liblanemalloc_prefixed.a. C11 and C++17. docs/heaps.md has a complete
 * example.
 *
 * For every function here, where not said otherwise:
 * - sizes: in bytes; memory is aligned to 16 bytes, and belongs to the heap until it is freed or
 *   the heap is destroyed
 * - errors: a null return, and errno = ENOMEM
 * - threads: any thread may use any heap, and free what another thread allocated
 * - signals: handlers may call alloc, realloc and free, but not create, destroy, walk and
 *   statistics
 * - fork: the child may use every heap
 * - bad input: an object of another heap, of a pool, of malloc or of nobody gives one line on
 *   standard error that names both owners, then abort(); the option bad_pointer changes that
 * - bad heaps: null, a heap that has been destroyed, a pool, or any other value gives one line on
 *   standard error that names the function, then abort(); the option bad_pointer changes that. If
 *   the program continues, nothing has happened, and the function returns what it returns when it
 *   fails. Allocating functions, and realloc to a size above 0: null, errno = ENOMEM. set_limits:
 *   EINVAL. create, for a bad parent: null, errno = EINVAL. walk, which visits nothing,
 *   usable_size, trim and destroy: 0. get_statistics: zeros
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

/** A heap, made by lane_heap_create(). A lane_heap* is a number, not the address of anything. */
typedef struct lane_heap lane_heap;

/** What lane_heap_create() is asked for; all zero is a heap without limits. A later version may add
 * fields at the end. */
struct lane_heap_options {
  const char* name; /**< for messages and statistics; copied, cut after 31 bytes. Null: "heap". */
  /** What this heap holds is also charged to this heap and to its parents. Null: none. */
  lane_heap* parent;
  /** The most bytes that may be handed out, here and in child heaps, counted by the objects' real
   * sizes. 0: no limit. */
  size_t limit;
  /** on_soft_limit is called before more bytes than this are handed out. 0: never. */
  size_t soft_limit;
  /** Called once each time the soft limit is passed. The thread that passes it makes the call,
   * before its allocation returns; if several threads are about to pass it, one of them does. The
   * function may use this heap and any other. `used` is what the heap is about to have handed out,
   * in bytes. */
  void (*on_soft_limit)(lane_heap* heap, size_t used, void* argument);
  void* argument; /**< for on_soft_limit */
};

/** Makes a heap. Null options are the same as options that are all zero. EINVAL if the soft limit
 * is above the limit, or has no function. E2BIG if the program was compiled for a later version,
 * and sets an option that this library does not know. */
static inline lane_heap* lane_heap_create(const struct lane_heap_options* options);

/** Frees every object of the heap and of its child heaps, and then the heaps. The time that it
 * takes depends on the number of slabs, not of objects. No other thread may use the heaps any more.
 * It waits for threads that are inside the allocator for something else. Returns how many objects
 * there were. Any later use is reported, even if another heap has taken the place. */
size_t lane_heap_destroy(lane_heap* heap);

/** As malloc(): size 0 gives an object of its own. ENOMEM beyond the limit of the heap or of a
 * parent. A heap counts what it has cut from its slabs, a page or two of objects at a time. So the
 * limit is never exceeded, but may be reached before every byte below it is in use. */
static inline void* lane_heap_alloc(lane_heap* heap, size_t size);

/** As calloc(): count * size zeroed bytes; an overflow is ENOMEM. */
void* lane_heap_alloc_zeroed(lane_heap* heap, size_t count, size_t size)
    __attribute__((malloc, alloc_size(2, 3)));

/** An object with an alignment in bytes: a power of two, else EINVAL. */
void* lane_heap_alloc_aligned(lane_heap* heap, size_t alignment, size_t size)
    __attribute__((malloc, alloc_size(3)));

/** As realloc(), within the heap: null allocates; size 0 frees the object and returns null. If it
 * fails, the object is unchanged. */
void* lane_heap_realloc(lane_heap* heap, void* object, size_t size) __attribute__((alloc_size(3)));

/** As free(): null does nothing, and errno is unchanged. */
void lane_heap_free(lane_heap* heap, void* object);

/** As lane_heap_free(), but faster. size is the size that was last asked for. A size that is
 * impossible is reported with both sizes. With checked=1 every wrong size is reported, and every
 * byte that was written behind the object. */
static inline void lane_heap_free_sized(lane_heap* heap, void* object, size_t size);

/** The size of the object. All of it may be used. 0 for null. */
size_t lane_heap_usable_size(lane_heap* heap, const void* object);

/** Sets the limits in bytes; 0: none. If more than a limit is handed out already, it applies to
 * later allocations. Returns 0, or EINVAL if soft is above hard or has no function. */
int lane_heap_set_limits(lane_heap* heap, size_t soft, size_t hard);

/** Calls visit for each live object of this heap, but not of its child heaps, until visit returns
 * something other than 0, and returns that. Meanwhile no other thread may use the heap, and visit
 * may not allocate or free in it. -1 and errno = ENOMEM if there is no memory for its notes. */
int lane_heap_walk(lane_heap* heap, int (*visit)(void* object, size_t usable_size, void* argument),
                   void* argument);

/** What lane_heap_get_statistics() says. A later version may add fields at the end; a figure that
 * the library does not know is 0. */
struct lane_heap_statistics {
  uint64_t live_objects; /**< exact while no other thread is using the heap */
  uint64_t live_bytes;   /**< of their real sizes */
  /** What the limit applies to: what was cut from slabs, here and in child heaps. */
  uint64_t used_bytes;
  uint64_t peak_bytes;     /**< the most of it so far */
  uint64_t slab_bytes;     /**< memory of the slabs and large objects of this heap */
  uint64_t limit_failures; /**< allocations that a limit of this heap has refused */
  uint64_t soft_calls;     /**< of on_soft_limit */
};

/** Fills in the statistics. Never fails. Waits for threads that are inside the allocator. */
static inline void lane_heap_get_statistics(lane_heap* heap,
                                            struct lane_heap_statistics* statistics);

/** Gives back what any lane caches for the heap. Returns how many bytes it gave back. */
size_t lane_heap_trim(lane_heap* heap);

/** What lane_heap_alloc() does if it is no hit. For languages that do not read this file. */
void* lane_heap_alloc_out_of_line(lane_heap* heap, size_t size)
    __attribute__((malloc, alloc_size(2)));

/** What lane_heap_free_sized() does if it is no hit. For languages that do not read this file. */
void lane_heap_free_sized_out_of_line(lane_heap* heap, void* object, size_t size);

/** What lane_heap_create() calls, for languages that do not read this file. bytes: the size of the
 * options as the program was compiled. What lies beyond it is zero. EINVAL also if the options end
 * before parent. */
lane_heap* lane_heap_create_from(const struct lane_heap_options* options, size_t bytes);

/** What lane_heap_get_statistics() calls. bytes: the size of the statistics as the program was
 * compiled. */
void lane_heap_get_statistics_into(lane_heap* heap, struct lane_heap_statistics* statistics,
                                   size_t bytes);

/* --- What is compiled into programs: the sizes of structs, and how a hit works. */

/** @cond internals */
/* NOLINTBEGIN(modernize-use-nullptr): also C */

static inline lane_heap* lane_heap_create(const struct lane_heap_options* options) {
  return lane_heap_create_from(options, sizeof *options);
}

static inline void lane_heap_get_statistics(lane_heap* heap,
                                            struct lane_heap_statistics* statistics) {
  lane_heap_get_statistics_into(heap, statistics, sizeof *statistics);
}

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
    void* object = bin != NULL ? lane_hit_pop(bin) : NULL;
    if (__builtin_expect(object != NULL, 1)) {
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
    if (__builtin_expect(bin != NULL && lane_hit_push(bin, object), 1)) {
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
