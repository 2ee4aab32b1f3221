// Programs that are looked at from outside. check.py starts them, or run.sh with the counter in
// front. They have no cases of their own.
#include "work.h"

// Counted from outside: threads, thread exits, remote frees, forks. Some objects stay alive.
CHILD(churn) {
  for (int round = 0; round < 3; round++) {
    in_threads(6, work, (void*)(size_t)6000);
    const pid_t child = fork();
    if (child == 0) {
      in_threads(2, work, (void*)(size_t)3000);
      if (round == 1) _exit(0);
      exit(0);
    }
    CHECK(status_of(child) == 0);
  }
  // Large objects that grow in place, by the kernel, and by copying; and that shrink.
  char* p = malloc(600 << 10);
  for (size_t size = 700 << 10; size < 64 << 20; size = size * 5 / 4)
    p = realloc(p, size), p[size - 1] = 1;
  char* q = malloc(2 << 20);
  p = realloc(p, 3 << 20);
  q = realloc(q, 100);
  free(p);
  for (int i = 0; i < kShelf; i += 2) free(atomic_exchange(&shelf[i], NULL));
  // A fork while other threads are inside.
  pthread_t threads[3];
  for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, work, (void*)(size_t)8000);
  for (int i = 0; i < 8; i++) {
    const pid_t child = fork();
    if (child == 0) {
      work((void*)(size_t)500);
      _exit(0);
    }
    CHECK(status_of(child) == 0);
  }
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
}

// Writes everything that there is to read, at one moment, to files, which check.py compares.
// test_argument: a folder.
static void put_file(const char* name, const char* text, size_t n) {
  char path[600];
  snprintf(path, sizeof path, "%s/%s", test_argument, name);
  const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  REQUIRE(fd >= 0 && write(fd, text, n) == (ssize_t)n);
  close(fd);
}
CHILD(tell_everything) {
  static char json[64 << 10], metrics[128 << 10], xml[64 << 10], names[32 << 10], lines[32 << 10],
      info_text[1000], buffer[4096];
  in_threads(4, work, (void*)(size_t)3000);
  FILE* memory = fmemopen(xml, sizeof xml, "w");
  setvbuf(memory, buffer, _IOFBF, sizeof buffer);
  int ends[2];
  REQUIRE(pipe(ends) == 0 && fcntl(ends[1], F_SETPIPE_SZ, 256 << 10) > 0);
  const int error_output = dup(STDERR_FILENO);
  lane_name(0);
  lane_stats_json(NULL, 0);
  // From here on nothing is allocated.
  look(&now);
  const size_t json_length = lane_stats_json(json, sizeof json);
  const size_t metrics_length = lane_stats_openmetrics(metrics, sizeof metrics);
  const struct mallinfo2 info = mallinfo2();
  _Pragma("GCC diagnostic ignored \"-Wdeprecated-declarations\"") const struct mallinfo old =
      mallinfo();
  REQUIRE(malloc_info(0, memory) == 0);
  dup2(ends[1], STDERR_FILENO);
  malloc_stats();
  dup2(error_output, STDERR_FILENO);
  size_t used = 0;
  const char* name;
  for (size_t i = 0; (name = lane_name(i)) != NULL; i++)
    used += (size_t)snprintf(names + used, sizeof names - used, "%s %s\n", name, get(name));
  look(&before);
  // And nothing was allocated.
  CHECK(before.allocations == now.allocations && before.live_bytes == now.live_bytes);
  fclose(memory);
  const ssize_t lines_length = read(ends[0], lines, sizeof lines);
  put_file("json", json, json_length);
  put_file("openmetrics", metrics, metrics_length);
  put_file("malloc_info", xml, strlen(xml));
  put_file("malloc_stats", lines, (size_t)lines_length);
  put_file("names", names, used);
  put_file("struct", (const char*)&now, sizeof now);
  const int n = snprintf(
      info_text, sizeof info_text, "%zu %zu %zu %zu %zu %zu %zu\n%zu %zu %zu %zu %zu %zu %zu\n",
      info.arena, info.ordblks, info.hblks, info.hblkhd, info.uordblks, info.fordblks,
      info.keepcost, (size_t)old.arena, (size_t)old.ordblks, (size_t)old.hblks, (size_t)old.hblkhd,
      (size_t)old.uordblks, (size_t)old.fordblks, (size_t)old.keepcost);
  put_file("mallinfo", info_text, (size_t)n);
}
// Where the figures lie, for a reader of the struct: "name offset" on each line.
CHILD(struct_layout) {
#define AT(member) say(#member " %zu\n", offsetof(Figures, member))
  AT(allocations);
  AT(probes);
  AT(contention);
  AT(classes);
  say("cell %zu %zu\n", sizeof(Cell), offsetof(Cell, waits_by_time));
}

// The message of a bad pointer: check.py reads it. test_argument: twice, inside, usable, realloc.
CHILD(bad_use_of_a_sample) {
  lane_set("sample", "1");
  for (int i = 0; i < 100000 && (lane_stats(&now, sizeof now), now.samples < 5); i++)
    free(hide(malloc(1000)));
  look(&before);
  char* p = hide(malloc(100));
  look(&now);
  REQUIRE(now.samples == before.samples + 1);
  if (strcmp(test_argument, "twice") == 0) {
    free(p);
    free(hide(p));
  } else if (strcmp(test_argument, "inside") == 0) {
    free(hide(p + 16));
  } else if (strcmp(test_argument, "usable") == 0) {
    malloc_usable_size(hide(p + 16));
  } else {
    free(p);
    p = realloc(hide(p), 10);
  }
}

static atomic_int stop;
static void* lane_fight(void* nothing) {
  while (!stop) {
    void* p[20];
    for (int i = 0; i < 20; i++) p[i] = hide(malloc(64));
    for (int i = 0; i < 20; i++) free(p[i]);
  }
  return nothing;
}

// Makes objects, prints what the library says, and stays until its input ends. "exec": does so once
// more, as another program.
CHILD(stay) {
#if defined(PREFIXED)
#define ALLOCATE lane_malloc
#define FREE lane_free
#else
#define ALLOCATE malloc
#define FREE free
#endif
  for (int i = 0; i < 3000; i++) hide(ALLOCATE((size_t)i + 1));
  if (test_argument && strcmp(test_argument, "fork") == 0 && fork() != 0) {
    wait(NULL);
    _exit(0);
  }
  if (test_argument && strcmp(test_argument, "exec") == 0)
    execl("/proc/self/exe", "seeing", "stay", (char*)NULL);
  void* large = ALLOCATE(3 << 20);
  void* object = ALLOCATE(100);
  void* freed = ALLOCATE(100);
  hide(object), hide(freed), FREE(freed);
  look(&now);
  say("%d %lu %lu %lu %p %p %p\n", getpid(), now.allocations, now.live_objects, now.live_bytes,
      large, object, freed);
  char end;
  while (read(STDIN_FILENO, &end, 1) > 0) {
  }
}
// Waits for signals until its input ends, and forks once for each "f".
CHILD(obey) {
  work((void*)(size_t)500);
  say("%d\n", getpid());
  char order;
  for (ssize_t n; (n = read(STDIN_FILENO, &order, 1)) > 0 || (n < 0 && errno == EINTR);) {
    if (n < 0) continue;
    if (order != 'f') continue;
    const pid_t child = fork();
    if (child == 0) exit(0);
    status_of(child);
    say("%d\n", child);
  }
}
CHILD(wait_for_lanes) {
  lane_set("lanes", "shared:1");
  pthread_t threads[kThreads];
  for (int i = 0; i < kThreads; i++)
    REQUIRE(pthread_create(&threads[i], NULL, lane_fight, NULL) == 0);
  say("%d\n", getpid());
  char end;
  while (read(STDIN_FILENO, &end, 1) > 0) {
  }
  stop = 1;
  for (int i = 0; i < kThreads; i++) pthread_join(threads[i], NULL);
}
// Makes each of the probes' events.
CHILD(every_event) {
  in_threads(3, work, (void*)(size_t)3000);
  clear_shelf();
  malloc_trim(0);
  for (int i = 0; i < 20; i++) free(hide(malloc(9 << 20)));
  malloc_trim(0);
}
