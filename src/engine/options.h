// Options: what the user may set, from "key=value,key=value". Called by: engine's start. Locking: none.
//
// A key or value that is not understood is one line on standard error that says where it came from, what is near it, and
// what is used instead; it is never ignored in silence and never fatal unless strict=1.
#pragma once

#include "base/text.h"
#include "lane/world.h"

namespace lanemalloc {

struct Options {
  enum class OnBadPointer : uint8_t { kAbort, kReport, kIgnore };

  Settings settings;
  OnBadPointer bad_pointer = OnBadPointer::kAbort;
  bool stats_at_exit = false;
  bool strict = false;
};

// Reads option strings one after the other; later ones win.
class OptionReader {
 public:
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

  static constexpr const char* kKeys[] = {"decay_ms", "checked", "bad_pointer", "stats", "strict"};
  static constexpr int64_t kLongestDecay = int64_t{1000} * 3600 * 24;

  void read_one(const char* text, size_t length) {
    size_t equals = 0;
    while (equals < length && text[equals] != '=') ++equals;
    const Word key{text, equals};
    const Word value{text + equals + 1, equals < length ? length - equals - 1 : 0};
    if (key.is("decay_ms")) {
      number(key, value, options_.settings.decay_ms);
    } else if (key.is("checked")) {
      flag(key, value, options_.settings.checked);
    } else if (key.is("strict")) {
      flag(key, value, options_.strict);
    } else if (key.is("stats")) {
      choice(key, value, options_.stats_at_exit, {"none", "exit"}, {false, true});
    } else if (key.is("bad_pointer")) {
      using On = Options::OnBadPointer;
      choice(key, value, options_.bad_pointer, {"abort", "report", "ignore"},
             {On::kAbort, On::kReport, On::kIgnore});
    } else {
      unknown(key);
    }
  }

  void flag(Word key, Word value, bool& setting) { choice(key, value, setting, {"0", "1"}, {false, true}); }

  template <class T, size_t N>
  void choice(Word key, Word value, T& setting, const char* const (&names)[N], const T (&values)[N]) {
    const char* in_use = "";
    for (size_t i = 0; i < N; ++i) {
      if (value.is(names[i])) {
        setting = values[i];
        return;
      }
      if (setting == values[i]) in_use = names[i];
    }
    Text allowed;
    for (size_t i = 0; i < N; ++i) allowed << (i == 0 ? "" : i + 1 < N ? ", " : " or ") << names[i];
    bad_value(key, value, allowed, [&](Text& line) { line << in_use; });
  }

  void number(Word key, Word value, int64_t& setting) {
    const bool negative = value.length > 0 && value.text[0] == '-';
    int64_t result = 0;
    bool good = value.length > (negative ? 1u : 0u);
    for (size_t i = negative ? 1 : 0; good && i < value.length; ++i) {
      good = value.text[i] >= '0' && value.text[i] <= '9';
      if (good) result = result * 10 + (value.text[i] - '0');
      good = good && result <= kLongestDecay;
    }
    if (good && (!negative || result == 1)) {
      setting = negative ? -1 : result;
      return;
    }
    Text allowed;
    allowed << "milliseconds up to " << kLongestDecay << ", or -1 for never";
    bad_value(key, value, allowed, [&](Text& line) { line << setting; });
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
      const size_t d = distance(word, key);
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
