// Objects of five sizes come in random order and live for a random time. It says how many bytes
// each site has allocated, to be compared with what a profile estimates.
// Called by: run.sh. Usage: mixture SEED
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { kLive = 4096, kObjects = 1500000, kSites = 5 };

// Each keeps its own frame: the result is used after the call.
#define SITE(bytes)                                                     \
  __attribute__((noinline)) static char* of_##bytes##_bytes(char tag) { \
    char* object = (char*)malloc(bytes);                                \
    if (object == NULL) abort();                                        \
    object[0] = tag;                                                    \
    return object;                                                      \
  }
SITE(32)
SITE(128)
SITE(512)
SITE(2048)
SITE(8192)

static uint64_t state;
static uint64_t below(uint64_t n) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state % n;
}

int main(int argc, char** argv) {
  static char* (*const sites[kSites])(char) = {of_32_bytes, of_128_bytes, of_512_bytes,
                                               of_2048_bytes, of_8192_bytes};
  static const uint64_t sizes[kSites] = {32, 128, 512, 2048, 8192};
  // Small objects come more often, so that they have samples enough.
  static const int order[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 4};
  static char* live[kLive];
  uint64_t bytes[kSites] = {0};
  state = argc == 2 ? strtoull(argv[1], NULL, 10) * 0x9E3779B97F4A7C15u : 1;
  for (int i = 0; i < kObjects; i++) {
    char** place = &live[below(kLive)];
    int site = order[below(sizeof order / sizeof *order)];
    free(*place);
    *place = sites[site]((char)i);
    bytes[site] += sizes[site];
  }
  for (int i = 0; i < kSites; i++) printf("of_%" PRIu64 "_bytes %" PRIu64 "\n", sizes[i], bytes[i]);
  return 0;
}
