// Signal handlers allocate, resize and free, and they free objects of the code that they interrupt,
// while threads exchange objects. Three signals nest: SIGALRM (process timer), SIGUSR1 (a timer for
// each thread), SIGUSR2 (pthread_kill from a thread of its own). Checked: contents, zeroed calloc,
// errno, and that every case ends.
// Run by: tests/stress/run.sh.
#include <sys/time.h>

#include "stress.h"

namespace {
using namespace stress;

constexpr int kSignals[] = {SIGALRM, SIGUSR1, SIGUSR2};
constexpr int kKinds = 3;
constexpr size_t kLargest = 256 * kKiB;
constexpr size_t kSlots = 48;

// The state of a thread and of the handlers that run in it. A handler does not interrupt a handler
// of its own kind, so held[kind] has one user. Slots have a try-lock, so a handler passes by a slot
// that the interrupted code holds.
struct alignas(128) ThreadState {
  Random random[kKinds + 1];
  Tags tags[kKinds + 1];
  SharedSlot slots[kSlots];
  Owned held[kKinds][6];
  uint64_t interrupted = 0;  // handlers that found the thread inside a handler of another kind
  int depth = 0;
};

SharedSlot g_shared[128];
thread_local ThreadState* t_state = nullptr;
std::atomic<uint64_t> g_handled[kKinds];
std::atomic<uint64_t> g_nested{0};
std::atomic<bool> g_stop{false};

Owned allocate(Random& random, Tags& tags) {
  size_t size = random_size(random, kLargest);
  uint64_t r = random.below(10);
  if (r < 5) return take(size, tags.next());
  void* p = nullptr;
  if (r < 8) {
    p = api::calloc(1, size);
    if (p != nullptr) check_zero(static_cast<unsigned char*>(p), size, "calloc");
  } else if (r < 9) {
    p = api::memalign(64, size);
  } else {
    p = api::realloc(nullptr, size);
  }
  EXPECT(p != nullptr, "%zu bytes: %s", size, strerror(errno));
  Owned o{static_cast<unsigned char*>(p), size, tags.next()};
  fill(o);
  return o;
}

void resize(Owned& o, Random& random, Tags& tags, const char* where) {
  check(o, where);
  size_t size = random_size(random, kLargest);
  void* p = api::realloc(o.address, size);
  EXPECT(p != nullptr, "realloc(%zu): %s", size, strerror(errno));
  o.address = static_cast<unsigned char*>(p);
  check_prefix(o, size < o.size ? size : o.size, where);
  o.size = size;
  o.tag = tags.next();
  fill(o);
}

void on_signal(int number) {
  int kind = number == SIGALRM ? 0 : number == SIGUSR1 ? 1 : 2;
  g_handled[kind].fetch_add(1, std::memory_order_relaxed);
  ThreadState* state = t_state;
  if (state == nullptr) {  // a thread that starts or ends, or the sender
    Owned o = take(48 + static_cast<size_t>(kind) * 100, 0x51);
    give(o, "handler without state");
    return;
  }
  int saved = errno;
  if (state->depth++ > 0) g_nested.fetch_add(1, std::memory_order_relaxed);
  Random& random = state->random[kind];
  Tags& tags = state->tags[kind];
  Owned& held = state->held[kind][random.below(std::size(state->held[kind]))];
  if (held.address == nullptr) {
    held = allocate(random, tags);
  } else if (random.percent(30)) {
    resize(held, random, tags, "handler, realloc");
  } else {
    check(held, "handler, free");
    errno = 1234;
    api::free(held.address);
    EXPECT(errno == 1234, "free changed errno to %d", errno);
    held = {};
  }
  // An object of the interrupted code
  SharedSlot& slot = state->slots[random.below(kSlots)];
  if (slot.try_lock()) {
    if (slot.object.address != nullptr)
      give(slot.object, "handler, object of the interrupted thread");
    else
      slot.object = allocate(random, tags);
    slot.unlock();
  }
  if (random.percent(25)) g_shared[random.below(std::size(g_shared))].swap(held);
  state->depth--;
  errno = saved;
}

void ordinary_work(ThreadState& state, int operations) {
  Random& random = state.random[kKinds];
  Tags& tags = state.tags[kKinds];
  for (int i = 0; i < operations; i++) {
    SharedSlot& slot = state.slots[random.below(kSlots)];
    if (!slot.try_lock()) FAIL("a handler left a slot busy");
    Owned& o = slot.object;
    if (o.address == nullptr)
      o = allocate(random, tags);
    else if (random.percent(25))
      resize(o, random, tags, "realloc");
    else if (random.percent(40))
      g_shared[random.below(std::size(g_shared))].swap(o);
    else
      give(o, "free");
    slot.unlock();
  }
}

uint64_t handled() {
  uint64_t sum = 0;
  for (auto& n : g_handled) sum += n.load(std::memory_order_relaxed);
  return sum;
}

struct Sources {
  bool process_timer, thread_timer, sender, alternate_stack;
};

void install(const Sources& sources) {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART | (sources.alternate_stack ? SA_ONSTACK : 0);
  for (int number : kSignals) sigaction(number, &action, nullptr);
}

// The timer of one thread, which sends it SIGUSR1 about every 100 µs. It uses system calls, since
// wrappers may allocate.
class ThreadTimer {
 public:
  explicit ThreadTimer(bool wanted) : wanted_(wanted) {
    if (!wanted_) return;
    sigevent event = {};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGUSR1;
    event._sigev_un._tid = thread_id();
    EXPECT(syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timer_) == 0, "timer_create: %s",
           strerror(errno));
    itimerspec when = {{0, 97000}, {0, 97000}};
    syscall(SYS_timer_settime, timer_, 0, &when, nullptr);
  }
  ~ThreadTimer() {
    if (wanted_) syscall(SYS_timer_delete, timer_);
  }

 private:
  bool wanted_;
  int timer_ = 0;
};

void set_process_timer(bool on) {
  itimerval when = {{0, on ? 113 : 0}, {0, on ? 113 : 0}};
  setitimer(ITIMER_REAL, &when, nullptr);
}

// Works under signals until `target` handlers have run in the process.
void work_under_signals(const Sources& sources, uint64_t stream, uint64_t target) {
  static std::atomic<int> next_state{0};
  static auto* states = static_cast<unsigned char*>(map_pages(sizeof(ThreadState) * 8192));
  auto* state = new (states + sizeof(ThreadState) * static_cast<size_t>(next_state.fetch_add(1)))
      ThreadState();
  for (int i = 0; i <= kKinds; i++)
    state->random[i] = Random(stream * 8 + static_cast<uint64_t>(i));
  stack_t stack = {};
  if (sources.alternate_stack) {
    stack.ss_size = 256 * kKiB;
    stack.ss_sp = map_pages(stack.ss_size);
    sigaltstack(&stack, nullptr);
  }
  t_state = state;
  {
    ThreadTimer timer(sources.thread_timer);
    while (!g_stop.load(std::memory_order_relaxed) && handled() < target) {
      ordinary_work(*state, 100);
      stage("handled so far", handled());
    }
  }
  // Late signals find no state and use an object of their own.
  t_state = nullptr;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  for (SharedSlot& slot : state->slots)
    if (slot.object.address != nullptr) give(slot.object, "end of thread");
  for (auto& kind : state->held)
    for (Owned& o : kind)
      if (o.address != nullptr) give(o, "end of thread, of a handler");
  if (sources.alternate_stack) {
    stack_t none = {};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
    munmap(stack.ss_sp, stack.ss_size);
  }
}

void finish() {
  set_process_timer(false);
  for (SharedSlot& slot : g_shared)
    if (slot.object.address != nullptr) give(slot.object, "at the end");
  NOTE("%llu handlers (SIGALRM %llu, SIGUSR1 %llu, SIGUSR2 %llu), %llu of them nested",
       llu(handled()), llu(g_handled[0].load()), llu(g_handled[1].load()), llu(g_handled[2].load()),
       llu(g_nested));
}

// The process has one thread. What the allocator does without atomics then must still bear an
// interruption by a handler.
void single_thread() {
  Sources sources{true, true, false, false};
  install(sources);
  set_process_timer(true);
  work_under_signals(sources, 1, scaled(30000));
  finish();
}

void threads(const Sources& sources, int count, uint64_t target) {
  install(sources);
  constexpr int kMost = 16;
  pthread_t targets[kMost];
  std::atomic<int> alive{0};
  if (sources.process_timer) set_process_timer(true);
  run_threads(count + (sources.sender ? 1 : 0), [&](int index) {
    if (index < count) {
      targets[index] = pthread_self();
      alive.fetch_add(1);
      work_under_signals(sources, 10 + static_cast<uint64_t>(index), target);
      alive.fetch_sub(1);
      while (sources.sender && !g_stop.load()) sched_yield();  // stay a valid target
      return;
    }
    while (alive.load() < count && handled() < target) sched_yield();
    while (handled() < target) {
      for (int i = 0; i < count; i++) pthread_kill(targets[i], SIGUSR2);
      pause_for(60e-6);
    }
    g_stop = true;
  });
  finish();
}

// Threads start and end under signals, so that handlers meet threads without a lane, and lanes that
// are being given back.
void births() {
  Sources sources{true, true, false, false};
  install(sources);
  set_process_timer(true);
  uint64_t target = scaled(20000), before = 0;
  for (uint64_t wave = 0; wave < 1500 && handled() < target; wave++) {
    stage("waves", wave);
    before = handled();
    run_threads(4, [&](int index) {
      work_under_signals(sources, wave * 4 + static_cast<uint64_t>(index), before + 30);
    });
  }
  finish();
}
}  // namespace

int main(int argc, char** argv) {
  static const Case cases[] = {
      {"single-thread", single_thread},
      {"process-timer", [] { threads({true, false, false, false}, 4, scaled(30000)); }},
      {"thread-timers", [] { threads({false, true, false, false}, 4, scaled(40000)); }},
      {"nested", [] { threads({true, true, true, false}, 4, scaled(50000)); }},
      {"alternate-stack", [] { threads({true, true, true, true}, 4, scaled(40000)); }},
      {"births", births},
  };
  return run_cases("signals", argc, argv, cases);
}
