"""gdb commands that show what lanemalloc knows, in a process or in its core file.

    (gdb) source tools/lanemalloc-gdb.py
    (gdb) lanemalloc pointer 0x2a5c1e40030   whose it is: block, owner, slab, object, in use or free
    (gdb) lanemalloc slab 0x2a5c1e40030      the slab that an address lies in
    (gdb) lanemalloc lanes                   all lanes, one a line
    (gdb) lanemalloc lane 3                  one of them: its bins and its slabs, by size class

Reads memory only, by docs/stats-root.md: no function runs in the process, so it may be stopped
anywhere, also inside the allocator. Tested by tests/seeing.
"""

import struct

import gdb

PRIVATE = 0x8000
NOBODY, LARGE, DEPOT = 0, 1, 2
ROOTS = ("lanemalloc_stats_root", "lane_lanemalloc_stats_root")  # the last: of the prefixed library
PLACES = ("current", "partly free", "empty", "full")
CONDITIONS = {2: "dirty", 3: "clean", 4: "absent"}
TYPES = {1: "B", 2: "H", 4: "I", 8: "Q"}
MOST_OBJECTS = 1 << 20  # of a list; one that is longer makes a circle


def read(address, size):
    return gdb.selected_inferior().read_memory(address, size).tobytes()


def words(address, count):
    return struct.unpack(f"<{count}Q", read(address, 8 * count))


class Root:
    """The allocator of the process. All that is known of its layout comes from its root."""

    def __init__(self, at):
        head = read(at, 120)
        if head[:8] != b"lanestat" or struct.unpack_from("<I", head, 8)[0] != 1:
            raise gdb.GdbError(f"lanemalloc: no stats root of version 1 at {at:#x}")
        (
            started,
            fields,
            count,
            step,
            self.world,
            sizes,
            classes,
            self.shift,
            self.lane_bytes,
            self.state_bytes,
            self.first_lane,
        ) = struct.unpack_from("<QQIIQQIIIII", head, 32)
        if started == 0:
            raise gdb.GdbError("lanemalloc: the allocator has not started yet")
        self.fields = {}
        table = read(fields, count * step)
        for i in range(count):
            name, offset, n, width, _ = struct.unpack_from("<36sIIBB", table, i * step)
            self.fields[name.rstrip(b"\0").decode()] = (offset, n, width)
        self.sizes = struct.unpack(f"<{classes}I", read(sizes, 4 * classes))
        self.base = self.one("world.base")
        self.known = min(self.one("world.frontier"), self.one("world.opened"))

    def get(self, name, base=None):
        offset, count, width = self.fields[name]
        data = read((self.world if base is None else base) + offset, count * width)
        return struct.unpack(f"<{count}{TYPES[width]}", data)

    def one(self, name, base=None):
        return self.get(name, base)[0]

    # --- Blocks.

    def block_of(self, address):
        block = (address - self.base) >> self.shift
        return block if 0 <= block < self.known else None

    def begin(self, block):
        return self.base + (block << self.shift)

    def entry(self, block):
        """Its owner, and the address of the state of the first block of its slab."""
        entry = words(self.one("world.map_at") + 8 * block, 1)[0]
        return entry & 0xFFFF, entry >> 16

    def state(self, block):
        return self.one("world.states_at") + block * self.state_bytes

    def block_of_state(self, state):
        return (state - self.one("world.states_at")) // self.state_bytes

    def slabs(self):
        """Owner and state of each slab of malloc's."""
        for block, entry in enumerate(words(self.one("world.map_at"), self.known)):
            owner, state = entry & 0xFFFF, entry >> 16
            if owner >= DEPOT and not owner & PRIVATE and state == self.state(block):
                yield owner, state

    def owner_name(self, owner):
        kind = " (of a heap or pool)" if owner & PRIVATE else ""
        number = owner & ~PRIVATE
        if number == DEPOT:
            return "the depot" + kind
        return f"lane {number - self.first_lane}{kind}"

    # --- Lanes.

    def lanes(self):
        first = self.one("world.lanes_at")
        for i in range(self.one("world.lane_count")):
            lane = first + i * self.lane_bytes
            if self.one("lane.made", lane) != 0:
                yield i, lane

    def in_use(self, state):
        return (self.one("state.countdown", state) + self.one("state.beyond", state)) & 0xFFFFFFFF


def objects_of(root, link):
    """Of a list of free objects, by the link to the first: their addresses. Ends early where memory
    cannot be read. A link is an address less a secret number."""
    found = []
    secret = root.one("world.link_secret")
    try:
        while link != 0 and len(found) < MOST_OBJECTS:
            address = (link + secret) & 0xFFFF_FFFF_FFFF_FFFF
            if address == 0:
                break
            found.append(address)
            link = words(address, 1)[0]
    except gdb.MemoryError:
        pass
    return found


def bin_of(root, lane, size_class):
    """The objects that wait in a lane's bin. A bin has four words; the last is its first link."""
    links = root.get("lane.bins", lane)[3::4]
    return objects_of(root, links[size_class]) if size_class < len(links) else []


def find_root():
    for name in ROOTS:
        try:
            return Root(int(gdb.parse_and_eval(f"(unsigned long)&{name}")))
        except gdb.GdbError:
            raise
        except gdb.error:
            continue
    raise gdb.GdbError(
        f"lanemalloc: no symbol {ROOTS[0]}: the process does not use it, or it is stripped"
    )


def address_in(text, usage):
    if not text.strip():
        raise gdb.GdbError(f"usage: {usage}")
    return int(gdb.parse_and_eval(f"(unsigned long)({text})"))


def tell_slab(root, owner, state):
    block = root.block_of_state(state)
    size_class = root.one("state.size_class", state)
    place = root.one("state.place", state)
    print(f"slab at {root.begin(block):#x}, state at {state:#x}, of {root.owner_name(owner)}")
    what = (
        f"class {size_class}, objects of {root.sizes[size_class]} bytes"
        if size_class
        else "a kind's"
    )
    print(f"  {what}; {PLACES[place] if place < len(PLACES) else place}")
    print(
        f"  {root.one('state.carved', state)} objects carved, {root.in_use(state)} in use or in "
        "its bin"
    )


def tell_nobodys(root, block):
    for before in range(block - 1, -1, -1):
        owner, _ = root.entry(before)
        if owner != NOBODY:
            if (
                owner & ~PRIVATE == LARGE
                and before + root.one("state.length", root.state(before)) > block
            ):
                return print(f"  inside the large object at {root.begin(before):#x}")
            break
    condition = CONDITIONS.get(root.one("state.block_kind", root.state(block)), "inside a free run")
    print(f"  free: {condition}")


# --- The commands. Each is a function of the root and of what was typed behind its name.


def pointer(root, argument):
    """Whose an address is: lanemalloc pointer ADDRESS."""
    address = address_in(argument, "lanemalloc pointer ADDRESS")
    block = root.block_of(address)
    if block is None:
        return print(f"{address:#x}: not in memory of lanemalloc")
    owner, state = root.entry(block)
    print(f"{address:#x}: block {block}, {root.begin(block):#x}")
    if owner == NOBODY:
        return tell_nobodys(root, block)
    if owner & ~PRIVATE == LARGE:
        length = root.one("state.length", root.state(block))
        return print(
            f"  a large object of {length} blocks ({length << root.shift} bytes) begins here"
        )
    tell_slab(root, owner, state)
    size_class = root.one("state.size_class", state)
    if size_class == 0:  # a kind's
        return None
    begin, size = root.begin(root.block_of_state(state)), root.sizes[size_class]
    number, into = divmod(address - begin, size)
    start = begin + number * size
    if number >= root.one("state.carved", state):
        return print("  no object was ever handed out there")
    condition = "in use"
    if start in objects_of(root, root.one("state.free_list", state)):
        condition = "free, on the slab's list"
    elif owner >= root.first_lane:
        lane = dict(root.lanes())[owner - root.first_lane]
        if start in bin_of(root, lane, size_class):
            condition = "free, in its lane's bin"
    return print(f"  object {number} at {start:#x}, {into} bytes into it: {condition}")


def slab(root, argument):
    """The slab that an address lies in: lanemalloc slab ADDRESS."""
    address = address_in(argument, "lanemalloc slab ADDRESS")
    block = root.block_of(address)
    owner, state = (NOBODY, 0) if block is None else root.entry(block)
    if owner & ~PRIVATE < DEPOT:
        raise gdb.GdbError(f"lanemalloc: {address:#x} lies in no slab")
    tell_slab(root, owner, state)


def lanes(root, _):
    """All lanes: lanemalloc lanes."""
    slabs = {}
    for owner, _ in root.slabs():
        slabs[owner] = slabs.get(owner, 0) + 1
    print(f"{'lane':>6} {'thread':>8} {'slabs':>6} {'in bins':>8} {'misses':>10}")
    for number, at in root.lanes():
        waiting = sum(len(bin_of(root, at, c)) for c in range(1, len(root.sizes)))
        thread = root.one("lane.thread", at) or "-"
        print(
            f"{number:>6} {thread:>8} {slabs.get(number + root.first_lane, 0):>6} {waiting:>8} "
            f"{root.one('lane.misses', at):>10}"
        )
    print(f"{'depot':>6} {'':>8} {slabs.get(DEPOT, 0):>6}")


def lane(root, argument):
    """A lane's bins and slabs: lanemalloc lane NUMBER."""
    number = address_in(argument, "lanemalloc lane NUMBER")
    known = dict(root.lanes())
    if number not in known:
        raise gdb.GdbError(f"lanemalloc: there is no lane {number}")
    at = known[number]
    print(f"lane {number} at {at:#x}, thread {root.one('lane.thread', at) or '-'}")
    slabs, in_use = {}, {}
    for owner, state in root.slabs():
        if owner == number + root.first_lane:
            size_class = root.one("state.size_class", state)
            slabs[size_class] = slabs.get(size_class, 0) + 1
            in_use[size_class] = in_use.get(size_class, 0) + root.in_use(state)
    print(f"{'bytes':>8} {'slabs':>6} {'in use':>8} {'in bin':>7}")
    for size_class in range(1, len(root.sizes)):
        waiting = len(bin_of(root, at, size_class))
        if size_class in slabs or waiting:
            print(
                f"{root.sizes[size_class]:>8} {slabs.get(size_class, 0):>6} "
                f"{in_use.get(size_class, 0) - waiting:>8} {waiting:>7}"
            )


class Prefix(gdb.Command):
    """Show what lanemalloc knows: lanemalloc pointer|slab|lanes|lane."""

    def __init__(self):
        super().__init__("lanemalloc", gdb.COMMAND_DATA, prefix=True)


class Command(gdb.Command):
    def __init__(self, tell):
        self.__doc__ = tell.__doc__
        self.tell = tell
        super().__init__(f"lanemalloc {tell.__name__}", gdb.COMMAND_DATA)

    def invoke(self, argument, from_tty):
        self.tell(find_root(), argument)


Prefix()
for function in (pointer, slab, lanes, lane):
    Command(function)
