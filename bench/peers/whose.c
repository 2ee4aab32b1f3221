// Prints the real path of the file that malloc, free and realloc come from; exit status 1 if they
// differ.
// Called by: bench/peers/build.sh, with a peer preloaded.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char* file_of(const char* symbol) {
  Dl_info info;
  void* address = dlsym(RTLD_DEFAULT, symbol);
  return address != NULL && dladdr(address, &info) != 0 ? info.dli_fname : "nothing";
}

int main(void) {
  char path[PATH_MAX];
  const char* from = file_of("malloc");
  free(malloc(100));
  puts(realpath(from, path) != NULL ? path : from);
  return strcmp(from, file_of("free")) == 0 && strcmp(from, file_of("realloc")) == 0 ? 0 : 1;
}
