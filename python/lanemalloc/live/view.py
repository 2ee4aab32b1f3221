"""Composes the lines of the live view for a size of screen. Pure: text with styles in, nothing of
terminals."""

from __future__ import annotations

import time
import unicodedata
from dataclasses import dataclass, field
from functools import lru_cache

from lanemalloc import units
from lanemalloc.live import tables
from lanemalloc.live.model import Session
from lanemalloc.live.tables import Column, Row, Table, Value

Span = tuple[str, str]  # text and style
Line = list[Span]

PANELS = ("Overview", "Lanes", "Classes", "Contention", "Matrix", "Heaps")
KEYS = (
    ("F1", "Help"), ("F2", "Setup"), ("F3", "Search"), ("F4", "Filter"), ("F5", "Group"),
    ("F6", "Sort"), ("+-", "Pace"), ("Spc", "Pause"), ("F10", "Quit"),
)  # fmt: skip
HELP = """\
lanemalloc top shows what the allocator of a running process does. It only reads; \
the process is never stopped.

  1 - 6, Tab, Shift-Tab   overview, lanes, size classes, contention, matrix, heaps and pools
  Up Down PgUp PgDn Home End   move
  F3 or /   search: the cursor goes to the next row with that text; n: the next one
  F4 or \\   filter: only rows with that text; an empty one shows all
  F5 or t   lanes: one row for all threads that are named alike
  F6 or > <   sort by another column;  I  the other way round;  P M T  by rate, memory, waiting
  + -   refresh more often, less often;  Space  hold the picture
  [ ]   the process before, the next one (lanemalloc top PID PID ...)
  F2 or S   setup: plain characters for bars, rows that do nothing
  F10 or q   quit

What the figures mean
  live      objects that the program has not freed
  cached    free, but kept: in runs (decay_ms), empty slabs and bins of lanes
  miss      a request that found its bin empty; about one in a hundred is usual
  remote    objects freed by another lane than the one that they came from; sent in batches
  fail      a try to enter a lock or to swap a word that failed, because somebody else was there
  wait      a thread slept until another one had left; anything but 0 here costs time
  waited/s  seconds of waiting a second, of all threads together: 1 s/s is one thread \
that always waits
"""


@dataclass
class State:
    """What the person at the keys has chosen."""

    sessions: list[Session]
    interval: float = 0.5
    effective: float = 0.0  # how often it really is, where that would cost too much
    which: int = 0
    panel: int = 0
    cursor: dict[int, int] = field(default_factory=dict)
    top: dict[int, int] = field(default_factory=dict)
    sort: dict[int, int] = field(default_factory=dict)
    inverted: dict[int, bool] = field(default_factory=dict)
    filter: str = ""
    search: str = ""
    grouped: bool = False
    paused: bool = False
    ascii: bool = False
    hide_idle: bool = False
    overlay: str = ""  # help, setup, sort
    overlay_row: int = 0
    prompt: str = ""  # what is being typed for
    typed: str = ""
    message: str = ""

    @property
    def session(self) -> Session:
        return self.sessions[self.which]


def compose(state: State, width: int, height: int) -> list[Line]:
    """Exactly `height` lines, each at most `width` wide."""
    lines = header(state, width, height)
    body = max(1, height - len(lines) - 1)
    if state.overlay:
        lines += overlay(state, width, body)
    elif state.session.snapshot is None:
        lines += [[("", "")], [(state.session.trouble or "reading ...", "warn")]]
    elif state.panel == 0:
        lines += overview(state, width, body)
    else:
        lines += panel(state, width, body)
    lines = lines[: height - 1]
    lines += [[("", "")] for _ in range(height - 1 - len(lines))]
    lines.append(footer(state, width))
    return [cut(line, width) for line in lines]


# --- Header and footer.


def header(state: State, width: int, height: int) -> list[Line]:
    session = state.session
    s, r = session.snapshot, session.rates
    lines = [title(state, width)]
    if s is None:
        return lines
    lines.append(
        pairs(
            [
                ("rss", units.size(s.process.resident)),
                ("live", f"{units.size(s.live_bytes)} in {units.count(s.live_objects)}"),
                ("cached", units.size(s.cached_bytes)),
                ("in flight", units.size(s.in_flight_bytes)),
                ("large", units.size(s.large_bytes)),
                ("purged", units.size(s.world.get("purged_bytes", 0))),
            ],
            width,
        )
    )
    if r is not None:
        lines.append(rates_line(session, width))
    if height >= 20 and session.history:
        lines.append(history_line(state, width))
    lines.append(tabs(state, width))
    return lines


def rates_line(session: Session, width: int) -> Line:
    r = session.rates
    assert r is not None
    calls = max(r.allocations, 1e-9)
    waits = float(r.cell_waits.sum())
    waited = float(r.cell_waited.sum())
    return pairs(
        [
            ("alloc", f"{units.count(r.allocations)}/s"),
            ("free", f"{units.count(r.frees)}/s"),
            ("bytes", f"{units.size(r.allocated_bytes)}/s"),
            ("miss", units.percent(float(r.lane_misses.sum()), calls) if r.allocations else "-"),
            ("remote", f"{units.count(float(r.lane_remote_frees.sum()))}/s"),
            (
                "waits",
                f"{units.count(waits)}/s" + (f" {units.duration(waited)}" if waited else ""),
                "bad" if waits else "",
            ),
        ],
        width,
    )


def title(state: State, width: int) -> Line:
    session = state.session
    s = session.snapshot
    name = s.process.name if s else "process"
    left = f" {name} {session.pid}"
    if s is not None:
        age = units.duration(max(0.0, (s.at_ns - s.started_at_ns) / 1e9))
        left += f"  {units.threads(s.process.threads, s.own_threads)}  {s.entry}  up {age}"
    if len(state.sessions) > 1:
        left += f"  [{state.which + 1}/{len(state.sessions)}]"
    right = " PAUSED " if state.paused else f" {pace(state)} "
    style = "title"
    if session.ended:
        right, style = " ENDED: the last picture ", "ended"
    elif session.trouble:
        right, style = " not readable now ", "ended"
    right += time.strftime("%H:%M:%S ")
    if width < 2 * len(right) and not session.trouble:
        right = ""
    return [(pad(left, max(0, width - len(right))), style), (right, style)]


def pace(state: State) -> str:
    if state.effective > state.interval * 1.2:
        return f"{state.interval:g} s, slowed to {state.effective:.1f} s"
    return f"{state.interval:g} s"


def history_line(state: State, width: int) -> Line:
    history = state.session.history
    room = max(8, width - 22)
    values = list(history)[-room:]
    return [
        ("alloc/s ", "dim"),
        (units.bars(values, not state.ascii), "good"),
        (f" {units.count(max(values))}/s", "dim"),
    ]


def tabs(state: State, width: int) -> Line:
    line: Line = []
    for i, name in enumerate(PANELS):
        text = f" {i + 1} {name} " if width >= 70 else f"{i + 1}{name[:4]} "
        line.append((text, "tab" if i == state.panel else "dim"))
    return line


def footer(state: State, width: int) -> Line:
    if state.prompt:
        return [(f"{state.prompt}: ", "key"), (state.typed, ""), ("_", "bold")]
    if state.message:
        return [(state.message, "warn")]
    line: Line = []
    for key, name in KEYS:
        if sum(len(text) for text, _ in line) + len(key) + len(name) > width:
            break
        line += [(key, ""), (name, "key")]
    return line


def pairs(values: list[tuple[str, ...]], width: int) -> Line:
    """Names and values, as many as there is room for."""
    line: Line = []
    left = width
    for name, value, *style in values:
        left -= len(name) + len(value) + 3
        if left < -2 and line:
            break
        line += [
            (f"{name} ", "dim"),
            (value, style[0] if style and style[0] else "bold"),
            ("  ", ""),
        ]
    return line


# --- Panels.


def table_of(state: State, panel: int, width: int) -> Table:
    session = state.session
    if panel == 1:
        return tables.lanes(session, state.grouped)
    if panel == 2:
        return tables.classes(session)
    if panel == 3:
        return tables.cells(session)
    if panel == 4:
        return tables.matrix(session, width)
    return tables.owners(session)


def arranged(state: State, panel: int, width: int) -> Table:
    """Filtered and sorted as chosen."""
    table = table_of(state, panel, width)
    if state.filter:
        table.rows = [row for row in table.rows if matches(row, state.filter)]
    if state.hide_idle:
        table.rows = [row for row in table.rows if row.style != "dim"]
    if table.columns:
        table.sort = min(state.sort.get(panel, table.sort), len(table.columns) - 1)
        down = not table.rows or isinstance(table.rows[0].values[table.sort], (int, float))
        table.rows.sort(
            key=lambda row: sort_key(row.values[table.sort]),
            reverse=down ^ state.inverted.get(panel, False),
        )
    return table


def matches(row: Row, text: str) -> bool:
    return any(
        text.lower() in str(value).lower() for value in row.values if not isinstance(value, float)
    )


def sort_key(value: Value) -> tuple[int, float, str]:
    if isinstance(value, (int, float)):
        return 0, float(value), ""
    return 1, 0.0, str(value).lower()


def panel(state: State, width: int, height: int) -> list[Line]:
    table = arranged(state, state.panel, width)
    rows = max(1, height - 2)
    count = len(table.rows)
    cursor = min(max(state.cursor.get(state.panel, 0), 0), max(0, count - 1))
    top = min(state.top.get(state.panel, 0), cursor)
    top = max(top, cursor - rows + 1, 0)
    state.cursor[state.panel], state.top[state.panel] = cursor, top
    lines = table_lines(table, width, rows, top, cursor)
    return [caption(state, table, top, rows)] + lines


def caption(state: State, table: Table, top: int, rows: int) -> Line:
    line: Line = [(table.title, "bold")]
    if state.filter:
        line.append((f"  filter: {state.filter}", "warn"))
    if len(table.rows) > rows:
        line.append((f"  {top + 1}-{min(top + rows, len(table.rows))} of {len(table.rows)}", "dim"))
    if table.note:
        line.append((f"  {table.note}", "dim"))
    known = (
        state.session.snapshot.left_out if state.session.snapshot and state.panel in (1, 2) else []
    )
    for left_out in known:
        line.append((f"  [{left_out}]", "dim"))
    return line


def table_lines(table: Table, width: int, rows: int, top: int = 0, cursor: int = -1) -> list[Line]:
    """The head and as many rows as there is room for."""
    if not table.rows:
        return [
            [
                (
                    "  "
                    f"{table.empty if not table.columns or not table.total else 'nothing matches'}",
                    "dim",
                )
            ]
        ]
    shown = fitting(table.columns, width)
    widths = [column_width(table.columns, shown, i, width) for i in shown]
    head: Line = []
    for i, w in zip(shown, widths):
        mark = "*" if i == table.sort and table.columns[i].title else ""
        head.append(
            (aligned((table.columns[i].title + mark)[-w:], w, table.columns[i].left), "head")
        )
        head.append((" ", "head"))
    lines = [head]
    hottest = highest(table)
    for at in range(top, min(top + rows, len(table.rows))):
        lines.append(row_line(table, table.rows[at], shown, widths, at == cursor, hottest))
    return lines


def row_line(
    table: Table, row: Row, shown: list[int], widths: list[int], selected: bool, hottest: float
) -> Line:
    line: Line = []
    for i, w in zip(shown, widths):
        column = table.columns[i]
        text = aligned(column.show(row.values[i]), w, column.left)
        style = "select" if selected else row.style
        if table.heat and table.heat[0] <= i < table.heat[1] and hottest > 0:
            style = heat_style(float(row.values[i]) / hottest)
        line += [(text, style), (" ", "select" if selected else row.style)]
    return line


def highest(table: Table) -> float:
    if table.heat is None:
        return 0.0
    begin, end = table.heat
    return max(
        (max(map(float, row.values[begin:end]), default=0.0) for row in table.rows), default=0.0
    )


def heat_style(share: float) -> str:
    if share <= 0:
        return "dim"
    return f"heat{min(4, int(share * 5))}"


def fitting(columns: list[Column], width: int) -> list[int]:
    """Which columns there is room for: those of the highest rank go first."""
    shown = list(range(len(columns)))

    def needed() -> int:
        return sum((columns[i].width or 10) + 1 for i in shown)

    while needed() > width and any(columns[i].rank for i in shown):
        worst = max(columns[i].rank for i in shown)
        shown.remove(next(i for i in reversed(shown) if columns[i].rank == worst))
    while needed() > width and len(shown) > 2:
        shown.pop()
    return shown


def column_width(columns: list[Column], shown: list[int], i: int, width: int) -> int:
    if columns[i].width:
        return columns[i].width
    fixed = sum(columns[j].width + 1 for j in shown if columns[j].width)
    open_ = sum(1 for j in shown if not columns[j].width)
    room = max(4, (width - fixed) // open_ - 1)
    return room if columns[i].title == "" else min(room, 28)


def overview(state: State, width: int, height: int) -> list[Line]:
    """The first rows of the panels, one under the other; in low screens the first panels only."""
    wanted = [1, 2, 3] if height >= 15 else [1, 3] if height >= 9 else [1]
    if height >= 26:
        wanted = (
            [1, 2, 3, 5] if state.session.snapshot and state.session.snapshot.owners else [1, 2, 3]
        )
    ready = [arranged(state, i, width) for i in wanted]
    for table in ready:
        if table.columns is tables.CELL_COLUMNS:
            table.rows = [row for row in table.rows if row.style != "dim"]
    shares = share_out([len(table.rows) for table in ready], height - 3 * len(ready) + 1)
    lines: list[Line] = []
    for i, (table, rows) in enumerate(zip(ready, shares)):
        if i:
            lines.append([("", "")])
        lines.append(
            [
                (table.title, "bold"),
                (f"  {rows} of {len(table.rows)}" if rows < len(table.rows) else "", "dim"),
            ]
        )
        lines += table_lines(table, width, rows)
    return lines


def share_out(wanted: list[int], room: int) -> list[int]:
    """As much as each wants where there is room; else in equal parts, and what one does not need
    goes to the others."""
    given = [0] * len(wanted)
    while room > 0 and any(g < w for g, w in zip(given, wanted)):
        for i, want in enumerate(wanted):
            if given[i] < want and room > 0:
                given[i] += 1
                room -= 1
    return given


# --- Overlays.


def overlay(state: State, width: int, height: int) -> list[Line]:
    if state.overlay == "help":
        lines = [text for line in HELP.splitlines() for text in wrapped(line, width)]
        top = min(state.overlay_row, max(0, len(lines) - height))
        state.overlay_row = top
        return [[(line, "")] for line in lines[top : top + height]]
    choices = overlay_choices(state, width)
    state.overlay_row = min(max(state.overlay_row, 0), max(0, len(choices) - 1))
    top = max(0, state.overlay_row - height + 3)
    head = (
        "Sort by (Enter chooses, Esc leaves)"
        if state.overlay == "sort"
        else "Setup (Enter changes, Esc leaves)"
    )
    rows: list[Line] = [[(head, "bold")]]
    for i, choice in enumerate(choices[top : top + height - 2], top):
        rows.append(
            [(pad(f"  {choice}", min(width, 50)), "select" if i == state.overlay_row else "")]
        )
    return rows


def overlay_choices(state: State, width: int) -> list[str]:
    if state.overlay == "sort":
        return [
            column.title or "(last column)"
            for column in table_of(state, max(state.panel, 1), width).columns
        ]
    on = {True: "[x]", False: "[ ]"}
    return [
        f"{on[state.ascii]} plain characters for bars",
        f"{on[state.hide_idle]} hide rows that do nothing",
        f"{on[state.grouped]} one row for threads that are named alike",
        f"    refresh every {state.interval:g} s (+ and - change it)",
    ]


def wrapped(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    indent = " " * min(len(line) - len(line.lstrip()) + 2, width // 2)
    at = line.rfind(" ", len(indent), width)
    at = at if at > 0 else width
    return [line[:at], *wrapped(indent + line[at:].lstrip(), width)]


# --- Text.


def cells_of(text: str) -> int:
    """Columns that it takes on a screen."""
    return len(text) if text.isascii() else cells_of_any(text)


@lru_cache(maxsize=4096)
def cells_of_any(text: str) -> int:
    return sum(
        2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1
        for c in text
    )


def pad(text: str, width: int) -> str:
    text = clip(text, width)
    return text + " " * (width - cells_of(text))


def aligned(text: str, width: int, left: bool) -> str:
    text = clip(text, width)
    room = " " * (width - cells_of(text))
    return text + room if left else room + text


def clip(text: str, width: int) -> str:
    """Without control characters, at most that wide."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else "?" for c in text)
    if cells_of(text) <= width:
        return text
    text = text[: max(0, width - 1)]
    while text and cells_of(text) > width - 1:
        text = text[:-1]
    return text + "~" if width > 0 else ""


def cut(line: Line, width: int) -> Line:
    """The line as far as there is room; neighbours of one style as one."""
    joined: Line = []
    for text, style in line:
        if joined and joined[-1][1] == style:
            joined[-1] = (joined[-1][0] + text, style)
        else:
            joined.append((text, style))
    result: Line = []
    left = width
    for text, style in joined:
        part = text if cells_of(text) <= left else clip(text, left)
        result.append((part, style))
        left -= cells_of(part)
        if left <= 0:
            break
    return result


def plain(lines: list[Line]) -> str:
    """Without styles."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)
