#!/usr/bin/env python3
"""Tests of bench/suite: when a line is steady, ratios, means, missing lines, bars, the runner, the
budget, the page. Called by: tests/bench/run.sh."""

import contextlib
import dataclasses
import io
import math
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "bench" / "suite"), str(ROOT / "bench")]
import caches
import figures
import lines as which
import machine
import main
import measure
import model
import observe
import page
import report
import shares
import tables
from common import Library
from model import Allocator, Failure, Measurements, Result, Run
from programs.program import children_of
from workloads.build import build_workloads

LIBC = Library("libc", None)


def rates(
    by_line: Mapping[str, Mapping[str, Sequence[float]]],
    peaks: Mapping[str, Mapping[str, float]] | None = None,
) -> Measurements:
    """line -> allocator -> rates of the rounds in M/s; peak RSS in KiB is 1000 if not given."""
    names = list(dict.fromkeys(n for by in by_line.values() for n in by))
    m = Measurements(
        list(by_line), names, max(len(s) for by in by_line.values() for s in by.values())
    )
    for line, by in by_line.items():
        for name, samples in by.items():
            peak = (peaks or {}).get(line, {}).get(name, 1000.0)
            for number, value in enumerate(samples):
                m.add(
                    Run(line, name, number, {"rate": value * 1e6, "peak_kib": peak, "steady": 1.0})
                )
    return m


def measured(
    times: Mapping[str, Mapping[str, Sequence[float]]],
    peaks: Mapping[str, Mapping[str, float]] | None = None,
) -> Measurements:
    """line -> allocator -> times in ms of the rounds; peak RSS in KiB is 1000 if not given."""
    names = list(dict.fromkeys(n for by in times.values() for n in by))
    m = Measurements(list(times), names, max(len(s) for by in times.values() for s in by.values()))
    for line, by in times.items():
        for name, samples in by.items():
            peak = (peaks or {}).get(line, {}).get(name, 1000.0)
            for number, value in enumerate(samples):
                m.add(
                    Run(
                        line,
                        name,
                        number,
                        {"wall_ns": value * 1e6, "cpu_ns": value * 1e6, "peak_kib": peak},
                    )
                )
    return m


def series(per_window: Sequence[float], window: float = 0.125) -> list[observe.Look]:
    """What an observer saw of work with these rates in its windows, which are of a length that adds
    up without an error."""
    looks = [observe.Look(5.0, 0)]
    for n, rate in enumerate(per_window, 1):
        looks.append(observe.Look(5.0 + n * window, looks[-1].operations + round(rate * window)))
    return looks


def first_begin(
    per_window: Sequence[float], rule: observe.Rule | None = None
) -> tuple[int, bool, int] | None:
    """After how many windows measuring begins, whether it is steady then, and by windows of how
    many looks."""
    rule, looks = rule or observe.Rule(), series(per_window)
    for n in range(2, len(looks) + 1):
        if verdict := observe.begins(looks[:n], rule):
            return n - 1, verdict[0], verdict[1]
    return None


class Steady(unittest.TestCase):
    def test_an_even_rate_is_steady_after_the_least_time(self) -> None:
        self.assertEqual(first_begin([1e6] * 50), (3, True, 1))
        self.assertEqual(first_begin([1e6] * 50, observe.Rule(least=1.0)), (8, True, 1))

    def test_a_rate_that_rises_is_steady_when_it_stops_rising(self) -> None:
        self.assertEqual(first_begin([1e5, 3e5, 5e5, 7e5, 9e5, 1e6, 1e6, 1e6, 1e6]), (8, True, 1))

    def test_windows_that_differ_by_more_than_a_tenth_do_not_agree(self) -> None:
        looks = series([1e6, 1.0e6, 1.05e6])
        self.assertEqual(observe.steady_span(looks, observe.Rule()), 1)
        looks = series([1e6, 1.0e6, 1.12e6])
        self.assertIsNone(observe.steady_span(looks, observe.Rule()))

    def test_waves_are_steady_in_windows_that_hold_whole_ones(self) -> None:
        self.assertEqual(first_begin([1e6, 3e6] * 20), (6, True, 2))
        self.assertEqual(first_begin([1e6, 2e6, 1e6, 4e6] * 10), (12, True, 4))

    def test_what_never_agrees_is_measured_at_the_latest_and_said_to_be_unsteady(self) -> None:
        growing = [1e5 * 1.3**n for n in range(60)]
        self.assertEqual(first_begin(growing), (32, False, 4))
        self.assertEqual(first_begin(growing, observe.Rule(latest=2.0)), (16, False, 4))

    def test_what_stands_still_is_not_steady(self) -> None:
        self.assertEqual(first_begin([0] * 60), (32, False, 4))
        self.assertEqual(first_begin([0] * 10 + [1e6] * 10), (13, True, 1))

    def test_waves_of_seconds_are_sought_where_a_line_is_long(self) -> None:
        waves = ([1e6] * 16 + [4e6] * 16) * 20
        self.assertEqual(first_begin(waves, observe.Rule().slow()), (56, True, 16))
        self.assertEqual(
            first_begin([1e5 * 1.1**n for n in range(300)], observe.Rule().slow()), (160, False, 32)
        )

    def test_memory_that_still_grows_is_not_steady_but_waves_of_it_are(self) -> None:
        def steady_with(kib: Sequence[float]) -> int | None:
            looks = [
                dataclasses.replace(l, kib=k)
                for l, k in zip(series([1e6] * (len(kib) - 1)), kib, strict=True)
            ]
            return next(
                (
                    n - 1
                    for n in range(2, len(looks) + 1)
                    if (seen := observe.begins(looks[:n], observe.Rule())) and seen[0]
                ),
                None,
            )

        self.assertEqual(steady_with([100] * 10), 3)
        self.assertEqual(steady_with([100, 104, 104, 105, 105]), 3)
        self.assertEqual(steady_with([100, 200, 300, 400, 400, 400, 400, 400]), 6)
        self.assertEqual(steady_with([100, 200, 50, 200, 60, 200, 100, 200]), 4)
        self.assertIsNone(steady_with([100 * 1.1**n for n in range(33)]))

    def test_windows_are_as_long_as_they_were_not_as_they_should_have_been(self) -> None:
        looks = [
            observe.Look(0.0, 0),
            observe.Look(0.1, 100),
            observe.Look(0.25, 250),
            observe.Look(0.3, 300),
        ]
        for rate in observe.rates(looks, 1, 3):
            self.assertAlmostEqual(rate, 1000.0)

    def test_only_the_steady_state_counts(self) -> None:
        looks = [
            observe.Look(1.0, 500, 1.0, 10, 100.0),
            observe.Look(1.5, 1000, 1.5, 10, 200.0),
            observe.Look(2.0, 2500, 3.0, 30, 300.0),
        ]
        found = observe.figures_of(0.0, looks, True)
        self.assertEqual(
            (found["rate"], found["measured_seconds"], found["mean_kib"], found["growth"]),
            (2000.0, 1.0, 200.0, 3.0),
        )
        self.assertEqual(
            (found["cpus"], found["cpu_ns"], found["faults"], found["drift"]), (2.0, 1e6, 20.0, 3.0)
        )
        self.assertEqual((found["start_seconds"], found["start_part"]), (1.0, 0.5))

    def test_an_observer_that_came_late_and_saw_the_end_alone_gives_the_rate(self) -> None:
        found = observe.figures_of(
            0.0,
            [observe.Look(1.0, 500, 1.0, 10, 100.0), observe.Look(2.0, 2500, 3.0, 30, 300.0)],
            True,
        )
        self.assertEqual((found["rate"], found["drift"]), (2000.0, 1.0))


class Arithmetic(unittest.TestCase):
    def test_geometric_mean_of_a_value_and_its_inverse_is_one(self) -> None:
        self.assertAlmostEqual(figures.geometric_mean([4.0, 0.25]), 1.0)
        self.assertAlmostEqual(figures.geometric_mean([2.0, 8.0]), 4.0)

    def test_geometric_mean_of_nothing_is_no_number(self) -> None:
        self.assertTrue(math.isnan(figures.geometric_mean([])))

    def test_ratio_is_of_medians_and_its_ends_are_of_the_least_and_greatest_sample(self) -> None:
        m = measured({"a 1": {"lane": [9, 10, 14], "p": [4, 5, 7], "q": [20, 20, 20]}})
        r = figures.ratios(m, "wall_ns", ["lane", "p"], ["p", "q"])["a 1"]
        self.assertAlmostEqual(r["lane"].median, 2.0)
        self.assertAlmostEqual(r["lane"].low, 1.8)
        self.assertAlmostEqual(r["lane"].high, 2.8)
        self.assertAlmostEqual(r["p"].median, 1.0)

    def test_the_best_of_the_rounds_can_be_compared_instead(self) -> None:
        m = measured({"a 1": {"lane": [9, 10, 14], "p": [4, 5, 7]}})
        m.least = True
        self.assertAlmostEqual(
            figures.ratios(m, "wall_ns", ["lane"], ["p"])["a 1"]["lane"].median, 2.25
        )
        m = rates({"a 1": {"lane": [9, 10, 14], "p": [4, 5, 7]}})
        m.least = True
        self.assertAlmostEqual(
            figures.ratios(m, "rate", ["lane"], ["p"])["a 1"]["lane"].median, 2.0
        )

    def test_the_best_rate_is_the_greatest(self) -> None:
        m = rates({"a 1": {"lane": [9, 10, 14], "p": [4, 5, 7], "q": [20, 20, 20]}})
        r = figures.ratios(m, "rate", ["lane", "q"], ["p", "q"])["a 1"]
        self.assertAlmostEqual(r["lane"].median, 0.5)
        self.assertAlmostEqual(r["lane"].high, 0.7)
        self.assertAlmostEqual(r["q"].median, 1.0)

    def test_a_rate_is_shown_in_its_own_unit_and_others_in_that_of_the_table(self) -> None:
        self.assertEqual(
            [figures.in_units("rate", v, 1.0) for v in (945.2, 6260, 9.58e6, 177e6, 0)],
            ["945", "6.26 k", "9.58 M", "177 M", "0"],
        )
        self.assertEqual(figures.in_units("peak_kib", 26.2 * 1024, 1024), "26.2")

    def test_a_line_that_no_base_ran_has_no_ratios(self) -> None:
        m = measured({"a 1": {"lane": [1]}, "b 1": {"lane": [1], "p": [2]}})
        self.assertEqual(list(figures.ratios(m, "wall_ns", ["lane", "p"], ["p"])), ["b 1"])

    def test_a_mean_says_over_how_many_lines_it_is(self) -> None:
        m = measured(
            {"a 1": {"lane": [1], "p": [2]}, "b 1": {"lane": [3]}, "c 1": {"lane": [1], "p": [8]}}
        )
        mean = figures.against(m, "wall_ns", "lane", "p")
        self.assertAlmostEqual(mean.value, 0.25)
        self.assertEqual((mean.lines, mean.of, mean.whole), (2, 3, False))

    def test_noise_is_the_spread_over_the_median(self) -> None:
        m = measured(
            {"a 1": {"lane": [9, 10, 11], "p": [5, 5, 5]}, "b 1": {"lane": [7], "p": [10, 10, 14]}}
        )
        noise = figures.noise(m, "wall_ns")
        assert noise is not None
        self.assertAlmostEqual(noise.median, 0.2)
        self.assertAlmostEqual(noise.high, 0.4)

    def test_mean_of_a_round_needs_all_lines_in_it(self) -> None:
        m = measured({"a 1": {"lane": [2, 2], "p": [1, 1]}, "b 1": {"lane": [8], "p": [1, 1]}})
        self.assertEqual(
            [round(v, 6) for v in figures.mean_by_round(m, "wall_ns", "lane", m.lines, ["p"])],
            [4.0],
        )


class Bars(unittest.TestCase):
    def test_the_rate_is_judged_against_the_strongest_single_peer(self) -> None:
        m = rates(
            {
                "a 1": {"lane": [11], "p": [10], "q": [3]},
                "b 1": {"lane": [11], "p": [10], "q": [12]},
            }
        )
        bar = figures.mean_rate_bar(m, "lane", ["p", "q"])
        self.assertEqual((bar.figure, bar.met), ("1.100", True))
        self.assertIn("against p", bar.note)

    def test_a_rate_short_of_the_bar_is_not_met(self) -> None:
        bar = figures.mean_rate_bar(rates({"a 1": {"lane": [104], "p": [100]}}), "lane", ["p"])
        self.assertEqual((bar.figure, bar.met), ("1.040", False))

    def test_means_are_compared_on_lines_that_both_ran_and_say_so(self) -> None:
        m = rates({"a 1": {"lane": [2], "p": [1]}, "b 1": {"lane": [90]}})
        bar = figures.mean_rate_bar(m, "lane", ["p"])
        self.assertEqual(bar.figure, "2.000")
        self.assertIn("the 1 of 2 lines that both ran", bar.note)

    def test_a_peer_that_ran_few_lines_is_in_no_mean(self) -> None:
        m = rates(
            {
                "a 1": {"lane": [4], "p": [9], "q": [5]},
                "b 1": {"lane": [4], "q": [5]},
                "c 1": {"lane": [4], "q": [5]},
            }
        )
        self.assertIn("against q", figures.mean_rate_bar(m, "lane", ["p", "q"]).note)

    def test_memory_is_judged_against_the_lowest_of_the_three_fastest(self) -> None:
        by = {"lane": [1.0], "a": [10.0], "b": [9.0], "c": [8.0], "thin": [2.0]}
        m = rates(
            {"w 1": by},
            {"w 1": {"lane": 700.0, "a": 1000.0, "b": 1000.0, "c": 800.0, "thin": 100.0}},
        )
        bar = figures.mean_peak_bar(m, "lane", ["a", "b", "c", "thin"])
        self.assertEqual((bar.figure, bar.met), ("0.875", True))
        self.assertIn("against c", bar.note)

    def result(self, m: Measurements) -> Result:
        allocators = [Allocator(n, n, n == "lane") for n in m.allocators]
        return Result(allocators=allocators, synthetic=m)

    def bar(self, m: Measurements, name: str) -> figures.Bar:
        return next(b for b in figures.bars(self.result(m), "lane") if b.name.startswith(name))

    def test_every_line_beyond_the_limit_is_listed_the_worst_first(self) -> None:
        m = rates(
            {
                "a 1": {"lane": [8], "p": [10]},
                "b 1": {"lane": [9], "p": [10]},
                "c 1": {"lane": [15], "p": [20], "q": [30]},
            }
        )
        bar = self.bar(m, "worst line: rate")
        self.assertEqual((bar.figure, bar.met, bar.limit), ("0.500", False, ">= 0.90"))
        self.assertEqual([b.line for b in bar.beyond], ["c 1", "a 1"])

    def test_a_line_on_which_the_subject_failed_is_beyond_every_limit(self) -> None:
        m = rates({"a 1": {"lane": [10], "p": [1]}, "b 1": {"p": [10]}})
        bar = self.bar(m, "worst line: rate")
        self.assertEqual((bar.figure, bar.met), ("failed", False))
        self.assertEqual((bar.beyond[0].line, bar.beyond[0].shown), ("b 1", "failed"))

    def test_every_allocator_is_put_under_the_same_bar(self) -> None:
        m = measured(
            {
                "a 1": {"lane": [10], "p": [12], "q": [10.5]},
                "b 1": {"lane": [20], "p": [10], "q": [10.5]},
            }
        )
        seen = {
            s.name: (s.beyond, s.worst) for s in figures.standings(m, "wall_ns", 1.10, m.allocators)
        }
        self.assertEqual(seen, {"q": (0, 1.05), "p": (1, 1.2), "lane": (1, 2.0)})
        self.assertEqual(list(seen), ["q", "p", "lane"])
        m = rates(
            {
                "a 1": {"lane": [20], "p": [16], "q": [19]},
                "b 1": {"lane": [10], "p": [20], "q": [19]},
            }
        )
        seen = {
            s.name: (s.beyond, s.worst) for s in figures.standings(m, "rate", 0.90, m.allocators)
        }
        self.assertEqual(seen, {"q": (0, 0.95), "p": (1, 0.8), "lane": (1, 0.5)})
        self.assertEqual(list(seen), ["q", "p", "lane"])

    def test_noise_alone_takes_a_twin_of_the_best_beyond_a_bar(self) -> None:
        quiet = rates({f"{k} 1": {"p": [20] * 5, "q": [10] * 5} for k in "abc"})
        self.assertEqual(
            figures.twin_of_the_best(quiet, "rate", 0.90, ["p", "q"]),
            figures.Standing("a twin of the best", 0.0, 1.0),
        )
        noisy = rates(
            {f"{k} 1": {"p": [10, 11, 13, 16, 20], "q": [10, 11, 13, 16, 20]} for k in "abcd"}
        )
        twin = figures.twin_of_the_best(noisy, "rate", 0.90, ["p", "q"])
        assert twin is not None
        self.assertTrue(1 < twin.beyond < 4 and 0.5 < twin.worst < 0.9, twin)
        self.assertEqual(twin, figures.twin_of_the_best(noisy, "rate", 0.90, ["p", "q"]))
        self.assertIsNone(figures.twin_of_the_best(Measurements([], ["p"], 1), "rate", 0.90, ["p"]))

    def test_what_makes_a_rate_doubtful_is_told(self) -> None:
        m = Measurements(["a 1", "b 1"], ["lane", "p"], 1)
        for line, name, steady, drift, growth, others in (
            ("a 1", "lane", 0, 1.0, 1.2, 0.0),
            ("a 1", "p", 0, 1, 1, 0.5),
            ("b 1", "lane", 1, 0.7, 1, 0),
        ):
            m.add(
                Run(
                    line,
                    name,
                    0,
                    {
                        "rate": 1.0,
                        "steady": steady,
                        "drift": drift,
                        "growth": growth,
                        "others": others,
                    },
                )
            )
        never, moves, taken, grows = figures.remarks(m)
        self.assertIn("never steady (marked with ~), measured all the same: a 1 (all)", never)
        self.assertIn("b 1 (lane)", moves)
        self.assertIn("in 1 of 3 runs, 0.5", taken)
        self.assertIn("a 1 (lane)", grows)
        self.assertEqual(figures.unsteady(m), {("a 1", "lane"), ("a 1", "p")})
        self.assertEqual(figures.remarks(rates({"a 1": {"lane": [1], "p": [1]}})), [])

    def test_memory_of_a_line_is_judged_against_the_median_peer(self) -> None:
        names = {"lane": 130.0, "p": 50.0, "q": 100.0, "r": 1000.0}
        bar = self.bar(
            rates({"a 1": {n: [1.0] for n in names}}, {"a 1": names}), "worst line: peak"
        )
        self.assertEqual((bar.figure, bar.met), ("1.300", False))

    def test_nothing_measured_is_neither_met_nor_missed(self) -> None:
        for bar in figures.bars(self.result(Measurements(allocators=["lane", "p"])), "lane"):
            self.assertIsNone(bar.met, bar.name)
            self.assertEqual(bar.verdict, "not measured")

    def test_programs_may_be_two_percent_slower_but_the_mean_must_be_first(self) -> None:
        m = Measurements(["redis", "git"], ["lane", "p", "q"], 1)
        for line, name, seconds in (
            ("redis", "lane", 1.01),
            ("redis", "p", 1.0),
            ("redis", "q", 2.0),
            ("git", "lane", 1.0),
            ("git", "p", 1.0),
            ("git", "q", 1.1),
        ):
            m.add(Run(line, name, 0, {"seconds": seconds}))
        worst, mean = figures.program_bars(m, "lane", ["p", "q"])
        self.assertEqual((worst.figure, worst.met), ("1.010", True))
        self.assertEqual((mean.figure, mean.met), ("1.005", False))

    def test_pairs_are_judged_by_instructions_and_by_time(self) -> None:
        pairs = {
            "instructions_per_pair": {"lane": {"pair32": 42.0, "ring": 95.2}},
            "ns_per_pair": {"lane": {"pair32": {"median": 9.0}}, "p": {"pair32": {"median": 10.0}}},
        }
        by = {b.name: b for b in figures.pair_bars(pairs, "lane", ["p"])}
        self.assertTrue(by["pair32: instructions a pair"].met)
        self.assertFalse(by["ring: instructions a pair"].met)
        self.assertIsNone(by["bulk-order: instructions a pair"].met)
        self.assertEqual(
            (
                by["pair32: time a pair / best peer's"].figure,
                by["pair32: time a pair / best peer's"].met,
            ),
            ("0.900", True),
        )

    def test_latency_must_be_lower_than_every_peers(self) -> None:
        m = Measurements(["tail 8"], ["lane", "p", "q"], 1)
        for name, value in (("lane", 5000.0), ("p", 5000.0), ("q", 9000.0)):
            m.add(
                Run(
                    "tail 8",
                    name,
                    0,
                    {
                        "wall_ns": 1.0,
                        "malloc_p9999_ns": value,
                        "free_p9999_ns": value if name != "lane" else 10.0,
                    },
                )
            )
        malloc, free = figures.latency_bars(m, ["tail"], "lane", ["p", "q"])
        self.assertEqual((malloc.figure, malloc.met), ("1.000", False))
        self.assertTrue(free.met)


# A stand-in for the program of the workloads. It behaves as its first argument says.
FAKE = (
    r"""#!/usr/bin/env python3
import mmap, os, signal, struct, sys, time

what = sys.argv[1]
if what == "--list":
    print("good\tthreads\tlatency\tidle\tabout good\nalone\tsingle\t-\t-\tabout alone")
    sys.exit()
if "--board" in sys.argv:
    with open(sys.argv[sys.argv.index("--board") + 1], "r+b") as file:
        board = mmap.mmap(file.fileno(), 0)


def work(rate, seconds=1e9):
    struct.pack_into("Q", board, 8, os.getpid())
    began = time.monotonic()
    while struct.unpack_from("I", board, 128)[0] != 2 and time.monotonic() - began < seconds:
        done = round((time.monotonic() - began) * rate)
        struct.pack_into("Q", board, 256, done // 2)
        struct.pack_into("Q", board, 256 + 128 * 63, done - done // 2)
        time.sleep(0.001)


line = "wall_ns=1000 cpu_ns=1 operations=450 peak_kib=100 end_kib=50 idle_kib=20"""
    r""" checksum=7 malloc_p50_ns=3 library="
if what in ("good", "alone"):
    work(1e6)
elif what == "dies":
    work(1e6, 0.4)
    print("it broke", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
elif what == "leaves":
    work(1e6, 0.4)
    sys.exit()
elif what == "stalls":
    work(0)
elif what == "crash":
    print("it broke", file=sys.stderr)
    sys.exit(3)
elif what == "hang":
    time.sleep(600)
elif what == "silent":
    work(1e6)
    sys.exit()
print(line + ("/lib/other.so" if what == "other" and not work(1e6) else "/lib/libc.so.6"))
"""
)


# A stand-in for perf stat -x, -o FILE -e EVENTS [--] COMMAND...
PERF = r"""#!/bin/sh
[ -z "$LD_PRELOAD" ] || exit 9
printf '900,,instructions:u,1,100.00,,\n300,,cycles:u,1,100.00,,\n' > "$4"
shift 6
[ "$1" != -- ] || shift
exec "$@"
"""


QUICKLY = observe.Rule(window=0.05, least=0.1, latest=10.0)


class Quiet:
    def start(self, title: str, steps: int) -> None: ...
    def step(self, what: str) -> None: ...
    def note(self, text: str) -> None: ...
    def finish(self) -> None: ...


class Runner(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.program = Path(self.folder.name) / "fake"
        self.program.write_text(FAKE)
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)

    def line(self, name: str, threads: int = 1) -> measure.Line:
        return measure.Line(measure.Workload(name, True, False, False, ""), threads)

    def run_line(self, name: str, rule: observe.Rule, counters: bool = False) -> dict[str, float]:
        return measure.run_line(self.program, LIBC, self.line(name), 0.3, rule, counters)

    def why(self, name: str, rule: observe.Rule = QUICKLY) -> str:
        with self.assertRaises(measure.Failed) as caught:
            self.run_line(name, rule)
        return str(caught.exception)

    def test_workloads_are_listed_and_single_ones_run_at_one_thread(self) -> None:
        found = measure.list_workloads(self.program)
        self.assertEqual(
            [str(l) for l in measure.lines_of(found, [1, 8])], ["good 1", "good 8", "alone 1"]
        )
        self.assertEqual((found[0].latency, found[0].idle, found[1].idle), (True, True, False))

    def test_a_rate_is_what_the_threads_counted_and_the_rest_is_what_the_program_printed(
        self,
    ) -> None:
        seen = self.run_line("good", QUICKLY)
        self.assertAlmostEqual(seen["rate"], 1e6, delta=1e5)
        self.assertEqual((seen["steady"], seen["end_kib"], seen["malloc_p50_ns"]), (1.0, 50.0, 3.0))
        self.assertTrue(0.3 <= seen["measured_seconds"] < 3 and 0 < seen["start_part"] < 1)
        self.assertGreater(seen["peak_kib"], 1000)
        self.assertNotIn("checksum", seen)

    def test_counters_are_taken_from_perf_which_runs_without_the_preload(self) -> None:
        perf = Path(self.folder.name) / "perf"
        perf.write_text(PERF)
        perf.chmod(0o755)
        with unittest.mock.patch.dict(
            os.environ, {"PATH": f"{self.folder.name}:{os.environ['PATH']}"}
        ):
            self.assertTrue(machine.counters_work())
            seen = self.run_line("good", QUICKLY, True)
            with self.assertRaises(measure.Failed) as caught:
                self.run_line("crash", QUICKLY, True)
        self.assertEqual((seen["instructions"], seen["cycles"]), (2, 300 / 450))
        self.assertIn("status 3", str(caught.exception))

    def test_a_process_that_dies_is_told_by_its_status_signal_or_text(self) -> None:
        self.assertEqual(self.why("crash"), "status 3: it broke")
        self.assertEqual(self.why("dies"), "killed by SIGSEGV: it broke")
        self.assertIn("ended by itself, with status 0", self.why("leaves"))
        self.assertIn("unexpected output", self.why("silent"))

    def test_a_line_whose_process_dies_is_told_in_the_report_and_the_others_go_on(self) -> None:
        lines = [self.line("dies"), self.line("good")]
        found, _ = measure.Rates(
            self.program, [LIBC], lines, measure.Plan(1, 0.3, QUICKLY), measure.Deadline(), Quiet()
        ).measure()
        self.assertEqual(
            [(f.line, f.reason) for f in found.failures],
            [("dies 1", "killed by SIGSEGV: it broke")],
        )
        self.assertEqual([r.line for r in found.runs], ["good 1"])
        out = io.StringIO()
        result = Result(allocators=[Allocator("libc", "libc", False)], synthetic=found)
        report.Report(
            result, None, report.Console(file=out, width=200, highlight=False)
        ).everything()
        self.assertIn("FAILED: libc: dies 1: killed by SIGSEGV: it broke", out.getvalue())

    def test_an_allocator_that_is_not_in_use_fails(self) -> None:
        self.assertIn("not in use", self.why("other"))

    def test_what_hangs_before_or_in_its_work_is_ended_with_its_children(self) -> None:
        for name in ("hang", "stalls"):
            before = time.monotonic()
            self.assertIn("without a result", self.why(name, observe.Rule(stalled=0.5)))
            self.assertLess(time.monotonic() - before, 30)

    def test_what_hung_is_not_tried_again_and_the_others_go_on(self) -> None:
        stage = measure.Stage(Measurements(["a 1"], ["libc"], 3), [LIBC], "wall_ns", Quiet())
        tries = []

        def hang() -> dict[str, float]:
            tries.append(1)
            raise measure.Failed("ended after 30 s without a result")

        for number in range(3):
            stage.attempt("a 1", LIBC, number, hang)
        self.assertEqual((len(tries), len(stage.result.failures)), (1, 1))

    def test_an_allocator_that_hung_on_three_lines_is_not_tried_on_others(self) -> None:
        lines = [f"a {n}" for n in range(5)]
        stage = measure.Stage(Measurements(lines, ["libc"], 1), [LIBC], "wall_ns", Quiet())
        tries = []

        def hang() -> dict[str, float]:
            tries.append(1)
            raise measure.Failed("ended after 30 s without a result")

        for line in lines:
            stage.attempt(line, LIBC, 0, hang)
        self.assertEqual((len(tries), len(stage.result.failures)), (3, 5))
        self.assertIn("not tried", stage.result.failures[-1].reason)

    def test_a_slow_one_is_measured_in_fewer_rounds_and_marked(self) -> None:
        slow, fast = Library("slow", None), Library("fast", None)
        stage = measure.Stage(
            Measurements(["a 1"], ["slow", "fast"], 5), [slow, fast], "wall_ns", Quiet()
        )
        for number in range(5):
            stage.attempt("a 1", slow, number, lambda: {"wall_ns": 120.0})
            stage.attempt("a 1", fast, number, lambda: {"wall_ns": 10.0})
        stage.close()
        self.assertEqual(len(stage.result.of("a 1", "fast")), 5)
        self.assertEqual(len(stage.result.of("a 1", "slow")), 2)
        self.assertEqual(
            [(s.allocator, s.factor, s.rounds) for s in stage.result.slow], [("slow", 12.0, 2)]
        )

    def test_rounds_of_slow_ones_shrink_to_one_and_not_below(self) -> None:
        self.assertEqual(
            [measure.allowed_rounds(5, f) for f in (1, 5, 6, 12.5, 100)], [5, 5, 4, 2, 1]
        )

    def test_each_allocator_comes_first_at_some_time(self) -> None:
        all_ = [Library(n, None) for n in "abcd"]
        firsts = {
            measure.rotated(all_, number, line)[0].name for number in range(5) for line in range(4)
        }
        self.assertEqual(firsts, set("abcd"))
        for number in range(5):
            self.assertEqual({l.name for l in measure.rotated(all_, number, 1)}, set("abcd"))

    def test_idle_times_overlap(self) -> None:
        self.program.write_text(
            '#!/bin/sh\nsleep 2\necho "wall_ns=1 peak_kib=100 idle_kib=20 library=/lib/libc.so.6"\n'
        )
        lines = [self.line("good", n) for n in (1, 2, 3, 4)]
        before = time.monotonic()
        found = measure.idle(self.program, [LIBC], lines, 2, Quiet())
        self.assertEqual([r.figures["idle_kib"] for r in found.runs], [20.0] * 4)
        self.assertLess(time.monotonic() - before, 7.5)

    def test_all_descendants_are_found(self) -> None:
        child = measure.start(["sh", "-c", "sleep 60 & wait"], dict(os.environ))
        try:
            deadline = time.monotonic() + 20
            while not list(measure.descendants(child.pid)) and time.monotonic() < deadline:
                time.sleep(0.01)
            self.assertEqual(len(list(measure.descendants(child.pid))), 1)
        finally:
            measure.end_group(child)
        self.assertEqual(child.returncode, -signal.SIGKILL)


class Clock:
    """A clock that only the runs move on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Budget(unittest.TestCase):
    def measure(
        self,
        seconds: float | None,
        rounds: int = 5,
        start: float = 0.8,
        names: Sequence[str] = ("a", "b", "c"),
        allocators: int = 2,
    ) -> tuple[Measurements, list[str], float]:
        """Lines of one second each, whose runs take `start` seconds more; what came of them, what
        was said, and the time that it took."""
        clock = Clock()
        order: list[str] = []

        def run_line(
            _program: Path, library: Library, line: measure.Line, seconds: float, *_: object
        ) -> dict[str, float]:
            clock.now += seconds + start
            order.append(f"{line} {library.name}")
            return {"rate": 1.0}

        libraries = [Library(f"l{n}", None) for n in range(allocators)]
        lines = [measure.Line(measure.Workload(n, True, False, False, ""), 8) for n in names]
        with (
            unittest.mock.patch.object(measure.time, "monotonic", clock),
            unittest.mock.patch.object(measure, "run_line", run_line),
        ):
            found, cuts = measure.Rates(
                Path("x"),
                libraries,
                lines,
                measure.Plan(rounds, 1.0),
                measure.Deadline.after(seconds),
                Quiet(),
            ).measure()
        self.order = order
        return found, cuts, clock.now

    def test_without_a_budget_all_lines_have_all_rounds(self) -> None:
        found, cuts, _ = self.measure(None)
        self.assertEqual(
            (found.lines, found.rounds, len(found.runs), cuts), (["a 8", "b 8", "c 8"], 5, 30, [])
        )

    def test_lines_are_dropped_from_the_end_and_this_is_said(self) -> None:
        found, cuts, took = self.measure(25)
        self.assertEqual((found.lines, found.rounds), (["a 8", "b 8"], 3))
        self.assertEqual(cuts[0], "workloads: 1 line dropped to keep to the time: c 8")
        self.assertIn("3 rounds instead of 5", cuts[1])
        self.assertLessEqual(took, 25)
        self.assertTrue(
            all(len(found.of(line, name)) == 3 for line in found.lines for name in found.allocators)
        )

    def test_no_line_is_made_shorter_and_none_has_fewer_than_three_rounds(self) -> None:
        for budget in (1, 5, 12, 20, 40, 60):
            found, _, took = self.measure(budget)
            self.assertLessEqual(took, max(budget, 0) + 0.01)
            self.assertTrue(
                all(
                    len(found.of(line, name)) >= 3
                    for line in found.lines
                    for name in found.allocators
                )
            )

    def test_time_that_is_left_is_used_for_more_rounds_of_all(self) -> None:
        found, cuts, took = self.measure(45)
        self.assertEqual((found.lines, found.rounds), (["a 8", "b 8", "c 8"], 4))
        self.assertEqual(cuts, ["workloads: 4 rounds instead of 5, to keep to the time"])
        self.assertLessEqual(took, 45)

    def test_what_a_run_costs_is_learned(self) -> None:
        found, cuts, took = self.measure(55, start=4.0)
        self.assertEqual(found.lines, ["a 8"])
        self.assertIn("2 lines dropped", cuts[0])
        self.assertLessEqual(took, 55)

    def test_a_line_of_a_minute_has_one_round_and_this_is_said(self) -> None:
        with unittest.mock.patch.dict(which.LONG, {"b": 60.0}):
            found, cuts, _ = self.measure(None)
            self.assertEqual([len(found.of(f"{n} 8", "l0")) for n in "abc"], [5, 1, 5])
            self.assertIn("b 8 in one round alone", cuts[0])
            found, cuts, _ = self.measure(60)
            self.assertEqual(found.lines, ["a 8", "c 8"])

    def test_lines_of_a_workload_stand_together_in_the_result(self) -> None:
        lines = [
            measure.Line(measure.Workload(n, True, False, False, ""), t)
            for n, t in (("a", 8), ("b", 1), ("a", 32), ("a", 2))
        ]
        with unittest.mock.patch.object(measure, "run_line", lambda *_: {"rate": 1.0}):
            found, _ = measure.Rates(
                Path("x"), [LIBC], lines, measure.Plan(1), measure.Deadline(), Quiet()
            ).measure()
        self.assertEqual(found.lines, ["a 2", "a 8", "a 32", "b 1"])

    def test_allocators_alternate_within_a_round(self) -> None:
        self.measure(None, names="a")
        for number in range(0, len(self.order), 2):
            self.assertEqual(len(set(self.order[number : number + 2])), 2)

    def test_programs_do_less_and_then_there_are_fewer(self) -> None:
        costs = {"a": 1.0, "b": 1.0, "c": 2.0}
        self.assertEqual(measure.fit_programs(costs, 10, 1.0, 40), (["a", "b", "c"], 1.0))
        self.assertEqual(measure.fit_programs(costs, 10, 1.0, 30), (["a", "b", "c"], 0.63))
        self.assertEqual(measure.fit_programs(costs, 10, 1.0, 15), (["a", "b"], 0.63))
        self.assertEqual(measure.fit_programs(costs, 10, 0.2, 39), (["a", "b"], 0.2))
        self.assertEqual(measure.fit_programs(costs, 10, 1.0, 1), ([], 1.0))

    def test_every_line_is_one_of_a_workload_that_there_is(self) -> None:
        program = build_workloads()
        known = {w.name: w for w in measure.list_workloads(program)}
        for name, threads in which.LINES:
            self.assertIn(name, known)
            self.assertTrue(known[name].threaded or threads == 1, name)
        self.assertEqual(len(set(which.LINES)), len(which.LINES))
        self.assertEqual({w.name for w in known.values() if w.idle}, set(which.IDLE_OPERATIONS))

    def chosen(self, *words: str) -> list[str]:
        workloads = [
            measure.Workload(n, n != "malloc-large", False, False, "") for n in dict(which.LINES)
        ]
        workloads.append(measure.Workload("other", True, False, False, ""))
        return [str(l) for l in main.chosen_lines(workloads, main.parser().parse_args(words))]

    def test_lines_can_be_asked_for(self) -> None:
        self.assertEqual(self.chosen()[:2], ["larson 8", "xmalloc 16"])
        self.assertEqual(
            self.chosen("--only", "larson,malloc-large,other"),
            ["larson 8", "malloc-large 1", "larson 32", "larson 2", "larson 1", "other 8"],
        )
        self.assertEqual(
            self.chosen("--only", "larson,malloc-large", "--threads", "2,3"),
            ["larson 2", "larson 3", "malloc-large 1"],
        )

    def test_bad_arguments_are_named_in_one_line_with_status_2(self) -> None:
        for words, named in (
            (["--rounds", "0"], "0"),
            (["--rounds", "x"], "'x'"),
            (["--scale", "-1"], "-1"),
            (["--seconds", "0"], "0"),
            (["--threads", "65"], "'65'"),
            (["--allocators", "nomalloc"], "'nomalloc'"),
            (["--lib", "x=/nowhere.so"], "/nowhere.so"),
            (["--base", "nomalloc"], "'nomalloc'"),
            (["--only", "good,nothing"], "'nothing'"),
            (["--show", "/nowhere.json"], "/nowhere.json"),
        ):
            command = [
                sys.executable,
                str(ROOT / "bench" / "suite" / "main.py"),
                "--no-programs",
                *words,
            ]
            if "--only" in words or "--threads" in words:
                program = Path(tempfile.gettempdir()) / f"fake-{os.getpid()}"
                program.write_text(FAKE)
                program.chmod(0o755)
                self.addCleanup(program.unlink, missing_ok=True)
                command += ["--program", str(program)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            last = done.stderr.strip().splitlines()[-1]
            self.assertTrue(last.startswith("main.py: ") and named in last, done.stderr)


class Machine(unittest.TestCase):
    def test_counters_that_are_not_counted_are_left_out(self) -> None:
        text = (
            "# started on\n\n<not supported>,,instructions:u,0,100.00,,\n"
            "1234,,cycles:u,5,100.00,,\n"
        )
        self.assertEqual(machine.parse_counters(text), {"cycles": 1234.0})

    def test_counters_are_read(self) -> None:
        text = "5000,,instructions:u,9,100.00,1.2,insn per cycle\n4000,,cycles:u,9,100.00,,\n"
        self.assertEqual(machine.parse_counters(text), {"instructions": 5000.0, "cycles": 4000.0})

    def test_numbers_are_shown_as_ranges(self) -> None:
        self.assertEqual(machine.ranges({0, 1, 2, 5, 7, 8}), "0-2,5,7-8")


class Shares(unittest.TestCase):
    CALLGRIND = """\
events: Ir

ob=(1) /usr/bin/program
fn=(1) main
3 100
+1 20
cob=(2) /lib/malloc.so
cfn=(2) malloc
calls=5 10
* 7000
- 4

ob=(2)
fn=(2) malloc
10 50
calls=1 3
11 6950
ob=(1)
fn=(3) other
1 6
"""

    def test_what_is_inside_the_library_is_its_own_cost(self) -> None:
        self.assertEqual(
            shares.counts(self.CALLGRIND, Library("one", Path("/lib/malloc.so"))), (180, 50)
        )
        self.assertEqual(
            shares.counts(self.CALLGRIND, Library("other", Path("/lib/other.so"))), (180, 0)
        )
        self.assertEqual(shares.counts(self.CALLGRIND, LIBC), (180, 0))

    def test_an_unknown_program_is_named(self) -> None:
        errors = io.StringIO()
        with (
            unittest.mock.patch.object(sys, "argv", ["shares.py", "perl"]),
            contextlib.redirect_stderr(errors),
            self.assertRaises(SystemExit),
        ):
            shares.main()
        self.assertIn(
            "unknown program 'perl'; choose from: python, g++, sqlite, git", errors.getvalue()
        )


class Processes(unittest.TestCase):
    def test_a_process_that_has_ended_tells_no_peak(self):
        with subprocess.Popen(["sleep", "60"]) as child:
            self.assertGreater(observe.peak_kib(child.pid), 0)
            child.kill()
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and not waited for yet
            with self.assertRaises(observe.Ended):
                observe.peak_kib(child.pid)
        with self.assertRaises(observe.Ended):
            observe.peak_kib(child.pid)

    def test_the_children_of_a_process_that_has_ended_are_none(self) -> None:
        with subprocess.Popen(["sleep", "60"]) as child:
            self.assertIn(child.pid, children_of(os.getpid()))
            child.kill()
        self.assertEqual(children_of(child.pid), [])


class Caches(unittest.TestCase):
    def test_instructions_and_misses_repeat_and_are_plausible(self) -> None:
        build_workloads()
        first, second = (caches.figures(LIBC, "sh6", 400_000) for _ in range(2))
        for one, other in zip(first, second, strict=True):
            self.assertAlmostEqual(one, other, delta=0.02 * one + 0.01)
        instructions, d1, ll = first
        self.assertTrue(50 < instructions < 500, instructions)
        self.assertTrue(0 <= ll <= d1 < 5, (d1, ll))

    def test_without_the_workloads_it_says_what_builds_them(self) -> None:
        errors = io.StringIO()
        with (
            unittest.mock.patch.object(caches, "PROGRAM", Path("/nowhere/workloads")),
            unittest.mock.patch.object(sys, "argv", ["caches.py"]),
            contextlib.redirect_stderr(errors),
            self.assertRaises(SystemExit) as ended,
        ):
            caches.main()
        self.assertEqual(ended.exception.code, 2)
        self.assertIn("/nowhere/workloads is not there: make bench builds it", errors.getvalue())


class Output(unittest.TestCase):
    def result(self) -> Result:
        """Two allocators; the second has failed on one line, and its name would be markup."""
        m = rates({"a 1": {"lane": [1, 1], "<p>": [2, 2]}, "tail 8": {"lane": [1, 1]}})
        m.failures.append(Failure("tail 8", "<p>", 0, "status 3: [bold] <b>"))
        return Result(
            {"cpu": "x"},
            {},
            [Allocator("lane", "la", True), Allocator("<p>", "p", False)],
            {"a": "about", "tail": "t"},
            synthetic=m,
        )

    def test_json_gives_back_the_same_result(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "suite.json"
            model.save(self.result(), file)
            again = model.load(file)
        self.assertEqual(again, self.result())
        self.assertEqual(again.synthetic.samples("a 1", "lane", "rate"), [1e6, 1e6])

    def test_the_table_shows_what_failed_literally(self) -> None:
        out = io.StringIO()
        console = report.Console(file=out, width=200, highlight=False)
        report.Report(self.result(), None, console).everything()
        self.assertIn("FAILED: <p>: tail 8: status 3: [bold] <b>", out.getvalue())
        self.assertIn("0.50", out.getvalue())

    def test_calls_that_are_left_out_are_counted_in_table_and_page(self) -> None:
        result = self.result()
        result.latency_workloads = ["tail"]
        tails = {
            f"{call}_{p}_ns": 70.0
            for call in ("malloc", "free")
            for p in ("p50", "p99", "p999", "p9999", "max")
        }
        result.synthetic.add(
            Run(
                "tail 8",
                "lane",
                1,
                {"rate": 1e6, **tails, "malloc_preempted": 4711.0, "free_preempted": 815.0},
            )
        )
        out = io.StringIO()
        report.Report(result, None, report.Console(file=out, width=200, highlight=False)).latency()
        self.assertRegex(out.getvalue(), r"lane +(0\.07 +){5}4711 +(0\.07 +){5}815")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "suite.html"
            with contextlib.redirect_stdout(io.StringIO()):
                page.write(result, file)
            self.assertRegex(file.read_text(), ">4711<.*>815<")

    def test_what_was_never_steady_is_marked_and_start_up_is_told_in_table_and_page(self) -> None:
        result = self.result()
        result.rule = "1 s of it"
        for run in result.synthetic.of("a 1", "lane"):
            run.figures.update(
                steady=0.0, start_part=0.25, start_seconds=0.5, growth=1.0, drift=1.0
            )
        out = io.StringIO()
        report.Report(
            result, None, report.Console(file=out, width=200, highlight=False)
        ).everything()
        self.assertRegex(out.getvalue(), r"a 1 +0\.50~ +1\.00 .*0\.5 s 25%")
        self.assertIn("never steady", out.getvalue())
        self.assertIn("Start-up: 25% of a run", out.getvalue())
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "suite.html"
            with contextlib.redirect_stdout(io.StringIO()):
                page.write(result, file)
            text = file.read_text()
        self.assertRegex(text, r">0\.50~<")
        shown = tables.Tables(result).whole()
        self.assertIn("| a 1 | 0.50~ | 1.00 | 2 M |", shown)
        self.assertIn("- never steady (marked with ~)", shown)
        self.assertIn("never steady (marked with ~)", text)
        self.assertIn("Start-up: 25% of a run", text)

    def test_the_page_needs_no_network_and_escapes_names(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "suite.html"
            with contextlib.redirect_stdout(io.StringIO()):
                page.write(self.result(), file)
            text = file.read_text()
        self.assertNotIn("<p>:", text)
        self.assertNotIn("<script src", text)
        self.assertNotRegex(text, r'(src|href)="https?:')
        self.assertIn("status 3: [bold] &lt;b&gt;", text)


if __name__ == "__main__":
    outcome = unittest.main(exit=False, verbosity=1).result
    bad, skipped = len(outcome.failures) + len(outcome.errors), len(outcome.skipped)
    print(f"{outcome.testsRun - bad - skipped} passed, {bad} failed, {skipped} skipped")
    sys.exit(1 if bad or not outcome.testsRun else 0)
