// The table of call stacks in C++'s memory model, from the shipped header through the Atomics
// policy. Its memory is an array of Relacy's words; run.py makes it small. Called by: run.py, with
// the name of a test.
#include "checked_atomic.h"
// After Relacy.
#include "seeing/stacks.h"

namespace {

using namespace lanemalloc;
using model::Relacy;

constexpr size_t kWords = 64;
model::atomic<uint64_t>* memory;

struct Platform {
  static Bytes page_size() { return 1; }
  static Bytes address_limit() { return ~Bytes{0}; }
  static Address reserve(Bytes n) {
    RL_ASSERT(n == kWords * sizeof *memory);
    return reinterpret_cast<Address>(memory);
  }
  static bool open(Address, Bytes) { return true; }
  static void release(Address, Bytes) {}
};

// Two threads insert the same stack, and one of them also inserts another one that begins at the
// same slot. A third thread reads all the while. Each stack that a thread finds is whole, only one
// copy of each has counts, and nothing is lost.
struct StacksTest : rl::test_suite<StacksTest, 3> {
  using Table = Stacks<Platform, Relacy>;
  model::atomic<uint64_t> words[kWords];
  Table table;

  void insert(Address first) {
    const Address frames[] = {first, first + 1};
    auto* stack = table.find_or_make(StackKind::kAllocation, frames, 2);
    RL_ASSERT(stack != nullptr && stack->depth() == 2 && stack->frame(0) == first);
    stack->counters[0].fetch_add(1, std::memory_order_relaxed);
  }
  // How often `first` was counted, in at most one stack.
  uint64_t look(Address first) {
    uint64_t counted = 0;
    table.for_each([&](const Table::Record& stack) {
      RL_ASSERT(stack.bytes() != 0);
      const uint64_t objects = stack.counters[0].load(std::memory_order_relaxed);
      if (stack.depth() == 0) return;
      RL_ASSERT(stack.depth() == 2 && stack.frame(1) == stack.frame(0) + 1);
      RL_ASSERT(stack.frame(0) == kSame || stack.frame(0) == kOther);
      if (stack.frame(0) != first || objects == 0) return;
      RL_ASSERT(counted == 0);
      counted = objects;
    });
    return counted;
  }
  void before() {
    for (auto& word : words) word.store(0, std::memory_order_relaxed);
    memory = words;
    RL_ASSERT(table.start());
  }
  void thread(unsigned index) {
    if (index == 0) insert(kSame);
    if (index == 1) insert(kOther), insert(kSame);
    if (index == 2) look(kSame);
  }
  void after() {
    RL_ASSERT(look(kSame) == 2 && look(kOther) == 1 && table.losses() == 0);
    table.check_invariants();
  }

  static constexpr Address kSame = 1, kOther = 6;  // their hashes fall on one slot of four
};

}  // namespace

int main(int, char** arguments) {
  const std::string_view name = arguments[1];
  if (name == "stacks") return model::run<StacksTest>(2);
  return 2;
}
