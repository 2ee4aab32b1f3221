// Broken: a malloc with a planted fault, so that tests/preload/run.sh --self-test can show that its
// checks see one.
//
// glibc's malloc behind a wrapper. BROKEN_EVERY=N plants the fault at every N-th chance (0: never),
// counted for objects of BROKEN_MIN (16) to BROKEN_MAX (no limit) bytes; BROKEN_MODE names it:
//   overlap   malloc returns the object that it returned last and that is still in use
//   scribble  free inverts a byte in the middle of another object that is in use
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);
extern void __libc_free(void*);

enum { kMostShared = 4096 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t every, least, most, chances;
static int overlap, ready;
static void* victim;               // an object in use, or NULL
static size_t victim_size;         // the size that was asked for `victim`
static void* shared[kMostShared];  // objects with extra owners, once for each extra owner
static size_t shared_count;

static size_t number(const char* name, size_t otherwise) {
  const char* text = getenv(name);
  return text != NULL ? strtoul(text, NULL, 10) : otherwise;
}

__attribute__((constructor)) static void start(void) {
  const char* mode = getenv("BROKEN_MODE");
  overlap = mode != NULL && strcmp(mode, "overlap") == 0;
  every = number("BROKEN_EVERY", 0);
  least = number("BROKEN_MIN", 16);
  most = number("BROKEN_MAX", (size_t)-1);
  ready = 1;
}

// True at every N-th call. `lock` is held.
static int chance(void) { return ready && every != 0 && ++chances % every == 0; }

static int counts(size_t size) { return size >= least && size <= most; }

// Makes a second owner of the victim and returns the victim, for an object of `size` bytes, or
// returns NULL. `lock` is held.
static void* second_owner(size_t size) {
  if (!overlap || victim == NULL || victim_size < size || shared_count == kMostShared || !chance())
    return NULL;
  shared[shared_count++] = victim;
  return victim;
}

// Forgets one owner of `object`; true if another is left. `lock` is held.
static int drop_owner(void* object) {
  for (size_t i = 0; i < shared_count; ++i) {
    if (shared[i] != object) continue;
    shared[i] = shared[--shared_count];
    return 1;
  }
  if (victim == object) victim = NULL;
  return 0;
}

void* malloc(size_t size) {
  if (!counts(size)) return __libc_malloc(size);
  pthread_mutex_lock(&lock);
  void* object = second_owner(size);
  if (object == NULL && (object = __libc_malloc(size)) != NULL) {
    victim = object;
    victim_size = size;
  }
  pthread_mutex_unlock(&lock);
  return object;
}

void free(void* object) {
  if (object == NULL) return;
  pthread_mutex_lock(&lock);
  int in_use = drop_owner(object);
  if (!overlap && victim != NULL && chance()) {
    unsigned char* byte = (unsigned char*)victim + victim_size / 2;
    *byte = (unsigned char)~*byte;
    victim = NULL;
  }
  pthread_mutex_unlock(&lock);
  if (!in_use) __libc_free(object);
}

void* calloc(size_t count, size_t size) { return __libc_calloc(count, size); }

void* realloc(void* object, size_t size) {
  if (object == NULL) return malloc(size);
  pthread_mutex_lock(&lock);
  int in_use = drop_owner(object);
  pthread_mutex_unlock(&lock);
  if (!in_use) return __libc_realloc(object, size);
  void* copy = __libc_malloc(size);
  size_t old = malloc_usable_size(object);
  return copy != NULL ? memcpy(copy, object, old < size ? old : size) : NULL;
}

void* memalign(size_t alignment, size_t size) { return __libc_memalign(alignment, size); }
void* aligned_alloc(size_t alignment, size_t size) { return __libc_memalign(alignment, size); }
int posix_memalign(void** result, size_t alignment, size_t size) {
  void* object = __libc_memalign(alignment, size);
  if (object == NULL) return ENOMEM;
  *result = object;
  return 0;
}
