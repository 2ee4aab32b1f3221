// Objects that grow, objects that are large, and memory that is needed now and not later.
//
// realloc       strings and vectors that grow to 96 KiB in steps, many at once: half of them grow
//               by a half each time, as vectors do, the others by a sixteenth, as buffers do that
//               are appended to. Stresses realloc, in place or not.
// malloc-large  Stolyarov's benchmark in mimalloc's suite: 20 buffers of 5 to 25 MiB, replaced at
//               random; every byte is written. Shows what an allocator does with the memory of
//               large objects: keep it, or fault it in again.
// burst-idle    what users of containers report: bursts of 200 MB, freed when they are over, with
//               nothing to do between them. It measures memory, not a rate. The threads still live
//               while the idle memory is measured.
// size-shift    after Robson's and Wilson's worst case of fragmentation (Wilson et al., "Dynamic
//               storage allocation: a survey", IWMM 1995): memory is filled with one mix of sizes,
//               nine tenths are freed in scattered order, and the program goes on with other sizes
//               while the rest stays.
#include "workloads.h"

namespace workloads {

namespace {

constexpr size_t kAtOnce = 64;  // operations between two looks at the board

}  // namespace

void realloc_growth(Run& run) {
  constexpr size_t kBuffers = 128, kLimit = 96 * 1024;
  size_t buffers = std::max<size_t>(1, kBuffers / static_cast<size_t>(run.threads));
  struct Buffer {
    char* bytes;
    size_t size;
  };
  run.in_threads([&](int me) {
    Random random(static_cast<uint64_t>(me));
    Worker worker(run, me);
    Book<Buffer> table(buffers);
    bool goes_on = true;
    while (goes_on) {
      for (size_t growing = buffers; goes_on && growing > 0;) {
        size_t i = random.below(buffers);
        Buffer& buffer = table[i];
        if (buffer.size >= kLimit) continue;
        size_t bytes = buffer.size + std::max<size_t>(16, buffer.size / (i % 2 == 0 ? 2 : 16));
        char* moved = static_cast<char*>(std::realloc(buffer.bytes, bytes));
        if (moved == nullptr) broken("realloc returned null");
        if (buffer.size != 0 && moved[buffer.size - 1] != static_cast<char>(i))
          broken("realloc lost a byte");
        std::memset(moved + buffer.size, static_cast<int>(i), bytes - buffer.size);
        buffer = {moved, bytes};
        worker.tally.checksum += bytes;
        if (bytes >= kLimit) growing--;
        if (++worker.tally.operations % kAtOnce == 0) goes_on = worker.goes_on();
      }
      for (Buffer& buffer : table) {
        std::free(buffer.bytes);
        buffer = {};
      }
    }
  });
}

void malloc_large(Run& run) {
  constexpr size_t kBuffers = 20, kMiB = 1024 * 1024;
  Random random(1);
  Worker worker(run, 0);
  std::array<char*, kBuffers> buffers{};
  do {
    char*& buffer = buffers[random.below(kBuffers)];
    std::free(buffer);
    size_t bytes = random.between(5 * kMiB, 25 * kMiB);
    buffer = make(bytes, worker.tally);
    std::memset(buffer, static_cast<int>(bytes & 255), bytes);
  } while (worker.goes_on());
  for (char* buffer : buffers) std::free(buffer);
}

namespace {

// A list threaded through the objects, so that no books are needed for many of them.
struct Listed {
  Listed* next;
  size_t bytes;
};

struct List {
  Listed* first = nullptr;
  void push(Listed* object) {
    object->next = first;
    first = object;
  }
  void free_all() {
    while (first != nullptr) {
      Listed* object = first;
      first = object->next;
      std::free(object);
    }
  }
};

// An object of at least 16 bytes, with a byte written on each of its pages.
Listed* listed(size_t bytes, Tally& tally) {
  bytes = std::max(bytes, sizeof(Listed));
  char* object = make(bytes, tally);
  for (size_t at = 4096; at < bytes; at += 4096) object[at] = 1;
  Listed* result = reinterpret_cast<Listed*>(object);
  result->bytes = bytes;
  return result;
}

}  // namespace

void burst_idle(Run& run) {
  constexpr double kBurst = 200e6, kRestSeconds = 0.03;
  // A run that is too short for a burst has a smaller one.
  constexpr double kBytesOfAnObject = 2000;
  const double wanted =
      run.operations == 0 ? kBurst : static_cast<double>(run.operations) * kBytesOfAnObject;
  size_t target = static_cast<size_t>(std::min(kBurst, wanted) / run.threads);
  bool is_over = false;  // set by the first thread, between two barriers
  pthread_barrier_t over;
  pthread_barrier_init(&over, nullptr, static_cast<unsigned>(run.threads));
  run.in_parked_threads([&](int me) {
    Random random(static_cast<uint64_t>(me));
    Worker worker(run, me);
    while (!is_over) {
      List kept[2];
      for (size_t live = 0; live < target;) {
        // Requests and their documents, from 32 bytes to 8 KiB; now and then a large buffer.
        size_t bytes =
            random.one_in(2000) ? random.between(100'000, 1'000'000) : random.by_powers(5, 13);
        Listed* object = listed(bytes, worker.tally);
        live += object->bytes;
        kept[random.below(2)].push(object);
        if (worker.tally.operations % kAtOnce == 0) worker.publish();
      }
      for (List& list : kept) list.free_all();
      pthread_barrier_wait(&over);
      if (me == 0) {
        is_over = !run.goes_on();
        run.rest(kRestSeconds);
      }
      pthread_barrier_wait(&over);
    }
  });
  pthread_barrier_destroy(&over);
}

namespace {

constexpr size_t kScattered = 1024;  // lists among which the objects are scattered

// Fills memory with objects of one mix of sizes and frees nine tenths of them in scattered order.
template <class Bytes>
void fill_and_thin_out(size_t target, Book<List>& lists, List& kept, Random& random, Worker& worker,
                       Bytes bytes) {
  for (size_t live = 0; live < target;) {
    Listed* object = listed(bytes(random), worker.tally);
    live += object->bytes;
    lists[random.below(kScattered)].push(object);
    if (worker.tally.operations % kAtOnce == 0) worker.publish();
  }
  for (List& list : lists) {
    while (list.first != nullptr) {
      Listed* object = list.first;
      list.first = object->next;
      if (random.one_in(10)) {
        kept.push(object);
      } else {
        std::free(object);
      }
    }
  }
}

}  // namespace

void size_shift(Run& run) {
  constexpr double kFilled = 24e6;
  size_t target = static_cast<size_t>(kFilled / run.threads);
  run.in_parked_threads([&](int me) {
    Random random(static_cast<uint64_t>(me));
    Worker worker(run, me);
    Book<List> lists(kScattered);
    do {
      List kept;
      auto go = [&](auto bytes) { fill_and_thin_out(target, lists, kept, random, worker, bytes); };
      go([](Random& r) { return r.between(16, 64); });
      go([](Random& r) { return r.between(200, 1000); });
      go([](Random& r) { return r.between(40, 160); });
      go([](Random& r) { return r.between(2000, 8000); });
      go([](Random& r) { return r.between(300, 500); });
      go([](Random& r) { return r.between(10'000, 60'000); });
      kept.free_all();
    } while (worker.goes_on());
  });
}

}  // namespace workloads
