// Start and end of the allocator in a process: options, fork handlers, the figures at exit.
// Locking: the first caller starts the engine with all signals blocked. Other callers wait for it,
// which takes microseconds.
#include "process/process.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/arch_note.h"
#include "core/engine/layout.h"
#include "process/figures.h"
#include "process/file.h"
#include "process/names.h"
#include "process/threads.h"

// A program may define this variable to compile in its options.
extern "C" {
EXPORT extern const char* LANE_NAME(lanemalloc_options) __attribute__((weak));
const char* LANE_NAME(lanemalloc_options) = nullptr;
}

namespace lanemalloc {

constinit ProcessEngine process_engine;
thread_local constinit Slot thread_slot{&no_lane_gate};

extern "C" {
// Readers outside the process find it by the note. Nothing in the process looks for it.
[[gnu::used, gnu::visibility("hidden")]] constinit Root LANE_NAME(lanemalloc_stats_root) = [] {
  Root root;
  name_into(root.library, LANEMALLOC_VERSION);
  Layout<Linux>::describe(root, process_engine);
  root.options = options_text;
  return root;
}();
}
#if defined(LANEMALLOC_PREFIXED)
LANEMALLOC_NOTE(lane_lanemalloc_stats_root);
#else
LANEMALLOC_NOTE(lanemalloc_stats_root);
#endif

// The same word as thread_slot, for hits that are compiled into programs. Its name has the number
// of the layout (LANE_HIT_LAYOUT, include/lanemalloc/hit.h).
extern "C" {
EXPORT extern thread_local Slot lane_thread_slot_of_layout_2
    __attribute__((alias("_ZN10lanemalloc11thread_slotE")));
}

constinit std::atomic<bool> process_started{false};

namespace {

enum class Stage : uint32_t { kNew, kStarting, kStarted };

constinit std::atomic<Stage> stage{Stage::kNew};
constinit Options options;

const char* find_in_environment(const char* name, char** environment) {
  for (char** entry = environment; entry != nullptr && *entry != nullptr; ++entry) {
    size_t i = 0;
    while (name[i] != '\0' && (*entry)[i] == name[i]) ++i;
    if (name[i] == '\0' && (*entry)[i] == '=') return *entry + i + 1;
  }
  return nullptr;
}

void read_options() {
#if defined(LANEMALLOC_CHECKED_DEFAULT)
  options.settings.checked = true;
#endif
  OptionReader reader(options, &Linux::say);
  reader.read("lanemalloc_options", LANE_NAME(lanemalloc_options));
  // A program that runs with more rights than its caller does not take the caller's options.
  if (!Linux::runs_with_raised_privileges())
    reader.read("LANEMALLOC_OPTIONS", find_in_environment("LANEMALLOC_OPTIONS", environ));
  if (reader.must_stop()) abort();
  write_options();
}

// Tells the user if the requested entry is not available.
void tell_entry() {
  const Entry entry = process_engine.entry();
  if (options.settings.choose_entry || entry == options.settings.entry) return;
  Text line;
  line << "lanemalloc: lanes=percpu: no restartable sequences here (rseq of the kernel and the C "
          "library, and "
          "membarrier's restart), using ";
  OptionReader::write_entry(line, entry, process_engine.world().lanes.orders().lanes());
  line.end();
  Linux::say(line.data(), line.size());
}

// Tells the user why the signal writes no figures: it is ignored (nohup does that), or the program
// has a handler for it.
void tell_signal() {
  Text line;
  line << "lanemalloc: stats=";
  OptionReader::write(options, "stats", line);
  line << ": the signal is ignored or handled already, and stays so; no figures come by it";
  line.end();
  Linux::say(line.data(), line.size());
  options.seeing.stats.signal = 0;
  write_options();
}

// Reports what shows only after the wrong call: an object that is in a list twice.
void report_late(Verdict why, const void* pointer) {
  const bool is_in_list = why == Verdict::kListDamaged || why == Verdict::kFreedAlready;
  const Kind* kind =
      is_in_list ? KindObjects<Linux>::kind_at(process_engine.world(), pointer) : nullptr;
  if (kind == nullptr) return report_bad_pointer("free", pointer, why);
  const bool is_heap = kind->family->type == Family::Type::kHeap;
  report_bad_pointer(is_heap ? "lane_heap_free" : "lane_pool_free",
                     static_cast<const std::byte*>(pointer) - kind->link, why, kind->family);
}

constinit std::atomic<uint32_t> forks_under_way{0};
// True if a child was sorted out before its fork handlers came to ours.
constinit bool is_sorted_out = false;

void before_fork() {
  forks_under_way.fetch_add(1, std::memory_order_relaxed);
  process_engine.fork().before(thread_slot);
}
void after_fork_in_parent() {
  process_engine.fork().after_in_parent();
  process_engine.fork().step_back(thread_slot);
  // A child that a handler of the fork has made comes here too, and has forgotten the forks.
  uint32_t forks = forks_under_way.load(std::memory_order_relaxed);
  while (forks != 0 &&
         !forks_under_way.compare_exchange_weak(forks, forks - 1, std::memory_order_relaxed)) {
  }
}
void sort_out_child() {
  forks_under_way.store(0, std::memory_order_relaxed);
  process_engine.fork().after_in_child(thread_slot);
  forget_other_threads();
  Figures::forget_in_child();
}
void after_fork_in_child() {
  if (!is_sorted_out) sort_out_child();
  is_sorted_out = false;
}

[[gnu::constructor(101)]] void library_starts() {
  if (start_process()) {
    if (watch_signal(options.seeing.stats.signal) != 0) tell_signal();
    if (options.seeing.sample.bytes != 0) start_sampling();
    watch_end_of_thread();
  }
  if (pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) != 0) {
    static constexpr char kLine[] =
        "lanemalloc: no memory for fork handlers; a child of fork must not allocate\n";
    Linux::say(kLine, sizeof kLine - 1);
  }
}

[[gnu::destructor(101)]] void library_ends() {
  write_profiles_at_end();
  if (options.seeing.stats.at_exit) report_figures();
}

}  // namespace

Options& process_options() { return options; }

bool sort_out_child_early() {
  if (forks_under_way.load(std::memory_order_relaxed) == 0) return false;
  sort_out_child();
  return is_sorted_out = true;
}

bool start_process_once() {
  Stage now = stage.load(std::memory_order_acquire);
  const uint64_t mask = Linux::block_signals();
  while (now != Stage::kStarted) {
    if (now == Stage::kNew &&
        stage.compare_exchange_weak(now, Stage::kStarting, std::memory_order_acquire)) {
      File::remember_standard_error();
      read_options();
      const bool good = process_engine.start(options.settings, report_late);
      // release: a reader that sees a time finds what the other fields name.
      if (good)
        __atomic_store_n(&LANE_NAME(lanemalloc_stats_root).started_at_ns, Linux::now_ns(),
                         __ATOMIC_RELEASE);
      process_started.store(good, std::memory_order_release);  // [started.release]
      stage.store(good ? Stage::kStarted : Stage::kNew, std::memory_order_release);
      if (!good) {
        Linux::restore_signals(mask);
        return false;
      }
      if (good) tell_entry();
      // The engine serves from here on, so making keys may allocate.
      if (make_thread_keys()) process_engine.set_exit_watch(watch_end);
      break;
    }
    Linux::pause();
    now = stage.load(std::memory_order_acquire);
  }
  Linux::restore_signals(mask);
  return true;
}

namespace {

const char* word_for(Family::Type type) { return type == Family::Type::kHeap ? "heap" : "pool"; }

Text& operator<<(Text& line, const Family& family) {
  return line << word_for(family.type) << " \"" << family.name << '"';
}

void say_bad(Text& line) {
  line.end();
  Linux::say(line.data(), line.size());
  if (options.bad_pointer == Options::OnBadPointer::kAbort) abort();
}

}  // namespace

void report_dead_family(const char* function, const void* family, Family::Type type) {
  if (options.bad_pointer == Options::OnBadPointer::kIgnore) return;
  Text line;
  line << "lanemalloc: " << function << '(' << family << "): not a " << word_for(type)
       << ", or destroyed already";
  say_bad(line);
}

void report_wrong_size(const char* function, const void* pointer, Bytes size, Bytes real,
                       const Family& family) {
  if (options.bad_pointer == Options::OnBadPointer::kIgnore) return;
  Text line;
  line << "lanemalloc: " << function << '(' << pointer << ", " << uint64_t{size}
       << "): the object of " << family << " has " << uint64_t{real} << " bytes";
  say_bad(line);
}

void report_bad_pointer(const char* function, const void* pointer, Verdict why,
                        const Family* expected) {
  if (options.bad_pointer == Options::OnBadPointer::kIgnore) return;
  Text line;
  line << "lanemalloc: " << function << '(' << pointer << "): ";
  switch (why) {
    case Verdict::kOfKind:
      line << "an object of " << *process_engine.kinds().family_of(pointer);
      break;
    case Verdict::kWrongSize:
      line << "freed with a wrong size";
      break;
    case Verdict::kOverrun:
      line << "bytes behind the object were written";
      break;
    case Verdict::kOfMalloc:
      line << "an object of malloc";
      break;
    case Verdict::kGood:
      line << "good";
      break;
    case Verdict::kNotOurs:
      line << "not a pointer of this allocator";
      break;
    case Verdict::kNotInUse:
      line << "the page is not in use";
      break;
    case Verdict::kNotAStart:
      line << "not the start of an object";
      break;
    case Verdict::kFreedAlready:
      line << "freed already";
      break;
    case Verdict::kListDamaged:
      line << "freed already, or written to after it was freed";
      break;
  }
  const bool is_strange =
      why == Verdict::kOfKind || why == Verdict::kOfMalloc || why == Verdict::kNotOurs;
  if (expected != nullptr) {
    // If both have one name, their handles tell them apart.
    const Family* real =
        why == Verdict::kOfKind ? process_engine.kinds().family_of(pointer) : nullptr;
    const bool is_same =
        real != nullptr && real->type == expected->type && strcmp(real->name, expected->name) == 0;
    if (is_same) line << " at " << reinterpret_cast<const void*>(real->handle);
    line << (is_strange ? ", not of " : ", given to ") << *expected;
    if (is_same) line << " at " << reinterpret_cast<const void*>(expected->handle);
  } else if (why == Verdict::kOfKind) {
    line << ", not of malloc";
  }
  say_bad(line);
}

void report_misuse(const char* function, const void* pointer, const char* why) {
  if (options.bad_pointer == Options::OnBadPointer::kIgnore) return;
  Text line;
  line << "lanemalloc: " << function << '(' << pointer << "): " << why;
  say_bad(line);
}

}  // namespace lanemalloc
