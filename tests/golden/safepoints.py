#!/usr/bin/env python3
"""What a deferred free costs, with the free that it becomes: against a plain free in \
instructions, and in shared operations.

Called by: tests/golden/run.sh. Counted by callgrind over bench/micro/defer.c: the calls of free, or
of lane_safepoint_free, that its loops make, with the call instruction; in a process that has had
threads. Objects of heaps and pools wait with their owners, and are taken up again to be freed:
where their plain free is a dozen instructions in line, no deferred form can come near; what it
takes is pinned. A list of nodes that threads push with a compare-exchange would take one shared
operation a free; at most a tenth of that is allowed, beside those that the plain frees take.
"""

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))
sys.path.insert(0, str(ROOT / "bench" / "micro"))
import common
import fast_path
import run as micro

WORKLOADS = ("one", "bulk", "handed", "heap", "sized", "pool")
MEASURED = ("free_measured", "defer_measured")
FEW, MANY = 40_000, 200_000
MOST_INSTRUCTIONS = 1.3  # times a plain free's, of malloc
MOST_OF_FRONTS = {"heap": 111, "sized": 148, "pool": 116}
MOST_SHARED = 0.1  # more than a plain free's


def measured_cost(profile: str) -> int:
    """Inclusive instructions of what the measured functions call."""
    total = 0
    function = ""
    pending = False
    for line in profile.splitlines():
        if line.startswith("fn="):
            function = line[3:]
        elif line.startswith("calls="):
            pending = True
        elif pending:
            pending = False
            total += int(line.split()[1]) if function in MEASURED else 0
    return total


def instructions(library: common.Library, program: Path, workload: str, how: str) -> float:
    costs = []
    for count in (FEW, MANY):
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "callgrind.out"
            micro.callgrind(library, [str(program), workload, how, str(count)], file)
            costs.append(measured_cost(file.read_text()))
    return (costs[1] - costs[0]) / (MANY - FEW) + 1


def shared(
    library: common.Library, program: Path, workload: str, how: str, code: dict[int, str]
) -> float:
    ran = fast_path.executed(library, [str(program), workload, how, str(MANY)], code)
    return sum(n for at, n in ran.items() if fast_path.LOCKED.match(code.get(at, ""))) / MANY


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("library", type=Path)
    parser.add_argument("--options", default="", help="more LANEMALLOC_OPTIONS")
    arguments = parser.parse_args()
    verdicts = fast_path.Verdicts()
    if not common.need("valgrind"):
        verdicts.skip("deferred frees", "no valgrind here")
        return verdicts.close()
    path = arguments.library.resolve()
    # No scavenger: its passes come by the clock.
    library = common.Library("lanemalloc", path, f"lanes=owned,decay_ms=-1,{arguments.options}")
    # Linked with the library, for what is compiled into programs; at run time it is the one that is
    # preloaded.
    program = common.compile_program(
        ROOT / "bench" / "micro" / "defer.c",
        "defer",
        f"-I{ROOT / 'include'}",
        "-fno-plt",
        "-Wl,-z,now,--no-as-needed",
        f"-Wl,-rpath,{path.parent}",
        str(path),
    )
    code = fast_path.disassembly(path)
    for workload in WORKLOADS:
        plain, deferred = (
            instructions(library, program, workload, how) for how in ("free", "defer")
        )
        most = MOST_OF_FRONTS.get(workload, MOST_INSTRUCTIONS * plain)
        verdicts.check(
            deferred <= most,
            f"{workload}: a deferred free takes {deferred:.1f} instructions, a free {plain:.1f}: "
            f"{deferred / plain:.2f}, at most {most / plain:.2f}",
        )
        plain, deferred = (
            shared(library, program, workload, how, code) for how in ("free", "defer")
        )
        more = deferred - plain
        verdicts.check(
            more <= MOST_SHARED,
            f"{workload}: a deferred free takes {deferred:.4f} shared operations, "
            f"a free {plain:.4f}: at most {MOST_SHARED} more",
        )
    return verdicts.close()


if __name__ == "__main__":
    sys.exit(main())
