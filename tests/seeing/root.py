"""Reads a running process from outside by docs/stats-root.md alone: the note, the root, and the
sums that it says.

Called by: tests/seeing/check.py, when the process is at rest.
"""

import os
import re
import struct
from dataclasses import dataclass

NAME = b"lanemalloc\0"
PT_NOTE = 4
BLOCK_OWNERS = {"nobody": 0, "large": 1, "depot": 2}
PRIVATE = 0x8000


class Memory:
    """Of another process; needs the right to trace it."""

    def __init__(self, pid: int) -> None:
        self.file = os.open(f"/proc/{pid}/mem", os.O_RDONLY)

    def read(self, address: int, size: int) -> bytes:
        return os.pread(self.file, size, address)

    def word(self, address: int) -> int:
        return int(struct.unpack("<Q", self.read(address, 8))[0])

    def text(self, address: int) -> str:
        return self.read(address, 1024).split(b"\0")[0].decode()


def roots_of(memory: Memory, pid: int) -> list[int]:
    """The addresses that the notes of all mapped files name."""
    found = []
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        begins = [
            int(m[1], 16)
            for line in maps
            if (m := re.match(r"([0-9a-f]+)-[0-9a-f]+ r\S+ 0+ \S+ [1-9]", line))
        ]
    for begin in begins:
        head = memory.read(begin, 64)
        if head[:4] != b"\x7fELF":
            continue
        kind, at, count = (
            struct.unpack("<H", head[16:18])[0],
            struct.unpack("<Q", head[32:40])[0],
            struct.unpack("<H", head[56:58])[0],
        )
        base = (
            begin if kind == 3 else 0
        )  # a program that is not position-independent lies where it says
        for i in range(count):
            part = struct.unpack("<IIQQQQQQ", memory.read(begin + at + i * 56, 56))
            if part[0] != PT_NOTE:
                continue
            address, notes, place = base + part[3], memory.read(base + part[3], part[5]), 0
            while place + 12 <= len(notes):
                name_size, size, number = struct.unpack_from("<III", notes, place)
                content = place + 12 + (name_size + 3) // 4 * 4
                if number == 1 and notes[place + 12 : place + 12 + name_size] == NAME:
                    found.append(address + content + struct.unpack_from("<q", notes, content)[0])
                place = content + (size + 3) // 4 * 4
    return found


@dataclass
class Sums:
    allocations: int
    live_objects: int
    live_bytes: int
    options: str


class Root:
    def __init__(self, memory: Memory, at: int) -> None:
        self.memory = memory
        head = memory.read(at, 120)
        self.magic, self.version, self.size = head[:8], *struct.unpack_from("<II", head, 8)
        (
            self.started,
            fields,
            count,
            each,
            self.world,
            sizes,
            class_count,
            _,
            self.lane_bytes,
            self.state_bytes,
            self.first_lane,
            _,
            _,
            _,
            options,
        ) = struct.unpack_from("<QQIIQQIIIIIIQQQ", head, 32)
        self.fields = {}
        for i in range(count):
            name, offset, n, width, _ = struct.unpack(
                "<36sIIBB", memory.read(fields + i * each, 46)
            )
            self.fields[name.rstrip(b"\0").decode()] = (offset, n, width)
        self.class_sizes = struct.unpack(f"<{class_count}I", memory.read(sizes, 4 * class_count))
        self.options = options

    def get(self, name: str, base: int) -> list[int]:
        offset, count, width = self.fields[name]
        return list(
            struct.unpack(
                f"<{count}{ {1: 'B', 2: 'H', 4: 'I', 8: 'Q'}[width] }",
                self.memory.read(base + offset, count * width),
            )
        )

    def one(self, name: str, base: int | None = None) -> int:
        return self.get(name, self.world if base is None else base)[0]

    def lanes(self) -> list[int]:
        """The addresses of those that there are."""
        first = self.one("world.lanes_at")
        places = [first + i * self.lane_bytes for i in range(self.one("world.lane_count"))]
        return [lane for lane in places if self.one("lane.made", lane) != 0]

    def slabs(self) -> list[int]:
        """The states of malloc's."""
        states, found = self.one("world.states_at"), []
        count = min(self.one("world.frontier"), self.one("world.opened"))
        owners = struct.unpack(f"<{count}Q", self.memory.read(self.one("world.map_at"), 8 * count))
        for block, entry in enumerate(owners):
            owner, state = entry & 0xFFFF, entry >> 16
            if (
                owner >= BLOCK_OWNERS["depot"]
                and not owner & PRIVATE
                and state == states + block * self.state_bytes
            ):
                found.append(state)
        return found

    def length(self, link: int) -> int:
        """Of a bin's list, by the link to its first object. 0: there is no slab."""
        n = 0
        secret = self.one("world.link_secret")
        while link != 0 and (at := (link + secret) % (1 << 64)) != 0:
            link, n = self.memory.word(at), n + 1
        return n

    def sums(self) -> Sums:
        """Adds up as docs/stats-root.md says."""
        n = len(self.class_sizes)
        world = {
            name: self.get(f"world.{name}", self.world)
            for name in ("sampled_allocations", "sampled_frees", "direct_frees", "depot_freed")
        }
        in_use, waiting, taken, in_flight = [0] * n, [0] * n, [0] * n, [0] * n
        for slab in self.slabs():
            in_use[self.one("state.size_class", slab)] += (
                self.one("state.countdown", slab) + self.one("state.beyond", slab)
            ) & 0xFFFFFFFF
        for lane in self.lanes():
            for c, link in enumerate(self.get("lane.bins", lane)[3::4]):
                waiting[c] += self.length(link)
            for c, (put_in, sent, received) in enumerate(
                zip(
                    *(self.get(f"lane.{name}", lane)[:n] for name in ("taken", "sent", "received")),
                    strict=True,
                )
            ):
                taken[c] += put_in
                in_flight[c] += sent - received
        allocations = self.one("world.large_allocations")
        live = allocations - self.one("world.large_frees")
        size = self.one("world.large_bytes")
        for c in range(1, n):
            flying = in_flight[c] - world["depot_freed"][c] + world["direct_frees"][c]
            sampled = world["sampled_allocations"][c] - world["sampled_frees"][c]
            objects = in_use[c] - waiting[c] - flying + sampled
            allocations += taken[c] - waiting[c] + world["sampled_allocations"][c]
            live += objects
            size += objects * self.class_sizes[c]
        return Sums(allocations, live, size, self.memory.text(self.options))


def read_roots(pid: int) -> list[Root]:
    """All that the process has."""
    memory = Memory(pid)
    return [Root(memory, at) for at in roots_of(memory, pid)]
