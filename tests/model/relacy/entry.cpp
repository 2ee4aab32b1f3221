// The entry of a lane in C++'s memory model: the shipped entry/owned.h and core/base/lock.h over
// relacy/stub/core/lane/world.h.
// Called by: run.py, with the name of a test. Compiled with the copy of src/ in which std::atomic
// is model::atomic.
#include "checked_atomic.h"

namespace model {
template <class Gate>
Gate* busy(Gate* gate, unsigned char mark) {
  return reinterpret_cast<Gate*>(reinterpret_cast<uintptr_t>(gate) | mark);
}
}  // namespace model

#include "core/lane/entry/owned.h"

namespace {

using namespace lanemalloc;

struct Platform : model::Platform {
  static bool reads_as(const Slot* slot, uint64_t value) {
    return reinterpret_cast<uint64_t>(slot->load(std::memory_order_acquire)) == value;
  }
};

// The ways in which an owner makes sure that the lane is not being revoked.
enum class Look { kAllocate, kFree, kDefer, kKind, kMiss };

// An owner goes in and out, while another thread revokes the lane. What is in the lane is plain
// memory. So Relacy stops if both are inside together, or if one does not see what the other has
// done.
template <Look kLook>
struct EntryTest : rl::test_suite<EntryTest<kLook>, 2> {
  static constexpr uint16_t kId = 7;
  World<Platform> world;
  Slot slot{nullptr};
  Lane<Platform> lane{Owner{kId}, world};

  void before() {
    Visit visit(&slot, true);
    lane.adopt_by(slot, visit);
    slot.store(&lane, std::memory_order_relaxed);
  }
  bool may_enter(const Gate* gate, bool hits) {
    if (hits && kLook == Look::kAllocate && Owned::may_allocate(gate, 1)) return true;
    if (hits && kLook == Look::kFree && Owned::may_free(gate, MapWord(Owner{kId}, 0))) return true;
    void** next;
    if (hits && kLook == Look::kDefer && Owned::may_defer(gate, next)) return true;
    if (hits && kLook == Look::kKind && Owned::area(gate) != 0) return true;
    // As a miss does it (core/engine/stay.h).
    if (lane.is_being_revoked()) return false;
    lane.open_gate();
    return true;
  }
  void thread(unsigned index) {
    if (index == 0) {
      for (int round = 0; round < 2; ++round) {
        Gate* gate = Owned::enter(slot);
        if (may_enter(gate, round != 0)) lane.contents.work();
        Owned::leave(slot, gate);
      }
    } else {
      Visit visit(&index, true);
      if (!lane.try_hold(visit)) return;
      lane.contents.work();
      lane.let_go(visit);
    }
  }
};

// The owner's thread ends and gives its lane back, while another thread revokes the lane. If the
// revoker has the lane and finds an owner there, the owner's thread is still there too.
struct DisownTest : rl::test_suite<DisownTest, 2> {
  World<Platform> world;
  Slot slot{nullptr};
  Lane<Platform> lane{Owner{7}, world};
  model::Contents thread_memory;  // holds the slot

  void before() {
    Visit visit(&slot, true);
    lane.adopt_by(slot, visit);
    slot.store(&lane, std::memory_order_relaxed);
  }
  void thread(unsigned index) {
    Visit visit(index == 0 ? static_cast<const void*>(&slot) : &lane, true);
    if (index == 0) {
      Owned::enter(slot);
      lane.disown(visit);
      thread_memory.work();
    } else {
      if (!lane.try_hold(visit)) return;
      if (lane.owner_slot() != nullptr) thread_memory.work();
      lane.contents.work();
      lane.let_go(visit);
    }
  }
};

}  // namespace

int main(int, char** arguments) {
  const std::string_view name = arguments[1];
  if (name == "entry-allocate") return model::run<EntryTest<Look::kAllocate>>(4);
  if (name == "entry-free") return model::run<EntryTest<Look::kFree>>(4);
  if (name == "entry-defer") return model::run<EntryTest<Look::kDefer>>(4);
  if (name == "entry-kind") return model::run<EntryTest<Look::kKind>>(4);
  if (name == "entry-miss") return model::run<EntryTest<Look::kMiss>>(4);
  if (name == "disown") return model::run<DisownTest>(4);
  return 2;
}
