// A library that is loaded before the allocator. Its fork handlers take a lock of its own, and each
// of them allocates. Its prepare handler runs after the allocator's, its other handlers before.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void (*in_prepare)(void);
static void* kept[3];

void plugin_lock(void) { pthread_mutex_lock(&lock); }
void plugin_unlock(void) { pthread_mutex_unlock(&lock); }
// The prepare handler calls this function before it takes the lock.
void plugin_calls(void (*call)(void)) { in_prepare = call; }

static void turn_over(void) {
  static const size_t kSizes[] = {100, 5000, 700000};
  for (int i = 0; i < 3; i++) {
    free(kept[i]);
    kept[i] = malloc(kSizes[i]);
    if (kept[i] == NULL) abort();
    memset(kept[i], 1, 100);
  }
}

static void prepare(void) {
  if (in_prepare != NULL) in_prepare();
  plugin_lock();
  turn_over();
}
static void after(void) {
  turn_over();
  plugin_unlock();
}

__attribute__((constructor)) static void begin(void) { pthread_atfork(prepare, after, after); }
