#!/usr/bin/env python3
"""What hits that are compiled into programs know of a lane: as in hit_layout.txt, under the same
number.

A program of one layout works with a library of the same layout only. So whoever changes a distance
in include/lanemalloc/hit.h raises LANE_HIT_LAYOUT, and the name of the symbol with it, and writes
the table anew (--update, which refuses the old number).
Called by: tests/golden/run.sh. Usage: hit_layout.py [--include FOLDER] [--table FILE] [--update]
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MACROS = (
    "LANE_GATE_AREA", "LANE_BUSY_BYTE", "LANE_HIT_BYTES", "LANE_LABELS_OF_POOLS",
    "LANE_LABELS_OF_HEAPS", "LANE_BINS", "LANE_HEAP_SMALL", "LANE_HIT_TAG",
)  # fmt: skip
PROGRAM = """
#include <stdio.h>
#include <lanemalloc/heap.h>
#include <lanemalloc/pool.h>
#define TELL(value) printf("%s %llu\\n", #value, (unsigned long long)(value))
int main(void) {
  TELL(LANE_HIT_LAYOUT);
  MACROS
  TELL(sizeof(struct lane_bin));
  TELL(offsetof(struct lane_bin, end));
  TELL(offsetof(struct lane_bin, end_link));
  TELL(offsetof(struct lane_bin, first));
  TELL((size_t)lane_hit_bins(NULL, (const void*)0x1230));
  TELL((size_t)lane_hit_bins(NULL, (const void*)0xFFF8));
  return 0;
}
"""


def layout_of(include: Path) -> str:
    with tempfile.TemporaryDirectory() as name:
        source, program = Path(name) / "layout.c", Path(name) / "layout"
        source.write_text(
            PROGRAM.replace("MACROS", "\n  ".join(f"TELL({macro});" for macro in MACROS))
        )
        # The slot is of the library; nothing here uses it.
        flags = ["-O1", f"-I{include}", "-Wl,--unresolved-symbols=ignore-all"]
        subprocess.run(["cc", *flags, "-o", program, source], check=True)
        return subprocess.run([program], capture_output=True, text=True, check=True).stdout


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--include", type=Path, default=ROOT / "include")
    parser.add_argument(
        "--table", type=Path, default=Path(__file__).resolve().parent / "hit_layout.txt"
    )
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    now, before = layout_of(arguments.include), arguments.table.read_text()
    number = now.splitlines()[0]
    is_numbered = (
        f'lane_thread_slot_of_layout_{number.split()[1]}"'
        in (arguments.include / "lanemalloc" / "hit.h").read_text()
    )
    same_number = before.splitlines()[:1] == [number]
    if arguments.update and not same_number and is_numbered:
        arguments.table.write_text(now)
        before = now
    if not is_numbered:
        print(f"FAIL: hit layout: {number}, but the symbol of the slot has another number")
    elif now == before:
        print("ok: hit layout: as in hit_layout.txt")
        print("1 passed, 0 failed, 0 skipped")
        return 0
    elif same_number:
        changed = [line for line in now.splitlines() if line not in before.splitlines()]
        print(
            f"FAIL: hit layout: {', '.join(changed)} under the same number: raise LANE_HIT_LAYOUT"
        )
    else:
        print("FAIL: hit layout: another number than in hit_layout.txt: write it with --update")
    print("0 passed, 1 failed, 0 skipped")
    return 1


if __name__ == "__main__":
    sys.exit(main())
