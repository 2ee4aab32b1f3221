"""Turns build/seeds/seeds.json into one HTML page that needs no network:
plots as inline SVG, tables, how to read them.

Called by: bench/seeds/run.py, or by hand: page.py JSON HTML.
"""

import html
import io
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

HERE, ORIGINAL, GRID, TEXT = "#1f6f8b", "#c8553d", "#e4e7eb", "#27323d"
LINES = ("#1f6f8b", "#c8553d", "#6a994e", "#8e6c8a", "#d4a017", "#4c566a")
DIAMOND: dict[str, Any] = {
    "markerfacecolor": "none",
    "markeredgecolor": ORIGINAL,
    "markeredgewidth": 1.5,
}
ROW_INCHES, WIDTH_INCHES, LABEL_INCHES = 0.27, 9.6, 2.5
WIDE = 12.0  # values that spread further are drawn on a logarithmic axis
Row = dict[str, Any]

plt.rcParams.update(
    {
        "svg.fonttype": "none",
        "svg.hashsalt": "seeds",
        "font.family": "sans-serif",
        "font.size": 9.5,
        "text.color": TEXT,
        "axes.labelcolor": TEXT,
        "axes.edgecolor": "#9aa5b1",
        "xtick.color": TEXT,
        "ytick.color": TEXT,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
    }
)

STYLE = """
:root { --text: #27323d; --faint: #66727f; --rule: #e4e7eb; --here: #1f6f8b; --original: #c8553d; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1020px; padding: 24px 20px 64px; color: var(--text); \
background: #fff;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 25px; margin: 8px 0 2px; } h2 { font-size: 19px; margin: 0 0 2px; } \
h3 { font-size: 14px; margin: 18px 0 2px; }
section { border-top: 1px solid var(--rule); margin-top: 34px; padding-top: 22px; }
.source, .machine, figcaption { color: var(--faint); font-size: 13px; } \
.source { margin: 0 0 10px; }
.sides { display: grid; grid-template-columns: 1fr 1fr; gap: 14px; margin: 8px 0 4px; }
.side { border-left: 3px solid var(--original); padding: 2px 0 2px 12px; } \
.side.here { border-color: var(--here); }
.side b { display: block; font-size: 12px; letter-spacing: .02em; color: var(--original); } \
.side.here b { color: var(--here); }
ul { margin: 6px 0; padding-left: 20px; } figure { margin: 4px 0 0; } \
svg { width: 100%; height: auto; display: block; } a { color: inherit; }
svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", \
sans-serif !important; }
table { border-collapse: collapse; font-size: 13px; margin: 6px 0 12px; \
font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: 3px 10px 3px 0; text-align: right; border-bottom: 1px solid var(--rule); } \
th { font-weight: 600; color: var(--faint); }
th:first-child, td:first-child, table.words td, \
table.words th { text-align: left; vertical-align: top; }
tr.case td { font-weight: 600; padding-top: 9px; } \
details { margin: 6px 0; } summary { cursor: pointer; color: var(--faint); font-size: 13px; }
.left { background: #fdf5ec; padding: 6px 12px; font-size: 13.5px; margin: 8px 0; }
.key i { display: inline-block; width: 10px; height: 10px; border-radius: 5px; \
background: var(--here); margin: 0 5px 0 0; }
.key i.o { background: none; border: 2px solid var(--original); border-radius: 0; \
transform: rotate(45deg) scale(.8); margin-left: 14px; }
@media (max-width: 700px) { .sides { grid-template-columns: 1fr; } }
"""


def short(value: float) -> str:
    """Three significant digits, with thousands apart."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return (
        f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"
    )


def escape(text: object) -> str:
    return html.escape(str(text))


def as_svg(figure: Figure, description: str) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    svg = out.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    # Two plots of a page may not share identifiers.
    prefix = re.sub(r"\W+", "-", description.lower())
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r"(url\(#|href=\"#)", rf"\g<1>{prefix}-", svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(description)}" ', 1)


def shown(row: Row, ratio: bool) -> tuple[float, float, float, float | None]:
    """Median, least, greatest and the original's figure, as a ratio or as measured."""
    value = row["ratio"] if ratio else row["value"]
    original = row["original_ratio"] if ratio else row["original"]
    return value["median"], value["low"], value["high"], original


def logarithmic(axes: Axes, wide: bool) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(
        LogLocator(base=10, subs=(1.0, 3.0) if wide else (1.0, 2.0, 5.0), numticks=12)
    )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def dots(axes: Axes, rows: Sequence[Row], names: Sequence[str], ratio: bool) -> None:
    places = {name: len(names) - 1 - i for i, name in enumerate(names)}
    for row in rows:
        median, low, high, original = shown(row, ratio)
        y = places[row["configuration"]]
        axes.plot([low, high], [y, y], color=HERE, linewidth=2, alpha=0.45, solid_capstyle="round")
        axes.plot([median], [y], "o", color=HERE, markersize=6, clip_on=False)
        if original is not None:
            axes.plot([original], [y], "D", **DIAMOND, markersize=6, clip_on=False)
    if ratio:
        axes.axvline(1, color="#9aa5b1", linewidth=1, linestyle=(0, (3, 3)), zorder=0)
    axes.set_yticks(list(places.values()), list(places))
    axes.set_ylim(-0.7, len(names) - 0.3)
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="both", length=0, which="both")
    axes.tick_params(axis="y", pad=10)
    axes.spines["left"].set_visible(False)


def set_limits(axes: Axes, rows: Sequence[Row], ratio: bool, panels: int) -> None:
    everything = [v for row in rows for v in shown(row, ratio) if v is not None]
    least, most = min(everything), max(everything)
    if least > 0 and most / least > WIDE:
        logarithmic(axes, most / least > 10 ** (4 / panels))
        axes.set_xlim(least / 1.15, most * 1.15)
        return
    room = 0.05 * (most - least or most or 1)
    axes.set_xlim(0 if least < 0.35 * most else least - room, (most + room) or 1)


def dot_plot(figure: Row) -> str:
    rows = figure["rows"]
    cases = list(dict.fromkeys(row["case"] for row in rows))
    names = list(dict.fromkeys(row["configuration"] for row in rows))
    ratio = figure["base"] is not None and all(row["ratio"] for row in rows)
    height = ROW_INCHES * len(names) + 0.95
    # Space is reserved by hand: the browser's font is not the one that matplotlib measures.
    drawing, panels = plt.subplots(
        1, len(cases), figsize=(WIDTH_INCHES, height), sharex=True, sharey=True, squeeze=False
    )
    drawing.subplots_adjust(
        left=LABEL_INCHES / WIDTH_INCHES,
        right=0.985,
        bottom=0.52 / height,
        top=1 - 0.3 / height,
        wspace=0.12,
    )
    for axes, case in zip(panels[0], cases):
        dots(axes, [row for row in rows if row["case"] == case], names, ratio)
        axes.set_title(case)
    set_limits(panels[0][0], rows, ratio, len(cases))
    unit = f"ratio to {figure['base']}" if ratio else figure["unit"]
    better = "less is better" if figure["less_is_better"] else "more is better"
    drawing.text(
        LABEL_INCHES / WIDTH_INCHES,
        0.06 / height,
        f"{unit} ({better})",
        fontsize=9,
        color="#66727f",
    )
    return as_svg(drawing, figure["name"])


class Labels:
    """Puts a label beside each point of a plot, where no earlier label lies. Widths are estimated:
    the browser sets the text."""

    # Of the label's near end; a negative step to the side puts the label on the left.
    OFFSETS = ((8, 4), (8, -13), (-8, 4), (-8, -13), (8, 19), (-8, 19), (8, -28), (-8, -28))
    LETTER, HEIGHT, MARKER = 5.6, 13, 5

    def __init__(self, axes: Axes, points: Sequence[tuple[float, float]]) -> None:
        self._axes = axes
        places = [self._place(x, y) for x, y in points]
        self._taken = [
            (x - self.MARKER, y - self.MARKER, x + self.MARKER, y + self.MARKER) for x, y in places
        ]

    def _place(self, x: float, y: float) -> tuple[float, float]:
        at_x, at_y = self._axes.transData.transform((x, y)) * (72 / self._axes.figure.dpi)
        return at_x, at_y

    def put(self, text: str, x: float, y: float, color: str) -> None:
        at_x, at_y = self._place(x, y)
        width = self.LETTER * len(text)
        for dx, dy in self.OFFSETS:
            left, below = at_x + dx - (width if dx < 0 else 0), at_y + dy
            box = (left, below, left + width, below + self.HEIGHT)
            if not any(
                box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3]
                for b in self._taken
            ):
                break
        self._taken.append(box)
        side = "right" if dx < 0 else "left"
        self._axes.annotate(
            text, (x, y), xytext=(dx, dy), textcoords="offset points", color=color, ha=side
        )


def two_axes_plot(rate: Row, peak: Row) -> str:
    """Requests a second over peak memory, both as ratios: what is sought lies at the upper left."""
    drawing, axes = plt.subplots(figsize=(WIDTH_INCHES, 3.9))
    drawing.subplots_adjust(left=0.075, right=0.985, bottom=0.13, top=0.975)
    memory = {row["configuration"]: row for row in peak["rows"]}
    points: list[tuple[str, float, float, str]] = []
    heights, widths = [1.0], [1.0]
    for row in rate["rows"]:
        y, y_low, y_high, _ = shown(row, True)
        x, x_low, x_high, _ = shown(memory[row["configuration"]], True)
        axes.plot([x_low, x_high], [y, y], color=HERE, linewidth=2, alpha=0.4)
        axes.plot([x, x], [y_low, y_high], color=HERE, linewidth=2, alpha=0.4)
        axes.plot([x], [y], "o", color=HERE, markersize=7)
        points.append((row["configuration"], x, y, HERE))
        heights += [y_low, y_high]
        widths += [x_low, x_high]
    for case, figures in rate["originals"].items():
        sizes = peak["originals"][case]
        for name, figure in figures.items():
            x, y = sizes[name] / sizes[peak["base"]], figure / figures[rate["base"]]
            axes.plot([x], [y], "D", **DIAMOND, markersize=7)
            heights.append(y)
            widths.append(x)
            if name != rate["base"]:
                points.append((f"{name} (original)", x, y, ORIGINAL))
    axes.set_xlim(0, max(widths) + 0.22)
    axes.set_ylim(min(heights) - 0.08, max(heights) + 0.1)
    axes.fill_between([0, 0.6], 0.97, axes.get_ylim()[1], color=HERE, alpha=0.07, linewidth=0)
    axes.text(0.012, 0.975, "sought", color=HERE, fontsize=9, va="bottom")
    labels = Labels(axes, [(x, y) for _, x, y, _ in points])
    for point in points:
        labels.put(*point)
    axes.set_xlabel("peak memory, ratio to exclusive")
    axes.set_ylabel("requests a second, ratio to exclusive")
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    return as_svg(drawing, "Requests a second over peak memory")


def line_plot(figure: Row) -> str:
    """For cases that are numbers (cores): one line for each configuration,
    both axes logarithmic."""
    drawing, axes = plt.subplots(figsize=(WIDTH_INCHES, 3.6))
    drawing.subplots_adjust(left=0.085, right=0.74, bottom=0.14, top=0.96)
    names = list(dict.fromkeys(row["configuration"] for row in figure["rows"]))
    cores = sorted({int(row["case"].split()[0]) for row in figure["rows"]})
    for i, name in enumerate(names):
        points = sorted(
            (int(r["case"].split()[0]), r["value"]["median"])
            for r in figure["rows"]
            if r["configuration"] == name
        )
        axes.plot(
            *zip(*points),
            "o-",
            color=LINES[i % len(LINES)],
            markersize=4.5,
            linewidth=1.8,
            label=name,
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(cores, [str(c) for c in cores])
    axes.set_yscale("symlog", linthresh=0.01)
    axes.set_ylim(bottom=-0.001)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.set_xlabel("cores")
    axes.set_ylabel(figure["unit"])
    axes.grid(color=GRID, linewidth=0.8)
    axes.tick_params(length=0, which="both")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    return as_svg(drawing, figure["name"])


def cell(row: Row, figure: Row) -> str:
    value, ratio, original = row["value"], row["ratio"], row["original"]
    cells = [
        row["configuration"],
        f"{short(value['median'])} ({short(value['low'])}–{short(value['high'])})",
    ]
    cells.append(
        f"×{ratio['median']:.2f} ({ratio['low']:.2f}–{ratio['high']:.2f})" if ratio else ""
    )
    cells.append(f"{original:,g} {figure['original_unit']}" if original is not None else "")
    cells.append(f"×{row['original_ratio']:.2f}" if row["original_ratio"] is not None else "")
    return "<tr>" + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>"


def table(figure: Row) -> str:
    header = [
        "",
        f"here [{figure['unit']}], median (least–greatest)",
        "ratio here",
        "original",
        "ratio there",
    ]
    lines = ["<table><tr>" + "".join(f"<th>{escape(h)}</th>" for h in header) + "</tr>"]
    case = None
    for row in figure["rows"]:
        if row["case"] != case:
            case = row["case"]
            lines.append(f'<tr class="case"><td colspan="5">{escape(case)}</td></tr>')
        lines.append(cell(row, figure))
    return "\n".join(lines) + "</table>"


def figures_of(experiment: Row) -> list[str]:
    parts: list[str] = []
    plots = [f for f in experiment["figures"] if f["rows"] and not f["detail"]]
    if (
        experiment["key"] == "server"
        and len(plots) >= 2
        and all(r["ratio"] for f in plots[:2] for r in f["rows"])
    ):
        parts += [
            "<h3>Requests a second over peak memory</h3>",
            f"<figure>{two_axes_plot(*plots[:2])}</figure>",
        ]
        plots = plots[2:]
    for figure in plots:
        draw = line_plot if experiment["key"] == "coherence" else dot_plot
        parts += [f"<h3>{escape(figure['name'])}</h3>", f"<figure>{draw(figure)}</figure>"]
    tables = [f"<h3>{escape(f['name'])}</h3>{table(f)}" for f in experiment["figures"] if f["rows"]]
    if tables:
        parts.append(f"<details><summary>All figures</summary>{''.join(tables)}</details>")
    return parts


def section(experiment: Row) -> str:
    parts = [f'<section id="{experiment["key"]}"><h2>{escape(experiment["title"])}</h2>']
    parts.append(f'<p class="source">{escape(experiment["source"])}</p><div class="sides">')
    parts.append(f'<div class="side"><b>the original</b>{escape(experiment["claim"])}</div>')
    parts.append(
        f'<div class="side here"><b>here</b>{escape(experiment["found"] or "not run")}</div></div>'
    )
    parts += [
        f'<div class="left"><b>{escape(what)}</b> left out: {escape(why)}</div>'
        for what, why in experiment["left_out"].items()
    ]
    parts += figures_of(experiment)
    parts += [f"<p>{escape(note)}</p>" for note in experiment["notes"]]
    if experiment["setup"]:
        lines = "".join(f"<li>{escape(line)}</li>" for line in experiment["setup"])
        parts.append(f"<details open><summary>How it was run</summary><ul>{lines}</ul></details>")
    return "\n".join(parts) + "</section>"


def glance(experiments: Sequence[Row]) -> str:
    rows = "".join(
        f'<tr><td><a href="#{e["key"]}">{escape(e["title"])}</a></td>'
        f"<td>{escape(e['found'] or 'not run')}</td></tr>"
        for e in experiments
    )
    return f'<table class="words"><tr><th>experiment</th><th>here</th></tr>{rows}</table>'


def write(source: Path, target: Path) -> None:
    result = json.loads(source.read_text())
    machine = "; ".join(f"{k}: {v}" for k, v in result["machine"].items() if k != "peers")
    quick = (
        '<p class="left">A quick run: it shows that everything works; its figures mean nothing.</p>'
        if result["quick"]
        else ""
    )
    body = "\n".join(section(e) for e in result["experiments"])
    target.write_text(
        f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">\
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>lanemalloc: the source systems' experiments</title><style>{STYLE}</style></head><body>
<h1>The source systems' experiments</h1>
<p>Five systems met contention on the way to memory, and measured it. These are their experiments, \
run on this machine with lanemalloc.
Configurations alternate within each round; ratios are taken within a round.</p>
<p class="key"><i></i>here: median, with a line from least to greatest\
<i class="o"></i>the original, on its own machine</p>
<p class="machine">{escape(machine)}; took {result["seconds"]} s</p>
{quick}{glance(result["experiments"])}
{body}
</body></html>
"""
    )


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
