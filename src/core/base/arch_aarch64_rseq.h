// Restartable sequences for aarch64; arch_x86_64_rseq.h says what they are. The area lies at an
// offset from TPIDR_EL0. The word is read with acquire, since the thread that stored it last may
// have run on another CPU.
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
  ".word 0, 0\n\t"                              \
  ".quad 1f, 2f - 1f, 4f\n\t"                   \
  ".popsection\n\t"                             \
  "adrp %[scratch], 3b\n\t"                     \
  "add %[scratch], %[scratch], :lo12:3b\n\t"    \
  "str %[scratch], [%[area], #8]\n"             \
  "1:\n\t"                                      \
  "ldr %w[scratch], [%[area], %[at]]\n\t"       \
  "ldar %w[seen], [%[word]]\n\t"
// The kernel jumps to 4 only if the signature stands before it. Each jump is counted; two at the
// same moment may count as one.
#define LANE_RSEQ_END                                        \
  "2:\n\t"                                                   \
  ".pushsection .text.rseq_aborted, \"ax?\"\n\t"             \
  ".inst 0xd428bc00\n"                                       \
  "4:\n\t"                                                   \
  "adrp %[scratch], lanemalloc_restarts\n\t"                 \
  "ldr %[seen], [%[scratch], :lo12:lanemalloc_restarts]\n\t" \
  "add %[seen], %[seen], #1\n\t"                             \
  "str %[seen], [%[scratch], :lo12:lanemalloc_restarts]\n\t" \
  "b %l[aborted]\n\t"                                        \
  ".popsection"

// If the word has the number of this CPU in its upper half, and `lower` in its lower half: word =
// mark, and `before` is its old value.
template <int kNumberAt>
FAST Restartable rseq_take(ptrdiff_t area, std::atomic<uint32_t>& word, uint16_t lower,
                           uint32_t mark, uint32_t& before) {
  uint64_t scratch, seen;
  __asm__ goto volatile(
      LANE_RSEQ_DESCRIPTOR
      "orr %w[scratch], %w[lower], %w[scratch], lsl #16\n\t"
      "cmp %w[scratch], %w[seen]\n\t"
      "b.ne %l[elsewhere]\n\t"
      "str %w[mark], [%[word]]\n" LANE_RSEQ_END
      : [scratch] "=&r"(scratch), [seen] "=&r"(seen)
      : [area] "r"(static_cast<char*>(__builtin_thread_pointer()) + area), [at] "i"(kNumberAt),
        [word] "r"(&word), [lower] "r"(uint32_t{lower}), [mark] "r"(mark)
      : "memory", "cc"
      : elsewhere, aborted);
  before = static_cast<uint32_t>(scratch);
  return Restartable::kDone;
elsewhere:
  return Restartable::kElsewhere;
aborted:
  return Restartable::kInterrupted;
}

// The same, but the lower half is that of *who, which the sequence reads too. `value` is what *who
// was when the word was marked.
template <int kNumberAt>
FAST Restartable rseq_take_for(ptrdiff_t area, std::atomic<uint32_t>& word,
                               const std::atomic<uint64_t>& who, uint32_t mark, uint32_t& before,
                               uint64_t& value) {
  uint64_t scratch, seen, low;
  __asm__ goto volatile(LANE_RSEQ_DESCRIPTOR
                        "ldr %[low], [%[who]]\n\t"
                        "lsl %w[scratch], %w[scratch], #16\n\t"
                        "bfxil %w[scratch], %w[low], #0, #16\n\t"
                        "cmp %w[scratch], %w[seen]\n\t"
                        "b.ne %l[elsewhere]\n\t"
                        "str %w[mark], [%[word]]\n" LANE_RSEQ_END
                        : [scratch] "=&r"(scratch), [seen] "=&r"(seen), [low] "=&r"(low)
                        : [area] "r"(static_cast<char*>(__builtin_thread_pointer()) + area),
                          [at] "i"(kNumberAt), [word] "r"(&word), [who] "r"(&who), [mark] "r"(mark)
                        : "memory", "cc"
                        : elsewhere, aborted);
  before = static_cast<uint32_t>(scratch);
  value = low;
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
  static_assert(offsetof(BinHead, end) == 0 && offsetof(BinHead, end_link) == 8 &&
                offsetof(BinHead, first) == 16 && BinHead::kReach == 16 << 12);
  void* first;
  uint64_t scratch, seen;
  __asm__ goto volatile(LANE_RSEQ_DESCRIPTOR
                        "cmp %w[scratch], %w[seen], lsr #16\n\t"
                        "b.ne %l[elsewhere]\n\t"
                        "ldp %[scratch], %[seen], [%[bin]]\n\t"
                        "ldr %[first], [%[bin], #16]\n\t"
                        "sub %[first], %[first], %[seen]\n\t"
                        "cmn %[first], #16, lsl #12\n\t"
                        "b.lo %l[empty]\n\t"
                        "add %[first], %[first], %[scratch]\n\t"
                        "ldr %[scratch], [%[first]]\n\t"
                        "str %[scratch], [%[bin], #16]\n" LANE_RSEQ_END
                        : [scratch] "=&r"(scratch), [seen] "=&r"(seen), [first] "=&r"(first)
                        : [area] "r"(static_cast<char*>(__builtin_thread_pointer()) + area),
                          [at] "i"(kNumberAt), [word] "r"(&word), [bin] "r"(&bin)
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

// One instruction stores two registers, but another CPU may see one of the two without the other.
// So a free enters the lane (PerCpu::enter_for).
inline constexpr bool kPushesHere = false;
template <int kNumberAt, int kListAt>
FAST Restartable rseq_push(ptrdiff_t, const std::atomic<uint32_t>&, const std::atomic<uint64_t>&,
                           void*, uintptr_t) {
  return Restartable::kElsewhere;
}

#undef LANE_RSEQ_DESCRIPTOR
#undef LANE_RSEQ_END

}  // namespace lanemalloc::arch
