// The tables are those of .eh_frame (DWARF's call frame information). The C library's
// _dl_find_object (glibc 2.35) finds them, and takes no lock. A table has a program for each place
// in code. If it is a usual program, one rule follows from it: the frame ends at a fixed distance
// above the stack or the frame pointer, the return address lies at its end, and the caller's frame
// pointer lies in it or is still in the register. Other programs are left to the C library's walk,
// which knows all registers and expressions. (Source: DWARF 5, 6.4; Linux Standard Base, 10.6:
// .eh_frame, .eh_frame_hdr.)
//
// Rules are kept in a table, one word each, by a hash of the return address and of the build that
// its code belongs to: nothing tells when a library is unloaded, and another one may lie in its
// place. No rule is kept for a library that has no build id. A rule is one word and nothing else,
// so threads and handlers that write and read the same place need no order: a reader finds a whole
// word that some thread has stored, and the word has this hash or not. 54 bits of the hash must
// agree, 14 of them by the place.
//
// Code that a program has made while it runs has no tables; nor has some that was written in
// assembly. The C library's walk ends there. This one goes on if it can: functions whose next
// instructions give the frame back and return say how large it is (CPython's trampolines); of
// others the frame pointer is taken, as far as what it leads to looks like frames (V8; the JVM with
// -XX:+PreserveFramePointer). It then reads only what it has found to be readable, and takes an
// address for a return address only if it stands behind a call.
//
//   rule word:   63 .. 24 hash | 23 .. 10 frame's size / 8
//                | 9 .. 2 saved frame pointer, see there, / 8 | 1 .. 0 kind
#include "seeing/unwind/unwind_rules.h"

#include <link.h>
#include <string.h>

#include <atomic>

#include "core/base/compiler.h"
#include "core/platform/c_library.h"
#include "seeing/unwind/readable.h"

namespace lanemalloc {
namespace {

#if defined(__aarch64__)
constexpr uint64_t kFramePointer = 29, kStackPointer = 31, kReturn = 30;
#else
constexpr uint64_t kFramePointer = 6, kStackPointer = 7, kReturn = 16;
#endif
constexpr Address kWord = sizeof(Address);

enum class Kind : uint64_t { kUnknown, kOutermost, kFromStackPointer, kFromFramePointer };

struct Rule {
  Kind kind;
  Address size;  // from that register to the end of the frame
  // How far below that end the caller's frame pointer lies; 0: it is still in the register. On
  // aarch64: how far above that register it lies, always, with the return address behind it.
  Address saved;

  bool has_no_tables() const { return kind == Kind::kUnknown && size != 0; }
};
constexpr Rule kNoTables{Kind::kUnknown, kWord, 0};

// --- A program or library.

struct Object {
  Address begins = 0, ends = 0;
  Address index = 0;   // of its tables
  uint64_t build = 0;  // differs from that of any other at this place; 0: not known

  enum class Found : uint8_t { kHere, kNot, kElsewhere };  // kElsewhere: the C library knows

  // Finds the object that has this code, with its tables.
  Found find(Address code) {
    if (code - begins < ends - begins) return Found::kHere;
#if defined(__GLIBC__)
    dl_find_object at;
    if (_dl_find_object == nullptr) return Found::kElsewhere;
    if (_dl_find_object(reinterpret_cast<void*>(code), &at) != 0) return Found::kNot;
    if (at.dlfo_eh_frame == nullptr) return Found::kElsewhere;
    begins = reinterpret_cast<Address>(at.dlfo_map_start);
    ends = reinterpret_cast<Address>(at.dlfo_map_end);
    index = reinterpret_cast<Address>(at.dlfo_eh_frame);
    // The program itself is there for good.
    build = at.dlfo_link_map == _r_debug.r_map ? 1 : build_id(at.dlfo_link_map->l_addr);
    return Found::kHere;
#else
    return Found::kElsewhere;
#endif
  }

 private:
  uint64_t build_id(Address base) const {
    constexpr Address kPage = 4096;  // or larger: the first is mapped
    const auto* head = reinterpret_cast<const ElfW(Ehdr)*>(begins);
    if (memcmp(head->e_ident, ELFMAG, SELFMAG) != 0 || head->e_phoff > kPage) return 0;
    if (head->e_phoff + head->e_phnum * sizeof(ElfW(Phdr)) > kPage) return 0;
    const auto* segments = reinterpret_cast<const ElfW(Phdr)*>(begins + head->e_phoff);
    for (unsigned i = 0; i < head->e_phnum; ++i) {
      if (segments[i].p_type != PT_NOTE) continue;
      const Address align = segments[i].p_align == 8 ? 8 : 4;
      Address note = base + segments[i].p_vaddr;
      for (const Address end = note + segments[i].p_memsz; note + sizeof(ElfW(Nhdr)) < end;) {
        const auto* each = reinterpret_cast<const ElfW(Nhdr)*>(note);
        const Address id = note + round_up(sizeof *each + each->n_namesz, align);
        uint64_t words[2];
        const bool is_gnu = each->n_namesz == 4 && memcmp(each + 1, "GNU", 4) == 0;
        if (is_gnu && each->n_type == NT_GNU_BUILD_ID && each->n_descsz >= sizeof words) {
          memcpy(words, reinterpret_cast<const void*>(id), sizeof words);
          return words[0] ^ words[1];
        }
        note = round_up(id + each->n_descsz, align);
      }
    }
    return 0;
  }
};

// --- One entry of the tables.

class Reader {
 public:
  explicit Reader(const void* at) : at_(static_cast<const uint8_t*>(at)) {}

  const uint8_t* at() const { return at_; }
  void skip(uint64_t bytes) { at_ += bytes; }
  template <class T>
  T take() {
    T value;
    memcpy(&value, at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  uint64_t number() {
    uint64_t value = 0;
    unsigned shift = 0;
    uint8_t byte;
    do {
      byte = take<uint8_t>();
      if (shift < 64) value |= uint64_t{byte & 0x7Fu} << shift;
      shift += 7;
    } while ((byte & 0x80) != 0);
    return value;
  }
  int64_t signed_number() {
    const uint8_t* const first = at_;
    const uint64_t value = number();
    const unsigned bits = 7 * static_cast<unsigned>(at_ - first);
    if (bits >= 64 || (at_[-1] & 0x40) == 0) return static_cast<int64_t>(value);
    return static_cast<int64_t>(value | (~uint64_t{0} << bits));
  }

 private:
  const uint8_t* at_;
};

// Where the frame ends: its distance above a register; and at which distance from that end two
// registers were saved.
struct Row {
  // Values that are no distances.
  static constexpr int64_t kSame = 0, kUndefined = 1, kElsewhere = 2;
  static constexpr uint64_t kNoRegister = ~uint64_t{0};
  uint64_t from = kNoRegister;
  uint64_t size = 0;
  int64_t frame_pointer = kSame;
  int64_t return_address = kSame;

  void set(uint64_t which, int64_t distance) {
    if (which == kFramePointer) frame_pointer = distance;
    if (which == kReturn) return_address = distance;
  }
};

struct Entry {
  Row initial;
  uint64_t code_unit;
  int64_t data_unit;

  // Runs the program from where the function begins up to `code`. False: it is none of the usual
  // ones.
  bool run(Reader program, const uint8_t* end, Address begins, Address code, Row& row) const {
    constexpr unsigned kMostRemembered = 4;
    Row remembered[kMostRemembered];
    unsigned depth = 0;
    while (program.at() < end && begins <= code) {
      const auto operation = program.take<uint8_t>();
      const uint8_t low = operation & 0x3F;
      if (operation >= kRestore) {
        restore(row, low);
      } else if (operation >= kOffset) {
        row.set(low, static_cast<int64_t>(program.number()) * data_unit);
      } else if (operation >= kAdvance) {
        begins += low * code_unit;
      } else {
        switch (operation) {
          case kNothing:
          case kSignature:
            break;
          case kAdvance1:
            begins += program.take<uint8_t>() * code_unit;
            break;
          case kAdvance2:
            begins += program.take<uint16_t>() * code_unit;
            break;
          case kAdvance4:
            begins += program.take<uint32_t>() * code_unit;
            break;
          case kRestoreExtended:
            restore(row, program.number());
            break;
          case kUndefined:
            row.set(program.number(), Row::kUndefined);
            break;
          case kSameValue:
            row.set(program.number(), Row::kSame);
            break;
          case kRegister:
          case kValueOffset:
            row.set(program.number(), Row::kElsewhere);
            program.number();
            break;
          case kExpression:
          case kValueExpression:
            row.set(program.number(), Row::kElsewhere);
            program.skip(program.number());
            break;
          case kRememberState:
            if (depth == kMostRemembered) return false;
            remembered[depth++] = row;
            break;
          case kRestoreState:
            if (depth == 0) return false;
            row = remembered[--depth];
            break;
          case kFrame:
            row.from = program.number();
            row.size = program.number();
            break;
          case kFrameRegister:
            row.from = program.number();
            break;
          case kFrameOffset:
            row.size = program.number();
            break;
          case kFrameExpression:
            row.from = Row::kNoRegister;
            program.skip(program.number());
            break;
          case kArgumentsSize:
            program.number();
            break;
          default:
            return false;
        }
      }
    }
    return true;
  }

 private:
  // DW_CFA_*. The first three have an operand in their lower bits.
  enum Operation : uint8_t {
    kAdvance = 0x40,
    kOffset = 0x80,
    kRestore = 0xC0,
    kNothing = 0,
    kAdvance1 = 2,
    kAdvance2,
    kAdvance4,
    kRestoreExtended = 6,
    kUndefined,
    kSameValue,
    kRegister,
    kRememberState,
    kRestoreState,
    kFrame,
    kFrameRegister,
    kFrameOffset,
    kFrameExpression,
    kExpression,
    kValueOffset = 0x14,
    kValueExpression = 0x16,
    kSignature = 0x2D,
    kArgumentsSize,
  };

  void restore(Row& row, uint64_t which) const {
    row.set(which, which == kFramePointer ? initial.frame_pointer : initial.return_address);
  }
};

Rule rule_of(const Row& row) {
  constexpr Rule kNone{Kind::kUnknown, 0, 0};
  if (row.return_address == Row::kUndefined) return {Kind::kOutermost, 0, 0};
  if (row.from != kStackPointer && row.from != kFramePointer) return kNone;
  const bool is_saved = row.frame_pointer < 0;
  if (row.frame_pointer > Row::kUndefined) return kNone;
  // The CPU or the usual prologue puts the return address there.
#if defined(__aarch64__)
  const bool is_usual =
      is_saved && row.return_address == row.frame_pointer + static_cast<int64_t>(kWord);
  const Address saved = row.size + static_cast<Address>(row.frame_pointer);
#else
  const bool is_usual = row.return_address == -static_cast<int64_t>(kWord);
  const Address saved = is_saved ? static_cast<Address>(-row.frame_pointer) : 0;
#endif
  if (!is_usual || row.size % kWord != 0 || row.size / kWord >= 1u << 14 || saved % kWord != 0 ||
      saved / kWord >= 1u << 8)
    return kNone;
  return {row.from == kStackPointer ? Kind::kFromStackPointer : Kind::kFromFramePointer, row.size,
          saved};
}

// Pointers in tables are distances of 4 bytes, from where they stand or from the index.
constexpr uint8_t kSigned4 = 0x0B, kUnsigned4 = 0x03, kFromHere = 0x10, kFromIndex = 0x30;

// The entry of the last function that begins at `code` or below; 0 if there is none. The index has
// pairs of a function and its entry, in order.
Address word_for(Address index, Address code) {
  Reader head(reinterpret_cast<const void*>(index));
  const uint8_t expected[4] = {1, kFromHere | kSigned4, kUnsigned4, kFromIndex | kSigned4};
  if (memcmp(head.at(), expected, sizeof expected) != 0) return 0;
  head.skip(sizeof expected + sizeof(int32_t));
  uint32_t count = head.take<uint32_t>(), first = 0;
  struct Pair {
    int32_t begins, entry;
  };
  const Pair* pairs = reinterpret_cast<const Pair*>(head.at());
  const auto at = [&](int32_t distance) { return index + static_cast<Address>(int64_t{distance}); };
  while (count > 1) {
    const uint32_t half = count / 2;
    const bool is_above = at(pairs[first + half].begins) <= code;
    if (is_above) first += half;
    count = is_above ? count - half : half;
  }
  return count != 0 && at(pairs[first].begins) <= code ? at(pairs[first].entry) : 0;
}

// What the tables say of an address in code. A return address will not do: it may be the next
// function's already.
NOINLINE Rule look_up(Address index, Address code) {
  constexpr Rule kNone{Kind::kUnknown, 0, 0};
  const Address at = word_for(index, code);
  if (at == 0) return kNoTables;
  Reader entry(reinterpret_cast<const void*>(at));
  // An entry has its length, the way back to the part that it shares with others, the function, and
  // the program.
  const auto length = entry.take<uint32_t>();
  const uint8_t* const end = entry.at() + length;
  if (length >= 0xFFFFFFF0) return kNone;
  const uint8_t* const back = entry.at();
  Reader shared(back - entry.take<uint32_t>());
  const auto shared_length = shared.take<uint32_t>();
  const uint8_t* const shared_end = shared.at() + shared_length;
  shared.skip(sizeof(uint32_t));
  const auto version = shared.take<uint8_t>();
  const char* letters = reinterpret_cast<const char*>(shared.at());
  if (shared_length >= 0xFFFFFFF0 || version != 1 || letters[0] != 'z') return kNone;
  shared.skip(strlen(letters) + 1);
  Entry found{};
  found.code_unit = shared.number();
  found.data_unit = shared.signed_number();
  if (shared.take<uint8_t>() != kReturn) return kNone;
  const uint64_t extra = shared.number();
  const uint8_t* const program = shared.at() + extra;
  bool is_usual = false;
  for (++letters; *letters != '\0'; ++letters) {
    if (*letters == 'R') {
      is_usual = shared.take<uint8_t>() == (kFromHere | kSigned4);
    } else if (*letters == 'L') {
      shared.skip(1);
    } else if (*letters == 'P') {
      if ((shared.take<uint8_t>() & 0x0F & ~8) != kUnsigned4) return kNone;
      shared.skip(sizeof(uint32_t));
    } else {
      return kNone;  // S: a signal handler's frame; B; and letters to come
    }
  }
  if (!is_usual) return kNone;
  const Address from = reinterpret_cast<Address>(entry.at());
  const Address begins = from + static_cast<Address>(int64_t{entry.take<int32_t>()});
  if (code - begins >= entry.take<uint32_t>()) return kNoTables;
  entry.skip(entry.number());
  if (!found.run(Reader(program), shared_end, 0, 0, found.initial)) return kNone;
  Row row = found.initial;
  return found.run(entry, end, begins, code, row) ? rule_of(row) : kNone;
}

// --- What has been looked up.

constexpr unsigned kSlotBits = 14;
constinit std::atomic<uint64_t> rules[1u << kSlotBits]{};

Rule rule_at(Address returns_to, Object& object) {
  const Object::Found found = object.find(returns_to - 1);
  if (found != Object::Found::kHere)
    return found == Object::Found::kNot ? kNoTables : Rule{Kind::kUnknown, 0, 0};
  if (object.build == 0) return look_up(object.index, returns_to - 1);
  const uint64_t hash = returns_to * 0x9E3779B97F4A7C15 + object.build * 0xD6E8FEB86659FD93;
  std::atomic<uint64_t>& slot = rules[hash >> (64 - kSlotBits)];
  constexpr uint64_t kHashBits = ~uint64_t{0} << 24;
  uint64_t word = slot.load(std::memory_order_relaxed);
  if (((word ^ (hash << kSlotBits)) & kHashBits) == 0)
    return {static_cast<Kind>(word & 3), (word >> 10 & 0x3FFF) * kWord, (word >> 2 & 0xFF) * kWord};
  const Rule rule = look_up(object.index, returns_to - 1);
  word = ((hash << kSlotBits) & kHashBits) | (rule.size / kWord) << 10 | (rule.saved / kWord) << 2 |
         static_cast<uint64_t>(rule.kind);
  slot.store(word, std::memory_order_relaxed);
  return rule;
}

// Reads any word of the stack.
__attribute__((no_sanitize("address", "thread"))) Address word_at(Address address) {
  return *reinterpret_cast<const Address*>(address);
}

// --- Code without tables.

// Copies code of which nothing is known. False if it cannot be read.
template <size_t kBytes>
bool read_code(Address at, uint8_t (&bytes)[kBytes]) {
  if (at > ~Address{0} - kBytes) return false;  // it would go round
  for (Address word = at & ~(kWord - 1); word < at + kBytes; word += kWord)
    if (!is_readable(word)) return false;
  memcpy(bytes, reinterpret_cast<const void*>(at), kBytes);
  return true;
}

bool is_behind_call(Address code) {
#if defined(__aarch64__)
  uint8_t bytes[4];
  if (code % 4 != 0 || !read_code(code - 4, bytes)) return false;
  uint32_t word;
  memcpy(&word, bytes, sizeof word);
  return word >> 26 == 0x25 || (word & 0xFFFFFC1F) == 0xD63F0000;  // bl; blr
#else
  constexpr unsigned kLongest = 7;
  uint8_t bytes[kLongest];
  if (!read_code(code - kLongest, bytes)) return false;
  if (bytes[kLongest - 5] == 0xE8) return true;
  for (unsigned length = 2; length <= kLongest; ++length)  // call *register, or *memory
    if (bytes[kLongest - length] == 0xFF && (bytes[kLongest - length + 1] >> 3 & 7) == 2)
      return true;
  return false;
#endif
}

// Whether the code gives a signal's frame back. The kernel has put that frame there, and what was
// interrupted need not have made a frame of its own. The C library's walk knows such frames.
bool is_signal_return(Address code) {
#if defined(__aarch64__)
  constexpr uint8_t kCode[] = {0x68, 0x11, 0x80, 0xD2, 0x01, 0, 0, 0xD4};  // mov x8, 139; svc 0
  uint8_t next[sizeof kCode];
  return read_code(code, next) && memcmp(next, kCode, sizeof kCode) == 0;
#else
  constexpr uint8_t kLong[] = {0xC7, 0xC0, 15, 0, 0, 0, 0x0F, 0x05};  // mov $15, %rax; syscall
  constexpr uint8_t kShort[] = {0xB8, 15, 0, 0, 0, 0x0F, 0x05};       // mov $15, %eax; syscall
  uint8_t next[1 + sizeof kLong];
  return read_code(code, next) &&
         (memcmp(next + 1, kLong, sizeof kLong) == 0 || memcmp(next, kShort, sizeof kShort) == 0);
#endif
}

// Goes to the caller's frame. False if that frame cannot be found.
bool leave_without_tables(Caller& at, bool& knows_stack) {
  constexpr Address kLargestFrame = Address{1} << 20;
  Address end = 0;
  if (is_signal_return(at.code)) return false;
#if !defined(__aarch64__)
  uint8_t next[5];
  if (!read_code(at.code, next)) return false;
  Address frame_pointer = at.frame_pointer;
  if (next[0] == 0x48 && next[1] == 0x83 && next[2] == 0xC4 && next[3] < 0x80 &&
      next[4] == 0xC3) {  // add $n, %rsp; ret
    end = at.stack_pointer + next[3] + kWord;
  } else if (next[0] == 0x5D && next[1] == 0xC3) {  // pop %rbp; ret
    frame_pointer = word_at(at.stack_pointer);
    end = at.stack_pointer + 2 * kWord;
  }
  if (end != 0) {
    at.frame_pointer = frame_pointer;
    at.code = word_at(end - kWord);
  }
#endif
  if (end == 0) {
    const Address frame = at.frame_pointer;
    if (frame < at.stack_pointer || frame - at.stack_pointer > kLargestFrame ||
        frame % kWord != 0 || !is_readable(frame) || !is_readable(frame + kWord))
      return false;
    at.frame_pointer = word_at(frame);
    at.code = word_at(frame + kWord);
    end = frame + 2 * kWord;
  }
#if defined(__aarch64__)
  at.code &= (Address{1} << 48) - 1;  // without a signature
  knows_stack = false;                // the two words may lie anywhere in the frame
#else
  knows_stack = true;
#endif
  at.stack_pointer = end;
  return is_behind_call(at.code);
}

}  // namespace

unsigned walk_by_rules(Caller at, Address* found, unsigned most) {
  Object object;
  unsigned n = 0;
  bool goes_beyond = false;  // of what the C library's walk can find
  bool knows_stack = true;   // at.stack_pointer is more than a lower bound
  while (n < most) {
    found[n++] = at.code;
    const Rule rule = rule_at(at.code, object);
    if (rule.kind == Kind::kOutermost) break;
    if (rule.has_no_tables() || (!knows_stack && rule.kind == Kind::kFromStackPointer)) {
      // A program may have registered tables for it, which the C library finds.
      if (!leave_without_tables(at, knows_stack)) return goes_beyond ? n : 0;
      goes_beyond = true;
      continue;
    }
    if (rule.kind == Kind::kUnknown) return goes_beyond ? n : 0;
    const Address from = rule.kind == Kind::kFromStackPointer ? at.stack_pointer : at.frame_pointer;
    const Address end = from + rule.size;
    // In a sound stack every frame lies above the one before it.
    if (end <= at.stack_pointer || end % kWord != 0) return goes_beyond ? n : 0;
#if defined(__aarch64__)
    at.frame_pointer = word_at(from + rule.saved);
    at.code = word_at(from + rule.saved + kWord) & ((Address{1} << 48) - 1);  // without a signature
#else
    if (rule.saved != 0) at.frame_pointer = word_at(end - rule.saved);
    at.code = word_at(end - kWord);
#endif
    at.stack_pointer = end;
    knows_stack = true;
    if (at.code == 0) break;
  }
  return n;
}

}  // namespace lanemalloc
