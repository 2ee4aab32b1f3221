"""What was sampled, by call stack: added up by function, compared with another moment.

    profile   stacks (addresses, innermost first) with a value of each type; what is mapped where;
              the names of addresses, once symbols.py has looked them up

Addresses are of the call, not of where it returns to. Used by: pprof, symbols, sampled, the
commands profile and run.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

UNKNOWN_STACK = "[stack not known]"


@dataclass(frozen=True)
class ValueType:
    """As pprof names them: inuse_space, bytes."""

    type: str
    unit: str


@dataclass(frozen=True)
class Mapping:
    """Code of a file, as it lies in memory."""

    begin: int
    end: int
    offset: int
    path: str
    build_id: str = ""


@dataclass(frozen=True)
class Frame:
    """A function at an address; of several, the ones behind the first are those that it was inlined
    into."""

    name: str
    linkage_name: str = ""  # as the linker knows it, if that is another
    file: str = ""
    line: int = 0


Stack = tuple[tuple[int, ...], list[int]]
# The objects of one size that a stack allocated: the stack and the size, and the values of these.
Sized = tuple[tuple[tuple[int, ...], int], list[int]]
Key = TypeVar("Key", bound=Hashable)

HEAP = (
    ValueType("alloc_objects", "count"),
    ValueType("alloc_space", "bytes"),
    ValueType("inuse_objects", "count"),
    ValueType("inuse_space", "bytes"),
    ValueType("peak_objects", "count"),
    ValueType("peak_space", "bytes"),
    ValueType("temporary_objects", "count"),
    ValueType("temporary_space", "bytes"),
)
CONTENTION = (ValueType("contentions", "count"), ValueType("delay", "nanoseconds"))
# What --kind shows: of which of the library's profiles, and which of its values.
KINDS = {
    "heap": ("heap", "inuse_space"),
    "allocation": ("heap", "alloc_space"),
    "peak": ("heap", "peak_space"),
    "temporary": ("heap", "temporary_objects"),
    "contention": ("contention", "delay"),
}
# The values, as people call them.
LABELS = {
    "inuse_space": "Memory in use",
    "inuse_objects": "Objects in use",
    "alloc_space": "Memory allocated",
    "alloc_objects": "Objects allocated",
    "peak_space": "Memory at the peak",
    "peak_objects": "Objects at the peak",
    "temporary_space": "Temporary memory",
    "temporary_objects": "Temporary allocations",
    "delay": "Time waited for locks",
    "contentions": "Waits for locks",
}
# The allocator's own functions, where they are linked into the program, and so cannot be told from
# it by their place.
OURS = (
    r"lanemalloc::.*|(lane_)?(malloc|calloc|realloc|reallocarray|memalign|aligned_alloc|"
    r"posix_memalign|valloc|pvalloc)|"
    r"operator new(\[\])?|lane_(heap|pool|arena)_[a-z_]*"
)


@dataclass
class Row:
    """A function: what was allocated by it itself, and by all that it called."""

    name: str
    flat: int = 0
    cumulative: int = 0
    variance: float = 0  # of the estimate `cumulative`

    @property
    def error(self) -> int:
        """One standard error."""
        return round(math.sqrt(self.variance))


@dataclass
class Place:
    """Where threads met: a lock, or all of one name; and the stacks of the latest waits that were
    sampled, the newest first."""

    name: str
    count: int = 0
    failures: int = 0
    waits: int = 0
    waited_ns: int = 0
    stacks: list[tuple[int, ...]] = field(default_factory=list)


@dataclass
class Profile:
    types: list[ValueType]
    default: str
    period_type: ValueType
    period: int
    time_ns: int
    duration_ns: int
    mappings: list[Mapping]
    stacks: list[Stack]
    drop: str = OURS
    frames: dict[int, tuple[Frame, ...]] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)  # of waits; not in the file
    sized: list[Sized] = field(default_factory=list)  # `stacks` by size; empty: not known
    is_growth: bool = False  # what has come between two moments
    pid: int = 0  # 0: not known

    def __post_init__(self) -> None:
        self._sorted = sorted(self.mappings, key=lambda one: one.begin)
        self._begins = [one.begin for one in self._sorted]

    def index(self, kind: str) -> int:
        """Of a type's value."""
        return [one.type for one in self.types].index(kind)

    def total(self, kind: str) -> int:
        index = self.index(kind)
        return sum(values[index] for _, values in self.stacks)

    def parts(self) -> list[Sized]:
        """The stacks by the size of their objects; where that is not known, by the mean size."""
        if self.sized:
            return self.sized
        return [
            ((addresses, round(abs(values[1]) / abs(values[0])) if values[0] else 0), values)
            for addresses, values in self.stacks
        ]

    def variance(self, values: list[int], kind: str) -> float:
        """Of an estimate for one stack, whose objects are of about the same size."""
        pair = self.index(kind) & ~1  # values come in pairs: objects, bytes
        if pair + 1 >= len(values):
            return 0
        objects, amount = values[pair], values[pair + 1]
        if self.is_growth and self.types[pair].type.startswith("inuse"):
            # What was freed meanwhile is as uncertain as what was allocated.
            objects, amount = (2 * values[i] - values[pair + i] for i in (0, 1))
        in_bytes = variance_of(abs(objects), abs(amount), self.period)
        is_count = self.index(kind) == pair
        return in_bytes * (objects / amount) ** 2 if is_count and amount else in_bytes

    def error(self, kind: str) -> int:
        """One standard error of the total."""
        return round(math.sqrt(sum(self.variance(values, kind) for _, values in self.parts())))

    def addresses(self) -> set[int]:
        latest = [addresses for place in self.places for addresses in place.stacks]
        return {
            address
            for addresses in [*(one for one, _ in self.stacks), *latest]
            for address in addresses
        }

    def mapping_of(self, address: int) -> Mapping | None:
        at = bisect_right(self._begins, address) - 1
        return self._sorted[at] if at >= 0 and address < self._sorted[at].end else None

    def names_of(self, address: int) -> tuple[str, ...]:
        """Of the functions there, the inlined ones first. Of code without names the file's, as
        pprof has it."""
        frames = self.frames.get(address)
        if frames:
            return tuple(frame.name for frame in frames)
        mapping = self.mapping_of(address)
        return (f"[{mapping.path.rsplit('/', 1)[-1].strip('[]')}]" if mapping else "<unknown>",)

    def stack_names(self, addresses: tuple[int, ...]) -> list[str]:
        """Innermost first."""
        return [name for address in addresses for name in self.names_of(address)] or [UNKNOWN_STACK]

    def prune(self) -> None:
        """Leaves the allocator's own functions out, and what they called; as pprof does with
        drop_frames. Needs names."""
        pattern = re.compile(rf"(?:{self.drop})\Z") if self.drop else None
        own = {
            a
            for a in self.addresses()
            if pattern and any(pattern.match(frame.name) for frame in self.frames.get(a, ()))
        }
        self.stacks = merge((pruned(addresses, own), values) for addresses, values in self.stacks)
        self.sized = merge(
            ((pruned(addresses, own), size), values) for (addresses, size), values in self.sized
        )
        self.places = [
            replace(one, stacks=[pruned(addresses, own) for addresses in one.stacks])
            for one in self.places
        ]

    def rows(self, kind: str) -> list[Row]:
        """The largest first, as `go tool pprof -top` has them."""
        index = self.index(kind)
        rows: dict[str, Row] = {}
        for (addresses, _), values in self.parts():
            value, variance = values[index], self.variance(values, kind)
            names = self.stack_names(addresses) if value or variance else []
            for name in set(names):
                row = rows.setdefault(name, Row(name))
                row.cumulative += value
                row.variance += variance
            if names:
                rows[names[0]].flat += value
        return sorted(
            rows.values(), key=lambda row: (-abs(row.flat), -abs(row.cumulative), row.name)
        )

    def since(self, before: Profile) -> Profile:
        """What has come to it. Of what is in use, by how much it has grown; that may be below 0."""
        return replace(
            self,
            stacks=grown(self.stacks, before.stacks),
            sized=grown(self.sized, before.sized),
            places=self.places_since(before),
            duration_ns=self.time_ns - before.time_ns,
            is_growth=True,
        )

    def places_since(self, before: Profile) -> list[Place]:
        """Those where somebody has waited since."""
        was = {one.name: one for one in before.places}
        found = []
        for one in self.places:
            old = was.get(one.name, Place(one.name))
            if one.waited_ns > old.waited_ns:
                counts = (
                    one.count - old.count,
                    one.failures - old.failures,
                    one.waits - old.waits,
                    one.waited_ns - old.waited_ns,
                )
                found.append(Place(one.name, *counts, one.stacks))
        return sorted(found, key=lambda place: -place.waited_ns)


def pruned(addresses: tuple[int, ...], own: set[int]) -> tuple[int, ...]:
    """Without the outermost own one and all inside of it; own ones that nobody else has called
    stay."""
    found_user = False
    for i in range(len(addresses) - 1, -1, -1):
        if addresses[i] not in own:
            found_user = True
        elif found_user:
            return addresses[i + 1 :]
    return addresses


def variance_of(objects: int, amount: int, period: int) -> float:
    """Of the estimated `amount` in `objects` of about the same size: an object of size s is sampled
    with chance p = 1 - exp(-s / period) and then stands for 1 / p of them, so n of them vary by
    n s² (1 - p) / p."""
    if not objects or not amount or period <= 0:
        return 0
    size = amount / objects
    chance = -math.expm1(-size / period)
    return objects * size * size * (1 - chance) / chance


def merged(parts: Iterable[tuple[Key, list[int]]]) -> dict[Key, list[int]]:
    found: dict[Key, list[int]] = {}
    for key, values in parts:
        one = found.get(key)
        found[key] = [a + b for a, b in zip(one, values)] if one else values
    return found


def merge(parts: Iterable[tuple[Key, list[int]]]) -> list[tuple[Key, list[int]]]:
    """Those of the same key as one."""
    return list(merged(parts).items())


def grown(
    after: Iterable[tuple[Key, list[int]]], before: Iterable[tuple[Key, list[int]]]
) -> list[tuple[Key, list[int]]]:
    """Those whose values have changed, by how much."""
    was = merged(before)
    found = []
    for key, values in merge(after):
        left = [a - b for a, b in zip(values, was.get(key, [0] * len(values)))]
        if any(left):
            found.append((key, left))
    return found
