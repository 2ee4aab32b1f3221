"""node running node.js (beside this file): what asks malloc in it is not the JavaScript heap but
buffers, zlib, crypto, URLs, text encoders and the thread pool that compresses and hashes. Buffers
cross threads."""

import dataclasses
from pathlib import Path

from common import Library

from .program import HERE, Sample, prove, run_command, scaled

ROUNDS = 40


@dataclasses.dataclass(frozen=True)
class Node:
    name: str = "node"
    packages: tuple[str, ...] = ("nodejs",)
    about: str = "node: JSON, strings, buffers, zlib and hashes in the thread pool"

    def prepare(self, work: Path) -> None:
        pass

    def run(self, library: Library, work: Path, scale: float) -> Sample:
        prove(self.name, "node", ["node", "-e", "0"], library)
        rounds = str(scaled(ROUNDS, scale))
        return run_command(
            self.name,
            ["node", HERE / "node.js", rounds],
            library,
            answers=work / f"answers-{rounds}",
        )
