#!/usr/bin/env python3
"""What the source systems' experiments say of their figures. Called by: run.sh."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench" / "seeds"))
import experiments
from experiments import DEFAULT, FAILED_CAS, OLD, least
from harness import Figure


def figure(**by: list[float]) -> Figure:
    names = {"old": OLD, "default": DEFAULT, "other": "no precedence, 4 probed, random"}
    found = Figure("time", "s", base=OLD)
    for name, samples in by.items():
        for sample in samples:
            found.add("8 threads", names[name], sample)
    return found


class Churn(unittest.TestCase):
    def test_a_variant_that_is_always_ahead_is_named(self) -> None:
        one = figure(old=[9, 8, 9], default=[4, 5, 4], other=[6, 6, 5])
        self.assertEqual(least(one, "8 threads"), f"least 0.44 (0.44-0.62) ({DEFAULT})")

    def test_one_round_in_which_it_is_behind_is_no_difference(self) -> None:
        one = figure(old=[9, 8, 9], default=[4, 5, 4], other=[6, 4, 5])
        self.assertEqual(
            least(one, "8 threads"),
            f"no difference between 2 of 3 variants ({DEFAULT} among them)",
        )

    def test_one_round_tells_nothing(self) -> None:
        one = figure(old=[9], default=[4], other=[6])
        self.assertIn("no difference between 1 of 3", least(one, "8 threads"))


class Arena(unittest.TestCase):
    def test_all_loops_count_as_failed_cas(self) -> None:
        layout = Path(experiments.__file__).parents[2] / "src/core/engine/layout.h"
        cells = layout.read_text().split("kNeverWaits")[:-1]
        names = [text.rsplit('cell("', 1)[1].split('"')[0] for text in cells if 'cell("' in text]
        self.assertGreater(len(names), 5)
        for name in {*names, "budgets"}:
            self.assertTrue(FAILED_CAS.fullmatch(f"counted contention at {name}"), name)
        for name in ("counted contention at lane", "counted contention at runs"):
            self.assertFalse(FAILED_CAS.match(name))


if __name__ == "__main__":
    outcome = unittest.main(exit=False, verbosity=1).result
    bad = len(outcome.failures) + len(outcome.errors)
    print(f"{outcome.testsRun - bad} passed, {bad} failed, 0 skipped")
    sys.exit(1 if bad or not outcome.testsRun else 0)
