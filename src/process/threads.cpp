// pthread_create as the C library has it. Beside the first other thread of a program it starts the
// scavenger, a thread of ours that returns memory while the program is idle.
// docs/design/0015-a-scavenger-of-the-c-library.md says why this is done here, and in this way.
// Locking: others_lock, for the list of threads and for the state of the scavenger. It is never
// taken in malloc, free or a fork. No function of another library's is called while it is held:
// another library's pthread_create may start threads of its own, and come here again.
//
//   the program's first other thread starts   the scavenger starts just before it
//   the last other thread ends                the scavenger ends first, and is waited for: the
//                                             process has one thread again
//   one may not start (a limit of threads)    the scavenger makes room
//   all others have ended without a word      the scavenger finds out, and ends by itself
//   a child of fork                           has no scavenger until it starts a thread itself
//
// The scavenger is a thread of the C library's like any other: setuid and its kin reach it,
// debuggers show it, exec and exit end it. It is made only inside pthread_create. So no place from
// which malloc may be called (handlers, locks of the C library's, a child by vfork) is ever in the
// way.
#include "process/threads.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <threads.h>
#include <unistd.h>

#include <new>
#include <utility>

#include "core/platform/c_library.h"
#include "process/names.h"

// In a static program this is the C library's own; otherwise it is not there.
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

// Makes the linker of a static program take the C library's __pthread_create, which this file
// needs.
[[gnu::used]] constexpr auto kNeedsThreads = &thrd_create;

Create next_create() {
  static constinit std::atomic<Create> next{nullptr};
  Create create = next.load(std::memory_order_relaxed);
  if (LIKELY(create != nullptr)) return create;
  create = &__pthread_create != nullptr ? &__pthread_create
           : &dlsym != nullptr ? reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"))
                               : nullptr;
  next.store(create, std::memory_order_relaxed);
  return create;
}

pthread_key_t exit_key;   // its value: the thread's slot
pthread_key_t count_key;  // its value: the thread's Other, or main_thread
constinit std::atomic<bool> has_keys{false};

// A thread that pthread_create has started, or is starting, and that has not ended.
struct Other {
  void* (*run)(void*);
  void* argument;
  std::atomic<uint32_t> thread;  // the system's number for it; 0: it does not run yet
  Other* next;
  Other* previous;
};
constinit Other main_thread{};  // is in no list

// Only one thread at a time starts or ends the scavenger. A thread that finds kChanging goes on;
// the one that changes it looks again afterwards.
enum class Ours : uint8_t { kNone, kChanging, kRuns };

constinit pthread_mutex_t others_lock = PTHREAD_MUTEX_INITIALIZER;
constinit Other* first_other = nullptr;
constinit uint32_t others = 0;
// Records of threads that have ended, for threads that start next. If a thread freed its own record
// at its end, the free would go to another lane.
constexpr uint32_t kMostSpares = 64;
constinit Other* first_spare = nullptr;
constinit uint32_t spares = 0;
constinit Ours ours = Ours::kNone;
constinit pthread_t scavenger{};
constinit std::atomic<uint32_t> scavenger_id{0};  // the system's number for it
constinit pid_t home = 0;                         // the process that all this describes
// A thread cannot start while the scavenger runs: true until a thread ends
constinit bool makes_room = false;
constinit std::atomic<bool> main_has_ended{false};

// In milliseconds: when the process got other threads, and when it was alone again.
constinit uint64_t others_since = 0;
constinit uint64_t alone_since = 0;
constinit uint32_t most_others = 0;  // the most at once, since it was alone
// How often in a row the process had others for less than a period of the scavenger's
constinit uint32_t short_times = 0;
constinit uint32_t most_in_them = 0;  // the most at once, in those times

// True in a child, which is another process, as far as the system tells.
bool is_elsewhere() {
  const pid_t now = getpid();
  return now > 0 && now != home;
}

// Holds others_lock. Signals are blocked meanwhile, since handlers may start threads too.
class Guard {
 public:
  Guard() {
    sigset_t all;
    sigfillset(&all);
    // The C library leaves out the signals that its own setuid needs.
    pthread_sigmask(SIG_SETMASK, &all, &mask_);
    // True in a child that has run no fork handlers, or not ours yet.
    is_new_ = is_elsewhere();
    if (UNLIKELY(is_new_) && !sort_out_child_early()) forget_other_threads();
    pthread_mutex_lock(&others_lock);
  }
  Guard(const Guard&) = delete;
  ~Guard() {
    pthread_mutex_unlock(&others_lock);
    pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  }
  // True if the process is a child: the list was another process's, and is empty now.
  bool found_new_process() const { return is_new_; }

 private:
  sigset_t mask_;
  bool is_new_;
};

// The caller of any of these holds others_lock.
void add(Other& other) {
  other.previous = nullptr;
  other.next = first_other;
  if (first_other != nullptr) first_other->previous = &other;
  first_other = &other;
  if (++others == 1) others_since = Linux::now_ms(), most_others = 0;
  if (others > most_others) most_others = others;
}
void remove(Other& other) {
  (other.previous != nullptr ? other.previous->next : first_other) = other.next;
  if (other.next != nullptr) other.next->previous = other.previous;
  makes_room = false;
  if (--others != 0) return;
  const uint64_t now = Linux::now_ms();
  alone_since = now;
  if (now - others_since >= process_engine.world().scavenger.period_ms()) {
    short_times = most_in_them = 0;
    return;
  }
  ++short_times;
  if (most_others > most_in_them) most_in_them = most_others;
}

// Null: there is none.
Other* take_spare() {
  Other* other = first_spare;
  if (other != nullptr) first_spare = other->next, --spares;
  return other;
}
// False: there are enough.
bool keep(Other& other) {
  if (spares == kMostSpares) return false;
  other.next = first_spare;
  first_spare = &other;
  ++spares;
  return true;
}

// Takes those threads out of the list that have ended by the raw system call, without a word.
// others_lock is not held.
void remove_those_gone() {
  Other* gone = nullptr;
  {
    const Guard guard;
    for (Other *other = first_other, *next; other != nullptr; other = next) {
      next = other->next;
      const uint32_t thread = other->thread.load(std::memory_order_relaxed);
      if (thread == 0 || !Linux::thread_is_gone(thread)) continue;
      remove(*other);
      other->next = gone;
      gone = other;
    }
  }
  while (gone != nullptr) LANE_NAME(free)(std::exchange(gone, gone->next));
}

// The scavenger calls this when the others are gone, so that no thread will end it. True: it ends.
// False: there are others again.
bool leaves() {
  const Guard guard;
  if (ours != Ours::kRuns) return true;  // a thread waits for its end
  if (others != 0) {
    process_engine.upkeep().begins();
    return false;
  }
  pthread_detach(pthread_self());
  process_engine.upkeep().is_gone();
  ours = Ours::kNone;
  return true;
}

void* scavenge(void*) {
  // What the C library frees for this thread at its end is no reason for a lane of its own.
  thread_slot.store(&exited_gate, std::memory_order_relaxed);
  scavenger_id.store(Linux::thread_id(), std::memory_order_relaxed);
  set_own_cpus();
  do process_engine.upkeep().scavenge();
  while (!leaves());
  return nullptr;
}

// The C library puts thread-local storage into a thread's stack.
size_t least_stack(const pthread_attr_t& attributes) {
  MinStack least = linked_minstack();
  if (least == nullptr && &dlsym != nullptr)
    least = reinterpret_cast<MinStack>(dlsym(RTLD_DEFAULT, "__pthread_get_minstack"));
  if (least != nullptr) return least(&attributes);
  const long told = sysconf(_SC_THREAD_STACK_MIN);
  return told > 0 ? static_cast<size_t>(told) : 0;
}

// The scavenger runs wherever the process may, and as an ordinary thread, whatever the caller has
// chosen for itself.
bool set_attributes(pthread_attr_t& attributes) {
  cpu_set_t cpus;
  if (sched_getaffinity(getpid(), sizeof cpus, &cpus) == 0 && !set_cpus(attributes, cpus))
    return false;
  return pthread_attr_setinheritsched(&attributes, PTHREAD_EXPLICIT_SCHED) == 0;
}

// Uses a small stack, unless the C library finds that too small.
int create_scavenger(pthread_attr_t& attributes) {
  constexpr size_t kOwnStack = 64 << 10;
  size_t usual = 0;
  int result = pthread_attr_getstacksize(&attributes, &usual);
  if (result == 0)
    result = pthread_attr_setstacksize(&attributes, kOwnStack + least_stack(attributes));
  if (result == 0) result = next_create()(&scavenger, &attributes, scavenge, nullptr);
  if (result == EINVAL && pthread_attr_setstacksize(&attributes, usual) == 0)
    result = next_create()(&scavenger, &attributes, scavenge, nullptr);
  return result;
}

// False: the scavenger cannot start now.
bool start_scavenger() {
  sigset_t all, mask;
  sigfillset(&all);
  if (pthread_sigmask(SIG_SETMASK, &all, &mask) != 0) return false;
  process_engine.upkeep().begins();
  int result = EAGAIN;
  if (pthread_attr_t attributes; pthread_attr_init(&attributes) == 0) {
    if (set_attributes(attributes)) result = create_scavenger(attributes);
    pthread_attr_destroy(&attributes);
  }
  if (result != 0) result = next_create()(&scavenger, nullptr, scavenge, nullptr);
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  if (result != 0) process_engine.upkeep().is_gone();
  return result == 0;
}

// Afterwards the kernel does not count the thread any more, either.
void end_scavenger() {
  constexpr int kMostLooks = 10000;  // if the system does not tell
  process_engine.world().scavenger.stop();
  pthread_join(scavenger, nullptr);
  for (int i = 0;
       i < kMostLooks && !Linux::thread_is_gone(scavenger_id.load(std::memory_order_relaxed)); ++i)
    sched_yield();
  process_engine.upkeep().is_gone();
}

// A program may start one thread after the other, each soon gone, or several at once, again and
// again. It would pay for a scavenger each time. After some such times the scavenger starts only
// once there are more threads at once than in any of them, or if a thread starts or ends a period
// later. Until then frees give memory back. Several threads may be workers that stay: for them it
// takes more such times.
bool is_worth_while() {
  constexpr uint32_t kSome = 8;
  constexpr uint32_t kMany = 64;
  return others > most_in_them || short_times < (others == 1 ? kSome : kMany) ||
         Linux::now_ms() - alone_since >= process_engine.world().scavenger.period_ms();
}

// Whether the caller must start or end the scavenger.
enum class Step : uint8_t { kNone, kStart, kEnd };
Step next_step(const Guard&) {
  Step step = Step::kNone;
  if (ours == Ours::kNone && others != 0 && !makes_room &&
      process_engine.world().scavenger.period_ms() != 0 && is_worth_while())
    step = Step::kStart;
  if (ours == Ours::kRuns && others == 0) step = Step::kEnd;
  if (step != Step::kNone) ours = Ours::kChanging;
  return step;
}
void became(Ours state) {
  const Guard guard;
  ours = state;
}

// Takes the step, and then those that have become due meanwhile. others_lock is not held.
void take(Step step) {
  while (step != Step::kNone) {
    bool runs = false;
    if (step == Step::kEnd) {
      end_scavenger();
    } else if (!(runs = start_scavenger())) {
      return became(Ours::kNone);  // until the next thread starts or ends
    }
    const Guard guard;
    ours = runs ? Ours::kRuns : Ours::kNone;
    step = next_step(guard);
  }
}

// change(guard) returns false if the scavenger is not to be looked after.
template <class Change>
void look_after_ours(Change change) {
  const int saved = errno;
  int state;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  Step step = Step::kNone;
  {
    const Guard guard;
    if (change(guard)) step = next_step(guard);
  }
  if (UNLIKELY(step != Step::kNone)) take(step);
  pthread_setcancelstate(state, nullptr);
  errno = saved;
}

// If the number of threads is limited, the scavenger must not be the one too many. False: it was
// not.
bool make_room() {
  {
    const Guard guard;
    if (ours != Ours::kRuns) return false;
    // Without the scavenger, too, there would be more than are allowed.
    if (rlimit limit; getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur < others + 1)
      return false;
    ours = Ours::kChanging;
    makes_room = true;
  }
  int state;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  end_scavenger();
  became(Ours::kNone);
  pthread_setcancelstate(state, nullptr);
  return true;
}

// Null: there is no memory.
Other* begin(void* (*run)(void*), void* argument) {
  Other* other = nullptr;
  const auto list = [&](const Guard&) {
    if (other == nullptr && (other = take_spare()) == nullptr) return false;
    add(*new (other) Other{run, argument, 0, nullptr, nullptr});
    return true;
  };
  look_after_ours(list);
  if (UNLIKELY(other == nullptr)) {
    other = static_cast<Other*>(LANE_NAME(malloc)(sizeof(Other)));
    if (other != nullptr) look_after_ours(list);
  }
  return other;
}
void end(Other& other) {
  bool is_kept = false;
  look_after_ours([&](const Guard& guard) {
    // It was in the list that has been freed
    if ((is_kept = guard.found_new_process())) return false;
    remove(other);
    is_kept = keep(other);
    return true;
  });
  if (!is_kept) LANE_NAME(free)(&other);
}

// The keys' destructors run after the destructors of C++ thread_local objects. What other keys'
// destructors free or allocate later goes to the overflow lanes.
void thread_ends(void* slot) { process_engine.exits().thread_exits(*static_cast<Slot*>(slot)); }
void other_ends(void* given) {
  auto& other = *static_cast<Other*>(given);
  if (&other != &main_thread) return end(other);
  // The threads that are left may end without a word, and the process with them. So from now on the
  // scavenger looks each time.
  main_has_ended.store(true, std::memory_order_relaxed);
  process_engine.world().scavenger.poke();
}

void* thread_starts(void* given) {
  auto& other = *static_cast<Other*>(given);
  const auto run = other.run;
  void* const argument = other.argument;
  other.thread.store(Linux::thread_id(), std::memory_order_relaxed);
  watch_end_of_thread();
  if (pthread_setspecific(count_key, &other) != 0) end(other);  // nothing would tell of its end
  return run(argument);
}

// The scavenger calls this at each pass. True: it must look again.
bool others_may_be_gone() {
  remove_those_gone();
  const Guard guard;
  if (others == 0 && ours == Ours::kRuns) process_engine.world().scavenger.stop();
  return main_has_ended.load(std::memory_order_relaxed);
}

}  // namespace

bool make_thread_keys() {
  if (pthread_key_create(&exit_key, thread_ends) != 0) return false;
  if (pthread_key_create(&count_key, other_ends) != 0) return true;
  has_keys.store(true, std::memory_order_release);
  home = getpid();
  if (Linux::thread_id() == static_cast<uint32_t>(home))
    pthread_setspecific(count_key, &main_thread);
  process_engine.upkeep().set_watch(others_may_be_gone);
  return true;
}

bool watch_end(Slot& slot) { return pthread_setspecific(exit_key, &slot) == 0; }

void watch_end_of_thread() {
  if (has_keys.load(std::memory_order_acquire)) watch_end(thread_slot);
}

void look_after_scavenger() {
  look_after_ours([](const Guard&) { return true; });
}

void forget_other_threads() {
  process_engine.upkeep().is_gone();
  // False: a thread that is not in this process was changing the list.
  const bool is_whole = pthread_mutex_trylock(&others_lock) == 0;
  others_lock = PTHREAD_MUTEX_INITIALIZER;
  Other* list = is_whole ? first_other : nullptr;
  if (!is_whole) first_spare = nullptr, spares = 0;
  first_other = nullptr;
  others = 0;
  ours = Ours::kNone;
  makes_room = false;
  home = getpid();
  main_has_ended.store(false, std::memory_order_relaxed);
  if (has_keys.load(std::memory_order_acquire)) pthread_setspecific(count_key, &main_thread);
  while (list != nullptr) LANE_NAME(free)(std::exchange(list, list->next));
}

}  // namespace lanemalloc

using namespace lanemalloc;

extern "C" EXPORT int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                                     void* (*run)(void*), void* argument) noexcept {
  const Create create = next_create();
  if (create == nullptr) return ENOSYS;
  // A child that has its parent's memory (vfork) must not change what is true of the parent.
  const bool is_guest =
      thread_slot.load(std::memory_order_relaxed) == &exited_gate && is_elsewhere();
  Other* other = nullptr;
  if (!is_guest && start_process() && has_keys.load(std::memory_order_acquire))
    other = begin(run, argument);
  if (other == nullptr) return create(thread, attributes, run, argument);
  int result = create(thread, attributes, thread_starts, other);
  if (UNLIKELY(result == EAGAIN) && make_room())
    result = create(thread, attributes, thread_starts, other);
  if (result != 0) end(*other);
  return result;
}
