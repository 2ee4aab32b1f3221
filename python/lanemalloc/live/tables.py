"""What the panels show: tables made of a session. Pure: nothing here knows the screen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lanemalloc import units
from lanemalloc.live.model import Session
from lanemalloc.meetings import place_of

Value = Any  # a number, or what str() makes text of
Show = Callable[[Value], str]

MOST_GROUPS = 1000


def as_count(value: Value) -> str:
    return "-" if not value else units.short_count(float(value))


def as_size(value: Value) -> str:
    return "-" if not value else units.short_size(float(value))


def as_text(value: Value) -> str:
    return str(value)


def as_share(value: Value) -> str:
    return "-" if float(value) < 0 else f"{float(value):.0%}"


def as_time(value: Value) -> str:
    """Seconds waited a second."""
    return "-" if not value else units.duration(float(value)).replace(" ", "")


@dataclass(frozen=True)
class Column:
    """One column. width 0: takes what is left. Those of higher `rank` give way first where there is
    little room."""

    title: str
    width: int
    show: Show
    rank: int = 0
    left: bool = False


@dataclass
class Row:
    """Values for each column; `style` of the whole row."""

    values: list[Value]
    style: str = ""


@dataclass
class Table:
    """A panel. `sort`: the column it is sorted by unless somebody says otherwise."""

    title: str
    columns: list[Column]
    rows: list[Row]
    sort: int
    note: str = ""
    heat: tuple[int, int] | None = None  # columns whose values are coloured by how high they are
    empty: str = "nothing yet"
    total: int = field(default=0)


LANE_COLUMNS = [
    Column("LANE", 5, as_text),
    Column("OWNER", 0, as_text, left=True),
    Column("ALLOC/s", 8, as_count),
    Column("MISS/s", 7, as_count, 2),
    Column("REMOTE/s", 9, as_count, 1),
    Column("FAIL/s", 7, as_count, 3),
    Column("WAIT/s", 7, as_count, 1),
    Column("WAITED/s", 9, as_time, 4),
    Column("HELD", 6, as_size),
    Column("CACHED", 6, as_size, 2),
    Column("ALLOCS", 7, as_count, 5),
]


def lanes(session: Session, grouped: bool = False) -> Table:
    """A row a lane, or a row for all lanes of threads that are named alike."""
    s, r = session.snapshot, session.rates
    assert s is not None
    n = len(s.lanes)
    zero = np.zeros(n)
    cached = s.lanes.bytes_empty + s.lanes.bytes_waiting
    parts = [
        r.lane_allocations if r else zero,
        r.lane_misses if r else zero,
        r.lane_remote_frees if r else zero,
        r.lane_failures if r else zero,
        r.lane_waits if r else zero,
        r.lane_waited if r else zero,
        s.lanes.bytes_held,
        cached,
        s.lanes.allocations,
    ]
    figures = np.stack([np.asarray(part, float) for part in parts], axis=1)
    if grouped:
        rows = grouped_rows(session, figures)
        return Table(f"Lanes of {n} by thread name", LANE_COLUMNS, rows, 2, total=n)
    # A thread's name is a file to read: only as long as that is few, else when the row is shown.
    rows = [
        Row([int(owner), "", *values], "dim" if values[0] == 0 else "")
        for owner, values in zip(s.lanes.owner, figures.tolist())
    ]
    for i, row in enumerate(rows):
        row.values[1] = LaneName(session, i)
    return Table(f"Lanes {n}", LANE_COLUMNS, rows, 2, total=n)


@dataclass(frozen=True)
class LaneName:
    """The name of a lane's owner, looked up when it is shown or compared."""

    session: Session
    i: int

    def __str__(self) -> str:
        return self.session.lane_name(self.i)


def grouped_rows(
    session: Session, figures: np.ndarray[tuple[int, int], np.dtype[np.float64]]
) -> list[Row]:
    groups: dict[str, list[int]] = {}
    for i in range(len(figures)):
        groups.setdefault(session.group_name(i), []).append(i)
    return [
        Row([len(members), f"{name} x {len(members)}", *figures[members].sum(axis=0).tolist()])
        for name, members in list(groups.items())[:MOST_GROUPS]
    ]


CLASS_COLUMNS = [
    Column("SIZE", 7, as_text),
    Column("LIVE", 7, as_count),
    Column("BYTES", 7, as_size),
    Column("ALLOC/s", 8, as_count),
    Column("FREE/s", 8, as_count, 1),
    Column("SLABS", 7, as_count, 2),
    Column("IN SLABS", 8, as_size, 1),
    Column("USED", 5, as_share),
    Column("BINS", 7, as_size, 3),
    Column("FLIGHT", 7, as_size, 3),
    Column("", 0, as_text, left=True),
]


def classes(session: Session) -> Table:
    """A row a size class that was ever used, and one for large allocations."""
    s, r = session.snapshot, session.rates
    assert s is not None
    c = s.classes
    rows = []
    for i in np.flatnonzero((c.allocations > 0) | (c.slabs > 0)):
        slab_bytes, live_bytes = int(c.slab_bytes[i]), int(c.live[i] * c.size[i])
        used = live_bytes / slab_bytes if slab_bytes else -1.0
        rows.append(
            Row(
                [
                    int(c.size[i]),
                    int(c.live[i]),
                    live_bytes,
                    float(r.class_allocations[i]) if r else 0.0,
                    float(r.class_frees[i]) if r else 0.0,
                    int(c.slabs[i]),
                    slab_bytes,
                    used,
                    int(c.waiting[i] * c.size[i]),
                    int(c.in_flight[i] * c.size[i]),
                    bar(used),
                ],
                "warn" if slab_bytes > 1 << 20 and 0 <= used < 0.25 else "",
            )
        )
    if s.world.get("large_allocations"):
        rate, freed = (r.large_allocations, r.large_frees) if r else (0.0, 0.0)
        what = "all of more than 512 KiB"
        rows.append(
            Row(
                [
                    LargeSize(1 << 30),
                    s.large_live,
                    s.large_bytes,
                    rate,
                    freed,
                    0,
                    0,
                    -1.0,
                    0,
                    0,
                    what,
                ]
            )
        )
    return Table("Size classes", CLASS_COLUMNS, rows, 2)


class LargeSize(int):
    """Sorts behind all classes."""

    def __str__(self) -> str:
        return "large"


def bar(share: float, width: int = 10) -> str:
    """Of a share of 1; empty for a negative one."""
    if share < 0:
        return ""
    full = round(min(share, 1.0) * width)
    return "█" * full + "░" * (width - full)


CELL_COLUMNS = [
    Column("PLACE", 15, as_text, left=True),
    Column("COUNT/s", 8, as_count, 2),
    Column("FAIL/s", 7, as_count),
    Column("FAILED", 6, as_share, 3),
    Column("WAIT/s", 7, as_count),
    Column("WAITED/s", 9, as_time),
    Column("WAITS", 7, as_count, 1),
    Column("1us-16ms", 16, as_text, 1, left=True),
    Column("", 0, as_text, 4, left=True),
]


def cells(session: Session) -> Table:
    """A row for each place where threads can meet."""
    s, r = session.snapshot, session.rates
    assert s is not None
    rows = []
    for i, cell in enumerate(s.cells):
        tries = cell.count + cell.failures
        recent = r.cell_histograms[i].tolist() if r else []
        waits = float(r.cell_waits[i]) if r else 0.0
        rows.append(
            Row(
                [
                    cell.name,
                    float(r.cell_counts[i]) if r else 0.0,
                    float(r.cell_failures[i]) if r else 0.0,
                    cell.failures / tries if tries else -1.0,
                    waits,
                    float(r.cell_waited[i]) if r else 0.0,
                    cell.waits,
                    units.bars(recent if any(recent) else cell.histogram.tolist()),
                    place_of(cell.name).what,
                ],
                "bad" if waits > 0 else "" if tries else "dim",
            )
        )
    return Table(
        "Where threads meet",
        CELL_COLUMNS,
        rows,
        5,
        note="bars: waits by length, of now or else of all time",
    )


OWNER_COLUMNS = [
    Column("NAME", 24, as_text, left=True),
    Column("KIND", 5, as_text, left=True),
    Column("USED", 7, as_size),
    Column("PEAK", 7, as_size, 1),
    Column("LIMIT", 7, as_size, 1),
    Column("FULL", 5, as_share, 2),
    Column("IN SLABS", 8, as_size, 2),
    Column("IN USE", 7, as_count, 3),
    Column("MET", 7, as_count, 3),
    Column("", 0, as_text, left=True),
]


def owners(session: Session) -> Table:
    """A row a heap or pool."""
    s = session.snapshot
    assert s is not None
    rows = []
    for owner in s.owners:
        full = owner.used / owner.limit if owner.limit else -1.0
        rows.append(
            Row(
                [
                    owner.name or f"{owner.at:#x}",
                    owner.kind,
                    owner.used,
                    owner.peak,
                    owner.limit or 0,
                    full,
                    owner.slab_bytes,
                    owner.live,
                    owner.contended,
                    bar(full),
                ],
                "warn" if full > 0.9 else "",
            )
        )
    return Table(
        "Heaps and pools",
        OWNER_COLUMNS,
        rows,
        2,
        empty="this program has made no heaps and no pools",
    )


def matrix(session: Session, width: int) -> Table:
    """Who frees whose memory: a row a lane that frees, a column a lane whose memory it is; batches
    a second, or in all."""
    s, r = session.snapshot, session.rates
    assert s is not None
    now = r is not None and r.batches.any()
    figures = np.asarray(r.batches if now and r is not None else s.batches, float)
    if not figures.size or not figures.any():
        return Table(
            "Who frees whose memory", [], [], 0, empty="no lane has freed another's memory yet"
        )
    modulo = figures.shape[1]
    columns = np.flatnonzero(figures.sum(axis=0))
    room = max(1, (width - 30) // 6)
    hottest = np.sort(columns[np.argsort(-figures[:, columns].sum(axis=0))][:room])
    titles = [column_title(s.lanes.owner, modulo, int(j)) for j in hottest]
    rows = []
    for i in np.flatnonzero(figures.sum(axis=1)):
        rows.append(
            Row(
                [
                    int(s.lanes.owner[i]),
                    LaneName(session, int(i)),
                    float(figures[i].sum()),
                    *figures[i, hottest].tolist(),
                ]
            )
        )
    head = [
        Column("LANE", 5, as_text),
        Column("WHO FREES", 0, as_text, left=True),
        Column("ALL", 6, as_count),
    ]
    left_out = len(columns) - len(hottest)
    note = "batches a second" if now else "batches in all: none now"
    return Table(
        "Who frees whose memory",
        head + [Column(title, 5, as_count) for title in titles],
        rows,
        2,
        note=note + (f"; {left_out} columns with less are left out" if left_out else ""),
        heat=(3, 3 + len(hottest)),
    )


def column_title(owners_: np.ndarray[tuple[int], np.dtype[np.int64]], modulo: int, j: int) -> str:
    """The lane, or the first of those that share the column."""
    mine = owners_[owners_ % modulo == j]
    if len(mine) == 0:
        return f"%{j}"
    return str(mine[0]) if len(mine) == 1 else f"{mine[0]}+{len(mine) - 1}"
