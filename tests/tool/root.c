// A stats root that no library has made: of version argv[2], started if argv[1] is not 0. Prints
// "ready" and stays.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct {
  char magic[8];
  uint32_t version, size;
  char library[16];
  uint64_t started_at_ns, rest[10];
} made_root
    __attribute__((used)) = {{'l', 'a', 'n', 'e', 's', 't', 'a', 't'}, 1, 120, "9.9.9", 0, {0}};

__asm__(
    ".pushsection .note.lanemalloc, \"a\", @note\n"
    ".balign 4\n"
    ".long 11, 8, 1\n"
    ".asciz \"lanemalloc\"\n"
    ".balign 4\n"
    "1: .quad made_root - 1b\n"
    ".popsection\n");

int main(int argc, char** argv) {
  if (argc > 1) made_root.started_at_ns = strtoull(argv[1], NULL, 10);
  if (argc > 2) made_root.version = (uint32_t)atoi(argv[2]);
  puts("ready");
  fflush(stdout);
  for (;;) pause();
}
