// Linux behind the platform contract. See platform.h for what each function promises.
#include "platform/linux.h"

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
#include <sys/single_threaded.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/text.h"

namespace lanemalloc {

namespace {

using arch::system_call;

// The kernel's signal set, whatever the C library makes of it.
constexpr long kSignalSetSize = 8;

constexpr Bytes kStackSize = 64 << 10;

long as_long(Address a) { return static_cast<long>(a); }
long as_long(const void* p) { return reinterpret_cast<long>(p); }
bool failed(long result) { return result < 0 && result > -4096; }

Address map(Address hint, Bytes n, int protection, int flags) {
  const long result = system_call(SYS_mmap, as_long(hint), as_long(n), protection,
                                  MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return failed(result) ? 0 : static_cast<Address>(result);
}

void unmap(Address a, Bytes n) { system_call(SYS_munmap, as_long(a), as_long(n)); }

// Maps n bytes at exactly `a` if nothing is there; a plain hint does that on every kernel.
Claim map_at(Address a, Bytes n, int protection, int flags) {
  const Address got = map(a, n, protection, flags);
  if (got == a) return Claim::kDone;
  if (got == 0) return Claim::kNoMemory;
  unmap(got, n);
  return Claim::kTaken;
}

uint64_t random_bits() {
  uint64_t bits = 0;
  if (system_call(SYS_getrandom, as_long(&bits), sizeof bits, GRND_NONBLOCK) == sizeof bits) return bits;
  return Linux::now_ms() * 0x9E3779B97F4A7C15 ^ reinterpret_cast<uintptr_t>(&bits);
}

// Places where neither the kernel nor programs put anything by themselves, far from stacks, libraries and the heap.
// The second serves small address spaces (39 bits; emulators and checkers), the third takes what the kernel offers.
struct Window {
  Address from, to;
};
constexpr Window kWindows[] = {
    {Address{16} << 40, Address{64} << 40},
    {Address{128} << 30, Address{1} << 40},
    {Address{64} << 30, Address{250} << 30},
};

}  // namespace

Bytes Linux::page_size() noexcept {
  const unsigned long size = getauxval(AT_PAGESZ);
  return size != 0 ? size : 4096;
}

Bytes Linux::physical_memory() noexcept {
  struct sysinfo info;
  if (failed(system_call(SYS_sysinfo, as_long(&info)))) return 0;
  return Bytes{info.totalram} * info.mem_unit;
}

Bytes Linux::address_limit() noexcept {
  struct rlimit limit;
  if (failed(system_call(SYS_prlimit64, 0, RLIMIT_AS, 0, as_long(&limit)))) return ~Bytes{0};
  return limit.rlim_cur == RLIM_INFINITY ? ~Bytes{0} : limit.rlim_cur;
}

bool Linux::charges_by_mapping() noexcept {
  if (address_limit() != ~Bytes{0}) return true;
  const long fd =
      system_call(SYS_openat, AT_FDCWD, as_long("/proc/sys/vm/overcommit_memory"), O_RDONLY | O_CLOEXEC);
  if (failed(fd)) return false;
  char mode = '0';
  const long got = system_call(SYS_read, fd, as_long(&mode), 1);
  system_call(SYS_close, fd);
  return got == 1 && mode == '2';
}

Address Linux::reserve(Bytes meta, Bytes body) noexcept {
  const Bytes both = meta + body;
  for (const Window& window : kWindows) {
    if (both > window.to - window.from) continue;
    for (int attempt = 0; attempt < 8; ++attempt) {
      const Address slack = (window.to - window.from - both) / kHugePage;
      const Address at = round_up(window.from, kHugePage) + random_bits() % (slack + 1) * kHugePage;
      Claim got = map_at(at, both, PROT_NONE, MAP_NORESERVE);
      if (got == Claim::kDone) {
        unmap(at + meta, body);
        return at;
      }
      // Under RLIMIT_AS the body cannot be looked at as a whole; its claims will notice what is there.
      if (got == Claim::kNoMemory && map_at(at, meta, PROT_NONE, MAP_NORESERVE) == Claim::kDone) return at;
    }
  }
  return 0;
}

bool Linux::make_readable(Address a, Bytes n) noexcept {
  return system_call(SYS_mprotect, as_long(a), as_long(n), PROT_READ) == 0;
}

bool Linux::open(Address a, Bytes n) noexcept {
  return system_call(SYS_mprotect, as_long(a), as_long(n), PROT_READ | PROT_WRITE) == 0;
}

void Linux::release(Address a, Bytes n) noexcept { unmap(a, n); }

Claim Linux::claim(Address a, Bytes n) noexcept { return map_at(a, n, PROT_READ | PROT_WRITE, 0); }

bool Linux::empty(Address a, Bytes n) noexcept {
  return system_call(SYS_madvise, as_long(a), as_long(n), MADV_DONTNEED) == 0;
}

bool Linux::move(Address from, Address to, Bytes n) noexcept {
  return system_call(SYS_mremap, as_long(from), as_long(n), as_long(n), MREMAP_MAYMOVE | MREMAP_FIXED,
                     as_long(to)) == as_long(to);
}

uint64_t Linux::now_ms() noexcept {
  struct timespec now;
  system_call(SYS_clock_gettime, CLOCK_MONOTONIC_COARSE, as_long(&now));
  return static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1000000;
}

bool Linux::single_threaded() noexcept {
  // One way: the C library may turn its flag back when all other threads are gone, but a bare thread may still run.
  static std::atomic<bool> had_threads{false};
  if (had_threads.load(std::memory_order_relaxed)) return false;
  if (__libc_single_threaded) return true;
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
    line << "lanemalloc: this kernel has no membarrier(PRIVATE_EXPEDITED) for us; memory of idle threads "
            "comes back only "
            "when they allocate or free again";
    line.end();
    say(line.data(), line.size());
  }
  return false;
}

void Linux::wait(std::atomic<uint32_t>& word, uint32_t value) noexcept {
  system_call(SYS_futex, as_long(&word), FUTEX_WAIT_PRIVATE, value, 0);
}

void Linux::wake(std::atomic<uint32_t>& word, int count) noexcept {
  system_call(SYS_futex, as_long(&word), FUTEX_WAKE_PRIVATE, count);
}

void Linux::sleep_ms(uint64_t ms) noexcept {
  const struct timespec time = {static_cast<time_t>(ms / 1000), static_cast<long>(ms % 1000 * 1000000)};
  system_call(SYS_nanosleep, as_long(&time), 0);
}

bool Linux::start_thread(BareThread& thread, void (*run)(void*), void* argument) noexcept {
  if (thread.stack == 0) {
    thread.stack = map(0, kStackSize, PROT_READ | PROT_WRITE, MAP_STACK);
    if (thread.stack == 0) return false;
  }
  // A thread keeps its creator's signal mask; this one must never run a handler of the program.
  const uint64_t mask = block_signals();
  thread.alive.store(1, std::memory_order_relaxed);
  constexpr unsigned long kFlags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD |
                                   CLONE_SYSVSEM | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
  const long tid = arch::clone_thread(kFlags, reinterpret_cast<void*>(thread.stack + kStackSize),
                                      reinterpret_cast<int*>(&thread.alive), run, argument);
  restore_signals(mask);
  if (!failed(tid)) return true;
  thread.alive.store(0, std::memory_order_relaxed);
  return false;
}

void Linux::say(const char* text, Bytes n) noexcept {
  while (n > 0) {
    const long written = system_call(SYS_write, STDERR_FILENO, as_long(text), as_long(n));
    if (written == -EINTR) continue;
    if (written <= 0) return;  // nobody listens
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
