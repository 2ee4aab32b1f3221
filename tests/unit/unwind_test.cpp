// Unwinding: stacks of known depth, by tables and by frame pointers (the tests are compiled with
// them), from places where it is hard.
#include "seeing/unwind/unwind.h"

#include <alloca.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>

#include <atomic>
#include <thread>
#include <vector>

#include "fixture.h"
#include "seeing/unwind/unwind_rules.h"

namespace lanemalloc {
namespace {

constexpr unsigned kMost = 64;

struct Captured {
  unsigned depth = ~0u;
  Address frames[kMost] = {};
};

// Before main() nothing is prepared.
Captured captured_early = [] {
  Captured early;
  early.depth = capture_stack(early.frames, kMost);
  return early;
}();

AS_DECLARED void capture_here(Captured& to) {
  to.depth = capture_stack(to.frames, kMost);
  compiler_fence();
}

// `depth` frames of this function lie above capture_here().
AS_DECLARED void recurse(unsigned depth, Captured& to) {
  if (depth > 1) {
    recurse(depth - 1, to);
  } else {
    capture_here(to);
  }
  compiler_fence();  // no tail call
}

class UnwindTest : public testing::TestWithParam<Unwinding> {
 protected:
  void SetUp() override { ASSERT_EQ(prepare_unwinding(GetParam()), GetParam()); }
};

// Checks a capture of that recursion. First comes capture_here(), then the place where recurse()
// called it, then the recursion.
void expect_recursion(const Captured& captured, unsigned depth) {
  ASSERT_GT(captured.depth, depth + 1);
  ASSERT_LE(captured.depth, kMost);
  for (unsigned i = 3; i <= depth; ++i) EXPECT_EQ(captured.frames[i], captured.frames[2]) << i;
  EXPECT_NE(captured.frames[depth + 1], captured.frames[2]);
  EXPECT_NE(captured.frames[0], captured.frames[1]);
  EXPECT_NE(captured.frames[1], captured.frames[2]);
  for (unsigned i = 0; i < 2; ++i) {  // both lie inside the function
    const auto function =
        i == 0 ? reinterpret_cast<Address>(&capture_here) : reinterpret_cast<Address>(&recurse);
    EXPECT_LT(captured.frames[i] - function, 512u) << i;
  }
}

TEST_P(UnwindTest, FindsEveryFrameOfARecursion) {
  for (unsigned depth : {3u, 10u, 40u}) {
    Captured captured;
    recurse(depth, captured);
    expect_recursion(captured, depth);
  }
}

TEST_P(UnwindTest, TakesTheInnermostFramesOfADeepStack) {
  Captured captured;
  recurse(500, captured);
  EXPECT_EQ(captured.depth, kMost);
  EXPECT_EQ(captured.frames[63], captured.frames[2]);
  Address few[3];
  EXPECT_GT(capture_stack(few, 3), 0u);
  EXPECT_LE(capture_stack(few, 3), 3u);
  EXPECT_EQ(capture_stack(few, 0), 0u);
}

TEST_P(UnwindTest, KeepsErrno) {
  Captured captured;
  errno = 1234;
  recurse(5, captured);
  prepare_unwinding(GetParam());
  EXPECT_EQ(errno, 1234);
}

TEST_P(UnwindTest, WorksAtTheStartOfAThread) {
  Captured captured;
  std::thread([&] { recurse(3, captured); }).join();
  expect_recursion(captured, 3);
}

// A handler on a stack of its own.
Captured captured_by_handler;
void handle(int) { recurse(4, captured_by_handler); }

TEST_P(UnwindTest, WorksInAHandlerOnAnotherStack) {
  constexpr size_t kStack = 256 << 10;
  // The stack lies at the end of what is mapped, and below the thread's stack or above it.
  for (Address hint : {Address{0}, Address{1} << 40}) {
    char* memory =
        static_cast<char*>(mmap(reinterpret_cast<void*>(hint), kStack + 65536,
                                PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(memory, MAP_FAILED);
    mprotect(memory + kStack, 65536, PROT_NONE);
    stack_t mine = {}, before = {};
    mine.ss_sp = memory;
    mine.ss_size = kStack;
    ASSERT_EQ(sigaltstack(&mine, &before), 0);
    struct sigaction action = {}, old = {};
    action.sa_handler = handle;
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR1, &action, &old);
    captured_by_handler = {};
    raise(SIGUSR1);
    expect_recursion(captured_by_handler, 4);
    EXPECT_EQ(sigaltstack(&before, nullptr), 0);
    sigaction(SIGUSR1, &old, nullptr);
    munmap(memory, kStack + 65536);
  }
}

// A handler that samples interrupts captures, while a thread that loads and unloads libraries
// changes the tables.
TEST_P(UnwindTest, MayBeInterruptedByItself) {
  struct sigaction action = {}, old = {};
  static std::atomic<unsigned> handled;
  handled = 0;
  action.sa_handler = [](int) {
    Captured captured;
    recurse(4, captured);
    if (captured.depth > 5) handled.fetch_add(1, std::memory_order_relaxed);
  };
  sigaction(SIGALRM, &action, &old);
  std::atomic<bool> done{false};
  std::thread loader([&] {
    while (!done) {
      void* library = dlopen("libBrokenLocale.so.1", RTLD_NOW);
      if (library != nullptr) dlclose(library);
    }
  });
  const itimerval often = {{0, 200}, {0, 200}}, never = {};
  setitimer(ITIMER_REAL, &often, nullptr);
  unsigned captures = 0;
  for (const uint64_t end = Linux::now_ms() + 200; Linux::now_ms() < end; ++captures) {
    Captured captured;
    recurse(10, captured);
    expect_recursion(captured, 10);
  }
  setitimer(ITIMER_REAL, &never, nullptr);
  done = true;
  loader.join();
  sigaction(SIGALRM, &old, nullptr);
  EXPECT_GT(captures, 0u);
  EXPECT_GT(handled, 0u);
}

INSTANTIATE_TEST_SUITE_P(All, UnwindTest, testing::Values(Unwinding::kTables, Unwinding::kFrames),
                         [](const auto& test) {
                           return test.param == Unwinding::kTables ? "Tables" : "Frames";
                         });

// Compares the walk that keeps rules with the C library's walk. 0: the former left the stack to the
// latter.
AS_DECLARED unsigned walk_here() {
  void* frames[kMost + 4];
  const int all = backtrace(frames, kMost + 4);
  // The first frames are here, and in what a sanitizer puts in between.
  void** expected = frames;
  while (expected < frames + all && *expected != __builtin_return_address(0)) ++expected;
  const auto depth = std::min(kMost, static_cast<unsigned>(frames + all - expected));
  Address found[kMost];
  const auto* frame = static_cast<const Address*>(__builtin_frame_address(0));
  const unsigned n = walk_by_rules({reinterpret_cast<Address>(__builtin_return_address(0)),
                                    reinterpret_cast<Address>(__builtin_dwarf_cfa()), frame[0]},
                                   found, kMost);
  if (n == 0) return 0;
  EXPECT_EQ(n, depth);
  for (unsigned i = 0; i < n && i < depth; ++i)
    EXPECT_EQ(found[i], reinterpret_cast<Address>(expected[i]));
  return n;
}
AS_DECLARED unsigned walk_below(unsigned depth) {
  const unsigned n = depth > 1 ? walk_below(depth - 1) : walk_here();
  compiler_fence();
  return n;
}
AS_DECLARED unsigned walk_below_room(Bytes size) {
  volatile char* room = static_cast<char*>(alloca(size));
  room[0] = 1;
  const unsigned n = walk_here();
  room[size - 1] = 1;
  return n;
}
template <Bytes kSize>
AS_DECLARED unsigned walk_below_array() {
  [[maybe_unused]] volatile char room[kSize];
  room[0] = 1;
  const unsigned n = walk_here();
  room[kSize - 1] = 1;
  return n;
}
int compare_walking(const void*, const void*) { return walk_here() != 0 ? 0 : -1; }

class UnwindRulesTest : public testing::Test {
 protected:
  void SetUp() override { prepare_unwinding(Unwinding::kTables); }
};

TEST_F(UnwindRulesTest, FramesAreThoseThatTheCLibraryFinds) {
  for (unsigned depth : {1u, 3u, 20u, 500u}) {
    for (int again = 0; again < 2; ++again)
      EXPECT_GE(walk_below(depth), depth < kMost ? depth : kMost);
  }
  for (Bytes size : {1, 100, 10000, 1000000}) EXPECT_NE(walk_below_room(size), 0u);
  EXPECT_NE(walk_below_array<40>(), 0u);
  EXPECT_NE(walk_below_array<100000>(), 0u);
  std::thread([] { EXPECT_GE(walk_below(3), 3u); }).join();
  int numbers[] = {1, 2};
  qsort(numbers, 2, sizeof *numbers, compare_walking);  // through the C library's frames
  EXPECT_EQ(numbers[0], 1);
}

TEST_F(UnwindRulesTest, WhatItDoesNotKnowIsLeft) {
  static unsigned in_handler;
  in_handler = 1;
  struct sigaction action = {}, old = {};
  action.sa_handler = [](int) { in_handler = walk_here(); };
  sigaction(SIGUSR1, &action, &old);
  raise(SIGUSR1);
  sigaction(SIGUSR1, &old, nullptr);
  EXPECT_EQ(in_handler, 0u);
  Address found[kMost];
  char nowhere[64] = {};
  const auto stack = reinterpret_cast<Address>(nowhere);
  EXPECT_EQ(walk_by_rules({stack, stack, stack}, found, kMost), 0u);  // no code
  EXPECT_EQ(walk_by_rules({16, stack, stack}, found, kMost), 0u);
}

#if defined(__x86_64__)
// What a signal handler returns to in a C library that has no tables for it.
extern "C" void return_by_rax();
extern "C" void return_by_eax();
__asm__(
    ".text\n nop\nreturn_by_rax: mov $15, %rax\n syscall\n"
    "nop\nreturn_by_eax: mov $15, %eax\n syscall\n");

TEST_F(UnwindRulesTest, ASignalsFrameWithoutTablesIsLeft) {
  struct {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)();
    uint64_t mask;
  } action{};
  static unsigned in_handler;
  for (void (*restorer)() : {return_by_rax, return_by_eax}) {
    in_handler = 1;
    action = {[](int) { in_handler = walk_here(); }, 0x04000000 /* SA_RESTORER */, restorer, 0};
    ASSERT_EQ(syscall(SYS_rt_sigaction, SIGUSR1, &action, nullptr, sizeof action.mask), 0);
    raise(SIGUSR1);
    EXPECT_EQ(in_handler, 0u);
  }
  signal(SIGUSR1, SIG_DFL);
}
#endif

TEST(UnwindEarlyTest, NothingIsCapturedBeforeItIsPrepared) { EXPECT_EQ(captured_early.depth, 0u); }

#if defined(__x86_64__)
// Called with any value where the caller's frame should be.
extern "C" unsigned capture_with_broken_frame(Address frame, Address* frames, unsigned most);
__asm__(
    ".text\n.globl capture_with_broken_frame\ncapture_with_broken_frame:\n"
    "push %rbp\n mov %rdi, %rbp\n mov %rsi, %rdi\n mov %edx, %esi\n"
    "call _ZN10lanemalloc13capture_stackEPmj\n pop %rbp\n ret\n");

TEST(UnwindBrokenTest, AFrameThatIsNoneEndsTheWalkAndNothingElse) {
  prepare_unwinding(Unwinding::kFrames);
  Address frames[kMost];
  Random random(1);
  const auto here = reinterpret_cast<Address>(__builtin_frame_address(0));
  for (Address bad : {Address{0}, Address{1}, here + 1, here - 4096, ~Address{0}, ~Address{0} - 7,
                      Address{1} << 47})
    EXPECT_GE(capture_with_broken_frame(bad, frames, kMost), 1u);
  for (int i = 0; i < 20000; ++i) {
    const Address bad =
        random.one_in(2) ? here + random.below(Address{1} << 20) : random.below(~Address{0});
    EXPECT_GE(capture_with_broken_frame(bad & ~Address{random.one_in(2) ? 7u : 0u}, frames, kMost),
              1u);
  }
}
#endif

}  // namespace
}  // namespace lanemalloc
