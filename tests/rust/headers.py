#!/usr/bin/env python3
"""Compares the declarations of rust/lanemalloc-sys, which are written by hand, with what bindgen
reads in the C headers.

Generates a Rust program that does not compile where a function's type differs, and that compares,
when it runs, sizes, alignments and offsets of structures and the values of constants; and compares
the names on both sides. Then does so again with declarations that were changed, which must fail.
Called by: tests/rust/run.sh, which says where cargo builds.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CRATE = ROOT / "rust/lanemalloc-sys"
HEADERS = sorted((ROOT / "include/lanemalloc").glob("*.h"))
OPTIONS = ["--use-core", "--no-layout-tests", "--no-doc-comments", "--size_t-is-usize"]

PROGRAM = """
#![allow(dead_code, non_camel_case_types, non_upper_case_globals, unused_imports)]
mod functions {
    use lanemalloc_sys::*;
    include!("functions.rs");
}
mod types {
    include!("types.rs");
}

macro_rules! same_function {
    ($name:ident) => {
        let _ = [functions::$name, lanemalloc_sys::$name];
        println!("ok {}", stringify!($name));
    };
}
macro_rules! same {
    ($what:expr, $theirs:expr, $ours:expr) => {
        let (theirs, ours) = ($theirs, $ours);
        println!("{} {}: {:?} in C, {:?} in Rust", if theirs == ours { "ok" } else { "FAILED" }, \
$what, theirs, ours);
    };
}
fn offset_and_size<S, F>(structure: *const S, field: *const F) -> (usize, usize) {
    (field as usize - structure as usize, std::mem::size_of::<F>())
}
macro_rules! place {
    ($type:ty, $field:ident) => {{
        let memory = std::mem::MaybeUninit::<$type>::uninit();
        let structure = memory.as_ptr();
        offset_and_size(structure, unsafe { std::ptr::addr_of!((*structure).$field) })
    }};
}

fn main() {
CHECKS
}
"""


def bindgen(header: Path, *options: str) -> str:
    """What bindgen makes of the headers."""
    include = f"-I{ROOT / 'include'}"
    command = ["bindgen", str(header), *OPTIONS, *options, "--", include]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    # Rust has no va_list.
    return re.sub(r'extern "C" \{[^{}]*va_list[^{}]*\}', "", text)


def checks_of(functions: str, types: str) -> list[str]:
    """The lines of main()."""
    lines = [f"same_function!({name});" for name in re.findall(r"pub fn (lane_\w+)", functions)]
    for name, body in re.findall(r"pub struct (lane_\w+) \{(.*?)\n\}", types, re.S):
        fields = re.findall(r"pub (\w+):", body)
        # Programs see pointers to the first only; the others are for hits in line.
        if fields in ([], ["_unused"], ["_address"]) or re.search("_(bin|place)$", name):
            continue
        for measure in ("size_of", "align_of"):
            lines.append(
                f'same!("{measure} {name}", std::mem::{measure}::<types::{name}>(), '
                f"std::mem::{measure}::<lanemalloc_sys::{name}>());"
            )
        lines += [
            f'same!("{name}.{field}", place!(types::{name}, {field}), '
            f"place!(lanemalloc_sys::{name}, {field}));"
            for field in fields
        ]
    for name, enumerator in re.findall(r"pub const ((?:[a-z_]+_)?(LANE_[A-Z_]+)): ", types):
        lines.append(
            f'same!("{enumerator}", types::{name} as i64, lanemalloc_sys::{enumerator} as i64);'
        )
    return lines


def compare(directory: Path, functions: str, types: str) -> tuple[int, str]:
    """Builds and runs the program: its status and output."""
    (directory / "src").mkdir(parents=True, exist_ok=True)
    (directory / "Cargo.toml").write_text(
        '[package]\nname = "headers"\nversion = "0.0.0"\nedition = "2021"\n[workspace]\n'
        f'[dependencies]\nlanemalloc-sys = {{ path = "{CRATE}" }}\n'
    )
    (directory / "Cargo.lock").unlink(missing_ok=True)  # another cargo's
    (directory / "src/functions.rs").write_text(functions)
    (directory / "src/types.rs").write_text(types)
    checks = "\n".join(checks_of(functions, types))
    (directory / "src/main.rs").write_text(PROGRAM.replace("CHECKS", checks))
    done = subprocess.run(
        ["cargo", "run", "--offline", "--quiet"],
        cwd=directory,
        check=False,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return done.returncode, done.stdout


def declared_in_rust() -> set[str]:
    return {
        name
        for source in (CRATE / "src").glob("*.rs")
        for name in re.findall(r"pub (?:unsafe )?fn (lane_\w+)", source.read_text())
    }


def mutants(functions: str, types: str) -> list[tuple[str, str, str]]:
    """Declarations that are wrong in one place: name, functions, types."""
    found = [
        ("a parameter", functions.replace("(size: usize)", "(size: u32)", 1), types),
        ("a result", functions.replace("-> usize", "-> u32", 1), types),
    ]
    if "pub struct" in types:
        found.append(("a field", functions, types.replace(": usize,", ": u32,", 1)))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "directory",
        type=Path,
        help="where the generated declarations and the program that compares them go",
    )
    directory = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    header = directory / "all.h"
    header.write_text("".join(f"#include <lanemalloc/{h.name}>\n" for h in HEADERS))
    os.environ.setdefault("LIBCLANG_PATH", "/usr/lib/llvm-14/lib")
    functions = bindgen(
        header,
        "--ctypes-prefix",
        "lanemalloc_sys",
        "--allowlist-function",
        "lane_.*",
        "--blocklist-type",
        ".*",
    )
    types = bindgen(
        header,
        "--ctypes-prefix",
        "std::os::raw",
        "--allowlist-type",
        "lane_.*",
        "--allowlist-var",
        "LANE_POOL_.*",
    )

    status, output = compare(directory, functions, types)
    print(output, end="")
    passed, failed = (
        len(re.findall("^ok ", output, re.M)),
        len(re.findall("^FAILED ", output, re.M)),
    )
    if status != 0:
        print("FAILED the declarations differ: the program does not build")
        failed += 1

    in_c = set(re.findall(r"pub fn (lane_\w+)", functions))
    in_line = {
        name
        for h in HEADERS
        for name in re.findall(r"^static inline [^(]*?(lane_\w+)\(", h.read_text(), re.M)
    }
    for name in sorted(in_c - declared_in_rust()):
        print(f"FAILED {name} is not declared in Rust")
        failed += 1
    for name in sorted(declared_in_rust() - in_c - in_line):
        print(f"FAILED {name} is in no header")
        failed += 1

    for name, their_functions, their_types in mutants(functions, types):
        status, output = compare(directory, their_functions, their_types)
        if (their_functions, their_types) != (functions, types) and (
            status != 0 or "FAILED" in output
        ):
            print(f"ok {name} that differs is found")
            passed += 1
        else:
            print(f"FAILED {name} that differs is not found")
            failed += 1
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed or not passed else 0


sys.exit(main())
