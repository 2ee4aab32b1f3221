// Programs whose threads come and go, and leave objects behind.
//
// larson   Larson and Krishnan, "Memory allocation for long-running server applications" (ISMM 1998): the main thread
//          fills tables of blocks of 8 to 1,000 bytes and mixes them; each thread replaces random blocks of its table, then
//          starts a thread that goes on with the table, and ends. Blocks outlive the threads that allocated them.
// mstress  Leijen's stress test of mimalloc: phases of new threads with uneven shares of the work; sizes are powers of two,
//          now and then many times that; part of the objects stays until the end of the thread, part is freed at random,
//          part is exchanged through a table that all threads share, where it survives the phase.
// rptest   Jansson's rpmalloc-benchmark: each thread holds blocks of 16 to 16,000 bytes, smaller ones more often, and in each
//          loop frees some that lie scattered and allocates as many; in every second loop it hands some to another thread.
// mleak    Leijen's test of what threads leave behind: a thread allocates one small object, exchanges it for one that
//          another thread has left, frees that, and ends. Stresses the start and the end of threads.
#include <vector>

#include "workloads.h"

namespace workloads {

void larson(Run& run) {
  constexpr size_t kBlocks = 24'000, kLeast = 8, kMost = 1000, kGenerations = 8;
  size_t blocks = kBlocks / static_cast<size_t>(run.threads);
  size_t steps = run.share(5.5e6 / kGenerations);
  Book<char*> tables(blocks * static_cast<size_t>(run.threads));
  Random mixing(1);
  Tally first;
  for (char*& block : tables) block = make(mixing.between(kLeast, kMost), first);
  for (size_t i = tables.size(); i > 1; i--) std::swap(tables[i - 1], tables[mixing.below(i)]);
  run.add(first);
  run.in_generations(kGenerations, [&](int chain, size_t generation) {
    char** table = tables.data() + blocks * static_cast<size_t>(chain);
    Random random(2 + generation * kMaxThreads + static_cast<size_t>(chain));
    Tally tally;
    for (size_t i = 0; i < steps; i++) {
      char*& block = table[random.below(blocks)];
      std::free(block);
      block = make(random.between(kLeast, kMost), tally);
    }
    run.add(tally);
  });
  for (char* block : tables) std::free(block);
}

namespace {

constexpr size_t kTransfers = 1000;

size_t mstress_bytes(Random& random) {
  size_t bytes = size_t{8} << random.below(8);
  if (random.one_in(100)) bytes *= 16;
  if (random.one_in(1000)) bytes *= 16;
  return bytes;
}

// All words of the object are written; the first and the last tell its size, and are looked at when it is freed.
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

// One thread of one phase. Its lists grow in memory of malloc, as those of the original do. What it does with an object
// depends on what the others have left, so the sizes are drawn from a row of their own.
void stress(size_t objects, Random sizes, Tally& tally, Book<std::atomic<uint64_t*>>& transfers) {
  Random random(objects);
  std::vector<uint64_t*> retained, passing;
  for (size_t i = 0; i < objects; i++) {
    (random.one_in(2) ? retained : passing).push_back(fill_object(mstress_bytes(sizes), tally));
    if (!passing.empty() && random.below(3) != 0) {
      uint64_t*& chosen = passing[random.below(passing.size())];
      check_and_free(chosen);
      chosen = passing.back();
      passing.pop_back();
    }
    if (!passing.empty() && random.one_in(4)) {
      uint64_t*& chosen = passing[random.below(passing.size())];
      chosen = transfers[random.below(kTransfers)].exchange(chosen);
      if (chosen == nullptr) {
        chosen = passing.back();
        passing.pop_back();
      }
    }
  }
  for (uint64_t* object : retained) check_and_free(object);
  for (uint64_t* object : passing) check_and_free(object);
}

}  // namespace

void mstress(Run& run) {
  constexpr size_t kObjectsOfPhase = 64'000;
  size_t phases = run.units(55);
  Book<std::atomic<uint64_t*>> transfers(kTransfers);
  // Thread i has i + 1 shares.
  size_t all_shares = static_cast<size_t>(run.threads) * (static_cast<size_t>(run.threads) + 1) / 2;
  for (size_t phase = 0; phase < phases; phase++) {
    run.in_new_threads([&, phase](int me) {
      Random sizes(phase * kMaxThreads + static_cast<size_t>(me));
      Tally tally;
      size_t objects = kObjectsOfPhase * (static_cast<size_t>(me) + 1) / all_shares;
      stress(objects, sizes, tally, transfers);
      run.add(tally);
    });
  }
  for (std::atomic<uint64_t*>& object : transfers) check_and_free(object.load());
}

namespace {

// A block that is handed over; the list is threaded through the blocks.
struct Handed {
  Handed* next;
};

// What others hand to a thread: bounded, for with more threads than CPUs its owner may not look for long.
struct alignas(64) Inbox {
  static constexpr int kMost = 100;
  std::atomic<Handed*> first;
  std::atomic<int> count;
};

// False: the inbox is full.
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
  for (Handed* handed = inbox.first.exchange(nullptr, std::memory_order_acquire); handed != nullptr;) {
    Handed* next = handed->next;
    std::free(handed);
    handed = next;
  }
}

}  // namespace

void rptest(Run& run) {
  constexpr size_t kBlocks = 4096, kLeast = 16, kMost = 16'000, kAtOnce = 100, kHandedAtOnce = 25;
  // A prime step through the table meets every block once, never two neighbours in a row.
  constexpr size_t kStep = 1031;
  size_t blocks = kBlocks / static_cast<size_t>(run.threads);
  size_t loops = run.share(2e6 / kAtOnce);
  Book<Inbox> inboxes(static_cast<size_t>(run.threads));
  run.in_threads([&](int me) {
    Random random(static_cast<uint64_t>(me));
    Tally tally;
    Book<char*> table(blocks);
    // The smaller of two even draws falls linearly. The first byte of every page is written, as in the original.
    auto allocate = [&] {
      size_t bytes = std::min(random.between(kLeast, kMost), random.between(kLeast, kMost));
      char* block = make(bytes, tally);
      for (size_t at = 4096; at < bytes; at += 4096) block[at] = 1;
      return block;
    };
    for (char*& block : table) block = allocate();
    size_t at = random.below(blocks);
    for (size_t loop = 0; loop < loops; loop++) {
      size_t to = (static_cast<size_t>(me) + 1 + loop / 2) % static_cast<size_t>(run.threads);
      for (size_t i = 0; i < kAtOnce; i++) {
        at = (at + kStep) % blocks;
        bool hand = loop % 2 == 1 && i < kHandedAtOnce && to != static_cast<size_t>(me);
        if (!hand || !hand_over(inboxes[to], table[at])) std::free(table[at]);
        table[at] = allocate();
      }
      free_handed(inboxes[static_cast<size_t>(me)]);
    }
    for (char* block : table) std::free(block);
    run.add(tally);
  });
  for (Inbox& inbox : inboxes) free_handed(inbox);
}

void mleak(Run& run) {
  constexpr size_t kWords = 16, kLeft = 1000;
  size_t rounds = run.share(4500);
  Book<std::atomic<void*>> left(kLeft);
  for (size_t round = 0; round < rounds; round++) {
    run.in_new_threads([&](int me) {
      Random random(round * kMaxThreads + static_cast<size_t>(me));
      void* object = std::calloc(kWords, sizeof(void*));
      if (object == nullptr) broken("calloc returned null");
      std::free(left[random.below(kLeft)].exchange(object));
      run.add({1, kWords * sizeof(void*)});
    });
  }
  for (std::atomic<void*>& object : left) std::free(object.load());
}

}  // namespace workloads
