#!/usr/bin/env python3
"""Compiles and runs the complete programs of the chapters in docs/, and compares what they print with what the chapter says.

Called by: tests/examples/run.sh. A program is a block ```c or ```cpp with a main; the next block ```text is what it prints. What is
printed may also be left out of the chapter. A program that needs a function that the library lacks is skipped, and told.
"""

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LIBRARY = ROOT / "build" / "release" / "liblanemalloc.so"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMPILERS = {"c": ["cc", "-std=c11"], "cpp": ["c++", "-std=c++17"]}
FLAGS = ["-O1", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread", f"-I{ROOT / 'include'}"]


@dataclass
class Program:
    name: str
    language: str
    text: str
    prints: str | None


def programs(chapter: Path, text: str) -> list[Program]:
    blocks = BLOCK.findall(text)
    found: list[Program] = []
    for i, (language, body) in enumerate(blocks):
        if language in COMPILERS and re.search(r"\bint main\(", body):
            follower = blocks[i + 1] if i + 1 < len(blocks) else ("", "")
            prints = follower[1] if follower[0] == "text" else None
            found.append(Program(f"{chapter.name}, program {len(found) + 1}", language, body, prints))
    return found


def run(program: Program, folder: Path) -> tuple[str, str]:
    """ok, skipped or FAILED; and why."""
    source = folder / f"program.{program.language}"
    source.write_text(program.text)
    binary = folder / "program"
    command = [*COMPILERS[program.language], *FLAGS, str(source), str(LIBRARY), f"-Wl,-rpath,{LIBRARY.parent}", "-o", str(binary)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        missing = re.findall(r"undefined reference to `(lane_\w+)'", built.stderr)
        if missing and not re.search(r"^(?!collect2).*error:", built.stderr, re.MULTILINE):
            return "skipped", f"the library has no {missing[0]}"
        return "FAILED", built.stderr
    try:
        done = subprocess.run([str(binary)], capture_output=True, text=True, check=False, timeout=60)
    except subprocess.TimeoutExpired:
        return "FAILED", "does not end within a minute"
    if done.returncode != 0 or done.stderr:
        return "FAILED", f"status {done.returncode}: {done.stderr}"
    if program.prints is not None and done.stdout != program.prints:
        return "FAILED", f"prints\n{done.stdout}and not\n{program.prints}"
    return "ok", ""


def self_test(folder: Path) -> bool:
    """A program that does not build, one that fails, and one that prints something else are each found."""
    bodies = ("int main(void) { return x; }", "int main(void) { return 1; }", "int main(void) { return 0; }")
    chapter = "".join(f"```c\n{body}\n```\nprints\n```text\nsomething\n```\n" for body in bodies)
    found = programs(Path("self-test.md"), chapter)
    return len(found) == len(bodies) and all(run(program, folder)[0] == "FAILED" for program in found)


def main() -> int:
    counts = {"ok": 0, "FAILED": 0, "skipped": 0}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        good = self_test(folder)
        counts["ok" if good else "FAILED"] += 1
        print(f"{'ok' if good else 'FAILED'} self-test")
        for chapter in sorted((ROOT / "docs").glob("*.md")):
            for program in programs(chapter, chapter.read_text()):
                result, why = run(program, folder)
                counts[result] += 1
                print(f"skipped: {program.name}: {why}" if result == "skipped" else f"{result} {program.name}")
                if result == "FAILED":
                    print(why)
    print(f"{counts['ok']} passed, {counts['FAILED']} failed, {counts['skipped']} skipped")
    return 1 if counts["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
