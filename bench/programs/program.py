"""What the real programs share: samples, running a command or a server under an allocator, proof
that it is in use.

Called by: the modules beside it, one for each program. Every process under an allocator runs below
launch.c, which ends with all of its descendants whatever happens here.
"""

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import common
from common import Library

HERE = Path(__file__).resolve().parent
DATA = common.BUILD / "programs"
START_SECONDS = STOP_SECONDS = 30.0
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")

Words = Sequence[str | Path]
NOTHING: Mapping[str, str] = MappingProxyType({})  # no further environment variables


@dataclasses.dataclass(frozen=True)
class Sample:
    """One run of a fixed amount of work."""

    seconds: float  # wall time
    cpu_seconds: float  # user and system time of what uses the allocator, children included
    peak_kib: float  # the largest process; each program says where it is something else
    settled_kib: float | None  # a server's resident memory after its work
    minor_faults: int
    major_faults: int

    def __add__(self, other: "Sample") -> "Sample":
        """One command after the other."""
        return Sample(
            self.seconds + other.seconds,
            self.cpu_seconds + other.cpu_seconds,
            max(self.peak_kib, other.peak_kib),
            None,
            self.minor_faults + other.minor_faults,
            self.major_faults + other.major_faults,
        )


class Program(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def packages(self) -> tuple[str, ...]:
        """Debian packages that it needs."""

    @property
    def about(self) -> str: ...

    def prepare(self, work: Path) -> None:
        """Makes what the runs need, once; work is build/bench/programs/NAME and exists."""

    def run(self, library: Library, work: Path, scale: float) -> Sample: ...


def shimmed(library: Library) -> Library:
    """For programs that are linked with another allocator: the C library's own malloc by a
    forwarder."""
    if library.path is not None:
        return library
    source = common.ROOT / "bench" / "demo" / "libc_shim.c"
    return Library(library.name, common.compile_program(source, "libc_shim.so", "-fPIC", "-shared"))


def scaled(count: int, scale: float) -> int:
    return max(1, round(count * scale))


def tail(file: Path) -> str:
    return file.read_text(errors="replace").strip()[-400:]


below: list[str] = []  # what commands run under, such as valgrind (bench/suite/shares.py)


def launcher(
    report: Path, command: Words, library: Library, more: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The command line and the environment of a command below launch.c."""
    launch = common.compile_program(HERE / "launch.c", "launch")
    proof = "=" in str(command[0])  # see prove()
    command = command if proof else [*below, *command]
    environment = library.environment(LC_ALL="C", TZ="UTC", **more)
    preload = environment.pop("LD_PRELOAD", None)
    variables = [f"LD_PRELOAD={preload}"] if preload else []
    return [str(launch), str(report), *variables, *map(str, command)], environment


@contextlib.contextmanager
def launched(
    directory: Path, command: Words, library: Library, *, cwd: Path | None = None,
    output: Path | None = None, user: str | None = None, more: Mapping[str, str] = NOTHING,
) -> Iterator[tuple[subprocess.Popen[bytes], Path, Path]]:  # fmt: skip
    """The launcher of a running command, its report and the command's standard error; nothing is
    left on leaving."""
    report, errors = directory / "report", directory / "stderr"
    for file in (report, errors):
        file.touch()
        file.chmod(0o666)
    words, environment = launcher(report, command, library, more)
    with errors.open("wb") as stderr, (output or Path(os.devnull)).open("wb") as stdout:
        group = (
            None
            if user is None
            else subprocess.check_output(["id", "-gn", user], text=True).strip()
        )
        process = subprocess.Popen(
            words, env=environment, cwd=cwd, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
            start_new_session=True, user=user, group=group,
            extra_groups=None if user is None else (),
        )  # fmt: skip
    try:
        yield process, report, errors
    finally:
        if process.poll() is None:
            process.terminate()  # the launcher kills what is below it
            process.wait(STOP_SECONDS)


def sample_of(
    report: Path, name: str, library: Library, errors: Path, good: Sequence[int] = (0,)
) -> Sample:
    seen = common.fields(report.read_text())
    if "status" not in seen:
        raise RuntimeError(f"{name} under {library.name}: not started: {tail(errors)}")
    if int(seen["status"]) not in good:
        raise RuntimeError(f"{name} under {library.name}: status {seen['status']}: {tail(errors)}")
    return Sample(
        int(seen["wall_ns"]) / 1e9,
        int(seen["cpu_us"]) / 1e6,
        float(seen["peak_kib"]),
        None,
        int(seen["minor_faults"]),
        int(seen["major_faults"]),
    )


def run_command(
    name: str, command: Words, library: Library, *, cwd: Path | None = None,
    answers: Path | None = None, more: Mapping[str, str] = NOTHING,
) -> Sample:  # fmt: skip
    """Runs a command to its end; raises where it fails, hangs or prints something else than what is
    in `answers`.

    The first run makes that file.
    """
    with tempfile.TemporaryDirectory(prefix="lanemalloc-bench-") as directory:
        output = Path(directory) / "output"
        with launched(Path(directory), command, library, cwd=cwd, output=output, more=more) as (
            process,
            report,
            errors,
        ):
            try:
                process.wait(common.WATCHDOG_SECONDS)
            except subprocess.TimeoutExpired:
                raise RuntimeError(
                    f"{name} under {library.name}: not ended after {common.WATCHDOG_SECONDS:.0f} s"
                ) from None
        sample = sample_of(report, name, library, errors)
        if answers is not None and not answers.exists():
            answers.write_bytes(output.read_bytes())
        elif answers is not None and answers.read_bytes() != output.read_bytes():
            raise RuntimeError(f"{name} under {library.name}: its answers differ from {answers}")
        return sample


# --- servers


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):  # the process has just ended
        return found
    for thread in threads:
        with contextlib.suppress(
            FileNotFoundError, ProcessLookupError
        ):  # the thread has just ended
            found += [int(word) for word in (thread / "children").read_text().split()]
    return found


def tree_of(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for process in found:
        found += children_of(process)
    return found


@dataclasses.dataclass(frozen=True)
class Usage:
    """What the living processes of a tree, and the children that they have waited for, have
    used."""

    cpu_seconds: float
    minor_faults: int
    major_faults: int

    @classmethod
    def of(cls, pids: Sequence[int]) -> "Usage":
        total = [0] * 8
        for pid in pids:
            with contextlib.suppress(
                FileNotFoundError, ProcessLookupError
            ):  # ended: its parent has its figures
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                # minflt cminflt majflt cmajflt utime stime cutime cstime
                total = [a + int(b) for a, b in zip(total, stat[7:15])]
        return cls(sum(total[4:]) / CLOCK_TICKS, total[0] + total[1], total[2] + total[3])

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(
            self.cpu_seconds - other.cpu_seconds,
            self.minor_faults - other.minor_faults,
            self.major_faults - other.major_faults,
        )


def status_kib(pid: int, name: str) -> float:
    match = re.search(
        rf"^{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE
    )
    if match is None:
        raise RuntimeError(f"/proc/{pid}/status has no {name}")
    return float(match.group(1))


@contextlib.contextmanager
def server(
    name: str, command: Words, library: Library, directory: Path, ready: Callable[[], bool], *,
    stop: signal.Signals = signal.SIGTERM, user: str | None = None,
    more: Mapping[str, str] = NOTHING,
) -> Iterator[int]:  # fmt: skip
    """A server that answers: its process id. It must end well when it is told to."""
    with launched(directory, command, library, cwd=directory, user=user, more=more) as (
        process,
        report,
        errors,
    ):
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{name} under {library.name} does not start: {tail(errors)}")
            time.sleep(0.005)
        pid = int(common.fields(report.read_text())["pid"])
        if (
            library.path is not None
            and str(library.path.resolve()) not in Path(f"/proc/{pid}/maps").read_text()
        ):
            raise RuntimeError(f"{name}: {library.name} is not in it")
        yield pid
        os.kill(pid, stop)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{name} under {library.name} does not stop") from None
        sample_of(report, name, library, errors)


def client(
    name: str, command: Words, library: Library, more: Mapping[str, str] = NOTHING
) -> tuple[float, str]:
    """A client's fixed work, without the allocator under test: wall seconds and standard output."""
    started = time.monotonic()
    try:
        done = subprocess.run(
            [str(c) for c in command],
            env=Library("libc", None).environment(LC_ALL="C", **more),
            stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=common.WATCHDOG_SECONDS, check=False,
        )  # fmt: skip
    except (subprocess.TimeoutExpired, OSError) as error:
        raise RuntimeError(f"{name} under {library.name}: {command[0]}: {error}") from None
    seconds = time.monotonic() - started
    if done.returncode != 0:
        raise RuntimeError(
            f"{name} under {library.name}: {command[0]}: status {done.returncode}: "
            f"{done.stderr.strip()[-400:]}"
        )
    return seconds, done.stdout


# --- proof

_proved: set[tuple[str, str, Path | None]] = set()


def bound_to(log: str, process: str, library: Library) -> int:
    """How many files of a process have malloc from the allocator, by the dynamic linker's log;
    raises if one has not."""
    bindings = re.findall(
        r"binding file (\S+) \[\d+\] to (\S+) \[\d+\]: normal symbol `malloc'", log
    )
    program = [target for user, target in bindings if Path(user).name == process]
    count = 0
    for user, target in bindings:
        if library.path is not None and Path(user).resolve() == library.path.resolve():
            continue  # what the allocator itself asks is its own affair
        if Path(target).name == process and any(map(library.serves, program)):
            # by way of the program, whose position is fixed: its jump table leads to the allocator
            continue
        if not library.serves(target):
            raise RuntimeError(
                f"{process}: {library.name} is not in use: malloc of {user} comes from {target}"
            )
        count += 1
    return count


def prove(
    name: str, process: str, command: Words, library: Library, more: Mapping[str, str] = NOTHING
) -> None:
    """Raises unless every malloc of `process`, a program that the short `command` runs, is bound to
    the allocator.

    The dynamic linker tells its bindings. Done once for a program and an allocator.
    """
    key = (name, library.name, library.path)
    if key in _proved:
        return
    with tempfile.TemporaryDirectory(prefix="lanemalloc-bench-") as directory:
        log = Path(directory) / "bindings"
        words: Words = [
            "LD_DEBUG=files,bindings",
            f"LD_DEBUG_OUTPUT={log}",
            "LD_BIND_NOW=1",
            *command,
        ]
        run_command(name, words, library, more=more)
        logs = [file.read_text(errors="replace") for file in Path(directory).glob("bindings.*")]
    runs = re.compile(rf"transferring control: (?:\S*/)?{re.escape(process)}$", re.MULTILINE)
    if not sum(bound_to(text, process, library) for text in logs if runs.search(text)):
        raise RuntimeError(f"{name}: {library.name} is not in use: {process} has bound no malloc")
    _proved.add(key)
