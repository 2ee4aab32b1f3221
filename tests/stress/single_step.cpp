// A signal handler at every instruction of malloc, calloc, realloc and free: the trap flag makes the processor raise
// SIGTRAP after each instruction, and the handler allocates, frees, or forks. Whatever window between two
// instructions is unsafe, this meets it. Checked: contents of all objects, of the code and of the handlers; children's exit
// statuses; that each operation ends. Steps are counted and printed.
// Run by: tests/stress/run.sh. x86-64 only; skipped elsewhere.
#include <semaphore.h>
#include <ucontext.h>

#include "stress.h"

namespace {
using namespace stress;

#if defined(__x86_64__)
constexpr long kTrapFlag = 0x100;
constexpr uint64_t kMostSteps = 20'000'000;  // in one operation; more is an endless loop

// The jump over 128 bytes spares the red zone.
#define STEP_BEGIN()                                                                                      \
  asm volatile("lea -128(%%rsp), %%rsp\n pushfq\n orq $0x100, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp" :: \
                   : "memory", "cc")
#define STEP_END()                                                                                          \
  asm volatile("lea -128(%%rsp), %%rsp\n pushfq\n andq $~0x100, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp" :: \
                   : "memory", "cc")

using Handler = void (*)(greg_t* registers);
Handler g_handler;
uint64_t g_steps = 0;      // in all
uint64_t g_operation = 0;  // steps of this operation
uint64_t g_operations = 0;
uint64_t g_longest = 0;
uint64_t g_cut = 0;  // operations that started a thread or process: not stepped to their end
uint64_t g_forks = 0;
size_t g_size = 0;  // what the interrupted code works on
bool g_child = false;

// SIGTRAP while it is blocked ends the process. So a system call that blocks it is done here, without SIGTRAP; one
// that starts a thread ends the stepping of this operation, since the new thread would inherit the trap flag.
bool at_system_call(greg_t* r, ucontext_t* context) {
  const auto* code = reinterpret_cast<const unsigned char*>(r[REG_RIP]);
  if (code[0] != 0x0f || code[1] != 0x05) return false;
  long number = r[REG_RAX];
  if (number == SYS_clone || number == SYS_clone3 || number == SYS_fork || number == SYS_vfork ||
      number == SYS_exit) {
    r[REG_EFL] &= ~kTrapFlag;
    g_cut++;
    return true;
  }
  if (number != SYS_rt_sigprocmask || r[REG_RSI] == 0) return false;
  uint64_t wanted, mask, trap = uint64_t{1} << (SIGTRAP - 1);
  memcpy(&wanted, reinterpret_cast<void*>(r[REG_RSI]), sizeof wanted);
  memcpy(&mask, &context->uc_sigmask, sizeof mask);
  if (r[REG_RDX] != 0) memcpy(reinterpret_cast<void*>(r[REG_RDX]), &mask, sizeof mask);
  mask = r[REG_RDI] == SIG_BLOCK ? mask | wanted : r[REG_RDI] == SIG_UNBLOCK ? mask & ~wanted : wanted;
  mask &= ~trap;
  memcpy(&context->uc_sigmask, &mask, sizeof mask);
  r[REG_RAX] = 0;
  r[REG_RIP] += 2;
  return true;
}

// A rep movs or stos traps after each element. All but the last few are done here at once.
void hurry_string_instruction(greg_t* r) {
  const auto* code = reinterpret_cast<const unsigned char*>(r[REG_RIP]);
  if (code[0] != 0xf3 || r[REG_RCX] <= 8) return;
  bool wide = code[1] == 0x48;
  unsigned char operation = code[wide ? 2 : 1];
  bool copies = operation == 0xa4 || operation == 0xa5, stores = operation == 0xaa || operation == 0xab;
  if (!copies && !stores) return;
  greg_t count = r[REG_RCX] - 8, bytes = operation % 2 == 0 ? count : wide ? count * 8 : count * 4;
  if (operation % 2 != 0 && !wide) return;
  void* to = reinterpret_cast<void*>(r[REG_RDI]);
  greg_t left = count;
  if (copies) {
    const void* from = reinterpret_cast<const void*>(r[REG_RSI]);
    left = bytes;
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(left)::"memory");
    r[REG_RSI] += bytes;
  } else if (wide) {
    asm volatile("rep stosq" : "+D"(to), "+c"(left) : "a"(r[REG_RAX]) : "memory");
  } else {
    asm volatile("rep stosb" : "+D"(to), "+c"(left) : "a"(r[REG_RAX]) : "memory");
  }
  r[REG_RDI] += bytes;
  r[REG_RCX] = 8;
}

// A signal inside a restartable sequence sends it back to its start, so stepping alone never gets through one: what the
// code does when it has come through would never be stepped. So two of three times the sequence runs without steps, as far
// as a breakpoint behind its last instruction. (If it leaves on another way, the rest of the operation is not stepped.)
struct Sequence {
  uint32_t version, flags;
  uint64_t start, length, aborted;
};
uint64_t g_sequences = 0;  // met
uint64_t g_passed = 0;     // and run to their end
unsigned char* g_breakpoint = nullptr;
unsigned char g_replaced;

// The instruction that is to be executed next stores the address of a sequence: mov %register, %fs:8(%register).
const Sequence* sequence_at(const greg_t* r) {
  const auto* code = reinterpret_cast<const unsigned char*>(r[REG_RIP]);
  if (code[0] != 0x64 || (code[1] & 0xf8) != 0x48 || code[2] != 0x89 || code[3] >> 6 != 1 || code[4] != 8)
    return nullptr;
  static constexpr int kRegisters[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                       REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                       REG_R12, REG_R13, REG_R14, REG_R15};
  const auto address = static_cast<uintptr_t>(r[kRegisters[(code[1] & 4) << 1 | (code[3] >> 3 & 7)]]);
  return address % 32 == 0 ? reinterpret_cast<const Sequence*>(address) : nullptr;
}
void remove_breakpoint() {
  if (g_breakpoint != nullptr) *g_breakpoint = g_replaced;
  g_breakpoint = nullptr;
}
void let_sequence_pass(greg_t* r) {
  const Sequence* sequence = sequence_at(r);
  if (sequence == nullptr || ++g_sequences % 3 == 0) return;
  g_breakpoint = reinterpret_cast<unsigned char*>(sequence->start + sequence->length);
  const uintptr_t page = reinterpret_cast<uintptr_t>(g_breakpoint) & ~uintptr_t{4095};
  EXPECT(mprotect(reinterpret_cast<void*>(page), 4096, PROT_READ | PROT_WRITE | PROT_EXEC) == 0,
         "mprotect of code");
  g_replaced = *g_breakpoint;
  *g_breakpoint = 0xcc;
  r[REG_EFL] &= ~kTrapFlag;
}
void pass_breakpoint(greg_t* r) {
  if (g_breakpoint == nullptr || r[REG_RIP] != reinterpret_cast<greg_t>(g_breakpoint + 1)) return;
  remove_breakpoint();
  r[REG_RIP]--;
  r[REG_EFL] |= kTrapFlag;
  g_passed++;
}

void on_trap(int, siginfo_t*, void* p) {
  auto* context = static_cast<ucontext_t*>(p);
  greg_t* registers = context->uc_mcontext.gregs;
  pass_breakpoint(registers);
  if ((registers[REG_EFL] & kTrapFlag) == 0) return;  // the instruction that ended the stepping
  int saved = errno;
  g_steps++;
  if (++g_operation > kMostSteps) FAIL("an operation on %zu bytes does not end", g_size);
  g_handler(registers);
  if (!g_child && !at_system_call(registers, context)) hurry_string_instruction(registers);
  if (!g_child) let_sequence_pass(registers);
  errno = saved;
}

void start(Handler handler) {
  g_handler = handler;
  struct sigaction action = {};
  action.sa_sigaction = on_trap;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGTRAP, &action, nullptr);
}

void end_child();

template <class Operation>
void stepped(const Operation& operation) {
  g_operation = 0;
  STEP_BEGIN();
  operation();
  STEP_END();
  remove_breakpoint();
  if (g_child) end_child();
  g_operations++;
  if (g_operation > g_longest) g_longest = g_operation;
}

// ---- handlers ----------------------------------------------------------------------------------------------------
Random g_random(77);
Tags g_tags;  // of the code that is stepped
Tags g_handler_tags;
Owned g_held[64];     // of the handler; live over many steps
Owned g_victims[64];  // made by the code, freed by the handler
size_t g_victim_count = 0;

void refill_victims() {
  while (g_victim_count < std::size(g_victims)) {
    size_t size = g_size < 4096 ? g_size : 16 + g_random.below(2000);
    g_victims[g_victim_count] = take(size, g_tags.next());
    g_victim_count++;
  }
}

void hold(size_t size, const char* where) {
  Owned& o = g_held[g_random.below(std::size(g_held))];
  if (o.address != nullptr)
    give(o, where);
  else
    o = take(size, g_handler_tags.next());
}

void allocating_handler(greg_t*) {
  hold(g_random.percent(98) ? 16 + g_random.below(600) : g_random.log_uniform(1024, 200000), "handler");
}
// Large objects cost much to fill, so they are taken at fewer steps; the phase changes from operation to operation.
bool turn_of_this_size() { return (g_steps + g_operations) % (1 + g_size / 16384) == 0; }
void same_class_handler(greg_t*) {
  if (turn_of_this_size()) hold(g_size, "handler, same class");
}
void freeing_handler(greg_t*) {  // frees objects of the interrupted code, sometimes takes one of its class
  if (g_victim_count > 0 && g_random.percent(70)) {
    give(g_victims[--g_victim_count], "handler, object of the interrupted code");
  } else if (turn_of_this_size()) {
    hold(g_size, "handler, same class");
  }
}
void mixed_handler(greg_t*) {  // calloc, realloc, memalign
  size_t size = 1 + g_random.below(900);
  auto* p = static_cast<unsigned char*>(api::calloc(1, size));
  EXPECT(p != nullptr, "calloc in the handler");
  check_zero(p, size, "handler, calloc");
  Owned o{p, size, g_handler_tags.next()};
  fill(o);
  size_t grown = size + g_random.below(900);
  o.address = static_cast<unsigned char*>(api::realloc(o.address, grown));
  EXPECT(o.address != nullptr, "realloc in the handler");
  check_prefix(o, size, "handler, realloc");
  api::free(o.address);
  void* aligned = api::memalign(256, size);
  EXPECT(aligned != nullptr && reinterpret_cast<uintptr_t>(aligned) % 256 == 0, "memalign in the handler");
  api::free(aligned);
}

uint64_t g_fork_every = 1;
uint64_t g_fork_phase = 0;

void child_work() {
  for (size_t size : {size_t{24}, g_size, size_t{700}, size_t{5000}, size_t{200000}}) {
    Owned a = take(size, 1), b = take(size, 2);
    give(a, "child");
    give(b, "child");
  }
  for (int i = 0; i < 4 && g_victim_count > 0; i++)
    give(g_victims[--g_victim_count], "child, the parent's object");
  if (g_forks % 8 != 0) return;
  pid_t grandchild = fork();
  EXPECT(grandchild >= 0, "fork in the child: %s", strerror(errno));
  if (grandchild == 0) {
    Owned a = take(g_size, 3);
    give(a, "grandchild");
    _exit(0);
  }
  int status = 0;
  char why[64];
  EXPECT(waitpid(grandchild, &status, 0) == grandchild && wait_ok(status), "the grandchild: %s",
         describe(status, why));
}
void end_child() {  // a child that went on with the interrupted operation and has finished it
  child_work();
  _exit(0);
}

// Every second child ends in the handler; the others return into the operation and finish it.
void forking_handler(greg_t* registers) {
  if (g_child || (g_steps + g_fork_phase) % g_fork_every != 0) return;
  pid_t child = fork();
  EXPECT(child >= 0, "fork in the handler: %s", strerror(errno));
  if (child == 0) {
    arm_watchdog(watchdog_seconds() / 2 + 1);
    child_work();
    if (g_forks % 2 == 0) _exit(0);
    g_child = true;
    registers[REG_EFL] &= ~kTrapFlag;
    return;
  }
  g_forks++;
  int status = 0;
  char why[64];
  EXPECT(waitpid(child, &status, 0) == child && wait_ok(status),
         "the child forked at step %llu of an operation on %zu bytes (%s): %s",
         static_cast<unsigned long long>(g_operation), g_size,
         g_forks % 2 == 1 ? "ended in the handler" : "went on", describe(status, why));
}

// ---- what is stepped ---------------------------------------------------------------------------------------------
constexpr size_t kSizes[] = {32, 200, 1000, 2000, 10000, 40000, 100000, 300000, 600000};
constexpr size_t kMostObjects = 2600;
Owned g_objects[kMostObjects];

void step_malloc(Owned& o, size_t size) {
  void* p = nullptr;
  stepped([&] { p = api::malloc(size); });
  EXPECT(p != nullptr, "malloc(%zu)", size);
  o = {static_cast<unsigned char*>(p), size, g_tags.next()};
  fill(o);
}
void step_calloc(Owned& o, size_t size) {
  void* p = nullptr;
  stepped([&] { p = api::calloc(1, size); });
  EXPECT(p != nullptr, "calloc(%zu)", size);
  o = {static_cast<unsigned char*>(p), size, g_tags.next()};
  check_zero(o.address, size, "calloc");
  fill(o);
}
void step_realloc(Owned& o, size_t size) {
  check(o, "realloc, before");
  void* p = nullptr;
  stepped([&] { p = api::realloc(o.address, size); });
  EXPECT(p != nullptr, "realloc(%zu)", size);
  o.address = static_cast<unsigned char*>(p);
  check_prefix(o, size < o.size ? size : o.size, "realloc, after");
  o.size = size;
  fill(o);
}
void step_free(Owned& o) {
  check(o, "free");
  stepped([&] { api::free(o.address); });
  o = {};
}

void free_all_in_disorder(size_t count) {
  for (size_t i = count; i > 1; i--) {
    size_t j = g_random.below(i);
    Owned swapped = g_objects[i - 1];
    g_objects[i - 1] = g_objects[j];
    g_objects[j] = swapped;
  }
  for (size_t i = 0; i < count; i++) {
    refill_victims();
    step_free(g_objects[i]);
  }
}

// For each size: so many allocations that the first slab or run is used up, then frees that empty it, then hits.
void suite(double part) {
  for (size_t size : kSizes) {
    stage("size", size);
    g_size = size;
    size_t slab_full = static_cast<size_t>((70000.0 / static_cast<double>(size) + 6) * part);
    size_t count = slab_full < 3 ? 3 : slab_full > kMostObjects ? kMostObjects : slab_full;
    for (size_t i = 0; i < count; i++) {
      refill_victims();
      step_malloc(g_objects[i], size);
    }
    free_all_in_disorder(count);
    size_t few = count / 8 < 4 ? 4 : count / 8;
    if (few > count) few = count;
    if (size > 200000) few = 1;  // copies take a step for each 32 bytes
    for (size_t i = 0; i < few; i++) {
      refill_victims();
      step_calloc(g_objects[i], size);
    }
    for (size_t i = 0; i < few; i++) {
      step_realloc(g_objects[i], size + size / 2);      // grow, mostly move
      step_realloc(g_objects[i], size + size / 2 + 1);  // grow, mostly in place
      step_realloc(g_objects[i], size / 3 + 1);         // shrink
    }
    free_all_in_disorder(few);
    void* p = nullptr;
    stepped([&] { p = api::memalign(size < 4096 ? 256 : 65536, size); });
    EXPECT(p != nullptr, "memalign(%zu)", size);
    stepped([&] { api::free(p); });
  }
}

void drop_all() {
  for (Owned& o : g_held)
    if (o.address != nullptr) give(o, "end, held by the handler");
  while (g_victim_count > 0) give(g_victims[--g_victim_count], "end, victim");
}
void report() {
  drop_all();
  EXPECT(g_sequences < 100 || g_passed > 10, "%llu restartable sequences met, %llu came through",
         static_cast<unsigned long long>(g_sequences), static_cast<unsigned long long>(g_passed));
  NOTE(
      "%llu steps in %llu operations, at most %llu in one; %llu forks; %llu operations cut short by a clone; "
      "%llu restartable sequences, %llu came through",
      static_cast<unsigned long long>(g_steps), static_cast<unsigned long long>(g_operations),
      static_cast<unsigned long long>(g_longest), static_cast<unsigned long long>(g_forks),
      static_cast<unsigned long long>(g_cut), static_cast<unsigned long long>(g_sequences),
      static_cast<unsigned long long>(g_passed));
}

void run_suite(Handler handler) {
  double scale = number_from("LANEMALLOC_TEST_SCALE", 1);
  start(handler);
  suite(scale < 1 || handler != allocating_handler ? scale * 0.4 : 1);
  for (double n = 1; n < scale; n++) suite(1);
  report();
}

// The first allocation of the process is stepped: what the allocator sets up once is interrupted everywhere.
void first(Handler handler) {
  g_size = 64;
  start(handler);
  Owned o, large;
  step_malloc(o, 64);
  step_malloc(large, 500000);
  step_free(o);
  step_free(large);
  report();
}

// In a child just forked from a process with other threads.
void first_in_child() {
  run_threads(2, [](int) {
    Tags tags;
    for (int i = 0; i < 1000; i++) {
      Owned o = take(100, tags.next());
      give(o, "thread");
    }
  });
  for (int i = 0; i < 4; i++) {
    pid_t child = fork();
    EXPECT(child >= 0, "fork: %s", strerror(errno));
    if (child == 0) {
      arm_watchdog(watchdog_seconds() / 2 + 1);
      first(i % 2 == 0 ? allocating_handler : same_class_handler);
      print(2, "child: %s\n", g_note);
      _exit(0);
    }
    int status = 0;
    char why[64];
    EXPECT(waitpid(child, &status, 0) == child && wait_ok(status), "child %d: %s", i, describe(status, why));
  }
  NOTE("4 children");
}

// Fork at every instruction of hits, and at each 97th of the whole suite (another phase each round).
void fork_at_hits() {
  g_fork_every = 1;
  for (size_t size : {size_t{32}, size_t{2000}, size_t{300000}}) {
    g_size = size;
    Owned o[8];
    for (Owned& each : o) each = take(size, g_tags.next());
    for (Owned& each : o) give(each, "warm up");
    refill_victims();
    start(forking_handler);
    uint64_t rounds = size == 32 ? scaled(6) : scaled(2);
    for (uint64_t i = 0; i < rounds; i++) {
      stage("fork at each step, size", size);
      g_fork_every = size == 300000 ? 7 : 1;
      g_fork_phase = i;
      step_malloc(o[0], size);
      step_free(o[0]);
    }
  }
  report();
}
void fork_at_all() {
  g_fork_every = static_cast<uint64_t>(211 / number_from("LANEMALLOC_TEST_SCALE", 1));
  if (g_fork_every < 1) g_fork_every = 1;
  start(forking_handler);
  suite(checked_mode() ? 0.05 : 0.2);
  report();
}
void fork_at_first() {
  g_fork_every = 3;
  first(forking_handler);
}

// ---- with a second thread ----------------------------------------------------------------------------------------
// Objects of another thread are freed here (collected, sent in batches), and the owner, stepped too, takes them back.
// Both threads have the handler; only one is stepped at a time, so they take turns by semaphores.
sem_t g_to_owner, g_to_main;
Owned g_remote[kMostObjects];
size_t g_remote_count = 0;

void remote_frees(Handler handler) {
  sem_init(&g_to_owner, 0, 0);
  sem_init(&g_to_main, 0, 0);
  g_size = 100;
  start(handler);
  auto wait = [](sem_t& semaphore) {
    while (sem_wait(&semaphore) != 0) {
    }
  };
  uint64_t rounds = scaled(1);
  run_threads(
      1,
      [&](int) {
        for (uint64_t round = 0; round < rounds; round++) {
          for (size_t size : {size_t{32}, size_t{1000}, size_t{20000}, size_t{400000}}) {
            stage("owner, size", size);
            g_size = size;
            g_remote_count = size < 200 ? 1000 : size < 2000 ? 200 : 12;
            for (size_t i = 0; i < g_remote_count; i++) {
              refill_victims();
              if (i % 4 == 0)
                step_malloc(g_remote[i], size);
              else
                g_remote[i] = take(size, g_tags.next());
            }
            sem_post(&g_to_main);
            wait(g_to_owner);
          }
        }
      },
      [&] {
        for (uint64_t turn = 0; turn < rounds * 4; turn++) {
          wait(g_to_main);
          stage("main frees, size", g_size);
          for (size_t i = 0; i < g_remote_count; i++) {
            refill_victims();
            step_free(g_remote[i]);
          }
          sem_post(&g_to_owner);
        }
      });
  report();
}

// A thread's first allocation, and its way out through the destructors of thread-specific data.
pthread_key_t g_end_key;
void thread_life() {
  start(allocating_handler);
  g_size = 48;
  // A key made now is higher than the allocator's own, so its destructor runs later and ends the stepping.
  pthread_key_create(&g_end_key, [](void*) {
    STEP_END();
    g_operations++;
  });
  uint64_t rounds = scaled(40) + 5;
  for (uint64_t round = 0; round < rounds; round++) {
    stage("round", round);
    g_handler = round % 2 == 0 ? allocating_handler : same_class_handler;
    run_threads(1, [&](int) {
      Owned o[3];
      for (Owned& each : o) step_malloc(each, 48);
      step_free(o[0]);
      step_free(o[1]);
      give(o[2], "thread");
      pthread_setspecific(g_end_key, &g_end_key);
      g_operation = 0;
      stage_end();
      STEP_BEGIN();  // until the destructor
    });
  }
  report();
}
#endif
}  // namespace

// An entry other than the owner's comes into play when there has been a thread.
[[maybe_unused]] void become_threaded() {
  const char* options = getenv("LANEMALLOC_OPTIONS");
  if (options == nullptr || strstr(options, "lanes=") == nullptr) return;
  run_threads(1, [](int) { api::free(api::malloc(32)); });
}

int main(int argc, char** argv) {
#if defined(__x86_64__)
  become_threaded();
  static const Case cases[] = {
      {"first", [] { first(allocating_handler); }},
      {"first-same-class", [] { first(same_class_handler); }},
      {"first-fork", fork_at_first},
      {"first-in-child", first_in_child},
      {"allocating-handler", [] { run_suite(allocating_handler); }},
      {"same-class-handler", [] { run_suite(same_class_handler); }},
      {"freeing-handler", [] { run_suite(freeing_handler); }},
      {"mixed-handler", [] { run_suite(mixed_handler); }},
      {"fork-at-hits", fork_at_hits},
      {"fork-at-all", fork_at_all},
      {"remote-frees", [] { remote_frees(allocating_handler); }},
      {"remote-frees-freeing", [] { remote_frees(freeing_handler); }},
      {"thread-life", thread_life},
  };
#else
  static const Case cases[] = {{"all", [] { SKIP("the trap flag is x86-64's"); }}};
#endif
  return run_cases("single_step", argc, argv, cases);
}
