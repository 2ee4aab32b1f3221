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
    Moments,
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
    from lanemalloc.flame.data import Moment
    from lanemalloc.profiles import Profile
    from lanemalloc.sampled import Look

MOST_OTHERS = 10
ONLY_PROGRAM = ("sample", "lanes", "options", "leaks", "fail_on_leaks")


def check_target(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> int | Path | None:
    """A process' number, or a profile's file."""
    if value is None:
        return None
    if value.isascii() and value.isdigit() and 0 < int(value) < 1 << 31:
        return int(value)
    if is_profile(Path(value)):
        return Path(value)
    raise click.BadParameter(
        f"{value!r} is no process' number, and no file of a profile (FILE.pb.gz); "
        f"a program stands behind --: lanemalloc profile -- {value}"
    )


def is_profile(path: Path) -> bool:
    """By its name, or since gzip has packed it, as pprof's files are."""
    if path.name.endswith((".pb", ".pb.gz")):
        return True
    try:
        with path.open("rb") as stream:
            return path.is_file() and stream.read(2) == b"\x1f\x8b"
    except OSError:
        return False


@click.command(
    cls=WithProgram,
    options_metavar="[OPTIONS]",
    epilog="""\b
Examples:
  lanemalloc profile -o heap.pb.gz -- ./server --port 80
  lanemalloc profile 4711 --kind allocation --seconds 10
  lanemalloc profile --kind peak -- python3 job.py
  lanemalloc profile --kind temporary -- ./server --port 80
  lanemalloc profile --leaks --fail-on-leaks -- ./unit_tests
  lanemalloc profile --flame heap.html -- ./server --port 80
  lanemalloc profile heap.pb.gz --flame heap.html
  lanemalloc profile --diff before.pb.gz after.pb.gz --flame what-grew.html
  go tool pprof -http=: heap.pb.gz
""",
)
@click.argument(
    "target", callback=check_target, required=False, metavar="PID|FILE.pb.gz|-- PROGRAM [ARGS]"
)
@click.option(
    "--diff",
    nargs=2,
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="BEFORE AFTER",
    help="What differs between two profiles that -o has written.",
)
@click.option("--kind",
              type=click.Choice(["heap", "peak", "allocation", "temporary", "contention"]),
              default="heap", show_default=True,
              help="What lives; what lived when most did; all that was allocated; what of it "
              "was freed before anything else was allocated; waits for locks.")  # fmt: skip
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
    "--flame",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.html",
    help="Write a page: flame graph, tree, threads, sizes. It needs no network.",
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
def profile(target: int | Path | None, **given: Any) -> None:
    """Show which functions allocate, or wait for locks, in the process PID or in PROGRAM, or in a
    profile that was written before.

    PROGRAM is run with sampling on, as if it had been started without: same terminal, signals and
    exit status; what was found is printed at its end, on standard error. PID must be sampling
    already (LANEMALLOC_OPTIONS=sample=512k); it is only read, and goes on.

    The table is that of `go tool pprof -top`: flat is what a function asked for itself, cum with
    all that it called. All figures are estimated from samples. With -o the profile is written, with
    names and lines, for pprof and what else reads its format.
    """
    program: list[str] = click.get_current_context().meta.get("program", [])
    given["kind_is_given"] = is_given("kind")
    if (target is not None) + bool(program) + (given["diff"] is not None) != 1:
        raise click.UsageError(
            "give either a process' number, or a profile, or --diff and two of them, "
            "or -- and a program"
        )
    if not isinstance(target, int) and given["seconds"] is not None:
        raise click.UsageError("--seconds is for a process that runs already")
    wrong = [name for name in ONLY_PROGRAM if given[name]] if not program else []
    if wrong:
        raise click.UsageError(
            f"--{wrong[0].replace('_', '-')} is for a program that is started: "
            "lanemalloc profile ... -- PROGRAM"
        )
    given["leaks"] = given["leaks"] or given["fail_on_leaks"]
    if given["leaks"] and given["kind"] != "heap":
        raise click.UsageError(f"--leaks is of the heap; leave --kind {given['kind']} out")
    if given["diff"] is not None and given["output"] is not None:
        raise click.UsageError("-o is for one profile; --flame draws what differs")
    if given["seconds"] is not None and given["kind"] == "peak":
        raise click.UsageError("the peak is of all the time; leave --seconds out")
    check_lanes(given["lanes"])
    outputs.check(given["output"], "-o")
    outputs.check(given["flame"], "--flame")
    if given["diff"] is not None:
        profile_difference(given)
    elif isinstance(target, Path):
        profile_file(target, given)
    elif target is not None:
        profile_process(target, given)
    else:
        profile_program(program, given)


def is_given(name: str) -> bool:
    """Whether that option stands on the command line."""
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.COMMANDLINE


# --- What was written before.


def read_profile(file: Path, given: dict[str, Any], notes: list[str]) -> Profile:
    """With the values that --kind names, or else those that the file names; with names."""
    from lanemalloc import pprof
    from lanemalloc.profiles import KINDS

    result = pprof.read(file)
    types = [one.type for one in result.types]
    if given["kind_is_given"]:
        result.default = KINDS[given["kind"]][1]
    if result.default not in types:
        if given["kind_is_given"] or not types:
            raise Problem(
                f"{file} has no {result.default}, but {', '.join(types) or 'nothing'}",
                "name another --kind",
            )
        result.default = types[-1]
    if result.frames:
        result.prune()
    else:
        notes += name_functions(result, given["symbols"], None)
    return result


def profile_file(file: Path, given: dict[str, Any]) -> None:
    notes: list[str] = []
    result = read_profile(file, given, notes)
    show(result, shown(str(file)), {"from": shown(str(file))}, notes, given)


def profile_difference(given: dict[str, Any]) -> None:
    from lanemalloc import comparing

    notes: list[str] = []
    before, after = (read_profile(file, given, notes) for file in given["diff"])
    if before.default != after.default:
        raise Problem(
            f"the one has {before.default}, the other {after.default}",
            "name what to compare with --kind",
        )
    first, second = (shown(str(file)) for file in given["diff"])
    failures: list[str] = []
    page = write_flame(f"{first} → {second}", after, before, [], notes, given, failures)
    if given["as_json"]:
        facts = {"before": first, "after": second, **comparing.as_json(before, after)}
        facts |= {"flame": str(page[0]) if page else None, "notes": notes, "failures": failures}
        click.echo(json.dumps(facts))
    else:
        lines = comparing.lines(before, after, (first, second), given["top"], given["cum"])
        click.echo("\n".join([*lines, *said(notes, None, page)]))
    fail(failures)


# --- A process that runs.


def profile_process(pid: int, given: dict[str, Any]) -> None:
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
    show(result, f"process {pid}", {"pid": pid}, notes, given)


def show(
    result: Profile, subject: str, about: dict[str, Any], notes: list[str], given: dict[str, Any]
) -> None:
    """On standard output, and in the files that are asked for."""
    from lanemalloc import waits

    failures: list[str] = []
    written = write_or_say(result, given["output"], failures)
    page = write_flame(subject, result, None, [], notes, given, failures)
    if given["as_json"]:
        facts = {**about, **facts_of(result, written, page), "notes": notes, "failures": failures}
        click.echo(json.dumps(facts))
    else:
        lines = [*table(result, given["top"], given["cum"], subject), *waits.lines(result, "")]
        click.echo("\n".join([*lines, *said(notes, written, page)]))
    fail(failures)


def fail(failures: list[str]) -> None:
    if failures:
        raise Problem(failures[0], "name another file")


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
        watch = Watch(child.pid, keeps_moments=given["flame"] is not None)
        end = attend(child, watch)
        try:
            own, others, notes = collect(folder, given["kind"], child.pid, watch.looks)
            moments = watch.moments or {}
            status = report(
                [shown(word) for word in program], own, others, notes, end, moments, given
            )
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
    moments: dict[int, Moments],
    given: dict[str, Any],
) -> int:
    """Writes everything that is to be written. The status to exit with, where the program's is
    0."""
    from lanemalloc import leaks, waits

    own, others = shown_first(program[0], own, others, notes)
    if own is None:
        why = [leaks.gate([], end)[1]] if given["fail_on_leaks"] else []
        for output in (given["output"], given["flame"]):
            if output is not None:
                why.append(f"{output} is not written: there is no profile")
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
    command = " ".join(program)
    seen = moments[own.pid].as_of(own.profile) if own.pid in moments else []
    if seen and own.at_exit:
        from lanemalloc.flame.data import Moment

        seen.append(Moment(end.seconds, own.profile))
    page = write_flame(command, own.profile, None, seen, notes, given, failures)
    files = [write_other(one, given, failures) for one in others]
    for process in processes[1:]:
        if process.leaks and given["output"] is None:
            name_functions(process.found.profile, given["symbols"], None)
    if failures and not status:
        status = CANNOT
    if given["as_json"]:
        facts = {"command": program, "pid": own.pid, "status": end.status, "signal": end.signal}
        facts |= {**facts_of(own.profile, written, page), "at_exit": own.at_exit, "notes": notes}
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
    lines += [*said(notes, written, page), *other_lines(others, files)]
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


def write_flame(
    title: str,
    result: Profile,
    before: Profile | None,
    moments: list[Moment],
    notes: list[str],
    given: dict[str, Any],
    failures: list[str],
) -> tuple[Path, int] | None:
    file: Path | None = given["flame"]
    if file is None:
        return None
    from lanemalloc import flame

    try:
        return file, flame.write(file, title, result, before, moments, notes)
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
        total = units.amount(one.profile.total(one.profile.default), unit_of(one.profile))
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
    result: Profile, written: tuple[Path, int] | None, page: tuple[Path, int] | None
) -> dict[str, Any]:
    from lanemalloc import waits
    from lanemalloc.profiles import KINDS

    rows = result.rows(result.default)
    kinds = {kind: name for name, (_, kind) in KINDS.items()}
    return {
        "kind": kinds.get(result.default, result.default),
        "type": result.default,
        "unit": unit_of(result),
        "total": result.total(result.default),
        "error": result.error(result.default),
        "sample": result.period,
        "seconds": round(result.duration_ns / 1e9, 3),
        "stacks": len(result.stacks),
        "file": str(written[0]) if written else None,
        "flame": str(page[0]) if page else None,
        "functions": [
            {"name": row.name, "flat": row.flat, "cum": row.cumulative, "error": row.error}
            for row in rows
        ],
        **({"contention": waits.as_json(result)} if result.default == "delay" else {}),
    }


def unit_of(result: Profile) -> str:
    return result.types[result.index(result.default)].unit


def title_of(kind: str) -> str:
    from lanemalloc.profiles import LABELS

    return LABELS.get(kind, kind).lower()


FREED_AGAIN = "nothing was sampled, or all of it was freed again"
WHY_NOTHING = {
    "temporary_objects": "no sampled object was freed before its thread allocated again; "
    "that is known only where threads have lanes of their own (lanes=owned)",
}


def table(result: Profile, top: int, by_cumulative: bool, subject: str) -> list[str]:
    """As `go tool pprof -top` prints it."""
    kind, unit = result.default, unit_of(result)
    total = result.total(kind)
    every = units.amount(result.period, result.period_type.unit)
    head = (
        f"{subject}: {title_of(kind)}, by function ({kind}; estimated by samples, one in {every})"
    )
    if not any(values[result.index(kind)] for _, values in result.stacks):
        return [head, f"  nothing: {WHY_NOTHING.get(kind, FREED_AGAIN)}"]
    rows = result.rows(kind)
    if by_cumulative:
        rows.sort(key=lambda row: (-abs(row.cumulative), -abs(row.flat), row.name))
    shown = rows[:top]
    if not shown:
        return [f"{head}: {units.amount(total, unit)}"]
    part = sum(row.flat for row in shown)
    whole = abs(total) or 1
    error = f" ± {100 * result.error(kind) / whole:.1f} %" if result.error(kind) else ""
    if kind == "temporary_objects":
        made = result.total("alloc_objects")
        error += f"; of {made:,} allocations {units.percent(total, made)} are temporary"
    lines = [
        head,
        (
            f"{len(shown)} of {len(rows)} functions, "
            f"which have {units.amount(part, unit)} of {units.amount(total, unit)}{error}"
        ),
        f"{'flat':>11} {'flat%':>6} {'sum%':>6} {'cum':>11} {'cum%':>6}",
    ]
    so_far = 0
    for row in shown:
        so_far += row.flat
        shares = [f"{100 * n / whole:5.1f}%" for n in (row.flat, so_far, row.cumulative)]
        lines.append(
            f"{units.amount(row.flat, unit):>11} {shares[0]:>6} {shares[1]:>6} "
            f"{units.amount(row.cumulative, unit):>11} {shares[2]:>6}  {row.name}"
        )
    return lines


def said(
    notes: list[str], written: tuple[Path, int] | None, page: tuple[Path, int] | None
) -> list[str]:
    lines = [f"note: {note}" for note in notes]
    if written:
        lines.append(
            f"written: {written[0]} ({units.size(written[1])}); go tool pprof {written[0]}"
        )
    if page:
        lines.append(f"written: {page[0]} ({units.size(page[1])}); a browser shows it")
    return lines
