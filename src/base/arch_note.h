// An ELF note by which a reader outside the process finds a symbol: name "lanemalloc", type 1, and
// how far behind those eight bytes the symbol lies. It is loaded, so that it can be found in memory
// alone, and needs no relocation at run time. The same for all architectures. Format:
// docs/stats-root.md.
#pragma once

#define LANEMALLOC_NOTE(symbol)                     \
  __asm__(                                          \
      ".pushsection .note.lanemalloc,\"a\",%note\n" \
      ".balign 4\n"                                 \
      ".long 11\n.long 8\n.long 1\n"                \
      ".asciz \"lanemalloc\"\n"                     \
      ".balign 4\n"                                 \
      ".quad " #symbol                              \
      " - .\n"                                      \
      ".popsection\n")
