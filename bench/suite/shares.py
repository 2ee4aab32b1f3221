#!/usr/bin/env python3
"""What of a real program's instructions is the allocator's: bench/suite/shares.py [PROGRAM..]

Counted by callgrind, children included, at a part of the work: all instructions in user mode (they
repeat, as times on a shared machine do not), and those inside the allocator's library. The second
figure is the most that any allocator could win, but for what its choice of addresses does to caches
and page faults, which is not counted here.
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
from programs import PROGRAMS, program

NAMES = ("python", "g++", "sqlite", "git")
# snmalloc and scudo do not start under valgrind.
PEERS = ("libc", "jemalloc531", "tcmalloc", "mimalloc2", "mimalloc3", "rpmalloc")


def counts(text: str, library: Library) -> tuple[int, int]:
    """Of callgrind's output: instructions, and those in the library."""
    names: dict[str, str] = {}
    mine = called = False
    total = inside = 0
    for line in text.splitlines():
        if line.startswith("ob="):
            number, name = re.fullmatch(  # type: ignore[union-attr]
                r"ob=(\(\d+\)) ?(.*)", line
            ).groups()
            mine = library.path is not None and library.serves(names.setdefault(number, name))
        elif line.startswith("calls="):
            called = True  # the next line is what the callee cost
        elif re.match(r"[0-9+*-]", line):
            cost = 0 if called else int(line.split()[1])
            called = False
            total += cost
            inside += cost if mine else 0
        elif line.startswith("cob="):
            number, name = re.fullmatch(  # type: ignore[union-attr]
                r"cob=(\(\d+\)) ?(.*)", line
            ).groups()
            names.setdefault(number, name)
    return total, inside


def figures(name: str, library: Library, scale: float) -> tuple[int, int]:
    work = common.BUILD / "programs" / name
    work.mkdir(parents=True, exist_ok=True)
    chosen = next(p for p in PROGRAMS if p.name == name)
    chosen.prepare(work)
    with tempfile.TemporaryDirectory() as place:
        program.below = [
            "valgrind",
            "--tool=callgrind",
            "--trace-children=yes",
            "-q",
            f"--callgrind-out-file={place}/%p",
        ]
        chosen.run(library, work, scale)
        found = [counts(file.read_text(), library) for file in Path(place).iterdir()]
    return sum(total for total, _ in found), sum(inside for _, inside in found)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "programs", nargs="*", metavar="PROGRAM", help=f"default: {' '.join(NAMES)}"
    )
    parser.add_argument(
        "--scale", type=float, default=0.1, help="part of the work (default: %(default)s)"
    )
    arguments = parser.parse_args()
    for name in arguments.programs:
        if name not in NAMES:
            parser.error(f"unknown program '{name}'; choose from: {', '.join(NAMES)}")
    if not common.need("valgrind"):
        parser.error("valgrind is not there")
    all_ = [library for library in common.libraries() if library.name in ("lanemalloc", *PEERS)]
    rows = []
    for name in arguments.programs or NAMES:
        seen = []
        for library in all_:
            try:
                seen.append(figures(name, library, arguments.scale))
            except (RuntimeError, subprocess.SubprocessError) as error:
                print(f"{name} under {library.name}: {error}", file=sys.stderr)
                seen.append((0, 0))
        least = min((total for total, _ in seen if total), default=1)
        rows.append(
            [
                name,
                *[
                    "failed" if not total else f"{total / least:.3f} {inside / total:6.1%}"
                    for total, inside in seen
                ],
            ]
        )
        print(f"  {name} done", file=sys.stderr)
    print(
        "\nInstructions, to the least of all, and what of them is in the allocator's library "
        "(the C library's: not apart)"
    )
    print(common.table(["", *[common.SHORT_NAMES.get(x.name, x.name) for x in all_]], rows))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("LC_ALL", "C")
    sys.exit(main())
