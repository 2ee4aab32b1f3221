// Writers: the figures of one moment (include/lanemalloc/stats.h) as lines for people, as JSON, and
// as OpenMetrics; and each figure by its name.
// Called by: abi, engine (print). Locking: none; async-signal-safe. Texts go out in pieces, so no
// piece is ever too long.
#pragma once

#include "core/base/text.h"
#include "lanemalloc/stats.h"

namespace lanemalloc {

// Where text goes.
class Sink {
 public:
  using Put = void (*)(void* context, const char* text, size_t n);
  Sink(Put put, void* context) : put_(put), context_(context) {}
  void operator()(const Text& text) const { put_(context_, text.data(), text.size()); }

 private:
  Put put_;
  void* context_;
};

// One figure of lane_statistics, or of lane_contention_statistics.
struct Figure {
  enum class Type : uint8_t { kCounter, kGauge };

  const char* name;  // the member's
  const char* text;
  size_t offset;
  Type type;

  // of: a lane_statistics, or a lane_contention_statistics if the figure is a cell's.
  uint64_t of(const void* of) const {
    return *reinterpret_cast<const uint64_t*>(static_cast<const char*>(of) + offset);
  }
};
const Figure& figure_at(unsigned i);
extern const unsigned kFigureCount;
const Figure& cell_figure_at(unsigned i);
inline constexpr unsigned kCellFigureCount = 4;

// What a program's heaps and pools have; of more than kMost the first ones.
struct FamilyFigures {
  static constexpr uint64_t kNoLimit = ~uint64_t{0};

  char name[32];
  const char* type;     // "heap" or "pool"
  uint64_t used_bytes;  // cut from slabs, and large objects
  uint64_t peak_bytes;  // the most of these at a time
  uint64_t limit_bytes;
  uint64_t slab_bytes;
  uint64_t sizes;      // of objects
  uint64_t refills;    // allocations that found their lane's bin empty
  uint64_t contended;  // how often lanes met over its objects
};
struct FamilyList {
  static constexpr unsigned kMost = 64;

  FamilyFigures at[kMost];
  unsigned count = 0;
  uint64_t left_out = 0;
};

void write_lines(const lane_statistics& s, const Sink& out);  // "lanemalloc: name: value"
void write_json(const lane_statistics& s, const FamilyList& families, const Sink& out);
// Heaps and pools of the same name are one there.
void write_openmetrics(const lane_statistics& s, const FamilyList& families, const Sink& out);

// The most lanes that a search of this row tried.
constexpr uint64_t most_probes_of(unsigned row) {
  return row <= 4 ? row : uint64_t{1} << (row - 2);
}

}  // namespace lanemalloc
