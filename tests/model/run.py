#!/usr/bin/env python3
"""Builds and runs the model checks: the shipped sources, and mutants of them that must be caught.

Called by run.sh. Two checkers:
  relacy/    C++'s memory model on the small algorithms. The headers are used as they are where they
             take the Atomics policy; of the others a copy is made in which std::atomic is
             model::atomic.
  explorer/  all schedules, with at most so many preemptions, of the real lanes on x86's store
             buffers. The sources are compiled as they are, with -fsanitize=thread; the explorer
             stands in for ThreadSanitizer's runtime.
A mutant is a copy of src/ that is changed at one place or two: see anchors.py. A place is named by
a label in the sources' comments where the change is one that the label speaks of (an order, a step
of a proof), otherwise by its function.
schedules/ holds schedules of the explorer that once showed an error: each must still show it in its
mutant, or no longer in the sources (`mutant: none`). A change of src/ may shift the choices; then
the mutant's output holds the new ones.
LANEMALLOC_TEST_SCALE above 1 allows the explorer one preemption more. LANEMALLOC_TEST_DEPTH
(tests/part.sh): the least is Relacy's tests, the explorer's with one preemption fewer, and some of
the mutants.
"""

import argparse
import concurrent.futures
import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from anchors import Broken, Edit, change, gone, relaxed, swap

HERE = Path(__file__).resolve().parent
SOURCE = Path(os.environ.get("LANEMALLOC_MODEL_SOURCE", HERE.parent.parent / "src"))
CXX = os.environ.get("CXX", "g++")
RELACY = [CXX, "-std=c++20", "-O0", "-w"]  # compiling takes longer than running
EXPLORER = [CXX, "-std=c++20", "-O1", "-g1", "-w"]
SCALE = int(os.environ.get("LANEMALLOC_TEST_SCALE", "1"))
DEPTH = os.environ.get("LANEMALLOC_TEST_DEPTH", "all")
DEEPER = -1 if DEPTH == "least" else 1 if SCALE > 1 else 0
LEAST_EVERY = 60  # of the mutants, the first and then each after so many belong to the least
WATCHDOG = 900 * SCALE  # seconds; no bound on speed


@dataclass(frozen=True)
class Mutant:
    name: str
    program: str  # which program, see PROGRAMS
    tests: str  # the tests that must catch it: any of these
    edits: tuple[Edit, ...]
    caught: bool = True  # False: an order that the algorithm does not need; must pass


def mutant(program: str, name: str, tests: str, *edits: Edit, caught: bool = True) -> Mutant:
    return Mutant(name, program, tests, edits, caught)


@dataclass(frozen=True)
class Program:
    source: str
    tests: dict[str, str]  # name: what it shows; empty: the program tells
    prepare: tuple[str, ...] = ()  # headers in which std::atomic becomes model::atomic
    includes: tuple[str, ...] = ()
    substitutes: tuple[Edit, ...] = ()  # what stands for the sources' text in the model


RELAXED, RELEASE, ACQUIRE = (
    f"std::memory_order_{order}" for order in ("relaxed", "release", "acquire")
)

PUBLIC = "include/lanemalloc/safepoint.h"
# Relacy's variables have no halves: who sleeps looks at the whole word.
WHOLE_WORD = swap(
    "",
    "inline model::atomic<uint32_t>& lower_half_of(..) {..;..;}",
    "inline model::atomic<uint64_t>& lower_half_of(model::atomic<uint64_t>& word) { return word; }",
)

PROGRAMS = {
    "lists": Program(
        "relacy/lists.cpp",
        {
            "inbox": (
                "Inbox: two givers and the owner lose no batch, take none twice, see its links"
            ),
            "idle-stack": "IdStack: an interrupted pop against pop, pop, push, push (ABA)",
            "aba": (
                "IdStack: an interrupted pop against pop, pop, push of the first: "
                "the schedule that fools a naive list"
            ),
            "aba-naive": "a list without tags is fooled by it",
        },
    ),
    "protocols": Program(
        "relacy/protocols.cpp",
        {
            "lock": "Lock: two holders never meet, and see what the other did",
            "lane-lock": (
                "Lock of a lane: the same, given back by a plain store; no sleeper is forgotten"
            ),
            "scavenger": "Scavenger: no wake-up is lost",
            "deferred": "Runs: a deferred free is put back exactly once, whole",
        },
        prepare=(
            "src/core/base/lock.h",
            "src/core/memory/scavenger.h",
            "src/core/memory/runs.h",
            "src/core/platform/platform.h",
        ),
        substitutes=(
            swap("Lock", "kSpins = 64", "kSpins = 1"),  # so that a waiter comes to sleep
            WHOLE_WORD,
            swap("Lock::release", "compiler_fence();", "model::full_fence();"),
        ),
    ),
    "entry": Program(
        "relacy/entry.cpp",
        {
            "entry-allocate": (
                "Owned: owner (malloc's look) and revoker never meet, and see what the other did"
            ),
            "entry-free": "Owned: the same with free's look",
            "entry-defer": "Owned: the same with a deferred free's look",
            "entry-kind": "Owned: the same with the look of a pool's or a heap's hit",
            "entry-miss": "Owned: the same with a miss's look",
            "disown": "Owned: who has a lane and finds an owner there finds its thread too",
        },
        prepare=("src/core/base/lock.h", "src/core/lane/entry/owned.h", "src/core/lane/gate.h"),
        includes=("relacy/stub",),
        substitutes=(
            swap("Owned::enter", "compiler_fence();", "model::full_fence();"),
            swap("Lock::release", "compiler_fence();", "model::full_fence();"),
            WHOLE_WORD,
            # One byte of a pointer: Relacy's variables have no bytes.
            swap(
                "Owned::enter",
                "__atomic_store_n(..);",
                "slot.store(model::busy(gate, kBusyByte), std::memory_order_relaxed);",
            ),
        ),
    ),
    "epochs": Program(
        "relacy/epochs.cpp",
        {
            "epochs": "Epochs: a section and who frees: nobody reads what is freed",
            "epochs-online": "Epochs: the same with quiescent states",
            "epochs-quiescent": "Epochs: from one quiescent state to the next no fence is needed",
            "epochs-fences": "Epochs: the same without a barrier",
            "epochs-found": "Epochs: what one has found safe another may free",
        },
        prepare=("src/core/base/lock.h", "src/core/reclaim/epochs.h", PUBLIC),
        substitutes=(
            swap("Lock::release", "compiler_fence();", "model::full_fence();"),
            WHOLE_WORD,
            swap(
                "",
                "static model::atomic<T>& word(T& field) {..;}",
                "static T& word(T& field) { return field; }",
            ),
            swap(
                "",
                "static const model::atomic<T>& word(const T& field) {..;}",
                "static const T& word(const T& field) { return field; }",
            ),
            swap(
                "oldest_epoch",
                "std::atomic_thread_fence(std::memory_order_seq_cst);",
                "model::full_fence();",
            ),
            swap(
                "Epochs::add",
                "reader = lane_reader{};",
                f"reader.depth = reader.online = 0; reader.epoch.store(0, {RELAXED});",
            ),
            swap("lane_epoch", "uint64_t now;", "model::atomic<uint64_t> now;"),
            swap("lane_epoch", "int fences;", "model::atomic<int> fences;"),
            swap("lane_reader", "uint64_t epoch;", "model::atomic<uint64_t> epoch;"),
            swap("lane_reader", "const void* thread;", "model::atomic<const void*> thread;"),
        ),
    ),
    "stacks": Program(
        "relacy/stacks.cpp",
        {"stacks": "Stacks: two makers and a reader: each stack is whole, and is there once"},
        substitutes=(
            swap("Stacks", "kMostBytes = Bytes{64} << 20", "kMostBytes = 64 * sizeof(Word)"),
            swap("Stacks", "kLeastBytes = kHugePage", "kLeastBytes = kMostBytes"),
            swap("Stacks", "kBytesPerSlot = 512", "kBytesPerSlot = 16 * sizeof(Word)"),
            swap("Stacks", "kPiece = Bytes{256} << 10", "kPiece = 16 * sizeof(Word)"),
            swap("Stacks", "kMostProbes = 64", "kMostProbes = 4"),
        ),
    ),
    "explorer": Program(
        "explorer/scenarios.cpp",
        {},
        substitutes=(
            # What a child goes through entry by entry, and what a waiter does before it sleeps.
            swap("", "kMostNumbers = 8192", "kMostNumbers = 8"),
            swap("", "kMostLanes = 4096", "kMostLanes = 8"),
            swap("", "kLanesHere = 8", "kLanesHere = 2"),
            swap("Lock", "kSpins = 64", "kSpins = 2"),
            # No time passes while somebody sleeps: who is not woken sleeps for good, and that is
            # found.
            swap("", "kLateMs = 1000", "kLateMs = ~uint64_t{0}"),
            swap("", "kSpins = 256", "kSpins = 2"),
            swap("", "kBlocks = 18", "kBlocks = 3"),
            # What comes of a lane that somebody was inside does not rely on what that thread has
            # released.
            swap(
                "sort_out_lane",
                "lane.hold_in_child().salvage(",
                "P::take_memory_as_it_is(); lane.hold_in_child().salvage(",
            ),
        ),
    ),
}

# What more than one mutant changes.
UNLINKED_IS_LAST = swap(
    "Inbox::take",
    "if (link == kUnlinked) break;\nauto* earlier = ..;",
    "auto* earlier = link == kUnlinked ? nullptr : ..;",
)
NO_TAG = swap("next_tag", "((..) + 1)", "(..)")
IDLE_AFTER_THE_PASS = (
    swap(
        "Scavenger::work", "uint32_t wanted", "const bool more = pass_(context_);\nuint32_t wanted"
    ),
    swap("Scavenger::work", "!pass_(context_)", "!more"),
)
POKE_WAKES_NOBODY = swap("poke", "P::wake(..);", ";")
TAKEN_IN_TWO = swap(
    "[deferred.take]", f"exchange(0, {ACQUIRE})", f"load({ACQUIRE}); deferred_.store(0, {RELAXED})"
)
OWNED_NO_BARRIER = swap("take_from_owner", "!P::barrier()", "false")
NO_SECOND_LOOK_AT_DEFERRED = swap("is_closed", "deferred_end.load(..) == 0", "true")
AREA_STAYS_OPEN = (
    gone("close_gate", "area.store(..);"),
    gone("is_closed", "area.load(..) == 0 &&"),
)

explored = functools.partial(mutant, "explorer")
in_lists, in_stacks, in_protocols, in_entry, in_epochs = (
    functools.partial(mutant, program)
    for program in ("lists", "stacks", "protocols", "entry", "epochs")
)

MUTANTS = [
    in_lists("give publishes relaxed", "inbox", relaxed("[inbox.take]", "release")),
    in_lists("take relaxed", "inbox", relaxed("[inbox.take]", "acquire")),
    in_lists(
        "give links before it swaps",
        "inbox",
        swap("Inbox::give", f"store(.., {RELAXED})", f"store(Link::none().bits, {RELAXED})"),
    ),
    in_lists("take does not wait for a half-given batch", "inbox", UNLINKED_IS_LAST),
    in_lists("take forgets the rest", "inbox", swap("Inbox::take", "keep(batch)", "keep(nullptr)")),
    # The swap's release already covers it: swaps are read-modify-writes, so they are all in one
    # release sequence.
    in_lists(
        "give's second store and take's look at it relaxed",
        "inbox",
        relaxed("[inbox.follow]", "release"),
        relaxed("[inbox.follow]", "acquire"),
        caught=False,
    ),
    in_lists("no tag", "idle-stack", NO_TAG),
    in_lists("push relaxed", "idle-stack", relaxed("[idle.pop]", "release")),
    in_lists("pop relaxed", "idle-stack", relaxed("IdStack::pop", "acquire")),
    in_stacks("the depth published relaxed", "stacks", relaxed("[publish.release]", "release")),
    in_stacks(
        "the depth written before the frames",
        "stacks",
        swap("Stacks::make", "for (", f"stack->depth_and_hash.store(depth, {RELEASE});\nfor ("),
    ),
    in_stacks(
        "who comes second to a slot does not acquire it",
        "stacks",
        swap("[insert.release]", f"std::memory_order_acq_rel, {ACQUIRE}", f"{RELEASE}, {RELAXED}"),
    ),
    in_stacks("the end moved on relaxed", "stacks", relaxed("[claim.release]", "release")),
    in_stacks(
        "a place claimed by whoever moves the end",
        "stacks",
        swap("Stacks::claim", "if (is_mine)", "if (is_mine || at == next)"),
    ),
    in_stacks(
        "who comes second to a slot does not look at it",
        "stacks",
        swap("find_or_make", "if (value >> 32", "if (made == nullptr && value >> 32"),
    ),
    in_protocols(
        "release relaxed",
        "lock",
        swap(
            "Lock::release",
            f"compare_exchange_strong(..{RELEASE}",
            f"compare_exchange_strong(..{RELAXED}",
        ),
        relaxed("release_awaited", "release"),
    ),
    in_protocols("try_acquire relaxed", "lock", relaxed("try_acquire", "acquire")),
    in_protocols("a waiter's acquire relaxed", "lock", relaxed("spin_or_sleep", "acquire")),
    in_protocols("idle after the pass", "scavenger", *IDLE_AFTER_THE_PASS),
    in_protocols("a poke wakes nobody", "scavenger", POKE_WAKES_NOBODY),
    in_protocols("defer relaxed", "deferred", relaxed("[deferred.take]", "release")),
    in_protocols("taken relaxed", "deferred", relaxed("[deferred.take]", "acquire")),
    in_protocols("taken by a load and a store", "deferred", TAKEN_IN_TWO),
    in_entry("no membarrier", "entry-allocate entry-free entry-defer entry-miss", OWNED_NO_BARRIER),
    in_entry(
        "the gate is looked at before the busy store",
        "entry-allocate",
        swap(
            "Owned::enter",
            "compiler_fence();",
            "__atomic_signal_fence(0); if (false) compiler_fence();",
        ),
    ),
    in_entry("leave relaxed", "entry-allocate", relaxed("[peek]", "release")),
    in_entry("no look at the slot", "entry-allocate", gone("[peek]", "if (..) break;")),
    in_entry(
        "the revocation ended relaxed", "entry-miss", relaxed("[revoking.release]", "release")
    ),
    in_entry(
        "the revoker does not look at the owner again",
        "entry-free",
        swap("is_closed", "open_owner.load(..) == static_cast<..>(..)", "true"),
    ),
    in_entry(
        "the revoker does not look at the bins again",
        "entry-allocate",
        swap("is_closed", "open_bins.load(..) == 0", "true"),
    ),
    in_entry(
        "the revoker does not look at the gate of deferred frees again",
        "entry-defer",
        NO_SECOND_LOOK_AT_DEFERRED,
    ),
    in_entry(
        "the revoker does not close the gate of deferred frees",
        "entry-defer",
        gone("close_gate", "deferred_end.store(..);"),
        NO_SECOND_LOOK_AT_DEFERRED,
    ),
    in_entry("the revoker does not close the gate of kinds", "entry-kind", *AREA_STAYS_OPEN),
    in_entry(
        "let_go opens the gate itself",
        "entry-allocate",
        swap(
            "[revoking.release]",
            f"revoking_.store(..{RELEASE}",
            f"entered().open_gate();\nrevoking_.store(..{RELEASE}",
        ),
    ),
    in_entry(
        "disown does not wait",
        "disown",
        gone("disown", "if (..) return;"),
        gone("disown", "unlock(..);"),
    ),
]

# The explorer's copies of some, on the real lanes, and its own.
MUTANTS += [
    explored("no tag", "stack stack-3", NO_TAG),
    explored("take does not wait for a half-given batch", "inbox inbox-3", UNLINKED_IS_LAST),
    explored(
        "a batch is given before the last holder's count is written",
        "batch batch-3 remote-batch",
        gone("Batch::take", "close();"),
    ),
    explored(
        "a holder's count is not written when the next one comes",
        "batch batch-3 remote-batch",
        gone("Batch::add", "close();"),
    ),
    explored(
        "a chain is followed from an object that it has freed",
        "chain",
        swap(
            "free_chain",
            "first = next) { next = first->next; const MapWord",
            "first = first->next) { next = nullptr; const MapWord",
        ),
    ),
    explored(
        "a chain's batch is sent whenever it is full",
        "chain",
        swap(
            "free_chain",
            "if (remote.owner != word.owner())",
            "if (remote.owner != word.owner() || remote.room <= 0)",
        ),
        swap("free_chain", "if ((turns & turn) != 0)", "if (false)"),
    ),
    explored(
        "a holder is visited before those that it names",
        "batch batch-3",
        gone("for_each_row", "visit(Link::to(holder), ..);"),
        swap(
            "for_each_row",
            "for (uintptr_t* place",
            "visit(Link::to(holder), holder, uint32_t{1});\nfor (uintptr_t* place",
        ),
    ),
    explored(
        "an object that joins a row links to the last one",
        "batch batch-3",
        swap("lengthen", "before == 0 ? Link::to(last) : last->next", "Link::to(last)"),
    ),
    explored(
        "a row does not count who joins it",
        "batch batch-3 remote-row",
        swap("lengthen", "before + 1U", "before"),
    ),
    explored("a row goes on in a fresh batch", "batch batch-3", gone("Batch::take", "slab_ = ..;")),
    explored(
        "a row is taken in as one object",
        "remote-row",
        swap("receive", "push(.., n)", "push(.., 1)"),
    ),
    explored(
        "the batches behind a taken one are read after its visit",
        "batch batch-3",
        gone("Inbox::take", "keep(earlier);"),
        swap(
            "Inbox::take",
            "batch = earlier",
            "batch = reinterpret_cast<Batch*>(batch->next.address())",
        ),
    ),
    explored("release wakes nobody", "lock", gone("release_awaited", "P::wake(..);")),
    explored(
        "who has slept takes the lock as if nobody else slept",
        "lock-3",
        swap("spin_or_sleep", f"| kAwaited, {ACQUIRE}", f", {ACQUIRE}"),
    ),
    explored(
        "who finds a lock closed waits for the fork",
        "fork-lock",
        swap(
            "acquire_contended",
            "if (visit.insists == 0) return false;",
            f"for (uint64_t s; visit.insists == 0 && is_closed(s = state_.load({RELAXED}));) "
            "P::wait(lower_half(), static_cast<uint32_t>(s));",
        ),
        swap("Lock::open", "{ }", "{ } P::wake(lower_half(), kEverybody);"),
    ),
    explored(
        "a fork wakes nobody when it closes the lock",
        "fork-lock-sleep-4",
        gone("Lock::close", "P::wake(..);"),
    ),
    explored(
        "a fork does not wait for the holder",
        "fork-runs",
        swap("Lock::close", "if (!..) return;", "return;"),
    ),
    explored(
        "a fork closes nothing",
        "fork-runs",
        swap("Lock::close", f"fetch_add(.., {ACQUIRE}) + ..;", f"load({ACQUIRE});"),
    ),
    explored(
        "a child trusts what a holder who is gone had in hand",
        "fork-insists",
        swap("open_in_child", "return !..;", "return true;"),
    ),
    explored(
        "a child finds what waits, and takes it in once more",
        "fork-runs",
        gone("Runs::salvage", "deferred_.store(..);"),
    ),
    explored(
        "who is torn off drops what another takes",
        "torn-runs",
        gone("Runs::salvage", "if (!some_go_on)"),
    ),
    explored(
        "who is torn off takes in what waits, too", "torn-runs", gone("salvaged", "&& !some_go_on")
    ),
    explored(
        "a run is cut before its rest is marked",
        "torn-runs",
        gone("Runs::take", "mark_used(begin, n);"),
        swap("Runs::take", "return_rest(begin + n", "mark_used(begin, n);\nreturn_rest(begin + n"),
    ),
    explored(
        "a run's last block is marked before its first",
        "torn-runs",
        gone("set_ends", "region_.state(at).set_end({kind, true, n});"),
        swap(
            "set_ends",
            "{kind, false, n});",
            "{kind, false, n}); region_.state(at).set_end({kind, true, n});",
        ),
    ),
    explored("idle after the pass", "scavenger", *IDLE_AFTER_THE_PASS),
    explored("a poke wakes nobody", "scavenger", POKE_WAKES_NOBODY),
    explored(
        "a poke comes after the end",
        "scavenger",
        swap(
            "[poke.release]", f"if (..{RELEASE}, {RELAXED}))", f"word_.store(kWanted, {RELEASE});\n"
        ),
    ),
    explored("who stops wakes nobody", "scavenger", gone("Scavenger::stop", "P::wake(..);")),
    explored(
        "two grow at once",
        "growth",
        swap("grow_uninterrupted", "!..try_acquire(..)", "false"),
        gone("grow_uninterrupted", "growth_.release(visit);"),
    ),
    explored(
        "who meets one that grows does not wait for it",
        "growth",
        swap("grow_uninterrupted", "if (.. || ..) return", "return"),
    ),
    explored(
        "who may grow does not look again",
        "growth-once",
        gone("grow_uninterrupted", "run = take(..);"),
    ),
    explored(
        "who cannot give untouched memory loses it",
        "growth-handler",
        swap(
            "Runs::give",
            "return defer(..);",
            "return kind == BlockKind::kDirty ? defer(..) : void();",
        ),
    ),
    explored(
        "what others have deferred is not looked for",
        "growth-handler",
        gone("Runs::take", "take_back_deferred();"),
    ),
    explored(
        "who oversteps the end of the addresses steps back",
        "growth-handler",
        gone("take_fresh", "if (n > ..) return ..;"),
        swap(
            "take_fresh",
            "P::claim(address_of(at), ..)",
            "at + n > block_count_ ? Claim::kNoMemory : P::claim(address_of(at), ..)",
        ),
    ),
    explored("deferred runs taken by a load and a store", "runs-3", TAKEN_IN_TWO),
    explored("no membarrier", "entry miss", OWNED_NO_BARRIER),
    explored(
        "the gate is looked at before the busy store",
        "entry",
        swap(
            "Engine::allocate",
            "Gate* gate = Owned::enter(slot);",
            f"Gate* gate = slot.load({RELAXED});",
        ),
        swap(
            "Engine::allocate",
            "if (UNLIKELY(!Owned::may_allocate(gate, index)))",
            "const bool open = Owned::may_allocate(gate, index);\n"
            "Owned::enter(slot);\nif (UNLIKELY(!open))",
        ),
    ),
    explored("leave relaxed", "entry", relaxed("[peek]", "release")),
    explored(
        "a revocation ends without a release",
        "entry miss",
        relaxed("[revoking.release]", "release"),
        relaxed("[give]", "release"),
    ),
    explored("not marked busy", "handler", gone("Owned::enter", "__atomic_store_n(..);")),
    explored(
        "a handler waits for locks", "handler", gone("acquire_contended", "visit.may_block &&")
    ),
    explored(
        "a revoker reads the slot as memory",
        "exit-silent",
        swap("is_named_by", "P::reads_as(..);", f"slot->load({ACQUIRE}) == this;"),
    ),
    explored(
        "who goes over to another entry gives the lane to the idle ones",
        "switch-handler",
        swap("Threads::rest", "rest_closed()", "forget_owner()"),
        swap("Threads::rest", "fetch_sub(..);", "fetch_sub(..); world_.lanes.push_idle(lane);"),
    ),
    explored(
        "a thread that ends gives its lane up without the lock",
        "exit",
        gone("Threads::give_up", "if (!lane.lock_or_wait(..)) return;"),
        gone("Threads::give_up", "lane.unlock(..);"),
    ),
    explored(
        "who leaves forgets the lane that a handler has got",
        "first-lane",
        swap("Owned::current", "return ..;", "return (void)slot, const_cast<Gate*>(gate);"),
    ),
    explored(
        "who leaves with nothing done puts back the gate that it found",
        "first-lane",
        swap(
            "leave_as_found",
            f"slot.store(.., {RELEASE});",
            f"(void)byte; slot.store(const_cast<Gate*>(gate), {RELEASE});",
        ),
    ),
    explored(
        "the child takes over busy lanes as they are",
        "fork fork-3",
        swap("sort_out_lane", "} else if (..)", "} else if (false)"),
    ),
]


# A lane's lock.
for program, tests in (("protocols", "lane-lock"), ("explorer", "shared shared-3")):
    MUTANTS += [
        mutant(
            program,
            "a lane's lock: no barrier before sleeping",
            tests,
            swap("sleep_for_lane", "P::barrier()", "true"),
        ),
        mutant(
            program,
            "a lane's lock: look before give",
            tests,
            gone("[give]", "state_.store(..);"),
            gone("Lock::release", "compiler_fence();"),
            swap(
                "[look]",
                "const bool some = ..;",
                f"const bool some = ..; compiler_fence(); state_.store(kFree, {RELEASE});",
            ),
            swap("Lock::release", "UNLIKELY(some)", "some"),
        ),
        mutant(
            program,
            "a lane's lock: a waiter does not announce itself",
            tests,
            gone("[announce]", "sleepers_.fetch_add(..);"),
            gone("sleep_for_lane", "sleepers_.fetch_sub(..);"),
        ),
    ]
MUTANTS += [
    in_protocols("a lane's lock: give relaxed", "lane-lock", relaxed("[give]", "release")),
    explored(
        "a lane's lock: wakes nobody",
        "shared",
        gone("[look]", "const bool some = ..;"),
        gone("Lock::release", "if (UNLIKELY(some)) P::wake(..);"),
    ),
    explored(
        "Shared: a handler enters as its thread does",
        "shared-handler",
        swap(
            "Stay",
            "if (!is_busy(gate) ..) enter(gate_);",
            "if (is_busy(gate)) "
            "gate_ = reinterpret_cast<Gate*>(reinterpret_cast<uintptr_t>(gate) - kBusyByte);\n"
            "if (gate_ != &exited_gate) enter(gate_);",
        ),
    ),
]

# PerCpu.
MUTANTS += [
    explored(
        "PerCpu: revoked by a load and a store",
        "cpu-revoke-3 cpu-miss",
        swap(
            "[take.here]",
            "if (!..) return false;",
            f"if (here.load({ACQUIRE}) != free) return false;\n"
            f"here.store(kRevokedHere, {RELAXED});",
        ),
    ),
    explored(
        "PerCpu: no restart",
        "cpu-revoke cpu-free cpu-free-enter cpu-miss cpu-off",
        swap("take_from_cpu", "!P::restart_here()", "false"),
    ),
    explored(
        "PerCpu: only a barrier",
        "cpu-revoke cpu-free cpu-free-enter",
        swap("take_from_cpu", "P::restart_here()", "P::barrier()"),
    ),
    explored(
        "PerCpu: the revoker does not look again",
        "cpu-free-enter cpu-miss",
        swap("[look]", "return ..;", "return true;"),
    ),
    explored(
        "PerCpu: who has lost puts the word back",
        "cpu-miss",
        swap(
            "[look]",
            "return ..;",
            f"if (..) return true;\nhere.store(word_if_free(), {RELAXED});\nreturn false;",
        ),
    ),
    explored("PerCpu: a miss leaves relaxed", "cpu-move-miss", relaxed("[take.here]", "release")),
    explored(
        "PerCpu: a hit of free leaves relaxed", "cpu-move-enter", relaxed("[leave]", "release")
    ),
    explored(
        "PerCpu: a pop is no step",
        "cpu-hit",
        swap(
            "PerCpu::pop_bin",
            "if (P::hit_pop_here(..) return false;",
            f"if (here(gate).load({ACQUIRE}) >> 16 != P::lane_number()) return false;\n"
            "object = pop_hit(bin, BinHead::kReach);\nif (object == nullptr) return false;",
        ),
    ),
    explored(
        "PerCpu: a push is no step",
        "cpu-hit cpu-left",
        swap(
            "PerCpu::push",
            "return P::template hit_push_here<..;",
            f"const MapWord entry{{word.load({RELAXED})}};\n"
            f"if (here(gate).load({ACQUIRE}) != "
            "(P::lane_number() << 16 | static_cast<uint16_t>(entry.bits()))) return false;\n"
            "auto* slab = static_cast<Slab*>(entry.state());\n"
            "if (slab->countdown <= 1) return false;\n"
            "slab->push(static_cast<Object*>(object));\nreturn true;",
        ),
    ),
    explored(
        "PerCpu: a push reads the page map before its step",
        "cpu-left",
        swap(
            "PerCpu::push",
            "return P::template hit_push_here<..>(here(gate), word,",
            f"const std::atomic<uint64_t> early{{word.load({RELAXED})}};\n"
            "return P::template hit_push_here<..>(here(gate), early,",
        ),
    ),
    explored(
        "Lane: what looks free is told without a search",
        "cpu-hit",
        swap("Lane::is_listed", "if (slab->leads_to(..) return true;", "return true;"),
    ),
    explored(
        "PerCpu: a pop leaves the object's link",
        "cpu-hit",
        gone("PerCpu::pop_bin", "static_cast<Object*>(object)->out();"),
    ),
    explored(
        "links: a bin that leads out of its slab is followed",
        "links",
        swap(
            "pop_hit",
            "if (UNLIKELY(before_end < Bytes{0} - reach))",
            "if (bin.end + before_end == 0)",
        ),
    ),
    explored(
        "links: a hit of free does not look whether the object is free",
        "links",
        gone(
            "Engine::free",
            "if (UNLIKELY(static_cast<Object*>(p)->looks_free())) return miss(gate, word);",
        ),
    ),
    explored(
        "links: an object keeps its link when it is handed out",
        "links",
        swap("BasicObject", "next = {0};", ""),
    ),
    explored(
        "PerCpu: a free into another lane asks only whether that is of the CPU",
        "cpu-off",
        swap(
            "free_by_cpu",
            "PerCpu::push<P>(..)",
            "its.number() == P::lane_number() && "
            "static_cast<Slab*>(world.region.word_of(p).state())->countdown > 1 &&\n"
            "(static_cast<Slab*>(world.region.word_of(p).state())"
            "->push(static_cast<Object*>(p)), true)",
        ),
    ),
    explored(
        "PerCpu: a quick free does not enter",
        "cpu-send",
        swap("free_by_cpu", "PerCpu::enter<P>(&usual)", "&usual.entered()"),
    ),
    explored(
        "PerCpu: a lane that is taken is entered",
        "cpu-second",
        swap("Here", "if (UNLIKELY(!lane->is_free_here())) continue;", "lane->leave_here();"),
    ),
    explored(
        "PerCpu: the child works in a lane that is taken",
        "cpu-fork-enter",
        swap(
            "sort_out_lane",
            "const bool taken = ..;",
            "const bool taken = false; "
            "if (lane.how == Entry::kPerCpu && lane.is_taken_here()) lane.leave_here();",
        ),
    ),
    explored(
        "PerCpu: the child works in a lane that is held",
        "cpu-fork-3",
        swap(
            "sort_out_lane",
            "const bool held_by_other = ..;",
            "const bool held_by_other = false; "
            "if (lane.how == Entry::kPerCpu && !lane.is_taken_here()) lane.leave_here();",
        ),
    ),
]

# Safepoints.
EPOCHS_NO_BARRIER = swap("oldest_epoch", "UNLIKELY(!P::barrier())", "false")
BARRIER_AT_THE_END = swap("oldest_epoch", "return oldest;", "P::barrier();\nreturn oldest;")
TAG_THAT_ENDS = gone("[advance]", "+ 1")
NO_FENCE = gone("lane_reader_announce", "if (__builtin_expect(..)) __atomic_thread_fence(..);")
WITHDRAW_RELAXED = swap("lane_reader_withdraw", "__ATOMIC_RELEASE", "__ATOMIC_RELAXED")
QUIESCENT_RELAXED = swap("lane_reader_announce", "__ATOMIC_RELEASE", "__ATOMIC_RELAXED")
MUTANTS += [
    explored("Epochs: no membarrier", "epochs epochs-3 epochs-online", EPOCHS_NO_BARRIER),
    explored(
        "Epochs: the readers are looked at before the barrier",
        "epochs epochs-online",
        EPOCHS_NO_BARRIER,
        BARRIER_AT_THE_END,
    ),
    explored(
        "Epochs: the epoch is read after the readers",
        "epochs-found",
        swap(
            "oldest_epoch",
            "return oldest;",
            f"return oldest == now ? word(shared_.now).load({ACQUIRE}) : oldest;",
        ),
    ),
    explored(
        "Epochs: a section may have seen what is one epoch younger",
        "epochs epochs-online",
        swap("oldest_epoch", "oldest = number_of(epoch);", "oldest = number_of(epoch) + 1;"),
    ),
    explored("Epochs: a tag is the epoch that ends", "epochs epochs-online", TAG_THAT_ENDS),
    explored("Epochs: readers withdraw relaxed", "epochs", WITHDRAW_RELAXED),
    explored("Epochs: quiescent states relaxed", "epochs-online", QUIESCENT_RELAXED),
    explored(
        "Epochs: a quiescent state withdraws",
        "epochs-online",
        swap("lane_reader_quiescent", "lane_reader_announce", "lane_reader_withdraw"),
    ),
    explored(
        "Epochs: the look at readers relaxed", "epochs epochs-online", relaxed("[peek]", "acquire")
    ),
    explored(
        "Epochs: what is safe is published relaxed",
        "epochs-found",
        relaxed("[found.safe]", "release"),
    ),
    explored(
        "Epochs: what is safe is read relaxed", "epochs-found", relaxed("[found.safe]", "acquire")
    ),
    explored("Epochs: readers have no fence", "epochs-fences", NO_FENCE),
]
MUTANTS += [
    in_epochs("no membarrier", "epochs epochs-online", EPOCHS_NO_BARRIER),
    in_epochs(
        "the readers are looked at before the barrier",
        "epochs",
        EPOCHS_NO_BARRIER,
        BARRIER_AT_THE_END,
    ),
    in_epochs(
        "an epoch begins before the unlinking is to be seen",
        "epochs",
        relaxed("[advance]", "release"),
    ),
    in_epochs(
        "readers announce relaxed",
        "epochs-quiescent",
        swap("[announce]", "__ATOMIC_ACQUIRE", "__ATOMIC_RELAXED"),
    ),
    in_epochs("readers withdraw relaxed", "epochs", WITHDRAW_RELAXED),
    in_epochs("quiescent states relaxed", "epochs-online", QUIESCENT_RELAXED),
    in_epochs("the look at readers relaxed", "epochs", relaxed("[peek]", "acquire")),
    in_epochs("a tag is the epoch that ends", "epochs", TAG_THAT_ENDS),
    in_epochs(
        "what is safe is published relaxed", "epochs-found", relaxed("[found.safe]", "release")
    ),
    in_epochs("what is safe is read relaxed", "epochs-found", relaxed("[found.safe]", "acquire")),
    in_epochs("readers have no fence", "epochs-fences", NO_FENCE),
    in_epochs(
        "who frees has no fence",
        "epochs-fences",
        swap("oldest_epoch", "std::atomic_thread_fence", "if (false) std::atomic_thread_fence"),
    ),
]
MUTANTS += [
    explored(
        "deferred frees: a batch begins no epoch",
        "defer",
        swap("cut", "advance()", "now()"),
        swap("tend", "advance()", "now()"),
    ),
    explored(
        "deferred frees: of the epoch before", "defer", swap("Ring::ready", "> upto", "> upto + 1")
    ),
    explored(
        "deferred frees: who takes the lane leaves that gate open",
        "defer-poll",
        gone("close_gate", "deferred_end.store(..);"),
        gone("is_closed", "&& deferred_end.load(..) == 0"),
    ),
    explored("deferred calls: two make them at once", "calls", gone("[done]", "if (..) return;")),
    explored(
        "deferred calls: made relaxed",
        "calls",
        relaxed("[done]", "release"),
        relaxed("[returned]", "release"),
    ),
]

# Kinds and pools.
MUTANTS += [
    explored("Pool: the area stays open under a revoker", "pool-hit pool-slab", *AREA_STAYS_OPEN),
    explored(
        "Pool: a free by CPU does not enter",
        "pool-cpu pool-slab-cpu",
        swap(
            "free_to_slab_or_batch",
            "PerCpu::enter_for<P>(.., seen, free)",
            "(seen = 0, free = static_cast<Lane<P>*>(gate)->word_if_free(), true)",
        ),
    ),
    explored(
        "Pool: a free by CPU leaves before it has freed",
        "pool-slab-cpu",
        swap(
            "free_to_slab_or_batch",
            "if (UNLIKELY(slab->push(",
            "leave();\nif (UNLIKELY(slab->push(",
        ),
    ),
    explored(
        "Pool: a free looks at the gate before it enters",
        "pool-slab",
        gone("free_to_slab_or_batch", "const Address area = Owned::area(gate);"),
        swap(
            "free_to_slab_or_batch",
            "Gate* gate = ..;",
            f"const Address area = Owned::area(slot.load({RELAXED}));\nGate* gate = ..;",
        ),
    ),
    explored(
        "Pool: taking by CPU is no step",
        "pool-cpu-2",
        swap(
            "PerCpu::pop_bin",
            "if (P::hit_pop_here(..) return false;",
            f"if (here(gate).load({ACQUIRE}) >> 16 != P::lane_number()) return false;\n"
            "object = pop_hit(bin, BinHead::kReach);\nif (object == nullptr) return false;",
        ),
    ),
    explored(
        "Pool: no look after leaving",
        "pool-send",
        gone("look_after_leaving", "if (..) serve(slot);"),
    ),
    explored(
        "Pool: one round over the lanes",
        "pool-sent",
        swap("gather", "round < 2 ||..; ++round", "round < 1; ++round"),
    ),
    explored(
        "Pool: only the first who waits is served",
        "pool-room",
        swap("serve", "if (..) continue;", "if (..) return;"),
    ),
    explored(
        "Pool: a handler leaves no word",
        "pool-handler",
        gone("leave_word", "pool_.missed_.store(..);"),
    ),
    explored(
        "Pool: the object is handed over relaxed",
        "pool-wait",
        relaxed("[served.release]", "release"),
    ),
]


@dataclass(frozen=True)
class Schedule:
    """A schedule in a file of its own: lines `scenario: NAME`, `mutant: NAME`,
    `choices: N N ..`."""

    name: str
    scenario: str
    mutant: str
    choices: tuple[str, ...]


def read_schedules() -> list[Schedule]:
    schedules = []
    for file in sorted((HERE / "schedules").glob("*.txt")):
        fields = dict(line.split(": ", 1) for line in file.read_text().splitlines())
        schedules.append(
            Schedule(
                file.stem, fields["scenario"], fields["mutant"], tuple(fields["choices"].split())
            )
        )
    return schedules


def cut_deferred(text: str) -> str:
    """Two functions of Runs, for a file of their own."""
    functions = [
        re.search(rf"^  (?:NOINLINE )?void {name}\(.*?^  }}$", text, re.MULTILINE | re.DOTALL)
        for name in ("defer", "take_back_deferred")
    ]
    if None in functions:
        raise Broken("runs.h has no defer() or take_back_deferred()")
    return "\n".join(f.group(0) for f in functions if f)


def with_model_builtins(text: str) -> str:
    """The compiler's atomic built-ins as operations of model::atomic, which are templates."""
    text = text.replace('extern "C" {', 'extern "C++" {')
    text = re.sub(r"__atomic_load_n\(&([^,]+), (\w+)\)", r"\1.load(model::order(\2))", text)
    text = re.sub(
        r"__atomic_store_n\(&([^,]+), (.+), (\w+)\);", r"\1.store(\2, model::order(\3));", text
    )
    text = text.replace("__atomic_signal_fence(__ATOMIC_SEQ_CST)", "model::compiler_fence()")
    return text.replace("__atomic_thread_fence(__ATOMIC_SEQ_CST)", "model::full_fence()")


@functools.cache
def shipped() -> dict[str, str]:
    """The texts of src/ and include/."""
    return {
        f"{name}/{path.relative_to(folder)}": path.read_text()
        for name, folder in (("src", SOURCE), ("include", SOURCE.parent / "include"))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def texts_of(program: Program, edits: tuple[Edit, ...]) -> dict[str, str]:
    """The sources with the edits, as the program has them."""
    texts = dict(shipped())
    for edit in edits:
        change(edit, texts)
    for name in program.prepare:
        text = texts[name].replace("std::atomic<", "model::atomic<")
        # Relacy's variables live only while a test runs. Nobody reads the three gates that are not
        # a lane's.
        text = re.sub(
            r"inline constinit Gate (\w+);",
            r"inline Gate& \1 = *reinterpret_cast<Gate*>(0x1000);",
            text,
        )
        # Relacy's atomics are larger.
        text = re.sub(r"static_assert\((offsetof|sizeof).*\n", "", text)
        texts[name] = with_model_builtins(text) if name == PUBLIC else text
    for edit in program.substitutes:
        change(edit, texts)
    if "src/core/memory/runs.h" in program.prepare:
        texts["src/deferred.inc"] = cut_deferred(texts["src/core/memory/runs.h"])
    return texts


def compile(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG, check=False)
    if done.returncode != 0:
        errors = [
            line for line in done.stderr.splitlines() if "error" in line or "undefined" in line
        ]
        raise Broken("does not compile:\n" + "\n".join(errors[:5]))


def precompile(place: Path) -> Path:
    """Copies the tests' sources and compiles what does not depend on src/. Returns where they
    lie."""
    sources = place / "model"
    shutil.copytree(HERE, sources)
    header = sources / "relacy/checked_atomic.h"
    compile([*RELACY, "-x", "c++-header", str(header), "-o", f"{header}.gch"])
    compile(
        [
            *EXPLORER,
            "-O2",
            "-c",
            str(sources / "explorer/explorer.cpp"),
            "-o",
            str(sources / "explorer.o"),
        ]
    )
    return sources


def write_tree(program: Program, edits: tuple[Edit, ...], place: Path) -> Path:
    """Writes src/ and include/ with the edits, as the program has them. Returns where src/ lies."""
    for name, text in texts_of(program, edits).items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return place / "src"


def build(name: str, edits: tuple[Edit, ...], sources: Path, place: Path) -> Path:
    """Compiles a program over a copy of src/ with the edits. Returns the executable."""
    program = PROGRAMS[name]
    tree, executable = write_tree(program, edits, place), place / "test"
    source = str(sources / program.source)
    if name == "explorer":
        scenarios = str(place / "scenarios.o")
        compile(
            [
                *EXPLORER,
                "-fsanitize=thread",
                f"-I{tree}",
                f"-I{place / 'include'}",
                "-c",
                source,
                "-o",
                scenarios,
            ]
        )
        compile([CXX, "-no-pie", str(sources / "explorer.o"), scenarios, "-o", str(executable)])
        return executable
    for include in program.includes:  # a header beside its includer would be preferred to the stub
        for stub in (sources / include).rglob("*.h"):
            (tree / stub.relative_to(sources / include)).unlink()
    includes = [f"-I{sources / include}" for include in program.includes]
    compile(
        [*RELACY, *includes, f"-I{tree}", f"-I{place / 'include'}", source, "-o", str(executable)]
    )
    return executable


def run_test(
    executable: Path, test: str, *choices: str, deeper: int = max(DEEPER, 0)
) -> tuple[int, str]:
    command = [str(executable), test, str(deeper), *choices]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG, check=False)
    return done.returncode, with_lines(executable, done.stdout + done.stderr)


def with_lines(executable: Path, output: str) -> str:
    """Writes functions and lines for the addresses in the explorer's output."""
    addresses = sorted(set(re.findall(r"@(0x[0-9a-f]+)", output)))
    if not addresses:
        return output
    places = {}
    for address in addresses:
        # The call stands before the address that it returns to.
        command = [
            "addr2line",
            "-e",
            str(executable),
            "-f",
            "-C",
            "-i",
            "-s",
            hex(int(address, 16) - 1),
        ]
        lines = subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        frames = list(zip(lines[::2], lines[1::2]))
        frames = [f for f in frames if not f[1].startswith("atomic")] or frames
        places[address] = " < ".join(
            f"{bare(function)} {line.split(' ')[0]}" for function, line in frames[:2]
        )
    return re.sub(r"@(0x[0-9a-f]+)", lambda found: places[found.group(1)], output)


def bare(function: str) -> str:
    """A demangled name without template arguments, parameters and namespaces of no interest."""
    function = re.sub(r"\(anonymous namespace\)::|lanemalloc::|explorer::", "", function)
    before = None
    while before != function:
        before, function = function, re.sub(r"<[^<>]*>|\([^()]*\)", "", function)
    return function.split(" ")[-1]


@dataclass
class Outcome:
    good: bool
    title: str
    detail: str = ""


def schedules(output: str) -> str:
    found = re.search(r"^schedules: (\d+)$", output, re.MULTILINE)
    return found.group(1) if found else "?"


def indented(text: str, most: int) -> str:
    return "\n".join("    " + line for line in text.splitlines()[:most])


def tests_of(name: str, executable: Path) -> dict[str, str]:
    if PROGRAMS[name].tests:
        return PROGRAMS[name].tests
    listing = subprocess.run([executable], capture_output=True, text=True, check=True).stdout
    return dict(line.split("\t", 1) for line in listing.splitlines())


def replay_kept(executable: Path, mutant: str) -> list[Outcome]:
    """Runs the kept schedules of this mutant again."""
    outcomes = []
    for kept in read_schedules():
        if kept.mutant != mutant:
            continue
        status, output = run_test(executable, kept.scenario, *kept.choices)
        good = status == (0 if mutant == "none" else 1)
        shown = "is good now" if mutant == "none" else f"still fails in mutant '{mutant}'"
        title = f"explorer {kept.scenario}: schedule {kept.name} {shown}"
        outcomes.append(Outcome(good, title, "" if good else indented(output, 60)))
    return outcomes


def check_program(name: str, sources: Path, pool: concurrent.futures.Executor) -> list[Outcome]:
    """Runs all tests of a program. The pool is for those that take long."""
    outcomes = []
    with tempfile.TemporaryDirectory() as place:
        try:
            executable = build(name, (), sources, Path(place))
        except Broken as why:
            return [Outcome(False, f"{name}: {why}")]
        tests = tests_of(name, executable)
        results = {test: pool.submit(run_test, executable, test, deeper=DEEPER) for test in tests}
        for test, what in tests.items():
            status, output = results[test].result()
            title = f"{name} {test}: {what} [{schedules(output)} schedules]"
            outcomes.append(
                Outcome(status == 0, title, "" if status == 0 else indented(output, 300))
            )
        if name == "explorer":
            outcomes += replay_kept(executable, "none")
    return outcomes


def check_quotes() -> list[Outcome]:
    """Whether each place that a mutant or a program changes is there once. Compiles nothing."""
    programs = dict(PROGRAMS)

    def check(title: str, name: str, edits: tuple[Edit, ...]) -> Outcome:
        try:
            texts_of(programs[name], edits)
        except Broken as why:
            return Outcome(False, f"{title}: {why}")
        return Outcome(True, f"{title} finds its places")

    outcomes = [check(f"program {name}", name, ()) for name in PROGRAMS]
    for name, outcome in zip(PROGRAMS, outcomes):
        if not outcome.good:
            programs[name] = Program("", {})  # its mutants need not say the same
    return outcomes + [
        check(f"{mutant.program}: mutant '{mutant.name}'", mutant.program, mutant.edits)
        for mutant in MUTANTS
    ]


def check_mutant(mutant: Mutant, sources: Path) -> list[Outcome]:
    verb = "is caught" if mutant.caught else "is as good as the original"
    title, detail = f"{mutant.program}: mutant '{mutant.name}' {verb}", ""
    with tempfile.TemporaryDirectory() as place:
        try:
            executable = build(mutant.program, mutant.edits, sources, Path(place))
        except Broken as why:
            return [Outcome(False, f"{title}: {why}")]
        for test in mutant.tests.split():
            status, output = run_test(executable, test)
            # 1 is the checker's own verdict; anything else is a crash.
            if status != int(mutant.caught):
                return [
                    Outcome(False, f"{title}: {test} ended with {status}", indented(output, 60))
                ]
            title += f" by {test} [{schedules(output)} schedules{verdict(output)}]"
            if mutant.program == "explorer":
                detail = indented("..\n" + "\n".join(output.splitlines()[-12:]), 13)
        kept = replay_kept(executable, mutant.name) if mutant.program == "explorer" else []
    return [Outcome(True, title, detail), *kept]


def verdict(output: str) -> str:
    for line in output.splitlines():
        if line.startswith("failed: "):
            return ": " + line.removeprefix("failed: ")
        if line.isupper():
            return ": " + line.lower()
    return ""


def replay(test: str, file: Path) -> int:
    """Runs one schedule of a scenario again, step by step."""
    lines = [
        line.removeprefix("choices:")
        for line in file.read_text().splitlines()
        if line.startswith("choices:")
    ]
    choices = shlex.split(lines[0])
    with tempfile.TemporaryDirectory() as place:
        executable = build("explorer", (), precompile(Path(place) / "sources"), Path(place))
        status, output = run_test(executable, test, *choices)
    print(output)
    return status


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", default="", help=f"programs whose name contains this: {', '.join(PROGRAMS)}"
    )
    parser.add_argument(
        "--mutant", help="only mutants whose name contains this; 'none': no mutants"
    )
    parser.add_argument(
        "--replay",
        nargs=2,
        metavar=("SCENARIO", "FILE"),
        help="run the schedule of the explorer whose `choices:` line FILE holds",
    )
    parser.add_argument(
        "--quotes",
        action="store_true",
        help="only look whether each place that mutants and programs change is there once: "
        "some seconds",
    )
    arguments = parser.parse_args()
    if arguments.quotes:
        outcomes = check_quotes()
        failed = sum(not outcome.good for outcome in outcomes)
        print(
            "\n".join(f"FAILED {outcome.title}" for outcome in outcomes if not outcome.good)
            or "ok each place is found once"
        )
        print(f"{len(outcomes) - failed} passed, {failed} failed, 0 skipped")
        return 0 if failed == 0 else 1
    if arguments.replay:
        return replay(arguments.replay[0], Path(arguments.replay[1]))
    programs = [
        name for name in PROGRAMS if arguments.only in name and arguments.mutant in (None, "none")
    ]
    mutants = [
        m for m in MUTANTS if arguments.only in m.program and (arguments.mutant or "") in m.name
    ]
    # One that is named runs whatever the depth.
    if arguments.mutant is None and DEPTH != "all":
        if DEPTH == "rest":
            programs = [name for name in programs if name == "explorer"]
        mutants = [m for i, m in enumerate(mutants) if (i % LEAST_EVERY == 0) == (DEPTH == "least")]
    passed = failed = 0
    with (
        tempfile.TemporaryDirectory() as place,
        concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool,
        concurrent.futures.ThreadPoolExecutor(max_workers=len(PROGRAMS)) as programs_pool,
    ):
        sources = precompile(Path(place))
        futures = [programs_pool.submit(check_program, name, sources, pool) for name in programs]
        futures += [pool.submit(check_mutant, mutant, sources) for mutant in mutants]
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
