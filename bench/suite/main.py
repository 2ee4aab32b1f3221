#!/usr/bin/env python3
"""Runs the benchmark suite, or a part of it, and shows it.

Called by: bench/run.sh, or by hand while tuning, for example
  bench/suite/main.py --only larson,sh6 --threads 1,8 \
    --allocators lanemalloc,mimalloc3,snmalloc --rounds 3 --no-programs
  bench/suite/main.py --only larson --lib old=/tmp/liblanemalloc.so \
    --options cpu=lanes=percpu --base lanemalloc
By itself it runs every line of lines.py and the real programs, without a budget of time. --all adds
pairs, start-up, and memory some seconds after the work. --only and --threads ask for lines of their
own.
"""

import argparse
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(__file__).resolve().parent
DEBIAN_PYTHON = "/usr/bin/python3"  # the one that sees Debian's rich and matplotlib
if importlib.util.find_spec("rich") is None:
    if not os.path.exists(DEBIAN_PYTHON) or os.path.realpath(sys.executable) == os.path.realpath(
        DEBIAN_PYTHON
    ):
        raise SystemExit(
            "main.py: no module 'rich': install Debian's python3-rich (make bench does)"
        )
    os.execv(DEBIAN_PYTHON, [DEBIAN_PYTHON, *sys.argv])

sys.path.insert(0, str(HERE.parent))
import common
import lines as which
import machine
import measure
import model
import observe
import report
import tables
from common import Library
from measure import Deadline, Line, Progress, Workload
from model import Allocator, Result
from rich.console import Console

IDLE_SECONDS = 10.0
PROGRAMS_SHARE, QUICK_PROGRAMS_SHARE = 0.3, 0.25  # of the time for workloads and real programs
SECONDS_TO_START_IDLING = 0.8
BUSY = 0.3  # of the load average for each CPU: beyond it a remark is made
QUICK_PEERS = (
    "libc",
    "tcmalloc",
    "mimalloc3",
    "snmalloc",
    "rpmalloc",
)  # the one that is there, and the fastest ones
QUICK_RULE = observe.Rule(latest=2.0)
STEPPED_PAIRS = ("pair32", "bulk-order")  # a step takes microseconds
QUICK_PROGRAM_ROUNDS, QUICK_PROGRAM_SCALE = 3, 0.25


def stop(text: str) -> SystemExit:
    """Bad arguments: one line, and status 2."""
    print(f"main.py: {text}", file=sys.stderr)
    return SystemExit(2)


def words(text: str) -> list[str]:
    return [w for w in re.split(r"[,\s]+", text) if w]


def numbers(text: str, option: str) -> list[int]:
    found = words(text)
    for word in found:
        if not re.fullmatch(r"\d+", word) or not 1 <= int(word) <= 64:
            raise stop(f"{option}: '{word}' is not a number of threads from 1 to 64")
    return [int(w) for w in found]


def positive(option: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise stop(f"{option}: {value:g} is not above 0")


def pair(text: str, option: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not name or not sign or not value:
        raise stop(f"{option}: '{text}' is not NAME=VALUE")
    return name, value


def subjects(arguments: argparse.Namespace) -> list[Library]:
    """The builds of lanemalloc: the release build, those of --lib, and those of --options."""
    found: dict[str, Library] = {}
    if common.LANEMALLOC.exists():
        found["lanemalloc"] = Library("lanemalloc", common.LANEMALLOC)
    for item in arguments.lib:
        name, path = pair(item, "--lib")
        if not Path(path).is_file():
            raise stop(f"--lib: no such library: {path}")
        if name == "libc" or name in common.PEER_NAMES:
            raise stop(f"--lib: {name} is the name of a peer")
        found[name] = Library(name, Path(path).resolve())
    first = next(iter(found.values()), None)
    for item in arguments.options:
        name, options = pair(item, "--options")
        like = found.get(name, first)
        if like is None:
            raise stop(
                "--options: there is no build of lanemalloc (make build), and no --lib was given"
            )
        found[name] = Library(name, like.path, options)
    return list(found.values())


def choose(arguments: argparse.Namespace) -> tuple[list[Library], list[str]]:
    """The allocators to run, builds of lanemalloc first, and what cannot be had."""
    mine = subjects(arguments)
    peers = [l for l in common.libraries(peers=True) if l.name != "lanemalloc"]
    missing = [n for n in common.PEER_NAMES if n not in {l.name for l in peers}]
    given = {pair(i, "")[0] for i in [*arguments.lib, *arguments.options]}
    if arguments.allocators is None:
        left_out = [
            f"{n}: build/peers/lib{n}.so is not there (bench/peers/build.sh)" for n in missing
        ]
        if not any(l.name == "lanemalloc" for l in mine):
            left_out.insert(
                0, "lanemalloc: build/release/liblanemalloc.so is not there (make build)"
            )
        if arguments.quick:
            peers = [l for l in peers if l.name in QUICK_PEERS]
        return mine + peers, left_out
    names = words(arguments.allocators)
    known = {l.name for l in mine + peers}
    for name in names:
        if name in missing or (name == "lanemalloc" and name not in known):
            raise stop(f"--allocators: {name} is not built")
        if name not in known:
            raise stop(
                f"--allocators: no allocator '{name}'; there are: {', '.join(sorted(known))}"
            )
    chosen = [l for l in mine if l.name in names or l.name in given] + [
        l for l in peers if l.name in names
    ]
    return chosen, []


def described(libraries: Sequence[Library], versions: dict[str, str]) -> list[Allocator]:
    def version(library: Library) -> str:
        return (
            versions["libc"] if library.path is None else versions.get(f"peer {library.name}", "")
        )

    return [
        Allocator(
            l.name,
            common.SHORT_NAMES.get(l.name, l.name),
            l.name != "libc" and l.name not in common.PEER_NAMES,
            str(l.path or ""),
            version(l),
            l.options,
        )
        for l in libraries
    ]


def workload_program(arguments: argparse.Namespace) -> Path:
    if arguments.program:
        return arguments.program.resolve()
    from workloads.build import build_workloads

    return Path(build_workloads())


def chosen_lines(workloads: Sequence[Workload], arguments: argparse.Namespace) -> list[Line]:
    """The lines of lines.py, or of the workloads and the numbers of threads that are asked for."""
    known = {w.name: w for w in workloads}
    listed = list(dict.fromkeys(name for name, _ in which.LINES if name in known))
    names = (
        words(arguments.only) if arguments.only else listed or list(known)
    )  # of another program all
    for name in names:
        if name not in known:
            raise stop(f"--only: no workload '{name}'; there are: {', '.join(known)}")
    if arguments.threads:
        return measure.lines_of(
            [known[name] for name in names], numbers(arguments.threads, "--threads")
        )
    found = [Line(known[name], threads) for name, threads in which.LINES if name in names]
    return found + measure.lines_of(
        [known[name] for name in names if name not in listed], [which.IDLE_THREADS]
    )


def run_part(command: Sequence[str | Path], progress: Progress) -> str:
    """Runs one of the other parts of bench/; what it says on the way becomes notes."""
    said: list[str] = []
    with tempfile.TemporaryFile("w+") as output:
        with subprocess.Popen(
            [str(c) for c in command], stdout=output, stderr=subprocess.PIPE, text=True
        ) as child:
            assert child.stderr is not None
            for row in child.stderr:
                said.append(row.strip())
                progress.note(row.strip())
        if child.returncode != 0:
            raise measure.Failed(
                f"{Path(command[1]).parent.name}/run.py: status {child.returncode}: "
                f"{' '.join(said[-1:])[:300]}"
            )
        output.seek(0)
        return output.read()


class Suite:
    """The stages, in order, each within what is left of the budget."""

    def __init__(
        self,
        arguments: argparse.Namespace,
        libraries: list[Library],
        result: Result,
        progress: Progress,
    ) -> None:
        self.arguments = arguments
        self.libraries = libraries
        self.result = result
        self.progress = progress
        self.deadline = Deadline.after(arguments.minutes * 60 if arguments.minutes else None)

    def given(self, *peers: str) -> list[str]:
        """--lib words for the parts that have a command line of their own. They know no options."""
        mine = [l for l in self.libraries if l.name in self.result.subjects and not l.options]
        theirs = [l for l in self.libraries if l.name in peers]
        return [
            word for l in [*mine, *theirs] for word in ("--lib", f"{l.name}={l.path or 'libc'}")
        ]

    def pairs(self) -> None:
        quick = self.arguments.quick
        self.progress.start("pairs and start-up", 3)
        try:
            self.progress.step("pairs")
            peers = self.result.peers
            flags = (
                ["--rounds", "5", "--pairs", "500000"]
                if quick
                else ["--rounds", "9", "--pairs", "3000000"]
            )
            self.result.pairs = self.micro([*flags, "--no-peers", *self.given(*peers)])
            self.progress.step("pairs by steps")
            if (
                not quick
                and "snmalloc" in peers
                and "snmalloc" not in self.result.pairs["instructions_per_pair"]
            ):
                self.stepped()
        except measure.Failed as error:
            self.result.left_out.append(f"pairs: {error}")
        self.progress.step("start-up")
        try:
            runs = "11" if quick else "41"
            script = HERE.parent / "startup" / "run.py"
            self.result.startup = run_part(
                [sys.executable, script, "--runs", runs, *self.given()], self.progress
            )
        except measure.Failed as error:
            self.result.left_out.append(f"start-up: {error}")
        self.progress.finish()

    def micro(self, flags: Sequence[str]) -> dict[str, Any]:
        file = common.BUILD / "micro.json"
        run_part(
            [sys.executable, HERE.parent / "micro" / "run.py", *flags, "--json", file],
            self.progress,
        )
        return {k: v for k, v in json.loads(file.read_text()).items() if k != "machine"}

    def stepped(self) -> None:
        """snmalloc does not start under valgrind. (Neither does scudo, but counting its many
        instructions by steps takes minutes.)"""
        flags = ["--steps", "--rounds", "0", "--no-peers", "--lib", "libc=libc"]
        flags += [word for workload in STEPPED_PAIRS for word in ("--workload", workload)]
        path = next(l.path for l in self.libraries if l.name == "snmalloc")
        seen = self.micro([*flags, "--lib", f"snmalloc={path}"])["instructions_per_pair"]
        self.result.pairs["instructions_per_pair"]["snmalloc"] = seen["snmalloc"]
        self.result.cuts.append(
            "pairs: instructions of snmalloc, which does not run under valgrind, for "
            f"{', '.join(STEPPED_PAIRS)} alone"
        )
        if "scudo" in self.result.peers:
            self.result.cuts.append(
                "pairs: no instructions of scudo, which does not run under valgrind"
            )

    def programs(self) -> None:
        import programs

        wanted = words(self.arguments.programs) if self.arguments.programs else None
        known = [p.name for p in programs.PROGRAMS]
        for name in wanted or []:
            if name not in known:
                raise stop(f"--programs: no program '{name}'; there are: {', '.join(known)}")
        ready = []
        chosen = [p for p in programs.PROGRAMS if wanted is None or p.name in wanted]
        self.progress.start("preparing the real programs", len(chosen))
        for program in chosen:
            self.progress.step(program.name)
            why = self.prepare(program)
            if why:
                self.result.left_out.append(f"{program.name}: {why}")
            else:
                ready.append(program.name)
                self.result.programs_about[program.name] = program.about
        self.progress.finish()
        if not ready:
            return
        left = self.deadline.left()
        share = QUICK_PROGRAMS_SHARE if self.arguments.quick else PROGRAMS_SHARE
        deadline = Deadline() if left == float("inf") else Deadline.after(left * share)
        scale, rounds = self.arguments.scale, self.arguments.rounds
        if self.arguments.quick:
            scale, rounds = min(scale, QUICK_PROGRAM_SCALE), min(rounds, QUICK_PROGRAM_ROUNDS)
            self.result.cuts.append(
                f"quick: real programs in at most {rounds} rounds, {scale:g} of their work"
            )
        self.result.programs, cuts = measure.programs(
            ready, self.libraries, rounds, scale, deadline, self.progress
        )
        self.result.cuts += cuts

    def prepare(self, program: Any) -> str:
        """Installs and prepares one; says why where it cannot."""
        script = common.ROOT / "tools" / "install-packages"
        for what, command in (
            (
                "its packages cannot be installed",
                [str(script), *program.packages] if program.packages else ["true"],
            ),
            (
                "cannot be prepared",
                [sys.executable, str(HERE / "one_program.py"), program.name, "prepare"],
            ),
        ):
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
            )
            if done.returncode != 0:
                return f"{what}: {(done.stderr.strip().splitlines() or ['?'])[-1][:200]}"
        return ""

    def workloads(self, program: Path, lines: list[Line]) -> None:
        arguments, result = self.arguments, self.result
        idle = (
            [Line(w, which.IDLE_THREADS) for w in measure.list_workloads(program) if w.idle]
            if arguments.all
            else []
        )
        reserve = (
            len(idle) * len(self.libraries) * SECONDS_TO_START_IDLING + 2 * IDLE_SECONDS
            if idle
            else 0.0
        )
        result.counters = machine.counters_work()
        rule = QUICK_RULE if arguments.quick else observe.Rule()
        plan = measure.Plan(arguments.rounds, arguments.seconds, rule, result.counters)
        if arguments.quick and not arguments.only:
            long = [l for l in lines if plan.is_long(l)]
            lines = [l for l in lines if l not in long]
            result.cuts += [
                f"quick: {l} left out, for it takes {plan.seconds_of(l):g} s a run" for l in long
            ]
        deadline = (
            Deadline() if self.deadline.end is None else Deadline(self.deadline.end - reserve)
        )
        result.workloads = {l.workload.name: l.workload.about for l in lines}
        result.latency_workloads = list(
            dict.fromkeys(l.workload.name for l in lines if l.workload.latency)
        )
        result.rule = f"{plan.seconds:g} s of the steady state, which begins with {rule}"
        result.synthetic, cuts = measure.Rates(
            program, self.libraries, lines, plan, deadline, self.progress
        ).measure()
        result.cuts += cuts
        if idle:
            result.idle_seconds = IDLE_SECONDS
            result.idle = measure.idle(program, self.libraries, idle, IDLE_SECONDS, self.progress)


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise stop(message)


def parser() -> argparse.ArgumentParser:
    p = Parser(description=__doc__.splitlines()[0] if __doc__ else "")
    p.add_argument("--only", metavar="NAMES", help="these workloads alone")
    p.add_argument(
        "--threads",
        metavar="NUMBERS",
        help="each workload with these numbers of threads (default: the lines of lines.py)",
    )
    p.add_argument(
        "--seconds",
        type=float,
        default=which.SECONDS,
        help="of the steady state, each run of a workload (default %(default)s)",
    )
    p.add_argument(
        "--allocators", metavar="NAMES", help="these alone, and what --lib and --options add"
    )
    p.add_argument(
        "--lib",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="another build of lanemalloc",
    )
    p.add_argument(
        "--options",
        action="append",
        default=[],
        metavar="NAME=OPTIONS",
        help="lanemalloc with other LANEMALLOC_OPTIONS, under this name",
    )
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument(
        "--scale", type=float, default=1.0, help="part of the real programs' work (default 1)"
    )
    p.add_argument(
        "--minutes",
        type=float,
        help="a budget: lines are dropped to fit into it, and the programs' work is made smaller",
    )
    p.add_argument("--quick", action="store_true", help="fewer peers, smaller parts")
    p.add_argument(
        "--base", metavar="NAME", help="ratios to this allocator, not to the best peer on each line"
    )
    p.add_argument(
        "--cpu",
        action="store_true",
        help="tables of CPU time, which other processes disturb less than time",
    )
    p.add_argument(
        "--least",
        action="store_true",
        help="compare the best of the rounds, not their medians: for a busy machine",
    )
    p.add_argument("--programs", metavar="NAMES", help="these real programs alone")
    p.add_argument("--no-programs", action="store_true")
    p.add_argument("--no-workloads", action="store_true")
    p.add_argument(
        "--all", action="store_true", help="pairs, start-up and memory after the end too"
    )
    p.add_argument("--json", type=Path, help="write the figures here")
    p.add_argument("--page", type=Path, help="write the HTML page here")
    p.add_argument("--markdown", type=Path, help="write the tables of docs/performance.md here")
    p.add_argument("--show", type=Path, metavar="JSON", help="measure nothing: show this result")
    p.add_argument("--program", type=Path, help="another program with the workloads' command line")
    p.add_argument("--list", action="store_true", help="list workloads, programs and allocators")
    return p


def show(result: Result, arguments: argparse.Namespace) -> None:
    console = report.console_for(False)
    for m in (result.synthetic, result.programs):
        m.least = arguments.least
    shown = report.Report(result, arguments.base, console, arguments.cpu)
    shown.everything()
    if result.startup:
        shown.say(result.startup.rstrip())
    if arguments.page:
        import page

        page.write(result, arguments.page)
    if arguments.markdown:
        tables.write(result, arguments.markdown)


def list_everything(arguments: argparse.Namespace, libraries: Sequence[Library]) -> None:
    print("workloads")
    for w in measure.list_workloads(workload_program(arguments)):
        marks = [
            "threads" if w.threaded else "single",
            *(["latency"] if w.latency else []),
            *(["idle"] if w.idle else []),
        ]
        print(f"  {w.name:20} {', '.join(marks):24} {w.about}")
    import programs

    print("programs")
    for program in programs.PROGRAMS:
        print(f"  {program.name:20} {program.about}")
    print("allocators")
    for library in libraries:
        print(f"  {library.name:20} {library.path or 'the C library'}")


def check(arguments: argparse.Namespace) -> None:
    positive("--rounds", arguments.rounds)
    positive("--scale", arguments.scale)
    positive("--seconds", arguments.seconds)
    positive("--minutes", arguments.minutes)
    if arguments.show and not arguments.show.is_file():
        raise stop(f"--show: no such file: {arguments.show}")


def progress_for(console: Console) -> Progress:
    if console.is_terminal:
        return report.TerminalProgress(console)
    return report.PlainProgress(lambda text: print(text, file=sys.stderr, flush=True))


def measure_all(
    arguments: argparse.Namespace, libraries: list[Library], left_out: list[str]
) -> Result:
    began, ticks = time.monotonic(), machine.steal_ticks()
    errors = report.console_for(True)
    progress = progress_for(errors)
    about = machine.before([l.name for l in libraries])
    result = Result(machine=about, allocators=described(libraries, about), left_out=left_out)
    names = [(a.name, a.short) for a in result.allocators]
    if arguments.all:
        report.Report(result, None, errors).machine(about)
    if legend := report.legend(names):
        errors.print(f"  {legend}", soft_wrap=True)
    program: Path | None = None
    lines: list[Line] = []
    if not arguments.no_workloads:
        program = workload_program(arguments)
        lines = chosen_lines(measure.list_workloads(program), arguments)
    if arguments.quick and not arguments.allocators:
        result.cuts.append(f"quick: against {', '.join(result.peers)} alone")
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > BUSY * cores:
        result.remarks.append(
            f"the machine was busy when this began: load average {load:.1f} on {cores} CPUs; rates "
            "and times mean little"
        )
    suite = Suite(arguments, libraries, result, progress)

    def save() -> None:
        result.seconds = time.monotonic() - began
        result.machine_at_end = machine.after(ticks)
        if arguments.json:
            model.save(result, arguments.json)

    if arguments.all:
        suite.pairs()
        save()
    if not arguments.no_programs:
        suite.programs()
        save()
    if program is not None:
        suite.workloads(program, lines)
    save()
    return result


def main() -> int:
    arguments = parser().parse_args()
    check(arguments)
    if arguments.show:
        show(model.load(arguments.show), arguments)
        return 0
    libraries, left_out = choose(arguments)
    if not libraries:
        raise stop("nothing to measure: no allocator is built (make build, bench/peers/build.sh)")
    if arguments.base and arguments.base not in {l.name for l in libraries}:
        raise stop(
            f"--base: '{arguments.base}' is not among the allocators: "
            f"{', '.join(l.name for l in libraries)}"
        )
    if arguments.list:
        list_everything(arguments, libraries)
        return 0
    result = measure_all(arguments, libraries, left_out)
    show(result, arguments)
    failed = {
        f.allocator for m in (result.synthetic, result.programs, result.idle) for f in m.failures
    } & set(result.subjects)
    if failed:
        print(
            f"main.py: {', '.join(sorted(failed))} failed on some lines, see above", file=sys.stderr
        )
    return 1 if failed else 0


def ended(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, ended)  # what runs is ended on the way out
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except (RuntimeError, subprocess.SubprocessError) as error:
        print(f"main.py: {error}", file=sys.stderr)
        sys.exit(1)
