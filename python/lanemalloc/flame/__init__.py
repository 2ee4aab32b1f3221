"""A profile as one HTML page that needs no network: flame graph, tree, threads, sizes; of two
profiles, what differs.

Used by: the command profile.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lanemalloc import outputs, units
from lanemalloc.flame.data import Moment, data_of, label_of
from lanemalloc.profiles import Profile, Row
from lanemalloc.report.markup import Table, footer, in_script, opening, prose

FOLDER = Path(__file__).resolve().parent
MOST_ROWS = 200  # of the table


def write(
    file: Path,
    title: str,
    profile: Profile,
    before: Profile | None = None,
    moments: list[Moment] | None = None,
    notes: list[str] | None = None,
) -> int:
    """With names looked up. Returns the bytes; raises OSError."""
    text = page(title, profile, before, moments or [], notes or [])
    outputs.write_text(file, text)
    return len(text.encode("utf-8", "replace"))


def page(
    title: str, profile: Profile, before: Profile | None, moments: list[Moment], notes: list[str]
) -> str:
    product = "lanemalloc profile"
    remarks = "".join(f"<li>{prose(note)}</li>" for note in notes)
    remarks = f'<ul class="notes" aria-label="Notes">{remarks}</ul>' if remarks else ""
    style = (FOLDER.parent / "report" / "page.css").read_text(encoding="utf-8")
    style += (FOLDER / "page.css").read_text(encoding="utf-8")
    return f"""{opening(product, title, style, "wide")}
<p>{prose(lead(profile, before))}</p>
{remarks}
</header>
<main id="main" tabindex="-1">
<noscript><p class="hint">The flame graph needs JavaScript; \
the table has the figures of each function.</p></noscript>
<div id="app" hidden></div>
<details id="functions"><summary>Functions as a table</summary>{table(profile, before).html()}\
</details>
</main>
{footer(product)}
<script type="application/json" id="data">{in_script(data_of(profile, before, moments))}</script>
<script>{(FOLDER / "page.js").read_text(encoding="utf-8")}</script>
</body>
</html>
"""


def lead(profile: Profile, before: Profile | None) -> str:
    kind = profile.default
    unit = profile.types[profile.index(kind)].unit
    total = f"{units.amount(profile.total(kind), unit)} ± {units.amount(profile.error(kind), unit)}"
    every = (
        f"; one sample in {units.amount(profile.period, profile.period_type.unit)}"
        if profile.period
        else ""
    )
    told = f"{label_of(kind)}: {total}, estimated from samples{every}."
    if before is not None:
        was = f"{units.amount(before.total(kind), unit)} ± {units.amount(before.error(kind), unit)}"
        told = f"{label_of(kind)}: {was} before, {total} after, estimated from samples."
    return f"{told} Behind ± is one standard error."


def table(profile: Profile, before: Profile | None) -> Table:
    """The functions with most, for readers without JavaScript."""
    kind = profile.default
    unit = profile.types[profile.index(kind)].unit
    after = {row.name: row for row in profile.rows(kind)}
    was = {row.name: row for row in before.rows(kind)} if before is not None else {}

    def cells(row: Row | None) -> list[str]:
        row = row or Row("")
        return [
            units.amount(row.flat, unit),
            units.amount(row.cumulative, unit),
            f"± {units.amount(row.error, unit)}",
        ]

    names = sorted(
        {**after, **was},
        key=lambda name: (
            -max(abs(rows[name].cumulative) if name in rows else 0 for rows in (after, was)),
            name,
        ),
    )
    rows = [
        [name, *(cells(was.get(name)) if before is not None else []), *cells(after.get(name))]
        for name in names[:MOST_ROWS]
    ]
    each = ("itself", "with what it called", "error")
    head: list[Any] = ["function", *each]
    if before is not None:
        head = ["function", *(f"{one}, {when}" for when in ("before", "after") for one in each)]
    caption = f"{label_of(kind)}, by function"
    if len(names) > MOST_ROWS:
        caption += f"; the first {MOST_ROWS} of {len(names)}"
    return Table(caption, head, rows)
