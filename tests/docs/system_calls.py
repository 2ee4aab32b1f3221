"""That docs/system-calls.md names all that the library asks of the kernel, and nothing else: by its
sources, and by what it imports.

Called by: manual.py. The same while it runs, from the kernel's side: tests/borders/asked.c; each
call refused: refused.c.
"""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "system-calls.md"
LIBRARY = ROOT / "build" / "release" / "liblanemalloc.so"
# The stand-in of the tests for the system makes calls of its own.
NOT_SHIPPED = {"fake.h"}
# Values of arguments that tell one use of a call from another.
FLAGS = r"\b(?:FUTEX|MEMBARRIER_CMD|MADV|MREMAP|RLIMIT)_[A-Z_]+\b|\bF_DUPFD_CLOEXEC\b"

# What the library imports, and which calls the C library makes for it. "": none, or only those of a
# lock that is waited for (futex).
IMPORTS = {
    "__clone": "clone",
    "abort": "rt_sigprocmask gettid getpid tgkill",
    "backtrace": "openat read newfstatat mmap mprotect munmap close",
    "clock_gettime": "clock_gettime",
    "close": "close",
    "fcntl": "fcntl",
    "fstat": "newfstatat",
    "ftruncate": "ftruncate",
    "getpid": "getpid",
    "getrlimit": "prlimit64",
    "open": "openat",
    "pthread_attr_setaffinity_np": "sched_setaffinity",
    "pthread_attr_setinheritsched": "sched_setscheduler",
    "pthread_create": "clone3 clone mmap mprotect rt_sigprocmask set_robust_list rseq",
    "pthread_join": "futex",
    "pthread_mutex_lock": "futex",
    "pthread_mutex_unlock": "futex",
    "pthread_sigmask": "rt_sigprocmask",
    "sched_getaffinity": "sched_getaffinity",
    "sched_yield": "sched_yield",
    "sigaction": "rt_sigaction",
    "unlink": "unlink",
    "write": "write",
    # On memory of its own, or memory that the program has given; those of files write to the
    # program's own.
    **dict.fromkeys(
        (
            "_ITM_deregisterTMCloneTable _ITM_registerTMCloneTable _Unwind_Find_FDE "
            "_ZSt15get_new_handlerv _ZSt17__throw_bad_allocv\n        "
            "__cxa_finalize __environ __errno_location __gmon_start__ __libc_single_threaded "
            "__pthread_create __pthread_get_minstack __register_atfork __rseq_offset\n        "
            "__rseq_size _dl_find_object _r_debug dlopen dlsym environ fprintf fwrite getauxval "
            "memcpy memset pthread_attr_destroy pthread_attr_getstacksize "
            "pthread_attr_init\n        "
            "pthread_attr_setstacksize pthread_detach pthread_key_create pthread_key_delete "
            "pthread_mutex_trylock pthread_self pthread_setcancelstate pthread_setspecific "
            "sigemptyset sigfillset\n        "
            "stpcpy strcmp strerrordesc_np strlen strncpy strnlen sysconf thrd_create vsnprintf"
        ).split(),
        "",
    ),
}


def sources() -> str:
    files = [
        p
        for p in (ROOT / "src").rglob("*")
        if p.suffix in (".h", ".cpp") and p.name not in NOT_SHIPPED
    ]
    return "\n".join(re.sub(r"//.*", "", p.read_text()) for p in sorted(files))


def rows(page: str) -> set[str]:
    """What the first cells name."""
    cells = re.findall(r"^\| ([^|]*`[^|]*)\|", page, flags=re.MULTILINE)
    return {word for cell in cells for word in re.findall(r"`(\w+)`", cell)}


def imports() -> set[str]:
    command = ["nm", "-D", "--undefined-only", str(LIBRARY)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[-1].split("@")[0] for line in lines}


def missing_in(page: str) -> list[str]:
    text = sources()
    named = rows(page)
    made = set(re.findall(r"\bSYS_(\w+)", text))
    flags = set(re.findall(FLAGS, text)) - {"RLIMIT_INFINITY"}
    asked = made | {call for name in imports() for call in IMPORTS.get(name, "").split()}
    return [f"{call} is called, and has no row" for call in sorted(asked - named)] + [
        f"{flag} is used, and not named" for flag in sorted(flags) if f"`{flag}`" not in page
    ]


def test_every_call_has_a_row(_folder: Path) -> list[str]:
    return missing_in(PAGE.read_text())


def test_every_import_is_known(_folder: Path) -> list[str]:
    names = imports()
    return [
        f"{name} is imported; say in IMPORTS which calls it makes"
        for name in sorted(names - IMPORTS.keys())
    ] + ([] if len(names) > 40 else ["few imports"])


def test_no_row_is_left_over(_folder: Path) -> list[str]:
    calls = {name for name in rows(PAGE.read_text()) if name.islower()}
    asked = (
        set(re.findall(r"\bSYS_(\w+)", sources()))
        | {call for made in IMPORTS.values() for call in made.split()}
        | {"vfork"}
    )
    return [f"{call} has a row, and is not called" for call in sorted(calls - asked)]


def test_a_call_without_a_row_is_found(_folder: Path) -> list[str]:
    page = PAGE.read_text()
    bad = []
    for name in ("getrandom", "rt_sigaction", "FUTEX_CMP_REQUEUE_PRIVATE"):
        without = "\n".join(line for line in page.splitlines() if f"`{name}`" not in line)
        if not any(name in line for line in missing_in(without)):
            bad.append(f"nothing is said of {name}")
    return bad


TESTS = [
    test_every_call_has_a_row,
    test_every_import_is_known,
    test_no_row_is_left_over,
    test_a_call_without_a_row_is_found,
]
