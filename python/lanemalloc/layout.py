"""The stats root and its fields (docs/stats-root.md): where what lies, by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lanemalloc.memory import Addresses, Buffer, Memory, Unreadable, read
from lanemalloc.ui import Problem

Records = npt.NDArray[np.void]

VERSION = 1
ROOT = np.dtype(
    {
        "names": [
            "magic", "version", "size", "library", "started_at_ns", "fields", "field_count",
            "field_bytes", "world",
            "class_sizes", "class_count", "block_shift", "lane_bytes", "state_bytes", "first_lane",
            "cell_count", "cells",
            "sampler", "options",
        ],
        "formats": [
            "S8", "<u4", "<u4", "S16", "<u8", "<u8", "<u4", "<u4", "<u8",
            "<u8", "<u4", "<u4", "<u4", "<u4", "<u4", "<u4", "<u8",
            "<u8", "<u8",
        ],
        "offsets": [0, 8, 12, 16, 32, 40, 48, 52, 56, 64, 72, 76, 80, 84, 88, 92, 96, 104, 112],
        "itemsize": 120,
    }
)  # fmt: skip
MOST_FIELDS, MOST_CELLS, MOST_CLASSES = 4096, 256, 255
CELL_PLACE = np.dtype(
    {"names": ["name", "where", "offset"], "formats": ["S24", "<u4", "<u4"], "itemsize": 32}
)
IN_LANES, IS_LOOP = 1, 0x100  # bits of `where`

# Without these nothing can be added up.
NEEDED = {
    "world": ("lanes_at", "lane_count", "map_at", "states_at", "frontier", "opened"),
    "lane": ("made", "taken", "sent", "received"),
    "state": ("countdown", "beyond", "carved", "size_class", "length"),
}


@dataclass(frozen=True)
class Field:
    """One field of a part: where it lies, and of what kind."""

    offset: int
    count: int
    bytes: int
    type: int

    @property
    def format(self) -> Any:
        if self.type == 3:
            return f"S{self.count}"
        one = ("<i" if self.type == 1 else "<u") + str(self.bytes)
        return one if self.count == 1 else (one, (self.count,))

    @property
    def length(self) -> int:
        return self.count if self.type == 3 else self.count * self.bytes


@dataclass(frozen=True)
class Cell:
    """A place where threads can meet: its name, whether it lies in each lane, and whether it is a
    loop (which nobody waits in)."""

    name: str
    in_lanes: bool
    is_loop: bool
    offset: int


@dataclass
class Plan:
    """How to read some fields of a part: which pieces of it, and what they are once they lie one
    behind the other."""

    pieces: list[tuple[int, int]]
    dtype: np.dtype[np.void]

    def gather(self, memory: Memory, at: Addresses) -> tuple[Records, npt.NDArray[np.bool_]]:
        """The fields of each of the places, in one go. Those that could not be read whole are
        zeros."""
        records, complete = gather_plans(memory, [(self, at)])[0]
        return records, complete

    def read(self, memory: Memory, at: int) -> np.void:
        records, complete = self.gather(memory, np.array([at], np.uint64))
        if not complete[0]:
            raise Unreadable(f"at {at:#x}")
        one: np.void = records[0]
        return one


def gather_plans(
    memory: Memory, wanted: Iterable[tuple[Plan, Addresses]]
) -> list[tuple[Records, npt.NDArray[np.bool_]]]:
    """Several plans' places by as few calls as can be."""
    wanted = list(wanted)
    starts, lengths = [], []
    for plan, at in wanted:
        offsets = np.array([offset for offset, _ in plan.pieces], np.uint64)
        starts.append((at[:, None] + offsets).ravel())
        lengths.append(np.tile(np.array([length for _, length in plan.pieces], np.uint64), len(at)))
    if sum(map(len, starts)) == 0:
        return [(np.zeros(0, plan.dtype), np.zeros(0, np.bool_)) for plan, _ in wanted]
    buffer, complete = memory.gather(np.concatenate(starts), np.concatenate(lengths))
    results: list[tuple[Records, npt.NDArray[np.bool_]]] = []
    for plan, at in wanted:
        size, pieces = plan.dtype.itemsize * len(at), len(plan.pieces) * len(at)
        records: Records = buffer[:size].view(plan.dtype) if size else np.zeros(len(at), plan.dtype)
        whole: npt.NDArray[np.bool_] = np.all(
            complete[:pieces].reshape(len(at), len(plan.pieces)), axis=1
        )
        if not whole.all():
            records[~whole] = np.zeros(1, plan.dtype)[0]
        results.append((records, whole))
        buffer, complete = buffer[size:], complete[pieces:]
    return results


@dataclass
class Layout:
    """What the root says, once read: it stays the same while the process runs."""

    at: int
    root: np.void
    fields: dict[str, dict[str, Field]]
    class_sizes: npt.NDArray[np.int64]
    cells: list[Cell]
    options: str
    missing: set[str] = field(default_factory=set)

    @property
    def library(self) -> str:
        return bytes(self.root["library"]).split(b"\0")[0].decode(errors="replace")

    def number(self, name: str) -> int:
        """Of the root."""
        return int(self.root[name])

    def has(self, part: str, name: str) -> bool:
        return name in self.fields.get(part, {})

    def plan(
        self, part: str, names: Iterable[str], gap: int = 256, more: dict[str, Field] | None = None
    ) -> Plan:
        """For those of the fields that there are; the others are noted as missing. Pieces with less
        than `gap` between them are read as one."""
        known = self.fields.get(part, {})
        chosen = dict(more or {})
        for name in names:
            if name in known:
                chosen[name] = known[name]
            else:
                self.missing.add(f"{part}.{name}")
        return plan_of(chosen, gap)


def plan_of(chosen: dict[str, Field], gap: int) -> Plan:
    pieces: list[tuple[int, int]] = []
    offsets = []
    order = sorted(chosen, key=lambda name: chosen[name].offset)
    compact = 0  # where the current piece begins once compacted
    for name in order:
        one = chosen[name]
        if pieces and one.offset < pieces[-1][0] + pieces[-1][1] + gap:
            start, length = pieces[-1]
            pieces[-1] = (start, max(length, one.offset + one.length - start))
        else:
            compact += pieces[-1][1] if pieces else 0
            pieces.append((one.offset, one.length))
        offsets.append(compact + one.offset - pieces[-1][0])
    dtype = np.dtype(
        {
            "names": order,
            "formats": [chosen[name].format for name in order],
            "offsets": offsets,
            "itemsize": sum(length for _, length in pieces),
        }
    )
    return Plan(pieces, dtype)


def column(records: Records, name: str) -> npt.NDArray[np.int64]:
    """A field of many records, as signed numbers; zeros if the library has no such field."""
    if records.dtype.names is None or name not in records.dtype.names:
        return np.zeros(len(records), np.int64)
    values: npt.NDArray[np.int64] = records[name].astype(np.int64)
    return values


def read_root(memory: Memory, at: int) -> np.void | None:
    """The root there; None if it is none, or not one of this version."""
    try:
        root: np.void = read(memory, at, ROOT.itemsize).view(ROOT)[0]
    except Unreadable:
        return None
    return root if root["magic"] == b"lanestat" else None


def read_layout(memory: Memory, at: int, root: np.void) -> Layout:
    """Raises Problem for a root that this reader does not know."""
    if root["version"] != VERSION:
        raise Problem(
            (
                f"the process' library writes its figures in version {int(root['version'])} of the "
                f"stats root; this tool reads {VERSION}"
            ),
            "use the tool of the library's own release (pipx install lanemalloc==X.Y.Z)",
        )
    if (
        root["field_count"] > MOST_FIELDS
        or root["cell_count"] > MOST_CELLS
        or root["class_count"] > MOST_CLASSES
    ):
        raise Problem(
            "the stats root of the process is damaged",
            "its memory may have been overwritten; start it again",
        )
    try:
        fields = read_fields(memory, root)
        sizes = (
            read(memory, int(root["class_sizes"]), int(root["class_count"]) * 4)
            .view("<u4")
            .astype(np.int64)
        )
        cells = read_cells(memory, root)
    except Unreadable as error:
        raise Problem(
            f"the stats root of the process leads nowhere ({error})",
            "it may be ending just now; try again",
        ) from None
    layout = Layout(at, root, fields, sizes, cells, read_text(memory, int(root["options"])))
    for part, names in NEEDED.items():
        for name in names:
            if not layout.has(part, name):
                raise Problem(
                    (
                        f"lanemalloc {layout.library} of that process does not tell {part}.{name}, "
                        "which this tool needs"
                    ),
                    (
                        "use the tool of the library's own release, or start the process with "
                        "`lanemalloc run`"
                    ),
                )
    return layout


def read_fields(memory: Memory, root: np.void) -> dict[str, dict[str, Field]]:
    size, count = int(root["field_bytes"]), int(root["field_count"])
    entry = np.dtype(
        {
            "names": ["name", "offset", "count", "bytes", "type"],
            "formats": ["S36", "<u4", "<u4", "u1", "u1"],
            "offsets": [0, 36, 40, 44, 45],
            "itemsize": max(size, 48),
        }
    )
    parts: dict[str, dict[str, Field]] = {}
    for one in read(memory, int(root["fields"]), size * count).view(entry):
        part, _, name = one["name"].decode(errors="replace").partition(".")
        known = Field(int(one["offset"]), int(one["count"]), int(one["bytes"]), int(one["type"]))
        if name == "decay_ms":  # -1 for never; some libraries call it unsigned
            known = Field(known.offset, known.count, known.bytes, 1)
        if known.type == 3 or known.bytes in (1, 2, 4, 8):
            parts.setdefault(part, {})[name] = known
    return parts


def read_cells(memory: Memory, root: np.void) -> list[Cell]:
    count = int(root["cell_count"])
    places: Any = (
        read(memory, int(root["cells"]), count * CELL_PLACE.itemsize).view(CELL_PLACE)
        if count
        else []
    )
    return [
        Cell(
            one["name"].decode(errors="replace"),
            bool(one["where"] & IN_LANES),
            bool(one["where"] & IS_LOOP),
            int(one["offset"]),
        )
        for one in places
    ]


def read_text(memory: Memory, at: int, most: int = 1024) -> str:
    """A text that ends with a zero, perhaps shortly before memory does."""
    found = b""
    while at and len(found) < most and b"\0" not in found:
        step = 256 - (at + len(found)) % 256
        try:
            found += read(memory, at + len(found), step).tobytes()
        except Unreadable:
            break
    return found.split(b"\0")[0].decode(errors="replace")


def whole_of(buffer: Buffer, dtype: np.dtype[np.void]) -> Records:
    """As many records as lie in the buffer."""
    usable = len(buffer) // dtype.itemsize * dtype.itemsize
    records: Records = buffer[:usable].view(dtype)
    return records


def in_place(plan: Plan, stride: int) -> np.dtype[np.void]:
    """The plan's fields as they lie from the first one on, when the next record begins `stride`
    bytes further."""
    names: Any = plan.dtype.names or ()
    fields: Any = plan.dtype.fields or {}
    return np.dtype(
        {
            "names": list(names),
            "formats": [fields[name][0] for name in names],
            "offsets": [fields[name][1] for name in names],
            "itemsize": stride,
        }
    )
