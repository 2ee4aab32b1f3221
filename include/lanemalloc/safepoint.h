/** @file
 * Safepoints: memory that is freed once nobody can be reading it any more. A deferred free stores
 * one word in the lane. It takes no memory but the lane's ring, which is made once, and sends other
 * threads one word for each batch.
 *
 * Deferred memory is freed
 * - when the program stops the world: it calls lane_safepoint() while no thread uses such memory;
 *   or
 * - once every registered reader has been quiescent: between two read sections, offline, or in
 *   lane_reader_quiescent(). A program that has never registered a reader frees only when it stops
 *   the world.
 *
 * Link with liblanemalloc.so, .a or liblanemalloc_prefixed.a. C11 and C++17. docs/safepoints.md has
 * a complete example.
 *
 * For every function here, where not said otherwise:
 * - threads: any thread may call it; a reader belongs to one thread at a time
 * - signals: handlers may call lane_safepoint_free, and use a reader of the interrupted thread for
 *   read sections. They may call lane_safepoint_call, lane_safepoint_heap_free and
 *   lane_safepoint_pool_free if they may also call every function that was deferred before, those
 *   of pools included. They may not call the others
 * - fork: the child has only the caller's readers; the others are unregistered there. What was
 *   deferred before is freed there too, with two exceptions, which are lost in the child: what lies
 *   in a lane that another thread was inside of (that thread may have freed some hundred objects
 *   whose names it had not yet removed, and these cannot be told from the others), and calls that
 *   another thread was just making, 32 at most
 * - thread exit: other threads free what a thread has deferred. A thread must unregister its
 *   readers before it ends. If a thread ends in a read section of a reader that it has registered,
 *   the section is over once the thread is gone, and one line on standard error says so. A thread
 *   that ends by the raw system call is not noticed: its section lasts, and the line that names the
 *   reader says that the thread is gone
 * - errors: returned; errno is unchanged
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

/** Frees an object of malloc (lane_malloc in the prefixed library) later. The caller has made the
 * object unreachable for new readers. Null does nothing, but counts. A pointer that is no object is
 * reported when it is freed; with checked=1 at the call.
 *
 * Only so many objects wait in a lane (option deferred, 4096). The thread that would exceed that
 * number helps: it frees what may be freed, and otherwise waits for the readers. Returns 0; or
 * EBUSY if the lane's share is full and the caller may not wait. That is so in a read section
 * (online counts), in a handler that interrupted the allocator, and in a program without readers,
 * where only the next stop frees. On EBUSY nothing has happened: the object is still the caller's.
 */
int lane_safepoint_free(void* object);

/** Calls f(object) later. A thread of the program makes the call, outside the allocator, when it
 * defers a call, polls, waits or stops the world. f must return, and may call anything but
 * lane_safepoint(). Inside f, lane_safepoint_poll() frees only objects of malloc, and
 * lane_safepoint_wait() returns EDEADLK.
 *
 * Calls have a share of the lane of their own, as large as that of frees. Returns as
 * lane_safepoint_free() does; EBUSY also if f itself would have to wait here. */
int lane_safepoint_call(void (*f)(void* object), void* object);

/** Frees an object of a heap later, by a call of lane_heap_free(), in the calls' share of the lane.
 * Until then the object is in use: it counts against limits, and a walk finds it. Null does
 * nothing. An object of another heap or pool, or of none, is reported when it is freed, with both
 * owners' names; with checked=1 at the call. A value that is no heap is reported at the call, which
 * then returns 0 and has done nothing. Otherwise returns as lane_safepoint_call() does.
 *
 * lane_heap_destroy() makes the waiting frees of its heap at once: since nobody may use the heap's
 * objects any more, nobody reads them. It waits for calls that another thread is just making. */
int lane_safepoint_heap_free(struct lane_heap* heap, void* object);
/** The same with the size that was last asked for. An impossible size, or with checked=1 any wrong
 * size, is reported at the call, with both sizes, and the object is not freed. */
int lane_safepoint_heap_free_sized(struct lane_heap* heap, void* object, size_t size);

/** Frees an object of a pool later, by a call of lane_pool_free(), as lane_safepoint_heap_free()
 * does. A value that is no pool is reported at the call. dtor is called when the object is freed,
 * and threads that wait with LANE_POOL_WAIT are served then. lane_pool_destroy() makes the waiting
 * frees of its pool. */
int lane_safepoint_pool_free(struct lane_pool* pool, void* object);

/** The program has stopped the world: no thread uses deferred memory, in a read section or outside.
 * Frees what was deferred before, and returns how much. If a thread was stopped inside the
 * allocator, its lane is left for the next time. */
size_t lane_safepoint(void);

/** Frees what may be freed now, in every lane that no thread is inside of. Returns how much. */
size_t lane_safepoint_poll(void);

/** Waits until everything that was deferred before has been freed. Returns 0; or EDEADLK in a read
 * section of the calling thread (online counts), in a function that the allocator is calling, and
 * if no reader was ever registered. A reader that delays it, or a deferred free, for a second is
 * named on standard error, once a second. */
int lane_safepoint_wait(void);

/** What readers and the threads that free agree on. */
struct lane_epoch {
  uint64_t now; /**< the number of the epoch */
  int fences;   /**< the system has no barrier: readers need fences of their own */
};

/** A reader; usually one for each thread. The program provides it, at an address that does not
 * change. Its members are the library's. */
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
  /** Of the thread that has registered it, or that ended in a section. */
  uint32_t thread_id;
} __attribute__((aligned(128)));

/** Registers a reader, offline and in no section. name: for messages; copied, cut after 23 bytes;
 * null: "reader". Returns 0, or EINVAL if the reader is registered already. The time that it takes
 * grows with the number of readers. */
int lane_reader_register(struct lane_reader* reader, const char* name);
/** Unregisters a reader. Returns 0; EBUSY if it is in a section or online; EINVAL if it is not
 * registered. */
int lane_reader_unregister(struct lane_reader* reader);

/** Begins a read section. What is reachable in it is not freed before the section ends. Sections
 * nest. They may not wait for a free. */
static inline void lane_reader_enter(struct lane_reader* reader);
/** Ends the read section. Without a section it gives one line on standard error, then abort(); the
 * option bad_pointer changes that. If the program continues, nothing has changed. */
static inline void lane_reader_exit(struct lane_reader* reader);

/** For threads that nearly always read: begins one long section, until lane_reader_offline(). */
static inline void lane_reader_online(struct lane_reader* reader);
/** Ends that section. A thread goes offline before it sleeps or waits. */
static inline void lane_reader_offline(struct lane_reader* reader);
/** For a reader that is online: it no longer uses anything that it has read before. Does nothing in
 * a nested section. */
static inline void lane_reader_quiescent(struct lane_reader* reader);

/** Reports a lane_reader_exit() without a section, which calls it. Weak, since a program may read
 * without being linked with the library. */
void lane_reader_exit_without_section(struct lane_reader* reader) __attribute__((weak));

/** What lane_safepoint_get_statistics() says. Each figure is exact while no other thread defers or
 * frees. A later version may add fields at the end; what the library does not know is 0. */
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

/** Fills in the statistics. Never fails. */
static inline void lane_safepoint_get_statistics(struct lane_safepoint_statistics* statistics);

/** What lane_safepoint_get_statistics() calls. bytes: the size of the statistics as the program was
 * compiled. For languages that do not read this file. */
void lane_safepoint_get_statistics_into(struct lane_safepoint_statistics* statistics, size_t bytes);

/* --- What is compiled into programs: the size of a struct, and how readers announce themselves.
 * The proof of that is in src/core/reclaim/epochs.h. */

/** @cond internals */

static inline void lane_safepoint_get_statistics(struct lane_safepoint_statistics* statistics) {
  lane_safepoint_get_statistics_into(statistics, sizeof *statistics);
}

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
