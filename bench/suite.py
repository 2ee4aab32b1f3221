#!/usr/bin/env python3
"""Runs bench/workloads.cpp under every allocator and shows time and peak memory as ratios to the best on each line.

Called by: bench/run.sh, or by hand. The allocators alternate within each round and the order shifts from round to
round, so a slow spell of the machine hits all alike; medians are compared. Ratios under 1.1 in time mean nothing here.
"""

import argparse
import json
import math
import sys
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import common
from common import Library, Spread

WORKLOADS = ("larson", "xmalloc", "threadtest", "scratch", "sh6", "realloc", "large")
FIGURES = ("wall_ns", "cpu_ns", "peak_kib")
Samples = dict[str, dict[str, dict[str, list[float]]]]


def measure(all_: list[Library], workloads: list[str], threads: list[int], rounds: int, scale: float) -> Samples:
    """line -> allocator -> figure -> samples"""
    program = common.compile_program(common.ROOT / "bench" / "workloads.cpp", "workloads")
    samples: Samples = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    sums: dict[str, set[str]] = defaultdict(set)
    broken: dict[str, str] = {}
    started = time.monotonic()
    for i in range(rounds):
        for workload in workloads:
            for count in threads:
                line = f"{workload} {count}"
                shift = i % len(all_)
                for library in all_[shift:] + all_[:shift]:
                    try:
                        seen = common.fields(common.run([program, workload, str(count), str(scale)], library))
                    except (RuntimeError, TimeoutError) as error:
                        broken[f"{line}, {library.name}"] = str(error)[:200]
                        continue
                    if not library.serves(seen["library"]):
                        raise RuntimeError(f"{library.name}: not in use, malloc comes from {seen['library']}")
                    sums[line].add(seen["checksum"])
                    for figure in FIGURES:
                        samples[line][library.name][figure].append(float(seen[figure]))
        print(f"  workloads: round {i + 1} of {rounds}, {time.monotonic() - started:.0f} s", file=sys.stderr)
    for what, why in broken.items():
        print(f"  FAILED: {what}: {why}", file=sys.stderr)
    for line, values in sums.items():
        if len(values) != 1:
            raise RuntimeError(f"{line}: the allocators did not do the same work: {values}")
    return samples


def ratios(samples: Samples, figure: str, names: list[str]) -> dict[str, dict[str, float]]:
    result: dict[str, dict[str, float]] = {}
    for line, by in samples.items():
        medians = {n: Spread.of(by[n][figure]).median for n in names if by[n][figure]}
        best = min(medians.values())
        result[line] = {n: m / best for n, m in medians.items()}
    return result


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(math.log(v) for v in values) / len(values)) if values else math.nan


def show(title: str, by_line: dict[str, dict[str, float]], names: list[str]) -> None:
    rows = [[line, *[f"{by[n]:.2f}" if n in by else "failed" for n in names]] for line, by in by_line.items()]
    means = [geometric_mean([by[n] for by in by_line.values() if n in by]) for n in names]
    rows.append(["geometric mean", *[f"{m:.2f}" for m in means]])
    print(f"\n{title}\n{common.table(['threads', *names], rows)}")


def noise(samples: Samples) -> float:
    """Median over all lines and allocators of (greatest - least) / median of the wall time."""
    spreads = [Spread.of(by[n]["wall_ns"]) for by in samples.values() for n in by]
    return Spread.of([(s.high - s.low) / s.median for s in spreads]).median


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lib", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--workload", action="append", choices=WORKLOADS)
    parser.add_argument("--threads", default="1,2,8")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    machine = common.machine()
    all_ = common.libraries(arguments.lib, peers=not arguments.no_peers)
    if not all_:
        raise SystemExit("nothing to measure: build/release/liblanemalloc.so is not there, and no --lib was given")
    names = [library.name for library in all_]
    threads = [int(t) for t in arguments.threads.split(",")]
    samples = measure(all_, list(arguments.workload or WORKLOADS), threads, arguments.rounds, arguments.scale)
    show("Wall time, ratio to the best on each line", ratios(samples, "wall_ns", names), names)
    show("CPU time of the process, ratio to the best on each line", ratios(samples, "cpu_ns", names), names)
    show("Peak resident memory, ratio to the best on each line", ratios(samples, "peak_kib", names), names)
    print(f"\nNoise: a wall time spreads over {noise(samples):.0%} of its median ({arguments.rounds} rounds; median of all lines).")
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        result = {"machine": machine, "rounds": arguments.rounds, "scale": arguments.scale, "noise": noise(samples)}
        arguments.json.write_text(json.dumps(result | {"samples": samples}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as error:
        print(f"suite.py: {error}", file=sys.stderr)
        sys.exit(1)
