// A line of text in a fixed buffer, made without malloc, locale or errno. A line that is too long
// is cut. Async-signal-safe.
// Called by: messages to the user, statistics.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lanemalloc {

class Text {
 public:
  Text& operator<<(const char* s) {
    while (*s != '\0') put(*s++);
    return *this;
  }
  Text& operator<<(char c) {
    put(c);
    return *this;
  }
  Text& operator<<(uint64_t value) { return number(value, 10); }
  Text& operator<<(int64_t value) {
    if (value >= 0) return number(static_cast<uint64_t>(value), 10);
    put('-');
    return number(uint64_t{0} - static_cast<uint64_t>(value), 10);
  }
  Text& operator<<(int value) { return *this << static_cast<int64_t>(value); }
  Text& operator<<(const void* pointer) {
    *this << "0x";
    return number(reinterpret_cast<uintptr_t>(pointer), 16);
  }
  // Adds at most n characters of s, which a user may have written: what could move a terminal's
  // cursor becomes '?'.
  Text& add(const char* s, size_t n) {
    for (size_t i = 0; i < n && s[i] != '\0'; ++i) {
      const auto byte = static_cast<unsigned char>(s[i]);
      put(byte < ' ' || byte == 127 ? '?' : s[i]);
    }
    return *this;
  }
  // Ends the line. A line that was cut still ends with a newline.
  Text& end() {
    if (used_ == kRoom) --used_;
    put('\n');
    return *this;
  }
  const char* data() const { return buffer_; }
  size_t size() const { return used_; }

 private:
  static constexpr size_t kRoom = 400;

  void put(char c) {
    if (used_ < kRoom) buffer_[used_++] = c;
  }
  Text& number(uint64_t value, unsigned base) {
    char digits[20];
    size_t n = 0;
    do digits[n++] = "0123456789abcdef"[value % base];
    while ((value /= base) != 0);
    while (n > 0) put(digits[--n]);
    return *this;
  }

  size_t used_ = 0;
  char buffer_[kRoom];
};

}  // namespace lanemalloc
