"""Names of code that a program has made while it ran: CPython's trampolines (-X perf), V8's and the
JVM's compiled code.

A runtime that is asked to writes /tmp/perf-PID.map, for Linux' perf: lines of an address, a size
(both hexadecimal) and a name. The folder is everybody's, and numbers of processes come again: so
the file counts only if it is a regular one of this user's or of the process', and was written after
the process had begun. What it says is taken for text, and nothing else.

Used by: symbols.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from lanemalloc.profiles import Frame

FOLDER = Path("/tmp")
MOST_BYTES = 1 << 29
LONGEST = 300  # characters of a name
SLACK_NS = 2_000_000_000  # clocks of files are coarse
# py::function:/file.py; JS:~function /file.js:line:column
PYTHON = re.compile(r"py::(?P<name>.*?):(?P<file>/.*|<.*>)")
SCRIPT = re.compile(
    r"(?:JS|Function|LazyCompile|Script|Eval|RegExp):[~*^+]?"
    r"(?P<name>\S*) (?P<file>.+?)(?::(?P<line>\d+)(?::\d+)?)?"
)


def look_up(addresses: Iterable[int], pid: int, since_ns: int) -> dict[int, tuple[Frame, ...]]:
    """The functions at those addresses of the process, which began sampling at that time."""
    wanted = sorted(addresses)
    if not wanted:
        return {}
    for path, number in places_of(pid):
        with opened(path / f"perf-{number}.map", pid, since_ns) as stream:
            if stream is not None:
                return {address: (frame(name),) for address, name in names(stream, wanted)}
    return {}


def places_of(pid: int) -> Iterator[tuple[Path, int]]:
    """Where the file may be, and the number in its name: as the process sees them; else as seen
    from here."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                yield Path(f"/proc/{pid}/root{FOLDER}"), int(line.split()[-1])
    yield FOLDER, pid


@contextlib.contextmanager
def opened(path: Path, pid: int, since_ns: int) -> Iterator[BinaryIO | None]:
    """None: it is not there, or may be anybody's."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    if not may_be_read(os.fstat(handle), pid, since_ns):
        os.close(handle)
        yield None
        return
    with open(handle, "rb") as stream:
        yield stream


def may_be_read(facts: os.stat_result, pid: int, since_ns: int) -> bool:
    users = {os.geteuid()}
    with contextlib.suppress(OSError):
        users.add(os.stat(f"/proc/{pid}").st_uid)
    return (
        stat.S_ISREG(facts.st_mode)
        and facts.st_uid in users
        and not facts.st_mode & stat.S_IWOTH
        and facts.st_size <= MOST_BYTES
        and facts.st_mtime_ns >= since_ns - SLACK_NS
    )


def names(stream: BinaryIO, wanted: list[int]) -> Iterator[tuple[int, str]]:
    """Of each address the last name that its place was given."""
    found: dict[int, str] = {}
    for line in stream:
        parts = line.split(None, 2)
        try:
            begin, size = int(parts[0], 16), int(parts[1], 16)
        except (ValueError, IndexError):
            continue
        if begin < 0 or len(parts) < 3:
            continue
        for at in range(bisect_left(wanted, begin), bisect_left(wanted, begin + size)):
            found[wanted[at]] = parts[2].decode("utf-8", "replace").strip()
    yield from found.items()


def frame(text: str) -> Frame:
    text = "".join(c if c.isprintable() else "?" for c in text[:LONGEST])
    if match := PYTHON.fullmatch(text):
        return Frame(f"py::{match['name']}", "", match["file"])
    if match := SCRIPT.fullmatch(text):
        return Frame(match["name"] or "(anonymous)", "", match["file"], int(match["line"] or 0))
    return Frame(text)
