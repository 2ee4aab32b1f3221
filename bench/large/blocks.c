// Blocks that are replaced or grow, while little else lives. Called by: run.py.
//   blocks one      one live block of 64 to 1,024 KiB, replaced 40,000 times: freed before the next
//                   is made
//   blocks two      the same, freed after the next is made
//   blocks growing  2,000 blocks, one after the other, that grow by realloc to up to 1 MiB
// Every page of a block is written.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 88172645463325252u;
static size_t random_below(size_t n) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (size_t)(state % n);
}

static char* touched(char* block, size_t from, size_t to) {
  if (block == NULL) abort();
  for (size_t i = from; i < to; i += 4096) block[i] = 1;
  return block;
}

static void replace(int freed_after) {
  char* block = NULL;
  for (int i = 0; i < 40000; ++i) {
    const size_t size = (64 + random_below(961)) << 10;
    char* before = block;
    if (!freed_after) free(before);
    block = touched(malloc(size), 0, size);
    if (freed_after) free(before);
  }
  free(block);
}

static void grow(void) {
  for (int i = 0; i < 2000; ++i) {
    const size_t most = (64 + random_below(961)) << 10;
    char* block = NULL;
    for (size_t size = 1024, before = 0; size < most; before = size, size += size / 4)
      block = touched(realloc(block, size), before, size);
    free(block);
  }
}

int main(int count, char** arguments) {
  const char* name = count == 2 ? arguments[1] : "";
  if (strcmp(name, "one") == 0) {
    replace(0);
  } else if (strcmp(name, "two") == 0) {
    replace(1);
  } else if (strcmp(name, "growing") == 0) {
    grow();
  } else {
    return fprintf(stderr, "usage: blocks one|two|growing\n"), 2;
  }
  return 0;
}
