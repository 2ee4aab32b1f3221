// Runs a fuzzed function over files, without a fuzzer. Usage: PROGRAM FILE.. Called by: run.py.
#include <cstdint>
#include <cstdio>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int count, char** names) {
  for (int i = 1; i < count; ++i) {
    FILE* file = fopen(names[i], "rb");
    if (file == nullptr) {
      perror(names[i]);
      return 2;
    }
    std::vector<uint8_t> bytes;
    for (int byte; (byte = fgetc(file)) != EOF;) bytes.push_back(static_cast<uint8_t>(byte));
    fclose(file);
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  return 0;
}
