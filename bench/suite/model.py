"""The records of a run of the suite, and their JSON.

Used by: measure.py, which fills them; figures.py, report.py and page.py, which read them. Nothing
here measures or prints.
"""

import dataclasses
import json
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 2
HIGHER_IS_BETTER = frozenset({"rate"})  # of all figures


@dataclass(frozen=True)
class Allocator:
    """One that took part. A subject is a build of lanemalloc; the others are peers."""

    name: str
    short: str
    subject: bool
    path: str = ""
    version: str = ""
    options: str = ""


@dataclass(frozen=True)
class Run:
    """What one run of one line under one allocator gave."""

    line: str
    allocator: str
    round: int
    figures: dict[str, float]


@dataclass(frozen=True)
class Failure:
    line: str
    allocator: str
    round: int
    reason: str


@dataclass(frozen=True)
class Slow:
    """An allocator that was measured in fewer rounds on a line, as it took `factor` times the time
    of the fastest."""

    line: str
    allocator: str
    factor: float
    rounds: int


@dataclass
class Measurements:
    """Lines times allocators times rounds. A line is 'larson 8' (a workload and its threads) or a
    program's name."""

    lines: list[str] = field(default_factory=list)
    allocators: list[str] = field(default_factory=list)
    rounds: int = 0
    scale: float = 1.0
    runs: list[Run] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    slow: list[Slow] = field(default_factory=list)
    least: bool = False  # compare the best of the rounds, not their medians

    def __post_init__(self) -> None:
        self._index: dict[tuple[str, str], list[Run]] = defaultdict(list)
        for run in self.runs:
            self._index[run.line, run.allocator].append(run)

    def add(self, run: Run) -> None:
        self.runs.append(run)
        self._index[run.line, run.allocator].append(run)

    def remove(self, run: Run) -> None:
        self.runs.remove(run)
        self._index[run.line, run.allocator].remove(run)

    def of(self, line: str, allocator: str) -> list[Run]:
        return self._index.get((line, allocator), [])

    def samples(self, line: str, allocator: str, figure: str) -> list[float]:
        return [run.figures[figure] for run in self.of(line, allocator) if figure in run.figures]

    def typical(self, line: str, allocator: str, figure: str) -> float | None:
        """The median of the rounds, or the best if so chosen; None where the allocator has no such
        figure on the line."""
        samples = self.samples(line, allocator, figure)
        if not samples:
            return None
        if not self.least:
            return statistics.median(samples)
        return max(samples) if figure in HIGHER_IS_BETTER else min(samples)

    def has(self, figure: str) -> bool:
        return any(figure in run.figures for run in self.runs)

    def slow_ones(self) -> dict[tuple[str, str], Slow]:
        return {(s.line, s.allocator): s for s in self.slow}


@dataclass
class Result:
    """Everything that one run of the suite found out."""

    machine: dict[str, str] = field(default_factory=dict)
    machine_at_end: dict[str, str] = field(default_factory=dict)
    allocators: list[Allocator] = field(default_factory=list)
    workloads: dict[str, str] = field(default_factory=dict)  # name -> one line about it
    programs_about: dict[str, str] = field(default_factory=dict)
    latency_workloads: list[str] = field(default_factory=list)
    synthetic: Measurements = field(default_factory=Measurements)
    programs: Measurements = field(default_factory=Measurements)
    rule: str = ""  # how the workloads were measured
    idle: Measurements = field(default_factory=Measurements)
    idle_seconds: float = 0.0
    pairs: dict[str, Any] = field(default_factory=dict)  # what bench/micro/run.py wrote
    startup: str = ""  # what bench/startup/run.py printed
    remarks: list[str] = field(default_factory=list)
    cuts: list[str] = field(default_factory=list)  # what was left out or made smaller, and why
    left_out: list[str] = field(default_factory=list)  # peers and parts that could not be had
    counters: bool = False  # perf stat counts here
    seconds: float = 0.0

    @property
    def subjects(self) -> list[str]:
        return [a.name for a in self.allocators if a.subject]

    @property
    def peers(self) -> list[str]:
        return [a.name for a in self.allocators if not a.subject]

    @property
    def names(self) -> list[str]:
        return [a.name for a in self.allocators]

    def short(self, name: str) -> str:
        return next((a.short for a in self.allocators if a.name == name), name)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value


def save(result: Result, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(
        json.dumps({"format": FORMAT} | _plain(dataclasses.asdict(result)), indent=1) + "\n"
    )
    partial.rename(path)


def load(path: Path) -> Result:
    data = json.loads(path.read_text())
    if data.pop("format", None) != FORMAT:
        raise SystemExit(f"{path}: not a result of this version of the suite")
    for name in ("synthetic", "programs", "idle"):
        part = data[name]
        part["runs"] = [Run(**r) for r in part["runs"]]
        part["failures"] = [Failure(**f) for f in part["failures"]]
        part["slow"] = [Slow(**s) for s in part["slow"]]
        data[name] = Measurements(**part)
    data["allocators"] = [Allocator(**a) for a in data["allocators"]]
    return Result(**data)
