"""lanemalloc doctor: what on this machine, or in a program, gets in the way."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from lanemalloc.doctor.finding import Finding

WRONG = 1


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog="""\b
Examples:
  lanemalloc doctor
  lanemalloc doctor -- ./server --port 80
  lanemalloc doctor --json -- sudo
""",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def doctor(as_json: bool, program: tuple[str, ...]) -> None:
    """Look at this machine, and at PROGRAM if one is named (it is not run),
    for what gets in the way of lanemalloc.

    Exits with 0 if all is well, with 1 if something is in the way.
    """
    from lanemalloc.doctor import host
    from lanemalloc.doctor import program as of_program
    from lanemalloc.doctor.finding import PROBLEM

    findings = of_program.examine(list(program)) if program else []
    findings += host.examine()
    problems = sum(finding.level == PROBLEM for finding in findings)
    if as_json:
        click.echo(
            json.dumps(
                {"problems": problems, "findings": [vars(finding) for finding in findings]},
                indent=1,
            )
        )
    else:
        for finding in findings:
            click.echo(
                "\n".join(lines(finding, min(shutil.get_terminal_size((110, 24)).columns, 140)))
            )
        click.echo(closing(problems))
    sys.exit(WRONG if problems else 0)


def lines(finding: Finding, width: int) -> list[str]:
    """One line; below it what follows and what to do."""
    indent = " " * 28
    found = [f"{finding.level:<8} {finding.subject:<18} {finding.what}"]
    for mark, text in (("   ", finding.follows), ("-> ", finding.do)):
        if text:
            found += textwrap.wrap(
                mark + text, width, initial_indent=indent, subsequent_indent=indent + "   "
            )
    return found


def closing(problems: int) -> str:
    if problems == 0:
        return "Nothing is in the way."
    return f"{problems} thing{'s are' if problems > 1 else ' is'} in the way."
