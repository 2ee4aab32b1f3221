"""Runs real programs under some allocators, alternating, and shows medians.

python3 -m programs [--list] [--only NAME[,NAME]] [--allocators NAME[,NAME]]
                    [--rounds N] [--scale S]    in bench/
python3 bench/programs ...                      from anywhere
"""

import argparse
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import common
from common import Library, Spread
from programs import DATA, PROGRAMS, Program, Sample

Samples = dict[tuple[str, str], list[Sample]]  # by program and allocator


def chosen(text: str | None, known: list[str], what: str) -> list[str]:
    names = known if text is None else text.split(",")
    for name in names:
        if name not in known:
            print(
                f"programs: no such {what}: '{name}'; there are {', '.join(known)}", file=sys.stderr
            )
            raise SystemExit(2)
    return names


def rounds_of(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of rounds")
    return int(text)


def scale_of(text: str) -> float:
    try:
        scale = float(text)
    except ValueError:
        scale = 0.0
    if not 0.01 <= scale <= 100.0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a scale from 0.01 to 100")
    return scale


def prepare(programs: list[Program]) -> None:
    packages = {"gcc", "libc6-dev"} | {
        package for program in programs for package in program.packages
    }
    subprocess.run([str(common.ROOT / "tools" / "install-packages"), *sorted(packages)], check=True)
    for program in programs:
        (DATA / program.name).mkdir(parents=True, exist_ok=True)
        program.prepare(DATA / program.name)


def measure(
    programs: list[Program], all_: list[Library], rounds: int, scale: float
) -> tuple[Samples, list[str]]:
    samples: Samples = defaultdict(list)
    failures = []
    for i in range(rounds):
        shift = i % len(all_)
        for program in programs:
            for library in all_[shift:] + all_[:shift]:
                started = time.monotonic()
                try:
                    sample = program.run(library, DATA / program.name, scale)
                except (RuntimeError, subprocess.SubprocessError) as error:
                    failures.append(f"{program.name}, {library.name}: {error}")
                    print(f"  FAILED {failures[-1]}", file=sys.stderr)
                    continue
                samples[program.name, library.name].append(sample)
                text = (
                    f"{program.name}, {library.name}, round {i + 1} of {rounds}: "
                    f"{sample.seconds:.2f} s"
                )
                print(f"  {text} ({time.monotonic() - started:.1f} s in all)", file=sys.stderr)
    return samples, failures


def show(programs: list[Program], all_: list[Library], samples: Samples) -> None:
    header = [
        "",
        "seconds",
        "low",
        "high",
        "CPU s",
        "peak MiB",
        "settled MiB",
        "minor faults",
        "major",
    ]
    for program in programs:
        rows = []
        for library in all_:
            runs = samples[program.name, library.name]
            if not runs:
                rows.append([library.name, "failed", *[""] * (len(header) - 2)])
                continue
            wall = Spread.of([run.seconds for run in runs])
            figures = [f"{value:.2f}" for value in (wall.median, wall.low, wall.high)]
            figures.append(f"{Spread.of([run.cpu_seconds for run in runs]).median:.2f}")
            figures.append(f"{Spread.of([run.peak_kib for run in runs]).median / 1024:.1f}")
            settled = [run.settled_kib for run in runs if run.settled_kib is not None]
            figures.append(f"{Spread.of(settled).median / 1024:.1f}" if settled else "-")
            figures.append(f"{Spread.of([run.minor_faults for run in runs]).median:,.0f}")
            figures.append(f"{Spread.of([run.major_faults for run in runs]).median:,.0f}")
            rows.append([library.name, *figures])
        print(f"\n{program.name}: {program.about}\n{common.table(header, rows)}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="programs")
    parser.add_argument("--list", action="store_true", help="the programs and the allocators")
    parser.add_argument("--only", metavar="NAME,...", help="programs")
    parser.add_argument("--allocators", metavar="NAME,...")
    parser.add_argument("--rounds", type=rounds_of, default=1)
    parser.add_argument("--scale", type=scale_of, default=1.0)
    arguments = parser.parse_args()
    by_name = {program.name: program for program in PROGRAMS}
    libraries = {library.name: library for library in common.libraries()}
    if arguments.list:
        for program in PROGRAMS:
            print(f"{program.name:<10}{program.about}")
        print(f"\nallocators: {', '.join(libraries)}")
        return 0
    programs = [by_name[name] for name in chosen(arguments.only, list(by_name), "program")]
    all_ = [libraries[name] for name in chosen(arguments.allocators, list(libraries), "allocator")]
    prepare(programs)
    samples, failures = measure(programs, all_, arguments.rounds, arguments.scale)
    show(programs, all_, samples)
    return 1 if failures else 0


def stop(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        sys.exit(main())
    except (RuntimeError, subprocess.SubprocessError) as problem:
        print(f"programs: {problem}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
