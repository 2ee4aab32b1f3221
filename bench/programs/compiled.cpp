// The source that g++ compiles as a benchmark; it never runs. KINDS is the number of times that the
// templates are instantiated anew.
// Called by: bench/programs/gxx.py.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

template <int kKind>
struct Entry {
  std::string name;
  std::variant<long, double, std::string> value;
  std::optional<std::pair<int, std::string>> note;
  auto key() const { return std::tie(name, note); }
  bool operator<(const Entry& other) const { return key() < other.key(); }
};

// Shelves of entries of one kind, by name and by order.
template <int kKind>
class Shelf {
 public:
  void add(Entry<kKind> entry) {
    auto shared = std::make_shared<Entry<kKind>>(std::move(entry));
    by_name_[shared->name].push_back(shared);
    ordered_.insert(*shared);
  }

  std::map<std::string, std::vector<std::string>> report() const {
    std::map<std::string, std::vector<std::string>> lines;
    for (const auto& [name, entries] : by_name_) {
      for (const auto& entry : entries) {
        std::ostringstream text;
        std::visit([&](const auto& value) { text << name << ' ' << value << ' ' << kKind; },
                   entry->value);
        lines[name.substr(0, kKind % 7 + 1)].push_back(text.str());
      }
    }
    for (auto& [name, texts] : lines) std::sort(texts.begin(), texts.end(), std::greater<>());
    return lines;
  }

  std::size_t matches(const std::string& text) const {
    return std::count_if(ordered_.begin(), ordered_.end(), [&](const auto& entry) {
      return entry.name.find(text) != std::string::npos;
    });
  }

  long sum() const {
    return std::accumulate(ordered_.begin(), ordered_.end(), 0L, [](long total, const auto& entry) {
      return entry.value.index() == 0 ? total + std::get<long>(entry.value) * kKind : total;
    });
  }

 private:
  std::unordered_map<std::string, std::vector<std::shared_ptr<Entry<kKind>>>> by_name_;
  std::set<Entry<kKind>> ordered_;
};

template <int kKind>
long use(Shelf<kKind>& shelf, const std::string& text) {
  long total = 0;
  for (long i = 0; i < kKind; ++i) shelf.add({text + std::to_string(i), i, std::pair{kKind, text}});
  for (const auto& [name, lines] : shelf.report())
    total += static_cast<long>(lines.size() + name.size());
  return total + shelf.sum() + static_cast<long>(shelf.matches(text));
}

template <int... kKinds>
long use_all(std::integer_sequence<int, kKinds...>, const std::string& text) {
  std::tuple<Shelf<kKinds>...> shelves;
  return (use(std::get<Shelf<kKinds>>(shelves), text) + ...);
}

long compiled(const std::string& text) {
  return use_all(std::make_integer_sequence<int, KINDS>(), text);
}
