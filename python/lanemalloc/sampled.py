"""Reads what the sampler of another process has (docs/stats-root.md, "Samples"),
without stopping it.

Used by: the command profile. Stacks only ever come to the table, and stay where they are: so two
looks at it are two profiles of the same stacks, and the difference is what happened between them.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from pathlib import Path

from lanemalloc import elf
from lanemalloc.binaries import PT_NOTE, build_id_of, program_headers
from lanemalloc.layout import Field
from lanemalloc.memory import Buffer, Gone, Memory, Unreadable, not_allowed, read
from lanemalloc.profiles import (
    CONTENTION,
    HEAP,
    KINDS,
    Mapping,
    Place,
    Profile,
    Sized,
    ValueType,
    merge,
)
from lanemalloc.reader import Reader
from lanemalloc.snapshot import CellFigures
from lanemalloc.ui import Problem

SAMPLER_FIELDS = (
    "interval",
    "contention_interval",
    "live",
    "peak",
    "stacks_at",
    "stacks_bytes",
)
STACK_FIELDS = ("bytes", "kind", "size", "depth", "counters", "frames")
MOST_BYTES = 1 << 28  # the library takes 64 MiB
ALLOCATION, WAIT = 0, 1


class NotSampling(Problem):
    """The process counts, and looks at no call stacks."""


@dataclass(frozen=True)
class Look:
    """The sampler at one moment, as it was copied; what it says is worked out when it is asked
    for."""

    table: Buffer
    table_at: int  # its address
    stack: dict[str, Field]
    cells: list[CellFigures]
    interval: int
    contention_interval: int
    time_ns: int
    duration_ns: int  # since the process started
    mappings: list[Mapping]
    peak_is_now: bool = True  # else stacks know what was in use at the peak
    pid: int = 0

    def profile(self, kind: str) -> Profile:
        """Of --kind `kind`, up to that moment."""
        name, default = KINDS[kind]
        is_heap = name == "heap"
        sized = sized_of(self.table, self.stack, ALLOCATION if is_heap else WAIT, self.peak_is_now)
        return Profile(
            types=list(HEAP if is_heap else CONTENTION),
            default=default,
            period_type=ValueType("space", "bytes")
            if is_heap
            else ValueType("delay", "nanoseconds"),
            period=self.interval if is_heap else self.contention_interval,
            time_ns=self.time_ns,
            duration_ns=self.duration_ns,
            mappings=self.mappings,
            stacks=merge((addresses, values) for (addresses, _), values in sized),
            sized=sized if is_heap else [],
            places=[] if is_heap else self.places(),
            pid=self.pid,
        )

    def places(self) -> list[Place]:
        """Those where threads have waited, where most was waited first."""
        found = []
        for cell in self.cells:
            stacks = [stack for site in cell.sites if (stack := self.stack_at(site)) is not None]
            if cell.waits:
                found.append(
                    Place(cell.name, cell.count, cell.failures, cell.waits, cell.waited_ns, stacks)
                )
        return sorted(found, key=lambda place: -place.waited_ns)

    def stack_at(self, address: int) -> tuple[int, ...] | None:
        """The calls of the stack of waits there, innermost first; empty if they are not known,
        None if there is no such stack."""
        at, data = address - self.table_at, self.table.data
        size = size_at(data, self.stack, at) if at >= 0 and at % 8 == 0 else 0
        return (
            calls_at(data, self.stack, at, size)
            if size and data[at + self.stack["kind"].offset] == WAIT
            else None
        )


class Samples:
    """The sampler of one process."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        layout = reader.layout
        missing = [f"sampler.{name}" for name in SAMPLER_FIELDS if not layout.has("sampler", name)]
        missing += [f"stack.{name}" for name in STACK_FIELDS if not layout.has("stack", name)]
        if missing or not layout.number("sampler"):
            raise Problem(
                f"lanemalloc {layout.library} of that process does not tell "
                f"{', '.join(missing) or 'its samples'}",
                "use the tool of the library's own release, "
                "or start the process with `lanemalloc profile -- PROGRAM`",
            )
        self._plan = layout.plan("sampler", SAMPLER_FIELDS)
        self._maps = ""
        self._mappings: list[Mapping] = []

    @property
    def pid(self) -> int:
        return int(getattr(self.reader.memory, "pid", 0))

    def look(self) -> Look:
        """Raises Gone when the process has ended, NotSampling."""
        try:
            cells = self.reader.cells()  # first: the stacks that they name are in the table then
            sampler = self._plan.read(self.reader.memory, self.reader.layout.number("sampler"))
            table = self._read_table(int(sampler["stacks_at"]), int(sampler["stacks_bytes"]))
        except Unreadable:
            raise Gone(f"process {self.pid} has ended, or runs another program now") from None
        return Look(
            table,
            int(sampler["stacks_at"]),
            self.reader.layout.fields["stack"],
            cells,
            int(sampler["interval"]),
            int(sampler["contention_interval"]),
            time.time_ns(),
            time.monotonic_ns() - self.reader.started_at_ns,
            self._read_mappings(),
            int(sampler["live"]) > int(sampler["peak"]),
            self.pid,
        )

    def _read_table(self, at: int, size: int) -> Buffer:
        if at == 0:
            raise NotSampling(
                f"process {self.pid} does not sample",
                "start it with LANEMALLOC_OPTIONS=sample=512k "
                "or with `lanemalloc profile -- PROGRAM`; from inside, "
                'lane_set("sample", "512k") turns it on at any time',
            )
        if size > MOST_BYTES:
            raise Problem(
                "the table of stacks of that process is damaged",
                "its memory may have been overwritten; start it again",
            )
        return read(self.reader.memory, at, size)

    def _read_mappings(self) -> list[Mapping]:
        try:
            text = Path(f"/proc/{self.pid}/maps").read_text(errors="replace")
        except PermissionError:
            raise not_allowed(self.pid) from None
        except OSError:
            raise Gone(f"process {self.pid} has ended") from None
        if text != self._maps:
            self._maps, self._mappings = text, mappings_of(text, self.reader.memory)
        return self._mappings


def sized_of(
    table: Buffer, fields: dict[str, Field], kind: int, peak_is_now: bool = True
) -> list[Sized]:
    """Of one kind, of those with something counted."""
    data = table.tobytes()
    found: list[Sized] = []
    at = 0
    while size := size_at(data, fields, at):
        counters = struct.unpack_from("<8Q", data, at + fields["counters"].offset)
        objects, amount, freed, freed_bytes = counters[:4]
        if data[at + fields["kind"].offset] == kind and objects:
            values = [objects, amount]
            if kind == ALLOCATION:
                # They were not read at one moment.
                values += [max(0, objects - freed), max(0, amount - freed_bytes)]
                values += values[2:] if peak_is_now else map(at_least_zero, counters[4:6])
                values += counters[6:]
            code = struct.unpack_from("<H", data, at + fields["size"].offset)[0]
            found.append(((calls_at(data, fields, at, size), size_of_code(code)), values))
        at += size
    return found


def at_least_zero(counter: int) -> int:
    """Of a difference of counters that were read one after the other."""
    return counter if counter < 1 << 63 else 0


def size_of_code(code: int) -> int:
    """As size_of_code() in src/seeing/stacks.h."""
    return (8 + (code - 1 & 7)) << (code - 1 >> 3) if code else 0


def size_at(data: bytes | memoryview, fields: dict[str, Field], at: int) -> int:
    """Of the stack there; 0: there is none, or it is just being made."""
    if at + fields["frames"].offset > len(data):
        return 0
    size: int = struct.unpack_from("<I", data, at + fields["bytes"].offset)[0]
    return (
        size if size >= fields["frames"].offset and size % 8 == 0 and at + size <= len(data) else 0
    )


def calls_at(
    data: bytes | memoryview, fields: dict[str, Field], at: int, size: int
) -> tuple[int, ...]:
    """Of the stack there, innermost first."""
    depth: int = struct.unpack_from("<I", data, at + fields["depth"].offset)[0]
    if fields["frames"].offset + 8 * depth > size:
        return ()
    # The byte before where it returns to belongs to the call.
    return tuple(
        one - 1 for one in struct.unpack_from(f"<{depth}Q", data, at + fields["frames"].offset)
    )


def mappings_of(text: str, memory: Memory) -> list[Mapping]:
    """Of code, by /proc/PID/maps, with the builds' ids as they lie in memory:
    the file of that name may be another one by now."""
    found = []
    ids: dict[str, str] = {}
    for line in text.splitlines():
        parts = line.split(None, 5)
        if len(parts) < 6:
            continue
        begin, end = (int(word, 16) for word in parts[0].split("-"))
        path, offset = parts[5], int(parts[2], 16)
        if offset == 0 and path.startswith("/") and parts[1][0] == "r":
            ids[path] = build_id_at(memory, begin, end - begin)
        if parts[1][2] == "x" and path[0] in "/[":
            found.append(Mapping(begin, end, offset, path, ids.get(path, "")))
    return found


def build_id_at(memory: Memory, begin: int, size: int) -> str:
    """Of the file whose first bytes are mapped there; empty if it has none."""
    try:
        head = read(memory, begin, min(size, elf.HEAD)).tobytes()
        for kind, offset, length in program_headers(head):
            if kind != PT_NOTE or offset + length > size or length > elf.MOST_NOTES:
                continue
            notes = read(memory, begin + offset, length).tobytes()
            if found := build_id_of(notes):
                return found
    except Unreadable:
        pass
    return ""
