"""The reader over real processes: exact at rest, and what it says where it cannot read."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import CLEAN, LIBRARY, ROOT, TOOL, build, ended, tool

from lanemalloc import process as process_module
from lanemalloc.figures import classes_json, figures, snapshot_json
from lanemalloc.memory import Gone
from lanemalloc.reader import EXACT, Reader, Wanted
from lanemalloc.ui import Problem

# Read from outside, these are the same at rest as what the library itself says at its end.
EXACTLY = [
    "allocations", "frees", "live_objects", "live_bytes", "large_allocations",
    "large_live_objects", "large_live_bytes", "in_flight_objects", "misses", "remote_frees",
    "remote_batches", "inbox_drains", "lanes", "slabs_made", "slab_bytes", "depot_waits",
    "runs_waits", "bad_pointers", "kind_bytes", "rebinds", "overflow_entries",
]  # fmt: skip


@pytest.mark.parametrize("lanes", ["owned", "percpu", "shared:2", "auto"])
def test_at_rest_the_figures_are_exactly_those_of_the_library(
    start, tmp_path: Path, lanes: str
) -> None:
    out = tmp_path / "out.json"
    # Without decay nothing moves between the reading and the end.
    process = start(
        "rest",
        8,
        options=f"lanes={lanes},decay_ms=-1,stats=exit,stats_format=json,stats_file={out}",
    )
    snapshot = Reader.open(process.pid).read(EXACT)
    ended(process)
    said = json.loads(out.read_text())
    mine = figures(snapshot)
    differences = {
        name: (mine[name], said["figures"][name])
        for name in EXACTLY
        if mine[name] != said["figures"][name]
    }
    # Ending, the main thread allocates nothing itself.
    assert differences == {}
    assert snapshot.entry == said["entry"]
    of_library = {row["size"]: row for row in said["classes"]}
    for row in classes_json(snapshot):
        for name in ("allocations", "frees", "live", "in_flight", "slabs"):
            assert row[name] == of_library[row["size"]][name], (row["size"], name)
    cells = {cell["at"]: cell for cell in said["contention"]}
    for cell in snapshot_json(snapshot)["contention"]:
        assert cell["failures"] == cells[cell["at"]]["failures"], cell["at"]
    assert snapshot.left_out == []


def test_memory_that_is_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.stat").write_text(
        "anon 100\nfile 5000\nkernel 7\nshmem 2000\nfile_mapped 9\n"
    )
    parts = process_module.read_parts(
        tmp_path / "memory.stat", {"anon": "anon", "file": "file", "shmem": "shared"}
    )
    assert parts == {"anon": 100, "file": 3000, "shared": 2000}
    for limit, used, expected in (
        (10_000, 8_000, 5_000),
        (10_000, 14_000, 0),
        (1 << 59, 0, None),
        (None, 0, None),
    ):
        group = process_module.CgroupMemory("/", limit, used, parts)
        monkeypatch.setattr(process_module, "cgroup_memory", lambda _, group=group: group)
        found = process_module.memory_available()
        assert found is not None
        assert found == expected if expected is not None else found > 1 << 20


@pytest.mark.parametrize("limit", [None, 64 << 20])
def test_the_machine_is_no_control_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int | None
) -> None:
    """Version 1 has files for the root, too; in a namespace the root may be a group."""
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.usage_in_bytes").write_text("1000\n")
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text(f"{limit or 0x7FFFFFFFFFFFF000}\n")
    monkeypatch.setattr(process_module, "CGROUPS", tmp_path)
    monkeypatch.setattr(process_module, "cgroup_of", lambda _: "/")
    group = process_module.cgroup_memory(1)
    assert (group.limit if group else None) == limit


def test_the_librarys_own_thread_is_told_apart(start) -> None:
    process = start("rest", 3)
    snapshot = Reader.open(process.pid).read()
    assert (snapshot.process.threads, snapshot.own_threads) == (5, 1)
    assert "5 threads (1 the library's)" in tool("explain", process.pid).stdout
    assert "5 threads (1 the library's)" in tool("top", "--once", process.pid).stdout
    alone = start("rest", 3, options="decay_ms=-1")
    assert "4 threads, " in tool("explain", alone.pid).stdout


def test_lanes_say_whose_they_are(start) -> None:
    process = start("rest", 3, options="lanes=owned")
    snapshot = Reader.open(process.pid).read()
    threads = {int(one) for one in os.listdir(f"/proc/{process.pid}/task")}
    owners = set(snapshot.lanes.thread.tolist()) - {0}
    assert owners <= threads
    assert len(owners) == 4


def test_rates_of_a_busy_process(start) -> None:
    process = start("busy", 2)
    reader = Reader.open(process.pid)
    before = reader.read()
    time.sleep(0.5)
    rates = reader.read().difference(before)
    assert rates.allocations > 10_000
    assert rates.frees > 10_000
    assert rates.lane_allocations.sum() > 10_000


def test_a_refresh_takes_few_system_calls(start) -> None:
    process = start("rest", 20)
    reader = Reader.open(process.pid)
    reader.read()
    before = reader.memory.calls
    reader.read(Wanted(slabs=False))
    assert reader.memory.calls - before <= 3
    before = reader.memory.calls
    reader.read(Wanted(slabs=True))
    assert reader.memory.calls - before <= 5


def test_heaps_and_pools(start) -> None:
    program = build("pools", f"-L{LIBRARY.parent}", "-llanemalloc", f"-Wl,-rpath,{LIBRARY.parent}")
    process = start(program=program, preload=False)
    snapshot = Reader.open(process.pid).read(EXACT)
    owners = {owner.kind: owner for owner in snapshot.owners}
    heap, pool = owners["heap"], owners["pool"]
    assert (heap.name, heap.limit) == ('tenant "one"\n', 10 << 20)
    assert 9_800 * 1000 <= heap.used <= 10 << 20
    assert heap.live >= 9800
    assert (pool.name, pool.limit) == ("sessions", None)
    assert pool.live >= 500
    assert pool.used >= 500 * 200
    cells = {cell.name: cell for cell in snapshot.cells}
    assert not cells["pools"].is_loop
    assert cells["budgets"].count > 0
    assert cells["budgets"].is_loop


def test_a_statically_linked_program(start) -> None:
    program = build(
        "static", "-static", str(LIBRARY.parent / "liblanemalloc.a"), source="situations"
    )
    process = start("live", 10, program=program, preload=False)
    reader = Reader.open(process.pid)
    assert reader.path.endswith("/static")
    assert reader.read(EXACT).live_objects >= 10_000


def test_of_two_allocators_in_one_process_the_one_in_use_is_read(start) -> None:
    program = build(
        "two",
        str(LIBRARY.parent / "liblanemalloc_prefixed.a"),
        "-Wl,--undefined=lane_malloc",
        source="situations",
    )
    process = start("live", 10, program=program)
    reader = Reader.open(process.pid)
    assert reader.path == str(LIBRARY.resolve()) or reader.path == str(LIBRARY)
    assert reader.read(EXACT).live_objects >= 10_000


# --- Where it cannot read.


def test_no_such_process() -> None:
    with pytest.raises(Problem, match="no process 4194000"):
        Reader.open(4194000)


def test_a_process_without_lanemalloc_is_told_how_to_get_it() -> None:
    process = subprocess.Popen(["sleep", "60"])
    with pytest.raises(Problem, match="(?s)does not run with lanemalloc.*lanemalloc run"):
        Reader.open(process.pid)
    process.kill()
    process.wait()


def test_kernel_threads_and_zombies_are_no_trouble() -> None:
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(Problem):
        Reader.open(zombie.pid)
    zombie.wait()
    for pid in ("2", "1"):
        with pytest.raises(Problem):
            Reader.open(int(pid))


def test_a_library_that_was_asked_for_nothing_yet(start) -> None:
    process = start(0, program=build("root"), preload=False)
    with pytest.raises(Problem, match="(?s)not asked it for memory yet.*try again"):
        Reader.open(process.pid)


def test_a_library_of_another_version(start) -> None:
    process = start(1, 7, program=build("root"), preload=False)
    with pytest.raises(Problem, match="(?s)version 7.*pipx install"):
        Reader.open(process.pid)
    done = tool("top", "--once", process.pid)
    assert (done.returncode, "version 7" in done.stderr) == (3, True)


def test_a_root_that_leads_nowhere(start) -> None:
    process = start(1, 1, program=build("root"), preload=False)
    with pytest.raises(Problem):
        Reader.open(process.pid)


def as_nobody(*argv: object) -> subprocess.CompletedProcess[str]:
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *map(str, argv)]
    return subprocess.run(
        command, capture_output=True, text=True, env=CLEAN, timeout=60, check=False
    )


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can become another user"
)
def test_another_users_process_is_refused_with_the_way_out(start) -> None:
    process = start("rest", 1)
    done = as_nobody(sys.executable, "-c", f"""
import sys; sys.path.insert(0, {str(ROOT / "python")!r})
from lanemalloc.ui import Problem
from lanemalloc.reader import Reader
try: Reader.open({process.pid})
except Problem as p: print(type(p).__name__, p.message)
""")  # fmt: skip
    if not done.stdout and (
        "Permission denied" in done.stderr or "shared libraries" in done.stderr
    ):
        pytest.skip("another user cannot run this interpreter")
    assert "NotAllowed" in done.stdout
    assert "belongs to user 0" in done.stdout and "sudo" in done.stdout


def test_a_process_that_dies_while_it_is_read(start) -> None:
    process = start("busy", 3)
    reader = Reader.open(process.pid)
    threading.Timer(0.4, process.kill).start()
    deadline = time.monotonic() + 20
    with pytest.raises(Gone):
        while time.monotonic() < deadline:
            reader.read(EXACT)


def test_a_process_that_runs_another_program(start) -> None:
    process = subprocess.Popen(
        ["sh", "-c", "echo up; read x; exec sh -c 'echo another; exec sleep 60'"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**CLEAN, "LD_PRELOAD": str(LIBRARY)}, text=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    reader = Reader.open(process.pid)
    reader.read(EXACT)
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "another\n"
    with pytest.raises(Gone):
        reader.read(EXACT)
    process.kill()
    process.wait()


def test_a_process_that_maps_and_unmaps_while_it_is_read(start) -> None:
    process = start("busy", 4, options="decay_ms=0")
    reader = Reader.open(process.pid)
    for _ in range(60):
        snapshot = reader.read(EXACT)
        assert snapshot.live_objects < 1_000_000
        assert snapshot.classes.live.min() >= 0


# --- Very large ones.


def most_threads() -> int:
    """As many as 10,000, where the machine allows."""
    limit = int(Path("/proc/sys/kernel/threads-max").read_text())
    maps = int(Path("/proc/sys/vm/max_map_count").read_text())
    return max(100, min(10_000, limit // 4, maps // 3))


def test_ten_thousand_threads(start) -> None:
    count = most_threads()
    process = start("lanes", count, options="lanes=owned")
    reader = Reader.open(process.pid)
    assert reader.read(EXACT).lane_count >= count
    begin, cpu = time.monotonic(), time.process_time()
    for _ in range(5):
        reader.read(Wanted(slabs=False))
    print(f"{count} lanes: {(time.process_time() - cpu) / 5 * 1000:.1f} ms a refresh")
    assert (time.monotonic() - begin) / 5 < 1
    assert ended(process, signal.SIGKILL)[0] == -signal.SIGKILL


def test_five_thousand_lanes_in_top_and_explain(start) -> None:
    process = start("lanes", min(5000, most_threads()), options="lanes=owned")
    done = tool("top", "--once", process.pid)
    assert done.returncode == 0, done.stderr
    assert "Lanes 5001" in done.stdout or most_threads() < 5000
    explained = json.loads(tool("explain", "--json", process.pid).stdout)
    assert (
        abs(explained["accounted_bytes"] - explained["resident_bytes"])
        < 0.02 * explained["resident_bytes"]
    )


def test_the_command_says_what_is_wrong_in_two_lines() -> None:
    for command in (["top", "--once"], ["explain"]):
        done = tool(*command, 4194000)
        assert done.returncode == 3
        assert done.stderr.splitlines()[0].startswith("Error: there is no process")
        assert len(done.stderr.splitlines()) == 2
    assert tool("top", "x").returncode == 2
    assert TOOL.exists()
