// lane::Reader, lane::ReadSection and the deferred frees.
#include <atomic>
#include <lanemalloc/heap.hpp>
#include <lanemalloc/malloc.hpp>
#include <lanemalloc/pool.hpp>
#include <lanemalloc/safepoint.hpp>
#include <thread>

#include "memory.h"

namespace {

std::atomic<int> alive{0};
struct Node {
  int value;
  explicit Node(int v) : value(v) { alive++; }
  Node(const Node&) = delete;
  ~Node() {
    value = -1;
    alive--;
  }
};

// A writer replaces the node that readers look at; the readers never see a destroyed one.
void readers_see_what_lives() {
  std::atomic<Node*> shared{new Node(0)};
  std::atomic<bool> stop{false};
  std::thread readers[2];
  for (std::thread& thread : readers)
    thread = std::thread([&] {
      lane::Reader reader("test");
      while (!stop.load()) {
        lane::ReadSection section(reader);
        lane::ReadSection nested(reader);
        const Node* node = shared.load();
        for (int i = 0; i < 20; i++) CHECK(node->value >= 0);
      }
    });
  for (int i = 1; i < 20000; i++) {
    Node* old = shared.exchange(new Node(i));
    while (!lane::delete_later(old)) std::this_thread::yield();
  }
  stop = true;
  for (std::thread& thread : readers) thread.join();
  lane_safepoint_wait();
  CHECK(alive == 1);
  delete shared.load();
}

void everything_is_freed_at_a_stop() {
  expect_no_leaks([] {
    CHECK(lane::free_later(lane::detail::allocate(100, 16)));
    CHECK(lane::free_later(nullptr));
    CHECK(lane::delete_later(static_cast<Node*>(nullptr)));
    CHECK(lane::delete_later(static_cast<const Node*>(new Node(1))));
    while (lane_safepoint() != 0) continue;
    CHECK(alive == 0);
  });
}

// Objects are in use until they are freed, and waiting frees are made before the heap or pool is
// gone.
void heaps_and_pools_free_later() {
  expect_no_leaks([] {
    lane::Heap heap("later"), gone("gone");
    lane::Pool<int> pool;
    {
      lane::Pool<int> gone_too;
      for (int i = 0; i < 100; i++) {
        CHECK(heap.deallocate_later(heap.allocate(100), 100));
        CHECK(gone.deallocate_later(gone.allocate(100000), 100000));
        CHECK(pool.destroy_later(pool.make(i)));
        CHECK(gone_too.destroy_later(gone_too.make(i)));
      }
      CHECK(heap.deallocate_later(nullptr, 0) && pool.destroy_later(nullptr));
      CHECK(heap.statistics().live_objects == 100 && pool.statistics().live == 100);
    }
    gone = lane::Heap("another");
    while (lane_safepoint() != 0) continue;
    CHECK(heap.statistics().live_objects == 0 && pool.statistics().live == 0);
  });
}

}  // namespace

int main() {
  alive = 0;
  everything_is_freed_at_a_stop();
  heaps_and_pools_free_later();
  readers_see_what_lives();
  std::puts("ok");
  return 0;
}
