"""Tells when the system has killed a program because memory was short (OOM): which limit it met,
how much was in use, and who grew.

The control group of a program counts such kills (memory.events; version 1: memory.oom_control). So
the count is looked at from the start, while the program runs, and after its end. The group above
whose own count of limits met has grown (memory.events.local: oom; version 1: memory.failcnt) is the
one whose limit it was; if no group's has, the machine itself was out of memory.

Used by: supervise.attend.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lanemalloc import process, units

MOST_PROCESSES = 64
MOST_SHOWN = 3
LEAST_GROWTH = 1 << 20  # what is less is not named


@dataclass(frozen=True)
class Process:
    """A process of the group, between the first look and the last."""

    pid: int
    name: str
    first: int  # bytes resident
    last: int


@dataclass(frozen=True)
class Killed:
    """What is known of a kill."""

    itself: bool  # the program; else another process of its group
    kills: int
    group: str  # whose limit was met; empty: the machine's memory was out
    limit: int | None
    used: int  # when last seen
    grown: list[Process]  # the most first

    def lines(self) -> list[str]:
        who = "the program" if self.itself else "a process of its control group"
        if self.group:
            limit = f"limit of {units.size(self.limit)}" if self.limit else "limit"
            why = f"control group {self.group} met its {limit}"
            last = f"; when last seen it had {units.size(self.used)}"
        else:
            why, last = "the machine had no memory left", ""
        return [
            f"  OOM       {who} was killed because {why}{last}",
            *(
                f"  grew      {one.name} (pid {one.pid}): resident from {units.size(one.first)} "
                f"to {units.size(one.last)} when last seen"
                for one in self.grown[:MOST_SHOWN]
            ),
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            "program": self.itself,
            "kills": self.kills,
            "group": self.group or None,
            "limit_bytes": self.limit,
            "used_bytes": self.used,
            "grown": [
                {"pid": one.pid, "name": one.name, "first_bytes": one.first, "last_bytes": one.last}
                for one in self.grown
            ],
        }


@dataclass
class Counts:
    """Of a group and those above it, own first; of the machine where there is no group."""

    kills: int
    met: dict[str, int]  # how often each group's limit was met


@dataclass
class Guard:
    """Looks at the program's control group. Raises nothing."""

    pid: int
    _path: str | None = None
    _before: Counts | None = None
    _used: dict[str, int] = field(default_factory=dict)
    _seen: dict[int, Process] = field(default_factory=dict)

    def look(self) -> None:
        path = process.cgroup_of(self.pid)
        if not path:
            return  # it has ended
        if path != self._path:  # the first look, or it was moved
            self._path, self._before, self._seen = path, counts(path), {}
        self._used = {one.path: one.used for one in groups(path)}
        for pid in dict.fromkeys([self.pid, *members(path)]):
            one = facts(pid)
            if one is not None and pid != os.getpid():
                before = self._seen.get(pid, one)
                self._seen[pid] = Process(pid, one.name, before.first, one.last)

    def verdict(self, number: int | None) -> Killed | None:
        """Of a program that has ended, by that signal (None: by itself)."""
        if self._path is None or self._before is None:
            return None
        after = counts(self._path)
        kills = after.kills - self._before.kills
        by_kill = number == signal.SIGKILL
        # The machine's count is of every process.
        if kills <= 0 or not (by_kill or after.met):
            return None
        met = [path for path, n in after.met.items() if n > self._before.met.get(path, n)]
        group = next((one for one in groups(self._path) if one.path in met), None)
        grown = sorted(self._seen.values(), key=lambda one: one.first - one.last)
        return Killed(
            itself=by_kill,
            kills=kills,
            group=group.path if group else "",
            limit=group.limit if group else None,
            used=self._used.get(group.path, 0) if group else 0,
            grown=[one for one in grown if one.last - one.first >= LEAST_GROWTH],
        )


def groups(path: str) -> list[process.CgroupMemory]:
    """The group and those above it that can be seen."""
    found = (process.read_cgroup(one) for one in process.way_up(path))
    return [one for one in found if one is not None]


def counts(path: str) -> Counts:
    own: int | None = None
    met: dict[str, int] = {}
    for one in process.way_up(path):
        folder = process.memory_folder(one)
        if folder is None:
            continue
        if (folder / "memory.events").exists():
            kills = words(folder / "memory.events").get("oom_kill", 0)
            local = words(folder / "memory.events.local") or words(folder / "memory.events")
            met[one] = local.get("oom", 0)
        elif (folder / "memory.oom_control").exists():
            kills = words(folder / "memory.oom_control").get("oom_kill", 0)
            met[one] = process.read_number(folder / "memory.failcnt")
        else:
            continue
        own = kills if own is None else own
    if own is None:
        return Counts(words(Path("/proc/vmstat")).get("oom_kill", 0), {})
    return Counts(own, met)


def words(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    found = {}
    try:
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if value.isdigit():
                found[key] = int(value)
    except OSError:
        pass
    return found


def members(path: str) -> list[int]:
    """Processes of the group."""
    folder = process.memory_folder(path)
    try:
        text = (folder / "cgroup.procs").read_text() if folder else ""
    except OSError:
        return []
    return [int(word) for word in text.split()[:MOST_PROCESSES]]


def facts(pid: int) -> Process | None:
    try:
        found = process.facts(pid)
    except process.Gone:
        return None
    return Process(pid, found.name, found.resident, found.resident)
