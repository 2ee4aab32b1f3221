"""lanemalloc profile: the right functions and numbers, by itself and as pprof reads its files;
leaks; what can go wrong."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import CLEAN, LIBRARY, PROGRAMS, ROOT, TOOL, tool

from lanemalloc import leaks, pprof, symbols, waits
from lanemalloc.layout import Field
from lanemalloc.profiles import CONTENTION, HEAP, Frame, Mapping, Place, Profile, ValueType, pruned
from lanemalloc.profiling import collect
from lanemalloc.sampled import Look
from lanemalloc.snapshot import CellFigures
from lanemalloc.ui import Problem

GO = shutil.which("go") or "/usr/local/go/bin/go"
SAMPLE = 64 << 10
# Function: what is in use, what was allocated, the objects' size.
SMALL, CHURN, SHELF = (
    (20_000_000, 20_000_000, 1000),
    (0, 40_000_000, 2000),
    (30_000_000, 30_000_000, 5000),
)
NAMES = {"keep_small": SMALL, "churn": CHURN, "shop::Shelf::fill": SHELF}
FLAGS: dict[str, list[str]] = {
    "dynamic": [],
    "static": ["-static", str(LIBRARY.parent / "liblanemalloc.a")],
    "no-pie": ["-no-pie", "-fno-pie"],
    "frames": ["-fno-omit-frame-pointer"],
    "optimised": ["-O3"],
    "stripped": ["-s"],
    "exported": ["-s", "-rdynamic"],
}


def built(how: str = "dynamic") -> Path:
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    out, code = PROGRAMS / f"sampled-{how}", Path(__file__).parent / "sampled.cpp"
    if not out.exists() or out.stat().st_mtime < code.stat().st_mtime:
        command = [
            "g++",
            "-O2",
            "-g",
            "-Wall",
            "-Wextra",
            "-pthread",
            "-std=c++20",
            str(code),
            "-o",
            str(out),
            *FLAGS[how],
        ]
        subprocess.run(command, check=True)
    return out


def facts(done: subprocess.CompletedProcess[str], status: int = 0) -> dict:
    assert done.returncode == status, done.stderr
    return json.loads((done.stdout + done.stderr).splitlines()[-1])


def of(found: dict, name: str) -> tuple[int, int]:
    """Flat and cumulative."""
    rows = [(row["flat"], row["cum"]) for row in found["functions"] if row["name"] == name]
    return rows[0] if rows else (0, 0)


def near(value: float, whole: float, size: int, sample: int = SAMPLE) -> bool:
    """Within five standard deviations of an estimate from samples."""
    chance = 1 - math.exp(-size / sample)
    deviation = size * math.sqrt(whole / size * (1 - chance) / chance)
    return abs(value - whole) <= 5 * deviation


def pprof_rows(file: Path, kind: str, unit: str) -> dict[str, tuple[float, float]]:
    """Flat and cumulative by function, as the real pprof has them."""
    if not Path(GO).exists():
        pytest.skip("go is not there")
    command = [
        GO,
        "tool",
        "pprof",
        "-top",
        "-symbolize=none",
        "-nodecount=100000",
        "-nodefraction=0",
        f"-unit={unit}",
    ]
    environment = {
        "GOTOOLCHAIN": "local",
        "GOCACHE": str(ROOT / "build" / "go-cache"),
        **CLEAN,
        "PPROF_TMPDIR": str(file.parent),
    }
    done = subprocess.run(
        [*command, f"-sample_index={kind}", str(file)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert f"Type: {kind}" in lines
    rows: dict[str, tuple[float, float]] = {}
    for line in lines[[i for i, line in enumerate(lines) if "flat%" in line][0] + 1 :]:
        flat, _, _, cumulative, _, name = line.split(None, 5)
        name = re.sub(r" \((partial-)?inline\)$", "", name)
        of_itself, in_all = (float(re.sub(r"[A-Za-z]+$", "", one)) for one in (flat, cumulative))
        rows[name] = (of_itself, in_all)
    return rows


def agree(found: dict, file: Path, unit: str = "B") -> None:
    """Our table is pprof's."""
    ours = {row["name"]: (row["flat"], row["cum"]) for row in found["functions"]}
    assert pprof_rows(file, found["type"], unit) == ours


def profile(*argv: object, status: int = 0, environment: dict[str, str] | None = None) -> dict:
    return facts(
        tool("profile", "--json", "--sample", "64k", *argv, environment=environment), status
    )


def check_known(found: dict, allocated: bool = False) -> None:
    for name, (in_use, all_of_it, size) in NAMES.items():
        wanted = all_of_it if allocated else in_use
        assert near(of(found, name)[1], wanted, size), (name, of(found, name), wanted)
    whole = 90_000_000 if allocated else 50_000_000
    assert near(of(found, "main")[1], whole, 2000) and of(found, "main")[0] == 0


@pytest.mark.parametrize("how", ["dynamic", "static", "no-pie", "frames", "optimised"])
def test_functions_and_numbers_are_right(how: str, tmp_path: Path) -> None:
    file = tmp_path / "heap.pb.gz"
    options = ["--options", "unwind=frames"] if how == "frames" else []
    found = profile("-o", file, *options, "--", built(how), "heap")
    assert (found["kind"], found["type"], found["unit"], found["sample"], found["at_exit"]) == (
        "heap",
        "inuse_space",
        "bytes",
        SAMPLE,
        True,
    )
    check_known(found)
    # What it did itself stands with the innermost function of the program, whether or not that is
    # inlined.
    assert near(
        of(found, "touched")[0] + of(found, "(anonymous namespace)::touched")[0], 50_000_000, 2000
    )
    assert not [
        row for row in found["functions"] if "lanemalloc" in row["name"] or row["name"] == "malloc"
    ]
    agree(found, file)


def test_all_that_was_allocated(tmp_path: Path) -> None:
    file = tmp_path / "allocation.pb.gz"
    found = profile("--kind", "allocation", "-o", file, "--", built(), "heap")
    assert found["type"] == "alloc_space"
    check_known(found, allocated=True)
    agree(found, file)
    for kind, unit in (
        ("inuse_space", "B"),
        ("inuse_objects", "count"),
        ("alloc_objects", "count"),
    ):
        rows = pprof_rows(file, kind, unit)
        assert near(
            rows["keep_small"][1] * (1 if kind == "inuse_space" else 1000), 20_000_000, 1000
        )


def test_the_peak_is_kept_although_it_is_long_gone(running: Running, tmp_path: Path) -> None:
    file = tmp_path / "peak.pb.gz"
    found = profile("--kind", "peak", "-o", file, "--", built(), "waves", 1)
    assert found["type"] == "peak_space"
    assert of(found, "matrix")[1] == pytest.approx(40_000_000, rel=0.05)
    assert of(found, "keep_few") == (0, 0)
    agree(found, file)
    assert facts(tool("profile", file, "--json"))["total"] == found["total"]
    at_end = facts(tool("profile", file, "--kind", "heap", "--json"))
    assert at_end["type"] == "inuse_space" and of(at_end, "matrix") == (0, 0)
    assert near(of(at_end, "keep_few")[1], 4_000_000, 1000)
    # From outside too, and the second wave stands on what the first one has left.
    process = running("waves", 600)
    again = facts(tool("profile", process.pid, "--kind", "peak", "--json"))
    assert of(again, "matrix")[1] == pytest.approx(40_000_000, rel=0.05)
    assert again["error"] < 0.1 * again["total"]
    found = profile("--kind", "peak", "--", built(), "waves", 2)
    assert of(found, "matrix")[1] == pytest.approx(40_000_000, rel=0.05)
    assert near(of(found, "keep_few")[1], 4_000_000, 1000)


def test_a_program_that_only_grows_has_its_peak_at_the_end() -> None:
    found = profile("--kind", "peak", "--", built(), "heap")
    check_known(found)


def test_temporary_allocations_and_their_sites(tmp_path: Path) -> None:
    file = tmp_path / "temporary.pb.gz"
    found = profile("--kind", "temporary", "-o", file, "--", built(), "temporary")
    assert (found["type"], found["unit"]) == ("temporary_objects", "count")
    for name in ("churn", "pairs"):
        assert near(of(found, name)[1] * 2000, 40_000_000, 2000), (name, of(found, name))
    assert abs(found["total"] - 40_000) <= 5 * found["error"]
    agree(found, file, "count")
    all_of_it = facts(tool("profile", file, "--kind", "allocation", "--json"))
    assert near(of(all_of_it, "pairs")[1], 80_000_000, 2000)
    text = tool("profile", file, "--kind", "temporary").stdout
    assert re.search(r"of [0-9,]+ allocations 6\d % are temporary", text), text
    # What is freed after another allocation is not, nor what is kept: only the last of the twenty.
    found = profile("--kind", "temporary", "--", built(), "waves", 1)
    assert (found["total"], of(found, "matrix")[1]) == (1, 1)
    none = made([((0x1001,), [4, 400, 0, 0, 4, 400, 0, 0])])
    none.types = list(HEAP)
    pprof.write(none, file)
    text = tool("profile", file, "--kind", "temporary").stdout
    assert "no sampled object was freed before its thread allocated again" in text


@pytest.mark.parametrize(("how", "names"), [("stripped", False), ("exported", True)])
def test_a_stripped_program_has_the_names_that_it_exports(
    how: str, names: bool, tmp_path: Path
) -> None:
    file = tmp_path / "heap.pb.gz"
    found = profile("-o", file, "--", built(how), "heap")
    if names:
        assert near(of(found, "keep_small")[1], 20_000_000, 1000)
    else:
        assert near(of(found, "[sampled-stripped]")[1], 50_000_000, 2000)
    agree(found, file)


def test_waits_for_a_lock(tmp_path: Path) -> None:
    file = tmp_path / "contention.pb.gz"
    found = profile(
        "--kind",
        "contention",
        "--lanes",
        "shared:1",
        "--options",
        "sample_wait_ns=1",
        "-o",
        file,
        "--",
        built(),
        "meet",
        10,
    )
    assert (found["type"], found["unit"], found["sample"]) == ("delay", "nanoseconds", 1)
    # Of four threads at most three wait at a time.
    assert 1e6 < of(found, "meet")[1] <= 3 * 1.5e9 and of(found, "meet")[1] > 0.5 * found["total"]
    agree(found, file, "ns")
    rows = pprof_rows(file, "contentions", "count")
    assert rows["meet"][1] >= 1


@pytest.fixture
def running() -> object:
    started: list[subprocess.Popen[str]] = []

    def go(
        *argv: object, options: str = "sample=64k", how: str = "dynamic"
    ) -> subprocess.Popen[str]:
        environment = {
            **CLEAN,
            "LANEMALLOC_OPTIONS": options,
            "LD_PRELOAD": "" if how == "static" else str(LIBRARY),
        }
        process = subprocess.Popen(
            [str(built(how)), *map(str, argv)], stdout=subprocess.PIPE, text=True, env=environment
        )
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        return process

    yield go
    for process in started:
        process.kill()
        process.communicate()


Running = Callable[..., "subprocess.Popen[str]"]


@pytest.mark.parametrize("how", ["dynamic", "static"])
def test_a_process_that_runs_is_read_and_goes_on(
    running: Running, how: str, tmp_path: Path
) -> None:
    process, file = running("stay", how=how), tmp_path / "heap.pb.gz"
    found = facts(tool("profile", process.pid, "--json", "-o", file))
    check_known(found)
    agree(found, file)
    assert facts(tool("profile", process.pid, "--json"))["total"] == found["total"]
    process.terminate()
    assert process.wait(20) == 0


def latest_names(found: dict, at: str) -> list[list[str]]:
    """The functions of each of the latest waits at a lock, the innermost first."""
    return [
        [frame["name"] for frame in stack]
        for place in found["contention"]
        if place["at"] == at
        for stack in place["latest"]
    ]


def test_the_latest_waits_at_a_lock_have_their_calls(running: Running) -> None:
    process = running("meet", 600, options="lanes=shared:1,sample=64k,sample_wait_ns=1")
    deadline = time.monotonic() + 20
    while True:
        found = facts(tool("profile", process.pid, "--kind", "contention", "--json"))
        latest = latest_names(found, "lane")
        if latest:
            break
        assert time.monotonic() < deadline, found
    # By malloc, which touched() calls, or by free.
    for names in latest:
        assert names[:2] == ["touched", "meet"] or names[0] == "meet", latest
    lane = next(place for place in found["contention"] if place["at"] == "lane")
    assert lane["count"] >= lane["failures"] > 0 and lane["waits"] > 0 and lane["waited_ns"] > 0
    text = tool("profile", process.pid, "--kind", "contention", "--seconds", "1").stdout
    assert re.search(
        r"latest sampled waits, by lock\n(  .*\n)*  lane: [0-9,]+ entries, .*\n"
        r"      (touched <- )?meet <- ",
        text,
    ), text


def test_a_program_that_is_started_has_the_latest_waits_too() -> None:
    done = tool(
        "profile",
        "--kind",
        "contention",
        "--lanes",
        "shared:1",
        "--options",
        "sample_wait_ns=1",
        "--",
        built(),
        "meet",
        20,
    )
    assert re.search(
        r"latest sampled waits \(when last seen\), by lock\n(  .*\n)*  lane: .*\n"
        r"      (touched <- )?meet <- ",
        done.stderr,
    ), done.stderr


def test_without_waits_and_of_the_heap_none_are_told(running: Running) -> None:
    process = running("stay")
    assert facts(tool("profile", process.pid, "--kind", "contention", "--json"))["contention"] == []
    assert "latest" not in tool("profile", process.pid, "--kind", "contention").stdout
    assert "contention" not in facts(tool("profile", process.pid, "--json"))


def test_from_outside_it_is_what_the_library_writes(running: Running, tmp_path: Path) -> None:
    process = running("stay", options=f"sample=64k,profile=exit,profile_file={tmp_path}/%k.pb")
    outside = tmp_path / "outside.pb.gz"
    assert tool("profile", process.pid, "-o", outside).returncode == 0
    process.terminate()
    assert process.wait(20) == 0
    inside = pprof.read(tmp_path / "heap.pb")
    mine = pprof.read(outside)
    assert {m for m in mine.mappings if m.path.startswith("/")} == {
        m for m in inside.mappings if m.path.startswith("/")
    }
    assert all(m.build_id for m in mine.mappings if m.path == str(built()))
    for kind in HEAP:
        assert mine.total(kind.type) == inside.total(kind.type)
    # Of the stacks that the end itself adds nothing to.
    sizes = {size for (_, size), values in inside.sized if values[3] > 1_000_000}
    assert sizes == {1024, 5120}
    assert sorted(mine.sized) == sorted(inside.sized)
    assert (mine.types, mine.period_type, mine.period, mine.drop) == (
        inside.types,
        inside.period_type,
        inside.period,
        inside.drop,
    )


def test_what_comes_within_some_time(running: Running, tmp_path: Path) -> None:
    process, file = running("grow", 600, options="sample=8k"), tmp_path / "grown.pb.gz"
    time.sleep(0.5)
    before = facts(tool("profile", process.pid, "--json", "--kind", "allocation"))
    found = facts(
        tool("profile", process.pid, "--json", "--kind", "allocation", "--seconds", "1", "-o", file)
    )
    after = facts(tool("profile", process.pid, "--json", "--kind", "allocation"))
    assert 0.9 < found["seconds"] < 5
    assert 0 < of(found, "keep_grown")[1] <= after["total"] - before["total"]
    assert of(found, "keep_grown")[1] <= 5000 * 1000 * found["seconds"] * 1.5
    agree(found, file)


def test_a_process_that_ends_meanwhile(running: Running) -> None:
    process = running("grow", 20, options="sample=8k")
    done = tool("profile", process.pid, "--seconds", "30", "--kind", "allocation")
    assert done.returncode == 0, done.stderr
    assert "the process ended after" in done.stdout and "keep_grown" in done.stdout


def test_the_program_is_as_if_started_without() -> None:
    done = tool("profile", "--", sys.executable, "-c", "import sys; print('out'); sys.exit(7)")
    assert (done.returncode, done.stdout) == (7, "out\n")
    done = tool("profile", "--top", "0", "--", "echo", "--json", "--", "-n")
    assert done.stdout == "--json -- -n\n"
    command = [str(TOOL), "profile", "--", "cat"]
    assert (
        subprocess.run(
            command, input="one\n", capture_output=True, text=True, env=CLEAN, check=False
        ).stdout
        == "one\n"
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_of_a_program_that_is_killed_the_last_look_counts(number: int, tmp_path: Path) -> None:
    file = tmp_path / "heap.pb.gz"
    found = profile("-o", file, "--", built(), "crash", int(number), status=-number)
    assert found["at_exit"] is False and "last seen" in found["notes"][0]
    check_known(found)
    agree(found, file)


def test_processes_have_a_profile_each(tmp_path: Path) -> None:
    file = tmp_path / "heap.pb.gz"
    found = profile("-o", file, "--", built(), "forks")
    check_known(found)
    assert of(found, "keep_in_child") == (0, 0)
    assert len(found["processes"]) == 2
    child, clean = found["processes"]  # the largest first
    assert near(child["total"], 60_000_000, 2000) and clean["total"] < 5_000_000
    for one in found["processes"]:
        assert one["file"] == str(tmp_path / f"heap.{one['pid']}.pb.gz") and one["program"] == str(
            built()
        )
    assert near(
        pprof_rows(Path(child["file"]), "inuse_space", "B")["keep_in_child"][1], 10_000_000, 1000
    )
    done = tool("profile", "--", built(), "forks")
    assert "other processes that it started, each with a profile of its own (2):" in done.stderr


def test_options_of_the_caller_stay() -> None:
    said = {"LANEMALLOC_OPTIONS": "sample=1m,decay_ms=5,profile_file=/nowhere/x"}
    found = facts(tool("profile", "--json", "--", built(), "heap", environment=said))
    assert found["sample"] == 1 << 20
    assert profile("--", built(), "heap", environment=said)["sample"] == SAMPLE
    assert facts(tool("profile", "--json", "--", built(), "clean"))["sample"] == 512 << 10


@pytest.mark.parametrize("command", ["profile", "run"])
def test_leaks_are_named(command: str) -> None:
    done = tool(command, "--leaks", "--", built(), "heap")
    assert done.returncode == 0
    assert re.search(
        r"MiB in [0-9,]+ objects were not freed when it ended, from 2 call stacks "
        r"\(estimated .* 64\.0 KiB\)",
        done.stderr,
    )
    assert re.search(r"shop::Shelf::fill  \S*sampled\.cpp:\d+\n +all  .*\n +main  ", done.stderr)
    assert (
        re.search(r"keep_small  \S*sampled\.cpp:\d+\n", done.stderr) and "churn" not in done.stderr
    )
    found = facts(tool(command, "--json", "--fail-on-leaks", "--", built(), "heap"), status=1)[
        "leaks"
    ]
    assert near(found["bytes"], 50_000_000, 2000)
    assert [one["frames"][1]["name"] for one in found["processes"][0]["stacks"]] == [
        "shop::Shelf::take",
        "keep_small",
    ]


@pytest.mark.parametrize("command", ["profile", "run"])
def test_without_leaks_it_says_so(command: str) -> None:
    # The standard streams' buffers and the like are below what is sampled, nearly always.
    done = tool(command, "--fail-on-leaks", "--options", "sample=1m", "--", built(), "clean")
    assert done.returncode == 0, done.stderr
    assert "nothing was left when it ended" in done.stderr
    assert tool(command, "--fail-on-leaks", "--", "sh", "-c", "exit 3").returncode == 3


def tools(folder: Path, *names: str) -> str:
    """A PATH with these alone."""
    folder.mkdir()
    for name in names:
        found = shutil.which(name)
        if found is None:
            pytest.skip(f"{name} is not there")
        else:
            (folder / name).symlink_to(found)
    return str(folder)


@pytest.mark.parametrize("names", [("addr2line",), ("llvm-symbolizer",), ()])
def test_names_are_had_with_any_tool_and_with_none(names: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "heap.pb.gz"
    found = profile(
        "-o", file, "--", built(), "heap", environment={"PATH": tools(tmp_path / "bin", *names)}
    )
    check_known(found)
    raw = pprof.Message.FromString(__import__("gzip").decompress(file.read_bytes()))
    text = [one.decode() for one in raw.string_table]
    fills = [one for one in raw.function if text[one.name] == "shop::Shelf::fill"]
    assert {text[one.system_name] for one in fills} == {"_ZN4shop5ShelfIiE4fillEi"}
    assert {text[one.filename].endswith("sampled.cpp") for one in fills} == {bool(names)}
    agree(found, file)


def test_symbols_may_be_left_out() -> None:
    names = profile("--symbols", "names", "--", built(), "heap")
    check_known(names)
    bare = profile("--symbols", "none", "--", built(), "heap")
    assert near(of(bare, "[sampled-dynamic]")[0], 50_000_000, 2000)


def test_a_file_that_is_another_build_now_gives_no_names(running: Running, tmp_path: Path) -> None:
    program = tmp_path / "program"
    shutil.copy(built(), program)
    environment = {**CLEAN, "LANEMALLOC_OPTIONS": "sample=64k", "LD_PRELOAD": str(LIBRARY)}
    process = subprocess.Popen(
        [str(program), "stay"], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        program.unlink()
        check_known(
            facts(tool("profile", process.pid, "--json"))
        )  # of its own program the system keeps the file
        shutil.copy(built("no-pie"), program)
        assert symbols.file_of(str(program), None, pprof_build_id(built())) is None
        assert symbols.file_of(str(built()), None, pprof_build_id(built())) == str(built())
    finally:
        process.kill()
        process.communicate()


def pprof_build_id(file: Path) -> str:
    from lanemalloc.binaries import build_id

    found = build_id(str(file))
    assert found
    return found


# --- What can go wrong.


def fails(status: int, words: str, *argv: object) -> None:
    done = tool("profile", *argv)
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert words in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_bad_arguments(tmp_path: Path) -> None:
    fails(2, "give either")
    fails(2, "give either", "1", "--", "ls")
    fails(2, "a program stands behind --", "ls")
    fails(2, "process' number", "0")
    fails(2, "--seconds is for", "--seconds", "1", "--", "ls")
    fails(2, "--sample is for", "1", "--sample", "1k")
    fails(2, "--leaks is for", "1", "--leaks")
    fails(2, "the peak is of all the time", "1", "--kind", "peak", "--seconds", "1")
    fails(2, "--leaks is of the heap", "--leaks", "--kind", "contention", "--", "ls")
    fails(2, "above 0", "--sample", "0", "--", "ls")
    fails(2, "above 0", "--sample", "much", "--", "ls")
    fails(127, "No such file", "--", "./no-such-program")


def test_no_such_process_and_one_without() -> None:
    fails(3, "there is no process 2147483646", 2147483646)
    process = subprocess.Popen(["sleep", "60"])
    try:
        fails(3, "does not run with lanemalloc", process.pid)
    finally:
        process.kill()
        process.wait()


def test_a_process_that_does_not_sample(running: Running) -> None:
    process = running("stay", options="decay_ms=1000")
    fails(3, "does not sample", process.pid)
    fails(3, 'lane_set("sample", "512k")', process.pid, "--seconds", "1")


def test_a_file_that_cannot_be_written_is_told_before_the_program_runs(
    tmp_path: Path, running: Running
) -> None:
    made = tmp_path / "made"
    fails(3, "cannot be written", "-o", "/proc/none/heap.pb.gz", "--", "touch", made)
    fails(3, "cannot be written", "-o", tmp_path / "none" / "heap.pb.gz", "--", "touch", made)
    assert not made.exists()
    fails(3, "cannot be written", running("stay").pid, "-o", "/proc/none/heap.pb.gz")


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can become another user"
)
def test_another_users_process(running: Running) -> None:
    process = running("stay")
    code = f"""
import sys
sys.path.insert(0, {str(ROOT / "python")!r})
from lanemalloc.memory import ProcessMemory, NotAllowed, read
from lanemalloc.sampled import Samples
try:
    read(ProcessMemory({process.pid}), 4096, 8)
except NotAllowed as problem:
    print(problem.message)
"""
    command = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        sys.executable,
        "-c",
        code,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=CLEAN)
    if "Permission denied" in done.stderr:
        pytest.skip("the other user cannot read the checkout")
    assert "may not read" in done.stdout and "sudo" in done.stdout, done.stderr


def test_a_program_without_the_library_is_told_so(tmp_path: Path) -> None:
    code = tmp_path / "plain.c"
    code.write_text("int main(void) { return 3; }\n")
    subprocess.run(["gcc", "-static", str(code), "-o", str(tmp_path / "plain")], check=True)
    done = tool("profile", "--", tmp_path / "plain")
    assert done.returncode == 3
    assert "no profile" in done.stderr and "doctor" in done.stderr


# --- Parts.


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("main", "main"),
        ("_Z3foov", "foo"),
        ("_ZN4shop5ShelfIiE4fillEi", "shop::Shelf::fill"),
        ("_ZN12_GLOBAL__N_17touchedEm", "(anonymous namespace)::touched"),
        ("_Z3addIiET_S0_S0_", "add"),  # int add<int>(int, int)
        (
            (
                "_ZNSt6vectorIiSaIiEE17_M_realloc_insertIJiEEEv"
                "N9__gnu_cxx17__normal_iteratorIPiS1_EEDpOT_"
            ),
            "std::vector::_M_realloc_insert",
        ),
        ("_ZNK4TypeclEi", "Type::operator()"),
        ("_ZN4TypelsEi", "Type::operator<<"),
        ("_ZNK4TypeltERKS_", "Type::operator<"),
        ("_ZNK4TypecvbEv", "Type::operator bool"),
        ("_Znwm", "operator new"),
        ("_Znam", "operator new[]"),
        ("_ZZ4mainENKUlvE_clEv", "main::{lambda#1}::operator()"),
        ("_Z3foov.part.0", "foo"),
        ("_ZN4core3fmt9Formatter3pad17h0123456789abcdefE", "core::fmt::Formatter::pad"),
        ("_Zwhat", "_Zwhat"),
    ],
)
def test_names_are_as_pprof_likes_them(mangled: str, name: str) -> None:
    assert symbols.simplify(mangled) == name


def made(stacks: list[tuple[tuple[int, ...], list[int]]]) -> Profile:
    """Of these stacks, with values of all that was allocated and what is in use."""
    mappings = [
        Mapping(0x1000, 0x2000, 0, "/bin/one", "ab"),
        Mapping(0x9000, 0xA000, 0x1000, "/lib/two"),
    ]
    return Profile(
        list(HEAP[:4]),
        "inuse_space",
        ValueType("space", "bytes"),
        1024,
        5_000_000_000,
        1_000_000_000,
        mappings,
        stacks,
    )


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    one = made([((0x1001, 0x9002), [4, 400, 3, 300]), ((), [1, 10, 0, 0])])
    one.frames = {0x1001: (Frame("inner", "_Z5innerv", "a.c", 3), Frame("outer"))}
    pprof.write(one, tmp_path / "one.pb.gz")
    again = pprof.read(tmp_path / "one.pb.gz")
    assert (again.stacks, again.mappings, again.period, again.types) == (
        one.stacks,
        one.mappings,
        1024,
        one.types,
    )
    assert one.stack_names((0x1001, 0x9002, 0x5000)) == ["inner", "outer", "[two]", "<unknown>"]
    data = (tmp_path / "one.pb.gz").read_bytes()
    for cut in (data[:30], b"\x1f\x8b", b"\x0a\xff\xff", __import__("gzip").compress(b"\x12\x7f")):
        (tmp_path / "cut").write_bytes(cut)
        with pytest.raises(Problem, match="not whole"):
            pprof.read(tmp_path / "cut")


def test_the_difference_of_two_moments() -> None:
    before = made([((0x1001,), [4, 400, 4, 400]), ((0x1002,), [1, 10, 1, 10])])
    after = made(
        [((0x1001,), [5, 500, 1, 100]), ((0x1002,), [1, 10, 1, 10]), ((0x1003,), [2, 20, 2, 20])]
    )
    after.time_ns += 1_000_000
    found = after.since(before)
    assert dict(found.stacks) == {(0x1001,): [1, 100, -3, -300], (0x1003,): [2, 20, 2, 20]}
    assert found.duration_ns == 1_000_000


STACK = {
    "bytes": Field(0, 1, 4, 0),
    "kind": Field(4, 1, 1, 0),
    "depth": Field(8, 1, 4, 0),
    "size": Field(6, 1, 2, 0),
    "counters": Field(16, 8, 8, 0),
    "frames": Field(80, 1, 8, 0),
}


def stack_in_table(
    kind: int, *frames: int, counters: tuple[int, ...] = (1, 100, 0, 0, 0, 0, 0, 0), size: int = 0
) -> bytes:
    return struct.pack(
        f"<IHHII8Q{len(frames)}Q",
        80 + 8 * len(frames),
        kind,
        size,
        len(frames),
        0,
        *counters,
        *frames,
    )


def test_a_stack_is_found_by_its_address() -> None:
    table = (
        stack_in_table(0)
        + stack_in_table(1)
        + stack_in_table(1, 0x1002, 0x9003)
        + stack_in_table(0, 0x1007)
    )
    waits = CellFigures(
        "lane", True, False, 9, 5, 3, 2000, np.zeros(16, np.int64), (0x70A0, 0x7050)
    )
    calm = CellFigures("depot", False, False, 9, 0, 0, 0, np.zeros(16, np.int64))
    look = Look(np.frombuffer(table, np.uint8), 0x7000, STACK, [calm, waits], 1024, 1, 5, 5, [])
    assert (look.stack_at(0x70A0), look.stack_at(0x7050)) == ((0x1001, 0x9002), ())
    # Of the other kind; inside of one; outside of the table; behind its last one.
    assert [
        look.stack_at(at)
        for at in (0x7000, 0x70A1, 0x6FF8, 0x7000 + len(table), 0x7000 + len(table) - 8, 0)
    ] == [None] * 6
    assert look.profile("contention").places == [
        Place("lane", 9, 5, 3, 2000, [(0x1001, 0x9002), ()])
    ]
    assert look.profile("heap").places == []
    assert dict(look.profile("contention").stacks) == {(): [1, 100], (0x1001, 0x9002): [1, 100]}


def test_the_latest_waits_of_another_program_in_its_place_are_not_told(tmp_path: Path) -> None:
    written = made([])
    written.types, written.default = list(CONTENTION), "delay"
    pprof.write(written, tmp_path / "7.contention.pb")
    waits = CellFigures("lane", True, False, 9, 5, 3, 2000, np.zeros(16, np.int64))
    for mappings, told in (
        (written.mappings, 1),
        ([replace(written.mappings[0], begin=0x1800), written.mappings[1]], 0),
        ([], 0),
    ):
        last = Look(np.zeros(0, np.uint8), 0x7000, STACK, [waits], 1024, 1, 5, 5, mappings)
        own, _, _ = collect(tmp_path, "contention", 7, {7: last})
        assert own is not None and len(own.profile.places) == told


def test_places_of_waits_since_a_moment() -> None:
    before, after = made([]), made([])
    before.places = [Place("lane", 10, 5, 3, 3000), Place("depot", 4, 1, 1, 100)]
    after.places = [
        Place("lane", 30, 7, 4, 5000, [(0x1001,)]),
        Place("runs", 2, 1, 1, 9000),
        Place("depot", 5, 1, 1, 100),
    ]
    assert after.since(before).places == [
        Place("runs", 2, 1, 1, 9000),
        Place("lane", 20, 2, 1, 2000, [(0x1001,)]),
    ]
    after.frames = {0x1001: tuple(Frame(name) for name in "abcdefg")}
    assert waits.lines(after, "") == [
        "latest sampled waits, by lock",
        "  lane: 30 entries, 7 failed tries, 4 waits, 5.00 µs",
        "      a <- b <- c <- d <- e <- 2 more",
    ]
    assert waits.lines(before, "") == []


def test_the_allocators_own_functions_are_left_out() -> None:
    assert pruned((1, 2, 3, 4), {2}) == (3, 4)
    assert pruned((1, 2, 3, 4), {1, 3}) == (4,)
    assert pruned((1, 2), {1, 2}) == (1, 2)  # nobody's but its own
    assert pruned((1, 2, 3), {3}) == (1, 2, 3)
    one = made([((0x1001, 0x1002), [1, 1, 1, 1]), ((0x1003, 0x1002), [1, 1, 1, 1])])
    one.frames = {
        0x1001: (Frame("malloc"),),
        0x1002: (Frame("main"),),
        0x1003: (Frame("malloc_table"),),
    }
    one.prune()
    assert dict(one.stacks) == {(0x1002,): [1, 1, 1, 1], (0x1003, 0x1002): [1, 1, 1, 1]}
    one.places = [Place("lane", stacks=[(0x1001, 0x1002)])]
    one.prune()
    assert one.places == [Place("lane", stacks=[(0x1002,)])]


def test_a_function_that_calls_itself_counts_once() -> None:
    one = made([((0x1001, 0x1002, 0x1001), [1, 8, 1, 8])])
    one.frames = {0x1001: (Frame("walk"),), 0x1002: (Frame("step"),)}
    rows = {row.name: (row.flat, row.cumulative) for row in one.rows("inuse_space")}
    assert rows == {"walk": (8, 8), "step": (0, 8)}
    assert leaks.find(one)[0].bytes == 8
