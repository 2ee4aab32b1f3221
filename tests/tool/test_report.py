"""lanemalloc report: what the page says, and what it does with recordings that are cut,
empty, damaged or hostile."""

from __future__ import annotations

import copy
import json
import re
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, tool

from lanemalloc.recording import Recording, sealed
from lanemalloc.report import chord, differences, sections, write
from lanemalloc.report.drawing import CELL_COLOURS
from lanemalloc.report.markup import Plot
from lanemalloc.report.page import in_script, page, sentences
from lanemalloc.report.run import Run
from lanemalloc.report.sections import lane_title
from lanemalloc.report.slabs import class_parts
from lanemalloc.report.waiting import bucket_names

SECTIONS = (
    "summary",
    "memory",
    "contention",
    "waits",
    "remote",
    "slabs",
    "classes",
    "lanes",
    "heaps",
    "figures",
)


class Ids(HTMLParser):
    """Ids of sections, and every address that something would be loaded from."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sections: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        values = dict(attrs)
        if tag == "section":
            self.sections.append(str(values.get("id")))
        self.addresses += [
            str(values[name])
            for name in ("src", "href", "action", "data", "poster", "srcset")
            if name in values
        ]


def made(path: Path, *more: Path) -> str:
    out = path.with_suffix(".html")
    done = tool("report", path, *more, "-o", out)
    assert (done.returncode, done.stderr) == (0, "")
    return out.read_text()


# --- The page.


def test_every_section_is_there_and_nothing_is_loaded_from_elsewhere(
    recordings: tuple[Path, Path],
) -> None:
    text = made(recordings[0])
    ids = Ids(text)
    assert tuple(ids.sections) == SECTIONS
    assert [one for one in ids.addresses if not one.startswith(("#", "data:"))] == []
    assert 'lang="en"' in text and "<title>lanemalloc report: " in text
    assert "url(" not in text.split("<script")[0] and "@import" not in text
    assert "default-src 'none'" in text


def test_a_page_is_small_and_soon_written(recordings: tuple[Path, Path], tmp_path: Path) -> None:
    recording = Recording.load(recordings[0])
    begin = time.monotonic()
    write(recording, tmp_path / "x.html")
    assert time.monotonic() - begin < 10
    assert (tmp_path / "x.html").stat().st_size < 4 << 20


def test_every_plot_has_a_text_and_a_table_and_known_colours(recordings: tuple[Path, Path]) -> None:
    style = (ROOT / "python" / "lanemalloc" / "report" / "page.css").read_text()
    for runs in (
        [Run(Recording.load(recordings[0]))],
        [Run(Recording.load(path), letter) for path, letter in zip(recordings, "AB")],
    ):
        found = sections.sections(runs)
        plots = [plot for section in found for plot in section.plots()]
        assert len(plots) >= 6
        assert len({plot.id for plot in plots}) == len(plots)
        for plot in plots:
            assert plot.text and plot.table is not None and plot.table.rows
            for name in re.findall(r'"@(\w+)"', json.dumps(plot.spec())):
                assert f"--{name}: light-dark(" in style, (plot.id, name)


def test_landmarks_have_names_of_their_own(recordings: tuple[Path, Path]) -> None:
    for text in (made(recordings[0]), made(recordings[0], recordings[1])):
        names = re.findall(r'role="region" tabindex="0" aria-label="([^"]+)"', text) + re.findall(
            r"<h2 [^>]*>([^<]+)</h2>", text
        )
        assert len(names) > 10 and len(set(names)) == len(names)


def luminance(colour: str) -> float:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    r, g, b = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def test_curves_stand_out_from_the_ground_in_both_themes() -> None:
    style = (ROOT / "python" / "lanemalloc" / "report" / "page.css").read_text()
    colours = dict(re.findall(r"--(\w+): light-dark\((#\w+, #\w+)\)", style))
    for theme in (0, 1):
        ground = luminance(colours["ground"].split(", ")[theme])
        for name, least in [(cell[1:], 3.0) for cell in CELL_COLOURS] + [
            ("text", 7.0),
            ("quiet", 4.5),
            ("link", 4.5),
        ]:
            light, dark = sorted(
                (luminance(colours[name].split(", ")[theme]), ground), reverse=True
            )
            assert (light + 0.05) / (dark + 0.05) >= least, (name, theme)


def test_the_head_says_what_memory_and_contention_were(recordings: tuple[Path, Path]) -> None:
    said = sentences(Run(Recording.load(recordings[0])))
    assert len(said) == 3
    assert "live" in said[0] and "MiB" in said[0]
    assert "entered shared:1" in said[1]
    assert "“lane”" in said[2] and "lanes=percpu" in said[2]


def test_options_that_run_sets_for_itself_are_not_shown(recordings: tuple[Path, Path]) -> None:
    options = Run(Recording.load(recordings[0])).options()
    assert options["lanes"] == "shared:1" and "stats_file" not in options


def hostile(path: Path) -> Recording:
    """What a program might be called, and have called its pools; with many lanes."""
    bad = "</script><img src=//x onerror=alert(1)>"
    recording = Recording.load(path)
    recording.command = [bad]
    recording.options = f"lanes={bad}"
    recording.machine = {"kernel": bad}
    owner: dict[str, Any] = {
        "kind": "pool",
        "used_bytes": 1,
        "peak_bytes": 2,
        "limit_bytes": 3,
        "slab_bytes": 65536,
        "live": 1,
    }
    owner["contended"] = 0
    for sample in recording.samples:
        sample.snapshot["owners"] = [
            {**owner, "name": bad},
            {**owner, "name": "", "kind": "heap", "limit_bytes": None},
        ]
        one = sample.snapshot["lanes"][0]
        sample.snapshot["lanes"] = [
            {**one, "lane": i, "batches_to": [(i * j) % 5 for j in range(64)]} for i in range(3, 63)
        ]
        sample.snapshot["left_out"] = [bad]
        for cell in sample.snapshot["contention"]:
            cell["at"] = bad
    recording.end["contention"] = recording.samples[-1].snapshot["contention"]
    return recording


def test_names_of_a_program_cannot_become_markup(recordings: tuple[Path, Path]) -> None:
    text = page([Run(hostile(recordings[0]))])
    ids = Ids(text)
    assert "img" not in ids.tags
    assert ids.tags.count("script") == 3
    assert "onerror=alert(1)>" not in text.replace("&gt;", "")
    assert "<" not in in_script({"x": "</script><!--"})


def test_two_recordings_are_compared(recordings: tuple[Path, Path]) -> None:
    text = made(recordings[0], recordings[1])
    assert "comparison" in Ids(text).sections
    assert "Options that differ" in text and ">shared:1<" in text and ">percpu<" in text
    told = json.loads(tool("report", recordings[0], recordings[1], "--json").stdout)
    rows = {row["name"]: row for row in told["differences"]}
    allocations = rows["allocations"]
    assert allocations["ratio"] == pytest.approx(allocations["second"] / allocations["first"])
    assert [run["entry"] for run in told["runs"]] == ["shared:1", "percpu"]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (0, 0, "same"),
        (0, 5, "new"),
        (1000, 1001, "same"),
        (10, 0, "none left"),
        (2, 5, "2.50 ×"),
        (50_000, 10, "1 / 5.00 k"),
        (1, 2e6, "2.00 M ×"),
    ],
)
def test_ratios_as_people_read_them(first: float, second: float, said: str) -> None:
    assert differences.said_ratio(first, second) == said


def test_json_goes_to_standard_output_and_no_page_is_written(
    recordings: tuple[Path, Path], tmp_path: Path
) -> None:
    copied = tmp_path / "run.jsonl"
    copied.write_bytes(recordings[0].read_bytes())
    run = json.loads(tool("report", copied, "--json").stdout)["runs"][0]
    assert (
        run["figures"]["allocations"] > 0 and run["machine"]["cpus"] >= 1 and len(run["said"]) == 3
    )
    assert [one.name for one in tmp_path.iterdir()] == ["run.jsonl"]
    done = tool("report", copied)
    assert done.stdout.startswith(f"{tmp_path / 'run.html'}: ")


# --- What is worked out.


def lane(number: int, batches: list[int], freed: int = 0) -> dict[str, Any]:
    return {"lane": number, "batches_to": batches, "remote_frees": freed}


def test_the_chord_has_who_frees_and_whose_memory() -> None:
    flow = chord.flow_of([lane(3, [0, 0, 0, 0, 6], 60), lane(4, [0, 0, 0, 2, 0], 4)])
    assert flow.names == ["lane 3", "lane 4"]
    assert flow.batches == [[0, 6], [2, 0]]
    assert flow.objects == [[0, 60.0], [4.0, 0]]
    drawn = chord.svg(flow, "x")
    assert (
        "lane 3 freed of lane 4: 6 batches, about 60 objects" in drawn
        and drawn.count('class="ribbon"') == 2
    )


def test_many_lanes_are_grouped_and_no_batch_is_lost() -> None:
    lanes = [lane(i, [(i * j) % 7 for j in range(64)]) for i in range(3, 60)]
    flow = chord.flow_of(lanes)
    assert len(flow.names) == chord.MOST_GROUPS + 1 and flow.grouped == 57 - chord.MOST_GROUPS
    assert flow.total == sum(lane["batches_to"][to] for lane in lanes for to in range(3, 60))
    assert "nan" not in chord.svg(flow, "x")


def test_lanes_whose_numbers_are_alike_modulo_the_counters_are_one_group() -> None:
    flow = chord.flow_of([lane(3, [0, 0, 0, 5]), lane(7, [1, 0, 0, 1]), lane(4, [0, 0, 0, 2])])
    assert flow.names == ["lane 4", "lanes 3, 7"]
    assert flow.batches == [[0, 2], [1, 6]]


def test_a_class_memory_is_divided_without_rest() -> None:
    row = {
        "size": 640,
        "below": 576,
        "live": 1000,
        "waiting": 50,
        "in_flight": 20,
        "slab_bytes": 16 * 65536,
    }
    parts = class_parts(row)
    assert sum(parts) == row["slab_bytes"]
    assert parts[1] == 1000 * 63 / 2


def test_heaps_and_pools_are_shown_with_their_budget(recordings: tuple[Path, Path]) -> None:
    plot = next(
        part
        for part in sections.owners([Run(hostile(recordings[0]))]).parts
        if isinstance(part, Plot)
    )
    assert plot.table is not None
    assert plot.table.rows[0][1:5] == ["1 B", "2 B", "3 B", "67 %"]
    assert plot.table.rows[1][0] == "heap (no name)" and plot.table.rows[1][3] == "none"
    assert [trace["name"] for trace in plot.traces] == ["peak", "used at the end"]


def test_lanes_are_named_by_who_uses_them() -> None:
    assert lane_title({"lane": 3, "entered": "percpu", "number": 1, "thread": 0}) == "3 (CPU 1)"
    assert lane_title({"lane": 4, "entered": "shared", "number": 0, "thread": 0}) == "4 (shared 0)"
    assert (
        lane_title({"lane": 5, "entered": "shared", "number": None, "thread": 0}) == "5 (overflow)"
    )
    assert lane_title({"lane": 6, "entered": "owned", "number": 0, "thread": 77}) == "6 (thread 77)"
    assert lane_title({"lane": 7, "thread": 0}) == "7 (no thread)"


def test_buckets_are_named_by_what_lies_in_them() -> None:
    names = bucket_names(16)
    assert (names[0], names[1], names[5], names[10], names[11], names[15]) == (
        "< 1 µs", "1–2 µs", "16–32 µs", "512 µs–1 ms", "1–2 ms", "≥ 16 ms",
    )  # fmt: skip
    assert len(names) == 16


def test_a_counter_that_begins_anew_is_no_negative_rate() -> None:
    run = Run(Recording(["x"]))
    run.times = [1.0, 2.0, 4.0]
    assert run.rates([10, 30, 6]) == [10, 20, 3]


# --- What cannot be read or written.


def test_a_file_that_was_cut_off_is_used_as_far_as_it_goes(
    recordings: tuple[Path, Path], tmp_path: Path
) -> None:
    cut = tmp_path / "cut.jsonl"
    text = recordings[0].read_text()
    cut.write_text(text[: len(text) * 2 // 3])
    done = tool("report", cut)
    assert done.returncode == 0 and "cut off" in done.stderr
    page_text = (tmp_path / "cut.html").read_text()
    assert "cut off" in page_text and set(SECTIONS) <= set(Ids(page_text).sections)


def test_a_recording_without_moments_has_a_page_that_says_so(tmp_path: Path) -> None:
    tool("run", "-q", "--record", tmp_path / "short.jsonl", "--", "true")
    assert "Nothing was recorded" in made(tmp_path / "short.jsonl")
    head = {"format": "lanemalloc-recording", "version": 2, "command": ["x"]}
    (tmp_path / "head.jsonl").write_text(sealed(head) + "\n")
    done = tool("report", tmp_path / "head.jsonl")
    assert done.returncode == 0 and "0 moments" in done.stderr
    assert "Nothing is known of its allocations" in (tmp_path / "head.html").read_text()


def test_a_program_that_drops_the_library_has_a_page_too(tmp_path: Path) -> None:
    tool(
        "run", "-q", "--record", tmp_path / "r.jsonl", "--", "env", "-u", "LD_PRELOAD", "sleep", "1"
    )
    assert "lanemalloc doctor" in made(tmp_path / "r.jsonl")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is no recording"),
        (b"\x7fELF\x02\x01\x01\x00\xff\xfe", "is no recording"),
        (b"[1, 2]\n", "is no recording"),
        (b'{"format": "lanemalloc-recording", "version": 7}\n', "recording of version 7"),
    ],
)
def test_what_is_no_recording_is_told(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "x").write_bytes(content)
    done = tool("report", tmp_path / "x")
    assert done.returncode == 3 and said in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "x.html").exists()


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert "cannot be read" in tool("report", tmp_path / "none").stderr


@pytest.mark.parametrize("damage", ["figures", "contention", "lanes", "classes", "at"])
def test_a_recording_that_makes_no_sense_is_told(
    recordings: tuple[Path, Path], tmp_path: Path, damage: str
) -> None:
    lines = recordings[0].read_text().splitlines()
    record = json.loads(lines[-2])
    del record["crc32"]
    if damage == "at":
        record["at"] = "soon"
    else:
        record["snapshot"][damage] = 5
    (tmp_path / "x").write_text("\n".join([*lines[:-2], sealed(record), lines[-1]]))
    done = tool("report", tmp_path / "x")
    assert "damaged" in done.stderr and "Traceback" not in done.stderr
    # What is no moment at all is left out.
    assert done.returncode == (0 if damage in ("figures", "at") else 3), done.stderr


def test_a_page_that_cannot_be_written_is_told(
    recordings: tuple[Path, Path], tmp_path: Path
) -> None:
    for path in (tmp_path, tmp_path / "none" / "x.html", Path("/dev/full")):
        done = tool("report", recordings[0], "-o", path)
        assert (
            done.returncode == 3
            and "cannot be written" in done.stderr
            and "Traceback" not in done.stderr
        )


def test_the_recording_itself_is_not_overwritten(recordings: tuple[Path, Path]) -> None:
    before = recordings[0].read_bytes()
    assert "is the recording itself" in tool("report", recordings[0], "-o", recordings[0]).stderr
    assert recordings[0].read_bytes() == before


# --- From run.


def test_run_writes_a_report_and_passes_the_status_on(tmp_path: Path) -> None:
    out = tmp_path / "run.html"
    done = tool(
        "run",
        "-q",
        "--report",
        out,
        "--",
        sys.executable,
        "-c",
        "import time; time.sleep(1.5); raise SystemExit(5)",
    )
    assert (done.returncode, done.stderr) == (5, "")
    assert set(SECTIONS) <= set(Ids(out.read_text()).sections)


def test_times_of_a_recording_are_those_when_the_process_was_read(
    recordings: tuple[Path, Path],
) -> None:
    samples = Recording.load(recordings[0]).samples
    for a, b in zip(samples, samples[1:]):
        assert b.at - a.at == pytest.approx(
            (b.snapshot["at_ns"] - a.snapshot["at_ns"]) / 1e9, abs=0.002
        )


def test_a_recording_of_before_fill_was_counted_is_read(recordings: tuple[Path, Path]) -> None:
    recording = copy.deepcopy(Recording.load(recordings[0]))
    recording.machine = {}
    for sample in recording.samples:
        for row in sample.snapshot["classes"]:
            del row["by_fill"], row["below"]
    assert "the recording does not tell" in page([Run(recording)])
