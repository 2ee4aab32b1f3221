"""What differs between two runs: figure by figure, with the ratio."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lanemalloc import units
from lanemalloc.report.markup import Table
from lanemalloc.report.run import Run


@dataclass(frozen=True)
class Figure:
    """A quantity that two runs are compared by."""

    name: str
    unit: str
    of: Callable[[Run], float]
    text: Callable[[float], str]


def figure_of(name: str) -> Callable[[Run], float]:
    return lambda run: float(run.figures.get(name, 0))


def per(part: str, whole: str) -> Callable[[Run], float]:
    return lambda run: 100 * run.figures.get(part, 0) / max(run.figures.get(whole, 0), 1)


def duration(seconds: float) -> str:
    return units.duration(seconds) if seconds else "0 s"


def percent(value: float) -> str:
    return f"{value:.2f} %"


FIGURES = (
    Figure("lasted", "s", lambda run: run.seconds, duration),
    Figure("CPU time", "s", lambda run: float(run.end.get("cpu_seconds", 0)), duration),
    Figure("peak resident memory", "bytes", lambda run: float(run.peak_resident), units.size),
    Figure("peak live objects", "bytes", lambda run: float(run.peak_live), units.size),
    Figure("live at the end", "bytes", figure_of("live_bytes"), units.size),
    Figure("free runs kept at the end", "bytes", figure_of("cached_bytes"), units.size),
    Figure("given back to the system", "bytes", figure_of("purged_bytes"), units.size),
    Figure("lanes", "", figure_of("lanes"), units.count),
    Figure("allocations", "", figure_of("allocations"), units.count),
    Figure(
        "allocations a second",
        "1/s",
        lambda run: run.figures.get("allocations", 0) / max(run.seconds, 1e-3),
        units.count,
    ),
    Figure("found their bin empty", "% of allocations", per("misses", "allocations"), percent),
    Figure("freed by another lane", "% of frees", per("remote_frees", "frees"), percent),
    Figure("failed tries", "", lambda run: float(run.failures), units.count),
    Figure("waits", "", lambda run: float(run.waits), units.count),
    Figure("waited, all threads", "s", lambda run: run.waited, duration),
    Figure(
        "waited for a million allocations",
        "s",
        lambda run: run.waited * 1e6 / max(run.figures.get("allocations", 0), 1),
        duration,
    ),
)


def differences(a: Run, b: Run) -> list[dict[str, Any]]:
    """`ratio`: second to first; None where the first has none."""
    found = []
    for figure in FIGURES:
        first, second = figure.of(a), figure.of(b)
        ratio = second / first if first else None
        found.append(
            {
                "name": figure.name,
                "unit": figure.unit,
                "first": first,
                "second": second,
                "ratio": ratio,
            }
        )
    return found


def said_ratio(first: float, second: float) -> str:
    if not first:
        return "same" if not second else "new"
    ratio = second / first
    if abs(ratio - 1) < 0.005:
        return "same"
    if not second:
        return "none left"
    if ratio < 0.01:
        return f"1 / {units.count(1 / ratio)}"
    return f"{units.three_digits(ratio)} ×" if ratio < 1000 else f"{units.count(ratio)} ×"


def table(a: Run, b: Run) -> Table:
    rows = []
    for figure in FIGURES:
        first, second = figure.of(a), figure.of(b)
        mark = "" if said_ratio(first, second) == "same" else "▲ " if second > first else "▼ "
        rows.append(
            [figure.name, figure.text(first), figure.text(second), mark + said_ratio(first, second)]
        )
    return Table("Differences: B to A", ("figure", "A", "B", "B / A"), rows)


def options_table(a: Run, b: Run) -> Table | None:
    first, second = a.options(), b.options()
    keys = [key for key in {**first, **second} if first.get(key) != second.get(key)]
    if not keys:
        return None
    rows = [[key, first.get(key, "not set"), second.get(key, "not set")] for key in keys]
    return Table("Options that differ", ("option", "A", "B"), rows, words=(1, 2))
