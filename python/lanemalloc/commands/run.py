"""lanemalloc run: starts a program with the library, and tells at its end what memory and
contention were."""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lanemalloc.preload import environment
from lanemalloc.profiling import DEFAULT_FOR_LEAKS, collect, no_profile, with_sampling
from lanemalloc.supervise import EVERY, SHARE, Child, End, attend
from lanemalloc.ui import Problem

if TYPE_CHECKING:
    from lanemalloc.reader import Reader
    from lanemalloc.recording import Recording
    from lanemalloc.sampled import Look

LEAKING = 1


class Watch:
    """Looks at the program now and then. It may not have the library, exec another program, or end
    at any moment."""

    def __init__(self, pid: int, recording: Recording, samples: bool) -> None:
        self.pid = pid
        self.recording = recording
        self.reader: Reader | None = None
        self.interval = EVERY
        self.trouble: Exception | None = None
        self.samples = samples  # whether they are looked at too
        self.last: Look | None = None

    def look(self, at: float) -> None:
        """`at`: seconds since the start; finding the allocator for the first time takes a while, so
        that what is seen is of later."""
        started = time.monotonic() - at
        from lanemalloc import process
        from lanemalloc.reader import Reader
        from lanemalloc.sampled import Samples

        begin = time.thread_time()
        try:
            if self.reader is None:
                self.reader = Reader.open(self.pid)
                self.recording.pid = self.pid
            snapshot = self.reader.read_paced()
            self.recording.add(snapshot, snapshot.at_ns / 1e9 - started)
            if self.samples:
                self.last = Samples(self.reader).look()
        except Problem:
            self.reader = None  # of an exec, the next look finds the new program
        except Exception as error:  # the program is not to suffer from a fault in here
            self.reader, self.trouble = None, error
        self.recording.peak_resident = max(
            self.recording.peak_resident, process.peak_resident(self.pid)
        )
        self.interval = max(EVERY, (time.thread_time() - begin) / SHARE)


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
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

    \b
    lanemalloc run -- ./server --port 80
    lanemalloc run --lanes percpu --options decay_ms=10000 -- ./server
    lanemalloc run --report run.html -- python3 job.py
    lanemalloc run --fail-on-leaks -- ./unit_tests
    """
    with tempfile.TemporaryDirectory(prefix="lanemalloc-") as folder:
        defaults = {"stats": "exit", "stats_format": "json", "stats_file": f"{folder}/%p.json"}
        leaks = leaks or fail_on_leaks
        if leaks:
            options = with_sampling(Path(folder), None, options, DEFAULT_FOR_LEAKS)
        child = Child(list(program), environment(lanes, options, defaults))
        from lanemalloc.recording import Recording  # not before the program has begun

        recording = Recording(list(program))
        watch = Watch(child.pid, recording, leaks)
        end = attend(child, watch)
        figures, others = figures_at_exit(Path(folder), child.pid)
        finish(recording, end, figures, others)
        left = look_for_leaks(Path(folder), child.pid, watch.last, end, recording) if leaks else []
        if not quiet:
            write_summary(recording, end, as_json, output, left)
        write_files(recording, record, report)
    sys.stdout.flush()
    sys.stderr.flush()
    if fail_on_leaks and end.status == 0 and (recording.end["leaks"] or {}).get("bytes"):
        os._exit(LEAKING)
    child.leave_like(end)


def figures_at_exit(folder: Path, pid: int) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """What the library wrote as the program ended, and as its children did."""
    own: dict[str, Any] | None = None
    others = []
    for path in sorted(folder.glob("*.json")):
        try:
            figures = json.loads(path.read_text())
            assert isinstance(figures["figures"], dict) and isinstance(figures["contention"], list)
        except (OSError, ValueError, KeyError, TypeError, AssertionError):
            continue  # cut off, when a child was killed while it wrote
        if path.stem == str(pid):
            own = figures
        else:
            others.append({"pid": int(path.stem) if path.stem.isdigit() else 0, **figures})
    return own, others


def finish(
    recording: Recording, end: End, figures: dict[str, Any] | None, others: list[dict[str, Any]]
) -> None:
    from lanemalloc.summary import end_json

    if figures is not None:
        recording.peak_live = max(recording.peak_live, figures["figures"].get("live_bytes", 0))
    recording.end = end_json(recording, end, figures, others)


def look_for_leaks(
    folder: Path, pid: int, last: Look | None, end: End, recording: Recording
) -> list[str]:
    """The program's end is passed on whatever happens here."""
    recording.end["leaks"] = None
    try:
        return find_leaks(folder, pid, last, end, recording)
    except Exception as error:
        return [
            f"lanemalloc: leaks: {error.message if isinstance(error, Problem) else repr(error)}"
        ]


def find_leaks(
    folder: Path, pid: int, last: Look | None, end: End, recording: Recording
) -> list[str]:
    """Into recording.end["leaks"] (None: not known), and as lines of text."""
    from lanemalloc import leaks, symbols

    own, _, _ = collect(folder, "heap", pid, last)
    if own is None:
        return no_profile(recording.command[0], end)
    symbols.look_up(own.profile)
    own.profile.prune()
    found = leaks.find(own.profile)
    recording.end["leaks"] = leaks.as_json(own.profile, found)
    return leaks.lines(own.profile, found, own.at_exit)


def write_summary(
    recording: Recording, end: End, as_json: bool, output: Path | None, more: list[str]
) -> None:
    from lanemalloc import summary

    line = {"command": recording.command, **recording.end}
    text = (
        json.dumps(line) + "\n"
        if as_json
        else summary.text(recording, end, recording.end) + "".join(f"{one}\n" for one in more)
    )
    if output is None:
        sys.stderr.write(text)
        return
    try:
        output.write_text(text)
    except OSError as error:
        sys.stderr.write(f"lanemalloc: {output} cannot be written: {error.strerror}\n")


def write_files(recording: Recording, record: Path | None, report: Path | None) -> None:
    """What goes wrong here is said, and changes nothing of the program's exit status."""
    try:
        if record is not None:
            recording.save(record)
        if report is not None:
            write_report(recording, report)
    except OSError as error:
        sys.stderr.write(f"lanemalloc: {error.filename} cannot be written: {error.strerror}\n")


def write_report(recording: Recording, path: Path) -> None:
    try:
        module = importlib.import_module("lanemalloc.report")
    except ImportError:
        fallback = path.with_name(path.name + ".jsonl")
        recording.save(fallback)
        sys.stderr.write(
            "lanemalloc: this installation makes no reports; "
            f"the recording is in {os.fspath(fallback)}\n"
        )
        return
    module.write(recording, path)
