"""The command `lanemalloc`: finds its subcommands when they are asked for, so that `--help` and
`run` start at once."""

from __future__ import annotations

import importlib
import sys

import click

# Each with its line of help, so that the list of them imports none.
COMMANDS = {
    "run": "Run PROGRAM with lanemalloc as its malloc.",
    "top": "Show live what the allocator of each process PID does.",
    "explain": "Show where the resident memory of process PID is.",
    "doctor": "Look for what gets in the way of lanemalloc.",
    "report": "Write a report of the recording FILE as a page.",
    "profile": "Show which functions allocate, or wait for locks.",
    "trace": "Record every allocation call of PROGRAM.",
    "replay": "Make the calls of the trace FILE again.",
    "tune": "Find the options that suit the trace FILE.",
    "exporter": "Serve the figures of all processes of this host.",
    "sim": "Simulate the allocator on up to 128 cores.",
}


class Commands(click.Group):
    """Each subcommand lies in commands/NAME.py as a click command of that name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"lanemalloc.commands.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        command.short_help = COMMANDS[cmd_name]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Examples:
  lanemalloc run -- ./server --port 80
  lanemalloc top
  lanemalloc COMMAND --help
""",
)
@click.version_option(package_name="lanemalloc")
def main() -> None:
    """An allocator for programs with many threads: threads do not meet on the way to memory, and
    where they must, you can see it."""
    # Names of files need not be UTF-8, and a terminal need not know all characters.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
