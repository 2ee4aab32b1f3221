"""Finds the processes that allocate for a program: itself, or behind programs that allocate next to
nothing (shells, env, nice) those that they start.

Used by: the commands run and profile, for their looks at a program.
"""

from __future__ import annotations

from lanemalloc import process
from lanemalloc.reader import Reader
from lanemalloc.ui import Problem

# A shell makes some allocations for each command that it starts.
FEW, LITTLE = 256, 64 << 10
MOST = 16  # processes at a time
MOST_SEEN = 256  # processes that are asked at a time


class Followed:
    """A program and what it starts. A process that allocates more than a few objects is not looked
    behind."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.allocating: set[int] = set()
        self._readers: dict[int, Reader] = {}

    def readers(self) -> dict[int, Reader]:
        """Of what there is now, by number; parents before what they start."""
        found: dict[int, Reader] = {}
        queue = [self.pid]
        for pid in queue:  # which grows
            if len(found) == MOST:
                break
            reader = self._readers.get(pid) or opened(pid)
            if reader is not None:
                found[pid] = reader
            if not self._allocates(pid, reader) and len(queue) < MOST_SEEN:
                queue += process.children_of(pid)
        self._readers = found
        self.allocating &= found.keys()
        return dict(found)

    def leader(self) -> int:
        """The first that allocates; the program where none does."""
        return next((pid for pid in self._readers if pid in self.allocating), self.pid)

    def forget(self, pid: int) -> None:
        """It has ended, or runs another program: the next look finds what is there then."""
        self._readers.pop(pid, None)
        self.allocating.discard(pid)

    def _allocates(self, pid: int, reader: Reader | None) -> bool:
        if reader is not None and pid not in self.allocating:
            try:
                snapshot = reader.read_paced()
                if is_much(snapshot.allocations, snapshot.live_bytes):
                    self.allocating.add(pid)
            except Problem:
                return False
        return pid in self.allocating


def is_much(allocations: int, live_bytes: int) -> bool:
    return allocations >= FEW or live_bytes >= LITTLE


def opened(pid: int) -> Reader | None:
    try:
        return Reader.open(pid)
    except Problem:
        return None
