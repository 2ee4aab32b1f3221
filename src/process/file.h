// File: where reports and profiles go: a file, or standard error. Called by: reports.cpp,
// profiles.cpp. Locking: none; safe in handlers.
//
// The path may come from a user who has forgotten it, and may lie where strangers may write. So no
// link is followed, only a regular file is written, an open never waits, and a name that is made up
// (it has %p) is a new file each time. The program may have closed its standard error, and may have
// a file of its own in that place. So no file here gets a number below 3, and figures go to
// descriptor 2 only while it is what it was when the process started.
#pragma once

#include "process/process.h"

namespace lanemalloc {

class File {
 public:
  // path: %p stands for the process' number, %k for `kind`. Empty: standard error.
  explicit File(const char* path, const char* kind = "");
  // Called once, when the process starts.
  static void remember_standard_error();
  File(const File&) = delete;
  ~File();

  // 0, or why the file could not be opened or written: an error of the system call, ENXIO if it is
  // not a regular file, or EBADF if standard error is another file now. What is added after an
  // error is lost.
  int error() const { return error_; }
  // The error in words.
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
