// A library that comes and goes: it allocates when it is loaded, in its fork handlers, in threads
// that it starts, and when it is unloaded. The program finds its functions by dlsym, since it has
// the library twice: once linked in, once loaded.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { kKept = 100 };
static void* at_load;
static void* kept[kKept];

static void allocates(void) {
  for (size_t size = 16; size <= 1 << 20; size *= 4) {
    char* p = malloc(size);
    if (p == NULL) abort();
    memset(p, 1, size);
    free(p);
  }
}

__attribute__((constructor)) static void is_loaded(void) {
  at_load = malloc(1000);
  allocates();
  if (pthread_atfork(allocates, allocates, allocates) != 0) abort();
}

static void* works(void* unused) {
  allocates();
  for (int i = 0; i < kKept; i++) {
    free(kept[i]);
    kept[i] = malloc((size_t)i * 100 + 1);
  }
  return unused;
}
void plugin_works(void) { works(NULL); }
void plugin_works_in_a_thread(void) {
  pthread_t id;
  if (pthread_create(&id, NULL, works, NULL) != 0 || pthread_join(id, NULL) != 0) abort();
}

__attribute__((destructor)) static void is_unloaded(void) {
  for (int i = 0; i < kKept; i++) free(kept[i]);
  allocates();
  free(at_load);
}
