// The functions that tell and set how threads enter lanes, while the process runs. Public
// declarations: include/lanemalloc/lanemalloc.h.
#include <errno.h>
#include <string.h>

#include "process/figures.h"

using namespace lanemalloc;

extern "C" {

EXPORT size_t lane_entry(char* text, size_t size) {
  Text entry;
  if (start_process()) {
    OptionReader::write_entry(entry, process_engine.entry(),
                              process_engine.world().lanes.orders().lanes());
  }
  if (size > 0) {
    const size_t n = entry.size() < size - 1 ? entry.size() : size - 1;
    memcpy(text, entry.data(), n);
    text[n] = '\0';
  }
  return entry.size();
}

EXPORT int lane_set_entry(const char* lanes) { return set_process_option("lanes", lanes); }

}  // extern "C"
