// A small HTTP/1.1 server: one thread accepts, several answer, each over an epoll of its own. A
// request is parsed into pieces of an arena, or of malloc, and all of them are given back when it
// has been answered. SIGTERM or SIGINT end the server; it then prints the number of requests and
// the allocator's statistics.
//
//   GET /sum?a=N&b=M   200, "N + M = S; P parameters, H headers\n"
//   anything else      404, or the status that says what is wrong with the request
//
// Usage: server arena|malloc THREADS. Prints the port that it has taken. Called by: run.sh.
#include <arpa/inet.h>
#include <malloc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "request.h"

namespace {

constexpr int kEvents = 64;
constexpr size_t kRead = 16 << 10;

struct Connection {
  int socket;
  std::string input;   // received and not answered yet
  std::string output;  // not sent yet
  bool closes = false;
};

std::atomic<uint64_t> answered{0};

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

const char* reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 431:
      return "Request Header Fields Too Large";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    default:
      return "HTTP Version Not Supported";
  }
}

void add_answer(Connection& connection, int status, const char* body, size_t length) {
  char head[160];
  const int n =
      std::snprintf(head, sizeof head, "HTTP/1.1 %d %s\r\nContent-Length: %zu\r\n%s\r\n", status,
                    reason_of(status), length, connection.closes ? "Connection: close\r\n" : "");
  connection.output.append(head, static_cast<size_t>(n));
  connection.output.append(body, length);
  answered.fetch_add(1, std::memory_order_relaxed);
}

size_t length_of(const Field* field) {
  size_t n = 0;
  for (; field != nullptr; field = field->next) ++n;
  return n;
}

template <class Memory>
void answer(const Request<Memory>& request, Connection& connection) {
  const char* a = request.parameter("a");
  const char* b = request.parameter("b");
  char body[160];
  if (std::strcmp(request.method, "GET") != 0 || std::strcmp(request.path, "/sum") != 0 ||
      a == nullptr || b == nullptr) {
    const int n =
        std::snprintf(body, sizeof body, "no %.60s %.60s here\n", request.method, request.path);
    return add_answer(connection, 404, body, static_cast<size_t>(n));
  }
  const long x = std::strtol(a, nullptr, 10), y = std::strtol(b, nullptr, 10);
  const int n =
      std::snprintf(body, sizeof body, "%ld + %ld = %ld; %zu parameters, %zu headers\n", x, y,
                    x + y, length_of(request.parameters), length_of(request.headers));
  add_answer(connection, 200, body, static_cast<size_t>(n));
}

// Answers all whole requests of the input. A bad request ends the connection.
template <class Memory>
void answer_all(Connection& connection, Memory& memory) {
  size_t done = 0;
  while (!connection.closes) {
    Request<Memory> request(memory);
    size_t taken = 0;
    const Parsed parsed = request.parse(std::string_view(connection.input).substr(done), taken);
    if (parsed == Parsed::kPartly) break;
    connection.closes = parsed != Parsed::kWhole || !request.keeps_alive;
    if (parsed == Parsed::kWhole) {
      answer(request, connection);
    } else {
      add_answer(connection, static_cast<int>(parsed), "", 0);
    }
    memory.give_all();
    done += taken;
  }
  connection.input.erase(0, connection.closes ? std::string::npos : done);
}

// After the last answer our half of the connection is closed. Until the other half is closed, too,
// input is read and dropped, or the answer might be lost.
bool send_output(Connection& connection) {
  while (!connection.output.empty()) {
    const ssize_t n =
        send(connection.socket, connection.output.data(), connection.output.size(), MSG_NOSIGNAL);
    if (n < 0) return errno == EAGAIN;
    connection.output.erase(0, static_cast<size_t>(n));
  }
  if (connection.closes) shutdown(connection.socket, SHUT_WR);
  return true;
}

// Returns false if the connection has ended.
template <class Memory>
bool serve(Connection& connection, Memory& memory) {
  char bytes[kRead];
  for (;;) {
    const ssize_t n = recv(connection.socket, bytes, sizeof bytes, 0);
    if (n == 0 || (n < 0 && errno != EAGAIN)) return false;
    if (n < 0) break;
    if (!connection.closes) connection.input.append(bytes, static_cast<size_t>(n));
    if (static_cast<size_t>(n) < sizeof bytes) break;
  }
  answer_all(connection, memory);
  return send_output(connection);
}

// A worker. It ends when the pipe that it listens to is closed.
template <class Memory>
void work(int epoll) {
  Memory memory;
  epoll_event events[kEvents];
  for (;;) {
    const int n = epoll_wait(epoll, events, kEvents, -1);
    for (int i = 0; i < n; ++i) {
      auto* connection = static_cast<Connection*>(events[i].data.ptr);
      if (connection == nullptr) return;
      if (serve(*connection, memory)) continue;
      close(connection->socket);
      delete connection;
    }
  }
}

int listen_somewhere() {
  const int socket_ = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (socket_ < 0 || bind(socket_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(socket_, 1024) != 0 ||
      getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    fail("server: listen");
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  return socket_;
}

void add(int epoll, int file, Connection* connection, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = connection;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, file, &event) != 0) fail("server: epoll_ctl");
}

int listener = -1;
void stop(int) { shutdown(listener, SHUT_RDWR); }  // accept() then fails

template <class Memory>
void run(unsigned threads) {
  int ending[2];
  if (pipe(ending) != 0) fail("server: pipe");
  std::vector<int> epolls;
  std::vector<std::thread> workers;
  for (unsigned i = 0; i < threads; ++i) {
    epolls.push_back(epoll_create1(0));
    add(epolls.back(), ending[0], nullptr, EPOLLIN);
    workers.emplace_back(work<Memory>, epolls.back());
  }
  for (size_t next = 0;; ++next) {
    const int socket_ = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK);
    if (socket_ < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (socket_ < 0) break;
    const int yes = 1;
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    // Edge-triggered: if output cannot be sent now, the worker is notified once it can be.
    add(epolls[next % threads], socket_, new Connection{socket_, {}, {}},
        EPOLLIN | EPOLLOUT | EPOLLET);
  }
  close(ending[1]);
  for (std::thread& worker : workers) worker.join();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view memory = argc > 1 ? argv[1] : "";
  const unsigned long threads = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 0;
  if (argc != 3 || (memory != "arena" && memory != "malloc") || threads < 1 || threads > 1000) {
    std::fprintf(stderr, "usage: server arena|malloc THREADS\n");
    return 2;
  }
  listener = listen_somewhere();
  struct sigaction action = {};
  action.sa_handler = stop;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  memory == "arena" ? run<ArenaMemory>(static_cast<unsigned>(threads))
                    : run<MallocMemory>(static_cast<unsigned>(threads));
  std::printf("answered %llu\n", static_cast<unsigned long long>(answered.load()));
  malloc_stats();
  return 0;
}
