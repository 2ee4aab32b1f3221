#!/usr/bin/env bash
# checks: g++ -O2 of a C++ file heavy in templates: the same object code; and the compiled program
# runs under the library
# needs: g++=g++
# shellcheck source=tests/preload/lib.sh
source "$PRELOAD_LIB"

cat >head.cc <<'END'
#include <algorithm>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <new>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>
template <int N> struct Node : Node<N - 1> {
  std::tuple<int, std::string, std::vector<Node<N - 1>>> parts;
};
template <> struct Node<0> { int value = 0; };
template <int... I> int sum(std::integer_sequence<int, I...>) { return (0 + ... + (I * I % 7)); }
template <int N> struct alignas(64 << (N % 3)) Work {
  std::map<std::string, std::variant<int, std::string, std::vector<int>>> values;
  std::unordered_map<std::string, std::shared_ptr<Work>> children;
  unsigned run(unsigned seed) {
    for (unsigned i = 0; i < 40; ++i) {
      seed = seed * 1103515245 + 12345;
      auto key = std::to_string(seed % 97);
      if (seed & 256) values[key] = std::vector<int>(seed % 50, N);
      else if (seed & 512) values[key] = std::string(seed % 300, 'x');
      else children[key] = std::make_shared<Work>();
      if (seed % 5 == 0) values.erase(std::to_string(seed % 31));
    }
    unsigned total = sum(std::make_integer_sequence<int, N % 50 + 1>()) + children.size();
    for (auto& [key, value] : values) {
      total = total * 31 + key.size();
      total += std::visit([](auto& v) -> unsigned {
        if constexpr (requires { v.size(); }) return v.size(); else return v;
      }, value);
    }
    return total;
  }
};
END
{
  cat head.cc
  n=$((20 * SCALE))
  for ((i = 0; i < n; i++)); do
    echo "template struct Work<$i>; template struct Node<$((i % 40))>;"
  done
  cat <<END
template <int... I> unsigned all(unsigned seed, std::integer_sequence<int, I...>) {
  unsigned total = 0;
  ((total = total * 33 + std::make_unique<Work<I>>()->run(seed + I)), ...);
  return total;
}
int main() {
  std::vector<std::future<unsigned>> results;
  for (unsigned t = 0; t < 8; ++t)
    results.push_back(std::async(std::launch::async, [t] {
      unsigned total = 0;
      for (unsigned i = 0; i < 40; ++i)
        total = total * 37 + all(t * 1000 + i, std::make_integer_sequence<int, $n>());
      return total;
    }));
  for (auto& result : results) std::cout << result.get() << '\n';
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "word" + std::to_string(i) + (i % 7 ? " " : ", ");
  std::regex pattern("([a-z]+)([0-9]+)(,?)");
  std::size_t length = 0;
  for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it)
    length += it->str(2).size() * (it->length(3) + 1);
  std::cout << length << ' ' << std::regex_replace(text, pattern, "\$2\$1").size() << '\n';
  int caught = 0;
  for (int i = 0; i < 1000; ++i) try {
      throw std::runtime_error(std::string(i, 'e'));
    } catch (std::exception& e) {
      caught += std::string(e.what()).size() == std::size_t(i);
    }
  try {
    volatile std::size_t huge = std::size_t(-1) / 4;
    char* volatile block = new char[huge];
    delete[] block;
  } catch (std::bad_alloc&) { ++caught; }
  std::cout << caught << '\n';
}
END
} >big.cc

plain g++ -std=c++20 -O2 -frandom-seed=1 -c big.cc -o big.o
mv big.o plain.o
under g++ -std=c++20 -O2 -frandom-seed=1 -c big.cc -o big.o 2>g++.log
same 'the object file' plain.o big.o
under g++ big.o -o big -pthread 2>>g++.log
plain ./big >out.plain
under ./big >out.under 2>>g++.log
same 'what the compiled program printed' out.plain out.under
equal 'exceptions caught by the compiled program' 1001 "$(tail -1 out.under)"
mapped g++ cc1plus as ld big
ok 'the object file is the same bytes; the threaded C++ program prints the same'
