#!/usr/bin/env python3
"""How long it takes to read the figures (mallinfo2) beside threads that allocate all the time, and
what that costs them.

Called by: hand. docs/design/0001-owned-entry-one-byte.md has its figures. Allocators alternate;
medians.
Usage: run.py [--lib NAME=PATH].. [--runs N] [--threads N..]
"""

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common

SECONDS = 2


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lib", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 3, 8])
    arguments = parser.parse_args()
    program = common.compile_program(common.ROOT / "bench" / "reading" / "reads.c", "reads")
    libraries = common.libraries(arguments.lib, peers=False)
    rows = []
    for threads in arguments.threads:
        samples: dict[str, list[dict[str, str]]] = {library.name: [] for library in libraries}
        for _ in range(arguments.runs):
            for library in libraries:
                samples[library.name].append(
                    common.fields(common.run([program, str(threads), str(SECONDS)], library))
                )
        for name, seen in samples.items():

            def median(what: str, seen: list[dict[str, str]] = seen) -> float:
                return statistics.median(float(s[what]) for s in seen)

            rows.append(
                [
                    str(threads),
                    name,
                    f"{median('mean_ns') / 1000:.0f} us",
                    f"{median('longest_ns') / 1000:.0f} us",
                ]
                + [f"{median('operations') / SECONDS / 1e6:.1f} M/s"]
            )
    print(common.table(["threads", "", "a reading", "longest", "operations"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
