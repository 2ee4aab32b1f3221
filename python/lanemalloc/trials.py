"""Runs of a program itself, to see whether an option helps it. Used by: the command tune.

Whether two sets of runs differ is decided as everywhere: their quartiles lie apart, and their
medians by more than is worth an option.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lanemalloc.allocators import Allocator
from lanemalloc.supervise import cannot_start, start
from lanemalloc.ui import Problem

# What is measured, by its name in the results.
MEASURES = {"seconds": "time", "cpu_seconds": "CPU time", "peak_rss": "peak RSS"}


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


@dataclass(frozen=True)
class Effect:
    """What one set of runs takes of what another takes; runs in turn, so that the i-th of both were
    made one after the other."""

    ratio: float  # of the medians
    low: float  # quartiles of the ratios of pairs
    high: float
    is_sure: bool

    @classmethod
    def of(cls, before: Sequence[float], after: Sequence[float], least: float) -> Effect:
        middle = statistics.median(before)
        if not middle:
            return cls(1.0, 1.0, 1.0, False)
        ratio = statistics.median(after) / middle
        pairs = [b / a for a, b in zip(before, after) if a]
        (low, high), (low_after, high_after) = quartiles(before), quartiles(after)
        apart = high_after < low or high < low_after
        return cls(ratio, *quartiles(pairs or [1.0]), apart and abs(ratio - 1) > least)

    def text(self, what: str) -> str:
        """-12 % time (quartiles -14 to -10 %)"""
        low, ratio, high = (f"{100 * (one - 1):+.0f}" for one in (self.low, self.ratio, self.high))
        return f"{ratio} % {what} (quartiles {low} to {high} %)"

    def as_json(self) -> dict[str, Any]:
        return {
            "ratio": round(self.ratio, 4),
            "low": round(self.low, 4),
            "high": round(self.high, 4),
            "significant": self.is_sure,
        }


def said(effects: dict[str, Effect], names: dict[str, str]) -> str:
    """Those that are sure; of the others only that there is no difference."""
    sure = [effects[key].text(name) for key, name in names.items() if effects[key].is_sure]
    others = [name for key, name in names.items() if not effects[key].is_sure]
    if others:
        sure.append(f"no difference in {', '.join(others)}")
    return "; ".join(sure)


def run(argv: list[str], allocator: Allocator) -> dict[str, float]:
    """One run, without a terminal. Raises Problem if it fails."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    began = time.monotonic()
    try:
        files = [(os.POSIX_SPAWN_DUP2, nothing, number) for number in (0, 1, 2)]
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        pid = start(argv, allocator.environment(), mask, files)
    except OSError as error:
        raise cannot_start(argv[0], error) from None
    finally:
        os.close(nothing)
    try:
        _, status, usage = os.wait4(pid, 0)
    except KeyboardInterrupt:  # the program is told by the terminal, as this process is
        os.kill(pid, signal.SIGTERM)
        os.wait4(pid, 0)
        raise
    seconds = time.monotonic() - began
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGINT:
        raise KeyboardInterrupt
    if code != 0:
        how = f"by signal {-code}" if code < 0 else f"with status {code}"
        raise Problem(
            f"{argv[0]} ended {how} under {allocator}: its runs say nothing",
            "it is run without input and terminal; give a command that ends with status 0 so",
        )
    return {
        "seconds": seconds,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_rss": float(usage.ru_maxrss * 1024),
    }


def alternate(
    argv: list[str],
    allocators: tuple[Allocator, Allocator],
    rounds: int,
    progress: Callable[[int, int], None],
) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """Runs of both in turn, not always in the same order. Ctrl-C ends it: whole rounds are kept."""
    found: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
    try:
        for i in range(rounds):
            for which in (0, 1) if i % 2 == 0 else (1, 0):
                found[which].append(run(argv, allocators[which]))
                progress(len(found[0]) + len(found[1]), 2 * rounds)
    except KeyboardInterrupt:
        whole = min(map(len, found))
        return found[0][:whole], found[1][:whole]
    return found
