// Programs whose threads come and go, and leave objects behind.
//
// larson    Larson and Krishnan, "Memory allocation for long-running server applications" (ISMM
//           1998): the main thread fills a table of 1,000 blocks of 8 to 1,000 bytes for each
//           thread and mixes them all; each thread replaces random blocks of its table, 100 times
//           the number of blocks, then starts a thread that goes on with the table, and ends.
//           Blocks outlive the threads that allocated them.
// replaced  the same with threads that replace 1,000 blocks, not 100,000. Shows what the start and
//           the end of a thread cost.
// mstress   Leijen's stress test of mimalloc, at scale 50: phases of new threads with uneven loads;
//           thread i allocates (i mod 8 + 1) times 7,500 objects of one to 64 words, one in a
//           hundred of 100 times that, one in a thousand of 1,000 times, one in ten thousand of
//           10,000 times; a third stays until the end of the thread, part is freed at random, part
//           is exchanged through a table of 1,000 that all threads share; half of the table
//           survives a phase.
// rptest    Jansson's rpmalloc-benchmark (0 1 2 500 1000 100 8 16000): each thread holds 1,000
//           blocks of 8 to 16,000 bytes, smaller ones more often, and in each loop frees 100
//           scattered blocks and allocates 100; in every second loop it hands some to another
//           thread.
// mleak     Leijen's test of objects that threads leave behind: a thread allocates one small
//           object, exchanges it for one that another thread has left, frees that, and ends; ten at
//           a time.
//           Stresses the start and the end of threads.
#include <vector>

#include "workloads.h"

namespace workloads {

namespace {

// Runs threads that replace `steps` blocks each; each thread takes the place of the one before it.
void replace_blocks(Run& run, size_t steps) {
  constexpr size_t kBlocks = 1000, kLeast = 8, kMost = 1000, kStepsAtOnce = 100;
  Book<char*> tables(kBlocks * static_cast<size_t>(run.threads));
  Random mixing(1);
  Tally first;
  for (char*& block : tables) block = make(mixing.between(kLeast, kMost), first);
  for (size_t i = tables.size(); i > 1; i--) std::swap(tables[i - 1], tables[mixing.below(i)]);
  run.in_generations([&](int chain, size_t generation) {
    char** table = tables.data() + kBlocks * static_cast<size_t>(chain);
    Random random(2 + generation * kMaxThreads + static_cast<size_t>(chain));
    Worker worker(run, chain);
    bool goes_on;
    do {
      for (size_t i = 0; i < kStepsAtOnce; i++) {
        char*& block = table[random.below(kBlocks)];
        std::free(block);
        block = make(random.between(kLeast, kMost), worker.tally);
      }
      goes_on = worker.goes_on();
    } while (goes_on && worker.tally.operations < steps);
    return goes_on;
  });
  for (char* block : tables) std::free(block);
}

}  // namespace

void larson(Run& run) { replace_blocks(run, 100'000); }
void replaced(Run& run) { replace_blocks(run, 1000); }

namespace {

constexpr size_t kTransfers = 1000;

size_t mstress_bytes(size_t words, Random& random) {
  if (random.one_in(100)) {
    size_t choice = random.below(100);
    words *= choice == 0 ? 10'000 : choice <= 10 ? 1000 : 100;
  }
  return words * sizeof(uint64_t);
}

// All words of the object are written; the first and the last tell its size, and are checked when
// it is freed.
uint64_t* fill_object(size_t bytes, Tally& tally) {
  uint64_t* object = reinterpret_cast<uint64_t*>(make(bytes, tally));
  for (size_t i = 0; i < bytes / sizeof(uint64_t); i++) object[i] = bytes;
  return object;
}

void check_and_free(uint64_t* object) {
  if (object == nullptr) return;
  uint64_t bytes = object[0];
  if (object[bytes / sizeof(uint64_t) - 1] != bytes) broken("an object was overwritten");
  std::free(object);
}

// One thread of one phase. Its lists grow in memory of malloc, as those of the original do. What
// the thread does with an object depends on what other threads have left, so the sizes are drawn
// from a random sequence of their own.
void stress(size_t objects, Random sizes, Worker& worker, Book<std::atomic<uint64_t*>>& transfers) {
  constexpr size_t kAtOnce = 100;
  Random random(objects);
  std::vector<uint64_t*> retained, passing;
  for (size_t i = 0; i < objects && !worker.is_stopped(); i++) {
    if (i % 3 == 0) {
      retained.push_back(
          fill_object(mstress_bytes(size_t{1} << sizes.below(7), sizes), worker.tally));
    } else {
      passing.push_back(
          fill_object(mstress_bytes(size_t{1} << sizes.below(5), sizes), worker.tally));
    }
    if (!passing.empty() && random.below(3) != 0) {
      uint64_t*& chosen = passing[random.below(passing.size())];
      check_and_free(chosen);
      chosen = nullptr;
    }
    if (!passing.empty() && random.one_in(4)) {
      uint64_t*& chosen = passing[random.below(passing.size())];
      chosen = transfers[random.below(kTransfers)].exchange(chosen);
    }
    if (i % kAtOnce == 0) worker.publish();
  }
  for (uint64_t* object : retained) check_and_free(object);
  for (uint64_t* object : passing) check_and_free(object);
}

}  // namespace

void mstress(Run& run) {
  constexpr size_t kObjects = 7500;
  Book<std::atomic<uint64_t*>> transfers(kTransfers);
  Random which(1);
  for (size_t phase = 0; run.goes_on(); phase++) {
    run.in_new_threads([&, phase](int me) {
      Random sizes(phase * kMaxThreads + static_cast<size_t>(me));
      Worker worker(run, me);
      stress(kObjects * (static_cast<size_t>(me) % 8 + 1), sizes, worker, transfers);
    });
    for (std::atomic<uint64_t*>& object : transfers) {
      if (which.one_in(2)) check_and_free(object.exchange(nullptr));
    }
  }
  for (std::atomic<uint64_t*>& object : transfers) check_and_free(object.load());
}

namespace {

// A block that is handed over; the list is threaded through the blocks.
struct Handed {
  Handed* next;
};

// The blocks that other threads hand to a thread. The inbox is bounded, because with more threads
// than CPUs its owner may not look for a long time.
struct alignas(64) Inbox {
  static constexpr int kMost = 100;
  std::atomic<Handed*> first;
  std::atomic<int> count;
};

// Returns false if the inbox is full.
bool hand_over(Inbox& inbox, char* block) {
  if (inbox.count.load(std::memory_order_relaxed) >= Inbox::kMost) return false;
  inbox.count.fetch_add(1, std::memory_order_relaxed);
  Handed* handed = reinterpret_cast<Handed*>(block);
  handed->next = inbox.first.load(std::memory_order_relaxed);
  while (!inbox.first.compare_exchange_weak(handed->next, handed, std::memory_order_release,
                                            std::memory_order_relaxed)) {
  }
  return true;
}

void free_handed(Inbox& inbox) {
  if (inbox.first.load(std::memory_order_relaxed) == nullptr) return;
  inbox.count.store(0, std::memory_order_relaxed);
  for (Handed* handed = inbox.first.exchange(nullptr, std::memory_order_acquire);
       handed != nullptr;) {
    Handed* next = handed->next;
    std::free(handed);
    handed = next;
  }
}

}  // namespace

void rptest(Run& run) {
  constexpr size_t kBlocks = 1000, kLeast = 8, kMost = 16'000, kAtOnce = 100, kHandedAtOnce = 25;
  // A prime step through the table meets every block once, and never two neighbours one after the
  // other.
  constexpr size_t kStep = 31;
  size_t threads = static_cast<size_t>(run.threads);
  Book<Inbox> inboxes(threads);
  run.in_threads([&](int number) {
    size_t me = static_cast<size_t>(number);
    Random random(me);
    Worker worker(run, number);
    Book<char*> table(kBlocks);
    // The probability of the smaller of two even draws falls linearly. The first byte of every page
    // is written, as in the original.
    auto allocate = [&] {
      size_t bytes = std::min(random.between(kLeast, kMost), random.between(kLeast, kMost));
      char* block = make(bytes, worker.tally);
      for (size_t at = 4096; at < bytes; at += 4096) block[at] = 1;
      return block;
    };
    for (char*& block : table) block = allocate();
    size_t at = random.below(kBlocks), loop = 0;
    do {
      size_t to = (me + 1 + loop / 2) % threads;
      for (size_t i = 0; i < kAtOnce; i++) {
        at = (at + kStep) % kBlocks;
        bool hand = loop % 2 == 1 && i < kHandedAtOnce && to != me;
        if (!hand || !hand_over(inboxes[to], table[at])) std::free(table[at]);
        table[at] = allocate();
      }
      free_handed(inboxes[me]);
      loop++;
    } while (worker.goes_on());
    for (char* block : table) std::free(block);
  });
  for (Inbox& inbox : inboxes) free_handed(inbox);
}

void mleak(Run& run) {
  constexpr size_t kWords = 16, kLeft = 1000;
  Book<std::atomic<void*>> left(kLeft);
  for (size_t round = 0; run.goes_on(); round++) {
    run.in_new_threads([&, round](int me) {
      Random random(round * kMaxThreads + static_cast<size_t>(me));
      Worker worker(run, me);
      void* object = std::calloc(kWords, sizeof(void*));
      if (object == nullptr) broken("calloc returned null");
      std::free(left[random.below(kLeft)].exchange(object));
      worker.tally = {1, kWords * sizeof(void*)};
    });
  }
  for (std::atomic<void*>& object : left) std::free(object.load());
}

}  // namespace workloads
