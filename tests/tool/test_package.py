"""The wheel: built from a clean clone, installed where nothing else is, it is all that a user
needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import CLEAN, ROOT

VERSION = subprocess.check_output([ROOT / "tools" / "version"], text=True).strip()
MOST_BASE = 100 << 20  # bytes; 70 of these MiB are numpy's
ENVIRONMENT = {
    key: value for key, value in CLEAN.items() if not key.startswith(("LANEMALLOC_", "PYTHON"))
}


def run(*argv: object, cwd: Path | None = None, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(one) for one in argv],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**ENVIRONMENT, **(environment or {})},
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, f"{argv}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a clone of what is checked in, with what has changed since."""
    folder = tmp_path_factory.mktemp("wheel")
    run("git", "clone", "--quiet", "--no-hardlinks", ROOT, folder / "clone")
    for name in run("git", "-C", ROOT, "diff", "--name-only", "HEAD").split():
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, folder / "clone" / name)
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "-w",
        folder / "dist",
        folder / "clone" / "python",
    )
    assert (
        run("git", "-C", folder / "clone", "status", "--porcelain", "--untracked-files=all").count(
            "??"
        )
        == 0
    )
    return next((folder / "dist").glob("*.whl"))


def test_the_wheel_carries_the_libraries_and_no_more(wheel: Path) -> None:
    assert wheel.name.startswith(f"lanemalloc-{VERSION}-py3-none-linux_")
    names = zipfile.ZipFile(wheel).namelist()
    native = {
        name.removeprefix("lanemalloc/native/")
        for name in names
        if name.startswith("lanemalloc/native/")
    }
    libraries = {name for name in native if ".so" in name}
    assert libraries == {
        "liblanemalloc.so",
        "liblanemalloc-dynamic-tls.so",
        "liblanemalloc-trace.so",
    }
    programs = {"lanemalloc-launch", "lanemalloc-sim", "lanemalloc-collect", "lanemalloc-replay"}
    assert programs <= native
    assert f"lanemalloc-{VERSION}.data/data/share/man/man1/lanemalloc.1" in names
    assert not [name for name in names if name.endswith((".h", ".a", ".pc", ".7"))]
    assert {
        "lanemalloc/commands/top.py",
        "lanemalloc/report/page.css",
        "lanemalloc/report/page.js",
    } <= set(names)


def use_base(command: Path) -> None:
    """As a person would, away from the checkout."""
    assert "exit status 0" in run("sh", "-c", f"cd / && {command} run -- ls / 2>&1")
    assert "site-packages" in run(command, "doctor", cwd=Path("/"))
    assert VERSION in run(command, "--version", cwd=Path("/"))
    assert "owned" in run(command, "sim", "--cores", "2", "--against", "none", cwd=Path("/"))
    assert "by function" in run("sh", "-c", f"cd / && {command} profile -- ls / 2>&1")
    running = subprocess.Popen([str(command), "run", "-q", "--", "sleep", "600"], env=ENVIRONMENT)
    try:
        pid = run("sh", "-c", f"until pgrep -P {running.pid}; do sleep 0.1; done").split()[0]
        assert "sum of the bands" in run(command, "explain", pid, cwd=Path("/"))
        assert "Where threads meet" in run(command, "top", "--once", pid, cwd=Path("/"))
    finally:
        running.terminate()
        running.wait(20)


def use_all(command: Path) -> None:
    made = run(
        "sh",
        "-c",
        f"cd {command.parent} && {command} run -q --report ./run.html -- sleep 1; "
        "grep -c Content-Security run.html",
    )
    assert made.strip() == "1"
    assert "lanemalloc_processes" in run(command, "exporter", "--once", cwd=Path("/"))
    trace = command.parent / "t.parquet"
    run("sh", "-c", f"cd / && {command} trace -o {trace} -- ls / 2>&1")
    assert "lanemalloc" in run(command, "replay", trace, cwd=Path("/"))


def installed_bytes(environment: Path) -> int:
    """Of what pip has installed beside itself."""
    (packages,) = environment.glob("lib/python3*/site-packages")
    files = [
        one
        for folder in packages.iterdir()
        if not folder.name.startswith(("pip", "setuptools", "pkg_resources", "_distutils_hack"))
        for one in [folder, *folder.rglob("*")]
    ]
    return sum(one.stat().st_size for one in files if one.is_file() and one.suffix != ".pyc")


def test_it_works_in_a_fresh_environment(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "fresh")
    pip = tmp_path / "fresh" / "bin" / "pip"
    command = tmp_path / "fresh" / "bin" / "lanemalloc"
    run(pip, "install", "--quiet", wheel)
    assert installed_bytes(tmp_path / "fresh") <= MOST_BASE
    use_base(command)
    run(pip, "install", "--quiet", f"{wheel}[all]")
    use_all(command)


def test_it_works_from_pipx(wheel: Path, tmp_path: Path) -> None:
    pipx = shutil.which("pipx", path="/usr/bin:" + os.environ.get("PATH", ""))
    if pipx is None:
        pytest.skip("pipx is not there")
    folders = {"PIPX_HOME": str(tmp_path / "home"), "PIPX_BIN_DIR": str(tmp_path / "bin")}
    run(pipx, "install", f"{wheel}[all]", environment=folders)
    use_base(tmp_path / "bin" / "lanemalloc")
    use_all(tmp_path / "bin" / "lanemalloc")
