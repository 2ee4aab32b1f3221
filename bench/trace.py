#!/usr/bin/env python3
"""What recording costs: programs alone and under `lanemalloc trace`, alternately; medians of run
time and their ratio.

Run by hand: bench/trace.py [--rounds N] [PROGRAM...]. Takes some minutes. Nothing here passes or
fails.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "build/release/liblanemalloc.so"
TOOL = [str(ROOT / "build/venv/bin/lanemalloc")]

PYTHON = """
import json, re
text = json.dumps([{"name": f"n{i}", "values": list(range(i % 50)), "text": "x" * (i % 300)} \
for i in range(60000)])
for _ in range(3):
    data = json.loads(text)
    words = {}
    for word in re.findall(r"n[0-9]+", text):
        words[word] = words.get(word, 0) + 1
    assert len(data) == len(words) == 60000
"""

SQL = """
CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT, c REAL);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000)
INSERT INTO t SELECT i, printf('text %d', i * 7919 % 100003), i * 0.5 FROM n;
CREATE INDEX tb ON t(b);
SELECT count(*), sum(length(upper(b) || lower(b))) FROM t WHERE b LIKE '%99%';
SELECT b, group_concat(a) FROM t GROUP BY b HAVING count(*) > 2 ORDER BY 2 DESC LIMIT 3;
DELETE FROM t WHERE a % 3 = 0;
SELECT count(DISTINCT replace(b, 'text', 'word')) FROM t;
"""

# Time of what is measured, the program's memory allocated as it is told; under a prefix of the
# command line or alone.
Run = Callable[[list[str], dict[str, str]], float]


def timed(command: list[str]) -> Run:
    def run(prefix: list[str], environment: dict[str, str]) -> float:
        began = time.monotonic()
        subprocess.run(
            [*prefix, *command],
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        return time.monotonic() - began

    return run


def redis(prefix: list[str], environment: dict[str, str]) -> float:
    """Time that redis-benchmark takes against the server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    server = subprocess.Popen(
        [*prefix, "redis-server", "--port", port, "--save", "", "--appendonly", "no"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        for _ in range(200):
            if (
                subprocess.run(
                    ["redis-cli", "-p", port, "ping"], capture_output=True, check=False
                ).stdout
                == b"PONG\n"
            ):
                break
            time.sleep(0.05)
        began = time.monotonic()
        subprocess.run(
            [
                "redis-benchmark",
                "-p",
                port,
                "-q",
                "-n",
                "40000",
                "-r",
                "100000",
                "-d",
                "100",
                "-t",
                "set,get,lpush,lpop,hset",
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return time.monotonic() - began
    finally:
        subprocess.run(
            ["redis-cli", "-p", port, "shutdown", "nosave"], capture_output=True, check=False
        )
        server.wait()


def program(name: str, work: Path) -> Run:
    if name == "redis":
        return redis
    if name == "gcc":
        source = work / "all.cpp"
        source.write_text(
            "#include <algorithm>\n#include <iostream>\n#include <map>\n"
            "#include <regex>\n#include <string>\n"
            'int main() { std::regex r("a+b"); std::map<std::string, int> m; m["x"] = 1; '
            'std::cout << std::regex_match("aab", r); }\n'
        )
        return timed(["g++", "-O2", "-c", str(source), "-o", "/dev/null"])
    if name == "python":
        return timed(["/usr/bin/python3", "-c", PYTHON])
    if name == "python-malloc":
        return timed(["/usr/bin/env", "PYTHONMALLOC=malloc", "/usr/bin/python3", "-c", PYTHON])
    script = work / "script.sql"
    script.write_text(SQL)
    return timed(["sqlite3", ":memory:", f".read {script}"])


def measure(name: str, rounds: int, work: Path) -> dict[str, object]:
    run = program(name, work)
    trace = work / "t.parquet"
    plain, traced, whole, events = [], [], [], 0
    for _ in range(rounds):
        plain.append(run([], {**os.environ, "LD_PRELOAD": str(LIBRARY)}))
        said = work / "said"
        prefix = [
            "sh",
            "-c",
            f'exec "$@" 2>{said}',
            "sh",
            *TOOL,
            "trace",
            "--json",
            "-o",
            str(trace),
            "--",
        ]
        seconds = run(prefix, dict(os.environ))
        summary = json.loads(said.read_text().splitlines()[-1])
        if not summary["complete"] and name != "redis":
            raise SystemExit(f"{name}: incomplete: {summary['incomplete_because']}")
        traced.append(seconds if name == "redis" else summary["seconds"])
        whole.append(summary["total_seconds"])
        events = summary["events"]
    ratios = [t / p for t, p in zip(traced, plain)]
    return {
        "program": name,
        "plain": statistics.median(plain),
        "traced": statistics.median(traced),
        "ratio": statistics.median(traced) / statistics.median(plain),
        "lowest": min(ratios),
        "highest": max(ratios),
        "with_finish": statistics.median(whole),
        "events": events,
        "bytes_an_event": trace.stat().st_size / events,
    }


def main() -> None:
    names = ("redis", "gcc", "python", "python-malloc", "sqlite")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "programs", nargs="*", default=names, metavar="PROGRAM", help=", ".join(names)
    )
    arguments = parser.parse_args()
    results = []
    work = Path(tempfile.mkdtemp(prefix="lanemalloc-bench-"))
    try:
        for name in arguments.programs:
            result = measure(name, arguments.rounds, work)
            results.append(result)
            spread = f"{result['lowest']:.2f} to {result['highest']:.2f}"
            times = (
                f"alone {result['plain']:6.2f} s  traced {result['traced']:6.2f} s  "
                f"ratio {result['ratio']:.2f} ({spread})"
            )
            size = f"{result['events']:,} events, {result['bytes_an_event']:.1f} bytes each"
            whole = f"with the tool's start and end {result['with_finish']:.2f} s"
            print(f"{name:14} {times}  {whole}  {size}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(work)
    if arguments.json:
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
