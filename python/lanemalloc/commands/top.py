"""lanemalloc top: what the allocators of running processes do, live."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING

import click

from lanemalloc import units
from lanemalloc.ui import Problem, pids_of

if TYPE_CHECKING:
    from lanemalloc.live.model import Session


@click.command(
    epilog="""\b
Examples:
  lanemalloc top
  lanemalloc top 4711 4712
  lanemalloc top --json --count 10 4711
"""
)
@click.argument("pids", nargs=-1, callback=pids_of, metavar="[PID]...")
@click.option(
    "-d",
    "--delay",
    type=click.FloatRange(0.05, 3600),
    default=0.5,
    show_default=True,
    help="Seconds between refreshes.",
)
@click.option("--once", is_flag=True, help="Print one picture and leave.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON at each refresh.")
@click.option(
    "-n", "--count", type=click.IntRange(min=1), help="With --json: leave after so many lines."
)
@click.option("--ascii", "plain", is_flag=True, help="Draw with plain characters.")
def top(
    pids: tuple[int, ...], delay: float, once: bool, as_json: bool, count: int | None, plain: bool
) -> None:
    """Show live what the allocator of each process PID does;
    without a PID, choose among those that run with lanemalloc.

    Only reads, and never stops them. In the view F1 or h tells the keys.
    """
    from lanemalloc.live.model import Session

    live = not once and not as_json
    if not pids:
        pids = (choose(live),)
    sessions = [Session(pid) for pid in pids]
    for session in sessions:
        session.open()
        session.refresh(first=True)
    if as_json:
        print_json(sessions, delay, 1 if once else count)
    elif once:
        print_once(sessions, delay, plain)
    else:
        show(sessions, delay, plain)


def choose(live: bool) -> int:
    """The only one, or the one that the person picks."""
    from lanemalloc.live.model import Candidate, candidates

    found = candidates()
    if not found:
        raise Problem(
            "no process that this user may read runs with lanemalloc",
            "start one with `lanemalloc run -- PROGRAM`; those of other users only root sees",
        )
    if len(found) == 1:
        return found[0].pid

    def line(i: int, one: Candidate) -> str:
        return f"{i:>3}  {one.pid:>8}  {units.size(one.resident):>10}  {one.command[:80]}"

    listing = "\n".join(line(i, one) for i, one in enumerate(found, 1))
    if not live or not sys.stdin.isatty():
        raise Problem(
            f"several processes run with lanemalloc:\n{listing}", "say which: lanemalloc top PID"
        )
    click.echo(f"  #       PID         RSS  COMMAND\n{listing}")
    number: int = click.prompt("which", type=click.IntRange(1, len(found)), default=1)
    return found[number - 1].pid


def print_json(sessions: list[Session], delay: float, count: int | None) -> None:
    """A line each at every refresh, until none of them is there any more."""
    from lanemalloc.figures import rates_json, snapshot_json

    done = 0
    while not all(session.ended for session in sessions):
        time.sleep(delay)
        for session in sessions:
            session.refresh()
            if session.snapshot is None or session.ended:
                continue
            line = snapshot_json(session.snapshot)
            if session.rates is not None:
                line["rates"] = rates_json(session.rates, session.snapshot)
            click.echo(json.dumps(line))
        done += 1
        if done == count:
            return


def print_once(sessions: list[Session], delay: float, plain: bool) -> None:
    """All panels, one under the other."""
    from lanemalloc.live import view

    time.sleep(delay)
    width = shutil.get_terminal_size((120, 24)).columns
    for session in sessions:
        session.refresh(first=True)
        state = view.State([session], ascii=plain)
        lines = view.header(state, width, 24)[:-1]
        for panel in range(1, len(view.PANELS)):
            state.panel = panel
            table = view.arranged(state, panel, width)
            lines += [[("", "")], view.caption(state, table, 0, len(table.rows))]
            lines += view.table_lines(table, width, len(table.rows))
        click.echo(view.plain(lines))


def show(sessions: list[Session], delay: float, plain: bool) -> None:
    if not sys.stdout.isatty() or not sys.stdin.isatty():
        raise Problem(
            "the live view needs a terminal",
            "`--once` prints one picture, `--json` a line at each refresh",
        )
    if os.environ.get("TERM", "") in ("", "dumb"):
        raise Problem(
            "this terminal cannot move its cursor (TERM says so)", "`--once` prints one picture"
        )
    import curses

    from lanemalloc.live import screen, view

    try:
        screen.show(view.State(sessions, interval=delay, ascii=plain))
    except curses.error as error:
        raise Problem(
            f"the terminal cannot be used: {error}", "`--once` prints one picture"
        ) from None
    except KeyboardInterrupt:
        pass
    for session in sessions:
        if session.ended:
            click.echo(session.trouble, err=True)
