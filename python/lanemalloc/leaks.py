"""What a program had not freed when it ended, by call stack.

Used by: the commands profile and run, with --leaks.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from lanemalloc import units
from lanemalloc.profiles import UNKNOWN_STACK, Frame, Profile

MOST_SHOWN = 10
MOST_FRAMES = 16


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


def lines(profile: Profile, found: list[Leak], at_exit: bool) -> list[str]:
    """As text."""
    when = "when it ended" if at_exit else "when it was last seen"
    if not found:
        return [
            f"lanemalloc: of what was sampled (one in {units.size(profile.period)}), "
            f"nothing was left {when}"
        ]
    total, objects = sum(leak.bytes for leak in found), sum(leak.objects for leak in found)
    said = [
        f"lanemalloc: {about(total, objects)} were not freed {when}, "
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


def as_json(profile: Profile, found: list[Leak]) -> dict[str, Any]:
    return {
        "bytes": sum(leak.bytes for leak in found),
        "objects": sum(leak.objects for leak in found),
        "sample": profile.period,
        "stacks": [
            {
                "bytes": leak.bytes,
                "objects": leak.objects,
                "frames": [
                    {"name": one.name, "file": one.file, "line": one.line}
                    for one in frames_of(profile, leak.addresses)
                ],
            }
            for leak in found
        ],
    }
