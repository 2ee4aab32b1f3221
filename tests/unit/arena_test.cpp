// Arenas: pieces, checkpoints, and how their blocks go back to lanes.
#include "fronts/arena/arena.h"

#include "fixture.h"

namespace lanemalloc {
namespace {

class ArenaTest : public EngineTest {
 protected:
  using OnFake = Arena<Fake>;

  OnFake by(Slot& slot) {
    Fake::number = cpu_of(slot);
    return {arena_, engine(), slot};
  }
  // Does what lane_arena_alloc() does; the miss of that function goes to the process's engine.
  char* piece(Slot& slot, Bytes size) {
    char* next = arena_.next;
    if (size >= static_cast<Bytes>(arena_.end - next))
      return static_cast<char*>(by(slot).allocate(size));
    return static_cast<char*>(lane_arena_alloc(&arena_, size));
  }
  // Fills the arena up to n blocks, with pieces of a fifth of a block.
  void fill_blocks(Slot& slot, size_t n) {
    const Bytes block = arena_.block_size != 0 ? arena_.block_size : 8192;
    while (arena_.block_count < n) {
      char* p = piece(slot, block / 5);
      ASSERT_NE(p, nullptr);
      memset(p, 0x11, block / 5);
    }
  }
  // Objects that no arena of any test has given back yet.
  uint64_t live() { return statistics().live_objects; }
  void expect_empty() {
    EXPECT_EQ(arena_.blocks, nullptr);
    EXPECT_EQ(lane_arena_bytes(&arena_), 0u);
    EXPECT_EQ(live(), 0u);
  }
  static void note(void* object) { notes_.push_back(object); }

  lane_arena arena_{};
  static inline std::vector<void*> notes_;
};

TEST_ALL_CONFIGS(ArenaTest, PiecesLieApartAndAreAligned) {
  Slot& t = thread();
  std::vector<std::pair<char*, Bytes>> all;
  uint64_t seed = 0;
  for (Bytes alignment : {Bytes{1}, Bytes{16}, Bytes{64}, Bytes{256}, Bytes{4096}, Bytes{1} << 17})
    for (Bytes size : {0, 1, 15, 16, 17, 100, 2000, 2047, 2048, 2049, 8176, 8192, 100000}) {
      auto* p = static_cast<char*>(alignment == 1 ? piece(t, size)
                                                  : by(t).allocate_aligned(alignment, size));
      ASSERT_NE(p, nullptr);
      EXPECT_EQ(reinterpret_cast<Address>(p) % (alignment < kGranule ? kGranule : alignment), 0u)
          << size;
      fill(p, size, ++seed);
      all.emplace_back(p, size);
    }
  seed = 0;
  for (auto& [p, size] : all) EXPECT_TRUE(is_whole(p, size, ++seed)) << size;
  EXPECT_EQ(lane_arena_bytes(&arena_), arena_.block_count * 8192 + arena_.large_bytes);
  by(t).destroy();
  expect_empty();
}

TEST_ALL_CONFIGS(ArenaTest, ABlockIsFilledToItsEnd) {
  Slot& t = thread();
  ASSERT_TRUE(OnFake::start(arena_, 256));
  for (int i = 0; i < 15; ++i) EXPECT_NE(piece(t, 16), nullptr);
  EXPECT_EQ(arena_.next, arena_.end);
  EXPECT_EQ(arena_.block_count, 1u);
  EXPECT_NE(piece(t, 0), arena_.end) << "what begins at the end of a block lies outside";
  EXPECT_EQ(arena_.block_count, 2u);
  by(t).destroy();
}

TEST_ALL_CONFIGS(ArenaTest, BlocksHaveTheSizesThatLanesHave) {
  EXPECT_FALSE(OnFake::start(arena_, 255));
  EXPECT_FALSE(OnFake::start(arena_, kSlabMax + 1));
  EXPECT_EQ(arena_.block_size, 0u) << "what fails changes nothing";
  Slot& t = thread();
  for (Bytes asked : {Bytes{256}, Bytes{257}, Bytes{1000}, Bytes{5000}, Bytes{0}, kSlabMax}) {
    ASSERT_TRUE(OnFake::start(arena_, asked));
    EXPECT_GE(arena_.block_size, asked);
    piece(t, 1);
    EXPECT_EQ(engine().pointers().usable_size(arena_.blocks,
                                              engine().pointers().find(arena_.blocks).word),
              arena_.block_size);
    by(t).destroy();
  }
}

TEST_ALL_CONFIGS(ArenaTest, AResetKeepsOneBlockAndDestroyNone) {
  Slot& t = thread();
  for (size_t n : {0, 1, 2, 10, 1000}) {
    fill_blocks(t, n);
    EXPECT_EQ(live(), n);
    by(t).reset();
    EXPECT_EQ(arena_.block_count, n == 0 ? 0u : 1u);
    EXPECT_EQ(live(), arena_.block_count);
    if (n > 0) {
      EXPECT_EQ(piece(t, 10), reinterpret_cast<char*>(arena_.blocks + 1));
    }
    by(t).destroy();
    expect_empty();
    EXPECT_HOLDS(engine().check_invariants());
  }
}

TEST_ALL_CONFIGS(ArenaTest, LargePiecesGoBackToo) {
  Slot& t = thread();
  piece(t, 8000);
  EXPECT_EQ(arena_.block_count, 0u);
  EXPECT_EQ(arena_.large_bytes, 8000 + sizeof(lane_arena_large));
  piece(t, 16);
  piece(t, 2049);
  EXPECT_EQ(arena_.block_count, 1u) << "what fits goes into the block, be it large";
  EXPECT_EQ(live(), 2u);
  piece(t, Bytes{3} << 20);
  EXPECT_EQ(live(), 3u);
  by(t).reset();
  EXPECT_EQ(arena_.large, nullptr);
  EXPECT_EQ(lane_arena_bytes(&arena_), 8192u);
  EXPECT_EQ(live(), 1u);
  by(t).destroy();
  expect_empty();
}

TEST_ALL_CONFIGS(ArenaTest, SizesBeyondAllMemoryAreRefused) {
  Slot& t = thread();
  piece(t, 100);
  const lane_arena before = arena_;
  for (Bytes size : {SIZE_MAX, SIZE_MAX - 15, SIZE_MAX - 16, SIZE_MAX - 100, SIZE_MAX / 2,
                     world().region.most_bytes()}) {
    EXPECT_EQ(piece(t, size), nullptr) << size;
    EXPECT_EQ(by(t).allocate_aligned(4096, size), nullptr) << size;
    EXPECT_EQ(by(t).reallocate(before.next - 112, 100, size), nullptr) << size;
  }
  EXPECT_EQ(by(t).allocate_aligned(Bytes{1} << 63, 1), nullptr);
  EXPECT_EQ(memcmp(&before, &arena_, sizeof before), 0) << "what fails changes nothing";
  by(t).destroy();
}

TEST_ALL_CONFIGS(ArenaTest, OnlyTheLastPieceIsTakenBack) {
  Slot& t = thread();
  char* a = piece(t, 20);
  char* b = piece(t, 30);
  EXPECT_FALSE(by(t).rollback(a, 20));
  EXPECT_FALSE(by(t).rollback(b, 50));
  EXPECT_FALSE(by(t).rollback(b, 5));
  EXPECT_FALSE(by(t).rollback(b + 32, SIZE_MAX));
  EXPECT_TRUE(by(t).rollback(b, 30));
  EXPECT_EQ(piece(t, 1), b);
  EXPECT_TRUE(by(t).rollback(b, 1));
  EXPECT_TRUE(by(t).rollback(a, 20));
  EXPECT_EQ(piece(t, 1), a);
  int local = 0;
  EXPECT_FALSE(by(t).rollback(&local, 4));
  char* large = piece(t, 50000);
  char* larger = piece(t, 60000);
  EXPECT_FALSE(by(t).rollback(large, 50000));
  EXPECT_FALSE(by(t).rollback(larger, 60001));
  EXPECT_TRUE(by(t).rollback(larger, 60000));
  EXPECT_TRUE(by(t).rollback(large, 50000));
  EXPECT_EQ(arena_.large_bytes, 0u);
  EXPECT_EQ(live(), 1u);
  by(t).destroy();
}

TEST_ALL_CONFIGS(ArenaTest, TheLastPieceGrowsInPlaceAndOthersAreCopied) {
  Slot& t = thread();
  auto* p = static_cast<char*>(by(t).reallocate(nullptr, 0, 10));
  memcpy(p, "0123456789", 10);
  EXPECT_EQ(by(t).reallocate(p, 10, 500), p);
  EXPECT_EQ(by(t).reallocate(p, 500, 20), p);
  EXPECT_EQ(arena_.next, p + 32);
  piece(t, 1);
  EXPECT_EQ(by(t).reallocate(p, 20, 32), p) << "within what it has";
  EXPECT_EQ(by(t).reallocate(p, 20, 5), p);
  auto* q = static_cast<char*>(by(t).reallocate(p, 10, 100));
  EXPECT_NE(q, p);
  EXPECT_EQ(memcmp(q, "0123456789", 10), 0);
  EXPECT_EQ(memcmp(p, "0123456789", 10), 0) << "the old one is as it was";
  auto* large = static_cast<char*>(by(t).reallocate(q, 100, 100000));
  EXPECT_EQ(memcmp(large, "0123456789", 10), 0);
  auto* larger = static_cast<char*>(by(t).reallocate(large, 100000, Bytes{5} << 20));
  EXPECT_EQ(memcmp(larger, "0123456789", 10), 0);
  larger[(Bytes{5} << 20) - 1] = 1;
  EXPECT_EQ(live(), 2u) << "a block, and one large piece";
  EXPECT_EQ(arena_.large_bytes, (Bytes{5} << 20) + sizeof(lane_arena_large));
  auto* smaller = static_cast<char*>(by(t).reallocate(larger, Bytes{5} << 20, 12));
  EXPECT_EQ(memcmp(smaller, "0123456789", 10), 0);
  EXPECT_EQ(arena_.large_bytes, 12 + sizeof(lane_arena_large));
  by(t).destroy();
  expect_empty();
}

TEST_ALL_CONFIGS(ArenaTest, FunctionsAreCalledNewestFirstAndMayUseTheArena) {
  Slot& t = thread();
  notes_.clear();
  int a, b, c;
  ASSERT_TRUE(by(t).at_reset(note, &a));
  const lane_arena_checkpoint point = lane_arena_mark(&arena_);
  ASSERT_TRUE(by(t).at_reset(note, &b));
  ASSERT_TRUE(by(t).at_reset(note, &c));
  EXPECT_TRUE(by(t).rewind(point));
  EXPECT_EQ(notes_, (std::vector<void*>{&c, &b}));
  by(t).reset();
  EXPECT_EQ(notes_, (std::vector<void*>{&c, &b, &a}));
  by(t).reset();
  EXPECT_EQ(notes_.size(), 3u) << "once";

  struct Busy {
    std::function<void()> use;
  };
  int rounds = 3;
  Busy busy;
  busy.use = [&] {
    note(&busy);
    fill_blocks(t, arena_.block_count + 2);
    piece(t, 100000);
    if (--rounds > 0) {
      EXPECT_TRUE(by(t).at_reset(note, &busy));
    }
  };
  const auto use = [](void* object) { static_cast<Busy*>(object)->use(); };
  notes_.clear();
  ASSERT_TRUE(by(t).at_reset(use, &busy));
  ASSERT_TRUE(by(t).at_reset(use, &busy));
  by(t).reset();
  EXPECT_EQ(notes_.size(), 4u);
  EXPECT_EQ(live(), 1u);
  by(t).destroy();
  expect_empty();
}

TEST_ALL_CONFIGS(ArenaTest, CheckpointsNest) {
  Slot& t = thread();
  const lane_arena_checkpoint empty = lane_arena_mark(&arena_);
  char* first = piece(t, 100);
  memset(first, 1, 100);
  const lane_arena_checkpoint one = lane_arena_mark(&arena_);
  char* second = piece(t, 100);
  fill_blocks(t, 5);
  piece(t, 100000);
  const lane_arena_checkpoint two = lane_arena_mark(&arena_);
  fill_blocks(t, 9);
  piece(t, 100000);
  EXPECT_EQ(live(), 11u);
  EXPECT_TRUE(by(t).rewind(two));
  EXPECT_EQ(live(), 6u);
  EXPECT_TRUE(by(t).rewind(two)) << "as often as one likes";
  EXPECT_TRUE(by(t).rewind(one));
  EXPECT_EQ(live(), 1u);
  EXPECT_EQ(piece(t, 100), second);
  EXPECT_FALSE(by(t).rewind(two)) << "that block is gone";
  EXPECT_EQ(first[0] + first[99], 2);
  EXPECT_TRUE(by(t).rewind(empty));
  EXPECT_EQ(arena_.block_count, 1u);
  EXPECT_EQ(piece(t, 1), first);
  by(t).destroy();
  EXPECT_FALSE(by(t).rewind(one));
  EXPECT_TRUE(by(t).rewind(empty));
  expect_empty();
}

// It knows them by their numbers: an address may belong to another piece by then.
TEST_ALL_CONFIGS(ArenaTest, ARewindKnowsWhichLargePiecesAreNewer) {
  Slot& t = thread();
  char* old = piece(t, 50000);
  fill(old, 50000, 7);
  char* last = piece(t, 50000);
  const lane_arena_checkpoint point = lane_arena_mark(&arena_);
  EXPECT_TRUE(by(t).rollback(last, 50000));
  EXPECT_NE(piece(t, 50000), nullptr);
  EXPECT_TRUE(by(t).rewind(point));
  EXPECT_EQ(live(), 1u);
  EXPECT_TRUE(is_whole(old, 50000, 7));
  auto* moved = static_cast<char*>(by(t).reallocate(old, 50000, Bytes{4} << 20));
  EXPECT_TRUE(by(t).rewind(point));
  EXPECT_TRUE(is_whole(moved, 50000, 7)) << "it was there before, and is still";
  by(t).destroy();
}

TEST_ALL_CONFIGS(ArenaTest, WhatIsGivenBackIsFilledWhereAllIsChecked) {
  begin_checked();
  Slot& t = thread();
  const auto is_gone = [](const char* p, Bytes n) {
    return std::all_of(p, p + n, [](char c) { return c == '\xFD'; });
  };
  char* kept = piece(t, 1000);
  memset(kept, 1, 1000);
  char* p = piece(t, 1000);
  memset(p, 1, 1000);
  EXPECT_TRUE(by(t).rollback(p, 1000));
  EXPECT_TRUE(is_gone(p, 1000));
  EXPECT_FALSE(is_gone(kept, 1));
  fill_blocks(t, 3);
  char* in_newest = arena_.next - 1024;
  char* large = piece(t, 40000);
  memset(large, 1, 40000);
  by(t).reset();
  EXPECT_TRUE(is_gone(kept, 8192 - 16));
  EXPECT_TRUE(is_gone(in_newest, 1000));
  EXPECT_TRUE(is_gone(large, 40000));
  by(t).destroy();
}

TEST_ALL_CONFIGS(ArenaTest, ABlockThatIsNoneIsTold) {
  begin_checked();
  Slot& t = thread();
  fill_blocks(t, 4);
  void* freed = arena_.blocks->next->next;
  give(t, freed);
  by(t).destroy();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].why, Verdict::kFreedAlready);
  EXPECT_EQ(reports[0].pointer, freed);
  EXPECT_EQ(live(), 1u) << "what lay behind it";
  reports.clear();
  fill_blocks(t, 4);
  int local = 0;
  arena_.blocks->next = reinterpret_cast<Chained*>(&local);
  by(t).destroy();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].why, Verdict::kNotOurs);
  EXPECT_EQ(reports[0].pointer, &local);
  reports.clear();
  begin({});
  Slot& u = thread();
  fill_blocks(u, 4);
  arena_.blocks->next = reinterpret_cast<Chained*>(take(u, 1 << 20));
  by(u).destroy();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].why, Verdict::kNotAStart);
  reports.clear();
}

TEST_ALL_CONFIGS(ArenaTest, WithoutMemoryTheArenaIsAsItWas) {
  Slot& t = thread();
  fill_blocks(t, 2);
  Fake::fail(Fake::Call::kClaim, 1);
  notes_.clear();
  int object;
  size_t pieces = 0;
  while (piece(t, 2000) != nullptr) ASSERT_LT(++pieces, 10000u);
  EXPECT_EQ(piece(t, 2000), nullptr);
  while (by(t).at_reset(note, &object)) ASSERT_LT(++pieces, 10000u);
  EXPECT_EQ(by(t).reallocate(arena_.next - 16, 16, 3000), nullptr);
  EXPECT_EQ(piece(t, Bytes{1} << 20), nullptr);
  Fake::fail_never();
  by(t).reset();
  EXPECT_FALSE(notes_.empty());
  EXPECT_EQ(live(), 1u);
  EXPECT_NE(piece(t, 2000), nullptr);
  by(t).destroy();
  expect_empty();
}

// --- Blocks of several lanes.

TEST_ALL_CONFIGS(ArenaTest, BlocksOfAnotherLaneGoBackInOneBatchOrWaitForMore) {
  for (Bytes block : {Bytes{256}, Bytes{8192}, kSlabMax})
    for (size_t n : {20, 1000}) {
      if (block == kSlabMax && n > 20) continue;
      begin({});
      Slot &a = thread(), &b = thread();
      ASSERT_TRUE(OnFake::start(arena_, block));
      fill_blocks(a, n);
      give(b, take(b, 16));
      if (lane_of(a) == lane_of(b)) continue;
      const Statistics before = statistics();
      by(b).destroy();
      const Statistics after = statistics();
      const bool is_much = n > 64 || n * block > 16384;
      EXPECT_EQ(after.remote_batches - before.remote_batches, is_much ? 1u : 0u)
          << n << " blocks of " << block;
      EXPECT_EQ(after.remote_frees - before.remote_frees, n);
      EXPECT_EQ(after.live_objects, 0u);
      by(a).destroy();
    }
}

// A lane keeps its batches for two owners that are 32 lanes apart in one place.
TEST_OWNED(ArenaTest, OwnersThatShareAPlaceTakeTurns) {
  std::vector<Slot*> threads;
  for (int i = 0; i < 40; ++i) {
    threads.push_back(&thread());
    give(*threads.back(), take(*threads.back(), 16));
  }
  ASSERT_TRUE(OnFake::start(arena_, 8192));
  constexpr size_t kEach = 100;
  for (size_t i = 0; i < 8 * kEach; ++i) {
    Slot& t = *threads[i % 4 + (i / 4 % 2) * 32];
    arena_.next = arena_.end;  // a fresh block from this thread
    ASSERT_NE(piece(t, 100), nullptr);
  }
  ASSERT_EQ(static_cast<unsigned>(lane_of(*threads[32])->id()) -
                static_cast<unsigned>(lane_of(*threads[0])->id()),
            32u);
  Slot& b = *threads[20];
  const Statistics before = statistics();
  by(b).destroy();
  const Statistics after = statistics();
  EXPECT_EQ(after.remote_batches - before.remote_batches, 8u) << "one for each owner";
  EXPECT_EQ(after.remote_frees - before.remote_frees, 8 * kEach);
  EXPECT_EQ(after.live_objects, 0u);
  for (Slot* t : threads) engine().exits().thread_exits(*t);
  engine().upkeep().trim(b);
  EXPECT_EQ(statistics().in_flight_objects, 0u);
}

// A few blocks wait together with other objects freed for that lane, up to the usual limit.
TEST_ALL_CONFIGS(ArenaTest, AFewBlocksOfAnotherLaneWaitForMore) {
  Slot &a = thread(), &b = thread();
  ASSERT_TRUE(OnFake::start(arena_, 256));
  give(b, take(b, 16));
  size_t resets = 0;
  while (statistics().remote_batches == 0) {
    fill_blocks(a, 3);
    by(b).destroy();
    if (lane_of(a) == lane_of(b)) return;
    ASSERT_LT(++resets, 1000u);
  }
  EXPECT_GT(resets, 5u);
  EXPECT_EQ(live(), 0u);
}

TEST_ALL_CONFIGS(ArenaTest, BlocksOfTheDepotGoBack) {
  Slot &a = thread(), &b = thread();
  fill_blocks(a, 20);
  engine().upkeep().trim(a);
  engine().exits().thread_exits(a);
  engine().upkeep().trim(b);
  by(b).destroy();
  EXPECT_EQ(live(), 0u);
  engine().upkeep().trim(b);
  EXPECT_EQ(statistics().in_flight_objects, 0u);
  EXPECT_EQ(statistics().slab_bytes, 0u);
}

// To give each slab back at once would take the runs' lock each time.
TEST_ALL_CONFIGS(ArenaTest, SlabsStayInTheLaneUntilTheyAreWanted) {
  Slot& t = thread();
  ASSERT_TRUE(OnFake::start(arena_, 64 << 10));
  fill_blocks(t, 40);
  const Bytes slabs = statistics().slab_bytes;
  by(t).destroy();
  EXPECT_EQ(statistics().slab_bytes, slabs);
  engine().upkeep().trim(t);
  EXPECT_EQ(statistics().slab_bytes, 0u);
}

TEST_ALL_CONFIGS(ArenaTest, WhatAThreadLeftBehindIsGivenBack) {
  Slot &a = thread(), &b = thread();
  fill_blocks(a, 200);
  by(a).reset();
  engine().exits().thread_exits(a);
  by(b).destroy();
  for (int i = 0; i < 2; ++i) engine().upkeep().trim(b);
  EXPECT_EQ(statistics().slab_bytes, 0u);
  EXPECT_EQ(live(), 0u);
}

// The child may go on with every arena. Blocks that it gives back to lanes that were busy are set
// aside with those lanes.
TEST_ALL_CONFIGS(ArenaTest, AChildGoesOnWithAnArena) {
  Slot &a = thread(), &b = thread();
  fill_blocks(a, 3);
  fill_blocks(b, 6);
  char* p = piece(b, 100);
  fill(p, 100, 3);
  engine().fork().before(b);
  engine().fork().after_in_child(b);
  EXPECT_TRUE(is_whole(p, 100, 3));
  fill_blocks(b, 9);
  by(b).reset();
  fill_blocks(b, 9);
  by(b).destroy();
  EXPECT_EQ(live(), 0u);
}

// --- Random operations, checked against a model.

class ArenaModelTest : public ArenaTest {
 protected:
  struct Piece {
    char* p;
    Bytes size;
    uint64_t seed;
    bool is_last;  // since then nothing was allocated in its block, or as a large piece
  };
  struct Point {
    lane_arena_checkpoint checkpoint;
    size_t pieces, ends;
  };

  void add(void* p, Bytes size) {
    if (p == nullptr) return;
    fill(p, size, ++seeds_);
    pieces_.push_back({static_cast<char*>(p), size, seeds_, true});
  }
  void check() {
    for (const Piece& piece : pieces_)
      ASSERT_TRUE(is_whole(piece.p, piece.size, piece.seed)) << piece.size;
  }
  Bytes any_size(Random& random) {
    return random.one_in(20)  ? random.below(100000)
           : random.one_in(5) ? random.below(4000)
                              : random.below(200);
  }
  void rewind_to(size_t n) {
    const Point point = points_[n];
    points_.resize(n + 1);
    pieces_.resize(point.pieces);
    const size_t before = ended_;
    ASSERT_TRUE(by(*slot_).rewind(point.checkpoint));
    EXPECT_EQ(ended_ - before, ends_ - point.ends);
    ends_ = point.ends;
  }
  void reset(bool destroy) {
    pieces_.clear();
    points_.clear();
    const size_t before = ended_;
    destroy ? by(*slot_).destroy() : by(*slot_).reset();
    EXPECT_EQ(ended_ - before, ends_);
    ends_ = 0;
  }
  void step(Random& random);

  Slot* slot_ = nullptr;
  std::vector<Piece> pieces_;
  std::vector<Point> points_;
  uint64_t seeds_ = 0;
  size_t ends_ = 0;
  static inline size_t ended_ = 0;
};

void ArenaModelTest::step(Random& random) {
  const Bytes size = any_size(random);
  switch (random.below(16)) {
    case 0:
      add(by(*slot_).allocate_aligned(Bytes{1} << random.below(13), size), size);
      break;
    case 1:
    // The last piece that was added may be resized or taken back, unless a checkpoint counts it.
    case 2:
    case 3:
      if (!pieces_.empty() && (points_.empty() || points_.back().pieces < pieces_.size())) {
        Piece last = pieces_.back();
        pieces_.pop_back();
        if (random.one_in(3) && by(*slot_).rollback(last.p, last.size)) break;
        auto* p = static_cast<char*>(by(*slot_).reallocate(last.p, last.size, size));
        ASSERT_NE(p, nullptr);
        if (size < last.size || last.size <= 4096) {
          for (size_t i = 0; i + 1 < std::min(size, last.size); ++i)
            ASSERT_TRUE(last.size > 4096 || p[i] == static_cast<char>(last.seed + i));
        }
        add(p, size);
      }
      break;
    case 4:
      points_.push_back({lane_arena_mark(&arena_), pieces_.size(), ends_});
      break;
    case 5:
      if (!points_.empty()) rewind_to(random.below(points_.size()));
      break;
    case 6:
      ASSERT_TRUE(by(*slot_).at_reset([](void*) { ++ended_; }, nullptr));
      ++ends_;
      break;
    case 7:
      if (random.one_in(20)) reset(random.one_in(2));
      break;
    case 8:
      slot_ = &slots_[random.below(slots_.size())];
      break;
    default:
      add(piece(*slot_, size), size);
  }
}

TEST_ALL_CONFIGS(ArenaModelTest, AnythingAtRandom) {
  Random random(15);
  for (int i = 0; i < 3; ++i) thread();
  slot_ = &slots_[0];
  for (int round = 0; round < 4; ++round) {
    ASSERT_TRUE(OnFake::start(arena_, round == 0   ? 256
                                      : round == 1 ? 0
                                      : round == 2 ? 40000
                                                   : 1000));
    for (int i = 0; i < 3000 / kShorter; ++i) {
      step(random);
      if (HasFatalFailure()) return;
      if (i % 50 == 0) check();
    }
    check();
    reset(true);
    EXPECT_EQ(live(), 0u);
    EXPECT_HOLDS(engine().check_invariants());
  }
}

// --- The process's engine, through the C functions.

TEST(ArenaFunctions, StringsOfTheProcessArena) {
  lane_arena arena = {};
  EXPECT_STREQ(lane_arena_strdup(&arena, "text"), "text");
  EXPECT_STREQ(lane_arena_strdup(&arena, ""), "");
  EXPECT_STREQ(lane_arena_strndup(&arena, "text", 2), "te");
  EXPECT_STREQ(lane_arena_concat(&arena, "a", "", "bc", static_cast<const char*>(nullptr)), "abc");
  EXPECT_EQ(memcmp(lane_arena_memdup(&arena, "a\0b", 4), "a\0b", 4), 0);
  // The text begins at every distance from the end of a block.
  for (size_t n = 0; n < 600; ++n) {
    const std::string text(n, 'x');
    const char* copy = lane_arena_printf(&arena, "%s-%zu", text.c_str(), n);
    ASSERT_EQ(copy, text + "-" + std::to_string(n));
    ASSERT_STREQ(lane_arena_strdup(&arena, "next"), "next");
    ASSERT_EQ(copy, text + "-" + std::to_string(n));
  }
  const std::string large(100000, 'y');
  EXPECT_EQ(lane_arena_printf(&arena, "%s", large.c_str()), large);
  lane_arena_destroy(&arena);
  EXPECT_EQ(lane_arena_bytes(&arena), 0u);
}

}  // namespace
}  // namespace lanemalloc
