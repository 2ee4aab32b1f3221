"""Watches a workload from outside and says what its rate is once it is steady.

Called by: measure.py. The workload shares a file with its observer, the board
(bench/workloads/workloads.h): each of its threads stores there how many operations it has done, and
looks at the phase that stands there. The observer looks ten times a second at these counters and at
/proc, so the workload itself takes no time, asks for no memory and makes no system call to be
measured.

The steady state begins by rule: when three windows in a row have rates within a tenth of each
other, and resident memory has not gone up in them to more than 5 % over what it had been at most:
so first touches are over. A window is 0.1 s, or 0.2 or 0.4 s for work that goes in waves. Where
that is not so after some seconds, measuring begins all the same, and the result says that the line
was never steady. Only what comes afterwards counts for the rate.
"""

import dataclasses
import itertools
import mmap
import os
import re
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

MAGIC = 0x3164_7261_6F62_6C31
PID_AT, PHASE_AT, COUNTERS_AT, LINE, COUNTERS = 8, 128, 256, 128, 64
SIZE = COUNTERS_AT + COUNTERS * LINE
WARMING, MEASURED, STOP = range(3)
START_POLL = 0.002
PAGE_KIB = os.sysconf("SC_PAGE_SIZE") / 1024


class Ended(Exception):
    """The workload has ended by itself, or has done nothing for too long; says which."""


@dataclass(frozen=True)
class Rule:
    """When the steady state begins. Times in seconds."""

    window: float = 0.1
    spans: tuple[int, ...] = (1, 2, 4)  # windows are of so many looks
    windows: int = 3  # so many in a row agree
    agree: float = 0.1  # (greatest - least) / mean of their rates
    grow: float = 0.05  # of resident memory, beyond its peak before them
    least: float = 0.3  # since the work began
    latest: float = 4.0  # then it is said that it never was
    stalled: float = 20.0  # without any operation: it hangs

    def slow(self) -> "Rule":
        """For work that goes in waves of seconds."""
        return dataclasses.replace(self, spans=(8, 16, 32), latest=5 * self.latest)

    def __str__(self) -> str:
        spans = ", ".join(f"{self.window * s:g}" for s in self.spans)
        rates_agree = (
            f"{self.windows} windows in a row (of {spans} s) whose rates are within "
            f"{self.agree:.0%} of each other"
        )
        return (
            f"{rates_agree} and in which resident memory goes up by at most {self.grow:.0%}, "
            f"sought for {self.latest:g} s"
        )


@dataclass(frozen=True)
class Look:
    """What the observer saw at one time: seconds, operations until then,
    and the process's CPU time, faults and memory."""

    time: float
    operations: int
    cpu: float = 0.0
    faults: int = 0
    kib: float = 0.0


def rates(looks: Sequence[Look], span: int, windows: int) -> list[float]:
    """Operations a second of the last so many windows, the oldest first;
    fewer where there are not as many."""
    ends = list(looks[::-1][::span][: windows + 1])[::-1]
    return [(b.operations - a.operations) / (b.time - a.time) for a, b in itertools.pairwise(ends)]


def steady_span(looks: Sequence[Look], rule: Rule) -> int | None:
    """The shortest span whose last windows agree; None while none does."""
    for span in rule.spans:
        seen = rates(looks, span, rule.windows)
        if len(seen) < rule.windows or min(seen) <= 0:
            continue
        before, within = looks[: -rule.windows * span], looks[-rule.windows * span :]
        grown = max(l.kib for l in within) > (1 + rule.grow) * max(l.kib for l in before)
        if not grown and max(seen) - min(seen) <= rule.agree * statistics.mean(seen):
            return span
    return None


def begins(looks: Sequence[Look], rule: Rule) -> tuple[bool, int] | None:
    """Whether measuring begins now: (is it steady, by windows of how many looks)."""
    since = looks[-1].time - looks[0].time
    if since < rule.least:
        return None
    span = steady_span(looks, rule)
    if span is not None:
        return True, span
    return (False, rule.spans[-1]) if since >= rule.latest else None


class Board:
    """The file, mapped. It lies in memory, and nobody else needs its name
    once the workload has opened it."""

    def __init__(self) -> None:
        where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self._file = tempfile.NamedTemporaryFile(  # noqa: SIM115
            prefix="lanemalloc-board-", dir=where
        )
        self._file.truncate(SIZE)
        self._map = mmap.mmap(self._file.fileno(), SIZE)
        self._words = memoryview(self._map).cast("Q")
        self._words[0] = MAGIC
        self.path = Path(self._file.name)

    def pid(self) -> int:
        """0 until the work begins."""
        return int(self._words[PID_AT // 8])

    def operations(self) -> int:
        return sum(self._words[COUNTERS_AT // 8 :: LINE // 8])

    def operations_of(self, number: int) -> int:
        """Of one thread, or of those that took its place."""
        return int(self._words[(COUNTERS_AT + number * LINE) // 8])

    def set_phase(self, phase: int) -> None:
        struct.pack_into("I", self._map, PHASE_AT, phase)

    def close(self) -> None:
        self._words.release()
        self._map.close()
        self._file.close()


def process_clock(pid: int) -> int:
    """The clock of another process's CPU time, as clock_getcpuclockid(3) gives it."""
    return (~pid << 3) | 2


def busy_seconds() -> float:
    """CPU time that this machine's CPUs were not idle, since it began;
    with what the hypervisor took away."""
    user, nice, system, _, _, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def look(board: Board, pid: int) -> Look:
    try:
        cpu = time.clock_gettime(process_clock(pid))
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        faults = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])
    except (OSError, IndexError):
        raise Ended("it ended by itself") from None
    return Look(time.monotonic(), board.operations(), cpu, faults, pages * PAGE_KIB)


def figures_of(started: float, measured: Sequence[Look], steady: bool) -> dict[str, float]:
    """Of a run that was started at `started`, from what was seen while it was measured."""
    first, last = measured[0], measured[-1]
    seconds, done = last.time - first.time, last.operations - first.operations
    rate = done / seconds
    drift = 1.0
    if len(measured) > 2:  # fewer where the observer did not get a CPU for long
        half = measured[len(measured) // 2]
        earlier, later = (
            (b.operations - a.operations) / (b.time - a.time)
            for a, b in ((first, half), (half, last))
        )
        drift = later / earlier if earlier > 0 else 1.0
    before = first.time - started
    return {
        "rate": rate,
        "measured_seconds": seconds,
        "cpus": (last.cpu - first.cpu) / seconds,
        "cpu_ns": (last.cpu - first.cpu) * 1e9 / max(done, 1),
        "faults": (last.faults - first.faults) / seconds,
        "mean_kib": statistics.mean(l.kib for l in measured),
        "growth": last.kib / max(first.kib, 1),
        "drift": drift,
        "steady": float(steady),
        "start_seconds": before,
        "start_part": before / (before + seconds),
    }


def peak_kib(pid: int) -> float:
    """The greatest resident memory so far. A process that has ended,
    and is not waited for yet, tells none."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        status = ""
    peak = re.search(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE)
    if peak is None:
        raise Ended("it ended by itself")
    return float(peak[1])


def observe(
    board: Board,
    started: float,
    seconds: float,
    rule: Rule,
    alive: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, float]:
    """Measures a workload that was started at `started` for `seconds` of its steady state,
    and tells it to stop."""
    while not (pid := board.pid()):
        if not alive():
            raise Ended("it ended by itself")
        if time.monotonic() - started > rule.stalled:
            raise Ended(f"ended after {rule.stalled:.0f} s without a result")
        sleep(START_POLL)
    looks = [look(board, pid)]
    moved = looks[0]
    from_, steady, span = None, False, rule.spans[-1]
    until = busy = 0.0
    while True:
        # After a late look the next one is not taken at once: a short window says little.
        at = max(looks[0].time + rule.window * len(looks), looks[-1].time + rule.window / 2)
        sleep(max(0.0, at - time.monotonic()))
        if not alive():
            raise Ended("it ended by itself")
        looks.append(look(board, pid))
        now = looks[-1]
        if now.operations != moved.operations:
            moved = now
        elif now.time - moved.time > rule.stalled:
            raise Ended(
                f"ended after {rule.stalled:.0f} s without a result: no operation in that time"
            )
        if from_ is None:
            verdict = begins(looks, rule)
            if verdict is not None:
                steady, span = verdict
                from_ = len(looks) - 1
                # Long enough for some waves.
                until = now.time + max(seconds, 5 * span * rule.window)
                busy = busy_seconds()
                board.set_phase(MEASURED)
        elif now.time >= until:
            others = busy_seconds() - busy - (now.cpu - looks[from_].cpu)
            peak = peak_kib(
                pid
            )  # before it is told to stop: one that has ended has no peak any more
            board.set_phase(STOP)
            found = figures_of(started, looks[from_:], steady)
            return found | {
                "peak_kib": peak,
                "others": max(0.0, others) / (now.time - looks[from_].time),
            }
