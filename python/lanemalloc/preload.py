"""The environment in which a program runs with the library."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import click

from lanemalloc.ui import Problem, native

LIBRARY = "liblanemalloc.so"
PRELOAD, OPTIONS = "LD_PRELOAD", "LANEMALLOC_OPTIONS"


LANES = re.compile(r"owned|auto|percpu|shared(?::0*([1-9][0-9]{0,3}))?")
MOST_LANES = 4096


def check_lanes(value: str | None) -> None:
    """What the library would warn of, and then run otherwise than asked for."""
    found = LANES.fullmatch(value) if value is not None else None
    if value is not None and (found is None or int(found[1] or 1) > MOST_LANES):
        raise click.BadParameter(
            f"{value!r} is none of owned, shared, shared:N with N up to {MOST_LANES}, percpu, auto",
            param_hint="'--lanes'",
        )


def parse_options(text: str) -> dict[str, str]:
    """`key=value,key=value`; a later one of the same key wins."""
    found: dict[str, str] = {}
    for word in filter(None, text.split(",")):
        key, _, value = word.partition("=")
        found.pop(key, None)
        found[key] = value
    return found


def format_options(options: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in options.items())


def environment(
    lanes: str | None,
    options: tuple[str, ...],
    defaults: Mapping[str, str],
    base: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The caller's environment with the library in it. Options: what LANEMALLOC_OPTIONS says,
    over it --options, over these --lanes; `defaults` only where none of them says anything of
    the key."""
    result = dict(os.environ if base is None else base)
    merged = parse_options(result.get(OPTIONS, ""))
    for text in options:
        for key, value in parse_options(text).items():
            merged.pop(key, None)
            merged[key] = value
    if lanes is not None:
        merged["lanes"] = lanes
    if "stats" not in merged:
        merged = {**merged, **defaults}
    if merged:
        result[OPTIONS] = format_options(merged)
    result[PRELOAD] = with_library(result.get(PRELOAD, ""), library())
    return result


def with_library(preload: str, path: Path) -> str:
    """First, so that its malloc is the one in use; what was there before stays, but for the library
    itself under any of its names."""
    others = [
        word
        for word in preload.replace(":", " ").split()
        if not f"{Path(word).name}.".startswith(f"{LIBRARY}.")
    ]
    return ":".join([str(path), *others])


def library() -> Path:
    """Of the wheel or checkout. A path with a space or colon cannot be preloaded: a link in the
    temporary folder stands for it."""
    path = native(LIBRARY)
    if not any(mark in str(path) for mark in " :"):
        return path
    import tempfile

    link = Path(tempfile.mkdtemp(prefix="lanemalloc-")) / LIBRARY
    if any(mark in str(link) for mark in " :"):
        raise Problem(
            f"{path} cannot be preloaded: its path has a space or a colon",
            "install the package elsewhere",
        )
    link.symlink_to(path)
    return link
