/// @file
/// Heaps as C++ objects: owned, as an allocator, as a memory resource. C++17; part of
/// lanemalloc.hpp. malloc.hpp tells of errors. heap.h tells what heaps are, what threads, signal
/// handlers and fork children may do with them, and where the idea comes from.
#ifndef LANEMALLOC_HEAP_HPP
#define LANEMALLOC_HEAP_HPP

#include <cerrno>

#include "lanemalloc/heap.h"
#include "lanemalloc/malloc.hpp"
#include "lanemalloc/safepoint.h"

namespace lane {

/// @cond internals
namespace detail {

inline void* heap_allocate(lane_heap* heap, std::size_t size, std::size_t alignment) {
  return or_bad_alloc(alignment <= kUsualAlignment
                          ? lane_heap_alloc(heap, size)
                          : lane_heap_alloc_aligned(heap, alignment, size));
}

inline void heap_deallocate(lane_heap* heap, void* memory, std::size_t size) noexcept {
  if (memory != nullptr) lane_heap_free_sized(heap, memory, size);
}

}  // namespace detail
/// @endcond

/// Owns a heap. When the Heap is destroyed, all its memory is freed at once, without the
/// destructors of objects in it.
class Heap {
 public:
  /// A heap without limits.
  Heap() : Heap(lane_heap_options{}) {}
  /// As lane_heap_create().
  explicit Heap(const lane_heap_options& options) : heap_(lane_heap_create(&options)) {
    if (heap_ != nullptr) return;
    if (errno == EINVAL)
      detail::throw_invalid_argument(
          "lane::Heap: the soft limit is above the limit, or has no function");
    if (errno == E2BIG)
      detail::throw_invalid_argument("lane::Heap: an option that the library lacks");
    detail::throw_bad_alloc();
  }
  /// name: for messages and statistics. limit: bytes; 0: none.
  explicit Heap(const char* name, std::size_t limit = 0) : Heap(with(name, limit)) {}
  /// Takes over what lane_heap_create() has made, or null.
  explicit Heap(lane_heap* heap) noexcept : heap_(heap) {}
  /// Takes the heap over. The other Heap then has none.
  Heap(Heap&& other) noexcept : heap_(other.release()) {}
  /// Takes the heap over and destroys the one that was here before. A move onto itself changes
  /// nothing.
  Heap& operator=(Heap&& other) noexcept {
    Heap taken(std::move(other));  // by way of a third: the other may be this one
    std::swap(heap_, taken.heap_);
    return *this;
  }
  /// As lane_heap_destroy().
  ~Heap() {
    if (heap_ != nullptr) lane_heap_destroy(heap_);
  }

  /// For the C functions. The Heap still owns it.
  lane_heap* get() const noexcept { return heap_; }
  /// Gives the heap to the caller, who destroys it.
  [[nodiscard]] lane_heap* release() noexcept { return std::exchange(heap_, nullptr); }

  /// An object. Size and alignment are in bytes; the alignment is a power of two.
  [[nodiscard]] void* allocate(std::size_t size, std::size_t alignment = detail::kUsualAlignment) {
    return detail::heap_allocate(heap_, size, alignment);
  }
  /// Frees an object. size: the size that was asked for, in bytes. Null does nothing.
  void deallocate(void* memory, std::size_t size) noexcept {
    detail::heap_deallocate(heap_, memory, size);
  }
  /// Frees the object once nobody reads it any more (safepoint.h). Returns as lane::free_later()
  /// does.
  [[nodiscard]] bool deallocate_later(void* memory, std::size_t size) noexcept {
    return lane_safepoint_heap_free_sized(heap_, memory, size) == 0;
  }
  /// As lane_heap_trim().
  std::size_t trim() noexcept { return lane_heap_trim(heap_); }
  /// As lane_heap_get_statistics().
  lane_heap_statistics statistics() const noexcept {
    lane_heap_statistics statistics;
    lane_heap_get_statistics(heap_, &statistics);
    return statistics;
  }

 private:
  static lane_heap_options with(const char* name, std::size_t limit) noexcept {
    lane_heap_options options{};
    options.name = name;
    options.limit = limit;
    return options;
  }

  lane_heap* heap_;
};

/// An allocator bound to a heap, which must live longer. Containers that are moved or swapped take
/// their heap along. A container that is assigned a copy stays in its own heap.
template <class T>
class HeapAllocator {
 public:
  using value_type = T;                                           ///< What is allocated.
  using propagate_on_container_move_assignment = std::true_type;  ///< The heap goes along.
  using propagate_on_container_swap = std::true_type;             ///< The heaps are swapped too.

  /// For a heap that the C functions have made.
  HeapAllocator(lane_heap* heap) noexcept : heap_(heap) {}  // NOLINT(google-explicit-constructor)
  /// For a heap.
  // NOLINTNEXTLINE(google-explicit-constructor)
  HeapAllocator(const Heap& heap) noexcept : heap_(heap.get()) {}
  /// For the same heap and another type.
  template <class U>
  HeapAllocator(const HeapAllocator<U>& other) noexcept
      : heap_(other.heap()) {}  // NOLINT(google-explicit-constructor)

  /// Memory for n objects.
  [[nodiscard]] T* allocate(std::size_t n) {
    return static_cast<T*>(detail::heap_allocate(heap_, detail::bytes_of<T>(n), alignof(T)));
  }
  /// Frees memory for n objects: the number that was asked for.
  void deallocate(T* memory, std::size_t n) noexcept {
    detail::heap_deallocate(heap_, memory, n * sizeof(T));
  }
  /// The heap that it is bound to.
  lane_heap* heap() const noexcept { return heap_; }

  /// Whether both are bound to one heap: then each may free what the other has allocated.
  template <class U>
  friend bool operator==(const HeapAllocator& a, const HeapAllocator<U>& b) noexcept {
    return a.heap() == b.heap();
  }
  /// Whether they are bound to two heaps.
  template <class U>
  friend bool operator!=(const HeapAllocator& a, const HeapAllocator<U>& b) noexcept {
    return a.heap() != b.heap();
  }

 private:
  lane_heap* heap_;
};

/// A heap as a memory resource. The heap must live longer. Any two of one heap are equal: what one
/// has allocated the other may free. Without RTTI (-fno-rtti) a resource is equal to itself only.
class HeapResource final : public std::pmr::memory_resource {
 public:
  /// For a heap that the C functions have made.
  explicit HeapResource(lane_heap* heap) noexcept : heap_(heap) {}
  /// For a heap.
  explicit HeapResource(const Heap& heap) noexcept : heap_(heap.get()) {}
  HeapResource(const HeapResource&) = delete;

 private:
  void* do_allocate(std::size_t size, std::size_t alignment) override {
    return detail::heap_allocate(heap_, size, alignment);
  }
  void do_deallocate(void* memory, std::size_t size, std::size_t) override {
    detail::heap_deallocate(heap_, memory, size);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
#if defined(__cpp_rtti)
    const auto* resource = dynamic_cast<const HeapResource*>(&other);
    return resource != nullptr && resource->heap_ == heap_;
#else
    return this == &other;
#endif
  }

  lane_heap* heap_;
};

}  // namespace lane

#endif
