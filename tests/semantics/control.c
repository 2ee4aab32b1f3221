// malloc_info, malloc_stats, malloc_trim, mallopt, mallinfo and mallinfo2: what programs rely on.
#include <sched.h>
#include <stdatomic.h>

#include "child.h"
#include "run_threads.h"

static const size_t kMib = 1 << 20;

static void check_xml(void) {
  char command[] =
      "LD_PRELOAD= python3 -c '"
      "import sys, xml.dom.minidom as d; "
      "e = d.parse(sys.stdin.buffer).documentElement; "
      "sys.exit(e.tagName != \"malloc\" or not e.getAttribute(\"version\"))' 2>/dev/null";
  FILE* parser = popen(command, "w");
  REQUIRE(parser);
  CHECK(malloc_info(0, parser) == 0);
  CHECK(pclose(parser) == 0);
}

CASE(malloc_info_prints_xml) {
  check_xml();
  void* objects[1000];
  for (size_t i = 0; i < 1000; i++) objects[i] = malloc(i * i);
  check_xml();
  for (size_t i = 0; i < 1000; i++) free(objects[i]);
  check_xml();
}

CASE(malloc_info_refuses_options) {
  char text[100] = "";
  FILE* file = fmemopen(text, sizeof text, "w");
  CHECK(malloc_info(1, file) == EINVAL);
  fclose(file);
  CHECK(text[0] == 0);
}

CHILD(print_stats) { malloc_stats(); }
CASE(malloc_stats_prints_to_stderr) {
  run_child_with("print_stats", NULL);
  CHECK_CHILD(child_succeeded() && line_count() >= 1 && child.out[0] == 0);
}

// 64 MiB of small objects are freed and trimmed: most of the memory goes back to the system.
CHILD(trim_gives_back) {
  static void* objects[32768];
  size_t before = status_bytes("VmRSS:");
  for (int i = 0; i < 32768; i++) memset(objects[i] = malloc(2000), 1, 2000);
  CHECK(status_bytes("VmRSS:") > before + 60 * kMib);
  for (int i = 0; i < 32768; i++) free(objects[i]);
  int result = malloc_trim(0);
  CHECK_MSG(result == 1, "malloc_trim gives %d", result);
  CHECK_MSG(status_bytes("VmRSS:") < before + 16 * kMib, "%zu MiB more",
            (status_bytes("VmRSS:") - before) / kMib);
  result = malloc_trim(0);
  CHECK_MSG(result == 0 || result == 1, "malloc_trim gives %d", result);
  result = malloc_trim(SIZE_MAX);
  CHECK_MSG(result == 0 || result == 1, "malloc_trim gives %d", result);
  for (int i = 0; i < 32768; i++) memset(objects[i] = malloc(2000), 1, 2000);
  for (int i = 0; i < 32768; i++) free(objects[i]);
}
CASE(malloc_trim_gives_memory_back) {
  run_child_with("trim_gives_back", "decay_ms=-1");
  CHECK_CHILD(child_succeeded());
}

// For the parameters that programs set, the answer is 1, as from glibc. An unknown parameter must
// do no harm.
CASE(mallopt_answers) {
  CHECK(mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1);
  CHECK(mallopt(M_TRIM_THRESHOLD, 1 << 20) == 1);
  CHECK(mallopt(M_TOP_PAD, 1 << 20) == 1);
  CHECK(mallopt(M_MMAP_MAX, 1000) == 1);
  CHECK(mallopt(M_ARENA_MAX, 2) == 1);
  CHECK(mallopt(M_ARENA_TEST, 2) == 1);
  CHECK(mallopt(M_CHECK_ACTION, 3) == 1);
  CHECK(mallopt(M_PERTURB, 0) == 1);
  int unknown = mallopt(12345, 1);
  CHECK(unknown == 0 || unknown == 1);
  void* object = malloc(3 << 20);
  CHECK(object != NULL);
  free(object);
}

CASE(mallinfo2_follows_live_memory) {
  static void* objects[5000];
  struct mallinfo2 before = mallinfo2();
  for (int i = 0; i < 5000; i++) memset(objects[i] = malloc(4000), 1, 4000);
  void* large = malloc(50 * kMib);
  struct mallinfo2 during = mallinfo2();
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  struct mallinfo old = mallinfo();
  for (int i = 0; i < 5000; i++) free(objects[i]);
  free(large);
  struct mallinfo2 after = mallinfo2();
  size_t live_before = before.uordblks + before.hblkhd,
         live_during = during.uordblks + during.hblkhd;
  size_t live_after = after.uordblks + after.hblkhd, wanted = (size_t)5000 * 4000 + 50 * kMib;
  CHECK_MSG(live_during - live_before >= wanted, "%zu to %zu", live_before, live_during);
  CHECK_MSG(live_during - live_before <= wanted + wanted / 4, "%zu to %zu", live_before,
            live_during);
  CHECK_MSG(live_after <= live_before + kMib, "%zu to %zu", live_before, live_after);
  CHECK(during.arena + during.hblkhd >= wanted);
  CHECK_MSG((size_t)(unsigned)old.uordblks + (size_t)(unsigned)old.hblkhd + 4096 >= live_during,
            "mallinfo: %d + %d", old.uordblks, old.hblkhd);
}

// Threads take and overwrite objects that a reader of the figures might be walking over.
static atomic_int figures_read, threads_filled, objects_replaced;
static void* replace_objects(void* seed) {
  void* objects[512];
  unsigned random = (unsigned)(size_t)seed;
  for (int i = 0; i < 512; i++) REQUIRE(objects[i] = malloc(16));
  threads_filled++;
  while (!figures_read) {
    objects_replaced++;
    random = random * 1664525 + 1013904223;
    void** slot = &objects[random >> 16 & 511];
    free(*slot);
    *slot = malloc(16 + (random >> 8) % 200);
    REQUIRE(*slot);
    memset(*slot, 0xff, 16);
  }
  for (int i = 0; i < 512; i++) free(objects[i]);
  return NULL;
}

CASE(figures_may_be_read_while_threads_allocate) {
  pthread_t threads[3];
  start_threads(threads, 3, replace_objects);
  while (threads_filled < 3) sched_yield();
  size_t most = 0;
  for (int i = 0, replaced = 0; i < 5000 || replaced < 5000; i++) {
    replaced = objects_replaced;
    size_t live = mallinfo2().uordblks;
    if (live > most) most = live;
  }
  figures_read = 1;
  join_threads(threads, 3);
  CHECK_MSG(most > 3 * 512 * 16, "at most %zu bytes live", most);
  CHECK_MSG(most < 64 * kMib, "%zu bytes live", most);
}
