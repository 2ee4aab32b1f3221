// File: where reports and profiles go: a file, or standard error. Called by: reports.cpp,
// profiles.cpp. Locking: none; safe in handlers.
//
// The path may come from somebody who has forgotten it, and lie where strangers may write. So no
// link is followed, nothing but a regular file is written, nobody is waited for, and a name that is
// made up (it has %p) is a new file each time. The program may have closed its standard error, and
// have a file of its own in that place: no file here gets a number below 3, and figures go to
// descriptor 2 only while that is what it was when the process started.
#pragma once

#include "abi/process.h"

namespace lanemalloc {

class File {
 public:
  // path: %p is the process' number, %k what `kind` says. Empty: standard error.
  explicit File(const char* path, const char* kind = "");
  // Once, when the process starts.
  static void remember_standard_error();
  File(const File&) = delete;
  ~File();

  // 0, or why it could not be opened or written: of open(), or ENXIO for what is no regular file,
  // or EBADF for another standard error. What is added after that is lost.
  int error() const { return error_; }
  // In words.
  static const char* why(int error);
  Sink sink() {
    return {[](void* file, const char* text, size_t n) { static_cast<File*>(file)->add(text, n); },
            this};
  }
  void add(const void* bytes, size_t n);
  void flush();

 private:
  static constexpr int kNowhere = -1;

  int fd_ = kNowhere;
  int error_ = 0;
  size_t used_ = 0;
  char buffer_[1024];
};

}  // namespace lanemalloc
