#!/usr/bin/env python3
"""Prepares or runs one of the real programs of bench/programs and prints its sample
as one line of JSON.

Called by: measure.py, main.py:
one_program.py NAME SCALE '{"name": ..., "path": ..., "options": ...}', or
one_program.py NAME prepare.
A process of its own: if the program hangs, SIGTERM unwinds it, so that it stops the servers that it
has started.
"""

import dataclasses
import json
import signal
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common
import programs


def stop(number: int, frame: object) -> None:
    raise SystemExit(f"ended by signal {number}")


def main() -> int:
    signal.signal(signal.SIGTERM, stop)
    name, what = sys.argv[1], sys.argv[2]
    program = next(p for p in programs.PROGRAMS if p.name == name)
    work = common.BUILD / "programs" / name
    work.mkdir(parents=True, exist_ok=True)
    if what == "prepare":
        program.prepare(work)
        return 0
    words = json.loads(sys.argv[3])
    library = common.Library(
        words["name"], Path(words["path"]) if words["path"] else None, words["options"]
    )
    print(json.dumps(dataclasses.asdict(program.run(library, work, float(what)))))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        sys.exit(1)
