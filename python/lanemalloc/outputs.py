"""Files that a command writes: checked before the work, whole or not at all after it.

A regular file is written beside and renamed, so that neither a full disk nor an end in between
leaves half of it. What is no regular file (/dev/stdout, a pipe) is written as it stands.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from lanemalloc.ui import Problem

NEXT_STEP = "name another file with {}"


def cannot_write(path: Path, option: str, error: OSError) -> Problem:
    return Problem(f"{path} cannot be written: {error.strerror or error}", NEXT_STEP.format(option))


def check(path: Path | None, option: str) -> None:
    """Raises Problem where `path` could not be written; leaves nothing behind."""
    if path is None:
        return
    try:
        # A pipe is not opened: its reader would take that for the end.
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if not is_special(path) and not stays_in_place(path):
            with temporary(path):
                pass
    except OSError as error:
        raise cannot_write(path, option, error) from None


def is_special(path: Path) -> bool:
    """Neither a regular file nor nothing. Raises OSError for a folder."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return not stat.S_ISREG(mode)


def stays_in_place(path: Path) -> bool:
    """Whether it can be written, but not replaced: the folder is another user's."""
    target = os.path.realpath(path)
    return os.access(target, os.W_OK) and not os.access(os.path.dirname(target), os.W_OK)


class temporary:
    """A new file beside `path`, which is gone at the end unless it was renamed."""

    def __init__(self, path: Path) -> None:
        self.target = Path(os.path.realpath(path))  # a link stays, and what it names is replaced

    def __enter__(self) -> Path:
        handle, name = tempfile.mkstemp(prefix=".lanemalloc-", dir=self.target.parent)
        self.path = Path(name)
        try:
            os.fchmod(handle, mode_for(self.target))
        finally:
            os.close(handle)
        return self.path

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


def mode_for(target: Path) -> int:
    """That of the file which is replaced; else as usual."""
    with contextlib.suppress(FileNotFoundError):
        return stat.S_IMODE(target.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def write(path: Path, make: Callable[[Path], object]) -> None:
    """Has `make` write a file, and puts it in the place of `path`. Raises OSError."""
    if is_special(path) or stays_in_place(path):
        make(path)
        return
    target = temporary(path)
    with target as file:
        make(file)
        os.replace(file, target.target)


def write_text(path: Path, text: str) -> None:
    write(path, lambda file: file.write_text(text, encoding="utf-8", errors="replace"))
