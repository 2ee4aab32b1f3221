"""Reads what lanemalloc has counted in another process, without stopping it.

    reader = Reader.open(pid)      # raises Problem: no such process, not allowed, not under
                                     lanemalloc, another version, ...
    first = reader.read()
    ...
    rates = reader.read().difference(first)

A refresh takes a handful of system calls however many threads the process has: one for the root and
the world, one for every thousand pieces of lanes. Slabs and bins grow with the heap: they are read
when asked for, within a budget of time, and kept until they are read again (Snapshot.moment says
when).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lanemalloc import elf, process
from lanemalloc.lanes import LaneTable
from lanemalloc.layout import (
    ROOT,
    Cell,
    Field,
    Layout,
    Plan,
    Records,
    column,
    gather_plans,
    plan_of,
    read_layout,
    read_root,
)
from lanemalloc.memory import Addresses, Gone, Memory, ProcessMemory, Unreadable
from lanemalloc.slabs import DEPOT, Bins, Slabs, leads_to, read_bins, read_slabs
from lanemalloc.snapshot import (
    ENTRIES,
    FILLS,
    KINDS_OF_OWNERS,
    CellFigures,
    Classes,
    Lanes,
    Moment,
    Numbers,
    OwnerFigures,
    Snapshot,
)
from lanemalloc.ui import Problem

WORLD_FIELDS = (
    "lane_count", "lanes_at", "map_at", "states_at", "base", "frontier", "opened", "depot_freed",
    "direct_frees", "sampled_allocations", "sampled_frees", "large_allocations", "large_frees",
    "large_bytes", "claimed_blocks", "dirty_blocks", "clean_blocks", "purged_blocks",
    "moved_blocks", "entry", "shared_lanes", "auto", "decay_ms", "first_family", "overflow_entries",
    "nested_entries", "rescues", "revocations", "refused_revocations", "rebinds", "bad_pointers",
    "probes", "depot_moved", "checked", "scavenger", "link_secret",
)  # fmt: skip
OWNER_FIELDS = ("next", "type", "name", "kinds", "contention")
KIND_FIELDS = ("next", "size", "slabs", "contended", "budget")
BUDGET_FIELDS = ("used", "peak", "limit", "parent", "count", "failures")
CELL_FIELDS = ("count", "failures", "waits", "waited_ns", "waits_by_time", "sites")
LOOP_FIELDS = ("count", "failures")

MOST_LANES = 1 << 16
MOST_OWNERS, MOST_KINDS = 512, 4096
MOST_SITES = 16  # of the cells of one name
NO_LIMIT = 1 << 62


@dataclass
class Cost:
    """How long a part took when it was last read, and when that was."""

    seconds: float = 0.0
    at: float = -1e9

    def is_due(self, share: float) -> bool:
        """Whether reading it again now keeps it within that share of a CPU."""
        return time.monotonic() - self.at >= self.seconds / share


@dataclass
class Wanted:
    """Which of the parts that cost to read, and for how long at most."""

    slabs: bool = True
    bins: bool = False
    seconds: float = 1.0


EXACT = Wanted(slabs=True, bins=True, seconds=10.0)


@dataclass
class Plans:
    """What is read at every refresh."""

    root: Plan
    world: Plan
    bins: Plan
    owner: Plan
    kind: Plan
    budget: Plan
    cells: list[tuple[Cell, Plan]] = field(default_factory=list)
    pool_cell: Plan | None = None


class Reader:
    """Of one process. Its methods raise Gone when it has ended or runs another program."""

    def __init__(
        self,
        memory: Memory,
        layout: Layout,
        facts: Callable[[], process.ProcessFacts],
        path: str = "",
    ) -> None:
        self.memory = memory
        self.layout = layout
        self.path = path  # the file that the allocator lies in
        self.also: list[str] = []  # other copies of the allocator in use there
        self._facts = facts
        self._plans = make_plans(layout)
        self._lanes = LaneTable(layout, self._plans.cells)
        self._slabs: Slabs | None = None
        self._bins: Bins | None = None
        self._moment = Moment()
        self._costs = {"slabs": Cost(), "bins": Cost()}
        self._owners: list[int] = []

    @classmethod
    def open(cls, pid: int) -> Reader:
        """Finds the root of the process; of several in use that with most memory."""
        facts = process.facts
        memory = ProcessMemory(pid)
        candidates = elf.images(pid)
        found = elf.find_roots(memory, candidates)
        roots = [
            (at, path, root) for at, path in found if (root := read_root(memory, at)) is not None
        ]
        if not roots:
            raise Problem(
                f"process {pid} does not run with lanemalloc",
                "start it with `lanemalloc run -- PROGRAM`, or with LD_PRELOAD=liblanemalloc.so; "
                "a static or setuid program does not take it "
                "(`lanemalloc doctor -- PROGRAM` tells)",
            )
        started = [one for one in roots if one[2]["started_at_ns"]]
        if not started:
            raise Problem(
                f"process {pid} has lanemalloc, and has not asked it for memory yet",
                "try again in a moment",
            )
        readers = []
        for at, path, root in started:
            readers.append(cls(memory, read_layout(memory, at, root), lambda: facts(pid), path))
        best = max(readers, key=lambda reader: reader.claimed())
        best.also = [reader.path for reader in readers if reader is not best]
        return best

    @property
    def started_at_ns(self) -> int:
        """Of CLOCK_MONOTONIC: with the process id it says which run of a program this is."""
        return self.layout.number("started_at_ns")

    def claimed(self) -> int:
        """Blocks that there are."""
        try:
            world = self._plans.world.read(self.memory, self.layout.number("world"))
        except Unreadable:
            return 0
        return int(world["frontier"])

    def slabs(self) -> Slabs:
        """As they were last read."""
        if self._slabs is None:
            self.read(Wanted())
        assert self._slabs is not None
        return self._slabs

    def is_there(self) -> bool:
        """Whether what lies at the root is what lay there when it was opened."""
        try:
            self._facts()
            self._read_world()
        except (Problem, Unreadable):
            return False
        return True

    def cells(self) -> list[CellFigures]:
        """Nothing but these, which takes little; those of pools' locks too, as one. Raises Gone,
        Unreadable."""
        self._facts()
        world, own = self._read_world()
        numbers = numbers_of(world)
        at = self._lane_addresses(numbers, [])
        of_lanes = [
            records
            for records, _ in gather_plans(
                self.memory, [(plan, at) for cell, plan in self._plans.cells if cell.in_lanes]
            )
        ]
        found = [
            figures_of_cell(cell, (of_lanes if cell.in_lanes else own).pop(0))
            for cell, _ in self._plans.cells
        ]
        return found + self._pool_cell(
            [numbers_of(owner).get("contention", 0) for _, owner in self._owner_chain(numbers)[0]]
        )

    def read(self, wanted: Wanted | None = None) -> Snapshot:
        """Raises Gone. What cannot be read for another reason is left out, and said in
        `left_out`."""
        wanted = wanted or Wanted()
        try:
            return self._read(wanted)
        except Unreadable as error:
            self._facts()  # raises Gone
            raise Gone(
                f"process {self._pid()} runs another program now, or is ending ({error})"
            ) from None

    def read_paced(self, share: float = 0.003) -> Snapshot:
        """Reads slabs and bins only as often as keeps each of them within that share of a CPU."""
        slabs, bins = self._costs["slabs"].is_due(share), self._costs["bins"].is_due(share)
        return self.read(Wanted(slabs=slabs or bins, bins=bins, seconds=0.2))

    def _pid(self) -> int:
        return getattr(self.memory, "pid", 0)

    def _read(self, wanted: Wanted) -> Snapshot:
        facts = self._facts()
        at_ns = time.monotonic_ns()
        left_out: list[str] = []
        world, cells = self._read_world()
        numbers = numbers_of(world)
        wants_bins = wanted.bins and self.layout.has("lane", "bins") and "base" in numbers
        lanes_at = self._lane_addresses(numbers, left_out)
        self._lanes.refresh(self.memory, lanes_at, everything=wanted.bins)
        made = self._lanes.made
        if wanted.slabs or self._slabs is None:
            self._read_slabs(numbers, wanted.seconds, at_ns)
        if wants_bins:
            self._read_bins(lanes_at, made, numbers, wanted.seconds, at_ns)
        lane_cells = iter(self._lanes.cells)
        all_cells = [
            (cell, next(lane_cells)[made] if cell.in_lanes else cells.pop(0))
            for cell, _ in self._plans.cells
        ]
        assert self._slabs is not None
        self._say_what_is_missing(left_out)
        owners = self._read_owners(numbers, left_out)
        waiting = self._waiting(lanes_at, made)
        return Snapshot(
            at_ns=at_ns,
            wall=time.time(),
            process=facts,
            library=self.layout.library,
            options=self.layout.options,
            started_at_ns=self.layout.number("started_at_ns"),
            entry=entry_of(numbers),
            world=with_bytes(numbers, self.layout.number("block_shift")),
            probes=array_of(world, "probes"),
            classes=add_up_classes(self.layout, world, self._lanes.totals, self._slabs, waiting),
            lanes=lanes_of(self.layout, self._lanes, self._slabs, waiting, all_cells),
            cells=[figures_of_cell(cell, records) for cell, records in all_cells]
            + self._pool_cell([one.lock for one in owners])
            + budget_cell(owners),
            owners=owners,
            batches=self._lanes.arrays["batches_to"][made],
            kind_bytes=int(self._slabs.blocks[self._slabs.private].sum())
            << self.layout.number("block_shift"),
            moment=Moment(self._moment.slabs_ns, self._moment.slabs_share, self._moment.bins_ns),
            left_out=left_out,
            missing=sorted(self.layout.missing),
        )

    def _read_world(self) -> tuple[np.void, list[Records]]:
        """Of the world and its own cells; Gone if what lies at the root is not what lay there."""
        at = np.array([self.layout.number("world")], np.uint64)
        own = [plan for cell, plan in self._plans.cells if not cell.in_lanes]
        root_at = np.array([self.layout.at], np.uint64)
        plans = [(self._plans.root, root_at), (self._plans.world, at)] + [
            (plan, at) for plan in own
        ]
        (root, _), (world, complete), *cells = gather_plans(self.memory, plans)
        if (
            not complete[0]
            or root[0]["magic"] != b"lanestat"
            or root[0]["world"] != self.layout.root["world"]
        ):
            raise Unreadable("the root")
        return world[0], [records for records, _ in cells]

    def _lane_addresses(self, world: dict[str, int], left_out: list[str]) -> Addresses:
        count = world["lane_count"]
        if count > MOST_LANES:
            left_out.append(f"lanes from {MOST_LANES} on, of {count}")
            count = MOST_LANES
        steps = np.arange(count, dtype=np.uint64)
        addresses: Addresses = steps * np.uint64(self.layout.number("lane_bytes")) + np.uint64(
            world["lanes_at"]
        )
        return addresses

    def _read_slabs(self, world: dict[str, int], seconds: float, at_ns: int) -> None:
        begin = time.thread_time()
        self._slabs = read_slabs(self.memory, self.layout, world, seconds)
        self._costs["slabs"] = Cost(time.thread_time() - begin, time.monotonic())
        self._moment.slabs_ns, self._moment.slabs_share = at_ns, self._slabs.share

    def _read_bins(
        self,
        at: Addresses,
        made: npt.NDArray[np.bool_],
        world: dict[str, int],
        seconds: float,
        at_ns: int,
    ) -> None:
        assert self._slabs is not None
        begin = time.thread_time()
        records, _ = self._plans.bins.gather(self.memory, at)
        # A bin has four words. The last is the link to its first object.
        links = records["bins"][:, 3::4].astype(np.uint64)
        heads = np.zeros((len(at), len(self.layout.class_sizes)), np.uint64)
        heads[:, : links.shape[1]] = leads_to(links, world)
        heads[~made] = 0
        self._bins = read_bins(self.memory, self.layout, world, heads, self._slabs, seconds)
        self._costs["bins"] = Cost(time.thread_time() - begin, time.monotonic())
        self._moment.bins_ns = at_ns

    def _waiting(self, at: Addresses, made: npt.NDArray[np.bool_]) -> Numbers:
        """Of the lanes there are now, as it was when bins were last followed."""
        waiting: Numbers = np.zeros((len(at), len(self.layout.class_sizes)), np.int64)
        if self._bins is not None:
            n = min(len(at), len(self._bins.waiting))
            waiting[:n] = self._bins.waiting[:n, : waiting.shape[1]]
        return waiting[made]

    def _say_what_is_missing(self, left_out: list[str]) -> None:
        assert self._slabs is not None
        if self._slabs.share < 1:
            left_out.append(
                f"slabs: {self._slabs.share:.0%} of them were read in the time there is; "
                "the others are taken to be alike"
            )
        if self._bins is None:
            left_out.append("bins were not followed: what waits there counts as live")
        elif self._bins.torn or self._bins.skipped:
            left_out.append(
                f"bins: {self._bins.torn} changed while they were followed, "
                f"{self._bins.skipped} left out for time"
            )

    def _owner_chain(self, world: dict[str, int]) -> tuple[list[tuple[int, np.void]], bool]:
        """The list is read at once where it was as at the last time, else from one to the next."""
        first = world.get("first_family", 0)
        if not first or not self.layout.has("family", "next"):
            return [], True
        chain, whole = read_chain(self.memory, self._plans.owner, first, self._owners, MOST_OWNERS)
        self._owners = [at for at, _ in chain]
        return chain, whole

    def _read_owners(self, world: dict[str, int], left_out: list[str]) -> list[OwnerFigures]:
        chain, whole = self._owner_chain(world)
        if not whole:
            left_out.append(f"heaps and pools behind the first {len(chain)}")
        slabs = self._slabs
        assert slabs is not None
        return [
            owner_figures(self.memory, self._plans, at, record, slabs, self.layout)
            for at, record in chain
        ]

    def _pool_cell(self, locks: list[int]) -> list[CellFigures]:
        """All pools' locks as one cell, if there are any."""
        plan, at = self._plans.pool_cell, np.array([lock for lock in locks if lock], np.uint64)
        return (
            [figures_of_cell(Cell("pools", False, False, 0), plan.gather(self.memory, at)[0])]
            if plan is not None and len(at)
            else []
        )


def make_plans(layout: Layout) -> Plans:
    root = plan_of({"magic": Field(0, 8, 1, 3), "world": Field(56, 1, 8, 0)}, ROOT.itemsize)
    plans = [(cell, plan_of_cell(layout, cell)) for cell in layout.cells]
    return Plans(
        root=root,
        world=layout.plan("world", WORLD_FIELDS, gap=4096),
        bins=layout.plan("lane", ("bins",)),
        owner=layout.plan("family", OWNER_FIELDS),
        kind=layout.plan("kind", KIND_FIELDS),
        budget=layout.plan("budget", BUDGET_FIELDS),
        cells=[(cell, plan) for cell, plan in plans if plan is not None],
        pool_cell=plan_of_cell(layout, Cell("pools", False, False, 0)),
    )


def plan_of_cell(layout: Layout, cell: Cell) -> Plan | None:
    """None: the library tells nothing of it."""
    known = layout.fields.get("cell", {})
    moved = {
        name: Field(
            known[name].offset + cell.offset, known[name].count, known[name].bytes, known[name].type
        )
        for name in (LOOP_FIELDS if cell.is_loop else CELL_FIELDS)
        if name in known
    }
    return plan_of(moved, 256) if moved else None


def numbers_of(record: np.void) -> dict[str, int]:
    """The fields that are one number."""
    names = record.dtype.names or ()
    return {
        name: int(record[name])
        for name in names
        if record[name].shape == () and record.dtype[name].kind in "iu"
    }


def array_of(record: np.void, name: str) -> Numbers:
    """An array of the record; empty if the library has no such field."""
    if name not in (record.dtype.names or ()):
        return np.zeros(0, np.int64)
    return np.atleast_1d(record[name]).astype(np.int64)


def with_bytes(world: dict[str, int], shift: int) -> dict[str, int]:
    """What is counted in blocks, in bytes too."""
    result = dict(world)
    for name, value in world.items():
        if name.endswith("_blocks"):
            result[name[: -len("blocks")] + "bytes"] = value << shift
    return result


def entry_of(world: dict[str, int]) -> str:
    """As lane_entry() says it."""
    entry = world.get("entry", -1)
    if not 0 <= entry < len(ENTRIES):
        return "?"
    lanes = world.get("shared_lanes", 0)
    return f"{ENTRIES[entry]}:{lanes}" if ENTRIES[entry] == "shared" and lanes else ENTRIES[entry]


def padded(values: Numbers, length: int) -> Numbers:
    result: Numbers = np.zeros(length, np.int64)
    result[: min(len(values), length)] = values[:length]
    return result


def counted(index: Numbers, weights: Any, length: int, share: float) -> Numbers:
    """Sums by index, scaled to what was not read."""
    sums = np.bincount(index, weights=weights, minlength=length)[:length]
    result: Numbers = (
        np.rint(sums / share).astype(np.int64) if share > 0 else np.zeros(length, np.int64)
    )
    return result


def add_up_classes(
    layout: Layout, world: np.void, lanes: dict[str, Numbers], slabs: Slabs, waiting: Numbers
) -> Classes:
    """As src/core/engine/statistics.h does it."""
    n = len(layout.class_sizes)
    of_malloc = slabs.is_slab & ~slabs.private & (slabs.size_class > 0) & (slabs.size_class < n)
    index, share = slabs.size_class[of_malloc], slabs.share
    used = counted(index, slabs.used[of_malloc], n, share)
    waits = waiting.sum(axis=0) if len(waiting) else np.zeros(n, np.int64)
    sampled = [padded(array_of(world, f"sampled_{what}"), n) for what in ("allocations", "frees")]
    in_flight = (
        padded(lanes["sent"], n)
        - padded(lanes["received"], n)
        - padded(array_of(world, "depot_freed"), n)
        + padded(array_of(world, "direct_frees"), n)
    )
    shift = layout.number("block_shift")
    return Classes(
        size=layout.class_sizes,
        live=np.maximum(used - waits - in_flight + sampled[0] - sampled[1], 0),
        waiting=waits,
        in_flight=np.maximum(in_flight, 0),
        allocations=np.maximum(padded(lanes["taken"], n) - waits + sampled[0], 0),
        slabs=counted(index, None, n, share),
        slab_bytes=counted(index, slabs.blocks[of_malloc], n, share) << shift,
        used=used,
        carved=counted(index, slabs.carved[of_malloc], n, share),
        by_fill=by_fill(layout, slabs, of_malloc),
    )


def by_fill(layout: Layout, slabs: Slabs, chosen: npt.NDArray[np.bool_]) -> Numbers:
    """How many slabs of each class are how full: bounded, however many slabs there are."""
    n = len(layout.class_sizes)
    index, used = slabs.size_class[chosen], slabs.used[chosen]
    capacity = (slabs.blocks[chosen] << layout.number("block_shift")) // np.maximum(
        layout.class_sizes[index], 1
    )
    steps = FILLS - 2
    fill = np.clip(-(-used * steps // np.maximum(capacity, 1)), 0, steps)
    fill = np.where((used > 0) & (used >= capacity), FILLS - 1, fill)
    return counted(index * FILLS + fill, None, n * FILLS, slabs.share).reshape(n, FILLS)


def lanes_of(
    layout: Layout,
    table: LaneTable,
    slabs: Slabs,
    waiting: Numbers,
    cells: list[tuple[Cell, Records]],
) -> Lanes:
    shift = layout.number("block_shift")
    made = table.made
    owner: Numbers = np.flatnonzero(made) + layout.number("first_lane")
    small = table.small[made]
    top = int(owner.max()) + 1 if len(owner) else 1
    of_lanes = slabs.owner > DEPOT
    held = counted(slabs.owner[of_lanes], slabs.blocks[of_lanes], top, slabs.share) << shift
    empty = of_lanes & (slabs.used == 0)
    empty_bytes = counted(slabs.owner[empty], slabs.blocks[empty], top, slabs.share) << shift
    locks = [records for cell, records in cells if cell.in_lanes and not cell.is_loop]
    loops = [records for cell, records in cells if cell.in_lanes]

    def of_cells(some: list[Records], name: str) -> Numbers:
        return sum((column(records, name) for records in some), np.zeros(len(small), np.int64))

    return Lanes(
        owner=owner,
        thread=column(small, "thread"),
        how=column(small, "how"),
        number=column(small, "number"),
        allocations=np.maximum(table.sums["taken"][made] - waiting.sum(axis=1), 0),
        remote_frees=table.sums["sent"][made],
        remote_batches=column(small, "remote_batches"),
        received=table.sums["received"][made],
        inbox_drains=column(small, "inbox_drains"),
        misses=column(small, "misses"),
        slabs_made=column(small, "slabs_made"),
        failures=of_cells(loops, "failures"),
        waits=of_cells(locks, "waits"),
        waited_ns=of_cells(locks, "waited_ns"),
        bytes_held=held[owner],
        bytes_empty=empty_bytes[owner],
        bytes_waiting=waiting @ layout.class_sizes,
    )


def figures_of_cell(cell: Cell, records: Records) -> CellFigures:
    def total(name: str) -> int:
        return int(column(records, name).sum())

    histogram = column(records, "waits_by_time")
    return CellFigures(
        cell.name,
        cell.in_lanes,
        cell.is_loop,
        total("count"),
        total("failures"),
        total("waits"),
        total("waited_ns"),
        histogram.sum(axis=0) if histogram.ndim == 2 else np.zeros(16, np.int64),
        sites_of(records),
    )


def sites_of(records: Records) -> tuple[int, ...]:
    """Of each cell the newest, those first where most was waited, then those before them; each
    once."""
    sites = column(records, "sites")
    if sites.ndim != 2:
        return ()
    most_first = sites[np.argsort(-column(records, "waited_ns"), kind="stable")]
    return tuple(dict.fromkeys(int(one) for one in most_first.T.ravel() if one))[:MOST_SITES]


def read_chain(
    memory: Memory, plan: Plan, first: int, last_time: list[int], most: int
) -> tuple[list[tuple[int, np.void]], bool]:
    """A linked list: what was there at the last time is read in one go. False: it goes on beyond
    `most`, or leads nowhere."""
    chain: list[tuple[int, np.void]] = []
    if last_time and last_time[0] == first:
        records, complete = plan.gather(memory, np.array(last_time, np.uint64))
        for at, record, whole in zip(last_time, records, complete):
            if not whole or (chain and int(chain[-1][1]["next"]) != at):
                break
            chain.append((at, record))
    at = int(chain[-1][1]["next"]) if chain else first
    seen = {one for one, _ in chain}
    while at and len(chain) < most and at not in seen:
        try:
            record = plan.read(memory, at)
        except Unreadable:
            return chain, False
        chain.append((at, record))
        seen.add(at)
        at = int(record["next"])
    return chain, at == 0


def owner_figures(
    memory: Memory, plans: Plans, at: int, record: np.void, slabs: Slabs, layout: Layout
) -> OwnerFigures:
    numbers = numbers_of(record)
    kinds, _ = read_chain(memory, plans.kind, numbers.get("kinds", 0), [], MOST_KINDS)
    mine = slabs.private & np.isin(slabs.kind, np.array([kind for kind, _ in kinds], np.uint64))
    kind = numbers.get("type", -1)
    budget = read_budget(memory, plans.budget, kinds)
    limit = budget.get("limit", 0)
    return OwnerFigures(
        name=bytes(record["name"]).split(b"\0")[0].decode(errors="replace")
        if "name" in (record.dtype.names or ())
        else "",
        kind=KINDS_OF_OWNERS[kind] if 0 <= kind < len(KINDS_OF_OWNERS) else "?",
        at=at,
        used=budget.get("used", 0),
        peak=budget.get("peak", 0),
        limit=limit if 0 < limit < NO_LIMIT else None,
        slabs=int(mine.sum()),
        slab_bytes=int(slabs.blocks[mine].sum()) << layout.number("block_shift"),
        live=int(slabs.used[mine].sum()),
        contended=sum(numbers_of(one).get("contended", 0) for _, one in kinds),
        sizes=len(kinds),
        parent=budget.get("parent", 0),
        lock=numbers.get("contention", 0),
        budget_loops=budget.get("count", 0),
        budget_failures=budget.get("failures", 0),
    )


def budget_cell(owners: list[OwnerFigures]) -> list[CellFigures]:
    """The loops of all budgets as one cell, if there are any."""
    loops, failures = (
        sum(one.budget_loops for one in owners),
        sum(one.budget_failures for one in owners),
    )
    return (
        [CellFigures("budgets", False, True, loops, failures, 0, 0, np.zeros(16, np.int64))]
        if owners
        else []
    )


def read_budget(memory: Memory, plan: Plan, kinds: list[tuple[int, np.void]]) -> dict[str, int]:
    """What the owner of these kinds has cut and may cut; empty where it has none yet."""
    at = numbers_of(kinds[0][1]).get("budget", 0) if kinds else 0
    if not at or not plan.pieces:
        return {}
    try:
        return numbers_of(plan.read(memory, at))
    except Unreadable:
        return {}
