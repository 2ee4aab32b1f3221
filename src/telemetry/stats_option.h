// StatsOption: when a process writes its figures by itself: the value of the option `stats`. Called by: engine/options.h. Locking: none.
#pragma once

#include <signal.h>

#include "base/atomics.h"
#include "base/text.h"

namespace lanemalloc {

// "none", "exit", "signal:USR2", or both with a + between them.
struct StatsOption {
  Relaxed<bool> at_exit = false;
  Relaxed<uint32_t> signal = 0;  // 0: none

  // False: that is no value, and nothing has changed.
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
  // Those that programs use least. uint32_t, as 0 is none.
  struct Signal {
    const char* name;
    uint32_t number;
  };
  static constexpr Signal kSignals[] = {{"USR1", SIGUSR1},   {"USR2", SIGUSR2},     {"HUP", SIGHUP},
                                        {"ALRM", SIGALRM},   {"VTALRM", SIGVTALRM}, {"PROF", SIGPROF},
                                        {"WINCH", SIGWINCH}, {"URG", SIGURG}};

  static bool is(const char* text, size_t length, const char* word) {
    size_t i = 0;
    while (i < length && word[i] == text[i]) ++i;
    return i == length && word[i] == '\0';
  }
  bool read_signal(const char* text, size_t length) {
    constexpr size_t kPrefix = 7;  // of "signal:"
    if (length <= kPrefix || !is(text, kPrefix, "signal:")) return false;
    for (const Signal& s : kSignals)
      if (is(text + kPrefix, length - kPrefix, s.name)) signal = s.number;
    return signal != 0;
  }
};

}  // namespace lanemalloc
