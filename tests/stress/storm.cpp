// Storm: threads allocate, resize and free objects of random sizes and exchange them, so that most
// objects are freed by another thread than their owner. Checked: contents at each free and realloc,
// zeroed calloc, alignment, usable size, and that no address is handed out twice.
// Run by: tests/stress/run.sh; also against the prefixed library under sanitizers.
#include "stress.h"

namespace {
using namespace stress;

constexpr size_t kLargest = 4 * kMiB;
OwnershipTable g_table;
SharedSlot g_shared[512];

class Thread {
 public:
  explicit Thread(int index) : random_(static_cast<uint64_t>(index)) {}

  void run(uint64_t operations) {
    for (uint64_t i = 0; i < operations; i++) {
      if (i % 1024 == 0) stage("operations", i);
      Owned& slot = slots_[random_.below(kSlots)];
      if (slot.address == nullptr) {
        allocate(slot);
      } else if (uint64_t r = random_.below(100); r < 25) {
        resize(slot);
      } else if (r < 60) {
        g_shared[random_.below(std::size(g_shared))].swap(slot);
      } else {
        release(slot);
      }
    }
    for (Owned& slot : slots_)
      if (slot.address != nullptr) release(slot);
  }

  void release(Owned& slot) {
    check(slot, "free");
    g_table.unclaim(slot.address);
    api::free(slot.address);
    slot = {};
  }

 private:
  static constexpr size_t kSlots = 64;

  void allocate(Owned& slot) {
    size_t size = random_size(random_, kLargest);
    size_t align = size_t{1} << (4 + random_.below(9));  // 16 … 4096
    void* p = nullptr;
    uint64_t r = random_.below(100);
    if (r < 50) {
      p = api::malloc(size);
      align = size < 16 ? 8 : 16;
    } else if (r < 70) {
      size_t count = 1 + random_.below(4);
      p = api::calloc(count, size / count + 1);
      size = count * (size / count + 1);
      if (p != nullptr) check_zero(static_cast<unsigned char*>(p), size, "calloc");
      align = size < 16 ? 8 : 16;
    } else if (r < 80) {
      p = api::memalign(align, size);
    } else if (r < 85) {
      p = api::aligned_alloc(align, (size + align - 1) / align * align);
    } else if (r < 90) {
      if (api::posix_memalign(&p, align, size) != 0) p = nullptr;
    } else {
      p = api::realloc(nullptr, size);
      align = size < 16 ? 8 : 16;
    }
    EXPECT(p != nullptr, "%zu bytes aligned to %zu: no memory", size, align);
    EXPECT(reinterpret_cast<uintptr_t>(p) % align == 0, "%p is not aligned to %zu", p, align);
    EXPECT(api::usable_size(p) >= size, "usable size %zu of %zu bytes", api::usable_size(p), size);
    g_table.claim(p);
    slot = {static_cast<unsigned char*>(p), size, tags_.next()};
    fill(slot);
  }

  void resize(Owned& slot) {
    check(slot, "realloc, before");
    size_t size =
        random_.percent(50) ? random_size(random_, kLargest) : 1 + random_.below(2 * slot.size);
    if (size > kLargest) size = kLargest;
    g_table.unclaim(slot.address);
    void* p = api::realloc(slot.address, size);
    EXPECT(p != nullptr, "realloc(%p, %zu): no memory", static_cast<void*>(slot.address), size);
    g_table.claim(p);
    slot.address = static_cast<unsigned char*>(p);
    check_prefix(slot, size < slot.size ? size : slot.size, "realloc, after");
    slot.size = size;
    slot.tag = tags_.next();
    fill(slot);
  }

  Random random_;
  Tags tags_;
  Owned slots_[kSlots];
};

void storm(int threads) {
  bool table = g_table.reserve();
  uint64_t operations = scaled(3e6) / static_cast<uint64_t>(threads) + 1;
  run_threads(threads, [&](int index) { Thread(index).run(operations); });
  Thread last(threads);
  for (SharedSlot& slot : g_shared)
    if (slot.object.address != nullptr) last.release(slot.object);
  NOTE("%llu operations in %d threads%s", llu(operations) * static_cast<unsigned>(threads), threads,
       table ? "" : ", without the table of addresses (no address space for it)");
}
}  // namespace

int main(int argc, char** argv) {
  static const Case cases[] = {
      {"2-threads", [] { storm(2); }},
      {"8-threads", [] { storm(8); }},
      {"32-threads", [] { storm(32); }},
  };
  return run_cases("storm", argc, argv, cases);
}
