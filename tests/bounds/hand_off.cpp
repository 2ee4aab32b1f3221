// Objects are allocated in one thread and freed in another, ten million times: memory stays flat.
// And a thread that only frees holds nothing back from the owner, nor from other threads while the
// owner sleeps.
// Run by: tests/bounds/run.sh.
#include "bounds.h"

namespace {
using namespace bounds;

// A ring has one producer and one consumer. Each of its slots is empty or holds an object.
class Ring {
 public:
  static constexpr uint64_t kSlots = 256;
  bool try_put(uint64_t ticket, uint64_t depth, void* p) {
    auto& slot = slots_[ticket % depth].object;
    if (slot.load(std::memory_order_relaxed) != nullptr) return false;
    slot.store(p, std::memory_order_release);
    return true;
  }
  void* try_take(uint64_t ticket, uint64_t depth) {
    auto& slot = slots_[ticket % depth].object;
    void* p = slot.load(std::memory_order_acquire);
    if (p != nullptr) slot.store(nullptr, std::memory_order_release);
    return p;
  }

 private:
  struct alignas(64) Slot {
    std::atomic<void*> object{nullptr};
  };
  Slot slots_[kSlots];
};

// A waiting thread lets others run soon, since there may be fewer processors than threads.
class Waiting {
 public:
  void again() {
    if (++rounds_ % 64 == 0) sched_yield();
  }

 private:
  unsigned rounds_ = 0;
};

struct Shape {
  int producers, consumers;
  size_t low, high;
  double hand_offs;
  size_t may_grow;
  // At most this many objects are on the way; the allocator may keep that many
  uint64_t depth = Ring::kSlots;
};

// One ring for each pair, so each slot has one writer and one reader at a time.
Ring g_rings[16];

// Runs in ten parts. Between two parts all rings are empty and all threads wait, so that readings
// compare.
void hand_off(const Shape& shape) {
  int threads = shape.producers + shape.consumers, pairs = shape.producers * shape.consumers;
  EXPECT(pairs <= static_cast<int>(std::size(g_rings)), "too many pairs");
  constexpr int kParts = 10;
  uint64_t each = scaled(shape.hand_offs) / kParts / static_cast<uint64_t>(pairs) + 1;
  Barrier begin(static_cast<unsigned>(threads) + 1), end(static_cast<unsigned>(threads) + 1);
  size_t readings[kParts];
  run_threads(
      threads,
      [&](int index) {
        Random random(static_cast<uint64_t>(index));
        bool produces = index < shape.producers;
        int self = produces ? index : index - shape.producers;
        int partners = produces ? shape.consumers : shape.producers;
        for (int part = 0; part < kParts; part++) {
          begin.wait();
          for (uint64_t i = 0; i < each; i++) {
            if (i % 4096 == 0) stage(produces ? "producing" : "consuming", i);
            for (int partner = 0; partner < partners; partner++) {
              Waiting waiting;
              Ring& ring = g_rings[produces ? self * shape.consumers + partner
                                            : partner * shape.consumers + self];
              if (produces) {
                size_t size = random.log_uniform(shape.low, shape.high);
                auto* p = static_cast<unsigned char*>(api::malloc(size));
                EXPECT(p != nullptr, "malloc(%zu): %s", size, strerror(errno));
                for (size_t at = 0; at < size; at += 4096) p[at] = 1;
                memcpy(p, &i, sizeof i);
                while (!ring.try_put(i, shape.depth, p)) waiting.again();
              } else {
                void* p;
                while ((p = ring.try_take(i, shape.depth)) == nullptr) waiting.again();
                uint64_t serial;
                memcpy(&serial, p, sizeof serial);
                EXPECT(serial == i, "object %p of hand-off %llu says %llu", p, llu(i), llu(serial));
                api::free(p);
              }
            }
          }
          end.wait();
        }
      },
      [&] {
        for (size_t& reading : readings) {
          begin.wait();
          end.wait();
          reading = resident();
        }
      });
  size_t most = 0;
  for (size_t reading : readings) most = reading > most ? reading : most;
  const size_t overflow = lanes_by_cpu() ? static_cast<size_t>(threads) * 2 * kMiB : 0;
  EXPECT(most < readings[0] + shape.may_grow + overflow,
         "%zu KiB resident after a tenth of the hand-offs, %zu KiB later", readings[0] / kKiB,
         most / kKiB);
  NOTE("%llu hand-offs; resident %zu KiB after a tenth, at most %zu KiB later, %zu KiB at the end",
       llu(each) * kParts * static_cast<unsigned>(pairs), readings[0] / kKiB, most / kKiB,
       readings[kParts - 1] / kKiB);
}

// The owner allocates 256 MiB, and another thread frees all of it, five times.
void only_frees() {
  size_t bytes = scaled(256) * kMiB;
  Burst burst;
  Barrier turn(2);
  size_t first = 0, most = 0;
  run_threads(
      1,
      [&](int) {
        Random random(1);
        for (int round = 0; round < 5; round++) {
          stage("owner allocates", static_cast<uint64_t>(round));
          burst.allocate(bytes, 16, 1024, random);
          turn.wait();
          turn.wait();
        }
      },
      [&] {
        for (int round = 0; round < 5; round++) {
          turn.wait();
          size_t full = resident();
          if (round == 0) first = full;
          most = full > most ? full : most;
          stage("main frees", static_cast<uint64_t>(round));
          burst.free();
          turn.wait();
        }
      });
  EXPECT(most < first + first / 10, "%zu MiB resident in the first round, %zu MiB later",
         first / kMiB, most / kMiB);
  NOTE("%zu MiB resident in the first of 5 rounds, at most %zu MiB later", first / kMiB,
       most / kMiB);
}

// The owner is blocked in a read when its objects are freed. Then a third thread allocates as many
// bytes at once: it must get that memory.
void owner_sleeps() {
  size_t bytes = scaled(256) * kMiB;
  int ends[2];
  EXPECT(pipe(ends) == 0, "pipe: %s", strerror(errno));
  Barrier full(2);
  Burst burst, second;
  run_threads(
      1,
      [&](int) {
        Random random(1);
        burst.allocate(bytes, 16, 1024, random);
        full.wait();
        char byte;
        while (read(ends[0], &byte, 1) < 0 && errno == EINTR) {
        }
      },
      [&] {
        full.wait();
        size_t peak = resident(), most = 0;
        burst.free();
        run_threads(1, [&](int) {
          Random random(2);
          for (int part = 0; part < 8; part++) {
            second.allocate(bytes / 8, 16, 1024, random);
            if (size_t here = resident(); here > most) most = here;
          }
          second.free();
        });
        EXPECT(most < peak + peak / 10,
               "%zu MiB resident with the owner's objects, %zu MiB when another thread has as many",
               peak / kMiB, most / kMiB);
        size_t left = wait_for_resident_below(peak / 10);
        EXPECT(left < peak / 10, "%zu MiB of %zu MiB resident after all was freed", left / kMiB,
               peak / kMiB);
        NOTE(
            "%zu MiB with the owner's objects, at most %zu MiB with another thread's, %zu MiB at "
            "the end",
            peak / kMiB, most / kMiB, left / kMiB);
        EXPECT(write(ends[1], "x", 1) == 1, "write: %s", strerror(errno));
      });
}
}  // namespace

int main(int argc, char** argv) {
  static const Case cases[] = {
      {"one-to-one", [] { hand_off({1, 1, 16, 4096, 1e7, 2 * kMiB}); }},
      {"one-to-one-32-bytes", [] { hand_off({1, 1, 32, 32, 1e7, 2 * kMiB}); }},
      {"one-to-many", [] { hand_off({1, 4, 16, 4096, 1e7, 4 * kMiB}); }},
      {"many-to-one", [] { hand_off({4, 1, 16, 4096, 1e7, 4 * kMiB}); }},
      {"many-to-many", [] { hand_off({3, 3, 16, 4096, 1e7, 4 * kMiB}); }},
      {"large", [] { hand_off({1, 1, 128 * kKiB, 128 * kKiB, 2e5, 8 * kMiB, 16}); }},
      {"only-frees", only_frees},
      {"owner-sleeps", owner_sleeps},
  };
  return run_cases("hand_off", argc, argv, cases);
}
