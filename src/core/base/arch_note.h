// An ELF note by which a reader outside the process finds a symbol. It has the name "lanemalloc",
// type 1, and eight bytes that say how far behind them the symbol lies. The note is loaded, so that
// it can be found in memory alone, and needs no relocation at run time. It is the same for all
// architectures. Format: docs/stats-root.md.
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
