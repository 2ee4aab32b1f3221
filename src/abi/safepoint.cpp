// Deferred frees and readers. Public declarations: include/lanemalloc/safepoint.h.
//
// A deferred free contains only the store into the lane's ring. What follows it is a jump to a
// function out of line.
#include "lanemalloc/safepoint.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>

#include "abi/sizes.h"
#include "process/process.h"

namespace lanemalloc {
namespace {

NOINLINE int defer_after_miss(void* object, Gate* gate) {
  if (UNLIKELY(object == nullptr || !start_process())) {
    Owned::leave_as_found(thread_slot, gate);
    return object == nullptr ? 0 : EBUSY;
  }
  if (UNLIKELY(process_engine.world().settings.checked)) {
    const Verdict verdict = process_engine.pointers().find(object).verdict;
    if (verdict != Verdict::kGood) {
      Owned::leave_as_found(thread_slot, gate);
      report_bad_pointer("lane_safepoint_free", object, verdict);
      return 0;
    }
  }
  return process_engine.safepoints().defer_in_stay(object, thread_slot, gate);
}

void call(void* function, void** objects, size_t n) {
  for (size_t i = 0; i < n; ++i) reinterpret_cast<void (*)(void*)>(function)(objects[i]);
}

// --- The ends of threads that have registered readers. They have a key of their own, since such a
// thread may never allocate.

constinit std::atomic<uint64_t> ends_key{0};  // the key's number + 1; 0: there is none yet

void* rounds(uintptr_t n) { return reinterpret_cast<void*>(n); }

// Destructors of other keys run later, and in later rounds, and may begin sections too.
void thread_ends(void* rounds_left) {
  const auto left = reinterpret_cast<uintptr_t>(rounds_left) - 1;
  const uint64_t key = ends_key.load(std::memory_order_relaxed);
  if (process_engine.safepoints().reader_ends(thread_slot) && left != 0)
    pthread_setspecific(static_cast<pthread_key_t>(key - 1), rounds(left));
}

// Without a key nothing notices the end of the thread, and its sections last.
void watch_end() {
  uint64_t key = ends_key.load(std::memory_order_relaxed);
  if (key == 0) {
    pthread_key_t made;
    if (pthread_key_create(&made, thread_ends) != 0) return;
    if (ends_key.compare_exchange_strong(key, uint64_t{made} + 1, std::memory_order_relaxed)) {
      key = uint64_t{made} + 1;
    } else {
      pthread_key_delete(made);  // another thread was first
    }
  }
  pthread_setspecific(static_cast<pthread_key_t>(key - 1), rounds(PTHREAD_DESTRUCTOR_ITERATIONS));
}

}  // namespace
}  // namespace lanemalloc

using namespace lanemalloc;

extern "C" {

EXPORT int lane_safepoint_free(void* object) {
  return process_engine.defer(object, thread_slot,
                              [=](Gate* gate) { return defer_after_miss(object, gate); });
}

EXPORT int lane_safepoint_call(void (*f)(void* object), void* object) {
  if (!start_process()) return EBUSY;
  return process_engine.safepoints().defer_call({call, reinterpret_cast<void*>(f), object},
                                                thread_slot);
}

EXPORT size_t lane_safepoint() {
  return start_process() ? process_engine.safepoints().free_at_stop(thread_slot) : 0;
}

EXPORT size_t lane_safepoint_poll() {
  return start_process() ? process_engine.safepoints().free_what_may_be_freed(thread_slot) : 0;
}

EXPORT int lane_safepoint_wait() {
  return start_process() ? process_engine.safepoints().wait_for_readers(thread_slot) : EDEADLK;
}

EXPORT int lane_reader_register(struct lane_reader* reader, const char* name) {
  if (!process_engine.safepoints().add_reader(*reader, name, thread_slot)) return EINVAL;
  watch_end();
  return 0;
}

EXPORT void lane_reader_exit_without_section(struct lane_reader* reader) {
  report_misuse("lane_reader_exit", reader, "the reader is in no read section");
}

EXPORT int lane_reader_unregister(struct lane_reader* reader) {
  switch (process_engine.safepoints().remove_reader(*reader, thread_slot)) {
    case Safepoints<Linux>::Removed::kDone:
      return 0;
    case Safepoints<Linux>::Removed::kInSection:
      return EBUSY;
    default:
      return EINVAL;
  }
}

EXPORT void lane_safepoint_get_statistics_into(struct lane_safepoint_statistics* statistics,
                                               size_t bytes) {
  lane_safepoint_statistics s{};
  process_engine.safepoints().statistics(s, thread_slot);
  write_figures(statistics, bytes, s);
}

}  // extern "C"
