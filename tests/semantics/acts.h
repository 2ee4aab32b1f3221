// Bad acts, each in a child of its own: ACT FUNCTION is the child's argument. The child prints the
// pointer that it uses, and "went on" if it survives with all its objects whole. Included after
// check.h.
#ifndef TESTS_SEMANTICS_ACTS_H_
#define TESTS_SEMANTICS_ACTS_H_

#include "child.h"

struct Act {
  const char* name;
  void (*run)(void);
};

// --- The child.

static const char* function_name;
UNUSED static int is_function(const char* name) { return strcmp(function_name, name) == 0; }

// Runs the act that the argument names.
UNUSED static void run_named(const struct Act* acts, size_t count) {
  function_name = strchr(test_argument, ' ') + 1;
  const size_t length = (size_t)(function_name - 1 - test_argument);
  for (size_t i = 0; i < count; i++)
    if (strlen(acts[i].name) == length && memcmp(acts[i].name, test_argument, length) == 0)
      return acts[i].run();
  REQUIRE(!"an act of that name");
}

// Runs it amid other objects: those made before keep their contents, and no object is given out
// twice.
UNUSED static void run_amid(const struct Act* acts, size_t count, void* (*take)(size_t size),
                            void (*give)(void* object, size_t size)) {
  static void* before[300];
  static void* after[3000];
  for (unsigned i = 0; i < 300; i++) fill(before[i] = take(i * 11), i * 11, i);
  run_named(acts, count);
  for (unsigned i = 0; i < 3000; i++) fill(after[i] = take(i % 300), i % 300, i);
  for (unsigned i = 0; i < 3000; i++) {
    CHECK_MSG(filled(after[i], i % 300, i), "object %u", i);
    give(after[i], i % 300);
  }
  for (unsigned i = 0; i < 300; i++) {
    CHECK_MSG(filled(before[i], i * 11, i), "object %u", i);
    give(before[i], i * 11);
  }
  if (!test_failures) say("went on\n");
}

// --- The parent.

// Runs the act with these options, more of them, and the entry of lanes of this process.
static void run_act(const char* act, const char* function, const char* options, const char* more) {
  static char argument[128], all[300];
  const char* lanes = getenv("LANEMALLOC_OPTIONS");
  snprintf(argument, sizeof argument, "%s %s", act, function);
  snprintf(all, sizeof all, "%s,%s,%s", lanes ? lanes : "", options, more);
  memset(&child, 0, offsetof(struct Child, out));
  child.options = all;
  child.argument = argument;
  run_child("bad_act");
}
static int went_on(void) { return child_succeeded() && strstr(child.out, "went on\n") != NULL; }

// True if stderr has `times` lines that name function and pointer and go on with `why`, and nothing
// else.
UNUSED static int said(const char* function, const char* why, int times) {
  unsigned long pointer = 0;
  char line[400], all[1000] = "";
  const char* named = strstr(child.out, "pointer 0x");
  if (!named || sscanf(named, "pointer 0x%lx", &pointer) != 1) return 0;
  snprintf(line, sizeof line, "lanemalloc: %s(0x%lx%s\n", function, pointer, why);
  for (int i = 0; i < times; i++) strcat(all, line);
  return strcmp(child.err, all) == 0;
}

// One act by one function, under all three values of bad_pointer=. or_why: another reason that the
// library may give.
UNUSED static void check_act_or(const char* act, const char* function, const char* more,
                                const char* why, const char* or_why, int times) {
  run_act(act, function, "bad_pointer=abort", more);
  CHECK_CHILD(child_aborted() && (said(function, why, 1) || said(function, or_why, 1)));
  run_act(act, function, "bad_pointer=report", more);
  CHECK_CHILD(went_on() && (said(function, why, times) || said(function, or_why, times)));
  run_act(act, function, "bad_pointer=ignore", more);
  CHECK_CHILD(went_on() && child.err[0] == 0);
}
UNUSED static void check_act(const char* act, const char* function, const char* more,
                             const char* why) {
  check_act_or(act, function, more, why, why, 1);
}
// Without checked=1 and with it.
UNUSED static void check_both(const char* act, const char* function, const char* why) {
  check_act(act, function, "", why);
  check_act(act, function, "checked=1", why);
}

#endif  // TESTS_SEMANTICS_ACTS_H_
