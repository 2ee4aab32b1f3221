// Options: what the user may set, from "key=value,key=value". Called by: engine's start. Locking: none.
//
// A key or value that is not understood is one line on standard error that says where it came from, what is near it, and
// what is used instead; it is never ignored in silence and never fatal unless strict=1.
#pragma once

#include <signal.h>
#include <string.h>

#include "base/text.h"
#include "lane/world.h"

namespace lanemalloc {

struct Options {
  enum class OnBadPointer : uint8_t { kAbort, kReport, kIgnore };

  enum class Format : uint8_t { kText, kJson, kOpenMetrics };

  Settings settings;
  Relaxed<OnBadPointer> bad_pointer = OnBadPointer::kAbort;
  Relaxed<bool> stats_at_exit = false;
  Relaxed<uint32_t> stats_signal = 0;  // 0: none
  Relaxed<Format> stats_format = Format::kText;
  bool strict = false;
  static constexpr size_t kLongestPath = 256;
  char stats_file[kLongestPath]{};  // empty: standard error

  constexpr Options() { settings.choose_entry = true; }
};

// Reads option strings one after the other; later ones win.
class OptionReader {
 public:
  // The value of `lanes`. False, and nothing changed, if it is none.
  static bool read_lanes(const char* text, size_t length, Settings& settings) {
    const Word value{text, length};
    constexpr size_t kPrefix = 7;  // of "shared:"
    int64_t n = 0;
    bool choose = false;
    Entry entry = Entry::kOwned;
    if (value.is("percpu")) {
      entry = Entry::kPerCpu;
    } else if (value.is("auto")) {
      choose = true;
    } else if (length > kPrefix && Word{text, kPrefix}.is("shared:")) {
      n = number({text + kPrefix, length - kPrefix}, ProbeOrders::kMostLanes);
      if (n <= 0) return false;
      entry = Entry::kShared;
    } else if (value.is("shared")) {
      entry = Entry::kShared;
    } else if (!value.is("owned")) {
      return false;
    }
    settings.entry = entry;
    settings.choose_entry = choose;
    settings.shared_lanes = static_cast<uint32_t>(n);
    return true;
  }

  static void write_lanes(Text& text, const Settings& settings) {
    if (settings.choose_entry) {
      text << "auto";
    } else {
      write_entry(text, settings.entry, settings.shared_lanes);
    }
  }
  // lanes: of the pool; 0 if it has not been counted yet.
  static void write_entry(Text& text, Entry entry, uint32_t lanes) {
    text << (entry == Entry::kOwned ? "owned" : entry == Entry::kPerCpu ? "percpu" : "shared");
    if (entry == Entry::kShared && lanes != 0) text << ':' << uint64_t{lanes};
  }

  using Say = void (*)(const char* text, Bytes n);

  OptionReader(Options& options, Say say) : options_(options), say_(say) {}

  // `source` names where the string comes from.
  void read(const char* source, const char* text) {
    source_ = source;
    while (text != nullptr && *text != '\0') {
      size_t length = 0;
      while (text[length] != '\0' && text[length] != ',') ++length;
      if (length > 0) read_one(text, length);
      text += length;
      if (*text == ',') ++text;
    }
  }

  // One option. False, and nothing changed, if the value is none.
  bool set(const char* key, const char* value) {
    const unsigned before = complaints_;
    read_one(Word{key, strlen(key)}, Word{value, strlen(value)});
    return complaints_ == before;
  }

  // Null beyond the last.
  static const char* key_at(size_t i) { return i < sizeof kKeys / sizeof *kKeys ? kKeys[i] : nullptr; }
  static bool is_key(const char* text) {
    for (const char* key : kKeys)
      if (strcmp(key, text) == 0) return true;
    return false;
  }
  // The value in use, as it is read. False: no such key.
  static bool write(const Options& options, const char* text, Text& out) {
    const Settings& s = options.settings;
    const Word key{text, strlen(text)};
    if (key.is("lanes")) {
      write_lanes(out, s);
    } else if (key.is("probes")) {
      out << uint64_t{s.shared.probes};
    } else if (key.is("scan")) {
      out << (s.shared.scan_from_first ? "first" : "coprime");
    } else if (key.is("precedence")) {
      out << (s.shared.use_precedence ? 1 : 0);
    } else if (key.is("wait_on")) {
      out << (s.shared.wait_on_random ? "random" : "current");
    } else if (key.is("decay_ms")) {
      out << int64_t{s.decay_ms};
    } else if (key.is("deferred")) {
      out << uint64_t{s.deferred};
    } else if (key.is("checked")) {
      out << (s.checked ? 1 : 0);
    } else if (key.is("bad_pointer")) {
      constexpr const char* kNames[] = {"abort", "report", "ignore"};
      out << kNames[static_cast<unsigned>(Options::OnBadPointer{options.bad_pointer})];
    } else if (key.is("stats")) {
      write_stats(options, out);
    } else if (key.is("stats_format")) {
      constexpr const char* kNames[] = {"text", "json", "openmetrics"};
      out << kNames[static_cast<unsigned>(Options::Format{options.stats_format})];
    } else if (key.is("stats_file")) {
      out << options.stats_file;
    } else if (key.is("strict")) {
      out << (options.strict ? 1 : 0);
    } else {
      return false;
    }
    return true;
  }

  // Something was wrong, and strict=1 was among the options.
  bool must_stop() const { return options_.strict && complaints_ > 0; }

 private:
  struct Word {
    const char* text;
    size_t length;
    bool is(const char* other) const {
      size_t i = 0;
      for (; i < length && other[i] == text[i]; ++i) {
      }
      return i == length && other[i] == '\0';
    }
  };

  static constexpr const char* kKeys[] = {"lanes",        "probes",     "scan",    "precedence",  "wait_on",
                                          "decay_ms",     "deferred",   "checked", "bad_pointer", "stats",
                                          "stats_format", "stats_file", "strict"};
  struct Signal {
    const char* name;
    uint32_t number;
  };
  static constexpr Signal kSignals[] = {{"USR1", SIGUSR1},   {"USR2", SIGUSR2},     {"HUP", SIGHUP},
                                        {"ALRM", SIGALRM},   {"VTALRM", SIGVTALRM}, {"PROF", SIGPROF},
                                        {"WINCH", SIGWINCH}, {"URG", SIGURG}};
  static void write_stats(const Options& options, Text& out) {
    const uint32_t number = options.stats_signal;
    if (options.stats_at_exit) out << "exit";
    for (const Signal& signal : kSignals)
      if (signal.number == number) out << (options.stats_at_exit ? "+" : "") << "signal:" << signal.name;
    if (!options.stats_at_exit && number == 0) out << "none";
  }

  static constexpr int64_t kLongestDecay = int64_t{1000} * 3600 * 24;
  static constexpr int64_t kMostDeferred = 1 << 20;

  void read_one(const char* text, size_t length) {
    size_t equals = 0;
    while (equals < length && text[equals] != '=') ++equals;
    read_one(Word{text, equals}, Word{text + equals + 1, equals < length ? length - equals - 1 : 0});
  }
  void read_one(Word key, Word value) {
    SharedSettings& shared = options_.settings.shared;
    if (key.is("lanes")) {
      lanes(key, value);
    } else if (key.is("probes")) {
      probes(key, value, shared.probes);
    } else if (key.is("scan")) {
      choice(key, value, shared.scan_from_first, {"coprime", "first"}, {false, true});
    } else if (key.is("precedence")) {
      flag(key, value, shared.use_precedence);
    } else if (key.is("wait_on")) {
      choice(key, value, shared.wait_on_random, {"current", "random"}, {false, true});
    } else if (key.is("decay_ms")) {
      milliseconds(key, value, options_.settings.decay_ms);
    } else if (key.is("checked")) {
      flag(key, value, options_.settings.checked);
    } else if (key.is("deferred")) {
      count(key, value, options_.settings.deferred);
    } else if (key.is("strict")) {
      flag(key, value, options_.strict);
    } else if (key.is("stats")) {
      stats(key, value);
    } else if (key.is("stats_format")) {
      using Format = Options::Format;
      choice(key, value, options_.stats_format, {"text", "json", "openmetrics"},
             {Format::kText, Format::kJson, Format::kOpenMetrics});
    } else if (key.is("stats_file")) {
      path(key, value, options_.stats_file);
    } else if (key.is("bad_pointer")) {
      using On = Options::OnBadPointer;
      choice(key, value, options_.bad_pointer, {"abort", "report", "ignore"},
             {On::kAbort, On::kReport, On::kIgnore});
    } else {
      unknown(key);
    }
  }

  template <class Flag>
  void flag(Word key, Word value, Flag& setting) {
    choice(key, value, setting, {"0", "1"}, {false, true});
  }

  template <class Setting, class T, size_t N>
  void choice(Word key, Word value, Setting& setting, const char* const (&names)[N], const T (&values)[N]) {
    const char* in_use = "";
    for (size_t i = 0; i < N; ++i) {
      if (value.is(names[i])) {
        setting = values[i];
        return;
      }
      if (static_cast<T>(setting) == values[i]) in_use = names[i];
    }
    Text allowed;
    for (size_t i = 0; i < N; ++i) allowed << (i == 0 ? "" : i + 1 < N ? ", " : " or ") << names[i];
    bad_value(key, value, allowed, [&](Text& line) { line << in_use; });
  }

  // Decimal digits alone, at most `most`; else -1.
  static int64_t number(Word word, int64_t most) {
    int64_t result = word.length > 0 ? 0 : -1;
    for (size_t i = 0; i < word.length && result >= 0; ++i) {
      const char digit = word.text[i];
      result = digit >= '0' && digit <= '9' ? result * 10 + (digit - '0') : -1;
      if (result > most) result = -1;
    }
    return result;
  }

  void milliseconds(Word key, Word value, Relaxed<int64_t>& setting) {
    const int64_t n = number(value, kLongestDecay);
    if (n >= 0 || value.is("-1")) {
      setting = n;
      return;
    }
    Text allowed;
    allowed << "milliseconds up to " << kLongestDecay << ", or -1 for never";
    bad_value(key, value, allowed, [&](Text& line) { line << int64_t{setting}; });
  }

  void count(Word key, Word value, uint32_t& setting) {
    const int64_t n = number(value, kMostDeferred);
    if (n > 0) {
      setting = static_cast<uint32_t>(n);
      return;
    }
    Text allowed;
    allowed << "1 to " << kMostDeferred;
    bad_value(key, value, allowed, [&](Text& line) { line << uint64_t{setting}; });
  }

  void probes(Word key, Word value, Relaxed<uint32_t>& setting) {
    const int64_t n = value.is("all") ? ProbeOrders::kMostLanes : number(value, ProbeOrders::kMostLanes);
    if (n > 0) {
      setting = static_cast<uint32_t>(n);
      return;
    }
    Text allowed;
    allowed << "1 to " << uint64_t{ProbeOrders::kMostLanes} << ", or all";
    bad_value(key, value, allowed, [&](Text& line) { line << uint64_t{setting}; });
  }

  // "exit", "signal:USR2", or both with a + between them.
  void stats(Word key, Word value) {
    bool at_exit = false, is_good = true;
    uint32_t number = 0;
    for (size_t from = 0, to; from <= value.length && is_good; from = to + 1) {
      for (to = from; to < value.length && value.text[to] != '+';) ++to;
      const Word part{value.text + from, to - from};
      at_exit |= part.is("exit");
      is_good =
          part.is("exit") || signal_of(part, number) || (part.is("none") && part.length == value.length);
    }
    if (is_good) {
      options_.stats_at_exit = at_exit;
      options_.stats_signal = number;
      return;
    }
    Text allowed;
    allowed << "none, exit, signal:NAME or exit+signal:NAME, of";
    for (const Signal& signal : kSignals) allowed << ' ' << signal.name;
    bad_value(key, value, allowed, [&](Text& line) { write_stats(options_, line); });
  }
  static bool signal_of(Word part, uint32_t& number) {
    constexpr size_t kPrefix = 7;  // of "signal:"
    if (part.length <= kPrefix || !Word{part.text, kPrefix}.is("signal:")) return false;
    for (const Signal& signal : kSignals) {
      if (!Word{part.text + kPrefix, part.length - kPrefix}.is(signal.name)) continue;
      number = signal.number;
      return true;
    }
    return false;
  }

  void path(Word key, Word value, char (&setting)[Options::kLongestPath]) {
    if (value.length < sizeof setting) {
      memcpy(setting, value.text, value.length);
      setting[value.length] = '\0';
      return;
    }
    Text allowed;
    allowed << "a path of at most " << uint64_t{sizeof setting - 1} << " characters";
    bad_value(key, value, allowed, [&](Text& line) { line << '\'' << setting << '\''; });
  }

  void lanes(Word key, Word value) {
    if (read_lanes(value.text, value.length, options_.settings)) return;
    Text allowed;
    allowed << "owned, shared, shared:N with N up to " << uint64_t{ProbeOrders::kMostLanes}
            << ", percpu or auto";
    bad_value(key, value, allowed, [&](Text& line) { write_lanes(line, options_.settings); });
  }

  template <class InUse>
  void bad_value(Word key, Word value, const Text& allowed, InUse in_use) {
    Text line = begin("bad value '", value);
    line << "' for '";
    line.add(key.text, key.length) << "' (";
    line.add(allowed.data(), allowed.size()) << "), using ";
    in_use(line);
    complain(line);
  }

  void unknown(Word key) {
    Text line = begin("unknown option '", key);
    line << "' (did you mean '" << nearest(key) << "'?), ignored";
    complain(line);
  }

  Text begin(const char* what, Word word) const {
    Text line;
    line << "lanemalloc: " << source_ << ": " << what;
    line.add(word.text, word.length < kShown ? word.length : kShown);
    return line;
  }

  void complain(Text& line) {
    ++complaints_;
    line.end();
    say_(line.data(), line.size());
  }

  // The key with the smallest edit distance.
  static const char* nearest(Word word) {
    const char* best = kKeys[0];
    size_t least = ~size_t{0};
    for (const char* key : kKeys) {
      // Of two that are as near, the one with the same first letter.
      const size_t d = distance(word, key) * 2 + (word.length > 0 && word.text[0] == *key ? 0 : 1);
      if (d < least) {
        least = d;
        best = key;
      }
    }
    return best;
  }

  static size_t distance(Word word, const char* key) {
    constexpr size_t kMost = 32;
    const size_t n = word.length < kMost ? word.length : kMost;
    size_t row[kMost + 1];
    for (size_t i = 0; i <= n; ++i) row[i] = i;
    for (size_t j = 1; key[j - 1] != '\0'; ++j) {
      size_t diagonal = row[0];
      row[0] = j;
      for (size_t i = 1; i <= n; ++i) {
        const size_t replace = diagonal + (word.text[i - 1] != key[j - 1] ? 1 : 0);
        diagonal = row[i];
        const size_t shorter = row[i - 1] < row[i] ? row[i - 1] : row[i];
        row[i] = replace < shorter + 1 ? replace : shorter + 1;
      }
    }
    return row[n];
  }

  static constexpr size_t kShown = 64;

  Options& options_;
  Say say_;
  const char* source_ = "";
  unsigned complaints_ = 0;
};

}  // namespace lanemalloc
