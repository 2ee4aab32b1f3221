/** @file
 * lanemalloc: the allocator under names of its own, for programs that use it beside the C library's
 * malloc. Link with liblanemalloc_prefixed.a. (A program that wants it for everything needs no
 * header: it links liblanemalloc.so or .a, or runs with LD_PRELOAD, and keeps calling malloc.) C11
 * and C++17.
 *
 * For every function here, where not said otherwise:
 * - sizes: in bytes; memory is aligned to at least 16 bytes, and belongs to the caller until the
 *   caller frees it
 * - errors: a null return, and errno = ENOMEM; free keeps errno
 * - threads: any thread may free what another allocated
 * - signals: async-signal-safe. A handler may call any of them, even if it interrupted one of them
 * - fork: the child may use everything that was allocated, even if the parent has many threads
 * - bad input: a pointer that is not a live object gives one line on standard error, then abort();
 *   the option bad_pointer changes that
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

/** As glibc's realloc(): size 0 frees the object and returns null. If it fails, the object is
 * unchanged. Large objects grow in place, or the kernel moves their pages without copying, where it
 * can. */
void* lane_realloc(void* object, size_t size) __attribute__((alloc_size(2)));

/** As lane_realloc() to count * size bytes; an overflow is ENOMEM. */
void* lane_reallocarray(void* object, size_t count, size_t size) __attribute__((alloc_size(2, 3)));

/** As C23's free_sized(): size is the size that was asked for. */
void lane_free_sized(void* object, size_t size);

/** As C23's free_aligned_sized(): size and alignment are those that were asked for. */
void lane_free_aligned_sized(void* object, size_t alignment, size_t size);

/** As posix_memalign(). Returns 0, ENOMEM, or EINVAL if alignment is no power of two or no multiple
 * of sizeof(void*). errno is unchanged. */
int lane_posix_memalign(void** result, size_t alignment, size_t size);

/** As glibc's aligned_alloc(): an alignment that is no power of two is rounded up to one. Above
 * 2^63 bytes it is EINVAL. */
void* lane_aligned_alloc(size_t alignment, size_t size) __attribute__((alloc_size(2)));

/** As lane_aligned_alloc(), and glibc's memalign(). */
void* lane_memalign(size_t alignment, size_t size) __attribute__((alloc_size(2)));

/** As valloc(): aligned to a page. */
void* lane_valloc(size_t size) __attribute__((alloc_size(1)));

/** As pvalloc(): aligned to a page, and the size is rounded up to whole pages. */
void* lane_pvalloc(size_t size);

/** The size of the object: at least what was asked for. All of it may be used. 0 for null. */
size_t lane_malloc_usable_size(void* object);

/** Gives back to the system what it can, also from the lanes of threads that are outside the
 * allocator. Returns 1 if it gave anything back, else 0. `pad` is ignored. */
int lane_malloc_trim(size_t pad);

/** Prints the statistics on standard error, one line for each figure. */
void lane_malloc_stats(void);

/** Writes how threads enter lanes now: "owned", "shared:N" or "percpu". This differs from what was
 * asked for where the system has no restartable sequences. Writes at most size bytes, with a final
 * zero. Returns the length of the whole text. Never fails. */
size_t lane_entry(char* text, size_t size);

/** Sets how threads enter lanes from now on. lanes is a value of the option lanes: "owned",
 * "shared", "shared:N", "percpu" or "auto". Another N makes the pool larger or smaller. Each thread
 * follows at its next miss. The lanes that threads leave are emptied little by little.
 *
 * Returns 0; EINVAL if lanes is no such value; ENOTSUP if "percpu" is not available; ENOMEM if the
 * allocator cannot start. On an error nothing has changed. Only one thread may call it at a time,
 * and no signal handler. */
int lane_set_entry(const char* lanes);

/** Options that are compiled in, such as "decay_ms=200". A program may define this variable. The
 * environment overrides it. */
extern const char* lane_lanemalloc_options;

#ifdef __cplusplus
}
#endif

#endif
