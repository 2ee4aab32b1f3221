// See file.h.
#include "process/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/platform/c_library.h"

namespace lanemalloc {
namespace {

// Text that does not fit is cut.
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

bool is_made_up(const char* path) {
  for (; *path != '\0'; ++path)
    if (path[0] == '%' && path[1] == 'p') return true;
  return false;
}

// What standard error was at the start. 0, 0: there was none.
struct Identity {
  dev_t device = 0;
  ino_t number = 0;
};
constinit Identity standard_error;

Identity identity_of(int fd) {
  struct stat it;
  return fstat(fd, &it) == 0 ? Identity{it.st_dev, it.st_ino} : Identity{};
}

bool is_standard_error_still() {
  const Identity now = identity_of(STDERR_FILENO);
  return now.number != 0 && now.number == standard_error.number &&
         now.device == standard_error.device;
}

// Returns the same open file under a number that no program takes for its standard input, output or
// error; or -1, with errno.
int moved_up(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const int above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int saved = errno;
  close(fd);
  errno = saved;
  return above;
}

int open_alone(const char* name, int more) {
  return moved_up(
      open(name, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | more, 0644));
}

// Returns -1, with errno, if it fails.
int open_new(const char* name) {
  const int fd = open_alone(name, O_EXCL);
  if (fd >= 0 || errno != EEXIST) return fd;
  if (unlink(name) != 0) return -1;
  return open_alone(name, O_EXCL);
}

int open_again(const char* name) {
  const int fd = open_alone(name, 0);
  if (fd < 0) return fd;
  struct stat it;
  int error = fstat(fd, &it) != 0 ? errno : S_ISREG(it.st_mode) ? 0 : ENXIO;
  if (error == 0 && ftruncate(fd, 0) != 0) error = errno;
  if (error == 0) return fd;
  close(fd);
  errno = error;
  return -1;
}

}  // namespace

void File::remember_standard_error() { standard_error = identity_of(STDERR_FILENO); }

const char* File::why(int error) {
  if (error == ELOOP) return "a symbolic link, which is not followed";
  if (error == ENXIO) return "not a regular file";
  return meaning_of(error);
}

File::File(const char* path, const char* kind) {
  if (path[0] != '\0') {
    char name[SeeingOptions::kLongestPath + 64];
    expand(path, kind, name, sizeof name);
    fd_ = is_made_up(path) ? open_new(name) : open_again(name);
    if (fd_ < 0) error_ = errno;
  } else if (is_standard_error_still()) {
    fd_ = STDERR_FILENO;
  } else {
    error_ = EBADF;
  }
}

File::~File() {
  flush();
  if (fd_ > STDERR_FILENO) close(fd_);
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
  while (done < used_ && fd_ != kNowhere) {
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
