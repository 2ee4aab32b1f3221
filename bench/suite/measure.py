"""Runs workloads and programs under every allocator and records what they print.

Called by: main.py. The allocators alternate within each round, and their order moves on from line
to line and turns round from round to round, so that a slow spell of the machine hits all alike. A
run that fails or hangs is recorded as failed; the others go on.
Workloads are one program that obeys this: `workloads NAME THREADS --board FILE` works until its
observer says stop (observe.py), then prints one line of key=value;
`workloads NAME THREADS --operations N --idle SECONDS` does so much and rests;
`workloads --list` prints `name<TAB>threads|single<TAB>latency|-<TAB>idle|-<TAB>description`.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common
import lines as which
import machine
import observe
from common import Library
from model import Failure, Measurements, Run, Slow

SLOW = (
    5.0  # a program's run that takes this many times the fastest one's time is repeated less often
)
LEAST_ROUNDS = 3  # a line has so many, or it is dropped
USUAL_START_SECONDS = 0.8  # of a run, beside what is measured: until it has been seen
END_TIMEOUT = 60.0  # for what a workload frees when it is told to stop
IDLE_TIMEOUT = 60.0
RULE = observe.Rule()
HANGS = 3  # an allocator that has hung on this many lines is not tried on others
IDLE_AT_ONCE = 24
IDLE_ROOM_KIB = 2 * 2**20
PROGRAM_TIMEOUT = 240.0
MIN_PROGRAM_SCALE = 0.25
FIXED_PART = 0.33  # of a program's run: its start and its data do not shrink with its work


class Failed(Exception):
    """A run that gave no figures; says why."""


class Progress(Protocol):
    """Where measuring tells how far it is: report.py has one for terminals and one for files."""

    def start(self, title: str, steps: int) -> None: ...
    def step(self, what: str) -> None: ...
    def note(self, text: str) -> None: ...
    def finish(self) -> None: ...


@dataclass(frozen=True)
class Workload:
    name: str
    threaded: bool
    latency: bool
    idle: bool
    about: str


@dataclass(frozen=True)
class Line:
    workload: Workload
    threads: int

    def __str__(self) -> str:
        return f"{self.workload.name} {self.threads}"


def list_workloads(program: Path) -> list[Workload]:
    output = subprocess.run(
        [program, "--list"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    found = []
    for row in output.splitlines():
        name, threads, latency, idle, about = row.split("\t")
        found.append(
            Workload(name, threads == "threads", latency == "latency", idle == "idle", about)
        )
    return found


def lines_of(workloads: Sequence[Workload], threads: Sequence[int]) -> list[Line]:
    """Each workload at each number of threads; the single-threaded ones once."""
    return [Line(w, t) for w in workloads for t in (threads if w.threaded else (1,))]


@dataclass(frozen=True)
class Deadline:
    """A budget of wall time: None has no end."""

    end: float | None = None

    @classmethod
    def after(cls, seconds: float | None) -> "Deadline":
        return cls(None if seconds is None else time.monotonic() + seconds)

    def left(self) -> float:
        return float("inf") if self.end is None else self.end - time.monotonic()


def end_group(child: "subprocess.Popen[str]") -> None:
    """Ends a child and what it started, all of which is in its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.communicate()


def reason(child: "subprocess.Popen[str]", errors: str) -> str:
    status = child.returncode
    how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"status {status}"
    last = errors.strip().splitlines()
    return f"{how}: {last[-1][:200]}" if last else how


def start(command: Sequence[str], environment: dict[str, str]) -> "subprocess.Popen[str]":
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
    )


def finish(child: "subprocess.Popen[str]", timeout: float) -> str:
    """Its standard output; raises Failed where it fails or hangs."""
    try:
        output, errors = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        end_group(child)
        raise Failed(f"ended after {timeout:.0f} s without a result") from None
    except BaseException:
        end_group(child)
        raise
    if child.returncode != 0:
        raise Failed(reason(child, errors))
    return output


def parse(output: str, library: Library) -> dict[str, float]:
    """The figures of a workload's line, once it is certain that the allocator was in use."""
    seen = common.fields(output)
    if "wall_ns" not in seen or "library" not in seen:
        raise Failed(f"unexpected output: {output.strip()[:200]!r}")
    if not library.serves(seen["library"]):
        raise Failed(f"not in use, malloc comes from {seen['library']}")
    return {k: float(v) for k, v in seen.items() if k != "library"}


def observed(
    child: "subprocess.Popen[str]",
    board: observe.Board,
    started: float,
    seconds: float,
    rule: observe.Rule,
) -> tuple[dict[str, float], str]:
    """The figures of a workload that runs, and what it prints in the end; raises Failed where it
    dies or hangs."""
    try:
        found = observe.observe(board, started, seconds, rule, lambda: child.poll() is None)
    except observe.Ended as error:
        if child.poll() is None and "without a result" in str(error):
            end_group(child)
            raise Failed(str(error)) from None
        errors = finish_dead(child)
        raise Failed(
            reason(child, errors) if child.returncode else f"{error}, with status 0"
        ) from None
    except BaseException:
        end_group(child)
        raise
    return found, finish(child, END_TIMEOUT)


def finish_dead(child: "subprocess.Popen[str]") -> str:
    """What a child that has ended, or is about to, said on standard error."""
    try:
        return child.communicate(timeout=END_TIMEOUT)[1]
    except subprocess.TimeoutExpired:
        end_group(child)
        return ""


# Of what a workload prints, that is a figure in the steady state or after the end.
PRINTED = ("end_kib", "malloc_", "free_")


def run_line(
    program: Path, library: Library, line: Line, seconds: float, rule: observe.Rule, counters: bool
) -> dict[str, float]:
    """One run of a line: its rate in the steady state, and the rest."""
    with (
        contextlib.closing(observe.Board()) as board,
        tempfile.NamedTemporaryFile("r", suffix=".perf") as file,
    ):
        command = [str(program), line.workload.name, str(line.threads), "--board", str(board.path)]
        environment = library.environment()
        if counters:
            # perf itself runs without the preload; env sets it for the program alone.
            mine, environment = environment, Library("libc", None).environment()
            settings = [f"{k}={v}" for k, v in mine.items() if environment.get(k) != v]
            perf = [
                "perf",
                "stat",
                "-x,",
                "-o",
                file.name,
                "-e",
                "instructions:u,cycles:u",
                "--",
                "env",
                *settings,
            ]
            command = [*perf, *command]
        started = time.monotonic()
        found, output = observed(start(command, environment), board, started, seconds, rule)
        said = parse(output, library)
        found |= {k: v for k, v in said.items() if k.startswith(PRINTED)}
        if counters:
            found |= {
                k: v / max(said["operations"], 1)
                for k, v in machine.parse_counters(file.read()).items()
            }
        return found


def rotated(all_: Sequence[Library], number: int, line: int) -> list[Library]:
    """The order of a round on a line: it starts elsewhere each time, and every second round goes
    backwards."""
    shift = (number * 3 + line) % len(all_)
    order = [*all_[shift:], *all_[:shift]]
    return order[::-1] if number % 2 else order


def allowed_rounds(rounds: int, factor: float) -> int:
    """How often something is measured that takes `factor` times as long as the fastest: at least
    once."""
    return rounds if factor <= SLOW else max(1, int(rounds * SLOW / factor))


def counted(rounds: int) -> str:
    return f"{rounds} round{'' if rounds == 1 else 's'}"


class Stage:
    """Rounds of jobs: what workloads and real programs have in common."""

    def __init__(
        self,
        result: Measurements,
        libraries: Sequence[Library],
        time_figure: str | None,
        progress: Progress,
    ) -> None:
        """time_figure: of jobs that are as long as they take; None: all take the same time."""
        self.result = result
        self.libraries = libraries
        self.time_figure = time_figure
        self.progress = progress
        self.hung: set[tuple[str, str]] = set()
        self.given_up: set[tuple[str, str]] = set()

    def fastest(self, line: str) -> float | None:
        if self.time_figure is None:
            return None
        medians = [
            v
            for l in self.libraries
            if (v := self.result.typical(line, l.name, self.time_figure)) is not None
        ]
        return min(medians) if medians else None

    def factor(self, line: str, name: str) -> float:
        if self.time_figure is None:
            return 1.0
        mine, to = self.result.typical(line, name, self.time_figure), self.fastest(line)
        return mine / to if mine and to else 1.0

    def fail(self, line: str, name: str, number: int, why: str) -> None:
        self.result.failures.append(Failure(line, name, number, why))
        self.progress.note(f"FAILED: {line}, {name}: {why}")

    def attempt(
        self, line: str, library: Library, number: int, job: Callable[[], dict[str, float]]
    ) -> None:
        if (line, library.name) in self.hung | self.given_up:
            return
        if sum(name == library.name for _, name in self.hung) >= HANGS:
            if not self.result.of(line, library.name):
                self.given_up.add((line, library.name))
                self.fail(
                    line, library.name, number, f"not tried, as it hung on {HANGS} lines before"
                )
            return
        if number and len(self.result.of(line, library.name)) >= allowed_rounds(
            self.result.rounds, self.factor(line, library.name)
        ):
            return
        try:
            self.result.add(Run(line, library.name, number, job()))
        except Failed as error:
            if "without a result" in str(error):
                self.hung.add((line, library.name))
            self.fail(line, library.name, number, str(error))

    def close(self) -> None:
        """Notes who was measured in fewer rounds."""
        for line in self.result.lines:
            for library in self.libraries:
                factor, done = (
                    self.factor(line, library.name),
                    len(self.result.of(line, library.name)),
                )
                if factor > SLOW and 0 < done < self.result.rounds:
                    self.result.slow.append(Slow(line, library.name, factor, done))


@dataclass(frozen=True)
class Plan:
    """How the lines are measured."""

    rounds: int  # at most
    seconds: float = which.SECONDS
    rule: observe.Rule = RULE
    counters: bool = False

    @property
    def least_rounds(self) -> int:
        return min(LEAST_ROUNDS, self.rounds)

    def seconds_of(self, line: Line) -> float:
        return which.seconds_of(line.workload.name, self.seconds)

    def is_long(self, line: Line) -> bool:
        return self.seconds_of(line) >= which.ONCE_FROM

    def rule_of(self, line: Line) -> observe.Rule:
        return self.rule.slow() if self.is_long(line) else self.rule

    def first_rounds(self, line: Line) -> int:
        """Those without which there is no line."""
        return 1 if self.is_long(line) else self.least_rounds


class Rates:
    """The lines, one after the other in the order of their importance, each with all its rounds;
    what time is left for more rounds of all."""

    def __init__(
        self,
        program: Path,
        libraries: Sequence[Library],
        lines: Sequence[Line],
        plan: Plan,
        deadline: Deadline,
        progress: Progress,
    ) -> None:
        self.program, self.libraries, self.lines = program, libraries, list(lines)
        self.plan, self.deadline, self.progress = plan, deadline, progress
        self.result = Measurements([], [l.name for l in libraries], plan.rounds)
        self.cuts: list[str] = []
        self.stage = Stage(self.result, libraries, None, progress)
        self.spent = self.measured = 0.0  # seconds; seconds that were measured
        self.runs = 0

    def cost(self, line: Line, rounds: int) -> float:
        """Seconds that so many rounds take, from what the runs until now took beside what is
        measured."""
        beside = (self.spent - self.measured) / self.runs if self.runs else USUAL_START_SECONDS
        return rounds * len(self.libraries) * (self.plan.seconds_of(line) + beside)

    def expected_runs(self) -> int:
        """How many runs the first rounds will be, as far as can be told before."""
        left, runs = self.deadline.left(), 0
        for line in self.lines:
            rounds = self.plan.first_rounds(line)
            if self.cost(line, rounds) <= left:
                left -= self.cost(line, rounds)
                runs += rounds * len(self.libraries)
        return runs

    def round(self, line: Line, number: int) -> None:
        seconds, rule = self.plan.seconds_of(line), self.plan.rule_of(line)
        for library in rotated(self.libraries, number, self.lines.index(line)):
            self.progress.step(f"{line} {library.name}, round {number + 1}")
            began = time.monotonic()

            def job(library: Library = library) -> dict[str, float]:
                return run_line(self.program, library, line, seconds, rule, self.plan.counters)

            self.stage.attempt(str(line), library, number, job)
            self.spent += time.monotonic() - began
            self.measured += seconds
            self.runs += 1

    def first(self) -> list[Line]:
        """The rounds that a line must have; lines for which there is no time are dropped. Gives
        those that were measured."""
        kept: list[Line] = []
        dropped: list[str] = []
        for line in self.lines:
            rounds = self.plan.first_rounds(line)
            if self.deadline.left() < self.cost(line, rounds):
                dropped.append(str(line))
                continue
            self.result.lines.append(str(line))
            kept.append(line)
            for number in range(rounds):
                self.round(line, number)
        if dropped:
            self.cuts.append(
                f"workloads: {counted_lines(len(dropped))} dropped to keep to the time: "
                f"{', '.join(dropped)}"
            )
        return kept

    def measure(self) -> tuple[Measurements, list[str]]:
        self.progress.start("workloads", self.expected_runs())
        kept = self.first()
        self.progress.finish()
        again = [l for l in kept if not self.plan.is_long(l)]
        once = [str(l) for l in kept if self.plan.is_long(l)]
        done = self.plan.least_rounds
        while (
            again
            and done < self.plan.rounds
            and self.deadline.left() > sum(self.cost(l, 1) for l in again)
        ):
            self.progress.start(f"workloads, round {done + 1}", len(again) * len(self.libraries))
            for line in again:
                self.round(line, done)
            self.progress.finish()
            done += 1
        if done < self.plan.rounds and kept:
            self.cuts.append(
                f"workloads: {counted(done)} instead of {self.plan.rounds}, to keep to the time"
            )
        if once and done > 1:
            self.cuts.append(
                f"workloads: {', '.join(once)} in one round alone, for a run of it takes long"
            )
        self.result.rounds = done
        # For a reader the lines of a workload stand together.
        names = list(dict.fromkeys(l.workload.name for l in kept))
        self.result.lines = [
            str(l) for l in sorted(kept, key=lambda l: (names.index(l.workload.name), l.threads))
        ]
        self.stage.close()
        return self.result, self.cuts


def counted_lines(lines: int) -> str:
    return f"{lines} line{'' if lines == 1 else 's'}"


def ticks_of(pid: int) -> int | None:
    """CPU time of a process in ticks; None once it is gone."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in "ZX" else int(words[11]) + int(words[12])


def available_kib() -> int:
    for row in Path("/proc/meminfo").read_text().splitlines():
        if row.startswith("MemAvailable:"):
            return int(row.split()[1])
    return 0


class Idlers:
    """Processes that have done their work and wait out their idle time, while the next one
    works."""

    QUIET, POLL = 0.3, 0.05  # seconds without CPU time until a process is taken to be idling

    def __init__(self, seconds: float, done: Callable[[str, Library, str | Failed], None]) -> None:
        self._seconds = seconds
        self._done = done
        self._children: list[tuple[str, Library, subprocess.Popen[str], float]] = []

    def start(self, line: str, library: Library, command: Sequence[str]) -> None:
        while self._children and (
            len(self._children) >= IDLE_AT_ONCE or available_kib() < IDLE_ROOM_KIB
        ):
            self._collect_first()
        child = start(command, library.environment())
        self._children.append((line, library, child, time.monotonic()))
        self._wait_until_quiet(child)

    def _wait_until_quiet(self, child: "subprocess.Popen[str]") -> None:
        began = changed = time.monotonic()
        last = ticks_of(child.pid)
        while last is not None and (now := time.monotonic()) - began < IDLE_TIMEOUT:
            seen = ticks_of(child.pid)
            if seen != last:
                last, changed = seen, now
            if now - changed >= self.QUIET:
                return
            time.sleep(self.POLL)

    def _collect_first(self) -> None:
        line, library, child, began = self._children.pop(0)
        left = self._seconds + IDLE_TIMEOUT - (time.monotonic() - began)
        try:
            self._done(line, library, finish(child, max(1.0, left)))
        except Failed as error:
            self._done(line, library, error)

    def finish(self) -> None:
        while self._children:
            self._collect_first()

    def end(self) -> None:
        for _, _, child, _ in self._children:
            end_group(child)


def idle(
    program: Path,
    libraries: Sequence[Library],
    lines: Sequence[Line],
    seconds: float,
    progress: Progress,
) -> Measurements:
    """Memory some seconds after the work, one round: the processes' idle times overlap, their work
    does not."""
    result = Measurements([str(l) for l in lines], [l.name for l in libraries], 1)
    stage = Stage(result, libraries, None, progress)
    progress.start(f"memory {seconds:g} s after the work", len(lines) * len(libraries))

    def done(line: str, library: Library, output: str | Failed) -> None:
        try:
            if isinstance(output, Failed):
                raise output
            result.add(Run(line, library.name, 0, parse(output, library)))
        except Failed as error:
            stage.fail(line, library.name, 0, str(error))

    idlers = Idlers(seconds, done)
    try:
        for i, line in enumerate(lines):
            for library in rotated(libraries, 0, i):
                progress.step(f"{line} {library.name}")
                operations = str(which.IDLE_OPERATIONS.get(line.workload.name, 1_000_000))
                command = [
                    str(program),
                    line.workload.name,
                    str(line.threads),
                    "--operations",
                    operations,
                    "--idle",
                    f"{seconds:g}",
                ]
                idlers.start(str(line), library, command)
        idlers.finish()
    finally:
        idlers.end()
    progress.finish()
    return result


def descendants(pid: int) -> Iterator[int]:
    """Processes below pid, the lowest first, whatever session they are in."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))

    def below(at: int) -> Iterator[int]:
        for child in parents.get(at, []):
            yield from below(child)
            yield child

    return below(pid)


def end_tree(child: "subprocess.Popen[str]") -> None:
    """Asks a child to end, which lets it stop its servers; then ends whatever is left below it."""
    below = list(descendants(child.pid))
    child.terminate()
    try:
        child.communicate(timeout=15)
    except subprocess.TimeoutExpired:
        pass
    for pid in [*below, child.pid] if child.poll() is None else below:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    child.communicate()


def run_program(name: str, library: Library, scale: float, timeout: float) -> dict[str, float]:
    """One run of a real program, in a process of its own, so that one that hangs can be ended with
    all it started."""
    words = {
        "name": library.name,
        "path": str(library.path) if library.path else None,
        "options": library.options,
    }
    script = Path(__file__).resolve().with_name("one_program.py")
    child = start(
        [sys.executable, str(script), name, f"{scale:g}", json.dumps(words)], dict(os.environ)
    )
    try:
        output, errors = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        end_tree(child)
        raise Failed(f"ended after {timeout:.0f} s without a result") from None
    except BaseException:
        end_tree(child)
        raise
    if child.returncode != 0:
        raise Failed(reason(child, errors))
    return {k: float(v) for k, v in json.loads(output.splitlines()[-1]).items() if v is not None}


def fit_programs(
    costs: dict[str, float], runs: float, scale: float, seconds: float
) -> tuple[list[str], float]:
    """Which programs fit, and at what part of their work: made smaller down to a limit, then left
    out from the end. costs: of a run of each at `scale`; runs: of each."""
    names = list(costs)
    while names:
        whole = sum(costs[n] for n in names) * runs
        if whole <= seconds:
            return names, scale
        fits = scale * (seconds / whole - FIXED_PART) / (1 - FIXED_PART)
        if fits >= min(MIN_PROGRAM_SCALE, scale):
            return names, round(fits, 2)
        names.pop()
    return [], scale


def programs(
    names: Sequence[str],
    libraries: Sequence[Library],
    rounds: int,
    scale: float,
    deadline: Deadline,
    progress: Progress,
) -> tuple[Measurements, list[str]]:
    """The real programs, and what the budget made smaller."""
    result = Measurements(list(names), [l.name for l in libraries], rounds, scale)
    cuts: list[str] = []
    costs: dict[str, float] = {}
    stage = Stage(result, libraries, "seconds", progress)
    if deadline.end is not None:
        progress.start("how long the programs take", len(names))
        for name in names:
            progress.step(name)
            before = time.monotonic()
            try:
                run_program(name, libraries[0], scale, PROGRAM_TIMEOUT)
            except Failed:
                pass  # the rounds will tell
            costs[name] = time.monotonic() - before
        progress.finish()
        least = min(LEAST_ROUNDS, rounds)
        kept, result.scale = fit_programs(
            costs, 1.1 * least * len(libraries), scale, deadline.left()
        )
        if result.scale != scale:
            cuts.append(f"real programs: {result.scale:g} of their work, to keep to the time")
        if dropped := [n for n in names if n not in kept]:
            cuts.append(f"real programs: dropped to keep to the time: {', '.join(dropped)}")
        names, scale = kept, result.scale
        result.lines = list(kept)
    progress.start("real programs", rounds * len(names) * len(libraries))
    last = 0.0
    for number in range(rounds):
        if number and deadline.left() < last:
            cuts.append(f"real programs: {counted(number)} instead of {rounds}: the time was over")
            result.rounds = number
            break
        began = time.monotonic()
        for i, name in enumerate(names):
            for library in rotated(libraries, number, i):
                progress.step(f"round {number + 1} of {rounds}: {name} {library.name}")
                timeout = max(60.0, min(PROGRAM_TIMEOUT, 20 * costs.get(name, PROGRAM_TIMEOUT)))

                def job(
                    name: str = name, library: Library = library, timeout: float = timeout
                ) -> dict[str, float]:
                    return run_program(name, library, scale, timeout)

                stage.attempt(name, library, number, job)
        last = time.monotonic() - began
    progress.finish()
    stage.close()
    return result, cuts
