"""Names of code: which functions, in which lines, lie at the addresses of a profile.

Lines and inlined functions are in a program's debug information, and llvm-symbolizer or addr2line
read it, if there is both. Names alone are in the ELF symbol tables, which are read here; of what is
stripped at least those functions that it exports.

Code that is in no file may have a name by perfmaps.py.

Used by: the commands profile and run.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from lanemalloc import perfmaps
from lanemalloc.binaries import build_id
from lanemalloc.profiles import Frame, Mapping, Profile

SYMBOL = np.dtype(
    [
        ("name", "<u4"),
        ("info", "u1"),
        ("other", "u1"),
        ("section", "<u2"),
        ("value", "<u8"),
        ("size", "<u8"),
    ]
)
FUNCTION, INDIRECT_FUNCTION = 2, 10
TOOLS = ("llvm-symbolizer", *(f"llvm-symbolizer-{n}" for n in range(24, 13, -1)), "addr2line")
DEBUG_FILES = Path("/usr/lib/debug/.build-id")
MOST_SECONDS = 120  # of a tool with one file
NESTED = 8  # symbols that may begin between a function's own and an address in it
CLONE = re.compile(r" \[clone [^]]*\]")
RUST_HASH = re.compile(r"::h[0-9a-f]{16}\Z")


@dataclass
class Symbols:
    """The functions of one file, by address."""

    begins: npt.NDArray[np.uint64]
    ends: npt.NDArray[np.uint64]
    names: Callable[[int], str]

    def at(self, address: int) -> str:
        """Empty if none is known there."""
        first = int(np.searchsorted(self.begins, np.uint64(address), side="right")) - 1
        for i in range(first, max(first - NESTED, -1), -1):
            if address < int(self.ends[i]):
                return self.names(i)
        return ""


@dataclass
class Binary:
    """What is read of a file once."""

    path: str
    loads: list[tuple[int, int, int]] = field(default_factory=list)  # offset, size, address
    symbols: Symbols | None = None
    has_lines: bool = False

    def address_of(self, offset: int) -> int | None:
        """As the file's own tables have it."""
        for begin, size, address in self.loads:
            if begin <= offset < begin + size:
                return offset - begin + address
        return None


def look_up(
    profile: Profile,
    pid: int | None = None,
    lines: bool = True,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> list[str]:
    """Fills in profile.frames. `pid`: a process that runs, whose files are looked for where it sees
    them. Returns what is to be said: files whose names could not be had."""
    by_path: dict[str, list[tuple[int, Mapping]]] = {}
    nowhere = []
    for address in profile.addresses():
        mapping = profile.mapping_of(address)
        if mapping is None or mapping.path.startswith(("/memfd:", "[anon")):
            nowhere.append(address)
        elif mapping.path.startswith("/"):
            by_path.setdefault(mapping.path, []).append((address, mapping))
    notes = []
    for done, (path, places) in enumerate(by_path.items()):
        told(done, len(by_path))
        file = file_of(path, pid, places[0][1].build_id)
        if file is None:
            notes.append(
                f"{path} is not there any more, or is another build now: "
                "its functions have no names"
            )
            continue
        binary = read_binary(file)
        addresses = {
            a: binary.address_of(a - mapping.begin + mapping.offset) for a, mapping in places
        }
        profile.frames.update(
            frames_of(binary, {a: at for a, at in addresses.items() if at is not None}, lines)
        )
    told(len(by_path), len(by_path))
    if nowhere and profile.pid:
        began = profile.time_ns - profile.duration_ns
        profile.frames.update(perfmaps.look_up(nowhere, profile.pid, began))
    return notes


def file_of(path: str, pid: int | None, wanted: str) -> str | None:
    """Where the file of that build can be read; None: nowhere."""
    plain = path.removesuffix(" (deleted)")
    candidates = [plain]
    if pid is not None:
        # The process may have another root; and of its program the system keeps the file itself.
        candidates = [f"/proc/{pid}/root{plain}", plain]
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/exe") == path:
                candidates.insert(0, f"/proc/{pid}/exe")
    for one in candidates:
        if os.access(one, os.R_OK) and (not wanted or build_id(one) == wanted):
            return one
    return None


def read_binary(path: str) -> Binary:
    """What cannot be read stays empty."""
    binary = Binary(path)
    with contextlib.suppress(OSError, ELFError, ValueError, KeyError):
        read_tables(binary, path)
        debug = debug_file(path)
        if debug is not None:
            read_tables(binary, debug)
    return binary


def debug_file(path: str) -> str | None:
    """What distributions keep apart from a file that they have stripped."""
    number = build_id(path)
    found = DEBUG_FILES / number[:2] / f"{number[2:]}.debug"
    return str(found) if number and found.exists() else None


def read_tables(binary: Binary, path: str) -> None:
    """Adds to it what this file has."""
    with open(path, "rb") as stream:
        elf = ELFFile(stream)
        if not binary.loads:
            loads = [one for one in elf.iter_segments() if one["p_type"] == "PT_LOAD"]
            binary.loads = [(one["p_offset"], one["p_filesz"], one["p_vaddr"]) for one in loads]
        binary.has_lines |= any(
            elf.get_section_by_name(name) for name in (".debug_line", ".zdebug_line")
        )
        full = elf.get_section_by_name(".symtab")
        table = full or (elf.get_section_by_name(".dynsym") if binary.symbols is None else None)
        if (
            table is None
            or table["sh_type"] not in ("SHT_SYMTAB", "SHT_DYNSYM")
            or elf.elfclass != 64
        ):
            return
        strings = elf.get_section(table["sh_link"]).data()
        binary.symbols = symbols_of(np.frombuffer(table.data(), SYMBOL), strings)


def symbols_of(table: npt.NDArray[np.void], strings: bytes) -> Symbols:
    kind = table["info"] & 15
    table = table[
        ((kind == FUNCTION) | (kind == INDIRECT_FUNCTION))
        & (table["section"] != 0)
        & (table["size"] > 0)
    ]
    # Of several names of one function the global one comes last, and is found first.
    is_global = (table["info"] >> 4) == 1
    table = table[np.lexsort((is_global, table["value"]))]
    begins: npt.NDArray[np.uint64] = table["value"].astype(np.uint64)
    ends: npt.NDArray[np.uint64] = begins + table["size"].astype(np.uint64)

    def name(i: int) -> str:
        at = int(table["name"][i])
        return strings[at : strings.index(b"\0", at)].decode(errors="replace").split("@")[0]

    return Symbols(begins, ends, name)


def frames_of(
    binary: Binary, addresses: dict[int, int], lines: bool
) -> dict[int, tuple[Frame, ...]]:
    """By the address in the profile."""
    found: dict[int, tuple[Frame, ...]] = {}
    if lines and binary.has_lines:
        by_tool = ask_tool(binary.path, sorted(set(addresses.values())))
        found = {a: by_tool[at] for a, at in addresses.items() if at in by_tool}
    for a, at in addresses.items():
        if a in found or binary.symbols is None:
            continue
        name = binary.symbols.at(at)
        if name:
            found[a] = (frame(name),)
    return found


def ask_tool(path: str, addresses: list[int]) -> dict[int, tuple[Frame, ...]]:
    """What llvm-symbolizer or addr2line says; those that it knows nothing of are left out, all if
    there is neither or it fails."""
    tool = next(filter(None, map(shutil.which, TOOLS)), None)
    if tool is None:
        return {}
    if "llvm" in os.path.basename(tool):
        command = [
            tool,
            "--output-style=GNU",
            "--no-demangle",
            "--functions=linkage",
            "--inlines",
            "--addresses",
            f"--obj={path}",
        ]
    else:
        command = [tool, "-f", "-i", "-a", "-e", path]
    # It would ask servers for debug information.
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("DEBUGINFOD_URLS", "LD_PRELOAD", "LANEMALLOC_OPTIONS")
    }
    text = "".join(f"{a:#x}\n" for a in addresses)
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            timeout=MOST_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return parse_tool(done.stdout)


def parse_tool(text: str) -> dict[int, tuple[Frame, ...]]:
    """The address, then for each function there its name and its line, the innermost first."""
    found: dict[int, list[Frame]] = {}
    here: list[Frame] = []
    name = ""
    for line in text.splitlines():
        if not name and re.fullmatch(r"0x[0-9a-f]+", line):
            here = found.setdefault(int(line, 16), [])
        elif not name:
            name = line
        else:
            place, _, number = line.partition(" (discriminator")[0].rpartition(":")
            if name != "??":
                here.append(
                    frame(
                        name,
                        "" if place.startswith("??") else place,
                        int(number) if number.isdigit() else 0,
                    )
                )
            name = ""
    return {address: tuple(frames) for address, frames in found.items() if frames}


def frame(name: str, file: str = "", line: int = 0) -> Frame:
    """Of a function that the linker knows by that name."""
    readable = simplify(name)
    return Frame(readable, name if readable != name else "", file, line)


def simplify(name: str) -> str:
    """A C++ or Rust function's name as pprof likes it:
    without parameters, template arguments and what it returns."""
    if not name.startswith("_Z"):
        return name
    return plain_name(RUST_HASH.sub("", demangle(name))) or name


@functools.cache
def cxx_library() -> tuple[ctypes.CDLL, ctypes.CDLL] | None:
    """The C library, and the C++ library if there is one."""
    try:
        cxx = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return None
    cxx.__getattr__("__cxa_demangle").restype = ctypes.c_void_p
    return ctypes.CDLL(None), cxx


def demangle(name: str) -> str:
    """The name itself if it stands for nothing, or if there is no C++ library to ask."""
    libraries = cxx_library()
    if libraries is None:
        return name
    c, cxx = libraries
    status = ctypes.c_int()
    made = cxx.__getattr__("__cxa_demangle")(
        name.encode(errors="surrogateescape"), None, None, ctypes.byref(status)
    )
    if not made:
        return name
    try:
        return ctypes.string_at(made).decode(errors="replace")
    finally:
        c.free(ctypes.c_void_p(made))


# What looks like brackets and is none, and what stands for it meanwhile.
KEPT = {
    "(anonymous namespace)": "\1", "operator()": "\2", "operator<=>": "\3",
    "operator<<": "\4", "operator>>": "\5", "operator<": "\6", "operator>": "\7",
    "operator->": "\10",
}  # fmt: skip


def plain_name(full: str) -> str:
    """Of a demangled one."""
    text = CLONE.sub("", full)
    for word, mark in sorted(KEPT.items(), key=lambda one: -len(one[0])):
        text = text.replace(word, mark)
    text = without(without(text, "<", ">"), "(", ")")
    text = re.sub(r"(?: (?:const|volatile|&&?|noexcept))+\Z", "", text)
    before, word, behind = text.partition("operator ")  # new, delete, or a type
    if word and (not before or before[-1] in ": "):
        text = before.rpartition(" ")[2] + word + behind
    else:
        text = text.rpartition(" ")[2] if "{" not in text else text
    for word, mark in KEPT.items():
        text = text.replace(mark, word)
    return text


def without(text: str, begin: str, end: str) -> str:
    """Brackets and what is in them; all of it as it was if they do not fit together."""
    kept, depth = [], 0
    for letter in text:
        if letter == begin:
            depth += 1
        elif letter == end:
            depth -= 1
            if depth < 0:
                return text
        elif depth == 0:
            kept.append(letter)
    return "".join(kept) if depth == 0 else text
