"""One thing that was looked at, and what it means."""

from __future__ import annotations

from dataclasses import dataclass

OK, NOTE, PROBLEM = "ok", "note", "problem"


@dataclass(frozen=True)
class Finding:
    """`follows`: what it means for the program; `do`: the next step. Both empty where all is
    well."""

    level: str
    subject: str
    what: str
    follows: str = ""
    do: str = ""


def ok(subject: str, what: str) -> Finding:
    return Finding(OK, subject, what)


def note(subject: str, what: str, follows: str, do: str = "") -> Finding:
    return Finding(NOTE, subject, what, follows, do)


def problem(subject: str, what: str, follows: str, do: str) -> Finding:
    return Finding(PROBLEM, subject, what, follows, do)
