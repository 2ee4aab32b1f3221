"""lanemalloc sim: its figures are those that tests/simulator holds golden, and its plot is
drawn."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from conftest import LIBRARY, ROOT, tool

GOLDEN = ROOT / "tests" / "simulator" / "figures.tsv"


def golden() -> dict[str, tuple[float, float]]:
    rows = [line.split("\t") for line in GOLDEN.read_text().splitlines()[1:]]
    return {name: (float(value), float(tolerance)) for name, value, tolerance in rows}


def is_made_here() -> bool:
    """The figures depend on the compiler: the table says which it was."""
    version = subprocess.run(
        ["g++", "--version"], capture_output=True, text=True, check=True
    ).stdout.splitlines()[0]
    return version in GOLDEN.read_text().splitlines()[0]


def figures(*argv: object) -> list[dict]:
    done = tool("sim", "--json", *argv, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)["figures"]


@pytest.fixture(scope="session", autouse=True)
def simulator() -> None:
    if not (LIBRARY.parent / "lanemalloc-sim").exists():
        pytest.skip("lanemalloc-sim is not built")


@pytest.mark.parametrize(
    ("workload", "entry"), [("local", "owned"), ("producer-consumer", "percpu")]
)
def test_figures_are_the_golden_ones(workload: str, entry: str) -> None:
    if not is_made_here():
        pytest.skip("the golden figures were made with another compiler")
    table = golden()
    found = figures("--workload", workload, "--cores", 128, "--entry", entry, "--against", "none")
    assert [one["allocator"] for one in found] == [entry]
    for unit in ("lines", "pairs"):
        for kind in ("metadata",) if workload == "local" else ("metadata", "links"):
            value, tolerance = table[f"{entry} {workload} on 128 cores: {unit}, {kind}"]
            assert found[0][unit][kind] == pytest.approx(value, abs=tolerance + 1e-5)


def test_lanes_do_not_meet_and_the_models_do() -> None:
    done = tool("sim", "--cores", "2,8", "--against", "locked-list,treiber-stack,one-lock-arena")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].split() == [
        "cores",
        "owned",
        "shared",
        "percpu",
        "locked-list",
        "treiber-stack",
        "one-lock-arena",
    ]
    few, many = ([float(word) for word in line.split()] for line in lines[2:4])
    assert (few[0], many[0]) == (2, 8)
    assert max(many[1:4]) < 0.05 and min(many[4:]) > 0.5


def test_the_same_seed_gives_the_same_figures() -> None:
    first, again, other = (
        figures("--cores", 4, "--entry", "shared", "--against", "none", "--seed", n)
        for n in (7, 7, 8)
    )
    assert first == again and first[0]["operations"] > 0
    assert other != first


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "plot.html"
    done = tool("sim", "--cores", "2,4", "--entry", "owned", "-o", path)
    assert done.returncode == 0, done.stderr
    text = path.read_text()
    specs = json.loads(re.findall(r'id="specs">(.*?)</script>', text, re.S)[0])
    assert [curve["name"] for curve in specs[0]["traces"]] == ["owned", "locked-list"]
    assert [curve["x"] for curve in specs[0]["traces"]] == [[2, 4]] * 2
    assert "Content-Security-Policy" in text and len(text) > 1_000_000


@pytest.mark.parametrize(
    ("argv", "status", "words"),
    [
        (["--cores", "3"], 2, "even numbers from 2 to 128"),
        (["--cores", "2,130"], 2, "even numbers from 2 to 128"),
        (["--entry", "own"], 2, "'own' is none of owned, shared, percpu"),
        (["--against", "jemalloc"], 2, "locked-list"),
        (["--workload", "x"], 2, "producer-consumer-mixed"),
        (["--entry", "none", "--against", "none"], 3, "nothing to simulate"),
        (["-o", "/proc/none/plot.html"], 3, "cannot be written"),
    ],
)
def test_what_is_wrong_is_said_at_once(argv: list[str], status: int, words: str) -> None:
    done = tool("sim", *argv)
    assert done.returncode == status
    assert words in done.stderr and done.stdout == ""


def test_without_the_program_it_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "lanemalloc-sim").write_text("#!/bin/sh\necho broken >&2; exit 3\n")
    (tmp_path / "lanemalloc-sim").chmod(0o755)
    done = tool("sim", "--cores", "2", LANEMALLOC_NATIVE=str(tmp_path))
    assert done.returncode == 3
    assert "broken" in done.stderr and len(done.stderr.splitlines()) == 2
