"""The page of a profile: its figures, and what it looks like and does in a browser."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from browsing import Browser, Keys, axe_finds
from conftest import tool
from test_profile import built, made

from lanemalloc import flame, pprof
from lanemalloc.flame.data import Moment, data_of, thread_of
from lanemalloc.profiles import Frame, Mapping, Profile
from lanemalloc.profiling import MOST_MOMENTS, Moments

HOSTILE = "</script><img src=x onerror=alert(1)>"


def known(scale: int = 1) -> Profile:
    """main calls work, which allocates small objects and calls big; a thread calls work alone."""
    one = made(
        [
            ((0x1003, 0x1002, 0x1001, 0x9000), [2, 2048 * scale, 1, 1024 * scale]),
            ((0x1002, 0x1001, 0x9000), [64, 1024, 64, 1024]),
            ((0x1002, 0x9001), [192, 3072, 0, 0]),
        ]
    )
    one.frames = {
        0x1001: (Frame("main", "", "main.c", 3),),
        0x1002: (Frame("inlined"), Frame("work")),
        0x1003: (Frame(HOSTILE),),
        0x9000: (Frame("_start"),),
        0x9001: (Frame("start_thread"),),
    }
    return one


def page_data(file: Path) -> dict:
    text = file.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found is not None
    return json.loads(found.group(1))


# --- The figures.


def test_rows_have_what_the_profile_has() -> None:
    one = known()
    data = data_of(one, None, [])
    names = [[data["names"][f][0] for f in stack] for stack in data["stacks"]]
    assert names == [
        ["_start", "main", "work", "inlined", HOSTILE],
        ["_start", "main", "work", "inlined"],
        ["start_thread", "work", "inlined"],
    ]
    for i, kind in enumerate(one.types):
        assert sum(row[2][i] for row in data["rows"]) == one.total(kind.type)
        together = math.sqrt(sum(row[3][i] for row in data["rows"]))
        assert together == pytest.approx(one.error(kind.type), rel=0.01, abs=1)
    assert [data["threads"][i] for i in data["thread_of"]] == ["main", "main", "work"]
    assert [row[1] for row in data["rows"]] == [1024, 16, 16]  # mean sizes
    one.sized = [(((0x1002, 0x9001), 48), [4, 192, 0, 0]), (((0x1002, 0x9001), 32), [1, 32, 0, 0])]
    assert [row[1] for row in data_of(one, None, [])["rows"]] == [48, 32]


def test_a_thread_is_known_by_where_it_began() -> None:
    assert thread_of(["_start", "__libc_start_main", "main", "work"]) == "main"
    assert thread_of(["clone3", "start_thread", "serve", "work"]) == "serve"
    assert thread_of(["clone3", "start_thread", "std::thread::run", "serve"]) == "serve"
    for cut in (["work", "deeper"], [], ["_start"], ["[libc.so.6]"]):
        assert thread_of(cut) == "[beginning not known]"


def test_two_profiles_share_functions_although_their_addresses_differ() -> None:
    before, after = known(), known(4)
    moved = {address: address + 0x100 for address in after.frames}
    after.mappings = [Mapping(one.begin, one.end + 0x100, 0, one.path) for one in after.mappings]
    after.stacks = [(tuple(moved[a] for a in stack), values) for stack, values in after.stacks]
    after.frames = {moved[a]: frames for a, frames in after.frames.items()}
    after = Profile(**{key: getattr(after, key) for key in after.__dataclass_fields__})
    data = data_of(after, before, [])
    assert len(data["stacks"]) == 3
    assert {row[0] for row in data["before"]} == {row[0] for row in data["rows"]}


@pytest.mark.parametrize(("objects", "size", "interval"), [(400, 64, 4096), (30, 5000, 4096)])
def test_the_error_is_that_of_the_estimate(objects: int, size: int, interval: int) -> None:
    """Over many programs that allocate the same, estimates vary as much as each of them says."""
    import numpy as np

    chance = 1 - math.exp(-size / interval)
    rng = np.random.default_rng(5)
    estimates = rng.binomial(objects, chance, 4000) / chance
    said = []
    for n in estimates:
        one = made([((0x1001,), [round(n), round(n) * size, 0, 0])])
        one.period = interval
        said.append(one.error("alloc_space") ** 2)
    assert np.mean(said) == pytest.approx(np.var(estimates * size), rel=0.1)


# --- The command.


def test_a_program_has_a_page_and_so_has_its_profile(tmp_path: Path) -> None:
    file, page, again = tmp_path / "heap.pb.gz", tmp_path / "heap.html", tmp_path / "again.html"
    done = tool("profile", "--sample", "64k", "-o", file, "--flame", page, "--", built(), "heap")
    assert done.returncode == 0 and f"written: {page}" in done.stderr, done.stderr
    done = tool("profile", file, "--flame", again, "--json")
    found = json.loads(done.stdout)
    assert found["flame"] == str(again) and found["from"] == str(file)
    one, two = page_data(page), page_data(again)
    assert (one["rows"], one["stacks"], one["names"]) == (two["rows"], two["stacks"], two["names"])
    assert sum(row[2][3] for row in one["rows"]) == found["total"]
    assert one["threads"] == ["main"]
    assert "Content-Security-Policy" in page.read_text()
    # The kind that it shows first is the one that was asked for.
    tool("profile", file, "--flame", again, "--kind", "allocation")
    two = page_data(again)
    assert two["types"][two["default"]]["type"] == "alloc_space"


def test_what_differs_as_text_and_as_a_page(tmp_path: Path) -> None:
    before, after, page = tmp_path / "a.pb.gz", tmp_path / "b.pb.gz", tmp_path / "d.html"
    more = known()
    more.stacks.append(((0x1002, 0x1001), [1 << 20, 16 << 20, 1 << 20, 16 << 20]))
    pprof.write(known(), before)
    pprof.write(more, after)
    found = json.loads(tool("profile", "--diff", before, after, "--json", "--flame", page).stdout)
    assert found["totals"] == [2048, 2048 + (16 << 20)] and found["change"] == 16 << 20
    rows = {row["name"]: row for row in found["functions"]}
    assert (rows["main"]["cum"], rows["main"]["flat"]) == (16 << 20, 0)
    assert (rows["inlined"]["flat"], rows["inlined"]["sure"]) == (16 << 20, True)
    assert (rows[HOSTILE]["cum"], rows[HOSTILE]["sure"]) == (0, False)
    data = page_data(page)
    assert len(data["rows"]) == 4 and len(data["before"]) == 3
    text = tool("profile", "--diff", before, after).stdout
    assert "2.00 KiB before, 16.0 MiB after: +16.0 MiB ± " in text
    assert re.search(r"\+16\.0 MiB +\+16\.0 MiB +\S+ KiB +2\.00 KiB +16\.0 MiB  inlined\n", text)
    # And the other way round.
    text = tool("profile", "--diff", after, before).stdout
    assert re.search(r"-16\.0 MiB +-16\.0 MiB .*  inlined\n", text), text
    # The same twice: nothing is sure.
    same = json.loads(tool("profile", "--diff", after, after, "--json").stdout)
    assert same["change"] == 0 and not any(row["sure"] for row in same["functions"])


def test_bad_arguments(tmp_path: Path) -> None:
    heap, odd = tmp_path / "heap.pb.gz", tmp_path / "odd.pb.gz"
    pprof.write(known(), heap)
    odd.write_bytes(b"\x0a\xff\xff")

    def fails(status: int, words: str, *argv: object) -> None:
        done = tool("profile", *argv)
        assert (done.returncode, done.stdout) == (status, ""), done.stderr
        assert words in done.stderr and "Traceback" not in done.stderr, done.stderr

    fails(2, "does not exist", "--diff", heap, tmp_path / "none")
    fails(2, "--diff", "--diff", heap)
    fails(2, "give either", "--diff", heap, heap, "--", "ls")
    fails(2, "give either", heap, "--", "ls")
    fails(2, "-o is for one", "--diff", heap, heap, "-o", tmp_path / "x.pb.gz")
    fails(2, "--seconds is for", heap, "--seconds", "1")
    fails(2, "--sample is for", heap, "--sample", "1k")
    fails(3, "is not whole", odd)
    fails(3, "cannot be read", tmp_path / "none.pb.gz")
    fails(3, "has no delay, but alloc_objects", heap, "--kind", "contention")
    fails(3, "cannot be written", "--flame", tmp_path / "no" / "x.html", "--", "touch", odd)


def test_a_program_has_its_moments(tmp_path: Path) -> None:
    page = tmp_path / "waves.html"
    done = tool("profile", "--sample", "64k", "--flame", page, "--", built(), "waves", 3)
    assert done.returncode == 0, done.stderr
    data = page_data(page)
    times = [at for at, _ in data["moments"]]
    assert times == sorted(times) and len(times) > 3 and 2 < times[-1] < 20
    # keep_few() has run once, and a second later twice: it never has less than before.
    kept = []
    for _, live in data["moments"]:
        names = [[data["names"][f][0] for f in data["stacks"][n]] for n in live[::2]]
        kept.append(sum(n for name, n in zip(names, live[1::2]) if "keep_few" in name))
    assert kept == sorted(kept) and kept[0] < kept[-1]
    in_use = [one["type"] for one in data["types"]].index("inuse_space")
    assert sum(data["moments"][-1][1][1::2]) == sum(row[2][in_use] for row in data["rows"])


def test_moments_are_thinned_evenly() -> None:
    class Still:
        def profile(self, kind: str) -> Profile:
            return known()

    moments = Moments()
    for i in range(10_000):
        moments.add(i / 10, Still())  # type: ignore[arg-type]
    times = [at for at, _ in moments.all]
    assert MOST_MOMENTS / 4 < len(times) <= MOST_MOMENTS
    apart = [b - a for a, b in zip(times, times[1:])]
    assert max(apart) <= 4 * min(apart) and times[0] == 0 and times[-1] > 900


# --- In a browser.


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("flames")
    found = {name: folder / f"{name}.html" for name in ("one", "two", "none")}
    flame.write(found["one"], f"one {HOSTILE}", known())
    flame.write(found["two"], "two", known(4096), known(), notes=["a note"])
    flame.write(found["none"], "none", made([]))
    return found


def test_a_moment_is_shown(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "time.html"
    flame.write(file, "time", known(), None, [Moment(1, known(8)), Moment(3.5, known(2))])
    browser.open(file, 400, "dark")
    browser.js("document.querySelector('[data-view=time]').click()")
    text = "return document.querySelector('.root p').textContent"
    assert browser.js(text).replace("\u00a0", " ") == (
        "1.00 s after its start: 9.00 KiB in use; at most 9.00 KiB when looked at"
    )
    browser.js("document.querySelector('input[type=range]').focus()")
    browser.keys(Keys.ARROW_RIGHT)
    assert browser.js(text).startswith("3.50 s")
    boxes = {one[0]: one[1:] for one in browser.js(BOXES)}
    assert boxes[HOSTILE][1] == pytest.approx(2 / 3, abs=0.01)
    told, _ = axe_finds(browser)
    assert told == [] and browser.messages() == []
    assert browser.js("return document.documentElement.scrollWidth") <= 400
    browser.shot("flame-time-400-dark")
    browser.js("document.querySelector('[data-view=flame]').click()")
    boxes = {one[0]: one[1:] for one in browser.js(BOXES)}
    assert boxes[HOSTILE][1] == pytest.approx(1 / 2, abs=0.01)


BOXES = """return [...document.querySelectorAll('.flame button')].map(one => {
    const box = one.getBoundingClientRect(), all = one.parentNode.getBoundingClientRect();
    return [one.getAttribute('aria-label').split(': ')[0], \
(box.left - all.left) / all.width, box.width / all.width, Math.round(box.top - all.top)];
})"""


@pytest.mark.parametrize("page", ["one", "two", "none"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_it_opens_without_a_network_and_without_a_complaint(
    browser: Browser, pages: dict[str, Path], width: int, scheme: str, page: str
) -> None:
    browser.open(pages[page], width, scheme)
    for view in ("flame", "tree", "threads", "sizes"):
        browser.js(f"document.querySelector('[data-view={view}]').click()")
        assert browser.messages() == [] and browser.requests() == []
        assert browser.js("return document.documentElement.scrollWidth") <= width
        browser.shot(f"flame-{page}-{view}-{width}-{scheme}")
        empty = "Nothing of this was sampled" in browser.js("return document.body.innerText")
        assert empty == (page == "none")
    background = browser.js("return getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 24, 29)")
    assert browser.js("return document.querySelectorAll('img, main script').length") == 0


def test_widths_are_values_and_callers_stand_above(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["one"])
    boxes = {one[0]: one[1:] for one in browser.js(BOXES)}
    assert boxes["all"][0] == 0 and boxes["all"][1] == pytest.approx(1)
    assert boxes["main"][1] == pytest.approx(1, abs=0.01)  # the thread has nothing in use
    assert boxes[HOSTILE][1] == pytest.approx(0.5, abs=0.01)
    assert boxes["all"][2] < boxes["_start"][2] < boxes["main"][2] < boxes["work"][2]
    # Of all that was allocated a half is the thread's.
    browser.js("const one = document.querySelector('select'); one.value = 1; "
               "one.dispatchEvent(new Event('change'))")  # fmt: skip
    boxes = {one[0]: one[1:] for one in browser.js(BOXES)}
    assert boxes["start_thread"][1] == pytest.approx(0.5, abs=0.01)
    assert boxes["_start"][1] == pytest.approx(0.5, abs=0.01)


def focused(browser: Browser) -> str:
    return str(browser.js("return document.activeElement.getAttribute('aria-label')"))


def test_keys_go_through_the_graph(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["one"])
    browser.js("document.querySelector('.flame button[tabindex=\"0\"]').focus()")
    assert focused(browser).startswith("all: 2.00")
    browser.keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert focused(browser).startswith("work: ")
    browser.keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert focused(browser).startswith(HOSTILE)
    assert "[two]" not in browser.js("return document.querySelector('.detail').textContent")
    browser.keys(Keys.ENTER)
    boxes = {one[0]: one[1:] for one in browser.js(BOXES)}
    assert boxes[HOSTILE][1] == pytest.approx(1)
    assert focused(browser).startswith(HOSTILE)
    browser.keys(Keys.ESCAPE)
    boxes = {one[0]: one[1:] for one in browser.js(BOXES)}
    assert boxes[HOSTILE][1] == pytest.approx(0.5, abs=0.01)


def test_search_marks_functions_and_says_how_much_they_have(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["one"])
    browser.js("document.querySelector('input[type=search]').focus()")
    browser.keys("ONERROR")
    hits = browser.js(
        "return [...document.querySelectorAll('.flame .hit')].map(e => e.textContent)"
    )
    assert hits == [HOSTILE]
    told = browser.js("return document.querySelector('output').textContent")
    assert told.replace("\u00a0", " ") == "1.00 KiB, 50.0 %"
    # What is inside of a hit is not counted again.
    browser.js("const one = document.querySelector('input[type=search]'); one.value = 'e'; "
               "one.dispatchEvent(new Event('input'))")  # fmt: skip
    told = browser.js("return document.querySelector('output').textContent")
    assert told.replace("\u00a0", " ").endswith("100 %")


def test_a_thread_or_a_size_can_be_shown_alone(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["one"])
    rows = "return [...document.querySelectorAll('.groups tbody tr')].map(r => r.innerText)"
    browser.js("document.querySelector('select').value = 1; "
               "document.querySelector('select').dispatchEvent(new Event('change'))")  # fmt: skip
    browser.js("document.querySelector('[data-view=sizes]').click()")
    shown = [row.replace("\u00a0", " ").split("\t")[:2] for row in browser.js(rows)]
    assert [[cell.strip() for cell in row] for row in shown] == [
        ["16 B", "4.00 KiB"],
        ["1,024 B", "2.00 KiB"],
    ]
    browser.js("document.querySelector('[data-view=threads]').click()")
    assert len(browser.js(rows)) == 2
    browser.js("[...document.querySelectorAll('.groups button')]"
               ".find(b => b.textContent === 'work').click()")  # fmt: skip
    names = {one[0] for one in browser.js(BOXES)}
    assert names == {"all", "start_thread", "work", "inlined"}
    browser.js("document.querySelector('.only button').click()")
    assert "main" in {one[0] for one in browser.js(BOXES)}


def test_the_tree_opens_by_keyboard(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["one"])
    browser.js("document.querySelector('[data-view=tree]').click()")
    visible = (
        "return [...document.querySelectorAll('.tree button')]"
        ".filter(e => e.checkVisibility()).map(e => e.textContent)"
    )
    assert browser.js(visible) == ["all", "_start", "main", "work", "inlined", HOSTILE]
    browser.js("document.querySelector('.tree button').focus()")
    browser.keys(Keys.ENTER)
    assert browser.js(visible) == ["all"]
    browser.keys(Keys.SPACE)
    assert len(browser.js(visible)) == 6


def test_red_is_more_blue_is_less_and_grey_is_chance(
    browser: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    colours = """return Object.fromEntries([...document.querySelectorAll('.flame button')].map(b =>
        [b.getAttribute('aria-label').split(': ')[0], getComputedStyle(b).backgroundColor]))"""

    def redder(colour: str) -> float:
        numbers = [float(n) for n in re.findall(r"[\d.]+", colour.replace("srgb", ""))]
        return numbers[0] - numbers[2]

    browser.open(pages["two"])
    found = browser.js(colours)
    assert redder(found[HOSTILE]) > 0.2 and redder(found["main"]) > 0.2
    label = browser.js(
        "return [...document.querySelectorAll('.flame button')]"
        ".map(b => b.getAttribute('aria-label')).find(l => l.startsWith('main'))"
    )
    assert "2.00 KiB before" in label.replace("\u00a0", " ") and "after: +" in label
    flame.write(tmp_path / "less.html", "less", known(), known(4096))
    browser.open(tmp_path / "less.html")
    found = browser.js(colours)
    assert redder(found[HOSTILE]) < -0.2
    flame.write(tmp_path / "same.html", "same", known(), known())
    browser.open(tmp_path / "same.html")
    assert all(abs(redder(colour)) < 0.1 for colour in browser.js(colours).values())


@pytest.mark.parametrize(("page", "scheme"), [("one", "light"), ("one", "dark"), ("two", "dark"),
                                              ("two", "light"), ("none", "light")])  # fmt: skip
def test_axe_finds_nothing(
    browser: Browser, pages: dict[str, Path], scheme: str, page: str
) -> None:
    browser.open(pages[page], 1280, scheme)
    browser.js("for (const one of document.querySelectorAll('details')) one.open = true")
    for view in ("flame", "tree", "threads", "sizes"):
        browser.js(f"document.querySelector('[data-view={view}]').click()")
        told, kept = axe_finds(browser)
        assert told == [], view
        assert kept > 15


def test_without_scripts_the_table_has_the_functions(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["one"], script=False)
    browser.command("Emulation.setScriptExecutionDisabled", value=False)
    assert "needs JavaScript" in browser.js("return document.body.innerText")
    assert browser.js("return document.querySelectorAll('#functions tbody tr').length") == 5
