// Reports: figures that a process writes by itself, at its end or when a signal comes; and the options as a reader sees and sets them.
// Locking: none. Reports may run in a handler.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "abi/figures.h"
#include "platform/unwind.h"

namespace lanemalloc {
namespace {

// A file, or standard error, written in larger pieces.
class File {
 public:
  // path: %p is the process' number. Empty: standard error.
  explicit File(const char* path) {
    if (path[0] == '\0') return;
    char name[kLongest];
    size_t n = 0;
    for (; *path != '\0' && n + kNumber < sizeof name; ++path) {
      if (path[0] != '%' || path[1] != 'p') {
        name[n++] = *path;
        continue;
      }
      Text pid;
      pid << int64_t{getpid()};
      memcpy(name + n, pid.data(), pid.size());
      n += pid.size();
      ++path;
    }
    name[n] = '\0';
    fd_ = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd_ >= 0) return;
    Text line;
    line << "lanemalloc: stats_file=" << name << ": cannot be written (" << strerrorname_np(errno)
         << "), using standard error";
    Linux::say(line.end().data(), line.size());
    fd_ = STDERR_FILENO;
  }
  File(const File&) = delete;
  ~File() {
    flush();
    if (fd_ != STDERR_FILENO) close(fd_);
  }
  Sink sink() {
    return {[](void* file, const char* text, size_t n) { static_cast<File*>(file)->add(text, n); }, this};
  }

 private:
  static constexpr size_t kLongest = SeeingOptions::kLongestPath + 32;
  static constexpr size_t kNumber = 12;

  void add(const char* text, size_t n) {
    if (used_ + n > sizeof buffer_) flush();
    memcpy(buffer_ + used_, text, n);  // a Text is shorter
    used_ += n;
  }
  void flush() {
    size_t done = 0;
    while (done < used_) {
      const ssize_t n = ::write(fd_, buffer_ + done, used_ - done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;  // there is nobody to tell
      done += static_cast<size_t>(n);
    }
    used_ = 0;
  }

  int fd_ = STDERR_FILENO;
  size_t used_ = 0;
  char buffer_[1024];
};

void on_signal(int) {
  const int saved = errno;
  report_figures();
  errno = saved;
}

constinit Relaxed<uint32_t> watched = 0;

const void* witness(uint64_t ns) { return process_engine.contended(ns); }

}  // namespace

constinit char options_text[1024]{};

void write_options() {
  size_t length = 0;
  for (size_t i = 0; OptionReader::key_at(i) != nullptr; ++i) {
    Text text;
    text << (i == 0 ? "" : ",") << OptionReader::key_at(i) << '=';
    OptionReader::write(process_options(), OptionReader::key_at(i), text);
    if (length + text.size() >= sizeof options_text) break;
    memcpy(options_text + length, text.data(), text.size());
    length += text.size();
  }
  options_text[length] = '\0';
}

void start_sampling() {
  const SeeingOptions& o = process_options().seeing;
  auto& sampler = process_engine.world().sampler;
  const bool is_on = o.sample.bytes != 0;
  if (is_on) {
    prepare_unwinding(o.unwind_by_frames ? Unwinding::kFrames : Unwinding::kTables);
    if (!sampler.start(capture_stack)) {
      static constexpr char kLine[] = "lanemalloc: sample: no address space for stacks; nothing is sampled\n";
      return Linux::say(kLine, sizeof kLine - 1);
    }
  }
  sampler.set_interval(o.sample.bytes);
  sampler.set_contention_interval(is_on ? uint64_t{o.sample_wait_ns} : 0);
  contention_witness.store(is_on ? &witness : nullptr, std::memory_order_relaxed);
}

int set_process_option(const char* key, const char* value) {
  if (!start_process()) return ENOMEM;
  Text before;
  if (!OptionReader::write(process_options(), key, before)) return ENOENT;
  for (const char* fixed : {"checked", "deferred", "strict"})
    if (strcmp(key, fixed) == 0) return EPERM;
  Options wanted = process_options();
  OptionReader reader(wanted, [](const char*, Bytes) {});
  if (!reader.set(key, value)) return EINVAL;
  if (strcmp(key, "lanes") == 0 && !process_engine.choose_entry(wanted.settings)) return ENOTSUP;
  if (strcmp(key, "stats") == 0 && !watch_signal(wanted.seeing.stats.signal)) return ENOTSUP;
  process_engine.adjust(wanted.settings);
  process_options() = wanted;
  write_options();
  if (strcmp(key, "sample") == 0 || strcmp(key, "sample_wait_ns") == 0 || strcmp(key, "unwind") == 0)
    start_sampling();
  return 0;
}

void report_figures() {
  const Options& options = process_options();
  const Figures figures;
  File file(options.seeing.stats_file);
  switch (SeeingOptions::Format{options.seeing.stats_format}) {
    case SeeingOptions::Format::kText:
      return write_lines(*figures, file.sink());
    case SeeingOptions::Format::kJson:
      return write_json(*figures, file.sink());
    case SeeingOptions::Format::kOpenMetrics:
      return write_openmetrics(*figures, file.sink());
  }
}

bool watch_signal(uint32_t number) {
  if (number == watched) return true;
  struct sigaction now = {};
  if (watched != 0 && sigaction(static_cast<int>(watched), nullptr, &now) == 0 &&
      now.sa_handler == on_signal) {
    now.sa_handler = SIG_DFL;
    sigaction(static_cast<int>(watched), &now, nullptr);
  }
  watched = number;
  if (number == 0) return true;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  return sigaction(static_cast<int>(number), &action, nullptr) == 0;
}

}  // namespace lanemalloc
