// pthread_create as the C library has it; and beside the first thread that a program starts one of ours, which returns memory while the
// program is idle. Why here, and so: docs/design/0015-a-scavenger-of-the-c-library.md.
// Locking: others_lock, for starting and ending our thread; never taken in malloc, free or a fork.
//
//   the program's first other thread starts   ours starts just before it
//   the last one ends                         ours ends first, and is waited for: the process has one thread again
//   a child of fork                           has none, until it starts a thread itself
//
// It is a thread of the C library's like any other: setuid and its kin reach it, debuggers show it, exec and exit end it. It is only
// ever made inside pthread_create, so nothing that malloc may be called from (handlers, locks of the C library's, a child by vfork)
// is ever in the way.
#include "abi/threads.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <threads.h>
#include <unistd.h>

// In a static program the C library's own; else not there.
extern "C" int __pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)
    __attribute__((weak));
extern "C" void* dlsym(void*, const char*) noexcept __attribute__((weak));
#if defined(LANEMALLOC_PREFIXED)
extern "C" void* LANE_NAME(malloc)(size_t);
extern "C" void LANE_NAME(free)(void*);
#endif

namespace lanemalloc {
namespace {

using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);

// Has the linker of a static program take the C library's __pthread_create, which this needs.
[[gnu::used]] constexpr auto kNeedsThreads = &thrd_create;

Create next_create() {
  static constinit std::atomic<Create> next{nullptr};
  Create create = next.load(std::memory_order_relaxed);
  if (LIKELY(create != nullptr)) return create;
  create = &__pthread_create != nullptr ? &__pthread_create
           : &dlsym != nullptr          ? reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"))
                                        : nullptr;
  next.store(create, std::memory_order_relaxed);
  return create;
}

pthread_key_t exit_key;   // its value: the thread's slot
pthread_key_t count_key;  // its value: not null, of a thread that counts among `others`
constinit std::atomic<bool> has_keys{false};

constinit pthread_mutex_t others_lock = PTHREAD_MUTEX_INITIALIZER;
constinit uint32_t others =
    0;  // threads that pthread_create has started, or is starting, and that have not ended
constinit pthread_t scavenger{};
constinit std::atomic<uint32_t> scavenger_id{0};  // with the system

// Milliseconds: when the process came to have other threads, and when it was alone again.
constinit uint64_t others_since = 0;
constinit uint64_t alone_since = 0;
constinit uint32_t short_times = 0;  // in a row that it had others for less than a period of the scavenger's

void* scavenge(void*) {
  // What the C library frees for it at its end is no reason for a lane of its own.
  thread_slot.store(&exited_gate, std::memory_order_relaxed);
  scavenger_id.store(Linux::thread_id(), std::memory_order_relaxed);
  process_engine.scavenge();
  return nullptr;
}

// It runs wherever the process may, and as an ordinary thread, whatever the caller has chosen for itself.
bool set_attributes(pthread_attr_t& attributes) {
  cpu_set_t cpus;
  if (sched_getaffinity(getpid(), sizeof cpus, &cpus) == 0 &&
      pthread_attr_setaffinity_np(&attributes, sizeof cpus, &cpus) != 0)
    return false;
  return pthread_attr_setinheritsched(&attributes, PTHREAD_EXPLICIT_SCHED) == 0;
}

// With a small stack, unless the program's thread-local storage, which lies there too, leaves no room on it.
int create_scavenger(pthread_attr_t& attributes) {
  constexpr size_t kOwnStack = 64 << 10;
  const long least = sysconf(_SC_THREAD_STACK_MIN);
  size_t usual = 0;
  int result = pthread_attr_getstacksize(&attributes, &usual);
  if (result == 0)
    result = pthread_attr_setstacksize(&attributes, kOwnStack + static_cast<size_t>(least > 0 ? least : 0));
  if (result == 0) result = next_create()(&scavenger, &attributes, scavenge, nullptr);
  if (result == EINVAL && pthread_attr_setstacksize(&attributes, usual) == 0)
    result = next_create()(&scavenger, &attributes, scavenge, nullptr);
  return result;
}

// others_lock is held.
void start_scavenger() {
  sigset_t all, mask;
  sigfillset(&all);
  // The C library leaves out of this what its own setuid needs.
  if (pthread_sigmask(SIG_SETMASK, &all, &mask) != 0) return;
  process_engine.scavenger_begins();
  int result = EAGAIN;
  if (pthread_attr_t attributes; pthread_attr_init(&attributes) == 0) {
    if (set_attributes(attributes)) result = create_scavenger(attributes);
    pthread_attr_destroy(&attributes);
  }
  if (result != 0) result = next_create()(&scavenger, nullptr, scavenge, nullptr);
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  if (result != 0) process_engine.scavenger_is_gone();  // until the next thread starts or ends
}

// others_lock is held. Afterwards the kernel does not count it any more either.
void end_scavenger() {
  constexpr int kMostLooks = 10000;  // where the system does not tell
  process_engine.stop_scavenger();
  pthread_join(scavenger, nullptr);
  for (int i = 0; i < kMostLooks && !Linux::thread_is_gone(scavenger_id.load(std::memory_order_relaxed)); ++i)
    sched_yield();
  process_engine.scavenger_is_gone();
}

// A program that starts one thread after the other, each soon gone, would pay for one of ours each time. After some of them the next is
// taken to be another one: until it is not alone, or the next one starts, frees give memory back.
bool is_worth_while(uint64_t now) {
  constexpr uint32_t kSome = 8;
  return others != 1 || short_times < kSome || now - alone_since >= process_engine.scavenger_period_ms();
}

// By so many there are more or fewer other threads.
void count_others(int more) {
  const int saved = errno;
  int state;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  pthread_mutex_lock(&others_lock);
  const uint64_t now = Linux::now_ms();
  others += static_cast<uint32_t>(more);
  const bool is_there = process_engine.has_scavenger();
  if (others != 0 && !is_there && process_engine.scavenger_period_ms() != 0 && is_worth_while(now))
    start_scavenger();
  if (others == 0 && is_there) end_scavenger();
  if (others == 0 && more < 0) {
    short_times = now - others_since < process_engine.scavenger_period_ms() ? short_times + 1 : 0;
    alone_since = now;
  }
  if (others == 1 && more > 0) others_since = now;
  pthread_mutex_unlock(&others_lock);
  pthread_setcancelstate(state, nullptr);
  errno = saved;
}

// The keys' destructors run after the destructors of C++ thread_local objects; what other keys' destructors free or allocate later goes
// to the overflow lanes.
void thread_ends(void* slot) { process_engine.thread_exits(*static_cast<Slot*>(slot)); }
void other_ends(void*) { count_others(-1); }

struct Start {
  void* (*run)(void*);
  void* argument;
};

void* thread_starts(void* given) {
  const Start start = *static_cast<Start*>(given);
  LANE_NAME(free)(given);
  watch_end_of_thread();
  if (pthread_setspecific(count_key, &others) != 0) count_others(-1);  // nobody would tell of its end
  return start.run(start.argument);
}

}  // namespace

bool make_thread_keys() {
  if (pthread_key_create(&exit_key, thread_ends) != 0) return false;
  if (pthread_key_create(&count_key, other_ends) == 0) has_keys.store(true, std::memory_order_release);
  return true;
}

bool watch_end(Slot& slot) { return pthread_setspecific(exit_key, &slot) == 0; }

void watch_end_of_thread() {
  if (has_keys.load(std::memory_order_acquire)) watch_end(thread_slot);
}

void look_after_scavenger() { count_others(0); }

void forget_other_threads() {
  others_lock = PTHREAD_MUTEX_INITIALIZER;
  others = 0;
  if (has_keys.load(std::memory_order_acquire)) pthread_setspecific(count_key, nullptr);
}

}  // namespace lanemalloc

using namespace lanemalloc;

extern "C" EXPORT int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                                     void* argument) noexcept {
  const Create create = next_create();
  if (create == nullptr) return ENOSYS;
  Start* start = nullptr;
  if (start_process() && has_keys.load(std::memory_order_acquire))
    start = static_cast<Start*>(LANE_NAME(malloc)(sizeof(Start)));
  if (start == nullptr) return create(thread, attributes, run, argument);
  *start = {run, argument};
  count_others(1);
  const int result = create(thread, attributes, thread_starts, start);
  if (result != 0) {
    count_others(-1);
    LANE_NAME(free)(start);
  }
  return result;
}
