// Built with -fno-exceptions -fno-rtti: arenas, malloc's allocator and malloc's resource work, and
// a call that would throw ends the process.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lanemalloc/arena.hpp>
#include <map>
#include <string>
#include <vector>

#include "memory.h"

namespace {

template <class Body>
bool aborts(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = 0;
  CHECK(child > 0 && waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

int ended;
struct Counted {
  ~Counted() { ended++; }
};

}  // namespace

int main() {
  std::vector<int, lane::Allocator<int>> vector(1000, 7);
  std::map<int, int, std::less<int>, lane::Allocator<std::pair<const int, int>>> map;
  for (int i = 0; i < 1000; i++) map[i] = vector[static_cast<std::size_t>(i)];
  lane::Arena arena;
  lane::ArenaResource resource(arena);
  {
    std::pmr::string text("a text that is too long for the string itself", &resource);
    CHECK(text.size() == 45);
  }
  arena.make<Counted>();
  arena.reset();
  CHECK(ended == 1);
  CHECK(aborts([&] { (void)arena.allocate(hidden(SIZE_MAX)); }));
  CHECK(aborts([] { (void)lane::Allocator<int>().allocate(hidden(SIZE_MAX / 2)); }));
  CHECK(aborts([] { (void)lane::Allocator<char>().allocate(hidden(SIZE_MAX)); }));
  CHECK(aborts([] { lane::Arena wrong(hidden(1)); }));
  CHECK(!aborts([] {}));
  std::puts("ok");
  return 0;
}
