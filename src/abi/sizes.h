// Structs that a program may know in another length than the library does, since fields are only
// added at their ends (docs/abi.md). The program tells its length.
// Called by: abi. Takes no lock, and no memory.
#pragma once

#include <errno.h>
#include <string.h>

#include "core/base/units.h"

namespace lanemalloc {

// Copies a program's options. Fields that the program does not know become zero, their default.
// Returns 0; EINVAL if `bytes` is less than `least`, or no length of such a struct; E2BIG if the
// program has set a field that the library does not know.
template <class T>
int read_options(T& options, const T* theirs, size_t bytes, size_t least) {
  options = {};
  if (theirs == nullptr || bytes < least || bytes % alignof(T) != 0) return EINVAL;
  const auto* at = reinterpret_cast<const unsigned char*>(theirs);
  for (size_t i = sizeof(T); i < bytes; ++i)
    if (at[i] != 0) return E2BIG;
  memcpy(&options, theirs, bytes < sizeof(T) ? bytes : sizeof(T));
  return 0;
}

// Fills in what the program has room for. Figures that the library does not know become zero.
template <class T>
void write_figures(T* theirs, size_t bytes, const T& figures) {
  const size_t known = bytes < sizeof(T) ? bytes : sizeof(T);
  memcpy(static_cast<void*>(theirs), &figures, known);
  memset(reinterpret_cast<char*>(theirs) + known, 0, bytes - known);
}

}  // namespace lanemalloc
