"""Finds the stats root of a process (docs/stats-root.md) by the ELF note of what is mapped there,
from memory alone."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lanemalloc.memory import Gone, Memory, Unreadable, not_allowed, read
from lanemalloc.ui import Problem

NOTE_NAME = b"lanemalloc\0"
NOTE_TYPE = 1
PT_LOAD, PT_NOTE = 1, 4
HEAD = 4096  # the program headers usually lie here
MOST_HEADERS = 128
MOST_NOTES = 1 << 16
PAGE_MASK = ~0xFFF


@dataclass(frozen=True)
class Image:
    """A file that is mapped from its beginning."""

    begin: int
    path: str


def images(pid: int) -> list[Image]:
    """Every mapping of a file at offset 0."""
    try:
        text = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except PermissionError:
        raise not_allowed(pid) from None
    except (FileNotFoundError, ProcessLookupError):
        raise Problem(
            f"there is no process {pid}",
            "`lanemalloc top` without a number lists those that can be read",
        ) from None
    found = []
    for line in text.splitlines():
        parts = line.split(None, 5)
        if len(parts) == 6 and parts[5].startswith("/") and int(parts[2], 16) == 0:
            found.append(Image(int(parts[0].split("-")[0], 16), parts[5]))
    if not text and not is_kernel_thread(pid):
        raise Gone(f"process {pid} has ended")
    return found


def is_kernel_thread(pid: int) -> bool:
    """It has no memory of its own; neither has one that has ended and is not yet waited for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return False
    return state[0] not in "ZX" and state[20] == "0"


def find_roots(memory: Memory, candidates: list[Image]) -> list[tuple[int, str]]:
    """Addresses of roots, and the files that they belong to."""
    if not candidates:
        return []
    begins = np.array([image.begin for image in candidates], np.uint64)
    heads, complete = memory.gather(begins, np.full(len(begins), HEAD, np.uint64))
    roots = []
    for i, image in enumerate(candidates):
        head = heads[i * HEAD : (i + 1) * HEAD].tobytes()
        if complete[i] and head[:6] == b"\x7fELF\x02\x01":
            roots += [(root, image.path) for root in roots_of_image(memory, image.begin, head)]
    return roots


def roots_of_image(memory: Memory, begin: int, head: bytes) -> Iterator[int]:
    """Of a 64-bit ELF image that begins there."""
    offset, size, count = (
        struct.unpack_from("<Q", head, 32)[0],
        *struct.unpack_from("<HH", head, 54),
    )
    if size != 56 or count > MOST_HEADERS:
        return
    try:
        if offset + size * count > HEAD:
            head = read(memory, begin, offset + size * count).tobytes()
        headers = [struct.unpack_from("<IIQQQQQQ", head, offset + i * size) for i in range(count)]
        loads = [vaddr for kind, _, at, vaddr, *_ in headers if kind == PT_LOAD and at < HEAD]
        if not loads:
            return
        bias = begin - (loads[0] & PAGE_MASK)
        for kind, _, _, vaddr, _, _, in_memory, _ in headers:
            if kind == PT_NOTE and in_memory <= MOST_NOTES:
                yield from roots_of_notes(
                    read(memory, bias + vaddr, in_memory).tobytes(), bias + vaddr
                )
    except Unreadable:
        return  # mapped as data, or unmapped meanwhile


def roots_of_notes(notes: bytes, address: int) -> Iterator[int]:
    """Walks a segment of notes."""
    at = 0
    while at + 12 <= len(notes):
        name_bytes, content_bytes, kind = struct.unpack_from("<III", notes, at)
        name_at = at + 12
        content_at = name_at + (name_bytes + 3 & ~3)
        if (
            kind == NOTE_TYPE
            and notes[name_at : name_at + name_bytes] == NOTE_NAME
            and content_bytes == 8
        ):
            (distance,) = struct.unpack_from("<q", notes, content_at)
            yield address + content_at + distance
        at = content_at + (content_bytes + 3 & ~3)
