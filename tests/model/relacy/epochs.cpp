// The grace periods of core/reclaim/epochs.h in C++'s memory model: the shipped algorithm, and what
// the public header has readers do.
// Called by: run.py, with the name of a test. Compiled with the copy of src/ and include/ in which
// std::atomic and the compiler's atomic built-ins are model::atomic.
#include "checked_atomic.h"

namespace model {

// has_barrier: the system has a barrier. is_half: a compiler's fence is one half of it.
inline bool has_barrier, is_half;
inline void compiler_fence() {
  if (is_half) full_fence();
}
inline std::memory_order order(int builtin) { return static_cast<std::memory_order>(builtin); }

}  // namespace model

#include "core/reclaim/epochs.h"

namespace {

using namespace lanemalloc;

struct Platform : model::Platform {
  static uint32_t thread_id() { return 1; }
  static bool thread_is_gone(uint32_t) { return false; }
  static bool barrier() {
    if (model::has_barrier) model::full_fence();
    return model::has_barrier;
  }
  static void say(const char*, Bytes) {}
};

// One thread takes an object out by a relaxed store, and frees it if its own look, or another
// thread's, allows that. The reader, in a section or online, finds an object by a relaxed load and
// uses it. Only the epochs put them in order.
// kQuiescent: the reader is online from the start, so no fence is needed, and none is there.
enum class How { kSections, kOnline, kQuiescent, kFound };

template <How kHow, bool kBarrier>
struct EpochsTest : rl::test_suite<EpochsTest<kHow, kBarrier>, kHow == How::kFound ? 3 : 2> {
  Epochs<Platform> epochs;
  lane_reader reader;
  model::Contents objects[2];
  model::atomic<uint32_t> link{0};
  model::atomic<uint64_t> unlinked{0};

  void before() {
    model::has_barrier = kBarrier;
    Visit visit(this, true);
    epochs.add(reader, "", this, visit);
    model::is_half = kBarrier && kHow != How::kQuiescent;
    if (kHow == How::kQuiescent) lane_reader_online(&reader);
  }
  void read() { objects[link.load(std::memory_order_relaxed)].value(); }
  void thread(unsigned index) {
    Visit visit(&index, true);
    if (index == 0) {
      link.store(1, std::memory_order_relaxed);
      const Epoch tag = epochs.advance();
      unlinked.store(tag, std::memory_order_release);
      epochs.look(visit, true);
      if (kHow != How::kFound && tag <= epochs.safe()) objects[0].work();
    } else if (index == 2) {
      const Epoch tag = unlinked.load(std::memory_order_acquire);
      if (tag != 0 && tag <= epochs.safe()) objects[0].work();
    } else if (kHow == How::kOnline || kHow == How::kQuiescent) {
      if (kHow == How::kOnline) lane_reader_online(&reader);
      read();
      lane_reader_quiescent(&reader);
      read();
      lane_reader_offline(&reader);
    } else {
      lane_reader_enter(&reader);
      read();
      lane_reader_exit(&reader);
    }
  }
};

}  // namespace

int main(int, char** arguments) {
  const std::string_view name = arguments[1];
  if (name == "epochs") return model::run<EpochsTest<How::kSections, true>>(4);
  if (name == "epochs-online") return model::run<EpochsTest<How::kOnline, true>>(3);
  if (name == "epochs-quiescent") return model::run<EpochsTest<How::kQuiescent, true>>(3);
  if (name == "epochs-fences") return model::run<EpochsTest<How::kSections, false>>(4);
  if (name == "epochs-found") return model::run<EpochsTest<How::kFound, true>>(3);
  return 2;
}
