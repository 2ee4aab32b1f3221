"""git gc of a generated repository whose objects lie in one pack without deltas:
it finds them, with two threads."""

import dataclasses
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from common import Library

from .program import Sample, prove, run_command, scaled

COMMITS = 2_000
FILES = 120
CHANGED = 3  # files a commit
# Aggressive: objects that lie in one pack as wholes are tried again. The window is the usual one.
COMMAND = (
    "git",
    "-c",
    "pack.threads=2",
    "-c",
    "gc.aggressiveWindow=10",
    "gc",
    "--quiet",
    "--aggressive",
    "--prune=now",
)


def lines_of(source: random.Random, count: int) -> list[str]:
    words = [
        "lane",
        "slab",
        "batch",
        "inbox",
        "depot",
        "run",
        "region",
        "block",
        "page",
        "return",
        "if",
        "while",
        "const",
    ]
    return [
        " ".join(source.choices(words, k=source.randint(1, 10))) + f" {source.randrange(10**6)};\n"
        for _ in range(count)
    ]


def history(commits: int) -> Iterator[bytes]:
    """What git fast-import reads: the same bytes each time."""
    source = random.Random(commits)
    files = [lines_of(source, source.randint(40, 400)) for _ in range(FILES)]
    for i in range(commits):
        message = f"Change number {i}\n".encode()
        yield b"commit refs/heads/main\ncommitter Bench <bench@localhost> %d +0000\n" % (
            1_700_000_000 + i * 60
        )
        yield b"data %d\n%s" % (len(message), message)
        for number in range(FILES) if i == 0 else source.sample(range(FILES), CHANGED):
            lines = files[number]
            at = source.randrange(len(lines))
            lines[at : at + 4] = lines_of(source, source.randint(2, 6))
            text = "".join(lines).encode()
            yield b"M 100644 inline part%d/file%d.c\ndata %d\n%s\n" % (
                number % 7,
                number,
                len(text),
                text,
            )


def environment(work: Path) -> dict[str, str]:
    """No settings but the repository's own."""
    return {"HOME": str(work), "XDG_CONFIG_HOME": str(work), "GIT_CONFIG_NOSYSTEM": "1"}


def make(repository: Path, commits: int) -> None:
    partial = repository.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    settings = Library("libc", None).environment(**environment(repository.parent))
    for command, text in (
        (["git", "init", "--quiet", "--bare", "--initial-branch=main", str(partial)], b""),
        (
            ["git", "-C", str(partial), "fast-import", "--quiet", "--depth=0"],
            b"".join(history(commits)),
        ),
    ):
        done = subprocess.run(command, input=text, env=settings, capture_output=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(
                f"{' '.join(command)}: {done.stderr.decode(errors='replace').strip()[-400:]}"
            )
    partial.rename(repository)


@dataclasses.dataclass(frozen=True)
class Git:
    name: str = "git"
    packages: tuple[str, ...] = ("git",)
    about: str = "git gc: deltas of 15,000 objects, two threads"

    def prepare(self, work: Path) -> None:
        pass

    def run(self, library: Library, work: Path, scale: float) -> Sample:
        prove(self.name, "git", ["git", "--version"], library)
        commits = scaled(COMMITS, scale)
        repository = work / f"repository-{commits}"
        if not repository.exists():
            make(repository, commits)
        with tempfile.TemporaryDirectory(prefix="copy-", dir=work) as directory:
            copy = Path(directory) / "repository"
            shutil.copytree(repository, copy, symlinks=True)
            return run_command(self.name, COMMAND, library, cwd=copy, more=environment(work))
