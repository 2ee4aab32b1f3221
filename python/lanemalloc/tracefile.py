"""Trace files: their columns, what their metadata says, and how one is opened. docs/trace.md
describes them.

Used by: recorder (writes), replays, the commands trace, replay and tune.
"""

from __future__ import annotations

import bisect
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lanemalloc.ui import Problem

VERSION = 1
KEY, CHECKSUM_KEY = b"lanemalloc.trace", b"lanemalloc.trace.crc32"
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


@dataclass(frozen=True)
class Lost:
    """Rows that cannot be read."""

    first: int
    rows: int
    why: str

    def __str__(self) -> str:
        return f"rows {self.first:,} to {self.first + self.rows - 1:,}: {self.why}"


def checksum(text: bytes) -> bytes:
    return f"{zlib.crc32(text):08x}".encode()


class Trace:
    """A trace that was opened. `about` is its metadata; `lost`, what was found damaged of it so
    far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost: list[Lost] = []
        self.parquet = open_parquet(path)
        found = (self.parquet.metadata.metadata or {}).get(KEY)
        if found is None:
            raise Problem(
                f"{path} is a Parquet file, but not a trace",
                f"record one with: lanemalloc trace -o {path.stem}.parquet -- PROGRAM",
            )
        said = (self.parquet.metadata.metadata or {}).get(CHECKSUM_KEY)
        if said is not None and said != checksum(found):
            raise damaged(path, "its metadata does not match their checksum")
        try:
            self.about: dict[str, Any] = json.loads(found)
        except ValueError:
            raise damaged(path, "its metadata cannot be read") from None
        version = self.about.get("version")
        if version != VERSION:
            raise Problem(
                f"{path} is a trace of version {version}; this lanemalloc reads version {VERSION}",
                "record it again, or use the lanemalloc that recorded it"
                + (f" ({self.about['tool']})" if "tool" in self.about else ""),
            )
        columns = self.parquet.schema_arrow
        for field in SCHEMA:
            if field.name not in columns.names or columns.field(field.name).type != field.type:
                raise damaged(path, f"it has no column '{field.name}' of type {field.type}")

    def batches(self, columns: list[str], size: int) -> Iterator[pa.RecordBatch]:
        """All rows that can be read, by row groups, each whole; what cannot comes to `lost`."""
        self.lost = []
        first = 0
        for group in range(self.parquet.metadata.num_row_groups):
            rows = self.parquet.metadata.row_group(group).num_rows
            try:
                table = self.parquet.read_row_group(group, columns=columns, use_threads=False)
                if table.num_rows != rows:
                    raise pa.ArrowInvalid(f"{table.num_rows:,} rows instead of {rows:,}")
            except (pa.ArrowException, OSError, ValueError) as error:
                self.lost.append(Lost(first, rows, str(error).splitlines()[0]))
            else:
                yield from table.to_batches(max_chunksize=size)
            first += rows
        promised = int(self.about.get("rows", first))
        if promised != first:
            self.lost.append(Lost(first, promised - first, "they are not there"))

    def what_is_lost(self) -> str:
        """For people; empty if nothing was found damaged."""
        if not self.lost:
            return ""
        rows = sum(one.rows for one in self.lost)
        parts = "; ".join(map(str, self.lost[:3]))
        more = f"; and {len(self.lost) - 3} more parts" if len(self.lost) > 3 else ""
        return f"{self.path} is damaged: {rows:,} of {self.rows:,} rows are lost ({parts}{more})"

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
        return pq.ParquetFile(path, page_checksum_verification=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        with path.open("rb") as file:
            file.seek(-min(4, path.stat().st_size), 2)
            ends = file.read(4)
        if ends == MAGIC:
            raise damaged(path, str(error).splitlines()[0]) from None
        raise Problem(
            f"{path} is cut off: it lacks the end that a Parquet file has",
            "copy it again in whole; if recording was cut short, record it again",
        ) from None


def damaged(path: Path, why: str) -> Problem:
    return Problem(f"{path} is damaged: {why}", "copy it again in whole, or record it again")
