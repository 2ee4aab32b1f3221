"""What all subcommands share: how they fail, and where the libraries lie."""

from __future__ import annotations

import os
from pathlib import Path

import click

# Exit codes: 0 done, 1 the thing asked for was found wanting (doctor, leaks), 2 bad arguments
# (click's), 3 it could not be done.
CANNOT = 3


class Problem(click.ClickException):
    """One line that says what is wrong, and one that says what to do next."""

    exit_code = CANNOT

    def __init__(self, what: str, next_step: str = "") -> None:
        super().__init__(what + (f"\n  {next_step}" if next_step else ""))


def native(name: str) -> Path:
    """A library or program of the wheel; of the checkout's build/release where there is no wheel;
    or what LANEMALLOC_NATIVE names."""
    package = Path(__file__).resolve().parent
    folders = [package / "native", package.parent.parent / "build" / "release"]
    if chosen := os.environ.get("LANEMALLOC_NATIVE"):
        folders.insert(0, Path(chosen))
    for folder in folders:
        if (folder / name).exists():
            return folder / name
    raise Problem(f"{name} is not in {' or '.join(map(str, folders))}", "build it with: make tool")
