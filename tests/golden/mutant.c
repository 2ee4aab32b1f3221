// A toy allocator for the self-test of the golden checks. It is whole as it stands, and has one
// planted fault with -DMUTANT_...:
//   MUTANT_LOCK, MUTANT_XCHG, MUTANT_FENCE, MUTANT_CALL   in the body of malloc, run once per call
//   MUTANT_MORE      one instruction more in malloc
//   MUTANT_TAIL      a locked add out of line, that every malloc goes through by a tail jump: only
//                    the executed path shows it
//   MUTANT_TEXTREL   an absolute address in the text
// -ftls-model=global-dynamic, -lm and a missing export are faults that tests/golden/run.sh plants
// by flags. Objects above kLargest are never reused, and nothing aligned is served. The allocator
// is good enough for pairs.c, and for nothing else. Called by: tests/golden/run.sh.
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { kStep = 16, kLargest = 1024, kBins = kLargest / kStep + 1, kHeap = 256 << 20 };

#define EXPORT __attribute__((visibility("default")))
#define OUT_OF_LINE __attribute__((noinline, noclone))

typedef struct Object {
  struct Object* next;
} Object;

static _Alignas(64) char heap[kHeap];
static _Atomic size_t used;
static __thread Object* bins[kBins];
static atomic_long planted;

// Every object has its size in the word before it, and is 16-byte aligned.
static OUT_OF_LINE void* take_fresh(size_t bin_bytes) {
  size_t at = atomic_fetch_add(&used, (bin_bytes + 31) & ~(size_t)15);
  if (at + bin_bytes + 32 > kHeap) return NULL;
  size_t* object = (size_t*)(heap + at + 16);
  object[-1] = bin_bytes;
  return object;
}

#ifdef MUTANT_TAIL
static OUT_OF_LINE void* tail(Object** bin) {
  atomic_fetch_add(&planted, 1);
  Object* object = *bin;
  *bin = object->next;
  return object;
}
#endif

#ifdef MUTANT_CALL
OUT_OF_LINE static void called(void) { __asm__ volatile("" ::: "memory"); }
#endif

EXPORT void* malloc(size_t bytes) {
#if defined(MUTANT_LOCK)
  atomic_fetch_add(&planted, 1);
#elif defined(MUTANT_XCHG)
  atomic_exchange(&planted, (long)bytes);
#elif defined(MUTANT_FENCE)
#if defined(__x86_64__)
  __asm__ volatile("mfence" ::: "memory");
#else
  atomic_thread_fence(memory_order_seq_cst);
#endif
#elif defined(MUTANT_CALL)
  called();
#elif defined(MUTANT_MORE)
  __asm__ volatile("nop" ::: "memory");
#elif defined(MUTANT_TEXTREL) && defined(__x86_64__)
  __asm__ volatile("jmp 1f; .quad malloc; 1:" ::: "memory");
#endif
  (void)planted;
  size_t bin = (bytes + kStep - 1) / kStep;
  if (bin >= kBins) return take_fresh(bytes);
  Object* object = bins[bin];
  if (object == NULL) return take_fresh(bin * kStep);
#ifdef MUTANT_TAIL
  return tail(&bins[bin]);
#else
  bins[bin] = object->next;
  return object;
#endif
}

EXPORT void free(void* pointer) {
  if (pointer == NULL) return;
  Object* object = pointer;
  size_t bin = ((size_t*)pointer)[-1] / kStep;
  if (bin >= kBins) return;
  object->next = bins[bin];
  bins[bin] = object;
}

EXPORT void* calloc(size_t count, size_t bytes) {
  void* object = malloc(count * bytes);
  if (object != NULL) memset(object, 0, count * bytes);
  return object;
}

#ifndef MUTANT_EXPORT
EXPORT
#endif
void* realloc(void* old, size_t bytes) {
  void* object = malloc(bytes);
  if (object == NULL || old == NULL) return object;
  size_t old_bytes = ((size_t*)old)[-1];
  memcpy(object, old, old_bytes < bytes ? old_bytes : bytes);
  free(old);
  return object;
}
