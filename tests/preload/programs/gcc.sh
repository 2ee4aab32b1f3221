#!/usr/bin/env bash
# checks: gcc -O2 -g of a large generated C file: the same object code, and the program's known
# result
# needs: gcc=gcc awk=mawk
# shellcheck source=tests/preload/lib.sh
source "$PRELOAD_LIB"

awk -v functions=$((220 * SCALE)) 'BEGIN {
  print "#include <stdio.h>\n#include <string.h>\ntypedef unsigned u;"
  print "struct s { u a[8]; double d; struct s* next; };"
  for (i = 0; i < functions; i++) {
    printf "static u f%d(u x, struct s* p) {\n  u table[] = {", i
    for (j = 0; j < 40; j++) printf "%d,", (i * j * 7919) % 65536
    printf "};\n  for (u i = 0; i < 40; i++) {\n    switch ((x + i) %% 12) {\n"
    for (j = 0; j < 11; j++) {
      printf "      case %d: x = x * %du + table[i] ^ p->a[%d];", j, 3 + i % 50 + j, (i + j) % 8
      printf " p->a[(x >> 3) %% 8] += %d; break;\n", i
    }
    printf "      default: p->d += x; if (p->next) p->next->a[i %% 8] ^= x;\n    }\n  }\n"
    result = i ? sprintf("x %% 3 ? f%d(x / 2, p) : x + strlen(\"text %d\")", i - 1, i) : "x"
    printf "  return %s;\n}\n", result
  }
  print "int main(void) {\n  struct s t = {{1}, 0, 0}, s = {{2}, 0, &t};\n  u x = 0;"
  printf "  for (u i = 0; i < 1000; i++) x ^= f%d(i * 977, &s);\n", functions - 1
  print "  printf(\"%u %u\\n\", x, t.a[1]);\n}"
}' >big.c

plain gcc -O2 -g -pipe -c big.c -o big.o
mv big.o plain.o
under gcc -O2 -g -pipe -c big.c -o big.o 2>gcc.log
same 'the object file' plain.o big.o
plain gcc -O0 plain.o -o plain.exe
under gcc -O0 big.o -o under.exe 2>>gcc.log
same 'the linked program' plain.exe under.exe
equal 'what the compiled program printed' "$(plain ./plain.exe)" "$(under ./under.exe)"
mapped gcc cc1 as collect2 ld under.exe
ok 'object file and linked program are the same bytes'
