// In a process with AT_SECURE options are ignored, and at most one line says so. Linked with
// liblanemalloc.a, because a preloaded library is dropped there. The program runs a set-user-id
// copy of itself, started by the user nobody; it needs root.
#include <sys/auxv.h>
#include <sys/stat.h>

#include "../child.h"

CHILD(work) {
  say(getauxval(AT_SECURE) ? "secure\n" : "plain\n");
  free(hide(malloc(100)));
}
CHILD(free_on_stack) {
  char on_stack[64];
  say(getauxval(AT_SECURE) ? "secure\n" : "plain\n");
  free(hide(on_stack + 16));
}

enum { kNobody = 65534 };
static char copy[PATH_MAX];

static void make_set_user_id_copy(void) {
  if (geteuid() != 0) SKIP("not root: cannot make a set-user-id copy");
  char command[2 * PATH_MAX];
  // Below CHECK_PLUGINS, which run.sh makes accessible to all and removes. Cases run at the same
  // time.
  snprintf(copy, sizeof copy, "%s/secure_copy.%d", getenv("CHECK_PLUGINS"), getpid());
  snprintf(command, sizeof command, "install -o root -m 4755 /proc/%d/exe '%s'", getpid(), copy);
  REQUIRE(system(command) == 0);
}

static void run_secure(const char* name, const char* options) {
  memset(&child, 0, offsetof(struct Child, out));
  child.executable = copy;
  child.options = options;
  child.user = kNobody;
  run_child(name);
  if (child_succeeded() && strcmp(child.out, "plain\n") == 0)
    SKIP("set-user-id has no effect here (nosuid)");
}

CASE(lanemalloc_options_are_ignored_when_secure) {
  make_set_user_id_copy();
  run_child_with("work", "stats=exit");
  CHECK_CHILD(strcmp(child.out, "plain\n") == 0 &&
              child_stat("allocations") >= 1);  // options work if it is not secure
  const char* const options[] = {"stats=exit", "stats=exit,decoy_ms=1", "strict=1,decoy_ms=1",
                                 "strict=1,checked=x"};
  for (int i = 0; i < 4; i++) {
    run_secure("work", options[i]);
    CHECK_CHILD(child_succeeded() && strcmp(child.out, "secure\n") == 0);
    CHECK_CHILD(child_stat("allocations") == LLONG_MIN && lines_with("decoy_ms", "") == 0 &&
                line_count() <= 1);
  }
}

CASE(lanemalloc_bad_pointers_abort_when_secure) {
  make_set_user_id_copy();
  run_secure("free_on_stack", "bad_pointer=ignore");
  CHECK_CHILD(child_aborted() && strcmp(child.out, "secure\n") == 0 &&
              lines_with("free(0x", "not a pointer of this allocator") == 1);
}
