#!/usr/bin/env python3
"""Peak resident memory of programs in which large blocks come and go:
blocks.c, and programs of Debian's.

Called by: hand. docs/design/0017-large-memory-by-age.md has its figures. Allocators alternate;
medians, in MiB. The last column is the median of the others. A program that is not installed is
left out, and named.
Usage: run.py [--lib NAME=PATH].. [--runs N] [--only NAME]
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common
from common import Library

Command = tuple[list[str | Path], Path]  # what is run, and where
PERL = (
    'my $s = join("", map { "line $_ of a text\\n" } 1 .. 150_000); '
    "$s =~ s/line/a longer word/g for 1 .. 3; print length $s"
)
PYTHON = (
    "import json; d = json.loads(json.dumps({str(i): [i] * 50 for i in range(20000)})); "
    "print(len(d))"
)


def peak_mib(launch: Path, command: Command, library: Library) -> float:
    """By launch.c, for a child's own peak begins with what its parent had resident."""
    words, where = command
    with tempfile.NamedTemporaryFile(mode="r") as report:
        variables = [
            f"{name}={value}"
            for name, value in (
                ("LD_PRELOAD", library.path),
                ("LANEMALLOC_OPTIONS", library.options),
            )
            if value
        ]
        done = subprocess.run(
            [str(w) for w in (launch, report.name, *variables, *words)],
            cwd=where, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        seen = common.fields(report.read().replace("\n", " "))
        finds_differences = words[0] == "diff"
        if seen.get("status") != ("1" if finds_differences else "0"):
            raise RuntimeError(
                f"{words[0]} under {library.name}: status {seen.get('status')}: "
                f"{done.stderr.strip()[-400:]}"
            )
        return int(seen["peak_kib"]) / 1024


def trees(folder: Path) -> Callable[[], Command]:
    """Two copies of the C headers; a third of the files of one are changed."""

    def made() -> Command:
        for name in ("a", "b"):
            shutil.copytree("/usr/include", folder / name, ignore_dangling_symlinks=True)
        files = sorted((folder / "b").rglob("*.h"))
        for path in files[::3]:
            path.write_bytes(path.read_bytes() + b"\n// changed\n")
        return ["diff", "-r", "a", "b"], folder

    return made


def repository(folder: Path) -> Callable[[], Command]:
    """A clone of this repository, to be packed."""

    def made() -> Command:
        subprocess.run(
            ["git", "clone", "-q", "--no-local", common.ROOT, folder / "clone"], check=True
        )
        return ["git", "repack", "-adfq"], folder / "clone"

    return made


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lib", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default="", help="programs whose name contains this")
    arguments = parser.parse_args()
    launch = common.compile_program(common.ROOT / "bench" / "programs" / "launch.c", "launch")
    blocks = common.compile_program(common.ROOT / "bench" / "large" / "blocks.c", "blocks")
    libraries = common.libraries(arguments.lib)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        programs: dict[str, Callable[[], Command]] = {
            "one block, replaced": lambda: ([blocks, "one"], folder),
            "one block, replaced late": lambda: ([blocks, "two"], folder),
            "blocks that grow": lambda: ([blocks, "growing"], folder),
            "diff": trees(folder),
            "git": repository(folder),
            "perl": lambda: (["perl", "-e", PERL], folder),
            "python3": lambda: (["/usr/bin/python3", "-c", PYTHON], folder),
        }
        rows = []
        for title, make in programs.items():
            if arguments.only not in title:
                continue
            if title in ("diff", "git", "perl", "python3") and shutil.which(title) is None:
                print(f"left out: {title} is not installed")
                continue
            command = make()
            samples: dict[str, list[float]] = {library.name: [] for library in libraries}
            for _ in range(arguments.runs):
                for library in libraries:
                    samples[library.name].append(peak_mib(launch, command, library))
            medians = {library: statistics.median(found) for library, found in samples.items()}
            others = [
                value
                for library, value in medians.items()
                if library in ("libc", *common.PEER_NAMES)
            ]
            rows.append(
                [
                    title,
                    *(f"{value:.1f}" for value in medians.values()),
                    f"{statistics.median(others):.1f}" if others else "",
                ]
            )
        print(common.table(["MiB", *(library.name for library in libraries), "median peer"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
