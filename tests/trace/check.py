"""The tests of trace, replay and tune. Called by: tests/trace/run.sh, with the venv's python.

Each test_ function is a test; it fails by an assertion. check.py [--list] [--scale N] [NAME...]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import pyarrow as pa
from lanemalloc import recorder, replays, trials
from lanemalloc.allocators import Allocator, parse
from lanemalloc.commands.tune import FINAL_ROUNDS, LEAST_GAIN, Outcome, lines, search
from lanemalloc.replays import How, Results
from lanemalloc.tracefile import SCHEMA, Trace
from lanemalloc.ui import Problem

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
BUILD = ROOT / "build/release"
TOOL = [sys.executable, "-m", "lanemalloc"]
WORK = Path(tempfile.mkdtemp(prefix="lanemalloc-trace-test-"))
KNOWN = WORK / "known"
SCALE = 1


class Skip(Exception):
    """Why a test cannot be run here."""


def build_known() -> None:
    if not KNOWN.exists():
        subprocess.run(
            [
                "g++",
                "-std=c++20",
                "-O1",
                "-g",
                "-fno-builtin",
                "-Wall",
                "-Wextra",
                "-pthread",
                "-o",
                str(KNOWN),
                str(HERE / "known.cpp"),
            ],
            check=True,
        )


def tool(
    *arguments: str | Path, timeout: float = 300, **how: Any
) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / "build/venv/bin/lanemalloc"), *map(str, arguments)]
    return subprocess.run(
        command, text=True, capture_output=True, timeout=timeout * SCALE, check=False, **how
    )


def record(
    *command: str | Path,
    name: str = "t",
    options: tuple[str, ...] = (),
    status: int = 0,
    complete: bool = True,
) -> tuple[Trace, str]:
    """Traces a command; gives the trace, checked for what must hold of all, and what the command
    printed."""
    file = WORK / f"{name}.parquet"
    ran = tool("trace", "-o", file, "--json", *options, "--", *command)
    assert ran.returncode == status, (ran.returncode, ran.stderr)
    summary = json.loads(ran.stderr.strip().splitlines()[-1])
    trace = Trace(file)
    assert summary["complete"] == complete == trace.about["complete"], summary
    assert summary["lost"] == 0, summary
    for process in trace.processes:
        assert process["overlaps"] == 0, process
        assert process["unknown_frees"] == 0, process
    sound(file)
    return trace, ran.stdout


def sound(file: Path) -> None:
    """What holds in every trace: time does not go back, an object is allocated once, before it is
    freed, and freed once a process."""
    assert rows(
        f"SELECT count(*) FROM (SELECT time < lag(time) OVER () AS back FROM '{file}') WHERE back"
    ) == [(0,)]
    freed = (
        f"(SELECT process, object AS o, time FROM '{file}'"
        " WHERE (op LIKE 'free%' OR op LIKE 'delete%') AND object > 0"
        "\n                 UNION ALL"
        f" SELECT process, old_object, time FROM '{file}' WHERE old_object > 0)"
    )
    made = (
        f"(SELECT object AS o, time, process FROM '{file}'"
        " WHERE object > 0 AND op NOT LIKE 'free%' AND op NOT LIKE 'delete%')"
    )
    assert rows(f"SELECT count(*) FROM (SELECT o FROM {made} GROUP BY o HAVING count(*) > 1)") == [
        (0,)
    ]
    assert rows(
        f"SELECT count(*) FROM (SELECT o, process FROM {freed} GROUP BY ALL HAVING count(*) > 1)"
    ) == [(0,)]
    assert rows(
        f"SELECT count(*) FROM {freed} f LEFT JOIN {made} m USING (o)"
        " WHERE m.time IS NULL OR m.time > f.time"
    ) == [(0,)]


def rows(query: str) -> list[tuple[Any, ...]]:
    return duckdb.execute(query).fetchall()


def own_calls(trace: Trace, process: int = 0, file: str = "known") -> Counter[str]:
    """Calls whose site lies in the program itself."""
    counts: Counter[str] = Counter()
    for site, op, n in rows(
        f"SELECT site, op, count(*) FROM '{trace.path}' WHERE process = {process} GROUP BY ALL"
    ):
        place = trace.place(process, site)
        if place is not None and Path(place.file).name == file:
            counts[op] += n
    return counts


def same_as_said(trace: Trace, said: str, process: int = 0) -> None:
    assert counted(trace, process) == json.loads(said), (own_calls(trace, process), said)


def counted(trace: Trace, process: int) -> dict[str, int]:
    """Its own calls of what `known` counts: its vectors call new and delete."""
    calls = own_calls(trace, process)
    return {op: calls[op] for op in ("malloc", "free", "realloc")}


# --- Recording.


def test_every_kind_of_call() -> None:
    build_known()
    for allocator in ("lanemalloc", "system"):
        trace, _ = record(KNOWN, "kinds", options=("--allocator", allocator))
        assert own_calls(trace) == {
            "malloc": 1 + 10 + 3,
            "calloc": 2,
            "realloc": 9 + 1 + 1,
            "reallocarray": 4,
            "memalign": 5,
            "aligned_alloc": 6 + 11,
            "posix_memalign": 7,
            "valloc": 8,
            "pvalloc": 9,
            "free": 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9 + 21 + 1,
            "free_sized": 10,
            "free_aligned_sized": 11,
            "new": 12 + 16 + 18 + 20,
            "new[]": 13 + 17,
            "new_nothrow": 14,
            "new[]_nothrow": 15 + 19,
            "delete": 12 + 18,
            "delete[]": 13,
            "delete_nothrow": 14,
            "delete[]_nothrow": 15 + 19,
            "delete_sized": 16 + 20,
            "delete[]_sized": 17,
        }, (allocator, own_calls(trace))
        of = f"FROM '{trace.path}' WHERE "
        assert rows(f"SELECT DISTINCT alignment {of} op = 'posix_memalign'") == [(4096,)]
        assert rows(f"SELECT DISTINCT size, alignment {of} op = 'free_aligned_sized'") == [
            (1024, 256)
        ]
        assert rows(f"SELECT count(*) {of} size = 1801 AND alignment = 64 AND op = 'new'") == [
            (18,)
        ]
        assert rows(f"SELECT count(*) {of} size = 201 AND op = 'calloc'") == [(2,)]
        # A realloc that is refused leaves the object; one to no bytes frees it.
        assert rows(f"SELECT object, old_object {of} size > 1000000000000 ORDER BY time") == [
            (None, None),
            (None, None),
        ]
        ((refused,),) = rows(f"SELECT object {of} size = 2301 AND op = 'malloc'")
        assert rows(f"SELECT op {of} object = {refused} ORDER BY time") == [("malloc",), ("free",)]
        ((ended,),) = rows(f"SELECT object {of} size = 2302 AND op = 'malloc'")
        assert rows(f"SELECT op, object, old_object {of} old_object = {ended}") == [
            ("realloc", None, ended)
        ]
        # Objects of a chain of reallocs.
        assert rows(
            f"SELECT count(*) FROM '{trace.path}' a JOIN '{trace.path}' b"
            " ON a.object = b.old_object WHERE a.size = 301 AND b.size = 30001"
        ) == [(3,)]
        assert rows(f"SELECT count(*) {of} op = 'free' AND object IS NULL") == [(21,)]


def test_totals_of_threads_and_frees_by_others() -> None:
    build_known()
    trace, said = record(KNOWN, "threads", "4", "20000")
    same_as_said(trace, said)
    per_thread = rows(
        f"SELECT thread, size, count(*) FROM '{trace.path}' WHERE size BETWEEN 1001 AND 1004"
        " GROUP BY ALL ORDER BY size"
    )
    assert [(size, n) for _, size, n in per_thread] == [(1001 + i, 20000) for i in range(4)], (
        per_thread
    )
    assert len({thread for thread, _, _ in per_thread}) == 4
    by_others = (
        f"SELECT count(*) FROM '{trace.path}' a JOIN '{trace.path}' f"
        " ON a.object = f.object AND f.op = 'free'\n                   "
        " WHERE a.size BETWEEN 1001 AND 1004 AND a.thread != f.thread"
    )
    assert rows(by_others) == [(4 * 10000,)]


def test_objects_that_go_from_hand_to_hand() -> None:
    """The time of a free is one at which its pointer was there."""
    build_known()
    for _ in range(4):
        trace, said = record(KNOWN, "by-hand")
        same_as_said(trace, said)


def test_two_hundred_threads() -> None:
    build_known()
    trace, said = record(KNOWN, "threads", "200", "1000")
    same_as_said(trace, said)
    assert len(trace.process(0)["threads"]) >= 200
    assert rows(
        f"SELECT count(DISTINCT thread), count(DISTINCT tid) FROM '{trace.path}'"
        " WHERE size BETWEEN 1001 AND 1200"
    ) == [(200, 200)]


def test_more_threads_than_chunks_wait() -> None:
    build_known()
    trace, said = record(KNOWN, "threads", "40", "5000", options=("--buffer", "1"))  # 64 chunks
    same_as_said(trace, said)


def test_the_buffer_is_as_large_as_memory_allows() -> None:
    with mock.patch.object(recorder, "memory_available", return_value=1 << 50):
        assert 16 << 20 <= recorder.usual_buffer() <= 512 << 20
        with mock.patch.object(shutil, "disk_usage", return_value=mock.Mock(free=1 << 40)):
            assert recorder.usual_buffer() == 512 << 20
        with mock.patch.object(shutil, "disk_usage", return_value=mock.Mock(free=256 << 20)):
            assert recorder.usual_buffer() == 64 << 20
    with mock.patch.object(recorder, "memory_available", return_value=1 << 30):
        assert recorder.usual_buffer() <= 128 << 20
    with mock.patch.object(recorder, "memory_available", return_value=0):
        assert recorder.usual_buffer() == 16 << 20


def test_handler_that_allocates() -> None:
    build_known()
    for allocator in ("lanemalloc",):
        trace, said = record(
            KNOWN, "signals", str(300000 * SCALE), options=("--allocator", allocator)
        )
        same_as_said(trace, said)
        ((handled,),) = rows(f"SELECT count(*) FROM '{trace.path}' WHERE size = 5001")
        assert handled > 100, f"only {handled} signals came"


def test_handlers_that_jump_out() -> None:
    build_known()
    trace, said = record(KNOWN, "jumps", "200")
    same_as_said(trace, said)


def test_thread_exit_with_late_destructors() -> None:
    build_known()
    trace, said = record(KNOWN, "exits", "500")
    same_as_said(trace, said)


def test_fork_and_exec() -> None:
    build_known()
    trace, said = record(KNOWN, "forks")
    child, grandchild, parent = (
        json.loads(line) for line in sorted(said.splitlines(), key=lambda line: -len(line))[:3]
    )
    by_parent = {p["parent"]: p["process"] for p in trace.processes if p["process"] != 0}
    first = by_parent[0]
    found = [counted(trace, p["process"]) for p in trace.processes]
    for counts in (child, grandchild, parent):
        assert counts in found, (counts, found)
    # The same object has the same number in parent and child, though its address was used again
    # meanwhile.
    both = (
        f"SELECT count(DISTINCT f.object) FROM '{trace.path}' a JOIN '{trace.path}' f"
        " ON f.object = a.object\n              "
        f" WHERE a.size = 9001 AND a.process = 0 AND f.process = {first} AND f.op = 'free'"
    )
    assert rows(both) == [(100,)]
    ends = Counter(p["end"] for p in trace.processes)
    assert ends["exec"] == 1 and ends["exit"] == len(trace.processes) - 1, ends


def test_many_processes() -> None:
    trace, said = record(
        "sh", "-c", "i=0; while [ $i -lt 400 ]; do (/bin/true; :); i=$((i+1)); done; echo $i"
    )
    assert said == "400\n"
    ends = Counter((p["end"], Path(p["command"][0]).name) for p in trace.processes)
    assert ends == {("exit", "sh"): 401, ("exit", "true"): 400}, ends


def test_process_ids_of_another_namespace() -> None:
    build_known()
    inside = ["unshare", "--pid", "--fork", str(KNOWN), "threads", "3", "2000"]
    if subprocess.run([*inside[:3], "true"], capture_output=True, check=False).returncode != 0:
        raise Skip("unshare --pid is not allowed here")
    trace, said = record(*inside)
    known = [p["process"] for p in trace.processes if p["command"][:1] == [str(KNOWN)]]
    same_as_said(trace, said, known[-1])


def test_killed_program_loses_nothing_that_was_done() -> None:
    build_known()
    trace, said = record(KNOWN, "killed", "12345", "9", status=-9, complete=False)
    same_as_said(trace, said)
    assert trace.process(0)["end"] == "gone", trace.about["incomplete_because"]
    assert "without an exit" in trace.about["incomplete_because"][0]


def cpu_seconds(pid: int) -> float:
    """What all threads of the process have used so far."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def test_killed_while_threads_allocate() -> None:
    build_known()
    file = WORK / "killed.parquet"
    command = [
        str(ROOT / "build/venv/bin/lanemalloc"),
        "trace",
        "-o",
        str(file),
        "--",
        "sh",
        "-c",
        f"echo $$; exec {KNOWN} threads 4 8000000",
    ]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert started.stdout is not None
    pid = int(started.stdout.readline())
    while cpu_seconds(pid) < 1:  # some hundred thousand calls, however busy the machine is
        time.sleep(0.01)
    os.kill(pid, 9)
    started.communicate(timeout=120)
    assert started.returncode == -9
    trace = Trace(file)
    assert not trace.about["complete"]
    assert trace.rows > 100000
    sound(file)


def test_status_and_signals_pass_through() -> None:
    build_known()
    for status, want in ((0, 0), (7, 7), (255, 255)):
        trace, said = record(KNOWN, "_exit", "100", str(status), status=want)
        same_as_said(trace, said)
    record(KNOWN, "killed", "10", "15", status=-15, complete=False)
    ran = tool(
        "trace",
        "-o",
        WORK / "io.parquet",
        "--",
        "sh",
        "-c",
        "cat; echo err >&2; exit 3",
        input="through\n",
    )
    assert ran.returncode == 3 and ran.stdout == "through\n" and ran.stderr.startswith("err\n"), ran
    command = [
        str(ROOT / "build/venv/bin/lanemalloc"),
        "trace",
        "-o",
        str(WORK / "term.parquet"),
        "--",
        "sh",
        "-c",
        "trap 'exit 9' TERM; echo up; while :; do sleep 0.1; done",
    ]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert started.stdout is not None and started.stdout.readline() == "up\n"
    started.terminate()
    started.communicate(timeout=60)
    assert started.returncode == 9, started.returncode


# The tool, in which who starts the program gets SIGTERM before it knows that it has: the program is
# as quick as that.
EARLY = """
import os, signal, subprocess, sys, time
from lanemalloc import cli

class Early(subprocess.Popen):
    def __init__(self, command, *rest, **how):
        super().__init__(command, *rest, **how)
        if command[0] == "sh":
            while not os.path.exists(sys.argv[-1]):
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGTERM)

subprocess.Popen = Early
cli.main()
"""


def test_signals_while_the_program_starts_reach_it() -> None:
    up = WORK / "up"
    script = (
        f"trap 'exit 9' TERM; : >{up}; n=0; "
        "while [ $n -lt 2000 ]; do n=$((n + 1)); sleep 0.01; done"
    )
    command = [
        sys.executable,
        "-c",
        EARLY,
        "trace",
        "-o",
        str(WORK / "early.parquet"),
        "--",
        "sh",
        "-c",
        script,
        str(up),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 9, ran


def test_program_goes_on_when_the_tool_dies() -> None:
    build_known()
    done = WORK / "went-on"
    before = sessions()
    command = [
        str(ROOT / "build/venv/bin/lanemalloc"),
        "trace",
        "--buffer",
        "1",
        "-o",
        str(WORK / "dead.parquet"),
        "--",
        "sh",
        "-c",
        f"echo up; {KNOWN} threads 2 400000 > {done}",
    ]
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert started.stdout is not None and started.stdout.readline() == "up\n"
    started.kill()
    started.wait()
    for _ in range(300):
        if done.exists() and done.stat().st_size:
            break
        time.sleep(0.1)
    assert json.loads(done.read_text())["malloc"] == 800000
    assert not (WORK / "dead.parquet").exists()
    assert not sessions() - before, "the shared memory is left behind"


def sessions() -> set[Path]:
    """What recordings under way have made."""
    return {
        ring.parent
        for folder in ("/dev/shm", tempfile.gettempdir())
        for ring in Path(folder).glob("lanemalloc-trace-*/ring")
    }


def test_errors_say_what_to_do() -> None:
    static = WORK / "static"
    (WORK / "one.c").write_text("int main(void) { return 0; }\n")
    subprocess.run(["gcc", "-static", "-o", str(static), str(WORK / "one.c")], check=True)
    cut = WORK / "cut.parquet"
    record("true", name="whole")
    cut.write_bytes((WORK / "whole.parquet").read_bytes()[:-100])
    other = WORK / "other.parquet"
    duckdb.sql(f"COPY (SELECT 1 AS a) TO '{other}' (FORMAT parquet)")
    newer = WORK / "newer.parquet"
    duckdb.sql(
        f"COPY (SELECT 1 AS a) TO '{newer}'"
        """ (FORMAT parquet, KV_METADATA {"lanemalloc.trace": '{"version": 99}'})"""
    )
    (WORK / "text").write_text("not a trace\n")
    cases: list[tuple[tuple[str | Path, ...], str]] = [
        (("trace", "--", "no-such-program"), "program not found"),
        (("trace", "--", WORK), "cannot be run"),
        (("trace", "--", static), "linked statically"),
        (("trace", "--allocator", "/no/such.so", "--", "true"), "no such file"),
        (("trace", "--allocator", "nobody", "--", "true"), "no such library"),
        (("trace", "-o", "/no/such/folder/t", "--", "true"), "cannot be written"),
    ]
    for command in ("replay", "tune"):
        cases += [
            ((command, WORK / "missing.parquet"), "no such file"),
            ((command, WORK / "text"), "is not a trace"),
            ((command, cut), "cut off"),
            ((command, other), "not a trace"),
            ((command, newer), "version 99"),
        ]
    cases += [
        (("replay", WORK / "whole.parquet", "--allocator", "nobody"), "no such library"),
        (("replay", WORK / "whole.parquet", "--process", "77"), "no process 77"),
    ]
    for arguments, expected in cases:
        ran = tool(*arguments)
        lines = ran.stderr.strip().splitlines()
        assert ran.returncode == 3, (arguments, ran)
        assert expected in lines[0] and len(lines) >= 2, (arguments, ran.stderr)


def test_a_damaged_trace_is_told_from_one_that_is_cut_off() -> None:
    """A changed byte anywhere: it is said what is lost, or it was of no meaning."""
    build_known()
    trace, _ = record(KNOWN, "threads", "4", "3000", name="sound")
    whole = trace.path.read_bytes()
    column = trace.parquet.metadata.row_group(0).column(SCHEMA.names.index("object"))
    data = column.data_page_offset
    bad = WORK / "bad.parquet"
    for at in (data + 200, data + column.total_compressed_size // 2):
        bytes_ = bytearray(whole)
        bytes_[at : at + 15] = bytes(one ^ 0x55 for one in bytes_[at : at + 15])
        bad.write_bytes(bytes_)
        found = Trace(bad)
        seen = sum(batch.num_rows for batch in found.batches(SCHEMA.names, 1 << 16))
        assert seen + sum(one.rows for one in found.lost) == found.rows and found.lost
        assert found.lost[0].first == 0
        ran = tool("replay", bad)
        assert ran.returncode == 3 and "is damaged" in ran.stderr, ran
        assert "cut off" not in ran.stderr
    harmless = silent = 0
    tables = {}
    for at in range(4, len(whole) - 4, max(1, len(whole) // 300)):
        bytes_ = bytearray(whole)
        bytes_[at] ^= 0x10
        bad.write_bytes(bytes_)
        try:
            found = Trace(bad)
            table = pa.Table.from_batches(list(found.batches(SCHEMA.names, 1 << 16)), SCHEMA)
        except Problem as problem:
            assert "is damaged" in problem.message or "is a trace of version" in problem.message
            continue
        if not tables:
            tables["whole"] = pa.Table.from_batches(
                list(Trace(trace.path).batches(SCHEMA.names, 1 << 16)), SCHEMA
            )
        if not found.lost:
            harmless += 1
            silent += not table.equals(tables["whole"])
    assert silent == 0, f"{silent} changes were not seen"
    assert harmless < 150, harmless
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    at = whole.index(b"old_object", footer)
    bad.write_bytes(whole[:at] + b"x" + whole[at + 1 :])
    assert "no column 'old_object'" in tool("replay", bad).stderr
    bad.write_bytes(whole[:-9])
    assert "cut off" in tool("replay", bad).stderr


def test_what_is_left_of_a_damaged_trace_is_replayed() -> None:
    build_known()
    with mock.patch.object(recorder, "ROW_GROUP", 4096):
        file = WORK / "groups.parquet"
        recorder.record(
            [str(KNOWN), "threads", "4", "60000"], file, parse("lanemalloc"), 16 << 20, nullcontext
        )
    trace = Trace(file)
    assert trace.parquet.metadata.num_row_groups > 3, trace.parquet.metadata
    column = trace.parquet.metadata.row_group(1).column(SCHEMA.names.index("object"))
    bytes_ = bytearray(file.read_bytes())
    at = column.data_page_offset + column.total_compressed_size // 2
    bytes_[at] ^= 0x10
    file.write_bytes(bytes_)
    ran = tool("replay", file, "--json")
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    first = trace.parquet.metadata.row_group(0).num_rows
    assert f"rows {first:,} to" in found["damaged"], found
    assert found["results"][0]["calls"] > 4096
    assert "rows are lost" in tool("replay", file).stdout


def test_a_trace_is_checked_before_the_program_runs() -> None:
    ran = tool("trace", "-o", "/no/dir/x", "--", "touch", WORK / "ran")
    assert ran.returncode == 3 and not (WORK / "ran").exists()


def test_help_has_examples() -> None:
    for command in ("trace", "replay", "tune"):
        ran = tool(command, "--help")
        assert (
            ran.returncode == 0
            and f"lanemalloc {command} " in ran.stdout
            and "Example" in ran.stdout
        ), ran.stdout


# --- Replaying.


def planned(trace: Trace, process: int, folder: Path) -> Path:
    plan = folder / "plan"
    replays.write_plan(trace, trace.process(process), plan, lambda done, total: None)
    return plan


def calls_in_order(
    trace: Trace, process: int, where: str = "true"
) -> list[tuple[int, str, int | None, int | None]]:
    query = (
        f"SELECT thread, op, size, alignment FROM '{trace.path}'"
        f" WHERE process = {process} AND {where} ORDER BY time, file_row_number"
    )
    return [
        (t, op, size, alignment)
        for t, op, size, alignment in rows(
            query.replace(
                f"'{trace.path}'", f"read_parquet('{trace.path}', file_row_number = true)"
            )
        )
    ]


def of_program(trace: Trace, program: str) -> str:
    """The condition that a call was made by the program itself."""
    sites = [
        site
        for (site,) in rows(f"SELECT DISTINCT site FROM '{trace.path}'")
        if (place := trace.place(0, site)) and Path(place.file).name == program
    ]
    return "site IN (" + ", ".join(map(str, sites)) + ")"


def peak_live_bytes(trace: Trace, where: str = "true") -> int:
    is_free = "(op LIKE 'free%' OR op LIKE 'delete%')"
    made = f"SELECT object AS o, size FROM calls WHERE object > 0 AND NOT {is_free}"
    freed = f"SELECT time, r, CASE WHEN {is_free} THEN object ELSE old_object END AS o FROM calls"
    ends = f"SELECT time, r, -size AS bytes FROM ({made}) JOIN ({freed}) USING (o)"
    starts = f"SELECT time, r, size AS bytes FROM calls WHERE object > 0 AND NOT {is_free}"
    calls = (
        "(SELECT *, file_row_number AS r"
        f" FROM read_parquet('{trace.path}', file_row_number = true)"
        f" WHERE process = 0 AND {where})"
    )
    query = (
        f"WITH calls AS {calls} SELECT max(live) FROM (SELECT sum(bytes)"
        f" OVER (ORDER BY time, r) AS live FROM ({ends} UNION ALL {starts}))"
    )
    return int(rows(query)[0][0])


def test_replay_makes_the_same_calls() -> None:
    build_known()
    for arguments, threads in ((("kinds",), False), (("threads", "6", "4000"), True)):
        trace, _ = record(KNOWN, *arguments, name="original")
        plan = planned(trace, 0, WORK)
        # What failed is left out.
        done = (
            "(object IS NOT NULL OR old_object IS NOT NULL OR op LIKE 'free%' OR op LIKE 'delete%')"
        )
        for full in (False, True):
            again, _ = record(
                BUILD / "lanemalloc-replay", *(["--full"] if full else []), plan, name="again"
            )
            replayed = of_program(again, "lanemalloc-replay")
            want, got = calls_in_order(trace, 0, done), calls_in_order(again, 0, replayed)
            if full or not threads:
                # Call by call; threads are numbered by their first calls, which main's own may
                # precede.
                assert [call[1:] for call in want] == [call[1:] for call in got], (arguments, full)
                assert len({(a[0], b[0]) for a, b in zip(want, got)}) == len(
                    {a[0] for a in want}
                ), "a thread's calls were made by several"
                assert peak_live_bytes(trace) == peak_live_bytes(again, replayed)
            by_thread = [
                sorted(
                    [
                        [call[1:] for call in calls if call[0] == t]
                        for t in {call[0] for call in calls}
                    ],
                    key=str,
                )
                for calls in (want, got)
            ]
            assert by_thread[0] == by_thread[1], (arguments, full)
            # Threads run apart where the order between them is not kept.
            peaks = peak_live_bytes(trace), peak_live_bytes(again, replayed)
            assert peaks[1] >= peaks[0] * 0.5 and (threads or peaks[1] <= peaks[0] * 1.5), peaks


def test_replay_frees_by_the_same_other_threads() -> None:
    build_known()
    trace, _ = record(KNOWN, "threads", "3", "10000")
    again, _ = record(BUILD / "lanemalloc-replay", planned(trace, 0, WORK), name="again")
    query = """SELECT count(*) FROM '{0}' a JOIN '{0}' f ON a.object = f.object AND f.op = 'free'
               WHERE a.size BETWEEN 1001 AND 1003 AND a.thread != f.thread"""
    for which in (trace, again):
        assert rows(query.format(which.path)) == [(15000,)]


def test_replay_of_two_hundred_threads() -> None:
    build_known()
    trace, _ = record(KNOWN, "threads", "200", "500")
    for order in ("threads", "full"):
        ran = tool("replay", trace.path, "--order", order, "--json")
        assert ran.returncode == 0, ran.stderr
        (result,) = json.loads(ran.stdout)["results"]
        # With the main thread, and perhaps the scavenger, which frees nothing (null) at its end.
        assert (
            result["calls"] == trace.rows
            and result["threads"] in (201, 202)
            and result["failed"] == 0
        ), result


def test_replay_compares_allocators_and_options() -> None:
    build_known()
    trace, _ = record(KNOWN, "threads", "4", "5000")
    which = [
        "lanemalloc",
        "lanemalloc:lanes=percpu,decay_ms=0",
        "system",
        str(BUILD / "liblanemalloc.so"),
    ]
    if (ROOT / "build/peers/libjemalloc.so").exists():
        which.append("jemalloc")
    # In the order of all calls: only then does memory peak where it did.
    ran = tool(
        "replay",
        trace.path,
        "--touch",
        "--order",
        "full",
        "--json",
        *(word for name in which for word in ("--compare", name)),
    )
    assert ran.returncode == 0, ran.stderr
    results = json.loads(ran.stdout)["results"]
    assert len(results) == len(which)
    live = trace.process(0)["peak_live_bytes"]
    for result in results:
        assert result["rounds"] >= 5 and result["calls"] == trace.rows, result
        assert (
            result["seconds_in_calls"]["lowest"]
            <= result["seconds_in_calls"]["median"]
            <= result["seconds_in_calls"]["highest"]
        )
        assert 0.9 * live < result["peak_rss"]["median"] < 3 * live + (32 << 20), (live, result)
    text = tool("replay", trace.path, "--compare", "lanemalloc", "--compare", "system")
    assert text.returncode == 0 and "medians of 5 alternating rounds" in text.stdout, text


def test_replay_keeps_the_pace() -> None:
    trace, _ = record("sh", "-c", "sleep 0.05; echo $(sleep 0.3; echo a; sleep 0.3)", name="pace")
    process = trace.process(0)
    ran = tool("replay", trace.path, "--process", "0", "--pace", "--json")
    seconds = json.loads(ran.stdout)["results"][0]["seconds"]["median"]
    recorded = (process["last"] - process["first"]) / 1e9
    assert recorded > 0.5 and recorded * 0.95 < seconds < recorded + 1, (recorded, seconds)


def test_traces_larger_than_memory() -> None:
    """Both ways, with less memory than the trace takes: 15 million events are 900 MB in columns."""
    build_known()
    file = WORK / "large.parquet"
    most = 450 << 20

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))

    pairs = 7500000
    ran = tool(
        "trace", "-o", file, "--json", "--", KNOWN, "_exit", str(pairs), "0", preexec_fn=limit
    )
    assert ran.returncode == 0, ran.stderr
    trace = Trace(file)
    assert trace.rows > 2 * pairs and trace.about["complete"]
    ran = tool("replay", file, "--json", preexec_fn=limit)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["results"][0]["calls"] == trace.rows


def test_touch_needs_the_memory_that_was_live() -> None:
    replays.check_memory({"peak_live_bytes": 1 << 50}, How(touch=False), "")
    replays.check_memory({"peak_live_bytes": 1 << 20}, How(touch=True), "")
    try:
        replays.check_memory({"peak_live_bytes": 1 << 50}, How(touch=True), "give less")
    except Problem as problem:
        assert "MiB live at once" in problem.message and "give less" in problem.message
    else:
        raise AssertionError("it was let through")


# --- Tuning.


def test_tune_on_a_small_trace() -> None:
    build_known()
    trace, _ = record(KNOWN, "threads", "4", "3000")
    for goal in ("time", "memory"):
        program = ("--rounds", "4", "--", KNOWN, "threads", "4", "3000")
        ran = tool("tune", trace.path, "--for", goal, "--runs", "44", "--json", *program)
        assert ran.returncode == 0, ran.stderr
        found = json.loads(ran.stdout)
        assert found["runs"] <= 44 and found["tried"] >= 4, found
        assert found["default"]["rounds"] == found["best"]["rounds"] == FINAL_ROUNDS, found
        measure = "seconds_in_calls" if goal == "time" else "peak_rss"
        if found["candidate"]:
            assert found["best"][measure]["high"] < found["default"][measure]["low"]
            assert found["program_rounds"] == 4 and set(found["program"]) == set(trials.MEASURES)
        else:
            assert found["program_rounds"] == 0 and found["recommended"] is None
    assert tool("tune", trace.path, "--runs", "40").returncode == 0


def results(options: str, *values: float, **others: float) -> Results:
    """Runs of these seconds in calls; other measures are alike in all."""
    rest = {"peak_rss": 1e6, "end_rss": 1e6} | others
    runs = [{"seconds_in_calls": value, **rest} for value in values]
    return Results(Allocator("lanemalloc", None, options), runs)


def tuned(best: Results, default: Results, program: float | None = None) -> Outcome:
    """With a program that takes so much of the time of before."""
    outcome = Outcome(best, default, 2, 10, "seconds_in_calls")
    if program is not None:
        before = [1.0, 1.01, 1.02, 1.03]
        after = [one * program for one in before]
        sizes = ([1e6] * 4, [1.3e6] * 4)
        outcome.rounds = 4
        outcome.program = {
            "seconds": trials.Effect.of(before, after, LEAST_GAIN),
            "cpu_seconds": trials.Effect.of(before, before, LEAST_GAIN),
            "peak_rss": trials.Effect.of(*sizes, LEAST_GAIN),
        }
    return outcome


def test_tune_finds_no_candidate_within_the_noise() -> None:
    default = results("", 1.0, 1.1, 1.2, 1.05, 1.15)
    for values, expected in (
        ((0.98, 1.08, 1.18, 1.0, 1.1), False),
        ((0.8, 0.81, 0.82, 0.8, 0.83), True),
        ((1.06, 1.06, 1.06, 1.06, 1.06), False),
    ):
        outcome = tuned(results("lanes=owned", *values), default)
        assert outcome.is_candidate == expected, values
    steady = results("", 1.0, 1.0, 1.0, 1.0)
    assert not tuned(results("lanes=owned", 0.99, 0.99, 0.99, 0.99), steady).is_candidate
    assert not tuned(results("lanes=owned", 0.5), steady).is_candidate, "one round is too few"
    assert not tuned(steady, steady).is_candidate


def test_tune_recommends_what_the_program_itself_has_shown() -> None:
    default = results("", 1.0, 1.1, 1.2, 1.05, 1.15)
    best = results("decay_ms=0", 0.8, 0.81, 0.82, 0.8, 0.83, end_rss=2e6)
    file = Path("t.parquet")
    unseen = tuned(best, default)
    assert unseen.is_candidate and not unseen.recommended
    said = "\n".join(lines(unseen, "time", file, ["./a b", "c"]))
    assert "not recommended before" in said and "-- './a b' c" in said
    assert "+100 % RSS at end (quartiles +100 to +100 %)" in said, said
    assert "no difference in peak RSS" in said, said
    helped = tuned(best, default, 0.8)
    assert helped.recommended
    said = lines(helped, "time", file, ["x"])[-1]
    assert said.startswith("LANEMALLOC_OPTIONS=decay_ms=0 is worth it for time"), said
    assert "its price: +30 % peak RSS (quartiles +30 to +30 %)" in said, said
    for program in (0.997, 1.1):
        useless = tuned(best, default, program)
        assert not useless.recommended
        assert "keep the defaults" in lines(useless, "time", file, ["x"])[-1]


def test_tune_runs_the_program_with_both_in_turn() -> None:
    """Which also says what it is run with; it fails once, and then nothing is said."""
    log = WORK / "tune.log"
    command = ["sh", "-c", f'echo "$LANEMALLOC_OPTIONS" >>{log}']
    pair = (parse("lanemalloc"), parse("lanemalloc", "decay_ms=0"))
    before, after = trials.alternate(command, pair, 4, lambda *_: None)
    assert len(before) == len(after) == 4
    assert log.read_text().split("\n") == [
        "", "decay_ms=0", "decay_ms=0", "", "", "decay_ms=0", "decay_ms=0", "", ""
    ]  # fmt: skip
    assert all(run["peak_rss"] < 12 << 20 and run["seconds"] > 0 for run in before)
    try:
        trials.run(["sh", "-c", "exit 4"], pair[0])
    except Problem as problem:
        assert "ended with status 4" in problem.message
    else:
        raise AssertionError("a program that fails was measured")


def test_tune_keeps_its_rounds_when_it_is_interrupted() -> None:
    build_known()
    trace, _ = record(KNOWN, "threads", "4", "3000")
    real, stop_at, ran = replays.run, 0, 0

    def run(*arguments: Any) -> dict[str, Any]:
        nonlocal ran
        ran += 1
        if ran == stop_at:
            raise KeyboardInterrupt
        return real(*arguments)

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(replays, "run", run):
        plan = planned(trace, 0, Path(folder))
        whole = search(plan, 4, "peak_rss", 44, How())
        assert not whole.interrupted and whole.runs == ran
        for stop_at, rounds in ((ran - 5, FINAL_ROUNDS - 2), (3, 1)):
            ran = 0
            found = search(plan, 4, "peak_rss", 44, How())
            assert found.interrupted and found.runs == stop_at - 1, found
            assert len(found.best.runs) == len(found.default.runs) == rounds, (stop_at, found)
            assert lines(found, "memory", trace.path, ["x"])
        stop_at, ran = 1, 0
        try:
            search(plan, 4, "peak_rss", 44, How())
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("nothing was run, and something was found")


# --- What is documented.


def test_examples_of_the_documentation() -> None:
    build_known()
    trace, _ = record(KNOWN, "forks", name="server")
    text = (ROOT / "docs/trace.md").read_text()
    queries = re.findall(r"```sql\n(.*?)```", text, re.S)
    assert len(queries) >= 5
    for query in queries:
        found = rows(query.replace("'server.parquet'", f"'{trace.path}'"))
        assert found, query
    table = re.findall(r"^\| `(\w+)` \|", text, re.M)
    assert [name for name in table if name in SCHEMA.names] == SCHEMA.names, table


# --- Real programs.


def test_real_programs() -> None:
    (WORK / "a.cpp").write_text(
        "#include <map>\n#include <string>\n"
        'int main() { std::map<std::string, int> m; return m[""]; }\n'
    )
    programs: dict[str, list[str]] = {
        "python3": [
            "/usr/bin/python3",
            "-c",
            "import json, threading; print(len(json.dumps(list(range(1000)))))",
        ],
        "gcc": ["g++", "-O1", "-c", str(WORK / "a.cpp"), "-o", str(WORK / "a.o")],
        "sqlite3": [
            "sqlite3",
            ":memory:",
            "create table t(a); insert into t values (1), (2); select sum(a) from t;",
        ],
    }
    for name, command in programs.items():
        plain = subprocess.run(command, capture_output=True, text=True, check=True)
        for allocator in ("lanemalloc", "system"):
            trace, said = record(*command, name=name, options=("--allocator", allocator))
            assert said == plain.stdout
            assert trace.rows > 100
        names = {Path(p["command"][0]).name for p in trace.processes if p["command"]}
        if name == "gcc":
            assert {"g++", "cc1plus", "as"} <= names, names


def test_redis() -> None:
    port = str(20000 + os.getpid() % 20000)
    command = [
        str(ROOT / "build/venv/bin/lanemalloc"),
        "trace",
        "-o",
        str(WORK / "redis.parquet"),
        "--",
        "redis-server",
        "--port",
        port,
        "--save",
        "",
        "--dir",
        str(WORK),
    ]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    client = ["redis-cli", "-p", port]
    for _ in range(200):
        if subprocess.run([*client, "ping"], capture_output=True, check=False).stdout == b"PONG\n":
            break
        time.sleep(0.1)
    subprocess.run(
        ["redis-benchmark", "-p", port, "-q", "-n", "5000", "-r", "1000", "-t", "set,get,lpush"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    subprocess.run([*client, "bgsave"], check=True, capture_output=True)  # forks
    time.sleep(1)
    subprocess.run([*client, "shutdown", "nosave"], check=False, capture_output=True)
    server.communicate(timeout=60)
    assert server.returncode == 0
    trace = Trace(WORK / "redis.parquet")
    assert trace.rows > 10000 and len(trace.processes) >= 2
    assert sum(p["lost"] + p["overlaps"] for p in trace.processes) == 0, trace.processes
    sound(trace.path)


# --- Run.


def main() -> int:
    global SCALE
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    SCALE = arguments.scale
    tests = {name[5:]: test for name, test in globals().items() if name.startswith("test_")}
    if arguments.list:
        print("\n".join(tests))
        return 0
    if unknown := [name for name in arguments.names if name not in tests]:
        print(
            f"check.py: no test {', '.join(unknown)}; there are: {', '.join(tests)}",
            file=sys.stderr,
        )
        return 2
    passed = failed = skipped = 0
    try:
        for name in arguments.names or tests:
            began = time.monotonic()
            label = name.replace("_", " ")
            try:
                tests[name]()
            except Skip as reason:
                skipped += 1
                print(f"skipped: {label}: {reason}", flush=True)
            except Exception:
                failed += 1
                traceback.print_exc(file=sys.stdout)
                print(f"FAILED {label}", flush=True)
            else:
                passed += 1
                print(f"ok [{time.monotonic() - began:.1f} s] {label}", flush=True)
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
