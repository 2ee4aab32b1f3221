"""What an ELF file says of itself: how it is linked, what it defines and needs,
and how it opens plugins."""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lanemalloc.elf import roots_of_notes

PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_NOTE = 1, 2, 3, 4
SHT_SYMTAB, SHT_RELA, SHT_DYNSYM = 2, 4, 11
DT_NEEDED, DT_STRTAB = 1, 5
X86_64 = 62
RTLD_DEEPBIND = 8
MOST_SYMBOLS = 2_000_000


class NotElf(Exception):
    """Some other kind of file."""


@dataclass(frozen=True)
class Section:
    """Of the section headers."""

    type: int
    address: int
    offset: int
    size: int
    link: int
    entry: int


class Binary:
    """A 64-bit little-endian ELF file. Raises NotElf and OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open(path, "rb") as file:
            try:
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError:
                raise NotElf("it is empty") from None
        if self.data[:4] != b"\x7fELF":
            raise NotElf("it is no ELF file")
        self.is_64 = self.data[4] == 2 and self.data[5] == 1
        self.machine = struct.unpack_from("<H", self.data, 18)[0]
        self.headers: list[tuple[int, ...]] = []
        self.sections: list[Section] = []
        if self.is_64:
            try:
                self._read_headers()
            except struct.error:
                raise NotElf("it is cut off") from None

    def _read_headers(self) -> None:
        at, sections_at = struct.unpack_from("<QQ", self.data, 32)
        size, count, section_size, section_count = struct.unpack_from("<HHHH", self.data, 54)
        self.headers = [
            struct.unpack_from("<IIQQQQQQ", self.data, at + i * size) for i in range(count)
        ]
        for i in range(section_count if sections_at else 0):
            _, kind, _, address, offset, size, link, _, _, entry = struct.unpack_from(
                "<IIQQQQIIQQ", self.data, sections_at + i * section_size
            )
            self.sections.append(Section(kind, address, offset, size, link, entry))

    @property
    def interpreter(self) -> str:
        """The dynamic loader; empty for a static program, and for a library."""
        for kind, _, offset, _, _, size, *_ in self.headers:
            if kind == PT_INTERP:
                return self.data[offset : offset + size].rstrip(b"\0").decode(errors="replace")
        return ""

    @property
    def is_dynamic(self) -> bool:
        return any(header[0] == PT_DYNAMIC for header in self.headers)

    @property
    def has_lanemalloc(self) -> bool:
        """By the note that leads to its stats root."""
        notes = [
            (offset, size) for kind, _, offset, _, _, size, *_ in self.headers if kind == PT_NOTE
        ]
        return any(
            True
            for offset, size in notes
            for _ in roots_of_notes(self.data[offset : offset + size], 0)
        )

    def needed(self) -> list[str]:
        """Names of the libraries that it asks for itself."""
        entries = list(self._dynamic())
        strings = next((self.offset_of(value) for tag, value in entries if tag == DT_STRTAB), None)
        if strings is None:
            return []
        return [self._text(strings + value) for tag, value in entries if tag == DT_NEEDED]

    def _dynamic(self) -> Iterator[tuple[int, int]]:
        for kind, _, offset, _, _, size, *_ in self.headers:
            if kind == PT_DYNAMIC:
                for at in range(offset, offset + size - 15, 16):
                    yield struct.unpack_from("<qQ", self.data, at)

    def offset_of(self, address: int) -> int | None:
        """Where in the file that address lies."""
        for kind, _, offset, begin, _, size, *_ in self.headers:
            if kind == PT_LOAD and begin <= address < begin + size:
                return int(offset + address - begin)
        return None

    def _text(self, at: int) -> str:
        return self.data[at : self.data.find(b"\0", at)].decode(errors="replace")

    def symbols(self, kind: int) -> Iterator[tuple[str, bool]]:
        """Names, and whether they are defined here: of the table of that kind, if it is there."""
        for section in self.sections:
            if section.type != kind or not section.entry or section.link >= len(self.sections):
                continue
            strings = self.sections[section.link].offset
            for i in range(1, min(section.size // section.entry, MOST_SYMBOLS)):
                name, _, _, index, _, _ = struct.unpack_from(
                    "<IBBHQQ", self.data, section.offset + i * section.entry
                )
                yield self._text(strings + name), index != 0

    def defines(self, names: set[str]) -> list[str]:
        """Which of these it defines, in either table."""
        found = {
            name
            for kind in (SHT_DYNSYM, SHT_SYMTAB)
            for name, here in self.symbols(kind)
            if here and name in names
        }
        return sorted(found)

    def exports(self, names: set[str]) -> list[str]:
        return sorted({name for name, here in self.symbols(SHT_DYNSYM) if here and name in names})

    def imports(self, name: str) -> bool:
        return any(symbol == name and not here for symbol, here in self.symbols(SHT_DYNSYM))

    # --- How it calls dlopen. Of x86-64 code; elsewhere nothing is found.
    def opens_deep(self) -> bool:
        """Whether some call of dlopen is given RTLD_DEEPBIND by a number
        that stands shortly before it."""
        if self.machine != X86_64:
            return False
        slots = set(self._slots_of("dlopen"))
        return bool(slots) and any(flags & RTLD_DEEPBIND for flags in self._flags_of_calls(slots))

    def _slots_of(self, name: str) -> Iterator[int]:
        """Addresses of the words that hold the function's address once it is bound."""
        for section in self.sections:
            if section.type != SHT_RELA or section.link >= len(self.sections):
                continue
            table = self.sections[section.link]
            if table.type != SHT_DYNSYM or not table.entry:
                continue
            strings = self.sections[table.link].offset
            for at in range(section.offset, section.offset + section.size - 23, 24):
                slot, info, _ = struct.unpack_from("<QQq", self.data, at)
                symbol = table.offset + (info >> 32) * table.entry
                if (
                    info >> 32
                    and self._text(strings + struct.unpack_from("<I", self.data, symbol)[0]) == name
                ):
                    yield slot

    def _flags_of_calls(self, slots: set[int]) -> Iterator[int]:
        for kind, flags, offset, begin, _, size, *_ in self.headers:
            if kind != PT_LOAD or not flags & 1:
                continue
            code = self.data[offset : offset + size]
            stubs = {begin + at for at in jumps_to(code, begin, b"\xff\x25", slots)}
            stubs |= {stub - back for stub in stubs for back in (1, 4, 5)}  # behind bnd and endbr64
            calls = set(jumps_to(code, begin, b"\xff\x15", slots)) | set(
                jumps_to(code, begin, b"\xe8", stubs)
            )
            for at in calls:
                found = [
                    struct.unpack_from("<i", m.group(), 1)[0]
                    for m in re.finditer(rb"\xbe....", code[max(0, at - 48) : at], re.S)
                ]
                yield found[-1] if found else 0


def jumps_to(code: bytes, begin: int, opcode: bytes, targets: set[int]) -> Iterator[int]:
    """Where an instruction with a relative operand of 32 bits leads to one of these addresses."""
    at = code.find(opcode)
    while at >= 0 and targets:
        end = at + len(opcode) + 4
        if end <= len(code) and begin + end + struct.unpack_from("<i", code, end - 4)[0] in targets:
            yield at
        at = code.find(opcode, at + 1)
