// Stands for the allocator: a sampler whose interval is 1, so that each allocation and wait is
// sampled and stands for itself. Built by run.sh as a library of its own, and into the program.
#include "recorder.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "core/platform/linux.h"
#include "seeing/pprof.h"
#include "seeing/sampler.h"
#include "seeing/unwind/unwind.h"

namespace lanemalloc {

namespace {

constinit Sampler<Linux> sampler;
uint64_t random_state = 1;

bool write_to(const char* path, StackKind kind) {
  const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const ProfileFacts facts{kind, 1, 1700000000000000000, 5000000000, sampler.peak_is_now()};
  bool good = true;
  const bool written = write_profile(sampler.stacks(), facts, [&](const void* bytes, size_t n) {
    good = good && write(file, bytes, n) == static_cast<ssize_t>(n);
  });
  return close(file) == 0 && written && good;
}

// A few functions deep, as the allocator's slow paths are.
AS_DECLARED Sample record(size_t size) {
  const Sample sample = sampler.sample_allocation(size, random_state);
  compiler_fence();
  return sample;
}

}  // namespace

}  // namespace lanemalloc

using namespace lanemalloc;

EXPORT void start_recording(bool by_tables) {
  const Unwinding way = by_tables ? Unwinding::kTables : Unwinding::kFrames;
  CHECK(prepare_unwinding(way) == way);
  CHECK(sampler.start(capture_stack));
  sampler.set_interval(1);
  sampler.set_contention_interval(1);
}

EXPORT void record_allocations(unsigned count, size_t size, unsigned freed) {
  for (unsigned i = 0; i < count; ++i) {
    const Sample sample = record(size);
    if (i < freed) sampler.freed(sample);
  }
}

EXPORT void record_waits(unsigned count, unsigned long ns) {
  for (unsigned i = 0; i < count; ++i) sampler.contended(ns, random_state);
}

EXPORT bool write_records(const char* heap, const char* contention) {
  if (!write_to(heap, StackKind::kAllocation) || !write_to(contention, StackKind::kContention))
    return false;
  write_leaks(sampler.stacks(), 2, [](const void* text, size_t n) { fwrite(text, 1, n, stdout); });
  return true;
}
