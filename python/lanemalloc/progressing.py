"""Consoles, and a bar on standard error while long work goes on; only on terminals. Used by: the
commands trace, replay and tune."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


def output(stderr: bool = False) -> Console:
    """As wide as the terminal; where there is none, no line is broken."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=1000)


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Gives a function that is told how much is done of how much."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,}/{task.total:,}"),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, disable=not console.is_terminal, transient=True
    ) as progress:
        task = progress.add_task(what, total=1)
        yield lambda done, total: progress.update(task, completed=done, total=total)
