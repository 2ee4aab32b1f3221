// The classic programs in which every thread works on its own.
//
// threadtest         Berger et al., "Hoard" (ASPLOS 2000): each thread allocates its share of N
//                    objects of one size and frees them all, again and again. Stresses the fast
//                    path in bulk, and slabs that fill and empty.
// cache-scratch      the same paper: the main thread hands each thread an object of one byte; the
//                    thread frees it, then allocates one of the same size, writes to it 2,000,000
//                    times / threads, frees it, and so on. Passive false sharing: an allocator that
//                    gives out pieces of the first thread's cache line makes the writes slow. An
//                    operation is a thousand writes.
// cache-thrash       the same paper: as cache-scratch, but the main thread hands out no objects.
//                    Active false sharing.
// t-test1            Wolfram Gloger's test of ptmalloc: bins of blocks up to 10,000 bytes; out of
//                    1,024 steps, 4 call memalign, 16 calloc, 80 realloc, the rest malloc; a thread
//                    ends after 10,000 steps and another starts.
// alloc-test         OLogN Technologies, "Testing Memory Allocators" (2018): slots, chosen by
//                    Pareto's law (80 % of the calls go to 20 % of them), are filled or emptied;
//                    2^18 slots for all threads together, objects of up to 1 KiB, each doubling of
//                    the size half as likely; all bytes are written and read again.
// glibc-simple       the C library's benchtests, malloc-simple: 25, 100, 400 and 1,600 blocks of
//                    one size; one half is freed first in, first out, the other half last in, first
//                    out; for sizes from 16 to 4,096 bytes.
// glibc-thread       the same, malloc-thread: 1,024 blocks per thread, replaced at random; sizes
//                    from 4 bytes to 32 KiB, whose probability falls with their inverse square (the
//                    mean is 36 bytes). The working set fits a cache.
#include "workloads.h"

namespace workloads {

void threadtest(Run& run) {
  constexpr size_t kObjects = 131'072, kBytes = 64;
  run.in_threads([&](int me) {
    Worker worker(run, me);
    Book<char*> objects(kObjects / static_cast<size_t>(run.threads));
    do {
      for (char*& object : objects) object = make(kBytes, worker.tally);
      for (char* object : objects) std::free(object);
    } while (worker.goes_on());
  });
}

namespace {

constexpr size_t kWritesAtOnce = 1000;

char* one_byte() {
  char* object = static_cast<char*>(std::malloc(1));
  if (object == nullptr) broken("malloc returned null");
  return object;
}

// Objects that are written many times before they are freed.
void write_objects(Run& run, int me) {
  constexpr size_t kWrites = 2'000'000;
  Worker worker(run, me);
  const size_t times = kWrites / kWritesAtOnce / static_cast<size_t>(run.threads);
  do {
    volatile char* object = one_byte();
    for (size_t i = 0; i < times; i++) {
      for (size_t write = 0; write < kWritesAtOnce; write++)
        *object = static_cast<char>(*object + 1);
    }
    std::free(const_cast<char*>(object));
    worker.tally.operations += times;
    worker.tally.checksum++;
  } while (worker.goes_on());
}

}  // namespace

void cache_scratch(Run& run) {
  std::array<char*, kMaxThreads> handed_out;
  for (int i = 0; i < run.threads; i++) handed_out[static_cast<size_t>(i)] = one_byte();
  run.in_threads([&](int me) {
    std::free(handed_out[static_cast<size_t>(me)]);
    write_objects(run, me);
  });
}

void cache_thrash(Run& run) {
  run.in_threads([&](int me) { write_objects(run, me); });
}

namespace {

// One step of t-test1 on one bin: sizes[i] is the size of blocks[i], 0 if there is no block.
void replace(char*& block, uint32_t& size, Random& random, Tally& tally) {
  size_t bytes = random.between(1, 10'000);
  size_t choice = random.below(1024);
  if (choice >= 20 && choice < 100 && block != nullptr) {
    char kept = block[0];
    char* moved = static_cast<char*>(std::realloc(block, bytes));
    if (moved == nullptr || moved[0] != kept) broken("realloc lost a byte");
    block = moved;
  } else {
    std::free(block);
    if (choice < 4) {
      block = static_cast<char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
      if (reinterpret_cast<uintptr_t>(block) % 64 != 0) broken("a block is not aligned");
    } else if (choice < 20) {
      block = static_cast<char*>(std::calloc(1, bytes));
      if (block != nullptr && (block[0] != 0 || block[bytes - 1] != 0))
        broken("calloc's block is not zero");
    } else {
      block = static_cast<char*>(std::malloc(bytes));
    }
    if (block == nullptr) broken("malloc returned null");
  }
  for (size_t at = 0; at < bytes; at += 2048) block[at] = static_cast<char>(bytes);
  block[bytes - 1] = static_cast<char>(bytes);
  size = static_cast<uint32_t>(bytes);
  tally.operations++;
  tally.checksum += bytes;
}

}  // namespace

void t_test1(Run& run) {
  constexpr size_t kBins = 4096, kStepsOfThread = 10'000, kStepsAtOnce = 30;
  size_t bins = kBins / static_cast<size_t>(run.threads);
  Book<char*> all_blocks(bins * static_cast<size_t>(run.threads));
  Book<uint32_t> all_sizes(bins * static_cast<size_t>(run.threads));
  run.in_generations([&](int chain, size_t generation) {
    char** blocks = all_blocks.data() + bins * static_cast<size_t>(chain);
    uint32_t* sizes = all_sizes.data() + bins * static_cast<size_t>(chain);
    Random random(generation * kMaxThreads + static_cast<size_t>(chain));
    Worker worker(run, chain);
    for (size_t bin = 0; bin < bins; bin++) {
      if (random.one_in(2)) replace(blocks[bin], sizes[bin], random, worker.tally);
    }
    bool goes_on;
    do {
      for (size_t steps = random.below(kStepsAtOnce); steps > 0; steps--) {
        size_t bin = random.below(bins);
        std::free(blocks[bin]);
        blocks[bin] = nullptr;
      }
      for (size_t steps = random.below(kStepsAtOnce); steps > 0; steps--) {
        size_t bin = random.below(bins);
        replace(blocks[bin], sizes[bin], random, worker.tally);
      }
      goes_on = worker.goes_on();
    } while (goes_on && worker.tally.operations < kStepsOfThread);
    for (size_t bin = 0; bin < bins; bin++) {
      std::free(blocks[bin]);
      blocks[bin] = nullptr;
    }
    return goes_on;
  });
}

namespace {

// Returns a number below count. The first fifth of the range has 80 % of the probability, and the
// same holds inside each part.
size_t by_pareto(size_t count, Random& random) {
  size_t from = 0;
  uint32_t bits = random.next();
  for (int level = 0; level < 3; level++, bits >>= 8) {
    size_t fifth = count / 5;
    if ((bits & 255) < 205) {
      count = fifth;
    } else {
      from += fifth;
      count -= fifth;
    }
  }
  return from + random.below(count);
}

}  // namespace

void alloc_test(Run& run) {
  constexpr size_t kSlots = 262'144;
  constexpr int kDoublings = 6;  // sizes from 16 to 1,023 bytes
  constexpr size_t kStepsAtOnce = 256;
  size_t slots = kSlots / static_cast<size_t>(run.threads);
  struct Slot {
    unsigned char* block;
  };
  run.in_threads([&](int me) {
    Random random(static_cast<uint64_t>(me));
    Worker worker(run, me);
    Book<Slot> table(slots);
    uint64_t read = 0;
    // The first two bytes hold the size.
    auto empty = [&](Slot& slot) {
      uint16_t bytes;
      std::memcpy(&bytes, slot.block, sizeof bytes);
      for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t word;
        std::memcpy(&word, slot.block + i, sizeof word);
        read += word;
      }
      std::free(slot.block);
      slot.block = nullptr;
    };
    auto fill = [&](Slot& slot) {
      int doublings = std::min(__builtin_ctz(random.next() | 1u << 31), kDoublings - 1);
      size_t least = size_t{16} << doublings;
      uint16_t bytes = static_cast<uint16_t>(least + random.below(least));
      slot.block = reinterpret_cast<unsigned char*>(make(bytes, worker.tally));
      std::memset(slot.block, static_cast<int>(bytes & 255), bytes);
      std::memcpy(slot.block, &bytes, sizeof bytes);
    };
    for (size_t i = 0; i < slots; i += 2) fill(table[i]);
    do {
      for (size_t i = 0; i < kStepsAtOnce; i++) {
        Slot& slot = table[by_pareto(slots, random)];
        if (slot.block != nullptr) {
          empty(slot);
        } else {
          fill(slot);
        }
      }
    } while (worker.goes_on());
    for (Slot& slot : table) {
      if (slot.block != nullptr) empty(slot);
    }
    worker.tally.checksum += read;
  });
}

void glibc_simple(Run& run) {
  constexpr size_t kBlocks[] = {25, 100, 400, 1600};
  constexpr size_t kSizes[] = {16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
  Book<char*> blocks(kBlocks[3]);
  Worker worker(run, 0);
  for (size_t number = 0;; number++) {
    size_t count = kBlocks[number % std::size(kBlocks)];
    size_t bytes = kSizes[number / std::size(kBlocks) % std::size(kSizes)];
    // The number of blocks is the same for every count, and lower for large sizes, where the memory
    // itself takes the time.
    for (size_t rounds = 4 * kBlocks[3] / count * 256 / std::max<size_t>(bytes, 256); rounds > 0;
         rounds--) {
      for (size_t i = 0; i < count; i++) blocks[i] = make(bytes, worker.tally);
      for (size_t i = 0; i < count / 2; i++) std::free(blocks[i]);
      for (size_t i = count; i-- > count / 2;) std::free(blocks[i]);
    }
    if (!worker.goes_on()) return;
  }
}

void glibc_thread(Run& run) {
  constexpr size_t kWorkingSet = 1024, kSizes = 8000, kStepsAtOnce = 256;
  constexpr double kLeast = 4, kMost = 32'768;
  Book<uint16_t> sizes(kSizes);
  Random drawn(88);
  for (uint16_t& size : sizes) {
    double even = drawn.next() / 4294967296.0;
    size = static_cast<uint16_t>(1 / (1 / kLeast + (1 / kMost - 1 / kLeast) * even));
  }
  run.in_threads([&](int me) {
    Random random(static_cast<uint64_t>(me));
    Worker worker(run, me);
    Book<char*> blocks(kWorkingSet);
    size_t drawn_at = random.below(kSizes);
    do {
      for (size_t i = 0; i < kStepsAtOnce; i++) {
        char*& block = blocks[random.below(kWorkingSet)];
        std::free(block);
        size_t bytes = sizes[drawn_at];
        drawn_at = drawn_at + 1 == kSizes ? 0 : drawn_at + 1;
        block = make(bytes, worker.tally);
        std::memset(block, static_cast<int>(bytes & 255), bytes);
      }
    } while (worker.goes_on());
    for (char* block : blocks) std::free(block);
  });
}

}  // namespace workloads
