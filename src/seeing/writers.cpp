// See writers.h.
#include "seeing/writers.h"

#include <cstddef>

namespace lanemalloc {
namespace {

constexpr auto kCounter = Figure::Type::kCounter;
constexpr auto kGauge = Figure::Type::kGauge;

#define FIGURE(member, text, type) {#member, text, offsetof(lane_statistics, member), type}
constexpr Figure kAllFigures[] = {
    FIGURE(allocations, "allocations", kCounter),
    FIGURE(frees, "frees", kCounter),
    FIGURE(live_objects, "live objects", kGauge),
    FIGURE(live_bytes, "live bytes", kGauge),
    FIGURE(large_allocations, "large allocations", kCounter),
    FIGURE(large_live_objects, "large live objects", kGauge),
    FIGURE(large_live_bytes, "large live bytes", kGauge),
    FIGURE(in_flight_objects, "objects on their way", kGauge),
    FIGURE(misses, "misses", kCounter),
    FIGURE(remote_frees, "remote frees", kCounter),
    FIGURE(remote_batches, "remote batches", kCounter),
    FIGURE(inbox_drains, "inbox drains", kCounter),
    FIGURE(direct_frees, "direct frees", kCounter),
    FIGURE(lanes, "lanes", kGauge),
    FIGURE(failed_entries, "failed lane entries", kCounter),
    FIGURE(lane_waits, "waits for a lane", kCounter),
    FIGURE(lane_waited_us, "microseconds waited for lanes", kCounter),
    FIGURE(rebinds, "rebinds to another lane", kCounter),
    FIGURE(interruptions, "restarted sequences", kCounter),
    FIGURE(overflow_entries, "overflow entries", kCounter),
    FIGURE(nested_entries, "nested entries", kCounter),
    FIGURE(rescue_entries, "rescue entries", kCounter),
    FIGURE(revocations, "revocations", kCounter),
    FIGURE(refused_revocations, "refused revocations", kCounter),
    FIGURE(idle_stack_failures, "failed idle-stack swaps", kCounter),
    FIGURE(slabs_made, "slabs made", kCounter),
    FIGURE(slabs_moved, "slabs moved by the depot", kCounter),
    FIGURE(depot_failures, "depot lock failures", kCounter),
    FIGURE(depot_waits, "depot lock waits", kCounter),
    FIGURE(runs_failures, "region lock failures", kCounter),
    FIGURE(runs_waits, "region lock waits", kCounter),
    FIGURE(claimed_bytes, "bytes claimed", kGauge),
    FIGURE(committed_bytes, "bytes committed", kGauge),
    FIGURE(cached_bytes, "bytes cached", kGauge),
    FIGURE(slab_bytes, "bytes of slabs", kGauge),
    FIGURE(kind_bytes, "bytes of heaps and pools", kGauge),
    FIGURE(purged_bytes, "bytes purged", kCounter),
    FIGURE(moved_bytes, "bytes moved by the kernel", kCounter),
    FIGURE(deferred, "deferred frees", kCounter),
    FIGURE(deferred_waiting, "deferred frees that wait", kGauge),
    FIGURE(samples, "objects sampled", kCounter),
    FIGURE(bad_pointers, "bad pointers", kCounter),
};
#undef FIGURE
static_assert(offsetof(lane_statistics, allocations) +
                      sizeof(uint64_t) * (sizeof kAllFigures / sizeof *kAllFigures) ==
                  offsetof(lane_statistics, probes),
              "every figure is named");

#define FIGURE(member, text) {#member, text, offsetof(lane_contention_statistics, member), kCounter}
constexpr Figure kOfCells[kCellFigureCount] = {
    FIGURE(count, "entries"), FIGURE(failures, "failed tries"), FIGURE(waits, "waits"),
    FIGURE(waited_ns, "nanoseconds waited")};
#undef FIGURE

#define FIGURE(member, text) {#member, text, offsetof(FamilyFigures, member), kGauge}
constexpr Figure kOfFamilies[] = {
    FIGURE(used_bytes, "bytes that a heap or pool has cut from its slabs"),
    FIGURE(peak_bytes, "the most of these at a time"),
    FIGURE(limit_bytes, "the limit of a heap or pool that has one"),
    FIGURE(slab_bytes, "bytes of its slabs"),
};
#undef FIGURE

template <class Visit>
void for_each_cell(const lane_statistics& s, Visit visit) {
  for (const lane_contention_statistics& cell : s.contention)
    if (cell.name[0] != '\0') visit(cell);
}

bool ends_with(const char* text, const char* end) {
  const char* t = text;
  const char* e = end;
  while (*t != '\0') ++t;
  while (*e != '\0') ++e;
  while (e != end && t != text && t[-1] == e[-1]) --e, --t;
  return e == end;
}

// The bytes of the UTF-8 character at the beginning of s, at most n; 0: there is none.
size_t character_at(const char* s, size_t n) {
  const auto first = static_cast<unsigned char>(s[0]);
  const size_t length = first < 0x80   ? 1
                        : first < 0xC2 ? 0
                        : first < 0xE0 ? 2
                        : first < 0xF0 ? 3
                        : first < 0xF5 ? 4
                                       : 0;
  if (length == 0 || length > n) return 0;
  for (size_t i = 1; i < length; ++i)
    if ((static_cast<unsigned char>(s[i]) & 0xC0) != 0x80) return 0;
  if (length == 1) return 1;
  const auto second = static_cast<unsigned char>(s[1]);
  const bool is_bad = (first == 0xE0 && second < 0xA0) || (first == 0xED && second >= 0xA0) ||
                      (first == 0xF0 && second < 0x90) || (first == 0xF4 && second >= 0x90);
  return is_bad ? 0 : length;
}

// A name that the program has chosen, between quotes, in JSON and in OpenMetrics: they agree on
// what is written before quotes, backslashes and ends of lines. What can stand in neither is a '?'.
Text& quoted(Text& text, const char* name, size_t room) {
  text << '"';
  size_t n = 0;
  while (n < room && name[n] != '\0') ++n;
  for (size_t i = 0; i < n;) {
    const size_t length = character_at(name + i, n - i);
    const char c = name[i];
    if (c == '\n') {
      text << "\\n";
    } else if (length == 0 || (static_cast<unsigned char>(c) < 0x20) || c == 0x7F) {
      text << '?';
    } else {
      if (c == '"' || c == '\\') text << '\\';
      text.add(name + i, length);
    }
    i += length == 0 ? 1 : length;
  }
  return text << '"';
}

// Writes a metric's head. unit: null: none.
void head(const Sink& out, const char* name, const char* type, const char* text,
          const char* unit = nullptr) {
  Text line;
  line << "# TYPE lanemalloc_" << name << ' ' << type << '\n';
  if (unit != nullptr) line << "# UNIT lanemalloc_" << name << ' ' << unit << '\n';
  line << "# HELP lanemalloc_" << name << ' ' << text << '\n';
  out(line);
}

Text& seconds(Text& text, uint64_t ns) {
  constexpr uint64_t kSecond = 1'000'000'000;
  text << ns / kSecond << '.';
  for (uint64_t digit = kSecond / 10; digit != 0; digit /= 10) text << ns / digit % 10;
  return text;
}

// The name in OpenMetrics, with its unit behind it.
struct Metric {
  const char* name;
  const char* unit;
};
Metric metric_of(const Figure& figure) {
  if (figure.offset == offsetof(lane_statistics, lane_waited_us))
    return {"lane_waited_seconds", "seconds"};
  return {figure.name, ends_with(figure.name, "_bytes") ? "bytes" : nullptr};
}

void write_classes(const lane_statistics& s, const Sink& out, const char* name, const char* type,
                   const char* text, uint64_t lane_class_statistics::* member) {
  head(out, name, type, text);
  const bool is_counter = type[0] == 'c';
  for (const lane_class_statistics& row : s.classes) {
    if (row.allocations == 0 && row.slabs == 0) continue;
    Text line;
    line << "lanemalloc_" << name << (is_counter ? "_total" : "") << "{size=\"" << row.size
         << "\"} " << row.*member << '\n';
    out(line);
  }
}

void write_cells(const lane_statistics& s, const Sink& out, const Figure& figure,
                 const char* name) {
  const bool is_time = figure.offset == offsetof(lane_contention_statistics, waited_ns);
  head(out, name, "counter", figure.text, is_time ? "seconds" : nullptr);
  for_each_cell(s, [&](const lane_contention_statistics& cell) {
    Text line;
    line << "lanemalloc_" << name << "_total{at=\"" << cell.name << "\"} ";
    if (is_time) {
      seconds(line, figure.of(&cell)) << '\n';
    } else {
      line << figure.of(&cell) << '\n';
    }
    out(line);
  });
}

bool is_same(const FamilyFigures& a, const FamilyFigures& b) {
  for (size_t i = 0; i < sizeof a.name; ++i) {
    if (a.name[i] != b.name[i]) return false;
    if (a.name[i] == '\0') break;
  }
  return a.type == b.type;
}

void write_families(const FamilyList& families, const Sink& out, const Figure& figure) {
  Text name;
  name << "heap_" << figure.name << '\0';
  head(out, name.data(), "gauge", figure.text, "bytes");
  for (unsigned i = 0; i < families.count; ++i) {
    const FamilyFigures& one = families.at[i];
    bool was_before = false;
    for (unsigned j = 0; j < i; ++j) was_before = was_before || is_same(one, families.at[j]);
    if (was_before) continue;
    uint64_t sum = 0;
    for (unsigned j = i; j < families.count; ++j) {
      const uint64_t value = figure.of(&families.at[j]);
      if (is_same(one, families.at[j]) && value != FamilyFigures::kNoLimit) sum += value;
    }
    if (sum == 0 && figure.offset == offsetof(FamilyFigures, limit_bytes)) continue;
    Text line;
    line << "lanemalloc_" << name.data() << "{heap=";
    quoted(line, one.name, sizeof one.name) << ",kind=\"" << one.type << "\"} " << sum << '\n';
    out(line);
  }
}

void write_wait_times(const lane_statistics& s, const Sink& out) {
  head(out, "contention_wait_seconds", "histogram", "how long waits lasted", "seconds");
  for_each_cell(s, [&](const lane_contention_statistics& cell) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < LANE_STATS_BUCKETS; ++i) {
      sum += cell.waits_by_time[i];
      Text line;
      line << "lanemalloc_contention_wait_seconds_bucket{at=\"" << cell.name << "\",le=\"";
      if (i + 1 < LANE_STATS_BUCKETS) {
        seconds(line, uint64_t{1000} << i);
      } else {
        line << "+Inf";
      }
      line << "\"} " << sum << '\n';
      out(line);
    }
    Text line;
    line << "lanemalloc_contention_wait_seconds_count{at=\"" << cell.name << "\"} " << sum << '\n'
         << "lanemalloc_contention_wait_seconds_sum{at=\"" << cell.name << "\"} ";
    out(seconds(line, cell.waited_ns) << '\n');
  });
}

}  // namespace

const unsigned kFigureCount = sizeof kAllFigures / sizeof *kAllFigures;

const Figure& figure_at(unsigned i) { return kAllFigures[i]; }
const Figure& cell_figure_at(unsigned i) { return kOfCells[i]; }

void write_lines(const lane_statistics& s, const Sink& out) {
  Text entry;
  entry << "lanemalloc: entry: " << s.entry;
  out(entry.end());
  for (const Figure& figure : kAllFigures) {
    Text line;
    line << "lanemalloc: " << figure.text << ": " << figure.of(&s);
    out(line.end());
  }
  for (unsigned row = 1; row < LANE_STATS_PROBES; ++row) {
    if (s.probes[row] == 0) continue;
    Text line;
    line << "lanemalloc: searches of " << (row <= 4 ? "" : "up to ") << most_probes_of(row)
         << (row == 1 ? " lane: " : " lanes: ") << s.probes[row];
    out(line.end());
  }
  for_each_cell(s, [&](const lane_contention_statistics& cell) {
    if (cell.failures == 0) return;
    Text line;
    line << "lanemalloc: contention at " << cell.name << ": " << cell.failures
         << " failed tries of " << cell.count << " entries, " << cell.waits << " waits, "
         << cell.waited_ns / 1000 << " us";
    out(line.end());
  });
}

void write_json(const lane_statistics& s, const FamilyList& families, const Sink& out) {
  Text begin;
  begin << "{\"version\":" << uint64_t{s.version} << ",\"entry\":\"" << s.entry
        << "\",\"figures\":{";
  out(begin);
  const char* comma = "";
  for (const Figure& figure : kAllFigures) {
    Text text;
    out(text << comma << '"' << figure.name << "\":" << figure.of(&s));
    comma = ",";
  }
  out(Text() << "},\"probes\":[");
  for (unsigned row = 0; row < LANE_STATS_PROBES; ++row)
    out(Text() << (row == 0 ? "" : ",") << s.probes[row]);
  out(Text() << "],\"contention\":[");
  comma = "";
  for_each_cell(s, [&](const lane_contention_statistics& cell) {
    Text text;
    text << comma << "{\"at\":\"" << cell.name << '"';
    for (const Figure& figure : kOfCells) text << ",\"" << figure.name << "\":" << figure.of(&cell);
    text << ",\"waits_by_time\":[";
    for (unsigned i = 0; i < LANE_STATS_BUCKETS; ++i)
      text << (i == 0 ? "" : ",") << uint64_t{cell.waits_by_time[i]};
    out(text << "]}");
    comma = ",";
  });
  out(Text() << "],\"classes\":[");
  comma = "";
  for (const lane_class_statistics& row : s.classes) {
    if (row.allocations == 0 && row.slabs == 0) continue;
    Text text;
    text << comma << "{\"size\":" << row.size << ",\"allocations\":" << row.allocations
         << ",\"frees\":" << row.allocations - row.live << ",\"live\":" << row.live
         << ",\"in_flight\":" << row.in_flight << ",\"slabs\":" << row.slabs << '}';
    out(text);
    comma = ",";
  }
  out(Text() << "],\"heaps\":[");
  for (unsigned i = 0; i < families.count; ++i) {
    const FamilyFigures& one = families.at[i];
    Text text;
    text << (i == 0 ? "" : ",") << "{\"name\":";
    quoted(text, one.name, sizeof one.name)
        << ",\"kind\":\"" << one.type << "\",\"used_bytes\":" << one.used_bytes
        << ",\"peak_bytes\":" << one.peak_bytes << ",\"limit_bytes\":";
    if (one.limit_bytes == FamilyFigures::kNoLimit) {
      text << "null";
    } else {
      text << one.limit_bytes;
    }
    text << ",\"slab_bytes\":" << one.slab_bytes << ",\"sizes\":" << one.sizes
         << ",\"refills\":" << one.refills << ",\"contended\":" << one.contended << '}';
    out(text);
  }
  out(Text() << "],\"heaps_left_out\":" << families.left_out << "}\n");
}

void write_openmetrics(const lane_statistics& s, const FamilyList& families, const Sink& out) {
  for (const Figure& figure : kAllFigures) {
    const Metric metric = metric_of(figure);
    const bool is_counter = figure.type == kCounter;
    head(out, metric.name, is_counter ? "counter" : "gauge", figure.text, metric.unit);
    Text line;
    line << "lanemalloc_" << metric.name << (is_counter ? "_total " : " ");
    if (figure.offset == offsetof(lane_statistics, lane_waited_us)) {
      seconds(line, figure.of(&s) * 1000);
    } else {
      line << figure.of(&s);
    }
    out(line << '\n');
  }
  write_classes(s, out, "class_allocations", "counter", "allocations of a size class",
                &lane_class_statistics::allocations);
  write_classes(s, out, "class_live_objects", "gauge", "live objects of a size class",
                &lane_class_statistics::live);
  write_classes(s, out, "class_slabs", "gauge", "slabs of a size class",
                &lane_class_statistics::slabs);
  static constexpr const char* kNames[] = {"contention_entries", "contention_failures",
                                           "contention_waits", "contention_waited_seconds"};
  for (unsigned i = 0; i < sizeof kNames / sizeof *kNames; ++i)
    write_cells(s, out, kOfCells[i], kNames[i]);
  write_wait_times(s, out);
  for (const Figure& figure : kOfFamilies) write_families(families, out, figure);
  out(Text() << "# EOF\n");
}

}  // namespace lanemalloc
