#!/usr/bin/env python3
"""What lanemalloc says of itself, seen from outside: formats, files, signals, roots, probes,
messages, and what they cost.

Called by: tests/seeing/run.sh.
  check.py [--only NAME] PROGRAMS LIBRARY     the tests here; PROGRAMS: the folder of what
                                              run.sh has built
  check.py counted FILE PROGRAM...            compares the counter's lines with the library's
                                              figures (counter.c)
LANEMALLOC_TEST_DEPTH: see tests/part.sh. Each test prints one line: ok, FAILED or skipped; where
it can, it also plants a fault and looks whether it is seen.
"""

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import root as outside

ROOT = Path(__file__).resolve().parent.parent.parent
SIGNAL = signal.SIGUSR2
# Each look enters every lane's lock and the depot's: these entries are counted too.
SEEN_BY_LOOKING = {"contention.lane.count", "contention.depot.count"}
# Of the complaints of promtool's linter: it reads the older format, where counters are named
# otherwise.
LINT = re.compile(
    r'no help text|counter metrics should have "_total" suffix|'
    r'non-counter metrics should not have "_total" suffix|histogram and summary'
)
DEPTH = os.environ.get("LANEMALLOC_TEST_DEPTH", "all")
# Those that take a second and no other program.
LEAST = {
    "json_fits_the_schema",
    "openmetrics_is_what_prometheus_reads",
    "all_say_the_same",
    "figures_at_exit",
    "options_that_are_wrong",
    "the_root_is_found_and_adds_up",
    "a_hit_counts_nothing",
}

programs = Path()
library = Path()


class Failure(Exception):
    pass


class Skip(Exception):
    pass


def require(good: bool, what: str) -> None:
    if not good:
        raise Failure(what)


def equal(what: str, expected: object, actual: object) -> None:
    require(expected == actual, f"{what} is {actual!r}, not {expected!r}")


def fails(what: str, action: Callable[[], object]) -> None:
    """The planted fault is seen."""
    try:
        action()
    except Exception:  # whatever it is that the format's own parser raises
        return
    raise Failure(f"not seen: {what}")


def environment(options: str) -> dict[str, str]:
    plain = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "LANEMALLOC_OPTIONS")}
    return {**plain, "LANEMALLOC_OPTIONS": options} if options else plain


def run(*command: str | Path, options: str = "", **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(c) for c in command],
        env=environment(options),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        **more,
    )


class Running:
    """A program of told.c that waits for its input to end; `line` is what it has said."""

    def __init__(
        self,
        case: str,
        *arguments: str,
        program: str = "told",
        options: str = "",
        preload: Path | None = None,
    ) -> None:
        env = environment(options) | ({"LD_PRELOAD": str(preload)} if preload else {})
        self.process = subprocess.Popen(
            [programs / program, case, *arguments],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.line = self.hear().split()
        require(bool(self.line), f"{program} {case} has said nothing")
        self.pid = int(self.line[0])

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def end(self) -> str:
        """What it has written to standard error."""
        return self.process.communicate(timeout=120)[1]


@contextlib.contextmanager
def running(case: str, *arguments: str, **more: Any) -> Iterator[Running]:
    it = Running(case, *arguments, **more)
    try:
        yield it
    finally:
        if it.process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired, ValueError):
                it.process.communicate(timeout=60)
            it.process.kill()


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        require(time.monotonic() < end, f"waited too long: {what}")
        time.sleep(0.02)


# --- Formats.


def told() -> dict[str, Any]:
    """Everything that told.c writes at one moment."""
    with tempfile.TemporaryDirectory() as folder:
        done = run(programs / "told", "tell_everything", folder, options="decay_ms=-1")
        equal("status of tell_everything", (0, ""), (done.returncode, done.stdout))
        return {
            path.name: path.read_bytes() if path.name == "struct" else path.read_text()
            for path in Path(folder).iterdir()
        }


def test_json_fits_the_schema() -> None:
    import jsonschema

    schema = json.loads((ROOT / "docs" / "stats.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    document = json.loads(told()["json"])
    validator.validate(document)
    equal(
        "what the schema and the text name",
        set(schema["properties"]["figures"]["properties"]),
        set(document["figures"]),
    )

    def undescribed(part: Any, at: str) -> Iterator[str]:
        for name, field in part.get("properties", {}).items():
            if "description" not in field and "properties" not in field.get("items", {}):
                yield f"{at}.{name}"
            yield from undescribed(field.get("items", field), f"{at}.{name}")

    equal("fields without a description", [], list(undescribed(schema, "")))
    for plant in (
        lambda d: d["figures"].pop("allocations"), lambda d: d.pop("classes"),
        lambda d: d.update(other=1), lambda d: d["figures"].update(misses=-1),
        lambda d: d["figures"].update(misses="1"), lambda d: d["contention"][0].pop("waits"),
        lambda d: d["classes"][0].update(size=17), lambda d: d["probes"].pop(),
        lambda d: d.update(entry="shared"),
    ):  # fmt: skip
        broken = json.loads(json.dumps(document))
        plant(broken)
        fails("JSON that does not fit", partial(validator.validate, broken))


def metrics_of(text: str) -> dict[str, float]:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    found = {}
    for family in text_string_to_metric_families(text):
        require(
            bool(family.documentation) and family.type != "unknown",
            f"{family.name} has no help or type",
        )
        for sample in family.samples:
            key = sample.name + "".join(f"|{v}" for v in sample.labels.values())
            require(key not in found, f"{key} twice")
            found[key] = sample.value
    return found


def test_openmetrics_is_what_prometheus_reads() -> None:
    text = told()["openmetrics"]
    require(len(metrics_of(text)) > 100, "few metrics")
    line = next(
        line for line in text.splitlines() if line.startswith("lanemalloc_allocations_total")
    )
    for what, broken in {
        "no end": text.replace("# EOF\n", ""),
        "a counter without _total": text.replace("lanemalloc_frees_total", "lanemalloc_frees"),
        "a metric twice": text.replace("# EOF", "# TYPE lanemalloc_frees counter\n# EOF"),
        "no number": text.replace(line, line + "x"),
        "a histogram that falls": re.sub(
            r'(seconds_bucket\{at="lane",le="0.001024000"\}) \d+', r"\1 -1", text
        ),
    }.items():
        require(broken != text, f"nothing planted: {what}")
        fails(what, partial(metrics_of, broken))


def test_openmetrics_is_taken_by_promtool() -> None:
    if shutil.which("promtool") is None:
        raise Skip("no promtool (Debian's package prometheus)")
    text = told()["openmetrics"]

    def complaints(of: str) -> list[str]:
        done = run("promtool", "check", "metrics", input=of)
        require(done.returncode in (0, 3), f"promtool: {done.stderr.strip().splitlines()[:1]}")
        return [line for line in done.stderr.splitlines() if line and not LINT.search(line)]

    equal("promtool's complaints", [], complaints(text))
    fails("a line that is none", lambda: complaints(text.replace("# EOF", "lanemalloc_x{at=}")))


def compare(of: dict[str, Any]) -> None:
    """All say the same. The names in the struct are in the order of the names, and of the JSON."""
    document, names = (
        json.loads(of["json"]),
        dict(
            line.split(" ", 1)
            for line in of["names"].replace(" lanes.", "_lanes.").splitlines()
            if line
        ),
    )
    raw, layout = of["struct"], {}
    for line in run(programs / "told", "struct_layout").stdout.splitlines():
        name, *places = line.split()
        layout[name] = [int(p) for p in places]
    figures = document["figures"]
    values = struct.unpack_from(f"<{len(figures)}Q", raw, layout["allocations"][0])
    equal("the struct", list(figures.values()), list(values))
    equal("places in the struct", layout["allocations"][0] + 8 * len(figures), layout["probes"][0])
    equal("probes", document["probes"], list(struct.unpack_from("<15Q", raw, layout["probes"][0])))
    metrics = metrics_of(of["openmetrics"])
    lines = dict(re.findall(r"^lanemalloc: ([^:]+): (\d+)$", of["malloc_stats"], re.MULTILINE))
    help_of = dict(re.findall(r"^# HELP lanemalloc_(\w+) (.*)$", of["openmetrics"], re.MULTILINE))
    for name, value in figures.items():
        equal(f"name stats.{name}", str(value), names[f"stats.{name}"])
        metric, scale = (name, 1) if name != "lane_waited_us" else ("lane_waited_seconds", 1e-6)
        got = metrics.get(f"lanemalloc_{metric}_total", metrics.get(f"lanemalloc_{metric}"))
        require(
            got is not None and abs(got - value * scale) < 1e-9 * max(1, value),
            f"metric of {name} is {got}, not {value}",
        )
        equal(f"malloc_stats' {name}", str(value), lines.get(help_of[metric]))
    for cell in document["contention"]:
        for name in ("count", "failures", "waits", "waited_ns"):
            key = f"contention.{cell['at']}.{name}"
            seen = int(
                next(
                    line for line in of["names"].splitlines() if line.startswith(f"{key} ")
                ).rsplit(" ", 1)[1]
            )
            require(
                seen == cell[name] or (key in SEEN_BY_LOOKING and seen > cell[name]),
                f"{key} is {seen}, not {cell[name]}",
            )
        equal(
            f"{cell['at']}'s histogram",
            sum(cell["waits_by_time"]),
            int(metrics[f"lanemalloc_contention_wait_seconds_count|{cell['at']}"]),
        )
    classes = {
        int(row.get("size", 0)): row
        for row in ElementTree.fromstring(of["malloc_info"]).iter("size")
    }
    for row in document["classes"]:
        for name, metric in {
            "allocations": "class_allocations_total",
            "live": "class_live_objects",
            "slabs": "class_slabs",
        }.items():
            equal(
                f"{name} of {row['size']} bytes in the metrics",
                row[name],
                int(metrics[f"lanemalloc_{metric}|{row['size']}"]),
            )
            if row["allocations"] != 0:
                equal(
                    f"{name} of {row['size']} bytes in malloc_info",
                    str(row[name]),
                    classes[row["size"]].get(name),
                )
        equal(f"frees of {row['size']} bytes", row["allocations"] - row["live"], row["frees"])
    for name, key in {"allocations": "allocations", "live": "live_objects"}.items():
        equal(
            f"sum of {name}",
            figures[key],
            sum(row[name] for row in document["classes"]) + figures[f"large_{key}"],
        )
    small = figures["live_bytes"] - figures["large_live_bytes"]
    arena = figures["claimed_bytes"] - figures["large_live_bytes"]
    info = [
        arena,
        figures["live_objects"] - figures["large_live_objects"],
        figures["large_live_objects"],
        figures["large_live_bytes"],
    ]
    info += [small, arena - small, figures["cached_bytes"]]
    for line in of["mallinfo"].splitlines():
        equal("mallinfo", info, [int(n) for n in line.split()])


def test_all_say_the_same() -> None:
    of = told()
    compare(of)
    number = str(json.loads(of["json"])["figures"]["live_objects"])
    for name in ("json", "openmetrics", "malloc_stats", "names", "mallinfo"):
        pattern = {
            "json": f'"live_objects":{number}',
            "openmetrics": f"live_objects {number}",
            "malloc_stats": f"live objects: {number}",
        }.get(name, number)
        broken = {
            **of,
            name: of[name].replace(pattern, pattern + "1", 1)
            if name != "mallinfo"
            else of[name].replace(" ", " 1", 1),
        }
        require(broken[name] != of[name], f"nothing planted in {name}")
        fails(f"another figure in {name}", partial(compare, broken))


# --- Reports that a process writes by itself.


def is_whole(path: Path) -> bool:
    return path.exists() and path.read_text().endswith("\n")


def is_report(text: str, form: str) -> bool:
    if form == "json":
        return bool(json.loads(text)["figures"]["allocations"])
    if form == "openmetrics":
        return len(metrics_of(text)) > 100
    return (
        text.startswith("lanemalloc: entry: ")
        and re.search(r"^lanemalloc: allocations: [1-9]", text, re.MULTILINE) is not None
    )


def test_figures_at_exit() -> None:
    for form in ("text", "json", "openmetrics"):
        done = run(
            programs / "told",
            "obey",
            options=f"stats=exit,stats_format={form}",
            stdin=subprocess.DEVNULL,
        )
        require(
            done.returncode == 0 and is_report(done.stderr, form),
            f"no {form} at exit: {done.stderr[:100]}",
        )
    quiet = run(
        programs / "told", "obey", options="stats=none,stats_format=json", stdin=subprocess.DEVNULL
    )
    equal("what is written with stats=none", "", quiet.stderr)
    # A shared library that was not linked, but preloaded.
    done = subprocess.run(
        ["/usr/bin/perl", "-e", "1"],
        env=environment("stats=exit") | {"LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=True,
    )
    require(is_report(done.stderr, "text"), "no figures at the end of a preloaded program")


def test_figures_on_a_signal_and_of_children() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for stats in ("signal:USR2", "exit+signal:USR2"):
            pattern = f"{folder}/{stats.replace(':', '_')}.%p.json"
            with running(
                "obey", options=f"stats={stats},stats_format=json,stats_file={pattern}"
            ) as it:
                path = Path(pattern.replace("%p", str(it.pid)))
                require(not path.exists(), "a report before the signal")
                for _ in range(3):
                    path.unlink(missing_ok=True)
                    os.kill(it.pid, SIGNAL)
                    wait_until("a report", partial(is_whole, path))
                    require(is_report(path.read_text(), "json"), "no report on a signal")
                path.unlink()
                it.say("f")
                child = Path(pattern.replace("%p", it.hear().strip()))
                equal("a child's report", "exit" in stats, child.exists())
                require(
                    not child.exists() or is_report(child.read_text(), "json"), "the child's report"
                )
                equal("standard error", "", it.end())
                equal("a report at exit", "exit" in stats, path.exists())
    with running("obey", options="stats=exit") as it:
        os.kill(it.pid, SIGNAL)
        equal("status after a signal that nobody watches", -SIGNAL, it.process.wait(60))


def test_a_file_that_cannot_be_written() -> None:
    for path, error in {
        "/nowhere/at/all": errno.ENOENT,
        "/": errno.EISDIR,
        "/proc/version/x": errno.ENOTDIR,
    }.items():
        done = run(
            programs / "told",
            "obey",
            options=f"stats=exit,stats_file={path}",
            stdin=subprocess.DEVNULL,
        )
        first, rest = done.stderr.split("\n", 1)
        equal(
            "the line",
            f"lanemalloc: stats_file={path}: {os.strerror(error)}, using standard error",
            first,
        )
        require(done.returncode == 0 and is_report(rest, "text"), f"no figures after {first}")
    done = run(
        programs / "told",
        "obey",
        options="stats=exit,stats_file=/dev/full",
        stdin=subprocess.DEVNULL,
    )
    equal(
        "with /dev/full",
        "lanemalloc: stats_file=/dev/full: not a regular file, using standard error",
        done.stderr.split("\n", 1)[0],
    )
    # A standard error that is full is nobody's problem.
    with open("/dev/full", "w") as full:
        full_run = subprocess.run(
            [programs / "told", "obey"],
            env=os.environ | {"LANEMALLOC_OPTIONS": "stats=exit"},
            stdin=subprocess.DEVNULL,
            stderr=full,
        )
    equal("with /dev/full for standard error", 0, full_run.returncode)


def test_options_that_are_wrong() -> None:
    for option, line in {
        "stat_file=x": "unknown option 'stat_file' (did you mean 'stats_file'?), ignored",
        "stats_formt=json": "unknown option 'stats_formt' (did you mean 'stats_format'?), ignored",
        "sampel=1k": "unknown option 'sampel' (did you mean 'sample'?), ignored",
        "sample_wait=1": "unknown option 'sample_wait' (did you mean 'sample_wait_ns'?), ignored",
        "unwindd=frames": "unknown option 'unwindd' (did you mean 'unwind'?), ignored",
        "leak=1": "unknown option 'leak' (did you mean 'leaks'?), ignored",
        "profil=exit": "unknown option 'profil' (did you mean 'profile'?), ignored",
        "profile_fil=x": "unknown option 'profile_fil' (did you mean 'profile_file'?), ignored",
        "stats=now": (
            "bad value 'now' for 'stats' (none, exit, signal:NAME or exit+signal:NAME, "
            "of USR1 USR2 HUP ALRM VTALRM PROF WINCH URG), using none"
        ),
        "stats=signal:KILL": (
            "bad value 'signal:KILL' for 'stats' (none, exit, signal:NAME or exit+signal:NAME, "
            "of USR1 USR2 HUP ALRM VTALRM PROF WINCH URG), using none"
        ),
        "stats_format=xml": (
            "bad value 'xml' for 'stats_format' (text, json or openmetrics), using text"
        ),
        "sample=1t": (
            "bad value '1t' for 'sample' (bytes up to 1024g, "
            "with k, m or g behind the number, or 0 for none), using 0"
        ),
        "sample=": (
            "bad value '' for 'sample' (bytes up to 1024g, "
            "with k, m or g behind the number, or 0 for none), using 0"
        ),
        "sample_wait_ns=x": "bad value 'x' for 'sample_wait_ns' (0 to 1000000000), using 10000",
        "unwind=both": "bad value 'both' for 'unwind' (tables or frames), using tables",
        "leaks=yes": "bad value 'yes' for 'leaks' (0 or 1), using 0",
        "profile=x": "bad value 'x' for 'profile' (none or exit), using none",
        f"stats_file={'a' * 300}": (
            f"bad value '{'a' * 64}' for 'stats_file' (a path of at most 255 characters), using "
        ),
    }.items():
        done = run(programs / "told", "obey", options=option, stdin=subprocess.DEVNULL)
        equal(
            f"what {option[:30]} says",
            (0, f"lanemalloc: LANEMALLOC_OPTIONS: {line}\n"),
            (done.returncode, done.stderr),
        )
        done = run(
            programs / "told", "obey", options=f"{option},strict=1", stdin=subprocess.DEVNULL
        )
        equal(f"status of {option[:30]} with strict=1", -signal.SIGABRT, done.returncode)


# --- From outside.


def check_root(it: Running, pid: int, count: int = 1) -> None:
    """One of the roots says what the library says in the process."""
    roots = outside.read_roots(pid)
    equal("roots", count, len(roots))
    for r in roots:
        equal("magic and version", (b"lanestat", 1), (r.magic, r.version))
        require(r.size >= 120, "size of the root")
    used = [r for r in roots if r.started != 0]
    sums = [r.sums() for r in used]
    said = [int(n) for n in it.line[1:4]]
    require(
        said in [[s.allocations, s.live_objects, s.live_bytes] for s in sums],
        f"roots say {sums}, the library {said}",
    )
    require(
        all(s.options.startswith("lanes=") and "decay_ms=" in s.options for s in sums),
        "options in the root",
    )


def test_the_root_is_found_and_adds_up() -> None:
    for options in ("", "lanes=percpu", "lanes=shared:2", "sample=4k", "checked=1"):
        with running("stay", options=options) as it:
            check_root(it, it.pid)
    for program in ("told_static", "told_static_exe", "told_static_pie"):
        require("no symbols" in run("nm", programs / program).stderr, f"{program} is not stripped")
        with running("stay", program=program) as it:
            check_root(it, it.pid)
    with running("stay", program="told_prefixed", preload=library) as it:
        check_root(it, it.pid, count=2)
    with running("stay", preload=library) as it:
        check_root(it, it.pid)
        memory = outside.Memory(it.pid)
        at = outside.roots_of(memory, it.pid)[0]
        broken = outside.Root(memory, at)
        offset, n, width = broken.fields["world.large_bytes"]
        broken.fields["world.large_bytes"] = (offset + 8, n, width)
        fails(
            "a field that lies elsewhere",
            lambda: equal("sum", int(it.line[3]), broken.sums().live_bytes),
        )
    equal("roots of a process without the library", [], outside.read_roots(os.getpid()))


def test_the_root_survives_fork_and_exec() -> None:
    with running("stay", "fork") as it:
        require(it.pid != it.process.pid, "the child is another process")
        check_root(it, it.pid)
    with running("stay", "exec", options="decay_ms=77") as it:
        equal("process after exec", it.process.pid, it.pid)
        check_root(it, it.pid)
        require("decay_ms=77" in outside.read_roots(it.pid)[0].sums().options, "options after exec")


# --- Probes.

PROBES = {"refill": 3, "flush": 2, "revoke": 2, "wait": 3, "map": 2, "purge": 2}


def test_probes_are_in_the_library() -> None:
    for path in (library, library.with_name("liblanemalloc-dynamic-tls.so")):
        notes = run("readelf", "-n", "-W", path).stdout
        found = re.findall(
            r"Provider: lanemalloc\s+Name: (\w+)\s+Location: 0x([0-9a-f]+).*\s+Arguments: (.*)",
            notes,
        )
        equal(f"probes of {path.name}", set(PROBES), {name for name, _, _ in found})
        code = {
            line.split(":")[0].strip(): line.split("\t")[-1]
            for line in run("objdump", "-d", "--no-show-raw-insn", path).stdout.splitlines()
            if ":\t" in line
        }
        for name, address, arguments in found:
            equal(
                f"arguments of {name}",
                PROBES[name],
                len(re.findall(r"(?:^| )8@\S+(?: |$)", arguments.replace(" ", "  "))),
            )
            equal(f"instruction at {name}", "nop", code.get(address.lstrip("0")))


def test_bpftrace_prints_waits_for_lanes() -> None:
    if shutil.which("bpftrace") is None:
        raise Skip("no bpftrace")
    if os.geteuid() != 0:
        raise Skip("bpftrace needs root")
    allowed = run("bpftrace", "-e", "BEGIN { exit(); }")
    if allowed.returncode != 0:
        raise Skip(
            "the kernel refuses BPF: "
            f"{(allowed.stderr.strip().splitlines() or ['no reason given'])[-1]}"
        )
    with running("wait_for_lanes") as it:
        tracer = subprocess.Popen(
            ["bpftrace", "-p", str(it.pid), ROOT / "tools" / "lane-waits.bt"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert tracer.stdout is not None
        head = ""
        while "Waits inside" not in head and (line := tracer.stdout.readline()):
            head += line
        time.sleep(1.5)
        tracer.send_signal(signal.SIGINT)
        it.end()  # it is held up while the tracer lets it go
        try:
            said, complaint = tracer.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            tracer.kill()
            said, complaint = tracer.communicate()
            raise Failure(f"bpftrace does not end: {said[:200]} {complaint[:200]}") from None
    counts = dict(re.findall(r"@waits_by_kind\[(\d+)\]: (\d+)", said))
    require(int(counts.get("0", 0)) > 10, f"few waits for lanes: {said[:300]} {complaint[:300]}")
    require(
        "told" in said and "@microseconds_by_kind[0]" in said,
        f"no thread or histogram: {said[:500]}",
    )


def test_gdb_stops_at_every_probe() -> None:
    if shutil.which("gdb") is None:
        raise Skip("no gdb")
    commands = ["set pagination off", "set debuginfod enabled off", "start"]
    for name, count in PROBES.items():
        values = ", ".join(f"$_probe_arg{i}" for i in range(count))
        commands += [f"break -probe-stap lanemalloc:{name}", "commands", "silent"]
        commands += [f'printf "PROBE {name}{" %ld" * count}\\n", {values}', "continue", "end"]
    with tempfile.NamedTemporaryFile("w", suffix=".gdb") as script:
        script.write("\n".join([*commands, "continue"]) + "\n")
        script.flush()
        done = run(
            "gdb",
            "-batch",
            "-nx",
            "-x",
            script.name,
            "--args",
            programs / "told",
            "every_event",
            options="lanes=owned,decay_ms=0",
        )
    seen: dict[str, list[list[int]]] = {}
    for name, values in re.findall(r"^PROBE (\w+)((?: -?\d+)+)$", done.stdout, re.MULTILINE):
        seen.setdefault(name, []).append([int(v) for v in values.split()])
    missing = set(PROBES) - set(seen) - {"wait", "revoke"}  # these as chance has it
    if "ptrace" in done.stderr:
        raise Skip(f"gdb may not trace here: {done.stderr.splitlines()[-1]}")
    require(not missing, f"not reached: {missing} ({done.stdout[-300:]} {done.stderr[-300:]})")
    require(
        all(
            3 <= lane < 5000 and 0 < size_class < 105 and n > 0
            for lane, size_class, n in seen["refill"]
        ),
        "refill's arguments",
    )
    require(
        all(a % 65536 == 0 and n > 0 and n % 4096 == 0 for a, n in seen["map"]),
        f"map's arguments {seen['map'][:3]}",
    )
    require(
        all(a % 65536 == 0 and n > 0 and n % 65536 == 0 for a, n in seen["purge"]),
        f"purge's arguments {seen['purge'][:3]}",
    )
    require(all(lane >= 2 and owner >= 2 for lane, owner in seen["flush"]), "flush's arguments")
    require(
        all(0 <= rank <= 5 and lock > 4096 and ns >= 0 for rank, lock, ns in seen.get("wait", [])),
        "wait's arguments",
    )


# --- Samples, and what seeing costs.


def test_messages_about_sampled_objects() -> None:
    for case, (function, why) in {
        "twice": ("free", "freed already"), "inside": ("free", "not the start of an object"),
        "usable": ("malloc_usable_size", "not the start of an object"),
        "again": ("realloc", "freed already"),
    }.items():  # fmt: skip
        for checked in ("0", "1"):
            done = run(programs / "told", "bad_use_of_a_sample", case, options=f"checked={checked}")
            equal(f"status of {case}", -signal.SIGABRT, done.returncode)
            require(
                re.fullmatch(rf"lanemalloc: {function}\(0x[0-9a-f]+\): {why}\n", done.stderr)
                is not None,
                f"{case}: {done.stderr!r}",
            )


def instructions(workload: str, pairs: int, options: str) -> int:
    """That the whole run takes, start and end included."""
    with tempfile.NamedTemporaryFile() as out:
        done = run(
            "valgrind",
            "--tool=callgrind",
            f"--callgrind-out-file={out.name}",
            programs / "pairs",
            workload,
            str(pairs),
            options=options,
        )
    found = re.search(r"Collected : (\d+)", done.stderr)
    require(done.returncode == 0 and found is not None, f"callgrind: {done.stderr[-200:]}")
    assert found is not None
    return int(found[1])


def cost(workload: str, options: str) -> float:
    """Instructions a pair, by the difference of a long and a short run."""
    short, long = 100_000, 1_100_000
    return (instructions(workload, long, options) - instructions(workload, short, options)) / (
        long - short
    )


def test_what_samples_cost() -> None:
    """Of pairs of malloc and free, with nothing between: what is asked at each miss while sampling
    is on, and what a sample takes, most of it to walk the stack by tables."""
    if shutil.which("valgrind") is None:
        raise Skip("no valgrind")
    interval, most_share, most_each = 512 << 10, 0.1, 45_000
    for workload, size in {
        "pair32": 32,
        "bulk-shuffle": 272,
    }.items():  # bytes of a pair, rounded up to classes
        off, idle, on = (
            cost(workload, f"lanes=owned{more}")
            for more in ("", ",sample=1024g", f",sample={interval}")
        )
        each = (on - idle) * interval / size
        print(
            f"  {workload}: {off:.1f} instructions a pair; "
            f"{idle:.1f} with sampling on, {on:.1f} with sample=512k: {each:.0f} a sample"
        )
        require(
            idle <= off * (1 + most_share),
            f"{workload}: {idle:.2f} instructions a pair with sampling on, {off:.2f} without",
        )
        require(1000 < each < most_each, f"{workload}: a sample takes {each:.0f} instructions")


def gdb(*arguments: str) -> str:
    done = run(
        "gdb",
        "-nx",
        "-q",
        "-batch",
        "-ex",
        f"source {ROOT / 'tools' / 'lanemalloc-gdb.py'}",
        *arguments,
    )
    if "ptrace: Operation not permitted" in done.stderr:
        raise Skip("gdb may not attach here")
    return done.stdout + done.stderr


def test_gdb_tells_whose_a_pointer_is() -> None:
    if shutil.which("gdb") is None:
        raise Skip("no gdb")
    with running("stay") as it, tempfile.TemporaryDirectory() as folder:
        large, thing, freed = it.line[4:7]
        inside = f"{int(thing, 16) + 5:#x}"
        asked = [
            f"lanemalloc {words}"
            for words in (
                f"pointer {thing}",
                f"pointer {inside}",
                f"pointer {freed}",
                f"pointer {large}",
                f"pointer {large}+100000",
                "pointer &environ",
                f"slab {thing}",
                "lanes",
                "lane 0",
            )
        ]
        commands = [part for words in asked for part in ("-ex", words)]
        said = gdb("-p", str(it.pid), *commands, "-ex", f"generate-core-file {folder}/core")
        for line in (
            f"at {thing}, 0 bytes into it: in use",
            f"at {thing}, 5 bytes into it: in use",
            f"at {freed}, 0 bytes into it: free, on the slab's list",
            "a large object of 48 blocks (3145728 bytes) begins here",
            f"inside the large object at {large}",
            "not in memory of lanemalloc",
            "objects of 112 bytes; current",
            f"lane 0 at 0x",
            f"thread {it.pid}",
        ):
            require(line in said, f"gdb does not say '{line}': {said}")
        again = gdb(str(programs / "told"), f"{folder}/core", *commands)
        for line in (
            "0 bytes into it: in use",
            f"inside the large object at {large}",
            f"thread {it.pid}",
        ):
            require(line in again, f"gdb does not say of the core '{line}': {again}")
        for words, why in (
            ("pointer", "usage: lanemalloc pointer ADDRESS"),
            ("lane 77", "there is no lane 77"),
            (f"slab {large}", "lies in no slab"),
        ):
            require(
                why in gdb("-p", str(it.pid), "-ex", f"lanemalloc {words}"),
                f"gdb does not refuse 'lanemalloc {words}'",
            )
    require(
        "no symbol" in gdb("/bin/true", "-ex", "lanemalloc lanes"),
        "gdb does not refuse a program without the library",
    )


# An operation that reads, changes and writes memory: what a counter in a hit would be.
CHANGES_MEMORY = re.compile(
    r"^(?:lock )?(?:add|sub|inc|dec|or|and|xor|xadd)[bwlq]?\s+(?:[^,(]+,)?[^,]*\(.*\)$"
)


def changes_in(path: Path, function: str) -> list[str]:
    symbols = run("readelf", "-W", "--dyn-syms", path).stdout
    at, size = (
        int(n, base)
        for n, base in zip(
            re.findall(
                rf"([0-9a-f]+) +(\d+) FUNC +GLOBAL .* {function}(?:@.*)?$", symbols, re.MULTILINE
            )[0],
            (16, 10),
            strict=True,
        )
    )
    lines = run(
        "objdump",
        "-d",
        "--no-show-raw-insn",
        f"--start-address={at}",
        f"--stop-address={at + size}",
        path,
    ).stdout.splitlines()
    code = [
        re.sub(r"\s*#.*", "", line.split("\t")[-1]).strip()
        for line in lines
        if re.match(r"\s+[0-9a-f]+:\t", line)
    ]
    require(bool(code), f"no {function} in {path.name}")
    return [line for line in code if CHANGES_MEMORY.match(line)]


def test_a_hit_counts_nothing() -> None:
    """malloc and free are their hits alone (tests/golden). What they change in memory is the slab's
    countdown of objects, which finds out when a slab needs a look; no statistics."""
    if os.uname().machine != "x86_64":
        raise Skip("the instructions are looked at on x86-64 only")
    for function, most in {"malloc": 0, "_Znwm": 0, "free": 1, "_ZdlPv": 1}.items():
        found = changes_in(library, function)
        # Twice in the code of free: for the lane's owner, and for a CPU's lane.
        kinds = {re.sub(r"%\w+", "", line) for line in found}
        require(len(kinds) <= most, f"{function} changes memory: {found}")
        require(all(re.match(r"(?:sub|add|dec)", line) for line in found), f"{function}: {found}")
    with tempfile.TemporaryDirectory() as folder:
        planted = Path(folder) / "planted.so"
        text = (
            "static unsigned long calls; static void* o; "
            "void* malloc(unsigned long n) { ++calls; return n ? o : 0; }"
        )
        run(
            "cc",
            "-O2",
            "-shared",
            "-fPIC",
            "-fno-builtin",
            "-x",
            "c",
            "-",
            "-o",
            planted,
            input=text,
        )
        require(len(changes_in(planted, "malloc")) == 1, "a counter in malloc is not seen")


# --- The counter's lines.


def differences(line: dict[str, Any]) -> list[str]:
    ours, theirs = line["ours"], line["library"]
    found = [
        f"{k}: {ours[k]} counted, the library says {theirs[k]}"
        for k in ("allocations", "frees", "live", "bytes")
        if ours[k] != theirs[k]
    ]
    for size in sorted({*ours["rows"], *theirs["rows"]}, key=int):
        mine, its = ours["rows"].get(size, [0, 0, 0]), theirs["rows"].get(size, [0, 0, 0])
        if mine != its:
            found.append(
                f"{size if size != '0' else 'large'}: "
                f"allocations, frees, live {mine} counted, the library says {its}"
            )
    return found


def counted(path: Path, names: list[str]) -> int:
    """0 if each process that could be compared was equal, and each program was there."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    still = [line for line in lines if line["quiet"]]
    for line in lines:
        if any(
            line["ours"][k] != sum(row[i] for row in line["ours"]["rows"].values())
            for i, k in enumerate(("allocations", "frees", "live"))
        ):
            print(f"the counter itself is wrong in {line['program']}")
            return 1
    wrong = [
        f"{line['program']} ({line['pid']}, {line['entry']}): {what}"
        for line in still
        for what in differences(line)[:4]
    ]
    missing = [name for name in names if name not in {line["program"] for line in still}]
    print(
        "; ".join([*wrong[:6], *(f"no line of {name}" for name in missing)])
        or f"{len(still)} processes, "
        f"{sum(line['ours']['allocations'] for line in still)} allocations, "
        f"{sum(line['samples'] for line in still)} samples"
        + (f" ({len(lines) - len(still)} were never at rest)" if len(still) < len(lines) else "")
    )
    return 1 if wrong or missing else 0


def main() -> int:
    global programs, library
    arguments = sys.argv[1:]
    if arguments[0] == "counted":
        return counted(Path(arguments[1]), arguments[2:])
    only = ""
    if arguments[0] == "--only":
        only, arguments = arguments[1], arguments[2:]
    programs, library = Path(arguments[0]), Path(arguments[1])
    passed = failed = skipped = 0
    for key, test in list(globals().items()):
        name = key.removeprefix("test_")
        if (
            name == key
            or only not in key
            or DEPTH not in ("all", "least" if name in LEAST else "rest")
        ):
            continue
        began = time.monotonic()
        try:
            test()
        except Skip as why:
            skipped += 1
            print(f"skipped {name}: {why}", flush=True)
        except Exception as why:
            failed += 1
            print(f"FAILED {name}: {why if isinstance(why, Failure) else repr(why)}", flush=True)
        else:
            passed += 1
            print(f"ok {name} ({time.monotonic() - began:.1f} s)", flush=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
