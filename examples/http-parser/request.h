// Request: an HTTP/1.1 request, parsed into pieces of memory that are given back together: its
// method, path, query parameters and headers, decoded and zero-terminated. The Memory decides where
// pieces come from: an arena, or malloc.
// Called by: server.cpp. Threads: one at a time.
#pragma once

#include <lanemalloc/arena.h>

#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

// Takes pieces of an arena, at eight instructions each. One reset gives them all back, and keeps a
// block for the next request.
class ArenaMemory {
 public:
  ArenaMemory() = default;
  ArenaMemory(const ArenaMemory&) = delete;
  ~ArenaMemory() { lane_arena_destroy(&arena_); }
  void* take(size_t size) { return lane_arena_alloc(&arena_, size); }
  void give_all() { lane_arena_reset(&arena_); }

 private:
  lane_arena arena_{};
};

// The same by malloc and free, with one call for each piece.
class MallocMemory {
 public:
  MallocMemory() = default;
  MallocMemory(const MallocMemory&) = delete;
  ~MallocMemory() { give_all(); }
  void* take(size_t size) {
    auto* piece = static_cast<Piece*>(std::malloc(sizeof(Piece) + size));
    if (piece == nullptr) return nullptr;
    piece->older = newest_;
    newest_ = piece;
    return piece + 1;
  }
  void give_all() {
    while (newest_ != nullptr) std::free(std::exchange(newest_, newest_->older));
  }

 private:
  struct alignas(16) Piece {
    Piece* older;
  };
  Piece* newest_ = nullptr;
};

// The result of a parse, numbered as the status of the answer.
enum class Parsed {
  kPartly = 0,
  kWhole = 200,
  kBad = 400,
  kTooLarge = 431,
  kNotSupported = 501,
  kNoMemory = 503,
  kVersion = 505
};

struct Field {
  Field* next;
  const char* name;
  const char* value;
};

template <class Memory>
class Request {
 public:
  static constexpr size_t kMostHead = 64 << 10;

  explicit Request(Memory& memory) : memory_(memory) {}

  // Parses a request at the start of `input`. kPartly: the request is not complete yet. kWhole:
  // `taken` says how long it was.
  Parsed parse(std::string_view input, size_t& taken) {
    const size_t end = input.find("\r\n\r\n");
    if (end == input.npos) return input.size() > kMostHead ? Parsed::kTooLarge : Parsed::kPartly;
    if (end > kMostHead) return Parsed::kTooLarge;
    taken = end + 4;
    std::string_view head = input.substr(0, end + 2);
    if (Parsed result = parse_line(cut(head, "\r\n")); result != Parsed::kWhole) return result;
    Field** last = &headers;
    while (!head.empty())
      if (Parsed result = parse_header(cut(head, "\r\n"), last); result != Parsed::kWhole)
        return result;
    return Parsed::kWhole;
  }

  const char* header(std::string_view name) const { return find(headers, name); }
  const char* parameter(std::string_view name) const { return find(parameters, name); }

  const char* method = nullptr;
  const char* path = nullptr;
  Field* parameters = nullptr;
  Field* headers = nullptr;  // names in lower case
  bool keeps_alive = true;

 private:
  // Returns the text before the mark; `text` keeps what lies behind the mark.
  static std::string_view cut(std::string_view& text, std::string_view mark) {
    const size_t at = text.find(mark);
    std::string_view first = text.substr(0, at);
    text.remove_prefix(at == text.npos ? text.size() : at + mark.size());
    return first;
  }
  static bool is_token(std::string_view text) {
    for (char c : text)
      if (c <= ' ' || c >= 127 || std::strchr("\"(),/:;<=>?@[\\]{}", c) != nullptr) return false;
    return !text.empty();
  }
  static const char* find(const Field* field, std::string_view name) {
    while (field != nullptr && field->name != name) field = field->next;
    return field == nullptr ? nullptr : field->value;
  }
  static int digit_of(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c = static_cast<char>(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  }

  char* copy(std::string_view text) {
    auto* piece = static_cast<char*>(memory_.take(text.size() + 1));
    if (piece == nullptr) return nullptr;
    text.copy(piece, text.size());
    piece[text.size()] = '\0';
    return piece;
  }
  // Decodes %XX and +. Returns null with `bad` set if XX are not two digits.
  char* decode(std::string_view text, bool plus_is_space, bool& bad) {
    char* piece = copy(text);
    if (piece == nullptr) return nullptr;
    char* to = piece;
    for (size_t i = 0; i < text.size(); ++i) {
      char c = text[i];
      if (c == '%') {
        const bool has_digits = i + 2 < text.size();
        const int high = has_digits ? digit_of(text[i + 1]) : -1;
        const int low = has_digits ? digit_of(text[i + 2]) : -1;
        if (high < 0 || low < 0) return bad = true, nullptr;
        c = static_cast<char>(high * 16 + low);
        i += 2;
      } else if (c == '+' && plus_is_space) {
        c = ' ';
      }
      *to++ = c;
    }
    *to = '\0';
    return piece;
  }
  Parsed add(Field**& last, const char* name, const char* value, bool bad) {
    auto* field = static_cast<Field*>(memory_.take(sizeof(Field)));
    if (field == nullptr || name == nullptr || value == nullptr)
      return bad ? Parsed::kBad : Parsed::kNoMemory;
    *field = {nullptr, name, value};
    *last = field;
    last = &field->next;
    return Parsed::kWhole;
  }

  // METHOD SP target SP HTTP/1.x
  Parsed parse_line(std::string_view line) {
    const std::string_view name = cut(line, " ");
    std::string_view target = cut(line, " ");
    if (!is_token(name) || target.empty() || target[0] != '/') return Parsed::kBad;
    if (line != "HTTP/1.1" && line != "HTTP/1.0")
      return line.substr(0, 5) == "HTTP/" ? Parsed::kVersion : Parsed::kBad;
    keeps_alive = line == "HTTP/1.1";
    bool bad = false;
    method = copy(name);
    path = decode(cut(target, "?"), false, bad);
    if (method == nullptr || path == nullptr) return bad ? Parsed::kBad : Parsed::kNoMemory;
    Field** last = &parameters;
    while (!target.empty()) {
      std::string_view value = cut(target, "&");
      const std::string_view key = cut(value, "=");
      const char* decoded_key = decode(key, true, bad);
      const char* decoded_value = decode(value, true, bad);
      if (Parsed result = add(last, decoded_key, decoded_value, bad); result != Parsed::kWhole)
        return result;
    }
    return Parsed::kWhole;
  }

  // name: OWS value OWS
  Parsed parse_header(std::string_view line, Field**& last) {
    const size_t colon = line.find(':');
    if (colon == line.npos || !is_token(line.substr(0, colon))) return Parsed::kBad;
    std::string_view value = line.substr(colon + 1);
    while (!value.empty() && (value.front() == ' ' || value.front() == '\t'))
      value.remove_prefix(1);
    while (!value.empty() && (value.back() == ' ' || value.back() == '\t')) value.remove_suffix(1);
    char* name = copy(line.substr(0, colon));
    if (name == nullptr) return Parsed::kNoMemory;
    for (char* c = name; *c != '\0'; ++c)
      if (*c >= 'A' && *c <= 'Z') *c = static_cast<char>(*c | 0x20);
    if (std::string_view(name) == "connection") keeps_alive = value != "close";
    // This server does not take requests with a body.
    if (std::string_view(name) == "transfer-encoding") return Parsed::kNotSupported;
    if (std::string_view(name) == "content-length" && value != "0") return Parsed::kNotSupported;
    return add(last, name, copy(value), false);
  }

  Memory& memory_;
};
