// Ends of threads and processes: destructors and handlers that allocate and free, in every order
// that C and C++ know.
#include <pthread.h>
#include <semaphore.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "child.h"

namespace {

constexpr size_t kMib = 1 << 20;
std::atomic<int> destructor_runs;

// The destructor frees what the thread left, and allocates anew.
struct PerThread {
  std::vector<std::unique_ptr<std::string>> kept;
  ~PerThread() {
    for (int i = 0; i < 100; i++)
      kept.push_back(std::make_unique<std::string>(static_cast<size_t>(i * 50), 'x'));
    for (auto& text : kept) CHECK(text->empty() || text->back() == 'x');
    kept.clear();
    void* object = realloc(malloc(100), 100000);
    memset(object, 1, 100000);
    free(object);
    destructor_runs++;
  }
};
thread_local PerThread per_thread;

pthread_key_t keys[3];

// Sets its own key again for three more rounds.
void key_destructor(void* value) {
  char* text = static_cast<char*>(value);
  int round = text[0];
  for (int size = 1; size < 200000; size *= 3)
    free(memset(malloc(static_cast<size_t>(size)), round, static_cast<size_t>(size)));
  char* next = static_cast<char*>(malloc(static_cast<size_t>(1000 * (round + 1))));
  next[0] = static_cast<char>(round + 1);
  free(text);
  destructor_runs++;
  if (round < 3) {
    pthread_setspecific(keys[round % 3], next);
  } else {
    free(next);
  }
}

void make_keys() {
  for (pthread_key_t& key : keys) REQUIRE(pthread_key_create(&key, key_destructor) == 0);
}

void use_thread_memory() {
  for (int i = 0; i < 50; i++) per_thread.kept.push_back(std::make_unique<std::string>(300, 'x'));
  for (pthread_key_t key : keys) {
    char* value = static_cast<char*>(calloc(1, 500));
    pthread_setspecific(key, value);
  }
}

void allocate_and_free() {
  for (size_t size = 1; size < 2 * kMib; size = size * 3 + 1) {
    char* object = static_cast<char*>(malloc(size));
    REQUIRE(object);
    object[0] = object[size - 1] = 1;
    free(object);
  }
}

}  // namespace

// The memory that threads leave behind is used again: memory does not grow with the number of
// threads that have ended.
CASE(memory_of_ended_threads_is_used_again) {
  make_keys();
  size_t before = 0;
  for (int round = 0; round < 4000; round++) {
    if (round == 400) before = status_bytes("VmRSS:");
    std::thread([] {
      use_thread_memory();
      allocate_and_free();
    }).join();
  }
  CHECK_MSG(destructor_runs >= 4000 * 5, "%d", destructor_runs.load());
  size_t after = status_bytes("VmRSS:");
  // Some objects stay. Each sampled one has a block of its own.
  const char* options = getenv("LANEMALLOC_OPTIONS");
  const size_t most =
      options != nullptr && strstr(options, "sample=") != nullptr ? 160 * kMib : 48 * kMib;
  CHECK_MSG(after < before + most, "%zu to %zu KiB", before / 1024, after / 1024);
}

CASE(cancelled_and_pthread_exit_threads) {
  make_keys();
  for (int round = 0; round < 100; round++) {
    pthread_t thread;
    pthread_create(
        &thread, nullptr,
        [](void*) -> void* {
          use_thread_memory();
          pthread_exit(malloc(10));
        },
        nullptr);
    void* result;
    pthread_join(thread, &result);
    free(result);
    pthread_create(
        &thread, nullptr,
        [](void*) -> void* {
          use_thread_memory();
          for (;;) pause();
        },
        nullptr);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    CHECK(result == PTHREAD_CANCELED);
  }
}

namespace {

std::vector<std::string>* exit_texts;
bool want_static_report, want_thread_at_exit = true;
struct StaticObject {
  std::vector<std::string> texts;
  ~StaticObject() {
    texts.resize(1000, "made in a static destructor, long enough for the heap");
    texts.clear();
    delete exit_texts;
    allocate_and_free();
    if (want_static_report) say("static destructor\n");
  }
};
StaticObject static_object;

void exit_handler() {
  allocate_and_free();
  exit_texts->resize(500, "made in an exit handler, long enough for the heap");
  if (want_thread_at_exit) std::thread(allocate_and_free).join();
  say("exit handler\n");
}

void prepare_exit() {
  make_keys();
  use_thread_memory();
  want_static_report = true;
  exit_texts = new std::vector<std::string>(100, std::string(100, 'e'));
  static_object.texts.assign(100, std::string(100, 's'));
  atexit(exit_handler);
}

bool ended_in_order() {
  const char* handler = strstr(child.out, "exit handler\n");
  return child_succeeded() && handler && strstr(handler, "static destructor\n") &&
         child.err[0] == 0;
}

}  // namespace

CHILD(return_from_main) { prepare_exit(); }
CASE(return_from_main_runs_handlers_and_destructors) {
  run_child_with("return_from_main", nullptr);
  CHECK_CHILD(ended_in_order());
}

// The other threads go on allocating while the process ends.
static void start_busy_threads() {
  static std::atomic<int> started;
  for (int i = 0; i < 2; i++) {
    std::thread([] {
      started++;
      use_thread_memory();
      for (;;) allocate_and_free();
    }).detach();
  }
  while (started < 2) usleep(100);
}

CHILD(exit_in_thread) {
  prepare_exit();
  start_busy_threads();
  std::thread([] { exit(0); }).join();
}
CASE(exit_from_a_thread_while_others_allocate) {
  for (int round = 0; round < 10; round++) {
    run_child_with("exit_in_thread", nullptr);
    CHECK_CHILD(ended_in_order());
  }
}

CHILD(main_leaves_first) {
  prepare_exit();
  // In glibc a thread of the exit handler would end as the last one, which would be a second exit
  want_thread_at_exit = false;
  std::thread([] {
    for (int i = 0; i < 50; i++) allocate_and_free();
  }).detach();
  pthread_exit(nullptr);
}
CASE(pthread_exit_of_main_runs_handlers_with_the_last_thread) {
  run_child_with("main_leaves_first", nullptr);
  CHECK_CHILD(ended_in_order());
}

CHILD(leave_quickly) {
  prepare_exit();
  start_busy_threads();
  at_quick_exit([] {
    allocate_and_free();
    say("quick exit handler\n");
  });
  quick_exit(0);
}
CASE(quick_exit_runs_its_handlers_only) {
  run_child_with("leave_quickly", nullptr);
  CHECK_CHILD(child_succeeded() && strcmp(child.out, "quick exit handler\n") == 0 &&
              child.err[0] == 0);
}

CHILD(leave_at_once) {
  prepare_exit();
  start_busy_threads();
  _exit(0);
}
CASE(underscore_exit_runs_nothing) {
  run_child_with("leave_at_once", nullptr);
  CHECK_CHILD(child_succeeded() && child.out[0] == 0 && child.err[0] == 0);
}

CHILD(die_uncaught) {
  prepare_exit();
  std::thread([] { throw std::string(100, 'u'); }).join();
}
CASE(uncaught_exception_ends_in_abort) {
  run_child_with("die_uncaught", nullptr);
  CHECK_CHILD(child_aborted() && lines_with("terminate called", ""));
}
