"""What plots share: colours by name, scales of bytes, curves and bars."""

from __future__ import annotations

from html import escape
from typing import Any

from lanemalloc.report.run import Run

CELL_COLOURS = ("@blue", "@orange", "@green", "@purple", "@ochre", "@indigo", "@brown", "@grey")
MOST_CELLS = 6
TIME_AXIS = {"title": {"text": "seconds since the start"}, "rangemode": "tozero"}


def plain(text: str) -> str:
    """Names go into labels of plots, which take some HTML."""
    return escape(text, quote=False)


def byte_scale(most: float) -> tuple[float, str]:
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if most >= 1024**power:
            return 1024.0**power, unit
    return 1.0, "B"


def curve(
    run: Run, name: str, x: list[float], y: list[float], colour: str, dash: str, hover: str
) -> dict[str, Any]:
    """Of two runs, the second's is dotted; what is the same of both has one entry in the legend."""
    second = run.letter == "B"
    return {
        "type": "scatter",
        "mode": "lines" if len(x) > 2 else "lines+markers",
        "name": run.name(name),
        "legendgroup": name,
        "showlegend": not second,
        "x": [round(at, 3) for at in x],
        "y": [round(value, 4) for value in y],
        "line": {
            "color": colour,
            "dash": "dot" if second else "solid" if run.letter else dash,
            "width": 2,
        },
        "hovertemplate": hover,
    }


def steps(
    run: Run, name: str, x: list[float], y: list[float], colour: str, axis: str, hover: str
) -> dict[str, Any]:
    """A rate holds from the moment before."""
    trace = curve(run, name, [0.0, *x], [y[0] if y else 0.0, *y], colour, "solid", hover)
    trace["mode"] = "lines"
    trace["line"]["shape"] = "vh"
    trace["yaxis"] = axis
    return trace


def row_title(text: str, top: float) -> dict[str, Any]:
    return {
        "text": text, "xref": "paper", "yref": "paper", "x": 0, "y": top,
        "xanchor": "left", "yanchor": "bottom", "showarrow": False
    }  # fmt: skip


def bar_style(colour: str, i: int) -> dict[str, Any]:
    """The second run's bars are hatched, so that colour is not all that tells them apart."""
    return hatched(colour, "/" if i else "")


def hatched(colour: str, shape: str) -> dict[str, Any]:
    return {
        "color": colour,
        "pattern": {
            "shape": shape,
            "bgcolor": colour,
            "fgcolor": "@ground",
            "size": 6,
            "solidity": 0.2,
        },
    }
