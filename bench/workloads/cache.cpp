// cache: a server's cache that lives long and turns over, whatever the sizes of the values that are
// asked for. 128 MiB of values are spread over 64 tables, each with a lock. A thread allocates a
// value, writes it and puts it into one of the tables. It takes random values out of that table
// until the table keeps to its share, and frees them. So most values are freed by another thread
// than the one that allocated them. One value in 128 is pinned: when it is drawn, it goes only once
// in 20 times, so some pinned values get very old. The sizes move: for 50,000 values of a thread
// they lie within three powers of two, then within the next three, from 64 bytes to 16 KiB and back
// again. So the memory that one size leaves behind must serve the other sizes, and pinned values of
// many such moves lie in it. This is where fragmentation shows, and it takes a minute or more.
#include <mutex>

#include "workloads.h"

namespace workloads {

namespace {

constexpr size_t kTables = 64, kEntriesOfTable = 16'384,
                 kBytesOfTable = (size_t{128} << 20) / kTables;

struct Value {
  char* bytes;
  uint32_t size;
  bool is_pinned;
};

struct alignas(128) Table {
  std::mutex lock;
  size_t entries = 0, bytes = 0;
};

// Between 64 bytes and 16 KiB.
size_t value_bytes(size_t values, Random& random) {
  constexpr size_t kValuesOfMove = 50'000;
  constexpr unsigned kLeast = 6, kMoves = 6, kWidth = 3;
  const unsigned move = static_cast<unsigned>(values / kValuesOfMove % (2 * kMoves - 2));
  const unsigned low = kLeast + (move < kMoves ? move : 2 * kMoves - 2 - move);
  return random.by_powers(low, low + kWidth);
}

}  // namespace

void cache(Run& run) {
  constexpr size_t kAtOnce = 16, kMostTaken = 64;
  std::array<Table, kTables> tables;
  Book<Value> values(kTables * kEntriesOfTable);
  run.in_threads([&](int me) {
    Random random(static_cast<uint64_t>(me));
    Worker worker(run, me);
    do {
      for (size_t i = 0; i < kAtOnce; i++) {
        Value added{nullptr, static_cast<uint32_t>(value_bytes(worker.tally.operations, random)),
                    random.one_in(128)};
        added.bytes = make(added.size, worker.tally);
        std::memset(added.bytes, static_cast<int>(added.size & 255), added.size);
        const size_t number = random.below(kTables);
        Table& table = tables[number];
        Value* entries = &values[number * kEntriesOfTable];
        char* taken[kMostTaken];
        size_t count = 0;
        {
          std::lock_guard lock(table.lock);
          while (count < kMostTaken && table.entries > 0 &&
                 (table.entries == kEntriesOfTable || table.bytes + added.size > kBytesOfTable)) {
            Value& drawn = entries[random.below(table.entries)];
            if (drawn.is_pinned && !random.one_in(20)) continue;
            table.bytes -= drawn.size;
            taken[count++] = drawn.bytes;
            drawn = entries[--table.entries];
          }
          entries[table.entries++] = added;
          table.bytes += added.size;
        }
        for (size_t n = 0; n < count; n++) std::free(taken[n]);
      }
    } while (worker.goes_on());
  });
  for (size_t number = 0; number < kTables; number++) {
    for (size_t i = 0; i < tables[number].entries; i++)
      std::free(values[number * kEntriesOfTable + i].bytes);
  }
}

}  // namespace workloads
