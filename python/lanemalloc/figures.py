"""A snapshot as figures by name, and as JSON: the names are those of lane_statistics and of
docs/stats.schema.json."""

from __future__ import annotations

from typing import Any

import numpy as np

from lanemalloc.snapshot import ENTRIES, NO_NUMBER, CellFigures, Difference, OwnerFigures, Snapshot

MOST_LANES = 256  # in JSON: those with most allocations


def figures(snapshot: Snapshot) -> dict[str, int]:
    """What the library's own statistics have too, as far as it can be read from outside."""
    s, lanes, world = snapshot, snapshot.lanes, snapshot.world
    found = {
        "allocations": s.allocations,
        "frees": s.frees,
        "live_objects": s.live_objects,
        "live_bytes": s.live_bytes,
        "large_allocations": world.get("large_allocations", 0),
        "large_live_objects": s.large_live,
        "large_live_bytes": s.large_bytes,
        "in_flight_objects": int(s.classes.in_flight.sum()),
        "misses": int(lanes.misses.sum()),
        "remote_frees": int(lanes.remote_frees.sum()),
        "remote_batches": int(lanes.remote_batches.sum()),
        "inbox_drains": int(lanes.inbox_drains.sum()),
        "lanes": len(lanes),
        "slabs_made": int(lanes.slabs_made.sum()),
        "slab_bytes": int(s.classes.slab_bytes.sum()),
        "kind_bytes": s.kind_bytes,
    }
    found.update(of_cells(snapshot))
    for name, field in WORLD_NAMES.items():
        if field in world:
            found[name] = world[field]
    if "claimed_bytes" in world and "clean_bytes" in world:
        found["committed_bytes"] = world["claimed_bytes"] - world["clean_bytes"]
    return found


WORLD_NAMES = {
    "rebinds": "rebinds",
    "overflow_entries": "overflow_entries",
    "nested_entries": "nested_entries",
    "rescue_entries": "rescues",
    "revocations": "revocations",
    "refused_revocations": "refused_revocations",
    "slabs_moved": "depot_moved",
    "claimed_bytes": "claimed_bytes",
    "cached_bytes": "dirty_bytes",
    "purged_bytes": "purged_bytes",
    "moved_bytes": "moved_bytes",
    "bad_pointers": "bad_pointers",
}


def of_cells(snapshot: Snapshot) -> dict[str, int]:
    """The figures of locks that have names of their own."""
    cells = {cell.name: cell for cell in snapshot.cells}
    found: dict[str, int] = {}
    if "lane" in cells:
        lane = cells["lane"]
        found.update(
            failed_entries=lane.failures,
            lane_waits=lane.waits,
            lane_waited_us=lane.waited_ns // 1000,
        )
    if "depot" in cells:
        found.update(depot_failures=cells["depot"].failures, depot_waits=cells["depot"].waits)
    if "runs" in cells and "growth" in cells:
        found["runs_failures"] = cells["runs"].failures + cells["growth"].failures
        found["runs_waits"] = cells["runs"].waits + cells["growth"].waits
    if "idle lanes" in cells:
        found["idle_stack_failures"] = cells["idle lanes"].failures
    return found


def snapshot_json(snapshot: Snapshot) -> dict[str, Any]:
    """Everything of a snapshot that is not zero.

    Of a class, `below` is the size that is the next smaller class', so that an object was asked for
    with more than that; `by_fill` are its slabs by how full they are, from empty by eighths to
    full. Of a lane, `number` is that of its CPU, or among the shared ones; null of one for
    overflow.
    """
    s = snapshot
    return {
        "version": 1,
        "at_ns": s.at_ns,
        "wall": round(s.wall, 3),
        "entry": s.entry,
        "process": {
            "pid": s.process.pid,
            "name": s.process.name,
            "threads": s.process.threads,
            "library_threads": s.own_threads,
            "resident_bytes": s.process.resident,
            "cpu_seconds": s.process.cpu_seconds,
        },
        "figures": figures(s)
        | {"waiting_bytes": s.waiting_bytes, "empty_bytes": int(s.lanes.bytes_empty.sum())},
        "probes": s.probes.tolist(),
        "contention": [cell_json(cell) for cell in s.cells],
        "classes": classes_json(s),
        "lanes": lanes_json(s),
        "owners": [owner_json(owner) for owner in s.owners],
        "slabs_at_ns": s.moment.slabs_ns,
        "bins_at_ns": s.moment.bins_ns,
        "left_out": s.left_out,
    }


def cell_json(cell: CellFigures) -> dict[str, Any]:
    return {
        "at": cell.name,
        "count": cell.count,
        "failures": cell.failures,
        "waits": cell.waits,
        "waited_ns": cell.waited_ns,
        "waits_by_time": cell.histogram.tolist(),
    }


def classes_json(snapshot: Snapshot) -> list[dict[str, Any]]:
    c = snapshot.classes
    rows = np.flatnonzero((c.allocations > 0) | (c.slabs > 0))
    return [
        {
            "size": int(c.size[i]),
            "allocations": int(c.allocations[i]),
            "frees": int(c.frees[i]),
            "live": int(c.live[i]),
            "in_flight": int(c.in_flight[i]),
            "waiting": int(c.waiting[i]),
            "slabs": int(c.slabs[i]),
            "slab_bytes": int(c.slab_bytes[i]),
            "below": int(c.size[i - 1]) if i > 0 else 0,
            "by_fill": c.by_fill[i].tolist(),
        }
        for i in rows
    ]


def lanes_json(snapshot: Snapshot) -> list[dict[str, Any]]:
    lanes = snapshot.lanes
    order = np.argsort(-lanes.allocations, kind="stable")[:MOST_LANES]
    return [
        {
            "lane": int(lanes.owner[i]),
            "thread": int(lanes.thread[i]),
            "entered": ENTRIES[lanes.how[i]] if 0 <= lanes.how[i] < len(ENTRIES) else "?",
            "number": int(lanes.number[i]) if lanes.number[i] < NO_NUMBER else None,
            "allocations": int(lanes.allocations[i]),
            "misses": int(lanes.misses[i]),
            "remote_frees": int(lanes.remote_frees[i]),
            "failures": int(lanes.failures[i]),
            "waits": int(lanes.waits[i]),
            "waited_ns": int(lanes.waited_ns[i]),
            "bytes_held": int(lanes.bytes_held[i]),
            "bytes_empty": int(lanes.bytes_empty[i]),
            "batches_to": snapshot.batches[i].tolist(),
        }
        for i in sorted(order)
    ]


def owner_json(owner: OwnerFigures) -> dict[str, Any]:
    return {
        "name": owner.name,
        "kind": owner.kind,
        "used_bytes": owner.used,
        "peak_bytes": owner.peak,
        "limit_bytes": owner.limit,
        "slab_bytes": owner.slab_bytes,
        "live": owner.live,
        "contended": owner.contended,
    }


def rates_json(rates: Difference, snapshot: Snapshot) -> dict[str, Any]:
    """A second, since the snapshot before."""
    return {
        "seconds": round(rates.seconds, 3),
        "allocations": round(rates.allocations, 1),
        "frees": round(rates.frees, 1),
        "allocated_bytes": round(rates.allocated_bytes, 1),
        "misses": round(float(rates.lane_misses.sum()), 1),
        "remote_frees": round(float(rates.lane_remote_frees.sum()), 1),
        "resident_bytes": round(rates.resident, 1),
        "contention": [
            {
                "at": cell.name,
                "count": float(n),
                "failures": float(f),
                "waits": float(w),
                "waited_seconds": float(t),
            }
            for cell, n, f, w, t in zip(
                snapshot.cells,
                rates.cell_counts,
                rates.cell_failures,
                rates.cell_waits,
                rates.cell_waited,
            )
            if n or f or w
        ],
    }
