"""g++ compiling one C++ file that uses many standard headers, to an object file. cc1plus does
nearly all of it."""

import dataclasses
import tempfile
from pathlib import Path

from common import Library

from .program import HERE, Sample, Words, prove, run_command, scaled

SOURCE = HERE / "compiled.cpp"
KINDS = 2  # of instantiations at scale 1


@dataclasses.dataclass(frozen=True)
class Gxx:
    name: str = "g++"
    packages: tuple[str, ...] = ("g++",)
    about: str = "g++ -O1 on a file of standard containers, algorithms and strings"

    def prepare(self, work: Path) -> None:
        pass

    def run(self, library: Library, work: Path, scale: float) -> Sample:
        prove(self.name, "cc1plus", ["g++", "-x", "c++", "-fsyntax-only", "/dev/null"], library)
        kinds = f"-DKINDS={scaled(KINDS, scale)}"
        with tempfile.TemporaryDirectory(dir=work) as directory:
            command: Words = [
                "g++",
                "-std=c++17",
                "-O1",
                kinds,
                "-c",
                "-o",
                Path(directory) / "compiled.o",
                SOURCE,
            ]
            return run_command(self.name, command, library)
