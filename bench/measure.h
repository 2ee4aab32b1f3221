// Clocks, memory figures and the name of the allocator in use, read without allocating.
// Used by: bench/micro/pairs.c, bench/workloads/, bench/startup/tiny.c, bench/demo/requests.cpp.
// C11 and C++.
#ifndef LANEMALLOC_BENCH_MEASURE_H_
#define LANEMALLOC_BENCH_MEASURE_H_

#include <dlfcn.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static inline uint64_t clock_ns(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t wall_ns(void) { return clock_ns(CLOCK_MONOTONIC); }
static inline uint64_t thread_cpu_ns(void) { return clock_ns(CLOCK_THREAD_CPUTIME_ID); }
static inline uint64_t process_cpu_ns(void) { return clock_ns(CLOCK_PROCESS_CPUTIME_ID); }

// A counter that ticks at a constant rate: the TSC, or the generic timer.
static inline uint64_t ticks(void) {
#if defined(__x86_64__)
  uint32_t low, high;
  __asm__ volatile("lfence; rdtsc" : "=a"(low), "=d"(high)::"memory");
  return (uint64_t)high << 32 | low;
#elif defined(__aarch64__)
  uint64_t value;
  __asm__ volatile("isb; mrs %0, cntvct_el0" : "=r"(value)::"memory");
  return value;
#else
  return wall_ns();
#endif
}

static inline void cpu_pause(void) {
#if defined(__x86_64__)
  __asm__ volatile("pause" ::: "memory");
#elif defined(__aarch64__)
  __asm__ volatile("yield" ::: "memory");
#endif
}

// The number behind `name` (such as "VmHWM:") in a /proc file, in KiB as the kernel prints it; 0 if
// it is not there.
static inline unsigned long proc_kib(const char* file, const char* name) {
  char text[8192];
  size_t length = 0;
  int fd = open(file, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  for (ssize_t n;
       length < sizeof text - 1 && (n = read(fd, text + length, sizeof text - 1 - length)) > 0;) {
    length += (size_t)n;
  }
  close(fd);
  text[length] = '\0';
  const char* at = strstr(text, name);
  return at == NULL ? 0 : strtoul(at + strlen(name), NULL, 10);
}

static inline unsigned long peak_rss_kib(void) { return proc_kib("/proc/self/status", "VmHWM:"); }
static inline unsigned long rss_kib(void) { return proc_kib("/proc/self/smaps_rollup", "Rss:"); }

// The file that malloc comes from, and where it is loaded.
static inline const char* malloc_file(void** base) {
  Dl_info info;
  void* address = dlsym(RTLD_DEFAULT, "malloc");
  if (address == NULL || dladdr(address, &info) == 0) return "unknown";
  if (base != NULL) *base = info.dli_fbase;
  return info.dli_fname;
}

#endif  // LANEMALLOC_BENCH_MEASURE_H_
