#!/usr/bin/env python3
"""Instructions and cache misses an operation of some workloads, under lanemalloc and the peers: \
bench/suite/caches.py [WORKLOAD..]

Counted by cachegrind, for machines whose counters cannot be read: so many operations, minus half as
many, so that start-up and first touches drop out. D1 and LL are the data misses of the simulated
caches of this CPU, of one core: what one core takes from another is counted by tests/simulator
instead. Threads take turns on one CPU.
Called by: nobody; by hand, after make bench has built what it measures.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common
from common import Library

PROGRAM = common.BUILD / "workloads"
WORKLOADS = (
    "larson",
    "xmalloc",
    "t-test1",
    "glibc-simple",
    "sh8",
    "rptest",
    "mstress",
    "fan-out",
    "asymmetric",
    "server-latency",
    "realloc",
)
# snmalloc does not start under valgrind.
PEERS = ("tcmalloc", "mimalloc2", "mimalloc3", "rpmalloc", "jemalloc531")
THREADS = 2
ALONE = ("glibc-simple",)

Figures = tuple[float, float, float]


def counts(library: Library, workload: str, wanted: int) -> tuple[float, Figures]:
    """Operations; instructions, D1 data misses and LL data misses."""
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "out"
        tool = [
            "valgrind",
            "--tool=cachegrind",
            "--cache-sim=yes",
            "--fair-sched=yes",
            f"--cachegrind-out-file={out}",
        ]
        one_cpu = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))]
        said = common.run(
            [
                *one_cpu,
                *tool,
                PROGRAM,
                workload,
                "1" if workload in ALONE else str(THREADS),
                "--operations",
                str(wanted),
            ],
            library,
        )
        fields = common.fields(said)
        if not library.serves(fields["library"]):
            raise RuntimeError(f"{library.name}: not in use, malloc comes from {fields['library']}")
        text = out.read_text()
    events = re.search(r"^events: (.*)$", text, re.MULTILINE)
    summary = re.search(r"^summary: (.*)$", text, re.MULTILINE)
    if events is None or summary is None:
        raise RuntimeError("cachegrind wrote no summary")
    n = dict(zip(events[1].split(), map(float, summary[1].split()), strict=True))
    return float(fields["operations"]), (n["Ir"], n["D1mr"] + n["D1mw"], n["DLmr"] + n["DLmw"])


def figures(library: Library, workload: str, wanted: int) -> Figures:
    few_operations, few = counts(library, workload, wanted // 2)
    operations, many = counts(library, workload, wanted)
    instructions, d1, ll = (
        (m - f) / (operations - few_operations) for m, f in zip(many, few, strict=True)
    )
    return instructions, d1, ll


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "workloads", nargs="*", metavar="WORKLOAD", help=f"default: {' '.join(WORKLOADS)}"
    )
    parser.add_argument(
        "--operations", type=int, default=400_000, help="of the longer run (default: %(default)s)"
    )
    arguments = parser.parse_args()
    if not PROGRAM.exists():
        parser.error(f"{PROGRAM} is not there: make bench builds it")
    if not common.need("valgrind"):
        parser.error("valgrind is not there")
    all_ = [library for library in common.libraries() if library.name in ("lanemalloc", *PEERS)]
    rows = []
    for workload in arguments.workloads or WORKLOADS:
        cells = []
        for library in all_:
            try:
                cells.append(
                    "{:.0f} {:.2f} {:.2f}".format(*figures(library, workload, arguments.operations))
                )
            except (RuntimeError, subprocess.SubprocessError) as error:
                print(f"{workload} under {library.name}: {error}", file=sys.stderr)
                cells.append("failed")
        rows.append([workload, *cells])
        print(f"  {workload} done", file=sys.stderr)
    print(
        f"\nAn operation, {THREADS} threads, with the program's own: "
        "instructions, D1 data misses, LL data misses"
    )
    print(common.table(["", *[common.SHORT_NAMES.get(x.name, x.name) for x in all_]], rows))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("LC_ALL", "C")
    sys.exit(main())
