"""The package passes ruff and mypy --strict, and imports nothing before it is needed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CLEAN, ROOT, TOOL, tool

from lanemalloc.cli import COMMANDS
from lanemalloc.ui import EXTRAS

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


HEAVY = {
    "numpy",
    "pyarrow",
    "rich",
    "plotly",
    "prometheus_client",
    "google.protobuf",
    "elftools",
}
MOST_MODULES = 80  # beside those of click


def imported(code: str) -> set[str]:
    """Modules that there are in the end."""
    code = f"import sys\n{code}\nprint('\\n' + ' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_help_imports_nothing_heavy(command: tuple[str, ...]) -> None:
    argv = [*command, "--help"]
    found = imported(
        "import contextlib\nfrom lanemalloc.cli import main\n"
        f"with contextlib.suppress(SystemExit): main({argv!r})"
    )
    assert HEAVY & found == set()
    assert len(found - imported("import click")) <= MOST_MODULES
    if not command:
        assert not any(name.startswith("lanemalloc.commands") for name in found)


def test_a_program_is_started_without_numpy() -> None:
    """Its threads would take signals that are to be passed on."""
    for name in ("run", "profile"):
        assert "numpy" not in imported(f"import lanemalloc.cli, lanemalloc.commands.{name}")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_subcommand_has_help_with_examples(name: str) -> None:
    done = subprocess.run([str(TOOL), name, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Usage:" in done.stdout
    assert "Examples:" in done.stdout and f"  lanemalloc {name}" in done.stdout


def test_no_option_is_taken_for_a_program() -> None:
    for name in ("run", "trace", "doctor"):
        done = tool(name, "--lane", "x")
        assert done.returncode == 2 and "No such option" in done.stderr, done.stderr
    assert "--lanes" in tool("run", "--lane", "x").stderr
    assert tool("run", "-q", "--", "sh", "-c", "exit 3", "--lane").returncode == 3


@pytest.mark.parametrize("value", ["foo", "shared:", "shared:0", "shared:9999", ""])
def test_lanes_that_there_are_not_run_nothing(value: str, tmp_path: Path) -> None:
    for command in ("run", "profile"):
        done = tool(command, "--lanes", value, "--", "touch", tmp_path / "ran")
        assert done.returncode == 2 and "none of owned, shared" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["explain", "top"])
def test_what_is_no_process_number_is_told(command: str) -> None:
    for wrong in ("abc", "-1x", "0", "4294967296"):
        done = tool(command, "--", wrong)
        assert done.returncode == 2 and "is no process' number" in done.stderr


def test_the_manual_page_has_every_option_and_is_well_formed(tmp_path: Path) -> None:
    maker = [sys.executable, str(ROOT / "tools" / "make-man"), "--command", str(tmp_path), "0.1.0"]
    subprocess.run(maker, check=True)
    page = tmp_path / "man1" / "lanemalloc.1"
    text = page.read_text().replace("\\-", "-")
    for name in COMMANDS:
        assert f"\n.SS {name} " in text
        part = text.split(f"\n.SS {name} ")[1].split("\n.S")[0]
        help_ = tool(name, "--help").stdout
        for option in re.findall(r"^  (?:-\w, )?(--[a-z-]+)", help_, re.M):
            assert option in part, f"{name} {option}"
        for example in re.findall(rf"^  (lanemalloc {name} .*[^\\])$", help_, re.M):
            assert example in part.replace("\\e", "\\")
    if shutil.which("mandoc"):
        command = ["mandoc", "-Tlint", "-Wwarning", str(page)]
        assert subprocess.run(command, capture_output=True, text=True, check=False).stdout == ""


# --- What is installed.


def test_the_extras_are_those_that_commands_name() -> None:
    text = (ROOT / "python" / "pyproject.toml").read_text()
    for extra, module in EXTRAS.items():
        package = module.replace("_", "-")
        assert re.search(rf'^{extra} = \["{package}[>"]', text, re.M)
        assert not re.search(rf'^  "{package}', text, re.M)
    assert f'all = ["lanemalloc[{",".join(EXTRAS)}]"]' in text


@pytest.mark.parametrize(
    ("extra", "argv"),
    [
        ("trace", ["trace", "--", "touch", "ran"]),
        ("trace", ["replay", "x"]),
        ("trace", ["tune", "x"]),
        ("report", ["run", "--report", "x.html", "--", "touch", "ran"]),
        ("report", ["sim", "--cores", "2", "-o", "x.html"]),
        ("exporter", ["exporter", "--once"]),
    ],
)
def test_a_command_names_the_extra_that_it_lacks(
    extra: str, argv: list[str], tmp_path: Path
) -> None:
    code = (
        f"import sys\nsys.modules[{EXTRAS[extra]!r}] = None\n"
        f"from lanemalloc.cli import main\nmain({argv!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, cwd=tmp_path, env=CLEAN, check=False,
    )  # fmt: skip
    assert done.returncode == 3 and "Traceback" not in done.stderr, done.stderr
    assert f"'lanemalloc[{extra}]'" in done.stderr and len(done.stderr.splitlines()) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_the_subcommands_and_options(shell: str) -> None:
    script = tool(_LANEMALLOC_COMPLETE=f"{shell}_source").stdout
    assert "_LANEMALLOC_COMPLETE" in script
    asked = {"_LANEMALLOC_COMPLETE": f"{shell}_complete", "COMP_WORDS": "lanemalloc run --la"}
    if shell == "fish":
        asked["COMP_WORDS"], asked["COMP_CWORD"] = "lanemalloc run --la", "--la"
    else:
        asked["COMP_CWORD"] = "2"
    assert "--lanes" in tool(environment=asked).stdout
