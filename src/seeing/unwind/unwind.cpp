// Both ways to walk a stack. See unwind.h for what is promised.
//
// By tables: a walk that keeps the tables' rules takes about 40 instructions per frame
// (unwind_rules.h). If this walk does not know how to go on, backtrace() of the C library does all
// of it again, by libgcc_s, with about 900 per frame. Once prepare_unwinding() has loaded the
// library and had its tables of registers made, both only read, and write to the stack. A table is
// found by _dl_find_object, which takes no lock. So a handler that samples may interrupt a capture,
// and a capture may interrupt dlopen. That needs glibc 2.35 with gcc 12, or later.
// Before that, dl_iterate_phdr finds tables, under a lock of the dynamic linker. If the thread is
// inside dlopen already, the lock is its own. But a child of fork that was made meanwhile would
// wait for ever. The same is true, with libgcc_s' own lock, of code that a program registers by
// __register_frame (just-in-time compilers).
//
// A program that is linked with -static has no header of its tables: a constructor enters them,
// after the constructors of the lowest priorities. libgcc aborts if it finds no table for its own
// caller, so has_tables() asks first.
//
// By frame pointers: each frame is two words, the caller's frame and the return address. A function
// that keeps no frame pointer may have left anything there. So the walk reads only what it has
// found to be readable, and ends with the first frame that does not lie above the one before it.
// That also ends the walk if a handler runs on a stack of its own, unless this stack lies below the
// thread's. The innermost functions are the allocator's own. Unless they keep frame pointers too,
// the first frame pointer may be anything, and the walk would not notice. So this way exists only
// if they do (kHasFrames).
#include "seeing/unwind/unwind.h"

#include <errno.h>
#if __has_include(<execinfo.h>)
#include <execinfo.h>
#endif

#include <atomic>
#include <initializer_list>

#include "core/platform/linux.h"
#include "seeing/unwind/readable.h"
#include "seeing/unwind/unwind_rules.h"

// From the linker: where this library or program begins in memory, and where its code ends. All of
// it is the allocator's if the link defines the third symbol, as that of the shared libraries does
// (CMakeLists.txt).
extern "C" {
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char etext[] __attribute__((visibility("hidden")));
extern const char lanemalloc_is_library[] __attribute__((weak, visibility("hidden")));
// Null in a static program at a fixed address.
extern const char _DYNAMIC[] __attribute__((weak, visibility("hidden")));
}

// From libgcc, if it is linked in: the table's entry for a place in code, or null.
extern "C" const void* _Unwind_Find_FDE(const void* code, void* bases) __attribute__((weak));

namespace lanemalloc {

namespace {

#if __has_include(<execinfo.h>)
constexpr bool kHasBacktrace = true;
#else  // musl
constexpr bool kHasBacktrace = false;
int backtrace(void**, int) { return 0; }
#endif

enum class Way : uint8_t { kNone, kTables, kFrames };
constinit std::atomic<Way> way{Way::kNone};

// True if the allocator is compiled with frame pointers: LANEMALLOC_FRAME_POINTERS of the build. On
// aarch64 compilers keep them unless they are told otherwise.
#if defined(LANEMALLOC_FRAME_POINTERS) || defined(__aarch64__)
constexpr bool kHasFrames = true;
#else
constexpr bool kHasFrames = false;
#endif

constexpr unsigned kMostFrames = 64;
// Frames of the allocator's, before the first of the program's. There are 4 to 6. If there are
// more, the outermost frames of a deep stack are lost. A walk of a deeper stack goes this far
// beyond kMostFrames.
constexpr unsigned kMostOwn = 8;

NOINLINE bool has_tables() {
  struct {
    const void *text, *data, *function;
  } bases{};
  return _Unwind_Find_FDE == nullptr ||
         _Unwind_Find_FDE(__builtin_return_address(0), &bases) != nullptr;
}

Address address_of(const void* p) { return reinterpret_cast<Address>(p); }

bool is_own(Address code) {
  return lanemalloc_is_library != nullptr &&
         code - address_of(__ehdr_start) < address_of(etext) - address_of(__ehdr_start);
}

// Return addresses may carry a signature in the bits that are no address.
Address without_signature(Address code) {
#if defined(__aarch64__)
  code &= (Address{1} << 48) - 1;
#endif
  return code;
}

struct Frame {
  Address caller;
  Address returns_to;
};

// Walks by frame pointers, from the frame at `at`.
__attribute__((no_sanitize("address", "thread"))) unsigned walk_frames(Address at, Address* found,
                                                                       unsigned most) {
  constexpr Address kPage = 4096;  // or larger
  constexpr Address kLargestFrame = Address{1} << 20;
  constexpr Address kLowestCode = 4096;
  Address readable = at / kPage;  // the page that is known to be readable
  unsigned n = 0;
  while (n < most && at % sizeof(Address) == 0) {
    for (Address word : {at, at + sizeof(Address)}) {
      if (word / kPage != readable && !is_readable(word)) return n;
      readable = word / kPage;
    }
    const Frame frame = *reinterpret_cast<const Frame*>(at);
    const Address code = without_signature(frame.returns_to);
    if (code < kLowestCode) break;
    found[n++] = code;
    if (frame.caller <= at || frame.caller - at > kLargestFrame) break;
    at = frame.caller;
  }
  return n;
}

// The number of the process, and in the lower half the number of its threads that are inside
// backtrace(). In a program that is linked statically, backtrace() takes a lock of the compiler's
// library. A thread that held this lock at a fork is not in the child, and the child would wait for
// ever.
constinit std::atomic<uint64_t> inside_tables{0};

// False: a thread was inside when the process forked. relaxed, both: only the numbers count.
bool enter_tables() {
  const uint64_t process = uint64_t{Linux::process_id()} << 32;
  uint64_t seen = inside_tables.load(std::memory_order_relaxed);
  do {
    if (static_cast<uint32_t>(seen) != 0 && (seen >> 32 << 32) != process) return false;
  } while (!inside_tables.compare_exchange_weak(seen, process | (static_cast<uint32_t>(seen) + 1),
                                                std::memory_order_relaxed));
  return true;
}
void leave_tables() { inside_tables.fetch_sub(1, std::memory_order_relaxed); }

}  // namespace

bool may_prepare_early() { return _DYNAMIC != nullptr; }

Unwinding prepare_unwinding(Unwinding how) {
  if (!kHasFrames) how = Unwinding::kTables;
  const int saved = errno;
  Way next = Way::kFrames;
  if (how == Unwinding::kTables) {
    void* frames[4];
    next = kHasBacktrace && has_tables() ? Way::kTables : Way::kNone;
    if (next == Way::kTables) backtrace(frames, 4);
  }
  // release: a thread that sees it finds the library loaded. Pairs with the acquire in
  // capture_stack().
  way.store(next, std::memory_order_release);
  errno = saved;
  return how;
}

NOINLINE unsigned capture_stack(Address* frames, unsigned most) {
  const Way by = way.load(std::memory_order_acquire);
  if (by == Way::kNone) return 0;
  if (most > kMostFrames) most = kMostFrames;
  Address found[kMostFrames + kMostOwn];
  unsigned n, first = 0;
  if (by == Way::kFrames) {
    n = walk_frames(address_of(__builtin_frame_address(0)), found, most + kMostOwn);
  } else {
    const auto* frame = static_cast<const Address*>(__builtin_frame_address(0));
    n = walk_by_rules(
        {address_of(__builtin_return_address(0)), address_of(__builtin_dwarf_cfa()), frame[0]},
        found, most + kMostOwn);
  }
  if (by == Way::kTables && n == 0) {
    if (!enter_tables()) return 0;
    const int saved = errno;
    static_assert(sizeof(void*) == sizeof(Address));
    n = static_cast<unsigned>(
        backtrace(reinterpret_cast<void**>(found), static_cast<int>(most + kMostOwn)));
    errno = saved;
    leave_tables();
    // The result begins with this function, and with whatever stands before its caller.
    const Address caller = without_signature(address_of(__builtin_return_address(0)));
    while (first < n && found[first] != caller) ++first;
  }
  while (first < n && is_own(found[first])) ++first;
  unsigned kept = 0;
  while (first < n && kept < most) frames[kept++] = found[first++];
  return kept;
}

}  // namespace lanemalloc
