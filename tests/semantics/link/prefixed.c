// A program that links liblanemalloc_prefixed.a uses lane_malloc and its kin beside glibc's malloc.
// C11 and C++17.

#include "../check.h"
#include "../run_threads.h"
#ifdef WITH_HEADER
#include <lanemalloc/lanemalloc.h>
#else
#ifdef __cplusplus
extern "C" {
#endif
void* lane_malloc(size_t);
void* lane_calloc(size_t, size_t);
void* lane_realloc(void*, size_t);
void lane_free(void*);
void* lane_memalign(size_t, size_t);
void* lane_aligned_alloc(size_t, size_t);
int lane_posix_memalign(void**, size_t, size_t);
size_t lane_malloc_usable_size(void*);
int lane_malloc_trim(size_t);
#ifdef __cplusplus
}
#endif
#endif

static void use_both(void) {
  static __thread char *own[500], *lane[500];
  for (size_t i = 0; i < 500; i++) {
    fill(own[i] = (char*)malloc(i * 50 + 1), i * 50 + 1, (unsigned)i);
    fill(lane[i] = (char*)lane_malloc(i * 50 + 1), i * 50 + 1, (unsigned)i + 1);
    CHECK(lane_malloc_usable_size(lane[i]) > i * 50);
  }
  for (size_t i = 0; i < 500; i++) {
    own[i] = (char*)realloc(own[i], i * 80 + 1);
    lane[i] = (char*)lane_realloc(lane[i], i * 80 + 1);
  }
  for (size_t i = 0; i < 500; i++) {
    CHECK(filled(own[i], i * 50 + 1, (unsigned)i) && filled(lane[i], i * 50 + 1, (unsigned)i + 1));
    free(own[i]);
    lane_free(lane[i]);
  }
}

CASE(beside_the_programs_malloc) {
  void* malloc_of_libc = dlsym(RTLD_DEFAULT, "malloc");
  Dl_info info;
  REQUIRE(malloc_of_libc && dladdr(malloc_of_libc, &info));
  CHECK_MSG(strstr(info.dli_fname, "libc.so"), "malloc comes from %s", info.dli_fname);
  CHECK((void*)lane_malloc != malloc_of_libc);
  use_both();
}

static void* in_thread(void* argument) {
  use_both();
  return argument;
}
CASE(threads_use_both) {
  pthread_t threads[4];
  start_threads(threads, 4, in_thread);
  join_threads(threads, 4);
}

CASE(rules_are_those_of_malloc) {
  void* object = NULL;
  CHECK(lane_posix_memalign(&object, 3, 10) == EINVAL && object == NULL);
  CHECK(lane_posix_memalign(&object, 128, 10) == 0 && (uintptr_t)object % 128 == 0);
  lane_free(object);
  object = lane_memalign(4096, 10);
  CHECK(object && (uintptr_t)object % 4096 == 0);
  lane_free(object);
  object = lane_aligned_alloc(64, 640);
  CHECK(object && (uintptr_t)object % 64 == 0);
  lane_free(object);
  char* zeroes = (char*)lane_calloc(100, 100);
  CHECK(zeroes && all_bytes(zeroes, 10000, 0));
  lane_free(zeroes);
  errno = 0;
  CHECK(lane_malloc(hide_size(SIZE_MAX - 1)) == NULL && errno == ENOMEM);
  errno = 0;
  CHECK(lane_calloc(hide_size(SIZE_MAX), 2) == NULL && errno == ENOMEM);
  void* zero = lane_malloc(0);
  CHECK(zero != NULL);
  errno = 12;
  lane_free(zero);
  lane_free(NULL);
  CHECK(errno == 12);
  int trimmed = lane_malloc_trim(0);
  CHECK(trimmed == 0 || trimmed == 1);
}
