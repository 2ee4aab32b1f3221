// lane_stats() and its texts: sizes, sums, forks; in handlers, on small stacks, from many threads
// at once.
#include "work.h"

// --- lane_stats().

CASE(buffers_of_any_size) {
  static unsigned char buffer[sizeof(Figures) + 256];
  for (size_t n = 0; n < 8; n++) CHECK(lane_stats((Figures*)buffer, n) == EINVAL);
  look(&before);
  CHECK(before.version == LANE_STATS_VERSION && before.size == sizeof before);
  const size_t sizes[] = {8,
                          9,
                          32,
                          33,
                          40,
                          offsetof(Figures, probes),
                          sizeof(Figures) - 1,
                          sizeof(Figures),
                          sizeof(Figures) + 256};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    const size_t filled_in = sizes[i] < sizeof(Figures) ? sizes[i] : sizeof(Figures);
    memset(buffer, 0xA5, sizeof buffer);
    CHECK(lane_stats((Figures*)buffer, sizes[i]) == 0);
    const Figures* f = (const Figures*)buffer;
    CHECK_MSG(f->version == LANE_STATS_VERSION && f->size == filled_in, "%zu: %u", sizes[i],
              f->size);
    CHECK(all_bytes(buffer + filled_in, sizeof buffer - filled_in, 0xA5));
    if (filled_in > offsetof(Figures, live_objects) + 8)
      CHECK(f->allocations == before.allocations && f->live_objects == before.live_objects);
  }
}

CASE(texts_tell_their_length_and_end) {
  static char text[64 << 10], piece[64 << 10];
  size_t (*const writers[])(char*, size_t) = {lane_stats_json, lane_stats_openmetrics};
  for (int w = 0; w < 2; w++) {
    const size_t length = writers[w](text, sizeof text);
    CHECK(length < sizeof text && strlen(text) == length && text[length - 1] == '\n');
    CHECK(writers[w](NULL, 0) > 0);
    CHECK(writers[w](NULL, 100) > 0);
    const size_t sizes[] = {1, 2, 100, length};
    for (int i = 0; i < 4; i++) {
      memset(piece, 0x5A, sizeof piece);
      CHECK(writers[w](piece, sizes[i]) > 0);
      CHECK(strlen(piece) == sizes[i] - 1 && piece[sizes[i]] == 0x5A);
      CHECK(memcmp(piece, text, sizes[i] < 100 ? sizes[i] - 1 : 20) == 0);
    }
  }
}

CASE(classes_and_cells_add_up_after_any_work) {
  in_threads(kThreads, work, (void*)(size_t)4000);
  look(&now);
  check_sums(&now);
  check_cells(&now);
  clear_shelf();
  look(&now);
  check_sums(&now);
  CHECK(now.deferred_waiting == 0 && now.deferred > 0);
  CHECK_MSG(now.live_objects < 200, "%lu live", now.live_objects);
}

CASE(known_objects_are_counted_in_their_class) {
  static void* objects[LANE_STATS_CLASSES][3];
  look(&before);
  for (int c = 1; c < LANE_STATS_CLASSES; c++)
    for (int i = 0; i < 3; i++)
      REQUIRE((objects[c][i] = hide(malloc(before.classes[c].size - (size_t)i))) != NULL);
  look(&now);
  for (int c = 1; c < LANE_STATS_CLASSES; c++) {
    CHECK_MSG(now.classes[c].live == before.classes[c].live + 3, "class %d: %lu", c,
              now.classes[c].live - before.classes[c].live);
    CHECK(now.classes[c].allocations == before.classes[c].allocations + 3);
    CHECK(malloc_usable_size(objects[c][0]) == before.classes[c].size);
  }
  CHECK(now.live_objects == before.live_objects + 3 * (LANE_STATS_CLASSES - 1));
  CHECK(now.large_allocations == before.large_allocations);
  void* large = hide(malloc(kSlabMax + 1));
  look(&now);
  CHECK(now.large_live_objects == before.large_live_objects + 1);
  CHECK(now.large_live_bytes == before.large_live_bytes + malloc_usable_size(large));
  large = hide(realloc(large, kSlabMax + 2));  // in place
  look(&now);
  CHECK(now.large_allocations == before.large_allocations + 1);
  free(large);
  for (int c = 1; c < LANE_STATS_CLASSES; c++)
    for (int i = 0; i < 3; i++) free(objects[c][i]);
  look(&now);
  CHECK(now.live_objects == before.live_objects && now.live_bytes == before.live_bytes);
  CHECK(now.allocations == before.allocations + 3 * (LANE_STATS_CLASSES - 1) + 1);
}

CASE(a_fork_child_goes_on_with_its_parents_figures) {
  in_threads(4, work, (void*)(size_t)2000);
  look(&before);
  for (int round = 0; round < 3; round++) {
    const pid_t child = fork();
    if (child == 0) {
      look(&now);
      CHECK_MSG(now.live_objects == before.live_objects, "%lu for %lu", now.live_objects,
                before.live_objects);
      CHECK(now.allocations >= before.allocations && now.allocations < before.allocations + 20);
      void* p = hide(malloc(100));
      in_threads(2, work, (void*)(size_t)1000);
      look(&now);
      check_sums(&now);
      free(p);
      _exit(test_failures != 0);
    }
    CHECK(status_of(child) == 0);
  }
  look(&now);
  CHECK(now.live_objects == before.live_objects);
}

// --- In handlers.

static atomic_uint handler_calls, handler_problems;
static void ask_everything(void) {
  static Figures figures;  // one signal at a time
  static char text[48 << 10];
  const int failed = lane_stats(&figures, sizeof figures);
  if (failed || figures.version != LANE_STATS_VERSION || figures.live_objects > 1000000)
    atomic_fetch_add(&handler_problems, 1);
  char value[32];
  const unsigned calls = atomic_fetch_add(&handler_calls, 1);
  if (lane_get("stats.live_objects", value, sizeof value) <= 0)
    atomic_fetch_add(&handler_problems, 1);
  if (calls % 8 == 0 && lane_stats_json(text, sizeof text) < 1000)
    atomic_fetch_add(&handler_problems, 1);
  if (calls % 8 == 4 && lane_stats_openmetrics(text, sizeof text) < 1000)
    atomic_fetch_add(&handler_problems, 1);
}
static void on_alarm(int signal) {
  (void)signal;
  const int saved = errno;
  ask_everything();
  errno = saved;
}

// 8 KiB, with a page behind each end that the process may not touch.
static void small_signal_stack(void) {
  const size_t frame = getauxval(AT_MINSIGSTKSZ), size = 8192;
  if (frame + 4096 > size) SKIP("a signal's frame takes %zu bytes here", frame);
  char* pages = mmap(NULL, size + 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(pages != MAP_FAILED && mprotect(pages + 4096, size, PROT_READ | PROT_WRITE) == 0);
  const stack_t stack = {.ss_sp = pages + 4096, .ss_size = size};
  REQUIRE(sigaltstack(&stack, NULL) == 0);
}

CASE(handlers_that_interrupt_malloc_on_eight_KiB_of_stack) {
  small_signal_stack();
  struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_ONSTACK | SA_RESTART};
  sigaction(SIGALRM, &action, NULL);
  lane_name(0);
  look(&before);
  const struct itimerval often = {{0, 300}, {0, 300}}, never = {{0, 0}, {0, 0}};
  setitimer(ITIMER_REAL, &often, NULL);
  for (const double end = seconds() + 1; seconds() < end;) work((void*)(size_t)200);
  setitimer(ITIMER_REAL, &never, NULL);
  clear_shelf();
  look(&now);
  check_sums(&now);
  CHECK(handler_calls > 20 && handler_problems == 0);
  CHECK_MSG(now.live_objects <= before.live_objects + 5, "%lu for %lu", now.live_objects,
            before.live_objects);
}

#if defined(__x86_64__)
// The trap flag raises a signal after every instruction of malloc and free. Every 61st signal asks
// for the figures.
static void on_trap(int signal, siginfo_t* info, void* context) {
  (void)signal, (void)info;
  const greg_t* r = ((ucontext_t*)context)->uc_mcontext.gregs;
  const unsigned char* code = (const unsigned char*)r[REG_RIP];
  static unsigned steps;
  const int saved = errno;
  if (++steps % 61 == 0) ask_everything();
  // A system call that blocks the trap would end the process.
  if (code[0] == 0x0f && code[1] == 0x05)
    ((ucontext_t*)context)->uc_mcontext.gregs[REG_EFL] &= ~0x100;
  errno = saved;
}
static void __attribute__((noinline)) step(int on) {
  if (on)
    __asm__ volatile(
        "lea -128(%%rsp), %%rsp\n pushfq\n orq $0x100, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp" ::
            : "memory", "cc");
  else
    __asm__ volatile(
        "lea -128(%%rsp), %%rsp\n pushfq\n andq $~0x100, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp" ::
            : "memory", "cc");
}
CASE(handlers_at_the_instructions_of_malloc_and_free) {
  small_signal_stack();
  struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_ONSTACK | SA_SIGINFO};
  sigaction(SIGTRAP, &action, NULL);
  enum { kObjects = 160 };
  static void* objects[kObjects];
  free(hide(malloc(10)));
  look(&before);
  for (int i = 0; i < kObjects; i++) {
    const size_t size = hide_size(i % 3 == 0 ? 3000 : i % 50 == 1 ? 700000 : 40);
    step(i % 4 != 0);
    objects[i] = malloc(size);
    step(0);
  }
  for (int i = 0; i < kObjects; i++) {
    step(i % 4 != 0);
    free(objects[i]);
    step(0);
  }
  look(&now);
  check_sums(&now);
  CHECK_MSG(now.live_objects == before.live_objects, "%lu for %lu", now.live_objects,
            before.live_objects);
  CHECK_MSG(handler_calls > 100 && handler_problems == 0, "%u calls, %u problems", handler_calls,
            handler_problems);
}
#endif

static atomic_int stop;
static void* ask_until_stopped(void* problems) {
  static __thread Figures f;
  static __thread char text[40 << 10];
  uint64_t allocations = 0;
  while (!stop) {
    look(&f);
    if (f.live_objects > 100000 || f.allocations + 100000 < allocations) ++*(atomic_int*)problems;
    allocations = f.allocations;
    if (lane_stats_json(text, sizeof text) < 500) ++*(atomic_int*)problems;
    if (strcmp(get("stats.lanes"), "(none)") == 0) ++*(atomic_int*)problems;
  }
  return NULL;
}
static void* work_until_stopped(void* nothing) {
  while (!stop) work((void*)(size_t)300);
  return nothing;
}
CASE(eight_threads_ask_at_once_while_others_work) {
  static atomic_int problems;
  pthread_t threads[11];
  for (int i = 0; i < 11; i++)
    REQUIRE(pthread_create(&threads[i], NULL, i < 8 ? ask_until_stopped : work_until_stopped,
                           &problems) == 0);
  usleep(800000);
  stop = 1;
  for (int i = 0; i < 11; i++) pthread_join(threads[i], NULL);
  CHECK(problems == 0);
  look(&now);
  check_sums(&now);
  check_cells(&now);
  clear_shelf();
  look(&now);
  CHECK_MSG(now.live_objects < 200, "%lu live", now.live_objects);
}
