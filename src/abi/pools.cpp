// The functions of include/lanemalloc/pool.h. They look up the value that they are given, and do
// not follow it until it is known to be a handle (core/slab/handle.h). Pools lie in memory that is
// never used for anything else.
#include <errno.h>
#include <lanemalloc/pool.h>
#include <lanemalloc/safepoint.h>
#include <string.h>

#include <new>

#include "abi/sizes.h"
#include "fronts/pool/pool.h"
#include "process/descriptors.h"
#include "process/process.h"

namespace lanemalloc {
namespace {

using ProcessPool = Pool<Linux>;
static_assert(LANE_GATE_AREA == offsetof(Gate, area_of_hits) &&
              LANE_LABELS_OF_POOLS == Labels::kPools && LANE_BUSY_BYTE == kBusyByte &&
              LANE_HIT_BYTES == BinHead::kReach && LANE_HIT_TAG == kLinkTag);
static_assert(offsetof(lane_bin, end) == offsetof(BinHead, end) &&
              offsetof(lane_bin, end_link) == offsetof(BinHead, end_link) &&
              offsetof(lane_bin, first) == offsetof(BinHead, first) && offsetof(Bin, hit) == 0);
static_assert(LANE_POOL_ZERO == ProcessPool::kZero && LANE_POOL_WAIT == ProcessPool::kWait &&
              LANE_POOL_USE_RESERVE == ProcessPool::kUseReserve);

constinit Descriptors<sizeof(ProcessPool)> descriptors;

FAST ProcessPool* live(lane_pool* pool, const char* function) {
  return live_front<ProcessPool, Family::Type::kPool>(pool, function);
}

// Returns the alignment that the options ask for, or one that fits. 0: none does.
Bytes alignment_of(const lane_pool_options& o) {
  const Bytes natural = o.object_size % kGranule == 0 ? kGranule : alignof(Object);
  Bytes alignment = o.alignment == 0 ? natural : o.alignment;
  if (!is_power_of_two(alignment) || alignment > kBlockSize) return 0;
  if (alignment < alignof(Object)) alignment = alignof(Object);
  const Bytes padding = o.padding == LANE_OWN_LINE   ? 64
                        : o.padding == LANE_OWN_PAIR ? kNoSharing
                                                     : 1;
  return alignment > padding ? alignment : padding;
}

bool is_sound(const lane_pool_options& o) {
  if (o.object_size == 0 || o.object_size > kSlabMax) return false;
  if (o.padding < LANE_PACKED || o.padding > LANE_OWN_PAIR) return false;
  if (o.limit != 0 && (o.reserve > o.limit || o.limit > Budget::kNone / kSlabMax / 2)) return false;
  if ((o.import_objects != nullptr) != (o.release_objects != nullptr)) return false;
  const bool is_cut_here =
      o.init != nullptr || o.fini != nullptr || o.alignment != 0 || o.padding != LANE_PACKED;
  if (o.import_objects != nullptr && (is_cut_here || o.object_size < sizeof(Object))) return false;
  return o.reserve <= UINT32_MAX && alignment_of(o) != 0;
}

// With checked=1 a bad object is reported now, otherwise when it is freed.
NOINLINE bool may_defer(lane_pool* pool, void* object) {
  ProcessPool* p = object != nullptr ? live(pool, "lane_safepoint_pool_free") : nullptr;
  if (p == nullptr) return false;
  const Verdict verdict = p->find(object);
  if (verdict != Verdict::kGood)
    report_bad_pointer("lane_safepoint_pool_free", object, verdict, &p->family());
  return verdict == Verdict::kGood;
}

Handle handle_of(const lane_pool* pool) { return reinterpret_cast<Handle>(pool); }

size_t destroy(ProcessPool* p) {
  bool lost;
  const uint64_t used = p->end(thread_slot, lost);
  if (!lost) descriptors.give(p);
  return used;
}

int failed(int error) {
  errno = error;
  return error;
}

NOINLINE void* alloc_in_full(ProcessPool* p) {
  void* object = p != nullptr ? p->allocate(0, thread_slot) : nullptr;
  if (UNLIKELY(object == nullptr)) errno = ENOMEM;
  return object;
}

NOINLINE void* alloc_after_miss(lane_pool* pool) {
  ProcessPool* p = live(pool, "lane_pool_alloc");
  if (UNLIKELY(p == nullptr) || p->is_elaborate()) return alloc_in_full(p);
  void* object = p->allocate_in_short_stay(thread_slot);
  return LIKELY(object != nullptr) ? object : alloc_in_full(p);
}

NOINLINE void free_in_full(ProcessPool* p, void* object) {
  const int saved = errno;
  const Verdict verdict = p->free(object, thread_slot);
  if (UNLIKELY(verdict != Verdict::kGood))
    report_bad_pointer("lane_pool_free", object, verdict, &p->family());
  errno = saved;
}

NOINLINE void free_after_miss(lane_pool* pool, void* object) {
  ProcessPool* p = object != nullptr ? live(pool, "lane_pool_free") : nullptr;
  if (p == nullptr) return;
  if (p->is_elaborate() || UNLIKELY(!p->free_in_short_stay(object, thread_slot)))
    free_in_full(p, object);
}

lane_pool_statistics statistics_of(ProcessPool& p) {
  const Kind& kind = p.kind();
  lane_pool_statistics s{};
  auto read = [](const auto& counter) {
    return static_cast<uint64_t>(counter.load(std::memory_order_relaxed));
  };
  memcpy(s.name, p.family().name, sizeof s.name);
  s.object_size = kind.size;
  s.live = p.live(thread_slot);
  s.cached = not_negative(kind.budget->used() / kind.size - s.live);
  s.slab_bytes = bytes_of(kind.slabs.load(std::memory_order_relaxed) * kind.blocks);
  s.limit = p.limit();
  s.reserve = p.reserve();
  s.limit_failures = read(p.counters().limit_failures);
  s.waits = read(p.counters().waits);
  s.waited_ns = read(p.counters().waited_ns);
  s.batch_objects = read(kind.batch);
  s.contended = read(kind.contended);
  s.refills = read(kind.refills);
  return s;
}

}  // namespace
}  // namespace lanemalloc

using namespace lanemalloc;

extern "C" {

EXPORT lane_pool* lane_pool_create_from(const lane_pool_options* options, size_t bytes) {
  lane_pool_options o;
  const int wrong = read_options(o, options, bytes, offsetof(lane_pool_options, alignment));
  if (wrong != 0) return failed(wrong), nullptr;
  if (!is_sound(o)) return failed(EINVAL), nullptr;
  if (!start_process()) return failed(ENOMEM), nullptr;
  void* place = descriptors.take();
  if (place == nullptr) return failed(ENOMEM), nullptr;
  static_assert(alignof(ProcessPool) <= kNoSharing);
  auto* pool =
      new (place) ProcessPool(process_engine, o.name != nullptr ? o.name : "pool", o.object_size,
                              alignment_of(o), {o.init, o.fini, o.ctor, o.dtor, o.argument},
                              {o.import_objects, o.release_objects, o.source});
  if (pool->start(o.limit, static_cast<uint32_t>(o.reserve), thread_slot))
    return reinterpret_cast<lane_pool*>(pool->family().handle);
  destroy(pool);
  return failed(ENOMEM), nullptr;
}

EXPORT size_t lane_pool_destroy(lane_pool* pool) {
  ProcessPool* p = live(pool, "lane_pool_destroy");
  return p != nullptr ? destroy(p) : 0;
}

EXPORT void* lane_pool_alloc_out_of_line(lane_pool* pool) {
  void* object = ProcessPool::allocate_from_bin(handle_of(pool), thread_slot);
  return LIKELY(object != nullptr) ? object : alloc_after_miss(pool);
}

EXPORT void* lane_pool_alloc_with(lane_pool* pool, int flags) {
  ProcessPool* p = live(pool, "lane_pool_alloc_with");
  if (p != nullptr && !p->may_have(static_cast<uint32_t>(flags))) return failed(EINVAL), nullptr;
  void* object = p != nullptr ? p->allocate(static_cast<uint32_t>(flags), thread_slot) : nullptr;
  if (UNLIKELY(object == nullptr)) errno = ENOMEM;
  return object;
}

EXPORT void lane_pool_free_out_of_line(lane_pool* pool, void* object) {
  if (UNLIKELY(!ProcessPool::free_to_batch(process_engine, handle_of(pool), object, thread_slot)))
    free_after_miss(pool, object);
}

EXPORT int lane_safepoint_pool_free(lane_pool* pool, void* object) {
  const bool is_good = find_family(pool, Family::Type::kPool) != nullptr && object != nullptr &&
                       !process_engine.is_checked();
  if (UNLIKELY(!is_good) && !may_defer(pool, object)) return 0;
  const auto free_some = [](void* its, void** objects, size_t n) {
    lane_pool_free_batch(static_cast<lane_pool*>(its), objects, n);
  };
  return process_engine.safepoints().defer_call({free_some, pool, object}, thread_slot);
}

EXPORT size_t lane_pool_alloc_batch(lane_pool* pool, void** objects, size_t n, int flags) {
  ProcessPool* p = live(pool, "lane_pool_alloc_batch");
  if (p != nullptr && !p->may_have(static_cast<uint32_t>(flags))) return failed(EINVAL), 0;
  const size_t had =
      p != nullptr ? p->allocate_batch(objects, n, static_cast<uint32_t>(flags), thread_slot) : 0;
  if (had < n) errno = ENOMEM;
  return had;
}

EXPORT void lane_pool_free_batch(lane_pool* pool, void** objects, size_t n) {
  ProcessPool* p = n != 0 ? live(pool, "lane_pool_free_batch") : nullptr;
  if (p == nullptr) return;
  const int saved = errno;
  for (size_t i = 0; i < n; ++i) {
    i += p->free_batch(objects + i, n - i, thread_slot);
    if (i < n) lane_pool_free_out_of_line(pool, objects[i]);  // null, or one that it reports
  }
  errno = saved;
}

EXPORT int lane_pool_prealloc(lane_pool* pool, size_t n) {
  ProcessPool* p = live(pool, "lane_pool_prealloc");
  return p != nullptr && p->preallocate(n, thread_slot) ? 0 : ENOMEM;
}

EXPORT int lane_pool_set_limit(lane_pool* pool, size_t limit) {
  ProcessPool* p = live(pool, "lane_pool_set_limit");
  return p != nullptr && p->set_limit(limit, thread_slot) ? 0 : EINVAL;
}

EXPORT size_t lane_pool_reclaim(lane_pool* pool, enum lane_reclaim level) {
  ProcessPool* p = live(pool, "lane_pool_reclaim");
  if (level < LANE_TRIM || level > LANE_DRAIN_ALL) return failed(EINVAL), 0;
  return p != nullptr ? p->reclaim(static_cast<Reclaim>(level), thread_slot) : 0;
}

EXPORT void lane_pool_get_statistics_into(lane_pool* pool, lane_pool_statistics* statistics,
                                          size_t bytes) {
  ProcessPool* p = live(pool, "lane_pool_get_statistics");
  write_figures(statistics, bytes, p != nullptr ? statistics_of(*p) : lane_pool_statistics{});
}

}  // extern "C"
