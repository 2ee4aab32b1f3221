// liblanemalloc-trace.so: preloaded in front of an allocator, it writes an event for each
// allocation call into memory that is shared with the collector (trace_ring.h).
// Called by: the traced program, through every malloc symbol and operator. Started by: `lanemalloc
// trace`, which names the session in LANEMALLOC_TRACE; without it calls are passed on and nothing
// is recorded.
//
// A hook never allocates, takes no lock, and makes a system call only when a chunk is full. It may
// be interrupted anywhere:
//
//   hook                                   handler that interrupts it
//   1 chunk = mine; mine = full            finds a full chunk: writes to a chunk of its depth of
//                                          nesting
//   2 state = n | writing; event n; n + 1
//   3 mine = home
//
// So each chunk has one writer, and its writes are plain stores. A free is recorded before it is
// done and an allocation after it is done: sorted by time, an address is free before it is given
// out again.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <new>

#include "ticks.h"
#include "trace_ring.h"

#define EXPORT __attribute__((visibility("default"), used))
#define FAST inline __attribute__((always_inline))
#define SLOW __attribute__((noinline, cold))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define SITE __builtin_return_address(0)

extern "C" {
std::new_handler _ZSt15get_new_handlerv() __attribute__((weak));
void _ZSt17__throw_bad_allocv() __attribute__((weak));
}

namespace lanemalloc::trace {
namespace {

// --- The functions behind this library.

struct Real {
  void* (*malloc)(size_t);
  void* (*calloc)(size_t, size_t);
  void* (*realloc)(void*, size_t);
  void (*free)(void*);
  void* (*memalign)(size_t, size_t);
  void* (*aligned_alloc)(size_t, size_t);
  int (*posix_memalign)(void**, size_t, size_t);
  void* (*valloc)(size_t);
  void* (*pvalloc)(size_t);
};
Real real;

enum class Start : int { kNot, kNow, kDone };
std::atomic<Start> started{Start::kNot};
thread_local bool starting;

// Memory for what the dynamic linker allocates while it looks for the real functions. It is never
// given back.
alignas(16) char early[64 << 10];
std::atomic<size_t> early_used{0};

bool is_early(const void* p) { return p >= early && p < early + sizeof early; }
void* early_allocation(size_t size, size_t alignment = 16) {
  const size_t room = size + alignment + 16;
  if (room < size) return nullptr;
  const size_t at = early_used.fetch_add((room + 15) & ~size_t{15}, std::memory_order_relaxed);
  if (at + room > sizeof early) return nullptr;
  const auto from =
      (reinterpret_cast<uintptr_t>(early) + at + 16 + alignment - 1) & ~(alignment - 1);
  auto* p = reinterpret_cast<char*>(from);
  memcpy(p - sizeof(size_t), &size, sizeof size);
  return p;
}

template <class Function>
void find_real(Function*& function, const char* name) {
  function = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

SLOW void start() {
  Start was = Start::kNot;
  if (!started.compare_exchange_strong(was, Start::kNow, std::memory_order_acquire)) {
    while (started.load(std::memory_order_acquire) != Start::kDone) sched_yield();
    return;
  }
  starting = true;
  find_real(real.malloc, "malloc");
  find_real(real.calloc, "calloc");
  find_real(real.realloc, "realloc");
  find_real(real.free, "free");
  find_real(real.memalign, "memalign");
  find_real(real.aligned_alloc, "aligned_alloc");
  find_real(real.posix_memalign, "posix_memalign");
  find_real(real.valloc, "valloc");
  find_real(real.pvalloc, "pvalloc");
  starting = false;
  started.store(Start::kDone, std::memory_order_release);
}

// True if this thread is in start(): its allocations then come from `early`.
FAST bool not_ready() {
  if (LIKELY(started.load(std::memory_order_acquire) == Start::kDone)) return false;
  if (starting) return true;
  start();
  return false;
}

// --- The session.

constexpr int kNests = 4;
constexpr unsigned kGiveUpMs = 2000;

Session* session;
bool use_counter;
uint64_t start_tick;
std::atomic<int> attached{0};  // 0 no, 1 under way, 2 yes, 3 nothing to attach to
uint32_t my_process;
char directory[200];
uint32_t fork_number;
const volatile uint32_t kOne = 1;
const volatile uint32_t* same_process =
    &kOne;  // reads 0 in the child of a fork, also of one that runs no handlers

// Stands in the place of a thread's chunk: nothing can be written to it.
Chunk full_chunk = {{kFullState}, {kHeldChunk}, 0, 0, 0, {0}, {}, {}};

struct Thread {
  Chunk* mine = &full_chunk;
  Chunk* home = &full_chunk;
  Chunk* nested[kNests] = {};
  uint32_t number = 0;
  uint32_t tid = 0;
  int depth = 0;
  bool known = false;  // has a number
};
thread_local Thread thread __attribute__((tls_model("initial-exec")));

FAST void fence() { std::atomic_signal_fence(std::memory_order_seq_cst); }

long futex(std::atomic<uint32_t>* word, int what, uint32_t value, const timespec* wait) {
  return syscall(SYS_futex, word, what, value, wait, nullptr, 0);
}

void append(char*& at, const char* text) {
  while (*text != '\0') *at++ = *text++;
  *at = '\0';
}
void append(char*& at, uint32_t n) {
  char digits[12];
  int i = 0;
  do digits[i++] = static_cast<char>('0' + n % 10);
  while ((n /= 10) != 0);
  while (i > 0) *at++ = digits[--i];
  *at = '\0';
}

// Avoids the C library's functions, which are points of cancellation and which another library may
// replace.
int open_file(const char* path, int flags) {
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags | O_CLOEXEC, 0600));
}

// Copies a file of /proc about this process to a file beside the session.
void copy_file(const char* from, const char* kind) {
  char to[sizeof directory + 40];
  char* at = to;
  append(at, directory);
  append(at, "/");
  append(at, my_process);
  append(at, kind);
  const int in = open_file(from, O_RDONLY);
  if (in < 0) return;
  const int out = open_file(to, O_WRONLY | O_CREAT | O_TRUNC);
  if (out >= 0) {
    char buffer[4096];
    long n;
    while ((n = syscall(SYS_read, in, buffer, sizeof buffer)) > 0)
      if (syscall(SYS_write, out, buffer, static_cast<size_t>(n)) != n) break;
    syscall(SYS_close, out);
  }
  syscall(SYS_close, in);
}

bool in_other_namespace() {
  struct stat mine;
  return stat("/proc/self/ns/pid", &mine) != 0 || mine.st_ino != session->pid_namespace;
}

// False if there are more processes than slots.
bool register_process(int32_t parent, uint32_t fork) {
  const uint32_t slot = session->processes.fetch_add(1, std::memory_order_relaxed);
  if (slot >= kMostProcesses) return false;
  my_process = slot;
  ProcessSlot& p = session->process[slot];
  p.pid = static_cast<uint32_t>(getpid());
  p.parent = parent;
  p.fork = fork;
  p.foreign = in_other_namespace() ? 1 : 0;
  copy_file("/proc/self/maps", ".maps");
  copy_file("/proc/self/cmdline", ".cmdline");
  p.ready.store(1, std::memory_order_release);
  return true;
}

void mark_forks() {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* word = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (word == MAP_FAILED) return;
  if (madvise(word, page, MADV_WIPEONFORK) != 0) return;
  *static_cast<volatile uint32_t*>(word) = 1;
  same_process = static_cast<volatile uint32_t*>(word);
}

SLOW bool attach() {
  int was = 0;
  if (!attached.compare_exchange_strong(was, 1, std::memory_order_acquire)) return was == 2;
  const int saved = errno;
  int result = 3;
  const char* path = getenv("LANEMALLOC_TRACE");
  const int file =
      path != nullptr && strlen(path) < sizeof directory - 8 ? open_file(path, O_RDWR) : -1;
  struct stat about;
  if (file >= 0 && fstat(file, &about) == 0) {
    const auto bytes = static_cast<size_t>(about.st_size);
    void* p = bytes < kSessionBytes
                  ? MAP_FAILED
                  : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (p != MAP_FAILED) {
      session = static_cast<Session*>(p);
      memcpy(directory, path, strlen(path) + 1);
      *strrchr(directory, '/') = '\0';
      use_counter = session->counter != 0;
      start_tick = session->start_tick;
      if (session->magic.load(std::memory_order_acquire) == kMagic &&
          session->version == kVersion && session->closed.load(std::memory_order_relaxed) == 0 &&
          register_process(-1, 0)) {
        mark_forks();
        result = 2;
      }
    }
  }
  if (file >= 0) syscall(SYS_close, file);
  errno = saved;
  attached.store(result, std::memory_order_release);
  return result == 2;
}

// --- Chunks.

void lose(uint64_t events = 1) {
  session->process[my_process].lost.fetch_add(events, std::memory_order_relaxed);
}

// Sleeps until the collector gives a chunk back. Returns null if the collector does not live, or if
// the session is over.
SLOW Chunk* wait_for_chunk() {
  uint64_t beat = session->heartbeat.load(std::memory_order_relaxed);
  unsigned still = 0;
  Chunk* chunk = nullptr;
  session->waiting.fetch_add(1, std::memory_order_seq_cst);
  while (session->closed.load(std::memory_order_relaxed) == 0) {
    const uint32_t seen = session->given_back.load(std::memory_order_seq_cst);
    chunk = take_chunk(session);
    if (chunk != nullptr) break;
    const timespec tenth = {0, 100000000};
    futex(&session->given_back, FUTEX_WAIT, seen, &tenth);
    const uint64_t now = session->heartbeat.load(std::memory_order_relaxed);
    still = now == beat ? still + 100 : 0;
    beat = now;
    if (still >= kGiveUpMs) session->closed.store(1, std::memory_order_relaxed);
  }
  session->waiting.fetch_sub(1, std::memory_order_relaxed);
  return chunk;
}

// Takes a chunk for this thread, and marks it as being written to before any time is read.
Chunk* acquire(Thread& t) {
  if (session->closed.load(std::memory_order_relaxed) != 0) return nullptr;
  Chunk* chunk = take_chunk(session);
  if (chunk == nullptr) chunk = wait_for_chunk();
  if (chunk == nullptr) return nullptr;
  chunk->process = my_process;
  chunk->thread = t.number;
  chunk->tid = t.tid;
  chunk->state.store(1, std::memory_order_relaxed);
  // [hold.release] the collector reads this word first
  chunk->owner.store(kHeldChunk, std::memory_order_seq_cst);
  return chunk;
}

FAST uint64_t ticks() {
  if (LIKELY(use_counter)) return counter() - start_tick;
  return clock_ns() - start_tick;
}

FAST void write_event(Chunk* chunk, uint32_t state, uint64_t kind, const void* pointer, size_t size,
                      const void* site) {
  chunk->state.store(state | 1, std::memory_order_relaxed);
  fence();
  Event& event = chunk->events[state >> 1];
  event.head = ticks() << kTickShift | kind;
  event.site = reinterpret_cast<uint64_t>(site);
  event.pointer = reinterpret_cast<uint64_t>(pointer);
  event.size = size;
  chunk->state.store(state + 2, std::memory_order_release);  // [event.release] the event is whole
}

// The child has one thread, whose chunks are the parent's. If a handler has interrupted hooks and
// forked, these hooks set `mine` to `home`, which is no longer the parent's.
SLOW void enter_child() {
  if (*same_process == 0) *const_cast<volatile uint32_t*>(same_process) = 1;
  Thread& t = thread;
  t.mine = t.home = &full_chunk;
  for (Chunk*& chunk : t.nested) chunk = nullptr;
  t.known = false;
  t.tid = 0;
  if (attached.load(std::memory_order_relaxed) != 2) return;
  const int saved = errno;
  if (session->closed.load(std::memory_order_relaxed) != 0 ||
      !register_process(static_cast<int32_t>(my_process), fork_number))
    attached.store(3, std::memory_order_relaxed);
  fork_number = 0;
  errno = saved;
}

// A handler may interrupt this function, and call it too.
void name_thread(Thread& t) {
  const uint32_t number =
      session->process[my_process].threads.fetch_add(1, std::memory_order_relaxed);
  fence();
  if (t.tid != 0) return;
  t.number = number;
  t.tid = static_cast<uint32_t>(syscall(SYS_gettid));
}

void write_nested(Thread& t, uint64_t kind, const void* pointer, size_t size, const void* site) {
  const int depth = t.depth;
  if (depth >= kNests) return lose();
  t.depth = depth + 1;
  fence();
  const int saved = errno;
  if (t.tid == 0) name_thread(t);
  Chunk* chunk = t.nested[depth];
  if (chunk == nullptr || chunk->state.load(std::memory_order_relaxed) >= kFullState) {
    if (chunk != nullptr) chunk->owner.store(kRetiredChunk, std::memory_order_release);
    t.nested[depth] = nullptr;
    chunk = t.nested[depth] = acquire(t);
  }
  if (chunk != nullptr) {
    write_event(chunk, chunk->state.load(std::memory_order_relaxed) & ~1U, kind, pointer, size,
                site);
  } else {
    lose();
  }
  errno = saved;
  fence();
  t.depth = depth;
}

// `mine` is the chunk that the hook took; the thread's word holds the full chunk.
SLOW void record_slowly(Chunk* mine, uint64_t kind, const void* pointer, size_t size,
                        const void* site) {
  Thread& t = thread;
  const int how = attached.load(std::memory_order_acquire);
  if (how != 2 && (how != 0 || !attach())) return;
  if (UNLIKELY(*same_process == 0)) {
    enter_child();
    mine = &full_chunk;
    if (attached.load(std::memory_order_relaxed) != 2) return;
  }
  if (session->closed.load(std::memory_order_relaxed) != 0) return;
  if (mine == &full_chunk && t.known) return write_nested(t, kind, pointer, size, site);
  const int saved = errno;
  if (!t.known) {
    t.known = true;
    fence();
    name_thread(t);
  } else {
    // [retire.release] the chunk is the collector's
    mine->owner.store(kRetiredChunk, std::memory_order_release);
  }
  t.home = &full_chunk;
  if (Chunk* chunk = acquire(t)) {
    t.home = chunk;
    write_event(chunk, 0, kind, pointer, size, site);
  } else {
    lose();
  }
  fence();
  t.mine = t.home;
  errno = saved;
}

FAST void record(Op op, const void* pointer, size_t size, const void* site,
                 unsigned alignment = 0) {
  const uint64_t kind = static_cast<uint64_t>(alignment) << kOpBits | static_cast<uint64_t>(op);
  Thread& t = thread;
  Chunk* chunk = t.mine;
  t.mine = &full_chunk;
  fence();
  const uint32_t state = chunk->state.load(std::memory_order_relaxed);
  if (UNLIKELY(state >= kFullState || *same_process == 0))
    return record_slowly(chunk, kind, pointer, size, site);
  write_event(chunk, state, kind, pointer, size, site);
  fence();
  t.mine = t.home;
}

unsigned alignment_code(size_t alignment) {
  return alignment == 0 ? 0 : 64U - static_cast<unsigned>(__builtin_clzll(alignment));
}

// --- Fork, exit.

void before_fork() {
  if (attached.load(std::memory_order_relaxed) != 2) return;
  fork_number = session->process[my_process].forks.fetch_add(1, std::memory_order_relaxed) + 1;
  record(Op::kFork, nullptr, fork_number, nullptr);
}
void in_child() { enter_child(); }

SLOW void mark_exit() {
  if (attached.load(std::memory_order_relaxed) != 2 || *same_process == 0) return;
  // The child of a vfork exits in its parent's memory.
  if (static_cast<uint32_t>(getpid()) != session->process[my_process].pid) return;
  const int saved = errno;
  copy_file("/proc/self/maps", ".maps-at-exit");
  session->process[my_process].end.store(kExited, std::memory_order_release);
  errno = saved;
}

__attribute__((constructor)) void on_load() {
  not_ready();
  if (attached.load(std::memory_order_acquire) == 0) attach();
  pthread_atfork(before_fork, nullptr, in_child);
}
__attribute__((destructor)) void on_exit() { mark_exit(); }

// --- The calls.

FAST void* recorded(Op op, void* p, size_t size, const void* site, size_t alignment = 0) {
  record(op, p, size, site, alignment_code(alignment));
  return p;
}

void free_recorded(Op op, void* p, size_t size, const void* site, size_t alignment = 0) {
  if (UNLIKELY(is_early(p) || not_ready())) return;
  record(op, p, size, site, alignment_code(alignment));
  real.free(p);
}

void* move_early(void* p, size_t size) {
  size_t old;
  memcpy(&old, static_cast<char*>(p) - sizeof old, sizeof old);
  void* moved = starting ? early_allocation(size) : malloc(size);
  if (moved != nullptr) memcpy(moved, p, old < size ? old : size);
  return moved;
}

FAST void* realloc_recorded(Op op, void* p, size_t size, const void* site) {
  if (UNLIKELY(not_ready() || is_early(p)))
    return p == nullptr ? early_allocation(size) : move_early(p, size);
  if (p != nullptr) record(Op::kReallocFrom, p, size, site);
  return recorded(op, real.realloc(p, size), size, site);
}

// --- Operators.

template <class Function>
Function* runtime_function(const char* name) {
  void* found = dlsym(RTLD_DEFAULT, name);
  if (found == nullptr) {
    void* library = dlopen("libstdc++.so.6", RTLD_NOW | RTLD_NOLOAD);
    if (library != nullptr) found = dlsym(library, name);
  }
  return reinterpret_cast<Function*>(found);
}

std::new_handler new_handler() {
  auto* get = _ZSt15get_new_handlerv != nullptr
                  ? _ZSt15get_new_handlerv
                  : runtime_function<std::new_handler()>("_ZSt15get_new_handlerv");
  return get != nullptr ? get() : nullptr;
}

[[noreturn]] void throw_bad_alloc() {
  auto* raise = _ZSt17__throw_bad_allocv != nullptr
                    ? _ZSt17__throw_bad_allocv
                    : runtime_function<void()>("_ZSt17__throw_bad_allocv");
  if (raise != nullptr) raise();
  abort();
}

FAST void* allocate_object(size_t size, size_t alignment) {
  if (UNLIKELY(not_ready())) return early_allocation(size, alignment < 16 ? 16 : alignment);
  if (size == 0) size = 1;
  if (alignment == 0) return real.malloc(size);
  return real.aligned_alloc(alignment, (size + alignment - 1) & ~(alignment - 1));
}

// An exception of the handler passes through here.
SLOW void* until_handler_gives_up(Op op, size_t size, size_t alignment, const void* site) {
  for (;;) {
    const std::new_handler handler = new_handler();
    if (handler == nullptr) throw_bad_alloc();
    handler();
    void* p = allocate_object(size, alignment);
    recorded(op, p, size, site, alignment);
    if (p != nullptr) return p;
  }
}

FAST void* new_object(Op op, size_t size, size_t alignment, const void* site) {
  void* p = allocate_object(size, alignment);
  recorded(op, p, size, site, alignment);
  return LIKELY(p != nullptr) ? p : until_handler_gives_up(op, size, alignment, site);
}

// An exception of the handler must be caught here, which only the C++ runtime can do; its function
// calls the throwing form.
template <class... Alignment>
FAST void* new_nothrow(Op op, const char* name, const void* site, size_t size,
                       const std::nothrow_t& tag, Alignment... alignment) {
  const size_t a = (0 + ... + static_cast<size_t>(alignment));
  void* p = recorded(op, allocate_object(size, a), size, site, a);
  if (LIKELY(p != nullptr)) return p;
  if (new_handler() == nullptr) return nullptr;
  void* library = dlopen("libstdc++.so.6", RTLD_NOW | RTLD_NOLOAD);
  using Function = void*(size_t, Alignment..., const std::nothrow_t&);
  auto* theirs = library == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library, name));
  return theirs == nullptr ? nullptr : theirs(size, alignment..., tag);
}

}  // namespace
}  // namespace lanemalloc::trace

using namespace lanemalloc::trace;

extern "C" {

EXPORT void* malloc(size_t size) {
  if (UNLIKELY(not_ready())) return early_allocation(size);
  return recorded(Op::kMalloc, real.malloc(size), size, SITE);
}

EXPORT void free(void* p) { free_recorded(Op::kFree, p, 0, SITE); }

EXPORT void* calloc(size_t count, size_t size) {
  size_t total;
  if (UNLIKELY(__builtin_mul_overflow(count, size, &total))) total = SIZE_MAX;
  if (UNLIKELY(not_ready())) return early_allocation(total);
  return recorded(Op::kCalloc, real.calloc(count, size), total, SITE);
}

EXPORT void* realloc(void* p, size_t size) { return realloc_recorded(Op::kRealloc, p, size, SITE); }

EXPORT void* reallocarray(void* p, size_t count, size_t size) {
  size_t total;
  if (UNLIKELY(__builtin_mul_overflow(count, size, &total))) {
    errno = ENOMEM;
    return nullptr;
  }
  return realloc_recorded(Op::kReallocarray, p, total, SITE);
}

EXPORT void free_sized(void* p, size_t size) { free_recorded(Op::kFreeSized, p, size, SITE); }
EXPORT void free_aligned_sized(void* p, size_t alignment, size_t size) {
  free_recorded(Op::kFreeAlignedSized, p, size, SITE, alignment);
}

EXPORT int posix_memalign(void** result, size_t alignment, size_t size) {
  if (UNLIKELY(not_ready()))
    return (*result = early_allocation(size, alignment)) == nullptr ? ENOMEM : 0;
  void* p = nullptr;
  const int error = real.posix_memalign(&p, alignment, size);
  record(Op::kPosixMemalign, p, size, SITE, alignment_code(alignment));
  if (error == 0) *result = p;
  return error;
}

EXPORT void* memalign(size_t alignment, size_t size) {
  if (UNLIKELY(not_ready())) return early_allocation(size, alignment);
  return recorded(Op::kMemalign, real.memalign(alignment, size), size, SITE, alignment);
}

EXPORT void* aligned_alloc(size_t alignment, size_t size) {
  if (UNLIKELY(not_ready())) return early_allocation(size, alignment);
  return recorded(Op::kAlignedAlloc, real.aligned_alloc(alignment, size), size, SITE, alignment);
}

EXPORT void* valloc(size_t size) {
  if (UNLIKELY(not_ready() || real.valloc == nullptr)) return nullptr;
  return recorded(Op::kValloc, real.valloc(size), size, SITE);
}

EXPORT void* pvalloc(size_t size) {
  if (UNLIKELY(not_ready() || real.pvalloc == nullptr)) return nullptr;
  return recorded(Op::kPvalloc, real.pvalloc(size), size, SITE);
}

EXPORT void cfree(void* p) { free_recorded(Op::kFree, p, 0, SITE); }

#define SAME_AS(name) EXPORT __attribute__((alias(#name), copy(name)))
SAME_AS(malloc) void* __libc_malloc(size_t);
SAME_AS(free) void __libc_free(void*);
SAME_AS(calloc) void* __libc_calloc(size_t, size_t);
SAME_AS(realloc) void* __libc_realloc(void*, size_t);
SAME_AS(memalign) void* __libc_memalign(size_t, size_t);

// These functions exit without destructors.
EXPORT [[noreturn]] void _exit(int status) {
  mark_exit();
  for (;;) syscall(SYS_exit_group, status);
}
EXPORT [[noreturn]] void _Exit(int status) {
  mark_exit();
  for (;;) syscall(SYS_exit_group, status);
}

}  // extern "C"

using std::align_val_t;
using std::nothrow_t;

EXPORT void* operator new(size_t n) { return new_object(Op::kNew, n, 0, SITE); }
EXPORT void* operator new[](size_t n) { return new_object(Op::kNewArray, n, 0, SITE); }
EXPORT void* operator new(size_t n, align_val_t a) {
  return new_object(Op::kNew, n, static_cast<size_t>(a), SITE);
}
EXPORT void* operator new[](size_t n, align_val_t a) {
  return new_object(Op::kNewArray, n, static_cast<size_t>(a), SITE);
}
EXPORT void* operator new(size_t n, const nothrow_t& t) noexcept {
  return new_nothrow(Op::kNewNothrow, "_ZnwmRKSt9nothrow_t", SITE, n, t);
}
EXPORT void* operator new[](size_t n, const nothrow_t& t) noexcept {
  return new_nothrow(Op::kNewArrayNothrow, "_ZnamRKSt9nothrow_t", SITE, n, t);
}
EXPORT void* operator new(size_t n, align_val_t a, const nothrow_t& t) noexcept {
  return new_nothrow(Op::kNewNothrow, "_ZnwmSt11align_val_tRKSt9nothrow_t", SITE, n, t, a);
}
EXPORT void* operator new[](size_t n, align_val_t a, const nothrow_t& t) noexcept {
  return new_nothrow(Op::kNewArrayNothrow, "_ZnamSt11align_val_tRKSt9nothrow_t", SITE, n, t, a);
}

#define DELETE(op, size, alignment) \
  free_recorded(Op::op, p, size, SITE, static_cast<size_t>(alignment))
EXPORT void operator delete(void* p) noexcept { DELETE(kDelete, 0, 0); }
EXPORT void operator delete[](void* p) noexcept { DELETE(kDeleteArray, 0, 0); }
EXPORT void operator delete(void* p, size_t n) noexcept { DELETE(kDeleteSized, n, 0); }
EXPORT void operator delete[](void* p, size_t n) noexcept { DELETE(kDeleteArraySized, n, 0); }
EXPORT void operator delete(void* p, align_val_t a) noexcept { DELETE(kDelete, 0, a); }
EXPORT void operator delete[](void* p, align_val_t a) noexcept { DELETE(kDeleteArray, 0, a); }
EXPORT void operator delete(void* p, size_t n, align_val_t a) noexcept {
  DELETE(kDeleteSized, n, a);
}
EXPORT void operator delete[](void* p, size_t n, align_val_t a) noexcept {
  DELETE(kDeleteArraySized, n, a);
}
EXPORT void operator delete(void* p, const nothrow_t&) noexcept { DELETE(kDeleteNothrow, 0, 0); }
EXPORT void operator delete[](void* p, const nothrow_t&) noexcept {
  DELETE(kDeleteArrayNothrow, 0, 0);
}
EXPORT void operator delete(void* p, align_val_t a, const nothrow_t&) noexcept {
  DELETE(kDeleteNothrow, 0, a);
}
EXPORT void operator delete[](void* p, align_val_t a, const nothrow_t&) noexcept {
  DELETE(kDeleteArrayNothrow, 0, a);
}
