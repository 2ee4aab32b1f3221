"""`lanemalloc tune`: finds the options that suit a trace,
and says so only where they beat the defaults beyond the noise."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from lanemalloc import allocators, replays
from lanemalloc.commands.replay import amount
from lanemalloc.progressing import bar, output
from lanemalloc.replays import How, Results
from lanemalloc.tracefile import Trace

MEASURE = {"time": "seconds_in_calls", "memory": "peak_rss"}
DECAYS = ("0", "100", "1000", "10000", "-1")
DEFAULTS = {"lanes": "owned", "decay_ms": "1000"}
FINAL_ROUNDS = 7
LEAST_GAIN = 0.02  # what is smaller is not worth an option


@dataclass
class Outcome:
    """What the search found."""

    best: Results
    default: Results
    tried: int
    runs: int
    measure: str

    @property
    def gain(self) -> float:
        """The share of the default's figure that the best one saves."""
        default = self.default.median(self.measure)
        return 1 - self.best.median(self.measure) / default if default else 0.0

    @property
    def recommended(self) -> bool:
        """The quartiles lie apart, and the medians by more than LEAST_GAIN."""
        if self.best is self.default:
            return False
        apart = self.best.quartiles(self.measure)[1] < self.default.quartiles(self.measure)[0]
        return apart and self.gain > LEAST_GAIN


def candidates(threads: int) -> list[str]:
    """Options to try, the defaults (no options) first. Of one thread's trace lanes make no
    difference: they are left out."""
    cpus = len(os.sched_getaffinity(0))
    lanes = ["owned"]
    if threads > 1:
        lanes += ["auto", "percpu", *(f"shared:{n}" for n in sorted({cpus, 2 * cpus, 4 * cpus}))]
    found = []
    for lane in lanes:
        for decay in DECAYS:
            parts = [
                f"{key}={value}"
                for key, value in (("lanes", lane), ("decay_ms", decay))
                if value != DEFAULTS[key]
            ]
            found.append(",".join(parts))
    return sorted(found, key=len)


def search(plan: Path, threads: int, measure: str, most_runs: int, how: How) -> Outcome:
    """Successive halving: all once; the better half again, with what they have; until three are
    left. Those and the defaults then run in turn FINAL_ROUNDS times, and only these runs decide.
    The defaults stay in throughout."""
    default = Results(allocators.parse("lanemalloc"))
    field = [default] + [
        Results(allocators.parse("lanemalloc", options))
        for options in candidates(threads)
        if options
    ]
    finals = 4 * FINAL_ROUNDS
    # What is left over does not fit in the bound: those that differ in the most options go first.
    field = field[: max(4, (most_runs - finals) // 2)]
    tried, runs = len(field), 0
    with bar("searching") as progress:
        while True:
            for result in field:
                result.runs.append(replays.run(plan, result.allocator, how))
                runs += 1
                progress(runs, most_runs)
            field.sort(key=lambda result: (result.median(measure), len(result.allocator.options)))
            keep = max(3, len(field) // 2)
            if len(field) <= 4 or runs + keep + 1 + finals > most_runs:
                break
            field = field[:keep] + ([default] if default not in field[:keep] else [])
        field = [result for result in field if result is not default][:3]
        last = [Results(result.allocator) for result in (default, *field)]
        for i in range(FINAL_ROUNDS):
            for result in last if i % 2 == 0 else last[::-1]:
                result.runs.append(replays.run(plan, result.allocator, how))
                runs += 1
                progress(runs, most_runs)
    best = min(last, key=lambda result: result.median(measure))
    return Outcome(best, last[0], tried, runs, measure)


@click.command(
    epilog="""\b
Examples:
  lanemalloc tune server.parquet
  lanemalloc tune server.parquet --for memory --touch --json
"""
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--for",
    "goal",
    type=click.Choice(sorted(MEASURE)),
    default="time",
    show_default=True,
    help="What shall be least: time in calls, or peak RSS.",
)
@click.option(
    "--runs",
    type=click.IntRange(40),
    default=90,
    show_default=True,
    metavar="N",
    help="At most so many replays.",
)
@click.option(
    "--process",
    type=int,
    metavar="N",
    help="Which of the trace's processes. [default: the busiest]",
)
@click.option(
    "--touch/--no-touch",
    default=True,
    show_default=True,
    help="Write to all memory, as a program would.",
)
@click.option(
    "--pace",
    is_flag=True,
    help="Make each call no earlier than it was made: what decay_ms does then counts, "
    "and a run takes as long as the program did.",
)
@click.option("--json", "as_json", is_flag=True, help="The result as JSON, on standard output.")
def tune(
    file: Path, goal: str, runs: int, process: int | None, touch: bool, pace: bool, as_json: bool
) -> None:
    """Find the options that take the least time or memory on the trace FILE.

    Options are recommended only where they beat the defaults by more than runs differ among
    themselves.
    """
    trace = Trace(file)
    chosen = trace.process(process)
    how = How(touch=touch, pace=pace)
    replays.check_memory(chosen, how, "give --no-touch")
    with bar("reading the trace") as progress, replays.plan_of(trace, chosen, progress) as plan:
        outcome = search(plan, len(chosen["threads"]), MEASURE[goal], runs, how)
    if as_json:
        click.echo(json.dumps(as_facts(outcome, file, goal)))
    else:
        show(outcome, goal)


def as_facts(outcome: Outcome, file: Path, goal: str) -> dict[str, Any]:
    return {
        "trace": str(file),
        "for": goal,
        "recommended": outcome.best.allocator.options if outcome.recommended else None,
        "gain": round(outcome.gain, 4),
        "best": outcome.best.as_json(),
        "default": outcome.default.as_json(),
        "tried": outcome.tried,
        "runs": outcome.runs,
    }


def show(outcome: Outcome, goal: str) -> None:
    console = output()
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("options", *replays.MEASURES.values()):
        table.add_column(name, justify="left" if name == "options" else "right")
    rows = [("defaults", outcome.default)]
    if outcome.best is not outcome.default:
        rows.append((outcome.best.allocator.options, outcome.best))
    for name, result in rows:
        cells = []
        for measure in replays.MEASURES:
            low, high = result.quartiles(measure)
            cells.append(
                f"{amount(measure, result.median(measure))} "
                f"({amount(measure, low)} to {amount(measure, high)})"
            )
        table.add_row(name, *cells)
    console.print(table, highlight=False)
    said = (
        f"{outcome.tried} sets of options tried in {outcome.runs} runs; "
        f"medians and quartiles of {FINAL_ROUNDS} alternating runs"
    )
    console.print(said, highlight=False, soft_wrap=True)
    if outcome.recommended:
        console.print(
            f"LANEMALLOC_OPTIONS={outcome.best.allocator.options} "
            f"takes {outcome.gain:.0%} less {goal}",
            highlight=False,
            soft_wrap=True,
        )
    else:
        console.print(
            "keep the defaults: nothing that was tried beats them "
            "by more than runs differ among themselves",
            highlight=False,
            soft_wrap=True,
        )
