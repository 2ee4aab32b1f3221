"""`lanemalloc tune`: finds the options that suit a trace, tries them on the program itself, and
says so only where both gain more than runs differ among themselves, with the price beside it."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lanemalloc.ui import WithProgram, need

if TYPE_CHECKING:
    from lanemalloc.replays import How, Results
    from lanemalloc.trials import Effect

MEASURE = {"time": "seconds_in_calls", "memory": "peak_rss"}
OF_PROGRAM = {"time": "seconds", "memory": "peak_rss"}
DECAYS = ("0", "100", "1000", "10000", "-1")
DEFAULTS = {"lanes": "owned", "decay_ms": "1000"}
FINAL_ROUNDS = 7
FEWEST_ROUNDS = 4  # with fewer, after Ctrl-C, nothing is said to differ
LEAST_GAIN = 0.02  # what is smaller is not worth an option


@dataclass
class Outcome:
    """What the search found."""

    best: Results
    default: Results
    tried: int
    runs: int
    measure: str
    interrupted: bool = False
    program: dict[str, Effect] = field(default_factory=dict)  # what the program itself takes
    rounds: int = 0  # of the program

    @property
    def effects(self) -> dict[str, Effect]:
        """What the best one takes of what the defaults take, in replays."""
        from lanemalloc import replays
        from lanemalloc.trials import Effect

        return {
            measure: Effect.of(self.default.values(measure), self.best.values(measure), LEAST_GAIN)
            for measure in replays.MEASURES
            if measure in self.best.runs[0]
        }

    @property
    def is_candidate(self) -> bool:
        """Its replays take less than those of the defaults."""
        if self.best is self.default or len(self.best.runs) < FEWEST_ROUNDS:
            return False
        effect = self.effects[self.measure]
        return effect.is_sure and effect.ratio < 1

    @property
    def recommended(self) -> bool:
        """The program itself takes less, too."""
        goal = next(goal for goal, measure in MEASURE.items() if measure == self.measure)
        effect = self.program.get(OF_PROGRAM[goal])
        return self.is_candidate and effect is not None and effect.is_sure and effect.ratio < 1


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
    The defaults stay in throughout. Ctrl-C ends it: of the last runs whole rounds are kept, and
    before them the best so far."""
    from lanemalloc import allocators, replays
    from lanemalloc.progressing import bar
    from lanemalloc.replays import Results

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
    last: list[Results] = []

    def worth(result: Results) -> tuple[float, int]:
        return result.median(measure), len(result.allocator.options)

    with bar("searching") as progress:

        def once(result: Results) -> None:
            nonlocal runs
            result.runs.append(replays.run(plan, result.allocator, how))
            runs += 1
            progress(runs, most_runs)

        try:
            while True:
                for result in field:
                    once(result)
                field.sort(key=worth)
                keep = max(3, len(field) // 2)
                if len(field) <= 4 or runs + keep + 1 + finals > most_runs:
                    break
                field = field[:keep] + ([default] if default not in field[:keep] else [])
            field = [result for result in field if result is not default][:3]
            last = [Results(result.allocator) for result in (default, *field)]
            for i in range(FINAL_ROUNDS):
                for result in last if i % 2 == 0 else last[::-1]:
                    once(result)
        except KeyboardInterrupt:
            return kept(default, field, last, tried, runs, measure)
    best = min(last, key=worth)
    return Outcome(best, last[0], tried, runs, measure)


def kept(
    default: Results, field: list[Results], last: list[Results], tried: int, runs: int, measure: str
) -> Outcome:
    """Of a search that Ctrl-C has ended."""
    whole = min((len(result.runs) for result in last), default=0)
    if whole:
        for result in last:
            del result.runs[whole:]
        field, default = last, last[0]
    ran = [result for result in field if result.runs]
    if not default.runs:
        raise KeyboardInterrupt
    best = min(ran, key=lambda result: result.median(measure))
    return Outcome(best, default, tried, runs, measure, interrupted=True)


def verify(outcome: Outcome, program: list[str], rounds: int) -> None:
    """Runs the program itself in turn with the defaults and with the candidate."""
    from lanemalloc import trials
    from lanemalloc.progressing import bar

    with bar("running the program") as progress:
        before, after = trials.alternate(
            program, (outcome.default.allocator, outcome.best.allocator), rounds, progress
        )
    outcome.rounds = len(before)
    outcome.interrupted = outcome.rounds < rounds
    if outcome.rounds >= FEWEST_ROUNDS:
        outcome.program = {
            measure: trials.Effect.of(
                [run[measure] for run in before], [run[measure] for run in after], LEAST_GAIN
            )
            for measure in trials.MEASURES
        }


@click.command(
    cls=WithProgram,
    options_metavar="[OPTIONS]",
    epilog="""\b
Examples:
  lanemalloc tune job.parquet -- ./job --input data
  lanemalloc tune job.parquet --for memory --json -- ./job
  lanemalloc tune server.parquet -- sh -c './server & pid=$!; ./requests; kill $pid'
""",
)
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE [-- PROGRAM [ARGS]]")
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
@click.option(
    "--rounds",
    type=click.IntRange(FEWEST_ROUNDS),
    default=FINAL_ROUNDS,
    show_default=True,
    metavar="N",
    help="Runs of PROGRAM with each of the two.",
)
@click.option("--json", "as_json", is_flag=True, help="The result as JSON, on standard output.")
def tune(
    file: Path,
    goal: str,
    runs: int,
    process: int | None,
    touch: bool,
    pace: bool,
    rounds: int,
    as_json: bool,
) -> None:
    """Find the options that take the least time or memory on the trace FILE, and try them on
    PROGRAM.

    Options are recommended only where PROGRAM itself takes less with them than with the defaults,
    by more than runs differ among themselves; what they cost in time or memory stands beside.
    PROGRAM is run without input and terminal, and must end with status 0. Without it, what is found
    in replays is told, and nothing is recommended. Ctrl-C ends the runs; what they gave is told.
    """
    need("trace", "tune")
    from lanemalloc import replays
    from lanemalloc.progressing import bar
    from lanemalloc.replays import How
    from lanemalloc.tracefile import Trace

    program: list[str] = click.get_current_context().meta.get("program", [])
    trace = Trace(file)
    chosen = trace.process(process)
    how = How(touch=touch, pace=pace)
    replays.check_memory(chosen, how, "give --no-touch")
    with bar("reading the trace") as progress, replays.plan_of(trace, chosen, progress) as plan:
        outcome = search(plan, len(chosen["threads"]), MEASURE[goal], runs, how)
    if program and outcome.is_candidate and not outcome.interrupted:
        verify(outcome, program, rounds)
    if as_json:
        click.echo(json.dumps(as_facts(outcome, file, goal) | {"damaged": trace.what_is_lost()}))
    else:
        if trace.lost:
            click.echo(trace.what_is_lost())
        show(outcome, goal, file, trace.about.get("command", []))


def as_facts(outcome: Outcome, file: Path, goal: str) -> dict[str, Any]:
    return {
        "trace": str(file),
        "for": goal,
        "recommended": outcome.best.allocator.options if outcome.recommended else None,
        "candidate": outcome.best.allocator.options if outcome.is_candidate else None,
        "replays": {key: effect.as_json() for key, effect in outcome.effects.items()},
        "program": {key: effect.as_json() for key, effect in outcome.program.items()},
        "program_rounds": outcome.rounds,
        "best": outcome.best.as_json(),
        "default": outcome.default.as_json(),
        "tried": outcome.tried,
        "runs": outcome.runs,
        "interrupted": outcome.interrupted,
    }


def show(outcome: Outcome, goal: str, file: Path, command: list[str]) -> None:
    from rich.table import Table

    from lanemalloc import replays
    from lanemalloc.commands.replay import amount
    from lanemalloc.progressing import output

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
    for line in lines(outcome, goal, file, command):
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def lines(outcome: Outcome, goal: str, file: Path, command: list[str]) -> list[str]:
    """What is said below the table: the runs, what differs, and the advice."""
    from lanemalloc import replays, trials

    options = outcome.best.allocator.options
    ended = "; ended by Ctrl-C" if outcome.interrupted and not outcome.rounds else ""
    found = [
        f"{outcome.tried} sets of options tried in {outcome.runs} runs; "
        f"medians and quartiles of {len(outcome.best.runs)} alternating runs{ended}"
    ]
    keep = "keep the defaults: "
    if not outcome.is_candidate:
        if len(outcome.best.runs) < FEWEST_ROUNDS:
            return [*found, "that is too few runs to tell"]
        return [
            *found,
            f"{keep}nothing that was tried beats them by more than runs differ among themselves",
        ]
    found.append(f"replays with {options}: {trials.said(outcome.effects, replays.MEASURES)}")
    if outcome.program:
        effects = trials.said(outcome.program, trials.MEASURES)
        found.append(
            f"the program itself, {outcome.rounds} alternating runs of each"
            f"{', then Ctrl-C' if outcome.interrupted else ''}: {effects}"
        )
        if outcome.recommended:
            return [*found, f"LANEMALLOC_OPTIONS={options} is worth it for {goal}{price(outcome)}"]
        return [*found, f"{keep}the program itself does not gain {goal}"]
    again = f"lanemalloc tune {shlex.quote(str(file))} --for {goal} -- {shlex.join(command)}"
    return [*found, f"not recommended before the program itself has shown it: {again}"]


def price(outcome: Outcome) -> str:
    """What it takes more of, where that is sure."""
    from lanemalloc import trials

    dearer = [
        effect.text(trials.MEASURES[key])
        for key, effect in outcome.program.items()
        if effect.is_sure and effect.ratio > 1
    ]
    return f"; its price: {'; '.join(dearer)}" if dearer else ""
