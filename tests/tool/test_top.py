"""lanemalloc top, driven in a terminal as a person would, and its pictures for programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import CLEAN, LIBRARY, TOOL, Terminal, build, tool

from lanemalloc.live import tables, view
from lanemalloc.live.model import Session

PANELS = {
    1: "Where threads meet",
    2: "Lanes",
    3: "Size classes",
    4: "PLACE",
    5: "WHO FREES",
    6: "no heaps",
}


def open_top(
    terminal, pid: int, width: int = 120, height: int = 40, *more: str, **environment: str
) -> Terminal:
    screen: Terminal = terminal(width, height, f"{TOOL} top {' '.join(more)} {pid}", **environment)
    screen.wait(r"ALLOC/s")
    return screen


def test_once_shows_all_panels_and_the_threads_by_name(start) -> None:
    process = start("busy", 3)
    done = tool("top", "--once", process.pid, COLUMNS="120")
    assert done.returncode == 0
    for heading in (
        "Lanes",
        "Size classes",
        "Where threads meet",
        "Who frees whose memory",
        "Heaps and pools",
        "worker-0",
        "ALLOC/s",
    ):
        assert heading in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 120


def test_json_lines_have_rates_and_end_with_the_process(start) -> None:
    process = start("busy", 2)
    top = subprocess.Popen(
        [str(TOOL), "top", "--json", "-d", "0.2", str(process.pid)],
        stdout=subprocess.PIPE,
        text=True,
        env=CLEAN,
    )
    assert top.stdout is not None
    lines = [json.loads(top.stdout.readline()) for _ in range(3)]
    assert lines[1]["rates"]["allocations"] > 1000
    assert lines[1]["figures"]["allocations"] < lines[2]["figures"]["allocations"]
    process.kill()
    assert top.wait(20) == 0
    assert len(tool("top", "--json", "-n", 2, start("rest", 1).pid).stdout.splitlines()) == 2


def test_panels_by_number_tab_and_arrows(terminal, start) -> None:
    screen = open_top(terminal, start("busy", 3).pid)
    for number, heading in PANELS.items():
        screen.keys(str(number))
        screen.wait(heading)
    screen.keys("Tab")
    screen.wait(PANELS[1])
    screen.keys("BTab")
    screen.wait(PANELS[6])
    screen.keys("Left")
    screen.wait(PANELS[5])
    screen.keys("q")


def test_help_setup_and_leaving_them(terminal, start) -> None:
    screen = open_top(terminal, start("rest", 2).pid)
    for key in ("F1", "h"):
        screen.keys(key)
        screen.wait("What the figures mean")
        screen.keys("Escape")
        screen.wait("ALLOC/s")
    screen.keys("F2")
    screen.wait(r"\[ \] plain characters")
    screen.keys("Enter")
    screen.wait(r"\[x\] plain characters")
    screen.keys("Escape")
    screen.wait("ALLOC/s")


def test_filter_search_sort_and_group(terminal, start) -> None:
    screen = open_top(terminal, start("rest", 8, options="lanes=owned").pid)
    screen.keys("2")
    screen.wait("worker-7")
    screen.keys("F4", "worker-5", "Enter")
    screen.wait("filter: worker-5", "worker-5 *\\d", without="worker-6")
    screen.keys("F4", "Escape")
    screen.wait("worker-6")
    screen.keys("/", "worker-3", "Enter")
    screen.keys("F5")
    screen.wait(r"worker x 8")
    screen.keys("t")
    screen.wait("worker-6")
    screen.keys("F6")
    screen.wait("Sort by")
    screen.keys("Down", "Enter")
    screen.wait(r"OWNER\*", "worker-1.*worker-6")
    screen.keys("I")
    screen.wait(r"OWNER\*", "worker-6.*worker-1")
    screen.keys("/", "nothing-like-that", "Enter")
    screen.wait("nothing has")


def test_pause_and_pace(terminal, start) -> None:
    screen = open_top(terminal, start("busy", 2).pid)
    screen.keys("Space")
    screen.wait("PAUSED")
    time.sleep(0.5)
    held = screen.without_clock()
    time.sleep(1.2)
    assert screen.without_clock() == held
    screen.keys("Space")
    screen.wait(r"0\.5 s")
    screen.keys("-")
    screen.wait("every 1 s")
    screen.keys("+", "+")
    screen.wait("every 0.2 s")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 12), (20, 5), (250, 70)])
def test_sizes_of_terminals(terminal, start, width: int, height: int) -> None:
    process = start("busy", 3)
    screen: Terminal = terminal(width, height, f"{TOOL} top {process.pid}; echo status $?; read x")
    screen.wait("situations|F1Help")
    for key in "123456h":
        screen.keys(key)
        time.sleep(0.15)
        lines = screen.screen().splitlines()
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
    screen.keys("q", "q")  # the help, and the whole
    screen.wait("^status 0")


def test_it_survives_being_resized(terminal, start) -> None:
    screen = open_top(terminal, start("busy", 2).pid)
    for width, height in ((40, 12), (200, 60), (10, 3), (80, 24)):
        screen.resize(width, height)
        time.sleep(0.7)
    screen.wait("F1Help")
    screen.wait("ALLOC/s")


def test_the_targets_death_is_said_and_its_last_picture_stays(terminal, start) -> None:
    process = start("busy", 2)
    screen = open_top(terminal, process.pid)
    process.kill()
    process.wait()
    screen.wait("ENDED: the last picture", "worker-1")
    screen.keys("3")
    screen.wait("Size classes")


def test_without_colour_and_without_unicode(terminal, start) -> None:
    process = start("busy", 2)
    screen = open_top(terminal, process.pid, 100, 30, NO_COLOR="1", LC_ALL="C", LANG="C")
    screen.keys("3")
    text = screen.wait("Size classes")
    assert text.isascii()
    assert "?" not in text


def test_a_terminal_that_cannot_do_it_is_told_what_can(terminal, start) -> None:
    process = start("rest", 1)
    assert "--once" in tool("top", process.pid).stderr
    screen: Terminal = terminal(100, 20, f"TERM=dumb {TOOL} top {process.pid}; sleep 5")
    screen.wait("--once")


def test_several_processes_and_the_choice_among_them(terminal, start) -> None:
    one, two = start("rest", 1), start("rest", 2)
    screen: Terminal = terminal(100, 30, f"{TOOL} top {one.pid} {two.pid}")
    screen.wait(rf"situations {one.pid} .*\[1/2\]")
    screen.keys("]")
    screen.wait(rf"situations {two.pid} .*\[2/2\]")
    choosing: Terminal = terminal(100, 30, f"{TOOL} top")
    text = choosing.wait("which", str(one.pid), str(two.pid))
    number = next(line.split()[0] for line in text.splitlines() if f" {two.pid} " in line)
    choosing.keys(number, "Enter")
    choosing.wait(f"situations {two.pid}")
    listed = tool("top", "--once")
    assert listed.returncode == 3 and str(one.pid) in listed.stderr


def test_heaps_and_pools_are_shown(terminal, start) -> None:
    program = build("pools", f"-L{LIBRARY.parent}", "-llanemalloc", f"-Wl,-rpath,{LIBRARY.parent}")
    process = start(program=program, preload=False)
    screen: Terminal = terminal(120, 30, f"{TOOL} top {process.pid}")
    screen.wait("situations|pools")
    screen.keys("6")
    screen.wait(r'tenant "one"\? +heap +9\.\d+M +9\.\d+M +10\.0M +9\d%', "sessions +pool")


def test_a_process_that_runs_another_program_with_lanemalloc_is_followed(
    terminal, situations
) -> None:
    process = subprocess.Popen(
        ["sh", "-c", f"echo up; read x; exec {situations} rest 3"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**CLEAN, "LD_PRELOAD": str(LIBRARY)},
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    screen: Terminal = terminal(100, 30, f"{TOOL} top {process.pid}")
    screen.wait("sh ")
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    screen.wait("worker-1")
    process.kill()
    process.wait()


def test_it_costs_less_than_a_hundredth_of_a_cpu(terminal, start) -> None:
    """The bound is for a machine of its own; here others may run, so a little more is let pass."""
    screen = open_top(terminal, start("busy", 2).pid)
    time.sleep(2)
    pid = int(screen.tmux("list-panes", "-F", "#{pane_pid}"))
    before = cpu_seconds(pid)
    time.sleep(10)
    share = (cpu_seconds(pid) - before) / 10
    print(f"top at 2 Hz: {share:.2%} of a CPU")
    assert share < 0.02


def cpu_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


# --- Of the pieces.


def test_lines_never_leave_the_screen(start) -> None:
    process = start("busy", 2)
    session = Session(process.pid)
    session.refresh(first=True)
    session.refresh()
    for width in (5, 17, 33, 40, 80, 137):
        for height in (3, 8, 12, 24, 50):
            for panel in range(len(view.PANELS)):
                for overlay in ("", "help", "setup", "sort"):
                    state = view.State([session], panel=panel, overlay=overlay)
                    lines = view.compose(state, width, height)
                    assert len(lines) == height
                    assert all(
                        view.cells_of("".join(text for text, _ in line)) <= width for line in lines
                    )


def test_names_of_threads_cannot_write_to_the_terminal() -> None:
    assert view.pad("a\x1b[2Jb\nc", 10) == "a?[2Jb?c  "
    assert view.cells_of("日本") == 4
    assert view.aligned("日本語", 5, True) == "日本~"


def test_room_is_shared_out_fairly() -> None:
    assert view.share_out([10, 2, 10], 12) == [5, 2, 5]
    assert view.share_out([1, 1], 10) == [1, 1]
    assert view.share_out([5], 0) == [0]


def test_columns_of_less_weight_give_way_first() -> None:
    titles = [tables.LANE_COLUMNS[i].title for i in view.fitting(tables.LANE_COLUMNS, 50)]
    assert titles[:3] == ["LANE", "OWNER", "ALLOC/s"]
    assert "ALLOCS" not in titles and "HELD" in titles


def test_leaving_top_leaves_the_terminal_usable(terminal, start) -> None:
    process = start("rest", 1)
    screen: Terminal = terminal(90, 24, "bash --norc --noprofile -i")
    screen.wait(r"[$#]")
    screen.keys(f"{TOOL} top {process.pid}", "Enter")
    screen.wait("ALLOC/s")
    screen.keys("q")
    screen.wait(r"[$#]\s*$")
    screen.keys("echo back", "Enter")
    screen.wait("\nback")
    screen.keys(f"{TOOL} top {process.pid}", "Enter")
    screen.wait("ALLOC/s")
    screen.keys("C-c")
    screen.wait(r"[$#]\s*$")
    screen.keys("echo again", "Enter")
    screen.wait("\nagain")
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
