#!/usr/bin/env python3
"""Tests of bench/suite: ratios, means, missing lines, bars, the runner, the page. Called by: tests/bench/run.sh."""

import contextlib
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
import machine
import main
import measure
import model
import page
import report
import shares
from common import Library
from programs.program import children_of
from workloads.build import build_workloads
from model import Allocator, Failure, Measurements, Result, Run

LIBC = Library("libc", None)


def measured(times: Mapping[str, Mapping[str, Sequence[float]]], peaks: Mapping[str, Mapping[str, float]] | None = None) -> Measurements:
    """line -> allocator -> times in ms of the rounds; peak RSS in KiB is 1000 if not given."""
    names = list(dict.fromkeys(n for by in times.values() for n in by))
    m = Measurements(list(times), names, max(len(s) for by in times.values() for s in by.values()))
    for line, by in times.items():
        for name, samples in by.items():
            peak = (peaks or {}).get(line, {}).get(name, 1000.0)
            for number, value in enumerate(samples):
                m.add(Run(line, name, number, {"wall_ns": value * 1e6, "cpu_ns": value * 1e6, "peak_kib": peak}))
    return m


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

    def test_the_least_of_the_rounds_can_be_compared_instead(self) -> None:
        m = measured({"a 1": {"lane": [9, 10, 14], "p": [4, 5, 7]}})
        m.least = True
        self.assertAlmostEqual(figures.ratios(m, "wall_ns", ["lane"], ["p"])["a 1"]["lane"].median, 2.25)

    def test_a_line_that_no_base_ran_has_no_ratios(self) -> None:
        m = measured({"a 1": {"lane": [1]}, "b 1": {"lane": [1], "p": [2]}})
        self.assertEqual(list(figures.ratios(m, "wall_ns", ["lane", "p"], ["p"])), ["b 1"])

    def test_a_mean_says_over_how_many_lines_it_is(self) -> None:
        m = measured({"a 1": {"lane": [1], "p": [2]}, "b 1": {"lane": [3]}, "c 1": {"lane": [1], "p": [8]}})
        mean = figures.against(m, "wall_ns", "lane", "p")
        self.assertAlmostEqual(mean.value, 0.25)
        self.assertEqual((mean.lines, mean.of, mean.whole), (2, 3, False))

    def test_noise_is_the_spread_over_the_median(self) -> None:
        m = measured({"a 1": {"lane": [9, 10, 11], "p": [5, 5, 5]}, "b 1": {"lane": [7], "p": [10, 10, 14]}})
        noise = figures.noise(m, "wall_ns")
        assert noise is not None
        self.assertAlmostEqual(noise.median, 0.2)
        self.assertAlmostEqual(noise.high, 0.4)

    def test_mean_of_a_round_needs_all_lines_in_it(self) -> None:
        m = measured({"a 1": {"lane": [2, 2], "p": [1, 1]}, "b 1": {"lane": [8], "p": [1, 1]}})
        self.assertEqual([round(v, 6) for v in figures.mean_by_round(m, "wall_ns", "lane", m.lines, ["p"])], [4.0])


class Bars(unittest.TestCase):
    def test_time_is_judged_against_the_strongest_single_peer(self) -> None:
        m = measured({"a 1": {"lane": [9], "p": [10], "q": [30]}, "b 1": {"lane": [9], "p": [10], "q": [8]}})
        bar = figures.mean_time_bar(m, "lane", ["p", "q"])
        self.assertEqual((bar.figure, bar.met), ("0.900", True))
        self.assertIn("against p", bar.note)

    def test_time_beyond_the_bar_is_not_met(self) -> None:
        bar = figures.mean_time_bar(measured({"a 1": {"lane": [96], "p": [100]}}), "lane", ["p"])
        self.assertEqual((bar.figure, bar.met), ("0.960", False))

    def test_means_are_compared_on_lines_that_both_ran_and_say_so(self) -> None:
        m = measured({"a 1": {"lane": [1], "p": [2]}, "b 1": {"lane": [90]}})
        bar = figures.mean_time_bar(m, "lane", ["p"])
        self.assertEqual(bar.figure, "0.500")
        self.assertIn("the 1 of 2 lines that both ran", bar.note)

    def test_a_peer_that_ran_few_lines_is_in_no_mean(self) -> None:
        m = measured({"a 1": {"lane": [4], "p": [1], "q": [5]}, "b 1": {"lane": [4], "q": [5]}, "c 1": {"lane": [4], "q": [5]}})
        self.assertIn("against q", figures.mean_time_bar(m, "lane", ["p", "q"]).note)

    def test_memory_is_judged_against_the_lowest_of_the_three_fastest(self) -> None:
        times = {"lane": [10.0], "a": [1.0], "b": [2.0], "c": [3.0], "thin": [9.0]}
        m = measured({"w 1": times}, {"w 1": {"lane": 700.0, "a": 1000.0, "b": 1000.0, "c": 800.0, "thin": 100.0}})
        bar = figures.mean_peak_bar(m, "lane", ["a", "b", "c", "thin"])
        self.assertEqual((bar.figure, bar.met), ("0.875", True))
        self.assertIn("against c", bar.note)

    def result(self, m: Measurements) -> Result:
        allocators = [Allocator(n, n, n == "lane") for n in m.allocators]
        return Result(allocators=allocators, synthetic=m)

    def bar(self, m: Measurements, name: str) -> figures.Bar:
        return next(b for b in figures.bars(self.result(m), "lane") if b.name.startswith(name))

    def test_every_line_beyond_the_limit_is_listed_the_worst_first(self) -> None:
        m = measured({"a 1": {"lane": [12], "p": [10]}, "b 1": {"lane": [11], "p": [10]}, "c 1": {"lane": [15], "p": [20], "q": [10]}})
        bar = self.bar(m, "worst line: time")
        self.assertEqual((bar.figure, bar.met), ("1.500", False))
        self.assertEqual([b.line for b in bar.beyond], ["c 1", "a 1"])

    def test_a_line_on_which_the_subject_failed_is_beyond_every_limit(self) -> None:
        m = measured({"a 1": {"lane": [1], "p": [10]}, "b 1": {"p": [10]}})
        bar = self.bar(m, "worst line: time")
        self.assertEqual((bar.figure, bar.met), ("failed", False))
        self.assertEqual(bar.beyond[0].line, "b 1")

    def test_every_allocator_is_put_under_the_same_bar(self) -> None:
        m = measured({"a 1": {"lane": [10], "p": [12], "q": [10.5]}, "b 1": {"lane": [20], "p": [10], "q": [10.5]}})
        seen = {s.name: (s.beyond, s.worst) for s in figures.standings(m, "wall_ns", 1.10, m.allocators)}
        self.assertEqual(seen, {"q": (0, 1.05), "p": (1, 1.2), "lane": (1, 2.0)})
        self.assertEqual(list(seen), ["q", "p", "lane"])

    def test_noise_alone_takes_a_twin_of_the_best_beyond_a_bar(self) -> None:
        quiet = measured({f"{k} 1": {"p": [10] * 5, "q": [20] * 5} for k in "abc"})
        self.assertEqual(figures.twin_of_the_best(quiet, "wall_ns", 1.10, ["p", "q"]), figures.Standing("a twin of the best", 0.0, 1.0))
        noisy = measured({f"{k} 1": {"p": [10, 11, 13, 16, 20], "q": [10, 11, 13, 16, 20]} for k in "abcd"})
        twin = figures.twin_of_the_best(noisy, "wall_ns", 1.10, ["p", "q"])
        assert twin is not None
        self.assertTrue(1 < twin.beyond < 4 and 1.10 < twin.worst < 2, twin)
        self.assertEqual(twin, figures.twin_of_the_best(noisy, "wall_ns", 1.10, ["p", "q"]))
        self.assertIsNone(figures.twin_of_the_best(Measurements([], ["p"], 1), "wall_ns", 1.10, ["p"]))

    def test_memory_of_a_line_is_judged_against_the_median_peer(self) -> None:
        names = {"lane": 130.0, "p": 50.0, "q": 100.0, "r": 1000.0}
        bar = self.bar(measured({"a 1": {n: [1.0] for n in names}}, {"a 1": names}), "worst line: peak")
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
            "instructions_per_pair": {"lane": {"pair32": 42.0, "ring": 100.2}},
            "ns_per_pair": {"lane": {"pair32": {"median": 9.0}}, "p": {"pair32": {"median": 10.0}}},
        }
        by = {b.name: b for b in figures.pair_bars(pairs, "lane", ["p"])}
        self.assertTrue(by["pair32: instructions a pair"].met)
        self.assertFalse(by["ring: instructions a pair"].met)
        self.assertIsNone(by["bulk-order: instructions a pair"].met)
        self.assertEqual((by["pair32: time a pair / best peer's"].figure, by["pair32: time a pair / best peer's"].met), ("0.900", True))

    def test_latency_must_be_lower_than_every_peers(self) -> None:
        m = Measurements(["tail 8"], ["lane", "p", "q"], 1)
        for name, value in (("lane", 5000.0), ("p", 5000.0), ("q", 9000.0)):
            m.add(Run("tail 8", name, 0, {"wall_ns": 1.0, "malloc_p9999_ns": value, "free_p9999_ns": value if name != "lane" else 10.0}))
        malloc, free = figures.latency_bars(m, ["tail"], "lane", ["p", "q"])
        self.assertEqual((malloc.figure, malloc.met), ("1.000", False))
        self.assertTrue(free.met)


# A stand-in for the program of the workloads. It behaves as its first argument says.
FAKE = r"""#!/bin/sh
if [ "$1" = --list ]; then printf 'good\tthreads\tlatency\tidle\tabout good\nalone\tsingle\t-\t-\tabout alone\n'; exit; fi
line="cpu_ns=1 peak_kib=100 end_kib=50 idle_kib=20 checksum=${SUM:-7} library=/lib/libc.so.6"
case $1 in
  good | alone) echo "wall_ns=${WALL:-1000} $line" ;;
  crash) echo "it broke" >&2; exit 3 ;;
  abort) kill -ABRT $$ ;;
  hang) sleep 600 ;;
  other) echo "wall_ns=1 cpu_ns=1 peak_kib=1 checksum=7 library=/lib/other.so" ;;
  silent) ;;
esac
"""


# A stand-in for perf stat -x, -o FILE -e EVENTS [--] COMMAND...
PERF = r"""#!/bin/sh
[ -z "$LD_PRELOAD" ] || exit 9
printf '900,,instructions:u,1,100.00,,\n300,,cycles:u,1,100.00,,\n' > "$4"
shift 6
[ "$1" != -- ] || shift
exec "$@"
"""


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

    def why(self, name: str, timeout: float = 20) -> str:
        with self.assertRaises(measure.Failed) as caught:
            measure.run_line(self.program, LIBC, self.line(name), 1, timeout, False)
        return str(caught.exception)

    def test_workloads_are_listed_and_single_ones_run_at_one_thread(self) -> None:
        found = measure.list_workloads(self.program)
        self.assertEqual([str(l) for l in measure.lines_of(found, [1, 8])], ["good 1", "good 8", "alone 1"])
        self.assertEqual((found[0].latency, found[0].idle, found[1].idle), (True, True, False))

    def test_figures_are_read(self) -> None:
        seen = measure.run_line(self.program, LIBC, self.line("good"), 1, 20, False)
        self.assertEqual((seen["wall_ns"], seen["peak_kib"], seen["checksum"]), (1000, 100, 7))

    def test_counters_are_taken_from_perf_which_runs_without_the_preload(self) -> None:
        perf = Path(self.folder.name) / "perf"
        perf.write_text(PERF)
        perf.chmod(0o755)
        with unittest.mock.patch.dict(os.environ, {"PATH": f"{self.folder.name}:{os.environ['PATH']}"}):
            self.assertTrue(machine.counters_work())
            seen = measure.run_line(self.program, LIBC, self.line("good"), 1, 20, True)
            with self.assertRaises(measure.Failed) as caught:
                measure.run_line(self.program, LIBC, self.line("crash"), 1, 20, True)
        self.assertEqual((seen["instructions"], seen["cycles"], seen["wall_ns"]), (900, 300, 1000))
        self.assertIn("status 3", str(caught.exception))

    def test_a_failure_tells_its_status_signal_or_text(self) -> None:
        self.assertEqual(self.why("crash"), "status 3: it broke")
        self.assertEqual(self.why("abort"), "killed by SIGABRT")
        self.assertIn("unexpected output", self.why("silent"))

    def test_an_allocator_that_is_not_in_use_fails(self) -> None:
        self.assertIn("not in use", self.why("other"))

    def test_what_hangs_is_ended_with_its_children(self) -> None:
        before = time.monotonic()
        self.assertIn("without a result", self.why("hang", 0.3))
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
        stage = measure.Stage(Measurements(["a 1"], ["slow", "fast"], 5), [slow, fast], "wall_ns", Quiet())
        for number in range(5):
            stage.attempt("a 1", slow, number, lambda: {"wall_ns": 120.0})
            stage.attempt("a 1", fast, number, lambda: {"wall_ns": 10.0})
        stage.close()
        self.assertEqual(len(stage.result.of("a 1", "fast")), 5)
        self.assertEqual(len(stage.result.of("a 1", "slow")), 2)
        self.assertEqual([(s.allocator, s.factor, s.rounds) for s in stage.result.slow], [("slow", 12.0, 2)])

    def test_rounds_of_slow_ones_shrink_to_one_and_not_below(self) -> None:
        self.assertEqual([measure.allowed_rounds(5, f) for f in (1, 5, 6, 12.5, 100)], [5, 5, 4, 2, 1])

    def test_who_did_other_work_than_most_is_failed(self) -> None:
        names = ["a", "b", "c"]
        stage = measure.Stage(Measurements(["w 1"], names, 1), [Library(n, None) for n in names], "wall_ns", Quiet())
        for name, checksum in zip(names, (3.0, 7.0, 7.0)):
            stage.result.add(Run("w 1", name, 0, {"wall_ns": 1.0, "checksum": checksum}))
        stage.close()
        self.assertEqual([f.allocator for f in stage.result.failures], ["a"])
        self.assertIsNone(stage.result.typical("w 1", "a", "wall_ns"))

    def test_each_allocator_comes_first_at_some_time(self) -> None:
        all_ = [Library(n, None) for n in "abcd"]
        firsts = {measure.rotated(all_, number, line)[0].name for number in range(5) for line in range(4)}
        self.assertEqual(firsts, set("abcd"))
        for number in range(5):
            self.assertEqual({l.name for l in measure.rotated(all_, number, 1)}, set("abcd"))

    def test_rounds_end_with_the_budget_and_this_is_said(self) -> None:
        found, cuts = measure.synthetic(self.program, [LIBC], [self.line("good")], 5, 1, False, measure.Deadline.after(0), Quiet())
        self.assertEqual((found.rounds, len(found.runs)), (1, 1))
        self.assertIn("1 round instead of 5", cuts[0])

    def test_idle_times_overlap(self) -> None:
        self.program.write_text('#!/bin/sh\nsleep 2\necho "wall_ns=1 peak_kib=100 idle_kib=20 library=/lib/libc.so.6"\n')
        lines = [self.line("good", n) for n in (1, 2, 3, 4)]
        before = time.monotonic()
        found = measure.idle(self.program, [LIBC], lines, 1, 2, Quiet())
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


class Budget(unittest.TestCase):
    def fit(self, cost: measure.Cost, seconds: float, threads: Sequence[int] = (1, 2, 8, 32)) -> tuple[list[str], float, list[str]]:
        arguments = main.parser().parse_args(["--rounds", "5"])
        suite = main.Suite(arguments, [LIBC], Result(), Quiet())
        workloads = [measure.Workload("a", True, False, False, ""), measure.Workload("alone", False, False, False, "")]
        lines, scale = suite.fit(measure.lines_of(workloads, threads), cost, 1.0, seconds)
        return [str(l) for l in lines], scale, suite.result.cuts

    def test_what_fits_is_not_cut(self) -> None:
        lines, scale, cuts = self.fit(measure.Cost(1, 10), 100)
        self.assertEqual((len(lines), scale, cuts), (5, 1.0, []))

    def test_work_is_made_smaller_until_the_rounds_fit(self) -> None:
        lines, scale, cuts = self.fit(measure.Cost(1, 10), 30)
        self.assertEqual((len(lines), len(cuts)), (5, 1))
        self.assertLessEqual(5 * measure.Cost(1, 10).at(scale), 30)
        self.assertGreater(scale, 0.4)

    def test_numbers_of_threads_are_left_out_when_that_is_not_enough(self) -> None:
        lines, scale, cuts = self.fit(measure.Cost(4, 10), 16)
        self.assertEqual(lines, ["a 1", "a 8", "alone 1"])
        self.assertLessEqual(5 * measure.Cost(4, 10).at(scale) * 3 / 5, 16)
        self.assertIn("none at 2 threads", cuts[0])

    def test_bad_arguments_are_named_in_one_line_with_status_2(self) -> None:
        for words, named in (
            (["--rounds", "0"], "0"),
            (["--rounds", "x"], "'x'"),
            (["--scale", "-1"], "-1"),
            (["--threads", "65"], "'65'"),
            (["--allocators", "nomalloc"], "'nomalloc'"),
            (["--lib", "x=/nowhere.so"], "/nowhere.so"),
            (["--base", "nomalloc"], "'nomalloc'"),
            (["--only", "good,nothing"], "'nothing'"),
            (["--show", "/nowhere.json"], "/nowhere.json"),
        ):
            command = [sys.executable, str(ROOT / "bench" / "suite" / "main.py"), "--no-programs", *words]
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
        text = "# started on\n\n<not supported>,,instructions:u,0,100.00,,\n1234,,cycles:u,5,100.00,,\n"
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
        self.assertEqual(shares.counts(self.CALLGRIND, Library("one", Path("/lib/malloc.so"))), (180, 50))
        self.assertEqual(shares.counts(self.CALLGRIND, Library("other", Path("/lib/other.so"))), (180, 0))
        self.assertEqual(shares.counts(self.CALLGRIND, LIBC), (180, 0))

    def test_an_unknown_program_is_named(self) -> None:
        errors = io.StringIO()
        with unittest.mock.patch.object(sys, "argv", ["shares.py", "perl"]), contextlib.redirect_stderr(errors), self.assertRaises(SystemExit):
            shares.main()
        self.assertIn("unknown program 'perl'; choose from: python, g++, sqlite, git", errors.getvalue())


class Processes(unittest.TestCase):
    def test_the_children_of_a_process_that_has_ended_are_none(self) -> None:
        with subprocess.Popen(["sleep", "60"]) as child:
            self.assertIn(child.pid, children_of(os.getpid()))
            child.kill()
        self.assertEqual(children_of(child.pid), [])


class Caches(unittest.TestCase):
    def test_instructions_and_misses_repeat_and_are_plausible(self) -> None:
        build_workloads()
        first, second = (caches.figures(LIBC, "sh6", 0.02) for _ in range(2))
        for one, other in zip(first, second, strict=True):
            self.assertAlmostEqual(one, other, delta=0.02 * one + 0.01)
        instructions, d1, ll = first
        self.assertTrue(50 < instructions < 500, instructions)
        self.assertTrue(0 <= ll <= d1 < 5, (d1, ll))

    def test_without_the_workloads_it_says_what_builds_them(self) -> None:
        errors = io.StringIO()
        with unittest.mock.patch.object(caches, "PROGRAM", Path("/nowhere/workloads")), unittest.mock.patch.object(sys, "argv", ["caches.py"]):
            with contextlib.redirect_stderr(errors), self.assertRaises(SystemExit) as ended:
                caches.main()
        self.assertEqual(ended.exception.code, 2)
        self.assertIn("/nowhere/workloads is not there: make bench builds it", errors.getvalue())


class Output(unittest.TestCase):
    def result(self) -> Result:
        """Two allocators; the second has failed on one line, and its name would be markup."""
        m = measured({"a 1": {"lane": [1, 1], "<p>": [2, 2]}, "tail 8": {"lane": [1, 1]}})
        m.failures.append(Failure("tail 8", "<p>", 0, "status 3: [bold] <b>"))
        return Result({"cpu": "x"}, {}, [Allocator("lane", "la", True), Allocator("<p>", "p", False)], {"a": "about", "tail": "t"}, synthetic=m)

    def test_json_gives_back_the_same_result(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "suite.json"
            model.save(self.result(), file)
            again = model.load(file)
        self.assertEqual(again, self.result())
        self.assertEqual(again.synthetic.samples("a 1", "lane", "wall_ns"), [1e6, 1e6])

    def test_the_table_shows_what_failed_literally(self) -> None:
        out = io.StringIO()
        console = report.Console(file=out, width=200, highlight=False)
        report.Report(self.result(), None, console).everything()
        self.assertIn("FAILED: <p>: tail 8: status 3: [bold] <b>", out.getvalue())
        self.assertIn("0.50", out.getvalue())

    def test_calls_that_are_left_out_are_counted_in_table_and_page(self) -> None:
        result = self.result()
        result.latency_workloads = ["tail"]
        tails = {f"{call}_{p}_ns": 70.0 for call in ("malloc", "free") for p in ("p50", "p99", "p999", "p9999", "max")}
        result.synthetic.add(Run("tail 8", "lane", 1, {"wall_ns": 1e6, **tails, "malloc_preempted": 4711.0, "free_preempted": 815.0}))
        out = io.StringIO()
        report.Report(result, None, report.Console(file=out, width=200, highlight=False)).latency()
        self.assertRegex(out.getvalue(), r"lane +(0\.07 +){5}4711 +(0\.07 +){5}815")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "suite.html"
            with contextlib.redirect_stdout(io.StringIO()):
                page.write(result, file)
            self.assertRegex(file.read_text(), ">4711<.*>815<")

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
