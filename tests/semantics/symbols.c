// Every malloc symbol that a program can reach is the library's own. The test is a black box, by
// dlsym and dladdr, under preload.
#include "child.h"

static void check_symbols(const char* const* names) {
  for (; *names; names++) {
    void* address = dlsym(RTLD_DEFAULT, *names);
    CHECK_MSG(address != NULL, "%s", *names);
    CHECK_MSG(in_library(address), "%s", *names);
  }
}

CASE(c_symbols_are_the_librarys) {
  static const char* const names[] = {"malloc",
                                      "calloc",
                                      "realloc",
                                      "reallocarray",
                                      "free",
                                      "posix_memalign",
                                      "aligned_alloc",
                                      "memalign",
                                      "valloc",
                                      "pvalloc",
                                      "malloc_usable_size",
                                      NULL};
  check_symbols(names);
}

CASE(lanemalloc_control_symbols_are_the_librarys) {
  static const char* const names[] = {"malloc_trim",  "mallinfo", "mallinfo2", "malloc_info",
                                      "malloc_stats", "mallopt",  "cfree",     NULL};
  check_symbols(names);
}

CASE(lanemalloc_c23_symbols_are_the_librarys) {
  static const char* const names[] = {"free_sized", "free_aligned_sized", NULL};
  check_symbols(names);
}

// All that glibc 2.36 exports, GLIBC_PRIVATE included.
CASE(lanemalloc_libc_aliases_are_the_librarys) {
  static const char* const names[] = {"__libc_malloc",
                                      "__libc_calloc",
                                      "__libc_realloc",
                                      "__libc_free",
                                      "__libc_memalign",
                                      "__libc_valloc",
                                      "__libc_pvalloc",
                                      "__libc_mallinfo",
                                      "__libc_mallopt",
                                      "__libc_reallocarray",
                                      NULL};
  check_symbols(names);
}

CASE(operator_symbols_are_the_librarys) {
  static const char* const names[] = {"_Znwm",
                                      "_Znam",
                                      "_ZnwmRKSt9nothrow_t",
                                      "_ZnamRKSt9nothrow_t",
                                      "_ZnwmSt11align_val_t",
                                      "_ZnamSt11align_val_t",
                                      "_ZnwmSt11align_val_tRKSt9nothrow_t",
                                      "_ZnamSt11align_val_tRKSt9nothrow_t",
                                      "_ZdlPv",
                                      "_ZdaPv",
                                      "_ZdlPvRKSt9nothrow_t",
                                      "_ZdaPvRKSt9nothrow_t",
                                      "_ZdlPvm",
                                      "_ZdaPvm",
                                      "_ZdlPvSt11align_val_t",
                                      "_ZdaPvSt11align_val_t",
                                      "_ZdlPvmSt11align_val_t",
                                      "_ZdaPvmSt11align_val_t",
                                      "_ZdlPvSt11align_val_tRKSt9nothrow_t",
                                      "_ZdaPvSt11align_val_tRKSt9nothrow_t",
                                      NULL};
  check_symbols(names);
}

// The aliases work, and mix with the plain names: one allocator is behind all of them.
CASE(libc_aliases_mix_with_plain_names) {
  typedef void* (*One)(size_t);
  typedef void* (*Two)(size_t, size_t);
  One libc_malloc = (One)dlsym(RTLD_DEFAULT, "__libc_malloc");
  Two libc_calloc = (Two)dlsym(RTLD_DEFAULT, "__libc_calloc");
  void* (*libc_realloc)(void*, size_t) =
      (void* (*)(void*, size_t))dlsym(RTLD_DEFAULT, "__libc_realloc");
  Two libc_memalign = (Two)dlsym(RTLD_DEFAULT, "__libc_memalign");
  One libc_valloc = (One)dlsym(RTLD_DEFAULT, "__libc_valloc");
  One libc_pvalloc = (One)dlsym(RTLD_DEFAULT, "__libc_pvalloc");
  void (*libc_free)(void*) = (void (*)(void*))dlsym(RTLD_DEFAULT, "__libc_free");
  REQUIRE(libc_malloc && libc_calloc && libc_realloc && libc_memalign && libc_valloc &&
          libc_pvalloc && libc_free);
  REQUIRE(in_library((void*)libc_malloc) && in_library((void*)libc_free));
  for (int round = 0; round < 100; round++) {
    char* object = (char*)libc_malloc(100);
    fill(object, 100, 1);
    object = (char*)realloc(object, 5000);
    CHECK(filled(object, 100, 1));
    object = (char*)libc_realloc(object, 300000);
    CHECK(filled(object, 100, 1));
    free(object);
    object = (char*)malloc(77);
    libc_free(object);
    object = (char*)libc_calloc(10, 10);
    CHECK(all_bytes(object, 100, 0));
    free(object);
    object = (char*)libc_memalign(256, 1000);
    CHECK((uintptr_t)object % 256 == 0);
    free(object);
    free(libc_valloc(1));
    free(libc_pvalloc(1));
  }
}

CASE(lanemalloc_c23_frees_and_cfree_work) {
  void (*free_sized)(void*, size_t) = (void (*)(void*, size_t))dlsym(RTLD_DEFAULT, "free_sized");
  void (*free_aligned_sized)(void*, size_t, size_t) =
      (void (*)(void*, size_t, size_t))dlsym(RTLD_DEFAULT, "free_aligned_sized");
  void (*cfree)(void*) = (void (*)(void*))dlsym(RTLD_DEFAULT, "cfree");
  REQUIRE(free_sized && free_aligned_sized && cfree);
  for (size_t size = 0; size < 300000; size += size / 7 + 1) {
    errno = 4321;
    free_sized(malloc(size), size);
    free_sized(calloc(1, size), size);
    cfree(malloc(size));
    free_aligned_sized(aligned_alloc(64, size), 64, size);
    free_aligned_sized(aligned_alloc(8192, size), 8192, size);
    CHECK_MSG(errno == 4321, "size %zu", size);
  }
  free_sized(NULL, 0);
  free_sized(NULL, 10);
  free_aligned_sized(NULL, 64, 10);
  cfree(NULL);
}

// The C library's own allocations come from the library, and a program may free them.
CASE(memory_given_out_by_libc_is_freed_by_the_program) {
  char* text = strdup("some text that the C library copies");
  CHECK(malloc_usable_size(text) >= strlen(text) + 1);
  text = (char*)realloc(text, 10000);
  CHECK(strcmp(text, "some text that the C library copies") == 0);
  free(text);
  REQUIRE(asprintf(&text, "%d %s", 42, "items") == 8);
  free(text);
  text = getcwd(NULL, 0);
  CHECK(text != NULL);
  free(text);
  text = realpath("/proc/self/exe", NULL);
  CHECK(text != NULL);
  free(text);
  char* stream_text = NULL;
  size_t stream_size = 0;
  FILE* stream = open_memstream(&stream_text, &stream_size);
  for (int i = 0; i < 10000; i++) fprintf(stream, "line %d\n", i);
  fclose(stream);
  CHECK(stream_size == strlen(stream_text));
  char* line = NULL;
  size_t capacity = 0;
  stream = fmemopen(stream_text, stream_size, "r");
  int lines = 0;
  while (getline(&line, &capacity, stream) > 0) lines++;
  CHECK(lines == 10000);
  fclose(stream);
  free(line);
  free(stream_text);
}
