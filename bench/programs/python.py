"""Python: some of pyperformance's benchmarks that live on small objects, every object asked from
malloc.

PYTHONMALLOC=malloc keeps Python's own pools out of the way. The scripts of the pyperformance
package run one after another, each as pyperf's worker: one process, a fixed number of loops.
Figures are sums, the peak is the largest.
"""

import dataclasses
import os
import shutil
import subprocess
from pathlib import Path

from common import Library

from .program import Sample, Words, prove, run_command

PYTHON = "/usr/bin/python3"  # Debian's: others may lie in a user's folder and be built differently
WANTED = ("pyperf==2.10.0", "pyperformance==1.14.0")
# Script, loops at scale 1, arguments. What a smaller scale shrinks to no loop is left out.
PARTS: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    ("json_dumps", 4, ()),
    ("json_loads", 150, ()),
    ("pickle", 250, ("pickle",)),
    ("pickle", 250, ("unpickle",)),
    ("deepcopy", 60, ()),
    ("go", 1, ()),
    ("async_tree", 1, ("none",)),
)


@dataclasses.dataclass(frozen=True)
class Python:
    name: str = "python"
    packages: tuple[str, ...] = ("python3", "python3-pip")
    about: str = "pyperformance: json, pickle, deepcopy, go, async_tree, with PYTHONMALLOC=malloc"

    def prepare(self, work: Path) -> None:
        done = work / " ".join(WANTED)
        if done.exists():
            return
        shutil.rmtree(work / "site", ignore_errors=True)
        command = [
            PYTHON,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--target",
            str(work / "site"),
            *WANTED,
        ]
        environment = os.environ | {"PIP_ROOT_USER_ACTION": "ignore"}
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )
        if ended.returncode != 0:
            raise RuntimeError(
                f"python: pip cannot install {', '.join(WANTED)}: {ended.stderr.strip()[-400:]}"
            )
        done.touch()

    def run(self, library: Library, work: Path, scale: float) -> Sample:
        environment = {
            "PYTHONMALLOC": "malloc",
            "PYTHONPATH": str(work / "site"),
            "PYTHONHASHSEED": "0",
        }
        prove(self.name, "python3", [PYTHON, "-c", "pass"], library, environment)
        scripts = work / "site" / "pyperformance" / "data-files" / "benchmarks"
        total: Sample | None = None
        for part, loops, arguments in PARTS:
            count = round(loops * scale)
            if count == 0:
                continue
            command: Words = [
                PYTHON,
                scripts / f"bm_{part}" / "run_benchmark.py",
                "--worker",
                "--values",
                "1",
                "--warmups",
                "0",
            ]
            command = [*command, "--loops", str(count), *arguments]
            sample = run_command(
                f"{self.name} {part}", command, library, cwd=work, more=environment
            )
            total = sample if total is None else total + sample
        if total is None:
            raise RuntimeError(f"python: nothing is left to run at scale {scale}")
        return total
