"""Reports in a browser, as people meet them: without a network, by keyboard, on a phone, in the
dark, on paper, with a screen reader."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from browsing import Browser, Keys, axe_finds
from conftest import tool
from test_report import hostile

from lanemalloc.report import write

FOCUSABLE = "a[href], button, summary, [tabindex='0']"


@pytest.fixture(scope="module")
def pages(
    recordings: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {"one": folder / "one.html", "two": folder / "two.html", "none": folder / "none.html"}
    tool("run", "-q", "--record", folder / "none.jsonl", "--", "true")
    for name, files in (
        ("one", recordings[:1]),
        ("two", recordings),
        ("none", (folder / "none.jsonl",)),
    ):
        assert tool("report", *files, "-o", found[name]).returncode == 0
    write(hostile(recordings[0]), folder / "odd.html")
    found["odd"] = folder / "odd.html"
    return found


def background(browser: Browser) -> str:
    return str(browser.js("return getComputedStyle(document.body).backgroundColor"))


WHITE, DARK = "rgb(255, 255, 255)", "rgb(20, 24, 29)"


@pytest.mark.parametrize("page", ["one", "two", "none"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_it_opens_without_a_network_and_without_a_complaint(
    browser: Browser, pages: dict[str, Path], width: int, scheme: str, page: str
) -> None:
    browser.open(pages[page], width, scheme)
    assert browser.messages() == []
    assert browser.requests() == []
    assert browser.js("return document.documentElement.scrollWidth") <= width
    assert background(browser) == (WHITE if scheme == "light" else DARK)
    assert len(browser.shot(f"{page}-{width}-{scheme}")) > 10_000


@pytest.mark.parametrize("page", ["one", "two"])
def test_every_section_has_something_in_it_and_every_plot_is_drawn(
    browser: Browser, pages: dict[str, Path], page: str
) -> None:
    browser.open(pages[page])
    empty = browser.js(
        "return [...document.querySelectorAll('main section')]"
        ".filter(s => s.innerText.trim().length < 40).map(s => s.id)"
    )
    assert empty == []
    plots = browser.js(
        """return [...document.querySelectorAll('.plot')].map(p => {
             const svg = p.querySelector('svg.main-svg'), \
box = svg ? svg.getBoundingClientRect() : {width: 0, height: 0};
             const marks = p.querySelectorAll('.trace path, .trace image, .hm image, \
.hm path, .bars path, .scatterlayer path').length;
             return [p.id, box.width, box.height, marks];
           })"""
    )
    assert len(plots) >= 6
    for name, width, height, marks in plots:
        assert width > 500 and height > 80 and marks > 0, name
    assert (
        browser.js("return document.querySelectorAll('svg.chord .ribbon').length") > 0
        or page == "one"
    )  # shared:1 has one lane


def test_the_switch_works_by_keyboard_and_plots_follow(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["one"])
    ink = "return getComputedStyle(document.querySelector('#memory-plot .xtick text')).fill"
    before = browser.js(ink)
    assert browser.js("return theme.getAttribute('aria-pressed')") == "false"
    browser.js("theme.focus()")
    browser.keys(Keys.SPACE)
    assert browser.js("return theme.getAttribute('aria-pressed')") == "true"
    assert background(browser) == DARK
    browser.wait(f"return (() => {{ {ink} }})() !== {json.dumps(before)}")
    browser.keys(Keys.ENTER)
    assert background(browser) == WHITE
    assert browser.js("return theme.getAttribute('aria-pressed')") == "false"


def test_tab_reaches_everything_in_its_order_and_shows_where_it_is(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["one"])
    count = browser.js(
        f"window.wanted = [...document.querySelectorAll({json.dumps(FOCUSABLE)})]"
        """.filter(e => e.checkVisibility());
            return wanted.length"""
    )
    assert count > 20
    reached = []
    for _ in range(count):
        browser.keys(Keys.TAB)
        index, style, width = browser.js(
            """const e = document.activeElement, s = getComputedStyle(e);
               return [wanted.indexOf(e), s.outlineStyle, parseFloat(s.outlineWidth)]"""
        )
        assert style != "none" and width >= 2, index
        reached.append(index)
    assert reached == list(range(count))


def test_the_skip_link_is_first_and_leads_past_the_contents(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["one"])
    browser.keys(Keys.TAB)
    assert browser.js("return document.activeElement.textContent") == "Skip to the content"
    assert browser.js("return document.activeElement.getBoundingClientRect().top") >= 0
    browser.keys(Keys.ENTER)
    browser.wait("return document.activeElement.id === 'main'")


def test_a_legend_hides_a_curve_and_a_table_opens_by_keyboard(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["one"])
    curves = "return document.querySelectorAll('#memory-plot .scatterlayer .trace').length"
    before = browser.js(curves)
    browser.js("document.querySelector('#memory-plot-legend button').focus()")
    browser.keys(Keys.SPACE)
    browser.wait(f"return (() => {{ {curves} }})() === {before - 1}")
    assert browser.js("return document.activeElement.getAttribute('aria-pressed')") == "false"
    browser.keys(Keys.SPACE)
    browser.wait(f"return (() => {{ {curves} }})() === {before}")
    browser.js("document.querySelector('#memory figure summary').focus()")
    browser.keys(Keys.ENTER)
    assert (
        browser.js("return document.querySelector('#memory figure table tbody').rows.length") >= 3
    )
    assert browser.js("return document.querySelector('#memory figure table').checkVisibility()")


@pytest.mark.parametrize(("page", "scheme"), [("one", "light"), ("two", "dark"), ("none", "light")])
def test_axe_finds_nothing(
    browser: Browser, pages: dict[str, Path], scheme: str, page: str
) -> None:
    browser.open(pages[page], 1280, scheme)
    browser.js("for (const one of document.querySelectorAll('details')) one.open = true")
    told, kept = axe_finds(browser)
    assert told == []
    assert kept > 15


def test_hostile_names_stay_text_and_many_lanes_are_drawn(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["odd"])
    assert browser.messages() == [] and browser.requests() == []
    assert browser.js("return document.querySelectorAll('img, main script').length") == 0
    assert "onerror" in browser.js("return document.querySelector('h1').textContent")
    assert browser.js("return document.querySelectorAll('.chord text').length") == 13
    assert browser.js("return document.querySelectorAll('#owners-plot .bars path').length") == 4
    assert len(browser.shot("odd")) > 10_000


def test_without_scripts_all_figures_are_there_as_tables(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["one"], script=False)
    browser.command("Emulation.setScriptExecutionDisabled", value=False)
    assert "Plots need JavaScript" in browser.js("return document.body.innerText")
    assert browser.js("return document.getElementById('theme').hidden")
    assert browser.js("return document.querySelectorAll('figure table').length") >= 6


def test_on_paper_it_is_light_and_as_wide_as_the_page(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["one"], 1280, "dark")
    browser.js(
        """window.seen = null;
           addEventListener('beforeprint', () => { \
window.seen = document.documentElement.dataset.theme; });"""
    )
    printed = base64.b64decode(browser.command("Page.printToPDF", printBackground=True)["data"])
    assert printed.startswith(b"%PDF") and printed.count(b"/Type /Page") >= 3
    assert browser.messages() == []
    assert browser.js("return window.seen") == "light"
    browser.command(
        "Emulation.setEmulatedMedia",
        media="print",
        features=[{"name": "prefers-color-scheme", "value": "dark"}],
    )
    assert background(browser) == WHITE
    assert browser.js("return getComputedStyle(document.querySelector('nav')).display") == "none"
    browser.js("dispatchEvent(new Event('beforeprint'))")
    widths = browser.js(
        "return [...document.querySelectorAll('.plot svg.main-svg')]"
        ".map(e => e.getBoundingClientRect().width)"
    )
    assert max(widths) <= 661
    browser.js("dispatchEvent(new Event('afterprint'))")
    assert browser.js("return document.documentElement.dataset.theme") is None


def test_curves_differ_for_those_who_see_colours_differently(
    browser: Browser, pages: dict[str, Path]
) -> None:
    """No two curves share both colour and dash; the pictures are for a person to look at."""
    browser.open(pages["one"])
    styles = browser.js(
        "return JSON.parse(specs.textContent).find(s => s.id === 'memory-plot')"
        ".traces.map(t => t.line.color + t.line.dash)"
    )
    assert len(set(styles)) == len(styles)
    for kind in ("deuteranopia", "protanopia", "tritanopia", "achromatopsia"):
        browser.command("Emulation.setEmulatedVisionDeficiency", type=kind)
        assert len(browser.shot(f"one-{kind}")) > 10_000
    browser.command("Emulation.setEmulatedVisionDeficiency", type="none")
