"""Names of code that a program has made while it ran, and the frames around it: by a program that
makes some, and by the runtimes that are there."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import CLEAN, LIBRARY, build, tool

from lanemalloc import perfmaps, pprof
from lanemalloc.profiles import Frame

NODE = shutil.which("node")
PYTHON_JOB = """
def keep(n):
    return [bytearray(3000) for i in range(n)]
def job():
    return keep(10000)
kept = job()
"""
NODE_JOB = """
function keep(n) { const a = []; for (let i = 0; i < n; i++) a.push(Buffer.allocUnsafeSlow(20000));
                   return a; }
function job() { return keep(2000); }
const kept = job();
"""


@pytest.fixture(autouse=True)
def maps_are_removed() -> Iterator[None]:
    before = set(perfmaps.FOLDER.glob("perf-*.map"))
    yield
    for file in set(perfmaps.FOLDER.glob("perf-*.map")) - before:
        file.unlink()


def stacks(tmp_path: Path, *argv: object) -> list[tuple[int, list[str]]]:
    """Bytes that were allocated, and the functions, the innermost first; the largest first."""
    file = tmp_path / "made.pb.gz"
    done = tool("profile", "--sample", "64k", "--top", 0, "-o", file, "--", *argv)
    assert done.returncode == 0, done.stderr
    found = pprof.read(file)
    at = found.index("alloc_space")
    named = [(values[at], found.stack_names(addresses)) for addresses, values in found.stacks]
    return sorted(named, key=lambda one: -one[0])


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the program has code for x86-64")
@pytest.mark.parametrize("has_map", [True, False])
def test_frames_of_made_code_have_names_and_callers(tmp_path: Path, has_map: bool) -> None:
    arguments = [] if has_map else [tmp_path / "elsewhere"]
    two = stacks(tmp_path, build("made"), *arguments)[:2]
    names = {tuple(one[: one.index("main") + 1]) for size, one in two if size > 5_000_000}
    given_back, framed, popped = (
        ("py::given_back", "framed", "popped ?[31m<b>") if has_map else ("<unknown>",) * 3
    )
    assert names == {
        ("keep", given_back, "through_inner", framed, "main"),
        ("keep", framed, "through_inner", popped, "main"),
    }
    for _, one in two:
        assert one[-1] == "_start"


def test_names_of_a_process_that_runs(tmp_path: Path) -> None:
    program = tmp_path / "wait.py"
    program.write_text(PYTHON_JOB + "import sys\nprint('ready', flush=True)\nsys.stdin.read()\n")
    python = newer_python()
    environment = {**CLEAN, "LD_PRELOAD": str(LIBRARY), "LANEMALLOC_OPTIONS": "sample=64k"}
    process = subprocess.Popen(
        [python, "-X", "perf", str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        found = json.loads(tool("profile", process.pid, "--json").stdout)
        assert {"py::keep", "py::job", "py::<module>"} <= {
            row["name"] for row in found["functions"]
        }
    finally:
        process.communicate("")


def newer_python() -> str:
    """One that names its frames for perf."""
    for name in ("python3.14", "python3.13", "python3.12"):
        found = shutil.which(name)
        if found is not None and works(found):
            return found
    pytest.skip("no Python from 3.12 on is there")


def works(python: str) -> bool:
    code = "import sys; sys.exit(not hasattr(sys, 'activate_stack_trampoline'))"
    done = subprocess.run([python, "-X", "perf", "-c", code], capture_output=True, check=False)
    return done.returncode == 0


def test_python_frames(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(PYTHON_JOB)
    size, names = stacks(tmp_path, newer_python(), "-X", "perf", tmp_path / "job.py")[0]
    assert size > 20_000_000
    frames = [name for name in names if name.startswith("py::")]
    # A list comprehension has a frame of its own before 3.12.
    assert frames[-3:] == ["py::keep", "py::job", "py::<module>"] and names[-1] == "_start"


@pytest.mark.skipif(NODE is None, reason="node is not there")
def test_node_frames(tmp_path: Path) -> None:
    (tmp_path / "job.js").write_text(NODE_JOB)
    flags = ["--perf-basic-prof", "--interpreted-frames-native-stack"]
    flags += ["--no-logfile-per-isolate", f"--logfile={tmp_path}/v8.log"]
    found = stacks(tmp_path, NODE, *flags, tmp_path / "job.js")
    kept = [(size, names) for size, names in found if "keep" in names and "job" in names]
    assert sum(size for size, _ in kept) > 30_000_000
    for _, names in kept:
        assert names.index("keep") < names.index("job") and names[-1] == "_start"


# --- What the file says, and whose it is.


def test_lines() -> None:
    assert perfmaps.frame("py::Class.run:/home/a b.py") == Frame(
        "py::Class.run", "", "/home/a b.py"
    )
    assert perfmaps.frame("py::f:<frozen x>") == Frame("py::f", "", "<frozen x>")
    assert perfmaps.frame("JS:~keep file:///a.js:12:9") == Frame("keep", "", "file:///a.js", 12)
    assert perfmaps.frame("JS:* /a.js:1:1") == Frame("(anonymous)", "", "/a.js", 1)
    assert perfmaps.frame("long J.work(int)") == Frame("long J.work(int)")
    assert len(perfmaps.frame("x" * 10_000).name) == perfmaps.LONGEST
    assert perfmaps.frame("a\x1b[2Jb\x00").name == "a?[2Jb?"


def test_the_last_name_of_a_place_counts_and_odd_lines_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "map"
    file.write_bytes(
        b"1000 20 first\n1010 10 second\nzz 10 odd\n\n1 2\n-5 fffff negative\n2000 0 empty\n"
        b"3000 8 \xff\xfe\nffffffffffffffffffff ff far\n1018 1 third"
    )
    with file.open("rb") as stream:
        found = dict(perfmaps.names(stream, [0x1000, 0x1010, 0x1018, 0x1020, 0x2000, 0x3007]))
    assert found == {
        0x1000: "first",
        0x1010: "second",
        0x1018: "third",
        0x3007: "\ufffd\ufffd",
    }


def may_be_read(path: Path, pid: int = 0, since_ns: int = 0) -> bool:
    with perfmaps.opened(path, pid or os.getpid(), since_ns) as stream:
        return stream is not None


def test_only_a_file_of_ones_own_is_read(tmp_path: Path) -> None:
    file = tmp_path / "perf-1.map"
    file.write_text("1000 20 name\n")
    written = file.stat().st_mtime_ns
    assert may_be_read(file) and may_be_read(file, since_ns=written)
    assert not may_be_read(file, since_ns=written + 60_000_000_000)  # of a process before
    file.chmod(0o666)
    assert not may_be_read(file)
    (tmp_path / "link").symlink_to(file)
    file.chmod(0o644)
    assert not may_be_read(tmp_path / "link")
    os.mkfifo(tmp_path / "fifo")
    assert not may_be_read(tmp_path / "fifo") and not may_be_read(tmp_path)
    assert not may_be_read(tmp_path / "none")
    with file.open("ab") as stream:
        stream.truncate(perfmaps.MOST_BYTES + 1)
    assert not may_be_read(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_another_users_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "perf-1.map"
    file.write_text("1000 20 name\n")
    os.chown(file, 65534, 65534)
    assert not may_be_read(file)
    # Unless the process is that user's.
    process = subprocess.Popen(["sleep", "60"], user=65534)
    try:
        assert may_be_read(file, process.pid)
    finally:
        process.kill()
        process.wait()
