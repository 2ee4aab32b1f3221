// The lock-free lists in C++'s memory model, from the shipped headers through the Atomics policy:
// Inbox, IdStack.
// Called by: run.py, with the name of a test.
#include "checked_atomic.h"
// After Relacy.
#include "core/lane/id_stack.h"
#include "core/lane/inbox.h"

namespace {

using lanemalloc::IdStack;
using lanemalloc::Inbox;
using model::Relacy;

// There are two givers, one of which gives twice. The owner takes twice, and once more at the end.
// Every batch comes out exactly once, and the owner sees what its giver wrote before it gave.
struct InboxTest : rl::test_suite<InboxTest, 3> {
  struct Batch : lanemalloc::BasicObject<Relacy> {
    model::Contents links;  // stands for the plain links of the batch's objects
    int taken = 0;
  };
  Inbox<Relacy> inbox;
  Batch batches[3];

  void give(Batch& batch) {
    batch.links.work();
    inbox.give(&batch);
  }
  void take() {
    const auto is_object = [this](const void* p) {
      return p == &batches[0] || p == &batches[1] || p == &batches[2];
    };
    RL_ASSERT(inbox.take(
        [](lanemalloc::BasicObject<Relacy>* object) {
          Batch& batch = *static_cast<Batch*>(object);
          batch.links.work();
          ++batch.taken;
        },
        is_object));
  }
  void thread(unsigned index) {
    if (index == 0) give(batches[0]), give(batches[1]);
    if (index == 1) give(batches[2]);
    if (index == 2) take(), take();
  }
  void after() {
    take();
    if (!inbox.is_empty()) take();  // the first one may have found the rest of an earlier take
    RL_ASSERT(inbox.is_empty());
    for (Batch& batch : batches) RL_ASSERT(batch.taken == 1 && batch.links.value() == 2);
  }
};

// A pop is interrupted between its two looks while the other thread pops, pops and pushes (ABA). A
// number belongs to one thread at a time, no number is lost, and its next holder sees what the last
// one did.
struct StackTest : rl::test_suite<StackTest, 2> {
  static constexpr uint32_t kMembers = 3;
  IdStack<Relacy> stack;
  IdStack<Relacy>::Link links[kMembers + 1];
  model::Contents lanes[kMembers + 1];
  int held[kMembers + 1] = {};

  auto link() {
    return [this](uint32_t n) -> auto& { return links[n]; };
  }
  uint32_t pop() {
    const uint32_t n = stack.pop(link());
    if (n == 0) return n;
    RL_ASSERT(n <= kMembers && held[n] == 0);
    held[n] = 1;
    lanes[n].work();
    return n;
  }
  void push(uint32_t n) {
    if (n == 0) return;
    held[n] = 0;
    lanes[n].work();
    stack.push(n, link());
  }
  void before() {
    for (uint32_t n = kMembers; n > 0; --n) push(n);
  }
  void thread(unsigned index) {
    if (index == 0) {
      push(pop());
    } else {
      const uint32_t first = pop(), second = pop();
      push(first);
      push(second);
    }
  }
  void after() {
    for (uint32_t n = 0; n < kMembers; ++n) RL_ASSERT(pop() != 0);
    RL_ASSERT(pop() == 0);
  }
};

// The stack as a programmer writes it at first: the same without a tag.
struct NaiveStack {
  model::atomic<uint32_t> head_{0};
  template <class LinkOf>
  void push(uint32_t id, LinkOf link) {
    uint32_t head = head_.load(std::memory_order_relaxed);
    do link(id).store(head, std::memory_order_relaxed);
    while (!head_.compare_exchange_weak(head, id, std::memory_order_release,
                                        std::memory_order_relaxed));
  }
  template <class LinkOf>
  uint32_t pop(LinkOf link) {
    uint32_t head = head_.load(std::memory_order_acquire);
    while (head != 0 &&
           !head_.compare_exchange_weak(head, link(head).load(std::memory_order_relaxed),
                                        std::memory_order_acquire, std::memory_order_acquire)) {
    }
    return head;
  }
};

// T1 reads the head C1 and its next C2, and stops. T2 pops C1, pops C2 and pushes C1. If T1's
// compare-exchange succeeds then, the list's head is C2, which is in use. Source: MoarVM's
// fixed-size allocator (docs/seeds.md).
template <class Stack>
struct AbaTest : rl::test_suite<AbaTest<Stack>, 2> {
  static constexpr uint32_t kMembers = 3;
  Stack stack;
  IdStack<Relacy>::Link links[kMembers + 1];
  int held[kMembers + 1] = {};

  auto link() {
    return [this](uint32_t n) -> auto& { return links[n]; };
  }
  uint32_t pop() {
    const uint32_t n = stack.pop(link());
    RL_ASSERT(n <= kMembers && (n == 0 || held[n] == 0));
    held[n] = n != 0;
    return n;
  }
  void push(uint32_t n) {
    held[n] = 0;
    stack.push(n, link());
  }
  void before() {
    for (uint32_t n = kMembers; n > 0; --n) push(n);
  }
  void thread(unsigned index) {
    const uint32_t first = pop();
    if (index == 0) return;
    pop();
    if (first != 0) push(first);
  }
  void after() {
    while (pop() != 0) {
    }
    for (uint32_t n = 1; n <= kMembers; ++n) RL_ASSERT(held[n] == 1);
  }
};

}  // namespace

int main(int, char** arguments) {
  const std::string_view name = arguments[1];
  if (name == "inbox") return model::run<InboxTest>(3);
  if (name == "idle-stack") return model::run<StackTest>(4);
  if (name == "aba") return model::run<AbaTest<IdStack<Relacy>>>(4);
  if (name == "aba-naive") return model::run<AbaTest<NaiveStack>>(4) == 1 ? 0 : 1;
  return 2;
}
