"""Shared by the benchmarks: which allocators there are, how to run a program under one,
tables, the machine.

Used by: bench/micro/run.py, bench/startup/run.py, bench/suite/, bench/demo/demo.py,
tests/golden/fast_path.py.
"""

import dataclasses
import os
import platform
import re
import shutil
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "bench"
LANEMALLOC = ROOT / "build" / "release" / "liblanemalloc.so"
PEERS = ROOT / "build" / "peers"
PEER_NAMES = (
    "jemalloc",
    "jemalloc531",
    "tcmalloc",
    "tbbmalloc",
    "scudo",
    "mimalloc2",
    "mimalloc3",
    "snmalloc",
    "rpmalloc",
)
# For the heads of wide tables.
SHORT_NAMES = {
    "lanemalloc": "lane",
    "jemalloc": "je",
    "jemalloc531": "je531",
    "tcmalloc": "tc",
    "tbbmalloc": "tbb",
    "mimalloc2": "mi2",
    "mimalloc3": "mi3",
    "snmalloc": "sn",
    "rpmalloc": "rp",
}
WATCHDOG_SECONDS = 300.0


@dataclasses.dataclass(frozen=True)
class Library:
    """An allocator: its name, and the file to preload (None: the C library's own)."""

    name: str
    path: Path | None
    options: str = ""  # LANEMALLOC_OPTIONS
    before: Path | None = None  # preloaded before it
    threaded: bool = False  # programs of bench/micro start and end a thread first

    def environment(self, **more: str) -> dict[str, str]:
        env = {
            k: v
            for k, v in os.environ.items()
            if k not in ("LD_PRELOAD", "LANEMALLOC_OPTIONS", "PAIRS_AFTER_THREAD")
        }
        if self.path is not None:
            env["LD_PRELOAD"] = f"{self.before}:{self.path}" if self.before else str(self.path)
        if self.options:
            env["LANEMALLOC_OPTIONS"] = self.options
        if self.threaded:
            env["PAIRS_AFTER_THREAD"] = "1"
        return env | more

    def serves(self, malloc_file: str) -> bool:
        """Whether malloc_file, as a program reported it, is this allocator."""
        if self.path is None:
            return re.search(r"/libc\.so\.6$", malloc_file) is not None
        return Path(malloc_file).resolve() == self.path.resolve()


def libraries(given: Sequence[str] = (), peers: bool = True) -> list[Library]:
    """NAME=PATH arguments first; without any, lanemalloc's release build if it is there.
    Then libc and the peers."""
    found = []
    for item in given:
        name, _, path = item.rpartition("=")
        if path == "libc":
            found.append(Library("libc", None))
            continue
        file = Path(path).resolve()
        if not file.exists():
            raise SystemExit(f"no such library: {path}")
        found.append(Library(name or file.stem.removeprefix("lib"), file))
    if not given and LANEMALLOC.exists():
        found.append(Library("lanemalloc", LANEMALLOC))
    if peers:
        found.append(Library("libc", None))
        found += [Library(n, p) for n in PEER_NAMES if (p := PEERS / f"lib{n}.so").exists()]
    return found


def compile_program(source: Path, name: str, *flags: str) -> Path:
    """Compiles one C or C++ file into build/bench/, where it is older than its source or what that
    includes."""
    BUILD.mkdir(parents=True, exist_ok=True)
    output = BUILD / name
    inputs = [source, ROOT / "bench" / "measure.h", *(ROOT / "include" / "lanemalloc").glob("*.h")]
    if output.exists() and all(output.stat().st_mtime > i.stat().st_mtime for i in inputs):
        return output
    cxx = source.suffix == ".cpp"
    compiler = os.environ.get("CXX" if cxx else "CC") or ("c++" if cxx else "cc")
    standard = "-std=c++20" if cxx else "-std=gnu11"
    partial = output.with_suffix(f".{os.getpid()}")
    command = [compiler, standard, "-O2", "-g", "-fno-builtin", "-Wall", "-Wextra", "-pthread"]
    subprocess.run([*command, *flags, "-o", str(partial), str(source)], check=True)
    partial.rename(output)
    return output


def run(command: Sequence[str | Path], library: Library, **more: str) -> str:
    """Standard output of a command under an allocator; raises where it fails or hangs."""
    done = subprocess.run(
        [str(c) for c in command],
        env=library.environment(**more),
        capture_output=True,
        text=True,
        timeout=WATCHDOG_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"{command[0]} under {library.name}: "
            f"status {done.returncode}: {done.stderr.strip()[-400:]}"
        )
    return done.stdout


def fields(line: str) -> dict[str, str]:
    """'a=1 b=2' as a dictionary."""
    return dict(item.split("=", 1) for item in line.split() if "=" in item)


@dataclasses.dataclass(frozen=True)
class Spread:
    """Median, least and greatest of some samples."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Spread":
        return cls(statistics.median(samples), min(samples), max(samples))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Text columns: the first left-aligned, the others right-aligned."""
    lines = [list(header), *[list(r) for r in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    texts = [
        "  ".join(
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))
        )
        for line in lines
    ]
    texts.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join(t.rstrip() for t in texts)


def machine() -> dict[str, str]:
    """What the figures depend on."""
    model = re.search(
        r"^(?:model name|CPU part)\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE
    )
    compiler = subprocess.run(
        ["cc", "--version"], capture_output=True, text=True, check=False
    ).stdout
    thp = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    versions = PEERS / "versions.txt"
    return {
        "cpu": model.group(1) if model else platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "compiler": compiler.splitlines()[0] if compiler else "none",
        "transparent huge pages": (re.findall(r"\[(\w+)\]", thp.read_text()) or ["?"])[0]
        if thp.exists()
        else "none",
        "load average at start": f"{os.getloadavg()[0]:.2f}",
        "peers": versions.read_text().strip().replace("\t", " ").replace("\n", "; ")
        if versions.exists()
        else "none built",
    }


def need(tool: str) -> bool:
    return shutil.which(tool) is not None
