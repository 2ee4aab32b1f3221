// Forwards the malloc family to the C library's own, whatever else the program links.
// For programs that are linked with another allocator (Debian's redis-server with jemalloc):
// preload this, and they run on glibc. Called by: bench/demo/demo.py.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);
extern void* __libc_valloc(size_t);
extern void* __libc_pvalloc(size_t);
extern void __libc_free(void*);

static size_t (*usable_size)(void*);

// There is no __libc_ name for malloc_usable_size, so it is looked up in the C library itself.
__attribute__((constructor)) static void look_up(void) {
  void* libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  if (libc != NULL) *(void**)&usable_size = dlsym(libc, "malloc_usable_size");
}

void* malloc(size_t bytes) { return __libc_malloc(bytes); }
void* calloc(size_t count, size_t bytes) { return __libc_calloc(count, bytes); }
void* realloc(void* object, size_t bytes) { return __libc_realloc(object, bytes); }
void* memalign(size_t alignment, size_t bytes) { return __libc_memalign(alignment, bytes); }
void* aligned_alloc(size_t alignment, size_t bytes) { return __libc_memalign(alignment, bytes); }
void* valloc(size_t bytes) { return __libc_valloc(bytes); }
void* pvalloc(size_t bytes) { return __libc_pvalloc(bytes); }
void free(void* object) { __libc_free(object); }

void* reallocarray(void* object, size_t count, size_t bytes) {
  size_t total;
  if (__builtin_mul_overflow(count, bytes, &total)) {
    errno = ENOMEM;
    return NULL;
  }
  return __libc_realloc(object, total);
}

int posix_memalign(void** out, size_t alignment, size_t bytes) {
  if (alignment % sizeof(void*) != 0 || (alignment & (alignment - 1)) != 0 || alignment == 0)
    return EINVAL;
  int saved = errno;
  void* object = __libc_memalign(alignment, bytes);
  errno = saved;
  if (object == NULL) return ENOMEM;
  *out = object;
  return 0;
}

size_t malloc_usable_size(void* object) {
  if (usable_size == NULL) look_up();
  return object != NULL && usable_size != NULL ? usable_size(object) : 0;
}
