#!/usr/bin/env python3
"""Fails if a program or library needs a newer glibc than the one named, or more than glibc.

Called by: tests/packages/wheels.sh.
"""

import re
import subprocess
import sys

OF_GLIBC = re.compile(r"^(?:lib(?:c|m|dl|pthread|rt)\.so\.\d+|ld-linux[-\w]*\.so\.\d+)$")


def main() -> int:
    file, most = sys.argv[1:]
    limit = tuple(map(int, most.split(".")))
    told = subprocess.run(
        ["readelf", "-W", "--dynamic", "--version-info", file],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", told)
    versions = re.findall(r"Name: (GLIBC_\w+(?:\.\d+)*)", told)
    wrong = [name for name in needed if not OF_GLIBC.match(name)] + [
        name
        for name in versions
        if not (parts := re.fullmatch(r"GLIBC_([\d.]+)", name))
        or tuple(map(int, parts[1].split("."))) > limit
    ]
    print(f"{file}: {', '.join(wrong) or 'needs ' + ', '.join(sorted({*needed, *versions}))}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
