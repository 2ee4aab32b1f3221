"""What the figures of the suite depend on: the machine, its settings, the versions of compilers and
tools. It changes none of them.

Used by: main.py.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import common

COMPILERS = ("cc", "c++", "clang++-19", "cargo")


def read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def first_line(*command: str) -> str:
    if not common.need(command[0]):
        return "none"
    return (
        subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
        or ["?"]
    )[0]


def chosen(path: str) -> str:
    """The bracketed word of a kernel setting."""
    text = read(path)
    return "none" if text is None else (re.findall(r"\[([\w+]+)\]", text) or [text])[0]


def memory_gib() -> str:
    seen = re.search(r"^MemTotal:\s+(\d+)", read("/proc/meminfo") or "", re.MULTILINE)
    return f"{int(seen.group(1)) / 2**20:.1f} GiB" if seen else "?"


def ranges(numbers: set[int]) -> str:
    """{0, 1, 2, 5} as '0-2,5'."""
    parts: list[list[int]] = []
    for n in sorted(numbers):
        if parts and n == parts[-1][-1] + 1:
            parts[-1].append(n)
        else:
            parts.append([n])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def affinity() -> str:
    mine = os.sched_getaffinity(0)
    return f"CPUs {ranges(mine)} of {os.cpu_count()}; nothing is pinned"


def quota() -> str:
    text = read("/sys/fs/cgroup/cpu.max")
    return "none" if text is None or text.startswith("max") else text


def governor() -> str:
    files = sorted(Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor"))
    found = {f.read_text().strip() for f in files}
    return ", ".join(sorted(found)) if found else "not shown by this machine"


def distribution() -> str:
    seen = re.search(r'^PRETTY_NAME="?([^"\n]*)', read("/etc/os-release") or "", re.MULTILINE)
    return seen.group(1) if seen else "?"


def hypervisor() -> str:
    flags = read("/proc/cpuinfo") or ""
    return "yes" if re.search(r"^flags\s*:.*\bhypervisor\b", flags, re.MULTILINE) else "not shown"


def steal_ticks() -> tuple[int, int]:
    """(taken away by the hypervisor, all) since boot, in ticks."""
    fields = [int(f) for f in (read("/proc/stat") or "cpu 0").splitlines()[0].split()[1:9]]
    return (fields[7] if len(fields) > 7 else 0, sum(fields))


def load() -> str:
    return " ".join(f"{l:.2f}" for l in os.getloadavg())


def before(libraries: list[str]) -> dict[str, str]:
    base = common.machine()
    lines = dict(i.split(" ", 1) for i in base.pop("peers").split("; ") if " " in i)
    for name in ("load average at start", "compiler", "transparent huge pages"):
        base.pop(name)
    shown: dict[str, str] = base | {
        "cpu affinity": affinity(),
        "cpu quota of the group": quota(),
        "frequency governor": governor(),
        "virtual machine": hypervisor(),
        "memory": memory_gib(),
        "distribution": distribution(),
        "transparent huge pages": chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
        "huge page defragmentation": chosen("/sys/kernel/mm/transparent_hugepage/defrag"),
        "overcommit": read("/proc/sys/vm/overcommit_memory") or "?",
        "address randomisation": read("/proc/sys/kernel/randomize_va_space") or "?",
    }
    for name in COMPILERS:
        shown[name] = first_line(name, "--version")
    shown["python"] = sys.version.split()[0]
    for name in libraries:
        if name in lines:
            shown[f"peer {name}"] = lines[name]
    return shown | {"load average at start": load()}


def after(ticks_before: tuple[int, int]) -> dict[str, str]:
    stolen, total = (a - b for a, b in zip(steal_ticks(), ticks_before))
    return {
        "load average at end": load(),
        "CPU time taken away by the hypervisor": f"{100 * stolen / total:.1f} %" if total else "?",
    }


def counters_work() -> bool:
    """Whether perf stat counts a program's instructions and cycles here."""
    if not common.need("perf"):
        return False
    with tempfile.NamedTemporaryFile("r", suffix=".perf") as file:
        command = ["perf", "stat", "-x,", "-o", file.name, "-e", "instructions:u,cycles:u", "true"]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            return False
        return len(parse_counters(file.read())) == 2


def parse_counters(text: str) -> dict[str, float]:
    """perf stat -x, lines: 'value,unit,event,...'. What was not counted is left out."""
    found = {}
    for line in text.splitlines():
        parts = line.split(",")
        if len(parts) > 2 and re.fullmatch(r"\d+(\.\d+)?", parts[0]):
            found[parts[2].partition(":")[0]] = float(parts[0])
    return {k: v for k, v in found.items() if k in ("instructions", "cycles")}
