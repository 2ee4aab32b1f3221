// Bad pointers given to free, realloc and malloc_usable_size: what the library says and does, by
// bad_pointer= and checked=. Each bad act runs in a child, which prints the pointer that it uses,
// and "went on" if it survives.
#include <pthread.h>
#include <sys/mman.h>

#include "../semantics/child.h"

static const char kForeign[] = "not a pointer of this allocator";
static const char kInterior[] = "not the start of an object";
static const char kFreed[] = "freed already";
static const char kUnused[] = "the page is not in use";

// ---- The child: ACT FUNCTION, as one argument.

static char global_bytes[256];
static size_t function_result = 12345;
static const char* function_name;

static void apply(void* pointer) {
  errno = 4711;
  say("pointer %p\n", pointer);
  pointer = hide(pointer);
  if (strcmp(function_name, "free") == 0) {
    free(pointer);
    CHECK(errno == 4711);
  } else if (strcmp(function_name, "realloc") == 0) {
    function_result = (size_t)realloc(pointer, hide_size(50));
  } else {
    function_result = malloc_usable_size(pointer);
  }
}

static void* freeing_thread(void* argument) {
  free(argument);
  return NULL;
}
static void free_in_thread(void* pointer) {
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, freeing_thread, pointer) == 0);
  pthread_join(thread, NULL);
}

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
static void act_never_allocated_near(void) { apply((char*)malloc(100) + ((size_t)7 << 20) + 512); }

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

static const struct {
  const char* name;
  void (*run)(void);
} kActs[] = {{"stack", act_stack},
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

// After the act the allocator must be whole: objects made before keep their content, no object is
// given out twice.
CHILD(bad_act) {
  static char name[64];
  static char* before[300];
  static char* after[3000];
  function_name = strchr(test_argument, ' ') + 1;
  snprintf(name, sizeof name, "%.*s", (int)(function_name - 1 - test_argument), test_argument);
  for (unsigned i = 0; i < 300; i++) fill(before[i] = (char*)malloc(i * 11 + 1), i * 11 + 1, i);
  int found = 0;
  for (size_t i = 0; i < sizeof kActs / sizeof kActs[0]; i++)
    if (strcmp(kActs[i].name, name) == 0) kActs[i].run(), found = 1;
  REQUIRE(found);
  if (strcmp(function_name, "free") != 0)
    CHECK_MSG(function_result == 0, "%s gives %#zx", function_name, function_result);
  for (unsigned i = 0; i < 3000; i++) fill(after[i] = (char*)malloc(i % 300), i % 300, i);
  for (unsigned i = 0; i < 3000; i++) {
    CHECK_MSG(filled(after[i], i % 300, i), "object %u", i);
    free(after[i]);
  }
  for (unsigned i = 0; i < 300; i++) {
    CHECK_MSG(filled(before[i], i * 11 + 1, i), "object %u", i);
    free(before[i]);
  }
  if (!test_failures) say("went on\n");
}

// ---- The parent.

static void run_act(const char* act, const char* function, const char* options) {
  static char argument[128];
  snprintf(argument, sizeof argument, "%s %s", act, function);
  memset(&child, 0, offsetof(struct Child, out));
  child.options = options;
  child.argument = argument;
  run_child("bad_act");
}

static int went_on(void) { return child_succeeded() && strstr(child.out, "went on\n"); }

// True if stderr has one line and nothing else: it names the function, the pointer and one of the
// reasons (the second may be null).
static int said(const char* function, const char* reason, const char* other_reason) {
  unsigned long pointer = 0;
  const char* named = strstr(child.out, "pointer 0x");
  if (!named || sscanf(named, "pointer 0x%lx", &pointer) != 1) return 0;
  const char* reasons[] = {reason, other_reason};
  for (int i = 0; i < 2; i++) {
    char line[256];
    if (!reasons[i]) continue;
    snprintf(line, sizeof line, "lanemalloc: %s(0x%lx): %s\n", function, pointer, reasons[i]);
    if (strcmp(child.err, line) == 0) return 1;
  }
  return 0;
}

// One act by each function, under all three values of bad_pointer=.
static void check_act(const char* act, const char* checked, const char* reason,
                      const char* other_reason) {
  const char* const functions[] = {"free", "realloc", "malloc_usable_size"};
  for (int i = 0; i < 3; i++) {
    char options[100];
    snprintf(options, sizeof options, "bad_pointer=abort%s", checked);
    run_act(act, functions[i], options);
    CHECK_CHILD(child_aborted() && said(functions[i], reason, other_reason));
    snprintf(options, sizeof options, "bad_pointer=report%s", checked);
    run_act(act, functions[i], options);
    CHECK_CHILD(went_on() && said(functions[i], reason, other_reason));
    snprintf(options, sizeof options, "bad_pointer=ignore%s", checked);
    run_act(act, functions[i], options);
    CHECK_CHILD(went_on() && child.err[0] == 0);
  }
}
static void check_release_and_checked(const char* act, const char* reason,
                                      const char* other_reason) {
  check_act(act, "", reason, other_reason);
  check_act(act, ",checked=1", reason, other_reason);
}

CASE(lanemalloc_stack_pointer) { check_release_and_checked("stack", kForeign, NULL); }
CASE(lanemalloc_global_pointer) { check_release_and_checked("global", kForeign, NULL); }
CASE(lanemalloc_mapped_pointer) { check_release_and_checked("mapped", kForeign, NULL); }
CASE(lanemalloc_code_pointer) { check_release_and_checked("code", kForeign, NULL); }
CASE(lanemalloc_small_number) { check_release_and_checked("small_number", kForeign, NULL); }
CASE(lanemalloc_high_half_pointer) { check_release_and_checked("high_half", kForeign, NULL); }
CASE(lanemalloc_non_canonical_pointer) { check_release_and_checked("no_address", kForeign, NULL); }
CASE(lanemalloc_highest_pointer) { check_release_and_checked("highest", kForeign, NULL); }

// The hit of free does not ask whether a pointer into a slab is the start of an object; checked=1
// does.
CASE(lanemalloc_checked_interior_pointer_small) {
  check_act("interior_small", ",checked=1", kInterior, NULL);
}
CASE(lanemalloc_checked_interior_pointer_medium) {
  check_act("interior_medium", ",checked=1", kInterior, NULL);
}
CASE(lanemalloc_checked_misaligned_pointer) {
  check_act("misaligned", ",checked=1", kInterior, NULL);
}
CASE(lanemalloc_release_interior_pointer_large) {
  check_act("interior_large", "", kInterior, NULL);
}
CASE(lanemalloc_checked_interior_pointer_large) {
  check_act("interior_large", ",checked=1", kInterior, NULL);
}
CASE(lanemalloc_release_interior_pointer_large_other_block) {
  check_act("interior_large_block", "", kInterior, NULL);
}
CASE(lanemalloc_checked_interior_pointer_large_other_block) {
  check_act("interior_large_block", ",checked=1", kInterior, NULL);
}
CASE(lanemalloc_checked_interior_pointer_aligned) {
  check_act("interior_aligned", ",checked=1", kInterior, NULL);
}
CASE(lanemalloc_never_allocated) {
  check_release_and_checked("never_allocated", kUnused, kForeign);
}
CASE(lanemalloc_never_allocated_near) {
  check_release_and_checked("never_allocated_near", kUnused, kForeign);
}

CASE(lanemalloc_large_object_twice) { check_release_and_checked("twice_large", kFreed, kUnused); }
CASE(lanemalloc_checked_twice) { check_act("twice", ",checked=1", kFreed, NULL); }
CASE(lanemalloc_checked_twice_medium) { check_act("twice_medium", ",checked=1", kFreed, kUnused); }
CASE(lanemalloc_checked_twice_after_others) {
  check_act("twice_after_others", ",checked=1", kFreed, NULL);
}
CASE(lanemalloc_checked_twice_after_refill) {
  check_act("twice_after_refill", ",checked=1", kFreed, NULL);
}
CASE(lanemalloc_checked_twice_other_thread_first) {
  check_act("twice_other_thread_first", ",checked=1", kFreed, NULL);
}

static void check_checked_free(const char* act) {
  run_act(act, "free", "checked=1");
  CHECK_CHILD(child_aborted() && said("free", kFreed, NULL));
  run_act(act, "free", "checked=1,bad_pointer=report");
  CHECK_CHILD(went_on() && said("free", kFreed, NULL));
  run_act(act, "free", "checked=1,bad_pointer=ignore");
  CHECK_CHILD(went_on() && child.err[0] == 0);
}
CASE(lanemalloc_checked_twice_other_thread_second) {
  check_checked_free("twice_other_thread_second");
}
CASE(lanemalloc_checked_twice_both_other_threads) {
  check_checked_free("twice_both_other_threads");
}

// Without checks, a second free is found at the latest when the list is taken. Which function
// reports it, and where, is left open.
static void check_release(const char* act) {
  run_act(act, "free", NULL);
  CHECK_CHILD(child_aborted() && line_count() == 1 && lines_with("lanemalloc: ", "(0x") == 1);
}
CASE(lanemalloc_release_twice_is_found_when_the_list_is_taken) {
  check_release("twice_then_allocate");
}
CASE(lanemalloc_release_twice_apart_is_found_when_the_list_is_taken) {
  check_release("twice_apart_then_allocate");
}

CASE(lanemalloc_default_is_abort) {
  run_act("stack", "free", NULL);
  CHECK_CHILD(child_aborted() && said("free", kForeign, NULL));
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
