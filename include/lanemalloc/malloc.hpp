/// @file
/// malloc as an allocator of standard containers and as a memory resource. C++17; part of
/// lanemalloc.hpp.
///
/// The memory is malloc's: with liblanemalloc.so or .a linked or preloaded, lanemalloc's. A program
/// that links liblanemalloc_prefixed.a defines LANEMALLOC_PREFIXED, and its containers use
/// lane_malloc.
///
/// For everything in lane::, where not said otherwise:
/// - sizes: in bytes; memory is aligned to 16 bytes, or to the type's alignment if that is more,
///   and belongs to the caller until it is deallocated
/// - errors: std::bad_alloc if there is no memory, std::bad_array_new_length if a count overflows,
///   std::invalid_argument for an invalid argument; with -fno-exceptions each is std::abort(). A
///   function that throws has changed nothing, and a constructor that throws gives its memory back
/// - threads, signals, fork: as the C header of the same name says; for this header, lanemalloc.h
///
/// Source: the C++ standard's allocators and memory resources.
#ifndef LANEMALLOC_MALLOC_HPP
#define LANEMALLOC_MALLOC_HPP

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <memory_resource>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "lanemalloc/lanemalloc.h"

/// What lanemalloc has for C++.
namespace lane {

/// @cond internals
namespace detail {

inline constexpr std::size_t kUsualAlignment = 16;

[[noreturn]] inline void throw_bad_alloc() {
#if defined(__cpp_exceptions)
  throw std::bad_alloc();
#else
  std::abort();
#endif
}

[[noreturn]] inline void throw_bad_array_new_length() {
#if defined(__cpp_exceptions)
  throw std::bad_array_new_length();
#else
  std::abort();
#endif
}

[[noreturn]] inline void throw_invalid_argument([[maybe_unused]] const char* what) {
#if defined(__cpp_exceptions)
  throw std::invalid_argument(what);
#else
  std::abort();
#endif
}

inline void* or_bad_alloc(void* memory) {
  if (memory == nullptr) throw_bad_alloc();
  return memory;
}

template <class T>
std::size_t bytes_of(std::size_t n) {
  if (n > SIZE_MAX / sizeof(T)) throw_bad_array_new_length();
  return n * sizeof(T);
}

// Undoes something unless all went well.
template <class Undo>
class Guard {
 public:
  explicit Guard(Undo undo) noexcept : undo_(undo) {}
  Guard(const Guard&) = delete;
  ~Guard() {
    if (armed_) undo_();
  }
  void disarm() noexcept { armed_ = false; }

 private:
  Undo undo_;
  bool armed_ = true;
};

// An object in memory that is there; aggregates by their members.
template <class T, class... Arguments>
T* construct(void* memory, Arguments&&... arguments) {
  if constexpr (std::is_constructible_v<T, Arguments...>) {
    return ::new (memory) T(std::forward<Arguments>(arguments)...);
  } else {
    return ::new (memory) T{std::forward<Arguments>(arguments)...};
  }
}

// Null: no memory.
inline void* allocate(std::size_t size, std::size_t alignment) noexcept {
#if defined(LANEMALLOC_PREFIXED)
  return alignment <= kUsualAlignment ? lane_malloc(size) : lane_aligned_alloc(alignment, size);
#else
  return alignment <= kUsualAlignment ? std::malloc(size) : std::aligned_alloc(alignment, size);
#endif
}

inline void deallocate(void* memory) noexcept {
#if defined(LANEMALLOC_PREFIXED)
  lane_free(memory);
#else
  std::free(memory);
#endif
}

}  // namespace detail
/// @endcond

/// An allocator without state: any two are equal.
template <class T>
class Allocator {
 public:
  using value_type = T;                    ///< What is allocated.
  using is_always_equal = std::true_type;  ///< Any may free what any has allocated.
  using propagate_on_container_move_assignment = std::true_type;  ///< Makes no difference.

  /// All of them are equal.
  constexpr Allocator() noexcept = default;
  /// The same, for another type.
  template <class U>
  constexpr Allocator(const Allocator<U>&) noexcept {}  // NOLINT(google-explicit-constructor)

  /// Memory for n objects.
  [[nodiscard]] T* allocate(std::size_t n) {
    return static_cast<T*>(
        detail::or_bad_alloc(detail::allocate(detail::bytes_of<T>(n), alignof(T))));
  }
  /// Frees the memory.
  void deallocate(T* memory, std::size_t) noexcept { detail::deallocate(memory); }

  /// Always true.
  template <class U>
  friend constexpr bool operator==(const Allocator&, const Allocator<U>&) noexcept {
    return true;
  }
  /// Always false.
  template <class U>
  friend constexpr bool operator!=(const Allocator&, const Allocator<U>&) noexcept {
    return false;
  }
};

/// malloc as a memory resource; one for all, never destroyed.
inline std::pmr::memory_resource* malloc_resource() noexcept {
  class Resource final : public std::pmr::memory_resource {
    void* do_allocate(std::size_t size, std::size_t alignment) override {
      return detail::or_bad_alloc(detail::allocate(size, alignment));
    }
    void do_deallocate(void* memory, std::size_t, std::size_t) override {
      detail::deallocate(memory);
    }
    bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
      return this == &other;
    }
  };
  alignas(Resource) static unsigned char memory[sizeof(Resource)];
  static Resource* const kResource = ::new (memory) Resource;
  return kResource;
}

}  // namespace lane

#endif
