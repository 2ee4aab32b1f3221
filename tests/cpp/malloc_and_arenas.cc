// lane::Allocator, lane::malloc_resource(), lane::Arena and lane::ArenaResource: with every
// container, and by themselves.
#include <lanemalloc/arena.hpp>
#include <string>

#include "containers.h"
#include "memory.h"

// The program is linked with --wrap, so a registration can fail.
static bool no_registrations;
extern "C" int __real_lane_arena_at_reset(lane_arena*, void (*)(void*), void*);
extern "C" int __wrap_lane_arena_at_reset(lane_arena* arena, void (*end)(void*), void* object) {
  return no_registrations ? ENOMEM : __real_lane_arena_at_reset(arena, end, object);
}

namespace {

struct OfMalloc {
  template <class T>
  lane::Allocator<T> of() const {
    return {};
  }
};

static_assert(std::is_empty_v<lane::Allocator<int>>);
static_assert(std::allocator_traits<lane::Allocator<int>>::is_always_equal::value);
static_assert(std::is_nothrow_move_constructible_v<lane::Arena> &&
              !std::is_copy_constructible_v<lane::Arena>);

void allocators() {
  expect_no_leaks([] { use_all_containers(OfMalloc{}); });
  expect_no_leaks([] { use_all_containers(OfResource{lane::malloc_resource()}); });
  CHECK(lane::malloc_resource() == lane::malloc_resource());
  CHECK(lane::Allocator<int>() == lane::Allocator<double>() &&
        !(lane::Allocator<int>() != lane::Allocator<char>()));
  std::vector<int, lane::Allocator<int>> vector(10, 1);
  CHECK_THROWS(std::length_error, vector.reserve(SIZE_MAX / 2));
  CHECK(vector.size() == 10 && vector[9] == 1);
  CHECK_THROWS(std::bad_array_new_length,
               (void)lane::Allocator<int>().allocate(hidden(SIZE_MAX / 4 + 2)));
  CHECK_THROWS(std::bad_alloc, (void)lane::Allocator<int>().allocate(hidden(SIZE_MAX / 8)));
  CHECK_THROWS(std::bad_alloc, (void)lane::Allocator<Aligned>().allocate(hidden(SIZE_MAX / 128)));
  CHECK_THROWS(std::bad_alloc, (void)lane::malloc_resource()->allocate(hidden(SIZE_MAX / 2), 64));
  void* page = lane::malloc_resource()->allocate(100, 4096);
  CHECK(reinterpret_cast<std::uintptr_t>(page) % 4096 == 0);
  lane::malloc_resource()->deallocate(page, 100, 4096);
}

void resources() {
  expect_no_leaks([] {
    lane::Arena arena;
    {
      lane::ArenaResource resource(arena);
      use_all_containers(OfResource{&resource});
      // The last piece is taken back at once.
      void* p = resource.allocate(100, 16);
      resource.deallocate(p, 100, 16);
      CHECK(resource.allocate(50, 8) == p);
      const std::size_t bytes = arena.bytes();
      void* large = resource.allocate(1 << 20, 64);
      CHECK(reinterpret_cast<std::uintptr_t>(large) % 64 == 0);
      resource.deallocate(large, 1 << 20, 64);
      CHECK(arena.bytes() == bytes);
      lane::ArenaResource other(arena);
      CHECK(resource == resource && resource != other);
      CHECK_THROWS(std::bad_alloc, (void)resource.allocate(hidden(SIZE_MAX / 2)));
    }
    arena.reset();
    CHECK(arena.bytes() == 8192);
  });
}

int alive;
std::string ends;
struct Counted {
  char name;
  std::string text = "a text that is too long for the string itself";
  explicit Counted(char n) : name(n) {
    alive++;
    if (n == '!') {
      alive--;
      throw 7;
    }
  }
  Counted(const Counted&) = delete;
  ~Counted() {
    alive--;
    ends += name;
  }
};
struct Aggregate {
  int a;
  const char* b;
};

void objects() {
  expect_no_leaks([] {
    ends.clear();
    lane::Arena arena(4096);
    arena.make<Counted>('a');
    {
      lane::ArenaScope scope(arena);
      arena.make<Counted>('b');
      arena.make<Counted>('c');
    }
    CHECK(ends == "cb" && alive == 1);
    // An exception from a constructor is passed on, and nothing is left.
    char* next = arena.get()->next;
    CHECK_THROWS(int, arena.make<Counted>('!'));
    CHECK(arena.get()->next == next && alive == 1);
    auto* aggregate = arena.make<Aggregate>(1, "two");
    CHECK(aggregate->a == 1 && aggregate->b[0] == 't');
    CHECK(arena.make<Aligned>(3)->is_aligned());
    auto* array = arena.make_array<int>(1000);
    CHECK(std::count(array, array + 1000, 0) == 1000);
    CHECK_THROWS(std::bad_array_new_length, arena.make_array<int>(hidden(SIZE_MAX / 2)));
    std::string_view copy = arena.copy("copied");
    CHECK(copy == "copied" && copy.data()[6] == '\0');
    lane::Arena moved(std::move(arena));
    CHECK(arena.bytes() == 0 && alive == 1 && copy == "copied");  // NOLINT(bugprone-use-after-move)
    arena.make<Counted>('d');
    moved = std::move(arena);
    CHECK(ends == "cba" && alive == 1);
    moved.reset();
    CHECK(ends == "cbad" && alive == 0);
    CHECK_THROWS(std::invalid_argument, lane::Arena(100));
    CHECK_THROWS(std::bad_alloc, (void)moved.allocate(hidden(SIZE_MAX)));
    CHECK_THROWS(std::bad_alloc, (void)moved.allocate(hidden(SIZE_MAX), 64));
  });
}

// If there is no memory for the registration, the object is destroyed and its memory given back.
void no_memory_for_the_registration() {
  alive = 0;
  lane::Arena arena;
  arena.make<Counted>('e');
  char* next = arena.get()->next;
  no_registrations = true;
  CHECK_THROWS(std::bad_alloc, arena.make<Counted>('f'));
  no_registrations = false;
  CHECK(alive == 1 && arena.get()->next == next);
}

}  // namespace

int main() {
  allocators();
  resources();
  objects();
  no_memory_for_the_registration();
  std::puts("ok");
  return 0;
}
