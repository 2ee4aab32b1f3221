"""What in a program gets in the way: that it is static, raises its privileges,
or brings a malloc of its own."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

from lanemalloc.doctor.binary import Binary, NotElf
from lanemalloc.doctor.finding import Finding, note, ok, problem
from lanemalloc.preload import LIBRARY
from lanemalloc.ui import Problem

MALLOC = {"malloc", "free", "calloc", "realloc"}
OWN_NAMES = {
    "je_malloc": "jemalloc", "jemalloc": "jemalloc",
    "_rjem_malloc": "jemalloc (of Rust)", "_rjem_mallocx": "jemalloc (of Rust)",
    "tc_malloc": "tcmalloc", "TCMallocInternalMalloc": "tcmalloc", "mi_malloc": "mimalloc",
    "rpmalloc": "rpmalloc", "sn_malloc": "snmalloc", "scalable_malloc": "TBB's allocator",
}  # fmt: skip
LIBRARIES = {
    "libjemalloc": "jemalloc", "libtcmalloc": "tcmalloc", "libmimalloc": "mimalloc",
    "libsnmalloc": "snmalloc", "libhoard": "Hoard", "libtbbmalloc_proxy": "TBB's allocator",
    "libasan": "AddressSanitizer", "libtsan": "ThreadSanitizer",
    "libefence": "Electric Fence", "libdmalloc": "dmalloc",
}  # fmt: skip
MACHINES = {"x86_64": 62, "aarch64": 183}
MOST_SCRIPTS = 4


def examine(argv: list[str]) -> list[Finding]:
    """Raises Problem if there is no such program."""
    path = find(argv[0])
    findings = []
    for _ in range(MOST_SCRIPTS):
        interpreter = script_interpreter(path)
        if interpreter is None:
            break
        findings.append(ok("script", f"{path.name} is a script of {interpreter}"))
        path = find(interpreter)
    findings += privileges(path)
    try:
        binary = Binary(path)
    except NotElf as error:
        return [
            *findings,
            problem(
                "program", f"{path}: {error}", "the system cannot run it", "name the program itself"
            ),
        ]
    except OSError as error:
        return [
            *findings,
            note(
                "program",
                f"{path} cannot be read: {error.strerror}",
                "nothing is known of it",
                "run this as root",
            ),
        ]
    return findings + linkage(binary)


def find(name: str) -> Path:
    found = shutil.which(name)
    if found is None:
        raise Problem(f"there is no program {name}", "give the path, or a name that lies in PATH")
    return Path(found).resolve()


def script_interpreter(path: Path) -> str | None:
    """What its #! line names; through env, what env is to find."""
    try:
        with open(path, "rb") as file:
            line = file.readline(256)
    except OSError:
        return None
    if not line.startswith(b"#!"):
        return None
    words = line[2:].decode(errors="replace").split()
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    return words[0] if words else None


def privileges(path: Path) -> list[Finding]:
    mode = path.stat().st_mode
    follows = (
        "the loader leaves libraries out that are preloaded by path, "
        "and the library ignores LANEMALLOC_OPTIONS"
    )
    do = (
        "link the program with liblanemalloc.so or .a; "
        "or give its service the rights another way (systemd AmbientCapabilities)"
    )
    if mode & (stat.S_ISUID | stat.S_ISGID):
        return [problem("privileges", f"{path.name} is setuid or setgid", follows, do)]
    try:
        os.getxattr(path, "security.capability")
    except OSError:
        return []
    return [problem("privileges", f"{path.name} has file capabilities", follows, do)]


def linkage(binary: Binary) -> list[Finding]:
    machine = MACHINES.get(os.uname().machine)
    if not binary.is_64 or (machine is not None and binary.machine != machine):
        what = (
            "it is for another kind of processor" if binary.is_64 else "it is a program of 32 bits"
        )
        return [
            problem(
                "program",
                what,
                "the library cannot be loaded into it",
                "use a program for this machine in 64 bits",
            )
        ]
    if not binary.interpreter and not binary.imports("malloc"):
        return [static_program(binary)]
    if "musl" in binary.interpreter:
        return [
            problem(
                "C library",
                f"it is linked with musl ({binary.interpreter})",
                "a library that was built for glibc cannot be loaded into it",
                "build lanemalloc with musl, or take the static library and link it in front",
            )
        ]
    return own_malloc(binary) + libraries(binary) + plugins(binary)


def static_program(binary: Binary) -> Finding:
    what = "it is linked statically"
    if binary.defines({"runtime.mallocgc"}):
        return problem(
            "linkage",
            what + ", and a Go program",
            "Go has a heap of its own, which no malloc serves",
            "nothing: it does not apply",
        )
    if binary.has_lanemalloc:
        return ok("linkage", what + ", with lanemalloc in it")
    return problem(
        "linkage",
        what,
        "nothing can be preloaded into it",
        "link it again with liblanemalloc.a in front of the C library, or dynamically",
    )


def own_malloc(binary: Binary) -> list[Finding]:
    findings = []
    exported = binary.exports(MALLOC)
    if exported:
        findings.append(
            problem(
                "malloc",
                f"it defines {', '.join(exported)} itself",
                "its own definitions come before those of any library that is preloaded",
                "build it without its allocator "
                "(often a configure switch: --disable-jemalloc, MALLOC=libc)",
            )
        )
    names = {OWN_NAMES[name] for name in binary.defines(set(OWN_NAMES))}
    if names:
        findings.append(
            problem(
                "malloc",
                f"it has {' and '.join(sorted(names))} in it",
                "what it allocates there does not come to lanemalloc",
                "build it without "
                "(often a configure switch: --disable-jemalloc, MALLOC=libc, cargo feature)",
            )
        )
    return findings or [ok("malloc", "it takes malloc from outside")]


def libraries(binary: Binary) -> list[Finding]:
    """Of all libraries that the loader would load."""
    findings = []
    names = [Path(name).name for name in loaded(binary)] or binary.needed()
    for name in names:
        found = next(
            (known for prefix, known in LIBRARIES.items() if name.startswith(prefix)), None
        )
        if found is not None and "anitizer" in found:
            findings.append(
                problem(
                    "libraries",
                    f"it loads {name}",
                    f"{found} needs its own malloc",
                    "test without lanemalloc, or build without it",
                )
            )
        elif found is not None:
            findings.append(
                note(
                    "libraries",
                    f"it loads {name} ({found})",
                    "preloaded, lanemalloc comes first and serves malloc; "
                    "what is asked of that library by its own names does not",
                    "link without it, so that there is one allocator",
                )
            )
        elif name == LIBRARY:
            findings.append(ok("libraries", "it is linked with lanemalloc already"))
    return findings or [ok("libraries", f"none of its {len(names)} libraries is an allocator")]


def loaded(binary: Binary) -> list[str]:
    """As the loader lists them, without running the program; empty if it cannot."""
    if not binary.interpreter or not os.access(binary.interpreter, os.X_OK):
        return []
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    try:
        done = subprocess.run(
            [binary.interpreter, "--list", str(binary.path)],
            capture_output=True,
            text=True,
            timeout=20,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.split("=>")[0].split("(")[0].strip() for line in done.stdout.splitlines()]


def plugins(binary: Binary) -> list[Finding]:
    if binary.opens_deep():
        return [
            problem(
                "plugins",
                "it opens libraries with RTLD_DEEPBIND",
                "these take malloc of the C library, before lanemalloc; "
                "what they allocate and the program frees is a bad pointer",
                "open them without RTLD_DEEPBIND, "
                "or run with bad_pointer=report to see whether it happens",
            )
        ]
    if binary.imports("dlmopen"):
        return [
            note(
                "plugins",
                "it uses dlmopen",
                "libraries in a namespace of their own have a C library, "
                "and a malloc, of their own",
                "free there what was allocated there",
            )
        ]
    return []
