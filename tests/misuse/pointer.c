// Pointers that are no objects: given to free (pointer), realloc (resize) and malloc_usable_size
// (usable).
#include <sys/mman.h>

#include "misuse.h"

enum Pointer {
  kFreed,
  kIn16,    // 16 bytes into an object
  kMiddle,  // half way, aligned
  kOffBy1,
  kOffBy8,
  kEnd,          // one byte beyond an object
  kSecondPage,   // 4096 bytes into an object
  kSecondBlock,  // 64 KiB into an object
  kStackBytes,
  kStackHeader,  // with a size before it that the C library would believe
  kStatic,
  kStaticHeader,
  kMapped,
  kCode,
  kConstant,
  kSmallNumber,
  kHighHalf,
  kNoAddress,
  kFarAway,   // among the allocator's addresses, but never handed out
  kNextSlot,  // behind the last object that was handed out
  kFreedThread,
};
enum Call { kFree, kRealloc, kUsable };

static char bytes[4096] __attribute__((aligned(64)));
static const char constant[64] __attribute__((aligned(64))) = "constant";

static void* pointer_of(enum Pointer what, size_t size, char* stack) {
  char* object = (char*)take(size);
  for (int i = 0; i < 5; i++) take(size);
  uintptr_t header;
  void* found;
  switch (what) {
    case kFreed:
      give(object);
      return object;
    case kFreedThread:
      forget(object);
      in_thread(free_it, object);
      return object;
    case kIn16:
      return object + 16;
    case kMiddle:
      return object + (size / 2 & ~(size_t)15);
    case kOffBy1:
      return object + 1;
    case kOffBy8:
      return object + 8;
    case kEnd:
      return object + malloc_usable_size(object);
    case kSecondPage:
      return object + 4096;
    case kSecondBlock:
      return object + (64 << 10);
    case kStackBytes:
      aim(stack, 2048, "an address on the stack");
      return stack + 64;
    case kStackHeader:
    case kStaticHeader:
      // What glibc keeps before an object: its size, and that the one before is in use; and the
      // same behind it.
      found = what == kStackHeader ? stack : bytes;
      aim(found, 2048, "an address that is not the allocator's");
      header = ((size + 8 + 15) & ~(uintptr_t)15) | 1;
      memcpy((char*)found + 56, &header, sizeof header);
      if (size < 1024)
        memcpy((char*)found + 56 + (header & ~(uintptr_t)15), &header, sizeof header);
      return (char*)found + 64;
    case kStatic:
      aim(bytes, sizeof bytes, "a global");
      return bytes + 64;
    case kMapped:
      found = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      REQUIRE(found != MAP_FAILED);
      aim(found, 1 << 20, "a mapping of the program");
      return found;
    case kCode:
      return (void*)(uintptr_t)pointer_of;
    case kConstant:
      return (void*)(uintptr_t)constant;
    case kSmallNumber:
      return (void*)16;
    case kHighHalf:
      return (void*)0xffff800000000000;
    case kNoAddress:
      return (void*)0x4141414141414140;
    case kFarAway:
      return object + (64 << 20);
    default:
      return object + 40 * ((malloc_usable_size(object) + 15) & ~(size_t)15);
  }
}
static void bad_pointer(const struct Case* c) {
  char stack[2048] __attribute__((aligned(64))) = {0};
  void* pointer = pointer_of((enum Pointer)c->a, c->size, (char*)hide(stack));
  if (c->b == kFree) {
    if (mistake("free of a pointer that is no object")) free(hide(pointer));
  } else if (c->b == kRealloc) {
    if (mistake("realloc of a pointer that is no object")) {
      void* moved = realloc(hide(pointer), hide_size(c->size * 3));
      if (moved == NULL) result("refused");
      keep(moved, c->size * 3);
    }
  } else {
    if (mistake("malloc_usable_size of a pointer that is no object") &&
        malloc_usable_size(hide(pointer)) == 0)
      result("refused");
  }
  probe(c->size);
  probe(c->size * 3);
}

#define OF_SMALL_AND_MEDIUM(kind, call)                               \
  SMALL_AND_MEDIUM(kind "/in-16", bad_pointer, kIn16, call),          \
      SMALL_AND_MEDIUM(kind "/middle", bad_pointer, kMiddle, call),   \
      SMALL_AND_MEDIUM(kind "/off-by-1", bad_pointer, kOffBy1, call), \
      SMALL_AND_MEDIUM(kind "/off-by-8", bad_pointer, kOffBy8, call)
#define OF_LARGE(kind, call)                                          \
  {kind "/in-16-big", bad_pointer, kBig, kIn16, call},                \
      {kind "/page-big", bad_pointer, kBig, kSecondPage, call},       \
      {kind "/block-big", bad_pointer, kBig, kSecondBlock, call},     \
      {kind "/in-16-large", bad_pointer, kLarge, kIn16, call},        \
      {kind "/off-by-1-large", bad_pointer, kLarge, kOffBy1, call},   \
      {kind "/page-large", bad_pointer, kLarge, kSecondPage, call},   \
      {kind "/block-large", bad_pointer, kLarge, kSecondBlock, call}, \
      {kind "/middle-large", bad_pointer, kLarge, kMiddle, call}, {   \
    kind "/freed-large", bad_pointer, kLarge, kFreed, call            \
  }
#define OF_FOREIGN(kind, call)                                         \
  {kind "/stack", bad_pointer, kSmall, kStackBytes, call},             \
      {kind "/static", bad_pointer, kSmall, kStatic, call},            \
      {kind "/mapped", bad_pointer, kSmall, kMapped, call},            \
      {kind "/code", bad_pointer, kSmall, kCode, call},                \
      {kind "/constant", bad_pointer, kSmall, kConstant, call},        \
      {kind "/small-number", bad_pointer, kSmall, kSmallNumber, call}, \
      {kind "/high-half", bad_pointer, kSmall, kHighHalf, call},       \
      {kind "/no-address", bad_pointer, kSmall, kNoAddress, call},     \
      {kind "/far-away", bad_pointer, kSmall, kFarAway, call},         \
      SMALL_AND_MEDIUM(kind "/never-handed-out", bad_pointer, kNextSlot, call)

static const struct Case kCases[] = {
    OF_SMALL_AND_MEDIUM("pointer", kFree),
    OF_LARGE("pointer", kFree),
    OF_FOREIGN("pointer", kFree),
    {"pointer/end-small", bad_pointer, 1024, kEnd, kFree},
    SMALL_AND_MEDIUM("pointer/stack-with-header", bad_pointer, kStackHeader, kFree),
    SMALL_AND_MEDIUM("pointer/static-with-header", bad_pointer, kStaticHeader, kFree),
    OF_SMALL_AND_MEDIUM("resize", kRealloc),
    OF_LARGE("resize", kRealloc),
    OF_FOREIGN("resize", kRealloc),
    SMALL_AND_MEDIUM("resize/stack-with-header", bad_pointer, kStackHeader, kRealloc),
    SMALL_AND_MEDIUM("resize/freed", bad_pointer, kFreed, kRealloc),
    SMALL_AND_MEDIUM("resize/freed-thread", bad_pointer, kFreedThread, kRealloc),
    {"resize/freed-thread-large", bad_pointer, kLarge, kFreedThread, kRealloc},
    OF_SMALL_AND_MEDIUM("usable", kUsable),
    OF_LARGE("usable", kUsable),
    OF_FOREIGN("usable", kUsable),
    SMALL_AND_MEDIUM("usable/freed", bad_pointer, kFreed, kUsable),
    SMALL_AND_MEDIUM("usable/freed-thread", bad_pointer, kFreedThread, kUsable),
};
PROGRAM(kCases)
