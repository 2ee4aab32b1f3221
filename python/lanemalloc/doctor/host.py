"""What on this machine gets in the way, or changes what the allocator does."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from lanemalloc import process, units
from lanemalloc.doctor.finding import Finding, note, ok, problem
from lanemalloc.memory import ptrace_scope
from lanemalloc.preload import OPTIONS, PRELOAD, environment, parse_options
from lanemalloc.ui import Problem, native

SYSTEM_CALLS = {
    "x86_64": {"membarrier": 324, "rseq": 334},
    "aarch64": {"membarrier": 283, "rseq": 293},
}
QUERY, EXPEDITED, REGISTER, RSEQ, REGISTER_RSEQ = 0, 1 << 3, 1 << 4, 1 << 7, 1 << 8
USUAL_MAPS = 65530
THREADS = (
    "import threading; t = [threading.Thread(target=lambda: [bytearray(n) for n in range(3000)]) "
    "for _ in range(4)]; [x.start() for x in t]; [x.join() for x in t]"
)


def examine() -> list[Finding]:
    """Everything, in the order in which it matters."""
    findings = [library(), c_library(), membarrier(), rseq(), *really_by_cpu(), *options()]
    findings += [
        preload(),
        page_size(),
        huge_pages(),
        overcommit(),
        map_count(),
        address_space(),
        *cgroup(),
        ptrace(),
    ]
    return findings


def sysctl(name: str) -> str:
    """Empty where there is none."""
    try:
        return Path("/proc/sys", *name.split(".")).read_text().strip()
    except OSError:
        return ""


# --- The library, tried.


def tried(settings: str, argv: list[str]) -> tuple[int, str, dict[str, object]]:
    """Runs a small program with the library: its status, what was said on standard error, and its
    figures."""
    with tempfile.TemporaryDirectory(prefix="lanemalloc-") as folder:
        clean = {key: value for key, value in os.environ.items() if key not in (OPTIONS, PRELOAD)}
        wanted = (settings, f"stats=exit,stats_format=json,stats_file={folder}/out.json")
        try:
            done = subprocess.run(
                argv,
                env=environment(None, wanted, {}, clean),
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return -1, str(error), {}
        figures: dict[str, object] = {}
        with contextlib.suppress(OSError, ValueError):
            figures = json.loads(Path(folder, "out.json").read_text())
        return done.returncode, done.stderr, figures


def library() -> Finding:
    try:
        path = native("liblanemalloc.so")
    except Problem as error:
        return problem(
            "library",
            "liblanemalloc.so is missing",
            "nothing can run with it",
            error.message.split("\n")[-1].strip(),
        )
    status, said, figures = tried("", [sys.executable, "-c", "pass"])
    if status != 0 or not figures:
        return problem(
            "library",
            f"{path} does not work here (status {status})",
            said.strip()[:300],
            "build it on this machine: make build",
        )
    return ok("library", str(path))


def c_library() -> Finding:
    name, version = platform.libc_ver()
    if name != "glibc":
        return problem(
            "C library",
            f"{name or 'unknown'} {version}",
            "the library was built for glibc",
            "build lanemalloc with this C library",
        )
    if tuple(map(int, version.split(".")[:2])) < (2, 35):
        return note(
            "C library",
            f"glibc {version}",
            "it registers no restartable sequences: lanes=percpu falls back to lanes=shared",
            "glibc 2.35 or later (Debian 12, Ubuntu 22.04)",
        )
    return ok("C library", f"glibc {version}")


def call(name: str, *arguments: int) -> int:
    """The result of a system call; minus the error's number."""
    numbers = SYSTEM_CALLS.get(os.uname().machine)
    if numbers is None:
        return -errno.ENOSYS
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    result = int(
        libc.syscall(ctypes.c_long(numbers[name]), *[ctypes.c_long(value) for value in arguments])
    )
    return result if result >= 0 else -ctypes.get_errno()


def membarrier() -> Finding:
    without = (
        "memory of idle threads comes back only when they call again, "
        "and lanes=percpu is not to be had"
    )
    mask = call("membarrier", QUERY, 0, 0)
    if mask < 0:
        return problem(
            "membarrier", f"the system refuses it ({os.strerror(-mask)})", without, refused(-mask)
        )
    if call("membarrier", REGISTER, 0, 0) < 0 or call("membarrier", EXPEDITED, 0, 0) < 0:
        return problem(
            "membarrier",
            "the kernel has no private expedited barrier",
            without,
            "Linux 4.14 or later",
        )
    if (
        not mask & RSEQ
        or call("membarrier", REGISTER_RSEQ, 0, 0) < 0
        or call("membarrier", RSEQ, 0, 0) < 0
    ):
        return note(
            "membarrier",
            "works, but not for restartable sequences",
            "lanes=percpu is not to be had",
            "Linux 5.10 or later",
        )
    return ok("membarrier", "works, for restartable sequences too")


def refused(number: int) -> str:
    if number == errno.ENOSYS:
        return "Linux 4.14 or later; a sandbox (gVisor, old seccomp profiles) may hide it"
    return "allow membarrier in the sandbox's seccomp profile"


def rseq() -> Finding:
    # A call without an address: EINVAL where there are restartable sequences.
    result = call("rseq", 0, 0, 0, 0)
    if result in (-errno.EINVAL, -errno.EBUSY, -errno.EFAULT, 0):
        return ok("rseq", "the kernel has restartable sequences")
    do = (
        "Linux 4.18 or later"
        if result == -errno.ENOSYS
        else "allow rseq in the sandbox's seccomp profile"
    )
    return note(
        "rseq",
        f"the system refuses it ({os.strerror(-result)})",
        "lanes=percpu falls back to lanes=shared",
        do,
    )


def really_by_cpu() -> list[Finding]:
    """Has a program with threads enter lanes by CPU, and asks how it did."""
    _, said, figures = tried("lanes=percpu", [sys.executable, "-c", THREADS])
    if not figures:
        return []
    if figures.get("entry") == "percpu":
        return [ok("lanes=percpu", "tried: works")]
    why = next((line for line in said.splitlines() if "percpu" in line), "")
    tunables = "rseq" in os.environ.get("GLIBC_TUNABLES", "")
    do = (
        "unset GLIBC_TUNABLES (glibc.pthread.rseq=0 is set)"
        if tunables
        else "see C library, rseq and membarrier above"
    )
    return [
        note(
            "lanes=percpu",
            f"tried: {figures.get('entry')} is used instead",
            why.removeprefix("lanemalloc: "),
            do,
        )
    ]


def options() -> list[Finding]:
    """What the library itself says of LANEMALLOC_OPTIONS."""
    text = os.environ.get(OPTIONS, "")
    if not text:
        return [ok(OPTIONS, "not set")]
    kept = {
        key: value
        for key, value in parse_options(text).items()
        if not key.startswith("stats") and key != "strict"
    }
    wanted = ",".join(f"{key}={value}" for key, value in kept.items())
    _, said, _ = tried(wanted, [sys.executable, "-c", "pass"])
    complaints = [
        line.removeprefix("lanemalloc: ") for line in said.splitlines() if OPTIONS in line
    ]
    if not complaints:
        return [ok(OPTIONS, text)]
    return [
        problem(
            OPTIONS,
            line,
            "the program runs with what is used instead",
            "correct it; docs/options.md has all keys",
        )
        for line in complaints
    ]


def preload() -> Finding:
    words = os.environ.get(PRELOAD, "").replace(":", " ").split()
    others = [word for word in words if "lanemalloc" not in word]
    if any("malloc" in Path(word).name for word in others):
        return problem(
            PRELOAD,
            " ".join(others),
            "two allocators are preloaded: the first one wins",
            f"unset {PRELOAD}",
        )
    return ok(PRELOAD, " ".join(others) or "not set")


# --- The system's settings.


def page_size() -> Finding:
    size = os.sysconf("SC_PAGE_SIZE")
    if size > 65536:
        return problem(
            "page size",
            units.size(size),
            "the allocator's blocks have 64 KiB",
            "a kernel with pages of 64 KiB or less",
        )
    if size > 4096:
        return note(
            "page size",
            units.size(size),
            "small heaps take more memory: a lane's first objects touch whole pages",
        )
    return ok("page size", units.size(size))


def huge_pages() -> Finding:
    try:
        text = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return ok("huge pages", "the kernel has none")
    mode = text.partition("[")[2].partition("]")[0]
    if mode == "always":
        return note(
            "huge pages",
            "always",
            "fewer misses of the TLB; resident memory may exceed what was touched by up to 2 MiB "
            "for each piece of the heap",
            "if memory matters more: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )
    return ok("huge pages", mode)


def overcommit() -> Finding:
    mode = sysctl("vm.overcommit_memory")
    if mode == "2":
        return note(
            "overcommit",
            "vm.overcommit_memory=2 (strict)",
            "what the allocator has claimed and not touched counts against the limit "
            "(CommitLimit of /proc/meminfo)",
            "leave room: vm.overcommit_ratio, or vm.overcommit_memory=0",
        )
    return ok("overcommit", {"0": "heuristic", "1": "always"}.get(mode, mode or "unknown"))


def map_count() -> Finding:
    text = sysctl("vm.max_map_count")
    count = int(text) if text.isdigit() else USUAL_MAPS
    if count < USUAL_MAPS:
        return note(
            "max_map_count",
            f"{count:,}",
            "each thread's stack takes two mappings, and large objects that grow take some: "
            "calls then fail with ENOMEM",
            f"sysctl vm.max_map_count={USUAL_MAPS} or more",
        )
    return ok("max_map_count", f"{count:,}")


def address_space() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return ok("address space", "no limit")
    what = f"RLIMIT_AS is {units.size(soft)}"
    if soft < 256 << 20:
        return problem(
            "address space",
            what,
            "the metadata alone takes some of it; little is left for the program",
            "ulimit -v unlimited",
        )
    return note(
        "address space",
        what,
        "malloc returns null when it is reached; metadata and clean runs count too",
        "ulimit -v unlimited",
    )


def cgroup() -> list[Finding]:
    findings = []
    group = process.cgroup_memory(os.getpid())
    if group is not None and group.limit is not None:
        findings.append(
            note(
                "memory limit",
                f"{units.size(group.limit)} for {group.path}, {units.size(group.used)} are used",
                "beyond it the system kills; cached runs count until they decay",
                "decay_ms=100 keeps less; `lanemalloc explain PID` tells where memory is",
            )
        )
    quota = cpu_quota()
    if quota is not None and quota < len(os.sched_getaffinity(0)):
        findings.append(
            note(
                "CPU limit",
                f"{quota:g} CPUs of {len(os.sched_getaffinity(0))}",
                "the system stops all threads when the quota is used up, also those inside a lane "
                "that others want",
                "lanes=owned or percpu, which nobody waits for, rather than shared; "
                "or pin the container to whole CPUs (cpuset)",
            )
        )
    return findings or [ok("control group", "no limits")]


def cpu_quota() -> float | None:
    """CPUs that the control group may use; None: no limit, or not to be seen."""
    path = process.cgroup_of(os.getpid())
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup" + path, "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):
        quota_us = int(Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").read_text())
        return (
            None
            if quota_us <= 0
            else quota_us / int(Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us").read_text())
        )
    return None


def ptrace() -> Finding:
    scope = ptrace_scope()
    meaning = {
        1: "top, explain and exporter read only what this user's own `lanemalloc run` has started, "
        "unless they run as root",
        2: "top, explain and exporter work for root only",
        3: "top, explain and exporter cannot read any process",
    }
    if scope == 0:
        return ok("ptrace scope", "0: processes of the same user may be read")
    finding = problem if scope == 3 else note
    return finding(
        "ptrace scope",
        str(scope),
        meaning.get(scope, ""),
        "sudo, or: sysctl kernel.yama.ptrace_scope=0",
    )
