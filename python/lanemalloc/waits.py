"""Which locks were waited for, and where from in the latest waits that were sampled.

Used by: the command profile, with --kind contention.
"""

from __future__ import annotations

from typing import Any

from lanemalloc import units
from lanemalloc.leaks import frames_of
from lanemalloc.profiles import Place, Profile

MOST_FRAMES = 5


def lines(profile: Profile, when: str) -> list[str]:
    """As text; stacks that look the same as one."""
    places = [place for place in profile.places if place.stacks]
    if not places:
        return []
    said = [f"latest sampled waits{when}, by lock"]
    for place in places:
        waits = f"{place.waits:,} wait{'s'[: place.waits != 1]}"
        said.append(
            f"  {place.name}: {place.count:,} entries, {place.failures:,} failed tries, "
            f"{waits}, {units.duration(place.waited_ns / 1e9)}"
        )
        said += dict.fromkeys(f"      {calls(profile, stack)}" for stack in place.stacks)
    return said


def calls(profile: Profile, stack: tuple[int, ...]) -> str:
    """Innermost first."""
    names = profile.stack_names(stack)
    more = len(names) - MOST_FRAMES
    return " <- ".join(names[:MOST_FRAMES]) + (f" <- {more} more" if more > 0 else "")


def as_json(profile: Profile) -> list[dict[str, Any]]:
    return [place_json(profile, place) for place in profile.places]


def place_json(profile: Profile, place: Place) -> dict[str, Any]:
    return {
        "at": place.name,
        "count": place.count,
        "failures": place.failures,
        "waits": place.waits,
        "waited_ns": place.waited_ns,
        "latest": [
            [
                {"name": one.name, "file": one.file, "line": one.line}
                for one in frames_of(profile, stack)
            ]
            for stack in place.stacks
        ],
    }
