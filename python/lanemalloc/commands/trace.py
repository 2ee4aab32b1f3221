"""`lanemalloc trace`: records every allocation call of a program and its children
to a Parquet file."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lanemalloc import outputs
from lanemalloc.ui import need

if TYPE_CHECKING:
    from rich.console import Console

    from lanemalloc.recorder import Recording


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog="""\b
Examples:
  lanemalloc trace -o server.parquet -- ./server --port 80
  lanemalloc trace --allocator system -- gcc -O2 -c big.c
  duckdb -c "SELECT op, count(*), sum(size) FROM 'server.parquet' GROUP BY op"
""",
)
@click.option(
    "-o",
    "--output",
    "output",
    type=click.Path(path_type=Path),
    default=Path("trace.parquet"),
    show_default=True,
    metavar="FILE",
    help="Where the trace goes.",
)
@click.option(
    "--allocator",
    default="lanemalloc",
    show_default=True,
    metavar="NAME",
    help="What the program allocates with: lanemalloc, system, FILE.so or a peer.",
)
@click.option(
    "--options",
    "options",
    default="",
    metavar="KEY=VALUE,...",
    help="lanemalloc's options, as in LANEMALLOC_OPTIONS.",
)
@click.option(
    "--buffer",
    type=click.IntRange(1, 1 << 20),
    metavar="MIB",
    help="Shared memory between the program and the tool; 64 threads take 1 MiB.  "
    "[default: 512, less where memory is short]",
)
@click.option("--json", "as_json", is_flag=True, help="The summary as JSON, on standard error.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def trace(
    output: Path,
    allocator: str,
    options: str,
    buffer: int | None,
    as_json: bool,
    command: tuple[str, ...],
) -> None:
    """Record every allocation call of PROGRAM and its children.

    The file has a row a call, in the order of time, of all processes; docs/trace.md describes the
    columns. PROGRAM's standard input, output and error are its own, and its exit status is this
    command's. The summary goes to standard error.
    """
    need("trace", "trace")
    outputs.check(output, "-o")
    from lanemalloc import allocators
    from lanemalloc.progressing import output as output_console
    from lanemalloc.recorder import record, usual_buffer

    console = output_console(stderr=True)
    chosen = allocators.parse(allocator, options)
    recording = record(
        list(command),
        output,
        chosen,
        usual_buffer() if buffer is None else buffer << 20,
        lambda: finishing(console),
    )
    if as_json:
        print(json.dumps(summary(output, recording)), file=sys.stderr)
    else:
        show(console, output, recording)
    leave_as(recording.status)


def finishing(console: Console) -> AbstractContextManager[object]:
    return console.status("writing the rest of the trace") if console.is_terminal else nullcontext()


def summary(output: Path, recording: Recording) -> dict[str, Any]:
    about = recording.about
    return {
        "file": str(output),
        "bytes": recording.bytes,
        "events": recording.events,
        "objects": about["objects"],
        "processes": len(about["processes"]),
        "threads": sum(len(p["threads"]) for p in about["processes"]),
        "lost": sum(p["lost"] for p in about["processes"]),
        "complete": about["complete"],
        "incomplete_because": about["incomplete_because"],
        "seconds": round(recording.seconds, 3),
        "total_seconds": round(recording.total_seconds, 3),
        "status": recording.status,
    }


def show(console: Console, output: Path, recording: Recording) -> None:
    from rich.table import Table

    facts = summary(output, recording)
    table = Table.grid(padding=(0, 2))
    table.add_row("trace", f"{output}, {facts['bytes'] / 1e6:.1f} MB")
    table.add_row(
        "events", f"{facts['events']:,} in {facts['seconds']:.2f} s; {facts['objects']:,} objects"
    )
    table.add_row("processes", f"{facts['processes']}, {facts['threads']} threads")
    if facts["complete"]:
        table.add_row("complete", "yes")
    else:
        reasons = facts["incomplete_because"]
        more = f" (and {len(reasons) - 3} more)" if len(reasons) > 3 else ""
        table.add_row("complete", "no: " + "; ".join(reasons[:3]) + more)
    console.print(table, highlight=False)


def leave_as(status: int) -> None:
    """Ends as the program did: with its exit status, or by its signal."""
    sys.stdout.flush()
    sys.stderr.flush()
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
        status = 128 - status
    sys.exit(status)
