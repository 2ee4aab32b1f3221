"""The command `lanemalloc`: finds its subcommands when they are asked for, so that `--help` and
`run` start at once."""

from __future__ import annotations

import importlib

import click

COMMANDS = (
    "run",
    "top",
    "explain",
    "doctor",
    "report",
    "profile",
    "trace",
    "replay",
    "tune",
    "exporter",
    "sim",
)


class Commands(click.Group):
    """Each subcommand lies in commands/NAME.py as a click command of that name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"lanemalloc.commands.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lanemalloc")
def main() -> None:
    """An allocator for programs with many threads: threads do not meet on the way to memory, and
    where they must, you can see it."""
