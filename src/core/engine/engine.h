// Engine: malloc and free, put together from the layers below; the one root object of a process.
// Called by: abi, process, fronts. Locking: none of its own. Every function may be called from a
// signal handler and in a fork child.
//
// The hit paths are here, in sight. They leave through a continuation (`miss`) that the caller
// tail-calls, so that the exported functions contain nothing but the hit. The rest are parts, each
// in a header of its own:
//
//   hits --> Misses --> Large   malloc and free     Exits, Fork   thread ends, forks
//   Kinds --> KindObjects       pools and heaps     Upkeep        giving memory back
//   Safepoints                  deferred frees      EntryChoice   how lanes are entered
#pragma once

#include <bit>

#include "core/engine/fork.h"
#include "core/engine/kinds.h"
#include "core/engine/options.h"
#include "core/engine/statistics.h"

namespace lanemalloc {

template <class P>
struct Layout;  // core/engine/layout.h

template <class P>
class Engine {
 public:
  constexpr Engine() = default;
  Engine(const Engine&) = delete;

  // Call it once, before use; again if it has returned false (no address space).
  bool start(const Settings& settings, void (*report)(Verdict, const void*)) {
    world_.settings = settings;
    world_.report = report;
    if (link_secret == kNoSecret) link_secret = P::secret() >> 17 | kNoSecret;
    world_.link_secret = link_secret;
    if (!world_.region.start(LaneTable<P>::kMostLanes * LaneTable<P>::kStride, settings.checked))
      return false;
    world_.lanes.start();
    world_.runs.start(P::charges_by_mapping(), settings.decay_ms);
    world_.runs.set_huge_pages(settings.huge_pages);
    upkeep_.start(settings.decay_ms);
    if (!entry_choice_.choose(settings)) entry_choice_.set(Entry::kShared, 0);
    return true;
  }
  void set_exit_watch(bool (*watch)(Slot& slot)) { world_.watch_exit = watch; }

  // --- Hits. The owner of a lane comes first (entry/owned.h): it pays for nothing that only the
  // other entries need. Then hits by the CPU (entry/percpu.h). Shared lanes are entered in misses.
  template <class Miss>
  FAST void* allocate(Bytes size, Slot& slot, Miss miss) {
    Gate* gate = Owned::enter(slot);
    const Bytes index = small_index(size);
    if (UNLIKELY(!Owned::may_allocate(gate, index))) {
      void* object;
      if (UNLIKELY(!PerCpu::pop<P>(gate, index, object))) return miss(gate);
      Owned::leave(slot, gate);
      return object;
    }
    void* object = pop_hit(LaneGate::hit_bin(gate, gate->bin_of_small[index]));
    if (UNLIKELY(object == nullptr)) return miss(gate);
    Owned::leave(slot, gate);
    return object;
  }

  // `look(gate, slab)`: the object is freed, and its slab must be looked at.
  template <class Miss, class Look>
  FAST void free(void* p, Slot& slot, Miss miss, Look look) {
    Gate* gate = Owned::enter(slot);
    const Bytes distance = world_.region.distance(p);
    if (UNLIKELY(distance >= world_.region.hit_bytes()))
      return free_hit_by_cpu(p, distance, slot, gate, miss, look);
    const MapWord word = world_.region.word_at(distance);
    if (UNLIKELY(!Owned::may_free(gate, word))) return miss(gate, word);
    if (UNLIKELY(static_cast<Object*>(p)->looks_free())) return miss(gate, word);
    Slab* slab = static_cast<Slab*>(word.state());
    if (UNLIKELY(slab->push(static_cast<Object*>(p)))) return look(gate, slab);
    Owned::leave(slot, gate);
  }

  // `miss(gate)`: the object is still to be deferred (Safepoints::defer_in_stay).
  template <class Miss>
  FAST int defer(void* object, Slot& slot, Miss miss) {
    Gate* gate = Owned::enter(slot);
    void** next;
    if (UNLIKELY(!Owned::may_defer(gate, next))) return miss(gate);
    *next = object;
    Owned::has_deferred(gate);
    Owned::leave(slot, gate);
    return 0;
  }

  // --- Whole operations, for everything but malloc(n) and free(p). Null: no memory.
  void* allocate(Bytes size, Slot& slot) {
    return allocate(size, slot, [&](Gate* gate) {
      void* p = Misses<P>::allocate_from_bin(size, slot, gate);
      if (p == nullptr) p = Misses<P>::allocate_by_refill(world_, size, slot, gate);
      return LIKELY(p != nullptr) ? p : Misses<P>::allocate_in_stay(searches_, size, slot, gate);
    });
  }
  void* allocate_zeroed(Bytes size, Slot& slot);
  // alignment: a power of two.
  void* allocate_aligned(Bytes size, Bytes alignment, Slot& slot);
  // If the pointer is bad, returns why; then nothing has changed.
  Verdict free(void* p, Slot& slot) {
    Verdict verdict = Verdict::kGood;
    free(
        p, slot,
        [&](Gate* gate, MapWord) {
          if (!Misses<P>::free_by_cpu(world_, p, slot, gate))
            verdict = Misses<P>::free_in_stay(world_, p, slot, gate);
        },
        [&](Gate* gate, Slab* slab) { Misses<P>::look_in_stay(slab, slot, gate); });
    return verdict;
  }
  // As Misses::free_chain().
  Verdict free_chain(Chained* first, size_t n, Slot& slot, const void*& bad) {
    bad = first;
    return n == 1 && !is_checked() ? free(first, slot)
                                   : Misses<P>::free_chain(world_, first, n, slot, bad);
  }
  // p must be good (Pointers::find). size > 0.
  void* reallocate(void* p, MapWord word, Bytes size, Slot& slot);
  int defer(void* object, Slot& slot) {
    return defer(object, slot,
                 [&](Gate* gate) { return safepoints_.defer_in_stay(object, slot, gate); });
  }

  // --- Settings.

  // Sets how threads enter lanes from now on, as the settings say; a thread follows at its next
  // miss. False if the system cannot do that; then nothing has changed. One caller at a time.
  bool choose_entry(const Settings& settings) { return entry_choice_.choose(settings); }
  // Takes over the settings that may change while the process runs, except the entry.
  void adjust(const Settings& settings) {
    world_.settings.shared = settings.shared;
    world_.settings.decay_ms = settings.decay_ms;
    world_.runs.set_decay(settings.decay_ms);
    world_.runs.set_huge_pages(settings.huge_pages);
    world_.scavenger.set_decay(settings.decay_ms);
    world_.scavenger.poke();  // some may have been kept for good until now
  }
  Entry entry() const { return world_.lanes.entry(); }
  bool is_checked() const { return world_.settings.checked; }

  // --- Figures.

  const Stack* contended(const void* who, uint64_t ns) {
    return Sampling<P>(world_).contended(who, ns);
  }
  // may_wait: false in a handler that has interrupted the allocator in this thread.
  // Slabs and lanes are read one after the other. So while the scavenger moves objects between
  // them, the figures are read again.
  void statistics(Statistics& s, bool may_wait = true) {
    constexpr int kAttempts = 64;
    for (int attempt = may_wait ? 0 : kAttempts;; ++attempt) {
      const uint32_t moves = world_.scavenger.moves();
      const bool is_last = attempt >= kAttempts;
      if (moves % 2 == 0 || is_last) {
        Collection<P>(world_, s, may_wait);
        std::atomic_thread_fence(std::memory_order_acquire);
        if (world_.scavenger.moves() == moves || is_last) break;
      }
      P::sleep_ms(1);
    }
    Layout<P>::read_cells(*this, s);
  }
  // Stops the process if the structure is broken. May be called only at rest.
  void check_invariants() {
    world_.runs.check_invariants();
    world_.depot.check_invariants();
    world_.lanes.for_each([](AnyLane<P>& lane) { lane.at_rest().check_invariants(); });
    safepoints_.check_invariants();
    kinds_.check_invariants();
  }

  // --- Parts.
  World<P>& world() { return world_; }
  Pointers<P> pointers() const { return Pointers<P>(world_); }
  Searches<P>& searches() { return searches_; }
  Kinds<P>& kinds() { return kinds_; }
  Safepoints<P>& safepoints() { return safepoints_; }
  Upkeep<P>& upkeep() { return upkeep_; }
  Exits<P>& exits() { return exits_; }
  Fork<P> fork() { return {world_, searches_, safepoints_, exits_, upkeep_}; }

 private:
  SHOWN_BY_LAYOUT;

  template <class Miss, class Look>
  FAST void free_hit_by_cpu(void* p, Bytes distance, Slot& slot, Gate* gate, Miss miss, Look look) {
    // What is no lane's may not be mapped.
    if (UNLIKELY(!PerCpu::may_free(gate, distance) ||
                 !is_lane(world_.region.word_at(distance).owner()) ||
                 static_cast<Object*>(p)->looks_free()))
      return miss(gate, MapWord());
    if (P::pushes_here()) {
      if (UNLIKELY(!PerCpu::push<P>(gate, world_.region.map_word(distance), p)))
        return miss(gate, MapWord());
      return Owned::leave(slot, gate);
    }
    uint64_t word;
    uint32_t free;
    if (UNLIKELY(!PerCpu::enter_for<P>(gate, world_.region.map_word(distance), word, free)))
      return miss(gate, MapWord());
    Slab* slab = static_cast<Slab*>(MapWord(word).state());
    if (UNLIKELY(slab->push(static_cast<Object*>(p)))) return look(gate, slab);
    PerCpu::leave(gate, free);
    Owned::leave(slot, gate);
  }

  NOINLINE void* allocate_large(Bytes size, Bytes alignment, Slot& slot, bool& zeroed) {
    return Large<P>(world_).allocate(searches_, size, alignment, slot, Owned::enter(slot), zeroed);
  }
  void* copy_to_new(void* p, Bytes bytes, Bytes size, Slot& slot) {
    return copy_to(allocate(size, slot), p, bytes, slot);
  }
  NOINLINE void* copy_to_run(void* p, Bytes bytes, Bytes size, Slot& slot) {
    bool zeroed;
    void* copy =
        Large<P>(world_).allocate(searches_, size, kGranule, slot, Owned::enter(slot), zeroed);
    return copy_to(copy, p, bytes, slot);
  }
  FAST void* copy_to(void* copy, void* p, Bytes bytes, Slot& slot) {
    if (copy == nullptr) return nullptr;
    memcpy(copy, p, bytes);
    free(p, slot);
    return copy;
  }

  World<P> world_;
  EntryChoice<P> entry_choice_{world_};
  Upkeep<P> upkeep_{world_, entry_choice_};
  Searches<P> searches_{world_};
  Kinds<P> kinds_{world_, searches_};
  Safepoints<P> safepoints_{world_, searches_};
  Exits<P> exits_{world_, searches_, safepoints_.epochs()};
};

template <class P>
void* Engine<P>::allocate_zeroed(Bytes size, Slot& slot) {
  const auto rounded = [](Bytes n) {
    return n > kSlabMax ? bytes_of(blocks_for(n)) : size_of(class_of(n == 0 ? 1 : n));
  };
  bool zeroed = false;
  void* p = size > kSlabMax ? allocate_large(size, kGranule, slot, zeroed) : allocate(size, slot);
  // Clears up to the size that malloc_usable_size() tells. What the system has just given is zero
  // anyway.
  if (p != nullptr && !zeroed) memset(p, 0, rounded(size));
  return p;
}

template <class P>
void* Engine<P>::allocate_aligned(Bytes size, Bytes alignment, Slot& slot) {
  if (alignment <= kGranule) return allocate(size, slot);
  const SizeClass c = alignment <= kBlockSize ? aligned_class_of(size, alignment) : SizeClass{0};
  if (c != SizeClass{0})
    return Misses<P>::allocate_in_stay(searches_, size_of(c), slot, Owned::enter(slot));
  bool zeroed;
  return allocate_large(size == 0 ? 1 : size, alignment, slot, zeroed);
}

// The size that a growing object gets. It is more than is wanted, so that growing by little does
// not copy at every step. A large object gets up to twice what is wanted, since pages that nobody
// touches cost nothing. It gets a power of two if that leaves some room, for then few copies are
// left until it is a run, which grows in place. An object that grows by much gets what is wanted.
inline Bytes roomy_size(Bytes old_size, Bytes size) {
  constexpr Bytes kSomePages = 8 << 10, kManyPages = 32 << 10;
  const Bytes more = old_size + old_size / 8 * 3, twice = 2 * old_size;
  if (size >= (old_size < kManyPages ? more : twice)) return size;
  if (old_size < kSomePages) return more;
  const Bytes power = std::bit_floor(2 * size);
  return power >= size + size / 4 ? power : twice;
}

template <class P>
void* Engine<P>::reallocate(void* p, MapWord word, Bytes size, Slot& slot) {
  const Bytes old_size = pointers().usable_size(p, word);
  const bool is_run =
      word.owner() == Owner::kLarge &&
      large_state(world_.region, world_.region.block_of(p)).sample_class == SizeClass{0};
  // At most half of an object that is not large stays unused.
  const bool fits = size <= old_size && (size >= old_size / 2 || old_size == kGranule);
  if (is_run && size > kBlockSize && size < world_.region.most_bytes() &&
      (old_size > kSlabMax || !fits)) {
    Inside inside(slot, Owned::enter(slot));
    if (Large<P>(world_).resize(p, blocks_for(size), inside.visit())) return p;
    if (void* moved = Large<P>(world_).move(p, size, inside.visit())) return moved;
  } else if (fits) {
    return p;
  }
  if (size <= old_size) return copy_to_new(p, size, size, slot);
  if (const Bytes roomy = roomy_size(old_size, size); roomy > size) {
    // As a run it may grow on in place. The run has at most twice the wanted size, or the next step
    // would take it for too large.
    const Bytes run = round_down(2 * size, kBlockSize);
    void* copy = run > kBlockSize && run >= roomy - kBlockSize
                     ? copy_to_run(p, old_size, run, slot)
                     : copy_to_new(p, old_size, roomy, slot);
    if (copy != nullptr) return copy;
  }
  return copy_to_new(p, old_size, size, slot);
}

}  // namespace lanemalloc

#include "core/engine/layout.h"
