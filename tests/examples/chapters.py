#!/usr/bin/env python3
"""Compiles and runs the complete programs of the chapters in docs/, and compares what they print
with what the chapter says; then the commands of README and of docs/use.md.

Called by: tests/examples/run.sh. A program is a block ```c or ```cpp with a main; the next block
```text is what it prints, unless another program comes before it. It is built as a user's would be:
against an installed tree, by pkg-config. A chapter that a header names for its example must have
one; Rust's are run by cargo (tests/rust).
"""

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMPILERS = {"c": "cc -std=c11", "cpp": "c++ -std=c++17"}
FLAGS = "-O1 -g -Wall -Wextra -Wpedantic -Werror -pthread"
# What their commands are about.
SERVER = "#include <stdlib.h>\nint main(void) { free(malloc(100)); return 0; }\n"
ENGINE = (
    "#include <lanemalloc/lanemalloc.h>\n"
    "int main(void) { lane_free(lane_malloc(100)); return 0; }\n"
)
PARSER = (
    "#include <lanemalloc/arena.h>\n"
    "int main(void) { struct lane_arena a = {0}; return lane_arena_alloc(&a, 1) == NULL; }\n"
)
# Builds, tests and what installs into the system are only looked up; the rest runs.
MAKE = f'make() {{ command make --dry-run --directory={ROOT} "$@" >/dev/null; }}\n'
# Configures, and looks whether the rest could run: the whole build is the same as make's.
CMAKE = f"""cmake() {{ case $1 in
  -B) command cmake -S {ROOT} "$@" >/dev/null ;;
  --build) command cmake --build "$2" --target help >/dev/null ;;
  --install) test -f "$2/cmake_install.cmake" ;;
  *) false ;;
esac }}
"""
# tests/tool/test_package.py does it.
PIP = 'pip() { test -f "${!#}/pyproject.toml"; }\npipx() { test "$1" = install; }\n'


@dataclass
class Program:
    name: str
    language: str
    text: str
    prints: str | None


def programs(chapter: str, text: str) -> list[Program]:
    found: list[Program] = []
    last: Program | None = None
    for language, body in BLOCK.findall(text):
        if language in COMPILERS and re.search(r"\bint main\(", body):
            last = Program(f"{chapter}, program {len(found) + 1}", language, body, None)
            found.append(last)
        elif language == "text" and last is not None:
            last.prints, last = body, None
    return found


def chapters_that_need_one() -> list[str]:
    """Those that the headers name, and C++'s."""
    heads = "".join(path.read_text() for path in (ROOT / "include" / "lanemalloc").glob("*.h"))
    return sorted({*re.findall(r"docs/(\w+\.md)\s+(?:\* )?has\s", heads), "cpp.md"})


def install(folder: Path) -> dict[str, str]:
    """The library under folder/prefix; the environment in which pkg-config,
    the loader and man find it."""
    prefix = folder / "prefix"
    subprocess.run(
        ["make", "-s", "-C", str(ROOT), "install", f"PREFIX={prefix}"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    library = next(prefix.rglob("lanemalloc.pc")).parent.parent
    wanted = {
        f"include/lanemalloc/{path.name}" for path in (ROOT / "include" / "lanemalloc").iterdir()
    }
    wanted |= {
        "share/man/man3/lane_heap.3",
        "share/man/man3/lane_heap_create.3",
        "share/man/man7/lanemalloc.7",
    }
    missing = [name for name in sorted(wanted) if not (prefix / name).exists()]
    if missing:
        sys.exit(f"FAILED install: has no {', '.join(missing)}")
    python = subprocess.run(
        [ROOT / "tools" / "python-env"], check=True, capture_output=True, text=True
    ).stdout.strip()
    path = f"{Path(python).parent}:{os.environ['PATH']}"
    return {
        **os.environ,
        "PATH": path,
        "PKG_CONFIG_PATH": str(library / "pkgconfig"),
        "LD_LIBRARY_PATH": str(library),
    }


def shell(
    script: str, folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-euc", script]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def run(program: Program, folder: Path, environment: dict[str, str]) -> str:
    """What is wrong with it."""
    source = folder / f"program.{program.language}"
    source.write_text(program.text)
    build = (
        f"{COMPILERS[program.language]} {FLAGS} {source.name} -o program "
        "$(pkg-config --cflags --libs lanemalloc)"
    )
    built = shell(build, folder, environment)
    if built.returncode != 0:
        return built.stderr
    try:
        done = shell("./program", folder, environment)
    except subprocess.TimeoutExpired:
        return "does not end"
    if done.returncode != 0 or done.stderr:
        return f"status {done.returncode}: {done.stderr}"
    if program.prints is not None and done.stdout != program.prints:
        return f"prints\n{done.stdout}and not\n{program.prints}"
    return ""


def run_commands(commands: str, folder: Path, environment: dict[str, str]) -> str:
    """A block of commands, beside the programs that it speaks of,
    and with this tree's build/, include/ and python/."""
    (folder / "server.c").write_text(SERVER)
    (folder / "engine.c").write_text(ENGINE)
    (folder / "parser.c").write_text(PARSER)
    for name in ("build", "include", "python"):
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)
    done = shell("cc server.c -o server\n" + MAKE + CMAKE + PIP + commands, folder, environment)
    return "" if done.returncode == 0 else f"status {done.returncode}: {done.stderr}\n{commands}"


def self_test(folder: Path, environment: dict[str, str]) -> str:
    """A program that does not build, one that fails, one that prints something else,
    and bad commands are each found."""
    bodies = (
        "int main(void) { return x; }",
        "int main(void) { return 1; }",
        "int main(void) { return 0; }",
    )
    chapter = "".join(
        f"```c\n{body}\n```\nprints\n```sh\ncc\n```\n```text\nsomething\n```\n" for body in bodies
    )
    found = programs("self-test.md", chapter)
    commands = (
        "./nobody",
        "make nosuchtarget",
        "cmake --build nowhere",
        "cmake -B build/by-hand -G nosuch",
        "cc server.c -o server -lnosuchlibrary",
        "pip wheel nowhere/",
    )
    missed = [program.text for program in found if not run(program, folder, environment)]
    missed += [
        command for command in commands if not run_commands(command + "\n", folder, environment)
    ]
    return f"not found: {missed}" if missed or len(found) != len(bodies) else ""


def main() -> int:
    counts = {"ok": 0, "FAILED": 0}

    def count(name: str, wrong: str) -> None:
        result = "FAILED" if wrong else "ok"
        counts[result] += 1
        print(f"{result} {name}", *([wrong] if wrong else []), sep="\n", flush=True)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = install(folder)
        count("self-test", self_test(folder, environment))
        for chapter in sorted(
            {path.name for path in (ROOT / "docs").glob("*.md")} | set(chapters_that_need_one())
        ):
            path = ROOT / "docs" / chapter
            found = programs(chapter, path.read_text()) if path.exists() else []
            for program in found:
                count(program.name, run(program, folder, environment))
            if not found and chapter in chapters_that_need_one():
                count(chapter, "has no complete program" if path.exists() else "is missing")
        for page in ("README.md", "docs/use.md"):
            for i, (language, body) in enumerate(BLOCK.findall((ROOT / page).read_text())):
                if language == "sh":
                    count(f"{page}, block {i + 1}", run_commands(body, folder, environment))
    print(f"{counts['ok']} passed, {counts['FAILED']} failed, 0 skipped")
    return 1 if counts["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
