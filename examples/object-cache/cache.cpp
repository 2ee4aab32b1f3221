// Threads parse requests, hand some on to their neighbours, check the requests that come to them,
// and give them back: to a pool, where they stay made, or to malloc, so that each is made anew. At
// the end the program prints how many requests were handled, how many were made, and what was
// contended.
//
// Usage: cache pool|malloc THREADS SECONDS. Called by: run.sh.
#include <lanemalloc/pool.h>
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <new>
#include <string_view>
#include <thread>
#include <vector>

#include "request.h"

namespace {

std::atomic<uint64_t> made{0};

Request* make_at(void* memory) {
  auto* request = new (memory) Request;
  if (!request->make()) return nullptr;
  made.fetch_add(1, std::memory_order_relaxed);
  return request;
}

// The pool makes requests when memory enters it. At the limit, a thread that wants a request waits.
class PoolCache {
 public:
  explicit PoolCache(size_t limit) {
    lane_pool_options options{};
    options.name = "requests";
    options.object_size = sizeof(Request);
    options.padding = LANE_OWN_LINE;  // each has a lock
    options.limit = limit;
    options.init = [](void* memory, size_t, void*) { return make_at(memory) != nullptr ? 0 : -1; };
    options.fini = [](void* memory, size_t, void*) { static_cast<Request*>(memory)->unmake(); };
    options.ctor = [](void* memory, size_t, void*) {
      return static_cast<Request*>(memory)->begin(), 0;
    };
    options.dtor = [](void* memory, size_t, void*) { static_cast<Request*>(memory)->end(); };
    pool_ = lane_pool_create(&options);
    if (pool_ == nullptr) std::abort();
  }
  Request* take() { return static_cast<Request*>(lane_pool_alloc_with(pool_, LANE_POOL_WAIT)); }
  void give(Request* request) { lane_pool_free(pool_, request); }
  // True if nothing is left.
  bool end() {
    lane_pool_statistics s;
    lane_pool_get_statistics(pool_, &s);
    std::printf(
        "waits %llu\nsenders_met %llu\nrefills %llu\n", static_cast<unsigned long long>(s.waits),
        static_cast<unsigned long long>(s.contended), static_cast<unsigned long long>(s.refills));
    return lane_pool_destroy(pool_) == 0;
  }

 private:
  lane_pool* pool_;
};

class MallocCache {
 public:
  explicit MallocCache(size_t) {}
  Request* take() {
    void* memory = std::malloc(sizeof(Request));
    Request* request = memory != nullptr ? make_at(memory) : nullptr;
    if (request == nullptr) return std::free(memory), nullptr;
    request->begin();
    return request;
  }
  void give(Request* request) {
    request->end();
    request->unmake();
    std::free(request);
  }
  bool end() {
    std::printf("waits 0\nsenders_met 0\nrefills 0\n");
    return true;
  }
};

// Where a thread leaves a request for its neighbour.
struct alignas(128) Mailbox {
  std::atomic<Request*> request{nullptr};
};

std::atomic<bool> stop{false};
std::atomic<uint64_t> handled{0}, wrong{0};

// Any thread that looks must find in the request the numbers of its query.
bool is_right(Request& request) {
  const uint64_t n = request.number("number");
  return n != 0 && request.number("twice") == 2 * n && request.sum() == 6 * n;
}

template <class Cache>
void handle(Cache& cache, Mailbox& own, Mailbox& neighbours, unsigned self) {
  uint64_t done = 0, bad = 0;
  const auto check = [&](Request* request) {
    bad += !is_right(*request);
    ++done;
    cache.give(request);
  };
  for (uint64_t i = 1; !stop.load(std::memory_order_relaxed); ++i) {
    Request* request = cache.take();
    if (request == nullptr) std::abort();
    char query[160];
    const unsigned long long n = i * 1000 + self + 1;
    const int length =
        std::snprintf(query, sizeof query, "number=%llu&twice=%llu&thrice=%llu", n, 2 * n, 3 * n);
    if (!request->parse(query, static_cast<size_t>(length))) ++bad;
    if (i % 4 == 0) request = neighbours.request.exchange(request, std::memory_order_acq_rel);
    if (request != nullptr) check(request);
    request = own.request.exchange(nullptr, std::memory_order_acq_rel);
    if (request != nullptr) check(request);
  }
  handled.fetch_add(done);
  wrong.fetch_add(bad);
}

template <class Cache>
bool run(unsigned threads, double seconds) {
  // There is one request for each mailbox and for half of the threads. A thread that wants one more
  // has to wait.
  Cache cache(threads + (threads + 1) / 2);
  auto mailboxes = std::make_unique<Mailbox[]>(threads);
  std::vector<std::thread> workers;
  const auto begin = std::chrono::steady_clock::now();
  for (unsigned i = 0; i < threads; ++i)
    workers.emplace_back([&, i] { handle(cache, mailboxes[i], mailboxes[(i + 1) % threads], i); });
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  stop = true;
  for (std::thread& worker : workers) worker.join();
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  for (unsigned i = 0; i < threads; ++i)
    if (Request* request = mailboxes[i].request.load(); request != nullptr) cache.give(request);
  std::printf("handled %llu\nwrong %llu\nmade %llu\nseconds %.3f\n",
              static_cast<unsigned long long>(handled.load()),
              static_cast<unsigned long long>(wrong.load()),
              static_cast<unsigned long long>(made.load()), time.count());
  return cache.end() && wrong == 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view cache = argc > 1 ? argv[1] : "";
  const unsigned long threads = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 0;
  const double seconds = argc > 3 ? std::strtod(argv[3], nullptr) : 0;
  if (argc != 4 || (cache != "pool" && cache != "malloc") || threads < 1 || threads > 1000 ||
      !(seconds > 0)) {
    std::fprintf(stderr, "usage: cache pool|malloc THREADS SECONDS\n");
    return 2;
  }
  const auto n = static_cast<unsigned>(threads);
  const bool good = cache == "pool" ? run<PoolCache>(n, seconds) : run<MallocCache>(n, seconds);
  malloc_stats();
  return good ? 0 : 1;
}
