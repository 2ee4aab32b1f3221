"""Starts a program and stands behind it as if it had been started in place: the same process group
and terminal, signals passed on, its end passed back.

    shell --- lanemalloc run --- program        one job: Ctrl-C, Ctrl-Z, fg and bg reach both

What the terminal sends (si_code SI_KERNEL) the program has got itself, being in the same group.
What somebody sent to this process alone is passed on; what the program itself sent to its group is
not. When the program stops, so does this process, and the shell sees the job stopped; when it is
continued, both are.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from lanemalloc import process
from lanemalloc.oom import Guard, Killed
from lanemalloc.ui import Problem, native

# What python/native/launch.cpp tells.
LAUNCHER, TOLD, STARTED = "lanemalloc-launch", struct.Struct("@ii"), 1
SI_KERNEL = 0x80
# Those that are not for passing on: they are this process' own, or cannot be blocked.
OWN = {signal.SIGCHLD, signal.SIGKILL, signal.SIGSTOP, signal.SIGTTIN, signal.SIGTTOU}
FIRST_LOOKS = (0.1, 0.2, 0.35)  # seconds after the start: short programs are seen too
EVERY, SHARE = 0.5, 0.01  # later at most so often, and that much of a CPU
FAULTS = {
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGABRT,
    signal.SIGSYS,
}


@dataclass(frozen=True)
class End:
    """How a program ended."""

    status: int | None  # None: by the signal
    signal: int | None
    seconds: float
    cpu_seconds: float
    peak_resident: int  # its own, or that of a process that it has waited for: the largest
    alone: bool  # it has waited for none
    oom: Killed | None = None

    def describe(self) -> str:
        if self.oom is not None and self.oom.itself:
            return "killed, out of memory (OOM),"
        if self.signal is None:
            return f"exit status {self.status}"
        with contextlib.suppress(ValueError):
            return f"ended by {signal.Signals(self.signal).name}"
        return f"ended by signal {self.signal}"


def start(
    argv: list[str],
    environment: Mapping[str, str],
    mask: Iterable[int],
    files: Sequence[tuple[Any, ...]] = (),
) -> int:
    """Starts a program as a child of this process, by the launcher, so that its peak does not begin
    with that of Python. `files`: as posix_spawn has them. Returns its number; raises OSError."""
    launcher, program = str(native(LAUNCHER)), path_of(argv[0])
    told, report = os.pipe()
    with open(told, "rb") as pipe:
        os.set_inheritable(report, True)
        try:
            launching = os.posix_spawn(
                launcher,
                [launcher, str(report), program, *argv],
                dict(environment),
                file_actions=files,
                setsigmask=mask,
                setsigdef={signal.SIGPIPE, signal.SIGXFSZ},  # Python ignores them
            )
        finally:
            os.close(report)
        words = pipe.read()
    os.waitpid(launching, 0)
    found = dict(TOLD.iter_unpack(words))
    pid: int = found.pop(STARTED, 0)
    for error in found.values():
        if pid:
            os.waitpid(pid, 0)
        raise OSError(error, os.strerror(error))
    if not pid:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return pid


class Child:
    """A program that runs. Make one, call `attend` until it returns an End, then `leave_like`."""

    def __init__(self, argv: list[str], environment: Mapping[str, str]) -> None:
        self._passed = set(signal.valid_signals()) - OWN - FAULTS
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._passed | {signal.SIGCHLD})
        self._ours = os.getpid()
        try:
            self.pid = start(argv, environment, self._mask)
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            raise cannot_start(argv[0], error) from None
        self.started = time.monotonic()

    def attend(self, until: float, seconds: Callable[[], float] = time.monotonic) -> End | None:
        """Passes signals on until the program ends (then its End) or that time comes (then
        None)."""
        while True:
            end = self._look()
            if end is not None:
                return end
            left = until - seconds()
            if left <= 0:
                return None
            got = signal.sigtimedwait(self._passed | {signal.SIGCHLD}, left)
            if got is not None and got.si_signo != signal.SIGCHLD:
                self._pass_on(got)

    def _look(self) -> End | None:
        """Whether it has ended; stops with it if it has stopped."""
        while True:
            what = os.WEXITED | os.WSTOPPED | os.WNOHANG
            seen = os.waitid(os.P_PID, self.pid, what | os.WNOWAIT)
            if seen is None:
                return None
            if seen.si_code not in (os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED):
                os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG)
                self._stop_too()
                continue
            alone = not process.has_waited(self.pid)  # while it is still there
            _, status, usage = os.wait4(self.pid, 0)
            by_signal = os.WIFSIGNALED(status)
            return End(
                None if by_signal else os.WEXITSTATUS(status),
                os.WTERMSIG(status) if by_signal else None,
                time.monotonic() - self.started,
                usage.ru_utime + usage.ru_stime,
                usage.ru_maxrss * 1024,
                alone,
            )

    def _stop_too(self) -> None:
        os.kill(self._ours, signal.SIGSTOP)
        # Here again once somebody has continued this process, perhaps alone.
        self._send(signal.SIGCONT)

    def _pass_on(self, got: signal.struct_siginfo) -> None:
        from_terminal = got.si_code == SI_KERNEL
        from_program = got.si_pid == self.pid
        if not from_terminal and not from_program:
            self._send(got.si_signo)

    def _send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, number)

    def leave_like(self, end: End) -> None:
        """Ends this process as the program ended: the same status, or the same signal."""
        if end.signal is None:
            os._exit(end.status or 0)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left its own
        with contextlib.suppress(OSError, ValueError):
            signal.signal(end.signal, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        os.kill(self._ours, end.signal)
        os._exit(128 + end.signal)


class Watch(Protocol):
    """What looks at a program now and then."""

    interval: float  # seconds from one look to the next, once the first ones are done
    trouble: Exception | None

    def look(self, at: float) -> None:
        """`at`: seconds since the start. Raises nothing."""


def attend(child: Child, watch: Watch) -> End:
    """Until the program ends."""
    guard = Guard(child.pid)
    guard.look()
    first = iter(FIRST_LOOKS)
    due = child.started + next(first)
    while True:
        end = child.attend(due)
        if end is not None:
            if watch.trouble is not None:
                sys.stderr.write(
                    f"lanemalloc: the program could not be read ({watch.trouble!r}); "
                    "please report this\n"
                )
            return replace(end, oom=guard.verdict(end.signal))
        guard.look()
        watch.look(time.monotonic() - child.started)
        after = next(first, None)
        now = time.monotonic()
        due = (
            now + watch.interval
            if after is None
            else max(child.started + after, now + FIRST_LOOKS[0])
        )


def path_of(program: str) -> str:
    """As execvp finds it. Raises OSError."""
    if "/" in program:
        return program
    found = errno.ENOENT
    for folder in os.get_exec_path():
        path = os.path.join(folder, program)
        if os.path.isfile(path):
            if os.access(path, os.X_OK):
                return path
            found = errno.EACCES
    raise OSError(found, os.strerror(found))


class NotFound(Problem):
    """Exits as shells do."""

    exit_code = 127


class NotExecutable(Problem):
    """Exits as shells do."""

    exit_code = 126


def cannot_start(program: str, error: OSError) -> Problem:
    what = f"{program}: {os.strerror(error.errno or 0)}"
    if error.errno == errno.ENOENT:
        return NotFound(what, "give the path, or a name that lies in PATH")
    return NotExecutable(what, "it must be an executable file, or a script with a #! line")
