"""Who frees whose memory: a chord diagram, as SVG. Ribbons go from the lane that frees to the lane
that had allocated.

The plot library has no such diagram. Lanes beyond the busiest are one group, so that it can be read
and stays small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import Any

from lanemalloc import units

MOST_GROUPS = 12
SIZE, OUTER, INNER = 384, 165.0, 152.0
SIDE = 70  # for names
WIDE = 0.35  # radians
GAP = 0.03  # of the circle's angle, between groups
COLOURS = ("blue", "orange", "green", "purple", "ochre", "indigo", "brown", "grey")


@dataclass
class Flow:
    """`batches[i][j]`: sent by group i to group j."""

    names: list[str]
    batches: list[list[int]]
    objects: list[list[float]]  # about: batches times the mean of who sent them
    grouped: int  # lanes in the last group; 0: there is none

    @property
    def total(self) -> int:
        return sum(map(sum, self.batches))


def flow_of(lanes: list[dict[str, Any]]) -> Flow:
    """From a snapshot's lanes. A counter stands for all lanes whose numbers are alike modulo their
    count; then they are one group."""
    width = max((len(lane.get("batches_to", [])) for lane in lanes), default=0)
    groups: dict[int, list[dict[str, Any]]] = {}
    for lane in lanes:
        groups.setdefault(int(lane["lane"]) % width if width else 0, []).append(lane)
    keys = sorted(groups)
    raw = {
        key: [sum(int(lane["batches_to"][to]) for lane in groups[key]) for to in range(width)]
        for key in keys
    }
    freed = {key: sum(int(lane.get("remote_frees", 0)) for lane in groups[key]) for key in keys}
    weight = {key: sum(raw[key]) + sum(raw[other][key] for other in keys) for key in keys}
    shown = sorted(sorted(keys, key=lambda key: -weight[key])[:MOST_GROUPS])
    rest = [key for key in keys if key not in shown]
    names = [name_of(groups[key]) for key in shown] + (
        [f"{sum(len(groups[key]) for key in rest)} other lanes"] if rest else []
    )
    places = {key: i for i, key in enumerate(shown)} | dict.fromkeys(rest, len(shown))
    batches = [[0] * len(names) for _ in names]
    objects = [[0.0] * len(names) for _ in names]
    for key in keys:
        mean = freed[key] / sum(raw[key]) if sum(raw[key]) else 0.0
        for to in keys:
            batches[places[key]][places[to]] += raw[key][to]
            objects[places[key]][places[to]] += raw[key][to] * mean
    return Flow(names, batches, objects, sum(len(groups[key]) for key in rest))


def name_of(lanes: list[dict[str, Any]]) -> str:
    if len(lanes) > 1:
        return f"lanes {', '.join(str(lane['lane']) for lane in lanes[:2])}" + (
            ", …" if len(lanes) > 2 else ""
        )
    return f"lane {lanes[0]['lane']}"


def point(angle: float, radius: float) -> str:
    """From the top, clockwise."""
    return f"{radius * math.sin(angle):.1f},{-radius * math.cos(angle):.1f}"


def arc(begin: float, end: float, radius: float, forward: bool = True) -> str:
    return (
        f"A{radius:.1f},{radius:.1f} 0 {int(abs(end - begin) > math.pi)} {int(forward)} "
        f"{point(end, radius)}"
    )


def svg(flow: Flow, label: str) -> str:
    """Each group's arc is as long as what it sends and gets."""
    n = len(flow.names)
    weights = [sum(flow.batches[i]) + sum(row[i] for row in flow.batches) for i in range(n)]
    gap = 2 * math.pi * min(GAP, 0.3 / n)
    scale = (2 * math.pi - gap * n) / sum(weights)
    begins, at = [], 0.0
    for weight in weights:
        begins.append(at)
        at += weight * scale + gap
    cursor = list(begins)
    ends: dict[tuple[int, int, str], tuple[float, float]] = {}
    for i in range(n):  # what it sends first, to those that follow it; then what it gets
        for j in order_from(i, n):
            ends[i, j, "from"] = (cursor[i], cursor[i] + flow.batches[i][j] * scale)
            cursor[i] = ends[i, j, "from"][1]
        for j in order_from(i, n):
            ends[j, i, "to"] = (cursor[i], cursor[i] + flow.batches[j][i] * scale)
            cursor[i] = ends[j, i, "to"][1]
    pairs = sorted(
        ((i, j) for i in range(n) for j in range(n) if flow.batches[i][j]),
        key=lambda p: -flow.batches[p[0]][p[1]],
    )
    drawn = [ribbon(flow, i, j, ends[i, j, "from"], ends[i, j, "to"]) for i, j in pairs]
    drawn += [
        group(flow, i, begins[i], begins[i] + weights[i] * scale) for i in range(n) if weights[i]
    ]
    half = SIZE / 2
    box = f"{-half - SIDE:.0f} {-half:.0f} {SIZE + 2 * SIDE} {SIZE}"
    return (
        f'<svg class="chord" viewBox="{box}" role="img" aria-label="{escape(label)}">'
        f"{''.join(drawn)}</svg>"
    )


def order_from(i: int, n: int) -> list[int]:
    return [(i - k) % n for k in range(1, n + 1)]


def colour(i: int) -> str:
    return f"var(--{COLOURS[i % len(COLOURS)]})"


def ribbon(flow: Flow, i: int, j: int, begin: tuple[float, float], end: tuple[float, float]) -> str:
    """Ends a little before the arc of the lane that gets it, and if it is not too wide in a point:
    that shows the direction."""
    near, far = INNER - 2, INNER - 12
    middle = (end[0] + end[1]) / 2
    tip = (
        f"L{point(middle, near)}L{point(end[1], far)}" if end[1] - end[0] < WIDE else arc(*end, far)
    )
    shape = (
        f"M{point(begin[0], near)}{arc(*begin, near)}Q0,0 {point(end[0], far)}{tip}"
        f"Q0,0 {point(begin[0], near)}Z"
    )
    told = (
        f"{flow.names[i]} freed of {flow.names[j]}: {flow.batches[i][j]:,} batches, "
        f"about {units.count(flow.objects[i][j])} objects"
    )
    return (
        f'<path class="ribbon" d="{shape}" fill="{colour(i)}" stroke="{colour(i)}">'
        f"<title>{escape(told)}</title></path>"
    )


def group(flow: Flow, i: int, begin: float, end: float) -> str:
    shape = (
        f"M{point(begin, OUTER)}{arc(begin, end, OUTER)}"
        f"L{point(end, INNER)}{arc(end, begin, INNER, False)}Z"
    )
    middle = (begin + end) / 2
    x, y = point(middle, OUTER + 9).split(",")
    anchor = (
        "middle" if abs(math.sin(middle)) < 0.25 else "start" if math.sin(middle) > 0 else "end"
    )
    down = 4 - 5 * math.cos(middle)
    return (
        f'<path d="{shape}" fill="{colour(i)}"/>'
        f'<text x="{x}" y="{float(y) + down:.1f}" text-anchor="{anchor}">'
        f"{escape(flow.names[i])}</text>"
    )
