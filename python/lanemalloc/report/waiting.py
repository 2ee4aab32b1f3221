"""The section of waits: by the place where threads waited, and by how long it took."""

from __future__ import annotations

from html import escape
from typing import Any

from lanemalloc import units
from lanemalloc.meetings import place_of, worst_first
from lanemalloc.report.drawing import CELL_COLOURS, MOST_CELLS, bar_style, plain
from lanemalloc.report.markup import Plot, Section, Table
from lanemalloc.report.over_time import cells_met, cells_table
from lanemalloc.report.run import Run


def bucket_names(count: int) -> list[str]:
    """Bucket i is shorter than 2^i microseconds, the last one all others."""

    def edge(i: int) -> str:
        return f"{2**i} µs" if i < 10 else f"{2 ** (i - 10)} ms"

    inner = [
        f"{edge(i - 1) if i == 10 else edge(i - 1).split()[0]}–{edge(i)}"
        for i in range(1, count - 1)
    ]
    return [f"< {edge(0)}", *inner, f"≥ {edge(count - 2)}"][:count]


def waits(runs: list[Run]) -> Section:
    names = [
        name
        for name in cells_met(runs)
        if any(cell["at"] == name and cell["waits"] for run in runs for cell in run.contention)
    ]
    lead = "By the place where threads waited, and by how long a wait took."
    if not names:
        parts_without: list[Plot | Table | str] = [cells_table(runs)] if cells_met(runs) else []
        return Section("waits", "Waits", lead + "\nNobody waited.", "Waits", parts_without)
    parts: list[Plot | Table | str] = [
        advice(runs),
        cause_plot(runs, names),
        length_plot(runs, names),
    ]
    return Section("waits", "Waits by cause and length", lead, "Waits", parts)


def advice(runs: list[Run]) -> str:
    items = []
    for run in runs:
        for cell in worst_first(run.contention)[:3]:
            place = place_of(cell["at"])
            if cell["waited_ns"] >= 1_000_000 and place.advice:
                waited = units.duration(cell["waited_ns"] / 1e9)
                head = run.name(f"{cell['at']}, {waited}")
                items.append(
                    f"<li><strong>{escape(head)}</strong>: {escape(place.what)}. "
                    f"To wait less there: {escape(place.advice)}.</li>"
                )
    return f"<ul>{''.join(items)}</ul>" if items else ""


def cause_plot(runs: list[Run], names: list[str]) -> Plot:
    shown = names[:MOST_CELLS]
    most = max((cell["waited_ns"] for run in runs for cell in run.contention), default=0)
    scale, unit = (1e-9, "s") if most >= 1e9 else (1e-6, "ms") if most >= 1e6 else (1e-3, "µs")
    traces = []
    for i, run in enumerate(runs):
        cells = {cell["at"]: cell for cell in run.contention}
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": run.name("waited"),
                "y": [plain(name) for name in shown],
                "x": [round(cells.get(name, {}).get("waited_ns", 0) * scale, 4) for name in shown],
                "marker": bar_style("@blue" if i == 0 else "@orange", i),
                "hovertemplate": f"%{{x:.3~g}} {unit}",
            }
        )
    layout = {
        "barmode": "group", "xaxis": {"title": {"text": f"waited, {unit} of all threads"}},
        "yaxis": {"showgrid": False, "autorange": "reversed"},
        "hovermode": "closest",
    }  # fmt: skip
    worst = "; ".join([run.name(worst_cause(run)) for run in runs])
    height = 110 + 34 * len(shown) * len(runs)
    return Plot(
        "cause-plot",
        "Time waited, by place",
        worst + ".",
        traces,
        layout,
        height,
        cells_table(runs),
    )


def worst_cause(run: Run) -> str:
    worst = [cell for cell in worst_first(run.contention) if cell["waits"]]
    if not worst:
        return "nobody waited"
    first = worst[0]
    share = units.percent(first["waited_ns"], sum(cell["waited_ns"] for cell in worst))
    return f"{share} of the time at “{first['at']}”, {place_of(first['at']).what}"


def length_plot(runs: list[Run], names: list[str]) -> Plot:
    count = max((len(cell["waits_by_time"]) for run in runs for cell in run.contention), default=16)
    buckets = bucket_names(count)
    traces = []
    rows: list[list[str]] = [[name] for name in buckets]
    head = ["length"]
    for i, run in enumerate(runs):
        cells = {cell["at"]: cell["waits_by_time"] for cell in run.contention}
        if len(runs) == 1:
            for c, name in enumerate(names[:MOST_CELLS]):
                traces.append(
                    length_bars(
                        plain(name), buckets, cells.get(name, []), bar_style(CELL_COLOURS[c], c)
                    )
                )
        together = [sum(row[b] for row in cells.values() if b < len(row)) for b in range(count)]
        if len(runs) == 2:
            traces.append(
                length_bars(
                    run.name("all places"),
                    buckets,
                    together,
                    bar_style("@blue" if i == 0 else "@orange", i),
                )
            )
        head += [run.name("waits"), run.name("share")]
        for row, value in zip(rows, together):
            row += [f"{value:,}", units.percent(value, sum(together))]
    layout = {
        "barmode": "stack" if len(runs) == 1 else "group", "bargap": 0.15,
        "yaxis": {"title": {"text": "waits"}, "rangemode": "tozero"},
        "xaxis": {"type": "category", "tickangle": -60, "showgrid": False},
    }  # fmt: skip
    text = "; ".join([run.name(typical_wait(run)) for run in runs]) + "."
    return Plot(
        "length-plot",
        "How long a wait took",
        text,
        traces,
        layout,
        340,
        Table("Waits by their length", head, rows),
    )


def length_bars(
    name: str, buckets: list[str], values: list[int], marker: dict[str, Any]
) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": name,
        "x": buckets,
        "y": values,
        "marker": marker,
        "hovertemplate": "%{y:,} waits",
    }


def typical_wait(run: Run) -> str:
    together = [sum(values) for values in zip(*(cell["waits_by_time"] for cell in run.contention))]
    if not sum(together):
        return "nobody waited"
    seen, names = 0, bucket_names(len(together))
    for name, value in zip(names, together):
        seen += value
        if seen * 2 >= sum(together):
            return (
                f"the median wait took {name}; "
                f"{units.percent(together[-1], sum(together))} took {names[-1]}"
            )
    return ""
