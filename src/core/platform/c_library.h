// What newer versions of glibc have, and older ones and musl lack. A library that was built with an
// older C library, as those of the wheels are, uses a newer one's functions when it runs beside it:
// a name that is declared weak here is null where the C library has none of it.
// Called by: linux.h, process/, seeing/.
#pragma once

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <cstring>

#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
#else
extern "C" char __libc_single_threaded __attribute__((weak));
#define LANEMALLOC_WEAK_SINGLE_THREADED 1
#endif

// glibc 2.35. This is the layout of all its versions on the CPUs that we know.
#if !defined(DLFO_STRUCT_HAS_EH_DBASE)
struct dl_find_object {
  unsigned long long dlfo_flags;
  void* dlfo_map_start;
  void* dlfo_map_end;
  struct link_map* dlfo_link_map;
  void* dlfo_eh_frame;
  unsigned long long dlfo_reserved[7];
};
#endif
extern "C" int _dl_find_object(void*, dl_find_object*) noexcept __attribute__((weak));

#if defined(__GLIBC__)
// glibc 2.32.
extern "C" const char* strerrordesc_np(int error) noexcept __attribute__((weak));
#endif

// How much of a thread's stack the C library takes for itself. It is linked to only where it is in
// the C library itself: bound to the libpthread of before 2.34, it would have to be in that of a
// later glibc too, which is empty. musl has none.
#if defined(__GLIBC__)
#if __GLIBC_PREREQ(2, 34)
extern "C" size_t __pthread_get_minstack(const pthread_attr_t*) noexcept __attribute__((weak));
#define LANEMALLOC_LINKED_MINSTACK __pthread_get_minstack
#endif
#endif
#if !defined(LANEMALLOC_LINKED_MINSTACK)
#define LANEMALLOC_LINKED_MINSTACK nullptr
#endif

// The C library's clone, under a name that no program replaces. musl has it in static programs
// only.
extern "C" int __clone(int (*run)(void*), void* stack, int flags, void* argument, ...)
#if !defined(__GLIBC__)
    __attribute__((weak))
#endif
    ;

namespace lanemalloc {

using MinStack = size_t (*)(const pthread_attr_t*);
inline MinStack linked_minstack() { return LANEMALLOC_LINKED_MINSTACK; }

using Clone = int(int (*)(void*), void*, int, void*, ...);
#if defined(__GLIBC__)
inline Clone* next_clone() { return __clone; }
#else
inline Clone* next_clone() {
  return &__clone != nullptr ? &__clone : reinterpret_cast<Clone*>(dlsym(RTLD_NEXT, "clone"));
}
#endif

// Has a thread start on these CPUs; musl's attributes have no CPUs, so there the thread itself goes
// there, by set_own_cpus().
#if defined(__GLIBC__)
inline bool set_cpus(pthread_attr_t& attributes, const cpu_set_t& cpus) {
  return pthread_attr_setaffinity_np(&attributes, sizeof cpus, &cpus) == 0;
}
inline void set_own_cpus() {}
#else
inline bool set_cpus(pthread_attr_t&, const cpu_set_t&) { return true; }
// Those of the process's first thread.
inline void set_own_cpus() {
  cpu_set_t cpus;
  if (sched_getaffinity(getpid(), sizeof cpus, &cpus) == 0)
    sched_setaffinity(0, sizeof cpus, &cpus);
}
#endif

// True if the C library knows that the process has one thread only.
[[gnu::always_inline]] inline bool is_told_single_threaded() {
#if defined(LANEMALLOC_WEAK_SINGLE_THREADED)
  if (&__libc_single_threaded == nullptr) return false;
#endif
  return __libc_single_threaded != 0;
}

// What an error means, by a function that neither allocates nor takes a lock.
inline const char* meaning_of(int error) {
#if defined(__GLIBC__)
  if (strerrordesc_np == nullptr) return "the system has refused it";
  return strerrordesc_np(error);
#else
  return strerror(error);  // musl's reads a table
#endif
}

}  // namespace lanemalloc
