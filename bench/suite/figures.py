"""Ratios, geometric means, noise and the project's own bars: the arithmetic of the suite,
without input or output.

Used by: report.py, page.py, tests/bench. An allocator that failed on a line has no figure there. So
means are only compared over lines that both sides ran, and every result says over how many. Of a
rate more is better, of every other figure less.
"""

import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from model import HIGHER_IS_BETTER, Measurements, Result

RATE, PEAK = "rate", "peak_kib"
PROGRAM_TIME, PROGRAM_PEAK = "seconds", "peak_kib"
LATENCY_THREADS = 8

MEAN_RATE_LIMIT = 1.05
MEAN_PEAK_LIMIT = 1.00
LINE_RATE_LIMIT = 0.90
LINE_PEAK_LIMIT = 1.25
PROGRAM_LIMIT = 1.02
PAIR_LIMITS = {
    "pair32": 42.0,
    "bulk-order": 42.0,
    "bulk-reverse": 42.0,
    "bulk-shuffle": 42.0,
    "ring": 95.0,
}
PAIR_TIME_LIMIT = 0.95
# A rate of the steady state that changes by more from its first half to its second is told.
MOVES = 0.15
GROWS = 0.10  # so is memory that grows by more
DISTURBED = 0.1  # CPUs that other processes, or the hypervisor, had meanwhile
MIN_SHARE = 0.5  # a peer that ran fewer of the lines than this is in no mean


def is_beyond(figure: str, ratio_: float, limit: float) -> bool:
    """Whether a ratio is worse than a limit."""
    return ratio_ < limit if figure in HIGHER_IS_BETTER else ratio_ > limit


def best_of(figure: str, values: Iterable[float]) -> float:
    return max(values) if figure in HIGHER_IS_BETTER else min(values)


def worst_of(figure: str, values: Iterable[float]) -> float:
    return min(values) if figure in HIGHER_IS_BETTER else max(values)


def failed_at(figure: str) -> float:
    """The ratio of one that has no figure: worse than any."""
    return 0.0 if figure in HIGHER_IS_BETTER else math.inf


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(v) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


@dataclass(frozen=True)
class Ratio:
    """Median, least and greatest of an allocator's samples, each divided by the base's median."""

    median: float
    low: float
    high: float
    samples: int


def best(m: Measurements, line: str, figure: str, names: Sequence[str]) -> float | None:
    """The best median among those that have the figure on the line."""
    medians = [v for n in names if (v := m.typical(line, n, figure)) is not None]
    return best_of(figure, medians) if medians else None


def ratio(m: Measurements, line: str, name: str, figure: str, base: float | None) -> Ratio | None:
    samples, middle = m.samples(line, name, figure), m.typical(line, name, figure)
    if middle is None or not base:
        return None
    return Ratio(middle / base, min(samples) / base, max(samples) / base, len(samples))


def ratios(
    m: Measurements, figure: str, names: Sequence[str], base: Sequence[str]
) -> dict[str, dict[str, Ratio]]:
    """line -> allocator -> ratio to the best of `base` on that line;
    lines where no base has the figure are left out."""
    result = {}
    for line in m.lines:
        to = best(m, line, figure, base)
        by = {n: r for n in names if (r := ratio(m, line, n, figure, to)) is not None}
        if by:
            result[line] = by
    return result


@dataclass(frozen=True)
class Mean:
    """A geometric mean over `lines` of `of` lines."""

    value: float
    lines: int
    of: int

    @property
    def whole(self) -> bool:
        return self.lines == self.of


def means(by_line: dict[str, dict[str, Ratio]], names: Sequence[str]) -> dict[str, Mean]:
    """Of each allocator, over the lines that it ran. Comparable only where all are whole: else see
    `against`."""
    return {
        n: Mean(
            geometric_mean(by[n].median for by in by_line.values() if n in by),
            sum(n in by for by in by_line.values()),
            len(by_line),
        )
        for n in names
    }


def common_lines(m: Measurements, figure: str, names: Sequence[str]) -> list[str]:
    """Lines on which every one of them has the figure."""
    return [line for line in m.lines if all(m.samples(line, n, figure) for n in names)]


def against(
    m: Measurements, figure: str, name: str, other: str, lines: Sequence[str] | None = None
) -> Mean:
    """Geometric mean of name's median over other's, on the lines that both ran."""
    lines = m.lines if lines is None else lines
    pairs = [(m.typical(line, name, figure), m.typical(line, other, figure)) for line in lines]
    both = [a / b for a, b in pairs if a and b]
    return Mean(geometric_mean(both), len(both), len(lines))


def mean_by_round(
    m: Measurements, figure: str, name: str, lines: Sequence[str], base: Sequence[str]
) -> list[float]:
    """The geometric mean of each single round in which the allocator ran all of these lines."""
    bases = {line: best(m, line, figure, base) for line in lines}
    result = []
    for number in range(m.rounds):
        values = []
        for line in lines:
            to = bases[line]
            seen = [
                r.figures[figure]
                for r in m.of(line, name)
                if r.round == number and figure in r.figures
            ]
            if not seen or not to:
                break
            values.append(seen[0] / to)
        else:
            result.append(geometric_mean(values))
    return result


@dataclass(frozen=True)
class Noise:
    """(greatest - least) / median of the rounds: its median and its 90th percentile over lines and
    allocators."""

    median: float
    high: float


def noise(m: Measurements, figure: str, names: Sequence[str] | None = None) -> Noise | None:
    spreads = []
    for line in m.lines:
        for name in m.allocators if names is None else names:
            samples = m.samples(line, name, figure)
            if len(samples) > 1 and statistics.median(samples) > 0:
                spreads.append((max(samples) - min(samples)) / statistics.median(samples))
    if not spreads:
        return None
    spreads.sort()
    return Noise(
        statistics.median(spreads), spreads[min(len(spreads) - 1, int(0.9 * len(spreads)))]
    )


@dataclass(frozen=True)
class Beyond:
    """A line that is worse than a bar allows; `figure` is failed_at() where the line failed."""

    line: str
    figure: float
    note: str

    @property
    def shown(self) -> str:
        return "failed" if self.figure == 0 or math.isinf(self.figure) else f"{self.figure:.2f}"


@dataclass(frozen=True)
class Bar:
    """One bar of the project: `met` is None where nothing was measured that could tell."""

    name: str
    limit: str
    figure: str
    met: bool | None
    note: str = ""
    beyond: tuple[Beyond, ...] = field(default_factory=tuple)

    @property
    def verdict(self) -> str:
        return "not measured" if self.met is None else "met" if self.met else "NOT MET"


def ranked(
    m: Measurements, figure: str, subject: str, peers: Sequence[str]
) -> list[tuple[str, Mean]]:
    """Peers, the strongest first, with subject's mean against each;
    those that ran too few lines are left out."""
    seen = [(p, against(m, figure, subject, p)) for p in peers]
    usable = [(p, mean) for p, mean in seen if mean.lines and mean.lines >= MIN_SHARE * mean.of]
    return sorted(usable, key=lambda item: item[1].value, reverse=figure not in HIGHER_IS_BETTER)


def _over(mean: Mean) -> str:
    return (
        f"over all {mean.of} lines"
        if mean.whole
        else f"over the {mean.lines} of {mean.of} lines that both ran"
    )


def mean_rate_bar(m: Measurements, subject: str, peers: Sequence[str]) -> Bar:
    name, limit = "geometric mean of rate / best single peer's", f">= {MEAN_RATE_LIMIT:.2f}"
    order = ranked(m, RATE, subject, peers)
    if not order:
        return Bar(name, limit, "-", None)
    peer, mean = order[0]
    return Bar(
        name,
        limit,
        f"{mean.value:.3f}",
        mean.value >= MEAN_RATE_LIMIT,
        f"against {peer}, {_over(mean)}",
    )


def mean_peak_bar(m: Measurements, subject: str, peers: Sequence[str]) -> Bar:
    name, limit = (
        "geometric mean of peak RSS / lowest of the three fastest peers'",
        f"<= {MEAN_PEAK_LIMIT:.2f}",
    )
    fastest = [p for p, _ in ranked(m, RATE, subject, peers)[:3]]
    order = ranked(m, PEAK, subject, fastest)
    if not order:
        return Bar(name, limit, "-", None)
    peer, mean = order[0]
    note = f"against {peer} (of {', '.join(fastest)}), {_over(mean)}"
    return Bar(name, limit, f"{mean.value:.3f}", mean.value <= MEAN_PEAK_LIMIT, note)


def _line_bar(
    m: Measurements,
    figure: str,
    subject: str,
    peers: Sequence[str],
    limit: float,
    name: str,
    against_median: bool,
) -> Bar:
    """The worst line of subject against the best peer, or the median peer."""
    seen: list[Beyond] = []
    for line in m.lines:
        by = {p: v for p in peers if (v := m.typical(line, p, figure)) is not None}
        mine = m.typical(line, subject, figure)
        if mine is None:
            seen.append(Beyond(line, failed_at(figure), f"{subject} failed"))
        elif by:
            to = statistics.median(by.values()) if against_median else best_of(figure, by.values())
            whom = "the median peer" if against_median else next(p for p in by if by[p] == to)
            if to > 0:
                seen.append(Beyond(line, mine / to, whom))
    shown = f"{'>=' if figure in HIGHER_IS_BETTER else '<='} {limit:.2f}"
    if not seen:
        return Bar(name, shown, "-", None)
    by_badness = sorted(seen, key=lambda b: b.figure, reverse=figure not in HIGHER_IS_BETTER)
    worst = by_badness[0]
    beyond = tuple(b for b in by_badness if is_beyond(figure, b.figure, limit))
    failed = worst.figure == failed_at(figure)
    note = f"{worst.line}: {worst.note}" if failed else f"{worst.line}, against {worst.note}"
    text = "failed" if failed else f"{worst.figure:.3f}"
    return Bar(
        name, shown, text, not beyond, f"{note}; {len(beyond)} of {len(seen)} lines beyond", beyond
    )


@dataclass(frozen=True)
class Standing:
    """What a bar on every line says of one allocator; `worst` is failed_at() where it failed on
    one."""

    name: str
    beyond: float  # lines; an expected number for what is drawn by chance
    worst: float


def standings(m: Measurements, figure: str, limit: float, names: Sequence[str]) -> list[Standing]:
    """The same bar for each of these: against the best of the others on each line."""
    result = []
    for name in names:
        bar = _line_bar(m, figure, name, [n for n in names if n != name], limit, "", False)
        if bar.met is not None:
            result.append(
                Standing(
                    name,
                    len(bar.beyond),
                    failed_at(figure) if bar.figure == "failed" else float(bar.figure),
                )
            )
    sign = -1 if figure in HIGHER_IS_BETTER else 1
    return sorted(result, key=lambda s: (s.beyond, sign * s.worst))


def twin_of_the_best(
    m: Measurements, figure: str, limit: float, names: Sequence[str], draws: int = 200
) -> Standing | None:
    """What noise alone does to the bar: an allocator that is on each line exactly as good as the
    best of these. Its rounds, and theirs, are drawn with replacement from those that were measured;
    the same each time."""
    chance = random.Random(1)
    beyond, worst = 0, [1.0] * draws
    any_line = False
    for line in m.lines:
        by = {
            n: samples
            for n in names
            if (samples := m.samples(line, n, figure)) and m.typical(line, n, figure) is not None
        }
        if not by:
            continue
        any_line = True
        middle = best_of(figure, map(statistics.median, by.values()))
        twin = next(samples for samples in by.values() if statistics.median(samples) == middle)
        for i in range(draws):
            to = best_of(
                figure,
                (
                    statistics.median(chance.choices(samples, k=len(samples)))
                    for samples in by.values()
                ),
            )
            ratio_ = statistics.median(chance.choices(twin, k=len(twin))) / to
            beyond += is_beyond(figure, ratio_, limit)
            worst[i] = worst_of(figure, (worst[i], ratio_))
    return (
        Standing("a twin of the best", beyond / draws, statistics.median(worst))
        if any_line
        else None
    )


def marked(
    m: Measurements, figure: str, is_marked: Callable[[float], bool]
) -> dict[str, list[str]]:
    """line -> the allocators whose median of the rounds is to be told."""
    found = {
        line: [
            n
            for n in m.allocators
            if (v := m.typical(line, n, figure)) is not None and is_marked(v)
        ]
        for line in m.lines
    }
    return {line: names for line, names in found.items() if names}


def unsteady(m: Measurements) -> set[tuple[str, str]]:
    """(line, allocator) that were not steady in half of the rounds or more."""
    return {
        (line, n) for line, names in marked(m, "steady", lambda v: v <= 0.5).items() for n in names
    }


def in_units(figure: str, value: float, unit: float) -> str:
    """Three figures of a value in its unit; a rate with a unit of its own,
    for the rates of lines differ by a million."""
    unit, name = (
        next(((u, n) for u, n in ((1e6, " M"), (1e3, " k")) if value >= u), (1.0, ""))
        if figure == RATE
        else (unit, "")
    )
    scaled = value / unit
    return (
        f"{scaled:.0f}" if scaled >= 100 else f"{scaled:.1f}" if scaled >= 10 else f"{scaled:.3g}"
    ) + name


def start_up(m: Measurements) -> tuple[float, float, float] | None:
    """What part of a run is over before it is measured: least, median and greatest of the lines,
    each with the median of its runs."""
    parts = [
        statistics.median(seen)
        for line in m.lines
        if (seen := [s for n in m.allocators for s in m.samples(line, n, "start_part")])
    ]
    return (min(parts), statistics.median(parts), max(parts)) if parts else None


def remarks(m: Measurements) -> list[str]:
    """What a reader must know of the rates before he believes them."""

    def told(found: dict[str, list[str]]) -> str:
        whole = len(m.allocators)
        return ", ".join(
            f"{line} ({'all' if len(names) == whole > 1 else ', '.join(names)})"
            for line, names in found.items()
        )

    found = []
    if seen := marked(m, "steady", lambda v: v <= 0.5):
        found.append(f"never steady (marked with ~), measured all the same: {told(seen)}")
    if seen := marked(m, "drift", lambda v: abs(v - 1) > MOVES):
        found.append(
            "the rate of the second half of the measured time "
            f"is not within {MOVES:.0%} of the first half's: {told(seen)}"
        )
    taken = [s for line in m.lines for n in m.allocators for s in m.samples(line, n, "others")]
    if hit := [t for t in taken if t > DISTURBED]:
        found.append(
            f"other processes or the hypervisor had more than {DISTURBED:g} CPUs in "
            f"{len(hit)} of {len(taken)} runs, "
            f"{statistics.median(hit):.1f} in the middle of those: believe no small difference"
        )
    if seen := marked(m, "growth", lambda v: v > 1 + GROWS):
        found.append(f"resident memory grows by more than {GROWS:.0%} while measured: {told(seen)}")
    return found


def program_bars(m: Measurements, subject: str, peers: Sequence[str]) -> list[Bar]:
    worst = _line_bar(
        m,
        PROGRAM_TIME,
        subject,
        peers,
        PROGRAM_LIMIT,
        "real programs: worst time / best peer's",
        False,
    )
    name, limit = "real programs: geometric mean of time / best single peer's", "< 1.00 (first)"
    order = ranked(m, PROGRAM_TIME, subject, peers)
    if not order:
        return [worst, Bar(name, limit, "-", None)]
    peer, mean = order[0]
    return [
        worst,
        Bar(
            name,
            limit,
            f"{mean.value:.3f}",
            mean.value < 1.0,
            f"against {peer}, {_over(mean).replace('lines', 'programs')}",
        ),
    ]


def line_bars_of(result: Result) -> list[tuple[str, Measurements, str, float]]:
    return [
        ("workloads", result.synthetic, RATE, LINE_RATE_LIMIT),
        ("real programs", result.programs, PROGRAM_TIME, PROGRAM_LIMIT),
    ]


def pair_bars(pairs: dict[str, Any], subject: str, peers: Sequence[str]) -> list[Bar]:
    """Of what bench/micro/run.py wrote. The bar is on cycles; where they are not counted,
    time stands for them."""
    counted = pairs.get("instructions_per_pair", {}).get(subject, {})
    timed = pairs.get("ns_per_pair", {})
    result = []
    for workload, limit in PAIR_LIMITS.items():
        value = counted.get(workload)
        result.append(
            Bar(
                f"{workload}: instructions a pair",
                f"<= {limit:.0f}",
                "-" if value is None else f"{value:.1f}",
                None if value is None else value <= limit + 0.05,
            )
        )
    for workload in PAIR_LIMITS:
        by = {p: timed[p][workload]["median"] for p in peers if workload in timed.get(p, {})}
        mine = timed.get(subject, {}).get(workload)
        name, shown = f"{workload}: time a pair / best peer's", f"<= {PAIR_TIME_LIMIT:.2f}"
        if mine is None or not by:
            result.append(Bar(name, shown, "-", None))
            continue
        peer = min(by, key=lambda p: by[p])
        figure = mine["median"] / max(by[peer], 1e-9)
        note = (
            f"{mine['median']:.1f} ns against {by[peer]:.1f} ns of {peer}; time stands for cycles"
        )
        result.append(Bar(name, shown, f"{figure:.3f}", figure <= PAIR_TIME_LIMIT, note))
    return result


def latency_bars(
    m: Measurements, workloads: Sequence[str], subject: str, peers: Sequence[str]
) -> list[Bar]:
    """p99.99 of malloc and of free, median of the rounds, at 8 threads, on the worst of the
    workloads that time single calls."""
    result = []
    for call in ("malloc", "free"):
        figure = f"{call}_p9999_ns"
        name = f"p99.99 of {call} at {LATENCY_THREADS} threads / lowest peer's"
        seen: list[Beyond] = []
        for workload in workloads:
            line = f"{workload} {LATENCY_THREADS}"
            by = {p: v for p in peers if (v := m.typical(line, p, figure)) is not None}
            mine = m.typical(line, subject, figure)
            if mine is not None and by:
                peer = min(by, key=lambda p: by[p])
                note = f"{mine / 1000:.1f} us against {by[peer] / 1000:.1f} us of {peer}"
                seen.append(Beyond(line, mine / max(by[peer], 1e-9), note))
            elif mine is None and line in m.lines:
                seen.append(Beyond(line, math.inf, f"{subject} failed"))
        if not seen:
            result.append(Bar(name, "< 1.00", "-", None))
            continue
        worst = max(seen, key=lambda b: b.figure)
        beyond = tuple(b for b in seen if b.figure >= 1)
        text = "failed" if math.isinf(worst.figure) else f"{worst.figure:.3f}"
        result.append(Bar(name, "< 1.00", text, not beyond, f"{worst.line}: {worst.note}", beyond))
    return result


def bars(result: Result, subject: str) -> list[Bar]:
    """The project's own bars, for one build of lanemalloc."""
    synthetic, peers = result.synthetic, result.peers
    return [
        mean_rate_bar(synthetic, subject, peers),
        mean_peak_bar(synthetic, subject, peers),
        _line_bar(
            synthetic,
            RATE,
            subject,
            peers,
            LINE_RATE_LIMIT,
            "worst line: rate / best peer's",
            False,
        ),
        _line_bar(
            synthetic,
            PEAK,
            subject,
            peers,
            LINE_PEAK_LIMIT,
            "worst line: peak RSS / median peer's",
            True,
        ),
        *program_bars(result.programs, subject, peers),
        *pair_bars(result.pairs, subject, peers),
        *latency_bars(synthetic, result.latency_workloads, subject, peers),
    ]
