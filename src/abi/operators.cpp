// All forms of operator new and delete. The throwing forms call the new handler, and throw
// bad_alloc by the program's own C++ runtime, which is found when it is needed: this library is
// built without exceptions, and needs libc only.
#if !defined(LANEMALLOC_PREFIXED)

#include <dlfcn.h>
#include <stdlib.h>

#include <new>

#include "process/process.h"

extern "C" {
std::new_handler _ZSt15get_new_handlerv() __attribute__((weak));
void _ZSt17__throw_bad_allocv() __attribute__((weak));
}

namespace lanemalloc {
namespace {

// Finds a function of the C++ runtime, even if the program has no link to the runtime because that
// was loaded for a plug-in only.
template <class Function>
Function* runtime_function(const char* name, void* where = RTLD_DEFAULT) {
  void* found = dlsym(where, name);
  if (found == nullptr) {
    void* library = dlopen("libstdc++.so.6", RTLD_NOW | RTLD_NOLOAD);
    if (library != nullptr) found = dlsym(library, name);
  }
  return reinterpret_cast<Function*>(found);
}

std::new_handler new_handler() {
  auto* get = _ZSt15get_new_handlerv != nullptr
                  ? _ZSt15get_new_handlerv
                  : runtime_function<std::new_handler()>("_ZSt15get_new_handlerv");
  return get != nullptr ? get() : nullptr;
}

[[noreturn]] void throw_bad_alloc() {
  auto* raise = _ZSt17__throw_bad_allocv != nullptr
                    ? _ZSt17__throw_bad_allocv
                    : runtime_function<void()>("_ZSt17__throw_bad_allocv");
  if (raise != nullptr) raise();
  static constexpr char kLine[] =
      "lanemalloc: operator new: out of memory, and no C++ runtime to throw bad_alloc\n";
  Linux::say(kLine, sizeof kLine - 1);
  abort();
}

// Runs outside the lane, and in a function that is not noexcept, since what the handler throws
// passes through here.
template <class Allocate>
void* until_handler_gives_up(Allocate allocate) {
  for (;;) {
    if (void* p = allocate()) return p;
    const std::new_handler handler = new_handler();
    if (handler == nullptr) throw_bad_alloc();
    handler();
  }
}

void* allocate_once(Bytes size) {
  return size <= PTRDIFF_MAX && start_process() ? process_engine.allocate(size, thread_slot)
                                                : nullptr;
}
void* allocate_once(Bytes size, std::align_val_t alignment) {
  return size <= PTRDIFF_MAX && start_process()
             ? process_engine.allocate_aligned(size, static_cast<Bytes>(alignment), thread_slot)
             : nullptr;
}

NOINLINE void* new_after_miss(Bytes size, Gate* gate) {
  if (void* p = ProcessMisses::allocate_from_bin(size, thread_slot, gate); LIKELY(p != nullptr))
    return p;
  Owned::leave_as_found(thread_slot, gate);
  return until_handler_gives_up([=] { return allocate_once(size); });
}

FAST void* new_object(Bytes size) {
  return process_engine.allocate(size, thread_slot,
                                 [=](Gate* gate) { return new_after_miss(size, gate); });
}

NOINLINE void* new_aligned(Bytes size, std::align_val_t alignment) {
  return until_handler_gives_up([=] { return allocate_once(size, alignment); });
}

// The nothrow forms must catch what a handler throws. Only the runtime's own form can do that; it
// calls the throwing form, which is ours. A program whose runtime has none gets null at once.
template <class... Alignment>
void* new_nothrow(const char* runtime_name, Bytes size, const std::nothrow_t& tag,
                  Alignment... alignment) {
  if (void* p = allocate_once(size, alignment...)) return p;
  auto* theirs =
      runtime_function<void*(Bytes, Alignment..., const std::nothrow_t&)>(runtime_name, RTLD_NEXT);
  if (theirs != nullptr) return theirs(size, alignment..., tag);
  return nullptr;
}

}  // namespace
}  // namespace lanemalloc

using namespace lanemalloc;
using std::align_val_t;
using std::nothrow_t;

EXPORT void* operator new(size_t n) { return new_object(n); }
EXPORT void* operator new[](size_t n) { return new_object(n); }
EXPORT void* operator new(size_t n, align_val_t a) { return new_aligned(n, a); }
EXPORT void* operator new[](size_t n, align_val_t a) { return new_aligned(n, a); }
EXPORT void* operator new(size_t n, const nothrow_t& t) noexcept {
  return new_nothrow("_ZnwmRKSt9nothrow_t", n, t);
}
EXPORT void* operator new[](size_t n, const nothrow_t& t) noexcept {
  return new_nothrow("_ZnamRKSt9nothrow_t", n, t);
}
EXPORT void* operator new(size_t n, align_val_t a, const nothrow_t& t) noexcept {
  return new_nothrow("_ZnwmSt11align_val_tRKSt9nothrow_t", n, t, a);
}
EXPORT void* operator new[](size_t n, align_val_t a, const nothrow_t& t) noexcept {
  return new_nothrow("_ZnamSt11align_val_tRKSt9nothrow_t", n, t, a);
}

EXPORT void operator delete(void* p) noexcept { free(p); }
EXPORT void operator delete[](void* p) noexcept { free(p); }
EXPORT void operator delete(void* p, size_t) noexcept { free(p); }
EXPORT void operator delete[](void* p, size_t) noexcept { free(p); }
EXPORT void operator delete(void* p, align_val_t) noexcept { free(p); }
EXPORT void operator delete[](void* p, align_val_t) noexcept { free(p); }
EXPORT void operator delete(void* p, size_t, align_val_t) noexcept { free(p); }
EXPORT void operator delete[](void* p, size_t, align_val_t) noexcept { free(p); }
EXPORT void operator delete(void* p, const nothrow_t&) noexcept { free(p); }
EXPORT void operator delete[](void* p, const nothrow_t&) noexcept { free(p); }
EXPORT void operator delete(void* p, align_val_t, const nothrow_t&) noexcept { free(p); }
EXPORT void operator delete[](void* p, align_val_t, const nothrow_t&) noexcept { free(p); }

#endif
