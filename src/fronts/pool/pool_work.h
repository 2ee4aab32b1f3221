// What a pool does. Included by pool.h only; see there.
#pragma once

#include <cstring>
#include <utility>

#include "fronts/pool/imports.h"
#include "fronts/pool/pool.h"

namespace lanemalloc {

// A turn with the pool's lock. A handler that may not wait for the lock leaves word, and tries once
// more. If the second try fails too, the holder gives the lock back later, and then finds the word.
// What the holder must find has to be in its place before that.
template <class P>
class Pool<P>::Locked {
 public:
  Locked(Pool& pool, Slot& slot)
      : pool_(pool),
        slot_(slot),
        gate_(Owned::current(slot, Owned::enter(slot))),
        visit_(&slot, !is_busy(gate_)),
        held_(pool.lock_.acquire(visit_) || leave_word()) {}
  Locked(const Locked&) = delete;
  ~Locked() {
    if (held_) {
      if (UNLIKELY(pool_.is_in_child_)) pool_.forget_line();
      pool_.announce();
      pool_.lock_.release(visit_);
      std::atomic_thread_fence(std::memory_order_seq_cst);  // as in leave_word()
    }
    Owned::leave(slot_, gate_);
    // acquire: finds what the thread that left word has put in its place.
    if (held_ && UNLIKELY(pool_.missed_.load(std::memory_order_relaxed)) &&
        pool_.missed_.exchange(false, std::memory_order_acquire))
      pool_.serve(slot_);
  }
  bool is_held() const { return held_; }

 private:
  bool leave_word() {
    pool_.missed_.store(true, std::memory_order_release);
    // This thread leaves word and then tries; the holder gives the lock back and then looks for
    // word. So one of the two sees the other.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return pool_.lock_.try_acquire(visit_);
  }

  Pool& pool_;
  Slot& slot_;
  Gate* gate_;
  Visit visit_;
  const bool held_;
};

template <class P>
Pool<P>::Pool(Engine<P>& engine, const char* name, Bytes bytes, Bytes alignment,
              const PoolFunctions& functions, const PoolSource& source)
    : engine_(engine),
      functions_(functions),
      source_(source),
      bytes_(bytes),
      is_elaborate_(is_imported() || functions.init != nullptr || functions.fini != nullptr ||
                    functions.ctor != nullptr || functions.dtor != nullptr || engine.is_checked()) {
  family_.type = Family::Type::kPool;
  family_.front = this;
  family_.forget_threads = &Pool::forget_threads;
  family_.contention = &lock_.contention();
  strncpy(family_.name, name, sizeof family_.name - 1);
  family_.name[sizeof family_.name - 1] = '\0';
  Bytes whole = round_up(bytes, alignof(Object));
  if (functions.init != nullptr || functions.fini != nullptr) {
    kind_.link = static_cast<uint32_t>(whole);
    kind_.is_tagged = true;
    // So that only reclaim and destroy call fini.
    kind_.keeps.store(true, std::memory_order_relaxed);
    whole += sizeof(Object) + sizeof(uint64_t);
  }
  kind_.set_size(whole < sizeof(Object) ? sizeof(Object) : whole, alignment);
  if (is_imported()) kind_.capacity = 0;  // no slabs
  kind_.budget = &budget_;
}

template <class P>
bool Pool<P>::start(uint64_t limit, uint32_t reserve, Slot& slot) {
  budget_.start(nullptr, limit == 0 ? Budget::kNone : limit * kind_.size, Budget::kNone);
  if (!engine_.kinds().add_family(family_, slot)) return false;
  kind_.family = &family_;
  kind_.offset = family_.offset;
  engine_.kinds().add_kind(family_, kind_);
  reserve_ = reserve;
  publish();
  while (reserved() < reserve) {
    Object* object = obtain(slot);
    if (object == nullptr) return false;
    if (!initialize(object)) {
      put_into_lane(object, slot);
      return false;
    }
    keep_in_reserve(object);
  }
  return true;
}

// Hits may serve a pool that has no functions and need not know of each free.
template <class P>
void Pool<P>::publish() {
  const bool plain = !is_elaborate_ && budget_.limit() == Budget::kNone && reserve_ == 0;
  engine_.kinds().relabel(family_, is_elaborate_ ? 0
                                   : plain       ? family_.handle
                                                 : family_.handle | Labels::kMissed);
}

// --- Allocating.

template <class P>
void* Pool<P>::allocate(uint32_t flags, Slot& slot) {
  const bool in_turn = (flags & kWait) == 0 || waiters_.load(std::memory_order_relaxed) == 0;
  Object* object = LIKELY(in_turn) ? obtain(slot) : nullptr;
  if (UNLIKELY(object == nullptr)) return allocate_in_full(flags, slot);
  look_after_leaving(slot);  // a refill brings more than one object
  return hand_out(object, flags, slot);
}

template <class P>
void* Pool<P>::allocate_in_full(uint32_t flags, Slot& slot) {
  Object* object = (flags & kUseReserve) != 0 ? take_reserved(slot) : nullptr;
  if (object == nullptr && (flags & kWait) != 0 && !is_busy(slot.load(std::memory_order_relaxed)))
    object = wait(slot);
  if (object != nullptr) return hand_out(object, flags, slot);
  if (!budget_.may_take(kind_.size))
    counters_.limit_failures.fetch_add(1, std::memory_order_relaxed);
  return nullptr;
}

// Calls init if the object's memory has just come into the pool. False: init has failed.
template <class P>
bool Pool<P>::initialize(Object* object) {
  if (LIKELY(is_initialized(object))) return true;
  if (functions_.init != nullptr &&
      functions_.init(start_of(object), bytes_, functions_.argument) != 0)
    return false;
  kind_.tag_of(object) = 1;
  return true;
}

// Apart, so that the usual way keeps fewer registers.
template <class P>
NOINLINE void* Pool<P>::allocate_another(uint32_t flags, Slot& slot) {
  return allocate(flags, slot);
}

// The program's functions are called here, outside any lane.
template <class P>
void* Pool<P>::hand_out(Object* object, uint32_t flags, Slot& slot) {
  void* p = start_of(object);
  if (UNLIKELY(engine_.is_checked()) && !is_imported() &&
      !engine_.pointers().check_out(p, kind_.starts))
    return allocate_another(flags, slot);
  bool good = initialize(object);
  if (good && (flags & kZero) != 0) memset(p, 0, bytes_);
  if (good && functions_.ctor != nullptr)
    good = functions_.ctor(p, bytes_, functions_.argument) == 0;
  if (LIKELY(good)) return p;
  if (!is_imported()) engine_.pointers().check_in(p);
  put_back(object, slot);
  return nullptr;
}

template <class P>
size_t Pool<P>::allocate_batch(void** objects, size_t n, uint32_t flags, Slot& slot) {
  size_t had = 0;
  if (!is_elaborate_ && (flags & (kZero | kWait)) == 0) {
    had = Objects::allocate_batch(engine_.world(), kind_, objects, n, slot);
    look_after_leaving(slot);
  }
  for (size_t i = had; i < n; ++i)
    if ((objects[i] = allocate(flags, slot)) == nullptr) return i;
  return n;
}

// --- Freeing.

template <class P>
size_t Pool<P>::free_batch(void** objects, size_t n, Slot& slot) {
  if (is_elaborate_ || was_forked_) return 0;
  const size_t freed = Objects::free_batch(engine_.world(), family_, objects, n, slot);
  look_after_leaving(slot);
  return freed;
}

template <class P>
Verdict Pool<P>::find(const void* p) const {
  const Kind* kind = LIKELY(!is_imported()) ? Objects::kind_at(engine_.world(), p) : &kind_;
  if (UNLIKELY(kind != &kind_)) {
    const Verdict verdict = engine_.pointers().find(p).verdict;
    return verdict == Verdict::kGood ? Verdict::kOfMalloc : verdict;
  }
  if (is_imported()) return Verdict::kGood;
  if (!engine_.kinds().is_start_of(kind_, p)) return Verdict::kNotAStart;
  return engine_.pointers().is_out(p) ? Verdict::kGood : Verdict::kFreedAlready;
}

template <class P>
Verdict Pool<P>::free(void* p, Slot& slot) {
  if (const Verdict verdict = find(p); UNLIKELY(verdict != Verdict::kGood)) return verdict;
  if (!is_imported() && !engine_.pointers().check_in(p)) return Verdict::kFreedAlready;
  if (functions_.dtor != nullptr) functions_.dtor(p, bytes_, functions_.argument);
  put_back(object_at(p), slot);
  return Verdict::kGood;
}

template <class P>
void Pool<P>::put_back(Object* object, Slot& slot) {
  if (UNLIKELY(hit_load(attention_) != 0) && hand_over(object, slot) == Taker::kSomebody) return;
  put_into_lane(object, slot);
  look_after_leaving(slot);
}

template <class P>
FAST void Pool<P>::put_into_lane(Object* object, Slot& slot) {
  if (UNLIKELY(is_imported())) return keep_imported(object, slot);
  const auto look = [&](Gate* gate, Slab* slab) { Misses<P>::look_in_stay(slab, slot, gate); };
  Bin* bin;
  if (LIKELY(Objects::free_to_slab_or_batch(engine_.world(), kind_, object, slot, look, bin)))
    return;
  if (UNLIKELY(was_forked_) && keep_beside(object, slot)) return;
  Objects::free(engine_.world(), kind_, object, slot);
}

// In a fork child: puts an object on the shelf if its slab lies in a lane that is set aside, since
// no thread would look for it there.
template <class P>
bool Pool<P>::keep_beside(Object* object, Slot& slot) {
  World<P>& world = engine_.world();
  const Owner owner = public_of(world.region.word_of(object).owner());
  if (!is_lane(owner) || !world.lanes.at(owner).is_set_aside()) return false;
  Locked locked(*this, slot);
  if (!locked.is_held()) return false;
  object->next = Link::to(shelf_);
  shelf_ = object;
  bump(shelf_count_, uint64_t{1});
  return true;
}

// The next object in one of the pool's own lists. A program may have written to a free object. Then
// the rest of the list is lost. Imported objects lie anywhere, so nothing is known of theirs.
template <class P>
Object* Pool<P>::after(const Object* object) const {
  Object* next = object->follow_blindly();
  if (LIKELY(next == nullptr || is_imported()) || Objects::kind_at(engine_.world(), next) == &kind_)
    return next;
  engine_.world().report(Verdict::kListDamaged, object);
  return nullptr;
}

// The same, for an object that is taken off its list.
template <class P>
Object* Pool<P>::take_out(Object* object) const {
  Object* next = after(object);
  object->out();
  return next;
}

// --- The line, and the reserve.

// An object that could not be initialized does not go to the reserve. A waiter may have it: the
// waiter's own call tries init again, and fails if init does.
template <class P>
typename Pool<P>::Taker Pool<P>::hand_over(Object* object, Slot& slot) {
  Locked locked(*this, slot);
  if (!locked.is_held()) return Taker::kUnknown;
  if (reserved() < reserve_ && is_initialized(object)) {
    keep_in_reserve(object);
    return Taker::kSomebody;
  }
  Waiter* waiter = first_;
  if (waiter == nullptr) return Taker::kNobody;
  first_ = waiter->next;
  if (first_ == nullptr) last_ = nullptr;
  waiters_.store(waiters_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
  waiter->object = object;
  // release: the waiter sees which object it has, and what is in it [served.release]. Afterwards
  // the waiter may be gone; to wake an address that no thread sleeps at does nothing.
  waiter->served.store(1, std::memory_order_release);
  P::wake(waiter->served, 1);
  return Taker::kSomebody;
}

// Gives an object to the reserve or to the first waiter, and so on, as long as one of them wants
// one and there are objects.
template <class P>
void Pool<P>::serve(Slot& slot) {
  while (attention_.load(std::memory_order_relaxed) != 0) {
    Object* object = obtain(slot);
    if (object == nullptr) return;
    const bool is_fit = reserved() >= reserve_ || initialize(object);
    const Taker taker = hand_over(object, slot);
    if (taker == Taker::kSomebody) continue;
    put_into_lane(object, slot);
    if (!is_fit) return;
    // The word that hand_over() left came too early: only now does the object lie in its place.
    if (taker == Taker::kUnknown && !Locked(*this, slot).is_held()) return;
    compiler_fence();
  }
}

// Returns null if there is no memory, though the limit would allow an object.
template <class P>
Object* Pool<P>::wait(Slot& slot) {
  constexpr int kAttempts = 8;
  Waiter waiter;
  {
    Locked locked(*this, slot);
    (last_ != nullptr ? last_->next : first_) = &waiter;
    last_ = &waiter;
    waiters_.store(waiters_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }  // [announce]
  const bool will_be_served = P::barrier();
  counters_.waits.fetch_add(1, std::memory_order_relaxed);
  const uint64_t since = P::now_ns();
  serve(slot);
  // acquire: pairs with [served.release].
  for (int attempt = 0; waiter.served.load(std::memory_order_acquire) == 0;) {
    if (!budget_.may_take(kind_.size)) {
      attempt = 0;
      if (will_be_served) {
        P::wait(waiter.served, 0);
      } else {
        P::sleep_ms(1);
        serve(slot);
      }
    } else if (++attempt < kAttempts) {
      serve(slot);
    } else if (withdraw(waiter, slot)) {
      break;
    }
  }
  counters_.waited_ns.fetch_add(P::now_ns() - since, std::memory_order_relaxed);
  return waiter.object;
}

// False: the waiter has just been served.
template <class P>
bool Pool<P>::withdraw(const Waiter& waiter, Slot& slot) {
  Locked locked(*this, slot);
  Waiter* before = nullptr;
  Waiter* w = first_;
  for (; w != nullptr && w != &waiter; w = w->next) before = w;
  if (w == nullptr) return false;
  (before != nullptr ? before->next : first_) = w->next;
  if (last_ == w) last_ = before;
  waiters_.store(waiters_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
  return true;
}

// The lock is held, or no other thread knows the pool yet.
template <class P>
void Pool<P>::keep_in_reserve(Object* object) {
  object->next = Link::to(reserve_list_);
  reserve_list_ = object;
  reserved_.store(reserved() + 1, std::memory_order_relaxed);
}

template <class P>
Object* Pool<P>::take_reserved(Slot& slot) {
  Locked locked(*this, slot);
  Object* object = locked.is_held() ? reserve_list_ : nullptr;
  if (object == nullptr) return nullptr;
  reserve_list_ = take_out(object);
  reserved_.store(reserved() - 1, std::memory_order_relaxed);
  return object;
}

// The lock is held.
template <class P>
void Pool<P>::announce() {
  attention_.store(waiters_.load(std::memory_order_relaxed) + (reserve_ - reserved()),
                   std::memory_order_relaxed);
}

// In a fork child: the waiters are not in this process. What is half done in the line and the
// reserve is done again.
template <class P>
void Pool<P>::forget_line() {
  is_in_child_ = false;
  first_ = last_ = nullptr;
  waiters_.store(0, std::memory_order_relaxed);
  uint32_t reserved = 0;
  for (const Object* object = reserve_list_; object != nullptr; object = after(object)) ++reserved;
  reserved_.store(reserved, std::memory_order_relaxed);
  announce();
}

template <class P>
void Pool<P>::forget_threads(Family& family, const void* who) {
  Pool& pool = *static_cast<Pool*>(family.front);
  pool.was_forked_ = true;
  if (pool.lock_.is_held() && pool.lock_.holder() == who) {
    pool.is_in_child_ = true;  // this thread goes on as the holder, further down its stack
    return;
  }
  pool.lock_.forget_holder();
  pool.forget_line();
}

// --- Memory in advance, and back.

// Allocates n objects, and frees them into the depot.
template <class P>
bool Pool<P>::preallocate(size_t n, Slot& slot) {
  kind_.keeps.store(true, std::memory_order_relaxed);
  Object* list = nullptr;
  size_t had = 0;
  for (; had < n; ++had) {
    Object* object = obtain(slot);
    if (object == nullptr) break;
    if (!initialize(object)) {
      put_into_lane(object, slot);
      break;
    }
    object->next = Link::to(list);
    list = object;
  }
  if (had == n) least_free_.fetch_add(n, std::memory_order_relaxed);
  while (list != nullptr) {
    Object* object = list;
    list = take_out(object);
    put_back(object, slot);
  }
  if (had < n) return false;
  is_imported() ? bring_to_shelf(slot, false) : engine_.kinds().gather(family_, slot, false);
  return true;
}

template <class P>
bool Pool<P>::set_limit(uint64_t limit, Slot& slot) {
  if (limit != 0 && (limit < reserve_ || limit > Budget::kNone / kind_.size)) return false;
  budget_.set_limits(limit == 0 ? Budget::kNone : limit * kind_.size, Budget::kNone);
  publish();
  P::barrier();  // hits that began before are over, or their lanes look busy
  if (attention_.load(std::memory_order_relaxed) != 0) serve(slot);
  return true;
}

template <class P>
Bytes Pool<P>::reclaim(Reclaim level, Slot& slot) {
  if (is_imported()) {
    if (level != Reclaim::kTrim) {
      bring_to_shelf(slot, level == Reclaim::kDrainAll);
      kind_.batch.store(Kind::kFirstBatch, std::memory_order_relaxed);
    }
    const uint64_t released = release_from_shelf(least_free_.load(std::memory_order_relaxed), slot);
    look_after_leaving(slot);
    return released * kind_.size;
  }
  const uint32_t before = kind_.slabs.load(std::memory_order_relaxed);
  if (level != Reclaim::kTrim) {
    engine_.kinds().gather(family_, slot, level == Reclaim::kDrainAll);
    kind_.batch.store(Kind::kFirstBatch, std::memory_order_relaxed);
  } else {
    engine_.kinds().tidy(family_, slot);
  }
  engine_.kinds().give_back_empties(kind_, least_free_.load(std::memory_order_relaxed), slot,
                                    [&](const Slab* slab) { finish(slab); });
  look_after_leaving(slot);
  const uint32_t after = kind_.slabs.load(std::memory_order_relaxed);
  return after < before ? bytes_of((before - after) * kind_.blocks) : 0;
}

// Calls fini for the objects of a slab whose memory goes.
template <class P>
void Pool<P>::finish(const Slab* slab) {
  if (functions_.fini == nullptr) return;
  const Address begin = engine_.kinds().begin_of(slab);
  for (uint32_t i = 0; i < slab->carved; ++i) {
    auto* object = reinterpret_cast<Object*>(begin + kind_.link + Bytes{i} * kind_.size);
    if (kind_.tag_of(object) != 0) functions_.fini(start_of(object), bytes_, functions_.argument);
  }
}

template <class P>
uint64_t Pool<P>::live(Slot& slot) {
  const auto count = engine_.kinds().count(kind_, slot);
  if (!is_imported()) return not_negative(count.live() - reserved());
  const uint64_t cached = count.waiting + shelf_count_.load(std::memory_order_relaxed) + reserved();
  return not_negative(budget_.used() / kind_.size - cached);
}

template <class P>
uint64_t Pool<P>::end(Slot& slot, bool& lost) {
  engine_.safepoints().make_calls_of(reinterpret_cast<void*>(family_.handle), slot);
  family_.its_handle().store(0, std::memory_order_relaxed);
  engine_.kinds().relabel(family_, 0);  // the place may soon be another pool's
  uint64_t used = 0;
  if (is_imported()) {
    bring_to_shelf(slot, true);
    release_from_shelf(0, slot);
    release(std::exchange(reserve_list_, nullptr));
    reserved_.store(0, std::memory_order_relaxed);
    used = budget_.used() / kind_.size;
  }
  lost = !engine_.kinds().dissolve(family_, slot, [&](const Kind&, const Slab* slab) {
    used += slab->used();
    finish(slab);
  });
  return not_negative(used - reserved());  // dissolve() has not seen lanes that are set aside
}

}  // namespace lanemalloc
