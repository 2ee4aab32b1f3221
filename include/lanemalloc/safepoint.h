/** @file
 * Safepoints: memory that is freed once nobody can be reading it any more. A deferred free stores a
 * word in the lane; it takes no memory but the lane's ring, once, and sends nothing to other
 * threads but a word for each batch.
 *
 * What has been deferred is freed
 * - at a stop of the world: the program's call of lane_safepoint(), while no thread holds on to
 *   such memory; or
 * - once every registered reader has been quiescent since: between two read sections, offline, or
 *   in lane_reader_quiescent(). A program that has never registered a reader frees at its stops of
 *   the world only.
 *
 * Link with liblanemalloc.so, .a or liblanemalloc_prefixed.a. C11 and C++17. docs/safepoints.md has
 * a complete example.
 *
 * For every function here, where not said otherwise:
 * - threads: any thread may call it; a reader belongs to one thread at a time
 * - signals: lane_safepoint_free may be called from handlers; lane_safepoint_call,
 *   lane_safepoint_heap_free and lane_safepoint_pool_free where the functions that were deferred
 *   before may run in one, pools' too; the read sections of a reader, on its own thread; the others
 *   may not
 * - fork: the child has the caller's readers only; the others are unregistered there. What was
 *   deferred before is freed there too, but what lies in a lane that another thread was inside of,
 *   and functions that another thread was just calling, 32 at most: these are lost in the child. A
 *   thread frees some hundred objects before it strikes them off, so a lane that it was inside of
 *   may name what is free already, and which that is cannot be told.
 * - thread exit: what a thread has deferred is freed by others; its readers must be unregistered
 *   first. Where a thread that has registered a reader ends in a read section, that is over once
 *   the thread is gone, and one line on standard error says so. A thread that ends by the system
 *   call alone is not noticed: its section lasts, and the line that names the reader says that the
 *   thread is gone
 * - errors: returned; errno stays as it is
 *
 * Source: MoarVM's free at safepoint; FreeBSD's safe memory reclamation in UMA (SMR);
 * quiescent-state-based reclamation. */
#ifndef LANEMALLOC_SAFEPOINT_H
#define LANEMALLOC_SAFEPOINT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct lane_heap; /* heap.h */
struct lane_pool; /* pool.h */

/** Frees an object of malloc (lane_malloc in the prefixed library) later. Null does nothing, but
 * counts. The caller has made the object unreachable for new readers. A pointer that is no object
 * is reported when it is freed; with checked=1 at the call.
 *
 * A lane keeps so many that wait (option deferred, 4096): whoever would go beyond it helps: frees
 * what may be freed, and else waits for the readers. Returns 0; or EBUSY: the lane's share is full,
 * and the caller may not wait, being in a read section itself (online counts), in a handler that
 * interrupted the allocator, or in a program without readers, whose next stop alone frees. Then
 * nothing has happened: the object is still the caller's. */
int lane_safepoint_free(void* object);

/** Has f(object) called later, by a thread of the program that defers a call, polls, waits or stops
 * the world, outside the allocator: it may call anything but lane_safepoint(), and it must return.
 * There lane_safepoint_poll() frees objects of malloc only, and lane_safepoint_wait() is EDEADLK.
 * The share of a lane, and the result, are as above, counted apart; EBUSY also where a function
 * that is being called so would have to wait. */
int lane_safepoint_call(void (*f)(void* object), void* object);

/** Frees an object of a heap later: a call of lane_heap_free(), in the calls' share of the lane.
 * Until then the object is in use: it counts against limits, and a walk finds it. Null does
 * nothing. An object of another heap or pool, or of none, is reported when it is freed, with both
 * owners' names; with checked=1 at the call. What is no heap is reported at the call, which then
 * returns 0 and has done nothing. Returns as lane_safepoint_call() does.
 *
 * lane_heap_destroy() makes the frees of its heap that wait, since nobody uses its objects any
 * more: nobody reads them either. It waits for functions that another thread is just calling. */
int lane_safepoint_heap_free(struct lane_heap* heap, void* object);
/** The same; size is what the object was last asked for with. One that cannot be right, or with
 * checked=1 any wrong one, is reported at the call, with both sizes, and the object is not freed.
 */
int lane_safepoint_heap_free_sized(struct lane_heap* heap, void* object, size_t size);

/** Frees an object of a pool later: a call of lane_pool_free(), as lane_safepoint_heap_free() says.
 * What is no pool is reported at the call. The object's dtor is called when it is freed, and who
 * waits with LANE_POOL_WAIT is served then. lane_pool_destroy() makes the frees of its pool that
 * wait. */
int lane_safepoint_pool_free(struct lane_pool* pool, void* object);

/** The world is stopped: no thread holds on to deferred memory, be it in a read section or not.
 * Frees what was deferred before; returns how much. A lane whose thread was stopped inside the
 * allocator is left for the next time. */
size_t lane_safepoint(void);

/** Frees what may be freed now, in every lane that nobody is inside of; returns how much. */
size_t lane_safepoint_poll(void);

/** Waits until everything that was deferred before has been freed. EDEADLK in a read section of the
 * calling thread (online counts), in a function that is being called by the allocator, or where no
 * reader was ever registered; else 0. A reader that keeps it, or a deferred free, waiting for a
 * second is named on standard error, once a second. */
int lane_safepoint_wait(void);

/** What a reader and the threads that free agree on. */
struct lane_epoch {
  uint64_t now; /**< the number of the epoch */
  int fences;   /**< the system has no barrier: readers need fences of their own */
};

/** A reader lies where the program wants it, at an address that stays; usually one a thread. Its
 * words are the library's. */
struct lane_reader {
  uint64_t epoch;                  /**< what it may have seen; 0: nothing */
  uint32_t depth;                  /**< of nested sections */
  uint32_t online;                 /**< or 0 */
  const struct lane_epoch* shared; /**< null: not registered */
  const void* thread;              /**< that was in it last */
  struct lane_reader* next;        /**< of all */
  uint64_t stuck_epoch;            /**< in which it was first seen to hold others up */
  uint64_t stuck_since;            /**< and when: nanoseconds */
  char name[24];                   /**< for messages */
  /** Of the thread that has registered it, or that ended in a section */
  uint32_t thread_id;
} __attribute__((aligned(128)));

/** Registers a reader, offline and in no section. name: for messages; copied, cut after 23 bytes;
 * null: "reader". EINVAL if it is registered already; else 0. Takes time by the number of readers.
 */
int lane_reader_register(struct lane_reader* reader, const char* name);
/** Unregisters a reader. Returns 0; EBUSY: it is in a section, or online; EINVAL: not registered.
 */
int lane_reader_unregister(struct lane_reader* reader);

/** Begins a read section: what is reachable in it is not freed before its end. Sections nest. They
 * may not wait for a free. */
static inline void lane_reader_enter(struct lane_reader* reader);
/** Ends the read section. Without a section it is one line on standard error, and abort(), or what
 * the option bad_pointer says; then nothing has changed. */
static inline void lane_reader_exit(struct lane_reader* reader);

/** For threads that read nearly always: begins one long section, until lane_reader_offline(). */
static inline void lane_reader_online(struct lane_reader* reader);
/** Ends it: a thread goes offline before it sleeps or waits. */
static inline void lane_reader_offline(struct lane_reader* reader);
/** Of a reader that is online: nothing read before is held on to. In a nested section it does
 * nothing. */
static inline void lane_reader_quiescent(struct lane_reader* reader);

/** Tells of lane_reader_exit() without a section. Called by that; weak, since a program may read
 * without being linked with the library. */
void lane_reader_exit_without_section(struct lane_reader* reader) __attribute__((weak));

/** What lane_safepoint_get_statistics() says. Each figure is exact while no other thread defers or
 * frees. */
struct lane_safepoint_statistics {
  uint64_t deferred;  /**< frees and calls, so far */
  uint64_t freed;     /**< of these */
  uint64_t batches;   /**< of deferred frees: one shared operation each */
  uint64_t helped;    /**< deferred frees that met a full share */
  uint64_t waited_ns; /**< by those, and in lane_safepoint_wait(), in nanoseconds */
  uint64_t stops;     /**< calls of lane_safepoint() */
  uint64_t readers;   /**< registered now */
  uint64_t epoch;     /**< the number of the epoch */
};

/** Fills the statistics in. No errors. */
void lane_safepoint_get_statistics(struct lane_safepoint_statistics* statistics);

/* --- How readers announce themselves. The proof is in src/reclaim/epochs.h. */

/** @cond internals */

/* What tells threads apart. */
static inline const void* lane_reader_this_thread(void) {
#if defined(__x86_64__)
  const void* thread;
  __asm__("movq %%fs:0, %0" : "=r"(thread));
  return thread;
#else
  return __builtin_thread_pointer();
#endif
}

static inline void lane_reader_announce(struct lane_reader* reader) {
  /* acquire [announce]: sees what was unlinked before the epoch began. The store comes before any
   * read of the section: by the barrier that threads that free have every thread pass, or by the
   * fence. It is a release for what an online reader has read before. */
  uint64_t now = __atomic_load_n(&reader->shared->now, __ATOMIC_ACQUIRE);
  __atomic_store_n(&reader->thread, lane_reader_this_thread(), __ATOMIC_RELAXED);
  __atomic_store_n(&reader->epoch, now, __ATOMIC_RELEASE);
  if (__builtin_expect(__atomic_load_n(&reader->shared->fences, __ATOMIC_RELAXED), 0))
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

/* release [withdraw]: what was read in the section was read before. */
static inline void lane_reader_withdraw(struct lane_reader* reader) {
  __atomic_store_n(&reader->epoch, 0, __ATOMIC_RELEASE);
}

static inline void lane_reader_enter(struct lane_reader* reader) {
  if (reader->depth++ == 0 && !reader->online) lane_reader_announce(reader);
}

static inline void lane_reader_exit(struct lane_reader* reader) {
  if (__builtin_expect(--reader->depth != 0, 0)) {
    if (__builtin_expect(reader->depth == UINT32_MAX, 0)) {
      reader->depth = 0;
      if (lane_reader_exit_without_section != NULL) lane_reader_exit_without_section(reader);
    }
  } else if (!reader->online) {
    lane_reader_withdraw(reader);
  }
}

static inline void lane_reader_online(struct lane_reader* reader) {
  if (reader->depth == 0) lane_reader_announce(reader);
  reader->online = 1;
}

static inline void lane_reader_offline(struct lane_reader* reader) {
  reader->online = 0;
  if (reader->depth == 0) lane_reader_withdraw(reader);
}

static inline void lane_reader_quiescent(struct lane_reader* reader) {
  if (reader->online && reader->depth == 0) lane_reader_announce(reader);
}

/** @endcond */

#ifdef __cplusplus
}
#endif

#endif
