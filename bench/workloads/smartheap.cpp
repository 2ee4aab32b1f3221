// MicroQuill's benchmarks of SmartHeap, after their descriptions.
//
// sh6  waves of objects from 1 to 1,000 bytes, small ones more often; one part of each wave is
//      freed in the order of allocation, one backwards, and one stays for the next wave. Stresses
//      free lists in both orders and fragmentation.
// sh8  the same in many threads; in addition, other threads free some of the objects.
#include "workloads.h"

namespace workloads {

namespace {

constexpr size_t kLiveObjects = 122'880;  // of all threads, about 9 MB
constexpr size_t kExchanged = 4096;

// Sizes go up in steps through a wave, and the smaller a size is, the more often it is used. The
// steps are different in every wave.
class Sizes {
 public:
  explicit Sizes(size_t wave) : size_(1 + wave % 8) {}
  size_t next() {
    if (left_-- == 0) {
      size_ += 8 + size_ / 8;
      if (size_ > 1000) size_ = 1 + size_ % 8;
      left_ = std::max<size_t>(1, 128 / (1 + size_ / 16));
    }
    return size_;
  }

 private:
  size_t size_;
  size_t left_ = 128;
};

// drop(object) takes an object that is no longer needed.
template <class Drop>
void waves(Run& run, int me, Drop drop) {
  size_t objects = kLiveObjects / static_cast<size_t>(run.threads);
  Worker worker(run, me);
  Book<char*> live(objects);
  size_t third = objects / 3;
  size_t wave = 0;
  do {
    Sizes sizes(wave);
    for (char*& object : live) {
      if (object == nullptr) object = make(sizes.next(), worker.tally);
    }
    // The thirds change places from wave to wave, so every object is freed in its turn.
    size_t forwards = wave % 3 * third, backwards = (wave + 1) % 3 * third;
    for (size_t i = forwards; i < forwards + third; i++) {
      drop(live[i]);
      live[i] = nullptr;
    }
    for (size_t i = backwards + third; i-- > backwards;) {
      std::free(live[i]);
      live[i] = nullptr;
    }
    wave++;
  } while (worker.goes_on());
  for (char* object : live) std::free(object);
}

}  // namespace

void sh6(Run& run) {
  run.in_threads([&](int me) { waves(run, me, [](char* object) { std::free(object); }); });
}

void sh8(Run& run) {
  // An object that goes in here is freed by the thread that puts the next one into the same place.
  Book<std::atomic<char*>> exchanged(kExchanged);
  run.in_threads([&](int me) {
    Random random(static_cast<uint64_t>(me));
    waves(run, me, [&](char* object) {
      if (random.one_in(2)) object = exchanged[random.below(kExchanged)].exchange(object);
      std::free(object);
    });
  });
  for (std::atomic<char*>& object : exchanged) std::free(object.load());
}

}  // namespace workloads
