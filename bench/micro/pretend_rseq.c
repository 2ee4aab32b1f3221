// Pretends that the C library has registered restartable sequences, for a program under valgrind,
// which has none. The program's one thread is always on CPU 0, and nothing is ever restarted, so
// what the allocator executes can be counted. tests/golden/entries.py preloads this before the
// library. It is useless if threads share a CPU.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/membarrier.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/auxv.h>

struct area {
  uint32_t cpu_id_start, cpu_id;
  uint64_t sequence;
  uint32_t flags, node_id, mm_cid, end;
};
static __thread struct area area __attribute__((tls_model("initial-exec"), aligned(32)));

__attribute__((visibility("default"))) ptrdiff_t __rseq_offset;
__attribute__((visibility("default"))) const unsigned int __rseq_size = sizeof(struct area);

// Runs before any constructor of another library: relocations of this kind are resolved as the
// libraries are loaded.
__attribute__((constructor(101))) static void find_area(void) {
  __rseq_offset = (char*)&area - (char*)__builtin_thread_pointer();
}

unsigned long getauxval(unsigned long type) {
  enum { kRseqFeatures = 27 };
  if (type == kRseqFeatures) return sizeof(struct area);
  unsigned long (*theirs)(unsigned long) =
      (unsigned long (*)(unsigned long))dlsym(RTLD_NEXT, "getauxval");
  return theirs(type);
}
