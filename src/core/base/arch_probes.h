// Probes: places off the hit paths where tracers (bpftrace, perf, gdb) can stop, as SystemTap's
// USDT describes them. Each is one nop, and a note that is not loaded. The note says where the nop
// is, and in which registers its arguments lie. Names and arguments: docs/probes.md. Probes are the
// same for all architectures, whose compilers write registers as the notes want them. Arguments:
// integers and pointers.
#pragma once

#define LANEMALLOC_PROBE(name, arguments, ...)                                \
  __asm__ volatile(                                                           \
      "990: nop\n"                                                            \
      ".pushsection .note.stapsdt,\"?\",\"note\"\n"                           \
      ".balign 4\n"                                                           \
      ".4byte 992f-991f, 994f-993f, 3\n"                                      \
      "991: .asciz \"stapsdt\"\n"                                             \
      "992: .balign 4\n"                                                      \
      "993: .8byte 990b, _.stapsdt.base, 0\n"                                 \
      ".asciz \"lanemalloc\"\n"                                               \
      ".asciz \"" #name                                                       \
      "\"\n"                                                                  \
      ".asciz \"" arguments                                                   \
      "\"\n"                                                                  \
      "994: .balign 4\n"                                                      \
      ".popsection\n"                                                         \
      ".ifndef _.stapsdt.base\n"                                              \
      ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n" \
      ".weak _.stapsdt.base\n"                                                \
      ".hidden _.stapsdt.base\n"                                              \
      "_.stapsdt.base: .space 1\n"                                            \
      ".size _.stapsdt.base,1\n"                                              \
      ".popsection\n"                                                         \
      ".endif\n" ::__VA_ARGS__)
#define PROBE2(name, a, b)                                            \
  LANEMALLOC_PROBE(name, "8@%0 8@%1", "nr"(static_cast<uint64_t>(a)), \
                   "nr"(static_cast<uint64_t>(b)))
#define PROBE3(name, a, b, c)                                              \
  LANEMALLOC_PROBE(name, "8@%0 8@%1 8@%2", "nr"(static_cast<uint64_t>(a)), \
                   "nr"(static_cast<uint64_t>(b)), "nr"(static_cast<uint64_t>(c)))
