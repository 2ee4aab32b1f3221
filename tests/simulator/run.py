#!/usr/bin/env python3
"""Simulates the shipped engine on many cores and counts the cache lines that go from one core to \
another.

Called by run.sh; by bench/ as `run.py --json FILE`; and by hand. How it works: simulator.cpp and
workloads.cpp, compiled with src/ by -fsanitize=thread and linked without ThreadSanitizer;
CMakeLists.txt here builds them, for `lanemalloc sim` too. The figures are held against bars, and
against the golden ones of figures.tsv (tests/golden/table.py), which --update writes.

What is counted, in transfers an operation (a malloc or a free), for lines of 64 bytes and for pairs
of lines:
  metadata  of lines outside the objects: lanes, slab states, the page map, the root, the threads'
            slots
  links     of lines of objects, because the allocator writes its links there: all transfers of
            these lines less `program`
  program   of lines of objects, that the program would make by itself if the allocator touched
            nothing
"""

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "golden"))
from table import Table, Tolerance

SOURCE = Path(os.environ.get("LANEMALLOC_SIMULATOR_SOURCE", HERE.parent.parent / "src"))
CXX = os.environ.get("CXX", "g++")
DEPTH = os.environ.get("LANEMALLOC_TEST_DEPTH", "all")  # tests/part.sh; the rest is the mutants
WATCHDOG = 900  # seconds; no bound on speed

ENTRIES = ("owned", "shared", "percpu")
MODELS = ("locked-list", "treiber-stack", "one-lock-arena")
WORKLOADS = ("local", "producer-consumer", "producer-consumer-mixed")
CORES = (2, 4, 8, 16, 32, 64, 128)
MUTANT_CORES = 32  # see enough
SEED = 1

MOST_LOCAL = 0.05  # transfers an operation, metadata and links
# Of metadata, times the objects of a batch: half a transfer a batch of B allocations and B frees,
# since the inbox goes to its owner and back once for some batches. Four a batch (2 / B) are few
# enough to scale, but would let a lane pass whose shared words lie together.
MOST_A_BATCH = 0.25
# A holder's line goes over and comes back, one object in seven (of those larger than 16 bytes):
# 2 / 7 an object. Or that of an object in a row comes back once more than the program has it, but
# for what lies in the same line.
MOST_LINKS = 0.35
LEAST_BATCH = 16.0  # objects

GOLDEN = HERE / "figures.tsv"
# A run is the same every time, but any change of the code makes the cores meet otherwise. By the
# seed, the figures differ by up to 6 parts in 100, and those near none by 0.0001. One more line
# that goes over with every batch is at least 25.
TOLERANCE = Tolerance(part=0.10, least=0.0002, digits=5)

Figures = dict[str, Any]


@dataclass(frozen=True)
class Mutant:
    name: str
    allocator: str
    workload: str
    edits: tuple[tuple[str, str, str], ...]  # file, text (once), replacement
    is_golden: bool = False  # within the bars; the golden figures catch it


MUTANTS = (
    Mutant(
        "shared words packed together",
        "shared",
        "producer-consumer",
        (("core/base/compiler.h", "kNoSharing = 128", "kNoSharing = 8"),),
    ),
    Mutant(
        "one set of counters for all lanes",
        "owned",
        "local",
        (
            (
                "core/lane/any_lane.h",
                "  LaneCounters counters_;",
                "  static inline LaneCounters counters_;",
            ),
        ),
    ),
    Mutant(
        "a free elsewhere reads the slab's state",
        "owned",
        "producer-consumer",
        (
            (
                "core/lane/lane_work.h",
                "index_of(class_of_object())",
                "index_of(static_cast<Slab*>(word.state())->size_class)",
            ),
        ),
    ),
    Mutant(
        "every object is sent by itself",
        "owned",
        "producer-consumer",
        (("core/lane/lane.h", "kBatchObjects = 64", "kBatchObjects = 1"),),
    ),
    Mutant(
        "the inbox is looked into for every batch",
        "percpu",
        "producer-consumer",
        (("core/lane/lane_work.h", "few_came_ = came < kSomeBatches;", "few_came_ = false;"),),
    ),
    Mutant(
        "a holder names four objects, not six",
        "owned",
        "producer-consumer",
        (("core/slab/batch.h", "kHolderBytes = 64", "kHolderBytes = 48"),),
        is_golden=True,
    ),
)


class Broken(Exception):
    """What could not be built or run."""


def execute(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG, check=False)
    if done.returncode != 0:
        raise Broken(f"{Path(command[0]).name} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def build(place: Path, edits: tuple[tuple[str, str, str], ...] = ()) -> Path:
    """Compiles the simulator over a copy of src/ with the edits. Returns the executable."""
    tree = place / "src"
    shutil.copytree(SOURCE, tree)
    for file, text, replacement in edits:
        content = (tree / file).read_text()
        if content.count(text) != 1:
            raise Broken(f"{file} has {content.count(text)} times: {text}")
        (tree / file).write_text(content.replace(text, replacement))
    execute(
        [
            "cmake",
            "-G",
            "Ninja",
            "-S",
            str(HERE),
            "-B",
            str(place / "build"),
            f"-DCMAKE_CXX_COMPILER={CXX}",
            f"-DLANEMALLOC_SIMULATOR_SOURCE={tree}",
        ]
    )
    execute(["cmake", "--build", str(place / "build"), "-j", "1"])
    return place / "build" / "lanemalloc-sim"


def simulate(executable: Path, allocator: str, workload: str, cores: int) -> Figures:
    figures: Figures = json.loads(
        execute([str(executable), allocator, workload, str(cores), str(SEED)])
    )
    return figures


def judge(figures: Figures) -> list[tuple[bool, str]]:
    """Holds one entry's figures against the bars."""
    title = f"{figures['allocator']} {figures['workload']} on {figures['cores']} cores"
    judged: list[tuple[bool, str]] = []

    def bar(what: str, value: float, most: float) -> None:
        judged.append(
            (
                value <= most,
                f"{title}: {what} {value:.4f} transfers an operation, at most {most:.4f}",
            )
        )

    for unit, name in (("lines", "64-byte lines"), ("pairs", "128-byte pairs")):
        metadata, links = figures[unit]["metadata"], figures[unit]["links"]
        if figures["workload"] == "local":
            bar(f"{name}: metadata and links", metadata + links, MOST_LOCAL)
        else:
            bar(f"{name}: metadata", metadata, MOST_A_BATCH / figures["batch"])
            if (
                figures["workload"] == "producer-consumer"
            ):  # the mixed one returns in waves longer than a run
                bar(f"{name}: links", links, MOST_LINKS)
    if figures["workload"] != "local":
        batch = figures["batch"]
        judged.append(
            (
                batch >= LEAST_BATCH,
                f"{title}: {batch:.1f} objects a batch, at least {LEAST_BATCH:.0f}",
            )
        )
    return judged


def sum_of(figures: Figures) -> float:
    return float(figures["lines"]["metadata"] + figures["lines"]["links"])


def golden_table() -> Table:
    compiler = execute([CXX, "--version"]).splitlines()[0]
    maker = f"{execute([CXX, '-dumpmachine']).strip()}, {compiler}"
    return Table(
        GOLDEN, maker, "transfers an operation", TOLERANCE, "tests/simulator/run.sh --update"
    )


def golden_figures(figures: Figures) -> dict[str, float]:
    """By the names of the table."""
    title = f"{figures['allocator']} {figures['workload']} on {figures['cores']} cores"
    kinds = ("metadata",) if figures["workload"] == "local" else ("metadata", "links")
    return {
        f"{title}: {unit}, {kind}": figures[unit][kind]
        for unit in ("lines", "pairs")
        for kind in kinds
    }


def check_entry(
    executable: Path, allocator: str, workload: str
) -> tuple[list[tuple[bool, str]], dict[str, float]]:
    """The verdicts by the bars, and what the golden figures are to be held against."""
    try:
        figures = simulate(executable, allocator, workload, CORES[-1])
        return judge(figures), golden_figures(figures)
    except Broken as why:
        return [(False, f"{allocator} {workload}: {why}")], {}


def check_golden(measured: dict[str, float]) -> tuple[list[tuple[bool, str]], int]:
    """Verdicts, and how many were skipped."""
    table = golden_table()
    if why := table.made_elsewhere():
        print(f"skip: {len(measured)} golden figures: {why}")
        return [], len(measured)
    return [(verdict.good, verdict.text) for verdict in table.judge(measured)], 0


def check_model(executable: Path, model: str) -> list[tuple[bool, str]]:
    """A simulator that does not see threads meet would pass everything."""
    try:
        few, many = (simulate(executable, model, "local", cores) for cores in (2, 32))
    except Broken as why:
        return [(False, f"{model}: {why}")]
    text = (
        f"{model} local: {sum_of(few):.2f} transfers an operation on 2 cores, "
        f"{sum_of(many):.2f} on 32"
    )
    return [(sum_of(many) > max(1.0, sum_of(few)), text)]


def check_mutant(mutant: Mutant) -> list[tuple[bool, str]]:
    title = f"mutant '{mutant.name}'"
    with tempfile.TemporaryDirectory() as place:
        try:
            executable = build(Path(place), mutant.edits)
            figures = simulate(
                executable,
                mutant.allocator,
                mutant.workload,
                CORES[-1] if mutant.is_golden else MUTANT_CORES,
            )
            judged = judge(figures)
            if mutant.is_golden:
                judged = [
                    (v.good, v.text)
                    for v in golden_table().judge(golden_figures(figures), whole=False)
                ]
        except Broken as why:
            return [(False, f"{title}: {why}")]
    missed = [text for good, text in judged if not good]
    return [
        (
            bool(missed),
            f"{title} is caught: {missed[0]}"
            if missed
            else f"{title} is not caught: {judged[0][1]}",
        )
    ]


def test() -> int:
    passed = failed = skipped = 0
    measured: dict[str, float] = {}

    def count(judged: list[tuple[bool, str]]) -> None:
        nonlocal passed, failed
        for good, text in judged:
            print(f"{'ok' if good else 'FAILED'} {text}", flush=True)
            passed, failed = passed + good, failed + (not good)

    with (
        tempfile.TemporaryDirectory() as place,
        concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool,
    ):
        others = []
        if DEPTH != "least":
            can_judge = golden_table().made_elsewhere() is None
            others = [pool.submit(check_mutant, m) for m in MUTANTS if can_judge or not m.is_golden]
        if DEPTH != "rest":
            executable = build(Path(place))
            entries = [
                pool.submit(check_entry, executable, e, w) for e in ENTRIES for w in WORKLOADS
            ]
            others += [pool.submit(check_model, executable, m) for m in MODELS]
            for entry in entries:
                judged, figures = entry.result()
                count(judged)
                measured |= figures
            judged, skipped = check_golden(measured)
            count(judged)
        for other in others:
            count(other.result())
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if failed == 0 and passed > 0 else 1


def update() -> int:
    """Writes the golden figures, unless a bar is missed."""
    measured: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory() as place,
        concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool,
    ):
        executable = build(Path(place))
        runs = [pool.submit(check_entry, executable, e, w) for e in ENTRIES for w in WORKLOADS]
        for run in runs:
            judged, figures = run.result()
            measured |= figures
            if missed := [text for good, text in judged if not good]:
                raise Broken(f"{GOLDEN.name} stays as it was: {missed[0]}")
    golden_table().write(measured)
    print(f"wrote {GOLDEN.name}\n{len(measured)} passed, 0 failed, 0 skipped")
    return 0


def write_figures(file: Path) -> int:
    """All figures, one record an allocator, workload and number of cores."""
    with (
        tempfile.TemporaryDirectory() as place,
        concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool,
    ):
        executable = build(Path(place))
        # To the models all sizes are alike, or nearly.
        runs = [(e, w) for e in ENTRIES for w in WORKLOADS] + [
            (m, w) for m in MODELS for w in WORKLOADS[:2]
        ]
        plans = [(allocator, workload, cores) for allocator, workload in runs for cores in CORES]
        records = list(pool.map(lambda plan: simulate(executable, *plan), plans))
    for record in records:
        lines, pairs = record["lines"], record["pairs"]
        print(
            f"{record['allocator']:15} {record['workload']:24} {record['cores']:4} "
            f"lines {lines['metadata']:9.4f} {lines['links']:9.4f} "
            f"pairs {pairs['metadata']:9.4f} {pairs['links']:9.4f}"
        )
    file.write_text(
        json.dumps({"unit": "transfers an operation", "figures": records}, indent=1) + "\n"
    )
    return 0


def print_places(allocator: str, workload: str, cores: str) -> int:
    """Which lines of the sources made the transfers."""
    with tempfile.TemporaryDirectory() as place:
        executable = build(Path(place))
        output = execute(
            [str(executable), allocator, workload, cores, str(SEED), "where"]
        ).splitlines()
        print(output[0])
        print("metadata   (pairs)   objects   (pairs)  place")
        rows = [line.split() for line in output[1:]]
        for address, *counts in sorted(rows, key=lambda row: -max(map(int, row[1:])))[:40]:
            print("".join(f"{int(count):8}  " for count in counts), name_place(executable, address))
    return 0


def name_place(executable: Path, address: str) -> str:
    found = re.fullmatch(r"@(0x[0-9a-f]+)", address)
    if found is None:
        return "the program"
    # The call stands before the address that it returns to.
    where = hex(int(found.group(1), 16) - 1)
    lines = execute(["addr2line", "-e", str(executable), "-i", "-s", where]).splitlines()
    places = [line.split(" ")[0] for line in lines]
    return " < ".join([p for p in places if not p.startswith("atomic")][:4])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="simulate everything on 2 .. 128 cores and write FILE",
    )
    parser.add_argument(
        "--update",
        action="store_true",
        help=f"write the golden figures, {GOLDEN.name}, from what is simulated",
    )
    parser.add_argument(
        "--where",
        nargs=3,
        metavar=("ALLOCATOR", "WORKLOAD", "CORES"),
        help="print which lines of the sources make the transfers",
    )
    arguments = parser.parse_args()
    try:
        if arguments.json:
            return write_figures(arguments.json)
        if arguments.where:
            return print_places(*arguments.where)
        return update() if arguments.update else test()
    except Broken as why:
        print(f"FAILED: {why}\n0 passed, 1 failed, 0 skipped")
        return 1


if __name__ == "__main__":
    sys.exit(main())
