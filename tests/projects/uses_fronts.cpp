// The same in C++, with a pool, and with a container whose memory is lane_malloc's if the program
// is linked with the prefixed library.
#include <cstdio>
#include <lanemalloc/lanemalloc.hpp>
#include <vector>

int main() {
  lane::Pool<long> pool;
  const auto number = pool.make_unique(7);
  std::vector<int, lane::Allocator<int>> many(1000, 1);
  if (*number != 7 || many.size() != 1000) return 1;
  std::puts("ok");
  return 0;
}
