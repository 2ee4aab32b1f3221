"""Turns a result of the suite into one HTML page that needs no network: plots as inline SVG,
tables, what failed, the machine.

Called by: main.py (--page, also with --show). The look and the helpers are those of
bench/seeds/page.py.
"""

import math
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import figures
import plots
from figures import Bar, Mean, Ratio
from model import HIGHER_IS_BETTER, Measurements, Result
from seeds.page import STYLE, escape

MIB = 1024.0
TAIL_TEXT = (
    "<p>Time of single calls, in microseconds; median of the rounds. Left out are the calls in "
    "which the scheduler gave the CPU to another thread: their number is in the last column of "
    "each.</p>"
)
POINTS = {"p50": "p50", "p99": "p99", "p999": "p99.9", "p9999": "p99.99", "max": "max"}
MEANS = {
    "rate": "rate",
    "cpu_ns": "CPU time an operation",
    "peak_kib": "peak RSS",
    "mean_kib": "mean RSS",
    "end_kib": "RSS after the end",
    "instructions": "instructions an operation",
    "cycles": "cycles an operation",
}
PROGRAM_MEANS = {
    "seconds": "time",
    "cpu_seconds": "CPU time",
    "peak_kib": "peak RSS",
    "settled_kib": "RSS after the work",
    "minor_faults": "page faults",
}
OWN_STYLE = """
body { max-width: 1120px; }
nav { font-size: 13px; margin: 10px 0 0; } nav a { margin-right: 14px; }
table.heat { font-size: 12px; font-variant-numeric: tabular-nums; border-collapse: separate; \
border-spacing: 1px; width: auto; }
table.heat th, table.heat td { padding: 2px 7px; text-align: right; border: 0; } \
table.heat td:first-child { text-align: left; white-space: nowrap; }
table.heat tr.mean td { font-weight: 600; border-top: 2px solid var(--rule); } \
table.heat th.mine, table.heat td.mine { font-weight: 600; }
table.heat td.bad { background: #fbe3df; color: #9c2f1c; } \
td.met { color: #2f7d4f; font-weight: 600; } td.missed { color: #b3371f; font-weight: 600; }
td.none { color: var(--faint); }
table.bars th:nth-child(2), table.bars th:nth-child(3), table.bars th:nth-child(4) \
{ text-align: left; } table.bars td:first-child { min-width: 330px; }
table.bars td:nth-child(4) { white-space: nowrap; } \
table.bars td { vertical-align: top; text-align: left; } \
table.bars td:nth-child(2), table.bars td:nth-child(3) { white-space: nowrap; }
table.bars td:nth-child(3) { font-weight: 600; } .beyond { color: var(--faint); font-size: 12px; }
.wide { overflow-x: auto; } details.line { border-top: 1px solid var(--rule); padding: 5px 0; } \
details.line summary { cursor: pointer; }
details.line summary span { color: var(--faint); font-size: 13px; margin-left: 8px; } \
.failed { border-left: 3px solid #b3371f; padding: 2px 0 2px 12px; margin: 6px 0; }
.chips { font-size: 13px; color: var(--faint); } \
pre { font-size: 12px; overflow-x: auto; background: #f7f8fa; padding: 10px; }
"""


def background(value: float, figure: str = "") -> str:
    """Green where it is better than 1, red where it is worse, the stronger the further; white near
    1."""
    strength = min(1.0, abs(math.log2(max(value, 1e-6))) / 1.6)
    red, green, blue = (214, 92, 66) if figures.is_beyond(figure, value, 1.0) else (64, 150, 110)
    mixed = (round(255 + (c - 255) * strength * 0.75) for c in (red, green, blue))
    return "#" + "".join(f"{c:02x}" for c in mixed)


def counted(rounds: int) -> str:
    return f"{rounds} round{'' if rounds == 1 else 's'}"


def number(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


class Page:
    def __init__(self, result: Result) -> None:
        self.result = result
        self.base = result.peers or result.names
        self.best = "the best peer" if result.peers else "the best"
        self.shorts = {a.name: a.short for a in result.allocators}

    def mine(self, name: str) -> str:
        return ' class="mine"' if name in self.result.subjects else ""

    # -- tables

    def heat_cell(
        self, figure: str, value: Ratio | None, name: str, mark: str, absolute: str
    ) -> str:
        if value is None:
            return '<td class="bad">failed</td>'
        title = (
            f"{name}: {absolute}; least–greatest {value.low:.2f}–{value.high:.2f}, "
            f"{value.samples} runs"
        )
        return (
            f'<td{self.mine(name)} style="background:{background(value.median, figure)}" '
            f'title="{escape(title)}">{number(value.median)}{mark}</td>'
        )

    def mean_cell(self, figure: str, mean: Mean, name: str) -> str:
        if not mean.lines:
            return '<td class="none">–</td>'
        note = "" if mean.whole else f" <small>({mean.lines}/{mean.of})</small>"
        return (
            f'<td{self.mine(name)} style="background:{background(mean.value, figure)}">'
            f"{number(mean.value)}{note}</td>"
        )

    def heads(self, names: Sequence[str]) -> str:
        return "".join(
            f'<th{self.mine(n)} title="{escape(n)}">{escape(self.shorts[n])}</th>' for n in names
        )

    def heat(self, m: Measurements, figure: str, unit: float, unit_name: str) -> str:
        by_line = figures.ratios(m, figure, m.allocators, self.base)
        marks = dict.fromkeys(m.slow_ones(), "*") | (
            dict.fromkeys(figures.unsteady(m), "~") if figure == figures.RATE else {}
        )
        rows = [f"<tr><th></th>{self.heads(m.allocators)}<th>best [{unit_name}]</th></tr>"]
        for line, by in by_line.items():
            cells = []
            for n in m.allocators:
                middle = m.typical(line, n, figure)
                absolute = f"{middle / unit:.4g} {unit_name}" if middle is not None else ""
                cells.append(
                    self.heat_cell(figure, by.get(n), n, marks.get((line, n), ""), absolute)
                )
            best = figures.best(m, line, figure, self.base)
            rows.append(
                f"<tr><td>{escape(line)}</td>{''.join(cells)}<td>{(best or 0) / unit:.4g}</td></tr>"
            )
        means = figures.means(by_line, m.allocators)
        cells = [self.mean_cell(figure, means[n], n) for n in m.allocators]
        rows.append(f'<tr class="mean"><td>geometric mean</td>{"".join(cells)}<td></td></tr>')
        return f'<div class="wide"><table class="heat">{"".join(rows)}</table></div>'

    def means(self, m: Measurements, columns: dict[str, str]) -> str:
        columns = {f: t for f, t in columns.items() if m.has(f)}
        rows = [
            "<tr><th></th>"
            + "".join(f"<th>{t}</th>" for t in columns.values())
            + "<th>noise</th></tr>"
        ]
        by = {
            f: figures.means(figures.ratios(m, f, m.allocators, self.base), m.allocators)
            for f in columns
        }
        for n in m.allocators:
            noise = figures.noise(m, next(iter(columns)), [n])
            cells = "".join(self.mean_cell(f, by[f][n], n) for f in columns)
            rows.append(
                f"<tr><td{self.mine(n)}>{escape(n)}</td>{cells}"
                f"<td>{f'{noise.median:.0%}' if noise else '–'}</td></tr>"
            )
        return f'<div class="wide"><table class="heat">{"".join(rows)}</table></div>'

    def bar_rows(self, bars: Sequence[Bar]) -> str:
        rows = ["<tr><th>bar</th><th>limit</th><th>figure</th><th>met?</th><th></th></tr>"]
        for b in bars:
            style = {True: "met", False: "missed", None: "none"}[b.met]
            beyond = ""
            if b.beyond:
                items = ", ".join(f"{b2.line} {b2.shown}" for b2 in b.beyond)
                beyond = f'<div class="beyond">beyond it: {escape(items)}</div>'
            note = f"{escape(b.note)}{beyond}"
            cells = (
                f"<td>{escape(b.name)}</td><td>{escape(b.limit)}</td><td>{escape(b.figure)}</td>"
            )
            rows.append(f'<tr>{cells}<td class="{style}">{b.verdict}</td><td>{note}</td></tr>')
        return f'<table class="bars">{"".join(rows)}</table>'

    # -- sections

    def section(self, key: str, title: str, *parts: str) -> str:
        return f'<section id="{key}"><h2>{escape(title)}</h2>{"".join(parts)}</section>'

    def bars(self) -> str:
        parts = []
        for subject in self.result.subjects:
            heading = f"<h3>{escape(subject)}</h3>" if len(self.result.subjects) > 1 else ""
            parts.append(heading + self.bar_rows(figures.bars(self.result, subject)))
        parts += self.standings() if parts else []
        return self.section("bars", "The bars of the project", *parts) if parts else ""

    def standings(self) -> list[str]:
        parts = []
        for what, m, figure, limit in figures.line_bars_of(self.result):
            rows = figures.standings(m, figure, limit, m.allocators)
            twin = figures.twin_of_the_best(
                m, figure, limit, [n for n in m.allocators if n not in self.result.subjects]
            )
            if not rows or twin is None:
                continue
            cells = [
                f"<tr><td{self.mine(s.name)}>{escape(s.name)}</td><td>{s.beyond:.0f}</td>"
                f"<td>{'failed' if s.worst == figures.failed_at(figure) else f'{s.worst:.2f}'}"
                "</td></tr>"
                for s in rows
            ]
            cells.append(
                "<tr><td>a twin of the best peer on each line</td>"
                f"<td>{twin.beyond:.1f}</td><td>{twin.worst:.2f}</td></tr>"
            )
            worse = "rate is less" if figure in HIGHER_IS_BETTER else "time is more"
            parts.append(
                f"<h3>Every allocator under the bar of {limit:.2f} on each line: {what}</h3>"
                f"<p>Lines on which its {worse} than that times the best of the others', and the "
                "worst of them. The last row is what noise alone does: an allocator as good as the "
                "best peer on every line, its rounds and theirs drawn by chance from those that "
                "were measured.</p>"
                '<table class="heat"><tr><th></th><th>lines beyond</th><th>worst</th></tr>'
                f"{''.join(cells)}</table>"
            )
        return parts

    def overview(self) -> str:
        m = self.result.synthetic
        if not m.lines:
            return ""
        parts = [
            "<p>Geometric means over all workload lines of the ratio to "
            f"{self.best} on each line: a rate above 1, and memory below 1, is "
            + "better than any peer is on each line. Whiskers: the least and the greatest mean of "
            "a single round, over the lines that have all "
            + "rounds. Best lies at the upper left.</p>",
            "<figure>"
            f"{plots.scatter(self.result, m, figures.RATE, self.base, 'workloads')}</figure>",
            self.means(m, MEANS),
        ]
        if not all(
            x.whole
            for x in figures.means(
                figures.ratios(m, figures.RATE, m.allocators, self.base), m.allocators
            ).values()
        ):
            parts.append(
                "<p>(n/m): over the n of m lines that it ran; such a mean is not comparable with "
                "the others. The bars above compare two allocators on the lines that both ran.</p>"
            )
        if not self.result.counters:
            parts.append(
                '<p class="source">Instructions and cycles: not counted here (perf stat counts '
                "none on this machine).</p>"
            )
        return self.section("means", "Rate against memory", *parts)

    def lines(self) -> str:
        m = self.result.synthetic
        if not m.lines or not self.result.subjects:
            return ""
        subject = self.result.subjects[0]
        return self.section(
            "lines",
            f"{subject} on every line",
            f"<p>Ratio to {self.best}. Dot: median of the rounds; line: least to greatest; grey: "
            "the peers. A rate right of 1 is ahead of every peer's, memory left of 1 is less.</p>",
            f"<figure>{plots.every_line(self.result, m, subject, self.base)}</figure>",
        )

    def tables(self) -> str:
        m = self.result.synthetic
        if not m.lines:
            return ""
        parts = [
            f"<p>Ratios to {self.best} on each line; medians. Of a rate more is better, of the "
            "others less. Hover for the figures. ~ never " + "steady, measured all the same.</p>"
        ]
        for figure, title, unit, name, opened in (
            ("rate", "Rate", 1e6, "M/s", True),
            ("peak_kib", "Peak RSS", MIB, "MiB", True),
            ("mean_kib", "Mean RSS in the steady state", MIB, "MiB", False),
            ("cpu_ns", "CPU time an operation", 1.0, "ns", False),
            ("end_kib", "RSS right after the end", MIB, "MiB", False),
            ("start_seconds", "Start-up: seconds until the steady state", 1.0, "s", False),
            ("instructions", "Instructions an operation", 1.0, "", False),
            ("cycles", "Cycles an operation", 1.0, "", False),
        ):
            if m.has(figure):
                shown = " open" if opened else ""
                parts.append(
                    f"<details{shown}><summary>{title}</summary>"
                    f"{self.heat(m, figure, unit, name)}</details>"
                )
        for figure, title, form in (
            ("faults", "Page faults a second in the steady state", "{:.0f}"),
            ("cpus", "CPUs in use in the steady state", "{:.2f}"),
            ("start_part", "Start-up: part of a run that is over before it is measured", "{:.0%}"),
            ("drift", "Rate of the second half of the measured time to the first half's", "{:.2f}"),
            (
                "growth",
                "Resident memory at the end of the measured time to that at its beginning",
                "{:.2f}",
            ),
        ):
            if m.has(figure):
                parts.append(
                    f"<details><summary>{title}</summary>{self.plain(m, figure, form)}</details>"
                )
        return self.section("tables", "All lines", *parts)

    def plain(self, m: Measurements, figure: str, form: str) -> str:
        """Medians as they are, not as ratios."""
        rows = [f"<tr><th></th>{self.heads(m.allocators)}</tr>"]
        for line in m.lines:
            values = [(n, m.typical(line, n, figure)) for n in m.allocators]
            cells = "".join(
                f"<td{self.mine(n)}>{'–' if v is None else form.format(v)}</td>" for n, v in values
            )
            rows.append(f"<tr><td>{escape(line)}</td>{cells}</tr>")
        return f'<div class="wide"><table class="heat">{"".join(rows)}</table></div>'

    def workload(self, name: str) -> str:
        m = self.result.synthetic
        lines = [line for line in m.lines if line.rpartition(" ")[0] == name]
        if not lines:
            return ""
        said = ""
        if self.result.subjects:
            by = figures.ratios(m, figures.RATE, self.result.subjects[:1], self.base)
            seen = [
                f"{line.rpartition(' ')[2]}: {by[line][self.result.subjects[0]].median:.2f}"
                for line in lines
                if by.get(line)
            ]
            said = f"<span>rate by threads: {', '.join(seen)}</span>"
        rates = [plots.Panel(line, figures.RATE, 1e6, f"{line}: M/s") for line in lines]
        peaks = [plots.Panel(line, figures.PEAK, MIB, f"{line}: peak RSS, MiB") for line in lines]
        # A row for each, or one for both where they have room.
        groups = [rates + peaks] if len(lines) <= 2 else [rates, peaks]
        drawn = "".join(
            f"<figure>{plots.bars(self.result, m, g, f'{name}, {g[0].figure}')}</figure>"
            for g in groups
        )
        about = escape(self.result.workloads.get(name, ""))
        return (
            f'<details class="line"><summary><b>{escape(name)}</b>{said}</summary><p>{about}</p>'
            f"{drawn}</details>"
        )

    def workloads(self) -> str:
        if not self.result.synthetic.lines:
            return ""
        return self.section(
            "workloads", "Each workload", *[self.workload(n) for n in self.result.workloads]
        )

    def programs(self) -> str:
        m = self.result.programs
        if not m.lines:
            return ""
        about = "".join(
            f"<li><b>{escape(n)}</b>: {escape(t)}</li>"
            for n, t in self.result.programs_about.items()
        )
        panels = [plots.Panel(line, figures.PROGRAM_TIME, 1.0, line) for line in m.lines]
        parts = [f"<figure>{plots.bars(self.result, m, panels, 'real programs, time')}</figure>"]
        for figure, title, unit, name in (
            ("seconds", "Time", 1.0, "s"),
            ("cpu_seconds", "CPU time", 1.0, "s"),
            ("peak_kib", "Peak RSS", MIB, "MiB"),
            ("settled_kib", "RSS of servers after the work", MIB, "MiB"),
        ):
            if m.has(figure):
                parts.append(
                    f"<h3>{title}, ratio to {self.best}</h3>{self.heat(m, figure, unit, name)}"
                )
        return self.section(
            "programs",
            "Real programs",
            self.means(m, PROGRAM_MEANS),
            "<h3>Time [s]</h3>",
            *parts,
            f"<h3>What they do</h3><ul>{about}</ul>",
        )

    def latency_table(self, line: str) -> str:
        m = self.result.synthetic
        heads = "".join(
            f"<th>{call} {p}</th>"
            for call in ("malloc", "free")
            for p in (*POINTS.values(), "left out")
        )
        rows = [f"<tr><th></th>{heads}</tr>"]
        for n in m.allocators:
            cells = []
            for figure in [
                f"{call}_{p}"
                for call in ("malloc", "free")
                for p in (*(f"{p}_ns" for p in POINTS), "preempted")
            ]:
                value, best = m.typical(line, n, figure), figures.best(m, line, figure, self.base)
                if figure.endswith("_preempted"):
                    cells.append(
                        f"<td{self.mine(n)}>{'-' if value is None else f'{value:.0f}'}</td>"
                    )
                elif value is None or best is None:
                    cells.append('<td class="bad">failed</td>')
                else:
                    text = f"{value / 1000:.2f}" if value < 1e5 else f"{value / 1000:.0f}"
                    cells.append(
                        f"<td{self.mine(n)} "
                        f'style="background:{background(value / max(best, 1))}">{text}</td>'
                    )
            rows.append(f"<tr><td{self.mine(n)}>{escape(n)}</td>{''.join(cells)}</tr>")
        return f'<div class="wide"><table class="heat">{"".join(rows)}</table></div>'

    def latency(self) -> str:
        m = self.result.synthetic
        parts = []
        for workload in self.result.latency_workloads:
            lines = [line for line in m.lines if line.rpartition(" ")[0] == workload]
            for line in lines:
                chosen = line == f"{workload} {figures.LATENCY_THREADS}" or len(lines) == 1
                plot = f"<figure>{plots.latency(self.result, m, line)}</figure>" if chosen else ""
                shown = " open" if chosen else ""
                parts.append(
                    f"<details{shown}><summary>{escape(line)} threads [µs]</summary>{plot}"
                    f"{self.latency_table(line)}</details>"
                )
        if not parts:
            return ""
        return self.section("latency", "Single calls", TAIL_TEXT, *parts)

    def idle(self) -> str:
        m = self.result.idle
        if not m.runs:
            return ""
        rows = [f"<tr><th></th>{self.heads(m.allocators)}</tr>"]
        for line in m.lines:
            cells = []
            for n in m.allocators:
                value, peak = m.typical(line, n, "idle_kib"), m.typical(line, n, "peak_kib")
                if value is None or not peak:
                    cells.append('<td class="bad">failed</td>')
                else:
                    cells.append(
                        f"<td{self.mine(n)}>{value / MIB:.0f} "
                        f"<small>({value / peak:.0%})</small></td>"
                    )
            rows.append(f"<tr><td>{escape(line)}</td>{''.join(cells)}</tr>")
        panels = [
            plots.Panel(line, "idle_kib", MIB, f"{line}: MiB", "peak_kib") for line in m.lines
        ]
        return self.section(
            "idle",
            f"Memory {self.result.idle_seconds:g} s after the end",
            "<p>Everything is freed, and no call follows. "
            "Bar: resident memory; tick: the peak.</p>",
            f"<figure>{plots.bars(self.result, m, panels, 'memory after the end')}</figure>",
            "<details><summary>MiB (part of the peak)</summary>"
            f'<div class="wide"><table class="heat">{"".join(rows)}</table></div></details>',
        )

    def pairs(self) -> str:
        counted, timed = (
            self.result.pairs.get(k, {}) for k in ("instructions_per_pair", "ns_per_pair")
        )
        workloads = list(
            dict.fromkeys(w for by in [*counted.values(), *timed.values()] for w in by)
        )
        if not workloads:
            return ""
        rows = ["<tr><th></th>" + "".join(f"<th>{w}</th>" for w in workloads) + "</tr>"]
        for n in self.result.names:
            cells = []
            for w in workloads:
                count, spread = counted.get(n, {}).get(w), timed.get(n, {}).get(w)
                left = "–" if count is None else f"{count:.1f}"
                right = (
                    "–"
                    if spread is None
                    else f"{spread['median']:.1f} "
                    f"<small>({spread['low']:.1f}–{spread['high']:.1f})</small>"
                )
                cells.append(f"<td{self.mine(n)}>{left} / {right}</td>")
            rows.append(f"<tr><td{self.mine(n)}>{escape(n)}</td>{''.join(cells)}</tr>")
        startup = (
            f"<h3>Start-up</h3><pre>{escape(self.result.startup.strip())}</pre>"
            if self.result.startup
            else ""
        )
        return self.section(
            "pairs",
            "A malloc and its free",
            "<p>User instructions a pair / nanoseconds a pair (least–greatest).</p>",
            f'<div class="wide"><table class="heat">{"".join(rows)}</table></div>',
            startup,
        )

    def machine(self) -> str:
        both = self.result.machine | self.result.machine_at_end
        rows = "".join(
            f"<tr><td>{escape(k)}</td><td>{escape(v)}</td></tr>" for k, v in both.items()
        )
        noise = []
        for m, what, figure in (
            (self.result.synthetic, "rates of the workloads", figures.RATE),
            (self.result.programs, "times of the real programs", figures.PROGRAM_TIME),
        ):
            seen = figures.noise(m, figure)
            if seen:
                noise.append(
                    f"<p>Noise: the {what} in {m.rounds} rounds spread by {seen.median:.0%} of "
                    "their median in the middle of all lines and allocators, by "
                    f"{seen.high:.0%} or more on a tenth of them.</p>"
                )
        if self.result.rule and self.result.synthetic.lines:
            noise.append(
                f"<p>Rates: {escape(self.result.rule)}. Operations are allocations; those of "
                "cache-scratch and cache-thrash thousands of writes.</p>"
            )
        if start := figures.start_up(self.result.synthetic):
            least, middle, most = start
            noise.append(
                f"<p>Start-up: {middle:.0%} of a run is over before it is measured "
                f"({least:.0%} to {most:.0%}, by line); none of it is in a rate.</p>"
            )
        took = f"<p>The whole took {self.result.seconds / 60:.0f} minutes.</p>"
        return self.section(
            "machine",
            "Machine, versions, noise",
            *noise,
            took,
            f'<table class="words">{rows}</table>',
        )

    def remarks(self) -> str:
        remarks = [*self.result.remarks, *figures.remarks(self.result.synthetic)]
        parts = [f'<div class="left"><b>remark</b> {escape(r)}</div>' for r in remarks]
        parts += [f'<div class="left"><b>cut</b> {escape(c)}</div>' for c in self.result.cuts]
        parts += [
            f'<div class="left"><b>left out</b> {escape(c)}</div>' for c in self.result.left_out
        ]
        seen: dict[tuple[str, str], list[str]] = {}
        for m in (self.result.synthetic, self.result.programs, self.result.idle):
            for f in m.failures:
                seen.setdefault((f.allocator, f.reason), []).append(f.line)
        for (name, why), lines in seen.items():
            where = ", ".join(dict.fromkeys(lines))
            parts.append(
                f'<div class="failed"><b>{escape(name)} failed</b> on {escape(where)}: '
                f"{escape(why)}</div>"
            )
        return "".join(parts)

    def whole(self) -> str:
        sections = {
            "bars": ("bars", self.bars()),
            "means": ("rate against memory", self.overview()),
            "lines": ("every line", self.lines()),
            "programs": ("real programs", self.programs()),
            "latency": ("single calls", self.latency()),
            "idle": ("memory after the end", self.idle()),
            "pairs": ("pairs", self.pairs()),
            "tables": ("tables", self.tables()),
            "workloads": ("each workload", self.workloads()),
            "machine": ("machine and noise", self.machine()),
        }
        links = "".join(
            f'<a href="#{key}">{title}</a>' for key, (title, text) in sections.items() if text
        )
        m = self.result.synthetic
        parts = []
        if m.lines:
            parts.append(f"{len(m.lines)} workload lines in {counted(m.rounds)}")
        if self.result.programs.lines:
            programs = self.result.programs
            parts.append(
                f"{len(programs.lines)} real programs in {counted(programs.rounds)}, at "
                f"{programs.scale:g} of their full work"
            )
        said = "; ".join(
            [*parts, f"{len(self.result.names)} allocators, alternating within each round"]
        )
        machine = self.result.machine
        about = ", ".join(
            machine[k] for k in ("cpu", "memory", "kernel", "distribution") if k in machine
        )
        return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">\
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>lanemalloc: benchmark suite</title><style>{STYLE}{OWN_STYLE}</style></head><body>
<h1>lanemalloc and its peers</h1>
<p>{escape(said)}.</p>
<p class="machine">{escape(about)}, {escape(machine.get("cores", "?"))} CPUs</p>
<nav>{links}</nav>
{self.remarks()}
{"".join(text for _, text in sections.values())}
</body></html>
"""


def write(result: Result, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(Page(result).whole())
