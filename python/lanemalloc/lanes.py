"""What lanes have counted, kept from one refresh to the next: of a lane that has done nothing since
only a few words are read again."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lanemalloc.layout import Cell, Layout, Plan, Records, column, gather_plans
from lanemalloc.memory import Addresses, Memory

Numbers = npt.NDArray[np.int64]

# Whenever one of the arrays has changed, one of these has; but for objects put into a batch that
# is not yet sent.
KEYS = ("made", "activity", "misses", "remote_batches", "inbox_drains", "slabs_made")
SMALL = (*KEYS, "thread", "how", "number")
ARRAYS = ("taken", "sent", "received", "batches_to")
SOME = 64  # lanes, up to which everything is read at once


class LaneTable:
    """All lanes of a process. Rows are places in its table,
    also those where no lane is made yet."""

    def __init__(self, layout: Layout, cells: list[tuple[Cell, Plan]]) -> None:
        self._small = layout.plan("lane", SMALL, gap=1024)
        self._large = layout.plan("lane", ARRAYS, gap=1024)
        self._cells = [plan for cell, plan in cells if cell.in_lanes]
        self._keys = [name for name in KEYS if layout.has("lane", name)]
        self._knows_changes = layout.has("lane", "misses") and layout.has("lane", "remote_batches")
        self.small: Records = np.zeros(0, self._small.dtype)
        self.cells: list[Records] = []
        self.arrays = {name: np.zeros((0, 0), np.int64) for name in ARRAYS}
        self.totals = {name: np.zeros(0, np.int64) for name in ARRAYS}
        self.sums = {name: np.zeros(0, np.int64) for name in ARRAYS}

    @property
    def made(self) -> npt.NDArray[np.bool_]:
        result: npt.NDArray[np.bool_] = column(self.small, "made") != 0
        return result

    def refresh(self, memory: Memory, at: Addresses, everything: bool) -> None:
        """`at`: of all lanes. `everything`: also of those that seem to have done nothing."""
        plans = [self._small, *self._cells]
        all_at_once = (
            everything or len(at) <= SOME or len(at) != len(self.small) or not self._knows_changes
        )
        if all_at_once:
            plans.append(self._large)
        gathered = [records for records, _ in gather_plans(memory, [(plan, at) for plan in plans])]
        before, self.small = self.small, gathered[0]
        self.cells = gathered[1 : 1 + len(self._cells)]
        if all_at_once:
            self._take_all(gathered[-1])
            return
        changed = np.flatnonzero(self._changed(before))
        if len(changed):
            self._take_some(changed, self._large.gather(memory, at[changed])[0])

    def _changed(self, before: Records) -> npt.NDArray[np.bool_]:
        changed: npt.NDArray[np.bool_] = np.zeros(len(before), np.bool_)
        for name in self._keys:
            changed |= before[name] != self.small[name]
        return changed

    def _take_all(self, records: Records) -> None:
        made = self.made
        for name in ARRAYS:
            values = two_dimensional(column(records, name))
            values[~made] = 0
            self.arrays[name] = values
            self.sums[name] = values.sum(axis=1)
            self.totals[name] = values.sum(axis=0)

    def _take_some(self, changed: Numbers, records: Records) -> None:
        made = self.made[changed]
        for name in ARRAYS:
            values = two_dimensional(column(records, name))
            values[~made] = 0
            if self.arrays[name].shape[1] == 0:
                continue
            self.totals[name] = self.totals[name] + (values - self.arrays[name][changed]).sum(
                axis=0
            )
            self.arrays[name][changed] = values
            self.sums[name][changed] = values.sum(axis=1)


def two_dimensional(values: Numbers) -> Numbers:
    """A row for each record; no columns where the library has no such field."""
    return values if values.ndim == 2 else np.zeros((len(values), 0), np.int64)
