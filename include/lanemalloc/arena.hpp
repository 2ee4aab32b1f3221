/// @file
/// Arenas as C++ objects: owned, with objects whose destructors run at the reset, and as a
/// memory resource. C++17; part of lanemalloc.hpp. malloc.hpp tells of errors. arena.h tells what
/// arenas are, what threads, signal handlers and fork children may do with them, and where the idea
/// comes from.
#ifndef LANEMALLOC_ARENA_HPP
#define LANEMALLOC_ARENA_HPP

#include <string_view>

#include "lanemalloc/arena.h"
#include "lanemalloc/malloc.hpp"

namespace lane {

/// @cond internals
namespace detail {

inline void* arena_allocate(lane_arena* arena, std::size_t size, std::size_t alignment) {
  return or_bad_alloc(alignment <= kUsualAlignment
                          ? lane_arena_alloc(arena, size)
                          : lane_arena_alloc_aligned(arena, alignment, size));
}

}  // namespace detail
/// @endcond

/// Owns an arena. An Arena that was moved from is empty and may be used.
class Arena {
 public:
  /// An empty arena with blocks of 8 KiB.
  Arena() noexcept = default;
  /// block_size: bytes; 256 .. 512 KiB.
  explicit Arena(std::size_t block_size) {
    if (lane_arena_init(&arena_, block_size) != 0)
      detail::throw_invalid_argument("lane::Arena: blocks have 256 bytes to 512 KiB");
  }
  /// Takes the pieces over.
  Arena(Arena&& other) noexcept : arena_(std::exchange(other.arena_, lane_arena{})) {}
  /// Takes the pieces over and gives back what was here before.
  Arena& operator=(Arena&& other) noexcept {
    if (this != &other) {
      lane_arena_destroy(&arena_);
      arena_ = std::exchange(other.arena_, lane_arena{});
    }
    return *this;
  }
  /// Calls the destructors of the objects, newest first, and gives everything back.
  ~Arena() { lane_arena_destroy(&arena_); }

  /// A piece. Size and alignment are in bytes; the alignment is a power of two.
  [[nodiscard]] void* allocate(std::size_t size, std::size_t alignment = detail::kUsualAlignment) {
    return detail::arena_allocate(&arena_, size, alignment);
  }
  /// An object. Its destructor is called at the reset, newest first, unless it is trivial.
  template <class T, class... Arguments>
  T* make(Arguments&&... arguments) {
    void* memory = allocate(sizeof(T), alignof(T));
    detail::Guard guard([this, memory] { lane_arena_rollback(&arena_, memory, sizeof(T)); });
    T* object = detail::construct<T>(memory, std::forward<Arguments>(arguments)...);
    if constexpr (!std::is_trivially_destructible_v<T>) {
      const auto end = [](void* p) noexcept { static_cast<T*>(p)->~T(); };
      if (lane_arena_at_reset(&arena_, end, object) != 0) {
        object->~T();
        detail::throw_bad_alloc();
      }
    }
    guard.disarm();
    return object;
  }
  /// n objects, value-initialized, of a type with a trivial destructor.
  template <class T>
  T* make_array(std::size_t n) {
    static_assert(std::is_trivially_destructible_v<T>,
                  "an array's destructors would not be called");
    const std::size_t size = detail::bytes_of<T>(n);
    void* memory = allocate(size, alignof(T));
    detail::Guard guard([this, memory, size] { lane_arena_rollback(&arena_, memory, size); });
    T* array = static_cast<T*>(memory);
    std::uninitialized_value_construct_n(array, n);
    guard.disarm();
    return array;
  }
  /// A copy of the text, with a final zero.
  std::string_view copy(std::string_view text) {
    char* memory = static_cast<char*>(allocate(text.size() + 1, 1));
    text.copy(memory, text.size());
    memory[text.size()] = '\0';
    return {memory, text.size()};
  }

  /// As lane_arena_reset().
  void reset() noexcept { lane_arena_reset(&arena_); }
  /// Bytes that the arena holds.
  std::size_t bytes() const noexcept { return lane_arena_bytes(&arena_); }
  /// The place where the arena is now, to return to.
  lane_arena_checkpoint mark() const noexcept { return lane_arena_mark(&arena_); }
  /// Gives back everything since then, as lane_arena_rewind().
  void rewind(const lane_arena_checkpoint& checkpoint) noexcept {
    lane_arena_rewind(&arena_, checkpoint);
  }
  /// For the C functions. The Arena still owns it.
  lane_arena* get() noexcept { return &arena_; }

 private:
  lane_arena arena_{};
};

/// When it ends, gives back everything that the arena was used for in its lifetime.
class ArenaScope {
 public:
  /// Begins here. The arena must live longer.
  explicit ArenaScope(Arena& arena) noexcept : arena_(arena), checkpoint_(arena.mark()) {}
  ArenaScope(const ArenaScope&) = delete;
  /// As Arena::rewind() to the place where it began.
  ~ArenaScope() { arena_.rewind(checkpoint_); }

 private:
  Arena& arena_;
  lane_arena_checkpoint checkpoint_;
};

/// An arena as a memory resource. The last piece is given back when it is deallocated, any other
/// piece at the reset. Containers must end before the reset. The arena must live longer, and must
/// not move.
class ArenaResource final : public std::pmr::memory_resource {
 public:
  /// For an arena that the C functions have made.
  explicit ArenaResource(lane_arena* arena) noexcept : arena_(arena) {}
  /// For an arena.
  explicit ArenaResource(Arena& arena) noexcept : arena_(arena.get()) {}
  ArenaResource(const ArenaResource&) = delete;

 private:
  void* do_allocate(std::size_t size, std::size_t alignment) override {
    return detail::arena_allocate(arena_, size, alignment);
  }
  void do_deallocate(void* memory, std::size_t size, std::size_t) override {
    lane_arena_rollback(arena_, memory, size);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }

  lane_arena* arena_;
};

}  // namespace lane

#endif
