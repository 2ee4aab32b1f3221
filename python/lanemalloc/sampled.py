"""Reads what the sampler of another process has (docs/stats-root.md, "Samples"), without stopping it.

Used by: the command profile. Stacks only ever come to the table, and stay where they are: so two looks at it are two profiles of the
same stacks, and the difference is what happened between them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lanemalloc import elf
from lanemalloc.binaries import PT_NOTE, build_id_of, program_headers
from lanemalloc.layout import Field
from lanemalloc.memory import Buffer, Gone, Memory, Unreadable, not_allowed, read
from lanemalloc.profiles import CONTENTION, HEAP, KINDS, Mapping, Profile, Stack, ValueType
from lanemalloc.reader import Reader
from lanemalloc.ui import Problem

SAMPLER_FIELDS = ("interval", "contention_interval", "stacks_at", "stacks_bytes")
STACK_FIELDS = ("bytes", "kind", "depth", "counters", "frames")
MOST_BYTES = 1 << 28  # the library takes 64 MiB
ALLOCATION, WAIT = 0, 1


class NotSampling(Problem):
    """The process counts, and looks at no call stacks."""


@dataclass(frozen=True)
class Look:
    """The sampler at one moment, as it was copied; what it says is worked out when it is asked for."""

    table: Buffer
    stack: dict[str, Field]
    interval: int
    contention_interval: int
    time_ns: int
    duration_ns: int  # since the process started
    mappings: list[Mapping]

    def profile(self, kind: str) -> Profile:
        """Of --kind `kind`, up to that moment."""
        name, default = KINDS[kind]
        is_heap = name == "heap"
        return Profile(
            types=list(HEAP if is_heap else CONTENTION),
            default=default,
            period_type=ValueType("space", "bytes") if is_heap else ValueType("delay", "nanoseconds"),
            period=self.interval if is_heap else self.contention_interval,
            time_ns=self.time_ns,
            duration_ns=self.duration_ns,
            mappings=self.mappings,
            stacks=stacks_of(self.table, self.stack, ALLOCATION if is_heap else WAIT),
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
                f"lanemalloc {layout.library} of that process does not tell {', '.join(missing) or 'its samples'}",
                "use the tool of the library's own release, or start the process with `lanemalloc profile -- PROGRAM`",
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
            if not self.reader.is_there():
                raise Gone(f"process {self.pid} has ended, or runs another program now")
            sampler = self._plan.read(self.reader.memory, self.reader.layout.number("sampler"))
            table = self._read_table(int(sampler["stacks_at"]), int(sampler["stacks_bytes"]))
        except Unreadable:
            raise Gone(f"process {self.pid} has ended, or runs another program now") from None
        return Look(
            table,
            self.reader.layout.fields["stack"],
            int(sampler["interval"]),
            int(sampler["contention_interval"]),
            time.time_ns(),
            time.monotonic_ns() - self.reader.started_at_ns,
            self._read_mappings(),
        )

    def _read_table(self, at: int, size: int) -> Buffer:
        if at == 0:
            raise NotSampling(
                f"process {self.pid} does not sample",
                "start it with LANEMALLOC_OPTIONS=sample=512k or with `lanemalloc profile -- PROGRAM`; from inside, "
                'lane_set("sample", "512k") turns it on at any time',
            )
        if size > MOST_BYTES:
            raise Problem("the table of stacks of that process is damaged", "its memory may have been overwritten; start it again")
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


def stacks_of(table: Buffer, fields: dict[str, Field], kind: int) -> list[Stack]:
    """Of one kind, of those with something counted."""
    at_bytes, at_kind, at_depth, at_counters, at_frames = (fields[name].offset for name in STACK_FIELDS)
    data = table.tobytes()
    words: npt.NDArray[np.uint64] = table[: len(table) // 8 * 8].view("<u8")
    found: list[Stack] = []
    at = 0
    while at + at_frames <= len(data):
        size = int.from_bytes(data[at + at_bytes : at + at_bytes + 4], "little")
        if size < at_frames or size % 8 or at + size > len(data):
            break  # one that was just being made
        counters = [int(one) for one in words[(at + at_counters) // 8 : (at + at_counters) // 8 + 4]]
        if data[at + at_kind] == kind and counters[0]:
            depth = int.from_bytes(data[at + at_depth : at + at_depth + 4], "little")
            depth = depth if at_frames + 8 * depth <= size else 0
            frames = words[(at + at_frames) // 8 : (at + at_frames) // 8 + depth]
            # The byte before where it returns to belongs to the call.
            addresses = tuple(int(one) - 1 for one in frames)
            objects, amount, freed, freed_bytes = counters
            # They were not read at one moment.
            values = [objects, amount] if kind == WAIT else [objects, amount, max(0, objects - freed), max(0, amount - freed_bytes)]
            found.append((addresses, values))
        at += size
    return found


def mappings_of(text: str, memory: Memory) -> list[Mapping]:
    """Of code, by /proc/PID/maps, with the builds' ids as they lie in memory: the file of that name may be another one by now."""
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
