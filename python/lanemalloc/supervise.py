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
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from lanemalloc.ui import Problem

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
    peak_resident: (
        int  # of it, or of a child that it has waited for; 0: not known, but at most peak_limit
    )
    peak_limit: int

    def describe(self) -> str:
        if self.signal is None:
            return f"exit status {self.status}"
        with contextlib.suppress(ValueError):
            return f"ended by {signal.Signals(self.signal).name}"
        return f"ended by signal {self.signal}"


class Child:
    """A program that runs. Make one, call `attend` until it returns an End, then `leave_like`."""

    def __init__(self, argv: list[str], environment: Mapping[str, str]) -> None:
        self._passed = set(signal.valid_signals()) - OWN - FAULTS
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._passed | {signal.SIGCHLD})
        self._ours = os.getpid()
        # A program's peak begins with that of who has started it.
        self._least_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.started = time.monotonic()
        try:
            # Python ignores these two from its start.
            defaults = {signal.SIGPIPE, signal.SIGXFSZ}
            self.pid = os.posix_spawnp(
                argv[0], argv, dict(environment), setsigmask=self._mask, setsigdef=defaults
            )
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
            raise cannot_start(argv[0], error) from None

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
            try:
                pid, status, usage = os.wait4(self.pid, os.WNOHANG | os.WUNTRACED)
            except InterruptedError:
                continue
            if pid == 0:
                return None
            if os.WIFSTOPPED(status):
                self._stop_too()
                continue
            by_signal = os.WIFSIGNALED(status)
            return End(
                None if by_signal else os.WEXITSTATUS(status),
                os.WTERMSIG(status) if by_signal else None,
                time.monotonic() - self.started,
                usage.ru_utime + usage.ru_stime,
                usage.ru_maxrss * 1024 if usage.ru_maxrss > self._least_peak else 0,
                usage.ru_maxrss * 1024,
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
            return end
        watch.look(time.monotonic() - child.started)
        after = next(first, None)
        now = time.monotonic()
        due = (
            now + watch.interval
            if after is None
            else max(child.started + after, now + FIRST_LOOKS[0])
        )


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
