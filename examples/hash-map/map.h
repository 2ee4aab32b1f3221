// Map: a hash map without locks, from 64-bit keys to values. One list holds all nodes, sorted by
// the bits of the keys' hashes from the lowest up. The beginning of each bucket lies in the same
// list, so that a lookup starts near its key. Doubling the number of buckets splits each bucket in
// two where it lies: growing adds beginnings and moves no node.
// Called by: hash_map.cpp. Locking: none. Readers write nothing but their own reader's words.
// Writers make each change of the list by one compare-exchange, and are in a read section
// meanwhile, since they read, too.
//
//   segments:  | 0 1 .. 15 |   | 16 .. 31 |   | 32 .. 63 |   beginnings of buckets, which stay
//                v
//   list:       (0) -> 8* -> 12* -> (2) -> (1) -> 5* -> (3) -> 7*
//
// The lowest bit of a node's link says that the node is out of the list: its link changes no more.
// The writer that takes a node out (remove, put) marks it, which is the step that counts. Any
// writer that comes by unlinks a marked node. The one that has unlinked it defers the free, after
// its section, since a free that finds too many others waiting may have to wait for the readers.
// Replacing marks the old node and puts the new one behind it in one step.
//
// Source: Shalev and Shavit, Split-Ordered Lists (2006); Michael's list (2002).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "memory.h"

struct Value {
  uint64_t words[4];
};

template <class Memory>
class Map {
 public:
  explicit Map(Memory& memory) : memory_(memory) {
    segments_[0] = make_segment(kFirst);
    segments_[0].load()[0].state = kReady;
  }
  Map(const Map&) = delete;
  // No thread uses the map any more.
  ~Map() {
    for (Link* at = &begin(0); at != nullptr;) {
      Link* next = pointer(at->link.load(std::memory_order_relaxed));
      if (is_of_node(at)) memory_.free(static_cast<Node*>(at));
      at = next;
    }
    for (auto& segment : segments_) std::free(segment.load(std::memory_order_relaxed));
  }

  // Calls see(value) if the key is there. The value stays as it is until see() returns.
  template <class See>
  bool find(uint64_t key, lane::Reader& reader, See see) const {
    lane::ReadSection section(reader);
    const uint64_t hashed = hash(key), order = order_of(hashed);
    const Link* at = nearest(hashed & (buckets() - 1));
    do {
      // acquire: sees the linked node whole. Pairs with [change].
      at = pointer(at->link.load(std::memory_order_acquire));
      if (at == nullptr || at->order > order) return false;
      // A node that is out is passed over: if it was replaced, the new one is behind it.
    } while (at->order < order || static_cast<const Node*>(at)->key != key ||
             is_marked(at->link.load(std::memory_order_relaxed)));
    see(static_cast<const Node*>(at)->value);
    return true;
  }

  // True if the key was not there before.
  bool put(uint64_t key, const Value& value, lane::Reader& reader) {
    Node* retired = nullptr;
    bool is_new;
    {
      lane::ReadSection section(reader);
      const uint64_t hashed = hash(key);
      void* memory = memory_.allocate();
      if (memory == nullptr) fail("no memory");
      Node* fresh = new (memory) Node(order_of(hashed), key, value);
      for (;;) {
        const Place place = search(hashed, key, retired);
        is_new = place.found == nullptr;
        const uintptr_t behind =
            is_new ? place.next : place.found->link.load(std::memory_order_acquire);
        if (is_marked(behind)) continue;
        fresh->link.store(behind, std::memory_order_relaxed);
        std::atomic<uintptr_t>& link = is_new ? *place.link : place.found->link;
        if (change(link, behind, reinterpret_cast<uintptr_t>(fresh) | (is_new ? 0 : kMark))) break;
      }
      if (!is_new) search(hashed, key, retired);  // unlinks the old one
    }
    free_later(retired);
    if (is_new && count_.fetch_add(1, std::memory_order_relaxed) >= buckets()) grow();
    return is_new;
  }

  // True if the key was there.
  bool remove(uint64_t key, lane::Reader& reader) {
    Node* retired = nullptr;
    Node* old;
    {
      lane::ReadSection section(reader);
      const uint64_t hashed = hash(key);
      while ((old = search(hashed, key, retired).found) != nullptr) {
        const uintptr_t behind = old->link.load(std::memory_order_acquire);
        if (!is_marked(behind) && change(old->link, behind, behind | kMark)) break;
      }
      if (old != nullptr) search(hashed, key, retired);  // unlinks it
    }
    free_later(retired);
    if (old != nullptr) count_.fetch_sub(1, std::memory_order_relaxed);
    return old != nullptr;
  }

  size_t count() const { return count_.load(std::memory_order_relaxed); }
  size_t buckets() const { return buckets_.load(std::memory_order_acquire); }
  uint64_t failed_changes() const { return failed_changes_.load(std::memory_order_relaxed); }

 private:
  static constexpr uintptr_t kMark = 1;
  static constexpr size_t kFirst = 16;
  static constexpr int kSegments = 40;

  struct Link {
    std::atomic<uintptr_t> link{0};  // the next one; its lowest bit: this one is out
    uint64_t order = 0;              // odd for keys, even for beginnings
  };
  struct Node : Link {
    Node(uint64_t o, uint64_t k, const Value& v) : key(k), value(v) { this->order = o; }
    uint64_t key;
    Node* retired = nullptr;  // a list of the thread that has unlinked it
    Value value;
  };
  static_assert(sizeof(Node) == Memory::kNodeSize);
  enum State : uint32_t { kNew, kTaken, kReady };
  struct Begin : Link {
    std::atomic<uint32_t> state;  // whether it is in the list, or a writer is about to put it there
  };
  struct Place {
    std::atomic<uintptr_t>* link;
    uintptr_t next;  // what the link held: the first at or behind the order searched for
    Node* found;     // that one, if it has the key
  };

  static bool is_marked(uintptr_t link) { return (link & kMark) != 0; }
  static Link* pointer(uintptr_t link) { return reinterpret_cast<Link*>(link & ~kMark); }
  static bool is_of_node(const Link* at) { return (at->order & 1) != 0; }

  static uint64_t reversed(uint64_t x) {
    x = ((x >> 1) & 0x5555555555555555) | ((x & 0x5555555555555555) << 1);
    x = ((x >> 2) & 0x3333333333333333) | ((x & 0x3333333333333333) << 2);
    x = ((x >> 4) & 0x0F0F0F0F0F0F0F0F) | ((x & 0x0F0F0F0F0F0F0F0F) << 4);
    return __builtin_bswap64(x);
  }
  static uint64_t hash(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
  }
  static uint64_t order_of(uint64_t hashed) { return reversed(hashed) | 1; }

  bool change(std::atomic<uintptr_t>& link, uintptr_t expected, uintptr_t wanted) {
    // release: the linked node is whole. Pairs with the loads of links [change].
    if (link.compare_exchange_strong(expected, wanted, std::memory_order_acq_rel,
                                     std::memory_order_relaxed))
      return true;
    failed_changes_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }

  // --- Buckets.
  static Begin* make_segment(size_t size) {
    void* segment = std::calloc(size, sizeof(Begin));
    if (segment == nullptr) fail("no memory");
    return static_cast<Begin*>(segment);
  }
  // Segment i > 0 holds the buckets from kFirst << (i - 1) up.
  static int segment_of(size_t bucket) {
    return bucket < kFirst ? 0 : 60 - __builtin_clzll(bucket);
  }
  Begin& begin(size_t bucket) const {
    const int i = segment_of(bucket);
    // relaxed: a thread that knows of the bucket has read buckets_, by an acquire, after the
    // segment was put there.
    return segments_[i].load(
        std::memory_order_relaxed)[i == 0 ? bucket : bucket - (kFirst << (i - 1))];
  }
  // The place where the list is entered for a bucket: its beginning or, if that is not in the list
  // yet, the beginning of a bucket that it is a part of.
  Link* nearest(size_t bucket) const {
    for (;; bucket &= ~(size_t{1} << (63 - __builtin_clzll(bucket)))) {
      Begin& it = begin(bucket);
      // acquire: its link is set. Pairs with [ready].
      if (it.state.load(std::memory_order_acquire) == kReady) return &it;
    }
  }
  // For writers. Puts the beginning into the list, unless another writer has or is about to.
  Link* begin_or_nearest(size_t bucket, Node*& retired) {
    Begin& it = begin(bucket);
    uint32_t state = it.state.load(std::memory_order_acquire);
    if (state == kReady) return &it;
    if (state == kNew &&
        it.state.compare_exchange_strong(state, kTaken, std::memory_order_relaxed)) {
      it.order = reversed(bucket);
      Place place;
      do {
        place = search_from(nearest(bucket), it.order, 0, retired);
        it.link.store(place.next, std::memory_order_relaxed);
      } while (
          !change(*place.link, place.next, reinterpret_cast<uintptr_t>(static_cast<Link*>(&it))));
      it.state.store(kReady, std::memory_order_release);  // [ready]
    }
    return nearest(bucket);
  }
  // Doubles the number of buckets, unless another writer has just done so.
  void grow() {
    size_t size = buckets();
    const int i = segment_of(size);
    if (i == kSegments || count() < size || segments_[i].load(std::memory_order_relaxed) != nullptr)
      return;
    Begin* segment = make_segment(size);
    Begin* none = nullptr;
    if (!segments_[i].compare_exchange_strong(none, segment, std::memory_order_relaxed))
      return std::free(segment);
    buckets_.store(2 * size, std::memory_order_release);
  }

  // --- The list.
  Place search(uint64_t hashed, uint64_t key, Node*& retired) {
    Link* from = begin_or_nearest(hashed & (buckets() - 1), retired);
    return search_from(from, order_of(hashed), key, retired);
  }
  // Unlinks marked nodes on its way. Starts at the beginning of a bucket, which is never marked.
  Place search_from(Link* from, uint64_t order, uint64_t key, Node*& retired) {
    std::atomic<uintptr_t>* link = &from->link;
    for (;;) {
      const uintptr_t next = link->load(std::memory_order_acquire);
      Link* at = pointer(next);
      if (is_marked(next)) {  // the one before has just been taken out
        link = &from->link;
        continue;
      }
      if (at == nullptr) return {link, next, nullptr};
      const uintptr_t behind = at->link.load(std::memory_order_acquire);
      if (is_marked(behind)) {
        if (change(*link, next, behind & ~kMark)) {
          static_cast<Node*>(at)->retired = retired;
          retired = static_cast<Node*>(at);
        }
        continue;
      }
      if (at->order > order) return {link, next, nullptr};
      if (at->order == order && static_cast<Node*>(at)->key == key)
        return {link, next, static_cast<Node*>(at)};
      link = &at->link;
    }
  }
  // Called outside of sections.
  void free_later(Node* retired) {
    while (retired != nullptr) {
      Node* node = retired;
      retired = node->retired;
      if (!memory_.free_later(node)) fail("a free is refused outside of sections");
    }
  }

  Memory& memory_;
  std::atomic<Begin*> segments_[kSegments]{};
  std::atomic<size_t> buckets_{kFirst};
  std::atomic<size_t> count_{0};
  std::atomic<uint64_t> failed_changes_{0};
};
