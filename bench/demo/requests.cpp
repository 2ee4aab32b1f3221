// A request-serving workload: 64 threads that share memory as a server's threads do.
//
//   feeder ──request text──> 8 queues ──> worker ──response──> mailbox of another worker,
//                                           │  ▲               which sends and frees it
//                                           ▼  │
//                                     cache of documents, shared by all, least recently used ones
//                                     dropped
//
// The feeder allocates the request, a worker parses and frees it. A third thread frees the
// response; the thread that evicts a cached document frees it. Sizes are mixed, 16 bytes to 64 KiB.
// The number of requests is fixed and the checksum of all responses does not depend on the order,
// so every allocator must print the same checksum. When the work is done, the threads stay, most of
// the cache expires, and the process idles until its resident memory no longer falls: the rest is
// memory that the allocator keeps. Usage: requests [REQUESTS [THREADS]]. Called by:
// bench/demo/demo.py.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../measure.h"

namespace {

constexpr int kMaxThreads = 256;
constexpr size_t kQueues = 8;
constexpr size_t kTake = 16;
constexpr size_t kQueueLimit = 512;
constexpr size_t kShards = 16;
constexpr size_t kKeys = 60'000;
constexpr size_t kCacheBytes = 96u << 20;
constexpr uint64_t kIdleDeadlineNs = 8'000'000'000;
constexpr uint64_t kIdleLeastNs = 2'500'000'000;

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
  return x ^ (x >> 29);
}

uint64_t hash_of(std::string_view text) {
  uint64_t h = 0xcbf29ce484222325u;
  for (char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return h;
}

// A document and its fields: many small strings and one large.
struct Document {
  std::vector<std::pair<std::string, std::string>> fields;
  std::string text;

  explicit Document(uint64_t key) {
    uint64_t seed = mix(key + 1);
    fields.reserve(2 + seed % 12);
    for (size_t i = 0; i < 2 + seed % 12; i++) {
      fields.emplace_back("field-of-document-" + std::to_string(i),
                          std::string(8 + mix(seed + i) % 90, 'v'));
    }
    size_t bytes = seed % 64 == 0 ? 8192 + seed % 57344 : 128 + seed % 4000;
    text.assign(bytes, static_cast<char>('a' + seed % 26));
  }
  size_t bytes() const { return text.size() + fields.size() * 160; }
};

class Cache {
 public:
  std::shared_ptr<const Document> find_or_make(uint64_t key) {
    Shard& shard = shards_[mix(key) % kShards];
    {
      std::lock_guard lock(shard.mutex);
      if (auto found = shard.map.find(key); found != shard.map.end()) {
        shard.order.splice(shard.order.begin(), shard.order, found->second);
        return found->second->second;
      }
    }
    auto document = std::make_shared<const Document>(key);
    std::lock_guard lock(shard.mutex);
    if (shard.map.contains(key)) return document;
    shard.order.emplace_front(key, document);
    shard.map[key] = shard.order.begin();
    shard.bytes += document->bytes();
    shrink(shard, kCacheBytes / kShards);
    return document;
  }

  void expire(size_t bytes_left) {
    for (Shard& shard : shards_) {
      std::lock_guard lock(shard.mutex);
      shrink(shard, bytes_left / kShards);
    }
  }

 private:
  using Order = std::list<std::pair<uint64_t, std::shared_ptr<const Document>>>;
  struct alignas(128) Shard {
    std::mutex mutex;
    Order order;
    std::unordered_map<uint64_t, Order::iterator> map;
    size_t bytes = 0;
  };

  static void shrink(Shard& shard, size_t limit) {
    while (shard.bytes > limit && !shard.order.empty()) {
      shard.bytes -= shard.order.back().second->bytes();
      shard.map.erase(shard.order.back().first);
      shard.order.pop_back();
    }
  }

  Shard shards_[kShards];
};

// A bounded queue of owned items. After close(), take() returns nothing once the queue is empty.
template <class T>
class alignas(128) Queue {
 public:
  void put(T item) {
    std::unique_lock lock(mutex_);
    has_room_.wait(lock, [&] { return items_.size() < kQueueLimit; });
    items_.push_back(std::move(item));
    lock.unlock();
    has_items_.notify_one();
  }
  void put_unbounded(T item) {
    std::lock_guard lock(mutex_);
    items_.push_back(std::move(item));
  }
  std::vector<T> take(size_t most) {
    std::unique_lock lock(mutex_);
    has_items_.wait(lock, [&] { return closed_ || !items_.empty(); });
    return take_locked(most);
  }
  std::vector<T> take_if_any(size_t most) {
    std::lock_guard lock(mutex_);
    return take_locked(most);
  }
  void close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    has_items_.notify_all();
  }

 private:
  std::vector<T> take_locked(size_t most) {
    std::vector<T> taken;
    while (!items_.empty() && taken.size() < most) {
      taken.push_back(std::move(items_.front()));
      items_.pop_front();
    }
    has_room_.notify_all();
    return taken;
  }

  std::mutex mutex_;
  std::condition_variable has_items_, has_room_;
  std::list<T> items_;
  bool closed_ = false;
};

struct Response {
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  uint64_t sum() const {
    uint64_t h = hash_of(body);
    for (const auto& [name, value] : headers) h += hash_of(name) * 3 + hash_of(value);
    return h;
  }
};

class Server {
 public:
  explicit Server(int threads) : mailboxes_(static_cast<size_t>(threads)) {
    for (int i = 0; i < threads; i++)
      workers_.emplace_back([this, i] { work(static_cast<size_t>(i)); });
  }

  uint64_t serve(uint64_t requests) {
    for (uint64_t id = 0; id < requests; id++) {
      uint64_t draw = mix(id * 7 + 3);
      // Most requests ask for few documents.
      uint64_t key = draw % 4 != 0 ? mix(draw) % (kKeys / 20) : mix(draw) % kKeys;
      auto text = std::make_unique<std::string>("GET /documents/" + std::to_string(key) +
                                                "?request=" + std::to_string(id));
      for (uint64_t i = 0; i < draw % 9; i++) {
        *text += "&parameter" + std::to_string(i) + "=" + std::string(4 + mix(draw + i) % 60, 'p');
      }
      queues_[id % kQueues].put(std::move(text));
    }
    for (auto& queue : queues_) queue.close();
    std::unique_lock lock(mutex_);
    all_idle_.wait(lock, [&] { return idle_ == workers_.size(); });
    // Responses that were put into a mailbox after its owner had stopped looking.
    for (auto& mailbox : mailboxes_) send(mailbox.take_if_any(SIZE_MAX));
    return checksum_.load();
  }

  void expire_cache() { cache_.expire(kCacheBytes / 8); }

  void stop() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    stop_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

 private:
  static std::vector<std::string> split(std::string_view text, char at) {
    std::vector<std::string> parts;
    for (size_t start = 0; start <= text.size();) {
      size_t end = std::min(text.find(at, start), text.size());
      parts.emplace_back(text.substr(start, end - start));
      start = end + 1;
    }
    return parts;
  }

  std::unique_ptr<Response> answer(const std::string& request) {
    size_t question = request.find('?');
    std::unordered_map<std::string, std::string> parameters;
    for (const std::string& item : split(std::string_view(request).substr(question + 1), '&')) {
      size_t equals = item.find('=');
      parameters[item.substr(0, equals)] = item.substr(equals + 1);
    }
    std::vector<std::string> path = split(std::string_view(request).substr(0, question), '/');
    std::shared_ptr<const Document> document =
        cache_.find_or_make(std::strtoull(path.back().c_str(), nullptr, 10));
    auto response = std::make_unique<Response>();
    response->headers.emplace_back("Content-Type", "text/plain; charset=utf-8");
    response->headers.emplace_back("X-Request-Identifier", parameters["request"]);
    for (const auto& field : document->fields) response->headers.push_back(field);
    response->body = "{";
    for (size_t i = 0; i < parameters.size() - 1; i++) {
      response->body += parameters["parameter" + std::to_string(i)] + ",";
    }
    response->body.append(document->text, 0, 2048);
    return response;
  }

  void send(std::vector<std::unique_ptr<Response>> responses) {
    uint64_t sum = 0;
    for (const auto& response : responses) sum += response->sum();
    checksum_ += sum;
  }

  void work(size_t me) {
    Queue<std::unique_ptr<std::string>>& queue = queues_[me % kQueues];
    uint64_t turn = me;
    for (;;) {
      std::vector<std::unique_ptr<std::string>> requests = queue.take(kTake);
      if (requests.empty()) break;
      for (const auto& request : requests) {
        std::unique_ptr<Response> response = answer(*request);
        mailboxes_[mix(turn++) % mailboxes_.size()].put_unbounded(std::move(response));
      }
      send(mailboxes_[me].take_if_any(2 * kTake));
    }
    std::unique_lock lock(mutex_);
    idle_++;
    all_idle_.notify_all();
    stop_.wait(lock, [&] { return stopping_; });
  }

  Cache cache_;
  Queue<std::unique_ptr<std::string>> queues_[kQueues];
  std::vector<Queue<std::unique_ptr<Response>>> mailboxes_;
  std::mutex mutex_;
  std::condition_variable all_idle_, stop_;
  size_t idle_ = 0;
  bool stopping_ = false;
  std::atomic<uint64_t> checksum_{0};
  std::vector<std::thread> workers_;
};

// Returns the resident memory once it has not fallen for a second, but not before the least time
// nor after the deadline.
unsigned long settled_kib() {
  uint64_t start = wall_ns(), fell = start;
  unsigned long least = rss_kib();
  for (uint64_t now = start; now - start < kIdleDeadlineNs; now = wall_ns()) {
    if (now - start > kIdleLeastNs && now - fell > 1'000'000'000) break;
    struct timespec pause = {0, 100'000'000};
    nanosleep(&pause, nullptr);
    unsigned long rss = rss_kib();
    if (rss + 64 < least) {
      least = rss;
      fell = wall_ns();
    }
  }
  return rss_kib();
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t requests = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 200'000;
  int threads = argc > 2 ? std::atoi(argv[2]) : 64;
  if (requests == 0 || threads < 1 || threads > kMaxThreads) {
    std::fprintf(stderr, "usage: requests [REQUESTS [THREADS]]\n");
    return 2;
  }
  Server server(threads);
  uint64_t wall = wall_ns(), cpu = process_cpu_ns();
  uint64_t checksum = server.serve(requests);
  wall = wall_ns() - wall;
  cpu = process_cpu_ns() - cpu;
  unsigned long end = rss_kib();
  server.expire_cache();
  unsigned long settled = settled_kib();
  std::printf(
      "requests_per_s=%.0f wall_s=%.3f cpu_s=%.3f peak_kib=%lu end_kib=%lu settled_kib=%lu "
      "checksum=%016llx "
      "library=%s\n",
      static_cast<double>(requests) * 1e9 / static_cast<double>(wall),
      static_cast<double>(wall) / 1e9, static_cast<double>(cpu) / 1e9, peak_rss_kib(), end, settled,
      static_cast<unsigned long long>(checksum), malloc_file(nullptr));
  std::fflush(stdout);
  server.stop();
  return 0;
}
