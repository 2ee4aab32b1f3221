"""Runs the programs of bench/seeds/ under configurations in turn, and keeps what they printed
beside the originals' figures.

Called by: bench/seeds/experiments.py, bench/seeds/run.py. Knows nothing about single experiments.
"""

import dataclasses
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common
from common import Library, Spread

HERE = Path(__file__).resolve().parent
RUN_SECONDS = 120.0
C_LIBRARY = "C library"
LIBC = Library("libc", None)


@dataclasses.dataclass(frozen=True)
class Configuration:
    """An allocator with options; without a library it is the C library's own."""

    name: str
    options: str = ""
    library: Library = LIBC

    @classmethod
    def lanes(cls, name: str, options: str) -> "Configuration":
        return cls(name, options, Library("lanemalloc", common.LANEMALLOC))


@dataclasses.dataclass
class Figure:
    """One thing that was measured: for each case (such as 40 threads) and configuration,
    the samples in order of rounds."""

    name: str
    unit: str
    less_is_better: bool = True
    base: str | None = None  # the configuration that the others are divided by, round by round
    samples: dict[str, dict[str, list[float]]] = dataclasses.field(default_factory=dict)
    originals: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    original_unit: str = ""
    detail: bool = False  # in the file and the page's tables, but neither printed nor drawn

    def add(self, case: str, configuration: str, value: float) -> None:
        self.samples.setdefault(case, {}).setdefault(configuration, []).append(value)

    def spread(self, case: str, configuration: str) -> Spread:
        return Spread.of(self.samples[case][configuration])

    def ratio(self, case: str, configuration: str) -> Spread | None:
        below = self.samples[case].get(self.base or "")
        if not below:
            return None
        pairs = zip(self.samples[case][configuration], below)
        ratios = [above / base for above, base in pairs if base]
        return Spread.of(ratios) if ratios else None

    def original_ratio(self, case: str, configuration: str) -> float | None:
        figures = self.originals.get(case, {})
        below = figures.get(self.base or "")
        return figures[configuration] / below if below and configuration in figures else None


@dataclasses.dataclass
class Experiment:
    key: str
    title: str
    source: str
    claim: str
    found: str = ""  # what came out here, in a sentence
    setup: list[str] = dataclasses.field(default_factory=list)
    figures: list[Figure] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)  # what, and why


def mean(samples: Sequence[float]) -> float:
    return statistics.fmean(samples)


def variation(samples: Sequence[float]) -> float:
    """Coefficient of variation in percent."""
    average = statistics.fmean(samples)
    return 100 * statistics.stdev(samples) / average if len(samples) > 1 and average else 0.0


def as_json(experiment: Experiment) -> dict[str, object]:
    """The experiment with the medians worked out, for the file and the page."""
    result = dataclasses.asdict(experiment)
    for figure, shown in zip(experiment.figures, result["figures"]):
        shown["rows"] = [
            {
                "case": case,
                "configuration": configuration,
                "value": vars(figure.spread(case, configuration)),
                "ratio": vars(r) if (r := figure.ratio(case, configuration)) else None,
                "mean": mean(samples),
                "variation_percent": variation(samples),
                "original": figure.originals.get(case, {}).get(configuration),
                "original_ratio": figure.original_ratio(case, configuration),
            }
            for case, by in figure.samples.items()
            for configuration, samples in by.items()
        ]
    return result


class Harness:
    def __init__(self, quick: bool, tolerate: bool) -> None:
        self.quick = quick
        self._tolerate = tolerate
        self._understood: dict[str, str] = {}

    def program(self, name: str, fronts: bool = False) -> Path:
        """`fronts`: with what needs heaps and pools. It is linked with the library, whose hits it
        has inside, and runs with no other one."""
        source = next(p for p in (HERE / f"{name}.cpp", HERE / f"{name}.c") if p.exists())
        # 128-bit operations are in libatomic, which stands before the source that needs it.
        flags = ["-Wl,--no-as-needed", "-latomic"] if name == "arena" else []
        if not fronts:
            return common.compile_program(source, f"seeds-{name}", *flags)
        folder = common.LANEMALLOC.parent
        flags += ["-DFRONTS", f"-I{common.ROOT / 'include'}", "-Wl,--no-as-needed"]
        flags += [f"-L{folder}", "-llanemalloc", f"-Wl,-rpath,{folder}"]
        return common.compile_program(source, f"seeds-{name}-fronts", *flags)

    def complaint(self, configuration: Configuration) -> str:
        """What the library says about options that it does not understand;
        empty if it takes them all."""
        if configuration.library.path is None:
            return ""
        if configuration.options not in self._understood:
            environment = configuration.library.environment(
                LANEMALLOC_OPTIONS=configuration.options
            )
            done = subprocess.run(
                ["true"], env=environment, capture_output=True, text=True, check=False
            )
            lines = [line for line in done.stderr.splitlines() if "LANEMALLOC_OPTIONS" in line]
            self._understood[configuration.options] = lines[0] if lines else ""
        return self._understood[configuration.options]

    def usable(
        self, configurations: Sequence[Configuration], experiment: Experiment
    ) -> list[Configuration]:
        """Those that this build understands. The others are named in the experiment,
        with the library's own words."""
        kept = []
        for configuration in configurations:
            complaint = self.complaint(configuration)
            if complaint and not self._tolerate:
                experiment.left_out[configuration.name] = (
                    f"this build does not understand its options: {complaint}"
                )
            else:
                kept.append(configuration)
        return kept

    def run(self, configuration: Configuration, *command: object) -> dict[str, str]:
        """What the program printed as NAME=VALUE, and what the library counted as 'counted
        NAME'."""
        environment = configuration.library.environment()
        if configuration.library.path is not None:
            options = ",".join(o for o in (configuration.options, "stats=exit") if o)
            environment["LANEMALLOC_OPTIONS"] = options
        done = subprocess.run(
            [str(c) for c in command],
            env=environment,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            words = " ".join(str(c) for c in command)
            raise RuntimeError(
                f"{words} under {configuration.name}: "
                f"status {done.returncode}: {done.stderr.strip()[-400:]}"
            )
        seen = common.fields(done.stdout)
        if not configuration.library.serves(seen["library"]):
            raise RuntimeError(
                f"{configuration.name}: not in use, malloc comes from {seen['library']}"
            )
        for name, value in re.findall(
            r"^lanemalloc: ([a-z -]+): (\d+)(?:$| failed tries of )", done.stderr, re.MULTILINE
        ):
            seen[f"counted {name}"] = value
        return seen


def alternate(rounds: int, what: str, jobs: Sequence[Callable[[], None]]) -> None:
    """Every job once a round, in an order that shifts from round to round."""
    for i in range(rounds):
        shift = i % len(jobs)
        for job in (*jobs[shift:], *jobs[:shift]):
            job()
        print(f"  {what}: round {i + 1} of {rounds}", file=sys.stderr)


def text(experiment: Experiment) -> str:
    """The experiment as tables for a terminal."""
    lines = [
        f"== {experiment.title}",
        f"   {experiment.source}",
        f"   original: {experiment.claim}",
    ]
    lines += [f"   - {line}" for line in experiment.setup]
    for figure in experiment.figures:
        if figure.detail:
            continue
        ratios = f"; ratio: to {figure.base}" if figure.base else ""
        lines.append(f"\n{figure.name} [{figure.unit}] (median, least-greatest{ratios})")
        header = ["", "here", "ratio", "original", "original ratio"]
        rows = []
        for case, by in figure.samples.items():
            for configuration in by:
                here, ratio = figure.spread(case, configuration), figure.ratio(case, configuration)
                original = figure.originals.get(case, {}).get(configuration)
                compared = figure.original_ratio(case, configuration)
                rows.append(
                    [
                        f"{case}: {configuration}",
                        f"{here.median:.4g} ({here.low:.4g}-{here.high:.4g})",
                        f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})" if ratio else "",
                        f"{original:g} {figure.original_unit}" if original is not None else "",
                        f"{compared:.2f}" if compared is not None else "",
                    ]
                )
        lines.append(common.table(header, rows))
    lines += [
        "",
        f"   here: {experiment.found or 'not run'}",
        *[f"   {note}" for note in experiment.notes],
    ]
    lines += [f"   left out: {what}: {why}" for what, why in experiment.left_out.items()]
    return "\n".join(lines) + "\n"
