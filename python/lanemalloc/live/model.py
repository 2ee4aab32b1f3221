"""What the live view knows: of each process the last snapshots, rates, and how they went."""

from __future__ import annotations

import contextlib
import re
import time
from collections import deque
from dataclasses import dataclass, field

from lanemalloc import process
from lanemalloc.memory import Gone, NotAllowed
from lanemalloc.reader import Reader, Wanted
from lanemalloc.snapshot import NO_NUMBER, Difference, Snapshot
from lanemalloc.ui import Problem

HISTORY = 240
NAMES_LAST = 5.0  # seconds, for which a thread's name is believed
SHARE = 0.0015  # of a CPU, for slabs and for bins each
OF_CPU = 2  # index of snapshot.ENTRIES


@dataclass
class Session:
    """A process that is looked at. refresh() never raises: what went wrong is in `trouble`."""

    pid: int
    reader: Reader | None = None
    snapshot: Snapshot | None = None
    rates: Difference | None = None
    trouble: str = ""
    ended: bool = False
    history: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    _names: dict[int, tuple[float, str]] = field(default_factory=dict)
    _earlier: Snapshot | None = None  # with slabs of before, so that frees have a rate

    def open(self) -> None:
        """Raises Problem."""
        self.reader = Reader.open(self.pid)

    def refresh(self, first: bool = False) -> None:
        if self.ended:
            return
        try:
            if self.reader is None:
                self.open()
            assert self.reader is not None
            wanted = Wanted(slabs=True, bins=True, seconds=0.3) if first else None
            self._take(self.reader.read(wanted) if wanted else self.reader.read_paced(SHARE))
            self.trouble = ""
        except Gone as error:
            self._look_for_another_program(error)
        except Problem as error:
            self.trouble = error.message.replace("\n ", ":")

    def _take(self, snapshot: Snapshot) -> None:
        before = self.snapshot
        if before is not None and before.same_process(snapshot):
            self.rates = rates = snapshot.difference(before)
            self._know_frees(snapshot, rates)
            self.history.append(rates.allocations)
        self.snapshot = snapshot

    def _know_frees(self, snapshot: Snapshot, rates: Difference) -> None:
        """How many were freed is known from when slabs were read; between these the last figure
        stands."""
        base = self._earlier or self.snapshot
        assert base is not None
        if base.same_process(snapshot) and (snapshot.moment.slabs_ns or 0) > (
            base.moment.slabs_ns or 0
        ):
            longer = snapshot.difference(base)
            rates.class_frees, rates.frees = longer.class_frees, longer.frees
            self._earlier = snapshot

    def _look_for_another_program(self, error: Gone) -> None:
        """It may have exec'd a program that runs with lanemalloc too."""
        self.reader = None
        try:
            process.facts(self.pid)
            self.open()
        except NotAllowed as problem:
            self.trouble = problem.message.split("\n")[0]
        except Problem:
            self.ended = True
            self.trouble = error.message
        else:
            self.snapshot = self.rates = self._earlier = None

    def thread_name(self, thread: int) -> str:
        """Of one that runs, or ran when it was last asked for."""
        now = time.monotonic()
        when, name = self._names.get(thread, (-1e9, ""))
        if now - when > NAMES_LAST:
            name = process.thread_name(self.pid, thread) or name
            self._names[thread] = (now, name)
        return name

    def lane_name(self, i: int) -> str:
        """Whose the lane is."""
        assert self.snapshot is not None
        lanes = self.snapshot.lanes
        how, number, thread = int(lanes.how[i]), int(lanes.number[i]), int(lanes.thread[i])
        if how == OF_CPU:
            return f"CPU {number}"
        if how != 0:
            return f"shared {number}" if number < NO_NUMBER else "overflow"
        if thread == 0:
            return "(idle)"
        return f"{self.thread_name(thread) or '?'} {thread}"

    def group_name(self, i: int) -> str:
        """Threads of one name but for a number at its end go together."""
        name = re.sub(r"\s\d+$", "", self.lane_name(i))
        return re.sub(r"[-_#:/ ]*\d+$", "", name) or name


@dataclass(frozen=True)
class Candidate:
    """A process that can be read."""

    pid: int
    name: str
    command: str
    resident: int


class Finder:
    """Finds the processes that run with lanemalloc. What a process is once known to be is
    remembered for a while."""

    REMEMBERED = 30.0

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[float, Reader | None]] = {}
        self.not_allowed = 0

    def find(self, seconds: float = 5.0) -> list[tuple[process.ProcessFacts, Reader]]:
        """All of them, or as many as can be looked at in that time."""
        deadline = time.monotonic() + seconds
        found = []
        known: dict[tuple[int, int], tuple[float, Reader | None]] = {}
        self.not_allowed = 0
        for pid in process.all_processes():
            if time.monotonic() > deadline:
                break
            with contextlib.suppress(Problem):
                facts = process.facts(pid)
                key = (pid, facts.started_ticks)
                known[key] = when, reader = self._look(key)
                if reader is not None:
                    found.append((facts, reader))
        self._known = known
        return found

    def _look(self, key: tuple[int, int]) -> tuple[float, Reader | None]:
        when, reader = self._known.get(key, (-1e9, None))
        if reader is not None and reader.is_there():
            return when, reader
        if reader is None and time.monotonic() - when < self.REMEMBERED:
            return when, None
        try:
            return time.monotonic(), Reader.open(key[0])
        except NotAllowed:
            self.not_allowed += 1
        except Problem:
            pass
        return time.monotonic(), None


def candidates() -> list[Candidate]:
    """Those of this host, with most memory first."""
    found = [
        Candidate(
            facts.pid, facts.name, process.command_line(facts.pid) or facts.name, facts.resident
        )
        for facts, _ in Finder().find()
    ]
    return sorted(found, key=lambda one: -one.resident)
