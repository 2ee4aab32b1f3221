"""The page map and the states of slabs, large allocations and free runs; and what waits in lanes'
bins."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lanemalloc.layout import Layout, column, in_place, whole_of
from lanemalloc.memory import Memory, read

Numbers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

NOBODY, LARGE, DEPOT, PRIVATE = 0, 1, 2, 0x8000
CHUNK = 1 << 15  # blocks whose states are read at a time: 4 MiB
EMPTY, FULL = 2, 3  # state.place
DIRTY, CLEAN, ABSENT = 2, 3, 4  # state.block_kind
STATE_FIELDS = (
    "countdown", "beyond", "carved", "size_class", "place", "kind", "length", "block_kind",
    "sample", "sample_class",
)  # fmt: skip
MOST_BIN_BYTES = 16 << 20  # of slabs, read at a time


@dataclass
class Slabs:
    """Slabs and large allocations, an entry each, in the order of their addresses."""

    first: Numbers  # block
    blocks: Numbers
    owner: Numbers  # without PRIVATE
    private: npt.NDArray[np.bool_]
    size_class: Numbers
    used: Numbers
    carved: Numbers
    place: Numbers
    kind: Words
    sample_class: Numbers  # -1: not sampled
    share: float  # of all of them that were read: below 1 where time did not allow more
    map: Words  # the page map as it was read

    @property
    def is_slab(self) -> npt.NDArray[np.bool_]:
        return self.owner >= DEPOT

    @property
    def is_large(self) -> npt.NDArray[np.bool_]:
        result: npt.NDArray[np.bool_] = (self.owner == LARGE) & (self.sample_class < 0)
        return result


def read_map(memory: Memory, world: dict[str, int]) -> Words:
    """The page map of all blocks that there are."""
    blocks = min(world["frontier"], world["opened"])
    if blocks <= 0:
        return np.zeros(0, np.uint64)
    return read(memory, world["map_at"], blocks * 8).view("<u8")


def read_slabs(memory: Memory, layout: Layout, world: dict[str, int], seconds: float) -> Slabs:
    """All slabs, or as many as can be read in that time: then chunks from all over, so that they
    stand for the others."""
    entries = read_map(memory, world)
    states_at, state_bytes = world["states_at"], layout.number("state_bytes")
    own = np.arange(len(entries), dtype=np.uint64) * np.uint64(state_bytes) + np.uint64(states_at)
    owners = (entries & np.uint64(0xFFFF)).astype(np.int64)
    firsts: Numbers = np.flatnonzero((entries >> np.uint64(16) == own) & (owners != NOBODY))
    changes = np.flatnonzero(entries[1:] != entries[:-1]) + 1
    ends = np.append(changes, len(entries))
    lengths: Numbers = (ends[np.searchsorted(ends, firsts, side="right")] - firsts).astype(np.int64)
    states, was_read = read_states(memory, layout, states_at, firsts, seconds)
    firsts, lengths, states = firsts[was_read], lengths[was_read], states[was_read]
    owner = owners[firsts]
    large = owner & ~PRIVATE == LARGE
    used = column(states, "countdown").astype(np.uint32) + column(states, "beyond").astype(
        np.uint32
    )
    sampled = large & (column(states, "sample") != 0)
    return Slabs(
        first=firsts,
        blocks=np.where(large, column(states, "length"), lengths),
        owner=owner & ~PRIVATE,
        private=owner & PRIVATE != 0,
        size_class=np.where(large, 0, column(states, "size_class")),
        used=np.where(large, 1, np.maximum(used.astype(np.int32), 0)).astype(np.int64),
        carved=np.where(large, 1, column(states, "carved")),
        place=column(states, "place"),
        kind=states["kind"].astype(np.uint64)
        if layout.has("state", "kind")
        else np.zeros(len(states), np.uint64),
        sample_class=np.where(sampled, column(states, "sample_class"), -1),
        share=len(firsts) / max(len(was_read), 1) if len(was_read) else 1.0,
        map=entries,
    )


def read_states(
    memory: Memory, layout: Layout, states_at: int, firsts: Numbers, seconds: float
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.bool_]]:
    """The states of these blocks, and which of them could be read in time."""
    plan = layout.plan("state", STATE_FIELDS, gap=1 << 16)
    start, length = plan.pieces[0]
    stride = layout.number("state_bytes")
    whole = in_place(plan, stride)
    states = np.zeros(len(firsts), whole)
    was_read = np.zeros(len(firsts), np.bool_)
    deadline = time.monotonic() + seconds
    for at in spread(int(firsts[-1]) // CHUNK + 1 if len(firsts) else 0):
        begin, end = np.searchsorted(firsts, [at * CHUNK, (at + 1) * CHUNK])
        if begin == end:
            continue
        low, high = int(firsts[begin]), int(firsts[end - 1])
        buffer = read(memory, states_at + low * stride + start, (high - low) * stride + length)
        padded = np.zeros((high - low + 1) * stride, np.uint8)
        padded[: len(buffer)] = buffer
        states[begin:end] = whole_of(padded, whole)[firsts[begin:end] - low]
        was_read[begin:end] = True
        if time.monotonic() > deadline:
            break
    return states, was_read


def spread(count: int) -> list[int]:
    """All numbers below `count`, so that those first in the list are spread evenly over them."""
    if count <= 2:
        return list(range(count))
    bits = (count - 1).bit_length()
    order = (int(f"{i:0{bits}b}"[::-1], 2) for i in range(1 << bits))
    return [i for i in order if i < count]


@dataclass
class Bins:
    """What waits in lanes' bins."""

    waiting: npt.NDArray[np.int64]  # lanes x classes
    torn: int  # lists that changed while they were followed: counted as far as they led
    skipped: int  # lists that time did not allow


def read_bins(
    memory: Memory,
    layout: Layout,
    world: dict[str, int],
    heads: Words,
    slabs: Slabs,
    seconds: float,
) -> Bins:
    """Follows the list at each head (lanes x classes), reading the slab of each once."""
    bins = Bins(np.zeros(heads.shape, np.int64), 0, 0)
    where = np.flatnonzero(heads)
    starts = heads.ravel()[where]
    index, known = slabs_of(starts, layout, world, slabs)
    bins.torn += int((~known).sum())
    where, starts, index = where[known], starts[known], index[known]
    shift = layout.number("block_shift")
    begins = (slabs.first[index].astype(np.uint64) << np.uint64(shift)) + np.uint64(world["base"])
    sizes = layout.class_sizes[slabs.size_class[index]] * slabs.carved[index]
    sizes = np.minimum(sizes, slabs.blocks[index] << shift) & ~7
    deadline = time.monotonic() + seconds
    at = 0
    while at < len(where):
        if time.monotonic() > deadline:
            bins.skipped += len(where) - at
            break
        until = max(at + 1, at + int(np.searchsorted(np.cumsum(sizes[at:]), MOST_BIN_BYTES)))
        part = slice(at, until)
        buffer, complete = memory.gather(begins[part], sizes[part].astype(np.uint64))
        limit = np.where(complete, slabs.carved[index[part]], 0)
        counts, torn = follow(buffer, begins[part], sizes[part], starts[part], limit, world)
        bins.waiting.ravel()[where[part]] = counts
        bins.torn += torn
        at = until
    return bins


def slabs_of(
    pointers: Words, layout: Layout, world: dict[str, int], slabs: Slabs
) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Which slab each pointer lies in, and for which that could be told."""
    blocks = (pointers - np.uint64(world["base"])) >> np.uint64(layout.number("block_shift"))
    inside = blocks < np.uint64(len(slabs.map))
    at = np.where(inside, blocks, 0).astype(np.int64)
    index = np.searchsorted(slabs.first, at, side="right") - 1
    if len(slabs.first) == 0:
        return np.zeros(len(pointers), np.int64), np.zeros(len(pointers), np.bool_)
    index = np.maximum(index, 0)
    known = inside & (slabs.first[index] + slabs.blocks[index] > at) & (slabs.size_class[index] > 0)
    return index, known


def leads_to(links: Words, world: dict[str, int]) -> Words:
    """The addresses that links lead to. 0: nowhere; so does a word of zeros."""
    addresses: Words = links + np.uint64(world.get("link_secret", 0))
    return np.where(links == 0, np.uint64(0), addresses)


def follow(
    buffer: npt.NDArray[np.uint8],
    begins: Words,
    sizes: Numbers,
    starts: Words,
    limits: Numbers,
    world: dict[str, int],
) -> tuple[Numbers, int]:
    """Goes along all lists at once, a step of each at a time. The slabs lie one behind the other in
    the buffer. Returns the lengths, and how many lists led out of their slab or were longer than
    what it has."""
    words = buffer.view("<u8")
    places = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    counts = np.zeros(len(starts), np.int64)
    torn = 0
    active = np.arange(len(starts))
    now = starts
    while len(active):
        offset = now - begins[active]
        good = (
            (offset < sizes[active].astype(np.uint64))
            & (offset & np.uint64(7) == 0)
            & (counts[active] < limits[active])
        )
        torn += int((~good).sum())
        active, offset = active[good], offset[good].astype(np.int64)
        counts[active] += 1
        following = leads_to(words[(places[active] + offset) >> 3], world)
        goes_on = following != 0
        active, now = active[goes_on], following[goes_on]
    return counts, torn


@dataclass(frozen=True)
class Run:
    """A free run of blocks."""

    first: int
    blocks: int
    kind: int


def read_free_runs(
    memory: Memory, layout: Layout, world: dict[str, int], slabs: Slabs, most: int
) -> list[Run]:
    """Runs of free blocks, in order; at most so many."""
    runs: list[Run] = []
    if not layout.has("state", "block_kind"):
        return runs
    count = len(slabs.map)
    used = np.zeros(count + 1, np.int64)
    np.add.at(used, slabs.first, 1)
    np.add.at(used, np.minimum(slabs.first + slabs.blocks, count), -1)
    free_blocks = np.flatnonzero(np.cumsum(used)[:count] == 0)
    for begin in range(0, len(free_blocks), CHUNK):
        blocks = free_blocks[begin : begin + CHUNK]
        add_runs(runs, blocks, read_ends(memory, layout, world, blocks), most)
    return runs


def read_ends(
    memory: Memory, layout: Layout, world: dict[str, int], blocks: Numbers
) -> Callable[[int], tuple[int, int]]:
    """Kind and length that the state of the i-th of these blocks says; read one stretch at a
    time."""
    stride, at = layout.number("state_bytes"), world["states_at"]
    low, high = int(blocks[0]), int(blocks[-1])
    offset = {name: layout.fields["state"][name].offset for name in ("block_kind", "length")}
    buffer = read(memory, at + low * stride, (high - low + 1) * stride).reshape(-1, stride)[
        blocks - low
    ]
    kinds = buffer[:, offset["block_kind"]].tolist()
    lengths = (
        np.ascontiguousarray(buffer[:, offset["length"] : offset["length"] + 4])
        .view("<u4")
        .ravel()
        .tolist()
    )
    return lambda i: (kinds[i], lengths[i])


def add_runs(
    runs: list[Run], blocks: Numbers, state_of: Callable[[int], tuple[int, int]], most: int
) -> None:
    """Goes from run to run: what stands in the states inside of one is of no meaning."""
    i, numbers = 0, blocks.tolist()
    if runs:  # the last one of the chunk before may reach into this one
        i = int(np.searchsorted(blocks, runs[-1].first + runs[-1].blocks))
    while i < len(numbers) and len(runs) < most:
        kind, length = state_of(i)
        if kind in (DIRTY, CLEAN, ABSENT) and length > 0:
            runs.append(Run(numbers[i], length, kind))
            i = int(np.searchsorted(blocks, numbers[i] + length))
        else:
            i += 1
