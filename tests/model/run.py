#!/usr/bin/env python3
"""Builds and runs the model checks: the shipped sources, and mutants of them that must be caught.

Called by run.sh. Two checkers:
  relacy/    C++'s memory model on the small algorithms. The headers are used as they are where they take the Atomics
             policy; of the others a copy is made in which std::atomic is model::atomic.
  explorer/  all schedules, with at most so many preemptions, of the real lanes on x86's store buffers.
A mutant is a copy of src/ in which one text is replaced by another; the text must occur exactly once.
"""

import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent.parent / "src"
CXX = os.environ.get("CXX", "g++")
COMPILE = [CXX, "-std=c++20", "-O0", "-w"]  # compiling takes longer than running
WATCHDOG = 600  # seconds; no bound on speed


@dataclass(frozen=True)
class Mutant:
    name: str
    program: str  # which program, see PROGRAMS
    tests: str  # the tests that must catch it: any of these
    edits: tuple[tuple[str, str, str], ...]  # file, text, replacement
    caught: bool = True  # False: an order that the algorithm does not need; must pass


def change(program: str, name: str, tests: str, file: str, *texts: str, caught: bool = True) -> Mutant:
    pairs = tuple((file, texts[i], texts[i + 1]) for i in range(0, len(texts), 2))
    return Mutant(name, program, tests, pairs, caught)


@dataclass(frozen=True)
class Program:
    sources: tuple[str, ...]
    tests: dict[str, str]  # name: what it shows
    prepare: tuple[str, ...] = field(default=())  # headers in which std::atomic becomes model::atomic
    includes: tuple[str, ...] = field(default=())
    substitutes: tuple[tuple[str, str, str], ...] = field(default=())  # file, text, what stands for it in the model


RELAXED, RELEASE, ACQUIRE = (f"std::memory_order_{order}" for order in ("relaxed", "release", "acquire"))

INBOX, STACK, OWNED, LOCK = "lane/inbox.h", "lane/id_stack.h", "lane/entry/owned.h", "base/lock.h"
RUNS, SCAVENGER = "memory/runs.h", "memory/scavenger.h"

PROGRAMS = {
    "lists": Program(
        ("relacy/lists.cpp",),
        {
            "inbox": "Inbox: two givers and the owner lose no batch, take none twice, see its links",
            "idle-stack": "IdStack: an interrupted pop against pop, pop, push, push (ABA)",
        },
    ),
    "protocols": Program(
        ("relacy/protocols.cpp",),
        {
            "lock": "Lock: two holders never meet, and see what the other did",
            "scavenger": "Scavenger: no wake-up is lost",
            "deferred": "Runs: a deferred free is put back exactly once, whole",
        },
        prepare=("base/lock.h", "memory/scavenger.h", "memory/runs.h", "platform/platform.h"),
        substitutes=((LOCK, "kSpins = 64", "kSpins = 1"),),  # so that a waiter comes to sleep
    ),
    "entry": Program(
        ("relacy/entry.cpp",),
        {
            "entry-allocate": "Owned: owner (malloc's look) and revoker never meet, and see what the other did",
            "entry-free": "Owned: the same with free's look",
            "entry-miss": "Owned: the same with a miss's look",
            "disown": "Owned: nobody looks at the slot of a thread that has ended",
        },
        prepare=("base/lock.h", "lane/entry/owned.h", "lane/gate.h"),
        includes=("relacy/stub",),
        substitutes=(
            (OWNED, "compiler_fence();", "model::full_fence();"),
            # One byte of a pointer: Relacy's variables have no bytes.
            (OWNED, "__atomic_store_n(reinterpret_cast<unsigned char*>(&slot), kBusyByte, __ATOMIC_RELAXED);",
             "slot.store(model::busy(gate, kBusyByte), std::memory_order_relaxed);"),
        ),
    ),
}

MUTANTS = [
    change("lists", "give publishes relaxed", "inbox", INBOX, f"exchange(batch, {RELEASE})", f"exchange(batch, {RELAXED})"),
    change("lists", "take relaxed", "inbox", INBOX, f"exchange(nullptr, {ACQUIRE})", f"exchange(nullptr, {RELAXED})"),
    change("lists", "give links before it swaps", "inbox", INBOX,
           "batch->earlier.store(unlinked(), ", "batch->earlier.store(nullptr, "),
    change("lists", "take does not wait for a half-given batch", "inbox", INBOX,
           "if (earlier == unlinked()) break;", "if (earlier == unlinked()) earlier = nullptr;"),
    change("lists", "take forgets the rest", "inbox", INBOX, "rest_ = batch;", "rest_ = nullptr;"),
    # The swap's release already covers it: swaps are read-modify-writes, so they are all in one release sequence.
    change("lists", "give's second store and take's look at it relaxed", "inbox", INBOX,
           f"batch->earlier.store(earlier, {RELEASE})", f"batch->earlier.store(earlier, {RELAXED})",
           f"batch->earlier.load({ACQUIRE})", f"batch->earlier.load({RELAXED})", caught=False),
    change("lists", "no tag", "idle-stack", STACK, "((head >> 32) + 1) << 32", "(head >> 32) << 32"),
    change("lists", "push relaxed", "idle-stack", STACK,
           f"next_tag(head) | id, {RELEASE}", f"next_tag(head) | id, {RELAXED}"),
    change("lists", "pop relaxed", "idle-stack", STACK, f"head_.load({ACQUIRE})", f"head_.load({RELAXED})",
           f"below, {ACQUIRE},\n                                      {ACQUIRE})",
           f"below, {RELAXED},\n                                      {RELAXED})"),
    change("protocols", "release relaxed", "lock", LOCK, f"exchange(kFree, {RELEASE})", f"exchange(kFree, {RELAXED})"),
    change("protocols", "try_acquire relaxed", "lock", LOCK, f"kHeld, {ACQUIRE}, {RELAXED}", f"kHeld, {RELAXED}, {RELAXED}"),
    change("protocols", "a waiter's acquire relaxed", "lock", LOCK,
           f"exchange(kHeldAndAwaited, {ACQUIRE})", f"exchange(kHeldAndAwaited, {RELAXED})"),
    change("protocols", "wanted_ cleared after the pass", "scavenger", SCAVENGER,
           "      wanted_.store(false, std::memory_order_seq_cst);\n      if (pass_(context_)) wanted_.store(true, ",
           "      const bool more = pass_(context_);\n      wanted_.store(false, std::memory_order_seq_cst);\n"
           "      if (more) wanted_.store(true, "),
    change("protocols", "no last look at wanted_", "scavenger", SCAVENGER,
           "if (!wanted_.load(std::memory_order_seq_cst)) return;", "return;"),
    change("protocols", "the state and wanted_ only released and acquired", "scavenger", SCAVENGER,
           "state_.store(State::kIdle, std::memory_order_seq_cst)", f"state_.store(State::kIdle, {RELEASE})",
           "wanted_.load(std::memory_order_seq_cst)", f"wanted_.load({ACQUIRE})"),
    change("protocols", "defer relaxed", "deferred", RUNS, f"at + 1, {RELEASE}, {RELAXED}", f"at + 1, {RELAXED}, {RELAXED}"),
    change("protocols", "taken relaxed", "deferred", RUNS,
           f"deferred_.exchange(0, {ACQUIRE})", f"deferred_.exchange(0, {RELAXED})"),
    change("protocols", "taken by a load and a store", "deferred", RUNS,
           f"BlockIndex head = deferred_.exchange(0, {ACQUIRE});",
           f"BlockIndex head = deferred_.load({ACQUIRE}); deferred_.store(0, {RELAXED});"),
    change("entry", "no membarrier", "entry-allocate entry-free entry-miss", OWNED, "if (P::barrier()) {", "if (true) {"),
    change("entry", "the gate is looked at before the busy store", "entry-allocate", OWNED, "compiler_fence();",
           "__atomic_signal_fence(0); if (false) compiler_fence();"),
    change("entry", "leave relaxed", "entry-allocate", OWNED, f"slot.store(gate, {RELEASE})", f"slot.store(gate, {RELAXED})"),
    change("entry", "the look at the slot relaxed", "entry-allocate", OWNED,
           f"slot->load({ACQUIRE}) == this", f"slot->load({RELAXED}) == this"),
    change("entry", "the revocation ended relaxed", "entry-miss", OWNED,
           f"revoking_.store(false, {RELEASE})", f"revoking_.store(false, {RELAXED})"),
    change("entry", "the bins stay open", "entry-allocate", OWNED, f"open_bins.store(0, {RELAXED});", ""),
    change("entry", "let_go opens the gate itself", "entry-allocate", OWNED, f"  revoking_.store(false, {RELEASE});",
           f"  open_gate();\n  revoking_.store(false, {RELEASE});"),
    change("entry", "disown does not wait", "disown", OWNED,
           "  lock_.acquire(visit);  // waits for a revoker: afterwards nobody looks at the slot, which may go away\n"
           "  owner_slot_.store(nullptr, std::memory_order_relaxed);\n  close_gate();\n  lock_.release(visit);",
           "  owner_slot_.store(nullptr, std::memory_order_relaxed);\n  close_gate();"),
]


class Broken(Exception):
    """A test that could not be made."""


def replace_once(path: Path, text: str, replacement: str) -> None:
    old = path.read_text()
    if old.count(text) != 1:
        raise Broken(f"{path.name} has this text {old.count(text)} times, not once: {text}")
    path.write_text(old.replace(text, replacement))


def cut_deferred(runs: Path, out: Path) -> None:
    """Writes two functions of Runs to a file of their own."""
    text = runs.read_text()
    functions = [re.search(rf"^  void {name}\(.*?^  }}$", text, re.M | re.S) for name in ("defer", "take_back_deferred")]
    if None in functions:
        raise Broken("runs.h has no defer() or take_back_deferred()")
    out.write_text("\n".join(f.group(0) for f in functions if f))


def prepare(tree: Path, program: Program) -> None:
    for name in program.prepare:
        path = tree / name
        text = path.read_text().replace("std::atomic<", "model::atomic<")
        # Relacy's variables live only while a test runs. Nobody reads the three gates that are not a lane's.
        text = re.sub(r"inline constinit Gate (\w+);", r"inline Gate& \1 = *reinterpret_cast<Gate*>(0x1000);", text)
        text = re.sub(r"static_assert\(offsetof.*\n", "", text)  # Relacy's atomics are larger
        path.write_text(text)
    for name, old, new in program.substitutes:
        replace_once(tree / name, old, new)
    if "memory/runs.h" in program.prepare:
        cut_deferred(tree / "memory/runs.h", tree / "deferred.inc")


def build(program: Program, edits: tuple[tuple[str, str, str], ...], sources: Path, place: Path) -> Path:
    """Compiles a program over a copy of src/ with the edits. Returns the executable."""
    tree = place / "src"
    shutil.copytree(SOURCE, tree)
    for file, text, replacement in edits:
        replace_once(tree / file, text, replacement)
    prepare(tree, program)
    executable = place / "test"
    command = [*COMPILE, *(f"-I{sources / i}" for i in program.includes), f"-I{tree}"]
    if program.includes:  # a stub hides the header of the same name only if the includer does not lie beside it
        for name in ("world.h",):
            (tree / "lane" / name).unlink()
    command += [str(sources / source) for source in program.sources] + ["-o", str(executable)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        raise Broken("does not compile:\n" + "\n".join(errors[:5]))
    return executable


def precompile(place: Path) -> Path:
    """Copies the tests' sources and compiles the header that takes long. Returns where they lie."""
    sources = place / "model"
    shutil.copytree(HERE, sources)
    header = sources / "relacy/checked_atomic.h"
    subprocess.run([*COMPILE, "-x", "c++-header", str(header), "-o", f"{header}.gch"], check=True, timeout=WATCHDOG)
    return sources


def run_test(executable: Path, test: str) -> tuple[int, str]:
    done = subprocess.run([executable, test], capture_output=True, text=True, timeout=WATCHDOG)
    return done.returncode, done.stdout + done.stderr


@dataclass
class Outcome:
    good: bool
    title: str
    detail: str = ""


def schedules(output: str) -> str:
    found = re.search(r"^schedules: (\d+)$", output, re.M)
    return found.group(1) if found else "?"


def indented(text: str, most: int) -> str:
    return "\n".join("    " + line for line in text.splitlines()[:most])


def check_program(name: str, sources: Path) -> list[Outcome]:
    program = PROGRAMS[name]
    outcomes = []
    with tempfile.TemporaryDirectory() as place:
        try:
            executable = build(program, (), sources, Path(place))
        except Broken as why:
            return [Outcome(False, f"{name}: {why}")]
        for test, what in program.tests.items():
            status, output = run_test(executable, test)
            outcomes.append(Outcome(status == 0, f"{what} [{schedules(output)} schedules]", "" if status == 0 else indented(output, 80)))
    return outcomes


def check_mutant(mutant: Mutant, sources: Path) -> list[Outcome]:
    verb = "is caught" if mutant.caught else "is as good as the original"
    with tempfile.TemporaryDirectory() as place:
        try:
            executable = build(PROGRAMS[mutant.program], mutant.edits, sources, Path(place))
        except Broken as why:
            return [Outcome(False, f"mutant '{mutant.name}': {why}")]
        title = f"mutant '{mutant.name}' {verb}"
        for test in mutant.tests.split():
            status, output = run_test(executable, test)
            # 1 is the checker's own verdict; anything else is a crash.
            if (status == 1) != mutant.caught or status not in (0, 1):
                return [Outcome(False, f"{title}: {test} ended with {status}", indented(output, 40))]
            if mutant.caught:
                verdict = next((line for line in output.splitlines() if line.isupper()), "")
                title += f" by {test} [{schedules(output)} schedules: {verdict.lower()}]"
    return [Outcome(True, title)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="programs, and mutants of programs, whose name contains this")
    parser.add_argument("--mutant", default=None, help="only mutants whose name contains this")
    arguments = parser.parse_args()
    passed = failed = 0
    jobs = [(check_program, name) for name in PROGRAMS if arguments.only in name and arguments.mutant is None]
    mutants = [m for m in MUTANTS if arguments.only in m.program and (arguments.mutant or "") in m.name]
    with tempfile.TemporaryDirectory() as place, concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        sources = precompile(Path(place))
        futures = [pool.submit(check, job, sources) for check, job in jobs]
        futures += [pool.submit(check_mutant, m, sources) for m in mutants]
        for future in futures:
            for outcome in future.result():
                print(f"{'ok' if outcome.good else 'FAILED'} {outcome.title}", flush=True)
                if outcome.detail:
                    print(outcome.detail)
                passed, failed = passed + outcome.good, failed + (not outcome.good)
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 0 if failed == 0 and passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
