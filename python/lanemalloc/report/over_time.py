"""Sections over time: memory with its decay, and contention."""

from __future__ import annotations

from typing import Any

from lanemalloc import units
from lanemalloc.meetings import place_of, worst_first
from lanemalloc.report.drawing import (
    CELL_COLOURS,
    MOST_CELLS,
    TIME_AXIS,
    byte_scale,
    curve,
    plain,
    row_title,
    steps,
)
from lanemalloc.report.markup import Plot, Section, Table, thinned
from lanemalloc.report.run import Run

MEMORY = (  # name, figure, colour, dash
    ("resident (RSS)", "", "@text", "solid"),
    ("claimed", "claimed_bytes", "@grey", "longdash"),
    ("committed", "committed_bytes", "@blue", "solid"),
    ("live", "live_bytes", "@green", "solid"),
    ("cached: free runs", "cached_bytes", "@orange", "solid"),
    ("cached: empty slabs and bins", "", "@purple", "dashdot"),
)


def memory_series(run: Run) -> list[list[float]]:
    kept = [a + b for a, b in zip(run.series("empty_bytes"), run.series("waiting_bytes"))]
    return [
        run.resident() if i == 0 else kept if not name else run.series(name)
        for i, (_, name, _, _) in enumerate(MEMORY)
    ]


def memory(runs: list[Run]) -> Section:
    most = max(
        (max(values, default=0.0) for run in runs for values in memory_series(run)), default=0.0
    )
    scale, unit = byte_scale(most)
    back_scale, back_unit = byte_scale(
        max((max(run.rates(run.series("purged_bytes")), default=0.0) for run in runs), default=0.0)
    )
    traces = []
    for run in runs:
        for (name, _, colour, dash), values in zip(MEMORY, memory_series(run)):
            trace = curve(
                run,
                name,
                run.times,
                [v / scale for v in values],
                colour,
                dash,
                f"%{{y:.3~g}} {unit}",
            )
            traces.append({**trace, "off": bool(run.letter) and dash != "solid"})
        back = [v / back_scale for v in run.rates(run.series("purged_bytes"))]
        traces.append(
            steps(
                run,
                "given back to the system",
                run.times,
                back,
                "@brown",
                "y2",
                f"%{{y:.3~g}} {back_unit}/s",
            )
        )
    layout = {
        "xaxis": {**TIME_AXIS, "anchor": "y2"},
        "yaxis": {"domain": [0.32, 0.95], "rangemode": "tozero"},
        "yaxis2": {"domain": [0, 0.2], "rangemode": "tozero", "nticks": 4},
        "annotations": [
            row_title(unit, 0.95),
            row_title(f"given back to the system, {back_unit} a second", 0.2),
        ],
    }
    plot = Plot(
        "memory-plot",
        "Resident, committed, live and cached memory",
        memory_text(runs),
        traces,
        layout,
        440,
        memory_table(runs),
    )
    lead = (
        "Committed memory is what the allocator has from the system; what is live in it is "
        "the program's, and what is cached is free and kept for the next allocation until "
        "decay_ms has passed. Resident memory also has the program's code, stacks and files in it."
    )
    return Section("memory", "Memory over time", lead, "Memory", [plot])


def memory_text(runs: list[Run]) -> str:
    told = []
    for run in runs:
        if run.peak is None:
            told.append(run.name("nothing was recorded."))
            continue
        purged = run.figures.get("purged_bytes", 0)
        back = (
            f"{units.size(purged)} went back to the system over the run"
            if purged
            else "nothing went back to the system"
        )
        told.append(
            run.name(
                f"live objects were at their most at {units.duration(run.peak.at)} "
                f"with {units.size(run.peak_live)}; "
                f"resident memory was at most {units.size(run.peak_resident)}; {back}."
            )
        )
    return " ".join(told)


def memory_table(runs: list[Run]) -> Table:
    rows = []
    for run in runs:
        series = memory_series(run)
        for i in thinned(len(run.times), 48 // len(runs)):
            row = [run.name(f"{run.times[i]:.1f} s"), *(units.size(values[i]) for values in series)]
            rows.append([*row, units.size(run.series("purged_bytes")[i])])
    head = ("time", *(name for name, _, _, _ in MEMORY), "given back so far")
    return Table("Memory, moment by moment", head, rows)


def cells_met(runs: list[Run]) -> list[str]:
    """Names of the cells where anybody failed or waited, the worst first."""
    names: dict[str, None] = {}
    for run in runs:
        names.update(dict.fromkeys(cell["at"] for cell in worst_first(run.contention)))
    return list(names)


ROWS = (
    ("failed tries a second", "failures", 1.0, ""),
    ("waits a second", "waits", 1.0, ""),
    ("waited, ms a second", "waited_ns", 1e-6, " ms"),
)


def contention(runs: list[Run]) -> Section:
    names = cells_met(runs)
    lead = (
        "A failed try finds another thread inside and goes on elsewhere; a wait blocks. "
        "Time waited is that of all threads together: "
        "1,000 ms a second means that at any moment one thread stood still."
    )
    if not names:
        lead += "\nThreads met nowhere: no try failed and nobody waited."
        return Section(
            "contention", "Contention over time", lead, "Contention", [cells_table(runs)]
        )
    rows = [
        row for row in ROWS if any(any(run.of_cell(name, row[1])) for run in runs for name in names)
    ] or list(ROWS[:1])
    traces = []
    for c, name in enumerate(names[:MOST_CELLS]):
        for run in runs:
            for row, (_, counter, scale, unit) in enumerate(rows):
                rates = [value * scale for value in run.rates(run.of_cell(name, counter))]
                hover = f"%{{y:.3~s}}{unit}/s" if not unit else f"%{{y:.3~g}}{unit}/s"
                trace = steps(
                    run,
                    plain(name),
                    run.times,
                    rates,
                    CELL_COLOURS[c],
                    f"y{row + 1}" if row else "y",
                    hover,
                )
                traces.append({**trace, "showlegend": row == 0 and run.letter != "B"})
    layout: dict[str, Any] = {"annotations": []}
    share = 1 / len(rows)
    for row, (title, _, _, _) in enumerate(rows):
        top = 1 - row * share - 0.05
        layout[f"yaxis{row + 1 if row else ''}"] = {
            "domain": [top - share * 0.72 if row + 1 < len(rows) else 0, top],
            "rangemode": "tozero",
            "nticks": 5,
        }
        layout["annotations"].append(row_title(title, top))
    layout["xaxis"] = {**TIME_AXIS, "anchor": f"y{len(rows)}" if len(rows) > 1 else "y"}
    text = " ".join(run.name(busiest_moment(run)) for run in runs)
    plot = Plot(
        "contention-plot",
        "Where threads met, over time",
        text,
        traces,
        layout,
        90 + 145 * len(rows),
        contention_table(runs),
    )
    return Section("contention", "Contention over time", lead, "Contention", [plot])


def busiest_moment(run: Run) -> str:
    if not run.times:
        return "nothing was recorded."
    cells = [cell["at"] for cell in worst_first(run.contention)]
    waited = (
        [
            sum(values)
            for values in zip(*(run.rates(run.of_cell(name, "waited_ns")) for name in cells))
        ]
        if cells
        else []
    )
    if not waited or max(waited) <= 0:
        return "nobody waited while it was watched."
    i = waited.index(max(waited))
    begin = run.times[i - 1] if i else 0.0
    return (
        f"most was waited from {begin:.1f} to {run.times[i]:.1f} s: "
        f"{units.duration(waited[i] / 1e9)} each second."
    )


def contention_table(runs: list[Run]) -> Table:
    rows = []
    for run in runs:
        cells = [cell["at"] for cell in worst_first(run.contention)]
        sums = []
        for _, counter, _, _ in ROWS:
            rates = [run.rates(run.of_cell(name, counter)) for name in cells]
            sums.append(
                [sum(values) for values in zip(*rates)] if rates else [0.0] * len(run.times)
            )
        for i in thinned(len(run.times), 48 // len(runs)):
            told = [
                units.count(sums[0][i]),
                units.count(sums[1][i]),
                units.duration(sums[2][i] / 1e9),
            ]
            rows.append([run.name(f"{run.times[i]:.1f} s"), *told])
    return Table(
        "Contention at all places together, since the moment before",
        ("time", "failed tries/s", "waits/s", "waited/s"),
        rows,
    )


def cells_table(runs: list[Run]) -> Table:
    rows = []
    for run in runs:
        met = (
            worst_first(run.contention)
            or sorted(run.contention, key=lambda cell: -cell["count"])[:8]
        )
        for cell in met:
            share = units.percent(cell["failures"], cell["count"] + cell["failures"])
            row = [
                run.name(cell["at"]),
                units.count(cell["count"]),
                f"{cell['failures']:,} ({share})",
                f"{cell['waits']:,}",
            ]
            rows.append(
                [
                    *row,
                    units.duration(cell["waited_ns"] / 1e9) if cell["waited_ns"] else "0 s",
                    place_of(cell["at"]).what,
                ]
            )
    return Table(
        "Places where threads can meet",
        ("place", "passed", "failed tries", "waits", "waited", "what it is"),
        rows,
        words=(5,),
    )
