"""Where resident memory is: from what the control group may have down to live objects, in bands
that add up.

Each band has a cause, and where something shrinks it, what does and by how much. The allocator's
part is told block by block: what the page map and slabs say of a block, times how much of it is
resident.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lanemalloc import process, units
from lanemalloc.memory import Unreadable
from lanemalloc.reader import EXACT, Reader
from lanemalloc.residency import Blocks, Mapping, mappings, resident_by_block
from lanemalloc.slabs import DIRTY, Run, Slabs, read_free_runs
from lanemalloc.snapshot import Snapshot

Numbers = npt.NDArray[np.int64]
MOST_RUNS = 200_000
GUARD_SMALLEST = 4096


@dataclass
class Band:
    """Some of the resident memory. `saves`: how much of it can be had back, by `remedy`."""

    key: str
    name: str
    bytes: int
    cause: str
    remedy: str = ""
    saves: int = 0
    details: list[str] = field(default_factory=list)


@dataclass
class Explanation:
    """Of one process."""

    snapshot: Snapshot
    resident: int
    bands: list[Band]
    slack: int  # of live objects, inside of them
    slack_is_estimate: bool
    by_page: bool
    group: process.CgroupMemory | None
    swapped: int
    notes: list[str]

    @property
    def accounted(self) -> int:
        return sum(band.bytes for band in self.bands)

    def advice(self) -> list[Band]:
        """Those that can be shrunk, that with most to be had first."""
        return sorted((band for band in self.bands if band.saves > 0), key=lambda band: -band.saves)


@dataclass
class Heap:
    """What the allocator's resident bytes are."""

    live: int = 0
    large: int = 0
    sampled: int = 0
    kinds_live: int = 0
    kinds_free: int = 0
    dirty: int = 0
    other_free: int = 0
    empty: int = 0
    bins: int = 0
    in_flight: int = 0
    fragments: int = 0
    needless: int = 0  # of fragments: what would not be there if live objects lay side by side
    worst_classes: list[tuple[int, int, float]] = field(
        default_factory=list
    )  # size, bytes free, share in use


def explain(reader: Reader, pid: int) -> Explanation:
    """Raises Gone and NotAllowed. The process goes on meanwhile, so that figures of a busy one
    differ a little."""
    maps = mappings(pid)
    snapshot = reader.read(EXACT)
    slabs = reader.slabs()
    world, shift = snapshot.world, reader.layout.number("block_shift")
    base, blocks = world.get("base", 0), len(slabs.map)
    runs = free_runs(reader, world, slabs)
    residency = resident_by_block(pid, maps, Blocks(base, blocks, shift))
    resident = residency.of_block
    heap = divide(snapshot, slabs, runs, resident, shift)
    metadata, others = split_maps(maps, world.get("map_at", 0), base, base + (blocks << shift))
    bands = other_bands(others, snapshot) + heap_bands(heap, snapshot, reader, metadata)
    total = sum(one.resident for one in maps)
    heap_maps = total - metadata - sum(one.resident for one in others)
    rest = heap_maps - int(resident.sum())
    if rest > 0:
        bands.append(Band("unknown", "not accounted for", rest, "it changed while it was read"))
    notes = list(snapshot.left_out)
    if residency.share < 1:
        known = (
            f"{residency.share:.0%} of the resident memory is known by the page"
            if residency.share
            else "no page is known by itself"
        )
        notes.append(f"{known}: the rest is taken to be spread evenly over each mapping")
    slack = estimated_slack(snapshot, heap.live)
    return Explanation(
        snapshot,
        total,
        [band for band in bands if band.bytes > 0],
        slack,
        True,
        residency.share >= 1,
        process.cgroup_memory(pid),
        sum(one.swapped for one in maps),
        notes,
    )


def free_runs(reader: Reader, world: dict[str, int], slabs: Slabs) -> list[Run]:
    try:
        return read_free_runs(reader.memory, reader.layout, world, slabs, MOST_RUNS)
    except Unreadable:
        return []


# --- The allocator's part.


def divide(
    snapshot: Snapshot, slabs: Slabs, runs: list[Run], resident: Numbers, shift: int
) -> Heap:
    """Gives every resident byte of the allocator's blocks to one of the parts."""
    heap = Heap()
    upto = np.concatenate([[0], np.cumsum(resident)])
    ends = np.minimum(slabs.first + slabs.blocks, len(resident))
    of_slab = upto[ends] - upto[slabs.first]
    is_malloc = slabs.is_slab & ~slabs.private
    for run in runs:
        there = int(upto[min(run.first + run.blocks, len(resident))] - upto[run.first])
        if run.kind == DIRTY:
            heap.dirty += there
        else:
            heap.other_free += there
    empty = is_malloc & (slabs.used == 0)
    heap.empty = int(of_slab[empty].sum())
    heap.large = int(of_slab[slabs.is_large].sum())
    heap.sampled = int(of_slab[slabs.sample_class >= 0].sum())
    divide_kinds(heap, slabs, of_slab)
    filled = is_malloc & ~empty
    divide_classes(heap, snapshot, slabs, filled, of_slab, shift)
    known = heap.dirty + heap.other_free + int(of_slab.sum())
    heap.other_free += max(0, int(resident.sum()) - known)
    return heap


def divide_kinds(heap: Heap, slabs: Slabs, of_slab: Numbers) -> None:
    mine = slabs.is_slab & slabs.private
    share = slabs.used[mine] / np.maximum(slabs.carved[mine], 1)
    live = int((of_slab[mine] * np.minimum(share, 1)).sum())
    heap.kinds_live, heap.kinds_free = live, int(of_slab[mine].sum()) - live


def divide_classes(
    heap: Heap,
    snapshot: Snapshot,
    slabs: Slabs,
    filled: npt.NDArray[np.bool_],
    of_slab: Numbers,
    shift: int,
) -> None:
    """Class by class: first what lives, then what waits in bins, then what is on its way; the rest
    are free pieces."""
    c = snapshot.classes
    n = len(c.size)
    index = slabs.size_class[filled]
    there = np.bincount(index, weights=of_slab[filled], minlength=n)[:n].astype(np.int64)
    count = np.bincount(index, minlength=n)[:n]
    blocks = np.bincount(index, weights=slabs.blocks[filled], minlength=n)[:n]
    rest = there.copy()
    parts = []
    sampled = slabs.sample_class[(slabs.sample_class > 0) & (slabs.sample_class < n)]
    in_slabs = np.maximum(
        c.live - np.bincount(sampled, minlength=n)[:n], 0
    )  # these have blocks of their own
    for wanted in (in_slabs * c.size, c.waiting * c.size, c.in_flight * c.size):
        part = np.minimum(wanted, rest)
        rest -= part
        parts.append(part)
    heap.live, heap.bins, heap.in_flight = (int(part.sum()) for part in parts)
    heap.fragments = int(rest.sum())
    slab_bytes = np.where(count > 0, blocks / np.maximum(count, 1), 0) * (1 << shift)
    needed = np.ceil(parts[0] / np.maximum(slab_bytes, 1)) * slab_bytes
    heap.needless = int(np.minimum(rest, np.maximum(there - needed, 0)).sum())
    for i in np.argsort(-rest)[:5]:
        if rest[i] > 0:
            heap.worst_classes.append(
                (int(c.size[i]), int(rest[i]), float(parts[0][i] / max(there[i], 1)))
            )


def estimated_slack(snapshot: Snapshot, resident: int) -> int:
    """What lies between the sizes that were asked for and their classes: half the step to the class
    below, of what is resident."""
    c = snapshot.classes
    steps = np.diff(c.size, prepend=0)
    steps[0] = 0
    slack = float((c.live * np.maximum(steps - 1, 0) / 2).sum())
    return int(slack * min(1.0, resident / max(int(c.live_bytes.sum()), 1)))


def heap_bands(heap: Heap, snapshot: Snapshot, reader: Reader, metadata: int) -> list[Band]:
    s = snapshot
    return [
        cached_band(heap.dirty + heap.other_free, s),
        lanes_band(heap, s),
        fragments_band(heap, s),
        flight_band(heap, s),
        Band(
            "kinds_free",
            "free pieces of heaps and pools",
            heap.kinds_free,
            "cut from slabs of a heap or pool and free again",
            "lane_pool_reclaim() or lane_heap_destroy() of those that are not needed",
            heap.kinds_free,
        ),
        metadata_band(metadata, s),
        *live_bands(heap, s),
    ]


def metadata_band(size: int, s: Snapshot) -> Band:
    cause = f"the page map, 128 bytes a block, and {len(s.lanes):,} lanes of 8 KiB"
    if s.entry != "owned" or len(s.lanes) <= 4 * cpus():
        return Band("metadata", "metadata", size, cause)
    saves = min(size, (len(s.lanes) - cpus()) * 8192)
    return Band(
        "metadata",
        "metadata",
        size,
        cause,
        f"lanes=percpu: {cpus()} lanes instead of {len(s.lanes):,}",
        saves,
    )


def live_bands(heap: Heap, s: Snapshot) -> list[Band]:
    why = "`lanemalloc profile` tells which calls made them"
    return [
        Band(
            "large",
            "live: large objects",
            heap.large,
            f"{s.large_live:,} objects of more than 512 KiB; {why}",
        ),
        Band(
            "sampled",
            "live: sampled objects",
            heap.sampled,
            "each object that was sampled has blocks of its own, so that its free is seen",
            "sample less often",
        ),
        Band(
            "live_kinds",
            "live: of heaps and pools",
            heap.kinds_live,
            f"{len(s.owners)} heaps and pools",
        ),
        Band(
            "live",
            "live: small objects",
            heap.live,
            f"{int(s.classes.live.sum()):,} objects; {why}",
        ),
    ]


def decay_of(s: Snapshot) -> int:
    return s.world.get("decay_ms", 1000)


def cached_band(size: int, s: Snapshot) -> Band:
    decay = decay_of(s)
    if decay < 0:
        cause, remedy = (
            "decay_ms=-1 keeps freed runs for good",
            "decay_ms=1000 gives them back after a second",
        )
    elif s.process.threads == 1 and decay > 0:
        cause = (
            "freed runs; with one thread nobody gives them back meanwhile "
            "but the program's own frees, past a quarter of what lives"
        )
        remedy = "malloc_trim(0) gives them back now; decay_ms=0 always at once"
    else:
        cause = f"freed runs that are younger than decay_ms={decay}, or wait for the next look"
        remedy = (
            "nothing: they go back by themselves; "
            f"sooner with decay_ms={max(decay // 10, 0)}, or now with malloc_trim(0)"
        )
    return Band("cached", "cached: free runs", size, cause, remedy, size)


def lanes_band(heap: Heap, s: Snapshot) -> Band:
    size = heap.empty + heap.bins
    lanes = s.lanes
    cached = lanes.bytes_empty + lanes.bytes_waiting
    holders = int((cached > 64 << 10).sum())
    cause = (
        f"empty slabs {units.size(heap.empty)} and bins {units.size(heap.bins)} "
        f"of {holders} lanes that keep more than 64 KiB"
    )
    if decay_of(s) < 0:
        remedy, saves = (
            "decay_ms=1000 has the lanes of sleeping threads cleaned; malloc_trim(0) does it now",
            size,
        )
    elif s.entry == "owned" and len(lanes) > cpus():
        saves = int(size * (1 - cpus() / len(lanes)))
        remedy = (
            f"lanes=percpu: {cpus()} lanes instead of {len(lanes)}; "
            "malloc_trim(0) cleans those of sleeping threads now"
        )
    else:
        remedy, saves = "malloc_trim(0) cleans the lanes of threads that are not inside", size
    names = [
        f"lane {lanes.owner[i]}: {units.size(int(cached[i]))}"
        for i in np.argsort(-cached)[:5]
        if cached[i] > 0
    ]
    return Band("lanes", "cached by lanes", size, cause, remedy, saves, names)


def fragments_band(heap: Heap, s: Snapshot) -> Band:
    cause = "free pieces in slabs that cannot go back, for other objects in them live on"
    remedy = (
        "give objects that live long a pool or heap of their own "
        "(lane_pool_create, lane_heap_create)"
    )
    if s.entry == "owned" and len(s.lanes) > 2 * cpus():
        remedy += f", or fewer lanes their slabs: lanes=percpu ({cpus()} instead of {len(s.lanes)})"
    details = [
        f"objects of {size:,} bytes: {units.size(free)} free, "
        f"{share:.0%} of the slabs' memory lives"
        for size, free, share in heap.worst_classes
    ]
    return Band(
        "fragments",
        "free pieces in used slabs",
        heap.fragments,
        cause,
        remedy,
        heap.needless,
        details,
    )


def flight_band(heap: Heap, s: Snapshot) -> Band:
    sleeping = (
        "their owners have not allocated since" if len(s.lanes) > 1 else "they wait in a batch"
    )
    remedy = (
        "malloc_trim(0) has every lane take in what was sent; "
        "lanes=percpu lets whoever runs on the CPU do it"
    )
    if decay_of(s) < 0:
        remedy = "decay_ms=1000 has the lanes of sleeping threads cleaned; " + remedy
    cause = (
        "freed by threads of other lanes, and not yet taken in by the lanes that own them: "
        f"{sleeping}"
    )
    return Band(
        "in_flight", "in flight: remote frees", heap.in_flight, cause, remedy, heap.in_flight
    )


def cpus() -> int:
    return len(os.sched_getaffinity(0))


# --- What is not the allocator's.


def split_maps(
    maps: list[Mapping], metadata_at: int, base: int, limit: int
) -> tuple[int, list[Mapping]]:
    """Resident bytes of the metadata, and the mappings that are none of the allocator's."""
    metadata = 0
    others = []
    for one in maps:
        if metadata_at <= one.begin and one.end <= base:
            metadata += one.resident
        elif one.end <= metadata_at or one.begin >= limit:
            others.append(one)
    return metadata, others


def other_bands(others: list[Mapping], s: Snapshot) -> list[Band]:
    """Code, stacks and other mappings, and what was lazily freed of them."""
    groups = grouped(others)
    lazy = sum(one.lazy_free for one in others)
    bands = []
    for key, name, cause, remedy in OTHERS:
        members = groups.get(key, [])
        size = sum(one.resident - one.lazy_free for one in members)
        largest = sorted(members, key=lambda one: -one.resident)[:4]
        details = [
            f"{one.path or 'anonymous'} at {one.begin:#x}: {units.size(one.resident)}"
            for one in largest
            if one.resident
        ]
        bands.append(
            Band(key, name, size, cause.format(threads=s.process.threads), remedy, 0, details)
        )
    cause = (
        "freed with MADV_FREE by another allocator or runtime: the system takes it when it needs it"
    )
    bands.append(Band("lazy", "lazily freed", lazy, cause, "nothing: it costs nobody anything", 0))
    return bands


OTHERS = (
    (
        "code",
        "code and files",
        "programs, libraries and mapped files; shared with others of the same",
        "",
    ),
    ("data", "data of programs", "writable data of the program and its libraries", ""),
    (
        "stacks",
        "stacks",
        "{threads} threads; what a stack once grew to stays",
        "fewer threads, or less depth",
    ),
    ("shared", "shared memory", "shared mappings", ""),
    (
        "anonymous",
        "other mappings",
        "memory that the program has mapped itself, or another allocator or runtime",
        "look at who maps it",
    ),
)


def grouped(others: list[Mapping]) -> dict[str, list[Mapping]]:
    groups: dict[str, list[Mapping]] = {}
    before: Mapping | None = None
    for one in others:
        groups.setdefault(group_of(one, before), []).append(one)
        before = one
    return groups


def group_of(one: Mapping, before: Mapping | None) -> str:
    if one.path.startswith("[stack") or "stack" in one.path and not one.is_file:
        return "stacks"
    if one.permissions[3] == "s" or one.path.startswith(("/dev/shm/", "/memfd:", "/SYSV")):
        return "shared"
    if one.is_file:
        return "data" if "w" in one.permissions else "code"
    if one.path == "[heap]":
        return "anonymous"
    if one.path.startswith("["):
        return "code"  # vdso and the like
    follows = before is not None and before.end == one.begin
    if follows and before is not None and before.is_file and one.end - one.begin < 16 << 20:
        return "data"  # .bss
    guard = (
        follows and before is not None and before.permissions.startswith("---") and not before.path
    )
    return "stacks" if guard and "w" in one.permissions else "anonymous"


# --- For people and programs.


def as_json(e: Explanation) -> dict[str, Any]:
    return {
        "pid": e.snapshot.process.pid,
        "name": e.snapshot.process.name,
        "wall": round(time.time(), 3),
        "resident_bytes": e.resident,
        "accounted_bytes": e.accounted,
        "swapped_bytes": e.swapped,
        "by_page": e.by_page,
        "cgroup": None if e.group is None else vars(e.group),
        "bands": [vars(band) for band in e.bands],
        "slack_bytes": e.slack,
        "slack_is_estimate": e.slack_is_estimate,
        "advice": [band.key for band in e.advice()],
        "options": e.snapshot.options,
        "notes": e.notes,
    }
