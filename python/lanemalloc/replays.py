"""Replays: makes a plan of one process of a trace, runs it under allocators, and says what came
out.

Used by: commands/replay.py, commands/tune.py. The calls are made by lanemalloc-replay
(python/native/replay.cpp).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lanemalloc import tracefile
from lanemalloc.allocators import Allocator
from lanemalloc.process import memory_available
from lanemalloc.tracefile import Trace
from lanemalloc.ui import Problem, native

# RawEvent of python/native/replay_plan.h.
RAW = np.dtype(
    [
        ("time", "<i8"),
        ("object", "<u8"),
        ("old_object", "<u8"),
        ("size", "<u8"),
        ("thread", "<u4"),
        ("op", "u1"),
        ("alignment", "u1"),
        ("flags", "<u2"),
    ]
)
HAS_OBJECT, HAS_OLD = 1, 2
COLUMNS = ["time", "process", "thread", "op", "size", "alignment", "object", "old_object"]
BATCH = 1 << 16

# What is measured, by its name in the results.
MEASURES = {"seconds_in_calls": "time in calls", "peak_rss": "peak RSS", "end_rss": "RSS at end"}


@dataclass(frozen=True)
class How:
    """How the calls are made."""

    full: bool = False
    touch: bool = False
    pace: bool = False

    def flags(self) -> list[str]:
        return [f"--{name}" for name in ("full", "touch", "pace") if getattr(self, name)]


@dataclass
class Results:
    """What several runs under one allocator gave."""

    allocator: Allocator
    runs: list[dict[str, Any]] = field(default_factory=list)

    def values(self, measure: str) -> list[float]:
        return [float(run[measure]) for run in self.runs]

    def median(self, measure: str) -> float:
        return statistics.median(self.values(measure))

    def quartiles(self, measure: str) -> tuple[float, float]:
        values = self.values(measure)
        if len(values) < 2:
            return values[0], values[0]
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return low, high

    def as_json(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "allocator": self.allocator.name,
            "options": self.allocator.options,
            "rounds": len(self.runs),
        }
        for measure in ("seconds", *MEASURES):
            low, high = self.quartiles(measure)
            facts[measure] = {
                "median": self.median(measure),
                "low": low,
                "high": high,
                "lowest": min(self.values(measure)),
                "highest": max(self.values(measure)),
            }
        return facts | {
            name: self.runs[0][name]
            for name in (
                "calls",
                "failed",
                "skipped",
                "threads",
                "peak_live_bytes",
                "peak_live_objects",
            )
        }


def check_memory(process: dict[str, Any], how: How, next_step: str) -> None:
    """Writing to all that was live at once must not take more memory than there is."""
    live = int(process["peak_live_bytes"])
    available = memory_available()
    if how.touch and available is not None and available < live + (live >> 2):
        raise Problem(
            f"the trace has {live >> 20:,} MiB live at once; "
            f"{available >> 20:,} MiB of memory are available",
            next_step,
        )


def raw_events(batch: pa.RecordBatch) -> np.ndarray[Any, Any]:
    """The rows of one process, as the preparation reads them."""

    def numbers(name: str) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = batch.column(name).fill_null(0).to_numpy(zero_copy_only=False)
        return found

    raw = np.zeros(batch.num_rows, RAW)
    operations = batch.column("op")
    if not isinstance(operations, pa.DictionaryArray):
        operations = pc.dictionary_encode(operations)
    codes = np.array(
        [tracefile.OPERATIONS.index(name) for name in operations.dictionary.to_pylist()], "u1"
    )
    raw["op"] = codes[operations.indices.to_numpy(zero_copy_only=False)]
    for name in ("time", "thread", "size", "object", "old_object"):
        raw[name] = numbers(name)
    alignment = numbers("alignment")
    raw["alignment"] = np.where(
        alignment > 0, np.log2(np.maximum(alignment, 1)).astype("u1") + 1, 0
    )
    raw["flags"] = np.where(batch.column("object").is_valid(), HAS_OBJECT, 0) | np.where(
        batch.column("old_object").is_valid(), HAS_OLD, 0
    )
    return raw


def write_plan(
    trace: Trace, process: dict[str, Any], path: Path, progress: Callable[[int, int], None]
) -> None:
    """Streams the trace through the preparation; what is in memory at once does not grow with the
    trace, its live objects do. Of a damaged trace what can be read is taken; `trace.lost` has the
    rest. Raises Problem."""
    threads = [0] * (max((t[0] for t in process["threads"]), default=-1) + 1)
    for number, _, events, *_ in process["threads"]:
        threads[number] = events
    there = prepare(trace, process["process"], threads, path, progress)
    if there == threads:
        return
    if not trace.lost:
        raise tracefile.damaged(trace.path, "threads have other numbers of rows than it says")
    if not any(there):
        raise tracefile.damaged(trace.path, "nothing of that process can be read")
    # Each thread ends with the last of its events: only those that can be read count.
    prepare(trace, process["process"], there, path, progress)


def count(threads: list[int], batch: pa.RecordBatch) -> None:
    """Adds the batch's rows, by thread."""
    for value in pc.value_counts(batch.column("thread")).to_pylist():
        if 0 <= value["values"] < len(threads):
            threads[value["values"]] += value["counts"]


def prepare(
    trace: Trace,
    process: int,
    threads: list[int],
    path: Path,
    progress: Callable[[int, int], None],
) -> list[int]:
    """By the preparation, which is told how many events each thread has. Returns how many it
    had."""
    preparation = subprocess.Popen(
        [native("lanemalloc-replay"), "--prepare", path],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert preparation.stdin is not None and preparation.stderr is not None
    done, found = 0, [0] * len(threads)
    try:
        preparation.stdin.write(
            np.array([len(threads)], "<u4").tobytes() + np.array(threads, "<u8").tobytes()
        )
        for batch in trace.batches(COLUMNS, BATCH):
            done += batch.num_rows
            chosen = batch.filter(pc.equal(batch.column("process"), process))
            if chosen.num_rows:
                count(found, chosen)
                preparation.stdin.write(raw_events(chosen).tobytes())
            progress(done, trace.rows)
        preparation.stdin.close()
    except BrokenPipeError:
        pass
    except BaseException:
        preparation.kill()
        preparation.wait()
        raise
    said = preparation.stderr.read().decode(errors="replace").strip()
    if preparation.wait() != 0:
        raise Problem(
            f"the replay could not be prepared: {said}",
            "it takes 32 bytes an event where temporary files are; set TMPDIR to a place with room",
        )
    return found


@contextmanager
def plan_of(
    trace: Trace, process: dict[str, Any], progress: Callable[[int, int], None]
) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="lanemalloc-replay-") as folder:
        plan = Path(folder) / "plan"
        write_plan(trace, process, plan, progress)
        yield plan


def run(plan: Path, allocator: Allocator, how: How) -> dict[str, Any]:
    ran = subprocess.run(
        [native("lanemalloc-replay"), *how.flags(), plan],
        env=allocator.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode != 0:
        said = ran.stderr.strip() or (
            f"signal {-ran.returncode}" if ran.returncode < 0 else f"status {ran.returncode}"
        )
        raise Problem(
            f"the replay under {allocator} failed: {said}",
            "try another allocator, or --allocator system to see whether the trace is at fault",
        )
    result: dict[str, Any] = json.loads(ran.stdout)
    return result


def alternate(
    plan: Path,
    allocators: Sequence[Allocator],
    rounds: int,
    how: How,
    progress: Callable[[int, int], None],
) -> list[Results]:
    """Runs them in turn, so that what the machine does meanwhile falls on all alike."""
    results = [Results(allocator) for allocator in allocators]
    for i in range(rounds):
        # Not always in the same order.
        for j, result in enumerate(results if i % 2 == 0 else results[::-1]):
            result.runs.append(run(plan, result.allocator, how))
            progress(i * len(results) + j + 1, rounds * len(results))
    return results
