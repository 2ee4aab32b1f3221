#!/usr/bin/env python3
"""Checks what the shared library asks of the process that loads it.

Called by: tests/golden/run.sh, tests/packages/wheels.sh.

It needs libc.so.6 (and the loader) only; programs ask for it as liblanemalloc.so.0; it exports
exactly what exports.txt lists (--update writes that); its text needs no relocation; its
thread-local words are in the static TLS block (DF_STATIC_TLS), so that reaching one is one
instruction.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from fast_path import ROOT, Verdicts

EXPORTS = Path(__file__).resolve().parent / "exports.txt"
SONAME = "liblanemalloc.so.0"  # another one: docs/abi.md
ALLOWED = re.compile(r"^(?:libc\.so\.6|ld-linux.*\.so\.\d+)$")
# The same before glibc 2.34.
ALLOWED_OLD = re.compile(r"^(?:libc\.so\.6|libpthread\.so\.0|libdl\.so\.2|ld-linux.*\.so\.\d+)$")


def readelf(library: Path, *flags: str) -> str:
    return subprocess.run(
        ["readelf", "-W", *flags, str(library)], capture_output=True, text=True, check=True
    ).stdout


def exported(library: Path) -> list[str]:
    names = set()
    for line in readelf(library, "--dyn-syms").splitlines():
        parts = line.split()
        defined = len(parts) >= 8 and parts[0].rstrip(":").isdigit() and parts[6] != "UND"
        if (
            defined
            and parts[4] in ("GLOBAL", "WEAK", "UNIQUE")
            and not (parts[6] == "ABS" and parts[3] == "OBJECT")
        ):
            names.add(parts[7])
    return sorted(names)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("library", type=Path)
    parser.add_argument("--update", action="store_true", help="write exports.txt")
    parser.add_argument(
        "--exports", type=Path, default=EXPORTS, help="compare with this list instead"
    )
    parser.add_argument("--old-glibc", action="store_true", help="it was linked with an old one")
    arguments = parser.parse_args()
    allowed = ALLOWED_OLD if arguments.old_glibc else ALLOWED
    verdicts = Verdicts()
    dynamic = readelf(arguments.library, "-d")

    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    foreign = [name for name in needed if not allowed.match(name)]
    verdicts.check(
        "libc.so.6" in needed and not foreign, "needs the C library only", ", ".join(needed)
    )

    soname = re.findall(r"\(SONAME\).*\[(.*)\]", dynamic)
    verdicts.check(soname == [SONAME], f"its name for the loader is {SONAME}", ", ".join(soname))

    names = exported(arguments.library)
    if arguments.update:
        EXPORTS.write_text("".join(f"{name}\n" for name in names))
        print(f"wrote {EXPORTS.relative_to(ROOT)}")
    elif not arguments.exports.exists():
        verdicts.check(
            False, f"{arguments.exports.name} is there", "run tests/golden/run.sh --update"
        )
    else:
        wanted = set(arguments.exports.read_text().split())
        changes = [f"-{n}" for n in sorted(wanted.difference(names))] + [
            f"+{n}" for n in names if n not in wanted
        ]
        verdicts.check(
            not changes, f"exports what {arguments.exports.name} lists", " ".join(changes)
        )

    textrel = "(TEXTREL)" in dynamic or re.search(r"\(FLAGS\).*\bTEXTREL\b", dynamic) is not None
    verdicts.check(not textrel, "no relocations in the text")
    static_tls = re.search(r"\(FLAGS\).*\bSTATIC_TLS\b", dynamic) is not None
    verdicts.check(static_tls, "thread-local words in the static TLS block (initial-exec)")
    return verdicts.close()


if __name__ == "__main__":
    sys.exit(main())
