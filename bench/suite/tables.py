"""Turns a result of the suite into the tables that docs/performance.md holds, as Markdown.

Called by: main.py (--markdown, also with --show). Only tables: what they mean is for a person to
say.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import figures
from model import HIGHER_IS_BETTER, Measurements, Result

MIB = 1024.0


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def three(value: float) -> str:
    """Three figures."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"


class Tables:
    def __init__(self, result: Result) -> None:
        self.result = result
        self.base = result.peers or result.names

    def heads(self, names: Sequence[str]) -> list[str]:
        return [f"**{n}**" if n in self.result.subjects else n for n in names]

    def bars(self) -> str:
        parts = []
        for subject in self.result.subjects:
            rows = [
                [b.name, b.limit, b.figure, b.verdict, b.note]
                for b in figures.bars(self.result, subject)
                if b.met is not None
            ]
            if rows:
                parts.append(table([f"bar, for {subject}", "limit", "figure", "", ""], rows))
        return "\n".join(parts)

    def lines(self, m: Measurements, figure: str, unit: float, unit_name: str) -> str:
        """Ratios to the best peer on each line, the best peer's figure, and the means."""
        by_line = figures.ratios(m, figure, m.allocators, self.base)
        doubtful = figures.unsteady(m) if figure == figures.RATE else set()
        rows = []
        for line, by in by_line.items():
            cells = [
                f"{by[n].median:.2f}{'~' if (line, n) in doubtful else ''}" if n in by else "failed"
                for n in m.allocators
            ]
            rows.append(
                [
                    line,
                    *cells,
                    figures.in_units(figure, figures.best(m, line, figure, self.base) or 0, unit),
                ]
            )
        means = figures.means(by_line, m.allocators)
        said = [
            f"{means[n].value:.2f}"
            + ("" if means[n].whole else f" ({means[n].lines}/{means[n].of})")
            for n in m.allocators
        ]
        rows.append(["geometric mean", *said, ""])
        return table(["", *self.heads(m.allocators), f"best, {unit_name}"], rows)

    def standings(self) -> str:
        rows = []
        for what, m, figure, limit in figures.line_bars_of(self.result):
            twin = figures.twin_of_the_best(
                m, figure, limit, [n for n in m.allocators if n not in self.result.subjects]
            )
            seen = figures.standings(m, figure, limit, m.allocators)
            if seen and twin:
                rows.append(
                    [
                        (
                            f"{what}: lines {'below' if figure in HIGHER_IS_BETTER else 'beyond'} "
                            f"{limit:.2f}"
                        ),
                        ", ".join(f"{s.name} {s.beyond:.0f}" for s in seen),
                        f"{twin.beyond:.1f}",
                    ]
                )
        return (
            table(["", "of the best other", "a twin of the best peer, by noise"], rows)
            if rows
            else ""
        )

    def latency(self, line: str) -> str:
        m = self.result.synthetic
        points = {"p50": "p50", "p99": "p99", "p999": "p99.9", "p9999": "p99.99", "max": "max"}
        heads = [f"{call} {shown}" for call in ("malloc", "free") for shown in points.values()]
        rows = []
        for n in m.allocators:
            values = [
                m.typical(line, n, f"{call}_{p}_ns") for call in ("malloc", "free") for p in points
            ]
            rows.append(
                [self.heads([n])[0], *["-" if v is None else three(v / 1000) for v in values]]
            )
        return table([f"{line}: µs", *heads], rows)

    def start_up(self) -> str:
        m = self.result.synthetic
        form: dict[str, tuple[str, Callable[[float], str]]] = {
            "start_seconds": ("start-up, s", lambda v: f"{v:.1f}"),
            "start_part": ("of a run", lambda v: f"{v:.0%}"),
            "cpu_ns": ("CPU time an operation, ns", three),
            "cpus": ("CPUs in use", lambda v: f"{v:.2f}"),
            "faults": ("page faults a second", three),
            "mean_kib": ("mean RSS, MiB", lambda v: three(v / MIB)),
            "growth": ("RSS, end to beginning", lambda v: f"{v:.2f}"),
            "drift": ("rate, second half to first", lambda v: f"{v:.2f}"),
        }
        if not self.result.subjects or not m.has("start_part"):
            return ""
        subject = self.result.subjects[0]
        rows = [
            [
                line,
                *[
                    "-" if (v := m.typical(line, subject, f)) is None else say(v)
                    for f, (_, say) in form.items()
                ],
            ]
            for line in m.lines
        ]
        return table([f"{subject}, medians", *(head for head, _ in form.values())], rows)

    def whole(self) -> str:
        result, m, programs = self.result, self.result.synthetic, self.result.programs
        counted = (
            f"{len(m.lines)} workload lines in {m.rounds} rounds, "
            f"{len(programs.lines)} real programs in {programs.rounds}"
        )
        machine = f"{result.machine.get('cpu', '?')}, {result.machine.get('cores', '?')} CPUs"
        parts = [f"<!-- {counted}; {machine}. Rates: {result.rule}. -->\n", self.bars()]
        if m.lines:
            parts += [
                "Rate, ratio to the best peer's (above 1: better)\n",
                self.lines(m, figures.RATE, 1.0, "a second"),
            ]
            parts += [
                "Peak RSS, ratio to the lowest peer's (below 1: better)\n",
                self.lines(m, figures.PEAK, MIB, "MiB"),
            ]
            parts += [self.standings(), self.start_up()]
            parts += [
                self.latency(line)
                for line in m.lines
                if line.rpartition(" ")[0] in result.latency_workloads
            ]
        if programs.lines:
            parts += [
                "Real programs, time, ratio to the best peer's (below 1: better)\n",
                self.lines(programs, figures.PROGRAM_TIME, 1.0, "s"),
            ]
            parts += [
                "Real programs, peak RSS, ratio to the lowest peer's\n",
                self.lines(programs, figures.PROGRAM_PEAK, MIB, "MiB"),
            ]
        remarks = [*figures.remarks(m), *result.remarks, *result.cuts, *result.left_out]
        parts += ["".join(f"- {r}\n" for r in remarks)] if remarks else []
        return "\n".join(p for p in parts if p)


def write(result: Result, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(Tables(result).whole())
