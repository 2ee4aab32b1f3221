// The library's operator new and delete in all forms: bad_alloc, new handlers, alignment,
// exceptions, containers.
#include <deque>
#include <map>
#include <memory>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "child.h"

namespace {

constexpr std::size_t kHuge = SIZE_MAX / 2 - 4096;
constexpr std::align_val_t kLine{64};

template <class Function>
bool throws_bad_alloc(Function allocate) {
  try {
    hide(allocate());
  } catch (const std::bad_alloc&) {
    return true;
  }
  return false;
}

bool aligned(void* object, std::size_t alignment) {
  return reinterpret_cast<uintptr_t>(object) % alignment == 0;
}

}  // namespace

CASE(every_form_pairs_with_every_delete) {
  const std::size_t sizes[] = {0, 1, 8, 16, 24, 100, 1000, 5000, 40000, 300000, 3000000};
  for (std::size_t size : sizes) {
    for (int round = 0; round < 50; round++) {
      void* plain[4] = {::operator new(size), ::operator new(size, std::nothrow),
                        ::operator new[](size), ::operator new[](size, std::nothrow)};
      for (void* object : plain) {
        CHECK_MSG(object && aligned(object, 16) && malloc_usable_size(object) >= size, "size %zu",
                  size);
        memset(object, 1, size);
      }
      if (round % 2) {
        ::operator delete(plain[0]);
        ::operator delete(plain[1], std::nothrow);
        ::operator delete[](plain[2]);
        ::operator delete[](plain[3], std::nothrow);
      } else {
        ::operator delete(plain[0], size);
        ::operator delete(plain[1], size);
        ::operator delete[](plain[2], size);
        ::operator delete[](plain[3], size);
      }
      for (std::size_t alignment :
           {std::size_t{1}, std::size_t{16}, std::size_t{64}, std::size_t{4096}}) {
        std::align_val_t value{alignment};
        void* over[4] = {::operator new(size, value), ::operator new(size, value, std::nothrow),
                         ::operator new[](size, value),
                         ::operator new[](size, value, std::nothrow)};
        for (void* object : over)
          CHECK_MSG(object && aligned(object, alignment), "size %zu align %zu", size, alignment);
        if (round % 2) {
          ::operator delete(over[0], value);
          ::operator delete(over[1], value, std::nothrow);
          ::operator delete[](over[2], value);
          ::operator delete[](over[3], value, std::nothrow);
        } else {
          ::operator delete(over[0], size, value);
          ::operator delete(over[1], size, value);
          ::operator delete[](over[2], size, value);
          ::operator delete[](over[3], size, value);
        }
      }
    }
  }
}

CASE(delete_of_null_does_nothing) {
  void* null = hide(nullptr);
  errno = 31;
  ::operator delete(null);
  ::operator delete[](null);
  ::operator delete(null, 8);
  ::operator delete[](null, 8);
  ::operator delete(null, kLine);
  ::operator delete[](null, kLine);
  ::operator delete(null, 8, kLine);
  ::operator delete[](null, 8, kLine);
  ::operator delete(null, std::nothrow);
  ::operator delete[](null, std::nothrow);
  ::operator delete(null, kLine, std::nothrow);
  ::operator delete[](null, kLine, std::nothrow);
  CHECK(errno == 31);
}

CASE(size_zero_gives_unique_pointers) {
  void* first = ::operator new(hide_size(0));
  void* second = ::operator new(hide_size(0));
  void* third = ::operator new[](hide_size(0), kLine);
  CHECK(first && second && third && first != second && second != third);
  ::operator delete(first);
  ::operator delete(second);
  ::operator delete[](third, kLine);
}

CASE(throwing_forms_throw_bad_alloc) {
  std::size_t sizes[] = {kHuge, SIZE_MAX, SIZE_MAX - 64, SIZE_MAX / 2 + 1, std::size_t{1} << 60};
  for (std::size_t wanted : sizes) {
    std::size_t size = hide_size(wanted);
    CHECK_MSG(throws_bad_alloc([=] { return ::operator new(size); }), "%#zx", size);
    CHECK_MSG(throws_bad_alloc([=] { return ::operator new[](size); }), "%#zx", size);
    CHECK_MSG(throws_bad_alloc([=] { return ::operator new(size, kLine); }), "%#zx", size);
    CHECK_MSG(throws_bad_alloc([=] { return ::operator new[](size, kLine); }), "%#zx", size);
  }
  // In a thread, and again and again: no state is left behind.
  std::thread([] {
    for (int i = 0; i < 1000; i++)
      CHECK(throws_bad_alloc([] { return ::operator new(hide_size(kHuge)); }));
  }).join();
}

CASE(nothrow_forms_give_null) {
  std::size_t size = hide_size(kHuge);
  CHECK(::operator new(size, std::nothrow) == nullptr);
  CHECK(::operator new[](size, std::nothrow) == nullptr);
  CHECK(::operator new(size, kLine, std::nothrow) == nullptr);
  CHECK(::operator new[](size, kLine, std::nothrow) == nullptr);
}

static int handler_calls;
static int handler_limit;
static void throwing_handler() {
  if (++handler_calls >= handler_limit) throw std::bad_alloc();
}
struct Unusual : std::bad_alloc {};
static void unusual_handler() {
  handler_calls++;
  throw Unusual();
}
static void resigning_handler() {
  if (++handler_calls >= handler_limit) std::set_new_handler(nullptr);
}

CASE(new_handler_is_called_until_it_throws) {
  std::size_t size = hide_size(kHuge);
  std::set_new_handler(throwing_handler);
  handler_limit = 5;
  handler_calls = 0;
  CHECK(throws_bad_alloc([=] { return ::operator new(size); }) && handler_calls == 5);
  handler_calls = 0;
  CHECK(throws_bad_alloc([=] { return ::operator new[](size); }) && handler_calls == 5);
  handler_calls = 0;
  CHECK(throws_bad_alloc([=] { return ::operator new(size, kLine); }) && handler_calls == 5);
  handler_calls = 0;
  CHECK(throws_bad_alloc([=] { return ::operator new[](size, kLine); }) && handler_calls == 5);
  std::set_new_handler(unusual_handler);
  try {
    hide(::operator new(size));
    CHECK(!"no exception");
  } catch (const Unusual&) {
    CHECK(handler_calls == 6);
  }
}

CASE(nothrow_forms_call_the_handler_too) {
  std::size_t size = hide_size(kHuge);
  std::set_new_handler(throwing_handler);
  handler_limit = 3;
  handler_calls = 0;
  CHECK(::operator new(size, std::nothrow) == nullptr&& handler_calls == 3);
  handler_calls = 0;
  CHECK(::operator new[](size, std::nothrow) == nullptr&& handler_calls == 3);
  handler_calls = 0;
  CHECK(::operator new(size, kLine, std::nothrow) == nullptr&& handler_calls == 3);
  handler_calls = 0;
  CHECK(::operator new[](size, kLine, std::nothrow) == nullptr&& handler_calls == 3);
}

CASE(without_a_handler_left_bad_alloc_is_thrown) {
  std::set_new_handler(resigning_handler);
  handler_limit = 4;
  handler_calls = 0;
  CHECK(throws_bad_alloc([] { return ::operator new(hide_size(kHuge)); }) && handler_calls == 4);
  std::set_new_handler(resigning_handler);
  handler_calls = 0;
  CHECK(::operator new(hide_size(kHuge), std::nothrow) == nullptr&& handler_calls == 4);
}

// Once no memory is left, the handler frees its reserve, and the allocation succeeds.
static void* reserve;
static void freeing_handler() {
  handler_calls++;
  if (!reserve) throw std::bad_alloc();
  free(reserve);
  reserve = nullptr;
}
CHILD(allocate_until_the_handler_frees) {
  constexpr std::size_t kMib = 1 << 20;
  reserve = malloc(100 * kMib);
  REQUIRE(reserve);
  std::vector<void*> blocks;
  blocks.reserve(1000);
  std::set_new_handler(freeing_handler);
  handler_calls = 0;
  while (handler_calls == 0 && blocks.size() < 1000) blocks.push_back(::operator new(30 * kMib));
  CHECK_MSG(handler_calls == 1 && blocks.back() != nullptr, "%d calls, %zu blocks", handler_calls,
            blocks.size());
  for (void* block : blocks) ::operator delete(block);
}
CASE(new_succeeds_when_the_handler_frees_memory) {
  memset(&child, 0, offsetof(Child, out));
  child.resource = RLIMIT_AS;
  child.limit = 512 << 20;
  run_child("allocate_until_the_handler_frees");
  CHECK_CHILD(child_succeeded());
}

struct alignas(256) Wide {
  char bytes[300];
};
struct Tracked {
  static inline int live = 0;
  std::string text = std::string(100, 't');
  explicit Tracked(int value) {
    if (value == 13) throw std::runtime_error("thirteen");
    live++;
  }
  Tracked(const Tracked& other) : text(other.text) { live++; }
  ~Tracked() { live--; }
};

CASE(over_aligned_types_get_their_alignment) {
  std::vector<std::unique_ptr<Wide>> single;
  std::vector<Wide> many;
  for (int i = 0; i < 500; i++) {
    single.push_back(std::make_unique<Wide>());
    CHECK(aligned(single.back().get(), 256));
    many.emplace_back();
    CHECK(aligned(many.data(), 256));
  }
  Wide* array = new Wide[77];
  CHECK(aligned(array, 256));
  delete[] array;
}

// If a constructor throws, the matching delete frees the memory, and the exception goes through.
CASE(exceptions_from_constructors_free_memory) {
  for (int round = 0; round < 2000; round++) {
    try {
      delete new Tracked(round % 14);
      std::vector<Tracked> objects;
      for (int i = 0; i < 20; i++) objects.emplace_back(i);
      CHECK(!"no exception");
    } catch (const std::runtime_error& error) {
      CHECK(std::string(error.what()) == "thirteen");
    }
    CHECK(Tracked::live == 0);
  }
}

CASE(containers_work) {
  std::map<int, std::string> tree;
  std::unordered_map<std::string, std::vector<int>> table;
  std::deque<std::shared_ptr<Tracked>> queue;
  for (int i = 0; i < 20000; i++) {
    tree[i * 7919 % 20011] = std::string(i % 200, 'x');
    table[std::to_string(i % 500)].push_back(i);
    queue.push_back(std::make_shared<Tracked>(0));
    if (i % 3) queue.pop_front();
  }
  CHECK(tree.size() == 20000 && table.size() == 500);
  for (auto& [key, values] : table) CHECK(values.size() == 40 && values[0] % 500 == std::stoi(key));
  std::ostringstream stream;
  for (auto& [key, value] : tree) stream << key << value;
  CHECK(stream.str().size() > 20000 * 99);
  queue.clear();
  CHECK(Tracked::live == 0);
}

CASE(exception_objects_cross_threads) {
  for (int round = 0; round < 200; round++) {
    std::exception_ptr caught;
    std::thread([&] {
      try {
        throw std::runtime_error(std::string(500, 'e'));
      } catch (...) {
        caught = std::current_exception();
      }
    }).join();
    try {
      std::rethrow_exception(caught);
    } catch (const std::runtime_error& error) {
      CHECK(std::string(error.what()).size() == 500);
    }
  }
}
