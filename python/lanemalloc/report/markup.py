"""Pieces of HTML: text that is escaped, tables, figures with their table, sections."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

# A page asks no server for anything.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
MOST_ROWS = 48
UNIT = re.compile(r"(?<=\d) (?=(?:%|B|[KMGTP]iB|[kMGT]|s|ms|µs|ns|min|h|d|×)(?:\W|$))")


def prose(text: str) -> str:
    """Escaped; no line ends between a number and its unit."""
    return UNIT.sub("\u00a0", escape(text))


@dataclass
class Table:
    """The first cell of a row is its name. Columns after the first are numbers, unless `words` has
    their index."""

    caption: str
    head: Sequence[str]
    rows: list[list[str]]
    words: tuple[int, ...] = ()

    def html(self) -> str:
        def side(i: int) -> str:
            return "" if i == 0 else ' class="w"' if i in self.words else ' class="n"'

        head = "".join(
            f'<th scope="col"{side(i)}>{escape(name)}</th>' for i, name in enumerate(self.head)
        )
        body = []
        for row in self.rows:
            cells = "".join(
                f"<td{side(i)}>{escape(cell)}</td>" for i, cell in enumerate(row) if i > 0
            )
            body.append(f'<tr><th scope="row">{escape(row[0])}</th>{cells}</tr>')
        name = escape(self.caption)
        return (
            f'<p class="caption">{name}</p>'
            f'<div class="scroll" role="region" tabindex="0" aria-label="{name}">'
            f'<table aria-label="{name}">'
            f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
        )


@dataclass
class Plot:
    """For plotly. Colours are names of the style sheet's (`@blue`), so that they follow the theme.
    `text` says what it shows."""

    id: str
    title: str
    text: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict)
    height: int = 300
    table: Table | None = None

    def spec(self) -> dict[str, Any]:
        return {"id": self.id, "traces": self.traces, "layout": self.layout, "height": self.height}

    def html(self) -> str:
        drawn = (
            f'<div class="legend" id="{self.id}-legend" role="group" '
            f'aria-label="Curves of: {escape(self.title)}"></div>'
            f'<div class="plot" id="{self.id}" role="img" '
            f'aria-label="{escape(self.title + ". " + self.text)}" '
            f'style="min-height:{self.height}px"></div>'
        )
        return figure(self.title, drawn, self.text, self.table)


def figure(title: str, drawn: str, text: str, table: Table | None) -> str:
    text = text[:1].upper() + text[1:]
    figures = (
        f"<details><summary>The same as a table</summary>{table.html()}</details>" if table else ""
    )
    return (
        f"<figure><h3>{prose(title)}</h3>{drawn}"
        f"<figcaption>{prose(text)}</figcaption>{figures}</figure>"
    )


@dataclass
class Section:
    """A landmark of the page."""

    id: str
    title: str
    lead: str
    short: str
    parts: list[Plot | Table | str] = field(default_factory=list)

    def html(self) -> str:
        parts = "".join(part if isinstance(part, str) else part.html() for part in self.parts)
        lead = "".join(f"<p>{prose(line)}</p>" for line in self.lead.split("\n") if line)
        return (
            f'<section id="{self.id}" aria-labelledby="{self.id}-title">'
            f'<h2 id="{self.id}-title" tabindex="-1">{escape(self.title)}</h2>'
            f"{lead}{parts}</section>"
        )

    def plots(self) -> list[Plot]:
        return [part for part in self.parts if isinstance(part, Plot)]


def thinned(count: int, most: int = MOST_ROWS) -> list[int]:
    """Indices for a table of a long series: evenly, with the last."""
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def in_script(value: Any) -> str:
    """JSON that cannot end the element it stands in."""
    return (
        json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        .replace("<", "\\u003c")
        .replace("\u2028", "\\u2028")
    )


def opening(product: str, title: str, style: str, layout: str = "") -> str:
    """A page up to its heading; the header is still open. layout: the class of the body."""
    short = title if len(title) <= 90 else title[:89] + "…"
    body = f'<body class="{layout}">' if layout else "<body>"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="{product}">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<link rel="icon" href="data:,">
<title>{product}: {escape(short)}</title>
<style>{style}</style>
</head>
{body}
<a class="skip" href="#main">Skip to the content</a>
<header>
<div class="bar"><p class="product">{product}</p>
<button type="button" id="theme" aria-pressed="false" hidden>Dark colours</button></div>
<h1>{escape(short)}</h1>"""


def footer(product: str) -> str:
    return f"""<footer><p>Written by <code>{product}</code>. \
This page has everything inside, and asks no server for anything.</p></footer>"""
