"""lanemalloc explain: where a process' resident memory is, and what shrinks each part of it."""

from __future__ import annotations

import json
import shutil
import textwrap
from typing import TYPE_CHECKING

import click

from lanemalloc import units
from lanemalloc.ui import pid_of

if TYPE_CHECKING:
    from lanemalloc.waterfall import Band, Explanation

LEAST_SHOWN = 0.002  # of the resident memory: smaller savings are not advised
MOST_ADVICE = 5


@click.command(
    epilog="""\b
Examples:
  lanemalloc explain 4711
  lanemalloc explain -v $(pgrep -n server)
  lanemalloc explain --json 4711
"""
)
@click.argument("pid", callback=pid_of)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("-v", "--verbose", is_flag=True, help="Name the largest pieces of each band.")
def explain(pid: int, as_json: bool, verbose: bool) -> None:
    """Show where the resident memory of process PID is, from its limit down to live objects.

    Each band has a cause; below stands what shrinks them, and by how much, the largest first. The
    process is only read, and goes on.
    """
    from lanemalloc import waterfall
    from lanemalloc.reader import Reader

    explanation = waterfall.explain(Reader.open(pid), pid)
    if as_json:
        click.echo(json.dumps(waterfall.as_json(explanation), indent=1))
        return
    width = min(shutil.get_terminal_size((110, 24)).columns, 140)
    click.echo("\n".join(picture(explanation, width, verbose)))


def picture(e: Explanation, width: int, verbose: bool) -> list[str]:
    s = e.snapshot
    threads = units.threads(s.process.threads, s.own_threads)
    lines = [
        f"{s.process.name} (pid {s.process.pid}), {threads}, "
        f"{len(s.lanes)} lanes, entered {s.entry}",
        "",
    ]
    lines += limits(e)
    lines += [f"{'resident memory':<32}{units.size(e.resident):>11}"]
    above = 0
    for band in e.bands:
        lines += band_lines(e, band, above, width, verbose)
        above += band.bytes
    if e.slack:
        about = "about " if e.slack_is_estimate else ""
        why = (
            "sizes are rounded up to their class; an estimate, half a step an object"
            if e.slack_is_estimate
            else "by what was sampled"
        )
        lines.append(f"  {'  of these, slack inside':<30}{about + units.size(e.slack):>11}  {why}")
    lines += [
        f"{'  sum of the bands':<32}{units.size(e.accounted):>11}  "
        f"{units.percent(e.accounted, e.resident)} of it",
        "",
    ]
    lines += advice(e, width)
    lines += [f"note: {note}" for note in e.notes]
    return lines


def limits(e: Explanation) -> list[str]:
    """What lies above the process."""
    if e.group is None:
        return []
    used, lines = e.group.used, []
    if e.group.limit is not None:
        free = max(0, e.group.limit - used)
        lines.append(
            f"{'limit of the control group':<32}{units.size(e.group.limit):>11}  "
            f"{units.size(free)} are left ({e.group.path})"
        )
    what = [f"{name} {units.size(size)}" for name, size in e.group.parts.items() if size]
    lines.append(f"{'used by the control group':<32}{units.size(used):>11}  {', '.join(what)}")
    if e.swapped:
        lines.append(f"{'swapped out':<32}{units.size(e.swapped):>11}")
    return lines


def band_lines(e: Explanation, band: Band, above: int, width: int, verbose: bool) -> list[str]:
    """A bar that begins where that of the band above ends, then the cause."""
    room = max(10, min(30, width - 80))
    begin = round(above / max(e.resident, 1) * room)
    end = max(begin + 1, round((above + band.bytes) / max(e.resident, 1) * room))
    drawn = (" " * begin + "█" * (end - begin))[: room + 1].ljust(room + 1)
    head = (
        f"  {band.name:<30}{units.size(band.bytes):>11} "
        f"{units.percent(band.bytes, e.resident):>8}  {drawn}"
    )
    lines = [head.rstrip()]
    lines += textwrap.wrap(band.cause, width - 6, initial_indent=" " * 6, subsequent_indent=" " * 6)
    if verbose:
        lines += [f"        {detail}" for detail in band.details]
    return lines


def advice(e: Explanation, width: int) -> list[str]:
    """The largest band by name, whether it can be shrunk or not; then what can, the most first."""
    largest = max(e.bands, key=lambda band: band.bytes)
    share = units.percent(largest.bytes, e.resident)
    lines = [f"Most of it: {largest.name}, {units.size(largest.bytes)} ({share})"]
    lines += [f"  {detail}" for detail in largest.details[:3]]
    return [*lines, "", *remedies(e, width)]


def remedies(e: Explanation, width: int) -> list[str]:
    worth = [band for band in e.advice() if band.saves >= LEAST_SHOWN * e.resident][:MOST_ADVICE]
    if not worth:
        return ["Nothing of it is worth shrinking: what is there is in use."]
    lines = ["What shrinks it, the most first:"]
    for i, band in enumerate(worth, 1):
        about = "about " if band.key == "fragments" else ""
        text = f"{i}. {band.name}: {about}{units.size(band.saves)} by: {band.remedy}"
        lines += textwrap.wrap(text, width - 2, initial_indent="  ", subsequent_indent="     ")
        lines += [f"     {detail}" for detail in band.details[:3]]
    return lines
