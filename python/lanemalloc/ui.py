"""What all subcommands share: how they fail, and where the libraries lie."""

from __future__ import annotations

import importlib.util
import os
import shlex
import tempfile
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


# What some commands need beside the base, by the extra of the package that has it.
EXTRAS = {"trace": "pyarrow", "report": "plotly", "exporter": "prometheus_client"}


def need(extra: str, what: str) -> None:
    """Raises Problem where the extra's library is not installed, before any work is done."""
    module = EXTRAS[extra]
    if importlib.util.find_spec(module) is None:
        raise Problem(
            f"{what} needs {module.replace('_', '-')}, which is not installed",
            f"python3 -m pip install 'lanemalloc[{extra}]', or for all commands 'lanemalloc[all]'",
        )


def temporary_folder() -> Folder:
    """For what a program leaves there for the tool."""
    try:
        return Folder(prefix="lanemalloc-")
    except OSError as error:
        raise Problem(
            f"there is no place for temporary files: {error.strerror or error}",
            "make room, or set TMPDIR to a folder that has some",
        ) from None


class Folder(tempfile.TemporaryDirectory[str]):
    """As a path."""

    def __enter__(self) -> Path:  # type: ignore[override]
        return Path(super().__enter__())


class WithProgram(click.Command):
    """What stands behind `--` is a program with its arguments; before it all is the command's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta["program"], args = args[at + 1 :], args[:at]
        return super().parse_args(ctx, args)


def pid_of(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """A process' number."""
    if not value.isascii() or not value.isdigit() or not 0 < int(value) < 1 << 31:
        raise click.BadParameter(
            f"{value!r} is no process' number; `pgrep {shlex.quote(value)}` finds those of a "
            "program, `lanemalloc top` lists those with lanemalloc"
        )
    return int(value)


def pids_of(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(pid_of(ctx, param, one) for one in value)


def shown(name: str) -> str:
    """A name of the system's, which need not be UTF-8, as it can be printed and written."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


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
