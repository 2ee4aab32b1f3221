#!/usr/bin/env python3
"""Checks models of the protocols with spin, where a signal handler forks or a thread is moved: \
what the explorer does not have.

Called by ../run.sh. A model is checked in several scenarios, since one with everything in it would
be too large. What must hold is asserted in the models by name: two_inside, half_done, popped_twice,
looked_at_dead_slot; besides, nobody may be left waiting. A mutant is a copy of a model in which one
text is replaced by another; the text must occur exactly once, and a scenario must then fail in the
way named.
"""

import argparse
import concurrent.futures
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
WATCHDOG = 900  # seconds; no bound on speed
MEMORY = 2000  # MiB
LEFT_WAITING = "left waiting"
MEETING = "two_inside|half_done|popped_twice"  # which of them is seen first says nothing

# Values of each model's parameters, by scenario.
PARAMETERS = {
    "owned": ("Visits", "Revocations", "Adoptions", "Interrupted", "Forks", "Exits"),
    "percpu": ("Visits0", "Visits1", "Rounds", "Handlers", "Switches", "Forks", "SlowPath"),
}
NONE = 9  # no thread
HANDLER = 3  # as the one that forks


@dataclass(frozen=True)
class Scenario:
    model: str
    what: str
    values: tuple[int, ...]


SCENARIOS = {
    "owned-fork-handler": Scenario("owned", "the owner's handler forks", (1, 1, 0, 0, HANDLER, 0)),
    "owned-fork-revoker": Scenario(
        "owned", "the revoker's handler forks", (1, 1, 0, 1, HANDLER, 0)
    ),
    "owned-fork-exit": Scenario(
        "owned", "a handler forks while its thread exits", (0, 1, 0, 0, HANDLER, 1)
    ),
    "owned-fork-adopt": Scenario(
        "owned", "a handler forks while its thread adopts", (0, 1, 1, 2, HANDLER, 1)
    ),
    "percpu-slow": Scenario(
        "percpu", "a handler in the slow path of a thread that is moved", (1, 0, 0, 1, 1, NONE, 1)
    ),
    "percpu-fork-handler": Scenario(
        "percpu", "a thread's handler forks", (1, 0, 1, 1, 0, HANDLER, 0)
    ),
    "percpu-fork-moved": Scenario(
        "percpu", "the same, later on another's CPU", (0, 1, 0, 1, 1, HANDLER, 0)
    ),
}


@dataclass(frozen=True)
class Mutant:
    name: str
    scenario: str
    wrong: str  # what must be found
    text: str
    replacement: str


MUTANTS = (
    Mutant(
        "owned: who has the lock takes a lane for nobody's that is set aside",
        "owned-fork-revoker",
        MEETING,
        ":: LOAD(thread, kSetAside) -> release(thread)",
        ":: false -> release(thread)",
    ),
    Mutant(
        "owned: who waits for a lane does not see it set aside",
        "owned-fork-exit",
        LEFT_WAITING,
        "memory[kLock] = kForsaken;",
        "memory[kLock] = kHeld;",
    ),
    Mutant(
        "percpu: whoever finds its lane free may wait",
        "percpu-slow",
        LEFT_WAITING,
        "enter(frame, thread, lane);\n     visit_depot",
        "enter(frame, thread, lane); nested = (lane == kLanes);\n     visit_depot",
    ),
    Mutant(
        "percpu: the child frees a taken lane in place",
        "percpu-fork-handler",
        MEETING,
        "lane_of[c] = c + kCpus",
        "memory[kWord(c)] = c",
    ),
)


@dataclass(frozen=True)
class Verdict:
    wrong: str  # empty: all holds
    states: str
    trail: str


def command(*words: str, place: Path) -> str:
    done = subprocess.run(
        words, cwd=place, capture_output=True, text=True, timeout=WATCHDOG, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{words[0]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def check(scenario: Scenario, text: str, place: Path, optimize: str) -> Verdict:
    """Searches all states of a model."""
    (place / "machine.pml").write_text((HERE / "machine.pml").read_text())
    (place / "model.pml").write_text(text)
    defines = [
        f"-Dk{name}={value}"
        for name, value in zip(PARAMETERS[scenario.model], scenario.values, strict=True)
    ]
    command("spin", "-a", *defines, "model.pml", place=place)
    # No reduction: it does not go with `provided`.
    options = ["-DSAFETY", "-DNOREDUCE", "-DCOLLAPSE", f"-DMEMLIM={MEMORY}"]
    # A mutant is found soon: there compiling takes longer than searching.
    command("gcc", optimize, "-w", *options, "-o", "pan", "pan.c", place=place)
    output = command("./pan", "-n", "-m100000", "-w22", place=place)
    states = re.search(r"(\d+) states, stored", output)
    if states is None or "max search depth too small" in output or "out of memory" in output:
        raise RuntimeError(f"the search is not complete:\n{output}")
    found = re.search(r"^pan:\d+: (.*) \(at depth", output, re.MULTILINE)
    if found is None:
        if "errors: 0" not in output or "Search not completed" in output:
            raise RuntimeError(f"the search is not complete:\n{output}")
        return Verdict("", states.group(1), "")
    wrong = (
        LEFT_WAITING
        if found.group(1) == "invalid end state"
        else re.sub(r"assertion violated|[!() ]", "", found.group(1))
    )
    return Verdict(
        wrong,
        states.group(1),
        story(command("spin", "-t", "-p", *defines, "model.pml", place=place)),
    )


def story(trail: str) -> str:
    """The steps that lead to the error, without what only the model does."""
    lines = [line.strip() for line in trail.splitlines() if re.match(r"\s*\d+:\s+proc", line)]
    dull = re.compile(
        r"youngest|\bword [<=]|word =|:init:|\[else\]|\[\(1\)\]|goto|sub-sequence|\[IF\]|"
        r"<valid end state>"
    )
    kept = [re.sub(r"\s+", " ", line) for line in lines if not dull.search(line)]
    return "\n".join("    " + line for line in kept[-80:])


def check_scenario(name: str) -> tuple[bool, str]:
    scenario = SCENARIOS[name]
    text = (HERE / f"{scenario.model}.pml").read_text()
    with tempfile.TemporaryDirectory() as place:
        verdict = check(scenario, text, Path(place), "-O2")
    line = f"{name}: {scenario.what} [{verdict.states} states]"
    return (
        (True, line) if not verdict.wrong else (False, f"{line}: {verdict.wrong}\n{verdict.trail}")
    )


def check_mutant(mutant: Mutant, tell: bool) -> tuple[bool, str]:
    scenario = SCENARIOS[mutant.scenario]
    text = (HERE / f"{scenario.model}.pml").read_text()
    line = f"mutant '{mutant.name}' is caught by {mutant.scenario}"
    if text.count(mutant.text) != 1:
        return False, f"{line}: the model has its text {text.count(mutant.text)} times, not once"
    with tempfile.TemporaryDirectory() as place:
        verdict = check(scenario, text.replace(mutant.text, mutant.replacement), Path(place), "-O0")
    good = verdict.wrong in mutant.wrong.split("|")
    found = f"{line}: {verdict.wrong or 'nothing is wrong'} [{verdict.states} states]"
    return good, f"{found}\n{verdict.trail}" if tell or not good else found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="scenarios whose name contains this; no mutants")
    parser.add_argument(
        "--mutant",
        help="only mutants whose name contains this, each with the steps that lead to the error",
    )
    arguments = parser.parse_args()
    scenarios = [name for name in SCENARIOS if arguments.only in name and arguments.mutant is None]
    mutants = [m for m in MUTANTS if not arguments.only and (arguments.mutant or "") in m.name]
    passed = failed = 0
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        futures = [pool.submit(check_scenario, name) for name in scenarios]
        futures += [
            pool.submit(check_mutant, mutant, arguments.mutant is not None) for mutant in mutants
        ]
        for future in futures:
            try:
                good, line = future.result()
            except (RuntimeError, subprocess.TimeoutExpired) as why:
                good, line = False, str(why)
            print(f"{'ok' if good else 'FAILED'} {line}", flush=True)
            passed, failed = passed + good, failed + (not good)
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 0 if failed == 0 and passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
