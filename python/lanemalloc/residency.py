"""Which memory of a process is resident: /proc/PID/smaps by mapping, /proc/PID/pagemap by page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lanemalloc.memory import Gone, not_allowed

Numbers = npt.NDArray[np.int64]
PAGE = os.sysconf("SC_PAGE_SIZE")
PRESENT, EXCLUSIVE = np.uint64(1 << 63), np.uint64(1 << 56)
PAGES_AT_ONCE = 1 << 20


@dataclass
class Mapping:
    """One mapping of smaps; sizes in bytes."""

    begin: int
    end: int
    permissions: str
    path: str
    resident: int = 0
    lazy_free: int = 0
    swapped: int = 0
    anonymous: int = 0

    @property
    def is_file(self) -> bool:
        return self.path.startswith("/")


FIELDS = {"Rss": "resident", "LazyFree": "lazy_free", "Swap": "swapped", "Anonymous": "anonymous"}


def mappings(pid: int) -> list[Mapping]:
    """Raises Gone and NotAllowed."""
    try:
        with open(f"/proc/{pid}/smaps", encoding="utf-8", errors="replace") as lines:
            found = list(parse(lines))
    except PermissionError:
        raise not_allowed(pid) from None
    except OSError:
        raise Gone(f"process {pid} has ended") from None
    if not found:
        raise Gone(f"process {pid} has ended")
    return found


def parse(lines: Iterator[str]) -> Iterator[Mapping]:
    current: Mapping | None = None
    for line in lines:
        key, colon, rest = line.partition(":")
        if colon and " " not in key and current is not None and not rest.startswith("/"):
            if key in FIELDS:
                setattr(current, FIELDS[key], int(rest.split()[0]) * 1024)
            continue
        parts = line.split(None, 5)
        begin, _, end = parts[0].partition("-")
        if current is not None:
            yield current
        current = Mapping(int(begin, 16), int(end, 16), parts[1], parts[5].rstrip("\n") if len(parts) > 5 else "")
    if current is not None:
        yield current


class PageMap:
    """Reads which pages are there. `known` is False where the system does not tell."""

    def __init__(self, pid: int) -> None:
        try:
            self._file = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
            self.known = True
        except OSError:
            self._file, self.known = -1, False

    def __enter__(self) -> PageMap:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            os.close(self._file)

    def resident(self, mapping: Mapping, begin: int, end: int) -> npt.NDArray[np.bool_]:
        """Of the pages from begin to end, which lie in the mapping. Pages that were only ever read are the system's one page of zeros
        and count for nothing: they are present, and nobody's alone."""
        words = self._words(begin, end)
        present: npt.NDArray[np.bool_] = (words & PRESENT) != 0
        if begin != mapping.begin or end != mapping.end or int(present.sum()) * PAGE <= mapping.resident * 1.01:
            return present
        alone: npt.NDArray[np.bool_] = present & ((words & EXCLUSIVE) != 0)
        fits: bool = abs(int(alone.sum()) * PAGE - mapping.resident) < abs(int(present.sum()) * PAGE - mapping.resident)
        return alone if fits else present

    def _words(self, begin: int, end: int) -> npt.NDArray[np.uint64]:
        words = np.zeros((end - begin) // PAGE, np.uint64)
        for at in range(0, len(words), PAGES_AT_ONCE):
            count = min(PAGES_AT_ONCE, len(words) - at)
            try:
                data = os.pread(self._file, count * 8, (begin // PAGE + at) * 8)
            except OSError:
                break  # it has just ended
            words[at : at + len(data) // 8] = np.frombuffer(data, np.uint64, len(data) // 8)
        return words


def resident_by_block(pid: int, maps: list[Mapping], base: int, blocks: int, shift: int) -> tuple[Numbers, bool]:
    """Resident bytes of each block of the allocator's, and whether that is known by page; else each mapping's are spread evenly."""
    sums: Numbers = np.zeros(blocks, np.int64)
    limit = base + (blocks << shift)
    with PageMap(pid) as pages:
        for mapping in maps:
            begin, end = max(mapping.begin, base), min(mapping.end, limit)
            if begin >= end or mapping.resident == 0:
                continue
            if pages.known:
                there = pages.resident(mapping, begin, end)
                block = ((begin - base) + np.flatnonzero(there) * PAGE) >> shift
                sums += np.bincount(block, minlength=blocks)[:blocks] * PAGE
            else:
                first, last = (begin - base) >> shift, (end - base - 1) >> shift
                sums[first : last + 1] += mapping.resident // (last - first + 1)
        return sums, pages.known


def physical_memory() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
