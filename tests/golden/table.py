"""Golden figures: a text table of names, values and tolerances, committed, that what is measured
must agree with.

Used by: tests/golden/figures.py, pools.py and heaps.py (instructions), tests/simulator/run.py
(transfers of cache lines).

A figure that is worse than the table's by more than its tolerance fails the change that made it so.
One that is better by more than that fails as well, so that the table stays true and the gain is
kept: the test's --update writes the table anew. The figures depend on the compiler, so the first
line says who made them; made otherwise, nothing is judged.
"""

import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


def maker_of(library: Path) -> str:
    """The machine that a library is for, and the compilers that it names as its makers."""
    command = ["readelf", "--file-header", "--string-dump=.comment", str(library)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    machine = re.search(r"Machine:\s+(.*)", text)
    compilers = {name.strip() for name in re.findall(r"\]\s+(.*)$", text, re.MULTILINE)}
    return (
        f"{machine.group(1) if machine else 'unknown machine'}, "
        f"{'; '.join(sorted(compilers)) or 'unknown'}"
    )


class Verdicts(Protocol):
    """Those of tests/golden/fast_path.py."""

    failed: int

    def check(self, good: bool, what: str) -> None: ...

    def skip(self, what: str, why: str) -> None: ...


@dataclass(frozen=True)
class Tolerance:
    """How far a figure may be off: a part of it, and at least so much. It is worked out when the
    table is written."""

    part: float
    least: float
    digits: int  # behind the point, in the table

    def of(self, value: float) -> float:
        return max(self.part * value, self.least)


@dataclass(frozen=True)
class Verdict:
    good: bool
    text: str


class Table:
    def __init__(
        self,
        file: Path,
        maker: str,
        unit: str,
        tolerance: Tolerance,
        update: str,
        wide: Mapping[str, float] | None = None,
    ) -> None:
        """wide: the part by which a figure may be off that takes more than the usual one."""
        self.file, self.maker, self.unit, self.tolerance, self.update = (
            file,
            maker,
            unit,
            tolerance,
            update,
        )
        self.wide = wide or {}

    def head(self) -> str:
        return f"# {self.maker}; {self.unit}: name, value, tolerance"

    def write(self, measured: Mapping[str, float]) -> None:
        digits = self.tolerance.digits
        allowed = {
            name: max(self.tolerance.of(value), self.wide.get(name, 0) * value)
            for name, value in measured.items()
        }
        rows = [
            f"{name}\t{value:.{digits}f}\t{allowed[name]:.{digits}f}"
            for name, value in measured.items()
        ]
        self.file.write_text("\n".join([self.head(), *rows]) + "\n")

    def made_elsewhere(self) -> str | None:
        """Why nothing can be judged here, or None."""
        head = self.file.read_text().split("\n", 1)[0] if self.file.exists() else self.head()
        return (
            None
            if head == self.head()
            else f"{self.file.name} was made with {head[2:].split(';')[0]}; here: {self.maker}"
        )

    def read(self) -> dict[str, tuple[float, float]]:
        found = {}
        for line in self.file.read_text().splitlines()[1:]:
            name, value, tolerance = line.split("\t")
            found[name] = float(value), float(tolerance)
        return found

    def judge(self, measured: Mapping[str, float], whole: bool = True) -> list[Verdict]:
        """whole: everything was measured, so that what the table has beyond it is left over."""
        if not self.file.exists():
            return [Verdict(False, f"{self.file.name} is not there: {self.update}")]
        golden = self.read()
        verdicts = [
            self._judge_one(name, value, golden.get(name)) for name, value in measured.items()
        ]
        left = [name for name in golden if name not in measured] if whole else []
        return verdicts + [
            Verdict(
                False, f"{name}: is in {self.file.name}, but nothing measures it: {self.update}"
            )
            for name in left
        ]

    def settle(
        self,
        measured: dict[str, float],
        verdicts: Verdicts,
        update: bool,
        judge: Callable[[], list[Verdict]] | None = None,
    ) -> None:
        """Writes the table from what was measured, if all has gone well so far; or judges that by
        the table, if need be in a way of its own."""
        if update and verdicts.failed:
            print(f"{self.file.name} stays as it was: not all is well")
        elif update:
            self.write(measured)
            print(f"wrote {self.file.name}")
        elif why := self.made_elsewhere():
            for name, value in measured.items():
                verdicts.skip(f"{name}: {value:.{self.tolerance.digits}f} {self.unit}", why)
        else:
            for verdict in judge() if judge else self.judge(measured):
                verdicts.check(verdict.good, verdict.text)

    def _judge_one(self, name: str, value: float, golden: tuple[float, float] | None) -> Verdict:
        digits = self.tolerance.digits
        said = f"{name}: {value:.{digits}f} {self.unit}"
        if golden is None:
            return Verdict(False, f"{said}: not in {self.file.name}: {self.update}")
        wanted, tolerance = golden
        said += f", golden {wanted:.{digits}f} +- {tolerance:.{digits}f}"
        # The table's values are rounded.
        if value > wanted + tolerance + 0.5 * 10**-digits:
            return Verdict(False, f"{said}: WORSE (if it is worth that: {self.update})")
        if value < wanted - tolerance - 0.5 * 10**-digits:
            return Verdict(False, f"{said}: better; keep it: {self.update}")
        return Verdict(True, said)
