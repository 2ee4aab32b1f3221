"""What differs between two profiles, by function.

Functions are compared by name: the addresses of two runs differ. Used by: the command profile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from lanemalloc import units
from lanemalloc.profiles import LABELS, Profile, Row

SURE = 2  # standard errors: what differs by less may be chance


@dataclass(frozen=True)
class Change:
    """Of a function."""

    name: str
    before: Row
    after: Row

    @property
    def flat(self) -> int:
        return self.after.flat - self.before.flat

    @property
    def cumulative(self) -> int:
        return self.after.cumulative - self.before.cumulative

    @property
    def error(self) -> int:
        """One standard error of `cumulative`: the two runs have nothing to do with each other."""
        return round(math.sqrt(self.before.variance + self.after.variance))

    @property
    def is_sure(self) -> bool:
        return abs(self.cumulative) > SURE * self.error


def changes(before: Profile, after: Profile) -> list[Change]:
    """The largest first."""
    kind = after.default
    was, now = ({row.name: row for row in one.rows(kind)} for one in (before, after))
    found = [
        Change(name, was.get(name, Row(name)), now.get(name, Row(name))) for name in {**was, **now}
    ]
    return sorted(found, key=lambda one: (-abs(one.flat), -abs(one.cumulative), one.name))


def error_of(before: Profile, after: Profile) -> int:
    return round(math.hypot(before.error(before.default), after.error(after.default)))


def as_json(before: Profile, after: Profile) -> dict[str, Any]:
    kind = after.default
    totals = before.total(kind), after.total(kind)
    return {
        "type": kind,
        "unit": after.types[after.index(kind)].unit,
        "totals": totals,
        "change": totals[1] - totals[0],
        "error": error_of(before, after),
        "functions": [
            {
                "name": one.name,
                "flat": one.flat,
                "cum": one.cumulative,
                "before": one.before.cumulative,
                "after": one.after.cumulative,
                "error": one.error,
                "sure": one.is_sure,
            }
            for one in changes(before, after)
        ],
    }


def lines(
    before: Profile, after: Profile, names: tuple[str, str], top: int, by_cumulative: bool
) -> list[str]:
    """As the table of one profile, with what has changed."""
    kind = after.default
    unit = after.types[after.index(kind)].unit
    totals = before.total(kind), after.total(kind)

    def signed(value: int) -> str:
        return ("+" if value > 0 else "") + units.amount(value, unit)

    found = changes(before, after)
    if by_cumulative:
        found.sort(key=lambda one: (-abs(one.cumulative), -abs(one.flat), one.name))
    told = [
        f"{names[0]} → {names[1]}: {LABELS.get(kind, kind).lower()}, by function ({kind}; "
        "estimated by samples)",
        f"{units.amount(totals[0], unit)} before, {units.amount(totals[1], unit)} after: "
        f"{signed(totals[1] - totals[0])} ± {units.amount(error_of(before, after), unit)}",
    ]
    shown = [one for one in found if one.flat or one.cumulative][:top]
    if not shown:
        return told
    told.append(f"{'flat':>11} {'cum':>11} {'± cum':>11} {'before':>11} {'after':>11}")
    for one in shown:
        cells = (
            signed(one.flat),
            signed(one.cumulative),
            units.amount(one.error, unit),
            units.amount(one.before.cumulative, unit),
            units.amount(one.after.cumulative, unit),
        )
        mark = "" if one.is_sure else "  (may be chance)"
        told.append(f"{' '.join(f'{cell:>11}' for cell in cells)}  {one.name}{mark}")
    return told
