#!/usr/bin/env python3
"""Runs the source systems' experiments on this machine and shows the originals' figures beside \
ours.

Called by: bench/seeds.sh. Writes build/seeds/seeds.json and build/seeds/seeds.html. Nothing here
passes or fails.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import experiments
import page
from harness import Harness, as_json, common, text

OUTPUT = common.ROOT / "build" / "seeds"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("experiment", nargs="*", choices=[[], *experiments.ALL], help="only these")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="all of it small, in less than a minute: shows that it works, no more",
    )
    parser.add_argument(
        "--tolerate",
        action="store_true",
        help="also configurations that the library does not understand",
    )
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    if not common.LANEMALLOC.exists():
        raise SystemExit("seeds: build/release/liblanemalloc.so is not there (make build)")
    harness = Harness(arguments.quick, arguments.tolerate)
    result: dict[str, object] = {"machine": common.machine(), "quick": arguments.quick}
    done: list[dict[str, object]] = []
    failed = False
    started = time.monotonic()
    for name in arguments.experiment or experiments.ALL:
        began = time.monotonic()
        try:
            experiment = experiments.ALL[name](harness)
        except (RuntimeError, subprocess.SubprocessError) as error:
            failed = True
            print(f"seeds: {name} failed: {error}", file=sys.stderr)
            continue
        done.append(as_json(experiment))
        print(text(experiment), flush=True)
        print(f"  {name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    result |= {"seconds": round(time.monotonic() - started), "experiments": done}
    arguments.output.mkdir(parents=True, exist_ok=True)
    file = arguments.output / "seeds.json"
    file.write_text(json.dumps(result, indent=1) + "\n")
    page.write(file, arguments.output / "seeds.html")
    print(f"Figures: {file}\nPage:    {arguments.output / 'seeds.html'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
