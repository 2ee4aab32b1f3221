#!/usr/bin/env python3
"""What arenas cost: instructions of an allocation, and locked operations of a reset.

Called by: tests/golden/run.sh.

  allocation  the hit that include/lanemalloc/arena.h compiles to with -O2: at most 8 instructions
              (for clang, which avoids a sum of three operands, 9 where the size is not a constant)
  reset       locked operations of the library that run inside lane_arena_reset(), counted by
              callgrind: none for blocks of the thread's own lane, at most one for each other lane,
              however many blocks. As many objects freed one by one show that what is counted is
              there.
"""

import argparse
import dataclasses
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import common
import fast_path

SOURCE = Path(__file__).resolve().parent / "arena.c"
MOST_INSTRUCTIONS = {
    ("gcc", "any size"): 8,
    ("gcc", "one size"): 8,
    ("clang-19", "any size"): 9,
    ("clang-19", "one size"): 8,
}
# Without a scavenger, which is started and told by whoever comes first after a while.
OPTIONS = "lanes=owned,decay_ms=-1"


@dataclasses.dataclass(frozen=True)
class Case:
    source: str  # whose blocks
    blocks: int
    block_size: int
    most_locked: int

    def title(self) -> str:
        return f"reset of {self.blocks} blocks of {self.block_size}, {self.source}"


CASES = [
    Case(source, blocks, size, most)
    for source, most in (("own", 0), ("other", 1), ("two", 2))
    for blocks in (1, 10, 1000)
    for size in (8192, 65536)
    if blocks > 1 or source == "own"
]
CONTROL = Case("pieces", 1000, 8192, 0)


def hit(compiler: str, name: str) -> list[str]:
    """The instructions between the marks, in the order in which a hit runs them."""
    command = [
        compiler,
        "-O2",
        "-S",
        "-o",
        "-",
        "-D_GNU_SOURCE",
        f"-I{ROOT / 'include'}",
        str(SOURCE),
    ]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(rf"# {name}\n(.*?)# ends", text, re.DOTALL)
    if found is None:
        raise RuntimeError(f"{compiler}: no marks in the assembly")
    return [line.strip() for line in found.group(1).splitlines() if re.match(r"\s+[a-z]", line)]


def check_allocation(verdicts: fast_path.Verdicts) -> None:
    for (compiler, name), most in MOST_INSTRUCTIONS.items():
        if not common.need(compiler):
            verdicts.skip(f"allocation by {compiler}", "it is not installed")
            continue
        code = hit(compiler, name)
        what = f"allocation of {name} by {compiler}: {len(code)} instructions, at most {most}"
        verdicts.check(5 <= len(code) <= most, what, "; ".join(code))


def locked(library: common.Library, program: Path, case: Case, code: dict[int, str]) -> int:
    command = [str(program), case.source, str(case.blocks), str(case.block_size), "thread"]
    inside = "free_pieces" if case == CONTROL else "lane_arena_reset"
    ran = fast_path.executed(library, command, code, f"--toggle-collect={inside}")
    if sum(ran.values()) < case.blocks:
        raise RuntimeError(f"callgrind saw {sum(ran.values())} instructions inside {inside}")
    return sum(n for at, n in ran.items() if fast_path.LOCKED.match(code.get(at, "")))


def check_reset(library: Path, verdicts: fast_path.Verdicts) -> None:
    if not common.need("valgrind"):
        verdicts.skip("reset", "no valgrind here")
        return
    folder = library.parent
    linked = [str(library), f"-Wl,-rpath,{folder}", f"-I{ROOT / 'include'}"]
    program = common.BUILD / "golden-arena"
    common.BUILD.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [
            "cc",
            "-O1",
            "-g",
            "-fno-builtin",
            "-D_GNU_SOURCE",
            "-pthread",
            "-o",
            program,
            SOURCE,
            *linked,
        ],
        check=True,
    )
    under = common.Library("lanemalloc", library, OPTIONS)
    code = fast_path.disassembly(library)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        control = pool.submit(locked, under, program, CONTROL, code)
        for case, count in zip(
            CASES, pool.map(lambda case: locked(under, program, case, code), CASES)
        ):
            verdicts.check(
                count <= case.most_locked,
                f"{case.title()}: {count} locked operations, at most {case.most_locked}",
            )
        seen, least = control.result(), CONTROL.blocks // 4
        verdicts.check(
            seen >= least,
            f"{CONTROL.blocks} objects freed one by one: "
            f"{seen} locked operations, at least {least}",
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("library", type=Path)
    library = parser.parse_args().library.resolve()
    verdicts = fast_path.Verdicts()
    check_allocation(verdicts)
    check_reset(library, verdicts)
    return verdicts.close()


if __name__ == "__main__":
    sys.exit(main())
