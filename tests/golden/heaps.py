#!/usr/bin/env python3
"""What heaps cost against our own malloc, on the workloads that they are for; \
and against the golden figures of heaps.tsv.

Called by: tests/golden/run.sh. Instructions are counted by callgrind, in a process that has had
threads.

  destroyed    a heap is made, so many objects are allocated in it, and all go with it, against
               malloc and free of each: instructions an object, with the loop around them. Bars
               where the heap is large and its sizes few; a small heap of many sizes takes more than
               malloc, some 2000 instructions for each size that it uses. The time is shown, and
               judges nothing
  interpreter  examples/interpreter: frames, environments, objects of some sizes, freed with their
               sizes; instructions an allocation, with its free and the interpreting between. At
               most malloc's
  peak         what so many live objects make of resident memory, against malloc: at most MOST_PEAK
               of it (not a golden figure)
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import common
import fast_path
from table import Table, Tolerance, maker_of

HERE = Path(__file__).resolve().parent
GOLDEN = HERE / "heaps.tsv"
# Without a scavenger, whose passes come by the clock.
OPTIONS = "lanes=owned,decay_ms=-1"
# Objects, their size (0: mixed), and how many of malloc's instructions they may take.
DESTROYED = (
    (100, 0, None),
    (1000, 0, None),
    (1000, 48, None),
    (10_000, 0, None),
    (10_000, 48, 0.8),
    (100_000, 48, 0.8),
)
PEAKS = ((100_000, 0), (200_000, 24), (200_000, 48), (20_000, 900))
MOST_PEAK = 1.02
WAYS = ("heap", "malloc")


def build(library: Path, source: Path, name: str, *flags: str) -> Path:
    common.BUILD.mkdir(parents=True, exist_ok=True)
    program = common.BUILD / name
    compiler = ["g++", "-std=c++17"] if source.suffix == ".cpp" else ["gcc", "-std=gnu11"]
    linked = [str(library), f"-Wl,-rpath,{library.parent}", f"-I{ROOT / 'include'}"]
    subprocess.run(
        [
            *compiler,
            "-O2",
            "-g",
            *flags,
            "-D_GNU_SOURCE",
            "-pthread",
            "-o",
            program,
            source,
            *linked,
        ],
        check=True,
    )
    return program


def total(under: common.Library, *command: str | Path) -> tuple[int, str]:
    """All instructions of the program, and its output."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "callgrind.out"
        tool = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={file}"]
        output = common.run([*tool, *command], under)
        summary = re.search(r"^(?:summary|totals): (\d+)", file.read_text(), re.MULTILINE)
    if summary is None:
        raise RuntimeError("callgrind wrote no totals")
    return int(summary.group(1)), output


def destroyed(under: common.Library, program: Path, way: str, objects: int, size: int) -> float:
    few, many = 3, max(13, 3 + 20_000 // objects)
    counts = [
        total(under, program, way, "destroyed", str(objects), str(rounds), str(size))[0]
        for rounds in (few, many)
    ]
    return (counts[1] - counts[0]) / (many - few) / objects


def time_of(under: common.Library, program: Path, way: str, objects: int, size: int) -> float:
    """The best of some runs, nanoseconds an object."""
    rounds = max(8, 200_000 // objects)
    outputs = [
        common.run([program, way, "destroyed", str(objects), str(rounds), str(size)], under)
        for _ in range(5)
    ]
    return min(int(common.fields(output)["cpu_ns"]) for output in outputs) / rounds / objects


def interpreter(under: common.Library, program: Path, way: str) -> float:
    instructions, allocations = [], []
    for runs in (1, 5):
        count, output = total(under, program, way, "1", str(runs))
        instructions.append(count)
        allocations.append(int(common.fields(output)["allocations"]))
    return (instructions[1] - instructions[0]) / (allocations[1] - allocations[0])


def check_instructions(
    under: common.Library, library: Path, only: str, verdicts: fast_path.Verdicts
) -> dict[str, float]:
    figures: dict[str, float] = {}
    program = build(library, HERE / "heaps.c", "golden-heaps", "-fno-builtin")
    for objects, size, most in DESTROYED:
        title = f"destroyed, {objects} objects of {size or '16-512'}"
        if only not in title:
            continue
        heap, malloc = (destroyed(under, program, way, objects, size) for way in WAYS)
        figures[f"{title}: heap"], figures[f"{title}: malloc"] = heap, malloc
        times = [time_of(under, program, way, objects, size) for way in WAYS]
        said = (
            f"{title}: {heap:.1f} instructions an object, {malloc:.1f} with malloc:"
            f" {heap / malloc:.2f}; {times[0]:.1f} ns, {times[1]:.1f} with malloc"
        )
        if most is None:
            print(said)
        else:
            verdicts.check(heap <= most * malloc, f"{said}; at most {most} of the instructions")
    if only not in "interpreter":
        return figures
    program = build(
        library, ROOT / "examples" / "interpreter" / "interpreter.cpp", "golden-interpreter"
    )
    heap, malloc = (interpreter(under, program, way) for way in WAYS)
    figures["interpreter: heap"], figures["interpreter: malloc"] = heap, malloc
    verdicts.check(
        heap <= malloc,
        (
            f"interpreter: {heap:.1f} instructions an allocation, {malloc:.1f} with malloc; "
            "at most as many"
        ),
    )
    return figures


def check_peaks(under: common.Library, library: Path, verdicts: fast_path.Verdicts) -> None:
    program = build(library, HERE / "heaps.c", "golden-heaps", "-fno-builtin")
    for objects, size in PEAKS:
        heap, malloc = (
            int(
                common.fields(
                    common.run([program, way, "peak", str(objects), "1", str(size)], under)
                )["kib"]
            )
            for way in WAYS
        )
        verdicts.check(
            0 < heap <= MOST_PEAK * malloc,
            (
                f"peak, {objects} objects of {size or '16-512'}: {heap} KiB, {malloc} with malloc: "
                f"{heap / malloc:.3f}, at most {MOST_PEAK}"
            ),
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("library", type=Path)
    parser.add_argument(
        "--update", action="store_true", help="write heaps.tsv from what is measured"
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help="only instructions whose title contains this, by their bars",
    )
    parser.add_argument("--options", default="", help="more LANEMALLOC_OPTIONS")
    arguments = parser.parse_args()
    library = arguments.library.resolve()
    verdicts = fast_path.Verdicts()
    # Linked, not preloaded, as programs with heaps are.
    under = common.Library("lanemalloc", None, f"{OPTIONS},{arguments.options}")
    if not arguments.only:
        check_peaks(under, library, verdicts)
    if not common.need("valgrind"):
        verdicts.skip("instructions of heaps", "no valgrind here")
        return verdicts.close()
    table = Table(
        GOLDEN,
        maker_of(library),
        "instructions",
        Tolerance(0.01, 0.3, 2),
        "tests/golden/run.sh --update",
    )
    figures = check_instructions(under, library, arguments.only, verdicts)
    if not arguments.only:
        table.settle(figures, verdicts, arguments.update)
    return verdicts.close()


if __name__ == "__main__":
    sys.exit(main())
