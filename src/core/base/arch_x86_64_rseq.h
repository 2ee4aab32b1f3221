// Restartable sequences for x86-64: a few instructions, the last of them a single store. If the
// thread is preempted, moved to another CPU or interrupted by a signal before that store, the
// kernel continues it at `aborted`. So what a sequence does is one step for all threads of that
// CPU. Called by: core/platform/linux.h. Source: rseq(2), Documentation of AT_RSEQ_FEATURE_SIZE.
//
//   %fs:area+0  cpu_id_start  +4  cpu_id  +8  rseq_cs: the sequence under way  +20 node_id  +24
//               mm_cid
//
// kNumberAt says which field numbers the CPU. Each function stores the descriptor's address first:
// the kernel clears it whenever it finds the thread outside the sequence.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/base/compiler.h"
#include "core/base/restartable.h"

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
// The kernel jumps to 4 only if the signature stands before it. Each jump is counted.
#define LANE_RSEQ_END                            \
  "2:\n\t"                                       \
  ".pushsection .text.rseq_aborted, \"ax?\"\n\t" \
  ".byte 0x0f, 0xb9, 0x3d\n\t"                   \
  ".long 0x53053053\n"                           \
  "4:\n\t"                                       \
  "lock incq lanemalloc_restarts(%%rip)\n\t"     \
  "jmp %l[aborted]\n\t"                          \
  ".popsection"

// If the word has the number of this CPU in its upper half, and `lower` in its lower half: word =
// mark, and `before` is its old value.
template <int kNumberAt>
FAST Restartable rseq_take(ptrdiff_t area, std::atomic<uint32_t>& word, uint16_t lower,
                           uint32_t mark, uint32_t& before) {
  uint64_t scratch;
  // The load begins two bytes before the number. They are the upper half of the field before it, a
  // small number, and `lower` overwrites them.
  __asm__ goto volatile(
      LANE_RSEQ_DESCRIPTOR
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

// The same, but the lower half is that of *who, which the sequence reads too. `seen` is what *who
// was when the word was marked. *who is read after the word. Read before the word, it could be
// older than a revocation that has come and gone: the word says "free" again, and the slab is
// another lane's.
template <int kNumberAt>
FAST Restartable rseq_take_for(ptrdiff_t area, std::atomic<uint32_t>& word,
                               const std::atomic<uint64_t>& who, uint32_t mark, uint32_t& before,
                               uint64_t& seen) {
  uint64_t scratch, mine, low;  // low: in the register in which free()'s next function takes it
  __asm__ goto volatile(
      LANE_RSEQ_DESCRIPTOR
      "movl %[word], %k[scratch]\n\t"
      "movq %[who], %[low]\n\t"
      "movl %%fs:%c[at](%[area]), %k[mine]\n\t"
      "movw %w[low], %w[mine]\n\t"
      "cmpl %k[scratch], %k[mine]\n\t"
      "jne %l[elsewhere]\n\t"
      "movl %[mark], %[word]\n" LANE_RSEQ_END
      : [scratch] "=&r"(scratch), [mine] "=&r"(mine), [low] "=&d"(low), [word] "+m"(word)
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

// If the word's upper half is the number of this CPU: takes the first object off the list. The
// object must begin within BinHead::kReach before the list's end; else the list counts as empty.
template <int kNumberAt>
FAST Restartable rseq_pop(ptrdiff_t area, const std::atomic<uint32_t>& word, BinHead& bin,
                          void*& object) {
  void* first;
  uint64_t scratch;
  __asm__ goto volatile(LANE_RSEQ_DESCRIPTOR
                        "movl %%fs:%c[at](%[area]), %k[scratch]\n\t"
                        "cmpw %w[scratch], %[upper]\n\t"
                        "jne %l[elsewhere]\n\t"
                        "movq %[head], %[first]\n\t"
                        "subq %[end_link], %[first]\n\t"
                        "cmpq %[reach], %[first]\n\t"
                        "jb %l[empty]\n\t"
                        "addq %[end], %[first]\n\t"
                        "movq (%[first]), %[scratch]\n\t"
                        "movq %[scratch], %[head]\n" LANE_RSEQ_END
                        : [scratch] "=&r"(scratch), [first] "=&a"(first), [head] "+m"(bin.first)
                        : [area] "r"(area), [at] "i"(kNumberAt), [end] "m"(bin.end),
                          [end_link] "m"(bin.end_link), [reach] "i"(-intptr_t{BinHead::kReach}),
                          [upper] "m"(reinterpret_cast<const uint16_t*>(&word)[1])
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

// A push is one step too: one store writes a list and its count.
inline constexpr bool kPushesHere = true;

// What a push adds to a CountedList behind its new head: -1 to the countdown.
alignas(16) inline constexpr int32_t kOneLess[4] = {0, 0, -1, 0};

// If the word names this CPU and the lower half of *who, as in rseq_take_for(): puts the object
// first in a list, and takes one off the list's countdown. The rest of *who is an address; the list
// lies kListAt bytes behind it. kLast: the countdown would have come to its end, and nothing
// happened. The object's first word is written before the last store, so it must be the caller's.
// link: what leads to the object.
template <int kNumberAt, int kListAt>
FAST Restartable rseq_push(ptrdiff_t area, const std::atomic<uint32_t>& word,
                           const std::atomic<uint64_t>& who, void* object, uintptr_t link) {
  static_assert(kListAt % 16 == 0 && offsetof(CountedList, countdown) == 8);
  uint64_t scratch, low;
  __asm__ goto volatile(LANE_RSEQ_DESCRIPTOR
                        "movl %%fs:%c[at](%[area]), %k[scratch]\n\t"
                        "cmpw %w[scratch], %[upper]\n\t"
                        "jne %l[elsewhere]\n\t"
                        "movq %[who], %[low]\n\t"
                        "cmpw %w[low], %[lower]\n\t"
                        "jne %l[elsewhere]\n\t"
                        "shrq $16, %[low]\n\t"
                        "cmpl $1, %c[list]+8(%[low])\n\t"
                        "jle %l[last]\n\t"
                        "movq %[link], %%xmm0\n\t"
                        "movhps %c[list]+8(%[low]), %%xmm0\n\t"
                        "paddd %[one_less], %%xmm0\n\t"
                        "movq %c[list](%[low]), %[scratch]\n\t"
                        "movq %[scratch], (%[object])\n\t"
                        "movaps %%xmm0, %c[list](%[low])\n" LANE_RSEQ_END
                        : [scratch] "=&r"(scratch), [low] "=&r"(low)
                        : [area] "r"(area), [at] "i"(kNumberAt), [list] "i"(kListAt),
                          [who] "m"(who), [lower] "m"(reinterpret_cast<const uint16_t*>(&word)[0]),
                          [upper] "m"(reinterpret_cast<const uint16_t*>(&word)[1]),
                          [object] "r"(object), [link] "r"(link), [one_less] "m"(kOneLess)
                        : "memory", "cc", "xmm0"
                        : elsewhere, last, aborted);
  return Restartable::kDone;
elsewhere:
  return Restartable::kElsewhere;
last:
  return Restartable::kLast;
aborted:
  return Restartable::kInterrupted;
}

#undef LANE_RSEQ_DESCRIPTOR
#undef LANE_RSEQ_END

}  // namespace lanemalloc::arch
