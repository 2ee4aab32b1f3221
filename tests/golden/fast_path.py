#!/usr/bin/env python3
"""Pins the fast path: malloc, free, operator new and delete hold no locked operation, no fence and
no call.

Called by: tests/golden/run.sh.

  static    The body of each function, as objdump shows it. A miss leaves the body by a tail jump to
            a function out of line, which is not looked at. Their counts are compared with
            fast_path.txt (--update writes it).
  executed  What really runs: callgrind over the pair32 and bulk-shuffle loops of
            bench/micro/pairs.c. Every instruction of the library that ran at least once in ten
            pairs is looked up in the disassembly, wherever it stands, so moving an expensive
            instruction out of line does not hide it.
"""

import argparse
import dataclasses
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))
sys.path.insert(0, str(ROOT / "bench" / "micro"))
import common
import run as micro
from table import maker_of

GOLDEN = Path(__file__).resolve().parent / "fast_path.txt"
FUNCTIONS = {
    "malloc": "malloc",
    "free": "free",
    "_Znwm": "operator new",
    "_Znam": "operator new[]",
    "_ZdlPv": "operator delete",
    "_ZdaPv": "operator delete[]",
    "_ZdlPvm": "operator delete, sized",
    "_ZdaPvm": "operator delete[], sized",
}
MUST = ("malloc", "free")
PAIRS = {"pair32": 20_000, "bulk-shuffle": 50_000}

# x86-64: a lock prefix, xchg with memory (locked without saying so), fences, and calls into the
# kernel.
# aarch64: exclusive loads and stores, the LSE atomics, barriers, svc.
LOCKED = re.compile(
    r"^(?:lock\b|xchg\b.*\(|xchg\b.*,0x|[lms]fence\b|syscall\b|cpuid\b"
    r"|ld(?:a?xr|a?xp)|st(?:l?xr|l?xp)|cas[abhlp]*\b|swp[abhl]*\b"
    r"|(?:ld|st)(?:add|clr|eor|set|smax|smin|umax|umin)[abhl]*\b"
    r"|dmb\b|dsb\b|isb\b|svc\b)"
)
CALL = re.compile(r"^(?:bnd |notrack )*(?:call|bl\b|blr\b)")
CONDITIONAL = re.compile(r"^(?:j(?!mp)|b\.|cbn?z\b|tbn?z\b)")


@dataclasses.dataclass
class Symbol:
    address: int
    size: int


def output_of(*command: str | Path) -> str:
    return subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, check=True
    ).stdout


def symbols(library: Path) -> dict[str, Symbol]:
    """The functions that the library exports."""
    found = {}
    for line in output_of("readelf", "-W", "--dyn-syms", library).splitlines():
        parts = line.split()
        if len(parts) >= 8 and parts[3] in ("FUNC", "IFUNC") and parts[6] != "UND":
            found[parts[7].split("@")[0]] = Symbol(int(parts[1], 16), int(parts[2]))
    return found


def disassembly(library: Path) -> dict[int, str]:
    """Address -> instruction, for the whole library."""
    found = {}
    for line in output_of("objdump", "-d", "--no-show-raw-insn", library).splitlines():
        match = re.match(r"^\s*([0-9a-f]+):\s+(.*)$", line)
        if match:
            found[int(match.group(1), 16)] = re.sub(r"\s*(?:#|//).*$", "", match.group(2)).strip()
    return found


@dataclasses.dataclass
class Counts:
    instructions: int
    branches: int
    calls: int
    locked: int

    @classmethod
    def of(cls, body: Iterable[str]) -> "Counts":
        lines = [
            line
            for line in body
            if not re.match(r"^(?:nop|data16|endbr|bti\b|xchg\s+%ax,%ax|int3)", line)
        ]

        def count(pattern: re.Pattern[str]) -> int:
            return sum(1 for line in lines if pattern.match(line))

        return cls(len(lines), count(CONDITIONAL), count(CALL), count(LOCKED))

    def __str__(self) -> str:
        return (
            f"{self.instructions} instructions, {self.branches} branches, {self.calls} calls, "
            f"{self.locked} locked operations"
        )


class Verdicts:
    """Counts and prints what passed and what failed."""

    def __init__(self) -> None:
        self.passed = self.failed = self.skipped = 0

    def check(self, good: bool, what: str, why: str = "") -> None:
        self.passed += good
        self.failed += not good
        print(f"{'pass' if good else 'FAIL'}: {what}" + ("" if good or not why else f": {why}"))

    def skip(self, what: str, why: str) -> None:
        self.skipped += 1
        print(f"skip: {what}: {why}")

    def close(self) -> int:
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped")
        return 1 if self.failed else 0


def bodies(library: Path, code: dict[int, str]) -> dict[str, list[str]]:
    found = {}
    table = symbols(library)
    for name, title in FUNCTIONS.items():
        symbol = table.get(name)
        if symbol is not None and symbol.size > 0:
            span = range(symbol.address, symbol.address + symbol.size)
            found[title] = [text for address, text in code.items() if address in span]
    return found


def check_static(
    library: Path, verdicts: Verdicts, code: dict[int, str], golden: Path | None, update: bool
) -> None:
    found = bodies(library, code)
    for name in MUST:
        verdicts.check(
            bool(found.get(name)), f"{name} has a body to look at", "not exported, or its size is 0"
        )
    for name, body in found.items():
        for pattern, what in ((LOCKED, "no locked operation or fence"), (CALL, "no call")):
            bad = [text for text in body if pattern.match(text)]
            verdicts.check(not bad, f"{name}: {what}", "; ".join(bad[:3]))
    if golden is None:
        return
    head = f"# {maker_of(library)}\n"
    text = head + "".join(f"{name}: {Counts.of(body)}\n" for name, body in found.items())
    if update:
        golden.write_text(text)
        print(f"wrote {golden.relative_to(ROOT)}")
    elif not golden.exists():
        verdicts.check(False, f"{golden.name} is there", "run tests/golden/run.sh --update")
    elif not golden.read_text().startswith(head):
        verdicts.skip(
            f"counts as in {golden.name}", f"that was made elsewhere; here: {head[2:].strip()}"
        )
    else:
        old, new = golden.read_text().splitlines(), text.splitlines()
        changes = [f"-{line}" for line in old if line not in new] + [
            f"+{line}" for line in new if line not in old
        ]
        verdicts.check(
            old == new,
            f"counts as in {golden.name}",
            "\n  " + "\n  ".join(changes) + "\n  (if meant: --update)",
        )


def executed(
    library: common.Library, command: list[str], code: dict[int, str], *flags: str
) -> dict[int, int]:
    """Address in the library's file -> how often the instruction there ran."""
    assert library.path is not None
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "callgrind.out"
        output = micro.callgrind(library, command, file, "--dump-instr=yes", *flags)
        profile = file.read_text()
    # callgrind prints addresses as in the file where it knows the object, and as in memory where it
    # says "???".
    base = int(common.fields(output)["base"], 16)
    top = base + max(code)
    ran: dict[int, int] = {}
    known = inside = inclusive = False
    for line in profile.splitlines():
        if line.startswith("ob="):
            known = Path(line[3:]).resolve() == library.path.resolve()
            inside = known or line == "ob=???"
        elif line.startswith("calls="):
            inclusive = True
        elif line.startswith("0x"):
            if inside and not inclusive:
                address, _, cost = line.split()
                at = int(address, 16)
                if known or base <= at <= top:
                    at -= 0 if known else base
                    ran[at] = ran.get(at, 0) + int(cost)
            inclusive = False
    return ran


def check_executed(library: Path, verdicts: Verdicts, code: dict[int, str]) -> None:
    if not common.need("valgrind"):
        verdicts.skip("executed path", "no valgrind here")
        return
    program = micro.build()
    for workload, pairs in PAIRS.items():
        try:
            ran = executed(
                common.Library("library", library), [str(program), workload, str(pairs)], code
            )
        except RuntimeError as error:
            verdicts.check(False, f"{workload}: runs under callgrind", str(error))
            continue
        often = sorted(address for address, count in ran.items() if count * 10 >= pairs)
        known = [address for address in often if address in code]
        verdicts.check(
            len(often) >= 5 and len(known) == len(often),
            f"{workload}: {len(often)} instructions of the hit path seen at work",
            "none, or not in the disassembly",
        )
        bad = [f"{address:x}: {code[address]}" for address in known if LOCKED.match(code[address])]
        verdicts.check(
            not bad,
            f"{workload}: no locked operation or fence on the executed path",
            "; ".join(bad[:3]),
        )
        bad = [f"{address:x}: {code[address]}" for address in known if CALL.match(code[address])]
        verdicts.check(not bad, f"{workload}: no call on the executed path", "; ".join(bad[:3]))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("library", type=Path)
    parser.add_argument("--update", action="store_true", help="write the counts to fast_path.txt")
    parser.add_argument("--no-golden", action="store_true", help="do not compare counts")
    parser.add_argument("--only", choices=("static", "executed"))
    arguments = parser.parse_args()
    verdicts = Verdicts()
    library = arguments.library.resolve()
    code = disassembly(library)
    if arguments.only != "executed":
        check_static(
            library, verdicts, code, None if arguments.no_golden else GOLDEN, arguments.update
        )
    if arguments.only != "static":
        check_executed(library, verdicts, code)
    return verdicts.close()


if __name__ == "__main__":
    sys.exit(main())
