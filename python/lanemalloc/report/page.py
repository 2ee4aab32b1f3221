"""The page: a head that says what memory and contention were, then the sections; style, script and
the plot library are inside of it.

No request goes anywhere: the page's own policy (Content-Security-Policy) forbids it. Colours follow
the theme by names of the style sheet. The plot library is packed; the script unpacks it, and where
that cannot be done every figure is still there as a table.
"""

from __future__ import annotations

import base64
import functools
import gzip
import importlib.util
from datetime import datetime, timezone
from html import escape
from pathlib import Path

from lanemalloc import units
from lanemalloc.meetings import place_of, worst_first
from lanemalloc.report.markup import Section, Table, footer, in_script, opening, prose
from lanemalloc.report.run import Run
from lanemalloc.report.sections import sections
from lanemalloc.ui import Problem

FOLDER = Path(__file__).resolve().parent
WIDE = ' class="wide"'


@functools.lru_cache(maxsize=1)
def packed_library() -> str:
    """plotly.min.js as its Python package has it. The package itself is not imported: that takes
    longer than the page."""
    spec = importlib.util.find_spec("plotly")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        file = Path(folder) / "package_data" / "plotly.min.js"
        if file.exists():
            return base64.b64encode(gzip.compress(file.read_bytes(), 9, mtime=0)).decode()
    raise Problem(
        "plotly, which draws the plots, is not installed with its script",
        "python3 -m pip install 'lanemalloc[report]'",
    )


# --- What is said in three sentences.


def sentences(run: Run) -> list[str]:
    if not run.figures:
        return [
            (
                f"The program ran {units.duration(run.seconds)}; "
                f"its resident memory was at most {peak_resident(run)}."
            ),
            (
                "Nothing is known of its allocations: it did not use the library, "
                "or ended before it could be read."
            ),
            "lanemalloc doctor -- PROGRAM tells what is in the way.",
        ]
    return [said_of_memory(run), said_of_calls(run), said_of_meetings(run)]


def peak_resident(run: Run) -> str:
    """Behind "at most": of a program that has waited for others, the kernel tells the largest."""
    if run.end.get("peak_resident_exact", True):
        return units.size(run.peak_resident)
    largest = units.size(run.end.get("peak_resident_largest_bytes", 0))
    return (
        f"{units.size(run.peak_resident)} (when last seen; the largest of its processes {largest})"
        if run.peak_resident
        else f"{largest} (the largest of its processes)"
    )


def said_of_memory(run: Run) -> str:
    f = run.figures
    when = "at exit" if run.end.get("from") == "exit" else "when last seen"
    live = f"{units.size(f.get('live_bytes', 0))} in {f.get('live_objects', 0):,} objects"
    return (
        f"Memory: the program had at most {peak_resident(run)} resident, "
        f"and at most {units.size(run.peak_live)} in live objects; {when} {live} were live, "
        f"and {units.size(f.get('cached_bytes', 0))} was free and kept for later."
    )


def said_of_calls(run: Run) -> str:
    f = run.figures
    calls = f.get("allocations", 0)
    if not calls:
        return "Work: it made no allocation."
    rate = f" ({units.count(calls / run.seconds)} a second)" if run.seconds > 0.05 else ""
    threads = (
        f"up to {units.threads(run.threads, run.own_threads)}"
        if run.threads > 1
        else "one thread"
        if run.threads
        else "its threads"
    )
    lanes = f.get("lanes", 0)
    return (
        f"Work: {threads} made {units.count(calls)} allocations{rate} "
        f"in {lanes} lane{'s' if lanes != 1 else ''}, entered {run.entry}; "
        f"{units.percent(f.get('misses', 0), calls)} found their bin empty, and "
        f"{units.percent(f.get('remote_frees', 0), f.get('frees', 0))} of the frees "
        "were made by another lane."
    )


def said_of_meetings(run: Run) -> str:
    worst = worst_first(run.contention)
    if not worst:
        return "Contention: threads met nowhere; no try failed and nobody waited."
    tries = f"{units.count(run.failures)} tries failed"
    if not run.waits:
        return (
            f"Contention: {tries}, most of them at “{worst[0]['at']}” "
            f"({place_of(worst[0]['at']).what}), and nobody waited."
        )
    share = units.percent(run.waited, run.seconds * max(run.threads, 1))
    first = worst[0]
    part = units.percent(first["waited_ns"], run.waited * 1e9)
    place = place_of(first["at"])
    advice = (
        f"; to wait less: {place.advice}"
        if place.advice and first["waited_ns"] >= 1_000_000
        else ""
    )
    return (
        f"Contention: threads waited {units.count(run.waits)} times "
        f"and {units.duration(run.waited)} in all, {share} of their time; {part} "
        f"of that at “{first['at']}” ({place.what}){advice}."
    )


# --- The head.


def facts(run: Run) -> list[tuple[str, str]]:
    r = run.recording
    machine = r.machine
    end = run.end
    ended = (
        "not known"
        if not end
        else f"by signal {end['signal']}"
        if end.get("signal")
        else f"exit status {end.get('status')}"
    )
    on = ", ".join(
        part
        for part in (
            f"{machine['cpus']} CPUs" if machine.get("cpus") else "",
            f"{units.size(machine['memory_bytes'])} of memory"
            if machine.get("memory_bytes")
            else "",
            str(machine.get("architecture", "")),
            f"kernel {machine['kernel']}" if machine.get("kernel") else "",
        )
        if part
    )
    started = (
        datetime.fromtimestamp(r.started, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
        if r.started
        else "not known"
    )
    return [
        *([] if run.letter else [("Command", run.command)]),
        ("Ended", f"{ended}, after {units.duration(run.seconds)}"),
        ("Library", f"lanemalloc {r.library or 'of unknown version'}, entered {run.entry}"),
        ("Machine", on or "not known"),
        ("Started", started),
        (
            "Recorded",
            "; ".join(
                [
                    f"{len(run.samples)} moments",
                    *(f"at the last, {text}" for text in run.last.get("left_out", [])),
                ]
            ),
        ),
        (
            "Options",
            ", ".join(f"{key}={value}" for key, value in run.options().items()) or "not known",
        ),
    ]


def head(run: Run) -> str:
    said = "".join(f"<p>{prose(text)}</p>" for text in sentences(run))
    listed = "".join(
        f"<div{WIDE if name in ('Command', 'Options') else ''}>"
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in facts(run)
    )
    notes = "".join(f"<li>{prose(note)}</li>" for note in run.notes())
    notes = f'<ul class="notes" aria-label="Notes">{notes}</ul>' if notes else ""
    title = f"<h2>{run.letter}: <code>{escape(run.command)}</code></h2>" if run.letter else ""
    return f'<div class="run">{title}<div class="said">{said}</div>{notes}<dl>{listed}</dl></div>'


def figures_section(runs: list[Run]) -> str:
    """Every figure by its name, for those who want to look one up."""
    names = sorted({name for run in runs for name in run.figures})
    if not names:
        return ""
    rows = [
        [name, *(f"{run.figures[name]:,}" if name in run.figures else "-" for run in runs)]
        for name in names
    ]
    table = Table(
        "All figures at the end, by their names in the library's statistics",
        ("figure", *(run.name("value") for run in runs)),
        rows,
    )
    section = Section(
        "figures",
        "All figures",
        "Sizes are in bytes, times in microseconds where the name ends with us.",
        "All figures",
    )
    section.parts.append(
        f"<details><summary>Show {len(names)} figures</summary>{table.html()}</details>"
    )
    return section.html()


def page(runs: list[Run]) -> str:
    found = sections(runs)
    titles = [(section.id, section.short) for section in found]
    figures = figures_section(runs)
    if figures:
        titles.append(("figures", "All figures"))
    title = (
        " and ".join(run.command for run in runs)
        if len(runs) == 1 or runs[0].command != runs[1].command
        else f"{runs[0].command}, twice"
    )
    summary = f"""<section id="summary" aria-label="Summary">\
<div class="runs">{"".join(head(run) for run in runs)}</div></section>"""
    return document("lanemalloc report", title, titles, summary, found, figures)


def document(
    product: str,
    title: str,
    titles: list[tuple[str, str]],
    before: str,
    found: list[Section],
    behind: str,
) -> str:
    """The whole page: sections with what stands before and behind them; `titles` are of the
    contents."""
    links = "".join(f'<li><a href="#{key}">{escape(name)}</a></li>' for key, name in titles)
    contents = f'<nav aria-label="Contents"><ul>{links}</ul></nav>' if links else ""
    specs = [plot.spec() for section in found for plot in section.plots()]
    style = (FOLDER / "page.css").read_text(encoding="utf-8")
    library = packed_library() if specs else ""
    return f"""{opening(product, title, style)}
</header>
{contents}
<main id="main" tabindex="-1">
{before}
<p class="hint" id="plots-missing" hidden>The plots could not be drawn by this browser; \
the tables below each of them have all figures.</p>
<noscript><p class="hint">Plots need JavaScript; \
the tables below each of them have all figures.</p></noscript>
{"".join(section.html() for section in found)}
{behind}
</main>
{footer(product)}
<script type="application/json" id="specs">{in_script(specs)}</script>
<script type="text/plain" id="library">{library}</script>
<script>{(FOLDER / "page.js").read_text(encoding="utf-8")}</script>
</body>
</html>
"""
