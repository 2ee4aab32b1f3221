"""lanemalloc report: a recording as a page that shows what memory and contention were; two
recordings, what differs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from lanemalloc import outputs, units
from lanemalloc.ui import Problem, need

FILE = click.Path(path_type=Path)


@click.command(
    epilog="""\b
Examples:
  lanemalloc run --lanes shared:2 --record before.jsonl -- ./server
  lanemalloc run --lanes percpu --record after.jsonl -- ./server
  lanemalloc report before.jsonl after.jsonl -o compared.html
"""
)
@click.argument("file", type=FILE)
@click.argument("file2", type=FILE, required=False)
@click.option(
    "-o",
    "--output",
    type=FILE,
    metavar="FILE.html",
    help="Where the page goes. [default: FILE with .html at its end]",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the figures as JSON; write a page only with -o."
)
def report(file: Path, file2: Path | None, output: Path | None, as_json: bool) -> None:
    """Write a report of the recording FILE as one HTML page; with FILE2, what differs from the
    first to the second.

    The page opens without a network and has everything inside. Recordings are made by
    `lanemalloc run --record FILE -- PROGRAM`.
    """
    from lanemalloc import report as reports
    from lanemalloc.recording import Recording

    first = Recording.load(file)
    second = Recording.load(file2) if file2 is not None else None
    if as_json:
        click.echo(json.dumps(reports.as_json(first, second), indent=1))
        if output is None:
            return
    path = output or file.with_name(file.name.removesuffix(".jsonl") + ".html")
    need("report", "report")
    if any(path.exists() and path.samefile(one) for one in (file, file2) if one is not None):
        raise Problem(f"{path} is the recording itself", "give another file with -o")
    outputs.check(path, "-o")
    try:
        reports.write(first, path, second)
        written = path.stat().st_size
    except OSError as error:
        raise outputs.cannot_write(path, "-o", error) from None
    if not as_json:
        click.echo(f"{path}: {units.size(written)}")
        for one, name in ((first, file), (second, file2)):
            if one is not None:
                for said in one.faults():
                    click.echo(f"{name} {said}", err=True)
