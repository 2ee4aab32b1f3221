"""The suite in the terminal: progress while it measures, tables at the end.

Used by: main.py. Where the output is no terminal, progress is plain lines and tables have their
full width.
"""

import statistics
import time
from collections.abc import Callable, Sequence

import figures
from figures import Bar, Ratio
from model import HIGHER_IS_BETTER, Measurements, Result
from rich.console import Console
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

PLAIN_SECONDS = 15.0
FILE_WIDTH = 200
SIDE_BY_SIDE = 5  # so many allocators have time and memory in one table
MIB = 1024.0


class TerminalProgress:
    def __init__(self, console: Console) -> None:
        self._bars = Bars(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[what]}"),
            console=console,
            transient=True,
        )
        self._task = self._bars.add_task("", what="", visible=False)

    def start(self, title: str, steps: int) -> None:
        self._task = self._bars.add_task(title, total=steps, what="")
        self._bars.start()
        self._began = False

    def step(self, what: str) -> None:
        # The step that begins now is not done yet.
        self._bars.update(self._task, advance=1 if self._began else 0, what=what)
        self._began = True

    def note(self, text: str) -> None:
        self._bars.console.print(Text(f"  {text}"))

    def finish(self) -> None:
        self._bars.stop()
        self._bars.remove_task(self._task)


class PlainProgress:
    """A line at the start, at the end, and now and then."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._title, self._steps, self._done = "", 0, 0
        self._began = self._told = 0.0

    def start(self, title: str, steps: int) -> None:
        self._title, self._steps, self._done = title, steps, 0
        self._began = self._told = time.monotonic()
        self._write(f"  {title}: {steps} runs")

    def step(self, what: str) -> None:
        now = time.monotonic()
        if now - self._told >= PLAIN_SECONDS:
            left = (now - self._began) * (self._steps - self._done) / max(1, self._done)
            self._write(
                f"  {self._title}: {self._done} of {self._steps}, {now - self._began:.0f} s, "
                f"about {left:.0f} s left: {what}"
            )
            self._told = now
        self._done += 1

    def note(self, text: str) -> None:
        self._write(f"  {text}")

    def finish(self) -> None:
        self._write(f"  {self._title}: done, {time.monotonic() - self._began:.0f} s")


def console_for(standard_error: bool) -> Console:
    console = Console(stderr=standard_error, highlight=False)
    return (
        console
        if console.is_terminal
        else Console(stderr=standard_error, highlight=False, width=FILE_WIDTH)
    )


def shade(figure: str, value: float, bad: float) -> str:
    if figures.is_beyond(figure, value, bad):
        return "red"
    return "yellow" if figures.is_beyond(figure, value, 1.0) else "green"


def ratio_cell(figure: str, value: Ratio | None, subject: bool, mark: str, bad: float) -> Text:
    if value is None:
        return Text("failed", "bold red")
    return Text(
        f"{value.median:.2f}{mark}", f"bold {shade(figure, value.median, bad)}" if subject else ""
    )


def mean_cell(figure: str, mean: figures.Mean, subject: bool) -> Text:
    if not mean.lines:
        return Text("-")
    text = f"{mean.value:.2f}" if mean.whole else f"{mean.value:.2f} ({mean.lines}/{mean.of})"
    bad = figures.LINE_RATE_LIMIT if figure in HIGHER_IS_BETTER else 1.1
    return Text(text, f"bold {shade(figure, mean.value, bad)}" if subject else "bold")


def new_table(title: str, *heads: str) -> Table:
    # A line of its own: a title inside of the table is cut to the table's width.
    table = Table(
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="bold",
        title=title,
        title_justify="left",
        title_style="bold",
    )
    for i, head in enumerate(heads):
        table.add_column(head, justify="left" if i == 0 else "right", no_wrap=True)
    return table


class Report:
    def __init__(
        self, result: Result, base: str | None, console: Console, cpu: bool = False
    ) -> None:
        self.result = result
        self.console = console
        self.cpu = cpu
        self.base = [base] if base else result.peers or result.names
        self.whom = base or ("the best peer" if result.peers else "the best")

    def to(self, m: Measurements, figure: str) -> str:
        which = "above" if figure in HIGHER_IS_BETTER else "below"
        return (
            f"{'best of the rounds, ' if m.least else ''}ratio to {self.whom} on each line "
            f"({which} 1: better)"
        )

    def marks(self, m: Measurements, figure: str) -> dict[tuple[str, str], str]:
        """What stands behind a cell: * fewer rounds, ~ never steady."""
        found = dict.fromkeys(m.slow_ones(), "*")
        return found | (dict.fromkeys(figures.unsteady(m), "~") if figure == figures.RATE else {})

    def show(self, table: Table) -> None:
        title, table.title = str(table.title), None
        self.console.print()
        self.console.print(Text(title, "bold"), soft_wrap=True)
        # A narrow terminal wraps the lines; a table that is fitted to it would lose figures.
        for column in table.columns:
            if column.no_wrap:
                column.min_width = max(len(str(cell)) for cell in [column.header, *column.cells])
        least = Measurement.get(
            self.console, self.console.options.update(max_width=10 * FILE_WIDTH), table
        ).minimum
        wide = Console(
            file=self.console.file,
            width=least,
            force_terminal=self.console.is_terminal,
            highlight=False,
        )
        (wide if least > self.console.width else self.console).print(table)

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, markup=False)

    def spread(self, m: Measurements, line: str, figure: str) -> str:
        """Of the rounds of the first allocator."""
        samples = m.samples(line, m.allocators[0], figure)
        middle = m.typical(line, m.allocators[0], figure)
        return (
            f"{(max(samples) - min(samples)) / middle:.0%}" if len(samples) > 1 and middle else "-"
        )

    def side_by_side(
        self, m: Measurements, figure: str, what: str, unit: float, unit_name: str
    ) -> None:
        """A figure and memory of few allocators in one table."""
        names = m.allocators
        shorts = [self.result.short(n) for n in names]
        start = ["start-up"] if m.has("start_part") else []
        heads = ["", *shorts, f"best {unit_name}", "spread", *start, *shorts, "best MiB"]
        said = (
            f"{what}: {self.to(m, figure)}; then peak RSS: {self.to(m, figures.PEAK)}; "
            f"spread of {shorts[0]}'s rounds"
        )
        table = new_table(said, *heads)
        main = figures.ratios(m, figure, names, self.base)
        peaks = figures.ratios(m, figures.PEAK, names, self.base)
        bad = figures.LINE_RATE_LIMIT if figure in HIGHER_IS_BETTER else 1.1
        for line in main:
            cells: list[Text | str] = [line]
            for by, f, scale, limit in (
                (main, figure, unit, bad),
                (peaks, figures.PEAK, MIB, figures.LINE_PEAK_LIMIT),
            ):
                marks = self.marks(m, f)
                for n in names:
                    cells.append(
                        ratio_cell(
                            f,
                            by.get(line, {}).get(n),
                            n in self.result.subjects,
                            marks.get((line, n), ""),
                            limit,
                        )
                    )
                best = figures.best(m, line, f, self.base)
                cells.append(Text(figures.in_units(f, best, scale) if best else "-", "dim"))
                if by is main:
                    cells.append(Text(self.spread(m, line, figure), "dim"))
                    cells += [Text(self.start_up(m, line), "dim")] if start else []
            table.add_row(*cells)
        cells = [Text("geometric mean", "bold")]
        for by, f in ((main, figure), (peaks, figures.PEAK)):
            means = figures.means(by, names)
            cells += [mean_cell(f, means[n], n in self.result.subjects) for n in names]
            cells += ["" for _ in ["best", "spread", *start]] if by is main else [""]
        table.add_row(*cells)
        self.show(table)

    def start_up(self, m: Measurements, line: str) -> str:
        """What of a run is over before it is measured: the median of all allocators' runs."""
        parts, seconds = (
            [s for n in m.allocators for s in m.samples(line, n, f"start_{f}")]
            for f in ("part", "seconds")
        )
        return (
            f"{statistics.median(seconds):.1f} s {statistics.median(parts):.0%}" if parts else "-"
        )

    def ratios(
        self,
        m: Measurements,
        figure: str,
        title: str,
        bad: float,
        unit: float = 0.0,
        unit_name: str = "",
    ) -> None:
        names = m.allocators
        more = [f"best {unit_name}"] if unit else []
        start = ["start-up"] if figure == figures.RATE and m.has("start_part") else []
        table = new_table(
            f"{title}: {self.to(m, figure)}",
            "",
            *[self.result.short(n) for n in names],
            *more,
            *start,
        )
        by_line = figures.ratios(m, figure, names, self.base)
        marks = self.marks(m, figure)
        for line, by in by_line.items():
            best = figures.best(m, line, figure, self.base)
            cells = [
                ratio_cell(
                    figure, by.get(n), n in self.result.subjects, marks.get((line, n), ""), bad
                )
                for n in names
            ]
            cells += (
                [Text(figures.in_units(figure, best, unit) if best else "-", "dim")] if unit else []
            )
            table.add_row(line, *cells, *[Text(self.start_up(m, line), "dim") for _ in start])
        means = figures.means(by_line, names)
        table.add_row(
            Text("geometric mean", "bold"),
            *[mean_cell(figure, means[n], n in self.result.subjects) for n in names],
            *["" for _ in more + start],
        )
        self.show(table)

    def geometric_means(self, m: Measurements) -> None:
        columns = {
            "rate": "rate (above 1: better)",
            "cpu_ns": "CPU time an operation",
            "peak_kib": "peak RSS",
            "mean_kib": "mean RSS",
            "end_kib": "RSS after the end",
            "instructions": "instructions an operation",
            "cycles": "cycles an operation",
        }
        columns = {f: t for f, t in columns.items() if m.has(f)}
        table = new_table(
            f"Geometric means over all workload lines, ratio to {self.whom} on each line "
            "(but for rates, below 1: better)",
            "",
            *columns.values(),
        )
        means = {
            f: figures.means(figures.ratios(m, f, m.allocators, self.base), m.allocators)
            for f in columns
        }
        for n in m.allocators:
            table.add_row(
                n, *[mean_cell(f, means[f][n], n in self.result.subjects) for f in columns]
            )
        self.show(table)
        if not self.result.counters:
            self.say(
                "Instructions and cycles of the workloads: not counted here "
                "(perf stat counts none on this machine)."
            )

    def latency(self) -> None:
        m = self.result.synthetic
        for workload in self.result.latency_workloads:
            lines = [line for line in m.lines if line.rpartition(" ")[0] == workload]
            line = f"{workload} {figures.LATENCY_THREADS}"
            if not lines:
                continue
            line = line if line in lines else lines[-1]
            points = {"p50": "p50", "p99": "p99", "p999": "p99.9", "p9999": "p99.99", "max": "max"}
            heads = [
                f"{call} {p}" for call in ("malloc", "free") for p in (*points.values(), "left out")
            ]
            title = (
                f"Single calls of {line}: microseconds, median of the rounds; "
                "calls in which the scheduler took the CPU are left out"
            )
            table = new_table(title, "", *heads)
            for n in m.allocators:
                cells = []
                for call in ("malloc", "free"):
                    values = [m.typical(line, n, f"{call}_{p}_ns") for p in points]
                    cells += [
                        "-" if v is None else f"{v / 1000:.2f}" if v < 1e4 else f"{v / 1000:.0f}"
                        for v in values
                    ]
                    left_out = m.typical(line, n, f"{call}_preempted")
                    cells.append("-" if left_out is None else f"{left_out:.0f}")
                table.add_row(n, *cells)
            self.show(table)

    def idle(self) -> None:
        m = self.result.idle
        if not m.lines:
            return
        seconds = f"{self.result.idle_seconds:g} s"
        heads = [self.result.short(n) for n in m.allocators]
        table = new_table(
            f"Resident memory {seconds} after the work, without a further call: "
            "MiB (part of the peak)",
            "",
            *heads,
        )
        for line in m.lines:
            cells = []
            for n in m.allocators:
                value, peak = m.typical(line, n, "idle_kib"), m.typical(line, n, "peak_kib")
                cells.append(
                    "failed"
                    if value is None or not peak
                    else f"{value / MIB:.0f} ({value / peak:.0%})"
                )
            table.add_row(line, *cells)
        self.show(table)

    def pairs(self) -> None:
        counted = self.result.pairs.get("instructions_per_pair", {})
        timed = self.result.pairs.get("ns_per_pair", {})
        if not timed and not counted:
            return
        workloads = list(
            dict.fromkeys(w for by in [*counted.values(), *timed.values()] for w in by)
        )
        table = new_table(
            "A malloc+free pair: user instructions / nanoseconds (median)", "", *workloads
        )
        for n in self.result.names:
            cells = []
            for w in workloads:
                instructions, spread = counted.get(n, {}).get(w), timed.get(n, {}).get(w)
                left = "-" if instructions is None else f"{instructions:.1f}"
                cells.append(
                    f"{left} / {'-' if spread is None else format(spread['median'], '.1f')}"
                )
            table.add_row(n, *cells)
        self.show(table)

    def bars(self) -> None:
        for subject in self.result.subjects:
            everything = figures.bars(self.result, subject)
            bars = [b for b in everything if b.met is not None]
            if not bars:
                continue
            table = new_table(
                f"The bars of the project, for {subject}", "bar", "limit", "figure", "met?", ""
            )
            table.columns[4].justify, table.columns[4].no_wrap, table.columns[4].min_width = (
                "left",
                False,
                50,
            )
            for b in bars:
                style = "green" if b.met else "bold red"
                table.add_row(
                    b.name, b.limit, b.figure, Text(b.verdict, style), Text(b.note, "dim")
                )
            self.show(table)
            for b in bars:
                self.beyond(b)
            if len(bars) < len(everything):
                self.say(f"Not measured: {len(everything) - len(bars)} other bars.")

    def standings(self) -> None:
        """How every allocator stands under the bars on lines, and how far noise alone takes one
        beyond them."""
        for what, m, figure, limit in figures.line_bars_of(self.result):
            others = [n for n in m.allocators if n not in self.result.subjects]
            rows = figures.standings(m, figure, limit, m.allocators)
            twin = figures.twin_of_the_best(m, figure, limit, others)
            if not rows or twin is None:
                continue
            which = (
                f"below {limit:.2f} of the best other's rate"
                if figure in HIGHER_IS_BETTER
                else f"beyond {limit:.2f} of the best other's time"
            )
            table = new_table(
                f"Lines {which}, {what}: every allocator under the same bar", "", "lines", "worst"
            )
            for s in rows:
                table.add_row(
                    s.name,
                    f"{s.beyond:.0f}",
                    "failed" if s.worst == figures.failed_at(figure) else f"{s.worst:.2f}",
                )
            table.add_row(
                "a twin of the best peer on each line, by noise alone",
                f"{twin.beyond:.1f}",
                f"{twin.worst:.2f}",
                end_section=True,
            )
            self.show(table)

    def beyond(self, bar: Bar) -> None:
        if bar.beyond:
            items = [f"{b.line} {b.shown}" for b in bar.beyond]
            self.say(f"Not {bar.limit} in '{bar.name}': {', '.join(items)}")

    def footer(self) -> None:
        result = self.result
        self.console.print()
        if result.rule and result.synthetic.lines:
            self.say(
                f"Rates: {result.rule}. Operations are allocations; those of cache-scratch and "
                "cache-thrash thousands of writes."
            )
        if start := figures.start_up(result.synthetic):
            least, middle, most = start
            self.say(
                f"Start-up: {middle:.0%} of a run is over before it is measured "
                f"({least:.0%} to {most:.0%}, by line); none of it is in a rate."
            )
        for m, what, figure in (
            (result.synthetic, "rates of the workloads", figures.RATE),
            (result.programs, "times of the real programs", figures.PROGRAM_TIME),
        ):
            noise = figures.noise(m, figure)
            if noise:
                self.say(
                    f"Noise: (greatest - least) / median of the {what} in {m.rounds} rounds is "
                    f"{noise.median:.0%} in the middle, {noise.high:.0%} or more on a tenth of "
                    "lines and allocators."
                )
        for m in (result.synthetic, result.programs):
            if m.slow:
                self.say(
                    "* measured in fewer rounds, as it took more than 5 times as long as the "
                    f"fastest: {self.slow_text(m)}"
                )
        for remark in figures.remarks(result.synthetic):
            self.say(f"Remark: {remark}")
        for name, value in result.machine_at_end.items():
            self.say(
                f"{name.capitalize() if name[0].islower() else name}: {value} "
                f"(at start: {result.machine.get('load average at start', '?')})"
                if name.startswith("load")
                else f"{name}: {value}"
            )
        for title, items in (
            ("Remark", result.remarks),
            ("Cut", result.cuts),
            ("Left out", result.left_out),
        ):
            for item in items:
                self.say(f"{title}: {item}")
        self.failures()

    def slow_text(self, m: Measurements) -> str:
        by: dict[str, int] = {}
        for s in m.slow:
            by[s.allocator] = by.get(s.allocator, 0) + 1
        return ", ".join(f"{n} on {count} of {len(m.lines)} lines" for n, count in by.items())

    def failures(self) -> None:
        seen: dict[tuple[str, str], list[str]] = {}
        for m in (self.result.synthetic, self.result.programs, self.result.idle):
            for f in m.failures:
                seen.setdefault((f.allocator, f.reason), []).append(f.line)
        for (name, why), lines in seen.items():
            where = ", ".join(
                f"{line} (x{lines.count(line)})" if lines.count(line) > 1 else line
                for line in dict.fromkeys(lines)
            )
            self.console.print(Text(f"FAILED: {name}: {where}: {why}", "bold red"), soft_wrap=True)

    def machine(self, what: dict[str, str]) -> None:
        for name, value in what.items():
            self.say(f"  {name}: {value}")

    def everything(self) -> None:
        synthetic, programs = self.result.synthetic, self.result.programs
        few = len(self.result.names) <= SIDE_BY_SIDE
        if synthetic.lines and few:
            if self.cpu:
                self.side_by_side(synthetic, "cpu_ns", "CPU time an operation", 1.0, "ns")
            else:
                self.side_by_side(synthetic, figures.RATE, "Rate", 1.0, "a second")
        elif synthetic.lines:
            if self.cpu:
                self.ratios(synthetic, "cpu_ns", "CPU time an operation", 1.1, 1.0, "ns")
            else:
                self.ratios(
                    synthetic, figures.RATE, "Rate", figures.LINE_RATE_LIMIT, 1.0, "a second"
                )
            self.ratios(synthetic, figures.PEAK, "Peak RSS", figures.LINE_PEAK_LIMIT, MIB, "MiB")
        if programs.lines and few:
            self.side_by_side(
                programs,
                "cpu_seconds" if self.cpu else figures.PROGRAM_TIME,
                "CPU time" if self.cpu else "Time",
                1.0,
                "s",
            )
        elif programs.lines:
            self.ratios(
                programs,
                figures.PROGRAM_TIME,
                "Real programs, time",
                figures.PROGRAM_LIMIT,
                1.0,
                "s",
            )
            self.ratios(
                programs, "cpu_seconds", "Real programs, CPU time", figures.PROGRAM_LIMIT, 1.0, "s"
            )
            self.ratios(
                programs,
                figures.PROGRAM_PEAK,
                "Real programs, peak RSS",
                figures.LINE_PEAK_LIMIT,
                MIB,
                "MiB",
            )
            if programs.has("settled_kib"):
                self.ratios(
                    programs,
                    "settled_kib",
                    "Real programs, RSS after the work",
                    figures.LINE_PEAK_LIMIT,
                    MIB,
                    "MiB",
                )
        self.latency()
        self.idle()
        self.pairs()
        if synthetic.lines:
            self.geometric_means(synthetic)
        self.bars()
        self.standings()
        self.footer()


def legend(names: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{short} = {name}" for name, short in names if name != short)
