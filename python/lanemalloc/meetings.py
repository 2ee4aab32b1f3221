"""Where threads met: what each place is, and what makes them meet there less."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Place:
    """A contention cell, for people."""

    what: str
    advice: str


PLACES = {
    "lane": Place(
        "entering a lane that another thread is inside",
        "give threads more lanes: lanes=percpu, or lanes=shared:N with a larger N",
    ),
    "depot": Place(
        "slabs that go from lane to lane",
        "fewer lanes move fewer slabs: lanes=percpu; a longer decay_ms leaves slabs where they are",
    ),
    "runs": Place(
        "taking and giving back runs of blocks: large allocations and new slabs",
        "reuse large buffers, or keep freed memory longer: decay_ms=10000 or more",
    ),
    "growth": Place(
        "the system adds memory",
        "keep freed memory longer (decay_ms=10000), so that it need not come from the system again",
    ),
    "readers": Place(
        "registering readers of safepoints", "register a thread once, not around each read"
    ),
    "pools": Place(
        "waiting for an object of a pool at its limit",
        "raise the pool's limit, or hold its objects for a shorter time",
    ),
    "budgets": Place("counting against the limit of a heap", "give each thread its own child heap"),
    "idle lanes": Place("threads that begin and end", "keep threads, or use lanes=percpu"),
    "overflow lanes": Place(
        "making a lane for those who find their own closed: signal handlers, threads that end", ""
    ),
    "lane numbers": Place("making a lane for a new thread", "keep threads, or use lanes=percpu"),
    "opened metadata": Place("making room for what is known of new blocks", ""),
    "used end": Place("the end of the blocks that were ever used moves up", ""),
    "runs put aside": Place("freed runs of those who may not wait, such as signal handlers", ""),
    "kinds": Place(
        "a heap that serves a size for the first time", "make heaps before threads begin"
    ),
    "fresh blocks": Place(
        "taking blocks that nobody has used", "nothing: it ends when memory stops growing"
    ),
}
UNKNOWN = Place("a lock or loop of the allocator", "")


def place_of(name: str) -> Place:
    return PLACES.get(name, UNKNOWN)


def worst_first(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those where anybody failed or waited, by the time waited and then by failed tries."""
    met = [cell for cell in cells if cell["waits"] or cell["failures"]]
    return sorted(met, key=lambda cell: (-cell["waited_ns"], -cell["waits"], -cell["failures"]))
