"""What trace and profile need to know of programs and libraries: whether a program can be preloaded
into, and build ids.

Used by: recorder, allocators, sampled, symbols.
"""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

from lanemalloc.ui import Problem

PT_INTERP, PT_NOTE, NT_GNU_BUILD_ID = 3, 4, 3


def program_headers(data: bytes) -> list[tuple[int, int, int]]:
    """(type, offset, size in the file) of a 64-bit ELF file's segments; none of anything else."""
    if len(data) < 64 or data[:4] != b"\x7fELF" or data[4] != 2 or data[5] != 1:
        return []
    offset, entry_size, count = (
        struct.unpack_from("<Q", data, 32)[0],
        *struct.unpack_from("<HH", data, 54),
    )
    headers = []
    for i in range(count):
        at = offset + i * entry_size
        if at + 56 > len(data):
            break
        kind, _, file_offset, _, _, size = struct.unpack_from("<IIQQQQ", data, at)
        headers.append((kind, file_offset, size))
    return headers


def build_id(path: str) -> str:
    """In hexadecimal; empty if the file has none or is not to be read."""
    try:
        with open(path, "rb") as file:
            for kind, offset, size in program_headers(file.read(64 << 10)):
                if kind != PT_NOTE or size > 1 << 20:
                    continue
                file.seek(offset)
                if found := build_id_of(file.read(size)):
                    return found
    except OSError:
        pass
    return ""


def build_id_of(notes: bytes) -> str:
    """Of a segment of notes; empty if none of them is one."""
    at = 0
    while at + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, at)
        name = at + 12
        value = name + (name_size + 3) // 4 * 4
        if kind == NT_GNU_BUILD_ID and notes[name : name + 4] == b"GNU\0":
            return notes[value : value + size].hex()
        at = value + (size + 3) // 4 * 4
    return ""


def find_program(name: str, depth: int = 0) -> Path:
    """The program, checked: it is there, may be run, and a library can be preloaded into it (or
    into its interpreter)."""
    found = shutil.which(name)
    if found is None:
        if os.path.sep in name and os.path.exists(name):
            raise Problem(
                f"{name} cannot be run",
                f"it is a directory, or lacks the permission: chmod +x {name}",
            )
        raise Problem(
            f"{name}: program not found", "give its path, or set PATH so that it is found"
        )
    with open(found, "rb") as file:
        data = file.read(64 << 10)
    if data[:2] == b"#!" and depth < 4:
        words = data[2:].split(b"\n", 1)[0].decode(errors="replace").split()
        if words and not words[0].endswith("/env"):
            find_program(words[0], depth + 1)
    elif data[:4] == b"\x7fELF":
        if data[4] != 2:
            raise Problem(
                f"{found} is a 32-bit program",
                "libraries of 64 bits cannot be preloaded into it; trace a 64-bit build",
            )
        if not any(kind == PT_INTERP for kind, _, _ in program_headers(data)):
            raise Problem(
                f"{found} is linked statically: nothing can be preloaded into it",
                "link it dynamically (without -static), or trace another build of it",
            )
    return Path(found)
