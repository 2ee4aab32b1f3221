#!/usr/bin/env python3
"""What it costs a small program to start under an allocator, against the C library's own.

Called by: bench/run.sh, tests/golden/run.sh (--check-rss).

Memory: Rss of /proc/self/smaps_rollup (exact, unlike VmRSS) after a handful of allocations; median
of 5 runs.
Time: from just before the spawn to the end of the first malloc; alternating runs, medians,
difference in microseconds.
--check-rss judges memory alone: at most 1 MiB more than the C library. Time never passes or fails
anything.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common
from common import Library, Spread

LIMIT_KIB = 1024


def start(library: Library, program: Path) -> dict[str, float]:
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    seen = common.fields(common.run([program], library))
    if not library.serves(seen["library"]):
        raise RuntimeError(f"{library.name}: not in use, malloc comes from {seen['library']}")
    return {
        "us": (int(seen["first_ns"]) - before) / 1000,
        "rss": float(seen["rss_kib"]),
        "private": float(seen["private_kib"]),
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lib", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--runs", type=int, default=31)
    parser.add_argument(
        "--check-rss",
        action="store_true",
        help="judge the memory of the given library, nothing else",
    )
    arguments = parser.parse_args()
    libc = Library("libc", None)
    program = common.compile_program(common.ROOT / "bench" / "startup" / "tiny.c", "tiny")
    checked = common.libraries(arguments.lib, peers=not arguments.check_rss)
    if not checked:
        raise SystemExit(
            "nothing to measure: build/release/liblanemalloc.so is not there, "
            "and no --lib was given"
        )
    all_ = [libc, *[library for library in checked if library.path is not None]]
    samples: dict[str, list[dict[str, float]]] = {library.name: [] for library in all_}
    for _ in range(5 if arguments.check_rss else arguments.runs):
        for library in all_:
            samples[library.name].append(start(library, program))

    def median(name: str, what: str) -> float:
        return statistics.median(s[what] for s in samples[name])

    if arguments.check_rss:
        failed = 0
        for library in all_[1:]:
            more = median(library.name, "rss") - median("libc", "rss")
            failed += more > LIMIT_KIB
            verdict = "FAIL" if more > LIMIT_KIB else "pass"
            print(
                f"{verdict}: {library.name}: a small program is {more:.0f} KiB larger than with "
                f"libc (limit {LIMIT_KIB})"
            )
        print(f"{len(all_) - 1 - failed} passed, {failed} failed, 0 skipped")
        return 1 if failed else 0

    print(
        "\nA small program: spawn to first allocation, and its memory, less libc's "
        f"({arguments.runs} alternating runs, medians)"
    )
    rows = []
    for library in all_:
        time_ = Spread.of([s["us"] for s in samples[library.name]])
        rows.append(
            [
                library.name,
                f"{time_.median - median('libc', 'us'):+.0f} us",
                f"{time_.low:.0f}-{time_.high:.0f} us",
                f"{median(library.name, 'rss') - median('libc', 'rss'):+.0f} KiB",
                f"{median(library.name, 'private') - median('libc', 'private'):+.0f} KiB",
            ]
        )
    print(common.table(["", "time", "least-greatest", "Rss", "private"], rows))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as error:
        print(f"startup: {error}", file=sys.stderr)
        sys.exit(1)
