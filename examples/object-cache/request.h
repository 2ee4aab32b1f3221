// Request: a query, parsed in place, with what parsing needs: a lock, a text, a table of fields, an
// index of their names. Making these costs more than using them, which is why object caches exist.
// Called by: cache.cpp. Locking: the thread that has the request holds its lock while it parses or
// reads it.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

struct Field {
  const char* name;
  uint64_t value;
  size_t place;  // in the index
};

class Request {
 public:
  static constexpr size_t kText = 16384, kFields = 512, kIndex = 4096;

  // Makes the parts that stay made. Returns false if there is no memory; then nothing is made.
  bool make() {
    text_ = static_cast<char*>(std::malloc(kText));
    fields_ = static_cast<Field*>(std::malloc(kFields * sizeof(Field)));
    index_ = static_cast<uint16_t*>(std::calloc(kIndex, sizeof(uint16_t)));
    if (text_ != nullptr && fields_ != nullptr && index_ != nullptr &&
        pthread_mutex_init(&lock_, nullptr) == 0)
      return true;
    free_all();
    return false;
  }
  void unmake() {
    pthread_mutex_destroy(&lock_);
    free_all();
  }

  // At each use: begin() starts with an empty request, end() empties it again. end() sweeps only
  // the used places of the index.
  void begin() { count_ = 0; }
  void end() {
    for (size_t i = 0; i < count_; ++i) index_[fields_[i].place] = 0;
    count_ = 0;
  }

  // Parses name=number&name=number.. Returns false if the query has another form, or is too long.
  bool parse(const char* query, size_t length) {
    if (length >= kText) return false;
    pthread_mutex_lock(&lock_);
    std::memcpy(text_, query, length);
    text_[length] = '\0';
    bool good = true;
    for (char* at = text_; good && *at != '\0';) good = parse_field(at);
    pthread_mutex_unlock(&lock_);
    return good;
  }

  // Returns the number of a field, 0 if there is none.
  uint64_t number(const char* name) {
    pthread_mutex_lock(&lock_);
    const uint16_t at = index_[place_of(name)];
    const uint64_t value = at != 0 ? fields_[at - 1].value : 0;
    pthread_mutex_unlock(&lock_);
    return value;
  }
  uint64_t sum() {
    pthread_mutex_lock(&lock_);
    uint64_t all = 0;
    for (size_t i = 0; i < count_; ++i) all += fields_[i].value;
    pthread_mutex_unlock(&lock_);
    return all;
  }

 private:
  void free_all() {
    std::free(text_);
    std::free(fields_);
    std::free(index_);
  }

  // Returns the place where the index has the name, or would have it. There is always room: there
  // are fewer fields than places.
  size_t place_of(const char* name) const {
    uint32_t hash = 2166136261u;
    for (const char* c = name; *c != '\0'; ++c)
      hash = (hash ^ static_cast<unsigned char>(*c)) * 16777619u;
    size_t at = hash % kIndex;
    while (index_[at] != 0 && std::strcmp(fields_[index_[at] - 1].name, name) != 0)
      at = (at + 1) % kIndex;
    return at;
  }

  bool parse_field(char*& at) {
    char* equals = std::strchr(at, '=');
    if (equals == nullptr || equals == at || count_ == kFields) return false;
    *equals = '\0';
    char* rest;
    Field& field = fields_[count_];
    field = {at, std::strtoull(equals + 1, &rest, 10), place_of(at)};
    if (rest == equals + 1 || (*rest != '&' && *rest != '\0')) return false;
    index_[field.place] = static_cast<uint16_t>(++count_);
    at = *rest == '&' ? rest + 1 : rest;
    return true;
  }

  pthread_mutex_t lock_;
  char* text_;
  Field* fields_;
  uint16_t* index_;
  size_t count_ = 0;
};
