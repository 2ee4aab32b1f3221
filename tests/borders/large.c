// Large objects if the kernel refuses to move them (because of a filter, or of too many mappings)
// or to map that much memory.
// Also linked with the static library.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/uio.h>

#include "child.h"
#include "run_threads.h"

enum { kMiB = 1 << 20 };

// --- mremap refused.

static void refuse_mremap(int error) {
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mremap, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
  REQUIRE(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) SKIP("no filters here");
}

static void grow_and_shrink(void) {
  size_t size = (size_t)2 * kMiB;
  char* p = malloc(size);
  REQUIRE(p != NULL);
  char* in_the_way = malloc(700000);
  fill(p, size, 5);
  for (int i = 0; i < 20; i++) {
    const size_t wanted = i % 5 == 4 ? (size_t)2 * kMiB : size + (size_t)3 * kMiB;
    char* q = realloc(p, wanted);
    REQUIRE(q != NULL);
    CHECK(filled(q, size < wanted ? size : wanted, 5));
    p = q;
    size = wanted;
    fill(p, size, 5);
  }
  free(p);
  free(in_the_way);
  char* zeros = calloc(20, kMiB);
  REQUIRE(zeros != NULL);
  CHECK(all_bytes(zeros, (size_t)20 * kMiB, 0));
  free(zeros);
}

CASE(mremap_refused_with_EPERM) {
  refuse_mremap(EPERM);
  grow_and_shrink();
}
CASE(mremap_refused_with_ENOMEM) {
  refuse_mremap(ENOMEM);
  grow_and_shrink();
}
CASE(mremap_refused_with_ENOSYS) {
  refuse_mremap(ENOSYS);
  grow_and_shrink();
}
CASE(mremap_refused_with_EFAULT) {
  refuse_mremap(EFAULT);
  grow_and_shrink();
}

// --- As many mappings as the kernel allows.

static size_t most_mappings(void) {
  char text[32] = "";
  int file = open("/proc/sys/vm/max_map_count", O_RDONLY);
  if (file < 0 || read(file, text, sizeof text - 1) <= 0) return 0;
  close(file);
  return strtoull(text, NULL, 10);
}

// Every second page has another protection, so there are as many mappings as pages.
static char* pages;
static size_t page_count;
static void make_mappings(void) {
  page_count = most_mappings() + 16;
  if (page_count < 1000 || page_count > 300000) SKIP("another limit of mappings than usual");
  pages =
      mmap(NULL, page_count * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(pages != MAP_FAILED);
  size_t i = 0;
  while (i < page_count && mprotect(pages + i * 4096, 4096, PROT_READ) == 0) i += 2;
  REQUIRE(i < page_count);
  page_count = i;
}
// Makes room for n more mappings.
static void drop_mappings(size_t n) {
  for (; n >= 2 && page_count >= 2; n -= 2, page_count -= 2)
    REQUIRE(mprotect(pages + (page_count - 2) * 4096, 4096, PROT_NONE) == 0);
}

// The rounds have room for 0, 2, .. more mappings, so each step of a move fails in one of them.
static void grow_among_mappings(int split) {
  enum { kRounds = 12 };
  const size_t size = (size_t)4 * kMiB;
  char* objects[kRounds];
  for (int i = 0; i < kRounds; i++) {
    REQUIRE((objects[i] = malloc(size)) != NULL);
    fill(objects[i], size, (unsigned)i);
    // Some pages of the object become a mapping of their own.
    if (split)
      REQUIRE(madvise((char*)(((uintptr_t)objects[i] + kMiB) & ~(uintptr_t)4095), kMiB,
                      MADV_DONTDUMP) == 0);
  }
  make_mappings();
  for (int i = 0; i < kRounds; i++) {
    char* grown = realloc(objects[i], size * 2);
    if (grown) {
      objects[i] = grown;
      fill(grown + size, size, 99);
      CHECK(filled(grown + size, size, 99));
    }
    for (int j = 0; j < kRounds; j++)
      CHECK_MSG(filled(objects[j], size, (unsigned)j), "object %d after %d", j, i);
    if (test_failures) return;
    drop_mappings(2);
  }
  munmap(pages, (most_mappings() + 16) * 4096);
  for (int i = 0; i < kRounds; i++) free(objects[i]);
  grow_and_shrink();
}

CASE(a_large_object_grows_near_the_limit_of_mappings) { grow_among_mappings(0); }
CASE(a_large_object_of_several_mappings_grows_near_the_limit_of_mappings) {
  grow_among_mappings(1);
}

// --- Requests that are too large.

static void ask_for_too_much(void) {
  const size_t tib = (size_t)1 << 40;
  const size_t sizes[] = {tib / 4,      tib,      2 * tib,      4 * tib,  4 * tib + 1,
                          5 * tib,      7 * tib,  8 * tib,      15 * tib, 16 * tib - 65536,
                          16 * tib - 1, 16 * tib, 16 * tib + 1, 100 * tib};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    errno = 0;
    char* p = malloc(hide_size(sizes[i]));
    CHECK(p != NULL || errno == ENOMEM);
    if (p) p[0] = p[sizes[i] - 1] = 1;
    p = realloc(p, hide_size(sizes[i] + sizes[i] / 2));
    free(p);
    for (size_t alignment = 65536; alignment <= 64 * tib && alignment != 0; alignment *= 4) {
      void* aligned = NULL;
      const int result = posix_memalign(&aligned, alignment, hide_size(sizes[i]));
      CHECK_MSG(result == ENOMEM || (result == 0 && (uintptr_t)aligned % alignment == 0),
                "alignment %zx, size %zx: %d", alignment, sizes[i], result);
      if (result == 0) free(aligned);
    }
  }
  void* p = NULL;
  CHECK(posix_memalign(&p, 2 * tib, 3 * tib) == ENOMEM || p != NULL);
  char* small = malloc(100000);
  REQUIRE(small != NULL);
  fill(small, 100000, 4);
  CHECK(filled(small, 100000, 4));
  free(small);
}

CASE(too_much_is_refused) { ask_for_too_much(); }

CHILD(asks_for_too_much) { ask_for_too_much(); }

// The same if the system says that it has 4 TiB of memory.
CASE(too_much_is_refused_where_there_is_much_memory) {
  pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    if (ptrace(PTRACE_TRACEME, 0, 0, 0)) _exit(kStatusSkipped);
    execl("/proc/self/exe", "large", "asks_for_too_much", NULL);
    _exit(127);
  }
  int status = 0, is_set = 0;
  struct sysinfo* info = NULL;
  while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
    int signal_number = WSTOPSIG(status);
    if (!is_set++) ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
    if (signal_number == (SIGTRAP | 0x80)) {
      struct __ptrace_syscall_info call;
      if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof call, &call) < 0)
        SKIP("the kernel does not tell of system calls");
      if (call.op == PTRACE_SYSCALL_INFO_ENTRY) {
        info = call.entry.nr == SYS_sysinfo ? (struct sysinfo*)(uintptr_t)call.entry.args[0] : NULL;
      } else if (info) {
        struct sysinfo told;
        struct iovec mine = {&told, sizeof told}, its = {info, sizeof told};
        REQUIRE(process_vm_readv(pid, &mine, 1, &its, 1, 0) == sizeof told);
        told.totalram = (unsigned long)4 << 40;
        told.mem_unit = 1;
        REQUIRE(process_vm_writev(pid, &mine, 1, &its, 1, 0) == sizeof told);
      }
    }
    ptrace(PTRACE_SYSCALL, pid, 0,
           signal_number == SIGTRAP || signal_number == (SIGTRAP | 0x80) ? 0 : signal_number);
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == kStatusSkipped)
    SKIP("ptrace is not allowed here");
  CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", status);
}

// --- Large blocks, one after the other, which are much of the machine's memory. The kernel refuses
// a fork if one mapping is larger than all memory, and neighbours are one mapping.

static void* takes_most_of_the_machine(void* in_a_thread) {
  struct sysinfo machine;
  REQUIRE(sysinfo(&machine) == 0);
  const size_t all = (machine.totalram + machine.totalswap) * machine.mem_unit;
  for (int percent = 50; percent <= 80; percent += 6) {
    char* p = malloc(all / 100 * (size_t)percent);
    if (p == NULL) SKIP("the machine does not promise its memory");
    p[0] = 1;
    free(p);
  }
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  CHECK_MSG(pid > 0, "VmSize is %zu MiB of %zu", status_bytes("VmSize:") >> 20, all >> 20);
  int status = -1;
  CHECK(waitpid(pid, &status, 0) == pid && status == 0);
  return in_a_thread;
}
CASE(fork_after_large_blocks_that_are_free) { takes_most_of_the_machine(NULL); }
CASE(fork_after_large_blocks_that_are_free_with_threads) {
  run_thread(takes_most_of_the_machine, NULL);
}
