// lane::Heap, lane::HeapAllocator and lane::HeapResource: with every container, and by themselves.
#include <lanemalloc/heap.hpp>

#include "containers.h"
#include "memory.h"

namespace {

struct OfHeap {
  lane_heap* heap;
  template <class T>
  lane::HeapAllocator<T> of() const {
    return heap;
  }
};

static_assert(std::is_nothrow_move_constructible_v<lane::Heap> &&
              !std::is_copy_constructible_v<lane::Heap>);

void containers() {
  expect_no_leaks([] {
    lane::Heap heap("containers");
    use_all_containers(OfHeap{heap.get()});
    CHECK(heap.statistics().live_objects == 0);
    lane::HeapResource resource(heap);
    // Two resources of one heap are equal; those of two heaps are not, nor is any other resource.
    lane::Heap second;
    const lane::HeapResource other(heap), of_second(second);
    CHECK(resource == other && other == resource && !(resource == of_second));
    CHECK(!(resource == *lane::malloc_resource()) && !(*lane::malloc_resource() == resource));
    use_all_containers(OfResource{&resource});
    CHECK(heap.statistics().live_objects == 0);
  });
}

// Containers that are moved or swapped take their heap along; a container that is assigned a copy
// stays in its own heap.
void containers_of_two_heaps() {
  using Vector = std::vector<int, lane::HeapAllocator<int>>;
  lane::Heap one("one"), two("two");
  CHECK(lane::HeapAllocator<int>(one) == lane::HeapAllocator<char>(one) &&
        lane::HeapAllocator<int>(one) != lane::HeapAllocator<int>(two));
  Vector a(100, 1, one), b(200, 2, two);
  const int* place = a.data();
  swap(a, b);
  CHECK(b.data() == place && b.get_allocator().heap() == one.get() &&
        a.get_allocator().heap() == two.get());
  a = b;
  CHECK(a == b && a.get_allocator().heap() == two.get());
  a = std::move(b);
  CHECK(a.data() == place && a.get_allocator().heap() == one.get());
  Vector copy(a);
  CHECK(copy.get_allocator().heap() == one.get());
  Vector elsewhere(std::move(a), two);
  CHECK(elsewhere.get_allocator().heap() == two.get() && elsewhere.data() != place &&
        elsewhere == copy);
}

void owned_heaps() {
  expect_no_leaks([] {
    lane::Heap heap("owned", std::size_t{1} << 20);
    void* p = heap.allocate(100);
    CHECK(heap.statistics().live_objects == 1);
    void* page = heap.allocate(10, 4096);
    CHECK(reinterpret_cast<std::uintptr_t>(page) % 4096 == 0);
    heap.deallocate(page, 10);
    heap.deallocate(p, 100);
    heap.deallocate(nullptr, 0);
    CHECK_THROWS(std::bad_alloc, (void)heap.allocate(std::size_t{2} << 20));
    CHECK_THROWS(std::bad_array_new_length,
                 (void)lane::HeapAllocator<int>(heap).allocate(hidden(SIZE_MAX / 2)));
    // A container that meets the limit stays as it was.
    std::vector<int, lane::HeapAllocator<int>> vector(1000, 7, heap);
    CHECK_THROWS(std::bad_alloc, vector.resize(1 << 20));
    CHECK(vector.size() == 1000 && vector.back() == 7);
    lane::Heap moved(std::move(heap));
    // NOLINTNEXTLINE(bugprone-use-after-move)
    CHECK(heap.get() == nullptr && moved.statistics().live_objects == 1);
    lane::Heap& same = moved;
    moved = std::move(same);
    CHECK(moved.get() != nullptr && moved.statistics().live_objects == 1);
    moved = lane::Heap();
    // The vector's memory has gone with the heap
    new (&vector) std::vector<int, lane::HeapAllocator<int>>(moved);
    lane_heap* taken = moved.release();
    lane::Heap adopted(taken);
    CHECK(adopted.get() == taken && moved.get() == nullptr);
    moved = std::move(adopted);
  });
  lane_heap_options wrong{};
  wrong.limit = 1;
  wrong.soft_limit = 2;
  CHECK_THROWS(std::invalid_argument, lane::Heap{wrong});
}

}  // namespace

int main() {
  containers();
  containers_of_two_heaps();
  owned_heaps();
  std::puts("ok");
  return 0;
}
