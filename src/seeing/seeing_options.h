// SeeingOptions: what a process writes about itself, and what it samples. Called by:
// core/engine/options.h. Locking: none.
#pragma once

#include <signal.h>

#include "core/base/atomics.h"
#include "core/base/text.h"

namespace lanemalloc {

// When figures are written: "none", "exit", "signal:USR2", or both with a + between them.
struct StatsOption {
  Relaxed<bool> at_exit = false;
  Relaxed<uint32_t> signal = 0;  // 0: none

  // False: the text is no value, and nothing has changed.
  bool read(const char* text, size_t length) {
    StatsOption wanted;
    const bool is_none = is(text, length, "none");
    for (size_t from = 0, to; from <= length && !is_none; from = to + 1) {
      for (to = from; to < length && text[to] != '+';) ++to;
      if (is(text + from, to - from, "exit")) {
        wanted.at_exit = true;
      } else if (!wanted.read_signal(text + from, to - from)) {
        return false;
      }
    }
    *this = wanted;
    return true;
  }
  void write(Text& out) const {
    if (at_exit) out << "exit";
    for (const Signal& s : kSignals)
      if (s.number == signal) out << (at_exit ? "+" : "") << "signal:" << s.name;
    if (!at_exit && signal == 0) out << "none";
  }
  static void write_allowed(Text& out) {
    out << "none, exit, signal:NAME or exit+signal:NAME, of";
    for (const Signal& s : kSignals) out << ' ' << s.name;
  }

 private:
  // The signals that programs use least. Numbers are uint32_t, since 0 is none.
  struct Signal {
    const char* name;
    uint32_t number;
  };
  static constexpr Signal kSignals[] = {
      {"USR1", SIGUSR1},     {"USR2", SIGUSR2}, {"HUP", SIGHUP},     {"ALRM", SIGALRM},
      {"VTALRM", SIGVTALRM}, {"PROF", SIGPROF}, {"WINCH", SIGWINCH}, {"URG", SIGURG}};

  static bool is(const char* text, size_t length, const char* word) {
    size_t i = 0;
    while (i < length && word[i] == text[i]) ++i;
    return i == length && word[i] == '\0';
  }
  bool read_signal(const char* text, size_t length) {
    constexpr size_t kPrefix = 7;  // length of "signal:"
    if (length <= kPrefix || !is(text, kPrefix, "signal:")) return false;
    for (const Signal& s : kSignals)
      if (is(text + kPrefix, length - kPrefix, s.name)) signal = s.number;
    return signal != 0;
  }
};

// A number of bytes: "524288" or "512k".
struct BytesOption {
  static constexpr uint64_t kMost = uint64_t{1} << 40;

  Relaxed<uint64_t> bytes = 0;

  bool read(const char* text, size_t length) {
    constexpr char kUnits[] = "kmg";
    unsigned shift = 0;
    for (unsigned i = 0; i < 3 && length > 1; ++i)
      if ((text[length - 1] | 0x20) == kUnits[i]) shift = (i + 1) * 10;
    uint64_t n = 0;
    for (size_t i = 0; i < length - (shift != 0 ? 1 : 0); ++i) {
      if (text[i] < '0' || text[i] > '9' || n > kMost) return false;
      n = n * 10 + static_cast<uint64_t>(text[i] - '0');
    }
    if (length == 0 || n > kMost >> shift) return false;
    bytes = n << shift;
    return true;
  }
  void write(Text& out) const { out << uint64_t{bytes}; }
  static void write_allowed(Text& out) {
    out << "bytes up to 1024g, with k, m or g behind the number, or 0 for none";
  }
};

struct SeeingOptions {
  enum class Format : uint8_t { kText, kJson, kOpenMetrics };
  static constexpr size_t kLongestPath = 256;
  static constexpr int64_t kLongestWait = 1'000'000'000;

  StatsOption stats;
  Relaxed<Format> stats_format = Format::kText;
  char stats_file[kLongestPath]{};  // empty: standard error
  BytesOption sample;               // bytes between two samples, on average
  Relaxed<uint64_t> sample_wait_ns = 10'000;
  Relaxed<bool> unwind_by_frames = false;
  Relaxed<bool> profile_at_exit = false;
  char profile_file[kLongestPath] = "lanemalloc.%p.%k.pb";
  Relaxed<bool> leaks = false;

  static constexpr const char* kKeys[] = {"stats",   "stats_format",   "stats_file",
                                          "sample",  "sample_wait_ns", "unwind",
                                          "profile", "profile_file",   "leaks"};

  // The same as OptionReader::visit().
  template <class Word, class Action>
  static bool visit(SeeingOptions& o, Word key, Action action) {
    constexpr bool kBoth[] = {false, true};
    if (key.is("stats")) {
      action.own(o.stats);
    } else if (key.is("stats_format")) {
      action.choice(o.stats_format, {"text", "json", "openmetrics"},
                    {Format::kText, Format::kJson, Format::kOpenMetrics});
    } else if (key.is("stats_file")) {
      action.path(o.stats_file);
    } else if (key.is("sample")) {
      action.own(o.sample);
    } else if (key.is("sample_wait_ns")) {
      action.number(o.sample_wait_ns, 0, kLongestWait);
    } else if (key.is("unwind")) {
      action.choice(o.unwind_by_frames, {"tables", "frames"}, kBoth);
    } else if (key.is("profile")) {
      action.choice(o.profile_at_exit, {"none", "exit"}, kBoth);
    } else if (key.is("profile_file")) {
      action.path(o.profile_file);
    } else if (key.is("leaks")) {
      action.choice(o.leaks, {"0", "1"}, kBoth);
    } else {
      return false;
    }
    return true;
  }
};

}  // namespace lanemalloc
