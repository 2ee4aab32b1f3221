// Allocates in functions that are called by code without tables, which this program makes, as
// runtimes do. Names that code in /tmp/perf-PID.map, like they do. made [MAP]: the map's text goes
// there instead. Called by: test_perfmaps.py. x86-64 only.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define APART __attribute__((noipa))

static void* kept[20000];
static int keeps;

APART void keep(void) {
  for (int i = 0; i < 10000; ++i) kept[keeps++] = memset(malloc(1000), 1, 1000);
}

typedef void Call(void (*function)(void));
// CPython's trampoline, a function with a frame pointer (V8's), and one that pops it at once.
static const unsigned char kGivesBack[] = {0x48, 0x83, 0xEC, 0x08, 0xFF, 0xD7,
                                           0x48, 0x83, 0xC4, 0x08, 0xC3};
static const unsigned char kFramePointer[] = {0x55, 0x48, 0x89, 0xE5, 0x48, 0x83, 0xEC,
                                              0x40, 0xFF, 0xD7, 0x90, 0xC9, 0xC3};
static const unsigned char kPops[] = {0x55, 0xFF, 0xD7, 0x5D, 0xC3};

static Call* place(unsigned char* at, const unsigned char* code, size_t bytes, FILE* map,
                   const char* name) {
  memcpy(at, code, bytes);
  fprintf(map, "%lx %zx %s\n", (unsigned long)at, bytes, name);
  return (Call*)at;
}

static Call* inner;
APART void through_inner(void) {
  inner(keep);
  __asm__ volatile("");
}

int main(int argc, char** argv) {
  char path[64];
  snprintf(path, sizeof path, "/tmp/perf-%d.map", getpid());
  FILE* map = fopen(argc > 1 ? argv[1] : path, "w");
  unsigned char* code =
      mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == NULL || code == MAP_FAILED) return 2;
  fprintf(map, "%lx 10 an older name\n", (unsigned long)code);
  Call* gives_back = place(code, kGivesBack, sizeof kGivesBack, map, "py::given_back:/a/b.py");
  Call* framed =
      place(code + 64, kFramePointer, sizeof kFramePointer, map, "LazyCompile:*framed /a/c.js:7:3");
  Call* popped = place(code + 128, kPops, sizeof kPops, map, "popped \033[31m<b>");
  fclose(map);
  inner = gives_back;
  framed(through_inner);
  inner = framed;
  popped(through_inner);
  return 0;
}
