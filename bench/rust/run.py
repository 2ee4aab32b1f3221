"""Real Rust programs with the system allocator, with lanemalloc, and with the allocator that they
ship with, if any.

The sources come from the crates' registry, in the versions below, with the dependencies that their
own lock files name. What is changed: lanemalloc becomes an optional dependency, and a
`#[global_allocator]` is added behind that feature. The variants run in turn on the same generated
input; wall time, CPU time and peak resident memory are medians, shown as ratios to the system
allocator. Instructions are counted by callgrind on a smaller input; they repeat. The outputs are
compared. Called by: bench/rust.sh.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import common  # noqa: E402

WORK = ROOT / "build/rust/bench"
FEATURE = "lanemalloc"
DEPENDENCY = f'\n[dependencies.{FEATURE}]\npath = "{ROOT / "rust/lanemalloc"}"\noptional = true\n'
ALLOCATOR = f"""
#[cfg(feature = "{FEATURE}")]
#[global_allocator]
static LANEMALLOC: lanemalloc::Lanemalloc = lanemalloc::Lanemalloc;
"""


@dataclasses.dataclass
class Program:
    """One program: where its main file is, the features of its variants, and how it is run on an
    input."""

    name: str
    version: str
    binary: str
    main: str
    variants: dict[str, list[str]]
    arguments: list[str]
    counted: list[str]  # further arguments for callgrind


PROGRAMS = [
    Program(
        "ripgrep",
        "15.2.0",
        "rg",
        "crates/core/main.rs",
        {"system": [], "lanemalloc": ["--features", FEATURE]},
        [
            "--json",
            "--no-config",
            "--threads",
            "2",
            "-i",
            r"(thread|lane)s? \w+ (memory|page)",
            "text",
        ],
        ["--threads", "1"],
    ),
    Program(
        "jaq",
        "3.1.2",
        "jaq",
        "src/main.rs",
        {
            "system": ["--no-default-features"],
            "lanemalloc": ["--no-default-features", "--features", FEATURE],
            "mimalloc": [],
        },
        [
            "-c",
            (
                "group_by(.owner) | map({owner: .[0].owner, bytes: map(.sizes | add) | add, "
                "tags: map(.tags[]) | unique})[]"
            ),
            "objects.json",
        ],
        [],
    ),
]


@dataclasses.dataclass
class Run:
    """What one run took."""

    wall: float  # milliseconds
    cpu: float  # milliseconds
    resident: float  # MiB, at the peak
    output: str  # a hash that does not depend on the order of lines


def write_input(directory: Path, size: int) -> None:
    """The same files for the same size: `size` of text, 25 KB each, and a JSON array of as many
    objects times 40."""
    if directory.exists():
        return
    chance = random.Random(7)
    words = (
        "thread lane memory page slab object block free pool heap arena batch owner takes gives "
        "holds sends waits for the of and in to a with its which back every"
    ).split()
    text = directory.with_suffix(".new") / "text"
    text.mkdir(parents=True)
    for n in range(size):
        lines = (" ".join(chance.choices(words, k=12)) for _ in range(400))
        (text / f"{n}.txt").write_text("\n".join(lines) + "\n")
    objects = [
        {
            "owner": f"{chance.choice(words)}-{chance.randrange(50)}",
            "tags": chance.sample(words, 5),
            "sizes": [chance.randrange(4096) for _ in range(10)],
        }
        for _ in range(size * 40)
    ]
    (text.parent / "objects.json").write_text(json.dumps(objects))
    text.parent.rename(directory)


def fetch_sources() -> dict[str, Path]:
    """The programs' sources, by name, as the registry has them."""
    scratch = WORK / "fetch"
    (scratch / "src").mkdir(parents=True, exist_ok=True)
    (scratch / "src/lib.rs").write_text("")
    needs = "".join(f'{p.name} = "={p.version}"\n' for p in PROGRAMS)
    (scratch / "Cargo.toml").write_text(
        '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n'
        f"[workspace]\n[dependencies]\n{needs}"
    )
    subprocess.run(["cargo", "fetch", "--quiet"], cwd=scratch, check=True)
    home = Path(os.environ["CARGO_HOME"]) / "registry/src"
    return {p.name: next(home.glob(f"*/{p.name}-{p.version}")) for p in PROGRAMS}


def build(program: Program, sources: Path) -> dict[str, Path]:
    """Builds every variant; returns the binaries."""
    place = WORK / program.name
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(sources, place)
    with open(place / "Cargo.toml", "a", encoding="utf-8") as manifest:
        manifest.write(DEPENDENCY)
    with open(place / program.main, "a", encoding="utf-8") as main_file:
        main_file.write(ALLOCATOR)
    binaries = {}
    (WORK / "bin").mkdir(exist_ok=True)
    for variant, features in program.variants.items():
        print(f"building {program.name} {program.version} with {variant}", file=sys.stderr)
        subprocess.run(
            ["cargo", "build", "--release", "--quiet", *features],
            cwd=place,
            check=True,
            env={**os.environ, "CARGO_TARGET_DIR": str(WORK / "target")},
        )
        binaries[variant] = WORK / "bin" / f"{program.binary}-{variant}"
        shutil.copy2(WORK / "target/release" / program.binary, binaries[variant])
    return binaries


def fingerprint(output: Path) -> str:
    """Threads write in any order; ripgrep's JSON tells times."""
    lines = re.sub(rb'"elapsed[^}]*\}', b"", output.read_bytes()).splitlines()
    return hashlib.sha256(b"\n".join(sorted(lines))).hexdigest()


def run(command: list[str], directory: Path) -> Run:
    """One run, started by a small program: a child's peak begins with what its parent has
    resident."""
    launch = common.compile_program(ROOT / "bench/programs/launch.c", "launch")
    output, report = WORK / "output", WORK / "report"
    with open(output, "wb") as sink:
        subprocess.run(
            [str(launch), str(report), *command],
            cwd=directory,
            check=True,
            stdout=sink,
            stdin=subprocess.DEVNULL,
        )
    took = dict(word.split("=") for word in report.read_text().split())
    if took["status"] != "0":
        sys.exit(f"bench: {command[0]} ended with {took['status']}")
    return Run(
        int(took["wall_ns"]) / 1e6,
        int(took["cpu_us"]) / 1e3,
        int(took["peak_kib"]) / 1024,
        fingerprint(output),
    )


def count_instructions(command: list[str], directory: Path) -> int:
    done = subprocess.run(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *command],
        cwd=directory,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    found = re.search(r"Collected : (\d+)", done.stderr)
    if found is None:
        sys.exit(f"bench: callgrind did not say how many instructions {command[0]} took")
    return int(found[1])


def measure(program: Program, binaries: dict[str, Path], rounds: int) -> bool:
    """Prints the program's lines; false if the outputs differ."""
    runs: dict[str, list[Run]] = {variant: [] for variant in binaries}
    for n in range(rounds + 1):
        order = list(binaries) if n % 2 == 0 else list(reversed(binaries))
        for variant in order:
            one = run([str(binaries[variant]), *program.arguments], WORK / "input-large")
            if n > 0:  # the first of each warms up
                runs[variant].append(one)
    small = WORK / "input-small"
    counts = {
        variant: count_instructions([str(path), *program.arguments, *program.counted], small)
        for variant, path in binaries.items()
    }

    print(f"{program.name} {program.version}, {rounds} runs each, in turn")
    for variant, of_it in runs.items():
        ratios = []
        for field in ("wall", "cpu", "resident"):
            pairs = [getattr(a, field) / getattr(b, field) for a, b in zip(of_it, runs["system"])]
            ratios.append(statistics.median(pairs))
        wall, resident = (
            statistics.median(getattr(r, field) for r in of_it) for field in ("wall", "resident")
        )
        print(
            f"  {variant:<11} {wall:8.0f} ms {resident:7.1f} MiB   ratios: wall {ratios[0]:.3f}  "
            f"cpu {ratios[1]:.3f}  peak memory {ratios[2]:.3f}  instructions "
            f"{counts[variant] / counts['system']:.4f} ({counts[variant]})"
        )
    same = len({one.output for of_it in runs.values() for one in of_it}) == 1
    print("  the outputs are the same" if same else "  FAILED: the outputs differ")
    return same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("programs", nargs="*", help="of: " + ", ".join(p.name for p in PROGRAMS))
    options = parser.parse_args()
    known = {p.name: p for p in PROGRAMS}
    for name in options.programs:
        if name not in known:
            parser.error(f"unknown program '{name}'; there are: {', '.join(known)}")
    if options.rounds < 1:
        parser.error(f"--rounds must be 1 or more, not {options.rounds}")

    os.environ["CARGO_HOME"] = str(WORK / "home")
    os.environ.pop("RUSTFLAGS", None)
    os.environ.pop("LANEMALLOC_OPTIONS", None)
    WORK.mkdir(parents=True, exist_ok=True)
    write_input(WORK / "input-large", 1600)
    write_input(WORK / "input-small", 40)
    sources = fetch_sources()
    good = True
    for name in options.programs or known:
        good &= measure(known[name], build(known[name], sources[name]), options.rounds)
    return 0 if good else 1


sys.exit(main())
