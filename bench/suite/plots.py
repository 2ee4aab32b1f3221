"""The plots of the suite's page, as inline SVG.

Used by: page.py. Builds of lanemalloc have a colour, the peers are grey: what counts is where the
first stands among the others.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import figures
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)
from model import HIGHER_IS_BETTER, Measurements, Result
from seeds.page import GRID, HERE, TEXT, Labels, as_svg

PEER, PEER_DARK = "#b4bec9", "#7d8894"
SUBJECTS = (HERE, "#c8553d", "#6a994e", "#8e6c8a", "#d4a017")
WIDTH = 10.6
CLIP = 4.0  # ratios beyond this are drawn at the edge
TICKS = (0.25, 0.33, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)


def color(result: Result, name: str, dark: bool = False) -> str:
    if name in result.subjects:
        return SUBJECTS[result.subjects.index(name) % len(SUBJECTS)]
    return PEER_DARK if dark else PEER


def log_ratio_axis(axes: Axes, which: str) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    inside = [t for t in TICKS if low <= t <= high]
    if len(inside) > 7:
        inside = [t for t in inside if t in (0.25, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0)]
    axis.set_major_locator(FixedLocator(inside))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def tidy(axes: Axes, grid: str) -> None:
    axes.grid(axis=grid, color=GRID, linewidth=0.8)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.tick_params(axis="both", length=0, which="both")


def scatter(result: Result, m: Measurements, figure: str, base: Sequence[str], what: str) -> str:
    """Geometric means of rate over those of peak RSS; hollow where an allocator did not run all
    lines."""
    names = m.allocators
    rates = figures.means(figures.ratios(m, figure, names, base), names)
    peaks = figures.means(figures.ratios(m, figures.PEAK, names, base), names)
    drawing, axes = plt.subplots(figsize=(WIDTH, 5.2))
    drawing.subplots_adjust(left=0.07, right=0.985, bottom=0.1, top=0.98)
    seen = [n for n in names if rates[n].lines and peaks[n].lines]
    extents_x, extents_y = [1.0], [1.0]
    for n in seen:
        lines = [line for line in m.lines if len(m.of(line, n)) >= m.rounds]
        by_round = [figures.mean_by_round(m, f, n, lines, base) for f in (figures.PEAK, figure)]
        x, y = peaks[n].value, rates[n].value
        shade = color(result, n, dark=True)
        for values, along_x in zip(by_round, (True, False)):
            if len(values) == m.rounds > 1:
                ends = [min(values), max(values)]
                axes.plot(
                    ends if along_x else [x, x],
                    [y, y] if along_x else ends,
                    color=shade,
                    linewidth=2,
                    alpha=0.45,
                )
                (extents_x if along_x else extents_y).extend(ends)
        whole = rates[n].whole and peaks[n].whole
        axes.plot(
            [x],
            [y],
            "o",
            color=shade,
            markersize=9 if n in result.subjects else 7,
            markerfacecolor=shade if whole else "white",
        )
        extents_x.append(x)
        extents_y.append(y)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(min(extents_x) / 1.08, max(extents_x) * 1.18)
    axes.set_ylim(min(extents_y) / 1.06, max(extents_y) * 1.1)
    log_ratio_axis(axes, "x")
    log_ratio_axis(axes, "y")
    axes.axhline(1, color="#9aa5b1", linewidth=1, linestyle=(0, (3, 3)), zorder=0)
    axes.axvline(1, color="#9aa5b1", linewidth=1, linestyle=(0, (3, 3)), zorder=0)
    labels = Labels(axes, [(peaks[n].value, rates[n].value) for n in seen])
    for n in sorted(seen, key=lambda n: n not in result.subjects):
        hollow = (
            ""
            if rates[n].whole and peaks[n].whole
            else f" ({rates[n].lines} of {rates[n].of} lines)"
        )
        labels.put(
            n + hollow,
            peaks[n].value,
            rates[n].value,
            color(result, n) if n in result.subjects else TEXT,
        )
    axes.set_xlabel("peak RSS, geometric mean of ratios")
    axes.set_ylabel("rate, geometric mean of ratios")
    tidy(axes, "both")
    return as_svg(drawing, f"Rate against peak RSS, {what}")


def clipped(figure: str, value: float) -> float:
    """Drawn at the edge where it is worse than that."""
    return max(value, 1 / CLIP) if figure in HIGHER_IS_BETTER else min(value, CLIP)


def every_line(result: Result, m: Measurements, subject: str, base: Sequence[str]) -> str:
    """A row for each line: the subject with its spread, and the peers as ticks; rate on the left,
    peak RSS on the right."""
    lines = m.lines
    height = 0.2 * len(lines) + 0.9
    drawing, panels = plt.subplots(1, 2, figsize=(WIDTH, height), sharey=True)
    drawing.subplots_adjust(
        left=0.19, right=0.985, bottom=0.42 / height, top=1 - 0.32 / height, wspace=0.06
    )
    names = list(dict.fromkeys(line.rpartition(" ")[0] for line in lines))
    for axes, figure, title, limit in (
        (panels[0], figures.RATE, "rate", figures.LINE_RATE_LIMIT),
        (panels[1], figures.PEAK, "peak RSS", None),
    ):
        by_line = figures.ratios(m, figure, m.allocators, base)
        higher = figure in HIGHER_IS_BETTER
        edge = 1 / CLIP if higher else CLIP
        for i, line in enumerate(lines):
            y = len(lines) - 1 - i
            by = by_line.get(line, {})
            if names.index(line.rpartition(" ")[0]) % 2 == 0:
                axes.axhspan(y - 0.5, y + 0.5, color="#f3f5f7", linewidth=0, zorder=-1)
            for n in base:
                if n in by:
                    axes.plot(
                        [clipped(figure, by[n].median)],
                        [y],
                        "|",
                        color=PEER,
                        markersize=7,
                        markeredgewidth=1.4,
                    )
            mine = by.get(subject)
            if mine is None:
                axes.text(1, y, "failed", color="#b3371f", va="center")
                continue
            shade = "#b3371f" if limit and figures.is_beyond(figure, mine.median, limit) else HERE
            axes.plot(
                [clipped(figure, mine.low), clipped(figure, mine.high)],
                [y, y],
                color=shade,
                linewidth=2,
                alpha=0.45,
                solid_capstyle="round",
            )
            outside = figures.is_beyond(figure, mine.median, edge)
            axes.plot(
                [clipped(figure, mine.median)],
                [y],
                ("<" if higher else ">") if outside else "o",
                color=shade,
                markersize=5,
                clip_on=False,
            )
            if outside:
                text, side = (
                    (f"{mine.median:.2f}", "left") if higher else (f"{mine.median:.1f}", "right")
                )
                axes.text(
                    edge * (1.03 if higher else 0.97),
                    y,
                    text,
                    color=shade,
                    ha=side,
                    va="center",
                    fontsize=8.5,
                    backgroundcolor="white",
                )
        axes.set_xscale("log")
        mine_all = [r for by in by_line.values() for n, r in by.items() if n == subject]
        if higher:
            axes.set_xlim(
                edge / 1.02, max(1.12, 1.05 * max((r.high for r in mine_all), default=1.0))
            )
        else:
            axes.set_xlim(min(0.9, min((r.low for r in mine_all), default=1.0) / 1.05), edge * 1.02)
        log_ratio_axis(axes, "x")
        axes.axvline(1, color=TEXT, linewidth=0.8, zorder=0)
        if limit:
            axes.axvline(limit, color="#b3371f", linewidth=0.8, linestyle=(0, (3, 3)), zorder=0)
        axes.set_title(f"{title} (peers beyond {edge:g} at the edge)")
        axes.set_yticks(range(len(lines)), list(reversed(lines)), fontsize=8.5)
        axes.set_ylim(-0.7, len(lines) - 0.3)
        tidy(axes, "x")
        axes.spines["left"].set_visible(False)
    return as_svg(drawing, f"{subject} on every line")


@dataclass(frozen=True)
class Panel:
    """Bars of one figure on one line; a tick for another figure if there is one."""

    line: str
    figure: str
    unit: float
    title: str
    tick: str | None = None


def rounded(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def one_panel(axes: Axes, result: Result, m: Measurements, panel: Panel) -> None:
    names, line, figure, unit, tick = m.allocators, panel.line, panel.figure, panel.unit, panel.tick
    medians = {n: v / unit for n in names if (v := m.typical(line, n, figure)) is not None}
    limit = cut(list(medians.values()))
    for i, n in enumerate(names):
        y = len(names) - 1 - i
        if n not in medians:
            axes.text(0, y, " failed", color="#b3371f", va="center", fontsize=8.5)
            continue
        samples = [s / unit for s in m.samples(line, n, figure)]
        axes.barh([y], [min(medians[n], limit)], height=0.66, color=color(result, n))
        if medians[n] > limit:
            axes.text(
                limit,
                y,
                f"{rounded(medians[n])} ▸ ",
                color="white" if n in result.subjects else TEXT,
                va="center",
                ha="right",
                fontsize=8.5,
            )
        elif len(samples) > 1 and max(samples) > min(samples):
            axes.plot(
                [min(samples), min(max(samples), limit * 1.04)],
                [y, y],
                color=TEXT,
                linewidth=1.1,
                alpha=0.75,
            )
        if tick and (peak := m.typical(line, n, tick)) is not None:
            axes.plot([peak / unit], [y], "|", color=TEXT, markersize=8)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xlim(left=0)
    if limit != float("inf"):
        axes.set_xlim(0, limit * 1.05)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set_title(panel.title)
    axes.set_yticks(range(len(names)), [result.short(n) for n in reversed(names)], fontsize=8.5)
    for label, n in zip(axes.get_yticklabels(), reversed(names)):
        if n in result.subjects:
            label.set_fontweight("bold")
    tidy(axes, "x")
    axes.spines["left"].set_visible(False)


def cut(values: Sequence[float]) -> float:
    """Where bars are cut off, so that one that is far beyond the others does not hide their
    differences."""
    if len(values) < 3:
        return float("inf")
    middle = sorted(values)[len(values) // 2]
    return 3.2 * middle if max(values) > 3.2 * middle > 0 else float("inf")


def bars(
    result: Result, m: Measurements, panels_: Sequence[Panel], what: str, per_row: int = 4
) -> str:
    """Panels of bars, with whiskers from the least to the greatest round."""
    columns = min(per_row, len(panels_))
    rows = -(-len(panels_) // columns)
    each = 0.185 * len(m.allocators) + 0.62
    height = rows * each + 0.15
    width = WIDTH if columns == per_row else WIDTH * (0.12 + 0.88 * columns / per_row)
    drawing, panels = plt.subplots(rows, columns, figsize=(WIDTH, height), squeeze=False)
    right = width / WIDTH - 0.01
    drawing.subplots_adjust(
        left=0.075,
        right=right,
        bottom=0.32 / height,
        top=1 - 0.32 / height,
        wspace=0.12,
        hspace=0.62 / (each - 0.62),
    )
    for i in range(rows * columns):
        axes = panels[i // columns][i % columns]
        if i >= len(panels_):
            axes.axis("off")
            continue
        one_panel(axes, result, m, panels_[i])
        if i % columns:
            axes.set_yticklabels([])
    return as_svg(drawing, what)


def latency(result: Result, m: Measurements, line: str) -> str:
    """Percentiles of single calls, a row for each allocator, on a logarithmic axis."""
    names = m.allocators
    height = 0.24 * len(names) + 1.0
    drawing, panels = plt.subplots(1, 2, figsize=(WIDTH, height), sharey=True, sharex=True)
    drawing.subplots_adjust(
        left=0.1, right=0.985, bottom=0.55 / height, top=1 - 0.32 / height, wspace=0.05
    )
    points = (
        ("p50", "o", 3.5),
        ("p99", "o", 4.5),
        ("p999", "o", 5.5),
        ("p9999", "D", 6.0),
        ("max", "|", 9.0),
    )
    for axes, call in zip(panels, ("malloc", "free")):
        for i, n in enumerate(names):
            y = len(names) - 1 - i
            shade = color(result, n, dark=True)
            values = [
                (v / 1000, marker, size)
                for p, marker, size in points
                if (v := m.typical(line, n, f"{call}_{p}_ns")) is not None
            ]
            if not values:
                axes.text(1, y, "failed", color="#b3371f", va="center")
                continue
            axes.plot(
                [v[0] for v in values], [y] * len(values), color=shade, linewidth=1.5, alpha=0.4
            )
            for value, marker, size in values:
                axes.plot(
                    [value],
                    [y],
                    marker,
                    color=shade,
                    markersize=size,
                    markeredgewidth=1.6 if marker == "|" else 0.5,
                )
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_title(call)
        axes.set_yticks(range(len(names)), list(reversed(names)))
        axes.set_ylim(-0.7, len(names) - 0.3)
        tidy(axes, "x")
        axes.spines["left"].set_visible(False)
    text = "microseconds; dots: p50, p99, p99.9; diamond: p99.99; tick: the longest call"
    drawing.text(0.1, 0.06 / height, text, fontsize=9, color="#66727f")
    return as_svg(drawing, f"Single calls of {line}")
