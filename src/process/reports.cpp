// Reports: the figures that a process writes by itself, at its end or when a signal comes; and the
// options, as a reader sees and sets them.
// Locking: none. Reports may run in a handler.
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "process/figures.h"
#include "process/file.h"
#include "process/threads.h"

namespace lanemalloc {
namespace {

void on_signal(int) {
  const int saved = errno;
  report_figures();
  errno = saved;
}

constinit Relaxed<uint32_t> watched = 0;
constinit struct sigaction before_watched{};  // the signal's action before

bool is_default(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
}

void write_figures(const Statistics& figures, SeeingOptions::Format format, File& file) {
  switch (format) {
    case SeeingOptions::Format::kText:
      return write_lines(figures, file.sink());
    case SeeingOptions::Format::kJson:
      return write_json(figures, figures.families, file.sink());
    case SeeingOptions::Format::kOpenMetrics:
      return write_openmetrics(figures, figures.families, file.sink());
  }
}

// Gives the signal back, unless the program has taken it.
void watch_no_signal() {
  struct sigaction now = {};
  if (watched != 0 && sigaction(static_cast<int>(watched), nullptr, &now) == 0 &&
      now.sa_handler == on_signal)
    sigaction(static_cast<int>(watched), &before_watched, nullptr);
  watched = 0;
}

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

int set_process_option(const char* key, const char* value) {
  if (!start_process()) return ENOMEM;
  Text before;
  if (!OptionReader::write(process_options(), key, before)) return ENOENT;
  for (const char* fixed : {"checked", "deferred", "strict"})
    if (strcmp(key, fixed) == 0) return EPERM;
  if (value == nullptr) return EINVAL;
  Options wanted = process_options();
  OptionReader reader(wanted, [](const char*, Bytes) {});
  if (!reader.set(key, value)) return EINVAL;
  if (strcmp(key, "lanes") == 0 && !process_engine.choose_entry(wanted.settings)) return ENOTSUP;
  if (strcmp(key, "stats") == 0)
    if (const int error = watch_signal(wanted.seeing.stats.signal); error != 0) return error;
  process_engine.adjust(wanted.settings);
  look_after_scavenger();
  process_options() = wanted;
  write_options();
  if (strcmp(key, "sample") == 0 || strcmp(key, "sample_wait_ns") == 0 ||
      strcmp(key, "unwind") == 0)
    start_sampling();
  return 0;
}

void report_figures() {
  const SeeingOptions& options = process_options().seeing;
  const Figures figures;
  File file(options.stats_file);
  if (file.error() == 0) return write_figures(*figures, options.stats_format, file);
  File standard_error("");
  if (options.stats_file[0] != '\0') {
    Text line;
    line << "lanemalloc: stats_file=" << options.stats_file << ": " << File::why(file.error())
         << ", using standard error";
    line.end();
    standard_error.add(line.data(), line.size());
  }
  write_figures(*figures, options.stats_format, standard_error);
}

int watch_signal(uint32_t number) {
  if (number == watched) return 0;
  struct sigaction before = {};
  if (number != 0) {
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    if (sigaction(static_cast<int>(number), nullptr, &before) != 0) return ENOTSUP;
    if (!is_default(before)) return EBUSY;
    if (sigaction(static_cast<int>(number), &action, nullptr) != 0) return ENOTSUP;
  }
  watch_no_signal();
  before_watched = before;
  watched = number;
  return 0;
}

}  // namespace lanemalloc
