/** @file
 * lanemalloc: the allocator under names of its own, for programs that use it beside the C library's
 * malloc. Link with liblanemalloc_prefixed.a. (A program that wants it for everything needs no
 * header: it links liblanemalloc.so or .a, or runs with LD_PRELOAD, and keeps calling malloc.) C11
 * and C++17.
 *
 * For every function here, where not said otherwise:
 * - sizes: in bytes; memory is aligned to 16 bytes at least, and belongs to the caller until it
 *   frees it
 * - errors: a null return, and errno = ENOMEM; free keeps errno
 * - threads: any thread may free what another allocated
 * - signals: async-signal-safe: all of them may be called from handlers, also while they are
 *   interrupted themselves
 * - fork: the child may go on with everything that was allocated, also the child of a process with
 *   many threads
 * - bad input: a pointer that is not a live object is one line on standard error and abort(), or
 *   what the option bad_pointer says
 * - options: LANEMALLOC_OPTIONS in the environment; see docs/options.md
 *
 * Source: ISO C, POSIX and glibc for what the functions do; scudo for lanes that threads share,
 * FreeBSD's UMA for lanes by CPU. */
#ifndef LANEMALLOC_LANEMALLOC_H
#define LANEMALLOC_LANEMALLOC_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/** As malloc(): size 0 gives an object of its own. */
void* lane_malloc(size_t size) __attribute__((malloc, alloc_size(1)));

/** As free(): null does nothing. */
void lane_free(void* object);

/** As calloc(): count * size zeroed bytes; an overflow is ENOMEM. */
void* lane_calloc(size_t count, size_t size) __attribute__((malloc, alloc_size(1, 2)));

/** As glibc's realloc(): size 0 frees and returns null. On failure the object is as before. Large
 * objects are resized in place or moved by the kernel, without copying, where that is possible. */
void* lane_realloc(void* object, size_t size) __attribute__((alloc_size(2)));

/** As lane_realloc() to count * size bytes; an overflow is ENOMEM. */
void* lane_reallocarray(void* object, size_t count, size_t size) __attribute__((alloc_size(2, 3)));

/** As C23's free_sized(): size is what the object was asked for with. */
void lane_free_sized(void* object, size_t size);

/** As C23's free_aligned_sized(): size and alignment are those that the object was asked for with.
 */
void lane_free_aligned_sized(void* object, size_t alignment, size_t size);

/** As posix_memalign(): returns 0, EINVAL (alignment no power of two, or no multiple of
 * sizeof(void*)) or ENOMEM; errno stays. */
int lane_posix_memalign(void** result, size_t alignment, size_t size);

/** As glibc's aligned_alloc(): an alignment that is no power of two is rounded up to one; one
 * beyond 2^63 bytes is EINVAL. */
void* lane_aligned_alloc(size_t alignment, size_t size) __attribute__((alloc_size(2)));

/** As lane_aligned_alloc(), and glibc's memalign(). */
void* lane_memalign(size_t alignment, size_t size) __attribute__((alloc_size(2)));

/** As valloc(): aligned to a page. */
void* lane_valloc(size_t size) __attribute__((alloc_size(1)));

/** As pvalloc(): aligned to a page, and the size is rounded up to whole pages. */
void* lane_pvalloc(size_t size);

/** How many bytes the object really has: at least what was asked for; all of them may be used. 0
 * for null. */
size_t lane_malloc_usable_size(void* object);

/** Gives back to the system what can be given back now, also from lanes of threads that are not
 * inside. 1 if anything was given back, else 0. `pad` is ignored. */
int lane_malloc_trim(size_t pad);

/** Prints what was counted, a line a figure, on standard error. */
void lane_malloc_stats(void);

/** Tells how threads enter lanes: "owned", "shared:N" or "percpu". Writes what is in use now, which
 * differs from what was asked for where the system has no restartable sequences, as text of at most
 * size bytes with its final zero. Returns the length that the whole text has. No errors. */
size_t lane_entry(char* text, size_t size);

/** Sets how threads enter lanes from now on: the value of the option lanes ("owned", "shared",
 * "shared:N", "percpu" or "auto"). Another N enlarges or shrinks the pool. Each thread follows at
 * its next miss; what lanes that are left behind still hold is given back by and by. Returns 0;
 * EINVAL if the text is no such value; ENOTSUP where "percpu" cannot be had: then nothing has
 * changed; ENOMEM before the allocator could start. One caller at a time; not in signal handlers.
 */
int lane_set_entry(const char* lanes);

/** A program may define this to compile in its options, such as "decay_ms=200"; the environment
 * wins over it. */
extern const char* lane_lanemalloc_options;

#ifdef __cplusplus
}
#endif

#endif
