// What was counted, for programs: lane_stats() and its texts; the C library's mallinfo, malloc_info
// and malloc_stats; and everything by name. Public declarations: include/lanemalloc/stats.h;
// malloc.h. Locking: none; each caller has figures of its own.
#include "lanemalloc/stats.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/platform/malloc_names.h"
#include "process/figures.h"
#include "process/names.h"

namespace lanemalloc {

namespace {

// kPlaces callers may have figures at once: threads, and handlers one above the other. A place that
// no caller has used costs no memory.
struct Place {
  std::atomic<bool> taken{false};
  Statistics statistics{};
};
constexpr unsigned kPlaces = 8;
constinit Place places[kPlaces];

Place& take_place() {
  for (unsigned i = 0;; i = (i + 1) % kPlaces) {
    // acquire: the caller before is done with the place. Pairs with [place.release].
    if (!places[i].taken.exchange(true, std::memory_order_acquire)) return places[i];
    Linux::pause();
  }
}

}  // namespace

Figures::Figures() : place_(&take_place()) {
  Statistics& s = static_cast<Place*>(place_)->statistics;
  if (start_process()) {
    process_engine.statistics(s, !is_busy(thread_slot.load(std::memory_order_relaxed)));
    is_good_ = true;
  } else {
    s = Statistics{};
  }
}
Figures::~Figures() {
  static_cast<Place*>(place_)->taken.store(false, std::memory_order_release);
}  // [place.release]
const Statistics& Figures::operator*() const {
  return static_cast<const Place*>(place_)->statistics;
}

void Figures::forget_in_child() {
  for (Place& place : places) place.taken.store(false, std::memory_order_relaxed);
}

namespace {

// A text in the caller's memory, as snprintf() writes it.
class Copy {
 public:
  Copy(char* text, size_t size) : text_(text), size_(text != nullptr ? size : 0) {}
  Sink sink() {
    return {[](void* copy, const char* text, size_t n) { static_cast<Copy*>(copy)->add(text, n); },
            this};
  }
  void add(const char* text, size_t n) {
    if (length_ + 1 < size_)
      memcpy(text_ + length_, text, n < size_ - 1 - length_ ? n : size_ - 1 - length_);
    length_ += n;
  }
  size_t end() const {
    if (size_ > 0) text_[length_ < size_ ? length_ : size_ - 1] = '\0';
    return length_;
  }

 private:
  char* text_;
  size_t size_;
  size_t length_ = 0;
};

size_t write(void (*writer)(const lane_statistics&, const FamilyList&, const Sink&), char* text,
             size_t size) {
  const Figures figures;
  Copy copy(text, size);
  writer(*figures, (*figures).families, copy.sink());
  return copy.end();
}

// --- Names. "options.decay_ms" | "stats.live_bytes" | "contention.depot.failures", in this order.

// What follows the prefix; null: the name has another prefix.
const char* without(const char* prefix, const char* name) {
  for (; *prefix != '\0'; ++prefix, ++name)
    if (*prefix != *name) return nullptr;
  return name;
}

const lane_contention_statistics* cell_of(const lane_statistics& s, const char* name,
                                          const char*& figure) {
  for (const lane_contention_statistics& cell : s.contention) {
    const char* rest = cell.name[0] != '\0' ? without(cell.name, name) : nullptr;
    if (rest == nullptr || *rest != '.') continue;
    figure = rest + 1;
    return &cell;
  }
  return nullptr;
}

bool get(const char* name, Copy& value) {
  Text text;
  if (const char* option = without("options.", name); option != nullptr) {
    if (!start_process() || !OptionReader::write(process_options(), option, text)) return false;
  } else if (const char* figure = without("stats.", name); figure != nullptr) {
    const Figures figures;
    unsigned i = 0;
    while (i < kFigureCount && strcmp(figure_at(i).name, figure) != 0) ++i;
    if (i == kFigureCount) return false;
    text << figure_at(i).of(&*figures);
  } else if (const char* at = without("contention.", name); at != nullptr) {
    const Figures figures;
    const lane_contention_statistics* cell = cell_of(*figures, at, at);
    unsigned i = 0;
    while (i < kCellFigureCount && strcmp(cell_figure_at(i).name, at) != 0) ++i;
    if (cell == nullptr || i == kCellFigureCount) return false;
    text << cell_figure_at(i).of(cell);
  } else {
    return false;
  }
  value.add(text.data(), text.size());
  return true;
}

// All names, made when they are first asked for.
class Names {
 public:
  const char* at(size_t index) {
    if (index >= kMost) return nullptr;
    if (!made_.load(std::memory_order_acquire)) make();
    return texts_[index][0] != '\0' ? texts_[index] : nullptr;
  }

 private:
  static constexpr size_t kMost = 160;

  // Two threads may make the names at once; both write the same.
  void make() {
    size_t n = 0;
    auto add = [&](const char* first, const char* second, const char* third) {
      Text text;
      text << first << second << third;
      CHECK(n + 1 < kMost && text.size() < sizeof *texts_);
      memcpy(texts_[n++], text.data(), text.size());
    };
    for (unsigned i = 0; OptionReader::key_at(i) != nullptr; ++i)
      add("options.", OptionReader::key_at(i), "");
    for (unsigned i = 0; i < kFigureCount; ++i) add("stats.", figure_at(i).name, "");
    const Figures figures;
    for (const lane_contention_statistics& cell : (*figures).contention) {
      if (cell.name[0] == '\0') continue;
      for (unsigned i = 0; i < kCellFigureCount; ++i) {
        Text end;
        end << '.' << cell_figure_at(i).name << '\0';
        add("contention.", cell.name, end.data());
      }
    }
    made_.store(true, std::memory_order_release);
  }

  std::atomic<bool> made_{false};
  char texts_[kMost][48]{};
};
constinit Names names;

#if defined(LANEMALLOC_HAS_GLIBC_NAMES)
int narrow(size_t n) { return static_cast<int>(n > INT32_MAX ? INT32_MAX : n); }
#endif

}  // namespace
}  // namespace lanemalloc

using namespace lanemalloc;

extern "C" {

EXPORT int lane_stats(struct lane_statistics* stats, size_t bytes) {
  if (stats == nullptr || bytes < offsetof(lane_statistics, entry)) return EINVAL;
  const Figures figures;
  if (!figures) return ENOMEM;
  const size_t n = bytes < sizeof *stats ? bytes : sizeof *stats;
  memcpy(stats, static_cast<const lane_statistics*>(&*figures), n);
  stats->size = static_cast<uint32_t>(n);
  return 0;
}

EXPORT size_t lane_stats_json(char* text, size_t size) { return write(write_json, text, size); }
EXPORT size_t lane_stats_openmetrics(char* text, size_t size) {
  return write(write_openmetrics, text, size);
}

EXPORT const char* lane_name(size_t index) { return names.at(index); }

EXPORT long lane_get(const char* name, char* value, size_t size) {
  Copy copy(value, size);
  if (name == nullptr || !get(name, copy)) return -1;
  return static_cast<long>(copy.end());
}

EXPORT int lane_set(const char* name, const char* value) {
  if (name == nullptr) return ENOENT;
  if (without("stats.", name) != nullptr || without("contention.", name) != nullptr)
    return lane_get(name, nullptr, 0) >= 0 ? EPERM : ENOENT;
  const char* option = without("options.", name);
  return set_process_option(option != nullptr ? option : name, value);
}

#if defined(LANEMALLOC_HAS_GLIBC_NAMES)
EXPORT WideInfo LANE_NAME(mallinfo2)() {
  const Figures figures;
  const Statistics& s = *figures;
  WideInfo info = {};
  info.arena = s.claimed_bytes - s.large_live_bytes;
  info.ordblks = s.live_objects - s.large_live_objects;
  info.hblks = s.large_live_objects;
  info.hblkhd = s.large_live_bytes;
  info.uordblks = s.live_bytes - s.large_live_bytes;
  info.fordblks = info.arena - info.uordblks;
  info.keepcost = s.cached_bytes;
  return info;
}

EXPORT struct mallinfo LANE_NAME(mallinfo)() {
  const WideInfo wide = LANE_NAME(mallinfo2)();
  struct mallinfo info = {};
  info.arena = narrow(wide.arena);
  info.ordblks = narrow(wide.ordblks);
  info.hblks = narrow(wide.hblks);
  info.hblkhd = narrow(wide.hblkhd);
  info.uordblks = narrow(wide.uordblks);
  info.fordblks = narrow(wide.fordblks);
  info.keepcost = narrow(wide.keepcost);
  return info;
}
#endif

EXPORT void LANE_NAME(malloc_stats)() {
  const Figures figures;
  print<Linux>(*figures);
}

EXPORT int LANE_NAME(malloc_info)(int options, FILE* out) {
  if (options != 0) return EINVAL;
  const Figures figures;
  const Statistics& s = *figures;
  fprintf(out, "<malloc version=\"lanemalloc-1\">\n<heap nr=\"0\">\n<sizes>\n");
  for (const lane_class_statistics& row : s.classes) {
    if (row.allocations == 0) continue;
    fprintf(out,
            "<size size=\"%" PRIu64 "\" allocations=\"%" PRIu64 "\" live=\"%" PRIu64
            "\" slabs=\"%" PRIu64 "\"/>\n",
            row.size, row.allocations, row.live, row.slabs);
  }
  fprintf(out, "</sizes>\n</heap>\n");
  fprintf(out, "<total type=\"live\" count=\"%" PRIu64 "\" size=\"%" PRIu64 "\"/>\n",
          s.live_objects, s.live_bytes);
  fprintf(out, "<total type=\"large\" count=\"%" PRIu64 "\" size=\"%" PRIu64 "\"/>\n",
          s.large_allocations, s.large_live_bytes);
  fprintf(out, "<system type=\"current\" size=\"%" PRIu64 "\"/>\n", s.claimed_bytes);
  fprintf(out, "<system type=\"cached\" size=\"%" PRIu64 "\"/>\n</malloc>\n", s.cached_bytes);
  return 0;
}

#if defined(LANEMALLOC_HAS_GLIBC_NAMES) && !defined(LANEMALLOC_PREFIXED)
EXPORT __attribute__((alias("mallinfo"), copy(mallinfo))) struct mallinfo __libc_mallinfo();
#endif

}  // extern "C"
