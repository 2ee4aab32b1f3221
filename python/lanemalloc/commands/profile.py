"""lanemalloc profile: which calls allocated what lives, or all that was allocated, or waited for
locks; for people and for pprof."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lanemalloc import outputs, units
from lanemalloc.preload import check_lanes, environment
from lanemalloc.profiling import (
    DEFAULT,
    DEFAULT_FOR_LEAKS,
    Found,
    Watch,
    check_interval,
    collect,
    no_profile,
    shown_first,
    with_sampling,
)
from lanemalloc.supervise import Child, End, attend
from lanemalloc.ui import CANNOT, Problem, WithProgram, shown, temporary_folder

if TYPE_CHECKING:
    from lanemalloc.profiles import Profile
    from lanemalloc.sampled import Look

MOST_OTHERS = 10
ONLY_PROGRAM = ("sample", "lanes", "options", "leaks", "fail_on_leaks")


def check_pid(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    if not value.isdigit() or not 0 < int(value) < 1 << 31:
        raise click.BadParameter(
            f"{value!r} is no process' number; "
            f"a program stands behind --: lanemalloc profile -- {value}"
        )
    return int(value)


@click.command(
    cls=WithProgram,
    options_metavar="[OPTIONS]",
    epilog="""\b
Examples:
  lanemalloc profile -o heap.pb.gz -- ./server --port 80
  lanemalloc profile 4711 --kind allocation --seconds 10
  lanemalloc profile --leaks --fail-on-leaks -- ./unit_tests
  go tool pprof -http=: heap.pb.gz
""",
)
@click.argument("pid", callback=check_pid, required=False, metavar="PID|-- PROGRAM [ARGS]")
@click.option("--kind", type=click.Choice(["heap", "allocation", "contention"]),
              default="heap", show_default=True,
              help="What lives; all that was allocated; waits for locks.")  # fmt: skip
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.01),
    metavar="N",
    help="Of PID: what comes to it within that time.",
)
@click.option("--sample", callback=check_interval, metavar="BYTES",
              help="Of PROGRAM: sample once in so many bytes.  "
              f"[default: {DEFAULT}; with --leaks {DEFAULT_FOR_LEAKS}]")  # fmt: skip
@click.option("--lanes", metavar="VALUE", help="Of PROGRAM: how threads enter lanes.")
@click.option(
    "--options",
    multiple=True,
    metavar="K=V,...",
    help="Of PROGRAM: options of the library, over LANEMALLOC_OPTIONS.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.pb.gz",
    help="Write the profile for pprof.",
)
@click.option(
    "--top",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    metavar="N",
    help="How many functions to show.",
)
@click.option(
    "--cum", is_flag=True, help="Show those first that, with all that they called, have most."
)
@click.option("--symbols", type=click.Choice(["lines", "names", "none"]),
              default="lines", show_default=True,
              help="Look up lines and inlined functions (by llvm-symbolizer or addr2line), "
              "names alone, or nothing.")  # fmt: skip
@click.option(
    "--leaks",
    is_flag=True,
    help="Of PROGRAM: show what it had not freed when it ended, by call stack.",
)
@click.option("--fail-on-leaks", is_flag=True, help="The same, and exit with 1 if there is any.")
@click.option("--json", "as_json", is_flag=True, help="Everything as one line of JSON.")
def profile(pid: int | None, **given: Any) -> None:
    """Show which functions allocate, or wait for locks, in the process PID or in PROGRAM.

    PROGRAM is run with sampling on, as if it had been started without: same terminal, signals and
    exit status; what was found is printed at its end, on standard error. PID must be sampling
    already (LANEMALLOC_OPTIONS=sample=512k); it is only read, and goes on.

    The table is that of `go tool pprof -top`: flat is what a function asked for itself, cum with
    all that it called. All figures are estimated from samples. With -o the profile is written, with
    names and lines, for pprof and what else reads its format.
    """
    program: list[str] = click.get_current_context().meta.get("program", [])
    if (pid is None) == (not program):
        raise click.UsageError("give either a process' number, or -- and a program")
    if program and given["seconds"] is not None:
        raise click.UsageError("--seconds is for a process that runs already")
    wrong = [name for name in ONLY_PROGRAM if given[name]] if pid is not None else []
    if wrong:
        raise click.UsageError(
            f"--{wrong[0].replace('_', '-')} is for a program that is started: "
            "lanemalloc profile ... -- PROGRAM"
        )
    given["leaks"] = given["leaks"] or given["fail_on_leaks"]
    if given["leaks"] and given["kind"] != "heap":
        raise click.UsageError(f"--leaks is of the heap; leave --kind {given['kind']} out")
    check_lanes(given["lanes"])
    outputs.check(given["output"], "-o")
    if pid is not None:
        profile_process(pid, given)
    else:
        profile_program(program, given)


# --- A process that runs.


def profile_process(pid: int, given: dict[str, Any]) -> None:
    from lanemalloc import waits
    from lanemalloc.reader import Reader
    from lanemalloc.sampled import Samples

    samples = Samples(Reader.open(pid))
    kind = given["kind"]
    notes: list[str] = []
    if given["seconds"] is None:
        result = samples.look().profile(kind)
        if result.period == 0:
            notes.append("it does not sample any more: this is what it had sampled before")
    else:
        before = samples.look()
        if before.interval == 0:
            raise Problem(
                f"process {pid} does not sample any more",
                'from inside, lane_set("sample", "512k") turns it on again',
            )
        after = wait_for(samples.look, given["seconds"], notes)
        result = after.profile(kind).since(before.profile(kind))
    notes += name_functions(result, given["symbols"], pid)
    failures: list[str] = []
    written = write_or_say(result, given["output"], failures)
    facts = {"pid": pid, **facts_of(result, given, written), "notes": notes, "failures": failures}
    if given["as_json"]:
        click.echo(json.dumps(facts))
        fail(failures)
        return
    lines = [*table(result, given["top"], given["cum"], f"process {pid}"), *waits.lines(result, "")]
    click.echo("\n".join([*lines, *said(notes, written)]))
    fail(failures)


def fail(failures: list[str]) -> None:
    if failures:
        raise Problem(failures[0], outputs.NEXT_STEP.format("-o"))


def wait_for(look: Any, seconds: float, notes: list[str]) -> Look:
    """The last look within that time; Ctrl-C ends it before, and so does the end of the process."""
    from lanemalloc.memory import Gone
    from lanemalloc.progressing import bar

    begin = time.monotonic()
    last: Look = look()
    with bar("sampling") as told:
        try:
            while (left := begin + seconds - time.monotonic()) > 0:
                time.sleep(min(left, 0.5))
                last = look()
                told(round(min(time.monotonic() - begin, seconds)), max(1, round(seconds)))
        except KeyboardInterrupt:
            notes.append(f"interrupted after {units.duration(time.monotonic() - begin)}")
        except Gone:
            notes.append(
                f"the process ended after {units.duration(time.monotonic() - begin)}; "
                "this is up to when it was last seen"
            )
    return last


# --- A program that is started.


def profile_program(program: list[str], given: dict[str, Any]) -> None:
    with temporary_folder() as folder:
        default = DEFAULT_FOR_LEAKS if given["leaks"] else DEFAULT
        options = with_sampling(folder, given["sample"], given["options"], default)
        child = Child(program, environment(given["lanes"], options, {}))
        watch = Watch(child.pid)
        end = attend(child, watch)
        try:
            own, others, notes = collect(folder, given["kind"], child.pid, watch.looks)
            status = report([shown(word) for word in program], own, others, notes, end, given)
        except Exception as error:  # the program's end is passed on whatever happens here
            sys.stderr.write(
                f"lanemalloc: {error.message if isinstance(error, Problem) else repr(error)}\n"
            )
            status = CANNOT
    sys.stdout.flush()
    sys.stderr.flush()
    if status and end.status == 0:
        os._exit(status)
    child.leave_like(end)


def report(
    program: list[str],
    own: Found | None,
    others: list[Found],
    notes: list[str],
    end: End,
    given: dict[str, Any],
) -> int:
    """Writes everything that is to be written. The status to exit with, where the program's is
    0."""
    from lanemalloc import leaks, waits

    own, others = shown_first(program[0], own, others, notes)
    if own is None:
        why = [leaks.gate([], end)[1]] if given["fail_on_leaks"] else []
        if given["output"] is not None:
            why.append(f"{given['output']} is not written: there is no profile")
        facts: dict[str, Any] = {
            "command": program,
            "status": end.status,
            "signal": end.signal,
            "profile": None,
            "failures": why,
        }
        sys.stderr.write(
            json.dumps(facts) + "\n"
            if given["as_json"]
            else "\n".join([*no_profile(program[0], end), *(f"lanemalloc: {one}" for one in why)])
            + "\n"
        )
        return CANNOT if why else 0
    if not own.at_exit:
        notes.append(
            f"it ended without writing its profile ({end.describe()}): "
            "this is when it was last seen"
        )
    processes = leaks.by_process(own, others) if given["leaks"] else []
    notes += name_functions(own.profile, given["symbols"], None)
    status, reason = leaks.gate(processes, end) if given["fail_on_leaks"] else (0, "")
    failures: list[str] = [reason] if reason else []
    written = write_or_say(own.profile, given["output"], failures)
    files = [write_other(one, given, failures) for one in others]
    for process in processes[1:]:
        if process.leaks and given["output"] is None:
            name_functions(process.found.profile, given["symbols"], None)
    if failures and not status:
        status = CANNOT
    if given["as_json"]:
        facts = {"command": program, "pid": own.pid, "status": end.status, "signal": end.signal}
        facts |= {**facts_of(own.profile, given, written), "at_exit": own.at_exit, "notes": notes}
        facts["processes"] = [other_facts(one, file) for one, file in zip(others, files)]
        facts["oom"] = end.oom.as_json() if end.oom else None
        facts["failures"] = failures
        if given["leaks"]:
            facts["leaks"] = leaks.as_json(processes)
        sys.stderr.write(json.dumps(facts) + "\n")
        return status
    if given["leaks"]:
        lines = leaks.lines(processes)
    else:
        lines = table(own.profile, given["top"], given["cum"], f"lanemalloc: {program[0]}")
        lines += waits.lines(own.profile, " (when last seen)")
    if end.oom is not None:
        lines += end.oom.lines()
    lines += [*said(notes, written), *other_lines(others, files)]
    lines += [f"lanemalloc: {failure}" for failure in failures]
    sys.stderr.write("\n".join(lines) + "\n")
    return status


def write_or_say(
    result: Profile, file: Path | None, failures: list[str]
) -> tuple[Path, int] | None:
    """What cannot be written is said, behind what was found."""
    try:
        return write(result, file)
    except OSError as error:
        failures.append(f"{file} cannot be written: {error.strerror or error}")
        return None


def write_other(one: Found, given: dict[str, Any], failures: list[str]) -> Path | None:
    """Beside the program's own, with the process' number: heap.pb.gz, heap.4711.pb.gz."""
    output: Path | None = given["output"]
    if output is None:
        return None
    stem, dot, suffix = output.name.partition(".")
    file = output.with_name(f"{stem}.{one.pid}{dot}{suffix}")
    name_functions(one.profile, given["symbols"], None)
    return file if write_or_say(one.profile, file, failures) else None


def other_facts(one: Found, file: Path | None) -> dict[str, Any]:
    return {
        "pid": one.pid,
        "program": one.program,
        "total": one.profile.total(one.profile.default),
        "file": str(file) if file else None,
    }


def other_lines(others: list[Found], files: list[Path | None]) -> list[str]:
    if not others:
        return []
    lines = [f"other processes that it started, each with a profile of its own ({len(others)}):"]
    for one, file in list(zip(others, files))[:MOST_OTHERS]:
        total = amount(one.profile.total(one.profile.default), unit_of(one.profile))
        lines.append(f"{total:>12}  {one.pid:>7}  {one.program}{f'  {file}' if file else ''}")
    if len(others) > MOST_OTHERS:
        lines.append(f"  and {len(others) - MOST_OTHERS} more, with less")
    if not any(files):
        lines.append("  -o FILE.pb.gz writes them too, as FILE.PID.pb.gz")
    return lines


# --- Both.


def name_functions(result: Profile, how: str, pid: int | None) -> list[str]:
    """What is to be said of those that could not be named."""
    if how == "none":
        return []
    from lanemalloc import symbols
    from lanemalloc.progressing import bar

    with bar("names of functions") as told:
        notes = symbols.look_up(result, pid, how == "lines", told)
    result.prune()
    return notes


def write(result: Profile, file: Path | None) -> tuple[Path, int] | None:
    if file is None:
        return None
    from lanemalloc import pprof

    return file, pprof.write(result, file)


def facts_of(
    result: Profile, given: dict[str, Any], written: tuple[Path, int] | None
) -> dict[str, Any]:
    from lanemalloc import waits

    rows = result.rows(result.default)
    return {
        "kind": given["kind"],
        "type": result.default,
        "unit": unit_of(result),
        "total": result.total(result.default),
        "sample": result.period,
        "seconds": round(result.duration_ns / 1e9, 3),
        "stacks": len(result.stacks),
        "file": str(written[0]) if written else None,
        "functions": [{"name": row.name, "flat": row.flat, "cum": row.cumulative} for row in rows],
        **({"contention": waits.as_json(result)} if given["kind"] == "contention" else {}),
    }


def unit_of(result: Profile) -> str:
    return result.types[result.index(result.default)].unit


def amount(value: int, unit: str) -> str:
    sign, value = ("-", -value) if value < 0 else ("", value)
    if unit == "bytes":
        return sign + units.size(value)
    return sign + (units.duration(value / 1e9) if unit == "nanoseconds" else f"{value:,}")


TITLES = {
    "inuse_space": "memory in use",
    "alloc_space": "memory allocated",
    "delay": "time waited for locks",
}


def table(result: Profile, top: int, by_cumulative: bool, subject: str) -> list[str]:
    """As `go tool pprof -top` prints it."""
    kind, unit = result.default, unit_of(result)
    total = result.total(kind)
    every = amount(result.period, result.period_type.unit)
    head = f"{subject}: {TITLES[kind]}, by function ({kind}; estimated by samples, one in {every})"
    if not any(values[result.index(kind)] for _, values in result.stacks):
        return [head, "  nothing: nothing was sampled, or all of it was freed again"]
    rows = result.rows(kind)
    if by_cumulative:
        rows.sort(key=lambda row: (-abs(row.cumulative), -abs(row.flat), row.name))
    shown = rows[:top]
    if not shown:
        return [f"{head}: {amount(total, unit)}"]
    part = sum(row.flat for row in shown)
    whole = abs(total) or 1
    lines = [
        head,
        (
            f"{len(shown)} of {len(rows)} functions, "
            f"which have {amount(part, unit)} of {amount(total, unit)}"
        ),
        f"{'flat':>11} {'flat%':>6} {'sum%':>6} {'cum':>11} {'cum%':>6}",
    ]
    so_far = 0
    for row in shown:
        so_far += row.flat
        shares = [f"{100 * n / whole:5.1f}%" for n in (row.flat, so_far, row.cumulative)]
        lines.append(
            f"{amount(row.flat, unit):>11} {shares[0]:>6} {shares[1]:>6} "
            f"{amount(row.cumulative, unit):>11} {shares[2]:>6}  {row.name}"
        )
    return lines


def said(notes: list[str], written: tuple[Path, int] | None) -> list[str]:
    lines = [f"note: {note}" for note in notes]
    if written:
        lines.append(
            f"written: {written[0]} ({units.size(written[1])}); go tool pprof {written[0]}"
        )
    return lines
