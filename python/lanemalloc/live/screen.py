"""The terminal of the live view: draws lines, takes keys. By curses, so that it works wherever
terminfo knows the terminal.
"""

from __future__ import annotations

import contextlib
import curses
import locale
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from lanemalloc.live.view import PANELS, Line, State, arranged, compose, matches, overlay_choices

if TYPE_CHECKING:
    from curses import window

# That refreshing may take: of processes with thousands of lanes it is less often than was asked for
MOST_OF_CPU = 0.01
PACES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
ESCAPE, ENTER, BACKSPACE = 27, (10, 13, curses.KEY_ENTER), (8, 127, curses.KEY_BACKSPACE)


def show(state: State) -> None:
    """Until the person quits."""
    locale.setlocale(locale.LC_ALL, "")
    os.environ.setdefault("ESCDELAY", "25")
    curses.wrapper(lambda screen: Screen(screen, state).run())


class Screen:
    """One run of the live view."""

    def __init__(self, screen: window, state: State) -> None:
        self.screen = screen
        self.state = state
        self.styles = make_styles()
        self.keys = key_table(self)
        self.unicode = locale.getpreferredencoding().lower().replace("-", "") == "utf8"
        state.ascii = state.ascii or not self.unicode
        self.quit = False
        with contextlib.suppress(curses.error):  # a terminal that always shows its cursor
            curses.curs_set(0)

    def run(self) -> None:
        due = time.monotonic()
        for session in self.state.sessions:
            if session.snapshot is None:
                session.refresh(first=True)
        while not self.quit:
            begin = time.thread_time()
            refreshes = time.monotonic() >= due
            if refreshes and not self.state.paused:
                self.state.session.refresh()
            self.draw()
            if refreshes:
                self.state.effective = max(
                    self.state.interval, (time.thread_time() - begin) / MOST_OF_CPU
                )
                due = time.monotonic() + self.state.effective
            self.screen.timeout(max(1, int((due - time.monotonic()) * 1000)))
            self.take_keys()

    def take_keys(self) -> None:
        """Waits for one key until it is time to refresh, and takes all others that are there
        already."""
        key = self.screen.getch()
        self.screen.timeout(0)
        while key != -1 and not self.quit:
            if key != curses.KEY_RESIZE:
                self.press(key)
            key = self.screen.getch()

    def press(self, key: int) -> None:
        state = self.state
        state.message = ""
        if state.prompt:
            self.type(key)
        elif state.overlay:
            self.press_in_overlay(key)
        else:
            self.keys.get(key, lambda: None)()

    def draw(self) -> None:
        height, width = self.screen.getmaxyx()
        self.screen.erase()
        for y, line in enumerate(compose(self.state, width, max(height, 2))[:height]):
            self.draw_line(y, line, width)
        self.screen.refresh()

    def draw_line(self, y: int, line: Line, width: int) -> None:
        with contextlib.suppress(
            curses.error
        ):  # the last place of the screen, or it has just become smaller
            self.screen.move(y, 0)
            for text, style in line:
                self.screen.addstr(
                    text if self.unicode else plain_ascii(text), self.styles.get(style, 0)
                )

    # --- What keys do.
    def move(self, by: int) -> Callable[[], None]:
        def go() -> None:
            panel = self.state.panel
            self.state.cursor[panel] = max(0, self.state.cursor.get(panel, 0) + by)

        return go

    def page(self, by: int) -> Callable[[], None]:
        return lambda: self.move(by * max(1, self.screen.getmaxyx()[0] - 8))()

    def to_panel(self, panel: int) -> Callable[[], None]:
        def go() -> None:
            self.state.panel = panel % len(PANELS)

        return go

    def step_panel(self, by: int) -> Callable[[], None]:
        return lambda: self.to_panel(self.state.panel + by)()

    def step_process(self, by: int) -> Callable[[], None]:
        def go() -> None:
            self.state.which = (self.state.which + by) % len(self.state.sessions)
            self.state.session.refresh()

        return go

    def sort_by(self, title: str) -> Callable[[], None]:
        """The first column of that name, of the panel or of those of the overview."""

        def go() -> None:
            for panel in [self.state.panel] if self.state.panel else [1, 2, 3]:
                columns = arranged(self.state, panel, self.screen.getmaxyx()[1]).columns
                found = [i for i, column in enumerate(columns) if column.title in title.split("|")]
                if found:
                    self.state.sort[panel] = found[0]

        return go

    def step_sort(self, by: int) -> Callable[[], None]:
        def go() -> None:
            panel = max(self.state.panel, 1)
            table = arranged(self.state, panel, self.screen.getmaxyx()[1])
            if table.columns:
                self.state.sort[panel] = (table.sort + by) % len(table.columns)
                self.state.message = (
                    f"sorted by {table.columns[self.state.sort[panel]].title or 'the last column'}"
                )

        return go

    def invert(self) -> None:
        panel = max(self.state.panel, 1)
        self.state.inverted[panel] = not self.state.inverted.get(panel, False)

    def flip(self, name: str) -> Callable[[], None]:
        return lambda: setattr(self.state, name, not getattr(self.state, name))

    def pace(self, by: int) -> Callable[[], None]:
        def go() -> None:
            nearest = min(range(len(PACES)), key=lambda i: abs(PACES[i] - self.state.interval))
            self.state.interval = PACES[min(max(nearest + by, 0), len(PACES) - 1)]
            self.state.message = f"every {self.state.interval:g} s"

        return go

    def open_overlay(self, name: str) -> Callable[[], None]:
        def go() -> None:
            self.state.overlay, self.state.overlay_row = name, 0

        return go

    def ask(self, prompt: str) -> Callable[[], None]:
        def go() -> None:
            self.state.prompt = prompt
            self.state.typed = self.state.filter if prompt == "Filter" else ""

        return go

    def leave(self) -> None:
        self.quit = True

    # --- Overlays and prompts.
    def press_in_overlay(self, key: int) -> None:
        state = self.state
        if key in (curses.KEY_UP, ord("k")):
            state.overlay_row = max(0, state.overlay_row - 1)
        elif key in (curses.KEY_DOWN, ord("j")):
            state.overlay_row += 1
        elif key == curses.KEY_NPAGE:
            state.overlay_row += 10
        elif key == curses.KEY_PPAGE:
            state.overlay_row = max(0, state.overlay_row - 10)
        elif key in (ord("+"), ord("-")):
            self.pace(-1 if key == ord("+") else 1)()
        elif key in ENTER + (ord(" "),) and state.overlay != "help":
            self.choose()
        else:
            state.overlay = ""

    def choose(self) -> None:
        state = self.state
        if state.overlay == "sort":
            state.sort[max(state.panel, 1)] = state.overlay_row
            state.overlay = ""
        elif state.overlay_row < 3:
            self.flip(("ascii", "hide_idle", "grouped")[state.overlay_row])()
        assert not state.overlay or overlay_choices(state, 80)

    def type(self, key: int) -> None:
        state = self.state
        if key == ESCAPE:
            if state.prompt == "Filter":
                state.filter = ""
            state.prompt = ""
        elif key in ENTER:
            if state.prompt == "Search":
                state.search = state.typed
                self.search(0)
            state.prompt = ""
        else:
            if key in BACKSPACE:
                state.typed = state.typed[:-1]
            elif 32 <= key < 127:
                state.typed += chr(key)
            if state.prompt == "Filter":
                state.filter = state.typed

    def search(self, skip: int) -> None:
        """Moves the cursor to the next row that has the text."""
        state = self.state
        if not state.search:
            return
        state.panel = max(state.panel, 1)
        rows = arranged(state, state.panel, self.screen.getmaxyx()[1]).rows
        begin = state.cursor.get(state.panel, 0) + skip
        for i in [*range(begin, len(rows)), *range(0, min(begin, len(rows)))]:
            if matches(rows[i], state.search):
                state.cursor[state.panel] = i
                return
        state.message = f"nothing has '{state.search}'"


def key_table(s: Screen) -> dict[int, Callable[[], None]]:
    """What each key does outside of overlays and prompts."""
    keys: dict[int, Callable[[], None]] = {
        ord(str(i + 1)): s.to_panel(i) for i in range(len(PANELS))
    }
    f = curses.KEY_F0
    groups: list[tuple[tuple[int, ...], Callable[[], None]]] = [
        ((ord("\t"),), s.step_panel(1)),
        ((curses.KEY_BTAB,), s.step_panel(-1)),
        ((curses.KEY_RIGHT,), s.step_panel(1)),
        ((curses.KEY_LEFT,), s.step_panel(-1)),
        ((curses.KEY_UP, ord("k")), s.move(-1)),
        ((curses.KEY_DOWN, ord("j")), s.move(1)),
        ((curses.KEY_PPAGE,), s.page(-1)),
        ((curses.KEY_NPAGE,), s.page(1)),
        ((curses.KEY_HOME, ord("g")), s.move(-(1 << 30))),
        ((curses.KEY_END, ord("G")), s.move(1 << 30)),
        ((f + 1, ord("h"), ord("?")), s.open_overlay("help")),
        ((f + 2, ord("S")), s.open_overlay("setup")),
        ((f + 3, ord("/")), s.ask("Search")),
        ((ord("n"),), lambda: s.search(1)),
        ((f + 4, ord("\\")), s.ask("Filter")),
        ((f + 5, ord("t")), s.flip("grouped")),
        ((f + 6,), s.open_overlay("sort")),
        ((ord(">"), ord(".")), s.step_sort(1)),
        ((ord("<"), ord(",")), s.step_sort(-1)),
        ((ord("I"),), s.invert),
        ((ord("P"),), s.sort_by("ALLOC/s|COUNT/s")),
        ((ord("M"),), s.sort_by("HELD|BYTES|USED")),
        ((ord("T"),), s.sort_by("WAITED/s|WAIT/s")),
        ((ord("+"), ord("=")), s.pace(-1)),
        ((ord("-"),), s.pace(1)),
        ((ord(" "),), s.flip("paused")),
        ((ord("]"),), s.step_process(1)),
        ((ord("["),), s.step_process(-1)),
        ((ord("q"), ord("Q"), f + 10, 3), s.leave),
    ]
    for codes, action in groups:
        for code in codes:
            keys[code] = action
    return keys


PLAIN = str.maketrans({"█": "#", "░": ".", "µ": "u", **dict(zip("▁▂▃▄▅▆▇", ".:-=+*#"))})


def plain_ascii(text: str) -> str:
    return text.translate(PLAIN).encode("ascii", "replace").decode()


def make_styles() -> dict[str, int]:
    """With colours where the terminal has them."""
    styles = {
        "bold": curses.A_BOLD, "dim": curses.A_DIM, "title": curses.A_REVERSE,
        "ended": curses.A_REVERSE | curses.A_BOLD, "head": curses.A_REVERSE,
        "select": curses.A_REVERSE, "tab": curses.A_REVERSE | curses.A_BOLD,
        "key": curses.A_REVERSE, "warn": curses.A_BOLD, "bad": curses.A_BOLD, "good": 0,
        "heat0": 0, "heat1": 0, "heat2": curses.A_BOLD, "heat3": curses.A_BOLD,
        "heat4": curses.A_REVERSE,
    }  # fmt: skip
    if "NO_COLOR" in os.environ or not curses.has_colors():
        return styles
    curses.use_default_colors()
    colours = {
        "title": (curses.COLOR_BLACK, curses.COLOR_GREEN),
        "ended": (curses.COLOR_WHITE, curses.COLOR_RED),
        "head": (curses.COLOR_BLACK, curses.COLOR_CYAN),
        "select": (curses.COLOR_BLACK, curses.COLOR_WHITE),
        "key": (curses.COLOR_BLACK, curses.COLOR_CYAN),
        "warn": (curses.COLOR_YELLOW, -1), "bad": (curses.COLOR_RED, -1),
        "good": (curses.COLOR_GREEN, -1), "heat0": (curses.COLOR_CYAN, -1),
        "heat1": (curses.COLOR_GREEN, -1), "heat2": (curses.COLOR_YELLOW, -1),
        "heat3": (curses.COLOR_RED, -1), "heat4": (curses.COLOR_WHITE, curses.COLOR_RED),
        "tab": (curses.COLOR_BLACK, curses.COLOR_GREEN),
    }  # fmt: skip
    for number, (style, (front, back)) in enumerate(colours.items(), 1):
        curses.init_pair(number, front, back)
        keep = styles[style] & ~curses.A_REVERSE
        styles[style] = curses.color_pair(number) | keep
    return styles
