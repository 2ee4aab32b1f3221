"""A program that the system kills for want of memory: the limit, the last figures, who grew."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import CLEAN, TOOL, build

from lanemalloc import process
from lanemalloc.oom import Guard, Killed

MIB = 1 << 20
NO_LIMIT = 0x7FFFFFFFFFFFF000


class Groups:
    """Control groups /a and /a/b, as the kernel shows them; the program is in /a/b."""

    def __init__(self, root: Path, version: int) -> None:
        self.version = version
        self.root = root if version == 2 else root / "memory"
        self.kills, self.met = {"a": 0, "a/b": 0}, {"a": 0, "a/b": 0}
        for group, limit in (("a", 300 * MIB), ("a/b", None)):
            folder = self.root / group
            folder.mkdir(parents=True)
            (folder / "cgroup.procs").write_text(f"{os.getppid()}\n" if group == "a/b" else "")
            names = {1: ("limit_in_bytes", "usage_in_bytes"), 2: ("max", "current")}[version]
            none = {1: str(NO_LIMIT), 2: "max"}[version]
            (folder / f"memory.{names[0]}").write_text(f"{limit or none}\n")
            (folder / f"memory.{names[1]}").write_text(f"{250 * MIB}\n")
        self.write()

    def write(self) -> None:
        for group, kills in self.kills.items():
            folder, met = self.root / group, self.met[group]
            if self.version == 2:
                every = sum(n for name, n in self.kills.items() if name.startswith(group))
                (folder / "memory.events").write_text(f"max 9\noom {met}\noom_kill {every}\n")
                (folder / "memory.events.local").write_text(f"max 9\noom {met}\noom_kill {kills}\n")
            else:
                control = f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"
                (folder / "memory.oom_control").write_text(control)
                (folder / "memory.failcnt").write_text(f"{met}\n")

    def kill(self, limit_of: str = "") -> None:
        self.kills["a/b"] += 1
        if limit_of:
            self.met[limit_of] += 1
        self.write()


@pytest.fixture(params=[1, 2])
def groups(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Groups:
    monkeypatch.setattr(process, "CGROUPS", tmp_path)
    monkeypatch.setattr(process, "cgroup_of", lambda _: "/a/b")
    return Groups(tmp_path, request.param)


def after(groups: Groups, limit_of: str, number: int | None) -> Killed | None:
    guard = Guard(os.getppid())
    guard.look()
    groups.kill(limit_of)
    return guard.verdict(number)


def test_the_group_above_whose_limit_was_met_is_named(groups: Groups) -> None:
    found = after(groups, "a", signal.SIGKILL)
    assert found is not None and found.itself
    assert (found.group, found.limit, found.used) == ("/a", 300 * MIB, 250 * MIB)
    assert "control group /a met its limit of 300 MiB" in found.lines()[0]


def test_a_kill_without_a_limit_is_the_machines(groups: Groups) -> None:
    found = after(groups, "", signal.SIGKILL)
    assert found is not None and found.group == ""
    assert "the machine had no memory left" in found.lines()[0]


def test_of_a_program_that_goes_on_another_process_was_killed(groups: Groups) -> None:
    found = after(groups, "a/b", None)
    assert found is not None and not found.itself and found.group == "/a/b"


def test_a_kill_by_somebody_is_none_for_want_of_memory(groups: Groups) -> None:
    groups.kill("a")  # before the program began
    guard = Guard(os.getppid())
    guard.look()
    assert guard.verdict(signal.SIGKILL) is None


def test_who_grew_is_told_the_most_first(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {1: 10 * MIB, 2: 10 * MIB, 3: 10 * MIB}
    monkeypatch.setattr("lanemalloc.oom.members", lambda _: list(sizes))
    monkeypatch.setattr(
        process,
        "facts",
        lambda pid: process.ProcessFacts(pid, f"p{pid}", "R", 1, sizes[pid], 0.0, 0),
    )
    guard = Guard(1)
    guard.look()
    sizes |= {2: 200 * MIB, 3: 40 * MIB}
    guard.look()
    groups.kill("a")
    found = guard.verdict(signal.SIGKILL)
    assert found is not None
    assert [(one.pid, one.first, one.last) for one in found.grown] == [
        (2, 10 * MIB, 200 * MIB),
        (3, 10 * MIB, 40 * MIB),
    ]


# --- The kernel's own.


@pytest.fixture
def small() -> Iterator[Path]:
    """A control group of 64 MiB."""
    parent = process.memory_folder(process.cgroup_of(os.getpid()))
    group = parent / f"lanemalloc-{os.getpid()}" if parent else None
    limit = "memory.max" if parent and (parent / "memory.max").exists() else "memory.limit_in_bytes"
    try:
        if group is None:
            raise OSError("there is no control group of memory")
        group.mkdir()
        (group / limit).write_text(f"{64 * MIB}\n")
    except OSError as error:
        if group is not None and group.exists():
            group.rmdir()
        pytest.skip(f"no control group can be made here: {error}")
    yield group
    group.rmdir()


def within(group: Path, *argv: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"""import os, sys
open({str(group / "cgroup.procs")!r}, "w").write(str(os.getpid()))
os.execv(sys.argv[1], sys.argv[1:])""", str(TOOL), *map(str, argv)],
        capture_output=True, text=True, env=CLEAN, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("command", ["run", "profile"])
def test_a_program_that_outgrows_its_group(small: Path, command: str) -> None:
    situations = build("situations")
    done = within(small, command, "--", situations, "grow")
    assert done.returncode == -signal.SIGKILL
    assert "out of memory (OOM)" in done.stderr
    assert f"/{small.name} met its limit of 64.0 MiB" in done.stderr
    assert "situations (pid " in done.stderr
    if command == "run":
        assert "objects of 1,024 bytes by" in done.stderr
        assert "when last seen" in done.stderr


def test_the_figures_are_in_the_json_too(small: Path) -> None:
    done = within(small, "run", "--json", "--", build("situations"), "grow")
    facts = json.loads(done.stderr.splitlines()[-1])
    assert facts["signal"] == signal.SIGKILL and facts["oom"]["program"]
    assert facts["oom"]["limit_bytes"] == 64 * MIB
    assert facts["oom"]["grown"][0]["name"] == "situations"
    assert facts["figures"]["live_bytes"] > 8 * MIB
