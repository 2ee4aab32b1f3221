// Loads one library after the other at the same place. Their functions have frames of different
// sizes, so a rule that was kept from the first would lead the walk astray in the second. Called
// by: run.sh, with the two files.
#include <dlfcn.h>
#include <stdio.h>

#include "walks.h"

namespace {

void* address = nullptr;
Walks last = Walks::kLeft;

void compare() { last = compare_walks(); }

bool run(const char* path) {
  void* library = dlopen(path, RTLD_NOW);
  if (library == nullptr) return printf("%s\n", dlerror()), false;
  auto* call = reinterpret_cast<void (*)(void (*)())>(dlsym(library, "call"));
  call(compare);
  const bool is_there = address == nullptr || address == reinterpret_cast<void*>(call);
  address = reinterpret_cast<void*>(call);
  dlclose(library);
  if (!is_there) printf("%s lies elsewhere: this tests nothing\n", path);
  if (last != Walks::kSame)
    printf("%s: %s\n", path, last == Walks::kLeft ? "left to the C library" : "different");
  return is_there && last == Walks::kSame;
}

}  // namespace

int main(int count, char** paths) {
  for (int round = 0; round < 3; ++round) {
    for (int i = 1; i < count; ++i) {
      if (!run(paths[i])) return 1;
    }
  }
  return 0;
}
