// What the fuzzed programs share: the input as numbers, and what ends a run that has found a fault.
// Called by: tests/fuzz/*.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace fuzz {

// Zeros follow the input's end.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}
  bool is_empty() const { return at_ == end_; }
  uint8_t byte() { return is_empty() ? uint8_t{0} : *at_++; }
  uint16_t two_bytes() { return static_cast<uint16_t>(byte() | byte() << 8); }
  uint64_t eight_bytes() {
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value |= uint64_t{byte()} << (8 * i);
    return value;
  }
  size_t below(size_t n) { return n > 256 ? two_bytes() % n : byte() % n; }
  bool flag() { return (byte() & 1) != 0; }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
};

// The fuzzer keeps the input of a run that aborts.
inline void require(bool good, const char* what) {
  if (good) return;
  fprintf(stderr, "fuzz: %s\n", what);
  abort();
}

}  // namespace fuzz
