/** @file
 * lanemalloc: what the allocator has counted, and its options, read and set by name while the
 * program runs. C11 and C++17. docs/figures.md has a complete program.
 *
 * For every function here, where not said otherwise:
 * - linking: any of the libraries; under LD_PRELOAD look them up with dlsym(RTLD_DEFAULT, ...)
 * - figures: since the process started. They are exact while no other thread is inside the
 *   allocator: allocations - frees = live objects, for each class and in all, even after frees by
 *   other threads, ends of threads and forks. Otherwise each figure was true at some moment of the
 *   call. Heaps and pools count their own objects (heap.h, pool.h)
 * - threads: any, at the same time
 * - fork: the child continues with its parent's figures
 * - errors: returned; errno is unchanged
 * - signals: async-signal-safe; if the handler interrupted the allocator, that lane counts as it is
 * - cost: a look at every lane and every block; at most about a millisecond for each GiB. It waits
 *   for lanes that other threads are inside of, 100 milliseconds in all
 *
 * Source: jemalloc's mallctl and mimalloc's statistics for the form; Traffic Server's counting of
 * failed exchanges for the contents. */
#ifndef LANEMALLOC_STATS_H
#define LANEMALLOC_STATS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LANE_STATS_VERSION 1   /**< another number: another layout */
#define LANE_STATS_CLASSES 105 /**< rows of classes */
#define LANE_STATS_PROBES 15   /**< rows of probes */
#define LANE_STATS_CELLS 20    /**< rows of contention, of which some are empty */
#define LANE_STATS_BUCKETS 16  /**< of waits by how long they lasted */

/** One size class. Row 0 is empty. */
struct lane_class_statistics {
  uint64_t size;        /**< bytes of an object */
  uint64_t allocations; /**< so far */
  uint64_t live;        /**< objects that the program has */
  uint64_t in_flight;   /**< freed by another lane, and not yet taken in by the owner */
  uint64_t slabs;       /**< now */
};

/** One lock, or one loop around a compare-exchange. The row "lane" adds up the locks of all lanes.
 */
struct lane_contention_statistics {
  char name[24];      /**< empty: there are no more */
  uint64_t count;     /**< entries, or loops that were done */
  uint64_t failures;  /**< tries that failed */
  uint64_t waits;     /**< entries that had to wait; loops never wait */
  uint64_t waited_ns; /**< in those, once they were over */
  /** [i]: shorter than 2^i microseconds, and not in a lower row; the last: all others. */
  uint32_t waits_by_time[LANE_STATS_BUCKETS];
};

/** What was counted. */
struct lane_statistics {
  uint32_t version; /**< LANE_STATS_VERSION of the library */
  uint32_t size;    /**< bytes that the library has filled in */
  char entry[24];   /**< how threads enter lanes now: "owned", "shared:8", "percpu" */

  uint64_t allocations;        /**< so far, large ones among them */
  uint64_t frees;              /**< so far */
  uint64_t live_objects;       /**< that the program has */
  uint64_t live_bytes;         /**< with what their size classes add */
  uint64_t large_allocations;  /**< above 512 KiB, so far */
  uint64_t large_live_objects; /**< of these */
  uint64_t large_live_bytes;   /**< of these, in blocks of 64 KiB */
  /** Freed by a lane that does not own them, and not yet taken in by the owner. */
  uint64_t in_flight_objects;

  uint64_t misses;              /**< requests that found their bin empty */
  uint64_t remote_frees;        /**< objects freed by another lane than the owner's */
  uint64_t remote_batches;      /**< sent with one exchange each */
  uint64_t inbox_drains;        /**< times a lane took in what others had sent */
  uint64_t direct_frees;        /**< sent one by one, for want of memory for a lane */
  uint64_t lanes;               /**< there are */
  uint64_t failed_entries;      /**< tries to enter a lane by its lock that failed */
  uint64_t lane_waits;          /**< waits for a lane */
  uint64_t lane_waited_us;      /**< microseconds in those */
  uint64_t rebinds;             /**< threads that went over to another lane */
  uint64_t interruptions;       /**< restartable sequences that were */
  uint64_t overflow_entries;    /**< entries of overflow lanes */
  uint64_t nested_entries;      /**< those of signal handlers */
  uint64_t rescue_entries;      /**< overflow lanes made because all were taken */
  uint64_t revocations;         /**< lanes taken from their owners for a while */
  uint64_t refused_revocations; /**< tries at that which found the owner inside */
  uint64_t idle_stack_failures; /**< failed tries at the stack of idle lanes */
  uint64_t slabs_made;          /**< from fresh or returned blocks */
  uint64_t slabs_moved;         /**< by way of the depot */
  uint64_t depot_failures;      /**< failed tries at the depot's lock */
  uint64_t depot_waits;         /**< waits for it */
  uint64_t runs_failures;       /**< of both locks of the run allocator */
  uint64_t runs_waits;          /**< waits for them */

  uint64_t claimed_bytes;   /**< mapped for objects */
  uint64_t committed_bytes; /**< claimed, less what was given back to the system */
  uint64_t cached_bytes;    /**< free runs with memory behind them */
  uint64_t slab_bytes;      /**< cut into malloc's objects */
  uint64_t kind_bytes;      /**< of heaps and pools */
  uint64_t purged_bytes;    /**< given back to the system so far */
  uint64_t moved_bytes;     /**< by the kernel, for realloc */

  uint64_t deferred;         /**< frees that wait or waited for a safepoint */
  uint64_t deferred_waiting; /**< of these, those that wait */
  uint64_t samples;          /**< objects sampled so far */
  uint64_t bad_pointers;     /**< found so far */

  /** Searches of shared lanes: [i] tried i lanes up to 4, then up to 2^(i - 2). */
  uint64_t probes[LANE_STATS_PROBES];
  struct lane_contention_statistics contention[LANE_STATS_CELLS]; /**< the first that are named */
  struct lane_class_statistics classes[LANE_STATS_CLASSES];       /**< by size; row 0 is empty */
};

/** Fills in *stats. bytes is its size: sizeof(struct lane_statistics) as the program was compiled.
 * What the library has beyond that is left out; what the library does not know is unchanged, and
 * stats->size tells. Returns 0; EINVAL if stats is null or bytes is below 8; ENOMEM if the
 * allocator cannot start. */
int lane_stats(struct lane_statistics* stats, size_t bytes);

/** Writes the same as JSON (docs/stats.schema.json): at most `size` bytes with a final zero;
 * nothing if text is null. Returns the length of the whole text, which the next call may exceed.
 * Never fails. */
size_t lane_stats_json(char* text, size_t size);
/** The same as OpenMetrics. */
size_t lane_stats_openmetrics(char* text, size_t size);

/** The names of everything that can be read: "options.decay_ms", "stats.live_bytes",
 * "contention.depot.failures" and so on. Null after the last. The text belongs to the library and
 * stays. */
const char* lane_name(size_t index);

/** Writes the value of a name as text: at most `size` bytes with a final zero. The value of an
 * option is as in LANEMALLOC_OPTIONS. Returns the length of the whole text, or -1 if there is no
 * such name. */
long lane_get(const char* name, char* value, size_t size);

/** Sets an option ("options.decay_ms", or "decay_ms"). It takes effect at once or at each thread's
 * next miss; a shorter decay_ms within a second. "stats" without a signal gives the signal back as
 * it was before, unless the program has set a handler since.
 *
 * Returns 0; ENOENT if there is no such name; EINVAL if value is no value for it; EPERM for a
 * figure, or an option that is fixed when the process starts; ENOTSUP if the system cannot do it
 * (lanes=percpu); EBUSY if the signal of "stats" is ignored or has a handler already. On an error
 * nothing has changed. Only one thread may call it at a time, and no signal handler. */
int lane_set(const char* name, const char* value);

/** Writes what was sampled so far, in pprof's format (`go tool pprof` reads it).
 *
 * kind: "heap" (objects and bytes, allocated and alive, by call stack) or "contention" (waits for
 * locks, and their time). path: %p in it stands for the process' number, %k for the kind; "":
 * standard error. An existing file is replaced; with %p the file must be new. Only regular files
 * are written, and a link in the path's last place is not followed.
 *
 * Returns 0; EINVAL if there is no such kind, or for null; ENOTSUP if nothing was ever sampled
 * (option sample); ENOMEM; ELOOP for a link; ENXIO if it is not a regular file; EBADF if standard
 * error is not what it was when the process started; or why the file could not be written. No
 * signal handler may call it. */
int lane_profile(const char* kind, const char* path);

#ifdef __cplusplus
}
#endif

#endif
