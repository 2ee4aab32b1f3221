/** @file
 * Pools: objects of one exact size. A pool has slabs of its own in every lane that uses it: a hit
 * is a dozen instructions in line, and touches nothing that another thread writes. Link with
 * liblanemalloc.so, .a or liblanemalloc_prefixed.a. C11 and C++17. docs/pools.md has a complete
 * example.
 *
 * For every function here, where not said otherwise:
 * - sizes: in bytes where not in objects; an object is aligned as the pool's options say, and
 *   belongs to the caller until it is freed or the pool destroyed
 * - errors: a null return, and errno = ENOMEM
 * - threads: any thread may use any pool, and free what another thread allocated
 * - signals: alloc and free may be called from handlers, without LANE_POOL_WAIT, where the pool's
 *   own functions may; the others may not
 * - fork: the child may go on with every pool; threads that wait in it are not there. Free objects
 *   of a lane that another thread was just inside of stay there, and count against the limit;
 *   destroy cannot count what lies there
 * - bad input: an object of another pool, of a heap, of malloc or of nobody is one line on standard
 *   error that names both owners, and abort(), or what the option bad_pointer says
 * - bad pools: null, a pool that has been destroyed, a heap, or any other value is one line on
 *   standard error that names the function, and abort(), or what the option bad_pointer says. Where
 *   the program goes on, nothing has happened, and the result is that of a failure: null or 0 with
 *   errno = ENOMEM from what allocates, ENOMEM from prealloc, EINVAL from set_limit, 0 from reclaim
 *   and destroy, zeros from get_statistics
 *
 * Source: FreeBSD's UMA (zones, their functions, limits, reserves and reclaim levels); MoarVM's
 * fixed-size allocator. */
#ifndef LANEMALLOC_POOL_H
#define LANEMALLOC_POOL_H

#include <stddef.h>
#include <stdint.h>

#include "lanemalloc/hit.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A pool; made by lane_pool_create(). What points to one is a number of its own, not the address
 * of anything. */
typedef struct lane_pool lane_pool;

/** How close objects may lie. */
enum lane_padding {
  LANE_PACKED = 0,   /**< as close as their alignment lets them */
  LANE_OWN_LINE = 1, /**< no two in one cache line of 64 bytes */
  LANE_OWN_PAIR = 2  /**< no two in one pair of lines, 128 bytes: what CPUs fetch together */
};

/** What lane_pool_create() is asked for; all may be zero but object_size. */
struct lane_pool_options {
  const char* name; /**< for messages and statistics; copied, cut after 31 bytes. Null: "pool". */
  /** Bytes, 1 .. 512 KiB; rounded up to 8, at least 16. No other rounding but for alignment and
   * padding. */
  size_t object_size;
  /** Of every object, in bytes: a power of two up to 64 KiB. 0: that of the largest power of two in
   * the size, 8 .. 16. */
  size_t alignment;
  enum lane_padding padding; /**< of every object */

  /** When memory enters the pool: what init has made of an object stays while the object is free.
   * init and fini cost 24 bytes an object, since a free object's contents are left alone then.
   * Returns 0, or else the allocation fails. */
  int (*init)(void* object, size_t size, void* argument);
  /** When memory leaves the pool: in reclaim and destroy, so on threads of the program only. */
  void (*fini)(void* object, size_t size, void* argument);
  /** At each use, before an object is handed out. Returns 0, or else the object goes back and the
   * allocation fails. All four functions may use this pool and any other. */
  int (*ctor)(void* object, size_t size, void* argument);
  /** At each use, when an object is freed */
  void (*dtor)(void* object, size_t size, void* argument);
  void* argument; /**< for the functions above */

  size_t limit;   /**< objects that there may be, in use or cached; 0: no limit. Never exceeded. */
  size_t reserve; /**< of these, how many are kept for LANE_POOL_USE_RESERVE. Made at creation. */

  /** A source of the pool's own: takes up to n objects of object_size from it, all alike, and
   * returns how many (0: it has none). Called on the program's threads, several at once; n is 64 at
   * most. Then the pool only caches: objects may lie anywhere, at least 16 bytes each, aligned to
   * 8, and their first 16 bytes are the pool's while they are free. With a source there is no init
   * and fini, alignment or padding, and an object's origin is not checked. With LANE_POOL_WAIT a
   * source that has none is no reason to wait. */
  size_t (*import_objects)(void* source, void** objects, size_t n);
  /** Gives n objects back to the source: in frees too, where many are cached, in reclaim and
   * destroy. */
  void (*release_objects)(void* source, void** objects, size_t n);
  void* source; /**< for import_objects and release_objects */
};

/** Makes a pool. EINVAL: a size, alignment, padding or limit out of range, a reserve above the
 * limit, import without release, or import together with what it excludes. ENOMEM also where init
 * fails for the reserve, and where there are 16383 pools and heaps. */
lane_pool* lane_pool_create(const struct lane_pool_options* options);

/** Gives back all memory of the pool, after fini of each object that init has made, also of those
 * in use, which are gone without dtor; imported objects in use stay their source's. No other thread
 * may use the pool any more, or wait in it. Returns how many objects were in use. Any use after
 * that is reported, also when another pool has its place. */
size_t lane_pool_destroy(lane_pool* pool);

/** Flags of lane_pool_alloc_with() and lane_pool_alloc_batch(); 0, or some of them or-ed. */
enum {
  LANE_POOL_ZERO = 1, /**< the object's bytes are zero; EINVAL in a pool with init */
  /** At the limit: wait until an object is freed, first come, first served */
  LANE_POOL_WAIT = 2,
  LANE_POOL_USE_RESERVE = 4 /**< where there is none else: one of the reserve */
};

/** An object, uninitialized but for init and ctor. At the limit: null, ENOMEM. */
static inline void* lane_pool_alloc(lane_pool* pool);

/** As lane_pool_alloc(), with flags. With LANE_POOL_WAIT null means that there is no memory, or
 * ctor or init has failed. Other flags than there are: EINVAL. */
void* lane_pool_alloc_with(lane_pool* pool, int flags);

/** Gives an object back. Null does nothing; errno stays. */
static inline void lane_pool_free(lane_pool* pool, void* object);

/** Many objects at once, in one stay in the lane, where no function, LANE_POOL_ZERO or
 * LANE_POOL_WAIT is in the way. Returns how many it could have, which are the first in `objects`;
 * errno = ENOMEM where these are fewer than n. */
size_t lane_pool_alloc_batch(lane_pool* pool, void** objects, size_t n, int flags);

/** As lane_pool_free() of each. */
void lane_pool_free_batch(lane_pool* pool, void** objects, size_t n);

/** Has memory for n objects at hand, besides those in use: initialized, ready for any thread.
 * Reclaim leaves so many more free objects between the lanes from now on. Returns 0 or ENOMEM. */
int lane_pool_prealloc(lane_pool* pool, size_t n);

/** Sets how many objects there may be; 0: no limit. One below what there are holds for what comes.
 * Returns 0, or EINVAL below the reserve. */
int lane_pool_set_limit(lane_pool* pool, size_t limit);

/** How much lane_pool_reclaim() gives back: each level what those before it do, and more. */
enum lane_reclaim {
  /** What no lane has in use: empty slabs between the lanes; what is cached beyond recent use */
  LANE_TRIM,
  /** And what rests in lanes whose threads are not inside; batch sizes go back to their start */
  LANE_DRAIN,
  /** And in all others: waits for threads that are inside the allocator. Reserve and preallocated
   * objects stay. */
  LANE_DRAIN_ALL
};

/** Gives memory back, after fini; returns how many bytes went. Another level: 0, and errno =
 * EINVAL. */
size_t lane_pool_reclaim(lane_pool* pool, enum lane_reclaim level);

/** What lane_pool_get_statistics() says. */
struct lane_pool_statistics {
  char name[32];           /**< the pool's */
  uint64_t object_size;    /**< as it lies in memory, with padding and links, in bytes */
  uint64_t live;           /**< objects in use; exact while no other thread is inside */
  uint64_t cached;         /**< free objects, ready to be handed out; the reserve's too */
  uint64_t slab_bytes;     /**< memory that the pool holds */
  uint64_t limit;          /**< objects; 0: none */
  uint64_t reserve;        /**< objects */
  uint64_t limit_failures; /**< allocations refused at the limit */
  uint64_t waits;          /**< allocations that waited for a free */
  uint64_t waited_ns;      /**< by these, in nanoseconds */
  /** Of others, that a lane collects before sending: more as senders meet */
  uint64_t batch_objects;
  uint64_t contended; /**< how often they met */
  uint64_t refills;   /**< allocations that found their lane's cache empty */
};

/** Fills the statistics in. No errors. Waits for threads that are inside the allocator. */
void lane_pool_get_statistics(lane_pool* pool, struct lane_pool_statistics* statistics);

/** All that a hit of lane_pool_alloc() does not do. For languages that do not read this file. */
void* lane_pool_alloc_out_of_line(lane_pool* pool) __attribute__((malloc));

/** All that a hit of lane_pool_free() does not do. For languages that do not read this file. */
void lane_pool_free_out_of_line(lane_pool* pool, void* object);

/* --- How a hit works. */

/** @cond internals */
/* NOLINTBEGIN(modernize-use-nullptr): also C */

static inline void* lane_pool_alloc(lane_pool* pool) {
  char* gate = lane_hit_enter();
  char* area = lane_hit_area(gate);
  if (__builtin_expect(lane_hit_is_labelled(area, LANE_LABELS_OF_POOLS, pool), 1)) {
    struct lane_bin* bin = (struct lane_bin*)lane_hit_bins(area, pool);
    void* object = bin->head;
    if (__builtin_expect(object != NULL, 1)) {
      bin->head = *(lane_hit_link*)object;
      lane_hit_leave(gate);
      return object;
    }
  }
  lane_hit_miss(gate);
  return lane_pool_alloc_out_of_line(pool);
}

static inline void lane_pool_free(lane_pool* pool, void* object) {
  char* gate = lane_hit_enter();
  char* area = lane_hit_area(gate);
  if (__builtin_expect(lane_hit_is_labelled(area, LANE_LABELS_OF_POOLS, pool), 1)) {
    struct lane_bin* bin = (struct lane_bin*)lane_hit_bins(area, pool);
    if (__builtin_expect(lane_hit_may_free(bin, object), 1)) {
      *(lane_hit_link*)object = bin->head;
      bin->head = object;
      lane_hit_leave(gate);
      return;
    }
  }
  lane_hit_miss(gate);
  lane_pool_free_out_of_line(pool, object);
}

/* NOLINTEND(modernize-use-nullptr) */
/** @endcond */

#ifdef __cplusplus
}
#endif

#endif
