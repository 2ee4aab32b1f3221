// Figures: what was counted, at the moment of their making. Called by: the other files of abi/.
// Locking: none; safe in handlers.
#pragma once

#include "abi/process.h"

namespace lanemalloc {

// They lie in one of a few places set aside, since they are too large for the stack of a handler.
class Figures {
 public:
  Figures();
  Figures(const Figures&) = delete;
  ~Figures();

  // Else the allocator could not start, and all are 0
  explicit operator bool() const { return is_good_; }
  const Statistics& operator*() const;

  // In a fork child: who had a place is not here.
  static void forget_in_child();

 private:
  void* place_;
  bool is_good_ = false;
};

// The options in use as text, for readers outside.
extern char options_text[1024];
void write_options();
// Sets one while the process runs: as lane_set() returns it (include/lanemalloc/stats.h).
int set_process_option(const char* key, const char* value);

// Does what the options say of samples. Not in handlers: it may load a library.
void start_sampling();

// What the options ask for when the process ends.
void write_profiles_at_end();

// Writes the figures where the options say, as they say.
void report_figures();
// Has a signal do that, in place of the one before; 0: none. Returns 0; EBUSY, and nothing has
// changed: the signal is ignored, or the program has a handler for it; ENOTSUP: the system refused.
int watch_signal(uint32_t number);

}  // namespace lanemalloc
