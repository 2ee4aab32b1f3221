"""A recording: snapshots of a process over its life, bounded in memory however long it runs.

The file has a JSON object a line:

    {"format": "lanemalloc-recording", "version": 1, "command": [...], "pid": 1, "started": WALL,
     "library": "0.1.0", "options": "...",
     "machine": {"cpus": 8, "memory_bytes": B, "kernel": "6.1.0", "architecture": "x86_64"}}
    {"at": SECONDS, "snapshot": {...}}         as figures.snapshot_json has it
    ...
    {"end": {"seconds": S, "status": 0, "signal": null, "peak_resident_bytes": B,
     "figures": {...} or null, "from": "exit" or "last"}}

Times are in seconds since the start. Between two snapshots lies `interval` or more: when there are
more than MOST of them, every second one is dropped, but not that with most live bytes, and from
then on half as many are taken. The file can be cut off anywhere: what is there can be read.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lanemalloc import outputs
from lanemalloc.ui import Problem

if TYPE_CHECKING:
    from lanemalloc.snapshot import Snapshot

FORMAT, VERSION = "lanemalloc-recording", 1
MOST = 480
FIRST_INTERVAL = 0.1


@dataclass
class Sample:
    """A snapshot as JSON, and when it was taken."""

    at: float
    snapshot: dict[str, Any]


@dataclass
class Recording:
    """Of one process."""

    command: list[str]
    pid: int = 0
    started: float = field(default_factory=time.time)
    library: str = ""
    options: str = ""
    samples: list[Sample] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)
    interval: float = FIRST_INTERVAL
    peak_live: int = 0
    peak_resident: int = 0
    peak_threads: int = 0
    machine: dict[str, Any] = field(default_factory=dict)
    unread: int = 0  # lines of the file that were cut off or damaged

    def add(self, snapshot: Snapshot, at: float) -> None:
        """Keeps it if it is time for one. `at`: seconds since the start."""
        from lanemalloc.figures import snapshot_json  # numpy takes a while: not before it is wanted

        self.library, self.options = snapshot.library, snapshot.options
        self.peak_live = max(self.peak_live, snapshot.live_bytes)
        self.peak_threads = max(self.peak_threads, snapshot.process.threads)
        if self.samples and at - self.samples[-1].at < self.interval * 0.9:
            return
        self.samples.append(Sample(at, snapshot_json(snapshot)))
        if len(self.samples) > MOST:
            peak = max(self.samples, key=live_bytes)
            self.samples = [
                sample for i, sample in enumerate(self.samples) if i % 2 == 0 or sample is peak
            ]
            self.interval *= 2

    @property
    def last(self) -> dict[str, Any] | None:
        return self.samples[-1].snapshot if self.samples else None

    def lines(self) -> Iterable[str]:
        head = {
            "format": FORMAT,
            "version": VERSION,
            "command": self.command,
            "pid": self.pid,
            "started": round(self.started, 3),
            "library": self.library,
            "options": self.options,
            "machine": self.machine or this_machine(),
        }
        yield json.dumps(head)
        for sample in self.samples:
            yield json.dumps({"at": round(sample.at, 3), "snapshot": sample.snapshot})
        if self.end:
            yield json.dumps({"end": self.end})

    def save(self, path: Path) -> None:
        outputs.write_text(path, "".join(line + "\n" for line in self.lines()))

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Raises Problem for what is no recording or makes no sense;
        a last line that is cut off is left out."""
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                lines = file.read().splitlines()
        except OSError as error:
            raise Problem(f"{path} cannot be read: {error.strerror}") from None
        head = parsed(lines[0]) if lines else None
        if head is None or head.get("format") != FORMAT:
            raise Problem(
                f"{path} is no recording", "make one: lanemalloc run --record FILE -- PROGRAM"
            )
        if head.get("version") != VERSION:
            raise Problem(
                f"{path} is a recording of version {head.get('version')}; this tool reads {VERSION}"
            )
        recording = cls(
            head.get("command", []),
            head.get("pid", 0),
            head.get("started", 0.0),
            head.get("library", ""),
            head.get("options", ""),
        )
        recording.machine = head.get("machine", {})
        for number, line in enumerate(lines[1:], 2):
            try:
                recording._take(parsed(line))
            except (TypeError, ValueError, AttributeError):
                raise Problem(
                    f"{path} is damaged: line {number} is none that belongs there",
                    "record the program again",
                ) from None
        return recording

    def _take(self, record: dict[str, Any] | None) -> None:
        if record is None:
            self.unread += 1
        elif "end" in record:
            self.end = record["end"]
        elif "snapshot" in record:
            snapshot = record["snapshot"]
            self.samples.append(Sample(float(record.get("at", 0)), snapshot))
            self.peak_live = max(self.peak_live, snapshot.get("figures", {}).get("live_bytes", 0))
            process = snapshot.get("process", {})
            self.peak_threads = max(self.peak_threads, process.get("threads", 0))
            self.peak_resident = max(self.peak_resident, process.get("resident_bytes", 0))


def live_bytes(sample: Sample) -> int:
    return int(sample.snapshot.get("figures", {}).get("live_bytes", 0))


def this_machine() -> dict[str, Any]:
    """What matters to how threads meet; nothing that tells whose it is."""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "architecture": platform.machine(),
    }


def parsed(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
