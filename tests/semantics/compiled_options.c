// A program's own `lanemalloc_options` string. Linked with -rdynamic, so that a preloaded library
// sees it.
#include "child.h"

const char* lanemalloc_options = "stats=exit,bad_pointer=report,compiled_in=1";

CHILD(work) { free(hide(malloc(100))); }
CHILD(free_on_stack) {
  char on_stack[64];
  free(hide(on_stack + 16));
}

CASE(lanemalloc_compiled_in_string_is_used) {
  run_child_with("free_on_stack", NULL);
  CHECK_CHILD(child_succeeded() && child_stat("allocations") >= 0 &&
              lines_with("free(0x", "not a pointer of this allocator") == 1);
}

CASE(lanemalloc_errors_in_it_say_where_it_came_from) {
  run_child_with("work", NULL);
  CHECK_CHILD(lines_with("lanemalloc: lanemalloc_options: ", "unknown option 'compiled_in'") == 1);
  CHECK_CHILD(lines_with("LANEMALLOC_OPTIONS", "") == 0);
}

CASE(lanemalloc_environment_wins) {
  run_child_with("work", "stats=none");
  CHECK_CHILD(child_succeeded() && child_stat("allocations") == LLONG_MIN);
  run_child_with("free_on_stack", "bad_pointer=abort");
  CHECK_CHILD(child_aborted());
}

CASE(lanemalloc_keys_that_the_environment_does_not_name_stay) {
  run_child_with("free_on_stack", "checked=1");
  CHECK_CHILD(child_succeeded() && child_stat("allocations") >= 0 &&
              lines_with("free(0x", "not a pointer") == 1);
}
