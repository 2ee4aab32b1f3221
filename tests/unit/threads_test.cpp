// Several real threads: over the fake platform with a scavenger that passes all the time, and
// through the prefixed library. Small, so that the thread sanitizer can watch.
#include <thread>

#include "fixture.h"

extern "C" {
void* lane_malloc(size_t size);
void* lane_calloc(size_t count, size_t size);
void* lane_realloc(void* p, size_t size);
void* lane_memalign(size_t alignment, size_t size);
void lane_free(void* p);
size_t lane_malloc_usable_size(void* p);
int lane_malloc_trim(size_t pad);
#if defined(LANEMALLOC_PREFIXED)
extern const char* lane_lanemalloc_options;
const char* lane_lanemalloc_options = "decay_ms=40";
#endif
}

namespace lanemalloc {
namespace {

// Works on objects of its own and on those that other threads leave in the mailboxes, over any
// malloc.
template <class Allocator>
class Worker {
 public:
  static constexpr size_t kBoxes = 64;
  using Boxes = std::atomic<unsigned char*>[kBoxes];

  Worker(Allocator allocator, Boxes& boxes, uint64_t seed)
      : allocator_(allocator), boxes_(boxes), random_(seed) {}

  void work(int steps) {
    for (int i = 0; i < steps; ++i) {
      const size_t place = random_.below(kKept);
      if (random_.one_in(3)) {
        // Leaves it to another thread, and takes what lay there.
        unsigned char* mine = std::exchange(kept_[place], nullptr);
        kept_[place] = boxes_[random_.below(kBoxes)].exchange(mine, std::memory_order_acq_rel);
      } else {
        drop(kept_[place]);
        kept_[place] = make();
      }
    }
    for (unsigned char*& p : kept_) drop(p);
  }
  void drop(unsigned char*& p) {
    if (p == nullptr) return;
    size_t size;
    memcpy(&size, p, sizeof size);
    EXPECT_TRUE(is_whole(p + kHead, size - kHead, size))
        << "an object of " << size << " bytes was written to";
    allocator_.free(p);
    p = nullptr;
  }

 private:
  static constexpr size_t kKept = 100;
  static constexpr size_t kHead = 16;

  unsigned char* make() {
    const size_t size = random_.one_in(200)  ? random_.between(kHead, 1 << 20)
                        : random_.one_in(10) ? random_.between(kHead, 20000)
                                             : random_.between(kHead, 500);
    auto* p = static_cast<unsigned char*>(allocator_.allocate(size));
    EXPECT_NE(p, nullptr);
    if (p == nullptr) return nullptr;
    memcpy(p, &size, sizeof size);
    fill(p + kHead, size - kHead, size);
    return p;
  }

  Allocator allocator_;
  Boxes& boxes_;
  Random random_;
  unsigned char* kept_[kKept] = {};
};

// --- Over the fake platform.

class ThreadsTest : public EngineTest {
 protected:
  struct Fakes {
    FakeEngine* engine;
    Slot* slot;
    void* allocate(Bytes n) const {
      Fake::number = static_cast<uint32_t>(n / 64 % Fake::cpu_count);  // it moves from CPU to CPU
      return engine->allocate(n, *slot);
    }
    void free(void* p) const { EXPECT_EQ(engine->free(p, *slot), Verdict::kGood); }
  };
  using FakeWorker = Worker<Fakes>;

  // `lives` threads work one after the other in each of three places. Beside them one thread passes
  // and trims until they are done.
  void storm(int lives, int steps, bool with_scavenger) {
    start_threads();
    FakeWorker::Boxes boxes = {};
    std::atomic<int> running{3};
    std::vector<std::thread> threads;
    for (int place = 0; place < 3; ++place) {
      threads.emplace_back([&, place] {
        for (int life = 0; life < lives; ++life) {
          std::thread([&, place, life] {
            Slot slot{&no_lane_gate};
            FakeWorker worker({&engine(), &slot}, boxes,
                              static_cast<uint64_t>(place * 1000 + life));
            worker.work(steps);
            engine().exits().thread_exits(slot);
          }).join();
        }
        --running;
      });
    }
    Slot trimmer{&no_lane_gate};
    while (running > 0) {
      if (with_scavenger && is_scavenger_wanted()) passes(1);
      engine().upkeep().trim(trimmer);
      std::this_thread::yield();
    }
    for (std::thread& t : threads) t.join();
    FakeWorker last({&engine(), &trimmer}, boxes, 1);
    for (auto& box : boxes) {
      unsigned char* p = box;
      last.drop(p);
    }
    for (int i = 0; i < 6; ++i) engine().upkeep().trim(trimmer);
    const Statistics s = statistics();
    EXPECT_EQ(s.live_objects, 0u);
    EXPECT_EQ(s.live_bytes, 0u);
    EXPECT_EQ(s.slab_bytes, 0u);
    EXPECT_EQ(s.runs.claimed, Fake::claimed_blocks() * kBlockSize);
  }
};

TEST_ALL_CONFIGS(ThreadsTest, RevocationsExitsAndRemoteFreesLoseNothing) { storm(4, 2500, true); }
TEST_ALL_CONFIGS(ThreadsTest, WithoutABarrierNothingIsLostEither) {
  Fake::has_barrier = false;
  begin({});  // lanes by CPU are not available then
  storm(3, 2000, false);
}
TEST_ALL_CONFIGS(ThreadsTest, CheckedFindsNothingWrong) {
  begin_checked();
  storm(3, 1500, true);
}
TEST_ALL_CONFIGS(ThreadsTest, WhereMapsAreChargedNothingIsLost) {
  Fake::maps_are_charged = true;
  begin({});
  storm(3, 1500, true);
}

TEST_ALL_CONFIGS(ThreadsTest, ALaneThatIsJustBeingMadeMayMeetSomebodyWhoTrims) {
  for (int round = 0; round < 60; ++round) {
    begin({});
    start_threads();
    std::atomic<int> ready{0};
    auto meet = [&] {
      ++ready;
      while (ready < 2) {
      }
    };
    std::thread maker([&] {
      std::vector<Slot> exited(30);
      meet();
      for (Slot& slot : exited) {
        slot = &exited_gate;
        // The slot stays inside an overflow lane, so that each one makes one more.
        Visit visit(&slot, false);
        Owned::enter(slot);
        EXPECT_NE(world().lanes.enter_overflow(visit), nullptr);
      }
    });
    std::thread trimmer([&] {
      Slot slot{&no_lane_gate};
      meet();
      for (int i = 0; i < 30; ++i) engine().upkeep().trim(slot);
      engine().exits().thread_exits(slot);
    });
    maker.join();
    trimmer.join();
  }
}

// The freeing thread knows only the lane's number in the page map. The thread sanitizer demands
// more.
TEST_OWNED(ThreadsTest, AFreeGoesToALaneThatAnotherThreadHasMadeSince) {
  start_threads();
  Slot& here = thread();
  std::vector<void*> objects;
  for (int i = 0; i < 1200; ++i) objects.push_back(take(here, 200));
  give(here, objects.back());
  objects.pop_back();
  engine().upkeep().trim(here);  // the slab with room goes to the depot
  std::atomic<bool> is_taken{false}, is_over{false};
  std::thread there([&] {
    Slot slot{&no_lane_gate};
    void* p = engine().allocate(200, slot);
    is_taken.store(true, std::memory_order_relaxed);
    while (!is_over.load(std::memory_order_relaxed)) std::this_thread::yield();
    EXPECT_EQ(engine().free(p, slot), Verdict::kGood);
    engine().exits().thread_exits(slot);
  });
  while (!is_taken.load(std::memory_order_relaxed)) std::this_thread::yield();
  for (void* p : objects) give(here, p);
  is_over.store(true, std::memory_order_relaxed);
  there.join();
  EXPECT_GT(statistics().remote_frees, 64u);
  engine().upkeep().trim(here);
  EXPECT_EQ(statistics().live_objects, 0u);
}

TEST_ALL_CONFIGS(ThreadsTest, TwoThreadsThatFreeEachOthersObjectsStayBounded) {
  start_threads();
  std::atomic<void*> boxes[2][64] = {};
  std::vector<std::thread> threads;
  for (int me = 0; me < 2; ++me) {
    threads.emplace_back([&, me] {
      Slot slot{&no_lane_gate};
      for (int i = 0; i < 8000; ++i) {
        void* old =
            boxes[1 - me][i % 64].exchange(engine().allocate(200, slot), std::memory_order_acq_rel);
        EXPECT_EQ(engine().free(old, slot), Verdict::kGood);
        void* mine = boxes[me][i % 64].exchange(nullptr, std::memory_order_acq_rel);
        EXPECT_EQ(engine().free(mine, slot), Verdict::kGood);
      }
      engine().exits().thread_exits(slot);
    });
  }
  for (std::thread& t : threads) t.join();
  Slot& last = thread();
  for (auto& row : boxes)
    for (auto& box : row) give(last, box.exchange(nullptr));
  EXPECT_EQ(statistics().live_objects, 0u);
  EXPECT_LE(Fake::most_claimed_blocks(), 400u);
}

// --- Through the library, over Linux.

struct Library {
  void* allocate(size_t n) const {
    switch (n % 4) {
      case 0:
        return lane_calloc(1, n);
      case 1:
        return lane_realloc(lane_malloc(n / 2), n);
      case 2:
        return lane_memalign(64, n);
      default:
        return lane_malloc(n);
    }
  }
  void free(void* p) const { lane_free(p); }
};

TEST(LibraryThreads, StormsOfThreadsThatComeAndGoLoseNothing) {
  Worker<Library>::Boxes boxes = {};
  std::vector<std::thread> threads;
  for (int place = 0; place < 3; ++place) {
    threads.emplace_back([&, place] {
      for (int life = 0; life < 6; ++life) {
        std::thread([&, place, life] {
          Worker<Library> worker({}, boxes, static_cast<uint64_t>(place * 100 + life));
          worker.work(3000);
          if (life % 2 == 0) lane_malloc_trim(0);
        }).join();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  Worker<Library> last({}, boxes, 1);
  for (auto& box : boxes) {
    unsigned char* p = box;
    last.drop(p);
  }
}

TEST(LibraryThreads, ObjectsOutliveTheirThreadAndAreFreedByTheNext) {
  for (int round = 0; round < 20; ++round) {
    std::vector<unsigned char*> all(300);
    std::thread([&] {
      for (size_t i = 0; i < all.size(); ++i) {
        all[i] = static_cast<unsigned char*>(lane_malloc(40 + i));
        fill(all[i], 40 + i, i);
      }
    }).join();
    std::thread([&] {
      for (size_t i = 0; i < all.size(); ++i) {
        EXPECT_TRUE(is_whole(all[i], 40 + i, i));
        EXPECT_GE(lane_malloc_usable_size(all[i]), 40 + i);
        lane_free(all[i]);
      }
    }).join();
  }
}

thread_local struct LateUser {
  void* kept = nullptr;
  ~LateUser() {
    lane_free(kept);
    lane_free(lane_malloc(100));
  }
} late_user;

TEST(LibraryThreads, DestructorsOfThreadLocalObjectsMayAllocateAndFree) {
  for (int i = 0; i < 10; ++i) std::thread([] { late_user.kept = lane_malloc(1000); }).join();
}

}  // namespace
}  // namespace lanemalloc
