"""lanemalloc run: as if the program had been started without, and what is said at its end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import CLEAN, LIBRARY, TOOL, tool

from lanemalloc import pprof
from lanemalloc.preload import environment, parse_options, with_library
from lanemalloc.recording import MOST, Recording
from lanemalloc.ui import Problem


def summary_of(text: str) -> dict:
    return json.loads(text.splitlines()[-1])


def test_the_status_is_passed_on_and_the_summary_is_on_standard_error() -> None:
    done = tool("run", "--", sys.executable, "-c", "import sys; print('out'); sys.exit(7)")
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert "exit status 7" in done.stderr
    for word in ("memory", "calls", "lanes", "threads met"):
        assert word in done.stderr


def test_options_of_the_program_are_its_own() -> None:
    done = tool("run", "-q", "echo", "--json", "-n", "--help")
    assert (done.stdout, done.stderr) == ("--json -n --help\n", "")


def test_standard_input_is_the_programs() -> None:
    command = [str(TOOL), "run", "-q", "--", "cat"]
    done = subprocess.run(
        command, input="one\ntwo\n", capture_output=True, text=True, env=CLEAN, check=False
    )
    assert done.stdout == "one\ntwo\n"


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT, signal.SIGUSR1])
def test_death_by_a_signal_is_passed_on(situations: Path, number: int) -> None:
    done = tool("run", "--json", "--", situations, "crash", int(number))
    assert done.returncode == -number
    summary = summary_of(done.stderr)
    assert (summary["status"], summary["signal"], summary["from"]) == (None, number, "last")
    assert summary["figures"]["large_live_bytes"] == 1 << 20


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGWINCH]
)
def test_signals_are_passed_on(number: int) -> None:
    code = (
        "import signal, sys; s = signal.sigwait(signal.valid_signals()); print(int(s)); sys.exit(0)"
    )
    prepared = (
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); "
        "print('ready', flush=True); " + code
    )
    process = subprocess.Popen(
        [str(TOOL), "run", "-q", "--", sys.executable, "-c", prepared],
        stdout=subprocess.PIPE,
        text=True,
        env=CLEAN,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.stdout.read() == f"{int(number)}\n"
    assert process.wait(20) == 0


def test_what_a_program_ignores_it_ignores_here_too() -> None:
    code = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    done = subprocess.run(
        ["nohup", str(TOOL), "run", "-q", "--", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=CLEAN,
        check=False,
    )
    assert done.stdout == "True\n"


def test_a_program_that_is_not_there() -> None:
    done = tool("run", "--", "./no-such-program")
    assert done.returncode == 127
    assert "No such file" in done.stderr and len(done.stderr.splitlines()) == 2
    done = tool("run", "--", "/etc/passwd")
    assert done.returncode == 126


def test_figures_at_exit_are_the_librarys_own(situations: Path) -> None:
    process = subprocess.Popen(
        [str(TOOL), "run", "--json", "--", str(situations), "live", "20"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=CLEAN,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    process.terminate()
    _, err = process.communicate(timeout=20)
    summary = summary_of(err)
    assert (process.returncode, summary["from"], summary["status"]) == (0, "exit", 0)
    assert summary["figures"]["live_objects"] >= 20_000
    assert summary["peak_resident_bytes"] > 20 << 20
    assert summary["peak_live_bytes"] >= summary["figures"]["live_bytes"]


@pytest.mark.parametrize("mib", [0, 5, 40])
def test_the_peak_is_the_programs_own(situations: Path, mib: int) -> None:
    """And not that of the tool, which is larger than a small program."""
    done = tool("run", "--json", "--", situations, "peak", mib)
    summary = summary_of(done.stderr)
    said = int(done.stdout) * 1024
    # Each CPU of the kernel keeps some pages uncounted; at its end a program takes a few more.
    slack = (64 * (os.cpu_count() or 1) + 64) * 4096
    assert summary["peak_resident_exact"]
    assert abs(summary["peak_resident_bytes"] - said) <= slack
    assert summary["peak_resident_bytes"] < (mib + 4) << 20


def test_the_peak_of_a_child_is_told_apart(situations: Path) -> None:
    done = tool("run", "--json", "--", "sh", "-c", f"{situations} peak 40; true")
    summary = summary_of(done.stderr)
    assert not summary["peak_resident_exact"]
    assert summary["peak_resident_bytes"] < 30 << 20
    assert summary["peak_resident_largest_bytes"] >= 40 << 20
    done = tool("run", "--", "sh", "-c", f"{situations} peak 40; true")
    assert re.search(r"peak RSS .*4\d\.\d MiB.* the largest of its processes", done.stderr)


def test_behind_a_shell_the_figures_are_those_of_what_it_starts(
    situations: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run.jsonl"
    command = ["sh", "-c", f"{situations} crash 9; true"]
    done = tool("run", "--json", "--record", path, "--", *command)
    summary = summary_of(done.stderr)
    assert done.returncode == 0
    recording = Recording.load(path)
    assert recording.samples and recording.peak_live >= 1 << 20
    assert summary["peak_live_bytes"] >= 1 << 20
    done = tool("run", "--", "sh", "-c", f"{situations} leak 20; true")
    assert "sh itself allocated next to nothing" in done.stderr
    assert re.search(r"live at exit 19\.\d MiB", done.stderr)


# --- Leaks.


@pytest.mark.parametrize("command", ["run", "profile"])
def test_a_gate_sees_what_a_shell_starts(situations: Path, command: str) -> None:
    done = tool(command, "--fail-on-leaks", "--", "sh", "-c", f"{situations} leak 20; true")
    assert done.returncode == 1
    assert "were not freed" in done.stderr and "touched" in done.stderr
    assert "sh itself allocated next to nothing" in done.stderr


@pytest.mark.parametrize("command", ["run", "profile"])
def test_a_gate_that_saw_nothing_does_not_pass(situations: Path, command: str) -> None:
    unseen = f"LD_PRELOAD= {situations} leak 20; true"
    done = tool(command, "--fail-on-leaks", "--", "sh", "-c", unseen)
    assert done.returncode == 3
    assert "nothing was seen of" in done.stderr
    assert tool(command, "--fail-on-leaks", "--", "sh", "-c", unseen + "; exit 5").returncode == 5
    clean = tool(command, "--fail-on-leaks", "--", "true")
    assert clean.returncode == 0, clean.stderr


@pytest.mark.parametrize("command", ["run", "profile"])
def test_a_gate_counts_of_a_forked_process_what_it_made_itself(
    situations: Path, command: str
) -> None:
    """Its parent frees what it had at the fork; the child has left that, too, and it is no leak."""
    clean = tool(command, "--fail-on-leaks", "--", situations, "fork", 0)
    assert clean.returncode == 0, clean.stderr
    leaking = tool(command, "--fail-on-leaks", "--json", "--", situations, "fork", 40)
    assert leaking.returncode == 1
    first, child = json.loads(leaking.stderr.splitlines()[-1])["leaks"]["processes"]
    assert first["bytes"] == 0 and child["copy_of"] == first["pid"]
    assert 30_000_000 < child["bytes"] < 52_000_000


# --- Names and files.


def test_names_need_not_be_utf_8(situations: Path, tmp_path: Path) -> None:
    name = os.fsdecode(b"le\xffak")
    (tmp_path / name).write_bytes(situations.read_bytes())
    (tmp_path / name).chmod(0o755)
    for command in ("run", "profile"):
        done = tool(command, "--leaks", "--", tmp_path / name, "leak", 20)
        assert done.returncode == 0 and "touched" in done.stderr, done.stderr
    path = tmp_path / "run.jsonl"
    assert tool("run", "-q", "--record", path, "--", tmp_path / name, "crash", 15).returncode == -15
    assert Recording.load(path).samples
    json.dumps(Recording.load(path).command).encode()
    made = tmp_path / "heap.pb.gz"
    assert tool("profile", "-o", made, "--", tmp_path / name, "leak", 20).returncode == 0
    assert any("le\ufffdak" in one.path for one in pprof.read(made).mappings)


@pytest.mark.parametrize("option", ["--record", "--report", "-o"])
def test_what_cannot_be_written_is_said_before_the_program_runs(
    option: str, tmp_path: Path
) -> None:
    for path in ("/no/dir/x", tmp_path):
        done = tool("run", option, path, "--", "touch", tmp_path / "ran")
        assert done.returncode in (2, 3) and str(path) in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_profile_checks_its_file_before_the_program_runs(tmp_path: Path) -> None:
    done = tool("profile", "-o", "/no/dir/x", "--", "touch", tmp_path / "ran")
    assert done.returncode == 3 and list(tmp_path.iterdir()) == []


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A file system with no room."""
    folder = tmp_path / "full"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("no file system can be mounted here")
    with contextlib.suppress(OSError):
        (folder / "stuff").write_bytes(b"x" * (64 << 10))
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_on_a_full_disk_what_was_measured_is_kept(
    full: Path, tmp_path: Path, situations: Path
) -> None:
    for option, said in (("--record", "allocations"), ("--report", "allocations"), ("-o", "calls")):
        done = tool("run", option, full / "x", "--", situations, "leak", 20, TMPDIR=str(tmp_path))
        assert done.returncode == 3
        assert said in done.stderr and f"{full / 'x'} cannot be written: No space" in done.stderr
        if option != "-o":
            kept = re.search(r"the recording is in (\S+)", done.stderr)
            assert kept and Recording.load(Path(kept[1])).end["status"] == 0
    done = tool("profile", "-o", full / "x", "--", situations, "leak", 20)
    assert done.returncode == 3 and "touched" in done.stderr and "No space" in done.stderr
    assert [one.name for one in full.iterdir()] == ["stuff"]
    done = tool("run", "-o", full / "x", "--", "sh", "-c", "exit 9")
    assert done.returncode == 9


def test_children_are_counted_and_the_program_itself_is_told_apart() -> None:
    done = tool(
        "run",
        "--json",
        "--",
        sys.executable,
        "-c",
        "import subprocess; subprocess.run(['ls', '/']); subprocess.run(['ls', '/'])",
    )
    summary = summary_of(done.stderr)
    assert len(summary["children"]) == 2
    assert summary["figures"]["allocations"] > summary["children"][0]["figures"]["allocations"]


def test_a_program_that_runs_another_one_in_its_place(situations: Path) -> None:
    done = tool("run", "--json", "--", "sh", "-c", f"exec {situations} crash 9")
    assert summary_of(done.stderr)["figures"]["large_live_bytes"] == 1 << 20


def test_a_static_program_is_told_so(tmp_path: Path) -> None:
    code = tmp_path / "static.c"
    code.write_text("int main(void) { return 3; }\n")
    subprocess.run(["gcc", "-static", str(code), "-o", str(tmp_path / "static")], check=True)
    done = tool("run", "--", tmp_path / "static")
    assert done.returncode == 3
    assert "no figures" in done.stderr and "doctor" in done.stderr


def test_the_summary_names_where_threads_met(situations: Path) -> None:
    process = subprocess.Popen(
        [str(TOOL), "run", "--lanes", "shared:1", "--", str(situations), "busy", "4"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=CLEAN,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(1.5)
    process.terminate()
    _, err = process.communicate(timeout=20)
    assert "entered shared:1" in err
    assert "lane  " in err.split("threads met")[1]
    assert "lanes=percpu" in err


def test_the_summary_goes_to_a_file(tmp_path: Path) -> None:
    done = tool("run", "-o", tmp_path / "summary", "--", "true")
    assert done.stderr == ""
    assert "exit status 0" in (tmp_path / "summary").read_text()


# --- Options.


def test_options_are_merged_and_the_nearest_wins() -> None:
    made = environment(
        "percpu",
        ("decay_ms=5,probes=3", "probes=4"),
        {"stats": "exit"},
        {"LANEMALLOC_OPTIONS": "decay_ms=1,checked=1,lanes=owned"},
    )
    assert parse_options(made["LANEMALLOC_OPTIONS"]) == {
        "decay_ms": "5", "checked": "1", "probes": "4", "lanes": "percpu", "stats": "exit"
    }  # fmt: skip


def test_statistics_that_were_asked_for_stay_as_they_were_asked_for() -> None:
    made = environment(
        None, (), {"stats": "exit", "stats_file": "x"}, {"LANEMALLOC_OPTIONS": "stats=none"}
    )
    assert made["LANEMALLOC_OPTIONS"] == "stats=none"


def test_what_was_preloaded_stays() -> None:
    assert (
        with_library("/a/libx.so /b/liby.so", Path("/l/liblanemalloc.so"))
        == "/l/liblanemalloc.so:/a/libx.so:/b/liby.so"
    )
    assert (
        with_library("/old/liblanemalloc.so", Path("/l/liblanemalloc.so")) == "/l/liblanemalloc.so"
    )
    assert (
        with_library("/old/liblanemalloc.so.0 liblanemalloc.so.0.1.0", Path("/l/liblanemalloc.so"))
        == "/l/liblanemalloc.so"
    )
    assert (
        with_library("/old/liblanemalloc.sound", Path("/l/liblanemalloc.so"))
        == "/l/liblanemalloc.so:/old/liblanemalloc.sound"
    )
    done = tool("run", "-q", "--", "sh", "-c", "echo $LD_PRELOAD", LD_PRELOAD="libdl.so.2")
    assert done.stdout.strip().endswith("liblanemalloc.so:libdl.so.2")


def test_an_option_that_is_not_understood_is_told_by_the_library() -> None:
    assert "did you mean 'decay_ms'" in tool("run", "--options", "decai_ms=1", "--", "true").stderr


def test_the_library_may_lie_where_spaces_are(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    (folder / "liblanemalloc.so").write_bytes(LIBRARY.read_bytes())
    done = tool("run", "--", "ls", "/", LANEMALLOC_NATIVE=str(folder))
    assert "allocations" in done.stderr


# --- Recordings.


def test_an_empty_argument_is_seen_in_the_title_of_a_report(tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    assert tool("run", "-q", "--report", path, "--", "true", "", "a b").returncode == 0
    assert "<title>lanemalloc report: true &#x27;&#x27; &#x27;a b&#x27;</title>" in path.read_text()


def test_a_recording_can_be_read_again_and_a_cut_one_too(situations: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    tool("run", "-q", "--record", path, "--", situations, "crash", 15)
    recording = Recording.load(path)
    assert recording.command == [str(situations), "crash", "15"]
    assert len(recording.samples) >= 2
    assert recording.end["signal"] == signal.SIGTERM
    assert recording.peak_live == recording.end["peak_live_bytes"]
    text = path.read_text()
    assert recording.machine["cpus"] >= 1 and recording.faults() == []
    path.write_text(text[: len(text) * 2 // 3])
    cut = Recording.load(path)
    assert len(cut.samples) >= 1
    assert cut.is_cut_off and cut.end == {} and cut.lost == []
    lines = text.splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    assert Recording.load(path).is_cut_off
    path.write_text("nothing\n")
    with pytest.raises(Problem, match="no recording"):
        Recording.load(path)


def test_damage_of_a_recording_is_told_from_a_cut(situations: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    tool("run", "-q", "--record", path, "--", situations, "crash", 15)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    assert len(lines) >= 5
    for number in range(2, len(lines) + 1):
        line = bytearray(lines[number - 1])
        digit = next(i for i in range(len(line) // 2, len(line)) if chr(line[i]).isdigit())
        line[digit] ^= 1  # another digit: still JSON
        path.write_bytes(b"".join([*lines[: number - 1], line, *lines[number:]]))
        found = Recording.load(path)
        assert not found.is_cut_off
        assert len(found.lost) == 1 and f"line {number} (" in found.lost[0]
        assert "does not match its checksum" in found.lost[0]
    path.write_bytes(b"".join([*lines[:2], *lines[3:]]))
    assert "1 lines before it are missing" in Recording.load(path).lost[0]
    path.write_bytes(lines[0].replace(b"version", b"vershun") + b"".join(lines[1:]))
    with pytest.raises(Problem, match="damaged in line 1"):
        Recording.load(path)
    path.write_bytes(whole)
    assert Recording.load(path).faults() == []
    middle = bytearray(whole)
    middle[len(lines[0]) + 40] ^= 1
    path.write_bytes(middle)
    done = tool("report", path, "-o", tmp_path / "page.html")
    assert done.returncode == 0
    assert "is damaged in line 2 (at the beginning): it does not match its checksum" in done.stderr
    assert "cut off" not in done.stderr
    assert "1 of its lines were left out" in (tmp_path / "page.html").read_text()


def test_a_recording_stays_small_however_long_it_is() -> None:
    from synthetic import Synthetic

    memory = Synthetic()
    memory.add_lane()
    snapshot = memory.reader().read()
    recording = Recording(["x"])
    for i in range(20_000):
        recording.add(snapshot, i * 0.1)
    assert MOST // 2 <= len(recording.samples) <= MOST
    assert recording.samples[0].at == 0
    gaps = [b.at - a.at for a, b in zip(recording.samples, recording.samples[1:])]
    assert max(gaps) < 2.5 * min(gaps)


def test_thinning_a_recording_keeps_the_moment_with_most_live_bytes() -> None:
    from synthetic import Synthetic

    memory = Synthetic()
    memory.add_lane()
    recording = Recording(["x"])
    for i in range(3 * MOST):
        memory.world(large_bytes=1 << 30 if i == 333 else 1000)
        recording.add(memory.reader().read(), i * 0.1)
    assert max(sample.snapshot["figures"]["live_bytes"] for sample in recording.samples) == 1 << 30
    assert len(recording.samples) <= MOST


# --- At a terminal.


def test_interrupt_stop_and_continue_at_a_terminal(terminal, situations: Path) -> None:
    screen = terminal(100, 30, "bash --norc --noprofile -i")
    screen.wait(r"[$#]")
    screen.keys(f"{TOOL} run -- cat", "Enter")
    time.sleep(1)
    screen.keys("hello", "Enter")
    screen.wait("hello\nhello")
    screen.keys("C-z")
    screen.wait("Stopped")
    screen.keys("echo between", "Enter")
    screen.wait("\nbetween")
    screen.keys("fg", "Enter")
    time.sleep(0.5)
    screen.keys("again", "Enter")
    screen.wait("again\nagain")
    screen.keys("C-d")
    screen.wait("exit status 0", "threads met")
    screen.keys("clear", "Enter")
    screen.keys(f"{TOOL} run -- {situations} live 10", "Enter")
    screen.wait("ready")
    screen.keys("C-c")
    screen.wait("ended by SIGINT")
    screen.keys("echo status $?", "Enter")
    screen.wait("status 130")


def test_a_program_in_a_pipeline_and_in_the_background(terminal) -> None:
    screen = terminal(100, 30, "bash --norc --noprofile -i")
    screen.wait(r"[$#]")
    screen.keys(f"seq 3 | {TOOL} run -q -- cat | tac | tr '\\n' ,", "Enter")
    screen.wait("3,2,1,")
    screen.keys("clear", "Enter", f"{TOOL} run -q -- sleep 1 & wait; echo done $?", "Enter")
    screen.wait("done 0")


def test_a_full_screen_program(terminal) -> None:
    screen = terminal(80, 24, f"{TOOL} run -- less {__file__}; sleep 2")
    screen.wait("lanemalloc run: as if")
    screen.keys("G")
    screen.wait("END")
    screen.keys("q")
    screen.wait("exit status 0")


def test_the_wrapper_costs_a_program_nothing_in_its_own_time() -> None:
    begin = os.times()
    tool("run", "-q", "--", "sleep", "3")
    spent = os.times()
    assert (
        spent.children_user + spent.children_system - begin.children_user - begin.children_system
        < 1.5
    )


def test_files_are_replaced_whole_and_links_and_pipes_stay(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("before")
    target.chmod(0o640)
    link.symlink_to(target)
    assert tool("run", "-o", link, "--", "true").returncode == 0
    assert link.is_symlink() and "exit status 0" in target.read_text()
    assert target.stat().st_mode & 0o777 == 0o640
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = [str(TOOL), "run", "-o", str(pipe), "--", "true"]
    with subprocess.Popen(command, env=CLEAN) as process:
        assert "exit status 0" in pipe.read_text()
        assert process.wait(20) == 0
    assert "exit status 0" in tool("run", "-o", "/dev/stdout", "--", "true").stdout
    assert sorted(one.name for one in tmp_path.iterdir()) == ["link", "pipe", "target"]


def test_a_file_in_a_folder_of_somebody_else_is_written_in_place(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("takes root and setpriv")
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        folder.chmod(0o755)
        mine = folder / "mine"
        mine.touch()
        os.chown(mine, 65534, 65534)
        code = "from pathlib import Path; from lanemalloc import outputs; "
        for name, works in (("mine", True), ("new", False)):
            path = folder / name
            tried = f"p = Path({str(path)!r}); outputs.check(p, '-o'); outputs.write_text(p, 'x')"
            as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
            done = subprocess.run(
                [*as_nobody, sys.executable, "-c", code + tried], capture_output=True, check=False
            )
            assert (done.returncode == 0) == works, done.stderr
        assert mine.read_text() == "x"
    finally:
        shutil.rmtree(folder)
