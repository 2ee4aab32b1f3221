// Epochs: tells when no reader can be reading what was unlinked before. A reader announces the
// epoch in which its section begins. A thread that frees begins a new epoch after unlinking (its
// tag), and frees once every reader is in that epoch or a later one.
// Called by: engine (defer, poll, wait, fork), abi (readers). Locking: rank kReaders for the list
// of readers; what readers do themselves takes no lock (include/lanemalloc/safepoint.h).
//
//   reader                                        a thread that frees
//   ------                                        -------------------
//   now -> e, acquire       [announce]            unlink the object
//   epoch = e               [enter]               tag = now + 1, a release                [advance]
//   (compiler fence)                              ... any time later, any thread ...
//   read what is linked     [read]                oldest = now, acquire                   [before]
//   epoch = 0, release      [withdraw]            membarrier: a full barrier on every thread
//                                                 each reader's epoch, acquire          [peek]
//                                                   the smallest that is not 0, or oldest
//                                                 tag <= that: free the object
//
// Why no reader reads what is freed. Take a reader's section, and an object with tag <= safe, where
// safe is what one look found.
//   - [peek] saw the section's epoch e >= safe >= tag. Then [announce] read what [advance] wrote or
//     later, so it sees the unlinking: [read] does not find the object.
//   - [peek] did not see the section, since the section came later. The barrier falls somewhere in
//     the reader's order. Had it fallen after [enter], the store would have been visible to [peek].
//     So it fell before [enter], thus before [read]. The unlinking came before [advance], [advance]
//     before [before] (safe <= oldest, so [before] read what [advance] wrote), and [before] before
//     the barrier: [read] sees the unlinking.
//   - [peek] did not see the section, since the section was over: [peek] read the 0, or the later
//     epoch of an online reader, that came after the section. That store is a release, so the reads
//     come before the free.
// An epoch may be older than its section, if the reader was stopped between [announce] and [enter].
// That only delays frees. And safe may be above the epoch of such a reader: the second case says
// why that is right. So safe only rises, and one look is enough for all tags up to it, in every
// lane.
//
// A thread may end in a section. It cannot say so itself, since destructors that run later may
// still read. So when a thread ends, it marks the epoch of each section that it is in (kEnding);
// the mark ends with that section or the next one. A thread that looks asks the system whether the
// thread of a marked epoch is still there. If it is not, it reads nothing, and its sections are
// over. Another thread may have its number by then: that one seems to be in the section, and frees
// go on waiting. Without the mark it would not be right to ask, however well the thread's number is
// known: the reader may have been given to another thread, whose thread pointer is that of the
// thread that is gone.
//
// If the system has no barrier (lane_epoch.fences, set while there is no reader), readers have a
// fence of their own between [enter] and [read], and a thread that looks has one instead of the
// membarrier.
//
// Source: FreeBSD's SMR (sys/kern/subr_smr.c); P1202 for the asymmetric fences.
#pragma once

#include "core/base/lock.h"
#include "core/base/text.h"
#include "core/platform/platform.h"
#include "lanemalloc/safepoint.h"

namespace lanemalloc {

// The tag of what was unlinked before the epoch.
using Epoch = uint64_t;

template <class P>
class Epochs {
 public:
  // Begins an epoch, whose readers see what the caller did before.
  Epoch advance() {
    // release: publishes the unlinking to readers, and to a thread that looks. Pairs with
    // [announce] and [before].
    return word(shared_.now).fetch_add(1, std::memory_order_release) + 1;  // [advance]
  }
  // What has this tag or a smaller one may be freed.
  Epoch safe() const {
    // acquire: the readers' last reads come before the free [found.safe].
    return safe_.load(std::memory_order_acquire);
  }
  Epoch now() { return word(shared_.now).load(std::memory_order_relaxed); }
  // True if readers tell what may be freed: there was a reader, and the barrier that readers rely
  // on is still available.
  bool can_tell() const { return can_tell_.load(std::memory_order_relaxed); }

  // Looks at all readers. True if safe() has risen. must: waits for another thread that holds the
  // list, if the visit may wait.
  bool look(Visit& visit, bool must) {
    if (!can_tell() || !(must ? lock_.acquire(visit) : lock_.try_acquire(visit))) return false;
    const Epoch before = safe_.load(std::memory_order_relaxed);
    const Epoch oldest = oldest_epoch();
    // release: as in safe() [found.safe].
    if (oldest > before) safe_.store(oldest, std::memory_order_release);
    lock_.release(visit);
    return oldest > before;
  }

  // Names the reader that has held up tags from `tag` on for longest, if it has done so for a
  // second; at most once a second.
  void name_stuck(Epoch tag, Visit& visit) {
    const uint64_t now_ns = P::now_ns();
    if (!lock_.try_acquire(visit)) return;
    const lane_reader* longest = nullptr;
    for (const lane_reader* r = first_; r != nullptr; r = r->next) {
      const Epoch epoch = word(r->epoch).load(std::memory_order_relaxed);
      if (epoch == 0 || number_of(epoch) >= tag || number_of(epoch) != r->stuck_epoch) continue;
      if (longest == nullptr || r->stuck_since < longest->stuck_since) longest = r;
    }
    if (longest != nullptr && now_ns - longest->stuck_since >= kSecond &&
        now_ns - named_at_ >= kSecond) {
      named_at_ = now_ns;
      const uint64_t tenths = (now_ns - longest->stuck_since) / (kSecond / 10);
      Text line;
      line << "lanemalloc: reader '" << longest->name << "' at "
           << static_cast<const void*>(longest) << " has held up deferred frees for " << tenths / 10
           << '.' << tenths % 10 << " s";
      if (P::thread_is_gone(longest->thread_id))
        line << "; thread " << uint64_t{longest->thread_id} << ", which registered it, is gone";
      line.end();
      P::say(line.data(), line.size());
    }
    lock_.release(visit);
  }

  // --- Readers.
  bool add(lane_reader& reader, const char* name, const void* thread, Visit& visit) {
    if (!lock_.acquire(visit)) return false;
    const bool is_new = *place_of(reader) == nullptr;
    if (is_new) {
      if (first_ == nullptr) {
        if (!P::barrier()) word(shared_.fences).store(1, std::memory_order_relaxed);
        can_tell_.store(true, std::memory_order_relaxed);
      }
      reader = lane_reader{};
      reader.shared = &shared_;
      word(reader.thread).store(thread, std::memory_order_relaxed);
      reader.thread_id = P::thread_id();
      if (name == nullptr) name = "reader";
      for (size_t i = 0; i + 1 < sizeof reader.name && name[i] != '\0'; ++i)
        reader.name[i] = name[i];
      reader.next = first_;
      first_ = &reader;
    }
    lock_.release(visit);
    return is_new;
  }
  enum class Removed : uint8_t { kDone, kNotThere, kInSection };
  Removed remove(lane_reader& reader, Visit& visit) {
    if (!lock_.acquire(visit)) return Removed::kInSection;
    Removed result = Removed::kNotThere;
    if (lane_reader** place = place_of(reader); *place != nullptr) {
      result = is_read(reader) ? Removed::kInSection : Removed::kDone;
      if (result == Removed::kDone) unlink(place);
    }
    lock_.release(visit);
    return result;
  }
  // True if the thread is in a section of a reader, and also if that cannot be found out now.
  bool is_in_section(const void* thread, Visit& visit) {
    if (!lock_.acquire(visit)) return true;
    const lane_reader* r = first_;
    while (r != nullptr &&
           !(word(r->thread).load(std::memory_order_relaxed) == thread && is_read(*r)))
      r = r->next;
    lock_.release(visit);
    return r != nullptr;
  }
  // The calling thread ends. It may still leave its sections, or begin others. False: it was not
  // the last thread in any registered reader.
  bool thread_ends(const void* thread, Visit& visit) {
    if (!lock_.acquire(visit)) return true;
    bool has_any = false;
    for (lane_reader* r = first_; r != nullptr; r = r->next) {
      if (word(r->thread).load(std::memory_order_relaxed) != thread) continue;
      has_any = true;
      r->thread_id = P::thread_id();
      // No other thread writes it while the section lasts. release: as in lane_reader_announce().
      const Epoch epoch = word(r->epoch).load(std::memory_order_relaxed);
      if (epoch != 0) word(r->epoch).store(epoch | kEnding, std::memory_order_release);
    }
    lock_.release(visit);
    return has_any;
  }
  uint64_t readers(Visit& visit) {
    if (!lock_.acquire(visit)) return 0;
    uint64_t n = 0;
    for (const lane_reader* r = first_; r != nullptr; r = r->next) ++n;
    lock_.release(visit);
    return n;
  }

  Lock<P>& lock() { return lock_; }
  // In a fork child: the readers of other threads are not there. The list is whole at every
  // instant, since one store changes it.
  void keep_readers_of(const void* thread) {
    for (lane_reader** place = &first_; *place != nullptr;) {
      if (word((*place)->thread).load(std::memory_order_relaxed) == thread) {
        // The thread has another number here.
        (*place)->thread_id = P::thread_id();
        place = &(*place)->next;
      } else {
        unlink(place);
      }
    }
  }

 private:
  SHOWN_BY_LAYOUT;

  static constexpr uint64_t kSecond = 1'000'000'000;
  // In a reader's epoch: its thread was about to end, and may be gone.
  static constexpr Epoch kEnding = Epoch{1} << 63;
  static Epoch number_of(Epoch epoch) { return epoch & ~kEnding; }

  // Whether a thread is in the reader's section.
  static bool is_read(const lane_reader& reader) {
    const Epoch epoch = word(reader.epoch).load(std::memory_order_relaxed);
    return epoch != 0 && !((epoch & kEnding) != 0 && P::thread_is_gone(reader.thread_id));
  }
  // The reader's thread is gone, so the section is over.
  static void end_section(lane_reader& reader) {
    Text line;
    line << "lanemalloc: reader '" << reader.name << "' at " << static_cast<const void*>(&reader)
         << ": thread " << uint64_t{reader.thread_id}
         << " has ended in a read section, which is over";
    line.end();
    P::say(line.data(), line.size());
    reader.depth = reader.online = 0;
    word(reader.epoch).store(0, std::memory_order_relaxed);
  }

  // The fields of the public structs are plain for C.
  template <class T>
  static std::atomic<T>& word(T& field) {
    return reinterpret_cast<std::atomic<T>&>(field);
  }
  template <class T>
  static const std::atomic<T>& word(const T& field) {
    return reinterpret_cast<const std::atomic<T>&>(field);
  }

  // The smallest epoch that a reader is in; 0 if that cannot be told.
  Epoch oldest_epoch() {
    // acquire: what was unlinked before those epochs was unlinked before the barrier. Pairs with
    // [advance].
    const Epoch now = word(shared_.now).load(std::memory_order_acquire);  // [before]
    Epoch oldest = now;
    if (word(shared_.fences).load(std::memory_order_relaxed) != 0) {
      std::atomic_thread_fence(std::memory_order_seq_cst);
    } else if (UNLIKELY(!P::barrier())) {
      can_tell_.store(false, std::memory_order_relaxed);  // a filter has forbidden it since
      return 0;
    }
    for (lane_reader* r = first_; r != nullptr; r = r->next) {
      // acquire: a section that is over was over before. Pairs with [withdraw], and [enter] of an
      // online reader.
      const Epoch epoch = word(r->epoch).load(std::memory_order_acquire);  // [peek]
      if (epoch == 0 || number_of(epoch) >= now) continue;
      if ((epoch & kEnding) != 0 && P::thread_is_gone(r->thread_id)) {
        end_section(*r);
        continue;
      }
      if (number_of(epoch) < oldest) oldest = number_of(epoch);
      if (r->stuck_epoch == number_of(epoch)) continue;
      r->stuck_epoch = number_of(epoch);
      r->stuck_since = P::now_ns();
    }
    return oldest;
  }

  // The place in the list that names the reader; the list's end, if it does not name the reader.
  lane_reader** place_of(const lane_reader& reader) {
    lane_reader** place = &first_;
    while (*place != nullptr && *place != &reader) place = &(*place)->next;
    return place;
  }
  static void unlink(lane_reader** place) {
    lane_reader& reader = **place;
    *place = reader.next;
    reader.shared = nullptr;
    word(reader.epoch).store(0, std::memory_order_relaxed);
    reader.depth = reader.online = 0;
  }

  alignas(kNoSharing) lane_epoch shared_{1, 0};
  alignas(kNoSharing) Lock<P> lock_{Rank::kReaders};
  lane_reader* first_ = nullptr;
  uint64_t named_at_ = 0;
  std::atomic<bool> can_tell_{false};
  std::atomic<Epoch> safe_{0};
};

}  // namespace lanemalloc
