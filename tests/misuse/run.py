#!/usr/bin/env python3
"""Runs programs that misuse memory, under lanemalloc and other allocators, and says what came of
each mistake.

Called by run.sh, and by hand. misuse.h says what a case prints. Outcomes, from the best to the
worst; the worst of some runs counts:

  caught        the allocator ended the process or told of the mistake, refused the call, or a page
                that nobody may touch stopped the access, before any harm was seen
  silent        nothing was seen
  absent        the case cannot be made under this allocator
  crashed       the process died of a bad access behind the mistake, without a word of the allocator
  hung          the process did not end
  harm-stale    the program read what was in an object before it was freed
  harm-changed  the allocator changed an object in use
  harm-twice    memory in use was handed out again, or less than was asked for
  harm-chosen   malloc returned an address that the attacker chose, or the allocator wrote there

expected.tsv has the outcome of each case for lanemalloc as it is, and with checked=1. A case fails
if it is worse. With the other entries of lanes it fails only if it is harm-chosen, unless the row
says so too. Such an outcome is marked KNOWN there: it is a fault to be mended, and the number of
them is printed.
"""

import argparse
import concurrent.futures
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
EXPECTED = HERE / "expected.tsv"
SECONDS = 20  # a case that hangs is ended; this is no bound on speed

OUTCOMES = (
    "caught",
    "silent",
    "absent",
    "crashed",
    "hung",
    "harm-stale",
    "harm-changed",
    "harm-twice",
    "harm-chosen",
)
FAULT = "fault"  # of the case itself
KNOWN = "KNOWN "
# What an allocator's own end of the process looks like.
ENDS = (signal.SIGABRT, signal.SIGTRAP, signal.SIGILL)

KINDS = {
    "double": "second free of an object that is free",
    "reused": "second free of an object that has a new user",
    "pointer": "`free` of a pointer that is no object",
    "resize": "`realloc` of a pointer that is no object",
    "usable": "`malloc_usable_size` of a pointer that is no object",
    "mix": "wrong size, or the wrong function, to free with",
    "past": "write past the end or before the start",
    "after": "write after free, of anything",
    "read": "read after free, or before the first write",
    "poison": "write after free, to get an address of one's choice",
    "forge": "the same with what was read from free objects",
    "batch": "the same with objects that another thread has freed",
    "chain": "classic chains",
    "huge": "sizes that wrap or cannot be had",
    "heap": "heaps",
    "pool": "pools",
    "arena": "arenas",
    "safepoint": "deferred frees",
}
CONTROL = "control"
FRONTS = ("heap", "pool", "arena", "safepoint")
HARDENED = ("scudo", "snmalloc-checks", "mimalloc3-secure", "hardened_malloc")


@dataclass(frozen=True)
class Allocator:
    name: str
    library: Path | None  # None: the C library
    options: str = ""

    @property
    def is_ours(self) -> bool:
        return self.library is not None and self.library.name.startswith("liblanemalloc")

    def environment(self, preloads: bool) -> dict[str, str]:
        variables = {k: v for k, v in os.environ.items() if k != "LANEMALLOC_OPTIONS"}
        if self.options:
            variables["LANEMALLOC_OPTIONS"] = self.options
        if self.library is not None and preloads:
            variables["LD_PRELOAD"] = str(self.library)
        return variables


@dataclass(frozen=True)
class Program:
    file: Path
    preloads: bool  # otherwise it is linked with lanemalloc
    cases: tuple[str, ...]


def stop(text: str) -> SystemExit:
    print(f"run.py: {text}", file=sys.stderr)
    return SystemExit(2)


# --- Building.


def compile_one(source: Path, folder: Path, library: Path) -> Program:
    flags = ["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fno-builtin", "-pthread"]
    is_cxx = source.suffix == ".cc"
    compiler = os.environ.get("CXX", "g++") if is_cxx else os.environ.get("CC", "gcc")
    flags += ["-std=c++17" if is_cxx else "-std=gnu11", "-D_GNU_SOURCE", f"-I{ROOT / 'include'}"]
    if "clang" not in compiler:
        flags += [
            "-Wno-use-after-free",
            "-Wno-free-nonheap-object",
            "-Wno-alloc-size-larger-than",
            "-Wno-array-bounds",
            "-Wno-stringop-overflow",
            "-Wno-stringop-overread",
        ]
        flags += ["-Wno-mismatched-new-delete"] if is_cxx else []
    is_linked = source.stem == "fronts"
    file = folder / source.stem
    command = [compiler, *flags, str(source), "-o", str(file)]
    if is_linked:
        command += [str(library), f"-Wl,-rpath,{library.parent}"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise stop(f"{source.name} does not compile:\n{made.stderr}")
    names = subprocess.run([file, "--list"], capture_output=True, text=True, check=True).stdout
    return Program(file, not is_linked, tuple(names.split()))


def compile_all(folder: Path, library: Path) -> list[Program]:
    sources = sorted([*HERE.glob("*.c"), *HERE.glob("*.cc")])
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        programs = list(pool.map(lambda s: compile_one(s, folder, library), sources))
    names = Counter(case for program in programs for case in program.cases)
    if repeated := [name for name, times in names.items() if times > 1]:
        raise stop(f"two cases have one name: {' '.join(repeated)}")
    if strange := {kind_of(name) for name in names} - set(KINDS) - {CONTROL}:
        raise stop(f"unknown kinds of cases: {' '.join(strange)}")
    return programs


def kind_of(case: str) -> str:
    return case.split("/")[0]


# --- One run.


@dataclass(frozen=True)
class Run:
    outcome: str
    text: str  # what was printed


def outcome_of(status: int | None, out: str, err: str) -> str:
    """status: as subprocess has it; None: it did not end."""
    lines = out.splitlines()
    last = lines[-1] if lines else ""
    announced = [line for line in lines if line.startswith(("mistake: ", "access: "))]
    if last.startswith("result: absent"):
        return "absent"
    if not announced or any(line.startswith("fault: ") for line in lines):
        return FAULT
    if status is None:
        return "hung"
    if last.startswith("result: harm "):
        return f"harm-{last.split()[2]}"
    if last == "result: refused":
        return "caught"
    if last == "result: nothing seen":
        return "caught" if err.strip() else "silent"
    if last.startswith("result: ") or status == 3:
        return FAULT
    if err.strip() or (status < 0 and -status in ENDS):
        return "caught"
    if status in (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGFPE):
        return "caught" if last.startswith("access: ") else "crashed"
    return FAULT


def run_once(
    program: Program, case: str, allocator: Allocator, more: Mapping[str, str] | None = None
) -> Run:
    environment = allocator.environment(program.preloads) | (more or {})
    try:
        done = subprocess.run(
            [program.file, case],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
        status, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        status, out, err = None, late.stdout or b"", late.stderr or b""
    text, told = out.decode(errors="replace"), err.decode(errors="replace")
    return Run(outcome_of(status, text, told), f"{text}{told}(status {status})")


def rank(outcome: str) -> int:
    return len(OUTCOMES) if outcome == FAULT else OUTCOMES.index(outcome)


def run_worst(program: Program, case: str, allocator: Allocator, times: int) -> Run:
    """Of some runs. Where one hangs, nobody waits for others."""
    worst = run_once(program, case, allocator)
    for _ in range(1, times):
        if worst.outcome == "hung":
            break
        run = run_once(program, case, allocator)
        if rank(run.outcome) > rank(worst.outcome):
            worst = run
    return worst


# --- What is expected.


# The columns of expected.tsv. The last one is the worst of the other entries, of which only
# harm-chosen is written.
COLUMNS = {"lanemalloc": 0, "checked=1": 1, "lanes=percpu": 2, "lanes=shared:2": 2}
LESS = "less"
Row = tuple[str, str, str]


def read_expected() -> dict[str, Row]:
    expected = {}
    for line in EXPECTED.read_text().splitlines() if EXPECTED.exists() else ():
        if line and not line.startswith("#"):
            case, plain, checked, others = line.split("\t")
            expected[case] = (plain, checked, others)
    return expected


def bare(outcome: str) -> str:
    return outcome.removeprefix(KNOWN)


HEADER = """\
# What comes of each mistake with lanemalloc: the case; as it is; with checked=1; with other entries
# of lanes. A worse outcome fails, unless it comes by chance. KNOWN: a fault to be mended.
# tests/misuse/run.py --update writes this, and adds no such fault by itself.
"""


def row_of(by: Mapping[str, str], before: Row | None) -> Row:
    """by: outcomes by the allocators' names."""
    columns = list(before or ("", "", LESS))
    if any(COLUMNS.get(name) == 2 for name in by):
        columns[2] = LESS
    for name, outcome in by.items():
        column = COLUMNS.get(name)
        if column is None or (column == 2 and outcome != "harm-chosen"):
            continue
        columns[column] = KNOWN + outcome if outcome == "harm-chosen" else outcome
    return columns[0], columns[1], columns[2]


def write_expected(
    found: Mapping[str, Mapping[str, str]], before: Mapping[str, Row], allows: bool
) -> dict[str, Row]:
    rows = dict(before)
    for case, by in found.items():
        rows[case] = row_of(by, before.get(case))
        known = before.get(case, ("", "", ""))
        if not allows and any(
            new.startswith(KNOWN) and new != old for new, old in zip(rows[case], known)
        ):
            raise stop(f"{case}: harm-chosen is new; --allow-chosen writes it")
    text = HEADER + "".join(
        f"{case}\t" + "\t".join(row) + "\n" for case, row in sorted(rows.items())
    )
    EXPECTED.write_text(text)
    return rows


# --- The table.


def percent_row(outcomes: Iterable[str]) -> str:
    """caught / cases, and in brackets how many did harm."""
    counts = Counter(o for o in outcomes if o != "absent")
    total = sum(counts.values())
    if total == 0:
        return ""
    harm = sum(n for o, n in counts.items() if o.startswith("harm"))
    return f"{counts['caught']}/{total}" + (f" ({harm})" if harm else "")


TABLE_HEAD = """\
# What comes of mistakes

Each program of `tests/misuse` makes one mistake with memory, in a process of its own, and then
looks for the harm. `tests/misuse/run.py --table docs/security-table.md` writes this page: each case
ran {runs} times under each allocator, and the worst outcome counts.
[What lanemalloc promises](security.md) says what the modes are for.

- **caught**: the allocator ended the process or told of the mistake, refused the call, or a page
  that nobody may touch stopped the access, before any harm was seen
- **silent**: nothing was seen
- **crashed**: a bad access behind the mistake, without a word of the allocator; or no end
- **harm**: the program saw it. *stale*: it read what was in an object before it was freed.
  *changed*: the allocator changed an object in use. *twice*: memory in use was handed out again, or
  less than was asked for. *chosen*: malloc returned an address that the attacker chose, or the
  allocator wrote there

A case that cannot be made under an allocator is left out of its counts.
"""


def table(
    results: Mapping[str, Mapping[str, str]],
    allocators: Sequence[Allocator],
    runs: int,
    versions: Mapping[str, str],
) -> str:
    names = [a.name for a in allocators]
    kinds = [k for k in KINDS if any(kind_of(case) == k for case in results)]
    text = TABLE_HEAD.format(runs=runs)

    text += "\n## Caught, by kind of mistake\n\nCaught / cases; in brackets, how many did harm.\n\n"
    text += "| mistake | " + " | ".join(names) + " |\n"
    text += "| -- |" + " -- |" * len(names) + "\n"

    def outcomes(name: str, kind: str | None) -> list[str]:
        chosen = [by for case, by in results.items() if kind in (None, kind_of(case))]
        return [by[name] for by in chosen if name in by]

    for kind in kinds:
        cells = [percent_row(outcomes(name, kind)) for name in names]
        text += f"| {KINDS[kind]} | " + " | ".join(cells) + " |\n"

    text += "\n## Outcomes of all mistakes\n\nWithout those of heaps, pools, arenas and deferred "
    text += "frees, which only lanemalloc has.\n\n"
    shown = (
        "caught",
        "silent",
        "crashed",
        "harm-stale",
        "harm-changed",
        "harm-twice",
        "harm-chosen",
    )
    text += "| allocator | cases | " + " | ".join(o.removeprefix("harm-") for o in shown) + " |\n"
    text += "| -- |" + " -- |" * (len(shown) + 1) + "\n"
    for name in names:
        counts = Counter(
            "crashed" if by[name] == "hung" else by[name]
            for case, by in results.items()
            if kind_of(case) not in FRONTS and by.get(name, "absent") != "absent"
        )
        cells = [str(counts[o]) for o in shown]
        text += f"| {name} | {sum(counts.values())} | " + " | ".join(cells) + " |\n"

    text += "\n## The allocators\n\n| name | what it is |\n| -- | -- |\n"
    for a in allocators:
        text += f"| {a.name} | {what_it_is(a, versions)} |\n"
    if left_out := [n for n in HARDENED if n not in names]:
        text += f"\nLeft out, since they could not be had: {', '.join(left_out)}.\n"
    return text


def what_it_is(allocator: Allocator, versions: Mapping[str, str]) -> str:
    if allocator.library is None:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or "the C library"
        return f"the C library's malloc ({libc})"
    if allocator.is_ours:
        return f"lanemalloc with `{allocator.options}`" if allocator.options else "lanemalloc"
    return versions.get(allocator.name, "")


# --- Everything.


def ours(library: Path, depth: str) -> list[Allocator]:
    least = [Allocator("lanemalloc", library), Allocator("checked=1", library, "checked=1")]
    rest = [Allocator(o, library, o) for o in ("lanes=percpu", "lanes=shared:2")]
    return least if depth == "least" else rest if depth == "rest" else least + rest


def peers(folder: Path) -> list[Allocator]:
    names = [*HARDENED, "mimalloc3", "snmalloc", "jemalloc", "tcmalloc", "rpmalloc"]
    found = [(name, folder / f"lib{name}.so") for name in names]
    return [Allocator("glibc", None)] + [
        Allocator(name, file.resolve()) for name, file in found if file.exists()
    ]


def read_versions(folder: Path) -> dict[str, str]:
    rows: list[list[str]] = []
    for name in ("versions.txt", "hardened.txt"):
        if (file := folder / name).exists():
            rows += [line.split("\t") for line in file.read_text().splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 2}


class Counts:
    def __init__(self) -> None:
        self.passed = self.failed = self.skipped = 0
        self.better = 0  # than expected.tsv says

    def check(self, good: bool, what: str, shown: str = "") -> None:
        if good:
            self.passed += 1
            return
        self.failed += 1
        print(f"FAILED {what}")
        print("".join(f"    {line}\n" for line in shown.splitlines()), end="")


def is_as_named(case: str, outcome: str) -> bool:
    """Its name begins with the outcome."""
    return re.fullmatch(rf"{re.escape(outcome)}(-.*)?", case.split("/")[1]) is not None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", type=Path, default=ROOT / "build/release/liblanemalloc.so")
    parser.add_argument("--peers", type=Path, default=ROOT / "build/peers", metavar="FOLDER")
    parser.add_argument(
        "--depth", choices=("least", "rest", "all"), default="all", help="tests/part.sh"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose names contain it")
    parser.add_argument("--allocator", default="", metavar="NAME", help="only this one")
    parser.add_argument(
        "--runs",
        type=int,
        default=3,
        help="of each case (default 3); under other "
        "allocators than lanemalloc one, unless there is a --table",
    )
    parser.add_argument("--list", action="store_true", help="list the cases")
    parser.add_argument("--show", action="store_true", help="show every outcome and its text")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the page of outcomes")
    parser.add_argument("--update", action="store_true", help="write expected.tsv")
    parser.add_argument("--allow-chosen", action="store_true", help="let --update write new faults")
    asked = parser.parse_args()
    library = asked.lib.resolve()
    if not library.exists():
        raise stop(f"no library: {library} (make build)")

    with tempfile.TemporaryDirectory() as folder:
        programs = compile_all(Path(folder), library)
        cases = [(p, c) for p in programs for c in p.cases if asked.only in c]
        if asked.list:
            print("\n".join(c for _, c in cases if kind_of(c) != CONTROL))
            return 0
        allocators = ours(library, asked.depth)
        if asked.depth != "least":
            allocators += peers(asked.peers)
        if asked.allocator:
            allocators = [a for a in allocators if a.name == asked.allocator]
            if not allocators:
                raise stop(f"no allocator is called {asked.allocator}, or it is not built")
        return run_all(asked, cases, allocators)


def comes_by_chance(program: Program, case: str, allocator: Allocator, worst: str) -> bool:
    """Links have random bits, so a program may have luck. Whether few of some more runs end at \
    least as badly."""
    more, most = 16, 3
    outcomes = [run_once(program, case, allocator).outcome for _ in range(more)]
    return sum(rank(outcome) >= rank(worst) for outcome in outcomes) <= most


def judge(
    counts: Counts,
    program: Program,
    case: str,
    allocator: Allocator,
    run: Run,
    row: Row | None,
) -> None:
    what = f"{case} [{allocator.name}]: {run.outcome}"
    column = COLUMNS.get(allocator.name)
    if kind_of(case) == CONTROL:
        counts.check(is_as_named(case, run.outcome), what, run.text)
    elif run.outcome == FAULT:
        counts.check(False, f"{what} of the case", run.text)
    elif column is None:
        counts.check(True, what)
    elif row is None:
        counts.check(False, f"{what}; expected.tsv has no row (--update)")
    elif row[column] == LESS:
        good = run.outcome != "harm-chosen"
        good = good or comes_by_chance(program, case, allocator, run.outcome)
        counts.check(good, what, run.text)
    else:
        wanted = bare(row[column])
        counts.better += rank(run.outcome) < rank(wanted)
        good = rank(run.outcome) <= rank(wanted)
        good = good or comes_by_chance(program, case, allocator, run.outcome)
        counts.check(good, f"{what}, and was {wanted}", run.text)


def run_all(
    asked: argparse.Namespace, cases: Sequence[tuple[Program, str]], allocators: Sequence[Allocator]
) -> int:
    counts, expected = Counts(), read_expected()
    results: dict[str, dict[str, str]] = {}

    def fits(allocator: Allocator, case: str) -> bool:
        if kind_of(case) == CONTROL:  # these do not depend on the allocator
            return allocator == allocators[0]
        return allocator.is_ours or kind_of(case) not in FRONTS

    def times(allocator: Allocator) -> int:
        return asked.runs if allocator.is_ours or asked.table else 1

    jobs = [(p, c, a) for p, c in cases for a in allocators if fits(a, c)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        runs = list(pool.map(lambda j: run_worst(j[0], j[1], j[2], times(j[2])), jobs))
        for (_, case, allocator), run in zip(jobs, runs):
            if asked.show:
                print(f"{case} [{allocator.name}]: {run.outcome}")
                print("".join(f"    {line}\n" for line in run.text.splitlines()), end="")
            if kind_of(case) != CONTROL:
                results.setdefault(case, {})[allocator.name] = run.outcome
        if asked.update:
            expected = write_expected(results, expected, asked.allow_chosen)
        for (program, case, allocator), run in zip(jobs, runs):
            judge(counts, program, case, allocator, run, expected.get(case))

        # Without its mistake a case sees nothing.
        some = allocators[:1] if asked.depth == "least" else [a for a in allocators if a.is_ours]
        twins = [j for j in jobs if kind_of(j[1]) != CONTROL and j[2] in some]
        without = pool.map(lambda j: run_once(j[0], j[1], j[2], {"MISUSE_WITHOUT": "1"}), twins)
        for (_, case, allocator), run in zip(twins, without):
            what = f"{case} [{allocator.name}] without its mistake: {run.outcome}"
            counts.check(run.outcome in ("silent", "absent"), what, run.text)

    if not asked.only and not asked.allocator:
        for case in sorted(set(expected) - set(results)):
            counts.check(False, f"{case}: expected.tsv has it, but no program")
    if asked.table:
        asked.table.write_text(table(results, allocators, asked.runs, read_versions(asked.peers)))
    for a in allocators:
        by_outcome = Counter(by[a.name] for by in results.values() if a.name in by)
        told = ", ".join(f"{by_outcome[o]} {o}" for o in (*OUTCOMES, FAULT) if by_outcome[o])
        print(f"{a.name}: {told}")
    if counts.better:
        print(f"{counts.better} outcomes are better than expected.tsv says: --update writes it")
    plain, checked, others = (
        sum(row[column].startswith(KNOWN) for row in expected.values()) for column in range(3)
    )
    print(
        f"known faults, where malloc returns what the attacker chose: {plain}; with checked=1 "
        f"{checked}; with other entries {others}"
    )
    print(f"{counts.passed} passed, {counts.failed} failed, {counts.skipped} skipped")
    return int(counts.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
