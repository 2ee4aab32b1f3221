"""Runs a program with its allocations and waits sampled, and finds what it leaves behind.

The library writes a profile as the process ends (profile=exit). A program that is killed, or leaves
by _exit, writes none: so the tool looks at its samples now and then, and the last look stands for
it. A child that the program forks goes on with a copy of its parent's samples, so profiles of
several processes are not added up: each has its own. Behind a program that allocates next to
nothing (a shell) the tool looks at what it starts.

Used by: the commands profile and run.
"""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lanemalloc.preload import OPTIONS, parse_options
from lanemalloc.supervise import EVERY, SHARE, End
from lanemalloc.ui import Problem

if TYPE_CHECKING:
    from lanemalloc.flame.data import Moment
    from lanemalloc.following import Followed
    from lanemalloc.profiles import Mapping as Mapped
    from lanemalloc.profiles import Profile, Stack
    from lanemalloc.reader import Reader
    from lanemalloc.sampled import Look

DEFAULT, DEFAULT_FOR_LEAKS = "512k", "64k"
MOST_LOOKS = 64  # at processes that may have ended since
MOST_MOMENTS, MOMENTS_EVERY = 100, 0.1


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
    """Keeps the last looks at the samples of a program, and of what it starts as far as it does not
    allocate itself. Each may not have the library, run another program, or end at any moment."""

    def __init__(self, pid: int, keeps_moments: bool = False) -> None:
        self.pid = pid
        self.looks: dict[int, Look] = {}
        self.moments: dict[int, Moments] | None = {} if keeps_moments else None
        self.every = MOMENTS_EVERY if keeps_moments else EVERY
        self.interval = self.every
        self.trouble: Exception | None = None

    @functools.cached_property
    def followed(self) -> Followed:
        from lanemalloc.following import Followed  # not before the program has begun

        return Followed(self.pid)

    def look(self, at: float) -> None:
        begin = time.thread_time()
        try:
            for pid, reader in self.followed.readers().items():
                self.look_at(pid, reader, at)
        except Exception as error:  # the program is not to suffer from a fault in here
            self.trouble = error
        self.interval = max(self.every, (time.thread_time() - begin) / SHARE)

    def look_at(self, pid: int, reader: Reader, at: float) -> None:
        from lanemalloc.sampled import Samples

        try:
            look = Samples(reader).look()
        except Problem:
            self.followed.forget(pid)
            return
        self.looks.pop(pid, None)
        self.looks[pid] = look
        if self.moments is not None and len(self.moments) < MOST_LOOKS:
            self.moments.setdefault(pid, Moments()).add(at, look)
        while len(self.looks) > MOST_LOOKS:
            del self.looks[next(iter(self.looks))]  # the oldest: it has ended, or is one of many


class Moments:
    """What was in use at some moments of a process, evenly over its time."""

    def __init__(self) -> None:
        self.all: list[tuple[float, list[Stack]]] = []
        self._apart = 0.0  # the least time between two

    def add(self, at: float, look: Look) -> None:
        if self.all and at - self.all[-1][0] < self._apart:
            return
        profile = look.profile("heap")
        size = profile.index("inuse_space")
        self.all.append((at, [one for one in profile.stacks if one[1][size]]))
        if len(self.all) > MOST_MOMENTS:
            del self.all[1::2]
            self._apart = 1.5 * at / len(self.all)

    def as_of(self, profile: Profile) -> list[Moment]:
        """With the names of that profile, which is of the same process."""
        from lanemalloc.flame.data import Moment

        found = []
        for at, stacks in self.all:
            one = replace(profile, stacks=stacks, sized=[])
            one.prune()
            found.append(Moment(at, one))
        return found


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


def program_at(mappings: list[Mapped]) -> Mapped | None:
    """The code of the file that a process runs."""
    return next((one for one in mappings if one.path.startswith("/")), None)


def collect(
    folder: Path, kind: str, of: int, looks: Mapping[int, Look]
) -> tuple[Found | None, list[Found], list[str]]:
    """Of the program itself, process `of` (None: it has left none), and of other processes that it
    started; the last look stands in where one has written none. And what is to be said of those
    that are not whole."""
    from lanemalloc import pprof
    from lanemalloc.profiles import KINDS

    name, default = KINDS[kind]
    found: dict[int, Found] = {}
    notes = []
    for file in sorted(folder.glob(f"*.{name}.pb")):
        pid = int(file.name.split(".")[0])
        try:
            profile = pprof.read(file)
        except Problem:
            notes.append(f"process {pid} was killed while it wrote its profile")
            continue
        profile.default, profile.pid = default, pid
        found[pid] = Found(pid, profile, True)
    for pid, look in looks.items():
        if pid not in found:
            found[pid] = Found(pid, look.profile(kind), False)
        elif kind == "contention" and program_at(found[pid].profile.mappings) == program_at(
            look.mappings
        ):
            found[pid].profile.places = look.places()  # the file has none
    own = found.pop(of, None)
    others = sorted(found.values(), key=lambda one: -one.profile.total(default))
    return own, others, notes


def shown_first(
    program: str, own: Found | None, others: list[Found], notes: list[str]
) -> tuple[Found | None, list[Found]]:
    """The program's own; of a program that allocated next to nothing, that of the process with
    most."""
    if not others or (own is not None and is_more_than_a_few(own.profile)):
        return own, others
    first = others[0]
    notes.append(
        f"{program} itself allocated next to nothing: "
        f"this is {first.program} (process {first.pid}), which it started"
    )
    return first, others[1:] + ([own] if own is not None else [])


def is_more_than_a_few(profile: Profile) -> bool:
    """Whether it is of more than two samples of allocations: one may be of a few bytes."""
    types = [one.type for one in profile.types]
    return "alloc_space" not in types or profile.total("alloc_space") > 2 * profile.period


def no_profile(program: str, end: End) -> list[str]:
    if end.oom is not None:
        return [
            f"lanemalloc: {program}: no profile ({end.describe()}): nothing was seen before",
            *end.oom.lines(),
        ]
    why = (
        "it did not use the library"
        if end.signal is None
        else "it was killed before it could be looked at, or did not use the library"
    )
    return [
        f"lanemalloc: {program}: no profile ({end.describe()}): {why}",
        f"  `lanemalloc doctor -- {program}` tells what is in the way",
    ]
