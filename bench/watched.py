#!/usr/bin/env python3
"""What being watched costs: busy programs under the eyes of `lanemalloc top`, which looks twice a \
second, and while it watches another that sleeps.

bench/watched.py [--rounds N] [--seconds S]. So what top takes itself, its start above all, is in
both; and both runs of a round see the same spell of a shared machine, in turns. Printed are the
medians of the rounds' ratios, with quartiles: of the time that the program takes (CPU time and by
the clock), and the share of a CPU that top takes when it watches the busy one. Called by: nobody;
by hand, after make build and tools/python-env. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import signal
import statistics
import struct
import subprocess
import sys
import termios
import threading
import time
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent)]
import common
from workloads.build import build_workloads

TOP = common.ROOT / "build/venv/bin/lanemalloc"
WORKLOADS = ("larson", "server-latency", "threadtest")
THREADS = 2


@dataclass
class Run:
    cpu: float  # seconds
    clock: float
    top: float  # its share of a CPU


class Top:
    """In a terminal of 120 by 40 characters, which nobody looks at."""

    def __init__(self, pid: int) -> None:
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execv(TOP, [str(TOP), "top", str(pid)])
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        try:
            while os.read(self._terminal, 65536):
                pass
        except OSError:  # it has ended
            pass

    def cpu(self) -> float:
        words = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        os.kill(self.pid, signal.SIGTERM)
        os.waitpid(self.pid, 0)
        self._reader.join()
        os.close(self._terminal)


def run(program: Path, name: str, operations: float, is_watched: bool) -> Run:
    environment = {**os.environ, "LD_PRELOAD": str(common.LANEMALLOC)}
    sleeper = subprocess.Popen(["sleep", "1000"], env=environment)
    with subprocess.Popen(
        [str(program), name, str(THREADS), "--operations", f"{operations:.0f}"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        time.sleep(0.3)
        top = Top(process.pid if is_watched else sleeper.pid)
        time.sleep(2)  # it has started
        before, since = top.cpu(), time.monotonic()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        share = (top.cpu() - before) / (time.monotonic() - since)
        top.end()
        assert process.stdout is not None
        said = common.fields(process.stdout.read())
    sleeper.kill()
    sleeper.wait()
    if process.returncode != 0:
        raise SystemExit(f"{name}: exit status {process.returncode}")
    return Run(int(said["cpu_ns"]) / 1e9, int(said["wall_ns"]) / 1e9, share)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=10, help="of each run, about")
    arguments = parser.parse_args()
    program = build_workloads()
    for name in WORKLOADS:
        operations = 5e6
        while (other := run(program, name, operations, False)).clock < 3:
            operations *= 2
        operations *= arguments.seconds / other.clock
        pairs = []
        for number in range(arguments.rounds):
            order = (False, True) if number % 2 == 0 else (True, False)
            found = {is_watched: run(program, name, operations, is_watched) for is_watched in order}
            pairs.append((found[False], found[True]))
        said = []
        for what in ("cpu", "clock"):
            low, middle, high = statistics.quantiles(
                [getattr(watched, what) / getattr(other, what) for other, watched in pairs], n=4
            )
            said.append(f"{what} {middle:.4f} ({low:.4f} to {high:.4f})")
        share = statistics.median(watched.top for _, watched in pairs)
        print(
            f"{name:16} watched / not: {', '.join(said)}; top takes {share:.2%} of a CPU",
            flush=True,
        )


if __name__ == "__main__":
    main()
