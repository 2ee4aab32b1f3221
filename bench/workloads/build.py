#!/usr/bin/env python3
"""Builds the program of the synthetic workloads, build/bench/workloads, from the sources beside
this file.

Called by: bench/suite, tests/bench/workloads.sh (as a program; it prints the path). What is newer
than its sources stays.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common

HERE = Path(__file__).resolve().parent
FLAGS = ("-std=c++20", "-O2", "-g", "-fno-builtin", "-Wall", "-Wextra", "-pthread")


def newer(output: Path, inputs: list[Path]) -> bool:
    return output.exists() and all(output.stat().st_mtime > i.stat().st_mtime for i in inputs)


def build(output: Path, objects: Path, flags: tuple[str, ...]) -> Path:
    """Compiles what is older than its source or a header, as many files at once as there are CPUs,
    and links."""
    compiler = os.environ.get("CXX") or "c++"
    sources = sorted(HERE.glob("*.cpp"))
    headers = [*HERE.glob("*.h"), common.ROOT / "bench" / "measure.h", Path(__file__)]
    if newer(output, [*sources, *headers]):
        return output
    objects.mkdir(parents=True, exist_ok=True)
    partial = {s: objects / f"{s.stem}.{os.getpid()}.o" for s in sources}
    final = {s: objects / f"{s.stem}.o" for s in sources}

    def compile_one(source: Path) -> None:
        if not newer(final[source], [source, *headers]):
            subprocess.run(
                [compiler, *flags, "-c", "-o", str(partial[source]), str(source)], check=True
            )
            partial[source].rename(final[source])

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(compile_one, sources))
    linked = output.with_suffix(f".{os.getpid()}")
    subprocess.run(
        [compiler, *flags, "-o", str(linked), *(str(final[s]) for s in sources)], check=True
    )
    linked.rename(output)
    return output


def build_workloads() -> Path:
    return build(common.BUILD / "workloads", common.BUILD / "workloads.objects", FLAGS)


if __name__ == "__main__":
    print(build_workloads())
