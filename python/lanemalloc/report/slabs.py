"""Sections of slabs: how full they are, and what the memory of each size class is used for."""

from __future__ import annotations

from html import escape
from typing import Any

from lanemalloc import units
from lanemalloc.report.drawing import byte_scale, hatched
from lanemalloc.report.markup import Plot, Section, Table
from lanemalloc.report.run import Run

MOST_CLASSES = 24
FILL_NAMES = ("empty", "≤ ⅛", "≤ ¼", "≤ ⅜", "≤ ½", "≤ ⅝", "≤ ¾", "≤ ⅞", "< full", "full")


def class_name(size: int) -> str:
    return f"{size >> 10} KiB" if size >= 16 << 10 and size % 1024 == 0 else f"{size:,} B"


def occupancy(runs: list[Run]) -> Section:
    lead = (
        "Slabs of each size class, by how many of their objects are in use; objects that wait in "
        "lanes' bins or are on their way to their lane count as in use here. Numbers are slabs; "
        "the stronger its colour, the more memory a field has. Much at the left is fragmentation: "
        "few objects hold many slabs."
    )
    parts: list[Plot | Table | str] = []
    for run in runs:
        moments = (
            [("peak", run.peak)]
            if len(runs) == 2
            else [("peak", run.peak), ("end", run.samples[-1] if run.samples else None)]
        )
        for key, sample in moments:
            if sample is None:
                continue
            when = (
                f"when most bytes were live, at {sample.at:.1f} s"
                if key == "peak"
                else f"at the end, at {sample.at:.1f} s"
            )
            rows = [
                row for row in sample.snapshot.get("classes", []) if sum(row.get("by_fill", []))
            ]
            if not rows:
                parts.append(
                    f"""<p>{
                        escape(
                            run.name(f"No slab was in use {when}, or the recording does not tell.")
                        )
                    }</p>"""
                )
                continue
            parts.append(fill_map(run, key, when, rows))
    return Section("slabs", "How full slabs are", lead, "Slabs", parts)


def fill_map(run: Run, key: str, when: str, rows: list[dict[str, Any]]) -> Plot:
    ordered = sorted(rows, key=lambda row: row["size"])
    most = sorted(ordered, key=lambda row: -row["slab_bytes"])[:MOST_CLASSES]
    shown = [row for row in ordered if row in most]
    each = [row["slab_bytes"] / max(row["slabs"], 1) for row in shown]
    values = [[count * size for count in row["by_fill"]] for row, size in zip(shown, each)]
    scale, unit = byte_scale(max(map(max, values)))
    told = [
        [units.size(count * size) for count in row["by_fill"]] for row, size in zip(shown, each)
    ]
    trace = {
        "type": "heatmap",
        "x": list(FILL_NAMES),
        "y": [class_name(row["size"]) for row in shown],
        "z": [[round(v / scale, 4) if v else None for v in line] for line in values],
        "text": [
            [units.short_count(count) if count else "" for count in row["by_fill"]] for row in shown
        ],
        "texttemplate": "%{text}",
        "customdata": told,
        "hovertemplate": "objects of %{y}, %{x}: %{text} slabs, %{customdata}<extra></extra>",
        "colorscale": [[0, "@least"], [0.5, "@middle"], [1, "@most"]],
        "zmin": 0,
        "xgap": 2,
        "ygap": 2,
        "colorbar": {"title": {"text": unit}, "thickness": 10, "outlinewidth": 0},
    }
    layout = {
        "xaxis": {
            "type": "category",
            "title": {"text": "share of a slab's objects in use"},
            "showgrid": False,
            "tickangle": -45,
        },
        "yaxis": {"type": "category", "showgrid": False, "autorange": "reversed", "dtick": 1},
        "hovermode": "closest",
    }
    table = Table(
        run.name(f"Slabs by class and fill, {when}"),
        ("size of objects", *FILL_NAMES, "slabs", "memory"),
        [
            [
                class_name(row["size"]),
                *(f"{count:,}" for count in row["by_fill"]),
                f"{row['slabs']:,}",
                units.size(row["slab_bytes"]),
            ]
            for row in ordered
        ],
    )
    text = run.name(fill_text(ordered)) + (
        ""
        if len(shown) == len(ordered)
        else f" Shown are the {len(shown)} classes with most memory."
    )
    height = 150 + 20 * len(shown)
    return Plot(
        f"fill-{key}{run.letter}", run.name(f"Slabs {when}"), text, [trace], layout, height, table
    )


def fill_text(rows: list[dict[str, Any]]) -> str:
    total = sum(row["slab_bytes"] for row in rows)
    slabs = sum(row["slabs"] for row in rows)

    def memory_of(low: int, high: int) -> float:
        parts: list[float] = [
            sum(row["by_fill"][low:high]) * row["slab_bytes"] / max(row["slabs"], 1) for row in rows
        ]
        return sum(parts)

    empty, half = memory_of(0, 1), memory_of(1, 5)
    return (
        f"{slabs:,} slabs with {units.size(total)}: "
        f"{units.percent(empty, total)} of the memory is in empty slabs, "
        f"{units.percent(half, total)} in slabs that are at most half in use, "
        f"{units.percent(memory_of(9, 10), total)} in full ones."
    )


CLASS_PARTS = (
    ("asked for (estimate)", "@green", ""),
    ("slack inside objects (estimate)", "@ochre", "/"),
    ("waiting in bins", "@blue", ""),
    ("in flight", "@purple", "x"),
    ("free in slabs", "@orange", "\\"),
)


def class_parts(row: dict[str, Any]) -> list[float]:
    """The memory of a class' slabs, divided as CLASS_PARTS says."""
    size = row["size"]
    below = row.get("below", size)
    live = row["live"] * size
    slack = row["live"] * max(size - below - 1, 0) / 2
    waiting, in_flight = row["waiting"] * size, row["in_flight"] * size
    return [
        live - slack,
        slack,
        waiting,
        in_flight,
        max(row["slab_bytes"] - live - waiting - in_flight, 0),
    ]


def classes(runs: list[Run]) -> Section:
    lead = (
        "What the memory of each class' slabs is used for when most bytes were live. Slack is what "
        "lies between the size asked for and its class: an estimate, half of the step to the class "
        "below for each object, for the sizes asked for are not kept."
    )
    parts: list[Plot | Table | str] = []
    for run in runs:
        rows = run.peak.snapshot.get("classes", []) if run.peak else []
        rows = sorted(
            (row for row in rows if row["slab_bytes"] or row["live"]), key=lambda row: row["size"]
        )
        if rows:
            parts.append(classes_plot(run, rows))
        else:
            parts.append(f"<p>{escape(run.name('No size class was in use.'))}</p>")
    return Section("classes", "Size classes: use and slack", lead, "Size classes", parts)


def classes_plot(run: Run, rows: list[dict[str, Any]]) -> Plot:
    most = sorted(rows, key=lambda row: -row["slab_bytes"])[:MOST_CLASSES]
    shown = [row for row in rows if row in most]
    divided = [class_parts(row) for row in shown]
    scale, unit = byte_scale(max((sum(one) for one in divided), default=0.0))
    traces = []
    for i, (name, colour, shape) in enumerate(CLASS_PARTS):
        marker = hatched(colour, shape)
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": [class_name(row["size"]) for row in shown],
                "x": [round(one[i] / scale, 4) for one in divided],
                "marker": marker,
                "hovertemplate": f"%{{x:.3~g}} {unit}",
            }
        )
    layout = {
        "barmode": "stack", "bargap": 0.25, "xaxis": {"title": {"text": unit}},
        "hovermode": "y unified",
        "yaxis": {"type": "category", "dtick": 1, "showgrid": False, "autorange": "reversed"},
    }  # fmt: skip
    sums = [sum(one) for one in zip(*map(class_parts, rows))]
    total = sum(sums)
    text = run.name(
        f"{units.percent(sums[0] + sums[1], total)} of {units.size(total)} in slabs is live, "
        f"with {units.size(sums[1])} of slack inside; {units.size(sums[2])} waits in bins, "
        f"{units.size(sums[3])} is in flight, {units.size(sums[4])} is free."
    )
    if len(shown) < len(rows):
        text += f" Shown are the {len(shown)} classes with most memory."
    height = 130 + 22 * len(shown)
    title = run.name("Use of the memory of each class")
    return Plot(
        f"classes-plot{run.letter}", title, text, traces, layout, height, classes_table(run, rows)
    )


def classes_table(run: Run, rows: list[dict[str, Any]]) -> Table:
    body = []
    for row in rows:
        asked, slack, *_, free = class_parts(row)
        numbers = [
            units.count(row["allocations"]),
            units.count(row["live"]),
            units.count(row["waiting"]),
            units.count(row["in_flight"]),
        ]
        memory_of = [f"{row['slabs']:,}", units.size(row["slab_bytes"])]
        shares = [
            units.percent(asked + slack, row["slab_bytes"]),
            units.percent(slack, asked + slack),
            units.size(free),
        ]
        body.append([class_name(row["size"]), *numbers, *memory_of, *shares])
    head = (
        "size",
        "allocations",
        "live",
        "in bins",
        "in flight",
        "slabs",
        "memory",
        "live share",
        "slack of live",
        "free in slabs",
    )
    return Table(run.name("Size classes with most bytes live"), head, body)
