// Fuzzing: operations of several threads on malloc, pools, heaps and an arena, over the fake
// platform of the unit tests. A model beside them knows what lives. Memory that is handed out must
// be apart from all that lives, and what was written to it must stay. Memory may run out at any
// call. With checked=1 the program also frees objects again, frees pointers into objects, and
// writes to objects that it has freed. It must be told, and must get no memory that somebody has.
// The input's first byte chooses the entry, the page size, and whether calls are checked; each
// further one is an operation, with its arguments behind it.
// Called by: run.sh.
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core.h"
#include "fuzz.h"

namespace {

using namespace lanemalloc;
using fuzz::require;
using FakePool = Pool<Fake>;

class Machine {
 public:
  explicit Machine(fuzz::Input in) : in_(in) {}

  void run() {
    Fake::reset();
    Fake::fixed_secret = 0x123456789ABCDEF;
    Fake::limit = Bytes{256} << 20;
    Fake::ns = 1;
    const uint8_t how = in_.byte();
    constexpr Bytes kPages[] = {4096, 16384, 65536, 4096};
    Fake::page = kPages[how >> 2 & 3];
    settings_.entry = static_cast<Entry>(how % 3);
    settings_.shared_lanes = 2;
    settings_.checked = (how >> 4 & 1) != 0;
    settings_.decay_ms = (how >> 5 & 1) != 0 ? 0 : 1000;
    Fake::single = (how >> 6 & 1) != 0;
    Fake::maps_are_charged = (how >> 7 & 1) != 0;
    is_alone_ = Fake::single;
    reports_ = 0;
    engine_ = std::make_unique<Engine<Fake>>();
    require(engine_->start(settings_, [](Verdict, const void*) { ++reports_; }), "no engine");
    engine_->set_exit_watch([](Slot&) { return true; });
    if (!is_alone_) engine_->upkeep().begins();
    for (size_t i = 0; i < (is_alone_ ? 1 : kThreads); ++i) threads_.push_back(&make_thread());
    while (!in_.is_empty()) step();
    end();
  }

 private:
  static constexpr size_t kThreads = 4, kMostLive = 2000, kMostPools = 3, kMostHeaps = 3;
  static constexpr Bytes kMostBytes = Bytes{24} << 20, kSureBytes = Bytes{1} << 20;
  enum class Front : uint8_t { kMalloc, kPool, kHeap, kArena };
  struct Block {
    Bytes size;  // that the program may write to
    uint8_t fill;
    Front front;
    size_t which;  // of the pools, or of the heaps
    Bytes asked;
  };
  using Blocks = std::map<Address, Block>;

  Slot& make_thread() { return slots_.emplace_back(&no_lane_gate); }

  void step() {
    Fake::ns.fetch_add(1000000);
    const uint8_t operation = in_.byte() % 32;
    Slot& t = thread();
    switch (operation) {
      case 0:
        return exit(t);
      case 1:
        return trim(t);
      case 2:
        return later();
      case 3:
        return change_entry();
      case 4:
        return fail_calls();
      case 5:
        return nest(t);
      case 6:
        return start_pool(t);
      case 7:
        return end_pool(in_.below(kMostPools), t);
      case 8:
        return start_heap(t);
      case 9:
        return end_heap(in_.below(kMostHeaps), t);
      case 10:
        return reset_arena(t);
      case 11:
        return free_again(t);
      case 12:
        return free_inside(t);
      case 13:
        return write_after_free();
      case 14:
        return look();
      case 15:
      case 16:
        return resize(t);
      case 17:
      case 18:
        return take_from_pool(t);
      case 19:
      case 20:
        return take_from_heap(t);
      case 21:
        return take_from_arena(t);
      case 22:
      case 23:
      case 24:
      case 25:
        return give_any(t);
      default:
        return take(t);
    }
  }

  Slot& thread() {
    const size_t i = in_.below(threads_.size());
    Fake::number = static_cast<uint32_t>(i) % Fake::cpu_count;
    return *threads_[i];
  }

  // --- What lives.

  Bytes size() {
    switch (in_.byte() % 8) {
      case 0:
      case 1:
      case 2:
        return in_.byte();
      case 3:
      case 4:
        return in_.two_bytes() % 1300;
      case 5:
        return in_.two_bytes();
      case 6:
        return Bytes{in_.two_bytes()} * 24;
      default:
        return ~Bytes{0} >> (in_.byte() % 64);
    }
  }
  // Memory for `asked` bytes was handed out, or null.
  void keep(void* p, Bytes asked, Bytes usable, Bytes alignment, Front front, size_t which = 0) {
    if (p == nullptr) {
      // Poison costs objects, and a limit refuses.
      const bool may_fail =
          fails_ || is_poisoned_ || front == Front::kPool || front == Front::kHeap;
      require(may_fail || asked > kSureBytes, "no memory");
      return;
    }
    const auto at = reinterpret_cast<Address>(p);
    require(at % alignment == 0, "not aligned");
    require(usable >= asked, "less than was asked for");
    const auto next = blocks_.lower_bound(at);
    require(next == blocks_.end() || next->first >= at + (usable == 0 ? 1 : usable), "overlaps");
    if (next != blocks_.begin()) {
      const auto before = std::prev(next);
      require(before->first + before->second.size <= at, "overlaps what lies before");
    }
    const uint8_t fill = ++fills_;
    // What is large is written to at both ends.
    each_part(at, usable, [&](Address a, Bytes n) { memset(reinterpret_cast<void*>(a), fill, n); });
    blocks_[at] = {usable, fill, front, which, asked};
    bytes_ += usable;
    freed_.erase(at);
  }
  template <class Part>
  static void each_part(Address at, Bytes n, Part part) {
    constexpr Bytes kPart = 4096;
    if (n <= 2 * kPart) return part(at, n);
    part(at, kPart);
    part(at + n - kPart, kPart);
  }
  void look_at(Blocks::iterator block) {
    each_part(block->first, block->second.size, [&](Address at, Bytes n) {
      const auto* byte = reinterpret_cast<const uint8_t*>(at);
      for (Bytes i = 0; i < n; ++i) require(byte[i] == block->second.fill, "was written to");
    });
  }
  void forget(Blocks::iterator block) {
    look_at(block);
    bytes_ -= block->second.size;
    blocks_.erase(block);
  }
  // One of those that are not an arena's.
  Blocks::iterator any() {
    if (blocks_.empty()) return blocks_.end();
    auto block = blocks_.begin();
    std::advance(block, in_.below(blocks_.size()));
    for (size_t i = 0; i < blocks_.size() && block->second.front == Front::kArena; ++i)
      if (++block == blocks_.end()) block = blocks_.begin();
    return block->second.front == Front::kArena ? blocks_.end() : block;
  }
  bool is_full() const { return blocks_.size() >= kMostLive || bytes_ >= kMostBytes; }

  // --- malloc.

  void take(Slot& t) {
    const uint8_t how = in_.byte();
    const Bytes n = size();
    if (is_full()) return;
    void* p;
    Bytes alignment = kGranule;
    if (how % 8 == 0) {
      alignment = Bytes{16} << (how >> 3) % 12;
      p = engine_->allocate_aligned(n, alignment, t);
    } else if (how % 8 == 1) {
      p = engine_->allocate_zeroed(n, t);
      const auto* byte = static_cast<const uint8_t*>(p);
      for (Bytes i = 0; p != nullptr && i < n; i += n > 8192 ? 61 : 1)
        require(byte[i] == 0, "not zeroed");
    } else {
      p = engine_->allocate(n, t);
    }
    keep(p, n, p != nullptr ? usable(p) : 0, alignment, Front::kMalloc);
  }
  Bytes usable(const void* p) {
    const Found found = engine_->pointers().find(p);
    require(found.verdict == Verdict::kGood, "an object that lives is bad");
    return engine_->pointers().usable_size(p, found.word);
  }
  void resize(Slot& t) {
    const auto block = any();
    const Bytes n = size();
    if (block == blocks_.end() || block->second.front != Front::kMalloc || is_full()) return;
    look_at(block);
    const Block old = block->second;
    const Address at = block->first;
    auto* before = reinterpret_cast<void*>(at);
    blocks_.erase(block);
    bytes_ -= old.size;
    const bool fitted = n <= kSureBytes;
    void* p = engine_->reallocate(before, engine_->pointers().find(before).word, n == 0 ? 1 : n, t);
    if (p == nullptr) {
      require(fails_ || is_poisoned_ || !fitted, "no memory to resize");
      blocks_[at] = old;
      bytes_ += old.size;
      return;
    }
    const Bytes both = n < old.size ? n : old.size;
    const auto* byte = static_cast<const uint8_t*>(p);
    for (Bytes i = 0; i < both && i < 4096; ++i) require(byte[i] == old.fill, "realloc lost it");
    if (p != before) freed_[at] = old.size;
    keep(p, n, usable(p), kGranule, Front::kMalloc);
  }
  void give_any(Slot& t) {
    if (const auto block = any(); block != blocks_.end()) give(block, t);
  }
  void give(Blocks::iterator block, Slot& t) {
    const Block old = block->second;
    const Address at = block->first;
    auto* p = reinterpret_cast<void*>(at);
    forget(block);
    Verdict verdict;
    if (old.front == Front::kPool) {
      verdict = pools_[old.which]->free(p, t);
    } else if (old.front == Front::kHeap) {
      verdict = heaps_[old.which]->free(p, in_.flag() ? old.asked : FakeHeap::kUnknown, t).verdict;
    } else {
      verdict = engine_->free(p, t);
      freed_[at] = old.size;
    }
    require(verdict == Verdict::kGood, "a good free is told");
  }

  // --- Threads, and the system.

  void trim(Slot& t) { (void)engine_->upkeep().trim(t); }
  void later() { Fake::clock.fetch_add(in_.byte() * 16); }
  void exit(Slot& t) {
    if (is_alone_) return;
    engine_->exits().thread_exits(t);
    for (Slot*& each : threads_)
      if (each == &t) each = &make_thread();
  }
  void change_entry() {
    if (is_alone_) return;
    settings_.entry = static_cast<Entry>(in_.below(3));
    settings_.shared_lanes = 1 + static_cast<uint32_t>(in_.below(5));
    (void)engine_->choose_entry(settings_);
  }
  void fail_calls() {
    const uint8_t which = in_.byte();
    if (which % 4 == 0) {
      Fake::fail_never();
      return;
    }
    constexpr Fake::Call kCalls[] = {Fake::kExtend, Fake::kClaim, Fake::kReserve, Fake::kOpen,
                                     Fake::kEmpty,  Fake::kMove,  Fake::kRelease};
    const uint64_t from = 1 + in_.byte() % 8;
    Fake::fail(kCalls[in_.below(std::size(kCalls))], from, from + 1 + in_.byte() % 16);
    fails_ = true;
  }
  // A handler interrupts the thread inside the allocator.
  void nest(Slot& t) {
    Gate* gate = Owned::enter(t);
    if (is_busy(gate)) return Owned::leave_as_found(t, gate);
    const bool is_poor = std::exchange(fails_, true);  // it may find no memory
    in_.flag() ? take(t) : give_any(t);
    fails_ = is_poor;
    Owned::leave(t, gate);
  }

  // --- Pools, heaps and the arena.

  void start_pool(Slot& t) {
    const Bytes bytes = 1 + in_.two_bytes() % 5000;
    const uint64_t limit = in_.byte();
    if (pools_.size() == kMostPools) return;
    auto pool = std::make_unique<FakePool>(*engine_, "fuzz", bytes, Bytes{8}, PoolFunctions{});
    if (!pool->start(limit, 0, t)) return;
    pools_.push_back(std::move(pool));
    sizes_of_pools_.push_back(bytes);
  }
  void take_from_pool(Slot& t) {
    const size_t which = in_.below(kMostPools);
    if (which >= pools_.size() || pools_[which] == nullptr || is_full()) return;
    void* p = pools_[which]->allocate(0, t);
    const Bytes bytes = sizes_of_pools_[which];
    keep(p, bytes, bytes, 8, Front::kPool, which);
  }
  void end_pool(size_t which, Slot& t) {
    if (which >= pools_.size() || pools_[which] == nullptr) return;
    forget_all(Front::kPool, which);
    bool lost;
    pools_[which]->end(t, lost);
    pools_[which] = nullptr;
  }
  void start_heap(Slot& t) {
    const Bytes limit = Bytes{in_.byte()} << 16;
    if (heaps_.size() == kMostHeaps) return;
    freed_.clear();
    auto heap = std::make_unique<FakeHeap>(*engine_, kSource, "fuzz", nullptr);
    if (heap->start(limit, 0, nullptr, nullptr, t)) heaps_.push_back(std::move(heap));
  }
  void take_from_heap(Slot& t) {
    const size_t which = in_.below(kMostHeaps);
    const Bytes n = size(), alignment = Bytes{16} << in_.byte() % 10;
    if (which >= heaps_.size() || heaps_[which] == nullptr || is_full()) return;
    freed_.clear();  // the heap's tables may lie there
    void* p = heaps_[which]->allocate(n, alignment, t);
    keep(p, n, p != nullptr ? heaps_[which]->usable_size(p) : 0, alignment, Front::kHeap, which);
  }
  void end_heap(size_t which, Slot& t) {
    if (which >= heaps_.size() || heaps_[which] == nullptr) return;
    forget_all(Front::kHeap, which);
    heaps_[which]->end(t, [](FakeHeap&) {});
    heaps_[which] = nullptr;
  }
  void take_from_arena(Slot& t) {
    const Bytes n = in_.two_bytes() % 20000;
    if (is_full()) return;
    freed_.clear();  // the arena's blocks may lie there
    void* p = Arena<Fake>(arena_, *engine_, t).allocate(n);
    if (p == nullptr) return require(fails_ || is_poisoned_, "no memory for a piece");
    if (n > 0) keep(p, n, n, kGranule, Front::kArena);
  }
  void reset_arena(Slot& t) {
    forget_all(Front::kArena, 0);
    Arena<Fake> arena(arena_, *engine_, t);
    in_.flag() ? arena.reset() : arena.destroy();
  }
  void forget_all(Front front, size_t which) {
    for (auto block = blocks_.begin(); block != blocks_.end();) {
      const auto next = std::next(block);
      if (block->second.front == front && block->second.which == which) forget(block);
      block = next;
    }
  }

  // --- Mistakes.

  // An object that was freed and has no new user.
  std::map<Address, Bytes>::iterator freed() {
    if (freed_.empty()) return freed_.end();
    auto one = freed_.begin();
    std::advance(one, in_.below(freed_.size()));
    const auto next = blocks_.lower_bound(one->first);
    const bool is_reused = (next != blocks_.end() && next->first < one->first + one->second) ||
                           (next != blocks_.begin() &&
                            std::prev(next)->first + std::prev(next)->second.size > one->first);
    if (!is_reused) return one;
    freed_.erase(one);
    return freed_.end();
  }
  void free_again(Slot& t) {
    if (!settings_.checked) return;
    if (const auto one = freed(); one != freed_.end())
      require(engine_->free(reinterpret_cast<void*>(one->first), t) != Verdict::kGood,
              "a second free is not told");
  }
  void free_inside(Slot& t) {
    const auto block = any();
    const Bytes into = 1 + in_.two_bytes();
    if (block == blocks_.end() || into >= block->second.size) return;
    auto* p = reinterpret_cast<char*>(block->first) + into;
    const Found found = engine_->pointers().find(p);
    require(found.verdict != Verdict::kGood, "a pointer into an object is good");
    if (settings_.checked) require(engine_->free(p, t) != Verdict::kGood, "a free inside is good");
  }
  // Large objects are not there any more.
  void write_after_free() {
    const auto one = freed();
    const Bytes into = Bytes{in_.below(2)} * 8;
    const uint64_t value = in_.eight_bytes();
    const bool is_difference = in_.flag();
    if (!settings_.checked || one == freed_.end()) return;
    const auto* p = reinterpret_cast<const void*>(one->first);
    const Owner owner = engine_->world().region.word_for(p).owner();
    if (!is_slab(owner) || one->second < 16) return;
    uint64_t word;
    auto* at = reinterpret_cast<void*>(one->first + into);
    memcpy(&word, at, sizeof word);
    word = is_difference ? word + value : value;
    memcpy(at, &word, sizeof word);
    is_poisoned_ = true;
  }

  // --- Figures.

  void look() {
    if (is_poisoned_) return;
    engine_->check_invariants();
    Statistics statistics{};
    engine_->statistics(statistics);
    size_t live = 0;
    for (const auto& [at, block] : blocks_) live += block.front == Front::kMalloc;
    require(statistics.live_objects >= live, "fewer objects live than were handed out");
    require(reports_ == 0, "something is told of a program that makes no mistake");
  }
  void end() {
    Fake::fail_never();
    Slot& t = *threads_[0];
    while (!blocks_.empty()) {
      const auto block = blocks_.begin();
      if (block->second.front == Front::kArena) {
        forget_all(Front::kArena, 0);
      } else {
        give(block, t);
      }
    }
    Arena<Fake>(arena_, *engine_, t).destroy();
    for (size_t i = 0; i < pools_.size(); ++i) end_pool(i, t);
    for (size_t i = 0; i < heaps_.size(); ++i) end_heap(i, t);
    look();
    require(Fake::misuse().empty(), Fake::misuse().c_str());
    for (Slot* each : threads_) engine_->exits().thread_exits(*each);
    engine_.reset();
    Fake::reset();
  }

  static inline uint64_t reports_;
  fuzz::Input in_;
  Settings settings_;
  std::unique_ptr<Engine<Fake>> engine_;
  std::deque<Slot> slots_;
  std::vector<Slot*> threads_;
  std::vector<std::unique_ptr<FakePool>> pools_;
  std::vector<Bytes> sizes_of_pools_;
  std::vector<std::unique_ptr<FakeHeap>> heaps_;
  lane_arena arena_{};
  Blocks blocks_;                   // what lives, by address
  std::map<Address, Bytes> freed_;  // of malloc: where objects were, and how large
  Bytes bytes_ = 0;
  uint8_t fills_ = 0;
  bool is_alone_ = false;
  bool fails_ = false;        // a call of the system may have failed
  bool is_poisoned_ = false;  // the program has written to what it had freed
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Machine(fuzz::Input(data, size)).run();
  return 0;
}
