/** @file
 * Pools: objects of one exact size. A pool has slabs of its own in every lane that uses it: a hit
 * is a dozen instructions in line, and touches nothing that another thread writes. Link with
 * liblanemalloc.so, .a or liblanemalloc_prefixed.a. C11 and C++17. docs/pools.md has a complete
 * example.
 *
 * For every function here, where not said otherwise:
 * - sizes: in bytes or in objects, as said; an object is aligned as the pool's options say, and
 *   belongs to the caller until it is freed or the pool is destroyed
 * - errors: a null return, and errno = ENOMEM
 * - threads: any thread may use any pool, and free what another thread allocated
 * - signals: handlers may call alloc, without LANE_POOL_WAIT, and free, if they may call the pool's
 *   own functions. They may not call the others
 * - fork: the child may use every pool. If another thread was inside a lane during the fork, free
 *   objects may stay in that lane: they count against the limit, and destroy does not count them
 * - bad input: an object of another pool, of a heap, of malloc or of nobody gives one line on
 *   standard error that names both owners, then abort(); the option bad_pointer changes that
 * - bad pools: null, a pool that has been destroyed, a heap, or any other value gives one line on
 *   standard error that names the function, then abort(); the option bad_pointer changes that. If
 *   the program continues, nothing has happened, and the function returns what it returns when it
 *   fails. Allocating functions: null or 0, errno = ENOMEM. prealloc: ENOMEM. set_limit: EINVAL.
 *   reclaim and destroy: 0. get_statistics: zeros
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

/** A pool, made by lane_pool_create(). A lane_pool* is a number, not the address of anything. */
typedef struct lane_pool lane_pool;

/** How close objects may lie. */
enum lane_padding {
  LANE_PACKED = 0,   /**< as close as their alignment lets them */
  LANE_OWN_LINE = 1, /**< no two in one cache line of 64 bytes */
  LANE_OWN_PAIR = 2  /**< no two in one pair of lines, 128 bytes: what CPUs fetch together */
};

/** What lane_pool_create() is asked for. Everything but object_size may be zero. A later version
 * may add fields at the end. */
struct lane_pool_options {
  const char* name; /**< for messages and statistics; copied, cut after 31 bytes. Null: "pool". */
  /** 1 byte to 512 KiB. Rounded up to a multiple of 8, and to at least 16; otherwise only for
   * alignment and padding. */
  size_t object_size;
  /** Of every object, in bytes: a power of two up to 64 KiB. 0: the largest power of two that
   * divides the size, from 8 to 16. */
  size_t alignment;
  enum lane_padding padding; /**< of every object */

  /** Called when memory enters the pool. What init has made of an object stays while the object is
   * free. init and fini cost 24 bytes for each object, since the contents of a free object are left
   * alone. Returns 0; otherwise the allocation fails. */
  int (*init)(void* object, size_t size, void* argument);
  /** Called when memory leaves the pool: in reclaim and destroy, so only on threads of the program.
   */
  void (*fini)(void* object, size_t size, void* argument);
  /** Called at each use, before an object is handed out. Returns 0; otherwise the object goes back
   * and the allocation fails. All four functions may use this pool and any other. */
  int (*ctor)(void* object, size_t size, void* argument);
  /** Called at each use, when an object is freed. */
  void (*dtor)(void* object, size_t size, void* argument);
  void* argument; /**< for the functions above */

  size_t limit;   /**< objects that there may be, in use or cached; 0: no limit. Never exceeded. */
  size_t reserve; /**< of these, how many are kept for LANE_POOL_USE_RESERVE. Made at creation. */

  /** A source of the pool's own. Takes up to n equal objects of object_size from the source and
   * returns how many; 0 if it has none. n is at most 64. Threads of the program call it, several at
   * once. The pool then only caches: objects may lie anywhere, have at least 16 bytes and an
   * alignment of 8, and their first 16 bytes are the pool's while they are free. A pool with a
   * source has no init and fini, no alignment and no padding, and does not check where an object
   * came from. With LANE_POOL_WAIT nobody waits because the source has none. */
  size_t (*import_objects)(void* source, void** objects, size_t n);
  /** Gives n objects back to the source: in reclaim and destroy, and in a free if many are cached.
   */
  void (*release_objects)(void* source, void** objects, size_t n);
  void* source; /**< for import_objects and release_objects */
};

/** Makes a pool. EINVAL if a size, alignment, padding or limit is out of range, if the reserve is
 * above the limit, if there is import without release, or import together with what it excludes.
 * E2BIG if the program was compiled for a later version, and sets an option that this library does
 * not know. ENOMEM also if init fails for the reserve, and if there are 16383 pools and heaps
 * already. */
static inline lane_pool* lane_pool_create(const struct lane_pool_options* options);

/** Gives back all memory of the pool. Calls fini, but not dtor, for each object that init has made,
 * even if it is in use. Imported objects that are in use stay the source's. No other thread may use
 * the pool any more, or wait in it. Returns how many objects were in use. Any later use is
 * reported, even if another pool has taken the place. */
size_t lane_pool_destroy(lane_pool* pool);

/** Flags of lane_pool_alloc_with() and lane_pool_alloc_batch(); 0, or some of them or-ed. */
enum {
  LANE_POOL_ZERO = 1, /**< the object's bytes are zero; EINVAL in a pool with init */
  /** At the limit: wait until an object is freed; first come, first served. */
  LANE_POOL_WAIT = 2,
  LANE_POOL_USE_RESERVE = 4 /**< where there is none else: one of the reserve */
};

/** Returns an object, uninitialized except by init and ctor. At the limit: null, ENOMEM. */
static inline void* lane_pool_alloc(lane_pool* pool);

/** As lane_pool_alloc(), with flags. With LANE_POOL_WAIT, null means that there is no memory, or
 * that ctor or init has failed. EINVAL for an unknown flag. */
void* lane_pool_alloc_with(lane_pool* pool, int flags);

/** Gives an object back. Null does nothing. errno is unchanged. */
static inline void lane_pool_free(lane_pool* pool, void* object);

/** Allocates many objects. One stay in the lane serves all of them, unless the pool has functions
 * or flags has LANE_POOL_ZERO or LANE_POOL_WAIT. Returns how many there are; these are the first in
 * `objects`. errno = ENOMEM if that is fewer than n. */
size_t lane_pool_alloc_batch(lane_pool* pool, void** objects, size_t n, int flags);

/** Frees n objects, as lane_pool_free() does. */
void lane_pool_free_batch(lane_pool* pool, void** objects, size_t n);

/** Makes memory for n more objects, initialized, ready for any thread. From now on reclaim leaves
 * that many more free objects between the lanes. Returns 0 or ENOMEM. */
int lane_pool_prealloc(lane_pool* pool, size_t n);

/** Sets how many objects there may be; 0: no limit. If there are more already, the limit applies to
 * later allocations. Returns 0, or EINVAL if the limit is below the reserve. */
int lane_pool_set_limit(lane_pool* pool, size_t limit);

/** How much lane_pool_reclaim() gives back. Each level does what those before it do, and more. */
enum lane_reclaim {
  /** What no lane uses: empty slabs between the lanes, and what is cached beyond recent use. */
  LANE_TRIM,
  /** Also what lies in lanes whose threads are outside the allocator. Batch sizes return to their
   * start. */
  LANE_DRAIN,
  /** Also what lies in all other lanes: waits for threads that are inside the allocator. The
   * reserve and preallocated objects stay. */
  LANE_DRAIN_ALL
};

/** Gives memory back, after fini. Returns how many bytes it gave back. For an unknown level: 0,
 * errno = EINVAL. */
size_t lane_pool_reclaim(lane_pool* pool, enum lane_reclaim level);

/** What lane_pool_get_statistics() says. A later version may add fields at the end; a figure that
 * the library does not know is 0. */
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
  /** Objects of other lanes that a lane collects before it sends them. More, as senders meet. */
  uint64_t batch_objects;
  uint64_t contended; /**< how often they met */
  uint64_t refills;   /**< allocations that found their lane's cache empty */
};

/** Fills in the statistics. Never fails. Waits for threads that are inside the allocator. */
static inline void lane_pool_get_statistics(lane_pool* pool,
                                            struct lane_pool_statistics* statistics);

/** What lane_pool_alloc() does if it is no hit. For languages that do not read this file. */
void* lane_pool_alloc_out_of_line(lane_pool* pool) __attribute__((malloc));

/** What lane_pool_free() does if it is no hit. For languages that do not read this file. */
void lane_pool_free_out_of_line(lane_pool* pool, void* object);

/** What lane_pool_create() calls, for languages that do not read this file. bytes: the size of the
 * options as the program was compiled. What lies beyond it is zero. EINVAL also if the options end
 * before alignment. */
lane_pool* lane_pool_create_from(const struct lane_pool_options* options, size_t bytes);

/** What lane_pool_get_statistics() calls. bytes: the size of the statistics as the program was
 * compiled. */
void lane_pool_get_statistics_into(lane_pool* pool, struct lane_pool_statistics* statistics,
                                   size_t bytes);

/* --- What is compiled into programs: the sizes of structs, and how a hit works. */

/** @cond internals */
/* NOLINTBEGIN(modernize-use-nullptr): also C */

static inline lane_pool* lane_pool_create(const struct lane_pool_options* options) {
  return lane_pool_create_from(options, sizeof *options);
}

static inline void lane_pool_get_statistics(lane_pool* pool,
                                            struct lane_pool_statistics* statistics) {
  lane_pool_get_statistics_into(pool, statistics, sizeof *statistics);
}

static inline void* lane_pool_alloc(lane_pool* pool) {
  char* gate = lane_hit_enter();
  char* area = lane_hit_area(gate);
  if (__builtin_expect(lane_hit_is_labelled(area, LANE_LABELS_OF_POOLS, pool), 1)) {
    struct lane_bin* bin = (struct lane_bin*)lane_hit_bins(area, pool);
    void* object = lane_hit_pop(bin);
    if (__builtin_expect(object != NULL, 1)) {
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
    if (__builtin_expect(lane_hit_push(bin, object), 1)) {
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
