// Libraries that come and go while other threads allocate, and processes that end while their
// threads allocate.
// Also linked with the static library.
#include <dlfcn.h>
#include <stdio.h>
#include <sys/wait.h>

#include "child.h"
#include "run_threads.h"

enum { kThreads = 2 };
static pthread_t threads[kThreads];
static int stop;
static unsigned rounds;

static void* allocate_and_check(void* unused) {
  void* kept[64] = {0};
  size_t size[64] = {0};
  for (unsigned i = 0; !__atomic_load_n(&stop, __ATOMIC_RELAXED); i++) {
    const unsigned at = i % 64;
    if (kept[at] != NULL) REQUIRE(filled(kept[at], size[at], at));
    free(kept[at]);
    size[at] = i * 37 % 5000 + 1;
    REQUIRE((kept[at] = malloc(size[at])) != NULL);
    fill(kept[at], size[at], at);
    __atomic_fetch_add(&rounds, 1, __ATOMIC_RELAXED);
  }
  for (int i = 0; i < 64; i++) free(kept[i]);
  return unused;
}
static void start_all(void) {
  start_threads(threads, kThreads, allocate_and_check);
  while (__atomic_load_n(&rounds, __ATOMIC_RELAXED) < 10000) sched_yield();
}
static void stop_all(void) {
  __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
  join_threads(threads, kThreads);
}

// --- dlopen, dlclose.

// The copy is a file of its own. Otherwise dlopen would return the library that is linked in.
static char library[300];
static void remove_library(void) { unlink(library); }
static void copy_library(void) {
  const char* work = getenv("CHECK_WORK");
  REQUIRE(work != NULL);
  char from[300], buffer[65536];
  snprintf(from, sizeof from, "%s/liblibraries_plugin.so", work);
  snprintf(library, sizeof library, "%s/copy.%d.so", work, (int)getpid());
  FILE *in = fopen(from, "r"), *out = fopen(library, "w");
  REQUIRE(in != NULL && out != NULL);
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, in)) > 0;)
    REQUIRE(fwrite(buffer, 1, n, out) == n);
  REQUIRE(fclose(in) == 0 && fclose(out) == 0);
  atexit(remove_library);
}
static void call(void* handle, const char* name) {
  void (*function)(void);
  *(void**)&function = dlsym(handle, name);
  REQUIRE(function != NULL);
  function();
}
static void fork_and_allocate(void) {
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    for (size_t size = 1; size <= 4 << 20; size *= 2) free(hide(malloc(size)));
    _exit(0);
  }
  int status = -1;
  CHECK_MSG(waitpid(pid, &status, 0) == pid && status == 0, "status %x", status);
}

static void load_and_unload(int times) {
  copy_library();
  for (int i = 0; i < times; i++) {
    void* handle = dlopen(library, RTLD_NOW);
    CHECK_MSG(handle != NULL, "%s", dlerror());
    if (handle == NULL) return;
    call(handle, "plugin_works");
    call(handle, "plugin_works_in_a_thread");
    fork_and_allocate();
    REQUIRE(dlclose(handle) == 0);
    CHECK(dlopen(library, RTLD_NOW | RTLD_NOLOAD) == NULL);
    fork_and_allocate();
  }
}
CASE(a_library_comes_and_goes) { load_and_unload(20); }
CASE(a_library_comes_and_goes_while_others_allocate) {
  start_all();
  load_and_unload(50);
  stop_all();
}

// The library has a C library of its own there.
CASE(a_library_in_a_name_space_of_its_own) {
  copy_library();
  start_all();
  for (int i = 0; i < 5; i++) {
    void* handle = dlmopen(LM_ID_NEWLM, library, RTLD_NOW);
    CHECK_MSG(handle != NULL, "%s", dlerror());
    if (handle == NULL) break;
    call(handle, "plugin_works");
    REQUIRE(dlclose(handle) == 0);
  }
  stop_all();
}

// --- Ends of the process.

static void on_abort(int signal) {
  (void)signal;
  void* p = malloc(100000);
  REQUIRE(p != NULL);
  fill(p, 100000, 1);
  free(p);
  say("end\n");
}
CHILD(leaves_by_abort) {
  signal(SIGABRT, on_abort);
  start_all();
  abort();
}
CASE(abort_with_a_handler_that_allocates) {
  run_child_with("leaves_by_abort", getenv("LANEMALLOC_OPTIONS"));
  CHECK_CHILD(WIFSIGNALED(child.status) && WTERMSIG(child.status) == SIGABRT &&
              strstr(child.out, "end\n") != NULL);
}
