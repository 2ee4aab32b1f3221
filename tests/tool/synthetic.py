"""A process' memory as a stats root describes it, made by hand:
to test the reader against what no real process does on purpose."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np

from lanemalloc.layout import read_layout, read_root
from lanemalloc.memory import Addresses, Buffer, Complete, Gone
from lanemalloc.process import ProcessFacts
from lanemalloc.reader import Reader

SIZES = (0, 16, 32, 1024, 65536)
ROOT, FIELDS, CELLS, WORLD, CLASS_SIZES, OPTIONS = (
    0x10000,
    0x11000,
    0x18000,
    0x20000,
    0x30000,
    0x31000,
)
LANES, MAP, STATES, BASE, OWNERS = (
    0x100000,
    0x10_000000,
    0x20_000000,
    0x100_000000,
    0x50000,
)
LANE_BYTES, STATE_BYTES, FIRST_LANE = 1024, 128, 3
BLOCK = 1 << 16
SECRET = 0x0A3E_9234_5678_9ABC  # of links: a link is an address less this

# name: offset, count, bytes, type
PARTS: dict[str, tuple[int, int, int, int]] = {
    "world.map_at": (0, 1, 8, 2),
    "world.states_at": (8, 1, 8, 2),
    "world.lanes_at": (16, 1, 8, 2),
    "world.base": (24, 1, 8, 2),
    "world.frontier": (32, 1, 4, 0),
    "world.opened": (36, 1, 4, 0),
    "world.lane_count": (40, 1, 4, 0),
    "world.entry": (44, 1, 1, 0),
    "world.decay_ms": (48, 1, 8, 1),
    "world.dirty_blocks": (56, 1, 8, 0),
    "world.large_allocations": (64, 1, 8, 0),
    "world.large_frees": (72, 1, 8, 0),
    "world.large_bytes": (80, 1, 8, 0),
    "world.first_family": (88, 1, 8, 2),
    "world.depot_freed": (96, len(SIZES), 8, 0),
    "world.direct_frees": (144, len(SIZES), 8, 0),
    "world.sampled_allocations": (192, len(SIZES), 8, 0),
    "world.sampled_frees": (240, len(SIZES), 8, 0),
    "world.link_secret": (288, 1, 8, 0),
    "lane.bins": (640, 4 * len(SIZES), 8, 0),
    "lane.thread": (64, 1, 4, 0),
    "lane.how": (68, 1, 1, 0),
    "lane.number": (72, 1, 4, 0),
    "lane.taken": (80, len(SIZES), 8, 0),
    "lane.sent": (160, len(SIZES), 8, 0),
    "lane.received": (240, len(SIZES), 8, 0),
    "lane.misses": (320, 1, 8, 0),
    "lane.batches_to": (328, 8, 4, 0),
    "lane.made": (1000, 1, 1, 0),
    "state.carved": (16, 1, 4, 0),
    "state.beyond": (20, 1, 4, 0),
    "state.size_class": (24, 1, 1, 0),
    "state.place": (25, 1, 1, 0),
    "state.countdown": (40, 1, 4, 1),
    "state.kind": (64, 1, 8, 2),
    "state.sample": (72, 1, 8, 2),
    "state.sample_class": (24, 1, 1, 0),
    "state.block_kind": (112, 1, 1, 0),
    "state.length": (116, 1, 4, 0),
    "cell.count": (0, 1, 8, 0),
    "cell.failures": (8, 1, 8, 0),
    "cell.waits": (16, 1, 8, 0),
    "cell.waited_ns": (24, 1, 8, 0),
    "cell.waits_by_time": (32, 16, 4, 0),
    "cell.sites": (96, 2, 8, 2),
    "family.next": (0, 1, 8, 2),
    "family.type": (8, 1, 1, 0),
    "family.name": (9, 32, 1, 3),
    "family.kinds": (48, 1, 8, 2),
    "family.contention": (56, 1, 8, 2),
    "kind.next": (0, 1, 8, 2),
    "kind.size": (8, 1, 4, 0),
    "kind.contended": (16, 1, 8, 0),
    "kind.budget": (24, 1, 8, 2),
    "budget.used": (0, 1, 8, 0),
    "budget.peak": (8, 1, 8, 0),
    "budget.limit": (16, 1, 8, 0),
    "budget.count": (24, 1, 8, 0),
    "budget.failures": (32, 1, 8, 0),
}
CELL_PLACES = (("lane", 1, 512), ("depot", 0, 1024), ("fresh blocks", 0x100, 1280))


def link_to(address: int) -> int:
    return (address - SECRET) % (1 << 64)


def bins(*links: int) -> list[int]:
    """The words of a lane's bins, by the links to their first objects."""
    return [word for link in links for word in (0, 0, 0, link)]


@dataclass
class Synthetic:
    """Sparse memory by pages, and helpers that know the layout above."""

    parts: dict[str, tuple[int, int, int, int]] = field(default_factory=lambda: dict(PARTS))
    version: int = 1
    dead: bool = False
    pages: dict[int, bytearray] = field(default_factory=dict)
    blocks: int = 0
    lanes: int = 0

    def __post_init__(self) -> None:
        names = list(self.parts)
        root = struct.pack(
            "<8sII16sQQIIQQIIIIIIQQQ", b"lanestat", self.version, 120, b"0.1.0", 1, FIELDS,
            len(names), 48, WORLD, CLASS_SIZES, len(SIZES), 16, LANE_BYTES, STATE_BYTES, FIRST_LANE,
            len(CELL_PLACES), CELLS, 0, OPTIONS,
        )  # fmt: skip
        self.write(ROOT, root)
        for i, name in enumerate(names):
            offset, count, size, kind = self.parts[name]
            self.write(
                FIELDS + i * 48,
                struct.pack("<36sIIBBxx", name.encode(), offset, count, size, kind),
            )
        for i, (name, where, offset) in enumerate(CELL_PLACES):
            self.write(CELLS + i * 32, struct.pack("<24sII", name.encode(), where, offset))
        self.write(CLASS_SIZES, struct.pack(f"<{len(SIZES)}I", *SIZES))
        self.write(OPTIONS, b"lanes=auto\0")
        self.write(WORLD, bytes(4096))
        self.set("world", WORLD, map_at=MAP, states_at=STATES, lanes_at=LANES, base=BASE)
        self.set("world", WORLD, link_secret=SECRET)

    # --- Memory.
    def gather(self, addresses: Addresses, lengths: Addresses) -> tuple[Buffer, Complete]:
        if self.dead:
            raise Gone("process 1 has ended")
        pieces = [self.read(int(a), int(n)) for a, n in zip(addresses, lengths)]
        complete = np.array([piece is not None for piece in pieces], np.bool_)
        joined = b"".join(
            bytes(int(n)) if piece is None else piece for piece, n in zip(pieces, lengths)
        )
        return np.frombuffer(bytearray(joined), np.uint8), complete

    def read(self, at: int, length: int) -> bytes | None:
        found = bytearray()
        while len(found) < length:
            page, offset = divmod(at + len(found), 4096)
            if page not in self.pages:
                return None
            found += self.pages[page][offset : offset + length - len(found)]
        return bytes(found)

    def write(self, at: int, data: bytes) -> None:
        for i in range(0, len(data)):
            page, offset = divmod(at + i, 4096)
            self.pages.setdefault(page, bytearray(4096))[offset] = data[i]

    def unmap(self, at: int) -> None:
        self.pages.pop(at // 4096, None)

    # --- What lies there.
    def set(self, part: str, at: int, **values: int | list[int] | bytes) -> None:
        for name, value in values.items():
            offset, _, size, _ = self.parts[f"{part}.{name}"]
            if isinstance(value, bytes):
                self.write(at + offset, value + b"\0")
                continue
            for i, one in enumerate(value if isinstance(value, list) else [value]):
                self.write(
                    at + offset + i * size,
                    (one & ((1 << 8 * size) - 1)).to_bytes(size, "little"),
                )

    def world(self, **values: int | list[int]) -> None:
        self.set("world", WORLD, **values)

    def add_lane(self, **values: int | list[int]) -> int:
        at = LANES + self.lanes * LANE_BYTES
        self.write(at, bytes(LANE_BYTES))
        self.set("lane", at, made=1)
        self.set("lane", at, **values)
        self.lanes += 1
        self.world(lane_count=self.lanes)
        return FIRST_LANE + self.lanes - 1

    def lane(self, owner: int, **values: int | list[int]) -> None:
        self.set("lane", LANES + (owner - FIRST_LANE) * LANE_BYTES, **values)

    def add_blocks(self, count: int, owner: int = 0) -> int:
        """So many blocks that belong together; returns the first."""
        first = self.blocks
        state = STATES + first * STATE_BYTES
        for block in range(first, first + count):
            self.write(STATES + block * STATE_BYTES, bytes(STATE_BYTES))
            self.write(MAP + block * 8, struct.pack("<Q", owner | state << 16 if owner else 0))
        self.blocks += count
        self.world(frontier=self.blocks, opened=self.blocks)
        return first

    def add_slab(
        self,
        owner: int,
        size_class: int,
        used: int,
        carved: int,
        blocks: int = 1,
        **more: int,
    ) -> int:
        """Returns the address of its first object."""
        first = self.add_blocks(blocks, owner)
        state = STATES + first * STATE_BYTES
        self.set(
            "state",
            state,
            countdown=used + 7,
            beyond=-7,
            carved=carved,
            size_class=size_class,
            **more,
        )
        address = BASE + first * BLOCK
        self.write(address, bytes(min(max(carved * SIZES[size_class], 4096), blocks * BLOCK)))
        return address

    def add_run(self, kind: int, length: int) -> None:
        first = self.add_blocks(length)
        for block in (first, first + length - 1):
            self.set("state", STATES + block * STATE_BYTES, block_kind=kind, length=length)

    def link(self, *objects: int) -> int:
        """A list through the objects' first words; returns the link to the first."""
        for one, following in zip(objects, objects[1:] + (0,)):
            self.write(one, struct.pack("<Q", link_to(following)))
        return link_to(objects[0])

    def reader(self) -> Reader:
        root = read_root(self, ROOT)
        assert root is not None
        return Reader(self, read_layout(self, ROOT, root), self.facts)

    def facts(self) -> ProcessFacts:
        if self.dead:
            raise Gone("process 1 has ended")
        return ProcessFacts(1, "synthetic", "S", 1, 1 << 20, 0.0, 0)
