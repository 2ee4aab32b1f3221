"""Which memory of a process is resident: /proc/PID/smaps by mapping, /proc/PID/pagemap by page."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

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
        current = Mapping(
            int(begin, 16), int(end, 16), parts[1], parts[5].rstrip("\n") if len(parts) > 5 else ""
        )
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

    def words(self, begin: int, end: int) -> npt.NDArray[np.uint64]:
        """Of the pages in between; zeros where it cannot be read."""
        count = (end - begin) // PAGE
        words = np.zeros(count, np.uint64)
        with contextlib.suppress(OSError):
            data = os.pread(self._file, count * 8, begin // PAGE * 8)
            words[: len(data) // 8] = np.frombuffer(data, np.uint64, len(data) // 8)
        return words


@dataclass
class Blocks:
    """The body of the allocator's memory: so many blocks from `base` on."""

    base: int
    count: int
    shift: int

    @property
    def limit(self) -> int:
        return self.base + (self.count << self.shift)


@dataclass
class Residency:
    """Resident bytes of each block. `share`: of the resident memory that is known by the page; the
    rest is taken to be spread evenly over each mapping."""

    of_block: Numbers
    share: float


def resident_by_block(
    pid: int, maps: list[Mapping], blocks: Blocks, seconds: float = 10.0
) -> Residency:
    """By page as far as that can be read in time."""
    sums: Numbers = np.zeros(blocks.count, np.int64)
    deadline = time.monotonic() + seconds
    total = known = 0
    with PageMap(pid) as pages:
        for mapping in maps:
            begin, end = max(mapping.begin, blocks.base), min(mapping.end, blocks.limit)
            if begin >= end or mapping.resident == 0:
                continue
            total += mapping.resident
            if pages.known and time.monotonic() < deadline:
                sums += by_page(pages, mapping, begin, end, blocks)
                known += mapping.resident
            else:
                first, last = (
                    (begin - blocks.base) >> blocks.shift,
                    (end - blocks.base - 1) >> blocks.shift,
                )
                sums[first : last + 1] += mapping.resident // (last - first + 1)
    return Residency(sums, known / total if total else 1.0)


def by_page(pages: PageMap, mapping: Mapping, begin: int, end: int, blocks: Blocks) -> Numbers:
    """Pages that were only ever read are the system's one page of zeros and count for nothing: they
    are present, and nobody's alone. Where more are present than are resident, those that are
    somebody's alone count."""
    present: Numbers = np.zeros(blocks.count, np.int64)
    alone: Numbers = np.zeros(blocks.count, np.int64)
    for at in range(begin, end, PAGES_AT_ONCE * PAGE):
        words = pages.words(at, min(end, at + PAGES_AT_ONCE * PAGE))
        there = np.flatnonzero(words & PRESENT)
        block = ((at - blocks.base) + there * PAGE) >> blocks.shift
        add_counts(present, block)
        add_counts(alone, block[(words[there] & EXCLUSIVE) != 0])
    whole = begin == mapping.begin and end == mapping.end
    off = [abs(int(counts.sum()) * PAGE - mapping.resident) for counts in (present, alone)]
    return (
        alone * PAGE
        if whole and off[1] < off[0] and off[0] > mapping.resident // 100
        else present * PAGE
    )


def add_counts(counts: Numbers, block: Numbers) -> None:
    """As bincount, for numbers that lie close together."""
    if len(block):
        first = int(block[0])
        found = np.bincount(block - first)
        counts[first : first + len(found)] += found
