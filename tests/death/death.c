// Bad pointers given to free, realloc and malloc_usable_size: what the library says and does, by
// bad_pointer= and checked=.
#include <sys/mman.h>

#include "../semantics/acts.h"
#include "../semantics/run_threads.h"

static const char kForeign[] = "): not a pointer of this allocator";
static const char kInterior[] = "): not the start of an object";
static const char kFreed[] = "): freed already";
static const char kUnused[] = "): the page is not in use";

// --- The child.

static char global_bytes[256];
static size_t function_result = 12345;

static void apply(void* pointer) {
  errno = 4711;
  say("pointer %p\n", pointer);
  pointer = hide(pointer);
  if (is_function("free")) {
    free(pointer);
    CHECK(errno == 4711);
  } else if (is_function("realloc")) {
    function_result = (size_t)realloc(pointer, hide_size(50));
  } else {
    function_result = malloc_usable_size(pointer);
  }
}

static void* freeing_thread(void* argument) {
  free(argument);
  return NULL;
}
static void free_in_thread(void* pointer) { run_thread(freeing_thread, pointer); }

static void act_stack(void) {
  char bytes[256];
  apply((char*)hide(bytes) + 64);
}
static void act_global(void) { apply(global_bytes + 64); }
static void act_mapped(void) {
  char* page =
      (char*)mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(page != MAP_FAILED);
  apply(page);
}
static void act_code(void) { apply((void*)(uintptr_t)act_mapped); }
static void act_small_number(void) { apply((void*)16); }
static void act_high_half(void) { apply((void*)0xffff800000000000); }
static void act_no_address(void) { apply((void*)0x8000000000000010); }
static void act_highest(void) { apply((void*)(UINTPTR_MAX - 15)); }

static void act_interior_small(void) { apply((char*)malloc(256) + 16); }
static void act_interior_medium(void) { apply((char*)malloc(20000) + 4096); }
static void act_misaligned(void) { apply((char*)malloc(64) + 1); }
static void act_interior_large(void) { apply((char*)malloc(4 << 20) + 4096); }
static void act_interior_large_block(void) { apply((char*)malloc(4 << 20) + (1 << 20)); }
static void act_interior_aligned(void) { apply((char*)memalign(4096, 10000) + 4096); }
// Memory of the region where no object has ever lain.
static void act_never_allocated(void) {
  char* object = (char*)malloc(100);
  for (int i = 0; i < 1000; i++) hide(malloc(1000));
  apply(object + ((size_t)64 << 20));
}
// With sample=4k a hundred objects have 64 KiB each by now.
static void act_never_allocated_near(void) { apply((char*)malloc(100) + ((size_t)31 << 20) + 512); }

static void act_twice_large(void) {
  char* object = (char*)malloc(5 << 20);
  free(object);
  apply(object);
}
static void act_twice(void) {
  char* object = (char*)malloc(100);
  free(object);
  apply(object);
}
static void act_twice_medium(void) {
  char* object = (char*)malloc(20000);
  free(object);
  apply(object);
}
static void act_twice_after_others(void) {
  char* objects[100];
  for (int i = 0; i < 100; i++) objects[i] = (char*)malloc(48);
  for (int i = 0; i < 100; i++) free(objects[i]);
  apply(objects[50]);
}
// The list moves on between the frees, but the victim itself is not given out again.
static void act_twice_after_refill(void) {
  enum { kCount = 5000 };
  static char* objects[kCount];
  static char reused[kCount];
  for (int i = 0; i < kCount; i++) objects[i] = (char*)malloc(80);
  for (int i = 0; i < kCount; i += 2) free(objects[i]);
  for (int i = 0; i < kCount / 8; i++) {
    char* object = (char*)malloc(80);
    for (int j = 0; j < kCount; j += 2)
      if (objects[j] == object) reused[j] = 1;
  }
  for (int i = 0; i < kCount; i += 2) {
    if (reused[i]) continue;
    apply(objects[i]);
    return;
  }
  REQUIRE(!"an object that is still free");
}
static void act_twice_other_thread_first(void) {
  char* object = (char*)malloc(100);
  free_in_thread(object);
  apply(object);
}
static void act_twice_other_thread_second(void) {
  char* object = (char*)malloc(100);
  free(object);
  say("pointer %p\n", (void*)object);
  free_in_thread(object);
}
static void act_twice_both_other_threads(void) {
  char* object = (char*)malloc(100);
  free_in_thread(object);
  say("pointer %p\n", (void*)object);
  free_in_thread(object);
}
// Release mode may find the second free late: when the list is next taken. For every class, 100,000
// objects are enough.
static void act_twice_then_allocate(void) {
  char* object = (char*)malloc(100);
  char* other = (char*)malloc(100);
  free(object);
  apply(object);
  for (int i = 0; i < 100000; i++) hide(malloc(100));
  hide(other);
}
static void act_twice_apart_then_allocate(void) {
  char* objects[10];
  for (int i = 0; i < 10; i++) objects[i] = (char*)malloc(100);
  for (int i = 0; i < 10; i++) free(objects[i]);
  apply(objects[5]);
  for (int i = 0; i < 100000; i++) hide(malloc(100));
}

static const struct Act kActs[] = {{"stack", act_stack},
                                   {"global", act_global},
                                   {"mapped", act_mapped},
                                   {"code", act_code},
                                   {"small_number", act_small_number},
                                   {"high_half", act_high_half},
                                   {"no_address", act_no_address},
                                   {"highest", act_highest},
                                   {"interior_small", act_interior_small},
                                   {"interior_medium", act_interior_medium},
                                   {"misaligned", act_misaligned},
                                   {"interior_large", act_interior_large},
                                   {"interior_large_block", act_interior_large_block},
                                   {"interior_aligned", act_interior_aligned},
                                   {"never_allocated", act_never_allocated},
                                   {"never_allocated_near", act_never_allocated_near},
                                   {"twice_large", act_twice_large},
                                   {"twice", act_twice},
                                   {"twice_medium", act_twice_medium},
                                   {"twice_after_others", act_twice_after_others},
                                   {"twice_after_refill", act_twice_after_refill},
                                   {"twice_other_thread_first", act_twice_other_thread_first},
                                   {"twice_other_thread_second", act_twice_other_thread_second},
                                   {"twice_both_other_threads", act_twice_both_other_threads},
                                   {"twice_then_allocate", act_twice_then_allocate},
                                   {"twice_apart_then_allocate", act_twice_apart_then_allocate}};

static void give(void* object, size_t size) {
  (void)size;
  free(object);
}
CHILD(bad_act) {
  run_amid(kActs, sizeof kActs / sizeof kActs[0], malloc, give);
  if (!is_function("free")) CHECK_MSG(function_result == 0, "%zx", function_result);
}

// --- The parent.

enum { kChecked, kBoth };
static void check_functions(const char* act, int modes, const char* why, const char* or_why) {
  static const char* const functions[] = {"free", "realloc", "malloc_usable_size"};
  for (int i = 0; i < 3; i++) {
    if (modes == kBoth) check_act_or(act, functions[i], "", why, or_why, 1);
    check_act_or(act, functions[i], "checked=1", why, or_why, 1);
  }
}

CASE(lanemalloc_pointers_that_are_not_ours) {
  static const char* const acts[] = {"stack",        "global",    "mapped",     "code",
                                     "small_number", "high_half", "no_address", "highest"};
  for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++)
    check_functions(acts[i], kBoth, kForeign, kForeign);
}
// The hit of free does not ask whether a pointer into a slab is the start of an object; checked=1
// does.
CASE(lanemalloc_pointers_into_objects) {
  check_functions("interior_small", kChecked, kInterior, kInterior);
  check_functions("interior_medium", kChecked, kInterior, kInterior);
  check_functions("misaligned", kChecked, kInterior, kInterior);
  check_functions("interior_large", kBoth, kInterior, kInterior);
  check_functions("interior_large_block", kBoth, kInterior, kInterior);
  check_functions("interior_aligned", kChecked, kInterior, kInterior);
}
CASE(lanemalloc_never_allocated) {
  check_functions("never_allocated", kBoth, kUnused, kForeign);
  check_functions("never_allocated_near", kBoth, kUnused, kForeign);
}

CASE(lanemalloc_large_object_twice) { check_functions("twice_large", kBoth, kFreed, kUnused); }
CASE(lanemalloc_checked_twice) {
  check_functions("twice", kChecked, kFreed, kFreed);
  check_functions("twice_medium", kChecked, kFreed, kUnused);
  check_functions("twice_after_others", kChecked, kFreed, kFreed);
  check_functions("twice_after_refill", kChecked, kFreed, kFreed);
  check_functions("twice_other_thread_first", kChecked, kFreed, kFreed);
  check_act("twice_other_thread_second", "free", "checked=1", kFreed);
  check_act("twice_both_other_threads", "free", "checked=1", kFreed);
}
// Without checks, a second free is found at the latest when the list is taken. Which function
// reports it, and where, is left open.
CASE(lanemalloc_release_twice_is_found_when_the_list_is_taken) {
  static const char* const acts[] = {"twice_then_allocate", "twice_apart_then_allocate"};
  for (int i = 0; i < 2; i++) {
    run_act(acts[i], "free", "", "");
    CHECK_CHILD(child_aborted() && line_count() == 1 && lines_with("lanemalloc: ", "(0x") == 1);
  }
}

CASE(lanemalloc_default_is_abort) {
  run_act("stack", "free", "", "");
  CHECK_CHILD(child_aborted() && said("free", kForeign, 1));
}

// The process aborts also if it has no stderr to write to, and the line goes into no other file.
CASE(lanemalloc_abort_without_stderr) {
  memset(&child, 0, offsetof(struct Child, out));
  child.argument = "stack free";
  child.close_stderr = 1;
  run_child("bad_act");
  CHECK_CHILD(child_aborted());
}

// A report loses no object: the counts stay exact.
CHILD(many_reports) {
  for (int i = 0; i < 1000; i++) {
    char bytes[64];
    char* object = (char*)malloc(100);
    free(hide(bytes + 16));
    free(hide(object + 16));
    CHECK(realloc(hide(object + 32), hide_size(10)) == NULL);
    free(object);
  }
}
CHILD(no_reports) {
  for (int i = 0; i < 1000; i++) {
    char* object = (char*)malloc(100);
    free(hide(object));
  }
}
CASE(lanemalloc_reports_change_no_counts) {
  run_child_with("no_reports", "stats=exit,checked=1");
  CHECK_CHILD(child_succeeded());
  long long allocations = child_stat("allocations"), live = child_stat("live objects");
  run_child_with("many_reports", "stats=exit,checked=1,bad_pointer=report");
  CHECK_CHILD(child_succeeded() && lines_with("lanemalloc: ", "(0x") == 3000);
  CHECK_CHILD(child_stat("allocations") == allocations && child_stat("live objects") == live &&
              live != LLONG_MIN);
  run_child_with("many_reports", "stats=exit,checked=1,bad_pointer=ignore");
  CHECK_CHILD(child_succeeded() && lines_with("lanemalloc: ", "(0x") == 0);
  CHECK_CHILD(child_stat("allocations") == allocations && child_stat("live objects") == live);
}

// The other functions that free: the line names the function that was called, or free.
CHILD(bad_delete) {
  char bytes[64];
  const char* name = test_argument;
  void (*function)(void*, size_t) = (void (*)(void*, size_t))dlsym(RTLD_DEFAULT, name);
  REQUIRE(function);
  function(hide(bytes + 16), 40);
  say("went on\n");
}
CASE(lanemalloc_other_names_that_free) {
  const char* const names[] = {"cfree",  "__libc_free", "free_sized", "_ZdlPv",
                               "_ZdaPv", "_ZdlPvm",     "_ZdaPvm"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    memset(&child, 0, offsetof(struct Child, out));
    child.argument = names[i];
    run_child("bad_delete");
    CHECK_CHILD(child_aborted() && line_count() == 1 && lines_with("lanemalloc: ", kForeign) == 1);
  }
}
