"""What is said at the end of `lanemalloc run`: what memory and contention were."""

from __future__ import annotations

from typing import Any

from lanemalloc import units
from lanemalloc.following import is_much
from lanemalloc.meetings import place_of, worst_first
from lanemalloc.oom import LEAST_GROWTH, Killed
from lanemalloc.recording import Recording
from lanemalloc.supervise import End

MOST_PLACES = 4
MOST_GROWN = 3


def end_json(
    recording: Recording,
    end: End,
    pid: int,
    figures: dict[str, Any] | None,
    others: list[dict[str, Any]],
) -> dict[str, Any]:
    """Everything that is known at the end of the program, process `pid`. `figures`: what the
    library wrote at its exit; `others`: and at that of the processes that it started."""
    last, when, of = chosen(recording, pid, figures, others)
    if last is not None:
        recording.peak_live = max(recording.peak_live, last["figures"].get("live_bytes", 0))
    # The kernel's own two figures differ by some pages; the larger one has been seen.
    largest = max(end.peak_resident, recording.peak_resident)
    exact = end.alone or recording.peak_resident == largest
    return {
        "seconds": round(end.seconds, 3),
        "cpu_seconds": round(end.cpu_seconds, 3),
        "status": end.status,
        "signal": end.signal,
        "peak_resident_bytes": largest if exact else recording.peak_resident,
        "peak_resident_exact": exact,
        "peak_resident_largest_bytes": largest,
        "peak_live_bytes": recording.peak_live,
        "peak_threads": recording.peak_threads,
        "library_threads": recording.own_threads,
        "from": when,
        "figures_of": of,
        "figures": last["figures"] if last else None,
        "entry": last["entry"] if last else None,
        "contention": last["contention"] if last else [],
        "children": others,
        "oom": end.oom.as_json() if end.oom else None,
    }


def chosen(
    recording: Recording, pid: int, figures: dict[str, Any] | None, others: list[dict[str, Any]]
) -> tuple[dict[str, Any] | None, str | None, int]:
    """What to tell, whether that is of the exit or of the last look, and of which process: of a
    program that allocated next to nothing, the process that was looked at, else the one that did
    most."""
    own = figures["figures"] if figures is not None else {}
    if is_much(own.get("allocations", 0), own.get("live_bytes", 0)):
        return figures, "exit", pid
    if recording.pid != pid:
        most = sorted(others, key=lambda one: -one["figures"]["allocations"])
        stand_ins = [one for one in most if recording.pid in (0, one["pid"])]
        if stand_ins and stand_ins[0]["figures"]["allocations"] > own.get("allocations", 0):
            return stand_ins[0], "exit", stand_ins[0]["pid"]
    if figures is None or recording.pid not in (0, pid):
        return recording.last, "last" if recording.last else None, recording.pid or pid
    return figures, "exit", pid


def text(recording: Recording, end: End, pid: int, summary: dict[str, Any]) -> str:
    """A few lines."""
    lines = [
        f"lanemalloc: {recording.command[0]}: {end.describe()} after {units.duration(end.seconds)}"
    ]
    figures = summary["figures"]
    if end.oom is not None:
        lines += oom_lines(end.oom, recording)
    if figures is None:
        lines += nothing_known(summary)
        return "\n".join(lines) + "\n"
    if summary["figures_of"] != pid:
        lines.append(
            f"  figures   of process {summary['figures_of']}, which it started: "
            f"{recording.command[0]} itself allocated next to nothing"
        )
    lines += memory_lines(summary, figures)
    lines += call_lines(summary, figures, end)
    lines += meeting_lines(summary["contention"])
    names = sum(one["pid"] != summary["figures_of"] for one in summary["children"])
    if names:
        lines.append(
            f"  children  {names} more ran with lanemalloc; --json has the figures of each"
        )
    return "\n".join(lines) + "\n"


def oom_lines(oom: Killed, recording: Recording) -> list[str]:
    """Who grew: processes, and in the program the objects."""
    lines = oom.lines()
    grown = [one for one in grown_objects(recording) if one[1] >= LEAST_GROWTH]
    if grown:
        named = ", ".join(f"{name} by {units.size(size)}" for name, size in grown[:MOST_GROWN])
        lines.append(f"  grew      live objects since the first look: {named}")
    return lines


def grown_objects(recording: Recording) -> list[tuple[str, int]]:
    """By how much live bytes grew from the first moment to the last: of large allocations, of each
    size class, of each heap and pool; the most first."""
    if len(recording.samples) < 2:
        return []
    first, last = (live_by_name(recording.samples[i].snapshot) for i in (0, -1))
    grown = [(name, size - first.get(name, 0)) for name, size in last.items()]
    return sorted(grown, key=lambda one: -one[1])


def live_by_name(snapshot: dict[str, Any]) -> dict[str, int]:
    found = {"large allocations": snapshot["figures"].get("large_live_bytes", 0)}
    for one in snapshot["classes"]:
        found[f"objects of {one['size']:,} bytes"] = one["live"] * one["size"]
    for one in snapshot["owners"]:
        found[f"{one['kind']} {one['name']}"] = one["used_bytes"]
    return found


def nothing_known(summary: dict[str, Any]) -> list[str]:
    return [
        f"  memory    peak RSS {peak_resident(summary)}",
        "  no figures: it did not use the library, or ended before it could be read",
        "  -> `lanemalloc doctor -- PROGRAM` tells what is in the way",
    ]


def peak_resident(summary: dict[str, Any]) -> str:
    """Of a program that has waited for others, the kernel tells the largest of them all."""
    peak, largest = summary["peak_resident_bytes"], summary["peak_resident_largest_bytes"]
    if summary["peak_resident_exact"]:
        return units.size(peak)
    if not peak:
        return f"at most {units.size(largest)}, that of the largest of its processes"
    return (
        f"{units.size(peak)} when last seen ({units.size(largest)} in the largest of its processes)"
    )


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
    most = units.threads(summary["peak_threads"], summary["library_threads"])
    threads = f", at most {most}" if summary["peak_threads"] else ""
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
