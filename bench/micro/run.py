#!/usr/bin/env python3
"""Instructions and time of a malloc+free pair, for lanemalloc, the C library \
and the peers of build/peers/.

Called by: bench/run.sh, tests/golden/run.sh (--check), or by hand.

Instructions are user-mode, counted by callgrind, the library being preloaded as users do it:
  pair32, bulk-*  (whole program at many pairs - whole program at few pairs) / difference in pairs,
                  minus the same of the -empty loop. What start-up and first touches cost is in both
                  counts, so it drops out. The call instructions themselves count as the pair's.
  ring            inclusive cost of the calls that the producer's and the consumer's loop make,
                  except their waiting function: so waiting, however long, counts nothing. Same
                  difference of two counts. To that, 19 are added for the loop, as the figures we
                  compare with have it in them (RING_LOOP). callgrind runs one thread at a time, so
                  batches are as long as the ring lets them be.
  --steps         for an allocator that does not start under valgrind: the same difference, counted
                  by single steps (steps.c), at fewer pairs, as that is slow; not for the ring.
Time is nanoseconds a pair, thread CPU time of the loop (ring: wall clock, as two threads work at
once), minus the empty loop's (not for the ring), allocators alternating within each round; median,
and least-greatest.

--check judges instructions alone, against LIMITS. Time never passes or fails anything.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common
from common import Library, Spread

WORKLOADS = ("pair32", "bulk-order", "bulk-reverse", "bulk-shuffle", "ring")
LIMITS = {"pair32": 47, "bulk-order": 47, "bulk-reverse": 47, "bulk-shuffle": 47, "ring": 105}
RING_LOOP = 19
FEW, MANY = 60_000, 260_000
STEPPED_FEW, STEPPED_MANY = 2_000, 5_000
TIMED_PAIRS = {"ring": 1_000_000}
RING_LOOPS = ("produce", "consume")
WAITING = "ring_wait"


def build() -> Path:
    source = common.ROOT / "bench" / "micro" / "pairs.c"
    return common.compile_program(source, "pairs", "-fno-plt", "-Wl,-z,now")


def verify(library: Library, output: str) -> None:
    """Stops where the program did not really use this allocator."""
    seen = common.fields(output)["library"]
    if not library.serves(seen):
        raise RuntimeError(f"{library.name}: not in use, malloc comes from {seen}")


def callgrind(library: Library, command: list[str], file: Path, *flags: str, **more: str) -> str:
    # callgrind runs one thread at a time; on one CPU they take turns in the same way every time.
    tool = [
        "taskset",
        "--cpu-list",
        str(min(os.sched_getaffinity(0))),
        "valgrind",
        "--tool=callgrind",
        "--fair-sched=yes",
    ]
    written = ["--compress-strings=no", "--compress-pos=no", f"--callgrind-out-file={file}"]
    output = common.run([*tool, *flags, *written, *command], library, **more)
    verify(library, output)
    return output


def calls_cost(profile: str) -> int:
    """Inclusive instructions of everything that the two ring loops call, except waiting."""
    total = 0
    function = callee = ""
    pending = False
    for line in profile.splitlines():
        if line.startswith("fn="):
            function = line[3:]
        elif line.startswith("cfn="):
            callee = line[4:]
        elif line.startswith("calls="):
            pending = True
        elif pending:
            pending = False
            if function in RING_LOOPS and callee != WAITING:
                total += int(line.split()[1])
    return total


def count(library: Library, program: Path, workload: str, pairs: int) -> int:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "callgrind.out"
        callgrind(library, [str(program), workload, str(pairs)], file)
        profile = file.read_text()
    if workload == "ring":
        return calls_cost(profile)
    summary = re.search(r"^(?:summary|totals): (\d+)", profile, re.MULTILINE)
    if summary is None:
        raise RuntimeError("callgrind wrote no totals")
    return int(summary.group(1))


def slope(library: Library, program: Path, workload: str) -> float:
    return (count(library, program, workload, MANY) - count(library, program, workload, FEW)) / (
        MANY - FEW
    )


def instructions(library: Library, program: Path, workload: str, empty: dict[str, float]) -> float:
    """Instructions a pair, as the head comment defines it.
    `empty` keeps the loops' own cost, which no library changes."""
    if workload == "ring":
        return slope(library, program, workload) + RING_LOOP
    if workload not in empty:
        empty[workload] = slope(Library("libc", None), program, f"{workload}-empty")
    return slope(library, program, workload) - empty[workload]


def count_steps(library: Library, program: Path, workload: str, pairs: int) -> int:
    stepper = common.compile_program(common.ROOT / "bench" / "micro" / "steps.c", "steps")
    done = subprocess.run(
        [stepper, program, workload, str(pairs)],
        env=library.environment(),
        capture_output=True,
        text=True,
        timeout=common.WATCHDOG_SECONDS,
        check=True,
    )
    verify(library, done.stdout)
    return int(common.fields(done.stderr)["steps"])


def stepped(library: Library, program: Path, workload: str, empty: dict[str, float]) -> float:
    few, many = (count_steps(library, program, workload, n) for n in (STEPPED_FEW, STEPPED_MANY))
    return (many - few) / (STEPPED_MANY - STEPPED_FEW) - empty[workload]


def time_once(library: Library, program: Path, workload: str, pairs: int) -> float:
    clock = "wall_ns" if workload.startswith("ring") else "thread_cpu_ns"
    output = common.run([program, workload, str(pairs)], library)
    verify(library, output)
    return float(common.fields(output)[clock]) / pairs


def times(
    all_: list[Library], program: Path, workloads: list[str], rounds: int, pairs: int
) -> dict[str, dict[str, Spread]]:
    samples: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for i in range(rounds):
        order = all_[i % len(all_) :] + all_[: i % len(all_)]
        for workload in workloads:
            n = TIMED_PAIRS.get(workload, pairs)
            empty = (
                0.0
                if workload == "ring"
                else time_once(Library("libc", None), program, f"{workload}-empty", n)
            )
            for library in order:
                samples[library.name][workload].append(
                    time_once(library, program, workload, n) - empty
                )
        print(f"  time: round {i + 1} of {rounds}", file=sys.stderr)
    return {name: {w: Spread.of(s) for w, s in by.items()} for name, by in samples.items()}


def check(library: Library, counted: dict[str, float]) -> int:
    failed = 0
    for workload, value in counted.items():
        good = value <= LIMITS[workload]
        failed += not good
        verdict = "pass" if good else "FAIL"
        print(
            f"{verdict}: {library.name} {workload}: {value:.1f} instructions a pair "
            f"(limit {LIMITS[workload]})"
        )
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--lib",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="a library to measure; 'libc' is the C library",
    )
    parser.add_argument("--no-peers", action="store_true", help="only the libraries given")
    parser.add_argument(
        "--workload", action="append", choices=WORKLOADS, help="only these (repeatable)"
    )
    parser.add_argument("--rounds", type=int, default=7, help="rounds of timing (0: none)")
    parser.add_argument("--pairs", type=int, default=4_000_000, help="pairs in one timing")
    parser.add_argument(
        "--steps",
        action="store_true",
        help="count by single steps what does not run under callgrind (minutes)",
    )
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument(
        "--check",
        action="store_true",
        help="instructions of the given library against the limits; nothing else",
    )
    arguments = parser.parse_args()
    workloads = list(arguments.workload or WORKLOADS)
    all_ = common.libraries(arguments.lib, peers=not (arguments.no_peers or arguments.check))
    if not all_:
        raise SystemExit(
            "nothing to measure: build/release/liblanemalloc.so is not there, "
            "and no --lib was given"
        )
    program = build()
    counted: dict[str, dict[str, float]] = {}
    if common.need("valgrind"):
        empty: dict[str, float] = {}
        for library in all_:
            try:
                counted[library.name] = {
                    w: instructions(library, program, w, empty) for w in workloads
                }
            except RuntimeError:
                if arguments.check:
                    raise
                counted.pop(library.name, None)
                how = "counted by steps" if arguments.steps else "left out"
                print(
                    f"  instructions: {library.name} does not run under callgrind, {how}",
                    file=sys.stderr,
                )
                if arguments.steps:
                    counted[library.name] = {
                        w: stepped(library, program, w, empty) for w in workloads if w in empty
                    }
            else:
                print(f"  instructions: {library.name} done", file=sys.stderr)
    if arguments.check:
        if not counted:
            print(
                "skip: no valgrind, so no instruction counts\n"
                f"0 passed, 0 failed, {len(workloads)} skipped"
            )
            return 0
        failed = sum(check(library, counted[library.name]) for library in all_)
        print(f"{len(workloads) * len(all_) - failed} passed, {failed} failed, 0 skipped")
        return 1 if failed else 0

    timed = (
        times(all_, program, workloads, arguments.rounds, arguments.pairs)
        if arguments.rounds
        else {}
    )
    report(all_, workloads, counted, timed)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        result = {
            "machine": common.machine(),
            "instructions_per_pair": counted,
            "ns_per_pair": {n: {w: vars(s) for w, s in by.items()} for n, by in timed.items()},
        }
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")
    return 0


def report(
    all_: list[Library],
    workloads: list[str],
    counted: dict[str, dict[str, float]],
    timed: dict[str, dict[str, Spread]],
) -> None:
    names = [library.name for library in all_]
    if counted:
        print(
            "\nUser instructions a malloc+free pair "
            "(loop subtracted; ring: both threads, its loop of 19 not subtracted)"
        )
        print(
            common.table(
                ["", *workloads],
                [
                    [n, *[f"{counted[n][w]:.1f}" if w in counted[n] else "-" for w in workloads]]
                    for n in names
                    if n in counted
                ],
            )
        )
    else:
        print("\nNo valgrind here, so no instruction counts.")
    if timed:
        print(
            "\nTime a pair in ns (median, least-greatest), "
            "and as a ratio to the best peer (below 1: faster than every peer)"
        )
        peers = [n for n in names if n in (*common.PEER_NAMES, "libc")]
        rows = []
        for n in names:
            cells = []
            for w in workloads:
                s = timed[n][w]
                others = [timed[p][w].median for p in peers if p != n] or [s.median]
                cells.append(
                    f"{s.median:.1f} ({s.low:.1f}-{s.high:.1f}) "
                    f"x{s.median / max(min(others), 1e-9):.2f}"
                )
            rows.append([n, *cells])
        print(common.table(["", *workloads], rows))


if __name__ == "__main__":
    os.environ.setdefault("LC_ALL", "C")
    try:
        sys.exit(main())
    except (RuntimeError, subprocess.CalledProcessError) as error:
        print(f"run.py: {error}", file=sys.stderr)
        sys.exit(1)
