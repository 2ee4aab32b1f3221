// Linux behind the platform contract. See platform.h for what each function promises.
#include "core/platform/linux.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <iterator>

#include "core/base/check.h"
#include "core/base/text.h"

// From the C library, since 2.35. The size is 0 if the kernel refused, or the user
// (glibc.pthread.rseq=0).
extern "C" {
extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned int __rseq_size __attribute__((weak));
}

__attribute__((visibility("hidden"))) constinit std::atomic<uint64_t> lanemalloc_restarts{0};

#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_acquire(void* at);
#endif

namespace lanemalloc {

constinit ptrdiff_t Linux::rseq_area = 0;

namespace {

using arch::system_call;

// Bytes of the kernel's signal set. The C library's own may differ.
constexpr long kSignalSetSize = 8;

long as_long(Address a) { return static_cast<long>(a); }
long as_long(const void* p) { return reinterpret_cast<long>(p); }
bool failed(long result) { return result < 0 && result > -4096; }

Address map(Address hint, Bytes n, int protection, int flags) {
  const long result = system_call(SYS_mmap, as_long(hint), as_long(n), protection,
                                  MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return failed(result) ? 0 : static_cast<Address>(result);
}

bool unmap(Address a, Bytes n) { return system_call(SYS_munmap, as_long(a), as_long(n)) == 0; }

// Maps n bytes at exactly `a` if nothing is there. A plain hint does that on every kernel.
Claim map_at(Address a, Bytes n) {
  const Address got = map(a, n, PROT_READ | PROT_WRITE, 0);
  if (got == a) return Claim::kDone;
  if (got == 0) return Claim::kNoMemory;
  unmap(got, n);
  return Claim::kTaken;
}

uint64_t random_bits() {
  uint64_t bits = 0;
  if (system_call(SYS_getrandom, as_long(&bits), sizeof bits, GRND_NONBLOCK) == sizeof bits)
    return bits;
  return Linux::now_ms() * 0x9E3779B97F4A7C15 ^ reinterpret_cast<uintptr_t>(&bits);
}

// Reads a small file into a text that ends with a zero. False if there is none.
template <size_t kSize>
bool read_file(const char* path, char (&text)[kSize]) {
  const long fd = system_call(SYS_openat, AT_FDCWD, as_long(path), O_RDONLY | O_CLOEXEC);
  if (failed(fd)) return false;
  const long got = system_call(SYS_read, fd, as_long(text), kSize - 1);
  system_call(SYS_close, fd);
  text[got > 0 ? got : 0] = '\0';
  return got > 0;
}

// Reads a number; 0 if there is none.
uint64_t number_at(const char*& text) {
  uint64_t n = 0;
  for (; *text >= '0' && *text <= '9'; ++text) n = n * 10 + static_cast<uint64_t>(*text - '0');
  return n;
}

// The CPUs that one control group pays for, rounded up; 0 for no limit.
template <size_t kSize>
uint32_t quota_of(char (&directory)[kSize], size_t length, bool version_2) {
  auto read = [&](const char* name, char(&text)[64]) {
    size_t end = length;
    for (; *name != '\0' && end + 1 < kSize; ++name) directory[end++] = *name;
    directory[end] = '\0';
    return read_file(directory, text);
  };
  char text[64];
  if (!read(version_2 ? "/cpu.max" : "/cpu.cfs_quota_us", text)) return 0;
  const char* at = text;  // "max 100000" or "150000 100000"; "-1" or "150000"
  const uint64_t quota = number_at(at);
  if (version_2 && *at == ' ') ++at;
  if (!version_2 && !read("/cpu.cfs_period_us", text)) return 0;
  if (!version_2) at = text;
  const uint64_t period = number_at(at);
  return quota != 0 && period != 0 ? static_cast<uint32_t>((quota + period - 1) / period) : 0;
}

// The CPUs that the quotas of the process' control group, and of those above it, pay for; 0 for no
// limit. It knows both versions of control groups.
uint32_t cgroup_cpus() {
  char groups[2048];
  if (!read_file("/proc/self/cgroup", groups)) return 0;
  uint32_t least = 0;
  for (const char* line = groups; *line != '\0';) {  // "0::/path" or "7:cpu,cpuacct:/path"
    while (*line != '\0' && *line != ':') ++line;
    const char* names = *line == ':' ? line + 1 : line;
    bool is_cpu = *names == ':';
    const bool version_2 = is_cpu;
    const char* path = names;
    for (; *path != '\0' && *path != ':'; ++path) {
      const bool begins = path == names || path[-1] == ',';
      if (begins && path[0] == 'c' && path[1] == 'p' && path[2] == 'u' &&
          (path[3] == ',' || path[3] == ':'))
        is_cpu = true;
    }
    const char* end = path;
    while (*end != '\0' && *end != '\n') ++end;
    line = *end == '\n' ? end + 1 : end;
    if (!is_cpu || *path != ':') continue;
    char directory[512];
    size_t root = 0;
    for (const char* c = version_2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu"; *c != '\0'; ++c)
      directory[root++] = *c;
    size_t length = root;
    for (const char* c = path + 1; c < end && length + 32 < sizeof directory; ++c)
      directory[length++] = *c;
    for (;;) {
      const uint32_t paid = quota_of(directory, length, version_2);
      if (paid != 0 && (least == 0 || paid < least)) least = paid;
      if (length <= root) break;
      do --length;
      while (length > root && directory[length] != '/');
    }
  }
  return least;
}

// Places where neither the kernel nor programs put anything by themselves, far from stacks,
// libraries and the heap. The first window ends below a third of 47 bits: there the kernel begins
// to map if stacks are unlimited. The others serve small address spaces (42 and 39 bits; emulators
// and checkers).
struct Window {
  Address from, to;
  Bytes ground;
};
constexpr Window kWindows[] = {
    {Address{16} << 40, Address{42} << 40, Bytes{17} << 40},
    {Address{128} << 30, Address{1} << 40, Bytes{544} << 30},
    {Address{64} << 30, Address{250} << 30, Bytes{136} << 30},
};
constexpr unsigned kAttempts = 8;  // in each window

// True if all of the range is mapped. The advice to treat memory as usual changes nothing, but the
// kernel's answer tells whether it is. (mincore would do, but filters that know only the calls of
// the C library's malloc forbid it.) If the kernel does not tell, the result is `unknown`.
bool is_mapped(Address a, Bytes n, bool unknown) {
  const long result = system_call(SYS_madvise, as_long(a), as_long(n), MADV_NORMAL);
  return result == 0 || (result != -ENOMEM && unknown);
}

// For a move that failed after some of its pages had moved: copies the rest.
void copy_rest(Address from, Address to, Bytes n) {
  for (Bytes at = 0; at < n; at += kBlockSize) {
    if (!is_mapped(from + at, kBlockSize, true)) continue;
    // The part that has moved has left as many addresses as are wanted here.
    CHECK(is_mapped(to + at, kBlockSize, true) || map_at(to + at, kBlockSize) == Claim::kDone);
    memcpy(reinterpret_cast<void*>(to + at), reinterpret_cast<const void*>(from + at), kBlockSize);
  }
  unmap(from, n);
}

// For a system where no window will do (an emulator with few addresses): what the kernel offers,
// less with each attempt.
Ground offered(unsigned attempt) {
  constexpr Bytes kMost = Bytes{64} << 30;
  constexpr Bytes kLeast = Bytes{64} << 20;
  const Bytes bytes = attempt < 64 ? kMost >> attempt : 0;
  if (bytes < kLeast) return {};
  const Address at = map(0, bytes + kHugePage, PROT_NONE, MAP_NORESERVE);
  if (at != 0) unmap(at, bytes + kHugePage);
  return {at != 0 ? round_up(at, kHugePage) : 0, bytes};
}

}  // namespace

Bytes Linux::page_size() noexcept {
  const unsigned long size = getauxval(AT_PAGESZ);
  return size != 0 ? size : 4096;
}

Bytes Linux::address_limit() noexcept {
  struct rlimit limit;
  if (failed(system_call(SYS_prlimit64, 0, RLIMIT_AS, 0, as_long(&limit)))) return ~Bytes{0};
  return limit.rlim_cur == RLIM_INFINITY ? ~Bytes{0} : limit.rlim_cur;
}

bool Linux::charges_by_mapping() noexcept {
  if (address_limit() != ~Bytes{0}) return true;
  char mode[4];
  return read_file("/proc/sys/vm/overcommit_memory", mode) && mode[0] == '2';
}

Ground Linux::ground(unsigned attempt) noexcept {
  if (attempt >= std::size(kWindows) * kAttempts)
    return offered(attempt - std::size(kWindows) * kAttempts);
  const Window& window = kWindows[attempt / kAttempts];
  const Address slack = (window.to - window.from - window.ground) / kHugePage;
  const Address at = window.from + random_bits() % (slack + 1) * kHugePage;
  // The end is tried here, since it may lie beyond all addresses. The user of the ground tries the
  // beginning. If unmapping is refused, the last block stays mapped, for no use; the heap does not
  // reach it.
  const Address end = at + window.ground - kBlockSize;
  const bool is_good = map_at(end, kBlockSize) == Claim::kDone;
  if (is_good) unmap(end, kBlockSize);
  return {is_good ? at : 0, window.ground};
}

Claim Linux::extend(Address a, Bytes n) noexcept { return map_at(a, n); }

Claim Linux::claim(Address a, Bytes n) noexcept { return map_at(a, n); }

Address Linux::reserve(Bytes n) noexcept { return map(0, n, PROT_NONE, MAP_NORESERVE); }

bool Linux::open(Address a, Bytes n) noexcept {
  return system_call(SYS_mprotect, as_long(a), as_long(n), PROT_READ | PROT_WRITE) == 0;
}

bool Linux::release(Address a, Bytes n) noexcept { return unmap(a, n); }

bool Linux::empty(Address a, Bytes n) noexcept {
  return system_call(SYS_madvise, as_long(a), as_long(n), MADV_DONTNEED) == 0;
}

// If a part is not mapped, the advice still applies to the rest. A kernel without huge pages
// refuses.
void Linux::prefer_huge(Address a, Bytes n) noexcept {
  system_call(SYS_madvise, as_long(a), as_long(n), MADV_HUGEPAGE);
}

// A filter refuses before anything has changed. Kernels before 6.17 unmap the target first, and may
// then find that they cannot move. Later kernels move one mapping after the other, and may stop
// between two.
Move Linux::move(Address from, Address to, Bytes n) noexcept {
  if (system_call(SYS_mremap, as_long(from), as_long(n), as_long(n), MREMAP_MAYMOVE | MREMAP_FIXED,
                  as_long(to)) == as_long(to))
    return Move::kDone;
  if (!is_mapped(from, n, true)) {
    copy_rest(from, to, n);
    return Move::kDone;
  }
  if (is_mapped(to, n, false)) return Move::kRefused;
  unmap(to, n);
  return Move::kNoneThere;
}

uint64_t Linux::now_ms() noexcept {
  struct timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1000000;
}

uint32_t Linux::process_id() noexcept { return static_cast<uint32_t>(system_call(SYS_getpid)); }
uint32_t Linux::thread_id() noexcept { return static_cast<uint32_t>(system_call(SYS_gettid)); }

uint64_t Linux::secret() noexcept { return random_bits(); }

uint64_t Linux::now_ns() noexcept {
  struct timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec) + 1;
}

uint64_t Linux::waits() noexcept {
  struct rusage usage{};
  if (failed(system_call(SYS_getrusage, RUSAGE_SELF, as_long(&usage)))) return 0;
  return static_cast<uint64_t>(usage.ru_nvcsw);
}

uint32_t Linux::cpus() noexcept {
  uint64_t mask[kMostNumbers / 64]{};
  const long bytes = system_call(SYS_sched_getaffinity, 0, sizeof mask, as_long(mask));
  uint32_t allowed = 0;
  for (long i = 0; i < bytes / 8; ++i)
    allowed += static_cast<uint32_t>(__builtin_popcountll(mask[i]));
  const uint32_t paid = cgroup_cpus();
  if (paid != 0 && paid < allowed) allowed = paid;
  return allowed != 0 ? allowed : 1;
}

namespace {

uint32_t word_of_area(int at) {
  return *reinterpret_cast<volatile uint32_t*>(static_cast<char*>(__builtin_thread_pointer()) +
                                               Linux::rseq_area + at);
}

enum class Numbers : uint8_t { kUnknown, kNone, kCpu, kCid };

// What the C library has registered. It is found once.
Numbers numbers() {
  static std::atomic<Numbers> known{Numbers::kUnknown};
  // acquire: a thread that finds it known sees where the area is. Pairs with [known.release].
  Numbers now = known.load(std::memory_order_acquire);
  if (now != Numbers::kUnknown) return now;
  now = Numbers::kNone;
  if (&__rseq_size != nullptr && __rseq_size != 0) {
    Linux::rseq_area = __rseq_offset;
    constexpr unsigned long kFeatures = 27;  // AT_RSEQ_FEATURE_SIZE
    now = getauxval(kFeatures) >= Linux::kCidAt + 4 ? Numbers::kCid : Numbers::kCpu;
  }
  known.store(now, std::memory_order_release);  // [known.release]
  return now;
}

}  // namespace

uint32_t Linux::lane_number() noexcept {
  const Numbers known = numbers();
  // If the C library did not register a thread, or could not, the thread has a negative cpu_id, and
  // an mm_cid that means nothing.
  if (known == Numbers::kNone || static_cast<int32_t>(word_of_area(kCpuAt)) < 0) return kNoNumber;
  return word_of_area(known == Numbers::kCid ? kCidAt : kCpuAt);
}

Restartable Linux::take_here(std::atomic<uint32_t>& word, uint16_t lower, uint32_t mark,
                             uint32_t& before) noexcept {
  if (LIKELY(numbers() == Numbers::kCid))
    return arch::rseq_take<kCidAt>(rseq_area, word, lower, mark, before);
  return arch::rseq_take<kCpuAt>(rseq_area, word, lower, mark, before);
}

bool Linux::numbers_for_hits() noexcept { return numbers() == Numbers::kCid; }

bool Linux::restart_here() noexcept {
  if (system_call(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ, 0, 0) == 0) return true;
  return system_call(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ, 0, 0) == 0 &&
         system_call(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ, 0, 0) == 0;
}

// Called when the C library says that there are threads.
bool Linux::still_single_threaded() noexcept {
  had_threads.store(true, std::memory_order_relaxed);
  return false;
}

bool Linux::barrier() noexcept {
  if (system_call(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0) return true;
  // Not registered yet (EPERM), or an old kernel.
  if (system_call(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 &&
      system_call(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0)
    return true;
  static std::atomic<bool> said{false};
  if (!said.exchange(true, std::memory_order_relaxed)) {
    Text line;
    line << "lanemalloc: this kernel has no membarrier(PRIVATE_EXPEDITED) for us; memory of idle "
            "threads "
            "comes back only "
            "when they allocate or free again";
    line.end();
    say(line.data(), line.size());
  }
  return false;
}

void Linux::wait(std::atomic<uint32_t>& word, uint32_t value, uint64_t most_ms) noexcept {
  const struct timespec time = {static_cast<time_t>(most_ms / 1000),
                                static_cast<long>(most_ms % 1000 * 1000000)};
  system_call(SYS_futex, as_long(&word), FUTEX_WAIT_PRIVATE, value,
              most_ms != kForever ? as_long(&time) : 0);
}

void Linux::wake(std::atomic<uint32_t>& word, int count) noexcept {
  system_call(SYS_futex, as_long(&word), FUTEX_WAKE_PRIVATE, count);
}

// Does not call nanosleep(): a filter may know only what the C library calls for itself.
void Linux::sleep_ms(uint64_t ms) noexcept {
  std::atomic<uint32_t> nobody_wakes{0};
  wait(nobody_wakes, 0, ms);
}

// Does not call sched_yield(), for the same reason.
void Linux::yield() noexcept {
  std::atomic<uint32_t> nobody_wakes{0};
  const struct timespec moment = {0, 50'000};
  system_call(SYS_futex, as_long(&nobody_wakes), FUTEX_WAIT_PRIVATE, 0, as_long(&moment));
}

// The kernel reads on our behalf, so that memory which is gone is an answer and no fault. It
// compares four bytes per call. The halves are read one after the other, which the caller must
// allow for.
bool Linux::reads_as(const void* at, uint64_t value) noexcept {
  static std::atomic<uint32_t> nobody_waits{0};
  for (int half = 0; half < 2; ++half) {
    const long word = as_long(at) + half * 4;
    const auto wanted = static_cast<uint32_t>(value >> half * 32);
    // This wakes no thread and moves none: what is left is the comparison.
    long result = system_call(SYS_futex, word, FUTEX_CMP_REQUEUE_PRIVATE, 0, 0,
                              as_long(&nobody_waits), wanted);
    if (failed(result) && result != -EAGAIN && result != -EFAULT) {  // a filter, or an emulator
      const struct timespec now = {0, 0};
      result = system_call(SYS_futex, word, FUTEX_WAIT_PRIVATE, wanted, as_long(&now));
      if (result == -ETIMEDOUT) result = 0;
    }
    if (result != 0) return false;
  }
  std::atomic_thread_fence(std::memory_order_acquire);
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(const_cast<void*>(at));  // the checker does not see what the kernel reads
#endif
  return true;
}

bool Linux::thread_is_gone(uint32_t id) noexcept {
  return system_call(SYS_tgkill, system_call(SYS_getpid), id, 0) == -ESRCH;
}

void Linux::say(const char* text, Bytes n) noexcept {
  while (n > 0) {
    const long written = system_call(SYS_write, STDERR_FILENO, as_long(text), as_long(n));
    if (written == -EINTR) continue;
    if (written <= 0) return;  // there is no reader
    text += written;
    n -= static_cast<Bytes>(written);
  }
}

bool Linux::runs_with_raised_privileges() noexcept { return getauxval(AT_SECURE) != 0; }

uint64_t Linux::block_signals() noexcept {
  const uint64_t all = ~uint64_t{0};
  uint64_t old = 0;
  system_call(SYS_rt_sigprocmask, SIG_SETMASK, as_long(&all), as_long(&old), kSignalSetSize);
  return old;
}

void Linux::restore_signals(uint64_t mask) noexcept {
  system_call(SYS_rt_sigprocmask, SIG_SETMASK, as_long(&mask), 0, kSignalSetSize);
}

void check_failed(const char* expression, const char* file, int line) {
  Text text;
  text << "lanemalloc: " << file << ':' << line << ": broken invariant: " << expression;
  text.end();
  Linux::say(text.data(), text.size());
  __builtin_trap();
}

}  // namespace lanemalloc
