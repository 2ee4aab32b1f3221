// Plugins under a preloaded library: a C program, which has no libstdc++ of its own, opens C++
// plugins.
#include <pthread.h>

#include "check.h"

static char plugin_path[PATH_MAX];
static void* open_plugin(void) {
  snprintf(plugin_path, sizeof plugin_path, "%s/cxx_plugin.so", getenv("CHECK_PLUGINS"));
  void* plugin = dlopen(plugin_path, RTLD_NOW | RTLD_LOCAL);
  if (!plugin) say("%s\n", dlerror());
  REQUIRE(plugin);
  return plugin;
}
typedef int (*SizeFunction)(size_t);

CASE(plugin_memory_may_be_freed_outside) {
  void* plugin = open_plugin();
  char* (*text)(void) = (char* (*)(void))dlsym(plugin, "plugin_text");
  void (*plugin_free)(char*) = (void (*)(char*))dlsym(plugin, "plugin_free");
  for (int i = 0; i < 1000; i++) {
    char* object = text();
    CHECK(strlen(object) == 500);
    free(object);
    plugin_free((char*)malloc(i));
  }
  CHECK(dlclose(plugin) == 0);
}

// The library's operator new must throw although libstdc++ is not in the global scope.
CASE(plugin_catches_bad_alloc) {
  void* plugin = open_plugin();
  SizeFunction bad_alloc = (SizeFunction)dlsym(plugin, "plugin_bad_alloc");
  for (int i = 0; i < 10; i++) CHECK(bad_alloc(SIZE_MAX / 2 - 4096) == 0);
  for (int i = 0; i < 10; i++) CHECK(bad_alloc(SIZE_MAX - 10) == 0);
}

CASE(plugin_new_handler_is_called) {
  void* plugin = open_plugin();
  int result = ((SizeFunction)dlsym(plugin, "plugin_new_handler"))(SIZE_MAX / 2 - 4096);
  // The throwing form ends at the 4th call, the nothrow one at the 8th
  CHECK_MSG(result == 8, "%d", result);
}

CASE(operator_new_called_from_c) {
  void* (*operator_new)(size_t) = (void* (*)(size_t))dlsym(RTLD_DEFAULT, "_Znwm");
  void (*operator_delete)(void*) = (void (*)(void*))dlsym(RTLD_DEFAULT, "_ZdlPv");
  REQUIRE(operator_new && operator_delete);
  for (size_t size = 0; size < 100000; size += size / 5 + 1) {
    void* object = operator_new(size);
    memset(object, 1, size);
    operator_delete(object);
  }
}

CASE(open_and_close_a_hundred_times) {
  for (int round = 0; round < 100; round++) {
    void* plugin = open_plugin();
    CHECK(((int (*)(void))dlsym(plugin, "plugin_threads"))() == 800);
    char* object = ((char* (*)(void))dlsym(plugin, "plugin_text"))();
    dlclose(plugin);
    CHECK(strlen(object) == 500);
    free(object);
  }
}

static void* open_in_thread(void* argument) {
  for (int round = 0; round < 50; round++) {
    void* plugin = dlopen(plugin_path, RTLD_NOW | RTLD_LOCAL);
    if (!plugin) return argument;
    char* object = ((char* (*)(void))dlsym(plugin, "plugin_text"))();
    free(object);
    dlclose(plugin);
  }
  return NULL;
}
CASE(open_and_close_from_threads) {
  dlclose(open_plugin());
  pthread_t threads[4];
  for (int i = 0; i < 4; i++)
    REQUIRE(pthread_create(&threads[i], NULL, open_in_thread, threads) == 0);
  for (int i = 0; i < 4; i++) {
    void* result;
    pthread_join(threads[i], &result);
    CHECK(result == NULL);
  }
}

CASE(failed_dlopen_and_dlsym_leave_no_harm) {
  for (int round = 0; round < 1000; round++) {
    CHECK(dlopen("/nowhere/lib-does-not-exist.so", RTLD_NOW) == NULL);
    char* message = dlerror();
    CHECK(message && strstr(message, "lib-does-not-exist"));
    CHECK(dlsym(RTLD_DEFAULT, "no_such_symbol_anywhere") == NULL);
    CHECK(dlerror() != NULL);
  }
}
