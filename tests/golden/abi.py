#!/usr/bin/env python3
"""What compiled programs know of the library, as in abi.txt: functions, structs with their offsets,
constants. docs/abi.md is the policy.

Called by: tests/golden/run.sh. Usage: abi.py [--include FOLDER] [--table FILE] [--update]

A line that has gone or changed breaks programs that were compiled before: it needs another number
of the library (SONAME in binary.py), and --update refuses it under the old one. A new function or
constant, and a field at the end of a struct that may grow, break nothing; --update writes them.
hit.h is not here: it has a table of its own (hit_layout.py).
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from binary import EXPORTS, SONAME
from fast_path import ROOT, Verdicts

# A program tells the size of these, so they may get fields at their ends.
GROWING = {
    "lane_heap_options", "lane_heap_statistics", "lane_pool_options", "lane_pool_statistics",
    "lane_safepoint_statistics", "lane_statistics",
}  # fmt: skip
# malloc's functions under names of their own are in the prefixed library only, which is linked
# statically.
PREFIXED_ONLY = re.compile(
    r"lane_(?:malloc\w*|free\w*|calloc|realloc\w*|posix_memalign|aligned_alloc|memalign"
    r"|p?valloc|lanemalloc_options)"
)


def split_header(text: str) -> tuple[dict[str, list[str]], list[str], list[str]]:
    """Structs with the declarations of their fields; constants; other declarations."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
    constants = re.findall(r"^#define (LANE_\w+)[ \t\\\n]+\S", text, re.M)
    constants = [name for name in constants if not name.endswith("_H")]
    text = re.sub(r"^#(?:[^\n]*\\\n)*[^\n]*$", "", text, flags=re.M)
    text = text.replace('extern "C" {', "")
    text = re.sub(r"__attribute__\(\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\)", "", text)
    structs = {name: [" ".join(field.split()) for field in body.split(";") if field.strip()]
               for name, body in re.findall(r"\bstruct (lane_\w+) \{([^{}]*)\}", text)}  # fmt: skip
    for body in re.findall(r"\benum(?: \w+)? \{([^{}]*)\}", text):
        constants += re.findall(r"\bLANE_\w+(?=\s*(?:=[^,]*)?(?:,|$))", body)
    while (shorter := re.sub(r"\{[^{}]*\}", ";", text)) != text:
        text = shorter
    rest = (" ".join(declaration.split()) for declaration in text.split(";"))
    return (
        structs,
        constants,
        [
            text
            for text in rest
            if re.search(r"\blane_\w+\(|^extern |^typedef ", text) and "inline " not in text
        ],
    )


def name_of(field: str) -> str:
    found = re.search(r"\(\*(\w+)\)|(\w+)(?:\[[^\]]*\])*$", field)
    if found is None:
        raise SystemExit(f"FAILED: no name in the field {field!r}")
    return found[1] or found[2]


def values_of(include: Path, expressions: list[str]) -> list[int]:
    """What a C compiler makes of them."""
    headers = "".join(
        f"#include <lanemalloc/{header.name}>\n"
        for header in sorted((include / "lanemalloc").glob("*.h"))
    )
    lines = "".join(
        f'  printf("%lld\\n", (long long)({expression}));\n' for expression in expressions
    )
    with tempfile.TemporaryDirectory() as name:
        source, program = Path(name) / "values.c", Path(name) / "values"
        source.write_text(
            f"#include <stdio.h>\n{headers}int main(void) {{\n{lines}  return 0;\n}}\n"
        )
        # What the inline functions refer to is the library's; nothing here calls them.
        command = [
            "cc",
            "-O1",
            f"-I{include}",
            "-Wl,--unresolved-symbols=ignore-all",
            "-o",
            str(program),
            str(source),
        ]
        subprocess.run(command, check=True)
        return [
            int(line)
            for line in subprocess.run(
                [program], capture_output=True, text=True, check=True
            ).stdout.split()
        ]


def table_of(include: Path) -> dict[str, str]:
    """Keys in the order of the headers."""
    table: dict[str, str] = {"library": SONAME}
    wanted: list[tuple[str, str, str]] = []  # key, expression, what follows its value
    for header in sorted((include / "lanemalloc").glob("*.h")):
        if header.name == "hit.h":
            continue
        structs, constants, declarations = split_header(header.read_text())
        for declaration in declarations:
            found = re.search(r"\b(lane_\w+)\(", declaration)
            table[f"{header.name} {found[1] if found else declaration.split()[-1]}"] = declaration
        wanted += [(f"{header.name} {name}", name, "") for name in constants]
        for struct, fields in structs.items():
            whole = f"struct {struct}"
            wanted += [
                (f"{struct} size", f"sizeof({whole})", ""),
                (f"{struct} alignment", f"_Alignof({whole})", ""),
            ]
            for field in fields:
                name = name_of(field)
                wanted.append((f"{struct}.{name}", f"offsetof({whole}, {name})", f" {field}"))
                wanted.append((f"{struct}.{name} size", f"sizeof((({whole}*)0)->{name})", ""))
    values = values_of(include, [expression for _, expression, _ in wanted])
    for (key, _, after), value in zip(wanted, values):
        if key in table and table[key] != f"{value}{after}":
            raise SystemExit(f"FAILED: {key} is there twice")
        table[key] = f"{value}{after}"
    return table


def is_harmless(key: str, before: dict[str, str], now: dict[str, str]) -> bool:
    """Whether this difference leaves programs that were compiled before as they were."""
    struct = re.split(r"[. ]", key)[0]
    size = before.get(f"{struct} size")
    if key in before:
        return (
            struct in GROWING
            and key == f"{struct} size"
            and key in now
            and int(now[key]) > int(before[key])
        )
    if size is None:
        return True  # no part of a struct that was there before
    offset = now[key.removesuffix(" size")].split()[0]
    return struct in GROWING and int(offset) >= int(
        size
    )  # not in a gap, which older programs leave as it is


def read(table: Path) -> dict[str, str]:
    return dict(line.split("\t", 1) for line in table.read_text().splitlines())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--include", type=Path, default=ROOT / "include")
    parser.add_argument("--table", type=Path, default=Path(__file__).resolve().parent / "abi.txt")
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    verdicts = Verdicts()
    now = table_of(arguments.include)

    declared = {key.split()[1] for key, text in now.items() if ".h " in key and "(" in text}
    exported = {
        name for name in EXPORTS.read_text().split() if re.match("lane_(?!thread_slot)", name)
    }
    wrong = {name for name in declared ^ exported if not PREFIXED_ONLY.fullmatch(name)}
    verdicts.check(not wrong, "the headers declare what is exported", " ".join(sorted(wrong)))

    before = read(arguments.table) if arguments.table.exists() else {}
    changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    is_new = not before or (arguments.update and before["library"] != SONAME)
    breaking = [] if is_new else [key for key in changed if not is_harmless(key, before, now)]
    for key in changed if before else []:
        print(
            f"{key}: {before.get(key, 'not there')} -> {now.get(key, 'gone')}"
            f"{'   BREAKS PROGRAMS' if key in breaking else ''}"
        )
    verdicts.check(
        not breaking,
        "programs that were compiled before go on working",
        f"{len(breaking)} lines: see docs/abi.md",
    )
    if arguments.update and not breaking:
        arguments.table.write_text("".join(f"{key}\t{value}\n" for key, value in now.items()))
        print(f"wrote {arguments.table.name}")
    else:
        verdicts.check(
            not changed,
            f"as in {arguments.table.name}",
            f"{len(changed)} lines are not; see --update",
        )
    return verdicts.close()


if __name__ == "__main__":
    sys.exit(main())
