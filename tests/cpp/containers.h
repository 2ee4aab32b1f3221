// Uses every standard container that takes an allocator, and compares it with one that has the
// standard library's own allocator. use_all_containers(make): make.of<T>() gives an allocator of T.
// Used by: the programs of tests/cpp.
#ifndef TESTS_CPP_CONTAINERS_H_
#define TESTS_CPP_CONTAINERS_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <forward_list>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <memory_resource>
#include <numeric>
#include <queue>
#include <regex>
#include <scoped_allocator>
#include <set>
#include <stack>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "check.h"

struct OfResource {
  std::pmr::memory_resource* resource;
  template <class T>
  std::pmr::polymorphic_allocator<T> of() const {
    return resource;
  }
};

template <class Make, class T>
using AllocatorOf = decltype(std::declval<Make>().template of<T>());

struct alignas(128) Aligned {
  int value = 0;
  explicit Aligned(int v = 0) : value(v) {}
  bool is_aligned() const { return reinterpret_cast<std::uintptr_t>(this) % 128 == 0; }
};

template <class A, class B>
bool same(const A& a, const B& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}
template <class A, class B>
bool same_unordered(const A& a, const B& b) {
  return std::is_permutation(a.begin(), a.end(), b.begin(), b.end());
}

// Does what every container can do: copies, moves, swaps and assignments, with equal allocators and
// with the allocator given.
template <class Container, class Allocator>
void use_as_value(const Container& original, const Allocator& allocator) {
  Container copy(original, allocator);
  CHECK(copy == original);
  CHECK(copy.get_allocator() == original.get_allocator());
  Container moved(std::move(copy), allocator);
  CHECK(moved == original);
  Container assigned(allocator);
  assigned = original;
  CHECK(assigned == original);
  Container other(allocator);
  other = std::move(assigned);
  CHECK(other == original);
  swap(other, moved);
  CHECK(other == original && moved == original);
  other.clear();
  CHECK(other != original || original.empty());
}

template <class Make>
void use_sequences(const Make& make) {
  std::vector<int> plain(1000);
  std::iota(plain.begin(), plain.end(), 0);

  std::vector<int, AllocatorOf<Make, int>> vector(make.template of<int>());
  std::deque<int, AllocatorOf<Make, int>> deque(make.template of<int>());
  std::list<int, AllocatorOf<Make, int>> list(make.template of<int>());
  std::forward_list<int, AllocatorOf<Make, int>> forward(make.template of<int>());
  for (int i : plain) {
    vector.push_back(i);
    (i % 2 != 0 ? deque.push_back(i) : deque.push_front(i));
    list.insert(list.end(), i);
    forward.push_front(i);
  }
  std::sort(deque.begin(), deque.end());
  list.reverse();
  list.sort();
  forward.sort();
  CHECK(same(vector, plain) && same(deque, plain) && same(list, plain) && same(forward, plain));
  vector.shrink_to_fit();
  deque.shrink_to_fit();
  vector.insert(vector.begin() + 500, 100, 7);
  vector.erase(vector.begin() + 500, vector.begin() + 600);
  decltype(list) spliced(make.template of<int>());
  spliced.splice(spliced.begin(), list, list.begin(), std::next(list.begin(), 500));
  spliced.merge(list);
  CHECK(same(vector, plain) && same(spliced, plain) && list.empty());
  use_as_value(vector, make.template of<int>());
  use_as_value(deque, make.template of<int>());
  use_as_value(spliced, make.template of<int>());
  use_as_value(forward, make.template of<int>());

  std::vector<bool, AllocatorOf<Make, bool>> bits(make.template of<bool>());
  for (int i = 0; i < 1000; i++) bits.push_back(i % 3 == 0);
  CHECK(std::count(bits.begin(), bits.end(), true) == 334);
  use_as_value(bits, make.template of<bool>());

  std::vector<Aligned, AllocatorOf<Make, Aligned>> aligned(make.template of<Aligned>());
  std::list<Aligned, AllocatorOf<Make, Aligned>> aligned_list(make.template of<Aligned>());
  for (int i = 0; i < 100; i++) {
    aligned.emplace_back(i);
    aligned_list.emplace_back(i);
  }
  for (const Aligned& object : aligned) CHECK(object.is_aligned());
  for (const Aligned& object : aligned_list) CHECK(object.is_aligned());
}

template <class Make>
void use_trees(const Make& make) {
  using Pair = std::pair<const int, int>;
  std::set<int> plain_set;
  std::map<int, int> plain_map;
  std::multiset<int> plain_multiset;
  std::multimap<int, int> plain_multimap;
  std::set<int, std::less<int>, AllocatorOf<Make, int>> set(make.template of<int>());
  std::map<int, int, std::less<int>, AllocatorOf<Make, Pair>> map(make.template of<Pair>());
  std::multiset<int, std::less<int>, AllocatorOf<Make, int>> multiset(make.template of<int>());
  std::multimap<int, int, std::less<int>, AllocatorOf<Make, Pair>> multimap(
      make.template of<Pair>());
  for (int i = 0; i < 1000; i++) {
    const int key = i * 7919 % 500;
    plain_set.insert(key), set.insert(key);
    plain_map[key] = i, map[key] = i;
    plain_multiset.insert(key), multiset.insert(key);
    plain_multimap.emplace(key, i), multimap.emplace(key, i);
  }
  for (int i = 0; i < 500; i += 3) {
    plain_set.erase(i), set.erase(i);
    plain_map.erase(i), map.erase(i);
    plain_multiset.erase(i), multiset.erase(i);
    plain_multimap.erase(i), multimap.erase(i);
  }
  auto node = set.extract(set.begin());
  set.insert(std::move(node));
  CHECK(same(set, plain_set) && same(map, plain_map) && same(multiset, plain_multiset) &&
        same(multimap, plain_multimap));
  use_as_value(set, make.template of<int>());
  use_as_value(map, make.template of<Pair>());
  use_as_value(multiset, make.template of<int>());
  use_as_value(multimap, make.template of<Pair>());
}

template <class Make>
void use_hash_tables(const Make& make) {
  using Pair = std::pair<const int, int>;
  using Hash = std::hash<int>;
  using Equal = std::equal_to<int>;
  std::unordered_set<int> plain_set;
  std::unordered_map<int, int> plain_map;
  std::unordered_multiset<int> plain_multiset;
  std::unordered_multimap<int, int> plain_multimap;
  std::unordered_set<int, Hash, Equal, AllocatorOf<Make, int>> set(make.template of<int>());
  std::unordered_map<int, int, Hash, Equal, AllocatorOf<Make, Pair>> map(make.template of<Pair>());
  std::unordered_multiset<int, Hash, Equal, AllocatorOf<Make, int>> multiset(
      make.template of<int>());
  std::unordered_multimap<int, int, Hash, Equal, AllocatorOf<Make, Pair>> multimap(
      make.template of<Pair>());
  for (int i = 0; i < 600; i++) {
    const int key = i * 7919 % 300;
    plain_set.insert(key), set.insert(key);
    plain_map[key] = i, map[key] = i;
    plain_multiset.insert(key), multiset.insert(key);
    plain_multimap.emplace(key, i), multimap.emplace(key, i);
  }
  for (int i = 0; i < 300; i += 3) {
    plain_set.erase(i), set.erase(i);
    plain_map.erase(i), map.erase(i);
    plain_multiset.erase(i), multiset.erase(i);
    plain_multimap.erase(i), multimap.erase(i);
  }
  set.rehash(10000);
  map.reserve(10);
  CHECK(same_unordered(set, plain_set) && same_unordered(map, plain_map));
  CHECK(same_unordered(multiset, plain_multiset) && same_unordered(multimap, plain_multimap));
  use_as_value(set, make.template of<int>());
  use_as_value(map, make.template of<Pair>());
  use_as_value(multiset, make.template of<int>());
  use_as_value(multimap, make.template of<Pair>());
}

template <class Make, class Char>
void use_string_of(const Make& make) {
  std::basic_string<Char> plain;
  std::basic_string<Char, std::char_traits<Char>, AllocatorOf<Make, Char>> string(
      make.template of<Char>());
  for (int i = 0; i < 1000; i++) {
    plain.push_back(static_cast<Char>('a' + i % 26));
    string.push_back(static_cast<Char>('a' + i % 26));
  }
  string.insert(500, 3, Char{'x'});
  string.erase(500, 3);
  string.append(string, 0, 10);
  string.resize(1000);
  string.shrink_to_fit();
  CHECK(same(string, plain));
  use_as_value(string, make.template of<Char>());
}

template <class Make>
void use_adaptors(const Make& make) {
  std::stack<int, std::deque<int, AllocatorOf<Make, int>>> stack(make.template of<int>());
  std::queue<int, std::list<int, AllocatorOf<Make, int>>> queue(make.template of<int>());
  std::priority_queue<int, std::vector<int, AllocatorOf<Make, int>>> heap(std::less<int>(),
                                                                          make.template of<int>());
  for (int i = 0; i < 1000; i++) stack.push(i), queue.push(i), heap.push(i * 7919 % 1000);
  for (int i = 0; i < 1000; i++) {
    CHECK(stack.top() == 999 - i && queue.front() == i && heap.top() == 999 - i);
    stack.pop(), queue.pop(), heap.pop();
  }
}

template <class Make>
void use_others(const Make& make) {
  // Shared pointers, with the control block beside the object, and apart from it.
  auto shared = std::allocate_shared<std::vector<int>>(make.template of<int>(), 100, 7);
  std::weak_ptr<std::vector<int>> weak = shared;
  CHECK(shared->size() == 100 && weak.lock() == shared);
  auto aligned = std::allocate_shared<Aligned>(make.template of<Aligned>(), 5);
  CHECK(aligned->value == 5 && aligned->is_aligned());
  std::shared_ptr<int> apart(new int(3), std::default_delete<int>(), make.template of<int>());
  CHECK(*apart == 3);
  shared.reset();
  CHECK(weak.expired());

  // The allocator also makes the state that a promise shares with other threads.
  std::promise<int> promise(std::allocator_arg, make.template of<int>());
  std::future<int> future = promise.get_future();
  promise.set_value(17);
  CHECK(future.get() == 17);

  // The matches of a regular expression; libstdc++ makes some with an allocator of its own.
  using Match = std::sub_match<const char*>;
  if constexpr (std::is_default_constructible_v<AllocatorOf<Make, Match>>) {
    std::match_results<const char*, AllocatorOf<Make, Match>> matches(make.template of<Match>());
    CHECK(std::regex_match("key=value", matches, std::regex("(\\w+)=(\\w+)")) &&
          matches[2].str() == "value");
  }

  // Containers in containers all use the outermost one's allocator; polymorphic allocators pass
  // themselves on.
  using String = std::basic_string<char, std::char_traits<char>, AllocatorOf<Make, char>>;
  using Inner = AllocatorOf<Make, String>;
  using PassedOn =
      std::conditional_t<std::is_same_v<Inner, std::pmr::polymorphic_allocator<String>>, Inner,
                         std::scoped_allocator_adaptor<Inner>>;
  std::vector<String, PassedOn> strings{PassedOn(make.template of<String>())};
  for (int i = 0; i < 100; i++)
    strings.emplace_back("a text that is too long for the string itself");
  for (const String& string : strings) CHECK(string.get_allocator() == make.template of<char>());
}

template <class Make>
void use_all_containers(const Make& make) {
  use_sequences(make);
  use_trees(make);
  use_hash_tables(make);
  use_string_of<Make, char>(make);
  use_string_of<Make, wchar_t>(make);
  use_string_of<Make, char16_t>(make);
  use_string_of<Make, char32_t>(make);
  use_adaptors(make);
  use_others(make);
}

#endif  // TESTS_CPP_CONTAINERS_H_
