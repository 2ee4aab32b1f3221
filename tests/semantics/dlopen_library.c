// A running program opens the library by dlopen (not preloaded), with RTLD_LOCAL, beside its own
// malloc.
#include <semaphore.h>

#include "check.h"
#include "run_threads.h"

typedef void* (*Malloc)(size_t);
typedef void* (*Realloc)(void*, size_t);
typedef void (*Free)(void*);
struct Api {
  Malloc malloc;
  Realloc realloc;
  Free free;
};
static struct Api api;

static void* open_library(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return NULL;
  api.malloc = (Malloc)dlsym(library, "malloc");
  api.realloc = (Realloc)dlsym(library, "realloc");
  api.free = (Free)dlsym(library, "free");
  REQUIRE(api.malloc && api.realloc && api.free);
  CHECK(in_library((void*)api.malloc) || strstr(path, "dynamic-tls"));
  CHECK(!in_library((void*)malloc));  // the program keeps its own
  return library;
}

static void use_both(unsigned seed) {
  enum { kObjects = 500 };
  char* objects[kObjects];
  for (size_t i = 0; i < kObjects; i++) {
    objects[i] = (char*)api.malloc(i * 37 % 9000 + 1);
    char* own = (char*)malloc(i);
    memset(own, 0xEE, i);
    REQUIRE(objects[i]);
    objects[i][0] = (char)(seed + i);
    free(own);
  }
  for (size_t i = 0; i < kObjects; i++) {
    objects[i] = (char*)api.realloc(objects[i], i * 91 % 20000 + 1);
    CHECK(objects[i][0] == (char)(seed + i));
  }
  for (size_t i = 0; i < kObjects; i++) api.free(objects[i]);
}

// Threads that exist before the library is opened.
enum { kThreads = 4 };
static sem_t ready, opened, used, end;
static void* early_thread(void* argument) {
  sem_post(&ready);
  sem_wait(&opened);
  for (unsigned round = 0; round < 20; round++) use_both(round);
  sem_post(&used);
  sem_wait(&end);
  return argument;
}
static void* late_thread(void* argument) {
  use_both(9);
  return argument;
}

static pthread_t threads[kThreads];
static void start_early_threads(void) {
  sem_init(&ready, 0, 0);
  sem_init(&opened, 0, 0);
  sem_init(&used, 0, 0);
  sem_init(&end, 0, 0);
  start_threads(threads, kThreads, early_thread);
  for (int i = 0; i < kThreads; i++) sem_wait(&ready);
}
static void let_threads_use_it(void) {
  for (int i = 0; i < kThreads; i++) sem_post(&opened);
  use_both(3);
  for (int i = 0; i < kThreads; i++) sem_wait(&used);
}
static void end_threads(void) {
  for (int i = 0; i < kThreads; i++) sem_post(&end);
  join_threads(threads, kThreads);
}

CASE(threads_from_before_use_it) {
  start_early_threads();
  void* library = open_library(getenv("CHECK_LIBRARY"));
  if (!library) say("%s\n", dlerror());
  REQUIRE(library);
  let_threads_use_it();
  end_threads();
  for (int i = 0; i < 20; i++) {
    run_thread(late_thread, NULL);
  }
}

// After dlclose the exits of threads that used the library, a fork and exit must not run into
// unmapped code.
CASE(dlclose_does_no_harm) {
  start_early_threads();
  void* library = open_library(getenv("CHECK_LIBRARY"));
  REQUIRE(library);
  let_threads_use_it();
  dlclose(library);
  end_threads();
  library = open_library(getenv("CHECK_LIBRARY"));
  REQUIRE(library);
  use_both(5);
  dlclose(library);
}

// Opens TLS-hungry plugins, large ones first, until fewer than 8 bytes of static TLS are left.
static int exhaust_static_tls(void) {
  int refused_kinds = 0, count = 0;
  for (const char* kind = "abc"; *kind; kind++) {
    for (int copy = 0; copy < 40; copy++, count++) {
      char path[PATH_MAX];
      snprintf(path, sizeof path, "%s/tls_hungry_%c%d.so", getenv("CHECK_PLUGINS"), *kind, copy);
      if (dlopen(path, RTLD_NOW | RTLD_LOCAL)) continue;
      CHECK_MSG(strstr(dlerror(), "static TLS"), "%s", path);
      refused_kinds++;
      break;
    }
  }
  REQUIRE(refused_kinds == 3);
  return count;
}

// The library is refused with a message, or it works; nothing in between.
CASE(without_static_tls_it_works_or_is_refused) {
  start_early_threads();
  exhaust_static_tls();
  void* library = open_library(getenv("CHECK_LIBRARY"));
  if (!library) {
    const char* message = dlerror();
    CHECK_MSG(message && strstr(message, "static TLS"), "%s", message ? message : "no message");
    api.malloc = malloc;
    api.realloc = realloc;
    api.free = free;
  }
  let_threads_use_it();
  end_threads();
}

CASE(lanemalloc_dynamic_tls_works_without_static_tls) {
  start_early_threads();
  exhaust_static_tls();
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s", getenv("CHECK_LIBRARY"));
  char* end_of_name = strstr(strrchr(path, '/'), ".so");
  REQUIRE(end_of_name);
  snprintf(end_of_name, (size_t)(path + sizeof path - end_of_name), "-dynamic-tls.so");
  void* library = open_library(path);
  if (!library) say("%s\n", dlerror());
  REQUIRE(library);
  let_threads_use_it();
  end_threads();
  for (int i = 0; i < 20; i++) {
    run_thread(late_thread, NULL);
  }
}
