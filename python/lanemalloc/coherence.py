"""Runs the coherence simulator (tests/simulator): which cache lines go from one core to another,
for so many cores.

Used by: the command sim. The program is native, built from the very sources of the allocator; a run
is one process.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lanemalloc.ui import Problem, native

PROGRAM = "lanemalloc-sim"
WORKLOADS = ("local", "producer-consumer", "producer-consumer-mixed")
ENTRIES = ("owned", "shared", "percpu")
MODELS = ("locked-list", "treiber-stack", "one-lock-arena")
CORES = (2, 4, 8, 16, 32, 64, 128)
MOST_CORES = 128
SEED = 1
LINES = {64: "lines", 128: "pairs"}  # bytes that travel at once, and what the program calls them


@dataclass(frozen=True)
class Cell:
    """One simulated run."""

    allocator: str
    workload: str
    cores: int


@dataclass(frozen=True)
class Figures:
    """What it found, as the program prints it."""

    cell: Cell
    raw: dict[str, Any]

    def transfers(self, line: int) -> float:
        """An operation, that the allocator makes: of its own lines, and of objects' because it
        writes links there."""
        one = self.raw[LINES[line]]
        return float(one["metadata"] + one["links"])

    def program(self, line: int) -> float:
        """Those that the program would make by itself."""
        return float(self.raw[LINES[line]]["program"])


@contextmanager
def pool(workers: int) -> Iterator[ThreadPoolExecutor]:
    """What has not begun is given up when something fails."""
    executor = ThreadPoolExecutor(workers)
    try:
        yield executor
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def simulate(
    cells: list[Cell], seed: int = SEED, told: Callable[[int, int], None] = lambda done, total: None
) -> list[Figures]:
    """All of them, as many at once as there are CPUs; in the order given. The same seed gives the
    same figures."""
    program = str(native(PROGRAM))
    found: dict[Cell, Figures] = {}
    with pool(len(os.sched_getaffinity(0))) as executor:
        # Those with most cores last longest.
        order = sorted(set(cells), key=lambda cell: -cell.cores)
        for done in as_completed([executor.submit(run_one, program, cell, seed) for cell in order]):
            figures = done.result()
            found[figures.cell] = figures
            told(len(found), len(order))
    return [found[cell] for cell in cells]


def run_one(program: str, cell: Cell, seed: int) -> Figures:
    command = [program, cell.allocator, cell.workload, str(cell.cores), str(seed)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Problem(
            f"{program} cannot be run: {error.strerror}",
            "install the package again, or build it with: make tool",
        ) from None
    if done.returncode != 0:
        why = done.stderr.strip()[-300:] or f"it ended with {done.returncode}"
        raise Problem(
            (
                f"the simulation of {cell.allocator} {cell.workload} on {cell.cores} cores failed: "
                f"{why}"
            ),
            "it takes up to 1 GiB of memory and 6 GiB of address space; try fewer cores",
        )
    return Figures(cell, json.loads(done.stdout.splitlines()[0]))
