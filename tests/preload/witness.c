// Witness: tells which file the allocation functions of a process really come from.
//
// Preloaded by tests/preload/lib.sh before the library under test. Its constructor appends to the
// file named by PRELOAD_WITNESS, for every function, one line "PID PROGRAM FUNCTION FILE". lib.sh's
// `mapped` reads that file. The constructor allocates nothing, and keeps nothing open.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char* const kFunctions[] = {"malloc", "calloc", "realloc", "free", "posix_memalign"};

// The file whose definition a call of `function` reaches. A fixed-position executable that takes
// the address of malloc shows up as its own (undefined) symbol; behind it the search goes on with
// the first library.
static const char* home_of(const char* function) {
  Dl_info info;
  const ElfW(Sym)* symbol = NULL;
  void* address = dlsym(RTLD_DEFAULT, function);
  if (address == NULL || dladdr1(address, &info, (void**)&symbol, RTLD_DL_SYMENT) == 0)
    return "nowhere";
  if (symbol != NULL && symbol->st_shndx != SHN_UNDEF) return info.dli_fname;
  address = dlsym(RTLD_NEXT, function);
  return address != NULL && dladdr(address, &info) != 0 ? info.dli_fname : "nowhere";
}

__attribute__((constructor)) static void testify(void) {
  const char* path = getenv("PRELOAD_WITNESS");
  if (path == NULL) return;
  char text[8192];
  size_t length = 0;
  for (size_t i = 0; i < sizeof kFunctions / sizeof *kFunctions; ++i) {
    int n = snprintf(text + length, sizeof text - length, "%d %s %s %s\n", (int)getpid(),
                     program_invocation_short_name, kFunctions[i], home_of(kFunctions[i]));
    if (n < 0 || length + (size_t)n >= sizeof text) return;
    length += (size_t)n;
  }
  int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) return;
  if (write(file, text, length) < 0) _exit(125);
  close(file);
}
