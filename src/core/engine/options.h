// Options: what the user may set, from "key=value,key=value". Called by: engine's start. Locking:
// none.
//
// A key or value that is not understood is reported in one line on standard error. The line says
// where the key or value came from, what is near it, and what is used instead. Such a key or value
// is never ignored in silence, and never fatal unless strict=1.
#pragma once

#include <string.h>

#include "core/base/text.h"
#include "core/lane/world.h"
#include "seeing/seeing_options.h"

namespace lanemalloc {

struct Options {
  enum class OnBadPointer : uint8_t { kAbort, kReport, kIgnore };

  Settings settings;
  Relaxed<OnBadPointer> bad_pointer = OnBadPointer::kAbort;
  bool strict = false;
  SeeingOptions seeing;
};

// Reads option strings one after the other; later ones win.
class OptionReader {
 public:
  // Reads the value of `lanes`. False if it is not one; then nothing has changed.
  static bool read_lanes(const char* text, size_t length, Settings& settings) {
    const Word value{text, length};
    constexpr size_t kPrefix = 7;  // the length of "shared:"
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
  // lanes: how many the pool has; 0 if they have not been counted yet.
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

  // Sets one option. False if the key has no such value; then nothing has changed.
  bool set(const char* key, const char* value) {
    const unsigned before = complaints_;
    read_one(Word{key, strlen(key)}, Word{value, strlen(value)});
    return complaints_ == before;
  }

  // The key at this place; null beyond the last.
  static const char* key_at(size_t i) {
    if (i < kOwnKeys) return kKeys[i];
    return i < kOwnKeys + kSeeingKeys ? SeeingOptions::kKeys[i - kOwnKeys] : nullptr;
  }
  // Writes the value in use, in the form in which it is read. False: no such key.
  static bool write(const Options& options, const char* key, Text& out) {
    Options copy = options;
    return visit(copy, Word{key, strlen(key)}, Writer{out});
  }

  // True if something was wrong and strict=1 was among the options.
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

  static constexpr const char* kKeys[] = {"lanes",   "probes",      "scan",       "precedence",
                                          "wait_on", "decay_ms",    "huge_pages", "deferred",
                                          "checked", "bad_pointer", "strict"};
  static constexpr size_t kOwnKeys = sizeof kKeys / sizeof *kKeys;
  static constexpr size_t kSeeingKeys = sizeof SeeingOptions::kKeys / sizeof *SeeingOptions::kKeys;
  static constexpr int64_t kLongestDecay = int64_t{1000} * 3600 * 24;
  static constexpr int64_t kMostDeferred = 1 << 20;

  void read_one(const char* text, size_t length) {
    size_t equals = 0;
    while (equals < length && text[equals] != '=') ++equals;
    read_one(Word{text, equals},
             Word{text + equals + 1, equals < length ? length - equals - 1 : 0});
  }
  void read_one(Word key, Word value) {
    if (!visit(options_, key, Parser{*this, key, value})) unknown(key);
  }

  // All options, with the values that they may have. False: no such key.
  template <class Action>
  static bool visit(Options& o, Word key, Action action) {
    using On = Options::OnBadPointer;
    Settings& s = o.settings;
    constexpr const char* kFlag[] = {"0", "1"};
    constexpr bool kBoth[] = {false, true};
    if (key.is("lanes")) {
      action.lanes(s);
    } else if (key.is("probes")) {
      action.number(s.shared.probes, 1, ProbeOrders::kMostLanes, ", or all", "all",
                    ProbeOrders::kMostLanes);
    } else if (key.is("scan")) {
      action.choice(s.shared.scan_from_first, {"coprime", "first"}, kBoth);
    } else if (key.is("precedence")) {
      action.choice(s.shared.use_precedence, kFlag, kBoth);
    } else if (key.is("wait_on")) {
      action.choice(s.shared.wait_on_random, {"current", "random"}, kBoth);
    } else if (key.is("decay_ms")) {
      action.number(s.decay_ms, 0, kLongestDecay, " milliseconds, or -1 for never", "-1", -1);
    } else if (key.is("huge_pages")) {
      action.choice(s.huge_pages, {"off", "auto", "on"},
                    {HugePages::kOff, HugePages::kAuto, HugePages::kOn});
    } else if (key.is("deferred")) {
      action.number(s.deferred, 1, kMostDeferred);
    } else if (key.is("checked")) {
      action.choice(s.checked, kFlag, kBoth);
    } else if (key.is("bad_pointer")) {
      action.choice(o.bad_pointer, {"abort", "report", "ignore"},
                    {On::kAbort, On::kReport, On::kIgnore});
    } else if (key.is("strict")) {
      action.choice(o.strict, kFlag, kBoth);
    } else {
      return SeeingOptions::visit(o.seeing, key, action);
    }
    return true;
  }

  // Writes the value in use.
  struct Writer {
    Text& out;

    template <class Setting, class T, size_t N>
    void choice(Setting& setting, const char* const (&names)[N], const T (&values)[N]) {
      for (size_t i = 0; i < N; ++i)
        if (static_cast<T>(setting) == values[i]) out << names[i];
    }
    template <class Setting, class... Rest>
    void number(Setting& setting, Rest...) {
      out << static_cast<int64_t>(setting);
    }
    void lanes(Settings& settings) { write_lanes(out, settings); }
    template <class Option>
    void own(const Option& option) {
      option.write(out);
    }
    void path(const char* setting) { out << setting; }
  };

  // Reads a value.
  struct Parser {
    OptionReader& reader;
    Word key, value;

    template <class Setting, class T, size_t N>
    void choice(Setting& setting, const char* const (&names)[N], const T (&values)[N]) {
      for (size_t i = 0; i < N; ++i) {
        if (!value.is(names[i])) continue;
        setting = values[i];
        return;
      }
      Text allowed;
      for (size_t i = 0; i < N; ++i)
        allowed << (i == 0 ? "" : i + 1 < N ? ", " : " or ") << names[i];
      refuse(allowed);
    }
    // A number from `least` to `most`, or a word that stands for a number of its own.
    template <class Setting>
    void number(Setting& setting, int64_t least, int64_t most, const char* more = "",
                const char* word = nullptr, int64_t meaning = 0) {
      const bool is_word = word != nullptr && value.is(word);
      const int64_t n = is_word ? meaning : OptionReader::number(value, most);
      if (is_word || n >= least) {
        setting = static_cast<decltype(setting + 0)>(n);
        return;
      }
      Text allowed;
      allowed << least << " to " << most << more;
      refuse(allowed);
    }
    void lanes(Settings& settings) {
      if (read_lanes(value.text, value.length, settings)) return;
      Text allowed;
      allowed << "owned, shared, shared:N with N up to " << uint64_t{ProbeOrders::kMostLanes}
              << ", percpu or auto";
      refuse(allowed);
    }
    template <class Option>
    void own(Option& option) {
      if (option.read(value.text, value.length)) return;
      Text allowed;
      Option::write_allowed(allowed);
      refuse(allowed);
    }
    void path(char (&setting)[SeeingOptions::kLongestPath]) {
      if (value.length < sizeof setting) {
        memcpy(setting, value.text, value.length);
        setting[value.length] = '\0';
        return;
      }
      Text allowed;
      allowed << "a path of at most " << uint64_t{sizeof setting - 1} << " characters";
      refuse(allowed);
    }

   private:
    void refuse(const Text& allowed) { reader.bad_value(key, value, allowed); }
  };

  // Reads decimal digits alone, at most `most`; returns -1 for anything else.
  static int64_t number(Word word, int64_t most) {
    int64_t result = word.length > 0 ? 0 : -1;
    for (size_t i = 0; i < word.length && result >= 0; ++i) {
      const char digit = word.text[i];
      result = digit >= '0' && digit <= '9' ? result * 10 + (digit - '0') : -1;
      if (result > most) result = -1;
    }
    return result;
  }

  void bad_value(Word key, Word value, const Text& allowed) {
    Text line = begin("bad value '", value);
    line << "' for '";
    line.add(key.text, key.length) << "' (";
    line.add(allowed.data(), allowed.size()) << "), using ";
    visit(options_, key, Writer{line});
    complain(line);
  }

  void unknown(Word key) {
    Text line = begin("unknown option '", key);
    line << "'";
    if (const char* meant = nearest(key)) line << " (did you mean '" << meant << "'?)";
    line << ", ignored";
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

  // The key with the smallest edit distance; null if no key keeps a character of the word.
  static const char* nearest(Word word) {
    const char* best = nullptr;
    size_t least = word.length * 2;
    for (size_t i = 0; const char* key = key_at(i); ++i) {
      // If two keys are equally near, the one with the same first letter wins.
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
