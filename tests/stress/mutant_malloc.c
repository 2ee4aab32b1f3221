// A malloc that is too simple, to show that the stress programs can fail; run.sh --self-test
// preloads it.
// Called by: tests/stress/run.sh. It only ever bumps a pointer. The variants differ in how they
// reuse freed memory:
//   (default)        never: correct in threads, handlers and forks. The programs must pass with it.
//   -DMUTANT_UNSAFE  free lists without a lock: wrong in threads and handlers.
//   -DMUTANT_LOCKED  free lists under a mutex that fork does not know: wrong in handlers and forked
//                    children.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { kClasses = 64 };
static const size_t kRegion = (size_t)1 << 40;

struct Header {  // before each object
  size_t size;
  struct Header* next;
};

static _Atomic(char*) region;
static _Atomic(size_t) used;
static struct Header* volatile lists[kClasses];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void lock(void) {
#ifdef MUTANT_LOCKED
  pthread_mutex_lock(&mutex);
#endif
}
static void unlock(void) {
#ifdef MUTANT_LOCKED
  pthread_mutex_unlock(&mutex);
#endif
  (void)mutex;
}

static char* base(void) {
  char* r = atomic_load(&region);
  if (r != NULL) return r;
  char* fresh = mmap(NULL, kRegion, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (fresh == MAP_FAILED) return NULL;
  if (atomic_compare_exchange_strong(&region, &r, fresh)) return fresh;
  munmap(fresh, kRegion);
  return r;
}

static void* bump(size_t align, size_t size) {
  char* r = base();
  if (r == NULL || size >= kRegion / 2) return errno = ENOMEM, NULL;
  size_t total = (sizeof(struct Header) + align + size + 15) & ~(size_t)15;
  size_t at = atomic_fetch_add(&used, total);
  if (at + total > kRegion) return errno = ENOMEM, NULL;
  uintptr_t p = ((uintptr_t)r + at + sizeof(struct Header) + align - 1) & ~(uintptr_t)(align - 1);
  ((struct Header*)p)[-1].size = size;
  return (void*)p;
}

static size_t class_of(size_t size) { return (size + 15) / 16; }

void* malloc(size_t size) {
  if (size == 0) size = 1;
#if defined(MUTANT_UNSAFE) || defined(MUTANT_LOCKED)
  size_t c = class_of(size);
  size = (size + 15) & ~(size_t)15;
  if (c < kClasses) {
    lock();
    struct Header* head = lists[c];
    if (head != NULL) lists[c] = head->next;
    unlock();
    if (head != NULL) return head + 1;
  }
#endif
  return bump(16, size);
}

void free(void* p) {
  if (p == NULL) return;
  struct Header* header = (struct Header*)p - 1;
#if defined(MUTANT_UNSAFE) || defined(MUTANT_LOCKED)
  size_t c = class_of(header->size);
  if (c < kClasses && header->size % 16 == 0) {
    lock();
    header->next = lists[c];
    lists[c] = header;
    unlock();
    return;
  }
#endif
  uintptr_t first = ((uintptr_t)p + 4095) & ~(uintptr_t)4095,
            end = ((uintptr_t)p + header->size) & ~(uintptr_t)4095;
  int saved = errno;
  if (end > first + 16384) madvise((void*)first, end - first, MADV_DONTNEED);
  errno = saved;
}

void* calloc(size_t count, size_t size) {
  size_t total;
  if (__builtin_mul_overflow(count, size, &total)) return errno = ENOMEM, NULL;
#if defined(MUTANT_UNSAFE) || defined(MUTANT_LOCKED)
  void* p = malloc(total);
  return p == NULL ? NULL : memset(p, 0, total);
#else
  return bump(16, total);
#endif
}

void* realloc(void* old, size_t size) {
  void* p = malloc(size);
  if (p == NULL || old == NULL) return p;
  size_t kept = ((struct Header*)old - 1)->size;
  memcpy(p, old, kept < size ? kept : size);
  free(old);
  return p;
}

void* memalign(size_t align, size_t size) { return bump(align < 16 ? 16 : align, size); }
void* aligned_alloc(size_t align, size_t size) { return memalign(align, size); }
int posix_memalign(void** p, size_t align, size_t size) {
  *p = memalign(align, size);
  return *p == NULL ? ENOMEM : 0;
}
size_t malloc_usable_size(void* p) { return p == NULL ? 0 : ((struct Header*)p - 1)->size; }
