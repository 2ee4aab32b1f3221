/// @file
/// Pools as C++ objects: typed, and as a memory resource. C++17; part of lanemalloc.hpp.
/// malloc.hpp tells of errors. pool.h tells what pools are, what threads, signal handlers and fork
/// children may do with them, and where the idea comes from.
#ifndef LANEMALLOC_POOL_HPP
#define LANEMALLOC_POOL_HPP

#include <cerrno>

#include "lanemalloc/malloc.hpp"
#include "lanemalloc/pool.h"
#include "lanemalloc/safepoint.h"

namespace lane {

/// What a Pool is asked for.
struct PoolOptions {
  const char* name = nullptr;          ///< for messages and statistics
  lane_padding padding = LANE_PACKED;  ///< how close objects may lie
  std::size_t limit = 0;               ///< objects that there may be; 0: no limit
  std::size_t reserve = 0;             ///< of these, for LANE_POOL_USE_RESERVE
};

/// @cond internals
namespace detail {

inline lane_pool* make_pool(std::size_t size, std::size_t alignment, const PoolOptions& options) {
  lane_pool_options all{};
  all.name = options.name;
  all.object_size = size;
  all.alignment = alignment;
  all.padding = options.padding;
  all.limit = options.limit;
  all.reserve = options.reserve;
  lane_pool* pool = lane_pool_create(&all);
  if (pool != nullptr) return pool;
  if (errno == EINVAL)
    throw_invalid_argument("lane::Pool: size, alignment or reserve out of range");
  if (errno == E2BIG) throw_invalid_argument("lane::Pool: an option that the library lacks");
  throw_bad_alloc();
}

}  // namespace detail
/// @endcond

/// Owns a pool of objects of one type. When the Pool is destroyed, objects that still live are gone
/// with it, without their destructors.
template <class T>
class Pool {
  static_assert(sizeof(T) <= std::size_t{512} << 10, "a pool's objects have at most 512 KiB");
  static_assert(alignof(T) <= std::size_t{64} << 10, "and are aligned to at most 64 KiB");

 public:
  /// Destroys an object in the pool that it came from.
  class Deleter {
   public:
    /// For null pointers only.
    Deleter() noexcept = default;
    /// For a pool, which must live longer.
    explicit Deleter(lane_pool* pool) noexcept : pool_(pool) {}
    /// As Pool::destroy().
    void operator()(T* object) const noexcept { Pool::destroy(pool_, object); }

   private:
    lane_pool* pool_ = nullptr;
  };
  using Pointer =
      std::unique_ptr<T, Deleter>;  ///< Owns an object of the pool, which must live longer.

  /// A pool without limits.
  Pool() : Pool(PoolOptions{}) {}
  /// As lane_pool_create(), for objects of T's size and alignment.
  explicit Pool(const PoolOptions& options)
      : pool_(detail::make_pool(sizeof(T), alignof(T), options)) {}
  /// Takes the pool over. The other Pool then has none.
  Pool(Pool&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)) {}
  /// Takes the pool over and destroys the one that was here before. A move onto itself changes
  /// nothing.
  Pool& operator=(Pool&& other) noexcept {
    Pool taken(std::move(other));  // by way of a third: the other may be this one
    std::swap(pool_, taken.pool_);
    return *this;
  }
  /// As lane_pool_destroy().
  ~Pool() {
    if (pool_ != nullptr) lane_pool_destroy(pool_);
  }

  /// An object. At the limit: std::bad_alloc.
  template <class... Arguments>
  [[nodiscard]] T* make(Arguments&&... arguments) {
    return build(lane_pool_alloc(pool_), std::forward<Arguments>(arguments)...);
  }
  /// The same with flags: LANE_POOL_WAIT, LANE_POOL_USE_RESERVE, LANE_POOL_ZERO.
  template <class... Arguments>
  [[nodiscard]] T* make_with(int flags, Arguments&&... arguments) {
    return build(lane_pool_alloc_with(pool_, flags), std::forward<Arguments>(arguments)...);
  }
  /// An object that is destroyed with its pointer.
  template <class... Arguments>
  [[nodiscard]] Pointer make_unique(Arguments&&... arguments) {
    return Pointer(make(std::forward<Arguments>(arguments)...), Deleter(pool_));
  }
  /// Calls the destructor and frees. Any thread may. Null does nothing.
  void destroy(T* object) noexcept { destroy(pool_, object); }
  /// Destroys the object once nobody reads it any more (safepoint.h). Returns as lane::free_later()
  /// does.
  [[nodiscard]] bool destroy_later(T* object) noexcept {
    static_assert(std::is_trivially_destructible_v<T>,
                  "a destructor would have to run later, and knows no pool");
    return lane_safepoint_pool_free(pool_, object) == 0;
  }

  /// For the C functions. The Pool still owns it.
  lane_pool* get() const noexcept { return pool_; }
  /// As lane_pool_prealloc(): makes memory for n more objects.
  void reserve(std::size_t n) {
    if (lane_pool_prealloc(pool_, n) != 0) detail::throw_bad_alloc();
  }
  /// As lane_pool_reclaim().
  std::size_t reclaim(lane_reclaim level) noexcept { return lane_pool_reclaim(pool_, level); }
  /// As lane_pool_get_statistics().
  lane_pool_statistics statistics() const noexcept {
    lane_pool_statistics statistics;
    lane_pool_get_statistics(pool_, &statistics);
    return statistics;
  }

 private:
  static void destroy(lane_pool* pool, T* object) noexcept {
    if (object == nullptr) return;
    object->~T();
    lane_pool_free(pool, object);
  }
  template <class... Arguments>
  T* build(void* memory, Arguments&&... arguments) {
    detail::or_bad_alloc(memory);
    detail::Guard guard([this, memory] { lane_pool_free(pool_, memory); });
    T* object = detail::construct<T>(memory, std::forward<Arguments>(arguments)...);
    guard.disarm();
    return object;
  }

  lane_pool* pool_;
};

/// A memory resource with a pool for requests of up to one size, such as the nodes of a list or a
/// map, and `upstream` for larger ones.
class PoolResource final : public std::pmr::memory_resource {
 public:
  /// size, alignment: in bytes, the largest that the pool serves. upstream must live longer.
  explicit PoolResource(std::size_t size, std::size_t alignment = detail::kUsualAlignment,
                        std::pmr::memory_resource* upstream = malloc_resource(),
                        const PoolOptions& options = PoolOptions{})
      : pool_(detail::make_pool(size, alignment, options)),
        size_(size),
        alignment_(alignment),
        upstream_(upstream) {}
  PoolResource(const PoolResource&) = delete;
  /// As lane_pool_destroy(). Memory that came from upstream stays.
  ~PoolResource() override { lane_pool_destroy(pool_); }

  /// For the C functions. The resource still owns it.
  lane_pool* get() const noexcept { return pool_; }
  /// Where larger requests go.
  std::pmr::memory_resource* upstream() const noexcept { return upstream_; }

 private:
  bool is_served(std::size_t size, std::size_t alignment) const noexcept {
    return size <= size_ && alignment <= alignment_;
  }
  void* do_allocate(std::size_t size, std::size_t alignment) override {
    return is_served(size, alignment) ? detail::or_bad_alloc(lane_pool_alloc(pool_))
                                      : upstream_->allocate(size, alignment);
  }
  void do_deallocate(void* memory, std::size_t size, std::size_t alignment) override {
    if (is_served(size, alignment)) {
      lane_pool_free(pool_, memory);
    } else {
      upstream_->deallocate(memory, size, alignment);
    }
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }

  lane_pool* pool_;
  std::size_t size_;
  std::size_t alignment_;
  std::pmr::memory_resource* upstream_;
};

}  // namespace lane

#endif
