// Runs a signal handler at every instruction of an operation: the trap flag makes the processor
// raise SIGTRAP after each one, and the handler that the program has chosen runs.
// Used by: single_step.cpp, pool_steps.cpp, torn_off.cpp. x86-64 only; the file is empty elsewhere.
#pragma once

#if defined(__x86_64__)
#include <ucontext.h>

#include "stress.h"

namespace stress {

constexpr long kTrapFlag = 0x100;
constexpr uint64_t kMostSteps = 20'000'000;  // in one operation; more is an endless loop

// The jump over 128 bytes spares the red zone.
#define STEP_BEGIN()                                                                             \
  asm volatile(                                                                                  \
      "lea -128(%%rsp), %%rsp\n pushfq\n orq $0x100, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp" :: \
          : "memory", "cc")
#define STEP_END()                                                                                 \
  asm volatile(                                                                                    \
      "lea -128(%%rsp), %%rsp\n pushfq\n andq $~0x100, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp" :: \
          : "memory", "cc")

using Handler = void (*)(greg_t* registers);
inline Handler g_handler;
inline uint64_t g_steps = 0;      // in all
inline uint64_t g_operation = 0;  // steps of this operation
inline uint64_t g_operations = 0;
inline uint64_t g_longest = 0;
inline uint64_t g_cut = 0;  // operations that started a thread or process: not stepped to their end
inline uint64_t g_forks = 0;
inline size_t g_size = 0;  // of the object that the interrupted code works on
inline bool g_child = false;
// True while the code has blocked SIGTRAP as far as it knows: no other signal could come then.
inline bool g_blocked = false;

// A SIGTRAP that comes while it is blocked ends the process. So a system call that would block
// SIGTRAP is done here, with SIGTRAP left out. A system call that starts a thread ends the stepping
// of this operation, since the new thread would inherit the trap flag.
inline bool at_system_call(greg_t* r, ucontext_t* context) {
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
  mask = r[REG_RDI] == SIG_BLOCK     ? mask | wanted
         : r[REG_RDI] == SIG_UNBLOCK ? mask & ~wanted
                                     : wanted;
  g_blocked = (mask & trap) != 0;
  mask &= ~trap;
  memcpy(&context->uc_sigmask, &mask, sizeof mask);
  r[REG_RAX] = 0;
  r[REG_RIP] += 2;
  return true;
}

// A rep movs or stos traps after each element. All but the last few are done here at once.
inline void hurry_string_instruction(greg_t* r) {
  const auto* code = reinterpret_cast<const unsigned char*>(r[REG_RIP]);
  if (code[0] != 0xf3 || r[REG_RCX] <= 8) return;
  bool wide = code[1] == 0x48;
  unsigned char operation = code[wide ? 2 : 1];
  bool copies = operation == 0xa4 || operation == 0xa5,
       stores = operation == 0xaa || operation == 0xab;
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

// A signal inside a restartable sequence sends the thread back to the start of the sequence. So
// stepping alone never gets through one, and the code behind it would never be stepped. Therefore
// two of three times the sequence runs without steps, up to a breakpoint behind its last
// instruction. (If the sequence ends another way, the rest of the operation is not stepped.)
struct Sequence {
  uint32_t version, flags;
  uint64_t start, length, aborted;
};
inline uint64_t g_sequences = 0;  // met
inline uint64_t g_passed = 0;     // of those, run to their end
inline unsigned char* g_breakpoint = nullptr;
inline unsigned char g_replaced;

// Returns the sequence whose address the next instruction stores: mov %register, %fs:8(%register).
// Null if that is another instruction.
inline const Sequence* sequence_at(const greg_t* r) {
  const auto* code = reinterpret_cast<const unsigned char*>(r[REG_RIP]);
  if (code[0] != 0x64 || (code[1] & 0xf8) != 0x48 || code[2] != 0x89 || code[3] >> 6 != 1 ||
      code[4] != 8)
    return nullptr;
  static constexpr int kRegisters[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                       REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                       REG_R12, REG_R13, REG_R14, REG_R15};
  const auto address =
      static_cast<uintptr_t>(r[kRegisters[(code[1] & 4) << 1 | (code[3] >> 3 & 7)]]);
  return address % 32 == 0 ? reinterpret_cast<const Sequence*>(address) : nullptr;
}
inline void remove_breakpoint() {
  if (g_breakpoint != nullptr) *g_breakpoint = g_replaced;
  g_breakpoint = nullptr;
}
inline void let_sequence_pass(greg_t* r) {
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
inline void pass_breakpoint(greg_t* r) {
  if (g_breakpoint == nullptr || r[REG_RIP] != reinterpret_cast<greg_t>(g_breakpoint + 1)) return;
  remove_breakpoint();
  r[REG_RIP]--;
  r[REG_EFL] |= kTrapFlag;
  g_passed++;
}

inline void on_trap(int, siginfo_t*, void* p) {
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

inline void start(Handler handler) {
  g_handler = handler;
  struct sigaction action = {};
  action.sa_sigaction = on_trap;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGTRAP, &action, nullptr);
}

inline void end_child();

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

// ---- forks
// -------------------------------------------------------------------------------------------------
inline void (*g_child_work)();  // what a child does; the program sets it
inline uint64_t g_fork_every = 1;
inline uint64_t g_fork_phase = 0;

// Ends a child that went on with the interrupted operation and has finished it
inline void end_child() {
  g_child_work();
  _exit(0);
}

// Every second child ends in the handler; the others return into the operation and finish it.
inline void forking_handler(greg_t* registers) {
  if (g_child || (g_steps + g_fork_phase) % g_fork_every != 0) return;
  pid_t child = fork();
  EXPECT(child >= 0, "fork in the handler: %s", strerror(errno));
  if (child == 0) {
    arm_watchdog(watchdog_seconds() / 2 + 1);
    g_child_work();
    if (g_forks % 2 == 0) _exit(0);
    g_child = true;
    registers[REG_EFL] &= ~kTrapFlag;
    return;
  }
  g_forks++;
  int status = 0;
  char why[64];
  EXPECT(waitpid(child, &status, 0) == child && wait_ok(status),
         "the child forked at step %llu of an operation on %zu bytes (%s): %s", llu(g_operation),
         g_size, g_forks % 2 == 1 ? "ended in the handler" : "went on", describe(status, why));
}

inline void report_steps() {
  EXPECT(g_sequences < 100 || g_passed > 10, "%llu restartable sequences met, %llu came through",
         llu(g_sequences), llu(g_passed));
  NOTE(
      "%llu steps in %llu operations, at most %llu in one; %llu forks; %llu operations cut short "
      "by a clone; "
      "%llu restartable sequences, %llu came through",
      llu(g_steps), llu(g_operations), llu(g_longest), llu(g_forks), llu(g_cut), llu(g_sequences),
      llu(g_passed));
}

}  // namespace stress
#endif
