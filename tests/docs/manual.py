#!/usr/bin/env python3
"""Makes the reference and the manual pages anew, in a folder of its own;
looks for what is missing in them and in the chapters.

Called by: tests/docs/run.sh. What is public: what doxygen finds in the headers, and what the
library exports (tests/golden/exports.txt).
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import system_calls

ROOT = Path(__file__).resolve().parent.parent.parent
HEADERS = ROOT / "include" / "lanemalloc"
INTERNAL = {"hit.h"}
# What a copy of a header gets that nobody documents.
UNDOCUMENTED = {
    ".h": (
        "int lane_untold_{0}(int); struct lane_untold_{0}_s {{ int field; }}; "
        "enum lane_untold_{0}_e {{ LANE_UNTOLD_{0} }};\n"
    ),
    ".hpp": (
        "namespace lane {{ int untold_{0}(int); class Untold_{0} {{ public: int method(); }}; }}\n"
    ),
}


def failures_of_run(command: list[str], **environment: str) -> list[str]:
    """What a command that should have nothing to say says."""
    whole = {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=whole)
    said = [line for line in done.stderr.splitlines() if line]
    return said or ([f"{command[0]}: status {done.returncode}"] if done.returncode != 0 else [])


# --- The reference.


def make_reference(folder: Path, source: Path) -> list[str]:
    places = [
        f"INPUT = {source}",
        f"OUTPUT_DIRECTORY = {folder}",
        f"GENERATE_TAGFILE = {folder / 'tags'}",
    ]
    return failures_of_run(
        [
            "tools/make-docs",
            *places,
            "GENERATE_HTML = NO",
            "GENERATE_XML = YES",
            "USE_MDFILE_AS_MAINPAGE =",
        ]
    )


def test_reference(folder: Path) -> list[str]:
    return make_reference(folder, HEADERS)


def test_the_reference_misses_what_is_not_documented(folder: Path) -> list[str]:
    copy = folder / "headers"
    shutil.copytree(HEADERS, copy)
    expected = []
    for header in sorted(copy.iterdir()):
        if header.name in INTERNAL:
            continue
        name = re.sub(r"\W", "_", header.name)
        text = header.read_text()
        end = text.rindex("#ifdef __cplusplus") if header.suffix == ".h" else text.rindex("#endif")
        header.write_text(text[:end] + UNDOCUMENTED[header.suffix].format(name) + text[end:])
        c_names = [
            f"Member lane_untold_{name}(",
            f"Compound lane_untold_{name}_s ",
            f"Member lane_untold_{name}_e ",
        ]
        expected += (
            c_names
            if header.suffix == ".h"
            else [f"Member untold_{name}(", f"Compound lane::Untold_{name} "]
        )
    # And one that has lost a documentation that it had.
    heap = copy / "heap.h"
    heap.write_text(re.sub(r"/\*\* As free\(\).*?\*/\n", "", heap.read_text(), flags=re.DOTALL))
    expected.append("Member lane_heap_free(")
    said = "\n".join(make_reference(folder / "out", copy))
    return [f"no warning of '{name}'" for name in expected if name not in said]


def documented(folder: Path) -> dict[str, set[str]]:
    """Functions and variables in the C headers that are documented, by header."""
    names: dict[str, set[str]] = {}
    for compound in ElementTree.parse(folder / "tags").getroot().iter("compound"):
        file = compound.findtext("name", "")
        if compound.get("kind") == "file" and file.endswith(".h"):
            members = [
                m for m in compound.iter("member") if m.get("kind") in ("function", "variable")
            ]
            names[file] = {m.findtext("name", "") for m in members}
    return names


def exported() -> list[str]:
    names = (ROOT / "tests" / "golden" / "exports.txt").read_text().split()
    internal = "".join((HEADERS / name).read_text() for name in INTERNAL)
    return [
        name
        for name in names
        if name.startswith("lane") and not re.search(rf"\b{name}\b", internal)
    ]


def test_exports(folder: Path) -> list[str]:
    known = set().union(*documented(folder).values())
    known |= {
        name.removeprefix("lane_") for name in known
    }  # lanemalloc_options has no prefix of its own
    names = exported()
    missing = [f"{name} is exported, and not documented" for name in names if name not in known]
    return missing + ([] if len(names) > 40 else ["few exports"])


def test_declared(folder: Path) -> list[str]:
    """By another way than doxygen's: what a compiler sees declared, but for what is not public."""
    known = documented(folder)
    missing = []
    for header in sorted(HEADERS.glob("*.h")):
        text = re.split(r"^/\*\* @cond", header.read_text(), flags=re.MULTILINE)[0]
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        names = set(re.findall(r"^[a-z][\w *]*?\b(lane_\w+)\(", text, flags=re.MULTILINE))
        missing += [
            f"{name} of {header.name} is not documented"
            for name in sorted(names - known.get(header.name, set()))
        ]
        if not names and header.name not in INTERNAL:
            missing.append(f"{header.name} declares nothing")
    return missing


def test_heads(_folder: Path) -> list[str]:
    """What holds for all that a C header declares: its head says it."""
    needed = ("- errors:", "- threads:", "- signals:", "- fork:", "Source:")
    heads = {
        p.name: p.read_text().split("#ifndef")[0]
        for p in HEADERS.glob("*.h")
        if p.name not in INTERNAL
    }
    return [
        f"the head of {name} has no '{word}'"
        for name, text in heads.items()
        for word in needed
        if word not in text
    ]


# --- The manual pages.


def make_pages(folder: Path) -> list[str]:
    return failures_of_run(["tools/make-man", str(folder / "man"), "0"])


def lint(page: Path) -> list[str]:
    """What mandoc and groff have to say."""
    done = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", str(page)],
        capture_output=True,
        text=True,
        check=False,
    )
    man = failures_of_run(
        ["man", "--warnings", "-E", "UTF-8", "-l", str(page)],
        LC_ALL="C.UTF-8",
        MANWIDTH="80",
        MANPAGER="cat",
    )
    return done.stdout.splitlines() + man


def test_pages(folder: Path) -> list[str]:
    said = make_pages(folder)
    pages = [
        p for p in sorted((folder / "man").glob("man?/*")) if not p.read_text().startswith(".so ")
    ]
    return (
        said
        + [line for page in pages for line in lint(page)]
        + ([] if len(pages) >= 6 else [f"only {len(pages)} pages"])
    )


def test_the_lint_finds_faults(folder: Path) -> list[str]:
    page = folder / "bad.3"
    page.write_text(
        ".TH BAD 3 2000-01-01\n.SH NAME\nbad \\- bad\n.SH DESCRIPTION\n.NOSUCHMACRO\n\\fZtext\n"
    )
    said = "\n".join(lint(page))
    return [] if "mandoc:" in said and "troff:" in said else [f"found only: {said}"]


def test_every_function_has_a_page(folder: Path) -> list[str]:
    bad = []
    for header, names in documented(folder).items():
        for name in sorted(names):
            page = folder / "man" / "man3" / f"{name}.3"
            text = page.read_text() if page.exists() else ""
            if text.startswith(".so "):
                text = (folder / "man" / text.split()[1]).read_text()
            if (
                f"lanemalloc/{header}>" not in text or len(re.findall(rf"\b{name}\b", text)) < 3
            ):  # name, synopsis, description
                bad.append(f"{name} has no page")
    command = ["man", "-M", str(folder / "man"), "3", "lane_heap_create"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return bad + (
        [] if "lane_heap_destroy" in found.stdout else ["man does not find lane_heap_create"]
    )


def test_every_option_is_told(folder: Path) -> list[str]:
    """In lanemalloc(7), whose options are those of docs/options.md."""
    keys = re.search(
        r"kKeys\[\] = \{(.*?)\}",
        (ROOT / "src" / "core" / "engine" / "options.h").read_text(),
        re.DOTALL,
    )
    names = re.findall(r'"(\w+)"', keys[1]) if keys else []
    text = (folder / "man" / "man7" / "lanemalloc.7").read_text()
    missing = [
        f"lanemalloc(7) has no option {name}" for name in names if f"\n.B {name}\n" not in text
    ]
    return missing + ([] if len(names) > 8 else ["few options"])


def test_links(_folder: Path) -> list[str]:
    """From all pages to files of this tree."""
    links = [
        (page, link)
        for page in [
            *ROOT.glob("*.md"),
            ROOT / "tests" / "README.md",
            *(ROOT / "docs").rglob("*.md"),
        ]
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    ]
    missing = [
        f"{page.relative_to(ROOT)}: {link} is missing"
        for page, link in links
        if not (page.parent / link).exists()
    ]
    return missing + ([] if len(links) > 50 else ["few links"])


TESTS = [
    test_reference,
    test_the_reference_misses_what_is_not_documented,
    test_exports,
    test_declared,
    test_heads,
    test_pages,
    test_the_lint_finds_faults,
    test_every_function_has_a_page,
    test_every_option_is_told,
    test_links,
    *system_calls.TESTS,
]


def main() -> int:
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        for test in TESTS:
            failures = test(Path(name))
            failed += bool(failures)
            print(f"{'FAILED' if failures else 'ok'} {test.__name__}", *failures, sep="\n  ")
    print(f"{len(TESTS) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
