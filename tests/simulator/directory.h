// Directory: tells which cores hold which line, as a MESI directory does. Its caches have no end,
// so a core loses a line only to another core. A transfer is a read of a line that another core has
// modified, or a write of a line that another core holds. A line that no core holds yet comes from
// memory: that is no transfer.
// Called by: simulator.cpp.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "simulator.h"

namespace simulator {

class Line {
 public:
  // True if the access is a transfer.
  bool access(int core, bool is_write) {
    const auto me = static_cast<size_t>(core);
    const bool mine = holders_[me];
    if (mine && (modified_ || !is_write)) return false;
    const bool held_by_others = mine ? holders_.count() > 1 : holders_.any();
    const bool transfer = held_by_others && (is_write || modified_);
    if (is_write) holders_.reset();
    holders_.set(me);
    modified_ = is_write;
    return transfer;
  }

 private:
  std::bitset<kMostCores> holders_;
  bool modified_ = false;  // by the only holder
};

// What is known of a page of memory. The lines are kept twice: as all accesses leave them, and as
// they would be if there were only the accesses of the program itself.
struct Page {
  static constexpr size_t kSize = 4096;

  template <size_t kLine>
  struct Lines {
    Line all[kSize / kLine];
    Line program[kSize / kLine];
  };
  Lines<64> lines;
  Lines<128> pairs;
  uint64_t busy_until[kSize / 64]{};
};

class Directory {
 public:
  explicit Directory(size_t bytes) : pages_(bytes / Page::kSize + 1) {}

  // The page at this distance from the beginning of the watched memory.
  Page& page(uintptr_t distance) {
    std::unique_ptr<Page>& page = pages_[distance / Page::kSize];
    if (page == nullptr) page = std::make_unique<Page>();
    return *page;
  }

 private:
  std::vector<std::unique_ptr<Page>> pages_;
};

}  // namespace simulator
