// Compares both walks by tables: ours, which keeps rules, and the C library's. run.sh builds this
// file twice: as a library whose malloc compares them at one call in a hundred of any program, and
// with reloads.cpp. The library writes the result to the file $WALKS_FILE.
#include "walks.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>

#include "seeing/unwind/unwind_rules.h"

extern "C" const void* _Unwind_Find_FDE(const void* code, void* bases);

namespace {

using namespace lanemalloc;

constexpr unsigned kMost = 72;

struct Count {
  std::atomic<unsigned long> same{0}, left{0}, different{0}, beyond{0};
} counted;

void say(const char* what, void* const* expected, unsigned depth, const Address* found,
         unsigned n) {
  dprintf(2, "walks: %s: %u frames, expected %u:", what, n, depth);
  for (unsigned i = 0; i < n || i < depth; ++i)
    dprintf(2, " %p/%p", i < n ? reinterpret_cast<void*>(found[i]) : nullptr,
            i < depth ? expected[i] : nullptr);
  dprintf(2, "\n");
}

}  // namespace

__attribute__((noinline)) Walks compare_walks() {
  void* frames[kMost + 1];
  const int all = backtrace(frames, kMost + 1);
  const auto* frame = static_cast<const Address*>(__builtin_frame_address(0));
  Address found[kMost];
  const unsigned n = walk_by_rules({reinterpret_cast<Address>(__builtin_return_address(0)),
                                    reinterpret_cast<Address>(__builtin_dwarf_cfa()), frame[0]},
                                   found, kMost);
  if (n == 0) return ++counted.left, Walks::kLeft;
  // The first frame is this function's.
  const auto depth = static_cast<unsigned>(all - 1);
  // Ours may go on behind code without tables.
  struct {
    const void *text, *data, *function;
  } bases{};
  if (n > depth && depth > 0 && memcmp(found, frames + 1, depth * sizeof *found) == 0 &&
      _Unwind_Find_FDE(static_cast<char*>(frames[depth]) - 1, &bases) == nullptr)
    return ++counted.beyond, Walks::kSame;
  if (n == depth && memcmp(found, frames + 1, n * sizeof *found) == 0)
    return ++counted.same, Walks::kSame;
  say("different", frames + 1, depth, found, n);
  return ++counted.different, Walks::kDifferent;
}

#ifdef WALKS_OF_MALLOC
extern "C" void* __libc_malloc(size_t);

namespace {

thread_local bool is_inside = false;
thread_local unsigned calls = 0;

__attribute__((constructor)) void load() {
  void* frames[2];
  backtrace(frames, 2);
}
// One line for each process of the program.
__attribute__((destructor)) void report() {
  const char* path = getenv("WALKS_FILE");
  const int file = path != nullptr ? open(path, O_WRONLY | O_CREAT | O_APPEND, 0644) : -1;
  if (file < 0) return;
  dprintf(file, "%s same %lu left %lu different %lu beyond %lu\n", program_invocation_short_name,
          counted.same.load(), counted.left.load(), counted.different.load(),
          counted.beyond.load());
  close(file);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void* malloc(size_t size) {
  if (!is_inside && ++calls % 100 == 0) {
    is_inside = true;
    compare_walks();
    is_inside = false;
  }
  return __libc_malloc(size);
}
#endif
