// Cases and checks for the programs of tests/semantics and tests/death. The programs are C11 and
// C++17, one translation unit each. A program lists its cases with --list and runs one by its name.
// run.sh runs each case in a process of its own, so a crash costs one case. A case prints what
// failed as file:line, and then one line with its name and the word ok, FAILED or skipped. A case
// whose name starts with lanemalloc_ asks for more than glibc gives; other libraries may fail it.
#ifndef TESTS_SEMANTICS_CHECK_H_
#define TESTS_SEMANTICS_CHECK_H_

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))

enum { kStatusFailed = 1, kStatusSkipped = 77, kMaxCases = 128 };

struct TestCase {
  const char* name;
  void (*run)(void);
  int hidden;  // started by another case as a child, not listed
};
static struct TestCase test_cases[kMaxCases];
static int test_case_count;
static int test_failures;  // written by __atomic_fetch_add: threads may fail too
static const char* test_argument;

static void add_case(const char* name, void (*run)(void), int hidden) {
  if (test_case_count == kMaxCases) abort();
  test_cases[test_case_count].name = name;
  test_cases[test_case_count].run = run;
  test_cases[test_case_count++].hidden = hidden;
}

#define DEFINE_CASE(name, hidden)                             \
  static void case_##name(void);                              \
  __attribute__((constructor)) static void add_##name(void) { \
    add_case(#name, case_##name, hidden);                     \
  }                                                           \
  static void case_##name(void)
#define CASE(name) DEFINE_CASE(name, 0)
#define CHILD(name) DEFINE_CASE(name, 1)

// Written with one write(2): a failing allocator must not stop the message.
__attribute__((format(printf, 1, 2))) static void say(const char* format, ...) {
  static __thread char text[4096];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (length > (int)sizeof text - 1) length = (int)sizeof text - 1;
  ssize_t written = write(STDOUT_FILENO, text, (size_t)length);
  (void)written;
}

// Counts every failure and prints the first 20.
#define CHECK_MSG(expression, ...)                                                               \
  do {                                                                                           \
    int saved_errno_ = errno;                                                                    \
    if (!(expression) && __atomic_fetch_add(&test_failures, 1, __ATOMIC_SEQ_CST) < 20) {         \
      char detail_[512];                                                                         \
      snprintf(detail_, sizeof detail_, __VA_ARGS__);                                            \
      say("%s:%d: %s (%s, errno %d)\n", __FILE__, __LINE__, #expression, detail_, saved_errno_); \
    }                                                                                            \
  } while (0)
#define CHECK(expression) CHECK_MSG(expression, "in %s", __func__)
// Ends the case if the expression is false, in the thread that runs the case or in any other.
#define REQUIRE(expression)                                                  \
  do {                                                                       \
    if (!(expression)) {                                                     \
      say("%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #expression, errno); \
      _exit(kStatusFailed);                                                  \
    }                                                                        \
  } while (0)
#define SKIP(...)          \
  do {                     \
    say("skipped ");       \
    say(__VA_ARGS__);      \
    say("\n");             \
    _exit(kStatusSkipped); \
  } while (0)

// The compiler must not see through these.
UNUSED static inline void* hide(const void* pointer) {
  __asm__ volatile("" : "+r"(pointer) : : "memory");
  return (void*)pointer;
}
UNUSED static inline size_t hide_size(size_t size) {
  __asm__ volatile("" : "+r"(size));
  return size;
}

// fill writes a pattern that depends on the seed and the place; filled and all_bytes look at whole
// objects.
UNUSED static void fill(void* object, size_t size, unsigned seed) {
  unsigned char* bytes = (unsigned char*)object;
  for (size_t i = 0; i < size; i++) bytes[i] = (unsigned char)(seed + i * 31 + (i >> 8) * 7);
}
UNUSED static int filled(const void* object, size_t size, unsigned seed) {
  const unsigned char* bytes = (const unsigned char*)object;
  for (size_t i = 0; i < size; i++)
    if (bytes[i] != (unsigned char)(seed + i * 31 + (i >> 8) * 7)) return 0;
  return 1;
}
UNUSED static int all_bytes(const void* object, size_t size, unsigned char value) {
  const unsigned char* bytes = (const unsigned char*)object;
  return size == 0 || (bytes[0] == value && memcmp(bytes, bytes + 1, size - 1) == 0);
}

// True if the code at an address belongs to the library under test (CHECK_LIBRARY, a resolved
// path).
UNUSED static int in_library(const void* address) {
  const char* library = getenv("CHECK_LIBRARY");
  Dl_info info;
  static char path[PATH_MAX];
  return library && address && dladdr(address, &info) && realpath(info.dli_fname, path) &&
         strcmp(path, library) == 0;
}

// A value in bytes from /proc/self/status, such as "VmRSS:".
UNUSED static size_t status_bytes(const char* key) {
  char line[256];
  size_t kib = 0;
  FILE* file = fopen("/proc/self/status", "r");
  while (file && fgets(line, sizeof line, file))
    if (strncmp(line, key, strlen(key)) == 0) kib = strtoull(line + strlen(key), NULL, 10);
  if (file) fclose(file);
  return kib * 1024;
}

static int finish_case(const char* name) {
  fflush(stdout);
  say("%s %s\n", test_failures ? "FAILED" : "ok", name);
  return test_failures ? kStatusFailed : 0;
}

int main(int argc, char** argv) {
  if (argc < 2) {
    say("usage: %s --list | CASE [ARGUMENT]\n", argv[0]);
    return 2;
  }
  test_argument = argc > 2 ? argv[2] : NULL;
  for (int i = 0; i < test_case_count; i++) {
    if (strcmp(argv[1], "--list") == 0) {
      if (!test_cases[i].hidden) say("%s\n", test_cases[i].name);
    } else if (strcmp(argv[1], test_cases[i].name) == 0) {
      test_cases[i].run();
      return test_cases[i].hidden ? test_failures != 0 : finish_case(argv[1]);
    }
  }
  return strcmp(argv[1], "--list") == 0 ? 0 : 2;
}

#endif  // TESTS_SEMANTICS_CHECK_H_
