#!/usr/bin/env python3
"""Fuzzes parts of the library with libFuzzer.

corpus/NAME has inputs that reach most of the code. All of them run first; then the fuzzer changes
them for a while. An input that ends badly is kept in build/fuzz, and the text says how to run it
again. The least runs the options' inputs alone, without a fuzzer. make verify has an hour, and the
mutants: faults in src/ that the fuzzer must find.
"""

import argparse
import concurrent.futures
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path.append(str(ROOT / "tests/model"))
from anchors import Edit, change, swap

BUILD = ROOT / "build/fuzz"
FLAGS = ["-std=c++20", "-g", "-O1", "-pthread", "-fno-omit-frame-pointer", "-D_GNU_SOURCE"]
FLAGS += ["-DLANEMALLOC_DCHECK=1", "-DLANEMALLOC_FRAME_POINTERS=1", '-DLANEMALLOC_VERSION="0"']
FUZZER = ["-fsanitize=fuzzer,undefined", "-fno-sanitize-recover=all"]


@dataclass(frozen=True)
class Target:
    name: str
    sources: tuple[str, ...]
    longest: int  # bytes of an input
    share: float  # of the time
    is_over_core: bool = False


TARGETS = (
    Target("operations", ("tests/fuzz/operations.cpp", "tests/unit/core.cpp"), 4096, 0.9, True),
    Target("options", ("tests/fuzz/options.cpp",), 300, 0.1),
)


@dataclass(frozen=True)
class Mutant:
    what: str
    edits: tuple[Edit, ...]


MUTANTS = (
    Mutant(
        "with checked=1, a second free is good",
        (swap("Pointers::take_back", "&& !mark_free(p);", "&& !mark_free(p) && false;"),),
    ),
    Mutant(
        "a pointer into an object is good",
        (swap("Starts", "return std::rotr(..) < objects_;", "return true;"),),
    ),
    Mutant(
        "calloc leaves what was there",
        (swap("Engine::allocate_zeroed", "memset(..);", ";"),),
    ),
)


def compile_target(target: Target, source: Path, out: Path, fuzzer: bool = True) -> None:
    """source: the folder in place of src/."""
    compiler = ["clang++-19", *FUZZER] if fuzzer else ["g++"]
    includes = [f"-I{source}", f"-I{ROOT}/include", f"-I{ROOT}/tests/unit", f"-I{HERE}"]
    sources = [str(ROOT / s) for s in target.sources]
    sources += [] if fuzzer else [str(HERE / "replay.cpp")]
    libraries = (
        [str(ROOT / "build/release/liblanemalloc_prefixed.a")] if target.is_over_core else []
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([*compiler, *FLAGS, *includes, *sources, *libraries, "-o", str(out)], check=True)


class Counts:
    passed = failed = 0

    def check(self, good: bool, what: str, said: str = "") -> None:
        print(f"{'ok' if good else 'FAILED'} {what}")
        if good:
            self.passed += 1
            return
        self.failed += 1
        print("".join(f"    {line}\n" for line in said.splitlines()[-40:]), end="")


def inputs_of(target: Target) -> list[str]:
    return sorted(str(file) for file in (HERE / "corpus" / target.name).iterdir())


def replay(program: Path, inputs: Sequence[str]) -> tuple[bool, str]:
    done = subprocess.run(
        [str(program), *inputs], capture_output=True, text=True, errors="replace", check=False
    )
    return done.returncode == 0, done.stdout + done.stderr


def fuzz(target: Target, program: Path, seconds: int, kept: Path) -> tuple[bool, str]:
    """In as many processes as there are CPUs, which share what they find."""
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as found:
        command = [
            str(program),
            f"-max_len={target.longest}",
            "-len_control=0",
            f"-max_total_time={seconds}",
            "-timeout=60",
            "-reload=10",
            f"-artifact_prefix={kept}/{target.name}-",
            found,
            str(HERE / "corpus" / target.name),
        ]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            done = list(
                pool.map(
                    lambda _: subprocess.run(
                        command, capture_output=True, text=True, errors="replace", check=False
                    ),
                    range(os.cpu_count() or 1),
                )
            )
    bad = [run for run in done if run.returncode != 0]
    if not bad:
        return True, ""
    return False, f"{bad[0].stderr}\nonce more: {program} {kept}/{target.name}-.."


def check_mutant(counts: Counts, mutant: Mutant, seconds: int) -> None:
    target = TARGETS[0]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source)
        files = [f for f in source.rglob("*") if f.suffix in (".h", ".cpp")]
        texts = {str(f): f.read_text() for f in files}
        for edit in mutant.edits:
            change(edit, texts)
        for file, text in texts.items():
            Path(file).write_text(text)
        program = Path(folder) / "mutant"
        compile_target(target, source, program)
        good, said = replay(program, inputs_of(target))
        if good:
            good, said = fuzz(target, program, seconds, Path(folder) / "kept")
    why = [line for line in said.splitlines() if line.startswith(("fuzz: ", "lanemalloc: "))]
    counts.check(not good, f"mutant '{mutant.what}' is caught: {why[-1] if why else '?'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--depth", choices=("least", "rest", "all"), default="all")
    parser.add_argument(
        "--only", default="", metavar="NAME", help="this target: operations, options"
    )
    parser.add_argument("--seconds", type=int, help="of fuzzing (default: 60; an hour at scale 10)")
    parser.add_argument("--mutants", action="store_true", help="the mutants too")
    asked = parser.parse_args()
    is_long = float(os.environ.get("LANEMALLOC_TEST_SCALE", "1")) > 1
    seconds = asked.seconds if asked.seconds is not None else 3600 if is_long else 60
    counts = Counts()
    targets = [t for t in TARGETS if asked.only in ("", t.name)]
    if asked.depth != "rest":
        for target in targets:
            if not target.is_over_core:
                program = BUILD / f"replay-{target.name}"
                compile_target(target, ROOT / "src", program, fuzzer=False)
                good, said = replay(program, inputs_of(target))
                counts.check(good, f"{target.name}: {len(inputs_of(target))} inputs", said)
    if asked.depth != "least":
        subprocess.run([ROOT / "tools/build", "release", "lanemalloc_prefixed"], check=True)
        for target in targets:
            program = BUILD / target.name
            compile_target(target, ROOT / "src", program)
            good, said = replay(program, inputs_of(target))
            counts.check(good, f"{target.name}: {len(inputs_of(target))} inputs, checked", said)
            time = max(1, round(seconds * target.share))
            good, said = fuzz(target, program, time, BUILD)
            counts.check(good, f"{target.name}: {time} s of others", said)
        if asked.mutants or is_long:
            for mutant in MUTANTS:
                check_mutant(counts, mutant, 120)
    print(f"{counts.passed} passed, {counts.failed} failed, 0 skipped")
    return int(counts.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
