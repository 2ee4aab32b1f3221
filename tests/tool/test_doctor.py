"""lanemalloc doctor: each thing that gets in the way is found,
and what is well is not complained of."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from conftest import CLEAN, LIBRARY, TOOL, tool

PLUGIN = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
int main(int argc, char** argv) { free(malloc(argc)); \
return dlopen(argv[1], RTLD_NOW | MORE) == 0; }
"""
OWN = """
#include <stddef.h>
static char room[1 << 16]; static size_t used;
void* malloc(size_t n) { void* p = room + used; used += (n + 15) & ~15ul; return p; }
void free(void* p) { (void)p; }
void* calloc(size_t a, size_t b) { return malloc(a * b); }
void* realloc(void* p, size_t n) { (void)p; return malloc(n); }
int main(void) { return malloc(1) == 0; }
"""
PLAIN = (
    "#include <stdlib.h>\n"
    "int main(int argc, char** argv) "
    "{ (void)argv; void* volatile p = malloc(argc); free(p); return 0; }\n"
)


def compiled(folder: Path, code: str, *flags: str, name: str = "program") -> Path:
    source = folder / f"{name}.c"
    source.write_text(code)
    subprocess.run(["gcc", "-O1", str(source), "-o", str(folder / name), *flags], check=True)
    return folder / name


def findings(*argv: object, **environment: str) -> dict[str, list[dict[str, str]]]:
    done = tool("doctor", "--json", *argv, environment=environment)
    found = json.loads(done.stdout)
    assert done.returncode == (1 if found["problems"] else 0)
    groups: dict[str, list[dict[str, str]]] = {}
    for one in found["findings"]:
        assert one["level"] == "ok" or one["follows"]
        assert one["level"] != "problem" or one["do"]
        groups.setdefault(one["subject"], []).append(one)
    return groups


def test_here_all_is_well_and_what_is_said_was_tried() -> None:
    found = findings()
    assert found["library"][0]["level"] == "ok"
    assert found["membarrier"][0]["what"].startswith("works")
    assert "tried" in found["lanes=percpu"][0]["what"]
    text = tool("doctor").stdout
    assert "Nothing is in the way." in text


def test_a_plain_program_is_well(tmp_path: Path) -> None:
    found = findings("--", compiled(tmp_path, PLAIN))
    assert {one["level"] for one in found["malloc"] + found["libraries"]} == {"ok"}
    assert "plugins" not in found


def test_a_static_program(tmp_path: Path) -> None:
    assert findings("--", compiled(tmp_path, PLAIN, "-static"))["linkage"][0]["level"] == "problem"
    linked = compiled(
        tmp_path,
        PLAIN,
        "-static",
        str(LIBRARY.parent / "liblanemalloc.a"),
        "-pthread",
        name="linked",
    )
    assert findings("--", linked)["linkage"][0]["level"] == "ok"


def test_a_program_with_a_malloc_of_its_own(tmp_path: Path) -> None:
    found = findings("--", compiled(tmp_path, OWN, "-rdynamic"))
    assert found["malloc"][0]["level"] == "problem"
    assert "malloc" in found["malloc"][0]["what"]


def test_allocators_that_are_linked_in_or_loaded(tmp_path: Path) -> None:
    inside = compiled(tmp_path, PLAIN + "void* mi_malloc(size_t n) { return malloc(n); }\n")
    assert "mimalloc" in findings("--", inside)["malloc"][0]["what"]
    compiled(tmp_path, "void other(void) {}\n", "-shared", "-fPIC", name="libjemalloc.so.2")
    beside = compiled(
        tmp_path,
        PLAIN,
        "-Wl,--no-as-needed",
        str(tmp_path / "libjemalloc.so.2"),
        f"-Wl,-rpath,{tmp_path}",
        name="beside",
    )
    assert "jemalloc" in findings("--", beside)["libraries"][0]["what"]
    sanitized = compiled(tmp_path, PLAIN, "-fsanitize=address", name="sanitized")
    assert findings("--", sanitized)["libraries"][0]["level"] == "problem"


@pytest.mark.parametrize(
    "flags", [[], ["-fno-plt"], ["-fcf-protection=full"], ["-no-pie"], ["-Wl,-z,now"]]
)
def test_plugins_that_are_opened_deep(tmp_path: Path, flags: list[str]) -> None:
    deep = compiled(tmp_path, PLUGIN, "-DMORE=RTLD_DEEPBIND", *flags, name="deep")
    assert findings("--", deep)["plugins"][0]["level"] == "problem"
    usual = compiled(tmp_path, PLUGIN, "-DMORE=RTLD_GLOBAL", *flags, name="usual")
    assert "plugins" not in findings("--", usual)


def test_raised_privileges(tmp_path: Path) -> None:
    program = compiled(tmp_path, PLAIN)
    program.chmod(0o4755)
    assert findings("--", program)["privileges"][0]["level"] == "problem"


def test_scripts_are_followed_to_their_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/usr/bin/env python3\n")
    script.chmod(0o755)
    found = findings("--", script)
    assert "python3" in found["script"][0]["what"] and "libraries" in found


def test_a_program_that_is_not_there() -> None:
    done = tool("doctor", "--", "no-such-program")
    assert done.returncode == 3 and "no program" in done.stderr


def test_unknown_options_are_named_with_the_nearest() -> None:
    found = findings(LANEMALLOC_OPTIONS="decai_ms=3,lanes=percpu")["LANEMALLOC_OPTIONS"]
    assert found[0]["level"] == "problem"
    assert "decay_ms" in found[0]["what"]
    assert (
        findings(LANEMALLOC_OPTIONS="decay_ms=3,stats=exit,strict=1")["LANEMALLOC_OPTIONS"][0][
            "level"
        ]
        == "ok"
    )


def test_without_restartable_sequences_it_says_why() -> None:
    found = findings(GLIBC_TUNABLES="glibc.pthread.rseq=0")["lanes=percpu"][0]
    assert found["level"] == "note"
    assert "shared" in found["what"] and "GLIBC_TUNABLES" in found["do"]


def test_limits_and_other_allocators_in_the_environment() -> None:
    command = f"ulimit -v 8000000; {TOOL} doctor --json"
    done = subprocess.run(
        ["sh", "-c", command],
        capture_output=True,
        text=True,
        env={**CLEAN, "OPENBLAS_NUM_THREADS": "1"},
        check=False,
    )
    found = {one["subject"]: one for one in json.loads(done.stdout)["findings"]}
    assert found["address space"]["level"] == "note"
    assert findings(LD_PRELOAD="libjemalloc.so.2")["LD_PRELOAD"][0]["level"] == "problem"
