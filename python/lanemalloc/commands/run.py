"""lanemalloc run: starts a program with the library, and tells at its end what memory and
contention were."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lanemalloc import outputs
from lanemalloc.preload import check_lanes, environment
from lanemalloc.profiling import DEFAULT_FOR_LEAKS, collect, no_profile, shown_first, with_sampling
from lanemalloc.profiling import Watch as Samples
from lanemalloc.supervise import EVERY, SHARE, Child, End, attend
from lanemalloc.ui import CANNOT, Problem, need, shown, temporary_folder

if TYPE_CHECKING:
    from lanemalloc.reader import Reader
    from lanemalloc.recording import Recording


class Watch(Samples):
    """Looks at the program now and then, or at what it starts as far as it does not allocate. Each
    may not have the library, run another program, or end at any moment."""

    def __init__(self, pid: int, recording: Recording, samples: bool) -> None:
        super().__init__(pid)
        self.recording = recording
        self.samples = samples  # whether they are looked at too

    def look(self, at: float) -> None:
        """`at`: seconds since the start; finding the allocator for the first time takes a while, so
        that what is seen is of later."""
        started = time.monotonic() - at
        from lanemalloc import process

        begin = time.thread_time()
        try:
            readers = self.followed.readers()
            leader = self.followed.leader()
            if leader in readers:
                self.record(leader, readers[leader], started)
            for pid, reader in readers.items():
                if self.samples:
                    self.look_at(pid, reader, at)
        except Exception as error:  # the program is not to suffer from a fault in here
            self.trouble = error
        self.recording.peak_resident = max(
            self.recording.peak_resident, process.peak_resident(self.pid)
        )
        self.interval = max(EVERY, (time.thread_time() - begin) / SHARE)

    def record(self, pid: int, reader: Reader, started: float) -> None:
        """Of one process: the program, or the first that allocates for it."""
        try:
            snapshot = reader.read_paced()
        except Problem:
            self.followed.forget(pid)
            return
        self.recording.pid = pid
        self.recording.add(snapshot, snapshot.at_ns / 1e9 - started)


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog="""\b
Examples:
  lanemalloc run -- ./server --port 80
  lanemalloc run --lanes percpu --options decay_ms=10000 -- ./server
  lanemalloc run --report run.html -- python3 job.py
  lanemalloc run --fail-on-leaks -- ./unit_tests
""",
)
@click.option(
    "--lanes", metavar="VALUE", help="How threads enter lanes: owned, shared:N, percpu or auto."
)
@click.option(
    "--options",
    multiple=True,
    metavar="K=V,...",
    help="Options of the library, over those of LANEMALLOC_OPTIONS.",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a report of the whole run there, as HTML.",
)
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write what was seen there, for `lanemalloc report`.",
)
@click.option(
    "--leaks",
    is_flag=True,
    help="Write too what was not freed at the end, by call stack; samples once in 64 KiB.",
)
@click.option("--fail-on-leaks", is_flag=True, help="The same, and exit with 1 if there is any.")
@click.option("--json", "as_json", is_flag=True, help="Write the summary as one line of JSON.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the summary there, not on standard error.",
)
@click.option("-q", "--quiet", is_flag=True, help="Write no summary.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    lanes: str | None,
    options: tuple[str, ...],
    report: Path | None,
    record: Path | None,
    leaks: bool,
    fail_on_leaks: bool,
    as_json: bool,
    output: Path | None,
    quiet: bool,
    program: tuple[str, ...],
) -> None:
    """Run PROGRAM with lanemalloc as its malloc.

    The program is as if started without: same terminal, standard input and signals, and its exit
    status is passed on. At its end a few lines on standard error say how much memory it had and
    where its threads met.
    """
    check_lanes(lanes)
    for path, option in ((record, "--record"), (report, "--report"), (output, "-o")):
        outputs.check(path, option)
    if report is not None:
        need("report", "--report")
    with temporary_folder() as folder:
        defaults = {"stats": "exit", "stats_format": "json", "stats_file": f"{folder}/%p.json"}
        leaks = leaks or fail_on_leaks
        if leaks:
            options = with_sampling(folder, None, options, DEFAULT_FOR_LEAKS)
        child = Child(list(program), environment(lanes, options, defaults))
        from lanemalloc.recording import Recording  # not before the program has begun
        from lanemalloc.summary import end_json

        recording = Recording([shown(word) for word in program])
        watch = Watch(child.pid, recording, leaks)
        end = attend(child, watch)
        figures, others = figures_at_exit(folder, child.pid)
        recording.end = end_json(recording, end, child.pid, figures, others)
        left, gate = look_for_leaks(folder, child.pid, watch, end, recording) if leaks else ([], 0)
        failures = []
        if not quiet:
            failures += write_summary(recording, end, child.pid, as_json, output, left)
        failures += write_files(recording, record, report)
    for failure in failures:
        sys.stderr.write(f"lanemalloc: {failure}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    if end.status == 0 and fail_on_leaks and gate:
        os._exit(gate)
    if end.status == 0 and failures:
        os._exit(CANNOT)
    child.leave_like(end)


def figures_at_exit(folder: Path, pid: int) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """What the library wrote as the program ended, and as its children did."""
    own: dict[str, Any] | None = None
    others = []
    for path in sorted(folder.glob("*.json")):
        try:
            figures = json.loads(path.read_text(errors="replace"))
            assert isinstance(figures["figures"], dict) and isinstance(figures["contention"], list)
        except (OSError, ValueError, KeyError, TypeError, AssertionError):
            continue  # cut off, when a child was killed while it wrote
        if path.stem == str(pid):
            own = figures
        else:
            others.append({"pid": int(path.stem) if path.stem.isdigit() else 0, **figures})
    return own, others


def look_for_leaks(
    folder: Path, pid: int, watch: Watch, end: End, recording: Recording
) -> tuple[list[str], int]:
    """Lines of text, and the status of --fail-on-leaks. The program's end is passed on whatever
    happens here."""
    recording.end["leaks"] = None
    try:
        return find_leaks(folder, pid, watch, end, recording)
    except Exception as error:
        what = error.message if isinstance(error, Problem) else repr(error)
        return [f"lanemalloc: leaks: {what}"], CANNOT


def find_leaks(
    folder: Path, pid: int, watch: Watch, end: End, recording: Recording
) -> tuple[list[str], int]:
    """Into recording.end["leaks"] (None: not known), and as lines of text."""
    from lanemalloc import leaks, symbols

    own, others, notes = collect(folder, "heap", pid, watch.looks)
    own, others = shown_first(recording.command[0], own, others, notes)
    if own is None:
        status, why = leaks.gate([], end)
        return [*no_profile(recording.command[0], end), f"lanemalloc: {why}"], status
    processes = leaks.by_process(own, others)
    for process in processes:
        if process.leaks:
            symbols.look_up(process.found.profile)
            process.found.profile.prune()
    status, why = leaks.gate(processes, end)
    recording.end["leaks"] = leaks.as_json(processes)
    lines = leaks.lines(processes) + [f"note: {note}" for note in notes]
    return lines + ([f"lanemalloc: {why}"] if why else []), status


def write_summary(
    recording: Recording,
    end: End,
    pid: int,
    as_json: bool,
    output: Path | None,
    more: list[str],
) -> list[str]:
    """What could not be written, and why; the summary then goes to standard error."""
    from lanemalloc import summary

    line = {"command": recording.command, **recording.end}
    text = (
        json.dumps(line) + "\n"
        if as_json
        else summary.text(recording, end, pid, recording.end) + "".join(f"{one}\n" for one in more)
    )
    if output is not None:
        try:
            outputs.write_text(output, text)
            return []
        except OSError as error:
            sys.stderr.write(text)
            return [f"{output} cannot be written: {error.strerror}; the summary stands above"]
    sys.stderr.write(text)
    return []


def write_files(recording: Recording, record: Path | None, report: Path | None) -> list[str]:
    """What could not be written, and why. What was seen is then kept among the temporary files."""
    failures = []
    try:
        if record is not None:
            recording.save(record)
    except OSError as error:
        failures.append(f"{record} cannot be written: {error.strerror}; {kept(recording)}")
        record = None
    try:
        if report is not None:
            from lanemalloc import report as reports

            reports.write(recording, report)
    except (OSError, Problem) as error:
        why = error.strerror if isinstance(error, OSError) else error.message
        where = f"the recording is in {record}" if record is not None else kept(recording)
        failures.append(f"{report} cannot be written: {why}; {where}")
    return failures


def kept(recording: Recording) -> str:
    """Says where a recording is now that could not go where it should."""
    try:
        handle, name = tempfile.mkstemp(prefix="lanemalloc-", suffix=".jsonl")
        os.close(handle)
        recording.save(Path(name))
    except OSError as error:
        return f"nor could the recording be kept among the temporary files: {error.strerror}"
    return f"the recording is in {name}"
