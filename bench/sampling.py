#!/usr/bin/env python3
"""What sampling costs real programs: bench/sampling.py \
[--sample 512k] [--rounds 7] [--scale S] [--instructions] [PROGRAM..]

Each program runs under the release build with and without the option sample, in turn, the order
turned round from round to round. Of CPU time (user and system, of the server alone where there is
one) the median of the rounds' ratios is printed with its quartiles: both runs of a round see the
same spell of a shared machine. --instructions counts them with callgrind instead, children
included, once each: they repeat. (Not of redis, whose client would wait.) Bar: MOST_PART more.
Called by: nobody; by hand, after make build.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path[:0] = [
    str(Path(__file__).resolve().parent),
    str(Path(__file__).resolve().parent / "suite"),
]
import common
from common import Library
from programs import PROGRAMS, program
from shares import counts

NAMES = ("python", "g++", "sqlite", "redis")
MOST_PART = 0.01
INSTRUCTIONS_SCALE = 0.1


def prepared(name: str) -> tuple[program.Program, Path]:
    work = common.BUILD / "programs" / name
    work.mkdir(parents=True, exist_ok=True)
    chosen = next(p for p in PROGRAMS if p.name == name)
    chosen.prepare(work)
    return chosen, work


def time_of(
    name: str, without: Library, sampled: Library, rounds: int, scale: float
) -> dict[str, Any]:
    chosen, work = prepared(name)
    seconds: dict[str, list[float]] = {without.name: [], sampled.name: []}
    chosen.run(without, work, scale)  # fills the page cache
    for number in range(rounds):
        for library in (without, sampled)[:: 1 if number % 2 == 0 else -1]:
            seconds[library.name].append(chosen.run(library, work, scale).cpu_seconds)
    ratios = [b / a for a, b in zip(seconds[without.name], seconds[sampled.name])]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {"program": name, "ratio": middle, "quartiles": [low, high], "cpu_seconds": seconds}


def instructions_of(name: str, without: Library, sampled: Library, scale: float) -> dict[str, Any]:
    chosen, work = prepared(name)
    totals = {}
    for library in (without, sampled):
        with tempfile.TemporaryDirectory() as place:
            program.below = [
                "valgrind",
                "--tool=callgrind",
                "--trace-children=yes",
                "-q",
                f"--callgrind-out-file={place}/%p",
            ]
            try:
                chosen.run(library, work, scale)
            finally:
                program.below = []
            totals[library.name] = sum(
                counts(file.read_text(), library)[0] for file in Path(place).iterdir()
            )
    ratio = totals[sampled.name] / totals[without.name]
    return {"program": name, "ratio": ratio, "instructions": totals}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", default="512k", metavar="BYTES", help="the option sample")
    parser.add_argument("--options", default="", metavar="K=V,..", help="further options, of both")
    parser.add_argument("--library", type=Path, default=common.LANEMALLOC, metavar="FILE")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=float, help="of the work; 1 is a few seconds a run")
    parser.add_argument("--instructions", action="store_true", help="count them instead")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("programs", nargs="*", default=NAMES, metavar="PROGRAM")
    arguments = parser.parse_args()
    if unknown := set(arguments.programs) - {p.name for p in PROGRAMS}:
        parser.error(
            f"no program {', '.join(unknown)}: there are {', '.join(p.name for p in PROGRAMS)}"
        )
    if not arguments.library.exists():
        parser.error(f"{arguments.library} is not there: make build")
    separator = "," if arguments.options else ""
    library = arguments.library.resolve()
    without = Library("without", library, arguments.options)
    sampled = Library(
        "sampled", library, f"{arguments.options}{separator}sample={arguments.sample}"
    )
    found: list[dict[str, Any]] = []
    too_much = 0
    what = "instructions" if arguments.instructions else "CPU time"
    print(f"sample={arguments.sample}: {what} with sampling / without")
    for name in arguments.programs:
        if arguments.instructions:
            if name == "redis":
                continue
            one = instructions_of(name, without, sampled, arguments.scale or INSTRUCTIONS_SCALE)
            said = ""
        else:
            one = time_of(name, without, sampled, arguments.rounds, arguments.scale or 1.0)
            low, high = one["quartiles"]
            said = f"  quartiles {low:.4f} to {high:.4f}, {arguments.rounds} rounds"
        found.append(one)
        ratio = one["ratio"]
        too_much += ratio > 1 + MOST_PART
        print(
            f"{name:8} {ratio:.4f}{said}{'  MORE than the bar' if ratio > 1 + MOST_PART else ''}",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"sample": arguments.sample, "what": what, "programs": found}, indent=1)
            + "\n"
        )
    return 1 if too_much else 0


if __name__ == "__main__":
    sys.exit(main())
