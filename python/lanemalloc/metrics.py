"""The figures of all processes of a host as OpenMetrics: names as the library itself writes them,
with labels of the process.

Bounded: so many processes (those with most memory), heaps and pools of each; size classes go
together by doublings; and a scrape ends after a set time, with what has been read until then.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from lanemalloc import process
from lanemalloc.figures import figures
from lanemalloc.live.model import Finder
from lanemalloc.snapshot import Snapshot
from lanemalloc.ui import Problem

PREFIX = "lanemalloc_"
LABELS = ("pid", "process", "cgroup")
SHARE = 0.002  # of a CPU, for the slabs and bins of one process
SHORTEST = 0.5  # seconds, for which a scrape's answer serves others too
MOST_HEAPS = 50
MOST_LABEL = 120
SMALLEST_SIZE, LARGEST_SIZE = 64, 1 << 19

# What figures() has: its name, type and help. Names that end in _us become seconds.
FIGURES: dict[str, tuple[str, str]] = {
    "allocations": ("counter", "Allocations"),
    "frees": ("counter", "Frees"),
    "live_objects": ("gauge", "Objects that the program has"),
    "live_bytes": (
        "gauge",
        "Bytes of objects that the program has, with what their size classes add",
    ),
    "large_allocations": ("counter", "Allocations of more than 512 KiB"),
    "large_live_objects": ("gauge", "Objects of more than 512 KiB that the program has"),
    "large_live_bytes": ("gauge", "Bytes of objects of more than 512 KiB"),
    "in_flight_objects": (
        "gauge",
        "Objects freed by another lane than the owner's, and not yet taken in there",
    ),
    "misses": ("counter", "Requests that found their bin empty"),
    "remote_frees": ("counter", "Objects freed by another lane than the owner's"),
    "remote_batches": ("counter", "Batches in which these were sent"),
    "inbox_drains": ("counter", "Times that a lane took in what was sent"),
    "lanes": ("gauge", "Lanes that there are"),
    "slabs_made": ("counter", "Slabs taken from the run allocator"),
    "slabs_moved": ("counter", "Slabs moved by the depot"),
    "slab_bytes": ("gauge", "Bytes of slabs of malloc"),
    "kind_bytes": ("gauge", "Bytes of slabs of heaps and pools"),
    "failed_entries": ("counter", "Tries to enter a lane by its lock that failed"),
    "lane_waits": ("counter", "Waits for a lane"),
    "lane_waited_us": ("counter", "Time waited for lanes"),
    "rebinds": ("counter", "Threads that went over to another lane"),
    "overflow_entries": ("counter", "Entries of overflow lanes"),
    "nested_entries": ("counter", "Entries of signal handlers that interrupted the allocator"),
    "rescue_entries": ("counter", "Overflow lanes that were made because all were taken"),
    "revocations": ("counter", "Lanes taken from their owner for a while"),
    "refused_revocations": (
        "counter",
        "Lanes that could not be taken because their owner was inside",
    ),
    "idle_stack_failures": ("counter", "Failed swaps of the stack of idle lanes"),
    "depot_failures": ("counter", "Failed tries for the lock of the depot"),
    "depot_waits": ("counter", "Waits for the lock of the depot"),
    "runs_failures": ("counter", "Failed tries for the locks of the run allocator"),
    "runs_waits": ("counter", "Waits for the locks of the run allocator"),
    "claimed_bytes": ("gauge", "Bytes of address space in use"),
    "committed_bytes": ("gauge", "Bytes claimed that are not known to be without memory"),
    "cached_bytes": ("gauge", "Bytes of freed runs that are kept"),
    "purged_bytes": ("counter", "Bytes given back to the system"),
    "moved_bytes": ("counter", "Bytes moved by the kernel for realloc"),
    "bad_pointers": ("counter", "Pointers handed in that were no live object"),
}
OF_CELLS = {
    "contention_entries": ("count", "Entries of a lock, or loops done"),
    "contention_failures": ("failures", "Tries that failed because another thread was there"),
    "contention_waits": ("waits", "Entries that had to wait"),
}


@dataclass
class Seen:
    """A process, as it was read at a scrape."""

    labels: tuple[str, str, str]
    snapshot: Snapshot
    floors: dict[str, float] = field(default_factory=dict)

    def counter(self, name: str, value: float) -> float:
        """Never less than at the scrape before: a figure that was an estimate then must not look
        like a process that began anew."""
        self.floors[name] = value = max(value, self.floors.get(name, 0.0))
        return value


@dataclass
class Scrape:
    """All processes that could be read."""

    seen: list[Seen] = field(default_factory=list)
    left_out: dict[str, int] = field(
        default_factory=lambda: {"limit": 0, "time": 0, "permission": 0}
    )
    seconds: float = 0.0


class Processes:
    """Reads them all. Scrapes at the same time share one answer."""

    def __init__(self, most: int = 100, seconds: float = 5.0) -> None:
        self.most = most
        self.seconds = seconds
        self._finder = Finder()
        self._lock = threading.Lock()
        self._last: tuple[float, Scrape] = (-1e9, Scrape())
        self._floors: dict[tuple[int, int], dict[str, float]] = {}

    def scrape(self) -> Scrape:
        with self._lock:
            when, last = self._last
            if time.monotonic() - when < SHORTEST:
                return last
            scrape = self._read()
            self._last = (time.monotonic(), scrape)
            return scrape

    def _read(self) -> Scrape:
        begin = time.monotonic()
        scrape = Scrape()
        found = sorted(self._finder.find(self.seconds / 2), key=lambda one: -one[0].resident)
        scrape.left_out["permission"] = self._finder.not_allowed
        floors = self._floors
        self._floors = {}
        for facts, reader in found:
            if len(scrape.seen) >= self.most:
                scrape.left_out["limit"] += 1
            elif time.monotonic() - begin > self.seconds:
                scrape.left_out["time"] += 1
            else:
                key = (facts.pid, reader.started_at_ns)
                self._floors[key] = floors.get(key, {})
                with contextlib.suppress(Problem):  # it has ended meanwhile
                    scrape.seen.append(
                        Seen(labels_of(facts), reader.read_paced(SHARE), self._floors[key])
                    )
        scrape.seconds = time.monotonic() - begin
        return scrape

    def collect(self) -> Iterable[Metric]:
        """As prometheus_client asks."""
        scrape = self.scrape()
        yield from own_metrics(scrape)
        yield from process_metrics(scrape.seen)
        yield from figure_metrics(scrape.seen)
        yield from cell_metrics(scrape.seen)
        yield from class_metrics(scrape.seen)
        yield from heap_metrics(scrape.seen)


def labels_of(facts: process.ProcessFacts) -> tuple[str, str, str]:
    return str(facts.pid), printable(facts.name), printable(process.cgroup_of(facts.pid))


def printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:MOST_LABEL]


def own_metrics(scrape: Scrape) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        PREFIX + "processes",
        "Processes that run with lanemalloc and were read",
        value=len(scrape.seen),
    )
    left_out = GaugeMetricFamily(
        PREFIX + "processes_left_out",
        "Processes that were not read: too many, no time, or no permission",
        labels=["reason"],
    )
    for reason, count in scrape.left_out.items():
        left_out.add_metric([reason], count)
    yield left_out
    yield GaugeMetricFamily(
        PREFIX + "exporter_scrape_duration_seconds",
        "Time that reading all processes took",
        value=scrape.seconds,
        unit="seconds",
    )


def process_metrics(seen: list[Seen]) -> Iterator[Metric]:
    resident = GaugeMetricFamily(
        PREFIX + "resident_bytes", "Resident memory of the process", labels=LABELS, unit="bytes"
    )
    threads = GaugeMetricFamily(PREFIX + "threads", "Threads of the process", labels=LABELS)
    started = GaugeMetricFamily(
        PREFIX + "start_time_seconds",
        "When the allocator started, in seconds since 1970",
        labels=LABELS,
        unit="seconds",
    )
    info = GaugeMetricFamily(
        PREFIX + "process_info",
        "1; how threads enter lanes, and the library",
        labels=[*LABELS, "entry", "library"],
    )
    waiting = GaugeMetricFamily(
        PREFIX + "waiting_bytes",
        "Bytes of free objects in the bins of lanes",
        labels=LABELS,
        unit="bytes",
    )
    empty = GaugeMetricFamily(
        PREFIX + "empty_slab_bytes",
        "Bytes of empty slabs that lanes keep",
        labels=LABELS,
        unit="bytes",
    )
    for one in seen:
        s = one.snapshot
        resident.add_metric(one.labels, s.process.resident)
        threads.add_metric(one.labels, s.process.threads)
        started.add_metric(one.labels, round(s.wall - (s.at_ns - s.started_at_ns) / 1e9, 1))
        info.add_metric([*one.labels, s.entry, s.library], 1)
        waiting.add_metric(one.labels, s.waiting_bytes)
        empty.add_metric(one.labels, int(s.lanes.bytes_empty.sum()))
    yield from (resident, threads, started, info, waiting, empty)


def figure_metrics(seen: list[Seen]) -> Iterator[Metric]:
    values = [(one, figures(one.snapshot)) for one in seen]
    for name, (kind, text) in FIGURES.items():
        in_us = name.endswith("_us")
        full = PREFIX + (name[:-3] + "_seconds" if in_us else name)
        unit = "seconds" if in_us else "bytes" if name.endswith("_bytes") else ""
        family = (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(
            full, text, labels=LABELS, unit=unit
        )
        for one, found in values:
            if name in found:
                value = found[name] / 1e6 if in_us else found[name]
                family.add_metric(
                    one.labels, one.counter(name, value) if kind == "counter" else value
                )
        yield family


def cell_metrics(seen: list[Seen]) -> Iterator[Metric]:
    labels = [*LABELS, "at"]
    cells = [([*one.labels, cell.name], cell) for one in seen for cell in one.snapshot.cells]
    for name, (attribute, text) in OF_CELLS.items():
        family = CounterMetricFamily(PREFIX + name, text, labels=labels)
        for values, cell in cells:
            if not (cell.is_loop and attribute == "waits"):
                family.add_metric(values, getattr(cell, attribute))
        yield family
    waited = HistogramMetricFamily(
        PREFIX + "contention_wait_seconds", "How long waits lasted", labels=labels, unit="seconds"
    )
    for values, cell in cells:
        if not cell.is_loop and cell.waits:
            waited.add_metric(values, buckets_of(cell.histogram.tolist()), cell.waited_ns / 1e9)
    yield waited


def buckets_of(counts: list[int]) -> list[tuple[str, float]]:
    """Cumulative; the i-th counts waits shorter than 2^i microseconds, the last one all others."""
    buckets, total = [], 0
    for i, count in enumerate(counts):
        total += count
        buckets.append((repr(2**i / 1e6) if i + 1 < len(counts) else "+Inf", float(total)))
    return buckets


def class_metrics(seen: list[Seen]) -> Iterator[Metric]:
    labels = [*LABELS, "size"]
    allocations = CounterMetricFamily(
        PREFIX + "class_allocations",
        "Allocations of up to that size, and more than half of it",
        labels=labels,
    )
    live = GaugeMetricFamily(
        PREFIX + "class_live_bytes", "Bytes of objects of that size", labels=labels, unit="bytes"
    )
    slabs = GaugeMetricFamily(
        PREFIX + "class_slab_bytes", "Bytes of slabs of that size", labels=labels, unit="bytes"
    )
    for one in seen:
        for size, (n, b, s) in doublings(one.snapshot).items():
            values = [*one.labels, str(size)]
            allocations.add_metric(values, one.counter(f"size {size}", n))
            live.add_metric(values, b)
            slabs.add_metric(values, s)
    yield from (allocations, live, slabs)


def doublings(snapshot: Snapshot) -> dict[int, tuple[int, int, int]]:
    """Allocations, live bytes and slab bytes of classes together, by the power of two that they go
    up to. Always the same ones."""
    c = snapshot.classes
    sums: dict[int, tuple[int, int, int]] = {}
    bound = SMALLEST_SIZE
    below = 0
    while bound <= LARGEST_SIZE:
        mine = (c.size > below) & (c.size <= bound)
        sums[bound] = (
            int(c.allocations[mine].sum()),
            int(c.live_bytes[mine].sum()),
            int(c.slab_bytes[mine].sum()),
        )
        below, bound = bound, bound * 2
    return sums


def heap_metrics(seen: list[Seen]) -> Iterator[Metric]:
    labels = [*LABELS, "heap", "kind"]
    used = GaugeMetricFamily(
        PREFIX + "heap_used_bytes",
        "Bytes that a heap or pool has cut from its slabs",
        labels=labels,
        unit="bytes",
    )
    limit = GaugeMetricFamily(
        PREFIX + "heap_limit_bytes",
        "The limit of a heap or pool that has one",
        labels=labels,
        unit="bytes",
    )
    peak = GaugeMetricFamily(
        PREFIX + "heap_peak_bytes",
        "The most of these at a time",
        labels=labels,
        unit="bytes",
    )
    slabs = GaugeMetricFamily(
        PREFIX + "heap_slab_bytes", "Bytes of its slabs", labels=labels, unit="bytes"
    )
    for one in seen:
        sums: dict[tuple[str, str], list[int]] = {}
        for owner in sorted(one.snapshot.owners, key=lambda owner: -owner.used):
            key = (printable(owner.name), owner.kind)
            if key in sums or len(sums) < MOST_HEAPS:
                row = sums.setdefault(key, [0, 0, 0, 0])
                for i, value in enumerate(
                    (owner.used, owner.limit or 0, owner.peak, owner.slab_bytes)
                ):
                    row[i] += value
        for (name, kind), (in_use, most, highest, in_slabs) in sums.items():
            used.add_metric([*one.labels, name, kind], in_use)
            peak.add_metric([*one.labels, name, kind], highest)
            slabs.add_metric([*one.labels, name, kind], in_slabs)
            if most:
                limit.add_metric([*one.labels, name, kind], most)
    yield from (used, peak, slabs, limit)
