// The malloc symbols, with the C library's rules for errno, alignment and size 0. The symbols that
// tell about memory in use are in stats.cpp. Each is safe in signal handlers, in threads, in fork
// children and in late destructors. Public declarations: include/lanemalloc/lanemalloc.h; malloc.h.
//
// malloc and free contain only the hit path. What follows it is a jump to a function out of line.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/platform/malloc_names.h"
#include "process/names.h"
#include "process/process.h"

namespace lanemalloc {
namespace {

constexpr Bytes kMostBytes = PTRDIFF_MAX;

// The result for bad pointers, and for sizes beyond the limits.
void* no_memory() {
  errno = ENOMEM;
  return nullptr;
}

// Runs `allocate` with the process started, and sets errno if it fails.
template <class Allocate>
void* checked_allocation(Bytes size, Allocate allocate) {
  if (UNLIKELY(size > kMostBytes || !start_process())) return no_memory();
  void* p = allocate();
  return LIKELY(p != nullptr) ? p : no_memory();
}

NOINLINE void* malloc_in_stay(Bytes size, Gate* gate) {
  if (UNLIKELY(size > kMostBytes || !start_process())) {
    Owned::leave_as_found(thread_slot, gate);
    return no_memory();
  }
  void* p = ProcessMisses::allocate_in_stay(process_engine.searches(), size, thread_slot, gate);
  return LIKELY(p != nullptr) ? p : no_memory();
}

// A miss: the usual cases first.
NOINLINE void* malloc_by_refill(Bytes size, Gate* gate) {
  void* p = ProcessMisses::allocate_by_refill(process_engine.world(), size, thread_slot, gate);
  return LIKELY(p != nullptr) ? p : malloc_in_stay(size, gate);
}
NOINLINE void* malloc_from_bin(Bytes size, Gate* gate) {
  void* p = ProcessMisses::allocate_from_bin(size, thread_slot, gate);
  return LIKELY(p != nullptr) ? p : malloc_by_refill(size, gate);
}

NOINLINE void free_in_stay(void* p, Gate* gate) {
  if (ProcessMisses::free_by_cpu(process_engine.world(), p, thread_slot, gate)) return;
  const Verdict verdict = ProcessMisses::free_in_stay(process_engine.world(), p, thread_slot, gate);
  if (UNLIKELY(verdict != Verdict::kGood)) report_bad_pointer("free", p, verdict);
}

// The arguments lie where free() and free_after_miss() have them, so what one passes to the other
// stays in its registers.
AS_DECLARED void free_full(void*, Gate* gate, ProcessMisses::Remote* batch) {
  ProcessMisses::flush_in_stay(batch, thread_slot, gate);
}

NOINLINE void free_after_miss(void* p, Gate* gate, MapWord word) {
  if (LIKELY(ProcessMisses::free_to_batch(process_engine.world(), p, thread_slot, gate, word,
                                          [=](Gate* g, auto* batch) { free_full(p, g, batch); })))
    return;
  if (p == nullptr) return Owned::leave_as_found(thread_slot, gate);
  free_in_stay(p, gate);
}

// The first argument is what free() has in that register when it is done.
AS_DECLARED void free_look(Link, Gate* gate, Slab* slab) {
  ProcessMisses::look_in_stay(slab, thread_slot, gate);
}

FAST void* allocate(Bytes size) {
  return process_engine.allocate(size, thread_slot,
                                 [=](Gate* gate) { return malloc_from_bin(size, gate); });
}

FAST void deallocate(void* p) {
  process_engine.free(
      p, thread_slot, [=](Gate* gate, MapWord word) { free_after_miss(p, gate, word); },
      [=](Gate* gate, Slab* slab) { free_look(slab->free_list, gate, slab); });
}

void* allocate_zeroed(Bytes count, Bytes size) {
  Bytes total;
  if (UNLIKELY(__builtin_mul_overflow(count, size, &total))) return no_memory();
  return checked_allocation(total,
                            [=] { return process_engine.allocate_zeroed(total, thread_slot); });
}

// alignment: a power of two.
void* allocate_aligned(Bytes size, Bytes alignment) {
  return checked_allocation(
      size, [=] { return process_engine.allocate_aligned(size, alignment, thread_slot); });
}

void* reallocate(void* p, Bytes size) {
  if (p == nullptr) return allocate(size);
  if (size == 0) {
    deallocate(p);
    return nullptr;
  }
  const Found found = process_engine.pointers().find(p);
  if (UNLIKELY(found.verdict != Verdict::kGood)) {
    report_bad_pointer("realloc", p, found.verdict);
    return no_memory();
  }
  return checked_allocation(
      size, [=] { return process_engine.reallocate(p, found.word, size, thread_slot); });
}

// memalign's rule: an alignment that is not a power of two is rounded up to one. EINVAL only if
// there is no such power.
void* allocate_rounded(Bytes alignment, Bytes size) {
  constexpr Bytes kMostAlignment = SIZE_MAX / 2 + 1;
  if (alignment > kMostAlignment) {
    errno = EINVAL;
    return nullptr;
  }
  return allocate_aligned(size, std::bit_ceil(alignment));
}

Bytes system_page() { return Linux::page_size(); }

}  // namespace
}  // namespace lanemalloc

using namespace lanemalloc;

extern "C" {

EXPORT void* LANE_NAME(malloc)(size_t size) { return allocate(size); }

EXPORT void LANE_NAME(free)(void* p) { deallocate(p); }

EXPORT void* LANE_NAME(calloc)(size_t count, size_t size) { return allocate_zeroed(count, size); }

EXPORT void* LANE_NAME(realloc)(void* p, size_t size) { return reallocate(p, size); }

EXPORT void* LANE_NAME(reallocarray)(void* p, size_t count, size_t size) {
  size_t total;
  if (__builtin_mul_overflow(count, size, &total)) return no_memory();
  return reallocate(p, total);
}

// C23: the object was requested with this size and alignment. They add nothing that we need.
EXPORT void LANE_NAME(free_sized)(void* p, size_t) { deallocate(p); }
EXPORT void LANE_NAME(free_aligned_sized)(void* p, size_t, size_t) { deallocate(p); }

EXPORT int LANE_NAME(posix_memalign)(void** result, size_t alignment, size_t size) {
  if (!is_power_of_two(alignment) || alignment % sizeof(void*) != 0) return EINVAL;
  const int saved = errno;
  void* p = allocate_aligned(size, alignment);
  errno = saved;
  if (p == nullptr) return ENOMEM;
  *result = p;
  return 0;
}

EXPORT void* LANE_NAME(memalign)(size_t alignment, size_t size) {
  return allocate_rounded(alignment, size);
}

EXPORT void* LANE_NAME(aligned_alloc)(size_t alignment, size_t size) {
  return allocate_rounded(alignment, size);
}

EXPORT void* LANE_NAME(valloc)(size_t size) { return allocate_aligned(size, system_page()); }

EXPORT void* LANE_NAME(pvalloc)(size_t size) {
  const Bytes page = system_page();
  if (size > kMostBytes - page) return no_memory();
  return allocate_aligned(size == 0 ? page : round_up(size, page), page);
}

EXPORT size_t LANE_NAME(malloc_usable_size)(void* p) {
  if (p == nullptr) return 0;
  const Found found = process_engine.pointers().find(p);
  if (UNLIKELY(found.verdict != Verdict::kGood)) {
    report_bad_pointer("malloc_usable_size", p, found.verdict);
    return 0;
  }
  return process_engine.pointers().usable_size(p, found.word);
}

EXPORT int LANE_NAME(malloc_trim)(size_t) {
  return start_process() && process_engine.upkeep().trim(thread_slot) ? 1 : 0;
}

#if defined(LANEMALLOC_HAS_GLIBC_NAMES)
// The parameters of the C library's allocator mean nothing here; setting a known one is not an
// error.
EXPORT int LANE_NAME(mallopt)(int parameter, int) {
  switch (parameter) {
    case M_MXFAST:
    case M_TRIM_THRESHOLD:
    case M_TOP_PAD:
    case M_MMAP_THRESHOLD:
    case M_MMAP_MAX:
    case M_CHECK_ACTION:
    case M_PERTURB:
    case M_ARENA_TEST:
    case M_ARENA_MAX:
      return 1;
    default:
      return 0;
  }
}

#if !defined(LANEMALLOC_PREFIXED)
#define SAME_AS(name) EXPORT __attribute__((alias(#name), copy(name)))
SAME_AS(free) void cfree(void*);
SAME_AS(malloc) void* __libc_malloc(size_t);
SAME_AS(free) void __libc_free(void*);
SAME_AS(calloc) void* __libc_calloc(size_t, size_t);
SAME_AS(realloc) void* __libc_realloc(void*, size_t);
SAME_AS(reallocarray) void* __libc_reallocarray(void*, size_t, size_t);
SAME_AS(memalign) void* __libc_memalign(size_t, size_t);
SAME_AS(valloc) void* __libc_valloc(size_t);
SAME_AS(pvalloc) void* __libc_pvalloc(size_t);
SAME_AS(posix_memalign) int __posix_memalign(void**, size_t, size_t);
SAME_AS(mallopt) int __libc_mallopt(int, int);
#endif
#endif

}  // extern "C"
