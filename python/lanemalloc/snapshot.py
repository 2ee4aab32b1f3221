"""What a process' allocator has, at one moment; and what changed between two."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lanemalloc.process import ProcessFacts

Numbers = npt.NDArray[np.int64]
Rates = npt.NDArray[np.float64]

ENTRIES = ("owned", "shared", "percpu")
NO_NUMBER = (1 << 32) - 1  # of a lane: it is one for those who find their own closed
KINDS_OF_OWNERS = ("heap", "pool")
FILLS = (
    10  # how full a slab is: empty, up to an eighth, ..., up to eight eighths but not full, full
)


@dataclass
class Classes:
    """By size class; 0 is nobody's."""

    size: Numbers
    live: Numbers
    waiting: Numbers  # in lanes' bins
    in_flight: Numbers  # freed, on their way to the lane that owns them
    allocations: Numbers
    slabs: Numbers
    slab_bytes: Numbers
    used: Numbers  # as slabs count: live, waiting and in flight
    carved: Numbers  # ever handed out
    by_fill: Numbers  # classes x FILLS: slabs by the share of their objects that is used

    @property
    def live_bytes(self) -> Numbers:
        result: Numbers = self.live * self.size
        return result

    @property
    def frees(self) -> Numbers:
        result: Numbers = np.maximum(self.allocations - self.live, 0)
        return result


@dataclass
class Lanes:
    """A row a lane, by its place in the table."""

    owner: Numbers  # its number in the page map
    thread: Numbers  # 0: nobody's
    how: Numbers  # index of ENTRIES
    number: Numbers  # of its CPU, or among shared lanes
    allocations: Numbers  # put into bins
    remote_frees: Numbers
    remote_batches: Numbers
    received: Numbers
    inbox_drains: Numbers
    misses: Numbers
    slabs_made: Numbers
    failures: Numbers
    waits: Numbers
    waited_ns: Numbers
    bytes_held: Numbers  # of slabs
    bytes_empty: Numbers  # of slabs without an object in use
    bytes_waiting: Numbers  # in bins

    def __len__(self) -> int:
        return len(self.owner)


@dataclass
class CellFigures:
    """Of a place where threads can meet."""

    name: str
    in_lanes: bool
    is_loop: bool
    count: int
    failures: int
    waits: int
    waited_ns: int
    histogram: Numbers  # waits; bucket i: shorter than 2^i microseconds, the last one all others
    sites: tuple[
        int, ...
    ] = ()  # addresses of the stacks of its latest sampled waits, of each cell the newest first


@dataclass
class OwnerFigures:
    """Of a heap or pool."""

    name: str
    kind: str
    at: int  # its address
    used: int  # bytes cut from its slabs
    peak: int
    limit: int | None
    slabs: int
    slab_bytes: int
    live: int  # objects in use, those in bins among them
    contended: int
    sizes: int  # kinds of objects
    parent: int = 0  # the budget above, by its address
    lock: int = 0  # the address of a pool's; 0: it has none
    budget_loops: int = 0
    budget_failures: int = 0


@dataclass
class Moment:
    """When parts were read that are not read every time, and how much of them; None: never."""

    slabs_ns: int | None = None
    slabs_share: float = 1.0
    bins_ns: int | None = None


@dataclass
class Snapshot:
    """All that was read of a process."""

    at_ns: int  # of CLOCK_MONOTONIC
    wall: float  # seconds since 1970
    process: ProcessFacts
    library: str
    options: str
    started_at_ns: int
    entry: str
    world: dict[str, int]
    probes: Numbers
    classes: Classes
    lanes: Lanes
    cells: list[CellFigures]
    owners: list[OwnerFigures]
    batches: Numbers  # lanes x owner number modulo its length
    kind_bytes: int = 0  # slabs and large allocations of heaps and pools
    moment: Moment = field(default_factory=Moment)
    left_out: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def has(self, name: str) -> bool:
        """Whether the library tells this field of `world`."""
        return name in self.world

    @property
    def own_threads(self) -> int:
        """Threads of the library's among those of the process: its scavenger."""
        return self.world.get("scavenger", 0)

    @property
    def large_bytes(self) -> int:
        return self.world.get("large_bytes", 0)

    @property
    def large_live(self) -> int:
        return self.world.get("large_allocations", 0) - self.world.get("large_frees", 0)

    @property
    def live_bytes(self) -> int:
        return int(self.classes.live_bytes.sum()) + self.large_bytes

    @property
    def live_objects(self) -> int:
        return int(self.classes.live.sum()) + self.large_live

    @property
    def allocations(self) -> int:
        return int(self.classes.allocations.sum()) + self.world.get("large_allocations", 0)

    @property
    def frees(self) -> int:
        return int(self.classes.frees.sum()) + self.world.get("large_frees", 0)

    @property
    def in_flight_bytes(self) -> int:
        return int((self.classes.in_flight * self.classes.size).sum())

    @property
    def waiting_bytes(self) -> int:
        return int((self.classes.waiting * self.classes.size).sum())

    @property
    def cached_bytes(self) -> int:
        """Free, with memory behind it: dirty runs, empty slabs, bins."""
        return (
            self.world.get("dirty_bytes", 0)
            + int(self.lanes.bytes_empty.sum())
            + self.waiting_bytes
        )

    @property
    def lane_count(self) -> int:
        return len(self.lanes)

    def difference(self, earlier: Snapshot) -> Difference:
        """What happened since."""
        return difference(self, earlier)

    def same_process(self, other: Snapshot) -> bool:
        return (self.process.pid, self.started_at_ns) == (other.process.pid, other.started_at_ns)


@dataclass
class Difference:
    """Rates a second, between two snapshots of a process."""

    seconds: float
    allocations: float
    frees: float
    allocated_bytes: float  # without large ones
    large_allocations: float
    large_frees: float
    class_allocations: Rates
    class_frees: Rates
    lane_allocations: Rates
    lane_misses: Rates
    lane_remote_frees: Rates
    lane_waits: Rates
    lane_failures: Rates
    lane_waited: Rates  # seconds a second
    batches: Rates
    cell_counts: Rates
    cell_failures: Rates
    cell_waits: Rates
    cell_waited: Rates  # seconds a second
    cell_histograms: Numbers  # waits between the two
    resident: float  # bytes


def difference(later: Snapshot, earlier: Snapshot) -> Difference:
    """Counters that went back (a damaged or torn word) count as unchanged;
    lanes that are new began at 0."""
    seconds = max((later.at_ns - earlier.at_ns) / 1e9, 1e-9)
    a, b = earlier, later

    def rate(before: Numbers, after: Numbers) -> Rates:
        result: Rates = np.maximum(after - grown(before, after), 0) / seconds
        return result

    class_allocations = rate(a.classes.allocations, b.classes.allocations)
    large = (
        max(b.world.get("large_allocations", 0) - a.world.get("large_allocations", 0), 0) / seconds
    )
    large_frees = max(b.world.get("large_frees", 0) - a.world.get("large_frees", 0), 0) / seconds
    class_frees = frees_rate(a, b, class_allocations)
    cells = cells_by_name(a)
    before = [cells.get(cell.name, cell) for cell in b.cells]

    def cell_rate(name: str) -> Rates:
        pairs = zip(b.cells, before)
        return (
            np.array(
                [max(getattr(after, name) - getattr(then, name), 0) for after, then in pairs], float
            )
            / seconds
        )

    histograms = [
        np.maximum(after.histogram - grown(then.histogram, after.histogram), 0)
        for after, then in zip(b.cells, before)
    ]
    return Difference(
        seconds=seconds,
        allocations=float(class_allocations.sum()) + large,
        frees=float(class_frees.sum()) + large_frees,
        allocated_bytes=float((class_allocations * b.classes.size).sum()),
        large_allocations=large,
        large_frees=large_frees,
        class_allocations=class_allocations,
        class_frees=class_frees,
        lane_allocations=rate(a.lanes.allocations, b.lanes.allocations),
        lane_misses=rate(a.lanes.misses, b.lanes.misses),
        lane_remote_frees=rate(a.lanes.remote_frees, b.lanes.remote_frees),
        lane_waits=rate(a.lanes.waits, b.lanes.waits),
        lane_failures=rate(a.lanes.failures, b.lanes.failures),
        lane_waited=rate(a.lanes.waited_ns, b.lanes.waited_ns) / 1e9,
        batches=rate(a.batches, b.batches),
        cell_counts=cell_rate("count"),
        cell_failures=cell_rate("failures"),
        cell_waits=cell_rate("waits"),
        cell_waited=cell_rate("waited_ns") / 1e9,
        cell_histograms=np.array(histograms) if histograms else np.zeros((0, 0), np.int64),
        resident=(b.process.resident - a.process.resident) / seconds,
    )


def frees_rate(a: Snapshot, b: Snapshot, allocations: Rates) -> Rates:
    """Frees are allocations less what lives on, which is known from when slabs were read; until
    they are read again, as many as allocations."""
    then, now = a.moment.slabs_ns, b.moment.slabs_ns
    if then is None or now is None or now <= then:
        return allocations
    live = b.classes.live - grown(a.classes.live, b.classes.live)
    rates: Rates = np.maximum(allocations - live / ((now - then) / 1e9), 0.0)
    return rates


def cells_by_name(snapshot: Snapshot) -> dict[str, CellFigures]:
    return {cell.name: cell for cell in snapshot.cells}


def grown(before: Numbers, after: Numbers) -> Numbers:
    """`before` with zeros behind, as long as `after`."""
    if before.shape == after.shape:
        return before
    result: Numbers = np.zeros(after.shape, np.int64)
    part = tuple(slice(0, min(x, y)) for x, y in zip(before.shape, after.shape))
    result[part] = before[part]
    return result
