// Profiles: turns sampling on and off, and writes what was sampled when the program asks for it or
// ends. Public declarations: include/lanemalloc/stats.h. Locking: none.
#include <errno.h>
#include <string.h>
#include <time.h>

#include "process/figures.h"
#include "process/file.h"
#include "seeing/pprof.h"
#include "seeing/unwind/unwind.h"

namespace lanemalloc {
namespace {

constinit Relaxed<uint64_t> sampling_since = 0;  // 0: never
constinit Relaxed<bool> has_constructed = false;

Sampler<Linux>& sampler() { return process_engine.world().sampler; }

const void* witness(const void* who, uint64_t ns) { return process_engine.contended(who, ns); }

int write_profile_of(StackKind kind, const char* name, const char* path) {
  if (sampling_since == 0) return ENOTSUP;
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  ProfileFacts facts;
  facts.kind = kind;
  facts.period =
      kind == StackKind::kAllocation ? sampler().interval() : sampler().contention_interval();
  facts.time_ns =
      static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
  facts.duration_ns = Linux::now_ns() - sampling_since;
  facts.peak_is_now = sampler().peak_is_now();
  File file(path, name);
  if (file.error() != 0) return file.error();
  if (!write_profile<Linux>(sampler().stacks(), facts,
                            [&](const void* bytes, size_t n) { file.add(bytes, n); }))
    return ENOMEM;
  file.flush();
  return file.error();
}

void write_at_end(StackKind kind, const char* name) {
  const char* path = process_options().seeing.profile_file;
  const int error = write_profile_of(kind, name, path);
  if (error == 0) return;
  Text line;
  line << "lanemalloc: profile_file=" << path << ": "
       << (error == ENOTSUP ? "nothing is sampled; set sample, for example sample=512k"
                            : File::why(error));
  line.end();
  Linux::say(line.data(), line.size());
}

// In a program that is linked with -static the tables are there only now
// (seeing/unwind/unwind.cpp).
[[gnu::constructor]] void program_has_tables() {
  if (process_options().seeing.sample.bytes != 0) start_sampling();
}

// This has no priority, so it runs after the constructor that registers a static program's tables.
[[gnu::constructor]] void constructors_run() {
  has_constructed = true;
  if (sampling_since == 0 && process_options().seeing.sample.bytes != 0 && start_process())
    start_sampling();
}

}  // namespace

void start_sampling() {
  const SeeingOptions& o = process_options().seeing;
  const bool is_on = o.sample.bytes != 0;
  if (is_on && !has_constructed && !may_prepare_early()) return;
  if (is_on) {
    prepare_unwinding(o.unwind_by_frames ? Unwinding::kFrames : Unwinding::kTables);
    if (!sampler().start(capture_stack)) {
      static constexpr char kLine[] =
          "lanemalloc: sample: no address space for stacks; nothing is sampled\n";
      return Linux::say(kLine, sizeof kLine - 1);
    }
    if (sampling_since == 0) sampling_since = Linux::now_ns();
  }
  sampler().set_interval(o.sample.bytes);
  sampler().set_contention_interval(is_on ? uint64_t{o.sample_wait_ns} : 0);
  contention_witness.store(is_on ? &witness : nullptr, std::memory_order_relaxed);
}

void write_profiles_at_end() {
  const SeeingOptions& o = process_options().seeing;
  if (o.profile_at_exit) {
    write_at_end(StackKind::kAllocation, "heap");
    write_at_end(StackKind::kContention, "contention");
  }
  if (!o.leaks) return;
  if (sampling_since == 0) {
    static constexpr char kLine[] =
        "lanemalloc: leaks: nothing is sampled; set sample, for example sample=64k\n";
    return Linux::say(kLine, sizeof kLine - 1);
  }
  constexpr unsigned kShown = 10;
  File file("");
  write_leaks(sampler().stacks(), kShown, [&](const void* bytes, size_t n) { file.add(bytes, n); });
}

}  // namespace lanemalloc

using namespace lanemalloc;

extern "C" EXPORT int lane_profile(const char* kind, const char* path) {
  if (kind == nullptr || path == nullptr) return EINVAL;
  if (strcmp(kind, "heap") == 0) return write_profile_of(StackKind::kAllocation, kind, path);
  if (strcmp(kind, "contention") == 0) return write_profile_of(StackKind::kContention, kind, path);
  return EINVAL;
}
