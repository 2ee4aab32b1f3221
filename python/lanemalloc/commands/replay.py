"""`lanemalloc replay`: makes the calls of a trace again, under any allocator, and measures them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lanemalloc.ui import need

if TYPE_CHECKING:
    from lanemalloc.replays import Results
    from lanemalloc.tracefile import Trace

FEWEST_ROUNDS = 5


@click.command(
    epilog="""\b
Examples:
  lanemalloc replay server.parquet
  lanemalloc replay server.parquet --touch --options lanes=percpu
  lanemalloc replay server.parquet --compare lanemalloc --compare lanemalloc:lanes=percpu \
--compare system
"""
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--allocator",
    default="lanemalloc",
    show_default=True,
    metavar="NAME",
    help="lanemalloc, system, FILE.so or a peer.",
)
@click.option(
    "--options",
    "options",
    default="",
    metavar="KEY=VALUE,...",
    help="lanemalloc's options, as in LANEMALLOC_OPTIONS.",
)
@click.option(
    "--compare",
    multiple=True,
    metavar="NAME[:OPTIONS]",
    help="Several, in turn; ratios are to the first.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    help=f"Runs of each. [default: 1; with --compare {FEWEST_ROUNDS}, and no fewer]",
)
@click.option(
    "--process",
    type=int,
    metavar="N",
    help="Which of the trace's processes. [default: the busiest]",
)
@click.option(
    "--order",
    type=click.Choice(["threads", "full"]),
    default="threads",
    show_default=True,
    help="full: call by call in the order of time.",
)
@click.option("--touch", is_flag=True, help="Write to all memory, as a program would.")
@click.option("--pace", is_flag=True, help="Make each call no earlier than it was made.")
@click.option("--json", "as_json", is_flag=True, help="The results as JSON, on standard output.")
def replay(
    file: Path,
    allocator: str,
    options: str,
    compare: tuple[str, ...],
    rounds: int | None,
    process: int | None,
    order: str,
    touch: bool,
    pace: bool,
    as_json: bool,
) -> None:
    """Make the calls of the trace FILE again, with as many threads and in their order.

    A call that frees an object waits until the thread that allocates it has done so. Time in calls
    is that of all threads together.
    """
    need("trace", "replay")
    from lanemalloc import allocators, replays
    from lanemalloc.progressing import bar
    from lanemalloc.replays import How
    from lanemalloc.tracefile import Trace

    trace = Trace(file)
    chosen = trace.process(process)
    which = [
        allocators.parse(text, options if text == "lanemalloc" else "") for text in compare
    ] or [allocators.parse(allocator, options)]
    rounds = max(rounds or FEWEST_ROUNDS, FEWEST_ROUNDS) if compare else rounds or 1
    how = How(full=order == "full", touch=touch, pace=pace)
    replays.check_memory(chosen, how, "leave --touch out")
    with (
        bar("reading the trace") as progress,
        replays.plan_of(trace, chosen, progress) as plan,
        bar("replaying") as runs,
    ):
        results = replays.alternate(plan, which, rounds, how, runs)
    if as_json:
        facts = {
            "trace": str(file),
            "process": chosen["process"],
            "complete": trace.about["complete"],
            "damaged": trace.what_is_lost() or None,
            "order": order,
            "touch": touch,
            "pace": pace,
        }
        click.echo(
            json.dumps(
                facts
                | {"results": [result.as_json() | ratios(result, results[0]) for result in results]}
            )
        )
    else:
        show(results, trace)


def ratios(result: Results, first: Results) -> dict[str, dict[str, float]]:
    """To the first, of the medians."""
    from lanemalloc import replays

    return {
        "ratio": {
            m: result.median(m) / first.median(m) if first.median(m) else 1.0
            for m in replays.MEASURES
        }
    }


def amount(measure: str, value: float) -> str:
    return f"{value:.3f} s" if measure.startswith("seconds") else f"{value / (1 << 20):.1f} MiB"


def show(results: list[Results], trace: Trace) -> None:
    from rich.table import Table

    from lanemalloc import replays
    from lanemalloc.progressing import output

    facts = results[0].runs[0]
    console = output()
    live = (
        f"{facts['peak_live_bytes'] / (1 << 20):.1f} MiB in {facts['peak_live_objects']:,} objects"
    )
    about = f"{facts['calls']:,} calls of {facts['threads']} threads; at most {live} live"
    console.print(about, highlight=False, soft_wrap=True)
    if facts["skipped"]:
        console.print(
            f"{facts['skipped']:,} calls left out: they failed, "
            "or freed what the process did not allocate itself",
            highlight=False,
            soft_wrap=True,
        )
    if not trace.about["complete"]:
        console.print(
            "the trace is not complete: " + "; ".join(trace.about["incomplete_because"][:3]),
            highlight=False,
            soft_wrap=True,
        )
    if trace.lost:
        console.print(trace.what_is_lost(), highlight=False, soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("allocator")
    for name in (*replays.MEASURES.values(), "peak RSS / live"):
        table.add_column(name, justify="right")
    for result in results:
        cells = []
        for measure in replays.MEASURES:
            text = amount(measure, result.median(measure))
            if len(result.runs) > 1:
                low, high = result.quartiles(measure)
                spread = (
                    (high - low) / result.median(measure) * 100 if result.median(measure) else 0
                )
                text += f" ±{spread / 2:.0f}%"
            if len(results) > 1:
                text += f"  {ratios(result, results[0])['ratio'][measure]:.2f}"
            cells.append(text)
        live = result.runs[0]["peak_live_bytes"]
        cells.append(f"{result.median('peak_rss') / live:.2f}" if live else "")
        table.add_row(str(result.allocator), *cells)
    console.print(table, highlight=False)
    if len(results) > 1:
        console.print(
            f"medians of {len(results[0].runs)} alternating rounds, "
            "half the distance of the quartiles, ratio to the first",
            highlight=False,
            soft_wrap=True,
        )
