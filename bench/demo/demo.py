#!/usr/bin/env python3
"""The demo: two servers, each under the C library's malloc and under lanemalloc, side by side.

Called by: bench/demo.sh. Takes about two minutes; ROUNDS=N changes the rounds (3).

  requests  bench/demo/requests.cpp: 64 threads serve a fixed number of requests, share a cache,
            then idle
  redis     Debian's redis-server on a Unix socket under redis-benchmark (set, get, lpush, lpop),
            then emptied and idle.
            It links jemalloc: "libc" is the forwarder libc_shim.c preloaded, "jemalloc" is redis as
            Debian ships it.

Runs alternate and medians are shown. The contention counters are what lanemalloc prints with
stats=exit.
Servers are stopped and temporary files removed however this ends.
"""

import argparse
import contextlib
import csv
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common
from common import Library

HERE = Path(__file__).resolve().parent
COMMANDS = ("SET", "GET", "LPUSH", "LPOP")
STATS = (
    "allocations",
    "remote frees",
    "remote batches",
    "inbox drains",
    "failed lane entries",
    "overflow entries",
    "rescue entries",
    "revocations",
    "depot lock waits",
    "region lock waits",
    "bytes purged",
)
START_SECONDS = STOP_SECONDS = 20.0
IDLE_SECONDS = 2.5

Samples = dict[str, dict[str, list[float]]]  # allocator -> figure -> samples


def progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def statistics_of(stderr: str) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in re.findall(r"^lanemalloc: ([a-z ]+): (\d+)", stderr, re.MULTILINE)
    }


def requests_once(
    program: Path, library: Library, requests: int
) -> tuple[dict[str, str], dict[str, float]]:
    done = subprocess.run(
        [str(program), str(requests)],
        env=library.environment(LANEMALLOC_OPTIONS="stats=exit"),
        capture_output=True,
        text=True,
        timeout=common.WATCHDOG_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"requests under {library.name}: status {done.returncode}: {done.stderr[-400:]}"
        )
    seen = common.fields(done.stdout)
    if not library.serves(seen["library"]):
        raise RuntimeError(f"{library.name}: not in use, malloc comes from {seen['library']}")
    return seen, statistics_of(done.stderr)


def demo_requests(
    all_: list[Library], rounds: int, requests: int
) -> tuple[Samples, dict[str, float]]:
    program = common.compile_program(HERE / "requests.cpp", "requests")
    samples: Samples = defaultdict(lambda: defaultdict(list))
    checksums: set[str] = set()
    stats: dict[str, float] = {}
    for i in range(rounds):
        for library in all_ if i % 2 == 0 else all_[::-1]:
            seen, counters = requests_once(program, library, requests)
            checksums.add(seen["checksum"])
            stats = counters or stats
            for figure in (
                "requests_per_s",
                "wall_s",
                "cpu_s",
                "peak_kib",
                "end_kib",
                "settled_kib",
            ):
                samples[library.name][figure].append(float(seen[figure]))
            rate, idle = float(seen["requests_per_s"]), float(seen["settled_kib"]) / 1024
            progress(
                f"requests, round {i + 1} of {rounds}, {library.name}: {rate:,.0f} requests/s, "
                f"{idle:.0f} MiB when idle"
            )
    if len(checksums) != 1:
        raise RuntimeError(f"the allocators did not do the same work: checksums {checksums}")
    print(f"  all runs gave the same checksum: {checksums.pop()}")
    return samples, stats


@contextlib.contextmanager
def redis_server(library: Library, directory: Path) -> Iterator[tuple[int, Path, Path]]:
    """A running redis-server: its process id, socket and standard error. Stopped on leaving, by
    force if it must be."""
    socket, errors = directory / "redis.sock", directory / "stderr"
    command = [
        "redis-server",
        "--port",
        "0",
        "--unixsocket",
        str(socket),
        "--save",
        "",
        "--appendonly",
        "no",
    ]
    command += [
        "--dir",
        str(directory),
        "--daemonize",
        "no",
        "--enable-debug-command",
        "no",
        "--logfile",
        "/dev/null",
    ]
    with errors.open("w") as stderr:
        server = subprocess.Popen(
            command,
            env=library.environment(LANEMALLOC_OPTIONS="stats=exit"),
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while cli(socket, "PING", check=False) != "PONG":
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"redis-server under {library.name} does not start: {errors.read_text()[-400:]}"
                )
            time.sleep(0.02)
        yield server.pid, socket, errors
        cli(socket, "SHUTDOWN", "NOSAVE", check=False)
        server.wait(STOP_SECONDS)
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
        socket.unlink(missing_ok=True)


def cli(socket: Path, *words: str, check: bool = True) -> str:
    done = subprocess.run(
        ["redis-cli", "-s", str(socket), *words], capture_output=True, text=True, check=False
    )
    if check and done.returncode != 0:
        raise RuntimeError(f"redis-cli {words[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def memory_of(pid: int, name: str) -> float:
    match = re.search(
        rf"^{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE
    )
    return float(match.group(1)) if match else 0.0


def cpu_of(pid: int) -> float:
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


def redis_once(
    library: Library, operations: int, directory: Path
) -> tuple[dict[str, float], dict[str, float]]:
    figures: dict[str, float] = {}
    with redis_server(library, directory) as (pid, socket, errors):
        if (
            library.path is not None
            and str(library.path.resolve()) not in Path(f"/proc/{pid}/maps").read_text()
        ):
            raise RuntimeError(f"redis-server does not have {library.path} in it")
        started = cpu_of(pid)
        command = [
            "redis-benchmark",
            "-s",
            str(socket),
            "-t",
            ",".join(COMMANDS).lower(),
            "-n",
            str(operations),
        ]
        command += ["-r", "50000", "-d", "200", "-c", "32", "-P", "8", "--csv"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=common.WATCHDOG_SECONDS, check=True
        )
        for row in csv.DictReader(done.stdout.splitlines()):
            figures[row["test"].split()[0]] = float(row["rps"])
        figures["cpu_s"] = cpu_of(pid) - started
        figures["peak_kib"], figures["end_kib"] = memory_of(pid, "VmHWM"), memory_of(pid, "VmRSS")
        cli(socket, "FLUSHALL")
        time.sleep(IDLE_SECONDS)  # what is left after this long without work is the figure
        figures["settled_kib"] = memory_of(pid, "VmRSS")
    return figures, statistics_of(errors.read_text())


def demo_redis(
    all_: list[Library], rounds: int, operations: int
) -> tuple[Samples, dict[str, float]]:
    samples: Samples = defaultdict(lambda: defaultdict(list))
    stats: dict[str, float] = {}
    for i in range(rounds):
        for library in all_ if i % 2 == 0 else all_[::-1]:
            with tempfile.TemporaryDirectory(prefix="lanemalloc-demo-") as directory:
                figures, counters = redis_once(library, operations, Path(directory))
            if library.name == "lanemalloc":
                stats = counters or stats
            for name, value in figures.items():
                samples[library.name][name].append(value)
            idle = figures["settled_kib"] / 1024
            rate = figures["SET"]
            progress(
                f"redis, round {i + 1} of {rounds}, {library.name}: {rate:,.0f} SET/s, "
                f"{idle:.0f} MiB when emptied and idle"
            )
    return samples, stats


def show(
    title: str, names: list[str], samples: Samples, rows: list[tuple[str, str, float, str]]
) -> None:
    """rows: label, figure, divisor, format"""
    lines = []
    for label, figure, divisor, form in rows:
        medians = {n: statistics.median(samples[n][figure]) / divisor for n in names}
        change = ""
        if "libc" in medians and "lanemalloc" in medians and medians["libc"] > 0:
            change = f"{medians['lanemalloc'] / medians['libc'] - 1:+.0%}"
        lines.append([label, *[format(medians[n], form) for n in names], change])
    print(f"\n{title}\n")
    print(common.table(["", *names, "lanemalloc to libc"], lines))


def show_stats(what: dict[str, dict[str, float]]) -> None:
    columns = {name: stats for name, stats in what.items() if stats}
    if not columns:
        print("\nNo counters: lanemalloc printed none.")
        return
    rows = [[n, *[f"{s[n]:,.0f}" if n in s else "-" for s in columns.values()]] for n in STATS]
    print("\nWhere threads met, as lanemalloc counted it (last run)\n")
    print(common.table(["", *columns], rows))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lib", default=f"lanemalloc={common.LANEMALLOC}", metavar="NAME=PATH")
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("ROUNDS", "3")))
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--operations", type=int, default=200_000, help="of each redis command")
    arguments = parser.parse_args()
    libc = Library("libc", None)
    lane = common.libraries([arguments.lib], peers=False)[0]
    machine = common.machine()
    print(
        f"Machine: {machine['cpu']}, {machine['cores']} cores, kernel {machine['kernel']}, "
        f"{machine['libc']}"
    )
    print(
        f"\n1. A server of 64 threads, {arguments.requests:,} requests, {arguments.rounds} rounds",
        flush=True,
    )
    requests, requests_stats = demo_requests([libc, lane], arguments.rounds, arguments.requests)
    print(
        f"\n2. redis-server, {arguments.operations:,} of each command, {arguments.rounds} rounds",
        flush=True,
    )
    shim = common.compile_program(HERE / "libc_shim.c", "libc_shim.so", "-fPIC", "-shared")
    redis_all = [Library("libc", shim), Library("jemalloc", None), lane]
    redis, redis_stats = demo_redis(redis_all, arguments.rounds, arguments.operations)

    memory = [
        ("peak memory, MiB", "peak_kib", 1024.0, ".0f"),
        ("memory at the end of the work, MiB", "end_kib", 1024.0, ".0f"),
    ]
    title = (
        f"A server of 64 threads, {arguments.requests:,} requests (medians of {arguments.rounds})"
    )
    time_rows = [
        ("requests a second", "requests_per_s", 1.0, ",.0f"),
        ("wall time, s", "wall_s", 1.0, ".2f"),
    ]
    time_rows += [("CPU time, s", "cpu_s", 1.0, ".2f")]
    rows = [
        *time_rows,
        *memory,
        ("memory once idle, cache expired, MiB", "settled_kib", 1024.0, ".0f"),
    ]
    show(title, [libc.name, lane.name], requests, rows)
    title = (
        f"redis-server, {arguments.operations:,} of each command (medians of {arguments.rounds})"
    )
    rows = [(f"{c} a second", c, 1.0, ",.0f") for c in COMMANDS]
    rows += [
        ("CPU time, s", "cpu_s", 1.0, ".2f"),
        *memory,
        ("memory once emptied and idle, MiB", "settled_kib", 1024.0, ".0f"),
    ]
    show(title, [library.name for library in redis_all], redis, rows)
    show_stats({"requests": requests_stats, "redis": redis_stats})
    print(
        "\nTimes less than a tenth apart say nothing on a busy machine; memory and counters repeat."
    )
    return 0


def stop(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        sys.exit(main())
    except (RuntimeError, subprocess.SubprocessError) as error:
        print(f"demo: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
