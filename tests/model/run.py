#!/usr/bin/env python3
"""Builds and runs the model checks: the shipped sources, and mutants of them that must be caught.

Called by run.sh. Two checkers:
  relacy/    C++'s memory model on the small algorithms. The headers are used as they are where they take the Atomics
             policy; of the others a copy is made in which std::atomic is model::atomic.
  explorer/  all schedules, with at most so many preemptions, of the real lanes on x86's store buffers. The sources are
             compiled as they are, with -fsanitize=thread; the explorer stands in for ThreadSanitizer's runtime.
A mutant is a copy of src/ in which one text is replaced by another; the text must occur exactly once.
schedules/ holds schedules of the explorer that once showed an error: each must still show it in its mutant, or no longer in
the sources (`mutant: none`). A change of src/ may shift the choices; then the mutant's output holds the new ones.
LANEMALLOC_TEST_SCALE above 1 allows the explorer one preemption more. LANEMALLOC_TEST_DEPTH (tests/part.sh): the least is
Relacy's tests, the explorer's with one preemption fewer, and some of the mutants.
"""

import argparse
import concurrent.futures
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

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
    edits: tuple[tuple[str, str, str], ...]  # file, text, replacement
    caught: bool = True  # False: an order that the algorithm does not need; must pass


def change(program: str, name: str, tests: str, file: str, *texts: str, caught: bool = True) -> Mutant:
    pairs = tuple((file, texts[i], texts[i + 1]) for i in range(0, len(texts), 2))
    return Mutant(name, program, tests, pairs, caught)


@dataclass(frozen=True)
class Program:
    source: str
    tests: dict[str, str]  # name: what it shows; empty: the program tells
    prepare: tuple[str, ...] = ()  # headers in which std::atomic becomes model::atomic
    includes: tuple[str, ...] = ()
    substitutes: tuple[tuple[str, str, str], ...] = ()  # file, text, what stands for it in the model


RELAXED, RELEASE, ACQUIRE = (f"std::memory_order_{order}" for order in ("relaxed", "release", "acquire"))

INBOX, STACK, OWNED, LOCK = "lane/inbox.h", "lane/id_stack.h", "lane/entry/owned.h", "base/lock.h"
BATCH = "slab/batch.h"
REGION = "memory/region.h"
RUNS, SCAVENGER, ENGINE = "memory/runs.h", "memory/scavenger.h", "engine/engine.h"
ENGINE_SLOW, PLATFORM = "engine/engine_slow.h", "platform/platform.h"
EPOCHS, RING, DEFERRED, SAFEPOINT = "reclaim/epochs.h", "reclaim/ring.h", "reclaim/deferred.h", "engine/engine_safepoint.h"
PUBLIC = "../include/lanemalloc/safepoint.h"
PERCPU, SHARED, LANE, LANE_WORK = "lane/entry/percpu.h", "lane/entry/shared.h", "lane/lane.h", "lane/lane_work.h"
LANE_TABLE = "lane/lane_table.h"
KINDS, LANE_KINDS, POOL = "engine/engine_kinds.h", "lane/lane_kinds.h", "pool/pool_work.h"
STACKS = "telemetry/stacks.h"
# Relacy's variables have no halves: who sleeps looks at the whole word.
WHOLE_WORD = ("""inline model::atomic<uint32_t>& lower_half_of(model::atomic<uint64_t>& word) {
  static_assert(std::endian::native == std::endian::little);
  return *reinterpret_cast<model::atomic<uint32_t>*>(&word);
}""", "inline model::atomic<uint64_t>& lower_half_of(model::atomic<uint64_t>& word) { return word; }")
STORE_BUSY = "__atomic_store_n(reinterpret_cast<unsigned char*>(&slot), kBusyByte, __ATOMIC_RELAXED);"

PROGRAMS = {
    "lists": Program(
        "relacy/lists.cpp",
        {
            "inbox": "Inbox: two givers and the owner lose no batch, take none twice, see its links",
            "idle-stack": "IdStack: an interrupted pop against pop, pop, push, push (ABA)",
            "aba": "IdStack: an interrupted pop against pop, pop, push of the first: the schedule that fools a naive list",
            "aba-naive": "a list without tags is fooled by it",
        },
    ),
    "protocols": Program(
        "relacy/protocols.cpp",
        {
            "lock": "Lock: two holders never meet, and see what the other did",
            "lane-lock": "Lock of a lane: the same, given back by a plain store; no sleeper is forgotten",
            "scavenger": "Scavenger: no wake-up is lost",
            "deferred": "Runs: a deferred free is put back exactly once, whole",
        },
        prepare=("base/lock.h", "memory/scavenger.h", "memory/runs.h", "platform/platform.h"),
        substitutes=(
            (LOCK, "kSpins = 64", "kSpins = 1"),  # so that a waiter comes to sleep
            (LOCK, *WHOLE_WORD),
            (LOCK, "compiler_fence();", "model::full_fence();"),
        ),
    ),
    "entry": Program(
        "relacy/entry.cpp",
        {
            "entry-allocate": "Owned: owner (malloc's look) and revoker never meet, and see what the other did",
            "entry-free": "Owned: the same with free's look",
            "entry-defer": "Owned: the same with a deferred free's look",
            "entry-kind": "Owned: the same with the look of a pool's or a heap's hit",
            "entry-miss": "Owned: the same with a miss's look",
            "disown": "Owned: who has a lane and finds an owner there finds its thread too",
        },
        prepare=("base/lock.h", "lane/entry/owned.h", "lane/gate.h"),
        includes=("relacy/stub",),
        substitutes=(
            (OWNED, "compiler_fence();", "model::full_fence();"),
            (LOCK, "compiler_fence();", "model::full_fence();"),
            (LOCK, *WHOLE_WORD),
            # One byte of a pointer: Relacy's variables have no bytes.
            (OWNED, STORE_BUSY, "slot.store(model::busy(gate, kBusyByte), std::memory_order_relaxed);"),
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
        prepare=("base/lock.h", EPOCHS, PUBLIC),
        substitutes=(
            (LOCK, "compiler_fence();", "model::full_fence();"),
            (LOCK, *WHOLE_WORD),
            (EPOCHS, "static model::atomic<T>& word(T& field) { return reinterpret_cast<model::atomic<T>&>(field); }",
             "static T& word(T& field) { return field; }"),
            (EPOCHS, "static const model::atomic<T>& word(const T& field) {\n    return reinterpret_cast<const model::atomic<T>&>(field);",
             "static const T& word(const T& field) {\n    return field;"),
            (EPOCHS, "std::atomic_thread_fence(std::memory_order_seq_cst);", "model::full_fence();"),
            (EPOCHS, "reader = lane_reader{};", f"reader.depth = reader.online = 0; reader.epoch.store(0, {RELAXED});"),
            (PUBLIC, "uint64_t now;", "model::atomic<uint64_t> now;"),
            (PUBLIC, "int fences;", "model::atomic<int> fences;"),
            (PUBLIC, "uint64_t epoch; /**< what", "model::atomic<uint64_t> epoch; /**< what"),
            (PUBLIC, "const void* thread; /**< that", "model::atomic<const void*> thread; /**< that"),
            (PUBLIC, '#ifdef __cplusplus\nextern "C" {\n#endif', ""),
            (PUBLIC, "#ifdef __cplusplus\n}\n#endif", ""),
        ),
    ),
    "stacks": Program(
        "relacy/stacks.cpp",
        {"stacks": "Stacks: two makers and a reader: each stack is whole, and is there once"},
        substitutes=(
            (STACKS, "kMostBytes = Bytes{64} << 20", "kMostBytes = 64 * sizeof(Word)"),
            (STACKS, "kLeastBytes = kHugePage", "kLeastBytes = kMostBytes"),
            (STACKS, "kBytesPerSlot = 512", "kBytesPerSlot = 16 * sizeof(Word)"),
            (STACKS, "kPiece = Bytes{256} << 10", "kPiece = 16 * sizeof(Word)"),
            (STACKS, "kMostProbes = 64", "kMostProbes = 4"),
        ),
    ),
    "explorer": Program(
        "explorer/scenarios.cpp",
        {},
        substitutes=(
            # What a child goes through entry by entry, and what a waiter does before it sleeps.
            (PLATFORM, "kMostNumbers = 8192", "kMostNumbers = 8"),
            ("lane/probe_orders.h", "kMostLanes = 4096", "kMostLanes = 8"),
            (LANE_TABLE, "kLanesHere = 8", "kLanesHere = 2"),
            (LOCK, "kSpins = 64", "kSpins = 2"),
            # No time passes while somebody sleeps: who is not woken sleeps for good, and that is found.
            (LOCK, "kLateMs = 1000", "kLateMs = ~uint64_t{0}"),
            (KINDS, "kSpins = 256", "kSpins = 2"),
            (LANE, "kAreaBlocks = 18", "kAreaBlocks = 3"),
            # What comes of a lane that somebody was inside does not rely on what that thread has released.
            (ENGINE_SLOW, "lane.salvage(visit);\n    lane.begin_in_child();",
             "P::take_memory_as_it_is(); lane.salvage(visit);\n    lane.begin_in_child();"),
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
    change("lists", "take forgets the rest", "inbox", INBOX, "keep(batch);\n  }", "keep(nullptr);\n  }"),
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
    change("stacks", "the depth published relaxed", "stacks", STACKS,
           f"uint64_t{{hash}} << 32, {RELEASE});\n    return stack;", f"uint64_t{{hash}} << 32, {RELAXED});\n    return stack;"),
    change("stacks", "the depth written before the frames", "stacks", STACKS,
           "for (unsigned i = 0; i < depth; ++i) stack->frames()[i].store",
           "stack->depth_and_hash.store(depth, std::memory_order_release);\n"
           "    for (unsigned i = 0; i < depth; ++i) stack->frames()[i].store"),
    change("stacks", "who comes second to a slot does not acquire it", "stacks", STACKS,
           f"std::memory_order_acq_rel, {ACQUIRE}))\n          return made;", f"{RELEASE}, {RELAXED}))\n          return made;"),
    change("stacks", "the end moved on relaxed", "stacks", STACKS,
           f"next, {RELEASE}, {RELAXED}))\n        at = next;", f"next, {RELAXED}, {RELAXED}))\n        at = next;"),
    change("stacks", "a place claimed by whoever moves the end", "stacks", STACKS,
           "if (is_mine) return &stack;", "if (is_mine || at == next) return &stack;"),
    change("stacks", "who comes second to a slot does not look at it", "stacks", STACKS,
           "if (value >> 32 == hash && stack_in", "if (made == nullptr && value >> 32 == hash && stack_in"),
    change("protocols", "release relaxed", "lock", LOCK, f"kFree, {RELEASE}, {RELAXED}", f"kFree, {RELAXED}, {RELAXED}",
           f"fetch_and(kForks, {RELEASE})", f"fetch_and(kForks, {RELAXED})"),
    change("protocols", "try_acquire relaxed", "lock", LOCK, f"(expected, held_by(visit.who), {ACQUIRE},", f"(expected, held_by(visit.who), {RELAXED},"),
    change("protocols", "a waiter's acquire relaxed", "lock", LOCK,
           f"held_by(visit.who) | kAwaited, {ACQUIRE},", f"held_by(visit.who) | kAwaited, {RELAXED},"),
    change("protocols", "idle after the pass", "scavenger", SCAVENGER,
           "uint32_t wanted = kWanted;", "const bool more = pass_(context_);\n    uint32_t wanted = kWanted;",
           "if (!pass_(context_)) return;", "if (!more) return;"),
    change("protocols", "a poke wakes nobody", "scavenger", SCAVENGER,
           "P::wake(word_, 1);\n  }\n\n  // A thread is about to run it", ";\n  }\n\n  // A thread is about to run it"),
    change("protocols", "defer relaxed", "deferred", RUNS, f"at + 1, {RELEASE}, {RELAXED}", f"at + 1, {RELAXED}, {RELAXED}"),
    change("protocols", "taken relaxed", "deferred", RUNS,
           f"taken_back_ = deferred_.exchange(0, {ACQUIRE}); while", f"taken_back_ = deferred_.exchange(0, {RELAXED}); while"),
    change("protocols", "taken by a load and a store", "deferred", RUNS,
           f"taken_back_ = deferred_.exchange(0, {ACQUIRE}); while",
           f"taken_back_ = deferred_.load({ACQUIRE}); deferred_.store(0, {RELAXED}); while"),
    change("entry", "no membarrier", "entry-allocate entry-free entry-defer entry-miss", OWNED,
           "if (!P::barrier()) {", "if (false) {"),
    change("entry", "the gate is looked at before the busy store", "entry-allocate", OWNED, "compiler_fence();",
           "__atomic_signal_fence(0); if (false) compiler_fence();"),
    change("entry", "leave relaxed", "entry-allocate", OWNED, f"slot.store(gate, {RELEASE})", f"slot.store(gate, {RELAXED})"),
    change("entry", "no look at the slot", "entry-allocate", OWNED, "if (!is_named_by(slot)) break;", ""),
    change("entry", "the revocation ended relaxed", "entry-miss", OWNED,
           f"revoking_.store(false, {RELEASE})", f"revoking_.store(false, {RELAXED})"),
    change("entry", "the revoker does not look at the owner again", "entry-free", OWNED,
           f"open_owner.load({RELAXED}) == static_cast<uint16_t>(Owner::kClosed)", "true"),
    change("entry", "the revoker does not look at the bins again", "entry-allocate", OWNED,
           f"open_bins.load({RELAXED}) == 0", "true"),
    change("entry", "the revoker does not look at the gate of deferred frees again", "entry-defer", OWNED,
           "deferred_end.load(std::memory_order_relaxed) == 0", "true"),
    change("entry", "the revoker does not close the gate of deferred frees", "entry-defer", OWNED,
           "deferred_end.store(0, std::memory_order_relaxed);", "",
           "deferred_end.load(std::memory_order_relaxed) == 0", "true"),
    change("entry", "the revoker does not close the gate of kinds", "entry-kind", OWNED,
           "area.store(0, std::memory_order_relaxed);", "",
           "area.load(std::memory_order_relaxed) == 0 &&", ""),
    change("entry", "let_go opens the gate itself", "entry-allocate", OWNED, f"  revoking_.store(false, {RELEASE});",
           f"  open_gate();\n  revoking_.store(false, {RELEASE});"),
    change("entry", "disown does not wait", "disown", OWNED,
           "  if (!lock_or_wait(visit))\n    return;  // waits for a revoker: afterwards nobody looks at the slot\n"
           "  forget_owner();\n  unlock(visit);", "  forget_owner();"),
]

# The explorer's copies of some, on the real lanes, and its own.
MUTANTS += [
    change("explorer", "no tag", "stack stack-3", STACK, "((head >> 32) + 1) << 32", "(head >> 32) << 32"),
    change("explorer", "take does not wait for a half-given batch", "inbox inbox-3", INBOX,
           "if (earlier == unlinked()) break;", "if (earlier == unlinked()) earlier = nullptr;"),
    change("explorer", "a batch is given before the last holder's count is written", "batch batch-3 remote-batch", BATCH,
           "Object* take() {\n    close();", "Object* take() {"),
    change("explorer", "a holder's count is not written when the next one comes", "batch batch-3 remote-batch", BATCH,
           "close();\n    object->next = first_;", "object->next = first_;"),
    change("explorer", "a chain is followed from an object that it has freed", "chain", LANE_WORK,
           "first != nullptr; first = next) {\n      next = first->next;", "first != nullptr; first = first->next) {\n      next = nullptr;"),
    change("explorer", "a chain's batch is sent whenever it is full", "chain", LANE_WORK,
           "if (remote.owner != entry.owner()) {\n        if ((turns & turn) != 0) {",
           "if (remote.owner != entry.owner() || remote.room <= 0) {\n        if (false) {"),
    change("explorer", "a holder is visited before those that it names", "batch batch-3", BATCH,
           "      visit(holder, holder, uint32_t{1});  // last, since it is gone then", "",
           "uintptr_t* const names = names_of(holder);\n",
           "uintptr_t* const names = names_of(holder);\n      visit(holder, holder, uint32_t{1});\n"),
    change("explorer", "an object that joins a row links to the last one", "batch batch-3", BATCH,
           "object->next = before == 0 ? last : last->next;", "object->next = last;"),
    change("explorer", "a row does not count who joins it", "batch batch-3 remote-row", BATCH,
           "(bits(object) << kRowBits) + before + 1;", "(bits(object) << kRowBits) + before;"),
    change("explorer", "a row goes on in a fresh batch", "batch batch-3", BATCH,
           "place_ = end_ = nullptr;\n    slab_ = MapEntry();", "place_ = end_ = nullptr;"),
    change("explorer", "a row is taken in as one object", "remote-row", LANE_WORK,
           "if (UNLIKELY(slab->push(first, last, n))) look_at", "if (UNLIKELY(slab->push(first, last, 1))) look_at"),
    change("explorer", "the batches behind a taken one are read after its visit", "batch batch-3", INBOX,
           "keep(earlier);  // a child forked meanwhile finds what is left, and nothing that was visited\n"
           "      visit(batch);\n      batch = earlier;",
           "visit(batch);\n      batch = reinterpret_cast<Batch*>(batch->next);"),
    change("explorer", "release wakes nobody", "lock", LOCK,
           "P::wake(lower_half(), is_closed(held) ? kEverybody : 1);", ""),
    change("explorer", "who has slept takes the lock as if nobody else slept", "lock-3", LOCK,
           f"held_by(visit.who) | kAwaited, {ACQUIRE}", f"held_by(visit.who), {ACQUIRE}"),
    change("explorer", "who finds a lock closed waits for the fork", "fork-lock", LOCK,
           "if (visit.insists == 0) return false; while (may_wait",
           "for (uint64_t s; visit.insists == 0 && is_closed(s = state_.load(std::memory_order_relaxed));) P::wait(lower_half(), static_cast<uint32_t>(s)); while (may_wait",
           "seen - kFork, std::memory_order_relaxed)) { }",
           "seen - kFork, std::memory_order_relaxed)) { } P::wake(lower_half(), kEverybody);"),
    change("explorer", "a fork wakes nobody when it closes the lock", "fork-lock-sleep-4", LOCK,
           "P::wake(lower_half(), kEverybody);\n    if (!visit.may_block", "if (!visit.may_block"),
    change("explorer", "a fork does not wait for the holder", "fork-runs", LOCK, "if (!visit.may_block || !is_held(seen)) return;", "return;"),
    change("explorer", "a fork closes nothing", "fork-runs", LOCK,
           f"fetch_add(kFork, {ACQUIRE}) + kFork", f"load({ACQUIRE})"),
    change("explorer", "a child trusts what a holder who is gone had in hand", "fork-insists", LOCK, "return !held;", "return true;"),
    change("explorer", "a child finds what waits, and takes it in once more", "fork-runs", RUNS,
           "      deferred_.store(0, std::memory_order_relaxed);\n      takers_", "      takers_"),
    change("explorer", "who is torn off drops what another takes", "torn-runs", RUNS, "if (!some_go_on) {", "{"),
    change("explorer", "who is torn off takes in what waits, too", "torn-runs", RUNS,
           "first.kind == BlockKind::kWaiting && !some_go_on", "first.kind == BlockKind::kWaiting"),
    change("explorer", "a run is cut before its rest is marked", "torn-runs", RUNS,
           "return_rest(begin + n, at + length - begin - n, kind, freed_at);\n        mark_used(begin, n);",
           "mark_used(begin, n);\n        return_rest(begin + n, at + length - begin - n, kind, freed_at);"),
    change("explorer", "a run's last block is marked before its first", "torn-runs", RUNS,
           "region_.state(at).set_end({kind, true, n});", "",
           "if (n > 1) region_.state(at + n - 1).set_end({kind, false, n});",
           "if (n > 1) region_.state(at + n - 1).set_end({kind, false, n}); region_.state(at).set_end({kind, true, n});"),
    change("explorer", "idle after the pass", "scavenger", SCAVENGER,
           "uint32_t wanted = kWanted;", "const bool more = pass_(context_);\n    uint32_t wanted = kWanted;",
           "if (!pass_(context_)) return;", "if (!more) return;"),
    change("explorer", "a poke wakes nobody", "scavenger", SCAVENGER,
           "P::wake(word_, 1);\n  }\n\n  // A thread is about to run it", ";\n  }\n\n  // A thread is about to run it"),
    change("explorer", "a poke comes after the end", "scavenger", SCAVENGER,
           f"if (word_.compare_exchange_strong(idle, kWanted, {RELEASE}, {RELAXED}))\n      P::wake(word_, 1);",
           f"word_.store(kWanted, {RELEASE});\n    P::wake(word_, 1);"),
    change("explorer", "who stops wakes nobody", "scavenger", SCAVENGER,
           "P::wake(word_, 1);\n  }\n  // There may be work, and", "}\n  // There may be work, and"),
    change("explorer", "two grow at once", "growth", RUNS,
           "if (!growth_.try_acquire(visit)) {", "if (false) {",
           "    growth_.release(visit);\n", ""),
    change("explorer", "who meets one that grows does not wait for it", "growth", RUNS,
           "if (at != kNone || !growth_.acquire(visit)) return", "return"),
    change("explorer", "who may grow does not look again", "growth-once", RUNS,
           "    Run run = {kNone, false};\n    if (lock_.acquire(visit)) {\n      run = take(n, align_blocks);",
           "    Run run = {kNone, false};\n    if (lock_.acquire(visit)) {"),
    change("explorer", "who cannot give untouched memory loses it", "growth-handler", RUNS,
           "if (!lock_.acquire(visit)) return defer(at, n, kind);",
           "if (!lock_.acquire(visit)) return kind == BlockKind::kDirty ? defer(at, n, kind) : void();"),
    change("explorer", "what others have deferred is not looked for", "growth-handler", RUNS,
           "    take_back_deferred();\n    for (unsigned set = 0;", "    for (unsigned set = 0;"),
    change("explorer", "who oversteps the end of the addresses steps back", "growth-handler", REGION,
           "        if (n > block_count_ - at) return kNoBlock;\n", "",
           "Claim claim = P::claim(address_of(at),",
           "Claim claim = at + n > block_count_ ? Claim::kNoMemory : P::claim(address_of(at),"),
    change("explorer", "deferred runs taken by a load and a store", "runs-3", RUNS,
           f"taken_back_ = deferred_.exchange(0, {ACQUIRE}); while",
           f"taken_back_ = deferred_.load({ACQUIRE}); deferred_.store(0, {RELAXED}); while"),
    change("explorer", "no membarrier", "entry miss", OWNED, "if (!P::barrier()) {", "if (false) {"),
    change("explorer", "the gate is looked at before the busy store", "entry", ENGINE,
           "    Gate* gate = Owned::enter(slot);\n    const Bytes index = small_index(size);\n"
           "    if (UNLIKELY(!Owned::may_allocate(gate, index))) {\n      void* object;",
           f"    Gate* gate = slot.load({RELAXED});\n    const Bytes index = small_index(size);\n"
           "    const bool open = Owned::may_allocate(gate, index);\n    Owned::enter(slot);\n"
           "    if (UNLIKELY(!open)) {\n      void* object;"),
    change("explorer", "leave relaxed", "entry", OWNED, f"slot.store(gate, {RELEASE})", f"slot.store(gate, {RELAXED})"),
    Mutant("a revocation ends without a release", "explorer", "entry miss",
           ((OWNED, f"revoking_.store(false, {RELEASE})", f"revoking_.store(false, {RELAXED})"),
            (LOCK, f"state_.store(kFree, {RELEASE});  // [give]", f"state_.store(kFree, {RELAXED});"))),
    change("explorer", "not marked busy", "handler", OWNED, STORE_BUSY, ""),
    change("explorer", "a handler waits for locks", "handler", LOCK, "const bool may_wait = visit.may_block && visit.locks_held < one_;",
           "const bool may_wait = visit.locks_held < one_;"),
    change("explorer", "a revoker reads the slot as memory", "exit-silent", OWNED,
           "return P::reads_as(slot, reinterpret_cast<Address>(static_cast<const Gate*>(this)));",
           f"return slot->load({ACQUIRE}) == this;"),
    change("explorer", "who goes over to another entry gives the lane to the idle ones", "switch-handler", ENGINE_SLOW,
           "lane.rest_closed();", "lane.forget_owner();",
           "world_.lanes.owners().fetch_sub(1, std::memory_order_relaxed); } // One that the thread has",
           "world_.lanes.owners().fetch_sub(1, std::memory_order_relaxed); world_.lanes.push_idle(lane); }\n// One that the thread has"),
    change("explorer", "who leaves forgets the lane that a handler has got", "first-lane", OWNED,
           "return is_busy(gate) ? gate : reinterpret_cast<Gate*>(but_for_the_byte(slot));", "return (void)slot, const_cast<Gate*>(gate);"),
    change("explorer", "who leaves with nothing done puts back the gate that it found", "first-lane", OWNED,
           "slot.store(reinterpret_cast<Gate*>(but_for_the_byte(slot) | byte), std::memory_order_release);",
           "(void)byte; slot.store(const_cast<Gate*>(gate), std::memory_order_release);"),
    change("explorer", "the child takes over busy lanes as they are", "fork fork-3", ENGINE_SLOW,
           "} else if (held_by_other || left_inside || taken) {", "} else if (false) {"),
]


# A lane's lock.
LOOK = f"const bool some = sleepers_.load({RELAXED}) != 0;  // [look]\n      if (UNLIKELY(some)) P::wake(lower_half(), 1);"
GIVE = f"state_.store(kFree, {RELEASE});  // [give]"
for program, tests in (("protocols", "lane-lock"), ("explorer", "shared shared-3")):
    MUTANTS += [
        change(program, "a lane's lock: no barrier before sleeping", tests, LOCK,
               "const bool will_be_woken = P::barrier();", "const bool will_be_woken = true;"),
        change(program, "a lane's lock: look before give", tests, LOCK, f"{GIVE}\n      compiler_fence();\n      {LOOK}",
               f"const bool some = sleepers_.load({RELAXED}) != 0; compiler_fence(); {GIVE}\nif (some) P::wake(lower_half(), 1);"),
        change(program, "a lane's lock: a waiter does not announce itself", tests, LOCK,
               "sleepers_.fetch_add(1, std::memory_order_relaxed);  // [announce]", "",
               "sleepers_.fetch_sub(1, std::memory_order_relaxed);", ""),
    ]
MUTANTS += [
    change("protocols", "a lane's lock: give relaxed", "lane-lock", LOCK,
           GIVE, f"state_.store(kFree, {RELAXED});"),
    change("explorer", "a lane's lock: wakes nobody", "shared", LOCK, LOOK, ""),
    change("explorer", "Shared: a handler enters as its thread does", "shared-handler", ENGINE_SLOW,
           "if (!is_busy(gate) && gate_ != &exited_gate && gate_ != &forking_gate && may_own) enter(gate_);",
           "if (is_busy(gate)) gate_ = reinterpret_cast<Gate*>(reinterpret_cast<uintptr_t>(gate) - kBusyByte);\n"
           "    if (gate_ != &exited_gate) enter(gate_);"),
]

# PerCpu.
REVOKE = ("if (!here.compare_exchange_strong(free, kRevokedHere, std::memory_order_acquire, std::memory_order_relaxed))\n"
          "    return false;")
PUSH = "return P::template hit_push_here<offsetof(Slab, free_list)>(here(gate), word, object) == Restartable::kDone;"
MUTANTS += [
    change("explorer", "PerCpu: revoked by a load and a store", "cpu-revoke-3 cpu-miss", PERCPU, REVOKE,
           f"if (here.load({ACQUIRE}) != free) return false;\n  here.store(kRevokedHere, {RELAXED});"),
    change("explorer", "PerCpu: no restart", "cpu-revoke cpu-free cpu-free-enter cpu-miss cpu-off", PERCPU, "if (!P::restart_here()) {", "if (false) {"),
    change("explorer", "PerCpu: only a barrier", "cpu-revoke cpu-free cpu-free-enter", PERCPU, "if (!P::restart_here()) {", "if (!P::barrier()) {"),
    change("explorer", "PerCpu: the revoker does not look again", "cpu-free-enter cpu-miss", PERCPU,
           f"return here.load({ACQUIRE}) == kRevokedHere;", "return true;"),
    change("explorer", "PerCpu: who has lost puts the word back", "cpu-miss", PERCPU,
           f"return here.load({ACQUIRE}) == kRevokedHere;",
           f"if (here.load({ACQUIRE}) == kRevokedHere) return true;\n  here.store(word_if_free(), {RELAXED});\n  return false;"),
    change("explorer", "PerCpu: a miss leaves relaxed", "cpu-move-miss", LANE, f"here.store(word_if_free(), {RELEASE});",
           f"here.store(word_if_free(), {RELAXED});"),
    change("explorer", "PerCpu: a hit of free leaves relaxed", "cpu-move-enter", PERCPU, f"here(gate).store(free, {RELEASE});",
           f"here(gate).store(free, {RELAXED});"),
    change("explorer", "PerCpu: a pop is no step", "cpu-hit", PERCPU,
           "return P::hit_pop_here(here(gate), head, object) == Restartable::kDone;",
           f"if (here(gate).load({ACQUIRE}) >> 16 != P::lane_number() || *head == nullptr) return false;\n"
           "    object = *head;\n    *head = static_cast<Object*>(object)->next;\n    return true;"),
    change("explorer", "PerCpu: a push is no step", "cpu-hit cpu-left", PERCPU, PUSH,
           f"const MapEntry entry{{word.load({RELAXED})}};\n"
           f"    if (here(gate).load({ACQUIRE}) != (P::lane_number() << 16 | static_cast<uint16_t>(entry.bits()))) return false;\n"
           "    auto* slab = static_cast<Slab*>(entry.state());\n    if (slab->countdown <= 1) return false;\n"
           "    slab->push(static_cast<Object*>(object));\n    return true;"),
    change("explorer", "PerCpu: a push reads the page map before its step", "cpu-left", PERCPU, PUSH,
           f"const std::atomic<uint64_t> early{{word.load({RELAXED})}};\n    " + PUSH.replace("(here(gate), word", "(here(gate), early")),
    change("explorer", "PerCpu: a free into another lane asks only whether that is of the CPU", "cpu-off", ENGINE_SLOW,
           "PerCpu::push<P>(&its, word, p))",
           "its.number() == P::lane_number() && static_cast<Slab*>(world_.region.entry_of(p).state())->countdown > 1 &&\n"
           "      (static_cast<Slab*>(world_.region.entry_of(p).state())->push(static_cast<Object*>(p)), true))"),
    change("explorer", "PerCpu: a quick free does not enter", "cpu-send", ENGINE_SLOW,
           "entry() != Entry::kPerCpu || !PerCpu::enter<P>(&lane)))\n    return false;", "entry() != Entry::kPerCpu))\n    return false;"),
    change("explorer", "PerCpu: a lane that is taken is entered", "cpu-second", ENGINE_SLOW,
           "if (UNLIKELY(!lane->is_free_here())) continue;\n", "lane->leave_here();\n"),
    change("explorer", "PerCpu: the child works in a lane that is taken", "cpu-fork-enter", ENGINE_SLOW,
           "const bool taken = lane.is_taken_here();",
           "const bool taken = false; if (lane.how == Entry::kPerCpu && lane.is_taken_here()) lane.leave_here();"),
    change("explorer", "PerCpu: the child works in a lane that is held", "cpu-fork-3", ENGINE_SLOW,
           "const bool held_by_other = lane.lock().is_held() && lane.lock().holder() != &slot;",
           "const bool held_by_other = false; if (lane.how == Entry::kPerCpu && !lane.is_taken_here()) lane.leave_here();"),
]

# Safepoints.
ANNOUNCED = "if (__builtin_expect(__atomic_load_n(&reader->shared->fences, __ATOMIC_RELAXED), 0)) __atomic_thread_fence(__ATOMIC_SEQ_CST);"
PEEK = f"word(r->epoch).load({ACQUIRE});  // [peek]"
BEFORE = f"word(shared_.now).load({ACQUIRE});  // [before]"
ADVANCE = f"word(shared_.now).fetch_add(1, {RELEASE}) + 1;  // [advance]"
BARRIER = "} else if (UNLIKELY(!P::barrier())) {"
SAFE_STORE, SAFE_LOAD = f"safe_.store(oldest, {RELEASE})", f"safe_.load({ACQUIRE})"
WITHDRAW = "__atomic_store_n(&reader->epoch, 0, __ATOMIC_RELEASE);"
ANNOUNCE = "__atomic_load_n(&reader->shared->now, __ATOMIC_ACQUIRE);"
ENTER = "__atomic_store_n(&reader->epoch, now, __ATOMIC_RELEASE);"
MUTANTS += [
    change("explorer", "Epochs: no membarrier", "epochs epochs-3 epochs-online", EPOCHS, BARRIER, "} else if (false) {"),
    change("explorer", "Epochs: the readers are looked at before the barrier", "epochs epochs-online", EPOCHS,
           BARRIER, "} else if (false) {", "    return oldest;\n", "    P::barrier();\n    return oldest;\n"),
    change("explorer", "Epochs: the epoch is read after the readers", "epochs-found", EPOCHS,
           "    return oldest;\n", f"    return oldest == now ? word(shared_.now).load({ACQUIRE}) : oldest;\n"),
    change("explorer", "Epochs: a section may have seen what is one epoch younger", "epochs epochs-online", EPOCHS,
           "if (number_of(epoch) < oldest) oldest = number_of(epoch);",
           "if (number_of(epoch) < oldest) oldest = number_of(epoch) + 1;"),
    change("explorer", "Epochs: a tag is the epoch that ends", "epochs epochs-online", EPOCHS, ADVANCE,
           f"word(shared_.now).fetch_add(1, {RELEASE});"),
    change("explorer", "Epochs: readers withdraw relaxed", "epochs", PUBLIC, WITHDRAW, WITHDRAW.replace("RELEASE", "RELAXED")),
    change("explorer", "Epochs: quiescent states relaxed", "epochs-online", PUBLIC, ENTER, ENTER.replace("RELEASE", "RELAXED")),
    change("explorer", "Epochs: a quiescent state withdraws", "epochs-online", PUBLIC, "if (reader->online && reader->depth == 0) lane_reader_announce(reader);",
           "if (reader->online && reader->depth == 0) lane_reader_withdraw(reader);"),
    change("explorer", "Epochs: the look at readers relaxed", "epochs epochs-online", EPOCHS, PEEK, PEEK.replace("acquire", "relaxed")),
    change("explorer", "Epochs: what is safe is published relaxed", "epochs-found", EPOCHS, SAFE_STORE, SAFE_STORE.replace("release", "relaxed")),
    change("explorer", "Epochs: what is safe is read relaxed", "epochs-found", EPOCHS, SAFE_LOAD, SAFE_LOAD.replace("acquire", "relaxed")),
    change("explorer", "Epochs: readers have no fence", "epochs-fences", PUBLIC, ANNOUNCED, ""),
]
MUTANTS += [
    change("epochs", "no membarrier", "epochs epochs-online", EPOCHS, BARRIER, "} else if (false) {"),
    change("epochs", "the readers are looked at before the barrier", "epochs", EPOCHS,
           BARRIER, "} else if (false) {", "    return oldest;\n", "    P::barrier();\n    return oldest;\n"),
    change("epochs", "an epoch begins before the unlinking is to be seen", "epochs", EPOCHS, ADVANCE,
           f"word(shared_.now).fetch_add(1, {RELAXED}) + 1;"),
    change("epochs", "readers announce relaxed", "epochs-quiescent", PUBLIC, ANNOUNCE, ANNOUNCE.replace("ACQUIRE", "RELAXED")),
    change("epochs", "readers withdraw relaxed", "epochs", PUBLIC, WITHDRAW, WITHDRAW.replace("RELEASE", "RELAXED")),
    change("epochs", "quiescent states relaxed", "epochs-online", PUBLIC, ENTER, ENTER.replace("RELEASE", "RELAXED")),
    change("epochs", "the look at readers relaxed", "epochs", EPOCHS, PEEK, PEEK.replace("acquire", "relaxed")),
    change("epochs", "a tag is the epoch that ends", "epochs", EPOCHS, ADVANCE, f"word(shared_.now).fetch_add(1, {RELEASE});"),
    change("epochs", "what is safe is published relaxed", "epochs-found", EPOCHS, SAFE_STORE, SAFE_STORE.replace("release", "relaxed")),
    change("epochs", "what is safe is read relaxed", "epochs-found", EPOCHS, SAFE_LOAD, SAFE_LOAD.replace("acquire", "relaxed")),
    change("epochs", "readers have no fence", "epochs-fences", PUBLIC, ANNOUNCED, ""),
    change("epochs", "who frees has no fence", "epochs-fences", EPOCHS,
           "std::atomic_thread_fence(std::memory_order_seq_cst);", "if (false) std::atomic_thread_fence(std::memory_order_seq_cst);"),
]
MUTANTS += [
    change("explorer", "deferred frees: a batch begins no epoch", "defer", SAFEPOINT,
           "const auto begin_epoch = [&] { return epochs_.advance(); };", "const auto begin_epoch = [&] { return epochs_.now(); };",
           "ring.cut_complete([&] { return epochs_.advance(); })", "ring.cut_complete([&] { return epochs_.now(); })"),
    change("explorer", "deferred frees: of the epoch before", "defer", RING,
           "batches_[first_].tag > upto", "batches_[first_].tag > upto + 1"),
    change("explorer", "deferred frees: who takes the lane leaves that gate open", "defer-poll", OWNED,
           "  deferred_end.store(0, std::memory_order_relaxed);\n", "",
           "&& deferred_end.load(std::memory_order_relaxed) == 0", ""),
    change("explorer", "deferred calls: two make them at once", "calls", DEFERRED,
           f"if (deferred.caller.load({ACQUIRE}) != nullptr) return;", ""),
    change("explorer", "deferred calls: made relaxed", "calls", DEFERRED,
           f"from_->caller.store(nullptr, {RELEASE});", f"from_->caller.store(nullptr, {RELAXED});",
           f"from_->called.store(begun, {RELEASE});", f"from_->called.store(begun, {RELAXED});"),
]

# Kinds and pools.
MUTANTS += [
    change("explorer", "Pool: the area stays open under a revoker", "pool-hit pool-slab", OWNED,
           f"  area.store(0, {RELAXED});", "",
           f"area.load({RELAXED}) == 0 &&", ""),
    change("explorer", "Pool: a free by CPU does not enter", "pool-cpu pool-slab-cpu", KINDS,
           "PerCpu::enter_for<P>(gate, PerCpu::area_here(gate), seen, free)",
           "(seen = 0, free = static_cast<Lane<P>*>(gate)->word_if_free(), true)"),
    change("explorer", "Pool: a free by CPU leaves before it has freed", "pool-slab-cpu", KINDS,
           "if (UNLIKELY(slab->push(object))) return look(gate, slab), true;",
           "leave();\n      if (UNLIKELY(slab->push(object))) return look(gate, slab), true;"),
    change("explorer", "Pool: a free looks at the gate before it enters", "pool-slab", KINDS,
           "Look look, Bin*& bin) {\n  Gate* gate = Owned::enter(slot);\n  const Address area = Owned::area(gate);",
           f"Look look, Bin*& bin) {{\n  const Address area = Owned::area(slot.load({RELAXED}));\n  Gate* gate = Owned::enter(slot);"),
    change("explorer", "Pool: taking by CPU is no step", "pool-cpu-2", PERCPU,
           "return P::hit_pop_here(here(gate), reinterpret_cast<void**>(&head), object) == Restartable::kDone;",
           f"if (here(gate).load({ACQUIRE}) >> 16 != P::lane_number() || head == nullptr) return false;\n"
           "    object = head;\n    head = head->next;\n    return true;"),
    change("explorer", "Pool: no look after leaving", "pool-send", "pool/pool.h",
           "if (UNLIKELY(hit_load(attention_) != 0)) serve(slot);", ""),
    change("explorer", "Pool: one round over the lanes", "pool-sent", KINDS,
           "round < 2 || (moved && round < kMostRounds)", "round < 1"),
    change("explorer", "Pool: only the first who waits is served", "pool-room", POOL,
           "if (taker == Taker::kSomebody) continue;", "if (taker == Taker::kSomebody) return;"),
    change("explorer", "Pool: a handler leaves no word", "pool-handler", POOL,
           f"pool_.missed_.store(true, {RELEASE});", ""),
    change("explorer", "Pool: the object is handed over relaxed", "pool-wait", POOL,
           f"waiter->served.store(1, {RELEASE});", f"waiter->served.store(1, {RELAXED});"),
]


@dataclass(frozen=True)
class Schedule:
    """A schedule in a file of its own: lines `scenario: NAME`, `mutant: NAME`, `choices: N N ..`."""

    name: str
    scenario: str
    mutant: str
    choices: tuple[str, ...]


def read_schedules() -> list[Schedule]:
    schedules = []
    for file in sorted((HERE / "schedules").glob("*.txt")):
        fields = dict(line.split(": ", 1) for line in file.read_text().splitlines())
        schedules.append(Schedule(file.stem, fields["scenario"], fields["mutant"], tuple(fields["choices"].split())))
    return schedules


class Broken(Exception):
    """A test that could not be made."""


def replace_once(path: Path, text: str, replacement: str) -> None:
    """Replaces a text, however its lines are broken."""
    old = path.read_text()
    pattern = r"\s+".join(re.escape(word) for word in text.split())
    new, count = re.subn(pattern, lambda _: replacement, old)
    if count != 1:
        raise Broken(f"{path.name} has this text {count} times, not once: {text}")
    path.write_text(new)


def cut_deferred(runs: Path, out: Path) -> None:
    """Writes two functions of Runs to a file of their own."""
    text = runs.read_text()
    functions = [re.search(rf"^  (?:NOINLINE )?void {name}\(.*?^  }}$", text, re.MULTILINE | re.DOTALL) for name in ("defer", "take_back_deferred")]
    if None in functions:
        raise Broken("runs.h has no defer() or take_back_deferred()")
    out.write_text("\n".join(f.group(0) for f in functions if f))


def with_model_builtins(text: str) -> str:
    """The compiler's atomic built-ins as operations of model::atomic."""
    text = re.sub(r"__atomic_load_n\(&([^,]+), (\w+)\)", r"\1.load(model::order(\2))", text)
    text = re.sub(r"__atomic_store_n\(&([^,]+), (.+), (\w+)\);", r"\1.store(\2, model::order(\3));", text)
    text = text.replace("__atomic_signal_fence(__ATOMIC_SEQ_CST)", "model::compiler_fence()")
    return text.replace("__atomic_thread_fence(__ATOMIC_SEQ_CST)", "model::full_fence()")


def prepare(tree: Path, program: Program) -> None:
    for name in program.prepare:
        path = tree / name
        text = path.read_text().replace("std::atomic<", "model::atomic<")
        # Relacy's variables live only while a test runs. Nobody reads the three gates that are not a lane's.
        text = re.sub(r"inline constinit Gate (\w+);", r"inline Gate& \1 = *reinterpret_cast<Gate*>(0x1000);", text)
        text = re.sub(r"static_assert\(offsetof.*\n", "", text)  # Relacy's atomics are larger
        path.write_text(text)
        if path.suffix == ".h" and name == PUBLIC:
            path.write_text(with_model_builtins(path.read_text()))
    for name, old, new in program.substitutes:
        replace_once(tree / name, old, new)
    if "memory/runs.h" in program.prepare:
        cut_deferred(tree / "memory/runs.h", tree / "deferred.inc")


def compile(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line or "undefined" in line]
        raise Broken("does not compile:\n" + "\n".join(errors[:5]))


def precompile(place: Path) -> Path:
    """Copies the tests' sources and compiles what does not depend on src/. Returns where they lie."""
    sources = place / "model"
    shutil.copytree(HERE, sources)
    header = sources / "relacy/checked_atomic.h"
    compile([*RELACY, "-x", "c++-header", str(header), "-o", f"{header}.gch"])
    compile([*EXPLORER, "-O2", "-c", str(sources / "explorer/explorer.cpp"), "-o", str(sources / "explorer.o")])
    return sources


def write_tree(program: Program, edits: tuple[tuple[str, str, str], ...], place: Path) -> Path:
    """Makes a copy of src/ with the edits, as the program has it. Returns where it lies."""
    tree = place / "src"
    shutil.copytree(SOURCE, tree)
    shutil.copytree(SOURCE.parent / "include", place / "include")
    for file, text, replacement in edits:
        replace_once(tree / file, text, replacement)
    prepare(tree, program)
    return tree


def build(name: str, edits: tuple[tuple[str, str, str], ...], sources: Path, place: Path) -> Path:
    """Compiles a program over a copy of src/ with the edits. Returns the executable."""
    program = PROGRAMS[name]
    tree, executable = write_tree(program, edits, place), place / "test"
    source = str(sources / program.source)
    if name == "explorer":
        scenarios = str(place / "scenarios.o")
        compile([*EXPLORER, "-fsanitize=thread", f"-I{tree}", f"-I{place / 'include'}", "-c", source, "-o", scenarios])
        compile([CXX, "-no-pie", str(sources / "explorer.o"), scenarios, "-o", str(executable)])
        return executable
    for include in program.includes:  # a header beside its includer would be preferred to the stub
        for stub in (sources / include).rglob("*.h"):
            (tree / stub.relative_to(sources / include)).unlink()
    includes = [f"-I{sources / include}" for include in program.includes]
    compile([*RELACY, *includes, f"-I{tree}", f"-I{place / 'include'}", source, "-o", str(executable)])
    return executable


def run_test(executable: Path, test: str, *choices: str, deeper: int = max(DEEPER, 0)) -> tuple[int, str]:
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
        command = ["addr2line", "-e", str(executable), "-f", "-C", "-i", "-s", hex(int(address, 16) - 1)]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        frames = list(zip(lines[::2], lines[1::2]))
        frames = [f for f in frames if not f[1].startswith("atomic")] or frames
        places[address] = " < ".join(f"{bare(function)} {line.split(' ')[0]}" for function, line in frames[:2])
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
            outcomes.append(Outcome(status == 0, title, "" if status == 0 else indented(output, 300)))
        if name == "explorer":
            outcomes += replay_kept(executable, "none")
    return outcomes


def check_quotes() -> list[Outcome]:
    """Whether each text that a mutant replaces, or that stands for another in a program, is there once. Compiles nothing."""
    outcomes = []
    for title, name, edits in [(f"program {name}", name, ()) for name in PROGRAMS] + [(f"mutant '{m.name}'", m.program, m.edits) for m in MUTANTS]:
        with tempfile.TemporaryDirectory() as place:
            try:
                write_tree(PROGRAMS[name], edits, Path(place))
                outcomes.append(Outcome(True, f"{title} quotes the sources"))
            except Broken as why:
                outcomes.append(Outcome(False, f"{title}: {why}"))
    return outcomes


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
                return [Outcome(False, f"{title}: {test} ended with {status}", indented(output, 60))]
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
    lines = [line.removeprefix("choices:") for line in file.read_text().splitlines() if line.startswith("choices:")]
    choices = shlex.split(lines[0])
    with tempfile.TemporaryDirectory() as place:
        executable = build("explorer", (), precompile(Path(place) / "sources"), Path(place))
        status, output = run_test(executable, test, *choices)
    print(output)
    return status


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help=f"programs whose name contains this: {', '.join(PROGRAMS)}")
    parser.add_argument("--mutant", help="only mutants whose name contains this; 'none': no mutants")
    parser.add_argument("--replay", nargs=2, metavar=("SCENARIO", "FILE"),
                        help="run the schedule of the explorer whose `choices:` line FILE holds")
    parser.add_argument("--quotes", action="store_true", help="only look whether what mutants and programs quote is there once: some seconds")
    arguments = parser.parse_args()
    if arguments.quotes:
        outcomes = check_quotes()
        failed = sum(not outcome.good for outcome in outcomes)
        print("\n".join(f"FAILED {outcome.title}" for outcome in outcomes if not outcome.good) or "ok each quote is found once")
        print(f"{len(outcomes) - failed} passed, {failed} failed, 0 skipped")
        return 0 if failed == 0 else 1
    if arguments.replay:
        return replay(arguments.replay[0], Path(arguments.replay[1]))
    programs = [name for name in PROGRAMS if arguments.only in name and arguments.mutant in (None, "none")]
    mutants = [m for m in MUTANTS if arguments.only in m.program and (arguments.mutant or "") in m.name]
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
