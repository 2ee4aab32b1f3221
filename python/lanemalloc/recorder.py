"""Records a program: makes the session, starts the collector and the program,
and writes Parquet while it runs.

Called by: commands/trace.py. The program's calls go through shared memory to lanemalloc-collect,
from there as columns through a pipe to a thread here, and by row groups to the file, so that
neither holds more than some tens of MiB of them.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from lanemalloc import binaries, tracefile
from lanemalloc.allocators import Allocator
from lanemalloc.process import memory_available
from lanemalloc.ui import Problem, native

CHUNK = 16 << 10
FRAME = struct.Struct("<IIQ")
HELLO, ROWS, END = 1, 2, 3
ROW_GROUP = 1 << 19
YIELDING = (
    5  # niceness: where CPUs are short, the program comes first, as long as the buffer has room
)
NULLABLE = ("size", "alignment", "object", "old_object")
LEAST_BUFFER, MOST_BUFFER = 16 << 20, 512 << 20  # unless another is asked for
FORWARDED = (
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
    signal.SIGCONT,
)

# Entered when the program has ended, and what it did is still being written.
Finishing = Callable[[], AbstractContextManager[object]]


@dataclass
class Recording:
    """What came of it."""

    status: int = 0  # as subprocess has it: negative for signals
    events: int = 0
    seconds: float = 0.0
    total_seconds: float = 0.0
    bytes: int = 0
    about: dict[str, Any] = field(default_factory=dict)


def usual_buffer() -> int:
    """Bytes: what a program can do in half a second or more before it has to wait,
    where so much memory can be spared."""
    most = min(
        (memory_available() or 0) // 8,
        shutil.disk_usage("/dev/shm").free // 4 if os.path.isdir("/dev/shm") else MOST_BUFFER,
    )
    return min(max(most, LEAST_BUFFER), MOST_BUFFER) // CHUNK * CHUNK


def session_folder(need: int) -> Path:
    """In memory where there is room, else where temporary files are."""
    for parent in ("/dev/shm", tempfile.gettempdir()):
        try:
            if shutil.disk_usage(parent).free > 2 * need and os.access(parent, os.W_OK):
                return Path(tempfile.mkdtemp(prefix="lanemalloc-trace-", dir=parent))
        except OSError:
            continue
    raise Problem(
        f"neither /dev/shm nor {tempfile.gettempdir()} has room for a buffer of {need >> 20} MiB",
        "free some, set TMPDIR, or choose a smaller --buffer",
    )


class Writer:
    """Turns the collector's columns into row groups."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names = pa.array(tracefile.OPERATIONS)
        try:
            self.parquet = pq.ParquetWriter(
                path,
                tracefile.SCHEMA,
                compression="lz4",
                use_dictionary=["op", "process", "thread", "tid", "size", "alignment", "site"],
                column_encoding={
                    "time": "DELTA_BINARY_PACKED",
                    "object": "PLAIN",
                    "old_object": "PLAIN",
                },
                write_statistics=["time", "process", "thread", "object"],
                write_page_checksum=True,
            )
        except OSError as error:
            raise Problem(
                f"{path}: {error.strerror or error}", "give another file with -o"
            ) from None
        self.waiting: list[pa.RecordBatch] = []
        self.rows = 0

    def add(self, rows: int, data: pa.Buffer) -> None:
        at = 0

        def take(size: int) -> pa.Buffer:
            nonlocal at
            part = data.slice(at, size)
            at += (size + 7) // 8 * 8
            return part

        columns: list[pa.Array] = []
        for name, kind in zip(tracefile.SCHEMA.names, tracefile.SCHEMA.types):
            if name == "op":
                index = pa.Array.from_buffers(pa.int8(), rows, [None, take(rows)])
                columns.append(pa.DictionaryArray.from_arrays(index, self.names, safe=False))
                continue
            there = take((rows + 63) // 64 * 8) if name in NULLABLE else None
            columns.append(
                pa.Array.from_buffers(kind, rows, [there, take(rows * kind.bit_width // 8)])
            )
        self.waiting.append(pa.RecordBatch.from_arrays(columns, schema=tracefile.SCHEMA))
        self.rows += rows
        if sum(batch.num_rows for batch in self.waiting) >= ROW_GROUP:
            self.write()

    def write(self) -> None:
        if self.waiting:
            self.parquet.write_table(
                pa.Table.from_batches(self.waiting), row_group_size=ROW_GROUP * 2
            )
            self.waiting.clear()

    def close(self, about: dict[str, Any]) -> None:
        self.write()
        text = json.dumps(about | {"rows": self.rows}).encode()
        self.parquet.add_key_value_metadata(
            {tracefile.KEY: text, tracefile.CHECKSUM_KEY: tracefile.checksum(text)}
        )
        self.parquet.close()


class Session:
    """The collector, and the thread that takes what it says."""

    def __init__(self, path: Path, buffer: int) -> None:
        self.folder = session_folder(buffer)
        self.writer: Writer | None = None
        self.end: dict[str, Any] | None = None
        self.error: BaseException | None = None
        try:
            self.writer = Writer(path)
            environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
            self.collector = subprocess.Popen(
                [native("lanemalloc-collect"), self.folder, str(buffer // CHUNK)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # what the terminal sends is for the program
                env=environment,
            )
            assert self.collector.stdout is not None
            self.output: IO[bytes] = self.collector.stdout
            if len(self.output.read(FRAME.size)) < FRAME.size:
                raise Problem(
                    "the collector did not start",
                    "what it said stands above; a smaller --buffer needs less memory",
                )
        except BaseException:
            self.remove()
            raise
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        assert self.writer is not None
        for who in (self.collector.pid, threading.get_native_id()):
            os.setpriority(os.PRIO_PROCESS, who, YIELDING)
        try:
            while True:
                head = self.output.read(FRAME.size)
                if len(head) < FRAME.size:
                    raise Problem(
                        "the collector ended too early", "the program ran on; run the trace again"
                    )
                kind, rows, size = FRAME.unpack(head)
                body = self.output.read(size)
                if kind == END:
                    self.end = json.loads(body)
                    return
                self.writer.add(rows, pa.py_buffer(body))
        except (
            BaseException
        ) as error:  # handed to who waits; the collector stops, and with it recording
            self.error = error
            self.output.close()

    def finish(self) -> dict[str, Any]:
        assert self.collector.stdin is not None
        self.collector.stdin.close()
        self.thread.join()
        self.collector.wait()
        if isinstance(self.error, OSError):
            raise Problem(
                f"the trace could not be written: {self.error.strerror}",
                "make room, or give another file with -o",
            ) from self.error
        if self.error is not None:
            raise self.error
        assert self.end is not None
        return self.end

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def passing_signals() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """The terminal's signals reach the program by themselves; those sent to this process are passed
    on, from before it starts: to whom is told by calling what this gives."""
    program: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, _: FrameType | None) -> None:
        if program is None:
            early.append(number)
        elif program.poll() is None:
            program.send_signal(number)

    def stay(_number: int, _frame: FrameType | None) -> None:
        """Not SIG_IGN, which the program would inherit."""

    def begin(started: subprocess.Popen[bytes]) -> None:
        nonlocal program
        program = started
        for number in early:
            forward(number, None)

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    before |= {number: signal.signal(number, stay) for number in (signal.SIGINT, signal.SIGQUIT)}
    try:
        yield begin
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def record(
    command: list[str], path: Path, allocator: Allocator, buffer: int, finishing: Finishing
) -> Recording:
    binaries.find_program(command[0])
    unfinished = path.with_name(path.name + ".part")
    if not path.parent.is_dir():
        raise Problem(f"{path.parent}: no such directory", "make it, or give another file with -o")
    began = time.monotonic()
    started = datetime.datetime.now(datetime.timezone.utc)
    recording = Recording()
    session = Session(unfinished, buffer)
    try:
        environment = allocator.environment(before=(native("liblanemalloc-trace.so"),))
        environment["LANEMALLOC_TRACE"] = str(session.folder / "ring")
        with passing_signals() as begin:
            try:
                program = subprocess.Popen(command, env=environment, close_fds=False)
            except OSError as error:
                raise Problem(
                    f"{command[0]}: {error.strerror}", "give a program that can be run"
                ) from None
            begin(program)
            program_began = time.monotonic()
            recording.status = program.wait()
            recording.seconds = time.monotonic() - program_began
            with finishing():
                end = session.finish()
        assert session.writer is not None
        recording.events = session.writer.rows
        about = describe(end, session.folder, recording.status)
        about |= {
            "command": command,
            "allocator": str(allocator),
            "started": started.isoformat(timespec="milliseconds"),
            "seconds": round(recording.seconds, 6),
            "status": recording.status,
            "machine": {
                "cpus": os.cpu_count(),
                "kernel": platform.release(),
                "architecture": platform.machine(),
            },
        }
        if not about["processes"]:
            raise Problem(
                f"{command[0]} was not recorded: the library was not loaded into it",
                "it may drop LD_PRELOAD, have raised privileges, or be linked statically",
            )
        session.writer.close(about)
        unfinished.replace(path)
        recording.about = about
        recording.bytes = path.stat().st_size
    finally:
        session.remove()
        unfinished.unlink(missing_ok=True)
    recording.total_seconds = time.monotonic() - began
    return recording


# --- What the metadata says.


def describe(end: dict[str, Any], folder: Path, status: int) -> dict[str, Any]:
    files: dict[str, int] = {}
    reasons = []
    for process in end["processes"]:
        number = process["process"]
        process["command"] = read_command(folder, number)
        process["mappings"] = read_mappings(folder, number, files)
        name = f"process {number} (pid {process['pid']})"
        if process["lost"]:
            reasons.append(f"{name} lost {process['lost']} events: no buffer was free")
        if process["torn"]:
            reasons.append(f"{name} ended in the middle of {process['torn']} calls")
        if process["end"] == "gone":
            reasons.append(f"{name} ended without an exit: its last call may be missing")
        if process["end"] == "running":
            reasons.append(f"{name} outlived the program: what it did later is missing")
    if end["unregistered"]:
        reasons.append(f"{end['unregistered']} more processes were not recorded")
    if status < 0 and not reasons:
        reasons.append("the program was ended by a signal")
    return {
        "version": tracefile.VERSION,
        "tool": "lanemalloc " + tool_version(),
        "complete": not reasons,
        "incomplete_because": reasons,
        "objects": end["objects"],
        "clock": end["clock"],
        "processes": end["processes"],
        "files": [{"path": path, "build_id": binaries.build_id(path)} for path in files],
    }


def tool_version() -> str:
    try:
        return metadata.version("lanemalloc")
    except metadata.PackageNotFoundError:
        return "(checkout)"


def read_command(folder: Path, number: int) -> list[str]:
    try:
        text = (folder / f"{number}.cmdline").read_bytes()
    except OSError:
        return []
    return [word.decode(errors="replace") for word in text.rstrip(b"\0").split(b"\0")]


def read_mappings(folder: Path, number: int, files: dict[str, int]) -> list[list[int]]:
    """[start, end, offset in the file, file] of code, sorted.
    Later looks win where they overlap."""
    found: dict[int, list[int]] = {}
    for kind in ("maps", "maps-seen", "maps-at-exit"):
        try:
            text = (folder / f"{number}.{kind}").read_text(errors="replace")
        except OSError:
            continue
        for line in text.splitlines():
            parts = line.split(None, 5)
            if len(parts) < 6 or "x" not in parts[1] or not parts[5].startswith("/"):
                continue
            start, end = (int(word, 16) for word in parts[0].split("-"))
            found = {s: m for s, m in found.items() if m[1] <= start or s >= end}
            found[start] = [start, end, int(parts[2], 16), files.setdefault(parts[5], len(files))]
    return [found[start] for start in sorted(found)]
