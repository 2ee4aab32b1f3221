"""A recording: snapshots of a process over its life, bounded in memory however long it runs.

The file has a JSON object a line:

    {"format": "lanemalloc-recording", "version": 2, "command": [...], "pid": 1, "started": WALL,
     "library": "0.1.0", "options": "...",
     "machine": {"cpus": 8, "memory_bytes": B, "kernel": "6.1.0", "architecture": "x86_64"}}
    {"at": SECONDS, "snapshot": {...}}         as figures.snapshot_json has it
    ...
    {"end": {"seconds": S, "status": 0, "signal": null, "peak_resident_bytes": B,
     "figures": {...} or null, "from": "exit" or "last"}}

Each line ends with its checksum, as its last key: "crc32": of the line without it. Times are in
seconds since the start. Between two snapshots lies `interval` or more: when there are
more than MOST of them, every second one is dropped, but not that with most live bytes, and from
then on half as many are taken. The file can be cut off anywhere, and lines can be damaged: the
others can be read, and what is lost is known.
"""

from __future__ import annotations

import json
import os
import platform
import re
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lanemalloc import outputs
from lanemalloc.ui import Problem

if TYPE_CHECKING:
    from lanemalloc.snapshot import Snapshot

FORMAT, VERSION = "lanemalloc-recording", 2
MOST = 480
FIRST_INTERVAL = 0.1
NO_SEAL = "it has no checksum"
MOST_LOST = 3  # are named
SEAL = re.compile(r', "crc32": "([0-9a-f]{8})"}$')


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
    own_threads: int = 0  # of these, the library's
    machine: dict[str, Any] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)  # of the file it was read from, as text
    is_cut_off: bool = False  # that file has no end
    _lost_at: int = 0  # the last line that is lost

    def add(self, snapshot: Snapshot, at: float) -> None:
        """Keeps it if it is time for one. `at`: seconds since the start."""
        from lanemalloc.figures import snapshot_json  # numpy takes a while: not before it is wanted

        self.library, self.options = snapshot.library, snapshot.options
        self.peak_live = max(self.peak_live, snapshot.live_bytes)
        if snapshot.process.threads > self.peak_threads:
            self.peak_threads, self.own_threads = snapshot.process.threads, snapshot.own_threads
        if self.samples and at - self.samples[-1].at < self.interval * 0.9:
            return
        self.samples.append(Sample(at, snapshot_json(snapshot)))
        if len(self.samples) > MOST:
            peak = max(self.samples, key=live_bytes)
            self.samples = [
                sample for i, sample in enumerate(self.samples) if i % 2 == 0 or sample is peak
            ]
            self.interval *= 2

    def faults(self) -> list[str]:
        """What the file that it was read from lacks."""
        found = []
        if self.is_cut_off:
            found.append(f"is cut off: used as far as it goes, {len(self.samples)} moments")
        found += [f"is damaged in {one}" for one in self.lost[:MOST_LOST]]
        if len(self.lost) > MOST_LOST:
            found.append(f"is damaged in {len(self.lost) - MOST_LOST} more lines")
        return found

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
        yield sealed(head)
        for sample in self.samples:
            yield sealed({"at": round(sample.at, 3), "snapshot": sample.snapshot})
        if self.end:
            yield sealed({"end": self.end, "moments": len(self.samples)})

    def save(self, path: Path) -> None:
        outputs.write_text(path, "".join(line + "\n" for line in self.lines()))

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Raises Problem for what is no recording. Lines that are damaged are left out, and told
        in `lost`."""
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                lines = file.read().split("\n")
        except OSError as error:
            raise Problem(f"{path} cannot be read: {error.strerror}") from None
        cut = lines.pop()  # behind the last line's end
        head, why = opened(lines[0] if lines else cut)
        if f'"format": "{FORMAT}"' not in (lines[0] if lines else cut):
            raise Problem(
                f"{path} is no recording", "make one: lanemalloc run --record FILE -- PROGRAM"
            )
        if head is None and why == NO_SEAL:
            head = unsealed(lines[0] if lines else cut)
        if head is None or not lines:
            raise Problem(
                f"{path} is damaged in line 1: {why or 'it is cut off'}",
                "copy it again in whole, or record the program again",
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
            recording._take(number, line)
        if cut and (recording.end or opened(cut)[0] is not None):
            recording._take(len(lines) + 1, cut)
            cut = ""
        recording.is_cut_off = not recording.end and (bool(cut) or recording._lost_at != len(lines))
        return recording

    def _take(self, number: int, line: str) -> None:
        record, why = opened(line)
        try:
            if record is None:
                self._lose(number, why)
            elif "end" in record:
                self.end = record["end"]
                gone = record.get("moments", len(self.samples)) - len(self.samples)
                if gone > len(self.lost):
                    self._lose(number, f"{gone - len(self.lost)} lines before it are missing")
            elif "snapshot" in record:
                self._add_again(record)
            else:
                self._lose(number, "it does not belong there")
        except (TypeError, ValueError, AttributeError):
            self._lose(number, "it does not belong there")

    def _add_again(self, record: dict[str, Any]) -> None:
        snapshot = record["snapshot"]
        figures, process = snapshot.get("figures", {}), snapshot.get("process", {})
        sample = Sample(float(record.get("at", 0)), snapshot)
        live, threads = int(figures.get("live_bytes", 0)), int(process.get("threads", 0))
        resident = int(process.get("resident_bytes", 0))
        self.samples.append(sample)
        self.peak_live = max(self.peak_live, live)
        self.peak_threads = max(self.peak_threads, threads)
        self.peak_resident = max(self.peak_resident, resident)

    def _lose(self, number: int, why: str) -> None:
        after = f"after {self.samples[-1].at:.1f} s" if self.samples else "at the beginning"
        self.lost.append(f"line {number} ({after}): {why}")
        self._lost_at = number


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


def sealed(record: dict[str, Any]) -> str:
    """A line, with its checksum."""
    text = json.dumps(record)
    return f'{text[:-1]}, "crc32": "{zlib.crc32(text.encode()):08x}"}}'


def unsealed(line: str) -> dict[str, Any] | None:
    """Of another version's head."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and record.get("version") != VERSION else None


def opened(line: str) -> tuple[dict[str, Any] | None, str]:
    """What is in a line; None: why it cannot be used."""
    seal = SEAL.search(line)
    text = line[: seal.start()] + "}" if seal else ""
    if seal is None:
        return None, NO_SEAL
    if zlib.crc32(text.encode(errors="replace")) != int(seal[1], 16):
        return None, "it does not match its checksum"
    try:
        record = json.loads(text)
    except ValueError:
        return None, "it is no JSON"
    return (record, "") if isinstance(record, dict) else (None, "it is no object")
