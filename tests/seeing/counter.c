// Counts allocations by itself, in front of the library: LD_PRELOAD=counter.so:liblanemalloc.so.
// When a process ends, it adds one line of JSON to the file $COUNTER_FILE: what was counted here,
// and what the library says of the same moment. check.py compares the two.
// Called by: tests/seeing/run.sh.
//
// Every call goes on to the library, and is counted by what malloc_usable_size() says of the
// object. At the end, and in fork(), every other thread is held at the gate until no call is
// inside, since figures are exact at rest only. A realloc that moves counts as an allocation and a
// free. A realloc in place counts as neither. Nor does one that the kernel moves: a large object of
// at least 1 MiB that grows (Large::move).
// $COUNTER_FAULT=N: the Nth free is counted twice. This is the planted fault that check.py must
// see.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <lanemalloc/stats.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { kGranule = 16, kBlock = 64 << 10, kRows = kBlock / kGranule };

#define EXPORT __attribute__((visibility("default")))
typedef _Atomic unsigned long Count;

// By size / 16. Row 0 is for objects of 64 KiB and more, whose size may change in place.
static Count allocations[kRows], frees[kRows];
static Count large_bytes, fault_countdown;
static Count inside;        // calls
static _Atomic int closed;  // no thread enters, except `keeper`
static __thread int depth __attribute__((tls_model("initial-exec")));
static __thread int keeper __attribute__((tls_model("initial-exec")));
static pid_t reported;

// --- The library's functions.

static struct {
  void* (*malloc)(size_t);
  void (*free)(void*);
  void* (*calloc)(size_t, size_t);
  void* (*realloc)(void*, size_t);
  void* (*memalign)(size_t, size_t);
  int (*posix_memalign)(void**, size_t, size_t);
  void* (*valloc)(size_t);
  void* (*pvalloc)(size_t);
  size_t (*usable)(void*);
  void (*_exit)(int);
  int (*stats)(struct lane_statistics*, size_t);
} real;

static void* next(const char* name) {
  void* found = dlsym(RTLD_NEXT, name);
  if (found == NULL) abort();
  return found;
}
// The first call comes before there are threads.
static void start(void) {
  if (real.free != NULL) return;
  const char* fault = getenv("COUNTER_FAULT");
  if (fault != NULL) fault_countdown = strtoul(fault, NULL, 10);
  *(void**)&real.malloc = next("malloc");
  *(void**)&real.calloc = next("calloc");
  *(void**)&real.realloc = next("realloc");
  *(void**)&real.memalign = next("memalign");
  *(void**)&real.posix_memalign = next("posix_memalign");
  *(void**)&real.valloc = next("valloc");
  *(void**)&real.pvalloc = next("pvalloc");
  *(void**)&real.usable = next("malloc_usable_size");
  *(void**)&real._exit = next("_exit");
  *(void**)&real.stats = next("lane_stats");
  *(void**)&real.free = next("free");
}

// --- The gate. A handler inside a call passes: a thread that waits until no call is inside waits
// for the interrupted call anyway.

static void enter(void) {
  start();
  ++depth;
  for (;;) {
    atomic_fetch_add(&inside, 1);
    if (!closed || keeper || depth > 1) return;
    atomic_fetch_sub(&inside, 1);
    usleep(200);
  }
}
static void leave(void) {
  atomic_fetch_sub(&inside, 1);
  --depth;
}

// Returns 1 if no other call is inside now, and 0 if one did not leave for a long time.
static int close_gate(void) {
  while (atomic_exchange(&closed, 1) != 0) usleep(200);
  keeper = 1;
  for (int i = 0; i < 20000; ++i) {
    if (inside == (unsigned long)depth) return 1;
    usleep(200);
  }
  return 0;
}
static void open_gate(void) {
  keeper = 0;
  closed = 0;
}
static void open_in_child(void) {
  inside = (unsigned long)depth;
  open_gate();
}
static void before_fork(void) { close_gate(); }

// --- Counting.

static unsigned row_of(size_t usable) {
  return usable < kRows * kGranule ? (unsigned)(usable / kGranule) : 0;
}
static void* made(void* p) {
  if (p == NULL) return p;
  const size_t usable = real.usable(p);
  ++allocations[row_of(usable)];
  if (row_of(usable) == 0) large_bytes += usable;
  return p;
}
static void gone(size_t usable) {
  const int times = fault_countdown != 0 && --fault_countdown == 0 ? 2 : 1;
  frees[row_of(usable)] += (unsigned long)times;
  if (row_of(usable) == 0) large_bytes -= usable * (unsigned long)times;
}

EXPORT void* malloc(size_t size) {
  enter();
  void* p = made(real.malloc(size));
  leave();
  return p;
}
EXPORT void free(void* p) {
  enter();
  if (p != NULL) gone(real.usable(p));
  real.free(p);
  leave();
}
EXPORT void* calloc(size_t count, size_t size) {
  enter();
  void* p = made(real.calloc(count, size));
  leave();
  return p;
}
EXPORT void* realloc(void* p, size_t size) {
  enter();
  const size_t before = p != NULL ? real.usable(p) : 0;
  void* q = real.realloc(p, size);
  if (p == NULL) {
    made(q);
  } else if (size == 0) {
    gone(before);
  } else if (q != NULL) {
    const size_t after = real.usable(q);
    const int moved_by_kernel = before >= (1 << 20) && after > before && row_of(after) == 0;
    if (q == p || moved_by_kernel) {
      large_bytes += after - before;  // for an object below 64 KiB both are the same
    } else {
      made(q);
      gone(before);
    }
  }
  leave();
  return q;
}
EXPORT void* reallocarray(void* p, size_t count, size_t size) {
  size_t total;
  if (!__builtin_mul_overflow(count, size, &total)) return realloc(p, total);
  errno = ENOMEM;
  return NULL;
}
EXPORT void* memalign(size_t alignment, size_t size) {
  enter();
  void* p = made(real.memalign(alignment, size));
  leave();
  return p;
}
EXPORT void* aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
EXPORT int posix_memalign(void** result, size_t alignment, size_t size) {
  enter();
  const int error = real.posix_memalign(result, alignment, size);
  if (error == 0) made(*result);
  leave();
  return error;
}
EXPORT void* valloc(size_t size) {
  enter();
  void* p = made(real.valloc(size));
  leave();
  return p;
}
EXPORT void* pvalloc(size_t size) {
  enter();
  void* p = made(real.pvalloc(size));
  leave();
  return p;
}
EXPORT void cfree(void* p) { free(p); }

// C++'s functions, by their names. No program here runs out of memory, so none of them throws.
static void* make(size_t size) { return malloc(size != 0 ? size : 1); }
static void* make_aligned(size_t size, size_t alignment) { return memalign(alignment, size); }
#define NEW(name, ...) EXPORT void* name(size_t size, ##__VA_ARGS__)
NEW(_Znwm) { return make(size); }
NEW(_Znam) { return make(size); }
NEW(_ZnwmRKSt9nothrow_t, const void* t) { return (void)t, make(size); }
NEW(_ZnamRKSt9nothrow_t, const void* t) { return (void)t, make(size); }
NEW(_ZnwmSt11align_val_t, size_t a) { return make_aligned(size, a); }
NEW(_ZnamSt11align_val_t, size_t a) { return make_aligned(size, a); }
NEW(_ZnwmSt11align_val_tRKSt9nothrow_t, size_t a, const void* t) {
  return (void)t, make_aligned(size, a);
}
NEW(_ZnamSt11align_val_tRKSt9nothrow_t, size_t a, const void* t) {
  return (void)t, make_aligned(size, a);
}
#define DELETE(name) \
  EXPORT void name(void* p) { free(p); }
DELETE(_ZdlPv)
DELETE(_ZdaPv)
DELETE(_ZdlPvm)
DELETE(_ZdaPvm)
DELETE(_ZdlPvSt11align_val_t)
DELETE(_ZdaPvSt11align_val_t)
DELETE(_ZdlPvmSt11align_val_t)
DELETE(_ZdaPvmSt11align_val_t)
DELETE(_ZdlPvRKSt9nothrow_t)
DELETE(_ZdaPvRKSt9nothrow_t)
DELETE(_ZdlPvSt11align_val_tRKSt9nothrow_t)
DELETE(_ZdaPvSt11align_val_tRKSt9nothrow_t)

// --- The line.

static char line[1 << 18];
static size_t used;
static struct lane_statistics figures;

__attribute__((format(printf, 1, 2))) static void put(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int n = vsnprintf(line + used, sizeof line - used, format, arguments);
  va_end(arguments);
  if (n > 0) used += (size_t)n;
}

static void put_totals(const char* who, unsigned long made_, unsigned long freed,
                       unsigned long live, unsigned long bytes, const char* rows) {
  put(",\"%s\":{\"allocations\":%lu,\"frees\":%lu,\"live\":%lu,\"bytes\":%lu,\"%s\":{", who, made_,
      freed, live, bytes, rows);
}
static const char* separator;
static void put_row(unsigned long size, unsigned long made_, unsigned long freed,
                    unsigned long live) {
  if (made_ == 0 && freed == 0) return;
  put("%s\"%lu\":[%lu,%lu,%lu]", separator, size, made_, freed, live);
  separator = ",";
}

static void report(void) {
  const char* path = getenv("COUNTER_FILE");
  if (path == NULL || reported == getpid()) return;
  start();
  const int saved = errno;
  const int quiet = close_gate();
  reported = getpid();
  const int failed = real.stats(&figures, sizeof figures);
  char name[32] = "?";
  const int comm = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
  if (comm >= 0) {
    const ssize_t n = read(comm, name, sizeof name - 1);
    name[n > 0 ? n - 1 : 0] = '\0';
    close(comm);
  }
  for (char* c = name; *c != '\0'; ++c)
    if (*c == '"' || *c == '\\') *c = '?';
  unsigned long made_ = 0, freed = 0, bytes = large_bytes;
  for (unsigned i = 0; i < kRows; ++i) {
    made_ += allocations[i];
    freed += frees[i];
    if (i != 0) bytes += (allocations[i] - frees[i]) * i * kGranule;
  }
  used = 0;
  put("{\"pid\":%d,\"program\":\"%s\",\"quiet\":%s,\"entry\":\"%s\",\"samples\":%lu", getpid(),
      name, quiet && depth == 0 && !failed ? "true" : "false", figures.entry,
      (unsigned long)figures.samples);
  put_totals("ours", made_, freed, made_ - freed, bytes, "rows");
  separator = "";
  for (unsigned long i = 0; i < kRows; ++i)
    put_row(i * kGranule, allocations[i], frees[i], allocations[i] - frees[i]);
  put("}}");
  put_totals("library", figures.allocations, figures.frees, figures.live_objects,
             figures.live_bytes, "rows");
  separator = "";
  unsigned long big = figures.large_allocations, big_live = figures.large_live_objects;
  for (unsigned i = 1; i < LANE_STATS_CLASSES; ++i) {
    const struct lane_class_statistics* c = &figures.classes[i];
    if (c->size < kBlock) {
      put_row(c->size, c->allocations, c->allocations - c->live, c->live);
    } else {
      big += c->allocations;
      big_live += c->live;
    }
  }
  put_row(0, big, big - big_live, big_live);
  put("}}}\n");
  const int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0 || write(fd, line, used) != (ssize_t)used)
    dprintf(2, "counter: %s: %s\n", path, strerror(errno));
  if (fd >= 0) close(fd);
  open_gate();
  errno = saved;
}

EXPORT void _exit(int status) {
  report();
  real._exit(status);
  __builtin_unreachable();
}
EXPORT void _Exit(int status) { _exit(status); }

__attribute__((constructor)) static void begin(void) {
  start();
  pthread_atfork(before_fork, open_gate, open_in_child);
}
__attribute__((destructor)) static void end(void) { report(); }
