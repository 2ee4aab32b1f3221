#!/usr/bin/env python3
"""What huge pages do for a large heap, and cost one of many threads: table.cpp, threads.cpp, and
redis-server if it is installed, with huge_pages=off, auto and on.

Called by: hand. docs/design/0019-huge-pages.md has its figures. CPU time per operation; runs
alternate, medians. Without transparent huge pages (/sys/kernel/mm/transparent_hugepage/enabled:
madvise or always) there is nothing to measure.
Usage: run.py [--mib N] [--runs N] [--rest SECONDS] [--only NAME]
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common
from common import Library

HOW = ("off", "auto", "on")
ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
REQUESTS = 1_500_000


def cpu_ticks(pid: int) -> int:
    words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(words[11]) + int(words[12])


def memory(pid: int, name: str) -> float:
    line = next(
        line
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        if line.startswith(name)
    )
    return int(line.split()[1]) / 1024


def redis(library: Library, mib: int) -> dict[str, float]:
    """GET of random keys of a server that holds so much."""
    keys = str(mib * 1024 * 1024 // 190)
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/socket"
        words = [
            "redis-server",
            "--port",
            "0",
            "--unixsocket",
            path,
            "--save",
            "",
            "--enable-debug-command",
            "yes",
            "--dir",
            directory,
        ]
        server = subprocess.Popen(words, env=library.environment(), stdout=subprocess.DEVNULL)
        try:
            client = ["redis-cli", "-s", path]
            while (
                subprocess.run([*client, "ping"], capture_output=True, check=False).returncode != 0
            ):
                if server.poll() is not None:
                    raise RuntimeError("redis-server ended")
                time.sleep(0.05)
            subprocess.run(
                [*client, "debug", "populate", keys, "key", "100"],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            before = cpu_ticks(server.pid)
            load = [
                "redis-benchmark",
                "-s",
                path,
                "-n",
                str(REQUESTS),
                "-r",
                keys,
                "-P",
                "64",
                "-c",
                "10",
                "-q",
                "GET",
                "key:__rand_int__",
            ]
            subprocess.run(load, check=True, stdout=subprocess.DEVNULL)
            used = cpu_ticks(server.pid) - before
            return {
                "get_ns": used * 1e7 / REQUESTS,
                "rss_mib": memory(server.pid, "Rss:"),
                "huge_mib": memory(server.pid, "AnonHugePages:"),
            }
        finally:
            server.terminate()
            server.wait()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--rest",
        type=int,
        default=0,
        help="seconds that the thinned table rests, for what khugepaged does",
    )
    parser.add_argument("--only", default="", help="programs whose name contains this")
    arguments = parser.parse_args()
    if not ENABLED.exists() or "[never]" in ENABLED.read_text():
        raise SystemExit(f"no transparent huge pages here ({ENABLED})")
    program = common.compile_program(common.ROOT / "bench" / "huge" / "table.cpp", "table")

    def table(library: Library) -> dict[str, float]:
        seen = common.fields(
            common.run([program, str(arguments.mib), str(arguments.rest)], library)
        )
        return {name: float(value) for name, value in seen.items()}

    def threads(each: int) -> Callable[[Library], dict[str, float]]:
        program = common.compile_program(common.ROOT / "bench" / "huge" / "threads.cpp", "threads")
        return lambda library: {
            "rss_mib": float(
                common.fields(common.run([program, "64", str(each)], library))["rss_mib"]
            )
        }

    programs = {
        "table": table,
        "64 threads, 8 MiB each": threads(8),
        "64 threads, 32 MiB each": threads(32),
    }
    if shutil.which("redis-server") and shutil.which("redis-benchmark"):
        programs["redis"] = lambda library: redis(library, arguments.mib // 2)
    libraries = {how: Library(how, common.LANEMALLOC, options=f"huge_pages={how}") for how in HOW}
    for name, run in programs.items():
        if arguments.only not in name:
            continue
        samples = {how: [] for how in HOW}
        for _ in range(arguments.runs):
            for how, library in libraries.items():
                samples[how].append(run(library))
        figures = list(samples["off"][0])
        rows = [
            [
                how,
                *(
                    f"{statistics.median(s[figure] for s in samples[how]):.0f}"
                    for figure in figures
                ),
            ]
            for how in HOW
        ]
        print(
            f"\n{name}: {arguments.runs} alternating runs, medians; "
            f"system: {ENABLED.read_text().strip()}"
        )
        print(common.table(["huge_pages", *figures], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
