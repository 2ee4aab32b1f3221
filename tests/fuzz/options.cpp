// Fuzzing: the text of options. What cannot be understood is said in lines, each cut to its room,
// and the options keep values that they may have.
// Called by: run.sh.
#include "core/engine/options.h"

#include <string>

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lanemalloc;
  static std::string said;
  said.clear();
  Options options;
  OptionReader reader{options, [](const char* text, Bytes n) { said.append(text, n); }};
  const std::string text(reinterpret_cast<const char*>(data), size);
  reader.read("LANEMALLOC_OPTIONS", text.c_str());
  fuzz::require(said.empty() || said.back() == '\n', "a line does not end");
  for (const char c : said)
    fuzz::require(c == 0x0A || (static_cast<unsigned char>(c) >= 0x20 && c != 127),
                  "a control character");
  // Read again, they say the same.
  const std::string before = said;
  said.clear();
  Options again;
  OptionReader{again, [](const char* t, Bytes n) { said.append(t, n); }}.read("LANEMALLOC_OPTIONS",
                                                                              text.c_str());
  fuzz::require(said == before, "the same text is read in another way");
  return 0;
}
