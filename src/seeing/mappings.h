// Mappings: which files are mapped where, line by line from /proc/self/maps, and which builds they
// are.
// Called by: writers of profiles. Locking: none. No malloc, no errno. A mapping that changes
// meanwhile is seen or not.
#pragma once

#include <elf.h>
#include <fcntl.h>

#include "core/base/arch.h"
#include "core/base/compiler.h"
#include "core/base/units.h"

namespace lanemalloc {

struct Mapping {
  Address begin, end;
  uint64_t offset;      // in the file
  Address file_begins;  // where the file's first byte is mapped
  Address head_ends;    // where the mapping of that byte ends
  bool is_code;
  char path[512];  // cut if longer; empty: no file

  // The place for addr2line -e path, in libraries and position-independent programs.
  uint64_t place_of(Address code) const { return code - file_begins; }
};

class Mappings {
 public:
  Mappings() {
    static constexpr char kPath[] = "/proc/self/maps";
    file_ = arch::system_call(SYS_openat, AT_FDCWD, reinterpret_cast<long>(kPath),
                              O_RDONLY | O_CLOEXEC);
  }
  ~Mappings() {
    if (file_ >= 0) arch::system_call(SYS_close, file_);
  }
  Mappings(const Mappings&) = delete;
  Mappings& operator=(const Mappings&) = delete;

  // Reads the next line; false at the end: "55d0a000-55d0b000 r-xp 00001000 fe:00 1234   /path"
  bool next(Mapping& mapping) {
    mapping.begin = number();
    mapping.end = number();
    if (last_ < 0) return false;
    char rights[4];
    for (char& right : rights) right = static_cast<char>(take());
    mapping.is_code = rights[2] == 'x';
    take();
    mapping.offset = number();
    for (int words = 0; words < 2 && last_ >= 0;) words += take() == ' ';
    while (take() == ' ') {
    }
    size_t length = 0;
    uint64_t hash = 0;
    for (; last_ >= 0 && last_ != '\n'; take()) {
      hash = (hash ^ static_cast<unsigned>(last_)) * 0x9E3779B97F4A7C15;
      if (length + 1 < sizeof mapping.path) mapping.path[length++] = static_cast<char>(last_);
    }
    mapping.path[length] = '\0';
    // The first mapping of its file, whose head may not be mapped.
    if (mapping.offset == 0 || hash != file_hash_) {
      file_hash_ = hash;
      file_begins_ = mapping.begin - mapping.offset;
      head_ends_ = mapping.offset == 0 && rights[0] == 'r' ? mapping.end : file_begins_;
    }
    mapping.file_begins = file_begins_;
    mapping.head_ends = head_ends_;
    return true;
  }

 private:
  int take() {
    if (at_ == read_) {
      const long got =
          file_ < 0
              ? 0
              : arch::system_call(SYS_read, file_, reinterpret_cast<long>(buffer_), sizeof buffer_);
      at_ = 0;
      read_ = got > 0 ? got : 0;
      if (read_ == 0) return last_ = -1;
    }
    return last_ = static_cast<unsigned char>(buffer_[at_++]);
  }
  // Reads a hexadecimal number, and the character behind it.
  uint64_t number() {
    uint64_t n = 0;
    for (;;) {
      const int c = take();
      if (c >= '0' && c <= '9') {
        n = n * 16 + static_cast<unsigned>(c - '0');
      } else if (c >= 'a' && c <= 'f') {
        n = n * 16 + static_cast<unsigned>(c - 'a' + 10);
      } else {
        return n;
      }
    }
  }

  long file_;
  long at_ = 0, read_ = 0;
  int last_ = 0;
  uint64_t file_hash_ = 0;
  Address file_begins_ = 0, head_ends_ = 0;
  char buffer_[1024];
};

// Writes the build's id in hexadecimal and a zero, or only the zero if the linker gave it no id. If
// the file is an ELF file, reads the part of it that is mapped from its first byte on.
inline void write_build_id(const Mapping& mapping, char (&text)[65]) {
  text[0] = '\0';
  const Address begin = mapping.file_begins, size = mapping.head_ends - begin;
  const auto& head = *reinterpret_cast<const Elf64_Ehdr*>(begin);
  if (mapping.path[0] != '/' || size < sizeof head ||
      __builtin_memcmp(head.e_ident, ELFMAG, SELFMAG) != 0)
    return;
  if (head.e_phoff > size || head.e_phnum * sizeof(Elf64_Phdr) > size - head.e_phoff) return;
  const auto* part = reinterpret_cast<const Elf64_Phdr*>(begin + head.e_phoff);
  for (const auto* last = part + head.e_phnum; part < last; ++part) {
    if (part->p_type != PT_NOTE || part->p_offset > size || part->p_filesz > size - part->p_offset)
      continue;
    const Address end = begin + part->p_offset + part->p_filesz;
    for (Address at = begin + part->p_offset; end - at >= sizeof(Elf64_Nhdr);) {
      const auto& note = *reinterpret_cast<const Elf64_Nhdr*>(at);
      const Address content = at + sizeof note + round_up(note.n_namesz, 4);
      at = content + round_up(note.n_descsz, 4);
      if (at > end) break;
      if (note.n_type != NT_GNU_BUILD_ID || note.n_namesz != 4 || note.n_descsz > 32) continue;
      for (unsigned i = 0; i < note.n_descsz; ++i) {
        const unsigned char byte = reinterpret_cast<const unsigned char*>(content)[i];
        text[2 * i] = "0123456789abcdef"[byte >> 4];
        text[2 * i + 1] = "0123456789abcdef"[byte & 15];
      }
      text[2 * note.n_descsz] = '\0';
      return;
    }
  }
}

}  // namespace lanemalloc
