"""What the tests of the tool share: programs in situations, the tool as a person starts it, a
terminal.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from browsing import Browser

ROOT = Path(__file__).resolve().parents[2]
TOOL = Path(sys.executable).parent / "lanemalloc"
LIBRARY = Path(os.environ.get("LANEMALLOC_NATIVE", ROOT / "build" / "release")) / "liblanemalloc.so"
PROGRAMS = Path(os.environ.get("LANEMALLOC_TEST_PROGRAMS", ROOT / "build" / "tool-tests"))
CLEAN = {
    key: value
    for key, value in os.environ.items()
    if key not in ("LANEMALLOC_OPTIONS", "LD_PRELOAD", "COLUMNS", "LINES")
}


def build(name: str, *extra: str, source: str = "") -> Path:
    """Compiles tests/tool/NAME.c, or another one under another name."""
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    out = PROGRAMS / name
    code = Path(__file__).parent / f"{source or name}.c"
    if not out.exists() or out.stat().st_mtime < code.stat().st_mtime:
        flags = ["-O2", "-g", "-Wall", "-Wextra", "-pthread", f"-I{ROOT / 'include'}"]
        subprocess.run(["gcc", *flags, str(code), "-o", str(out), *extra], check=True)
    return out


@pytest.fixture(scope="session")
def situations() -> Path:
    return build("situations")


@pytest.fixture
def start(situations: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a program under the library and waits until it says that it is ready."""
    running: list[subprocess.Popen[str]] = []

    def go(
        *argv: object,
        options: str = "",
        preload: bool = True,
        program: Path | None = None,
        **more: str,
    ) -> subprocess.Popen[str]:
        environment = {**CLEAN, **more}
        if preload:
            environment["LD_PRELOAD"] = str(LIBRARY)
        if options:
            environment["LANEMALLOC_OPTIONS"] = options
        process = subprocess.Popen(
            [str(program or situations), *map(str, argv)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield go
    for process in running:
        process.kill()
        process.communicate()


def tool(
    *argv: object, timeout: float = 60, environment: dict[str, str] | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    """Runs the command with its output taken."""
    return subprocess.run(
        [str(TOOL), *map(str, argv)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**CLEAN, **(environment or {}), **more},
        stdin=subprocess.DEVNULL,
        check=False,
    )


def ended(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> tuple[int, str]:
    """Ends it; its status and what it wrote on standard error."""
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    return process.returncode, err


class Terminal:
    """A terminal of its own, by tmux: keys go in, the screen is looked at."""

    def __init__(self, width: int, height: int, command: str, **environment: str) -> None:
        self.name = f"lanemalloc-test-{os.getpid()}-{time.monotonic_ns()}"
        settings = [word for key, value in environment.items() for word in ("-e", f"{key}={value}")]
        new = ["new-session", "-d", "-x", str(width), "-y", str(height), *settings, command]
        self.tmux("set-option", "-g", "remain-on-exit", "on", ";", *new)

    def tmux(self, *argv: str) -> str:
        command = ["tmux", "-L", self.name, "-f", "/dev/null", *argv]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            env={**CLEAN, "TERM": "xterm-256color"},
        ).stdout

    def keys(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def screen(self) -> str:
        return self.tmux("capture-pane", "-p")

    def wait(self, *patterns: str, without: str = "", seconds: float = 15) -> str:
        """Until one look at the screen has all of them, and not the text `without`; the screen.

        Whoever looks may see half of a picture, with the old one below it: what must be there at
        the same time is asked for in one call.
        """
        deadline = time.monotonic() + seconds
        while True:
            screen = self.screen()
            missing = [pattern for pattern in patterns if not re.search(pattern, screen, re.S)]
            if not missing and not (without and without in screen):
                return screen
            assert time.monotonic() < deadline, f"without {missing}, or with {without!r}:\n{screen}"
            time.sleep(0.1)

    def without_clock(self) -> str:
        return re.sub(r"\d\d:\d\d:\d\d", "", self.screen())

    def resize(self, width: int, height: int) -> None:
        self.tmux("resize-window", "-x", str(width), "-y", str(height))

    def close(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self.tmux("kill-server")


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not there")
    opened: list[Terminal] = []

    def go(width: int, height: int, command: str, **environment: str) -> Terminal:
        opened.append(Terminal(width, height, command, **environment))
        return opened[-1]

    yield go
    for one in opened:
        one.close()


def record(program: Path, path: Path, lanes: str, seconds: float = 2.5) -> Path:
    """Of threads that hand objects to each other."""
    command = [
        str(TOOL),
        "run",
        "-q",
        "--lanes",
        lanes,
        "--record",
        str(path),
        "--",
        str(program),
        "busy",
        "5",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=CLEAN)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(seconds)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    return path


@pytest.fixture(scope="session")
def recordings(situations: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("recordings")
    return record(situations, folder / "shared.jsonl", "shared:1"), record(
        situations, folder / "percpu.jsonl", "percpu"
    )


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    from browsing import opened

    yield from opened(tmp_path_factory.mktemp("browser"))
