"""Every workload with 16 threads, or as many as it has, until an observer says stop: it gives a
rate, all its threads have worked where all of them allocate, and it ends at a word. Called by:
tests/bench/workloads.sh PROGRAM LIBRARY.
"""

import contextlib
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "bench" / "suite"), str(ROOT / "bench")]
import measure
import observe
from common import Library

THREADS = 16
# Some of their threads only free, or work in turns.
UNEVEN = ("xmalloc", "ring", "fan-in", "fan-out", "asymmetric", "mleak")
RULE = observe.Rule(window=0.05, spans=(1,), agree=10.0, least=0.1)


def problem(program: Path, library: Library, workload: measure.Workload) -> str:
    threads = THREADS if workload.threaded else 1
    with contextlib.closing(observe.Board()) as board:
        command = [str(program), workload.name, str(threads), "--board", str(board.path)]
        began = time.monotonic()
        try:
            found, said = measure.observed(
                measure.start(command, library.environment()), board, began, 0.2, RULE
            )
            printed = measure.parse(said, library)
        except measure.Failed as error:
            return str(error)
        counted = [board.operations_of(n) for n in range(observe.COUNTERS)]
    if sum(counted) != printed["operations"]:
        return f"{sum(counted)} operations on the board, {printed['operations']:.0f} printed"
    if found["rate"] <= 0 or found["peak_kib"] < 1000 or any(counted[threads:]):
        return f"odd figures: {found}, {counted}"
    if workload.name not in UNEVEN and not all(counted[:threads]):
        return f"a thread did nothing: {counted[:threads]}"
    return ""


def main() -> int:
    program, library = Path(sys.argv[1]), Library("lanemalloc", Path(sys.argv[2]).resolve())
    wrong = {
        w.name: why
        for w in measure.list_workloads(program)
        if (why := problem(program, library, w))
    }
    for name, why in wrong.items():
        print(f"  {name}: {why}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
