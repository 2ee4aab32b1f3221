"""What the system tells of a process: its names, resident memory, threads, limits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lanemalloc.ui import Problem

CGROUPS = Path("/sys/fs/cgroup")
PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


class Gone(Problem):
    """The process has ended, or runs another program now."""


@dataclass(frozen=True)
class ProcessFacts:
    """One look at /proc/PID/stat."""

    pid: int
    name: str
    state: str
    threads: int
    resident: int
    cpu_seconds: float
    started_ticks: int


def facts(pid: int) -> ProcessFacts:
    """Raises Gone; a process that has ended and is not waited for yet is gone too."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        raise Gone(f"process {pid} has ended") from None
    name, _, rest = text.partition("(")[2].rpartition(")")
    words = rest.split()
    if len(words) < 22 or words[0] in "ZX":
        raise Gone(f"process {pid} has ended")
    return ProcessFacts(
        pid,
        name,
        words[0],
        int(words[17]),
        int(words[21]) * PAGE,
        (int(words[11]) + int(words[12])) / TICKS,
        int(words[19]),
    )


def peak_resident(pid: int) -> int:
    """VmHWM; 0 if it cannot be read."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0


def has_waited(pid: int) -> bool:
    """Whether it has waited for a child that has ended: for every process makes page faults. Also
    of a process that has ended itself, as long as nobody has waited for it."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(words[8]) + int(words[10]) > 0
    except (OSError, ValueError, IndexError):
        return True


def command_line(pid: int) -> str:
    """As ps shows it; empty for who has none."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return " ".join(word.decode(errors="replace") for word in words if word)


def thread_name(pid: int, thread: int) -> str:
    """Empty if there is no such thread any more."""
    try:
        return Path(f"/proc/{pid}/task/{thread}/comm").read_text(errors="replace").rstrip("\n")
    except OSError:
        return ""


def all_processes() -> Iterator[int]:
    """The numbers of all that can be seen from here."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            yield int(entry.name)


def children_of(pid: int) -> list[int]:
    """Direct children; empty where the kernel does not tell."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads[:64]:
        try:
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
        except (OSError, ValueError):
            continue
    return found


def cgroup_of(pid: int) -> str:
    """The path of its control group: that of version 2, or of the memory controller of version
    1."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return ""
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
    for controllers, path in paths.items():
        if "memory" in controllers.split(","):
            return path
    return paths.get("", "")


@dataclass(frozen=True)
class CgroupMemory:
    """What a control group may have and has, in bytes; limit None: as much as there is."""

    path: str
    limit: int | None
    used: int
    parts: dict[str, int]


def cgroup_memory(pid: int) -> CgroupMemory | None:
    """The group in the way up from the process that has the lowest limit; the process' own if none
    has one. None: not to be seen."""
    best: CgroupMemory | None = None
    own: CgroupMemory | None = None
    for path in way_up(cgroup_of(pid)):
        one = read_cgroup(path)
        own = own or one
        if (
            one
            and one.limit is not None
            and (best is None or best.limit is None or one.limit < best.limit)
        ):
            best = one
    return best or own


def way_up(path: str) -> list[str]:
    """The group, and those above it up to the root that can be seen from here."""
    parts = [part for part in path.split("/") if part and part != ".."]
    return ["/" + "/".join(parts[:depth]) for depth in range(len(parts), -1, -1)]


def memory_folder(path: str) -> Path | None:
    """Where the files of that group's memory are: of version 2, or of version 1."""
    for folder, file in (
        (CGROUPS, "memory.current"),
        (CGROUPS / "memory", "memory.usage_in_bytes"),
    ):
        if (folder / path.strip("/") / file).exists():
            return folder / path.strip("/")
    return None


def memory_available() -> int | None:
    """Bytes that this process may still have: of the machine's and its control group's, whose file
    cache makes room. None: not known."""
    with open("/proc/meminfo", encoding="ascii") as file:
        known = [int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:")]
    group = cgroup_memory(os.getpid())
    if group is not None and group.limit is not None:
        known.append(max(0, group.limit - group.used + group.parts.get("file", 0)))
    return min(known, default=None)


def read_cgroup(path: str) -> CgroupMemory | None:
    """None: there is nothing to be seen, or it is the machine itself (version 1 has files for
    it)."""
    folder = memory_folder(path)
    if folder is None:
        return None
    if (folder / "memory.current").exists():
        return CgroupMemory(
            path,
            read_limit(folder / "memory.max"),
            read_number(folder / "memory.current"),
            read_parts(
                folder / "memory.stat",
                {
                    "anon": "anon",
                    "file": "file",
                    "shmem": "shared",
                    "kernel": "kernel",
                    "sock": "sock",
                },
            ),
        )
    limit = read_limit(folder / "memory.limit_in_bytes")
    if path == "/" and limit is None:
        return None
    return CgroupMemory(
        path,
        limit,
        read_number(folder / "memory.usage_in_bytes"),
        read_parts(
            folder / "memory.stat",
            {"total_rss": "anon", "total_cache": "file", "total_shmem": "shared"},
        ),
    )


def read_number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def read_limit(path: Path) -> int | None:
    """None for `max`, and for version 1's huge number."""
    number = read_number(path)
    return number if 0 < number < 1 << 60 else None


def read_parts(path: Path, names: dict[str, str]) -> dict[str, int]:
    """The file cache without shared memory and files in memory, which the kernel counts there too
    and cannot drop."""
    found: dict[str, int] = {}
    try:
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key in names:
                found[names[key]] = int(value)
    except (OSError, ValueError):
        pass
    if "file" in found:
        found["file"] = max(0, found["file"] - found.get("shared", 0))
    return found
