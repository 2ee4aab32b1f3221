// Runs: which runs of blocks are free, and in what condition. Slabs and large allocations come from
// here.
// Called by: lane (slabs), engine (large allocations), scavenger. Locking: rank kRuns. A thread
// that may not wait for this lock leaves what it frees on a lock-free stack for the next holder,
// and takes what lies there, or fresh blocks from the region. Rank kGrowth: one thread at a time
// has the system add memory, which may take long, and only threads that need memory too wait for
// it.
//
// A free run is dirty (old data), clean (zeros, no memory behind it) or absent (not even claimed).
// Only runs in the same condition are merged. A request takes the smallest dirty run that fits,
// else a dirty run with the clean run beside it, else a clean run, else an absent run, else fresh
// blocks. So memory that is there anyway is used first, and whole huge pages stay free as long as
// smaller pieces serve. If memory grows nevertheless, dirty memory that did not fit goes back: as
// much as was added, beyond a limit (core/memory/keep.h).
//
//   bins, a set per condition:  [1][2] .. [32][33-40][41-48] ..      list of runs, by length
//   dirty runs, oldest first:   (run) <-> (run) <-> (run)            decay takes from the left
//
// Invariant: the first and last block of every run, free or used, carry its kind and length. No two
// neighbours are free in the same condition.
// Invariant at every instant: a thread that walks from one run's first block to the next, by the
// lengths alone, meets no block inside a run. What it finds free has no owner, and is in the
// condition that it names. So the lists can be made anew from the blocks, wherever a thread stopped
// that was changing them (salvage): in a child of fork, and when a thread ends that was torn off
// here because a signal handler left by a long jump. A run is split from its end: each part is
// marked before the length of the part before it shrinks. What goes back to the system is marked as
// used meanwhile.
#pragma once

#include <utility>

#include "core/base/lock.h"
#include "core/memory/keep.h"
#include "core/memory/region.h"

namespace lanemalloc {

// What a free run has in the state of its first block.
struct RunState {
  BlockIndex next, previous;  // in its bin
  BlockIndex newer, older;    // dirty ones: by age
  uint32_t freed_at;          // epoch
};
static_assert(sizeof(RunState) <= BlockState::kOwnerPart);

struct Run {
  BlockIndex at;
  bool zeroed;
  BlockCount grown = 0;  // blocks that had no memory, in a run that is not zeroed
};

struct RunStatistics {
  uint64_t claimed, dirty, clean;  // bytes now
  uint64_t purged;                 // bytes given back since the start
  uint64_t moved;                  // bytes moved by the kernel for realloc
};

// What the system is asked to put on huge pages: nothing, what a large heap grows by, or all of it.
enum class HugePages : uint8_t { kOff, kAuto, kOn };

template <class P>
class Runs {
 public:
  static constexpr BlockIndex kNone = Region<P>::kNoBlock;

  explicit constexpr Runs(Region<P>& region) : region_(region) {}

  // Once, before use. unmap: mapped memory counts, whatever it holds, so freed memory is unmapped,
  // not emptied, and little is taken ahead. This also begins once the system has refused memory, or
  // could not empty some: then the process has limited itself, or locked its memory. decay_ms: < 0
  // never gives memory back, 0 gives it back at once.
  void start(bool unmap, int64_t decay_ms) {
    unmap_.store(unmap, std::memory_order_relaxed);
    set_decay(decay_ms);
  }
  void set_decay(int64_t decay_ms) { decay_ms_ = decay_ms; }
  // For what is claimed from now on. Huge pages have 2 MiB only if the system's pages have 4 KiB.
  void set_huge_pages(HugePages how) {
    huge_pages_ = P::page_size() == 4096 ? how : HugePages::kOff;
  }
  // Whether the scavenger purges what has decayed. Otherwise threads that free do, beyond a limit.
  void set_scavenged(bool yes) { scavenged_ = yes; }

  // Takes n > 0 blocks, the first at a multiple of align_blocks (a power of two). `at` is kNone if
  // there is no memory.
  Run allocate(BlockCount n, BlockCount align_blocks, Visit& visit) {
    Run run = {kNone, true};
    if (lock_.acquire(visit)) {
      run = take(n, align_blocks);
      lock_.release(visit);
      if (UNLIKELY(taken_beside_.load(std::memory_order_relaxed) != 0))
        taken_beside_.store(0, std::memory_order_relaxed);
      if (run.at == kNone) run = grow(n, align_blocks, visit);
    } else {
      run = take_beside(n, align_blocks, visit);
    }
    if (UNLIKELY(run.at == kNone)) run = allocate_the_last(n, align_blocks, visit);
    if (run.at == kNone) return run;
    raise_used_end(run.at + n);
    if (const BlockCount grown = run.zeroed ? n : run.grown; grown != 0) make_up_for(grown, visit);
    return run;
  }

  // The same, but only from dirty runs, whose memory is there anyway. Returns kNone if none fits,
  // or if the thread cannot get the lock.
  BlockIndex reuse(BlockCount n, BlockCount align_blocks, Visit& visit) {
    if (!has_dirty() || !lock_.acquire(visit)) return kNone;
    const BlockIndex at = take(n, align_blocks, 1).at;
    lock_.release(visit);
    return at;
  }

  // Takes blocks that were never used, so they read as zeros. They are never given back. Takes no
  // lock. Returns kNone if there is no memory.
  BlockIndex allocate_fresh(BlockCount n) {
    const BlockIndex at = take_fresh_aligned(n, 1);
    if (at != kNone) raise_used_end(at + n);
    return at;
  }

  // Gives back a whole run from allocate() or reuse(). Its page-map words must be cleared
  // already.
  void free(BlockIndex at, BlockCount n, Visit& visit) {
    give(at, n, BlockKind::kDirty, visit);
    if (UNLIKELY(is_refused_.load(std::memory_order_relaxed)))
      is_refused_.store(false, std::memory_order_relaxed);
  }

  // Grows a run in place by free blocks behind it. False: nothing has changed.
  bool extend(BlockIndex at, BlockCount n, BlockCount wanted, Visit& visit) {
    if (!lock_.acquire(visit)) return false;
    bool done = false, grown = false;
    const BlockIndex behind = at + n;
    const BlockCount missing = wanted - n;
    if (behind < region_.opened()) {
      const BlockState& next = region_.state(behind);
      const BlockKind kind = next.kind.load(std::memory_order_relaxed);
      const BlockCount length = next.length;
      if (is_free(kind) && length >= missing) {
        const uint32_t freed_at = run(behind).freed_at;
        remove(behind);
        done = kind != BlockKind::kAbsent || claim_again(behind, missing) == Claim::kDone;
        if (done) {
          return_rest(behind + missing, length - missing, kind, freed_at);
          mark_used(at, wanted);
          raise_used_end(at + wanted);
          grown = kind != BlockKind::kDirty;
        } else {
          insert(behind, length, kind);
        }
      }
    }
    lock_.release(visit);
    if (grown) make_up_for(missing, visit);
    return done;
  }

  // Gives back the end of a run.
  void shrink(BlockIndex at, BlockCount n, BlockCount wanted, Visit& visit) {
    split(at, n, wanted);
    give(at + wanted, n - wanted, BlockKind::kDirty, visit);
  }

  // Has the kernel move the pages of `from` (n blocks) to the start of `to`, a run from allocate()
  // of at least n blocks. `from` is free afterwards. `again`: `from` was itself filled by a move.
  // False: nothing was moved, and `to` is free.
  bool move(BlockIndex from, BlockCount n, BlockIndex to, BlockCount to_blocks, bool again,
            Visit& visit) {
    const bool may = again || moved_alive_.load(std::memory_order_relaxed) < kMovedAlive;
    const Move result = may ? P::move(region_.address_of(from), region_.address_of(to), bytes_of(n))
                            : Move::kRefused;
    if (UNLIKELY(result == Move::kRefused)) {
      free(to, to_blocks, visit);
      return false;
    }
    if (UNLIKELY(result == Move::kNoneThere)) {
      split(to, to_blocks, n);
      give(to, n, BlockKind::kAbsent, visit);
      if (n < to_blocks) free(to + n, to_blocks - n, visit);
      return false;
    }
    if (!again) count<P>(moved_alive_);
    count<P>(moved_, uint64_t{n});
    give(from, n, BlockKind::kAbsent, visit);
    return true;
  }
  // Frees a run that move() filled. Its pages have a mapping of their own. Once they are unmapped,
  // the run can merge again.
  void free_moved(BlockIndex at, BlockCount n, Visit& visit) {
    count<P>(moved_alive_, ~uint32_t{0});
    if (UNLIKELY(!P::release(region_.address_of(at), bytes_of(n)))) return free(at, n, visit);
    give(at, n, BlockKind::kAbsent, visit);
  }

  // Gives back the memory of dirty runs that have been free since the epoch `before` or longer,
  // until at least `enough` blocks have gone back. Returns bytes. The thread does not hold the lock
  // while the kernel works, and meanwhile at most kPurgePiece blocks are out of reach.
  static constexpr uint32_t kAll = ~uint32_t{0};
  Bytes purge(uint32_t before, Visit& visit, BlockCount enough = kAll) {
    Bytes given = 0;
    int refusals = 0;
    while (given < bytes_of(enough) && refusals < kMostRefusals) {
      if (!lock_.acquire(visit)) return given;
      take_back_deferred();
      const BlockIndex at = oldest_;
      if (at == kNone || run(at).freed_at > before) {
        lock_.release(visit);
        break;
      }
      const BlockCount n = cut_for_purge(at, enough - blocks_for(given));
      lock_.release(visit);
      const BlockKind kind = give_to_system(at, n);
      give(at, n, kind, visit);
      if (LIKELY(kind != BlockKind::kDirty)) {
        given += bytes_of(n);
        continue;
      }
      // The run is the youngest now, unless a neighbour is older. So the runs that follow have
      // their turn, for a few more tries.
      if (before >= epoch()) before = epoch() - 1;
      ++refusals;
    }
    if (UNLIKELY(refusals > 0)) is_refused_.store(given == 0, std::memory_order_relaxed);
    if (UNLIKELY(clean_blocks_.load(std::memory_order_relaxed) > kDoublingStep) &&
        lock_.acquire(visit)) {
      unmap_needless();
      lock_.release(visit);
    }
    return given;
  }

  // Gives back what exceeds the limit of a process without a scavenger.
  void keep_limit(Visit& visit) {
    if (!lock_.acquire(visit)) return;
    keep_limit();
    lock_.release(visit);
  }
  // The same limit, for what lanes keep.
  uint64_t most_at_rest() const { return keep_.at_rest(live()); }

  bool has_dirty() const {
    return dirty_blocks_.load(std::memory_order_relaxed) != 0 ||
           deferred_.load(std::memory_order_relaxed) != 0;
  }

  // False also if the system has refused to take back what there is, until more is freed.
  bool has_more_to_give() const {
    return has_dirty() && !is_refused_.load(std::memory_order_relaxed);
  }

  uint32_t epoch() const { return epoch_.load(std::memory_order_relaxed); }
  void advance_epoch() { bump(epoch_); }

  // No thread has ever had a block from here on.
  BlockIndex used_end() const { return used_end_.load(std::memory_order_relaxed); }

  Lock<P>& growth_lock() { return growth_; }
  Lock<P>& lock() { return lock_; }
  // In a fork child. False: a thread that does not exist here may hold deferred runs that wait to
  // be taken in.
  bool is_whole() const { return takers_.load(std::memory_order_relaxed) == 0; }
  // Makes the lists anew from what the blocks say. The thread that was changing them does not exist
  // in this fork child, or was torn off and holds the lock. What that thread had for itself stays
  // in use for good. some_go_on: threads go on that may have deferred runs. That is this thread
  // itself, further down its stack, or other threads, which meanwhile take and split what no list
  // holds.
  NOINLINE void salvage(bool some_go_on) {
    for (Bins& bins : sets_) bins = Bins{};
    oldest_ = newest_ = kNone;
    bump(dirty_blocks_, -dirty());
    bump(clean_blocks_, -clean_blocks_.load(std::memory_order_relaxed));
    // A thread that goes on finds what it has left on the stack, or holds.
    if (!some_go_on) {
      deferred_.store(0, std::memory_order_relaxed);
      takers_.store(0, std::memory_order_relaxed);
      taken_back_ = 0;
    }
    const BlockCount known =
        region_.frontier() < region_.opened() ? region_.frontier() : region_.opened();
    for (BlockIndex at = 0, end; at < known; at = end) {
      const RunEnd first = salvaged(at, some_go_on);
      end = at + first.length;
      // Never used, or taken just now by a thread that has not marked it yet
      if (!first.is_first) {
        end = at + 1;
      } else if (is_free(first.kind)) {
        // Together with the runs that follow in the same condition: they were about to become one.
        for (RunEnd more; end < known && (more = salvaged(end, some_go_on)).kind == first.kind;)
          end += more.length;
        insert(at, end - at, first.kind);
      } else if (const RunEnd last = region_.state(end - 1).end(); is_free(last.kind)) {
        // The thread stopped before it marked this block. Or a thread that goes on has not marked
        // it yet; that thread may also have cut the run again meanwhile.
        region_.state(end - 1).replace_end(last, {BlockKind::kUsed, false, first.length});
      }
    }
  }

  RunStatistics statistics() const {
    auto bytes = [](const std::atomic<uint64_t>& blocks) {
      return blocks.load(std::memory_order_relaxed) << kBlockShift;
    };
    return {bytes(claimed_blocks_), bytes(dirty_blocks_), bytes(clean_blocks_), bytes(purged_),
            bytes(moved_)};
  }

  // Walks all lists and stops the process if they do not fit together. Only at rest.
  void check_invariants() const {
    uint64_t dirty = 0, clean = 0;
    for (unsigned s = 0; s < kSets; ++s) {
      for (unsigned b = 0; b < kBins; ++b) {
        CHECK(((sets_[s].occupied[b / 64] >> (b % 64)) & 1) == (sets_[s].head[b] != kNone));
        for (BlockIndex at = sets_[s].head[b]; at != kNone; at = run(at).next) {
          const BlockState& first = region_.state(at);
          const BlockState& last = region_.state(at + first.length - 1);
          CHECK(set_of(first.kind.load(std::memory_order_relaxed)) == s);
          CHECK(last.kind.load(std::memory_order_relaxed) ==
                first.kind.load(std::memory_order_relaxed));
          CHECK(first.is_first && last.length == first.length && bin_of(first.length) == b);
          for (BlockIndex i = at; i < at + first.length; ++i)
            CHECK(region_.word(i).owner() == Owner::kNobody);
          if (s == 0) dirty += first.length;
          if (s == 1) clean += first.length;
        }
      }
    }
    uint64_t by_age = 0;
    for (BlockIndex at = oldest_; at != kNone; at = run(at).newer)
      by_age += region_.state(at).length;
    CHECK(dirty == dirty_blocks_ && dirty == by_age && clean == clean_blocks_);
  }

 private:
  static constexpr BlockCount kHugeBlocks = kHugePage >> kBlockShift;
  // Memory that was never touched costs only addresses, and adding it costs a system call.
  static constexpr BlockCount kLeastStep = kHugeBlocks / 2;
  static constexpr BlockCount kDoublingStep = 4 * kHugeBlocks;
  static constexpr BlockCount kLargestStep = 64 * kHugeBlocks;
  static constexpr BlockCount kPurgePiece = 2 * kHugeBlocks;
  static constexpr int kMostRefusals = 16;       // then a purge gives up
  static constexpr uint32_t kMovedAlive = 4096;  // each may cost three mappings
  static constexpr unsigned kExactBins = 32;
  static constexpr unsigned kBins =
      kExactBins + 4 * 24;              // below 2^29 blocks: the run and what alignment adds
  static constexpr unsigned kSets = 3;  // dirty, clean, absent
  static constexpr int kScan = 16;
  static constexpr uint64_t kMuchBeside = (Bytes{32} << 20) >> kBlockShift;
  static constexpr uint64_t kMuchClaimed = (Bytes{256} << 20) >> kBlockShift;
  static constexpr uint32_t kPassesToDecay = 4;  // as in the scavenger
  static constexpr BlockCount kLeastPurged = 4;  // less is not worth a system call
  // How many decayed blocks go back: at most kMostByAge at once, and kByAgeAMs for each
  // millisecond, which cost some 60 us.
  static constexpr BlockCount kMostByAge = 1024;
  static constexpr uint64_t kByAgeAMs = 4;

  struct Bins {
    BlockIndex head[kBins];
    uint64_t occupied[kBins / 64]{};
    constexpr Bins() {
      for (BlockIndex& h : head) h = kNone;
    }
  };

  RunState& run(BlockIndex at) const {
    return *reinterpret_cast<RunState*>(region_.state(at).owner_part);
  }
  static bool is_free(BlockKind kind) { return kind >= BlockKind::kDirty; }
  static unsigned set_of(BlockKind kind) {
    return static_cast<unsigned>(kind) - static_cast<unsigned>(BlockKind::kDirty);
  }
  static BlockKind kind_of(unsigned set) {
    return static_cast<BlockKind>(set + static_cast<unsigned>(BlockKind::kDirty));
  }

  // Bins 0-31 hold one length each. Then there are four for each doubling.
  static unsigned bin_of(BlockCount n) {
    if (n <= kExactBins) return n - 1;
    const unsigned doubling = static_cast<unsigned>(std::bit_width(n)) - 1;
    return kExactBins + (doubling - 5) * 4 + ((n >> (doubling - 2)) & 3);
  }

  // Marks the first block first: if a run grows, its last block may be the first block of the run
  // that it takes in.
  void set_ends(BlockIndex at, BlockCount n, BlockKind kind) {
    fence_of_walk();
    region_.state(at).set_end({kind, true, n});
    if (n > 1) region_.state(at + n - 1).set_end({kind, false, n});
  }
  void mark_used(BlockIndex at, BlockCount n) { set_ends(at, n, BlockKind::kUsed); }
  // release: what was marked before is also marked for a child that is forked now, and for a thread
  // that walks [walk.release].
  static void fence_of_walk() { std::atomic_thread_fence(std::memory_order_release); }
  // A run in use becomes two.
  void split(BlockIndex at, BlockCount n, BlockCount first) {
    if (n > first) mark_used(at + first, n - first);
    mark_used(at, first);
  }
  RunEnd salvaged(BlockIndex at, bool some_go_on) const {
    RunEnd first = region_.state(at).end();
    if (first.kind == BlockKind::kWaiting && !some_go_on)
      first.kind = static_cast<BlockKind>(run(at).freed_at);
    return first;
  }

  void raise_used_end(BlockIndex to) {
    BlockIndex end = used_end();
    if (LIKELY(end >= to)) return;
    while (end < to && !used_end_.compare_exchange_weak(end, to, std::memory_order_relaxed))
      used_end_tries_.failed();
    used_end_tries_.done();
  }

  // Puts a free run into its bin; a dirty one goes to the young end of the age list.
  void insert(BlockIndex at, BlockCount n, BlockKind kind) {
    if (kind == BlockKind::kDirty) return insert_dirty(at, n, epoch());
    link(at, n, kind);
    if (kind == BlockKind::kClean) bump(clean_blocks_, uint64_t{n});
  }
  // The same, with its age. An older run goes to the old end, so that decay reaches it in time.
  void insert_dirty(BlockIndex at, BlockCount n, uint32_t freed_at) {
    link(at, n, BlockKind::kDirty);
    bump(dirty_blocks_, uint64_t{n});
    RunState& me = run(at);
    me.freed_at = freed_at;
    const bool young = newest_ == kNone || run(newest_).freed_at <= freed_at;
    me.older = young ? newest_ : kNone;
    me.newer = young ? kNone : oldest_;
    (me.older != kNone ? run(me.older).newer : oldest_) = at;
    (me.newer != kNone ? run(me.newer).older : newest_) = at;
  }

  void link(BlockIndex at, BlockCount n, BlockKind kind) {
    set_ends(at, n, kind);
    Bins& bins = sets_[set_of(kind)];
    const unsigned b = bin_of(n);
    RunState& me = run(at);
    me.previous = kNone;
    me.next = bins.head[b];
    if (me.next != kNone) run(me.next).previous = at;
    bins.head[b] = at;
    bins.occupied[b / 64] |= uint64_t{1} << (b % 64);
  }

  void remove(BlockIndex at) {
    const BlockState& state = region_.state(at);
    const BlockKind kind = state.kind.load(std::memory_order_relaxed);
    Bins& bins = sets_[set_of(kind)];
    const unsigned b = bin_of(state.length);
    const RunState& me = run(at);
    if (me.next != kNone) run(me.next).previous = me.previous;
    (me.previous != kNone ? run(me.previous).next : bins.head[b]) = me.next;
    if (bins.head[b] == kNone) bins.occupied[b / 64] &= ~(uint64_t{1} << (b % 64));
    if (kind == BlockKind::kClean) bump(clean_blocks_, -uint64_t{state.length});
    if (kind != BlockKind::kDirty) return;
    bump(dirty_blocks_, -uint64_t{state.length});
    (me.older != kNone ? run(me.older).newer : oldest_) = me.newer;
    (me.newer != kNone ? run(me.newer).older : newest_) = me.older;
  }

  // The smallest run in this condition that has at least n blocks. Exact for short runs, else
  // nearly so.
  BlockIndex find(unsigned set, BlockCount n) const {
    const Bins& bins = sets_[set];
    unsigned b = bin_of(n);
    if (b >= kExactBins) {
      BlockIndex best = kNone;
      int scanned = 0;
      for (BlockIndex at = bins.head[b]; at != kNone && scanned < kScan;
           at = run(at).next, ++scanned) {
        const BlockCount length = region_.state(at).length;
        if (length >= n && (best == kNone || length < region_.state(best).length)) best = at;
      }
      if (best != kNone) return best;
      ++b;
    }
    for (unsigned word = b / 64; word < kBins / 64; ++word) {
      const uint64_t mask = word == b / 64 ? ~uint64_t{0} << (b % 64) : ~uint64_t{0};
      const uint64_t found = bins.occupied[word] & mask;
      if (found != 0) return bins.head[word * 64 + static_cast<unsigned>(std::countr_zero(found))];
    }
    return kNone;
  }

  Run take(BlockCount n, BlockCount align_blocks, unsigned sets = kSets) {
    take_back_deferred();
    for (unsigned set = 0; set < sets; ++set) {
      if (set == set_of(BlockKind::kClean) && align_blocks == 1)
        if (const Run run = take_mixed(n); run.at != kNone) return run;
      for (;;) {
        const BlockIndex at = find(set, n + align_blocks - 1);
        if (at == kNone) break;
        const BlockKind kind = kind_of(set);
        const BlockCount length = region_.state(at).length;
        const uint32_t freed_at = run(at).freed_at;
        remove(at);
        const BlockIndex begin = aligned_in(at, align_blocks);
        if (kind == BlockKind::kAbsent) {
          const Claim claim = claim_again(begin, n);
          if (claim == Claim::kTaken) {  // other code has them now: forget these addresses
            mark_used(at, length);
            continue;
          }
          if (claim == Claim::kNoMemory) {
            insert(at, length, kind);
            return {kNone, false};
          }
        }
        return_rest(begin + n, at + length - begin - n, kind, freed_at);
        mark_used(begin, n);
        return_rest(at, begin - at, kind, freed_at);
        return {begin, kind != BlockKind::kDirty};
      }
    }
    return {kNone, false};
  }

  // No dirty run has n blocks. Takes a shorter one, and the missing blocks from the clean run
  // beside it. At least half of the result is dirty. Otherwise a caller that wants zeros would
  // write to many blocks that read as zeros anyway.
  NOINLINE Run take_mixed(BlockCount n) {
    const Bins& bins = sets_[set_of(BlockKind::kDirty)];
    const unsigned least = bin_of(n / 2 + n % 2);
    int scanned = 0;
    for (unsigned b = bin_of(n) + 1; b-- > least;) {
      for (BlockIndex at = bins.head[b]; at != kNone; at = run(at).next) {
        if (++scanned > kScan) return {kNone, false};
        const BlockCount length = region_.state(at).length;
        if (length >= n || length < n - length) continue;
        const BlockCount missing = n - length;
        if (clean_behind(at + length) >= missing) return join(at, length, at + length, missing);
        if (const BlockCount before = clean_before(at); before >= missing)
          return join(at - before, before, at, length, before - missing);
      }
    }
    return {kNone, false};
  }
  BlockCount clean_behind(BlockIndex at) const {
    if (at >= region_.opened()) return 0;
    const BlockState& state = region_.state(at);
    return state.kind.load(std::memory_order_relaxed) == BlockKind::kClean ? state.length : 0;
  }
  BlockCount clean_before(BlockIndex at) const {
    if (at == 0) return 0;
    const BlockState& state = region_.state(at - 1);
    return state.kind.load(std::memory_order_relaxed) == BlockKind::kClean ? state.length : 0;
  }
  // Makes a run in use from two neighbours, one dirty and one clean. Leaves out the first `skipped`
  // blocks of the first neighbour, and takes only the first `second_blocks` of the second one.
  Run join(BlockIndex first, BlockCount first_blocks, BlockIndex second, BlockCount second_blocks,
           BlockCount skipped = 0) {
    const BlockState& behind = region_.state(second);
    const BlockCount length = behind.length;
    const bool clean_first =
        region_.state(first).kind.load(std::memory_order_relaxed) == BlockKind::kClean;
    remove(first);
    remove(second);
    return_rest(second + second_blocks, length - second_blocks, BlockKind::kClean, 0);
    // Each part is in use by itself before they become one, so that a walk from run to run finds
    // whole runs at every instant (salvage).
    mark_used(second, second_blocks);
    mark_used(first + skipped, first_blocks - skipped);
    return_rest(first, skipped, BlockKind::kClean, 0);
    mark_used(first + skipped, first_blocks - skipped + second_blocks);
    return {first + skipped, false, clean_first ? first_blocks - skipped : second_blocks};
  }

  // The first block at or behind `at` whose address is aligned.
  BlockIndex aligned_in(BlockIndex at, BlockCount align_blocks) const {
    const Address address = region_.address_of(at);
    return at + static_cast<BlockIndex>((round_up(address, bytes_of(align_blocks)) - address) >>
                                        kBlockShift);
  }

  void return_rest(BlockIndex at, BlockCount n, BlockKind kind, uint32_t freed_at) {
    if (n == 0) return;
    if (kind == BlockKind::kDirty) return insert_dirty(at, n, freed_at);
    insert(at, n, kind);
  }

  // A fork has closed the lists. What is freed meanwhile is cut into ever smaller pieces, and only
  // the lists merge pieces. So a few threads that allocate and free would take gigabytes of fresh
  // addresses in each fork. Therefore, if the lists have free memory, or much fresh memory was
  // taken already, this thread opens them at once. The child makes them anew if it must.
  NOINLINE Run take_beside(BlockCount n, BlockCount align_blocks, Visit& visit) {
    Run run = take_deferred(n, align_blocks);
    if (run.at != kNone) return run;
    if (taken_beside_.fetch_add(n, std::memory_order_relaxed) + unused() >= kMuchBeside) {
      // This may wait for another thread that has opened the lists. In a child that thread may not
      // exist. Then this thread waits for a second, once.
      const auto insists = std::exchange(visit.insists, uint8_t{1});
      if (lock_.acquire(visit)) {
        run = take(n, align_blocks);
        lock_.release(visit);
      }
      visit.insists = insists;
    }
    if (run.at == kNone) run = {take_fresh_aligned(n, align_blocks), true};
    return run;
  }
  // Blocks below the frontier that are not in use, as far as the lists say.
  uint64_t unused() const { return region_.frontier() - live(); }

  // There is no memory. Opens what a fork has closed, and gives all that is free back to the system
  // before it grows.
  NOINLINE Run allocate_the_last(BlockCount n, BlockCount align_blocks, Visit& visit) {
    Run run = {kNone, true};
    // The process may have limited itself: from now on free memory must not count.
    unmap_.store(true, std::memory_order_relaxed);
    if (visit.insists == 0) visit.insists = Visit::kPatience;
    if (!lock_.acquire(visit)) return run;
    run = take(n, align_blocks);
    const bool any = run.at == kNone && give_back_everything();
    if (any) run = take(n, align_blocks);
    lock_.release(visit);
    return any && run.at == kNone ? grow(n, align_blocks, visit) : run;
  }

  // Nothing is free. Works with all signals blocked, so that no thread is torn off while it has
  // blocks that nothing describes yet, or the lock that other threads wait for. What the system
  // does here takes longer than that.
  Run grow(BlockCount n, BlockCount align_blocks, Visit& visit) {
    const uint64_t mask = P::block_signals();
    const Run run = grow_uninterrupted(n, align_blocks, visit);
    P::restore_signals(mask);
    return run;
  }
  // One thread at a time takes more than it needs. A thread that comes meanwhile takes just what it
  // needs. Only if it cannot get that, it waits for what the first thread may leave over.
  Run grow_uninterrupted(BlockCount n, BlockCount align_blocks, Visit& visit) {
    if (!growth_.try_acquire(visit)) {
      const BlockIndex at = take_fresh_aligned(n, align_blocks);
      if (at != kNone || !growth_.acquire(visit)) return {at, true};
    }
    Run run = {kNone, false};
    if (lock_.acquire(visit)) {
      run = take(n, align_blocks);
      lock_.release(visit);
    }
    if (run.at == kNone) run = take_fresh_and_more(n, align_blocks, visit);
    growth_.release(visit);
    return run;
  }

  // Keeps what is left over as a clean run.
  Run take_fresh_and_more(BlockCount n, BlockCount align_blocks, Visit& visit) {
    const BlockCount least = n + align_blocks - 1;
    const BlockCount step = growth_step();
    BlockCount got = least > step ? least : step;
    BlockIndex at = claim_fresh(got);
    while (at == kNone && got > least) {
      got = got / 2 > least ? got / 2 : least;
      at = claim_fresh(got);
    }
    if (at == kNone) return {kNone, false};
    const BlockIndex begin = aligned_in(at, align_blocks);
    mark_used(begin, n);
    if (begin > at) give(at, begin - at, BlockKind::kClean, visit);
    if (at + got > begin + n) give(begin + n, at + got - begin - n, BlockKind::kClean, visit);
    return {begin, true};
  }

  // As much again up to 8 MiB, then a quarter. So a process that has little is not charged for
  // much. Nor is one whose mapped memory counts.
  BlockCount growth_step() const {
    const auto has = static_cast<BlockCount>(claimed_blocks_.load(std::memory_order_relaxed));
    const bool counts = unmap_.load(std::memory_order_relaxed);
    const BlockCount most = counts ? kDoublingStep : kLargestStep;
    BlockCount step = counts ? has / 32 : has < kDoublingStep ? has : has / 4;
    if (!counts && has >= kDoublingStep && step < kDoublingStep) step = kDoublingStep;
    return step < kLeastStep ? kLeastStep : step > most ? most : step;
  }

  // Without the lock: what alignment wastes stays unused.
  BlockIndex take_fresh_aligned(BlockCount n, BlockCount align_blocks) {
    const BlockIndex at = claim_fresh(n + align_blocks - 1);
    if (at == kNone) return kNone;
    const BlockIndex begin = aligned_in(at, align_blocks);
    mark_used(begin, n);
    return begin;
  }

  // claim_fresh() takes blocks that were never used, claim_again() blocks that were unmapped.
  // kNone, or anything but kDone: nothing has changed.
  BlockIndex claim_fresh(BlockCount n) {
    const BlockIndex at = region_.take_fresh(n);
    if (at != kNone) claimed(n), ask_for_huge_pages(at, n);
    return at;
  }
  Claim claim_again(BlockIndex at, BlockCount n) {
    const Claim claim = P::claim(region_.address_of(at), bytes_of(n));
    if (claim == Claim::kDone) claimed(n), ask_for_huge_pages(at, n);
    return claim;
  }
  // These blocks were just claimed. Asks for the whole huge pages that end in them. The first may
  // begin before them. Blocks behind the last wait for the thread that claims the end of their huge
  // page: it asks for that.
  void ask_for_huge_pages(BlockIndex at, BlockCount n) {
    const HugePages how = huge_pages_;
    if (LIKELY(how == HugePages::kOff || (how == HugePages::kAuto && !grows_beyond_much(n))))
      return;
    const Address from = round_down(region_.address_of(at), kHugePage);
    const Address to = round_down(region_.address_of(at + n), kHugePage);
    if (from < to) P::prefer_huge(from, to - from);
  }
  // True if the heap has much, in all and for each step of lanes. Each lane has slabs that it has
  // not carved yet, and in a huge page those are resident. False for a run that is large compared
  // with the heap: it may never be filled.
  bool grows_beyond_much(BlockCount n) const {
    const uint64_t has = claimed_blocks_.load(std::memory_order_relaxed);
    return has >= kMuchClaimed && has >= kMuchClaimed * region_.lane_steps() && n <= has / 4;
  }

  NOINLINE void give(BlockIndex at, BlockCount n, BlockKind kind, Visit& visit) {
    if (kind == BlockKind::kAbsent) claimed(-uint64_t{n});
    if (!lock_.acquire(visit)) return defer(at, n, kind);
    take_back_deferred();
    put(at, n, kind);
    if (kind == BlockKind::kDirty) {
      look_at_clock();
      keep_limit();
    }
    lock_.release(visit);
  }

  // n blocks without memory were taken, and get memory now. The dirty memory beyond a limit did not
  // fit the request. Up to n blocks of it go back, so that memory does not grow by the pieces that
  // do not fit.
  NOINLINE void make_up_for(BlockCount n, Visit& visit) {
    if (decay_ms_ < 0 || !lock_.acquire(visit)) return;
    look_at_clock();
    keep_.took(n, live());
    const uint64_t limit = decay_ms_ == 0 ? 0 : keep_.while_growing(live());
    const uint64_t beyond = dirty() > limit ? dirty() - limit : 0;
    if (beyond < n) n = static_cast<BlockCount>(beyond);
    keep_.gave(n);
    lock_.release(visit);
    if (n != 0) purge(kAll, visit, n);
  }

  // If no scavenger runs, time passes when memory is freed or more is taken. What has decayed goes
  // back then, within a share of the time, and not much at once.
  void look_at_clock() {
    const int64_t decay = decay_ms_;
    if (decay <= 0) return;
    const uint64_t now = P::now_ms();
    const uint64_t passed = looked_at_ms_ == 0 ? 0 : now - looked_at_ms_;
    looked_at_ms_ = now;
    if (passed == 0) return;
    keep_.pass(passed, static_cast<uint64_t>(decay));
    if (scavenged_) return;
    const uint64_t period =
        decay < kPassesToDecay ? 1 : static_cast<uint64_t>(decay) / kPassesToDecay;
    since_pass_ms_ += passed;
    bump(epoch_, static_cast<uint32_t>(since_pass_ms_ / period));
    since_pass_ms_ %= period;
    const uint64_t more = passed < kMostByAge ? passed * kByAgeAMs : kMostByAge;
    by_age_ = by_age_ + more < kMostByAge ? by_age_ + static_cast<BlockCount>(more) : kMostByAge;
    purge_by_age();
  }
  void purge_by_age() {
    const uint32_t now = epoch();
    while (by_age_ != 0 && oldest_ != kNone && now - run(oldest_).freed_at >= kPassesToDecay) {
      const BlockCount given = purge_oldest(by_age_);
      by_age_ = given < by_age_ ? by_age_ - given : 0;
      if (given == 0) return;
    }
  }
  // Under the lock: gives back at most `most` blocks, or a few more. Returns 0 if the system does
  // not take them.
  BlockCount purge_oldest(uint64_t most) {
    const BlockIndex at = oldest_;
    const BlockCount n = cut_for_purge(at, most);
    const BlockKind kind = give_to_system(at, n);
    if (kind == BlockKind::kAbsent) claimed(-uint64_t{n});
    put(at, n, kind);
    return LIKELY(kind != BlockKind::kDirty) ? n : 0;
  }
  // Takes the beginning of a dirty run out of the lists: at most `most` blocks, or a few more.
  BlockCount cut_for_purge(BlockIndex at, uint64_t most) {
    const BlockCount length = region_.state(at).length;
    remove(at);
    BlockCount n = purge_piece(at, length);
    if (most < kLeastPurged) most = kLeastPurged;
    if (n > most) n = static_cast<BlockCount>(most);
    if (n < length) insert_dirty(at + n, length - n, run(at).freed_at);
    mark_used(at, n);
    fence_of_walk();
    return n;
  }

  // Inserts a run and merges it with its neighbours. A merged dirty run counts as old as its oldest
  // part. So a run that is always in use at one end still decays.
  void put(BlockIndex at, BlockCount n, BlockKind kind) {
    uint32_t freed_at = epoch();
    if (at > 0) {
      const BlockState& before = region_.state(at - 1);
      if (before.kind.load(std::memory_order_relaxed) == kind) {
        at -= before.length;
        n += before.length;
        if (kind == BlockKind::kDirty && run(at).freed_at < freed_at) freed_at = run(at).freed_at;
        remove(at);
      }
    }
    const BlockIndex behind = at + n;
    if (behind < region_.opened()) {
      const BlockState& after = region_.state(behind);
      if (after.kind.load(std::memory_order_relaxed) == kind) {
        if (kind == BlockKind::kDirty && run(behind).freed_at < freed_at)
          freed_at = run(behind).freed_at;
        n += after.length;
        remove(behind);
      }
    }
    if (kind == BlockKind::kDirty) return insert_dirty(at, n, freed_at);
    insert(at, n, kind);
  }

  // Whole huge pages first: the piece ends where one ends.
  BlockCount purge_piece(BlockIndex at, BlockCount length) const {
    if (length <= kPurgePiece) return length;
    const BlockCount into =
        static_cast<BlockCount>((region_.address_of(at) & (kHugePage - 1)) >> kBlockShift);
    return kPurgePiece - into;
  }

  // Returns the condition of the run afterwards. Needs no lock, since the run is in no list. Memory
  // that the program has locked cannot be emptied, but it can be unmapped.
  BlockKind give_to_system(BlockIndex at, BlockCount n) {
    const Address address = region_.address_of(at);
    BlockKind kind = BlockKind::kClean;
    if (unmap_.load(std::memory_order_relaxed) || !P::empty(address, bytes_of(n))) {
      kind = BlockKind::kAbsent;
      if (UNLIKELY(!P::release(address, bytes_of(n)))) return BlockKind::kDirty;
      unmap_.store(true, std::memory_order_relaxed);
    }
    PROBE2(purge, address, bytes_of(n));
    count<P>(purged_, uint64_t{n});
    return kind;
  }

  uint64_t dirty() const { return dirty_blocks_.load(std::memory_order_relaxed); }
  uint64_t live() const {
    return claimed_blocks_.load(std::memory_order_relaxed) - dirty() -
           clean_blocks_.load(std::memory_order_relaxed);
  }

  // If no scavenger runs, as in a process with one thread, frees give memory back beyond a limit.
  void keep_limit() {
    if (decay_ms_ < 0 || (decay_ms_ > 0 && scavenged_)) return;
    const uint64_t limit = decay_ms_ == 0 ? 0 : keep_.at_rest(live());
    if (dirty() <= limit) return;
    int refusals = 0;
    while (dirty() > limit - limit / 8) {
      const BlockCount given = purge_oldest(dirty() - (limit - limit / 8));
      keep_.gave(given);
      if (UNLIKELY(given == 0) && ++refusals == kMostRefusals) return;
    }
    unmap_needless();
  }

  // Clean memory costs nothing, unless mapped memory counts. A run longer than a step of growth
  // counts in every process: the kernel refuses to fork a process in which one mapping is larger
  // than the machine's memory, and neighbours are one mapping.
  void unmap_needless() {
    if (LIKELY(clean_blocks_.load(std::memory_order_relaxed) <= kDoublingStep)) return;
    if (unmap_.load(std::memory_order_relaxed)) {
      give_back_all(BlockKind::kClean);
      return;
    }
    for (;;) {
      const BlockIndex at = find(set_of(BlockKind::kClean), kLargestStep + 1);
      if (LIKELY(at == kNone)) return;
      const BlockCount n = region_.state(at).length;
      remove(at);
      mark_used(at, n);
      fence_of_walk();
      const BlockKind kind =
          P::release(region_.address_of(at), bytes_of(n)) ? BlockKind::kAbsent : BlockKind::kClean;
      if (kind == BlockKind::kAbsent) claimed(-uint64_t{n});
      put(at, n, kind);
      if (UNLIKELY(kind == BlockKind::kClean)) return;
    }
  }

  // Out of memory: unmaps every free run, so that limits do not count it any more. True if there
  // was any.
  bool give_back_everything() {
    const bool dirty = give_back_all(BlockKind::kDirty);
    return give_back_all(BlockKind::kClean) || dirty;
  }
  bool give_back_all(BlockKind kind) {
    bool any = false;
    for (const BlockIndex& head : sets_[set_of(kind)].head) {
      for (BlockIndex at = head; at != kNone;) {
        const BlockCount n = region_.state(at).length;
        const BlockIndex next = run(at).next;
        const uint32_t freed_at = run(at).freed_at;
        remove(at);
        mark_used(at, n);
        fence_of_walk();
        if (P::release(region_.address_of(at), bytes_of(n))) {
          claimed(-uint64_t{n});
          if (kind == BlockKind::kDirty) count<P>(purged_, uint64_t{n});
          put(at, n, BlockKind::kAbsent);
          any = true;
        } else {
          return_rest(at, n, kind, freed_at);
        }
        at = next;
      }
    }
    return any;
  }

  // A stack of freed runs whose threads could not get the lock. Runs are pushed one by one, and the
  // stack is taken as a whole. So no run can be popped and pushed again between another thread's
  // look and its exchange (no ABA). The head is a block index + 1. A run's condition waits where
  // its age will be.
  NOINLINE void defer(BlockIndex at, BlockCount n, BlockKind kind) {
    run(at).freed_at = static_cast<uint32_t>(kind);
    set_ends(at, n, BlockKind::kWaiting);
    raise_used_end(at + n);
    BlockIndex head = deferred_.load(std::memory_order_relaxed);
    for (;; deferred_tries_.failed()) {
      run(at).next = head;
      // release: publishes the run's state to [deferred.take].
      if (deferred_.compare_exchange_weak(head, at + 1, std::memory_order_release,
                                          std::memory_order_relaxed))
        return deferred_tries_.done();
    }
  }
  // Without the lock: takes the beginning of one of the deferred runs. The thread has the whole
  // stack for a moment. A child that is forked then finds these runs as it finds the lists
  // (salvage).
  NOINLINE Run take_deferred(BlockCount n, BlockCount align_blocks) {
    Run taken = {kNone, false};
    if (deferred_.load(std::memory_order_relaxed) == 0) return taken;
    takers_.fetch_add(1, std::memory_order_relaxed);
    // acquire: as in take_back_deferred().
    BlockIndex head = deferred_.exchange(0, std::memory_order_acquire);
    BlockIndex* link = &head;
    for (int scanned = 0; *link != 0 && scanned < kScan; ++scanned, link = &run(*link - 1).next) {
      const BlockIndex at = *link - 1;
      const BlockCount length = region_.state(at).length;
      const auto kind = static_cast<BlockKind>(run(at).freed_at);
      if (length < n || kind == BlockKind::kAbsent || aligned_in(at, align_blocks) != at) continue;
      *link = run(at).next;
      taken = {at, kind == BlockKind::kClean};
      split(at, length, n);
      if (length > n) defer(at + n, length - n, kind);
      break;
    }
    // Put the rest back, behind runs that have come meanwhile: those are few.
    while (head != 0) {
      BlockIndex newer = 0;
      // release: as in defer().
      if (deferred_.compare_exchange_strong(newer, head, std::memory_order_release,
                                            std::memory_order_relaxed))
        break;
      newer = deferred_.exchange(0, std::memory_order_acquire);
      if (newer == 0) continue;
      BlockIndex last = newer;
      while (run(last - 1).next != 0) last = run(last - 1).next;
      run(last - 1).next = head;
      head = newer;
    }
    // release: a thread that reads that there are no takers finds the stack whole.
    takers_.fetch_sub(1, std::memory_order_release);
    return taken;
  }
  void take_back_deferred() {
    if (LIKELY(deferred_.load(std::memory_order_relaxed) == 0)) return;
    // acquire: pairs with the release in defer() [deferred.take].
    if (taken_back_ == 0) taken_back_ = deferred_.exchange(0, std::memory_order_acquire);
    while (taken_back_ != 0) {
      const BlockIndex at = taken_back_ - 1;
      taken_back_ = run(at).next;
      put(at, region_.state(at).length, static_cast<BlockKind>(run(at).freed_at));
    }
  }

  void claimed(uint64_t blocks) { count<P>(claimed_blocks_, blocks); }

  SHOWN_BY_LAYOUT;

  Region<P>& region_;
  std::atomic<bool> unmap_{false};
  // The last purge gave nothing back, although there was something
  std::atomic<bool> is_refused_{false};
  Relaxed<int64_t> decay_ms_ = 0;
  Relaxed<HugePages> huge_pages_ = HugePages::kOff;
  Relaxed<bool> scavenged_ = false;
  alignas(kNoSharing) Lock<P> growth_{Rank::kGrowth};
  alignas(kNoSharing) Lock<P> lock_{Rank::kRuns};
  Bins sets_[kSets];
  BlockIndex oldest_ = kNone;
  BlockIndex newest_ = kNone;
  // What was taken from deferred_. Not 0 only while it is taken in, or if that was never finished.
  BlockIndex taken_back_ = 0;
  Keep keep_;
  uint64_t looked_at_ms_ = 0;   // at the clock
  uint64_t since_pass_ms_ = 0;  // since the epoch last changed, if no scavenger runs
  BlockCount by_age_ = 0;       // blocks that may be given back by age now
  std::atomic<uint64_t> dirty_blocks_{0};
  std::atomic<uint64_t> clean_blocks_{0};
  std::atomic<uint64_t> claimed_blocks_{0};  // also counted by threads that could not get the lock
  alignas(kNoSharing) std::atomic<BlockIndex> deferred_{0};
  std::atomic<uint32_t> takers_{0};        // threads that have all of that stack now
  std::atomic<uint64_t> taken_beside_{0};  // blocks, since a thread last got the lock
  std::atomic<BlockIndex> used_end_{0};
  std::atomic<uint32_t> epoch_{1};
  std::atomic<uint32_t> moved_alive_{0};
  std::atomic<uint64_t> purged_{0};
  std::atomic<uint64_t> moved_{0};
  Tries<> deferred_tries_;
  Tries<> used_end_tries_;
};

}  // namespace lanemalloc
