// Reports: figures that a process writes by itself, at its end or when a signal comes; and the options as a reader sees and sets them.
// Locking: none. Reports may run in a handler.
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "abi/figures.h"
#include "abi/threads.h"
#include "abi/file.h"

namespace lanemalloc {
namespace {

void on_signal(int) {
  const int saved = errno;
  report_figures();
  errno = saved;
}

constinit Relaxed<uint32_t> watched = 0;

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
  if (strcmp(key, "stats") == 0 && !watch_signal(wanted.seeing.stats.signal)) return ENOTSUP;
  process_engine.adjust(wanted.settings);
  look_after_scavenger();
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
  if (file.error() != 0) {
    Text line;
    line << "lanemalloc: stats_file=" << options.seeing.stats_file << ": " << strerrordesc_np(file.error())
         << ", using standard error";
    line.end();
    Linux::say(line.data(), line.size());
  }
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
