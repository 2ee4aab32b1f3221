"""Allocators by name: which library is preloaded for `lanemalloc`, `system`, a file, or a peer.

Used by: recorder, replays.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lanemalloc.ui import Problem, native

# Sonames that Debian and others give them.
PEERS = {
    "jemalloc": ("libjemalloc.so.2",),
    "mimalloc": ("libmimalloc.so.3", "libmimalloc.so.2", "libmimalloc.so.2.0"),
    "tcmalloc": ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4"),
    "tbbmalloc": ("libtbbmalloc_proxy.so.2",),
}


@dataclass(frozen=True)
class Allocator:
    """What to preload, under what name, with what options."""

    name: str
    library: Path | None
    options: str = ""

    def environment(self, before: tuple[Path, ...] = ()) -> dict[str, str]:
        """Of a program that is to run under it; `before` is preloaded in front of it."""
        environment = dict(os.environ)
        libraries = [str(path) for path in (*before, self.library) if path is not None]
        if kept := environment.pop("LD_PRELOAD", ""):
            libraries.append(kept)
        if libraries:
            environment["LD_PRELOAD"] = ":".join(libraries)
        if self.options:
            environment["LANEMALLOC_OPTIONS"] = self.options
        return environment

    def __str__(self) -> str:
        return self.name + (f":{self.options}" if self.options else "")


def _peer_folders() -> list[Path]:
    folders = [Path(__file__).resolve().parents[2] / "build" / "peers"]
    if chosen := os.environ.get("LANEMALLOC_PEERS"):
        folders.insert(0, Path(chosen))
    return folders


def _loader_cache() -> dict[str, Path]:
    for command in ("ldconfig", "/sbin/ldconfig"):
        try:
            text = subprocess.run(
                [command, "-p"], capture_output=True, text=True, check=False
            ).stdout
        except OSError:
            continue
        lines = (
            line.strip().split(" => ")
            for line in text.splitlines()
            if "x86-64" in line or "AArch64" in line
        )
        return {parts[0].split(" ")[0]: Path(parts[1]) for parts in lines if len(parts) == 2}
    return {}


def _find_peer(name: str) -> Path:
    for folder in _peer_folders():
        if (file := folder / f"lib{name}.so").exists():
            return file.resolve()
    cache = _loader_cache()
    for soname in PEERS.get(name, ()):
        if soname in cache:
            return cache[soname]
    known = sorted(
        {p.stem[3:] for folder in _peer_folders() for p in folder.glob("lib*.so")} | set(PEERS)
    )
    raise Problem(
        f"allocator {name}: no such library",
        f"give lanemalloc, system, the path of a library, or a peer ({', '.join(known)}); "
        "bench/peers/build.sh builds the peers",
    )


def parse(text: str, options: str = "") -> Allocator:
    """`lanemalloc`, `system`, FILE.so or a peer's name; behind a colon lanemalloc's options."""
    name, _, own = text.partition(":")
    options = own or options
    if name == "system":
        library = None
    elif name == "lanemalloc":
        library = native("liblanemalloc.so")
    elif "/" in name or name.endswith(".so") or ".so." in name:
        library = Path(name).resolve()
        if not library.is_file():
            raise Problem(
                f"allocator {name}: no such file",
                "give the path of a shared library with malloc and free, or: lanemalloc, system",
            )
        with library.open("rb") as file:
            if file.read(4) != b"\x7fELF":
                raise Problem(
                    f"allocator {name} is not a shared library",
                    "give the path of a shared library with malloc and free",
                )
    else:
        library = _find_peer(name)
    if options and library is not None and "lanemalloc" not in library.name:
        raise Problem(
            f"allocator {name} takes no options of lanemalloc's",
            "leave --options out, or choose --allocator lanemalloc",
        )
    if options and library is None:
        raise Problem(
            "the system's allocator takes no options of lanemalloc's",
            "leave --options out, or choose --allocator lanemalloc",
        )
    return Allocator(name, library, options)
