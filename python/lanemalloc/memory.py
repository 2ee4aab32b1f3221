"""Another process' memory, read without stopping it: many pieces in one system call."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lanemalloc.process import Gone as Gone
from lanemalloc.ui import Problem

Addresses = npt.NDArray[np.uint64]
Buffer = npt.NDArray[np.uint8]
Complete = npt.NDArray[np.bool_]

# Pieces a call takes (IOV_MAX), and how often one gather goes on behind a piece that cannot be
# read.
MOST_PIECES = 1024
MOST_HOLES = 256


class Unreadable(Exception):
    """Memory that was to be there is not: it was given back meanwhile, or a word that led there was
    torn."""


class NotAllowed(Problem):
    """The system does not let this user read that process."""


class Memory(Protocol):
    """What a reader asks of memory; tests have one of their own."""

    def gather(self, addresses: Addresses, lengths: Addresses) -> tuple[Buffer, Complete]:
        """The pieces one behind the other, and which of them could be read whole; the others are
        zeros, or partly."""


def read(memory: Memory, address: int, length: int) -> Buffer:
    """One piece, whole."""
    buffer, complete = memory.gather(np.array([address], np.uint64), np.array([length], np.uint64))
    if not complete[0]:
        raise Unreadable(f"{length} bytes at {address:#x}")
    return buffer


class ProcessMemory:
    """By process_vm_readv. Raises Gone and NotAllowed."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.calls = 0
        self.bytes = 0
        self._readv = ctypes.CDLL(None, use_errno=True).process_vm_readv
        self._readv.restype = ctypes.c_ssize_t
        self._readv.argtypes = [
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_ulong,
            ctypes.c_void_p,
            ctypes.c_ulong,
            ctypes.c_ulong,
        ]

    def gather(self, addresses: Addresses, lengths: Addresses) -> tuple[Buffer, Complete]:
        ends = np.cumsum(lengths, dtype=np.uint64)
        buffer: Buffer = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
        complete: Complete = np.zeros(len(addresses), np.bool_)
        remote = np.ascontiguousarray(np.stack([addresses, lengths], axis=1), np.uint64)
        at = holes = 0
        while at < len(addresses) and holes < MOST_HOLES:
            until = min(at + MOST_PIECES, len(addresses))
            begin = int(ends[at] - lengths[at])
            done = self._call(buffer[begin : int(ends[until - 1])], remote[at:until])
            whole = int(np.searchsorted(ends[at:until], np.uint64(begin + done), side="right"))
            complete[at : at + whole] = True
            at += whole
            if at < until:  # the next one has a hole
                holes += 1
                at += 1
        return buffer, complete

    def _call(self, into: Buffer, remote: npt.NDArray[np.uint64]) -> int:
        local = np.array([into.ctypes.data, into.nbytes], np.uint64)
        self.calls += 1
        done = int(self._readv(self.pid, local.ctypes.data, 1, remote.ctypes.data, len(remote), 0))
        if done >= 0:
            self.bytes += done
            return done
        error = ctypes.get_errno()
        if error == errno.EFAULT:
            return 0
        if error == errno.ESRCH:
            raise Gone(f"process {self.pid} has ended")
        if error == errno.EPERM:
            raise not_allowed(self.pid)
        raise Problem(f"process {self.pid} cannot be read: {os.strerror(error)}")


def not_allowed(pid: int) -> NotAllowed:
    """Says what of several things stands in the way, as far as that can be seen."""
    what = f"this user may not read the memory of process {pid}"
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        owner = os.geteuid()
    if os.geteuid() == 0:
        return NotAllowed(
            what,
            "root lacks CAP_SYS_PTRACE here: in a container, start it with --cap-add=SYS_PTRACE "
            "(and --pid=host to see the host's processes), or run lanemalloc on the host",
        )
    if owner != os.geteuid():
        return NotAllowed(
            what,
            f"it belongs to user {owner}: run this as that user or with sudo; "
            "a setuid or setcap program only root may read",
        )
    if ptrace_scope() > 0:
        return NotAllowed(
            what,
            f"kernel.yama.ptrace_scope is {ptrace_scope()}: run this with sudo, or allow it with "
            "`sudo sysctl kernel.yama.ptrace_scope=0`; what `lanemalloc run` starts it may read at "
            "1 too",
        )
    return NotAllowed(
        what,
        "it has made itself unreadable (prctl PR_SET_DUMPABLE, file capabilities), or lies in "
        "another user namespace or container: run this with sudo, or in that container with "
        "--cap-add=SYS_PTRACE",
    )


def ptrace_scope() -> int:
    """Of Yama; 0 where it is not there."""
    try:
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        return 0
