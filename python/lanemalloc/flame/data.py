"""What the page of a profile draws: functions, stacks of them, and values with their errors.

    names     [name, place (module), file] of each function
    stacks    functions, the outermost first
    rows      [stack, size, thread, values, variances]; of two profiles, also those before

Used by: flame.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from lanemalloc.profiles import LABELS, UNKNOWN_STACK, Profile

# Of these, the function below is where a thread began.
BEGINNINGS = re.compile(
    r"_start|_?_?clone3?|start_thread|thread_start|__libc_start_(call_)?main(_impl)?|"
    r"std::(this_thread::)?.*|execute_native_thread_routine|\[(libc|ld)[^\]]*\]|"
    r"<?(core|std|alloc)::.*|__rust_begin_short_backtrace|__pthread_.*"
)


@dataclass(frozen=True)
class Moment:
    """A look at a program while it ran."""

    seconds: float  # since it started
    profile: Profile


def label_of(kind: str) -> str:
    return LABELS.get(kind, kind)


class Functions:
    """Each function once."""

    def __init__(self) -> None:
        self.all: list[list[str]] = []
        self._numbers: dict[tuple[str, str], int] = {}

    def number(self, name: str, place: str, file: str) -> int:
        found = self._numbers.get((name, place))
        if found is None:
            found = self._numbers[name, place] = len(self.all)
            self.all.append([name, place, file])
        return found


class Stacks:
    """Each stack of functions once, whatever the addresses are: those of two runs differ."""

    def __init__(self) -> None:
        self.functions = Functions()
        self.all: list[list[int]] = []
        self._numbers: dict[tuple[int, ...], int] = {}

    def number(self, profile: Profile, addresses: tuple[int, ...]) -> int:
        functions: list[int] = []
        for address in reversed(addresses):
            mapping = profile.mapping_of(address)
            place = mapping.path.rsplit("/", 1)[-1] if mapping else ""
            frames = profile.frames.get(address, ())
            files = [frame.file for frame in frames] or [""]
            functions += [
                self.functions.number(name, place, file)
                for name, file in reversed(list(zip(profile.names_of(address), files)))
            ]
        if not functions:
            functions = [self.functions.number(UNKNOWN_STACK, "", "")]
        key = tuple(functions)
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.all)
            self.all.append(functions)
        return found


def thread_of(names: list[str]) -> str:
    """By the function in which the thread began; `names` are the outermost first."""
    begun = [name for name in names if not BEGINNINGS.fullmatch(name)]
    # A stack that is deeper than what is looked at has lost its beginning.
    return begun[0] if begun and begun[0] != names[0] else "[beginning not known]"


def data_of(profile: Profile, before: Profile | None, moments: list[Moment]) -> dict[str, Any]:
    stacks = Stacks()
    program = next((one.path for one in profile.mappings if one.path.startswith("/")), "")
    data: dict[str, Any] = {
        "types": [
            {"type": one.type, "unit": one.unit, "label": label_of(one.type)}
            for one in profile.types
        ],
        "default": profile.index(profile.default),
        "program": program.rsplit("/", 1)[-1],
        "sized": bool(profile.sized) or bool(before and before.sized),
        "growth": profile.is_growth,
    }
    rows = rows_of(stacks, profile)
    if before is not None:
        was = rows_of(stacks, before)
        data["before"] = [[*key, *was[key]] for key in was]
    data["rows"] = [[*key, *rows[key]] for key in rows]
    data["moments"] = [moment_of(stacks, one) for one in moments]
    functions = stacks.functions.all
    data["names"], data["stacks"] = functions, stacks.all
    threads: list[str] = []
    data["thread_of"] = []
    for stack in stacks.all:
        name = thread_of([functions[number][0] for number in stack])
        if name not in threads:
            threads.append(name)
        data["thread_of"].append(threads.index(name))
    data["threads"] = threads
    return data


def rows_of(
    stacks: Stacks, profile: Profile
) -> dict[tuple[int, int], tuple[list[int], list[float]]]:
    """By stack and size: values and variances."""
    kinds = [one.type for one in profile.types]
    found: dict[tuple[int, int], tuple[list[int], list[float]]] = {}
    for (addresses, size), values in profile.parts():
        key = stacks.number(profile, addresses), size
        variances = [profile.variance(values, kind) for kind in kinds]
        old = found.get(key, ([0] * len(kinds), [0.0] * len(kinds)))
        found[key] = (
            [a + b for a, b in zip(old[0], values)],
            [float(f"{a + b:.3g}") for a, b in zip(old[1], variances)],
        )
    return found


def moment_of(stacks: Stacks, moment: Moment) -> list[Any]:
    """The time, and what was in use by stack."""
    profile = moment.profile
    size = profile.index("inuse_space")
    live: dict[int, int] = {}
    for addresses, values in profile.stacks:
        if values[size]:
            number = stacks.number(profile, addresses)
            live[number] = live.get(number, 0) + values[size]
    return [round(moment.seconds, 3), [n for pair in live.items() for n in pair]]
