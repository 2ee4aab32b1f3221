// The functions of include/lanemalloc/heap.h. They look up the value that they are given, and do
// not follow it until it is known to be a handle (core/slab/handle.h). Heaps and their kinds lie in
// memory that is never used for anything else.
#include <errno.h>
#include <lanemalloc/heap.h>
#include <lanemalloc/safepoint.h>
#include <string.h>

#include <new>

#include "abi/sizes.h"
#include "fronts/heap/heap.h"
#include "process/descriptors.h"
#include "process/process.h"

namespace lanemalloc {
namespace {

using ProcessHeap = Heap<Linux>;
static_assert(sizeof(lane_bin) == sizeof(Bin) && LANE_LABELS_OF_HEAPS == Labels::kHeaps &&
              LANE_BINS == Labels::kBins);
static_assert(LANE_HEAP_SMALL == kSmallMax && kGranule == 16);

constinit Descriptors<sizeof(ProcessHeap)> descriptors;
constinit Descriptors<sizeof(Kind)> kinds;
constexpr ProcessHeap::KindSource kSource{[]() -> void* { return kinds.take(); },
                                          [](void* kind) { kinds.give(kind); }};

FAST ProcessHeap* live(lane_heap* heap, const char* function) {
  return live_front<ProcessHeap, Family::Type::kHeap>(heap, function);
}

Handle handle_of(const lane_heap* heap) { return reinterpret_cast<Handle>(heap); }

void* or_no_memory(void* p) {
  if (UNLIKELY(p == nullptr)) errno = ENOMEM;
  return p;
}

bool is_sound(const lane_heap_options& o) {
  if (o.soft_limit == 0) return true;
  return o.on_soft_limit != nullptr && (o.limit == 0 || o.soft_limit <= o.limit);
}

void report(const char* function, const void* object, Bytes size, const HeapFree& wrong,
            const ProcessHeap& h) {
  if (wrong.verdict == Verdict::kWrongSize) {
    report_wrong_size(function, object, size, wrong.asked, h.family());
  } else if (wrong.verdict != Verdict::kGood) {
    report_bad_pointer(function, object, wrong.verdict, &h.family());
  }
}

NOINLINE void* alloc_after_miss(lane_heap* heap, Bytes size) {
  ProcessHeap* h = live(heap, "lane_heap_alloc");
  return or_no_memory(h != nullptr ? h->allocate(size, kGranule, thread_slot) : nullptr);
}

NOINLINE void free_in(lane_heap* heap, void* object, Bytes size, const char* function) {
  if (object == nullptr) return;
  ProcessHeap* h = live(heap, function);
  if (h == nullptr) return;
  const int saved = errno;
  report(function, object, size, h->free(object, size, thread_slot), *h);
  errno = saved;
}

// Reports now what is wrong with the size, and with checked=1 what is wrong with the object. The
// rest is reported when the object is freed.
NOINLINE bool may_defer(lane_heap* heap, void* object, Bytes size, const char* function) {
  ProcessHeap* h = object != nullptr ? live(heap, function) : nullptr;
  if (h == nullptr) return false;
  const HeapFree wrong = h->look_at(object, size);
  report(function, object, size, wrong, *h);
  return wrong.verdict == Verdict::kGood;
}

void free_some(void* heap, void** objects, size_t n) {
  const Family* family = find_family(heap, Family::Type::kHeap);
  for (size_t i = 0; i < n; ++i) {
    if (family != nullptr)
      i += static_cast<ProcessHeap*>(family->front)->free_batch(objects + i, n - i, thread_slot);
    if (i < n) lane_heap_free(static_cast<lane_heap*>(heap), objects[i]);
  }
}

FAST int free_later(lane_heap* heap, void* object, Bytes size, const char* function) {
  const Family* family = find_family(heap, Family::Type::kHeap);
  bool is_good = family != nullptr && object != nullptr && !process_engine.is_checked();
  if (size != ProcessHeap::kUnknown)
    is_good = is_good && static_cast<ProcessHeap*>(family->front)->is_surely_good(object, size);
  if (UNLIKELY(!is_good) && !may_defer(heap, object, size, function)) return 0;
  return process_engine.safepoints().defer_call({free_some, heap, object}, thread_slot);
}

}  // namespace
}  // namespace lanemalloc

using namespace lanemalloc;

extern "C" {

EXPORT lane_heap* lane_heap_create_from(const lane_heap_options* options, size_t bytes) {
  lane_heap_options o{};
  if (options != nullptr) {
    const int wrong = read_options(o, options, bytes, offsetof(lane_heap_options, parent));
    if (wrong != 0) {
      errno = wrong;
      return nullptr;
    }
  }
  ProcessHeap* parent = o.parent != nullptr ? live(o.parent, "lane_heap_create: parent") : nullptr;
  if (!is_sound(o) || (o.parent != nullptr && parent == nullptr)) {
    errno = EINVAL;
    return nullptr;
  }
  void* place = start_process() ? descriptors.take() : nullptr;
  if (place == nullptr) return static_cast<lane_heap*>(or_no_memory(nullptr));
  static_assert(alignof(ProcessHeap) <= kNoSharing);
  auto* heap =
      new (place) ProcessHeap(process_engine, kSource, o.name != nullptr ? o.name : "heap", parent);
  if (heap->start(o.limit, o.soft_limit, o.on_soft_limit, o.argument, thread_slot))
    return reinterpret_cast<lane_heap*>(heap->family().handle);
  descriptors.give(heap);
  return static_cast<lane_heap*>(or_no_memory(nullptr));
}

EXPORT size_t lane_heap_destroy(lane_heap* heap) {
  ProcessHeap* h = live(heap, "lane_heap_destroy");
  return h != nullptr ? h->end(thread_slot, [](ProcessHeap& gone) { descriptors.give(&gone); }) : 0;
}

EXPORT void* lane_heap_alloc_out_of_line(lane_heap* heap, size_t size) {
  if (LIKELY(size <= kSmallMax)) {
    void* object = ProcessHeap::allocate_from_bin(handle_of(heap), size, thread_slot);
    if (LIKELY(object != nullptr)) return object;
  }
  return alloc_after_miss(heap, size);
}

EXPORT void* lane_heap_alloc_zeroed(lane_heap* heap, size_t count, size_t size) {
  ProcessHeap* h = live(heap, "lane_heap_alloc_zeroed");
  size_t total;
  if (h == nullptr || __builtin_mul_overflow(count, size, &total)) return or_no_memory(nullptr);
  return or_no_memory(h->allocate_zeroed(total, thread_slot));
}

EXPORT void* lane_heap_alloc_aligned(lane_heap* heap, size_t alignment, size_t size) {
  ProcessHeap* h = live(heap, "lane_heap_alloc_aligned");
  if (h != nullptr && !is_power_of_two(alignment)) {
    errno = EINVAL;
    return nullptr;
  }
  return or_no_memory(h != nullptr ? h->allocate(size, alignment, thread_slot) : nullptr);
}

EXPORT void* lane_heap_realloc(lane_heap* heap, void* object, size_t size) {
  if (object == nullptr) return lane_heap_alloc_out_of_line(heap, size);
  if (size == 0) {
    free_in(heap, object, ProcessHeap::kUnknown, "lane_heap_realloc");
    return nullptr;
  }
  ProcessHeap* h = live(heap, "lane_heap_realloc");
  if (h == nullptr) return or_no_memory(nullptr);
  if (const Verdict verdict = h->find(object); UNLIKELY(verdict != Verdict::kGood)) {
    report_bad_pointer("lane_heap_realloc", object, verdict, &h->family());
    return or_no_memory(nullptr);
  }
  return or_no_memory(h->reallocate(object, size, thread_slot));
}

EXPORT void lane_heap_free(lane_heap* heap, void* object) {
  if (LIKELY(ProcessHeap::free_to_batch(process_engine, handle_of(heap), object, thread_slot)))
    return;
  free_in(heap, object, ProcessHeap::kUnknown, "lane_heap_free");
}

EXPORT void lane_heap_free_sized_out_of_line(lane_heap* heap, void* object, size_t size) {
  if (UNLIKELY(size > kSmallMax || !ProcessHeap::free_to_batch(process_engine, handle_of(heap),
                                                               object, size, thread_slot)))
    free_in(heap, object, size, "lane_heap_free_sized");
}

EXPORT int lane_safepoint_heap_free(lane_heap* heap, void* object) {
  return free_later(heap, object, ProcessHeap::kUnknown, "lane_safepoint_heap_free");
}

EXPORT int lane_safepoint_heap_free_sized(lane_heap* heap, void* object, size_t size) {
  return free_later(heap, object, size, "lane_safepoint_heap_free_sized");
}

EXPORT size_t lane_heap_usable_size(lane_heap* heap, const void* object) {
  ProcessHeap* h = object != nullptr ? live(heap, "lane_heap_usable_size") : nullptr;
  if (h == nullptr) return 0;
  const Verdict verdict = h->find(object);
  if (LIKELY(verdict == Verdict::kGood)) return h->usable_size(object);
  report_bad_pointer("lane_heap_usable_size", object, verdict, &h->family());
  return 0;
}

EXPORT int lane_heap_set_limits(lane_heap* heap, size_t soft, size_t hard) {
  ProcessHeap* h = live(heap, "lane_heap_set_limits");
  return h != nullptr && h->set_limits(soft, hard) ? 0 : EINVAL;
}

EXPORT int lane_heap_walk(lane_heap* heap, int (*visit)(void*, size_t, void*), void* argument) {
  ProcessHeap* h = live(heap, "lane_heap_walk");
  if (h == nullptr) return 0;
  int result = 0;
  const bool complete = h->walk(thread_slot, [&](void* object, Bytes size) {
    return result = visit(object, size, argument);
  });
  if (complete) return result;
  errno = ENOMEM;
  return -1;
}

EXPORT void lane_heap_get_statistics_into(lane_heap* heap, lane_heap_statistics* statistics,
                                          size_t bytes) {
  lane_heap_statistics s{};
  if (ProcessHeap* h = live(heap, "lane_heap_get_statistics"); h != nullptr) {
    const HeapCount count = h->count(thread_slot);
    s.live_objects = count.objects;
    s.live_bytes = count.bytes;
    s.slab_bytes = count.slab_bytes;
    s.used_bytes = h->budget().used();
    s.peak_bytes = h->budget().peak();
    s.limit_failures = h->limit_failures();
    s.soft_calls = h->soft_calls();
  }
  write_figures(statistics, bytes, s);
}

EXPORT size_t lane_heap_trim(lane_heap* heap) {
  ProcessHeap* h = live(heap, "lane_heap_trim");
  return h != nullptr ? h->trim(thread_slot) : 0;
}

}  // extern "C"
