"""lanemalloc sim: how often cache lines go from core to core,
for more cores than this machine has."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import click

from lanemalloc import coherence, outputs
from lanemalloc.coherence import CORES, ENTRIES, LINES, MODELS, WORKLOADS, Cell, Figures
from lanemalloc.ui import Problem, need


def words_of(
    allowed: tuple[str, ...],
) -> Callable[[click.Context, click.Parameter, str], tuple[str, ...]]:
    """Several of these words, with commas between them; `none` is none."""

    def convert(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
        words = tuple(dict.fromkeys(word for word in value.split(",") if word not in ("", "none")))
        for word in words:
            if word not in allowed:
                raise click.BadParameter(f"{word!r} is none of {', '.join(allowed)}")
        return words

    return convert


def even_numbers(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    words = [word.strip() for word in value.split(",") if word.strip()]
    numbers = tuple(sorted({int(word) if word.isdigit() else 0 for word in words}))
    if not numbers or any(n % 2 or not 2 <= n <= coherence.MOST_CORES for n in numbers):
        raise click.BadParameter(
            f"{value!r}: they are even numbers from 2 to "
            f"{coherence.MOST_CORES}, with commas between them"
        )
    return numbers


@click.command(
    epilog="""\b
Examples:
  lanemalloc sim
  lanemalloc sim --workload producer-consumer --entry owned,percpu -o transfers.html
  lanemalloc sim --cores 2,128 --against none --json
"""
)
@click.option(
    "--workload",
    type=click.Choice(WORKLOADS),
    default="local",
    show_default=True,
    help="What the cores do.",
)
@click.option(
    "--entry",
    callback=words_of(ENTRIES),
    default=",".join(ENTRIES),
    show_default=True,
    metavar="ENTRY,..",
    help="How they enter lanes.",
)
@click.option(
    "--cores",
    callback=even_numbers,
    default=",".join(map(str, CORES)),
    show_default=True,
    metavar="N,..",
    help="How many cores, even.",
)
@click.option(
    "--against",
    callback=words_of(MODELS),
    default=MODELS[0],
    show_default=True,
    metavar="MODEL,..|none",
    help="What is shown beside.",
)
@click.option(
    "--line",
    type=click.Choice([str(n) for n in LINES]),
    default="64",
    show_default=True,
    help="Bytes that travel at once.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, (1 << 64) - 1),
    default=coherence.SEED,
    show_default=True,
    help="Of the order of events.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.html",
    help="Write a page with a plot too.",
)
@click.option("--json", "as_json", is_flag=True, help="Print all figures as JSON.")
def sim(
    workload: str,
    entry: tuple[str, ...],
    cores: tuple[int, ...],
    against: tuple[str, ...],
    line: str,
    seed: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Simulate the allocator on up to 128 cores, and count the cache lines that go from one core to
    another.

    It is the shipped code that runs, one thread a core. Nothing is timed, so it does not matter
    which machine it runs on. Models to compare with, in which threads meet at every call:
    locked-list (one list, behind a lock that sleeps), treiber-stack (one list, by
    compare-exchange), one-lock-arena (lists by size and counters, behind one lock).

    \b
    local                     every core allocates, uses and frees for itself
    producer-consumer         half of the cores allocate, the other half frees: one size
    producer-consumer-mixed   the same with many sizes
    """
    from lanemalloc.progressing import bar

    allocators = (*entry, *against)
    if not allocators:
        raise Problem(
            "there is nothing to simulate",
            "name an entry (--entry owned) or a model (--against locked-list)",
        )
    if output is not None:
        need("report", "sim -o")
        outputs.check(output, "-o")
    cells = [Cell(allocator, workload, n) for n in cores for allocator in allocators]
    with bar("simulating") as told:
        figures = coherence.simulate(cells, seed, told)
    if output is not None:
        from lanemalloc.report import simulated

        try:
            outputs.write_text(output, simulated.page(figures, allocators, int(line)))
        except OSError as error:
            raise outputs.cannot_write(output, "-o", error) from None
    if as_json:
        click.echo(
            json.dumps({"unit": "transfers an operation", "figures": [one.raw for one in figures]})
        )
    else:
        show(figures, allocators, cores, int(line))


def show(
    figures: list[Figures], allocators: tuple[str, ...], cores: tuple[int, ...], line: int
) -> None:
    from rich.table import Table

    from lanemalloc.progressing import output

    console = output()
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("cores", justify="right")
    for allocator in allocators:
        table.add_column(allocator, justify="right")
    found = {(one.cell.allocator, one.cell.cores): one for one in figures}
    for n in cores:
        table.add_row(
            str(n), *(f"{found[allocator, n].transfers(line):.4f}" for allocator in allocators)
        )
    first = figures[0]
    console.print(
        f"{first.cell.workload}: transfers of {line}-byte lines an operation "
        "(a malloc or a free), made by the allocator"
    )
    console.print(table, highlight=False)
    if first.cell.workload != "local":
        own = found[allocators[0], cores[-1]].program(line)
        console.print(
            f"the program itself makes {own:.2f}: "
            "it writes an object on one core and reads it on another",
            highlight=False,
        )
