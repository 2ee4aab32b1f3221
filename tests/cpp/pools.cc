// lane::Pool and lane::PoolResource: with every container, and by themselves.
#include <lanemalloc/pool.hpp>

#include "containers.h"
#include "memory.h"

namespace {

int alive;
struct Counted {
  int value;
  explicit Counted(int v) : value(v) {
    if (v < 0) throw v;
    alive++;
  }
  Counted(const Counted&) = delete;
  ~Counted() { alive--; }
};
struct Pair {
  int a, b;
};
struct Incomplete;
using PoolOfIncomplete = lane::Pool<Incomplete>*;  // may be named before the type is complete

static_assert(std::is_nothrow_move_constructible_v<lane::Pool<int>> &&
              !std::is_copy_constructible_v<lane::Pool<int>>);

void containers() {
  expect_no_leaks([] {
    for (std::size_t size : {std::size_t{16}, std::size_t{64}, std::size_t{4096}}) {
      lane::PoolResource resource(size);
      use_all_containers(OfResource{&resource});
      lane_pool_statistics statistics;
      lane_pool_get_statistics(resource.get(), &statistics);
      CHECK(statistics.live == 0);
      void* small = resource.allocate(size, 16);
      void* large = resource.allocate(size + 1, 16);
      void* aligned = resource.allocate(1, 64);
      CHECK(reinterpret_cast<std::uintptr_t>(aligned) % 64 == 0);
      lane_pool_get_statistics(resource.get(), &statistics);
      CHECK(statistics.live == 1);
      resource.deallocate(small, size, 16);
      resource.deallocate(large, size + 1, 16);
      resource.deallocate(aligned, 1, 64);
    }
  });
}

void objects() {
  expect_no_leaks([] {
    lane::PoolOptions options;
    options.name = "counted";
    options.padding = LANE_OWN_LINE;
    options.limit = 3;
    lane::Pool<Counted> pool(options);
    Counted* a = pool.make(1);
    {
      auto b = pool.make_unique(2);
      lane::Pool<Counted>::Pointer none;
      CHECK(alive == 2 && b->value == 2 && none == nullptr);
      CHECK(reinterpret_cast<std::uintptr_t>(a) / 64 !=
            reinterpret_cast<std::uintptr_t>(b.get()) / 64);
      // An exception from a constructor is passed on, and the object goes back.
      CHECK_THROWS(int, (void)pool.make(-1));
      CHECK(pool.statistics().live == 2);
      Counted* c = pool.make_with(0, 3);
      CHECK_THROWS(std::bad_alloc, (void)pool.make(4));
      pool.destroy(c);
    }
    CHECK(alive == 1 && pool.statistics().live == 1);
    pool.destroy(nullptr);
    lane::Pool<Counted> moved(std::move(pool));
    CHECK(pool.get() == nullptr);  // NOLINT(bugprone-use-after-move)
    moved.destroy(a);
    CHECK(alive == 0);
    lane::Pool<Counted>& same = moved;
    moved = std::move(same);
    CHECK(moved.get() != nullptr);
    moved.destroy(moved.make(5));
    moved = lane::Pool<Counted>();
    moved.reserve(10);
    CHECK(moved.statistics().cached >= 10);

    lane::Pool<Pair> pairs;
    Pair* pair = pairs.make(1, 2);
    CHECK(pair->a == 1 && pair->b == 2);
    pairs.destroy(pair);
    lane::Pool<Aligned> aligned;
    for (int i = 0; i < 10; i++) CHECK(aligned.make(i)->is_aligned());
  });
  lane::PoolOptions wrong;
  wrong.limit = 1;
  wrong.reserve = 2;
  CHECK_THROWS(std::invalid_argument, lane::Pool<int>{wrong});
}

}  // namespace

int main() {
  containers();
  objects();
  std::puts("ok");
  return 0;
}
