// Three thousand threads are alive at once, each with a few small objects. Checked: what a thread
// costs beyond its stack (compared with the same program without the objects), contents, and that
// the main thread can free all objects, while the owners live or after they are gone.
// Run by: tests/stress/run.sh.
#include <sched.h>

#include "stress.h"

extern char** environ;

namespace {
using namespace stress;

constexpr int kThreads = 3000;
constexpr int kObjects = 5;
constexpr size_t kCostLimit = 64 * kKiB;

struct Each {
  pthread_t thread;
  Owned objects[kObjects];
};
Each* g_each;
int g_objects_each = kObjects;
std::atomic<int> g_ready{0};
pthread_mutex_t g_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t g_condition = PTHREAD_COND_INITIALIZER;
bool g_leave = false;

void* thread_body(void* argument) {
  auto* each = static_cast<Each*>(argument);
  uint64_t index = static_cast<uint64_t>(each - g_each);
  Random random(index);
  for (int i = 0; i < g_objects_each; i++)
    each->objects[i] = take(16 + random.below(240), ((index + 1) << 40) + static_cast<uint64_t>(i));
  g_ready.fetch_add(1);
  pthread_mutex_lock(&g_mutex);
  while (!g_leave) pthread_cond_wait(&g_condition, &g_mutex);
  pthread_mutex_unlock(&g_mutex);
  return nullptr;
}

// Starts the threads and returns the resident size when all hold their objects.
size_t start_all() {
  g_each = static_cast<Each*>(map_pages(sizeof(Each) * kThreads));
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 64 << 10);
  for (int i = 0; i < kThreads; i++) {
    stage("starting", static_cast<uint64_t>(i));
    int error = pthread_create(&g_each[i].thread, &attributes, thread_body, &g_each[i]);
    if (error == EAGAIN) SKIP("only %d threads can be started here", i);
    EXPECT(error == 0, "pthread_create: %s", strerror(error));
  }
  while (g_ready.load() < kThreads) sched_yield();
  return resident();
}
void join_all() {
  pthread_mutex_lock(&g_mutex);
  g_leave = true;
  pthread_cond_broadcast(&g_condition);
  pthread_mutex_unlock(&g_mutex);
  for (int i = 0; i < kThreads; i++) pthread_join(g_each[i].thread, nullptr);
}
void free_all() {
  for (int i = 0; i < kThreads; i++)
    for (Owned& o : g_each[i].objects) give(o, "freed from main");
}

void cost() {
  stage("measuring without objects");
  size_t without = measure_in_new_process("measure", "", environ);
  size_t with = start_all();
  size_t each = with > without ? (with - without) / kThreads : 0;
  EXPECT(each < kCostLimit,
         "a thread with %d small objects costs %zu KiB resident beyond its stack", kObjects,
         each / kKiB);
  free_all();
  join_all();
  NOTE("%zu bytes a thread; %zu KiB with, %zu KiB without objects", each, with / kKiB,
       without / kKiB);
}

void freed_after_exit() {
  start_all();
  join_all();
  free_all();
  // The next generation takes over what the first one left.
  size_t before = resident();
  g_ready = 0;
  g_leave = false;
  size_t again = start_all();
  free_all();
  join_all();
  EXPECT(again < before + kThreads * kCostLimit, "the second generation takes %zu KiB more",
         (again - before) / kKiB);
  NOTE("%zu KiB resident between two generations of %d threads, %zu KiB with the second",
       before / kKiB, kThreads, again / kKiB);
}
}  // namespace

int main(int argc, char** argv) {
  if (argc >= 2 && strcmp(argv[1], "measure") == 0) {
    g_objects_each = 0;
    print(1, "%zu\n", start_all());
    _exit(0);
  }
  static const Case cases[] = {{"cost", cost}, {"freed-after-exit", freed_after_exit}};
  return run_cases("many_threads", argc, argv, cases);
}
