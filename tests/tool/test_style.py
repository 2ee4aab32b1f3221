"""The package passes ruff and mypy --strict, and imports nothing before it is needed."""

from __future__ import annotations

import subprocess
import sys

from conftest import ROOT, TOOL

CONFIG = str(ROOT / "python" / "pyproject.toml")


def run(*argv: str, cwd: str = str(ROOT)) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *argv], capture_output=True, text=True, cwd=cwd, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_ruff() -> None:
    assert run("ruff", "check", "--config", CONFIG, "python", "tests/tool") == ""
    assert run("ruff", "format", "--check", "--config", CONFIG, "python", "tests/tool") == ""


def test_mypy() -> None:
    assert run("mypy", "--strict", "lanemalloc", cwd=str(ROOT / "python")) == ""


def test_run_and_help_start_without_numpy() -> None:
    code = "import sys, lanemalloc.cli, lanemalloc.commands.run; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_help_of_every_subcommand_that_is_there() -> None:
    for name in (
        "run",
        "top",
        "explain",
        "doctor",
        "exporter",
        "report",
        "profile",
        "sim",
        "trace",
        "replay",
        "tune",
    ):
        done = subprocess.run(
            [str(TOOL), name, "--help"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 and "Usage:" in done.stdout
