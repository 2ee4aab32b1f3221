// File: where reports and profiles go: a file, or standard error. Called by: reports.cpp, profiles.cpp. Locking: none; safe in handlers.
#pragma once

#include "abi/process.h"

namespace lanemalloc {

class File {
 public:
  // path: %p is the process' number, %k what `kind` says. Empty: standard error.
  explicit File(const char* path, const char* kind = "");
  File(const File&) = delete;
  ~File();

  // 0, or why it could not be opened or written.
  int error() const { return error_; }
  Sink sink() {
    return {[](void* file, const char* text, size_t n) { static_cast<File*>(file)->add(text, n); }, this};
  }
  void add(const void* bytes, size_t n);
  void flush();

 private:
  int fd_;
  int error_ = 0;
  size_t used_ = 0;
  char buffer_[1024];
};

}  // namespace lanemalloc
