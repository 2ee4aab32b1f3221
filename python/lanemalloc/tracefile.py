"""Trace files: their columns, what their metadata says, and how one is opened. docs/trace.md
describes them.

Used by: recorder (writes), replays, the commands trace, replay and tune.
"""

from __future__ import annotations

import bisect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lanemalloc.ui import Problem

VERSION = 1
KEY = b"lanemalloc.trace"
MAGIC = b"PAR1"

# By the numbers of trace_ring.h's Op.
OPERATIONS = (
    "",
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "free",
    "free_sized",
    "free_aligned_sized",
    "new",
    "new[]",
    "new_nothrow",
    "new[]_nothrow",
    "delete",
    "delete[]",
    "delete_sized",
    "delete[]_sized",
    "delete_nothrow",
    "delete[]_nothrow",
)

SCHEMA = pa.schema(
    [
        pa.field("time", pa.int64(), nullable=False),
        pa.field("process", pa.int32(), nullable=False),
        pa.field("thread", pa.int32(), nullable=False),
        pa.field("tid", pa.int32(), nullable=False),
        pa.field("op", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        pa.field("size", pa.int64()),
        pa.field("alignment", pa.int64()),
        pa.field("object", pa.int64()),
        pa.field("old_object", pa.int64()),
        pa.field("site", pa.uint64(), nullable=False),
    ]
)


@dataclass(frozen=True)
class Place:
    """Where a call site lies: in a file, at an offset. Symbols and lines come from the file, found
    by its build id."""

    file: str
    offset: int
    build_id: str


class Trace:
    """A trace that was opened. `about` is its metadata."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parquet = open_parquet(path)
        found = (self.parquet.metadata.metadata or {}).get(KEY)
        if found is None:
            raise Problem(
                f"{path} is a Parquet file, but not a trace",
                f"record one with: lanemalloc trace -o {path.stem}.parquet -- PROGRAM",
            )
        self.about: dict[str, Any] = json.loads(found)
        version = self.about.get("version")
        if version != VERSION:
            raise Problem(
                f"{path} is a trace of version {version}; this lanemalloc reads version {VERSION}",
                "record it again, or use the lanemalloc that recorded it"
                + (f" ({self.about['tool']})" if "tool" in self.about else ""),
            )

    @property
    def rows(self) -> int:
        return int(self.parquet.metadata.num_rows)

    @property
    def processes(self) -> list[dict[str, Any]]:
        return list(self.about["processes"])

    def process(self, number: int | None) -> dict[str, Any]:
        """The process of that number; without one the busiest."""
        if not self.processes:
            raise Problem(
                f"{self.path} holds no process", "record it again: the program was not traced"
            )
        if number is None:
            return max(self.processes, key=lambda p: int(p["events"]))
        for process in self.processes:
            if process["process"] == number:
                return process
        known = ", ".join(str(p["process"]) for p in self.processes[:20])
        raise Problem(f"{self.path} has no process {number}", f"it has: {known}")

    def place(self, process: int, site: int) -> Place | None:
        """Where a call site of a process lies. None if it is in no file: generated code, or mapped
        after the last look."""
        mappings: list[list[int]] = next(
            (p["mappings"] for p in self.processes if p["process"] == process), []
        )
        at = bisect.bisect_right([m[0] for m in mappings], site) - 1
        if at < 0 or site >= mappings[at][1]:
            return None
        start, _, offset, file = mappings[at]
        about = self.about["files"][file]
        return Place(about["path"], site - start + offset, about["build_id"])


def open_parquet(path: Path) -> pq.ParquetFile:
    if not path.exists():
        raise Problem(
            f"{path}: no such file", f"record one with: lanemalloc trace -o {path} -- PROGRAM"
        )
    try:
        with path.open("rb") as file:
            begins = file.read(4)
    except OSError as error:
        raise Problem(
            f"{path}: {error.strerror}", "give the path of a trace that you may read"
        ) from None
    if begins != MAGIC:
        raise Problem(
            f"{path} is not a trace", "traces are Parquet files, as `lanemalloc trace` writes them"
        )
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError):
        raise Problem(
            f"{path} is cut off: it lacks the end that a Parquet file has",
            "copy it again in whole; if recording was cut short, record it again",
        ) from None
