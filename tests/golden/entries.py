#!/usr/bin/env python3
"""What a malloc+free pair costs by each entry of a lane, in instructions and in locked operations.

Used by: tests/golden/figures.py; called by: tests/golden/run.sh, in its self-test. Counted by
callgrind over the pair32 loop of bench/micro/pairs.c, which runs either in a process that never had
a thread, where every entry is the owner's, or after a thread. Valgrind has no restartable
sequences: bench/micro/pretend_rseq.c stands in for the C library's registration.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))
sys.path.insert(0, str(ROOT / "bench" / "micro"))
import common
import fast_path
import run as micro


@dataclass(frozen=True)
class Case:
    options: str
    threaded: bool
    over_owned: (
        float | None
    )  # instructions a pair, at most so many above the owned entry's; None: only shown
    most_locked: float  # operations a pair

    def title(self) -> str:
        return f"{self.options}, {'after a thread' if self.threaded else 'never threaded'}"

    def library(self, path: Path, before: Path) -> common.Library:
        return common.Library(self.title(), path, self.options, before, self.threaded)


CASES = (
    Case("lanes=owned", True, 0.5, 0),
    Case("lanes=shared:2", False, 0.5, 0),
    Case("lanes=shared:2", True, None, 2),
    Case("lanes=percpu", False, 0.5, 0),
    Case("lanes=percpu", True, 25, 0),
)


def pretend() -> Path:
    return common.compile_program(
        ROOT / "bench" / "micro" / "pretend_rseq.c", "pretend_rseq.so", "-fPIC", "-shared"
    )


def cost(path: Path, case: Case, before: Path, empty: dict[str, float]) -> float:
    return micro.instructions(case.library(path, before), micro.build(), "pair32", empty)


def locked(path: Path, case: Case, before: Path, code: dict[int, str]) -> float:
    pairs = fast_path.PAIRS["pair32"]
    ran = fast_path.executed(
        case.library(path, before), [str(micro.build()), "pair32", str(pairs)], code
    )
    return sum(n for at, n in ran.items() if fast_path.LOCKED.match(code.get(at, ""))) / pairs


def judge(
    case: Case,
    owned: float,
    instructions: float,
    locked_a_pair: float,
    verdicts: fast_path.Verdicts,
) -> None:
    title = case.title()
    figures = f"{instructions:.1f} instructions a pair, {locked_a_pair:.2f} locked operations"
    good = case.over_owned is None or instructions <= owned + case.over_owned
    verdicts.check(
        good, f"{title}: {figures}", f"at most {owned:.1f} + {case.over_owned} instructions"
    )
    verdicts.check(
        locked_a_pair <= case.most_locked + 0.02,
        f"{title}: at most {case.most_locked} locked operations a pair",
        figures,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("library", type=Path)
    path = parser.parse_args().library.resolve()
    verdicts = fast_path.Verdicts()
    if not common.need("valgrind"):
        verdicts.skip("entries", "no valgrind here")
        return verdicts.close()
    before = pretend()
    code = fast_path.disassembly(path)
    empty: dict[str, float] = {}
    owned = micro.instructions(
        common.Library("owned", path, "lanes=owned"), micro.build(), "pair32", empty
    )
    print(f"owned, never threaded: {owned:.1f} instructions a pair")
    for case in CASES:
        judge(
            case, owned, cost(path, case, before, empty), locked(path, case, before, code), verdicts
        )
    return verdicts.close()


if __name__ == "__main__":
    sys.exit(main())
