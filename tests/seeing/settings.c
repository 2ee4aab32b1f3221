// Names, values, and options that are set while the program runs: lane_name(), lane_get(),
// lane_set().
#include "work.h"

CASE(every_name_can_be_read) {
  size_t n = 0, options = 0, cells = 0;
  const char* name;
  char value[600];
  for (; (name = lane_name(n)) != NULL; n++) {
    const long length = lane_get(name, value, sizeof value);
    CHECK_MSG(length >= 0 && strlen(value) == (size_t)length, "%s: %ld", name, length);
    CHECK(lane_get(name, NULL, 0) >= 0);
    options += strncmp(name, "options.", 8) == 0;
    cells += strncmp(name, "contention.", 11) == 0;
    if (strncmp(name, "options.", 8) != 0) CHECK(lane_set(name, "1") == EPERM);
    for (size_t other = 0; other < n; other++)
      CHECK_MSG(strcmp(lane_name(other), name) != 0, "%s twice", name);
  }
  CHECK(options == 20 && cells >= 4 * 15 && n > options + cells + 40);
  CHECK(lane_name(n) == NULL && lane_name(n + 1000) == NULL && lane_name(SIZE_MAX) == NULL);
}
CASE(values_agree_with_lane_stats) {
  void* p = hide(malloc(1000));
  char value[40], expected[40];
  look(&now);
  const char* const names[] = {"live_objects", "allocations", "live_bytes", "claimed_bytes",
                               "lanes"};
  const uint64_t values[] = {now.live_objects, now.allocations, now.live_bytes, now.claimed_bytes,
                             now.lanes};
  for (int i = 0; i < 5; i++) {
    char name[64];
    snprintf(name, sizeof name, "stats.%s", names[i]);
    snprintf(expected, sizeof expected, "%lu", values[i]);
    CHECK(lane_get(name, value, sizeof value) == (long)strlen(expected) &&
          strcmp(value, expected) == 0);
  }
  memset(value, 'x', sizeof value);
  CHECK(lane_get("stats.claimed_bytes", value, 2) > 1 && value[1] == '\0' && value[2] == 'x');
  free(p);
}
CASE(odd_names_and_values_are_refused) {
  const char* const none[] = {"",
                              "x",
                              "options.",
                              "options",
                              "options.x",
                              "stats.",
                              "stats.x",
                              "contention.",
                              "contention.x.waits",
                              "contention.depot",
                              "contention.depot.",
                              "contention.depot.x",
                              "optionsdecay_ms",
                              "Decay_ms",
                              "decay_ms=1",
                              "contention.lane.waits.more",
                              "options.options.decay_ms"};
  for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
    CHECK_MSG(lane_set(none[i], "1") == ENOENT, "%s: %d", none[i], lane_set(none[i], "1"));
    CHECK_MSG(lane_get(none[i], NULL, 0) == -1, "%s", none[i]);
  }
  static char longest[100000];
  memset(longest, 'a', sizeof longest - 1);
  CHECK(lane_set(longest, "1") == ENOENT && lane_get(longest, NULL, 0) == -1);
  CHECK(lane_get("decay_ms", NULL, 0) == -1);  // only lane_set leaves the prefix out
  static const struct {
    const char *name, *value;
    int result;
  } cases[] = {{"decay_ms", "", EINVAL},
               {"decay_ms", "-2", EINVAL},
               {"decay_ms", "1s", EINVAL},
               {"decay_ms", " 1", EINVAL},
               {"decay_ms", "99999999999999999999", EINVAL},
               {"lanes", "own", EINVAL},
               {"lanes", "shared:0", EINVAL},
               {"lanes", "shared:4097", EINVAL},
               {"probes", "0", EINVAL},
               {"probes", "4097", EINVAL},
               {"bad_pointer", "no", EINVAL},
               {"huge_pages", "always", EINVAL},
               {"stats", "signal:KILL", EINVAL},
               {"stats", "signal:", EINVAL},
               {"stats", "exit+", EINVAL},
               {"stats", "exit,none", EINVAL},
               {"stats_format", "xml", EINVAL},
               {"sample", "1x", EINVAL},
               {"sample", "k", EINVAL},
               {"sample", "2048g", EINVAL},
               {"sample_wait_ns", "-1", EINVAL},
               {"unwind", "both", EINVAL},
               {"leaks", "2", EINVAL},
               {"profile", "always", EINVAL},
               {"checked", "1", EPERM},
               {"options.checked", "1", EPERM},
               {"deferred", "10", EPERM},
               {"strict", "1", EPERM},
               {"stats.live_bytes", "1", EPERM},
               {"contention.lane.waits", "1", EPERM}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char value[600];
    snprintf(value, sizeof value, "%s", get(cases[i].name));
    const int result = lane_set(cases[i].name, cases[i].value);
    CHECK_MSG(result == cases[i].result, "%s=%s: %d", cases[i].name, cases[i].value, result);
    if (result == EINVAL) CHECK(strcmp(value, get(cases[i].name)) == 0);
  }
  CHECK(lane_set("stats_file", longest) == EINVAL);
  // Null is neither a name nor a value.
  CHECK(lane_set(NULL, "1") == ENOENT && lane_set(NULL, NULL) == ENOENT &&
        lane_set("decay_ms", NULL) == EINVAL);
  CHECK(lane_get(NULL, NULL, 0) == -1 && lane_get("stats.lanes", NULL, 10) > 0);
  CHECK(lane_stats(NULL, 0) == EINVAL && lane_stats(NULL, sizeof now) == EINVAL);
}

CASE(every_settable_option_takes_its_values) {
  static const char* const values[][8] = {
      {"options.lanes", "shared:3", "owned", "auto", "shared", NULL},
      {"options.probes", "1", "17", "4096", "4", NULL},
      {"options.scan", "first", "coprime", NULL},
      {"options.precedence", "0", "1", NULL},
      {"options.wait_on", "random", "current", NULL},
      {"options.decay_ms", "0", "-1", "86400000", "1000", NULL},
      {"options.bad_pointer", "report", "ignore", "abort", NULL},
      {"options.stats", "exit", "signal:USR2", "exit+signal:WINCH", "none", NULL},
      {"options.stats_format", "json", "openmetrics", "text", NULL},
      {"options.stats_file", "/tmp/a b.%p", "", NULL},
      {"options.sample_wait_ns", "0", "1000000000", "10000", NULL},
      {"options.profile", "exit", "none", NULL},
      {"options.profile_file", "x", NULL},
      {"options.leaks", "1", "0", NULL}};
  for (size_t i = 0; i < sizeof values / sizeof *values; i++)
    for (int v = 1; values[i][v] != NULL; v++) SET(values[i][0], values[i][v]);
  CHECK(lane_set("sample", "2k") == 0 && strcmp(get("options.sample"), "2048") == 0);
  CHECK(lane_set("sample", "0") == 0);
  CHECK(lane_set("probes", "all") == 0 && strcmp(get("options.probes"), "4096") == 0);
}

static size_t resident(void) {
  FILE* file = fopen("/proc/self/statm", "r");
  size_t pages = 0;
  REQUIRE(fscanf(file, "%*u %zu", &pages) == 1);
  fclose(file);
  return pages * (size_t)sysconf(_SC_PAGESIZE);
}
static void* wait_for_end(void* unused) {
  for (;;) pause();
  return unused;
}
CASE(decay_ms_set_later_takes_effect) {
  // A process with one thread has no scavenger that gives memory back while it is idle.
  pthread_t other;
  CHECK(pthread_create(&other, NULL, wait_for_end, NULL) == 0);
  SET("options.decay_ms", "-1");
  enum { kObjects = 2000, kEach = 32 << 10 };
  static char* objects[kObjects];
  for (int i = 0; i < kObjects; i++) memset(objects[i] = malloc(kEach), 1, kEach);
  for (int i = 0; i < kObjects; i++) free(objects[i]);
  const size_t full = resident();
  usleep(400000);
  CHECK_MSG(resident() + (4 << 20) > full, "%zu of %zu", resident(), full);
  SET("options.decay_ms", "50");
  const double end = seconds() + 20;
  while (resident() > full / 2 && seconds() < end) usleep(20000);
  CHECK_MSG(resident() <= full / 2, "%zu of %zu", resident(), full);
  look(&now);
  CHECK(now.purged_bytes > 0);
  CHECK(pthread_cancel(other) == 0 && pthread_join(other, NULL) == 0);
}
CASE(lanes_set_later_take_effect) {
  char entry[32];
  static const char* const entries[] = {"shared:2", "owned", "shared:5", "percpu"};
  for (int i = 0; i < 4; i++) {
    const int result = lane_set("lanes", entries[i]);
    if (result == ENOTSUP && i == 3) {
      CHECK(strcmp(get("options.lanes"), entries[2]) == 0);
      continue;
    }
    CHECK_MSG(result == 0, "%s: %d", entries[i], result);
    in_threads(4, work, (void*)(size_t)500);
    lane_entry(entry, sizeof entry);
    look(&now);
    CHECK(strcmp(entry, entries[i]) == 0 && strcmp(now.entry, entries[i]) == 0 &&
          strcmp(get("options.lanes"), entries[i]) == 0);
  }
  // A change by lane_set_entry() is seen here too.
  CHECK(lane_set_entry("shared:3") == 0);
  CHECK_MSG(strcmp(get("options.lanes"), "shared:3") == 0, "%s", get("options.lanes"));
  CHECK(lane_set("decay_ms", "500") == 0);
  lane_entry(entry, sizeof entry);
  CHECK(strcmp(entry, "shared:3") == 0);
  clear_shelf();
}
CASE(probes_set_later_take_effect) {
  CHECK(lane_set("lanes", "shared:8") == 0);
  SET("options.probes", "1");
  look(&before);
  in_threads(kThreads, work, (void*)(size_t)3000);
  look(&now);
  for (int row = 2; row < LANE_STATS_PROBES; row++) CHECK(now.probes[row] == before.probes[row]);
  clear_shelf();
}
CASE(bad_pointer_set_later_takes_effect) {
  char stranger[64];
  SET("options.bad_pointer", "ignore");
  free(hide(stranger + 16));
  look(&now);
  CHECK(now.bad_pointers == 1);
  SET("options.bad_pointer", "report");
  free(hide(stranger + 16));
  SET("options.bad_pointer", "abort");
  const pid_t child = fork();
  if (child == 0) {
    free(hide(stranger + 16));
    _exit(0);
  }
  CHECK(status_of(child) == 128 + SIGABRT);
}
static void of_the_program(int signal) { (void)signal; }
CASE(a_signal_set_later_takes_effect) {
  char path[] = "/tmp/lanemalloc-seeing-XXXXXX";
  close(mkstemp(path));
  SET("options.stats_file", path);
  SET("options.stats_format", "json");
  SET("options.stats", "signal:USR2");
  raise(SIGUSR2);
  FILE* file = fopen(path, "r");
  CHECK(file != NULL && fgetc(file) == '{');
  if (file) fclose(file);
  SET("options.stats", "signal:WINCH");
  struct sigaction action;
  sigaction(SIGUSR2, NULL, &action);
  CHECK(action.sa_handler == SIG_DFL);
  sigaction(SIGWINCH, NULL, &action);
  CHECK(action.sa_handler != SIG_DFL);
  // A handler that the program has set itself stays.
  signal(SIGWINCH, of_the_program);
  SET("options.stats", "none");
  sigaction(SIGWINCH, NULL, &action);
  CHECK(action.sa_handler == of_the_program);
  unlink(path);
}
