"""What is said at the end of `lanemalloc run`: what memory and contention were."""

from __future__ import annotations

from typing import Any

from lanemalloc import units
from lanemalloc.meetings import place_of, worst_first
from lanemalloc.recording import Recording
from lanemalloc.supervise import End

MOST_PLACES = 4


def end_json(
    recording: Recording, end: End, figures: dict[str, Any] | None, others: list[dict[str, Any]]
) -> dict[str, Any]:
    """Everything that is known at the end. `figures`: what the library wrote at exit."""
    last = figures or recording.last
    return {
        "seconds": round(end.seconds, 3),
        "cpu_seconds": round(end.cpu_seconds, 3),
        "status": end.status,
        "signal": end.signal,
        "peak_resident_bytes": end.peak_resident or recording.peak_resident,
        "peak_resident_limit_bytes": end.peak_limit,
        "peak_live_bytes": recording.peak_live,
        "peak_threads": recording.peak_threads,
        "from": "exit" if figures else "last" if last else None,
        "figures": last["figures"] if last else None,
        "entry": last["entry"] if last else None,
        "contention": last["contention"] if last else [],
        "children": others,
    }


def text(recording: Recording, end: End, summary: dict[str, Any]) -> str:
    """A few lines."""
    lines = [
        f"lanemalloc: {recording.command[0]}: {end.describe()} after {units.duration(end.seconds)}"
    ]
    figures = summary["figures"]
    if figures is None:
        lines += nothing_known(summary)
        return "\n".join(lines) + "\n"
    lines += memory_lines(summary, figures)
    lines += call_lines(summary, figures, end)
    lines += meeting_lines(summary["contention"])
    if summary["children"]:
        names = len(summary["children"])
        lines.append(
            f"  children  {names} more ran with lanemalloc; --json has the figures of each"
        )
    return "\n".join(lines) + "\n"


def nothing_known(summary: dict[str, Any]) -> list[str]:
    return [
        f"  memory    peak RSS {peak_resident(summary)}",
        "  no figures: it did not use the library, or ended before it could be read",
        "  -> `lanemalloc doctor -- PROGRAM` tells what is in the way",
    ]


def peak_resident(summary: dict[str, Any]) -> str:
    """Of programs that are smaller than this one and end at once only that is known."""
    peak = summary["peak_resident_bytes"]
    return units.size(peak) if peak else f"below {units.size(summary['peak_resident_limit_bytes'])}"


def memory_lines(summary: dict[str, Any], figures: dict[str, int]) -> list[str]:
    when = "at exit" if summary["from"] == "exit" else "when last seen"
    peak = summary["peak_live_bytes"]
    live = f"live {when} {units.size(figures['live_bytes'])} in {figures['live_objects']:,} objects"
    if peak > figures["live_bytes"]:
        live += f" (at least {units.size(peak)} once)"
    return [
        f"  memory    peak RSS {peak_resident(summary)}; {live}; "
        f"cached {units.size(figures.get('cached_bytes', 0))}"
    ]


def call_lines(summary: dict[str, Any], figures: dict[str, int], end: End) -> list[str]:
    calls = figures["allocations"]
    rate = f" ({units.count(calls / end.seconds)}/s)" if end.seconds > 0.05 else ""
    remote = units.percent(figures["remote_frees"], figures["frees"])
    misses = units.percent(figures["misses"], calls)
    threads = f", {summary['peak_threads']} threads at most" if summary["peak_threads"] else ""
    return [
        f"  calls     {units.count(calls)} allocations{rate}: {misses} found their bin empty; "
        f"{remote} were freed by another lane",
        f"  lanes     {figures['lanes']}, entered {summary['entry']}{threads}",
    ]


def meeting_lines(cells: list[dict[str, Any]]) -> list[str]:
    """The places where most time was lost, and what to do about those where threads waited."""
    worst = worst_first(cells)
    if not worst:
        return ["  threads met nowhere"]
    lines = ["  threads met"]
    for cell in worst[:MOST_PLACES]:
        place = place_of(cell["at"])
        waited = (
            f"{cell['waits']:,} waits, {units.duration(cell['waited_ns'] / 1e9)}"
            if cell["waits"]
            else "no waits"
        )
        share = units.percent(cell["failures"], cell["count"] + cell["failures"])
        lines.append(
            f"    {cell['at']:<15} {cell['failures']:,} failed tries ({share}), {waited}: "
            f"{place.what}"
        )
        if cell["waited_ns"] >= 1_000_000 and place.advice:
            lines.append(f"    {'':<15} -> {place.advice}")
    if len(worst) > MOST_PLACES:
        lines.append(f"    and {len(worst) - MOST_PLACES} more places with less")
    return lines
