"""The sections of a report, each from the recordings to text, plots and tables; here those that
have little of their own."""

from __future__ import annotations

from html import escape
from typing import Any

from lanemalloc import units
from lanemalloc.report import chord, differences
from lanemalloc.report.drawing import bar_style, byte_scale, plain
from lanemalloc.report.markup import Plot, Section, Table, figure
from lanemalloc.report.over_time import contention, memory
from lanemalloc.report.run import Run
from lanemalloc.report.slabs import classes, occupancy
from lanemalloc.report.waiting import waits

MOST_LANES = 32
MOST_OWNERS = 24


def sections(runs: list[Run]) -> list[Section]:
    """What there is to say of one run, or of two beside each other."""
    found = []
    if len(runs) == 2:
        found.append(comparison(runs[0], runs[1]))
    if any(run.samples for run in runs):
        found += [
            memory(runs),
            contention(runs),
            waits(runs),
            remote(runs),
            occupancy(runs),
            classes(runs),
            lanes(runs),
            owners(runs),
        ]
    elif any(run.contention for run in runs):
        found.append(waits(runs))
    return found


def comparison(a: Run, b: Run) -> Section:
    lead = (
        f"A is the first recording (lanes entered {a.entry}), B the second ({b.entry}). "
        "Curves of B are dotted."
    )
    if a.recording.machine != b.recording.machine:
        lead += (
            "\nThe two were recorded on machines that differ, "
            "so that times and rates may differ for that alone."
        )
    if a.recording.command != b.recording.command:
        lead += "\nThe two are of different commands."
    parts: list[Plot | Table | str] = [differences.table(a, b)]
    options = differences.options_table(a, b)
    parts.append(options or "<p>Their options are the same.</p>")
    return Section("comparison", "What differs", lead, "Differences", parts)


def remote(runs: list[Run]) -> Section:
    lead = (
        "An object that a thread of another lane frees goes back to the lane that had allocated "
        "it, in batches. A ribbon has the colour of the lane that frees, and ends a little before "
        "the lane whose memory it was."
    )
    parts: list[Plot | Table | str] = []
    for run in runs:
        flow = chord.flow_of(run.last.get("lanes", []))
        if not flow.total:
            why = (
                "it has one lane"
                if len(run.last.get("lanes", [])) == 1
                else "every lane freed its own, or batches are still being filled"
            )
            parts.append(
                f"<p>{escape(run.name(f'No batch went from one lane to another: {why}.'))}</p>"
            )
            continue
        largest = max(
            ((value, i, j) for i, row in enumerate(flow.batches) for j, value in enumerate(row)),
            key=lambda one: one[0],
        )
        text = run.name(
            f"{units.count(flow.total)} batches with about "
            f"{units.count(sum(map(sum, flow.objects)))} objects; most of them, "
            f"{units.percent(largest[0], flow.total)}, were of {flow.names[largest[2]]}, "
            f"freed by {flow.names[largest[1]]}."
        )
        if flow.grouped:
            text += f" {flow.grouped} less busy lanes are one group."
        title = run.name("Batches of freed objects, from lane to lane")
        parts.append(
            figure(title, chord.svg(flow, f"{title}. {text}"), text, flow_table(flow, run))
        )
    return Section("remote", "Who frees whose memory", lead, "Remote frees", parts)


def flow_table(flow: chord.Flow, run: Run) -> Table:
    rows = [
        [f"freed by {name}", *(f"{value:,}" if value else "0" for value in row), f"{sum(row):,}"]
        for name, row in zip(flow.names, flow.batches)
    ]
    head = ("batches", *(f"of {name}" for name in flow.names), "sum")
    return Table(run.name("Batches: who frees, of whose memory"), head, rows)


def lane_title(lane: dict[str, Any]) -> str:
    how, number = lane.get("entered", ""), lane.get("number", 0)
    if how == "percpu":
        return f"{lane['lane']} (CPU {number})"
    if how == "shared":
        return (
            f"{lane['lane']} (overflow)" if number is None else f"{lane['lane']} (shared {number})"
        )
    return (
        f"{lane['lane']} (thread {lane['thread']})"
        if lane.get("thread")
        else f"{lane['lane']} (no thread)"
    )


def lanes(runs: list[Run]) -> Section:
    lead = (
        "A lane is a little allocator that one thread is inside of at a time. "
        "A miss found its bin empty and took the slower path."
    )
    parts: list[Plot | Table | str] = []
    for run in runs:
        rows = sorted(run.last.get("lanes", []), key=lambda lane: -lane["allocations"])
        if not rows:
            parts.append(f"<p>{escape(run.name('No lane was recorded.'))}</p>")
            continue
        body = [lane_row(lane_title(lane), [lane]) for lane in rows[:MOST_LANES]]
        if len(rows) > MOST_LANES:
            body.append(lane_row(f"{len(rows) - MOST_LANES} others", rows[MOST_LANES:]))
        head = (
            "lane",
            "allocations",
            "missed",
            "freed for others",
            "failed tries",
            "waits",
            "waited",
            "memory held",
            "of it empty slabs",
        )
        parts.append(
            Table(
                run.name(f"Lanes, entered {run.entry}, those with most allocations first"),
                head,
                body,
            )
        )
    return Section("lanes", "Lanes", lead, "Lanes", parts)


def lane_row(name: str, members: list[dict[str, Any]]) -> list[str]:
    def total(key: str) -> int:
        return sum(int(lane[key]) for lane in members)

    waited = units.duration(total("waited_ns") / 1e9) if total("waited_ns") else "0 s"
    counts = [
        units.count(total("allocations")),
        units.percent(total("misses"), total("allocations")),
        units.count(total("remote_frees")),
    ]
    memory_of = [units.size(total("bytes_held")), units.size(total("bytes_empty"))]
    return [name, *counts, f"{total('failures'):,}", f"{total('waits'):,}", waited, *memory_of]


def owners(runs: list[Run]) -> Section:
    lead = (
        "First-class heaps and pools that the program made itself, with what they hold at the end."
    )
    parts: list[Plot | Table | str] = []
    for run in runs:
        rows = sorted(run.last.get("owners", []), key=lambda owner: -owner["peak_bytes"])
        if not rows:
            parts.append(
                f"<p>{escape(run.name('There were none: all memory is from malloc.'))}</p>"
            )
            continue
        parts.append(owners_plot(run, rows))
    return Section("heaps", "Heaps and pools", lead, "Heaps and pools", parts)


def owners_plot(run: Run, rows: list[dict[str, Any]]) -> Plot:
    names = [f"{owner['kind']} {owner['name'] or '(no name)'}" for owner in rows]
    shown = rows[:MOST_OWNERS]
    labels = [f"{i + 1}. {plain(name)}" for i, name in enumerate(names[:MOST_OWNERS])]
    scale, unit = byte_scale(max((owner["peak_bytes"] for owner in rows), default=0))
    traces = []
    for i, (name, key, colour) in enumerate(
        (("peak", "peak_bytes", "@orange"), ("used at the end", "used_bytes", "@green"))
    ):
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": labels,
                "x": [round(owner[key] / scale, 4) for owner in shown],
                "marker": bar_style(colour, i),
                "hovertemplate": f"%{{x:.3~g}} {unit}",
            }
        )
    layout = {"barmode": "group", "xaxis": {"title": {"text": unit}}, "hovermode": "y unified"}
    layout["yaxis"] = {"type": "category", "showgrid": False, "autorange": "reversed"}
    body = []
    for name, owner in zip(names, rows):
        limit = units.size(owner["limit_bytes"]) if owner["limit_bytes"] else "none"
        share = (
            units.percent(owner["peak_bytes"], owner["limit_bytes"])
            if owner["limit_bytes"]
            else "-"
        )
        sizes = [
            units.size(owner["used_bytes"]),
            units.size(owner["peak_bytes"]),
            limit,
            share,
            units.size(owner["slab_bytes"]),
        ]
        body.append([name, *sizes, f"{owner['live']:,}", f"{owner['contended']:,}"])
    head = ("name", "used", "peak", "limit", "peak of limit", "slabs", "objects", "found locked")
    table = Table(run.name("Heaps and pools, each with its budget"), head, body)
    text = run.name(
        f"{len(rows)} heaps and pools; the largest, {names[0]}, "
        f"had {units.size(rows[0]['peak_bytes'])} at its peak."
    )
    return Plot(
        f"owners-plot{run.letter}",
        run.name("Heaps and pools"),
        text,
        traces,
        layout,
        110 + 40 * len(shown),
        table,
    )
