/// @file
/// Readers and deferred frees as C++ objects. C++17; part of lanemalloc.hpp. safepoint.h
/// tells what they are, what threads, signal handlers and fork children may do with them, and where
/// the idea comes from.
#ifndef LANEMALLOC_SAFEPOINT_HPP
#define LANEMALLOC_SAFEPOINT_HPP

#include <cstdlib>
#include <type_traits>

#include "lanemalloc/safepoint.h"

namespace lane {

/// A registered reader; one for each thread. It begins offline and in no section. It must not be
/// destroyed in a section of its own: others would read it when it is gone, so that is
/// std::abort().
class Reader {
 public:
  /// Registers; name: for messages; cut after 23 bytes.
  explicit Reader(const char* name = nullptr) noexcept { lane_reader_register(&reader_, name); }
  Reader(const Reader&) = delete;
  /// Goes offline and unregisters.
  ~Reader() {
    offline();
    if (lane_reader_unregister(&reader_) != 0) std::abort();
  }

  /// As lane_reader_online().
  void online() noexcept { lane_reader_online(&reader_); }
  /// As lane_reader_offline().
  void offline() noexcept { lane_reader_offline(&reader_); }
  /// As lane_reader_quiescent().
  void quiescent() noexcept { lane_reader_quiescent(&reader_); }
  /// For the C functions. The Reader still owns it.
  lane_reader* get() noexcept { return &reader_; }

 private:
  lane_reader reader_{};
};

/// A read section from here to the end of the block. What is reachable in it is not freed before it
/// ends. Sections nest.
class ReadSection {
 public:
  /// Begins the section. The reader must be the thread's own, and must live longer.
  explicit ReadSection(Reader& reader) noexcept : reader_(reader) {
    lane_reader_enter(reader_.get());
  }
  ReadSection(const ReadSection&) = delete;
  /// Ends the section.
  ~ReadSection() { lane_reader_exit(reader_.get()); }

 private:
  Reader& reader_;
};

/// Frees an object of malloc later, as safepoint.h says. Returns false if the lane's share is full
/// and the caller may not wait, because it is in a read section or in a handler. Then nothing has
/// happened, and the object is still the caller's.
[[nodiscard]] inline bool free_later(void* object) noexcept {
  return lane_safepoint_free(object) == 0;
}
/// Deletes an object later, in a thread of the program. Returns as free_later() does.
template <class T>
[[nodiscard]] bool delete_later(T* object) noexcept {
  // NOLINTNEXTLINE(bugprone-sizeof-expression)
  static_assert(sizeof(T) > 0, "the type must be complete here");
  if (object == nullptr) return true;
  using Plain = std::remove_cv_t<T>;
  return lane_safepoint_call([](void* p) { delete static_cast<Plain*>(p); },
                             const_cast<Plain*>(object)) == 0;
}

}  // namespace lane

#endif
