// Figures: what was counted, at the moment when they are made. Called by: the other files of abi/.
// Locking: none; safe in handlers.
#pragma once

#include "process/process.h"

namespace lanemalloc {

// Figures lie in one of a few static places, since they are too large for the stack of a handler.
class Figures {
 public:
  Figures();
  Figures(const Figures&) = delete;
  ~Figures();

  // False: the allocator could not start, and all figures are 0
  explicit operator bool() const { return is_good_; }
  const Statistics& operator*() const;

  // In a fork child: the threads that had places are not in this process.
  static void forget_in_child();

 private:
  void* place_;
  bool is_good_ = false;
};

// The options in use as text, for readers outside the process.
extern char options_text[1024];
void write_options();
// Sets an option while the process runs. Returns what lane_set() returns
// (include/lanemalloc/stats.h).
int set_process_option(const char* key, const char* value);

// Does what the options say about samples. Not for handlers, since it may load a library.
void start_sampling();

// Writes the profiles that the options ask for when the process ends.
void write_profiles_at_end();

// Writes the figures to the file, and in the format, that the options name.
void report_figures();
// Makes a signal do that, instead of the signal before; 0: no signal. Returns 0 if done. EBUSY: the
// signal is ignored, or the program has a handler for it, and nothing has changed. ENOTSUP: the
// system refused.
int watch_signal(uint32_t number);

}  // namespace lanemalloc
