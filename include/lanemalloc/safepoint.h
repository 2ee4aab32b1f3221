/* Safepoints: memory that is freed once nobody can be reading it any more. A deferred free stores two words in the lane; it takes no
 * memory, and sends nothing to other threads but a word for each batch.
 *
 * What has been deferred is freed
 *   - at a stop of the world: the program's call of lane_safepoint(), while no thread holds on to such memory; or
 *   - once every registered reader has been quiescent since: between two read sections, offline, or in lane_reader_quiescent(). A program
 *     that has never registered a reader frees at its stops of the world only.
 * Link with liblanemalloc.so, .a or liblanemalloc_prefixed.a. C11 and C++17.
 *
 * For every function here, where not said otherwise:
 *   threads     any thread may call it; a reader belongs to one thread at a time
 *   signals     the deferred frees may be called from handlers; the others may not
 *   fork        the child has the caller's readers only; what was deferred before is freed there too
 *   thread exit what a thread has deferred is freed by others; a reader must be unregistered first
 *
 * Source: MoarVM's free at safepoint; FreeBSD's safe memory reclamation in UMA (SMR); quiescent-state-based reclamation. */
#ifndef LANEMALLOC_SAFEPOINT_H
#define LANEMALLOC_SAFEPOINT_H

#include <stddef.h>
#include <stdint.h>

#include "lanemalloc/heap.h"
#include "lanemalloc/pool.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Frees later: an object of malloc (lane_malloc in the prefixed library), of a heap, of a pool, or anything by a function. Null does
 * nothing. The caller has made the object unreachable for new readers.
 *
 * A lane keeps so many that wait (option deferred, 4096): whoever would go beyond it helps: frees what may be freed, and else waits for the
 * readers. 0; or EBUSY: the lane's share is full, and the caller may not wait, being in a read section itself or in a handler. Then
 * nothing has happened: the object is still the caller's. */
int lane_safepoint_free(void* object);
int lane_safepoint_heap_free(lane_heap* heap, void* object);
int lane_safepoint_pool_free(lane_pool* pool, void* object);
/* f(object) is called later, by a thread of the program that frees, polls or stops the world, outside the allocator: it may call anything
 * but lane_safepoint(), lane_safepoint_poll() and lane_safepoint_wait(). */
int lane_safepoint_call(void (*f)(void* object), void* object);

/* The world is stopped: no thread holds on to deferred memory, be it in a read section or not. Frees what was deferred before; returns how
 * much. A lane whose thread was stopped inside the allocator is left for the next time. */
size_t lane_safepoint(void);

/* Frees what may be freed now; returns how much. */
size_t lane_safepoint_poll(void);

/* Waits until everything that was deferred before has been freed. EDEADLK (returned) in a read section of the calling thread, or where no reader
 * was ever registered; else 0. A reader that keeps it waiting for a second is named on standard error, once a second. */
int lane_safepoint_wait(void);

/* What a reader and the threads that free agree on. */
struct lane_epoch {
  uint64_t now;
  int fences; /* the system has no barrier: readers need fences of their own */
};

/* A reader lies where the program wants it, at an address that stays; usually one a thread. Its words are the library's. */
struct lane_reader {
  uint64_t epoch; /* what it may have seen; 0: nothing */
  uint32_t depth; /* of nested sections */
  uint32_t online;
  const struct lane_epoch* shared;
  struct lane_reader* next;
  struct lane_reader* previous;
  const void* thread;
  uint64_t since_ns; /* seen stuck */
  char name[24];
} __attribute__((aligned(128)));

/* Registers a reader, offline and in no section. name: for messages; copied, cut after 23 bytes; null: "reader". EINVAL (returned) if it is
 * registered already; else 0. */
int lane_reader_register(struct lane_reader* reader, const char* name);
/* 0, or EBUSY (returned): it is in a section; EINVAL: not registered. */
int lane_reader_unregister(struct lane_reader* reader);

/* A read section: what is reachable in it is not freed before its end. Sections nest. They may not wait for a free. */
static inline void lane_reader_enter(struct lane_reader* reader);
static inline void lane_reader_exit(struct lane_reader* reader);

/* For threads that read nearly always: online is one long section, and lane_reader_quiescent() says that nothing read before is held on
 * to (in a nested section it does nothing). A thread goes offline before it sleeps or waits. */
static inline void lane_reader_online(struct lane_reader* reader);
static inline void lane_reader_offline(struct lane_reader* reader);
static inline void lane_reader_quiescent(struct lane_reader* reader);

struct lane_safepoint_statistics {
  uint64_t deferred, freed; /* so far */
  uint64_t batches;         /* of deferred frees: one shared operation each */
  uint64_t helped;          /* deferred frees that met a full share */
  uint64_t waited_ns;
  uint64_t stops;   /* calls of lane_safepoint() */
  uint64_t readers; /* registered now */
  uint64_t epoch;
};
void lane_safepoint_get_statistics(struct lane_safepoint_statistics* statistics);

/* --- How readers announce themselves; use the functions above. */

static inline void lane_reader_announce(struct lane_reader* reader) {
  /* acquire: sees what was unlinked before the epoch began. The store comes before any read of the section: by the barrier that threads
   * that free have every thread pass, or by the fence. */
  uint64_t now = __atomic_load_n(&reader->shared->now, __ATOMIC_ACQUIRE);
  __atomic_store_n(&reader->epoch, now, __ATOMIC_RELEASE);
  if (__builtin_expect(reader->shared->fences, 0)) __atomic_thread_fence(__ATOMIC_SEQ_CST);
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

static inline void lane_reader_enter(struct lane_reader* reader) {
  if (reader->depth++ == 0 && !reader->online) lane_reader_announce(reader);
}

static inline void lane_reader_exit(struct lane_reader* reader) {
  /* release: what was read in the section was read before. */
  if (--reader->depth == 0 && !reader->online) __atomic_store_n(&reader->epoch, 0, __ATOMIC_RELEASE);
}

static inline void lane_reader_online(struct lane_reader* reader) {
  if (reader->depth == 0) lane_reader_announce(reader);
  reader->online = 1;
}

static inline void lane_reader_offline(struct lane_reader* reader) {
  reader->online = 0;
  if (reader->depth == 0) __atomic_store_n(&reader->epoch, 0, __ATOMIC_RELEASE);
}

static inline void lane_reader_quiescent(struct lane_reader* reader) {
  if (reader->online && reader->depth == 0) lane_reader_announce(reader);
}

#ifdef __cplusplus
}
#endif

#endif
