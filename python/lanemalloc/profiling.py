"""Runs a program with its allocations and waits sampled, and finds what it leaves behind.

The library writes a profile as the process ends (profile=exit). A program that is killed, or leaves
by _exit, writes none: so the tool looks at its samples now and then, and the last look stands for
it. A child that the program forks goes on with a copy of its parent's samples, so profiles of
several processes are not added up: each has its own.

Used by: the commands profile and run.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lanemalloc.preload import OPTIONS, parse_options
from lanemalloc.supervise import EVERY, SHARE, End
from lanemalloc.ui import Problem

if TYPE_CHECKING:
    from lanemalloc.profiles import Mapping, Profile
    from lanemalloc.sampled import Look, Samples

DEFAULT, DEFAULT_FOR_LEAKS = "512k", "64k"


def check_interval(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A number of bytes, as the library's option sample takes it."""
    if value is not None and not re.fullmatch(r"0*[1-9][0-9]{0,11}[kKmMgG]?", value):
        raise click.BadParameter(
            f"{value!r}: it is a number of bytes above 0, for example 64k, 512k or 4m"
        )
    return value


def with_sampling(
    folder: Path, sample: str | None, options: tuple[str, ...], default: str = DEFAULT
) -> tuple[str, ...]:
    """Options for preload.environment: `sample` if it is given,
    else what LANEMALLOC_OPTIONS or --options say of it."""
    said = parse_options(",".join([os.environ.get(OPTIONS, ""), *options])).get("sample", "0")
    chosen = sample or (said if said.strip("0") else default)
    return (*options, f"sample={chosen},profile=exit,profile_file={folder}/%p.%k.pb")


class Watch:
    """Keeps the last look at the samples of a program. It may not have the library, run another
    program, or end at any moment."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.last: Look | None = None
        self.interval = EVERY
        self.trouble: Exception | None = None
        self._samples: Samples | None = None

    def look(self, at: float) -> None:
        from lanemalloc.reader import Reader
        from lanemalloc.sampled import Samples

        begin = time.thread_time()
        try:
            if self._samples is None:
                self._samples = Samples(Reader.open(self.pid))
            self.last = self._samples.look()
        except Problem:
            self._samples = None  # of an exec, the next look finds the new program
        except Exception as error:  # the program is not to suffer from a fault in here
            self._samples, self.trouble = None, error
        self.interval = max(EVERY, (time.thread_time() - begin) / SHARE)


@dataclass
class Found:
    """A process' profile."""

    pid: int
    profile: Profile
    at_exit: bool  # else: when it was last seen

    @property
    def program(self) -> str:
        """The file that it ran."""
        mapping = program_at(self.profile.mappings)
        return mapping.path if mapping else "?"


def program_at(mappings: list[Mapping]) -> Mapping | None:
    """The code of the file that a process runs."""
    return next((one for one in mappings if one.path.startswith("/")), None)


def collect(
    folder: Path, kind: str, of: int, last: Look | None
) -> tuple[Found | None, list[Found], list[str]]:
    """Of the program itself, process `of`, whose last look stands in where it has written none
    (None: there is neither); of other processes that it started; and what is to be said of those
    that are not whole."""
    from lanemalloc import pprof
    from lanemalloc.profiles import KINDS

    name, default = KINDS[kind]
    own: Found | None = None
    others, notes = [], []
    for file in sorted(folder.glob(f"*.{name}.pb")):
        pid = int(file.name.split(".")[0])
        try:
            profile = pprof.read(file)
        except Problem:
            notes.append(f"process {pid} was killed while it wrote its profile")
            continue
        profile.default = default
        if pid == of:
            own = Found(pid, profile, True)
        else:
            others.append(Found(pid, profile, True))
    if own is None and last is not None:
        own = Found(of, last.profile(kind), False)
    elif (
        own is not None
        and last is not None
        and kind == "contention"
        and program_at(own.profile.mappings) == program_at(last.mappings)
    ):
        own.profile.places = last.places()  # the file has none
    others.sort(key=lambda one: -one.profile.total(default))
    return own, others, notes


def no_profile(program: str, end: End) -> list[str]:
    why = (
        "it did not use the library"
        if end.signal is None
        else "it was killed before it could be looked at, or did not use the library"
    )
    return [
        f"lanemalloc: {program}: no profile ({end.describe()}): {why}",
        f"  `lanemalloc doctor -- {program}` tells what is in the way",
    ]
