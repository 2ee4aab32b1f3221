// Restartable sequences for x86-64: a few instructions that the kernel runs again from `aborted` when the thread was
// preempted, moved to another CPU or interrupted by a signal before the last of them, a single store. So what they do is
// one step for all threads of that CPU. Called by: platform/linux.h. Source: rseq(2), Documentation of AT_RSEQ_FEATURE_SIZE.
//
//   %fs:area+0  cpu_id_start  +4  cpu_id  +8  rseq_cs: the sequence under way  +20 node_id  +24 mm_cid
//
// kNumberAt says which of them numbers the CPU. Both functions store the descriptor's address first: the kernel clears it
// whenever it finds the thread outside the sequence.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/compiler.h"
#include "base/restartable.h"

namespace lanemalloc::arch {

#define LANE_RSEQ_DESCRIPTOR                    \
  ".pushsection .data.rel.ro.rseq, \"aw?\"\n\t" \
  ".balign 32\n"                                \
  "3:\n\t"                                      \
  ".long 0, 0\n\t"                              \
  ".quad 1f, 2f - 1f, 4f\n\t"                   \
  ".popsection\n\t"                             \
  "leaq 3b(%%rip), %[scratch]\n\t"              \
  "movq %[scratch], %%fs:8(%[area])\n"          \
  "1:\n\t"
// The kernel jumps to 4 only if the signature stands before it. Each time is counted.
#define LANE_RSEQ_END                            \
  "2:\n\t"                                       \
  ".pushsection .text.rseq_aborted, \"ax?\"\n\t" \
  ".byte 0x0f, 0xb9, 0x3d\n\t"                   \
  ".long 0x53053053\n"                           \
  "4:\n\t"                                       \
  "lock incq lanemalloc_restarts(%%rip)\n\t"     \
  "jmp %l[aborted]\n\t"                          \
  ".popsection"

// The number lies in the word's upper half, in a word whose lower half the caller knows. If that is the number of this CPU:
// word = mark, and `before` is what it was.
template <int kNumberAt>
FAST Restartable rseq_take(ptrdiff_t area, std::atomic<uint32_t>& word, uint16_t lower, uint32_t mark,
                           uint32_t& before) {
  uint64_t scratch;
  // The two bytes before a number are the upper half of the field before it, a small number: overwritten anyway.
  __asm__ goto volatile(LANE_RSEQ_DESCRIPTOR
                        "movl %%fs:%c[at](%[area]), %k[scratch]\n\t"
                        "movw %w[lower], %w[scratch]\n\t"
                        "cmpl %k[scratch], %[word]\n\t"
                        "jne %l[elsewhere]\n\t"
                        "movl %[mark], %[word]\n" LANE_RSEQ_END
                        : [scratch] "=&r"(scratch), [word] "+m"(word)
                        : [area] "r"(area), [at] "i"(kNumberAt - 2), [lower] "r"(lower), [mark] "er"(mark)
                        : "memory", "cc"
                        : elsewhere, aborted);
  before = static_cast<uint32_t>(scratch);
  return Restartable::kDone;
elsewhere:
  return Restartable::kElsewhere;
aborted:
  return Restartable::kInterrupted;
}

// The same, where the lower half is that of *who, which is read in the sequence too: `seen` is what it was when the word was
// marked.
template <int kNumberAt>
FAST Restartable rseq_take_for(ptrdiff_t area, std::atomic<uint32_t>& word, const std::atomic<uint64_t>& who,
                               uint32_t mark, uint32_t& before, uint64_t& seen) {
  uint64_t scratch, low;  // low: in the register in which free()'s next function takes it
  __asm__ goto volatile(LANE_RSEQ_DESCRIPTOR
                        "movq %[who], %[low]\n\t"
                        "movl %%fs:%c[at](%[area]), %k[scratch]\n\t"
                        "movw %w[low], %w[scratch]\n\t"
                        "cmpl %k[scratch], %[word]\n\t"
                        "jne %l[elsewhere]\n\t"
                        "movl %[mark], %[word]\n" LANE_RSEQ_END
                        : [scratch] "=&r"(scratch), [low] "=&d"(low), [word] "+m"(word)
                        : [area] "r"(area), [at] "i"(kNumberAt - 2), [who] "m"(who), [mark] "er"(mark)
                        : "memory", "cc"
                        : elsewhere, aborted);
  before = static_cast<uint32_t>(scratch);
  seen = low;
  return Restartable::kDone;
elsewhere:
  return Restartable::kElsewhere;
aborted:
  return Restartable::kInterrupted;
}

// If the word's upper half is the number of this CPU: takes the first object off a list that is linked through its objects'
// first words.
template <int kNumberAt>
FAST Restartable rseq_pop(ptrdiff_t area, const std::atomic<uint32_t>& word, void** head, void*& object) {
  void* first;
  uint64_t scratch;
  __asm__ goto volatile(
      LANE_RSEQ_DESCRIPTOR
      "movl %%fs:%c[at](%[area]), %k[scratch]\n\t"
      "cmpw %w[scratch], %[upper]\n\t"
      "jne %l[elsewhere]\n\t"
      "movq %[head], %[first]\n\t"
      "testq %[first], %[first]\n\t"
      "je %l[empty]\n\t"
      "movq (%[first]), %[scratch]\n\t"
      "movq %[scratch], %[head]\n" LANE_RSEQ_END
      : [scratch] "=&r"(scratch), [first] "=&a"(first), [head] "+m"(*head)
      : [area] "r"(area), [at] "i"(kNumberAt), [upper] "m"(reinterpret_cast<const uint16_t*>(&word)[1])
      : "memory", "cc"
      : elsewhere, empty, aborted);
  object = first;
  return Restartable::kDone;
elsewhere:
  return Restartable::kElsewhere;
empty:
  return Restartable::kEmpty;
aborted:
  return Restartable::kInterrupted;
}

#undef LANE_RSEQ_DESCRIPTOR
#undef LANE_RSEQ_END

}  // namespace lanemalloc::arch
