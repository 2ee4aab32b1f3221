"""What a program had not freed when it ended, by call stack; and what --fail-on-leaks says of it.

The gate counts the program and all processes that it started. A process that was forked has its
parent's objects too, which are no leaks of it: of those only what it must have allocated itself
counts. It is known by the moment at which its sampling began, which is its parent's.

Used by: the commands profile and run, with --leaks.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from lanemalloc import units
from lanemalloc.profiles import UNKNOWN_STACK, Frame, Profile
from lanemalloc.profiling import Found
from lanemalloc.supervise import End
from lanemalloc.ui import CANNOT

LEAKING = 1
SAME_MOMENT = 1_000_000  # ns: two clocks are read one after the other

MOST_SHOWN = 10
MOST_FRAMES = 16
MOST_PROCESSES = 4


@dataclass(frozen=True)
class Leak:
    """All that one call stack allocated and nobody freed."""

    bytes: int
    objects: int
    addresses: tuple[int, ...]


def find(profile: Profile) -> list[Leak]:
    """The largest first."""
    objects, size = profile.index("inuse_objects"), profile.index("inuse_space")
    found = [
        Leak(values[size], values[objects], addresses)
        for addresses, values in profile.stacks
        if values[size] > 0
    ]
    return sorted(found, key=lambda leak: (-leak.bytes, leak.addresses))


def of_copy(profile: Profile, parent: Profile) -> list[Leak]:
    """Of a forked process: what it has beyond all that its parent ever allocated there, which is
    more than it can have got from it."""
    size, all_size = profile.index("inuse_space"), parent.index("alloc_space")
    objects, all_objects = profile.index("inuse_objects"), parent.index("alloc_objects")
    inherited = dict(parent.stacks)
    found = []
    for addresses, values in profile.stacks:
        before = inherited.get(addresses)
        left = values[size] - (before[all_size] if before else 0)
        if left > 0:
            many = max(1, values[objects] - (before[all_objects] if before else 0))
            found.append(Leak(left, many, addresses))
    return sorted(found, key=lambda leak: (-leak.bytes, leak.addresses))


@dataclass(frozen=True)
class Process:
    """A process and its leaks."""

    found: Found
    leaks: list[Leak]
    copy_of: int | None = None  # the process that it was forked from

    @property
    def bytes(self) -> int:
        return sum(leak.bytes for leak in self.leaks)


def by_process(first: Found, others: list[Found]) -> list[Process]:
    """In that order."""
    found: list[Process] = []
    by_number = [first, *sorted(others, key=lambda one: one.pid)]
    for one in [first, *others]:
        elder = next((other for other in by_number if is_copy(one, other)), None)
        if elder is None or elder is one or one is first:
            found.append(Process(one, find(one.profile)))
        else:
            found.append(Process(one, of_copy(one.profile, elder.profile), elder.pid))
    return found


def is_copy(one: Found, other: Found) -> bool:
    """Whether their sampling began at the same moment, in the same program."""
    began = [found.profile.time_ns - found.profile.duration_ns for found in (one, other)]
    return abs(began[0] - began[1]) < SAME_MOMENT and one.program == other.program


def gate(processes: list[Process], end: End) -> tuple[int, str]:
    """The exit status of --fail-on-leaks, and why it is what it is where that is not plain."""
    if any(process.leaks for process in processes):
        return LEAKING, ""
    if not processes:
        return CANNOT, "nothing was seen of the program, so nothing is known of its leaks"
    if not any(process.found.profile.stacks for process in processes):
        started = len(processes) == 1 and not end.alone
        if started:
            return CANNOT, "the program started others, and nothing was seen of what they allocate"
    return 0, ""


def frames_of(profile: Profile, addresses: tuple[int, ...]) -> list[Frame]:
    """Innermost first; of code without names the file's."""
    if not addresses:
        return [Frame(UNKNOWN_STACK)]
    return [
        frame
        for a in addresses
        for frame in profile.frames.get(a) or (Frame(place_of(profile, a)),)
    ]


def place_of(profile: Profile, address: int) -> str:
    """For who has the debug information elsewhere: addr2line -e FILE OFFSET."""
    mapping = profile.mapping_of(address)
    if mapping is None:
        return f"{address:#x}"
    return f"{os.path.basename(mapping.path)}+{address - mapping.begin + mapping.offset:#x}"


def lines(processes: list[Process]) -> list[str]:
    """As text: the first one, then those that have leaks too."""
    first, *others = processes
    said = lines_of(first, "")
    leaking = [one for one in others if one.leaks]
    for one in leaking[:MOST_PROCESSES]:
        said += lines_of(one, f"process {one.found.pid}, {one.found.program}: ")
    if len(leaking) > MOST_PROCESSES:
        said.append(f"and {len(leaking) - MOST_PROCESSES} more processes; --json has all")
    return said


def lines_of(process: Process, subject: str) -> list[str]:
    profile, found = process.found.profile, process.leaks
    when = "when it ended" if process.found.at_exit else "when it was last seen"
    if not found:
        return [
            f"lanemalloc: {subject}of what was sampled (one in {units.size(profile.period)}), "
            f"nothing was left {when}"
        ]
    total, objects = process.bytes, sum(leak.objects for leak in found)
    copied = f" beyond what process {process.copy_of} had" if process.copy_of else ""
    said = [
        f"lanemalloc: {subject}{about(total, objects)} were not freed {when}{copied}, "
        f"from {len(found):,} call stack{'s'[: len(found) != 1]} "
        f"(estimated by samples, one in {units.size(profile.period)})"
    ]
    for leak in found[:MOST_SHOWN]:
        said.append(f"  {about(leak.bytes, leak.objects)}, allocated in")
        frames = frames_of(profile, leak.addresses)
        said += [
            f"      {frame.name}"
            f"{f'  {frame.file}:{frame.line}' if frame.file and frame.line else ''}"
            for frame in frames[:MOST_FRAMES]
        ]
        if len(frames) > MOST_FRAMES:
            said.append(f"      and {len(frames) - MOST_FRAMES} more")
    if len(found) > MOST_SHOWN:
        said.append(
            f"  and {about(sum(leak.bytes for leak in found[MOST_SHOWN:]), 0)} "
            f"from {len(found) - MOST_SHOWN:,} more; --json has all"
        )
    return said


def about(size: int, objects: int) -> str:
    return units.size(size) + (f" in {objects:,} object{'s'[: objects != 1]}" if objects else "")


def as_json(processes: list[Process]) -> dict[str, Any]:
    """Of all processes; each has its own too."""
    every = [of_process(one) for one in processes]
    return {
        "bytes": sum(one["bytes"] for one in every),
        "objects": sum(one["objects"] for one in every),
        "sample": processes[0].found.profile.period,
        "processes": every,
    }


def of_process(process: Process) -> dict[str, Any]:
    profile = process.found.profile
    return {
        "pid": process.found.pid,
        "program": process.found.program,
        "copy_of": process.copy_of,
        "at_exit": process.found.at_exit,
        "bytes": process.bytes,
        "objects": sum(leak.objects for leak in process.leaks),
        "stacks": [
            {
                "bytes": leak.bytes,
                "objects": leak.objects,
                "frames": [
                    {"name": one.name, "file": one.file, "line": one.line}
                    for one in frames_of(profile, leak.addresses)
                ],
            }
            for leak in process.leaks
        ],
    }
