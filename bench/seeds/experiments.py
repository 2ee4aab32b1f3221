"""The source systems' experiments in the shape of the originals: programs, parameters, and the
originals' figures.

Called by: bench/seeds/run.py. Each function runs one experiment and returns it. docs/seeds.md says
how to read them.
"""

import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness import (
    C_LIBRARY,
    Configuration,
    Experiment,
    Figure,
    Harness,
    alternate,
    common,
    mean,
    variation,
)

OWNED = Configuration.lanes("owned", "lanes=owned")
SHARED = Configuration.lanes("shared:4", "lanes=shared:4")
PERCPU = Configuration.lanes("percpu", "lanes=percpu")
ENTRIES = (OWNED, SHARED, PERCPU)
LIBC = Configuration(C_LIBRARY)
SIMULATOR_SECONDS = 480
CPUS = len(os.sched_getaffinity(0))

OLD = "old: scan all from 0"
DEFAULT = "precedence, 4 probed, current"
# From lane 0 to the first that is free; else the one that has been contended longest is waited for.
OLD_OPTIONS = "scan=first,probes=all,precedence=1,wait_on=current"
# Loops around a compare-exchange: the cells that never wait (src/core/engine/layout.h), and heaps'
# and pools' budgets.
FAILED_CAS = re.compile(
    r"counted contention at (idle lanes|overflow lanes|lane numbers|fresh blocks|"
    r"opened metadata|used end|runs put aside|kinds|budgets)"
)
CONTENTION = re.compile(r"fail|wait|search|rebind|overflow|rescue|migrat|abort|moved lanes")


def variants() -> dict[str, str]:
    """The nine of the t-test1 table, in its order: name -> options."""
    found = {OLD: OLD_OPTIONS}
    for precedence in (1, 0):
        for probes in ("4", "all"):
            for wait in ("current", "random"):
                name = f"{'' if precedence else 'no '}precedence, {probes} probed, {wait}"
                found[name] = f"scan=coprime,precedence={precedence},probes={probes},wait_on={wait}"
    return found


def short(figure: Figure, case: str, name: str) -> str:
    """The ratio with its spread."""
    ratio = figure.ratio(case, name) if name in figure.samples.get(case, {}) else None
    return f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})" if ratio else "not measured"


def middle(figure: Figure, case: str, name: str) -> float:
    return figure.spread(case, name).median if name in figure.samples.get(case, {}) else math.nan


def counters(figure: Figure, case: str, name: str, seen: dict[str, str]) -> None:
    """What the library counted about contention."""
    for key, value in seen.items():
        if key.startswith("counted ") and CONTENTION.search(key):
            figure.add(f"{case}, {key.removeprefix('counted ')}", name, float(value))


def without_zeros(figure: Figure) -> Figure:
    figure.samples = {
        case: by for case, by in figure.samples.items() if any(any(s) for s in by.values())
    }
    return figure


def least(figure: Figure, case: str) -> str:
    """The variant with the least, if it was so in every round against each of the others."""
    by = figure.samples[case]
    names = [name for name in variants() if name in by]
    best = min(names, key=lambda name: statistics.median(by[name]))
    others = [name for name in names if name != best]
    same = [
        name
        for name in others
        if not all(mine < theirs for mine, theirs in zip(by[best], by[name]))
    ]
    if not same and len(by[best]) > 1:
        return f"least {short(figure, case, best)} ({best})"
    return f"no difference between {len(same) + 1} of {len(names)} variants ({best} among them)"


def churn(h: Harness) -> Experiment:
    experiment = Experiment(
        "churn",
        "t-test1: nine ways to find a lane in a shared pool",
        "scudo, shared thread-specific data",
        (
            "72 cores, 32 caches: the time in allocation functions falls from 960 to 810 s at 40 "
            "threads, and from 3315 to 3125-3200 s at 80, with a random start, 4 probes, and "
            "precedence."
        ),
    )
    largest, bins, work = (100_000, 40, 16_000) if h.quick else (100_000, 40, 4_800_000)
    lanes = {8: 4, 40: 32, 80: 32}
    experiment.setup = [
        "lanes: " + ", ".join(f"shared:{n} for {t} threads" for t, n in lanes.items()),
        (
            f"twice as many threads in all as at once; {work} actions in all, sizes 1-{largest}, "
            f"{bins} bins a thread"
        ),
        (
            f"on {CPUS} CPUs most threads wait for one at any moment, and time on the wall has "
            "that in it"
        ),
        "so the time is the threads' CPU time and what the library says they waited for lanes",
    ]
    spent = Figure(
        "Time in allocation functions (CPU time and waits for lanes), summed over threads",
        "s",
        base=OLD,
        original_unit="s",
    )
    cpu = Figure("CPU time in allocation functions, summed over threads", "s", base=OLD)
    wall = Figure(
        "Time in allocation functions on the wall, summed over threads", "s", base=OLD, detail=True
    )
    contention = Figure("Contention counted by the library in a run", "events", detail=True)
    originals = (
        (40, (960, 810, 815, 880, 890, 900, 840, 1025, 890)),
        (80, (3315, 3200, 3125, 3940, 3755, 3365, 3300, 3600, 3785)),
    )
    for threads, figures in originals:
        spent.originals[f"{threads} threads"] = dict(zip(variants(), map(float, figures)))
    program = h.program("churn")

    def job(threads: int, configuration: Configuration) -> None:
        seen = h.run(
            configuration, program, 2 * threads, threads, work // (2 * threads), largest, bins
        )
        case = f"{threads} threads"
        wall.add(case, configuration.name, float(seen["in_allocator_s"]))
        cpu.add(case, configuration.name, float(seen["in_allocator_cpu_s"]))
        if configuration is not LIBC:
            waited = float(seen.get("counted microseconds waited for lanes", 0)) / 1e6
            spent.add(case, configuration.name, float(seen["in_allocator_cpu_s"]) + waited)
        counters(contention, case, configuration.name, seen)

    jobs: list[Callable[[], None]] = []
    for threads, pool in lanes.items():
        pools = [
            Configuration.lanes(name, f"lanes=shared:{pool},{options}")
            for name, options in variants().items()
        ]
        # The entries that do not share are for comparison.
        jobs += [
            partial(job, threads, c) for c in h.usable([*pools, OWNED, PERCPU, LIBC], experiment)
        ]
    alternate(1 if h.quick else 7, "churn", jobs)
    experiment.figures = [spent, cpu, wall, without_zeros(contention)]
    said = []
    for case, by in spent.samples.items():
        if not {OLD, DEFAULT} <= by.keys():
            continue
        said.append(f"{case}: {short(spent, case, DEFAULT)} with the default, {least(spent, case)}")
    experiment.found = (
        f"Time in allocation functions as a part of the old way's. {'; '.join(said)}."
        if said
        else ""
    )
    return experiment


def server(h: Harness) -> Experiment:
    experiment = Experiment(
        "server",
        "RPC server: memory of one cache a thread, speed of a shared pool",
        "scudo, rpc2-benchmark",
        (
            "72 cores: exclusive 321 k requests/s at 637 MB; shared 241 k at 324 MB before, 330 k "
            "at 327 MB after; tcmalloc 337 k at 338 MB."
        ),
    )
    threads, requests = (64, 5_000) if h.quick else (64, 60_000)
    experiment.setup = [
        (
            f"{threads} threads: {threads // 4} clients, a poller, {threads - threads // 4 - 1} "
            f"workers; {requests} requests"
        ),
        (
            "256 connections over socket pairs; whichever worker is free takes the next connection "
            "that is ready"
        ),
        (
            "exclusive is lanes=owned; shared is lanes=shared:4, before with the old way to find a "
            "lane, after with the default"
        ),
        (
            "looked for: percpu and shared (after) at >= 0.97 of exclusive's requests/s with <= "
            "0.6 of its peak memory"
        ),
    ]
    exclusive, before, after = "exclusive", "shared, before", "shared, after"
    configurations = [
        Configuration.lanes(exclusive, "lanes=owned"),
        Configuration.lanes(before, f"lanes=shared:4,{OLD_OPTIONS}"),
        Configuration.lanes(after, "lanes=shared:4"),
        PERCPU,
        LIBC,
    ]
    case = f"{threads} threads"
    rate = Figure(
        "Requests a second", "1/s", less_is_better=False, base=exclusive, original_unit="k/s"
    )
    peak = Figure("Peak resident memory", "MiB", base=exclusive, original_unit="MB")
    contention = Figure("Contention counted by the library in a run", "events", detail=True)
    rate.originals[case] = {exclusive: 321, before: 241, after: 330, "tcmalloc": 337}
    peak.originals[case] = {exclusive: 637, before: 324, after: 327, "tcmalloc": 338}
    program = h.program("server")
    sums: set[str] = set()

    def job(configuration: Configuration) -> None:
        seen = h.run(configuration, program, threads, requests)
        rate.add(case, configuration.name, float(seen["requests_per_s"]))
        peak.add(case, configuration.name, float(seen["peak_kib"]) / 1024)
        counters(contention, case, configuration.name, seen)
        sums.add(seen["checksum"])

    usable = h.usable(configurations, experiment)
    alternate(1 if h.quick else 9, "server", [partial(job, c) for c in usable])
    if len(sums) != 1:
        raise RuntimeError(f"server: the allocators did not do the same work: {sums}")
    experiment.figures = [rate, peak, without_zeros(contention)]
    said = [
        (
            f"{name}: {short(rate, case, name)} of exclusive's requests/s with "
            f"{short(peak, case, name)} of its peak memory"
        )
        for name in (before, after, PERCPU.name)
        if name in rate.samples[case]
    ]
    experiment.found = "; ".join(said)
    return experiment


def interpreter(h: Harness) -> Experiment:
    experiment = Experiment(
        "interpreter",
        "Interpreter: one global free list a bin against lanes",
        "MoarVM, the fixed-size allocator",
        (
            "40 % of a program's run time was in the allocator; lists for each thread made it "
            "close to 40 % faster."
        ),
    )
    steps = 4_000_000 if h.quick else 40_000_000
    experiment.setup = [
        (
            "boxes, list cells and call frames of 16-264 bytes; threads share nothing but the "
            f"allocator; {steps} steps in all"
        ),
        (
            "global lists: popped by a CAS under a spin lock for each bin, pushed by a CAS; lists "
            "of threads: MoarVM's own change, 1024 items a list"
        ),
        (
            "the share is sampled by a profiling timer, as the original's was; the lists are "
            "compiled into the loop, as heaps' hits are; malloc and free are called"
        ),
    ]
    share = Figure("Share of CPU time in the allocator", "%", original_unit="%")
    run = Figure("Run time", "s", base="global lists", original_unit="")
    forms = [("global lists", "global", OWNED), ("lists of threads", "lists", OWNED)]
    lanes = [(f"lanes, {c.name}", "malloc", c) for c in h.usable(ENTRIES, experiment)]
    cases = {threads: f"{threads} threads" for threads in (CPUS, 4 * CPUS)}
    share.originals[cases[CPUS]] = {"global lists": 40}
    # "Close to 40 % faster" is taken as 1 / 1.4 of the run time.
    run.originals[cases[CPUS]] = {"global lists": 1, "lists of threads": 0.71}
    program = h.program("interpreter")
    sums: dict[int, set[str]] = {threads: set() for threads in cases}

    with_heaps = h.program("interpreter", True)

    def job(threads: int, name: str, mode: str, configuration: Configuration) -> None:
        made = with_heaps if mode == "heap" else program
        seen = h.run(configuration, made, mode, threads, steps // threads)
        share.add(cases[threads], name, 100 * float(seen["share"]))
        run.add(cases[threads], name, float(seen["run_s"]))
        sums[threads].add(seen["checksum"])

    heaps = [(f"heap, sized frees, {c.name}", "heap", c) for c in h.usable(ENTRIES, experiment)]
    all_ = [*forms, *lanes, *heaps, (C_LIBRARY, "malloc", LIBC)]
    jobs = [partial(job, t, *f) for t in cases for f in all_]
    alternate(1 if h.quick else 5, "interpreter", jobs)
    if any(len(s) != 1 for s in sums.values()):
        raise RuntimeError(f"interpreter: the allocators did not do the same work: {sums}")
    experiment.figures = [share, run]
    case = cases[CPUS]
    experiment.found = (
        f"At {case} {middle(share, case, 'global lists'):.0f} % of the CPU time is in the "
        f"allocator with global lists, {middle(share, case, 'lists of threads'):.0f} % with lists "
        f"of threads, {middle(share, case, 'lanes, owned'):.0f} % with lanes (owned); the program "
        f"takes {short(run, case, 'lists of threads')} and {short(run, case, 'lanes, owned')} of "
        f"the time; with a heap and sized frees {short(run, case, 'heap, sized frees, owned')}."
    )
    return experiment


def neighbours(h: Harness) -> Experiment:
    experiment = Experiment(
        "neighbours",
        "lock1: words of different threads 0, 64 and 128 bytes apart",
        "FreeBSD UMA, padding to 128 bytes",
        (
            "128 threads on 4 sockets: at 64 bytes 105 M operations with 14.5 % variation, at 128 "
            "bytes 134.6 M with 0.25 %: 28 % more, and steady."
        ),
    )
    rounds, milliseconds = (2, 100) if h.quick else (12, 250)
    near, line, padded = "0 bytes apart", "64 bytes apart", "128 bytes apart"
    experiment.setup = [
        (
            f"{CPUS} threads, each pinned to a CPU, each locking and unlocking a word of its own "
            f"for {milliseconds} ms a sample"
        ),
        (
            "the original locked byte 0 of a file of its own, through the kernel; what was shared "
            "were the kernel's words"
        ),
        "0 bytes: side by side in one line; malloc: each thread allocates its word",
        "zone: one thread takes all words from a pool (`padding` of its options)",
    ]
    case = f"{CPUS} threads"
    rate = Figure(
        "Locks taken a second, all threads",
        "M/s",
        less_is_better=False,
        base=line,
        original_unit="M",
    )
    rate.originals[case] = {line: 104.8, padded: 134.6}
    program = h.program("neighbours")

    def job(program: Path, name: str, distance: str, configuration: Configuration) -> None:
        seen = h.run(configuration, program, distance, CPUS, milliseconds)
        rate.add(case, name, float(seen["per_s"]) / 1e6)

    places = [(near, "0", OWNED), (line, "64", OWNED), (padded, "128", OWNED)]
    places += [(f"malloc, {c.name}", "malloc", c) for c in (*h.usable(ENTRIES, experiment), LIBC)]
    zones = [("zone, packed", "packed"), ("zone, LANE_OWN_LINE", "line")]
    zones.append(("zone, LANE_OWN_PAIR", "pair"))
    jobs = [partial(job, program, *p) for p in places]
    jobs += [partial(job, h.program("neighbours", True), *zone, OWNED) for zone in zones]
    alternate(rounds, "neighbours", jobs)
    by = rate.samples[case]
    spread = Figure("Coefficient of variation of these", "%", original_unit="%")
    spread.originals[case] = {line: 14.5, padded: 0.25}
    for name, samples in by.items():
        spread.add(case, name, variation(samples))
    experiment.figures = [rate, spread]
    shared = mean(by[line]) / mean(by[near])
    further = mean(by[padded]) / mean(by[line])
    if CPUS < 2 or statistics.median(by[line]) < 1.15 * statistics.median(by[near]):
        experiment.found = (
            f"Words in one line are not slower here (64 bytes apart: x{shared:.2f}), so this run "
            "cannot tell anything about distances."
        )
    else:
        noise = max(variation(by[padded]), variation(by[line])) / 100
        verdict = (
            "nothing: two lines are not fetched together on this CPU, or one socket hides it"
            if further < 1 + max(0.05, noise)
            else "it matters"
        )
        experiment.found = (
            f"The effect is there: 64 bytes apart x{shared:.2f} of what one line gives. From 64 to "
            f"128 bytes x{further:.2f}: {verdict}."
        )
    return experiment


def arena(h: Harness) -> Experiment:
    experiment = Experiment(
        "arena",
        "Arena blocks: one versioned global list against lanes",
        "Apache Traffic Server, ArenaBlock",
        (
            "20 threads x 1000 blocks: 18.6 ms with one global list, 5.10 ms thread-local (3.65 "
            "x); 226,979 failed CAS for 40,000 operations in the worst sample, 0 thread-local."
        ),
    )
    threads, items, times = 20, 1000, 20
    rounds, samples = (2, 5) if h.quick else (5, 20)
    experiment.setup = [
        (
            f"{threads} threads x {items} blocks of 1 KiB, all taken, then all given back; "
            f"{rounds * samples} samples"
        ),
        (
            f"a sample does this {times} times and is divided by {times}: with {CPUS} CPUs a "
            "thread would otherwise be done before the next one wakes"
        ),
    ]
    case = f"{threads} x {items}"
    global_list = "global list"
    spent = Figure("Time of a sample", "ms", base=global_list, original_unit="ms")
    failed = Figure("Failed CAS for 40,000 operations", "CAS", original_unit="CAS (worst)")
    spent.originals[case] = {global_list: 18.6, "lists of threads": 5.10}
    failed.originals[case] = {global_list: 226_979, "lists of threads": 0}
    program = h.program("arena")

    def job(name: str, mode: str, configuration: Configuration) -> None:
        seen = h.run(configuration, program, mode, threads, items, times, samples)
        for pair in seen["samples"].split(","):
            nanoseconds, missed = pair.split(":")
            spent.add(case, name, float(nanoseconds) / times / 1e6)
            if mode in ("global", "lists"):
                failed.add(case, name, float(missed) / times)
        if mode not in ("global", "lists") and configuration is not LIBC:
            failures = sum(float(value) for key, value in seen.items() if FAILED_CAS.match(key))
            failed.add(case, name, failures / (samples + 1) / times)

    forms = [(global_list, "global", OWNED), ("lists of threads", "lists", OWNED)]
    entries = h.usable(ENTRIES, experiment)
    forms += [(f"lanes, {c.name}", "malloc", c) for c in entries]
    forms += [(f"arenas on lanes, {c.name}", "arena", c) for c in entries]
    forms.append((C_LIBRARY, "malloc", LIBC))
    alternate(rounds, "arena", [partial(job, *f) for f in forms])
    experiment.figures = [spent, failed]
    experiment.found = (
        f"Lists of threads take {short(spent, case, 'lists of threads')} of the global list's "
        f"time, lanes (owned) {short(spent, case, 'lanes, owned')}, "
        f"arenas on them {short(spent, case, 'arenas on lanes, owned')}; failed CAS for 40,000 "
        f"operations: {max(failed.samples[case][global_list]):,.0f} in the worst sample of the "
        f"global list, {max(failed.samples[case].get('lanes, owned', [math.nan])):.2g} with lanes, "
        f"{max(failed.samples[case].get('arenas on lanes, owned', [math.nan])):.2g} with arenas."
    )
    experiment.notes.append(
        "Failed CAS of lanes: what the library counts in the whole run, a sample's part of it."
    )
    experiment.notes.append(
        "Arenas: blocks of 8 KiB, of which a sample takes 143 a thread; a reset gives them back."
    )
    return experiment


def counted(h: Harness, configuration: Configuration, program: Path, phase: str, pairs: int) -> int:
    environment = configuration.library.environment()
    if configuration.library.path is not None:
        environment["LANEMALLOC_OPTIONS"] = configuration.options
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "callgrind.out"
        command = [
            "valgrind",
            "--tool=callgrind",
            f"--callgrind-out-file={file}",
            str(program),
            phase,
            str(pairs),
        ]
        subprocess.run(
            command,
            env=environment,
            capture_output=True,
            timeout=common.WATCHDOG_SECONDS,
            check=True,
        )
        total = re.search(r"^(?:summary|totals): (\d+)", file.read_text(), re.MULTILINE)
    if total is None:
        raise RuntimeError("callgrind wrote no totals")
    return int(total.group(1))


def phases(h: Harness) -> Experiment:
    experiment = Experiment(
        "phases",
        "32-byte loop: before, inside and after a second thread",
        "glibc, no atomics while there is one thread",
        (
            "POWER7, 3 GHz: 130 ns a call with locks and atomics, 90 ns with tuned locks, 40 ns "
            "sequential."
        ),
    )
    pairs = 1_000_000 if h.quick else 8_000_000
    few, many = (5_000, 15_000) if h.quick else (10_000, 50_000)
    never, inside, after = "never threaded", "inside a thread", "main, after a thread"
    elision = "with / without elision"
    cases = {"never": never, "inside": inside, "after": after}
    experiment.setup = [
        (
            f"malloc(32) and free, {pairs} times, thread CPU time less the empty loop's; each in a "
            "process of its own"
        ),
        (
            "never threaded is with elision; after a thread the same code runs without it, for the "
            "latch goes one way"
        ),
        (
            f"instructions: callgrind, (whole program at {many} pairs - at {few}) / difference, "
            "less the empty loop's"
        ),
    ]
    spent = Figure("Time of a pair", "ns", base=C_LIBRARY)
    saved = Figure("Time never threaded as a part of the time after a thread", "ratio")
    instructions = Figure("Instructions of a pair", "instructions")
    program = h.program("phases")
    usable = [*h.usable(ENTRIES, experiment), LIBC]

    def job(phase: str, configuration: Configuration) -> None:
        seen = h.run(configuration, program, phase, pairs)
        empty = h.run(LIBC, program, "empty", pairs)
        spent.add(
            cases[phase], configuration.name, (float(seen["ns"]) - float(empty["ns"])) / pairs
        )

    jobs = [partial(job, p, c) for p in cases for c in usable]
    alternate(1 if h.quick else 11, "phases", jobs)
    for c in usable:
        for with_, without in zip(spent.samples[never][c.name], spent.samples[after][c.name]):
            saved.add(elision, c.name, with_ / without)
    saved.originals[elision] = {C_LIBRARY: round(40 / 130, 2)}
    experiment.figures = [spent, saved]
    said = [f"{c.name} {middle(saved, elision, c.name):.2f}" for c in usable]
    experiment.found = (
        f"Time never threaded as a part of the time after a thread: {', '.join(said)}. Owned takes "
        f"{short(spent, never, OWNED.name)} of the C library's time never threaded, "
        f"{short(spent, inside, OWNED.name)} in a thread."
    )
    if not common.need("valgrind"):
        experiment.left_out["instructions"] = "valgrind is not there"
        return experiment
    loop = (counted(h, LIBC, program, "empty", many) - counted(h, LIBC, program, "empty", few)) / (
        many - few
    )
    for phase in ("never",) if h.quick else tuple(cases):
        for c in usable:
            if c is PERCPU:
                continue
            slope = (counted(h, c, program, phase, many) - counted(h, c, program, phase, few)) / (
                many - few
            )
            instructions.add(cases[phase], c.name, slope - loop)
    experiment.figures.append(instructions)
    if PERCPU in usable:
        experiment.left_out["instructions of percpu"] = (
            "valgrind offers programs no restartable sequences (rseq), and single steps would "
            "abort each one for ever"
        )
    return experiment


def coherence(h: Harness) -> Experiment:
    experiment = Experiment(
        "coherence",
        "Simulated cores: transfers of cache lines on 2-128 cores",
        "all five: what this machine is too small to show",
        "A contended line costs some 70 cycles inside a socket and hundreds across sockets; "
        "with 128 threads on 4 sockets 64 bytes of padding were too little.",
    )
    script = common.ROOT / "tests" / "simulator" / "run.py"
    if h.quick or not script.exists():
        experiment.left_out["all of it"] = (
            "it takes minutes" if h.quick else "tests/simulator/run.py is not there"
        )
        return experiment
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "simulator.json"
        # timeout ends the simulator's own processes too.
        command = [
            "timeout",
            str(SIMULATOR_SECONDS),
            sys.executable,
            str(script),
            "--json",
            str(file),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            late = f"the simulator was not done in {SIMULATOR_SECONDS} s"
            failed = f"the simulator failed: {(done.stdout + done.stderr).strip()[-300:]}"
            experiment.left_out["all of it"] = late if done.returncode == 124 else failed
            return experiment
        found = json.loads(file.read_text())
    experiment.setup = [
        (
            "the sources of the core run on simulated cores; counted is how often a line goes from "
            "one core to another"
        ),
        (
            "of lines of metadata and of objects, for as far as the allocator makes them; the "
            "program's own are not counted"
        ),
        (
            "pairs: the same for pairs of lines (128 bytes), which is what a CPU that fetches "
            "lines in pairs pays"
        ),
    ]
    figures: dict[tuple[str, str], Figure] = {}
    for record in found["figures"]:
        for lines in ("lines", "pairs"):
            title = f"Transfers an operation, {record['workload']}" + (
                ", pairs of lines" if lines == "pairs" else ""
            )
            figure = figures.setdefault(
                (record["workload"], lines), Figure(title, found["unit"], detail=lines == "pairs")
            )
            value = float(record[lines]["metadata"]) + float(record[lines]["links"])
            figure.add(f"{record['cores']} cores", record["allocator"], value)
    experiment.figures = list(figures.values())
    first = experiment.figures[0]
    cores, last = list(first.samples.items())[-1]
    said = ", ".join(f"{name} {samples[0]:.3g}" for name, samples in last.items())
    experiment.found = f"{first.name} on {cores}: {said}."
    return experiment


ALL: dict[str, Callable[[Harness], Experiment]] = {
    "churn": churn,
    "server": server,
    "interpreter": interpreter,
    "neighbours": neighbours,
    "arena": arena,
    "phases": phases,
    "coherence": coherence,
}
