// An RPC server with many more threads than CPUs, and its clients, in one process.
//
//   clients ──frames──> socket pairs ──> poller ──ready connections──> workers ──frames──> clients
//
// A worker takes any connection that is ready, so connections move between workers: one worker
// allocates for a connection (its input buffer, its session), and another grows, replaces and frees
// that memory. A request also makes a message and a document of strings of 16 bytes to 8 KiB, which
// die with the request; one request in 64 makes twenty times as much. So a worker that keeps a
// cache of its own keeps it warm in many size classes, though most workers wait at any moment.
// Each client has one request on the way. The replies depend on the requests alone: every allocator
// must give the same checksum.
// Usage: server [THREADS [REQUESTS [CONNECTIONS]]]; a quarter of the threads are clients. Prints
// requests/s and peak RSS.
// Called by: bench/seeds/experiments.py.
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
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

constexpr uint64_t kHeavyOneIn = 64;
constexpr size_t kNodes = 24, kHeavyTimes = 20;
constexpr size_t kSessionKeys = 48;
constexpr size_t kLargestTextBits = 13, kSmallestTextBits = 4;
constexpr int kEvents = 16;

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
  return x ^ (x >> 29);
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(mix(seed + 1)) {}
  uint64_t next() { return state_ = mix(state_ + 0x9e3779b97f4a7c15u); }
  uint64_t below(uint64_t n) { return (next() >> 8) % n; }
  // 2^low .. 2^high, each doubling equally likely.
  size_t doubling(size_t low, size_t high) {
    size_t bits = low + below(high - low);
    return (size_t{1} << bits) + below(size_t{1} << bits);
  }

 private:
  uint64_t state_;
};

struct FrameHeader {
  uint32_t bytes;  // of the text that follows
  uint32_t check;
};

uint32_t check_of(std::string_view text) {
  uint64_t h = text.size();
  for (size_t i = 0; i + 8 <= text.size(); i += 64) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, sizeof word);
    h = mix(h + word);
  }
  return static_cast<uint32_t>(h);
}

void append_frame(std::string& out, std::string_view text) {
  FrameHeader header = {static_cast<uint32_t>(text.size()), check_of(text)};
  out.append(reinterpret_cast<const char*>(&header), sizeof header);
  out.append(text);
}

void send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) std::abort();
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

// Appends the bytes that have arrived; returns false if there are none.
bool receive_some(int fd, std::string& input, int flags) {
  size_t had = input.size();
  input.resize(had + 4096);
  ssize_t n = recv(fd, input.data() + had, 4096, flags);
  input.resize(had + static_cast<size_t>(n > 0 ? n : 0));
  return n > 0;
}

// Takes one whole frame from the front of the input; returns false if there is none.
bool take_frame(std::string& input, std::string& text) {
  FrameHeader header;
  if (input.size() < sizeof header) return false;
  std::memcpy(&header, input.data(), sizeof header);
  if (input.size() < sizeof header + header.bytes) return false;
  text.assign(input, sizeof header, header.bytes);
  if (check_of(text) != header.check) std::abort();
  input.erase(0, sizeof header + header.bytes);
  return true;
}

using Fields = std::vector<std::pair<std::string, std::string>>;

Fields parse(std::string_view text) {
  Fields fields;
  while (!text.empty()) {
    size_t end = std::min(text.find('&'), text.size()), equals = text.find('=');
    fields.emplace_back(text.substr(0, equals), text.substr(equals + 1, end - equals - 1));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return fields;
}

struct Node {
  std::string name, text;
  std::vector<std::unique_ptr<Node>> children;

  size_t bytes() const {
    size_t sum = name.size() + text.size();
    for (const auto& child : children) sum += child->bytes();
    return sum;
  }
};

std::unique_ptr<Node> make_document(Random& random, size_t nodes) {
  auto node = std::make_unique<Node>();
  node->name = "node-" + std::to_string(random.below(1'000'000'000'000));
  node->text.assign(random.doubling(kSmallestTextBits, kLargestTextBits), 't');
  for (size_t left = nodes - 1; left > 0;) {
    size_t part = 1 + random.below(left);
    node->children.push_back(make_document(random, part));
    left -= part;
  }
  return node;
}

struct Connection {
  int server_end = -1, client_end = -1;
  std::string input;
  std::unordered_map<uint64_t, std::string> session;
};

std::string answer(Connection& connection, const std::string& request) {
  Fields fields = parse(request);
  Random random(std::strtoull(fields[0].second.c_str(), nullptr, 10));
  bool heavy = random.below(kHeavyOneIn) == 0;
  std::unique_ptr<Node> document = make_document(random, heavy ? kNodes * kHeavyTimes : kNodes);
  std::string& kept = connection.session[random.below(kSessionKeys)];
  kept = std::string(random.doubling(5, 11), 's');
  std::string reply =
      "bytes=" + std::to_string(document->bytes()) + "&kept=" + std::to_string(kept.size());
  for (const auto& [name, value] : fields) reply += "&" + name + "=" + std::to_string(value.size());
  reply += "&body=" + document->text + std::string(random.doubling(5, 12), 'b');
  return reply;
}

class ReadyQueue {
 public:
  void put(Connection* connection) {
    {
      std::lock_guard lock(mutex_);
      ready_.push_back(connection);
    }
    some_.notify_one();
  }
  // Null once the queue is closed.
  Connection* take() {
    std::unique_lock lock(mutex_);
    some_.wait(lock, [&] { return closed_ || !ready_.empty(); });
    if (ready_.empty()) return nullptr;
    Connection* connection = ready_.front();
    ready_.pop_front();
    return connection;
  }
  void close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    some_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable some_;
  std::deque<Connection*> ready_;
  bool closed_ = false;
};

class Server {
 public:
  Server(std::vector<Connection>& connections, size_t workers)
      : epoll_(epoll_create1(EPOLL_CLOEXEC)), stop_(eventfd(0, EFD_CLOEXEC)) {
    arm(nullptr, stop_, EPOLL_CTL_ADD);
    for (Connection& c : connections) arm(&c, c.server_end, EPOLL_CTL_ADD);
    for (size_t i = 0; i < workers; i++) threads_.emplace_back([this] { work(); });
    threads_.emplace_back([this] { poll(); });
  }

  void stop() {
    uint64_t one = 1;
    if (write(stop_, &one, sizeof one) != sizeof one) std::abort();
    for (std::thread& thread : threads_) thread.join();
    close(epoll_);
    close(stop_);
  }

 private:
  void arm(Connection* connection, int fd, int operation) {
    epoll_event event = {};
    event.events = EPOLLIN | EPOLLONESHOT;
    event.data.ptr = connection;
    if (epoll_ctl(epoll_, operation, fd, &event) != 0) std::abort();
  }

  void poll() {
    epoll_event events[kEvents];
    for (;;) {
      int n = epoll_wait(epoll_, events, kEvents, -1);
      for (int i = 0; i < n; i++) {
        if (events[i].data.ptr == nullptr) return ready_.close();
        ready_.put(static_cast<Connection*>(events[i].data.ptr));
      }
    }
  }

  void work() {
    while (Connection* connection = ready_.take()) {
      std::string request, output;
      while (receive_some(connection->server_end, connection->input, MSG_DONTWAIT)) {
      }
      while (take_frame(connection->input, request))
        append_frame(output, answer(*connection, request));
      arm(connection, connection->server_end, EPOLL_CTL_MOD);
      send_all(connection->server_end, output);
    }
  }

  int epoll_, stop_;
  ReadyQueue ready_;
  std::vector<std::thread> threads_;
};

// Each request of a client goes to one of its connections, chosen at random.
uint64_t ask(std::vector<Connection>& connections, size_t first, size_t count, uint64_t requests,
             uint64_t seed) {
  Random random(seed);
  uint64_t sum = 0;
  std::string input, reply;
  for (uint64_t i = 0; i < requests; i++) {
    const Connection& connection = connections[first + random.below(count)];
    std::string text = "id=" + std::to_string(random.next()), output;
    for (uint64_t n = random.below(10); n > 0; n--) {
      text += "&field" + std::to_string(n) + "=" + std::string(random.doubling(3, 9), 'f');
    }
    append_frame(output, text);
    send_all(connection.client_end, output);
    while (!take_frame(input, reply)) {
      if (!receive_some(connection.client_end, input, 0)) std::abort();
    }
    sum += check_of(reply) + mix(reply.size());
  }
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  size_t threads = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 64;
  uint64_t requests = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 200'000;
  size_t count = argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 256;
  size_t clients = threads / 4;
  if (threads < 8 || count < clients) {
    std::fprintf(stderr,
                 "usage: server [THREADS [REQUESTS [CONNECTIONS]]], THREADS >= 8, CONNECTIONS >= "
                 "THREADS / 4\n");
    return 2;
  }
  std::vector<Connection> connections(count);
  for (Connection& c : connections) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      std::perror("server: socketpair");
      return 1;
    }
    c.server_end = ends[0];
    c.client_end = ends[1];
  }
  Server server(connections, threads - clients - 1);
  std::atomic<uint64_t> checksum{0};
  std::vector<std::thread> all;
  uint64_t wall = wall_ns(), cpu = process_cpu_ns();
  for (size_t i = 0; i < clients; i++) {
    all.emplace_back([&, i] {
      checksum += ask(connections, count / clients * i, count / clients, requests / clients, i);
    });
  }
  for (std::thread& thread : all) thread.join();
  wall = wall_ns() - wall;
  cpu = process_cpu_ns() - cpu;
  server.stop();
  std::printf(
      "requests_per_s=%.0f wall_s=%.3f cpu_s=%.3f peak_kib=%lu checksum=%016llx library=%s\n",
      static_cast<double>(requests / clients * clients) * 1e9 / static_cast<double>(wall),
      static_cast<double>(wall) / 1e9, static_cast<double>(cpu) / 1e9, peak_rss_kib(),
      static_cast<unsigned long long>(checksum), malloc_file(nullptr));
  return 0;
}
