#!/usr/bin/env python3
"""What a pair of an allocation and its free costs in pools and heaps, against malloc's in the \
same loop, and against pools.tsv.

Called by: tests/golden/run.sh. Counted by callgrind over pools.c, at many pairs less at few, less
the empty loop's; the call counts as the pair's. one: the pair again and again; bulk: 1000 objects
of one slab, and then all of them freed, shuffled; slabs: the same with 20,000; handed: 1000 that
another thread frees.

  a pool's pair, in line, one and bulk              at most 0.82 of malloc's
  a heap's pair with the size given, one and bulk   at most 0.9 of malloc's
  everywhere                                        no locked operation where malloc has none;
                                                    handed: at most twice as many

By the other entries of a lane, after a thread, pools go out of line: for these there are the
figures of pools.tsv alone.
Valgrind has no restartable sequences: bench/micro/pretend_rseq.c stands in for the C library's
registration, as in entries.py.
"""

import argparse
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "micro")]
import common
import entries
import fast_path
import run as micro
from table import Table, Tolerance, maker_of

SOURCE = Path(__file__).resolve().parent / "pools.c"
GOLDEN = Path(__file__).resolve().parent / "pools.tsv"
FEW, MANY = 40_000, 140_000
FRONTS = ("malloc", "pool", "heap", "limited", "functions")
IN_LINE = ("one", "bulk")
PATTERNS = (*IN_LINE, "slabs", "handed")
ENTRIES = ("shared:2", "percpu")


@dataclass(frozen=True)
class Case:
    front: str
    pattern: str
    entry: str = ""  # after a thread; "": the owner's, never threaded

    def title(self) -> str:
        return f"{self.front}, {self.pattern}" + (
            f", lanes={self.entry} after a thread" if self.entry else ""
        )

    def library(self, path: Path, before: Path) -> common.Library:
        # No scavenger: its passes come by the clock.
        options = f"lanes={self.entry or 'owned'},decay_ms=-1"
        return common.Library(
            self.title(), path, options, before if self.entry == "percpu" else None
        )

    def command(self, program: Path, count: int) -> list[str]:
        return [
            str(program),
            self.front,
            self.pattern,
            str(count),
            *(["thread"] if self.entry else []),
        ]


CASES = [Case(front, pattern) for pattern in PATTERNS for front in FRONTS] + [
    Case(front, pattern, entry)
    for entry in ENTRIES
    for pattern in (*IN_LINE, "slabs")
    for front in ("malloc", "pool", "heap")
]


def build(path: Path) -> Path:
    program = common.BUILD / "golden-pools"
    common.BUILD.mkdir(parents=True, exist_ok=True)
    linked = [
        str(path),
        f"-Wl,-rpath,{path.parent}",
        "-fno-plt",
        "-Wl,-z,now",
        f"-I{ROOT / 'include'}",
    ]
    subprocess.run(
        ["cc", "-O2", "-g", "-fno-builtin", "-pthread", "-o", program, SOURCE, *linked], check=True
    )
    return program


def ran(
    path: Path, program: Path, before: Path, case: Case, count: int, code: dict[int, str]
) -> tuple[int, int]:
    """Instructions of the whole program, and locked operations of the library."""
    library = case.library(path, before)
    seen = fast_path.executed(library, case.command(program, count), code)
    return count_all(library, program, case, count), sum(
        n for at, n in seen.items() if fast_path.LOCKED.match(code.get(at, ""))
    )


def count_all(library: common.Library, program: Path, case: Case, count: int) -> int:
    file = common.BUILD / f"golden-pools.{case.front}-{case.pattern}-{case.entry}-{count}"
    try:
        micro.callgrind(library, case.command(program, count), file)
        summary = re.search(r"^(?:summary|totals): (\d+)", file.read_text(), re.MULTILINE)
    finally:
        file.unlink(missing_ok=True)
    if summary is None:
        raise RuntimeError("callgrind wrote no totals")
    return int(summary.group(1))


def cost(
    path: Path, program: Path, before: Path, case: Case, code: dict[int, str]
) -> tuple[float, float]:
    """Of a pair: instructions with the loop, and locked operations."""
    few, many = (ran(path, program, before, case, count, code) for count in (FEW, MANY))
    return (many[0] - few[0]) / (MANY - FEW), (many[1] - few[1]) / (MANY - FEW)


def judge(
    figures: dict[str, float], locked: dict[str, float], pool: str, verdicts: fast_path.Verdicts
) -> None:
    def compare(case: Case, most: float) -> None:
        other = Case("malloc", case.pattern, case.entry).title()
        ratio = figures[case.title()] / figures[other]
        said = (
            f"{case.title()}: {figures[case.title()]:.1f} instructions a pair, malloc's "
            f"{figures[other]:.1f}"
        )
        verdicts.check(ratio <= most, f"{said}: {ratio:.2f}, at most {most}")

    for pattern in IN_LINE:
        compare(Case(pool, pattern), 0.82)
        compare(Case("heap", pattern), 0.9)
    for case in CASES:
        # Batches of kinds begin with half as many objects.
        most = (
            locked[Case("malloc", case.pattern, case.entry).title()]
            * (2 if case.pattern == "handed" else 1)
            + 0.02
        )
        of = locked[case.title()]
        verdicts.check(
            of <= most, f"{case.title()}: {of:.3f} locked operations a pair, at most {most:.3f}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("library", type=Path)
    parser.add_argument(
        "--update", action="store_true", help="write the table from what is measured"
    )
    parser.add_argument(
        "--pool",
        default="pool",
        help="the front that is held to be the pool hit (default: %(default)s)",
    )
    arguments = parser.parse_args()
    path = arguments.library.resolve()
    verdicts = fast_path.Verdicts()
    if not common.need("valgrind"):
        verdicts.skip("pools", "no valgrind here")
        return verdicts.close()
    program, before, code = build(path), entries.pretend(), fast_path.disassembly(path)
    cases = CASES + [Case("empty", pattern) for pattern in PATTERNS]
    with ThreadPoolExecutor(2) as pool:
        costs = dict(
            zip(cases, pool.map(lambda case: cost(path, program, before, case, code), cases))
        )
    figures = {
        case.title(): costs[case][0] - costs[Case("empty", case.pattern)][0] for case in CASES
    }
    locked = {case.title(): costs[case][1] for case in CASES}
    judge(figures, locked, arguments.pool, verdicts)
    table = Table(
        GOLDEN,
        maker_of(path),
        "instructions a pair",
        Tolerance(0.01, 0.3, 2),
        "tests/golden/run.sh --update",
    )
    table.settle(figures, verdicts, arguments.update)
    return verdicts.close()


if __name__ == "__main__":
    sys.exit(main())
