#!/usr/bin/env python3
"""Instructions against bars, and against the golden figures of figures.tsv.

Called by: tests/golden/run.sh. Counted by callgrind, each run bound to one CPU, so that threads
take turns in the same way every time; as many runs at once as there are CPUs. Time is not looked
at.

  pairs      a malloc+free pair (bench/micro/run.py); bars: its LIMITS
  entries    the same by each entry of a lane; bars: as in entries.py
  workloads  an operation (an allocation with its free) of bench/workloads with one thread. Only
             instructions of the library count, so neither the program's code nor the C library's
             memcpy matters. (Those of the longer run - those of the shorter one) / the difference
             in operations: what start-up costs drops out.
"""

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "micro")]
import common
import entries
import fast_path
import run as micro
from table import Table, Tolerance, Verdict, maker_of
from workloads.build import build_workloads

GOLDEN = Path(__file__).resolve().parent / "figures.tsv"
# The operations of the shorter and the longer run. Left out: what only two threads make
# interesting, what repeats another one's path, and what takes too long until its beginning is over
# (cache, burst-idle, size-shift).
WORKLOADS = {
    "larson": (60_000, 240_000),
    "t-test1": (50_000, 200_000),
    "rptest": (20_000, 80_000),
    "sh6": (300_000, 900_000),
    "sh8": (300_000, 900_000),
    "xmalloc": (50_000, 200_000),
    "asymmetric": (30_000, 110_000),
    "mstress": (40_000, 160_000),
    "alloc-test": (170_000, 290_000),
    "glibc-simple": (150_000, 450_000),
    "glibc-thread": (200_000, 800_000),
    "threadtest": (260_000, 520_000),
    "server-latency": (13_000, 52_000),
    "realloc": (60_000, 180_000),
    "mleak": (200, 900),
    "malloc-large": (25, 125),
}
# Threads that come and go: whether one finds the lane of the one before it, or another one, is the
# scheduler's to say.
WIDE = {"larson": 0.03, "t-test1": 0.05}
# Valgrind counts a `rep movsb` once for every byte, and takes as long.
TUNABLES = (
    "glibc.cpu.x86_rep_movsb_threshold=1000000000:glibc.cpu.x86_rep_stosb_threshold=1000000000"
)


def library_cost(profile: str, library: Path) -> int:
    """Instructions that ran inside the library itself."""
    total = 0
    inside = inclusive = False
    for line in profile.splitlines():
        if line.startswith("ob="):
            inside = Path(line[3:]).resolve() == library
        elif line.startswith("calls="):
            inclusive = True
        elif line[:1].isdigit() or line[:1] in ("+", "-", "*"):
            total += int(line.split()[1]) if inside and not inclusive else 0
            inclusive = False
    if total == 0:
        raise RuntimeError(f"callgrind saw nothing of {library.name}")
    return total


def timeless(path: Path) -> common.Library:
    """Without a scavenger, whose passes come by the clock."""
    return common.Library("lanemalloc", path, "decay_ms=-1")


def workload(library: common.Library, program: Path, name: str) -> float:
    assert library.path is not None
    costs, operations = [], []
    for wanted in WORKLOADS[name]:
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "callgrind.out"
            output = micro.callgrind(
                library,
                [str(program), name, "1", "--operations", str(wanted)],
                file,
                GLIBC_TUNABLES=TUNABLES,
            )
            costs.append(library_cost(file.read_text(), library.path))
        operations.append(int(common.fields(output)["operations"]))
    return (costs[1] - costs[0]) / (operations[1] - operations[0])


def bound_pool() -> ThreadPoolExecutor:
    """A worker for each CPU, bound to it; what a worker starts is bound as well."""
    cpus = sorted(os.sched_getaffinity(0))
    free = itertools.cycle(cpus)
    return ThreadPoolExecutor(len(cpus), initializer=lambda: os.sched_setaffinity(0, {next(free)}))


def measure(path: Path, only: list[str], verdicts: fast_path.Verdicts) -> dict[str, float]:
    """All figures, or those asked for; judges them by their bars on the way."""
    library = common.Library("lanemalloc", path)
    pairs_program = micro.build()
    figures: dict[str, float] = {}
    empty: dict[str, float] = {}
    jobs: dict[str, Callable[[], float]] = {}
    for name in micro.WORKLOADS:
        jobs[name] = lambda name=name: micro.instructions(  # type: ignore[misc]
            library, pairs_program, name, empty
        )
    code = fast_path.disassembly(path)
    pretend = entries.pretend()
    for case in entries.CASES:
        jobs[case.title()] = lambda case=case: entries.cost(  # type: ignore[misc]
            path, case, pretend, empty
        )
    program = build_workloads()
    for name in WORKLOADS:
        jobs[name] = lambda name=name: workload(timeless(path), program, name)  # type: ignore[misc]
    if unknown := [name for name in only if name not in jobs]:
        raise SystemExit(f"figures.py: no such figure: '{unknown[0]}'")
    # Once, before they are wanted by several.
    for name in micro.WORKLOADS[:-1]:
        if name in (only or jobs):
            empty[name] = micro.slope(common.Library("libc", None), pairs_program, f"{name}-empty")
    with bound_pool() as pool:
        running: dict[str, Future[float]] = {
            name: pool.submit(jobs[name]) for name in (only or jobs)
        }
        locked = (
            {}
            if only
            else {c: pool.submit(entries.locked, path, c, pretend, code) for c in entries.CASES}
        )
        for name, future in running.items():
            try:
                figures[name] = future.result()
            except (RuntimeError, subprocess.SubprocessError) as error:
                verdicts.check(False, f"{name}: is measured", str(error))
        if only:
            return figures
        for name in micro.WORKLOADS:
            if name in figures:
                limit = micro.LIMITS[name]
                verdicts.check(
                    figures[name] <= limit,
                    f"{name}: {figures[name]:.1f} instructions a pair, at most {limit}",
                )
        for case, future in locked.items():
            if case.title() in figures and "pair32" in figures:
                entries.judge(
                    case, figures["pair32"], figures[case.title()], future.result(), verdicts
                )
    return figures


def judge(table: Table, path: Path, figures: dict[str, float], whole: bool) -> list[Verdict]:
    """A workload that misses its figure is measured again, twice at most: whether a thread has
    ended when the next begins is the scheduler's to say, and on a busy machine it says
    otherwise."""
    verdicts = {}
    for name in figures:
        for attempt in range(3):
            verdicts[name] = table.judge({name: figures[name]}, whole=False)[0]
            if verdicts[name].good or name not in WORKLOADS or attempt == 2:
                break
            print(f"again: {verdicts[name].text}")
            with bound_pool() as pool:
                figures[name] = pool.submit(
                    workload, timeless(path), build_workloads(), name
                ).result()
    return [*verdicts.values(), *(table.judge(figures)[len(figures) :] if whole else [])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("library", type=Path)
    parser.add_argument(
        "--update", action="store_true", help="write the table from what is measured"
    )
    parser.add_argument(
        "--table",
        type=Path,
        default=GOLDEN,
        help="the table of golden figures (default: %(default)s)",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="only this figure, not the bars (repeatable)",
    )
    arguments = parser.parse_args()
    path = arguments.library.resolve()
    verdicts = fast_path.Verdicts()
    if not common.need("valgrind"):
        verdicts.skip("instructions", "no valgrind here")
        return verdicts.close()
    unit, tolerance = "instructions an operation", Tolerance(0.01, 0.3, 2)
    table = Table(
        arguments.table, maker_of(path), unit, tolerance, "tests/golden/run.sh --update", WIDE
    )
    figures = measure(path, arguments.only, verdicts)
    table.settle(
        figures,
        verdicts,
        arguments.update,
        lambda: judge(table, path, figures, whole=not arguments.only),
    )
    return verdicts.close()


if __name__ == "__main__":
    sys.exit(main())
