// See file.h.
#include "abi/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

namespace lanemalloc {
namespace {

// What does not fit is cut.
void expand(const char* path, const char* kind, char* name, size_t size) {
  size_t n = 0;
  const auto add = [&](const char* text, size_t length) {
    for (size_t i = 0; i < length && n + 1 < size; ++i) name[n++] = text[i];
  };
  for (; *path != '\0'; ++path) {
    if (path[0] == '%' && path[1] == 'p') {
      Text pid;
      pid << int64_t{getpid()};
      add(pid.data(), pid.size());
      ++path;
    } else if (path[0] == '%' && path[1] == 'k') {
      add(kind, strlen(kind));
      ++path;
    } else {
      add(path, 1);
    }
  }
  name[n] = '\0';
}

}  // namespace

File::File(const char* path, const char* kind) : fd_(STDERR_FILENO) {
  if (path[0] == '\0') return;
  char name[SeeingOptions::kLongestPath + 64];
  expand(path, kind, name, sizeof name);
  const int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd >= 0) {
    fd_ = fd;
  } else {
    error_ = errno;
  }
}

File::~File() {
  flush();
  if (fd_ != STDERR_FILENO) close(fd_);
}

void File::add(const void* bytes, size_t n) {
  const char* from = static_cast<const char*>(bytes);
  while (n > 0) {
    const size_t piece = n < sizeof buffer_ - used_ ? n : sizeof buffer_ - used_;
    memcpy(buffer_ + used_, from, piece);
    used_ += piece;
    from += piece;
    n -= piece;
    if (used_ == sizeof buffer_) flush();
  }
}

void File::flush() {
  size_t done = 0;
  while (done < used_) {
    const ssize_t n = ::write(fd_, buffer_ + done, used_ - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      if (error_ == 0) error_ = errno;
      break;
    }
    done += static_cast<size_t>(n);
  }
  used_ = 0;
}

}  // namespace lanemalloc
