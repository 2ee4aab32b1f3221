"""PostgreSQL under pgbench on a Unix socket: selects alone, then its bank transactions (tpc-b),
four clients.

The server refuses root, so it runs as the user postgres (or nobody) then. Each run works on a copy
of one cluster. A server is many processes that share much, so its memory is the sum of RssAnon over
all of them: peak_kib is the greatest that is seen while the clients work (looked up five times a
second), settled_kib what the processes that stay have once the clients are gone. CPU time and
faults are those of the whole server during the clients' work.
"""

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import common
from common import Library

from .program import (
    HERE,
    START_SECONDS,
    Sample,
    Usage,
    Words,
    client,
    prove,
    scaled,
    server,
    status_kib,
    tree_of,
)

BANK = 4  # pgbench's scale: 400,000 accounts
SELECTS = 4_000  # of each of four clients
TRANSACTIONS = 600
PERIOD = 0.2  # seconds between two looks at the memory
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "shared_buffers": "64MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "1h",
}


def programs() -> Path:
    """The folder of the newest PostgreSQL that is installed."""
    found = list(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not found:
        raise RuntimeError("postgres: /usr/lib/postgresql/*/bin/postgres is not there")
    return max(found, key=lambda file: float(file.parts[4])).parent


def server_user() -> str | None:
    if os.geteuid() != 0:
        return None
    known = subprocess.run(["id", "postgres"], capture_output=True, check=False).returncode == 0
    return "postgres" if known else "nobody"


def as_server(*command: str | Path) -> None:
    """Runs a command as the user that owns the cluster."""
    user = server_user()
    group = (
        None if user is None else subprocess.check_output(["id", "-gn", user], text=True).strip()
    )
    done = subprocess.run(
        [str(word) for word in command], env=Library("libc", None).environment(LC_ALL="C"), cwd="/",
        capture_output=True, text=True, check=False, user=user, group=group,
        extra_groups=None if user is None else (),
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"postgres: {' '.join(map(str, command))}: {done.stderr.strip()[-400:]}")


def reachable(how: str, file: Path) -> None:
    """Raises where the server's user may not use a file; how is an option of test(1)."""
    try:
        as_server("test", how, file)
    except RuntimeError:
        raise RuntimeError(
            f"postgres: the user {server_user()} may not reach {file} (test {how})"
        ) from None


def give(folder: Path) -> None:
    """To the user that runs the server."""
    if (user := server_user()) is not None:
        shutil.chown(folder, user)


@contextlib.contextmanager
def running(library: Library, data: Path) -> Iterator[tuple[int, Path]]:
    """A server on a cluster: its first process and the folder of its socket."""
    bin_ = programs()
    with tempfile.TemporaryDirectory(prefix="lanemalloc-bench-") as text:
        directory = Path(text)
        give(directory)
        settings = SETTINGS | {"unix_socket_directories": text}
        command: list[str | Path] = [bin_ / "postgres", "-D", data]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        isready = [str(bin_ / "pg_isready"), "-q", "-h", text, "-U", "owner"]

        def ready() -> bool:
            return (
                subprocess.run(
                    isready, env=Library("libc", None).environment(), check=False
                ).returncode
                == 0
            )

        with server(
            "postgres", command, library, directory, ready, stop=signal.SIGINT, user=server_user()
        ) as pid:
            yield pid, directory


def private_kib(pid: int) -> float:
    total = 0.0
    for process in tree_of(pid):
        with contextlib.suppress(
            FileNotFoundError, ProcessLookupError, RuntimeError
        ):  # has just ended
            total += status_kib(process, "RssAnon")
    return total


class Watch:
    """Keeps the greatest private memory of a server, until it is left."""

    def __init__(self, pid: int) -> None:
        self.peak = private_kib(pid)
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._over.wait(PERIOD):
            self.peak = max(self.peak, private_kib(self._pid))

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def wait_for_end_of_backends(pid: int, before: int, library: Library) -> None:
    deadline = time.monotonic() + START_SECONDS
    while len(tree_of(pid)) > before:
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"postgres under {library.name}: backends stay when their clients have gone"
            )
        time.sleep(0.005)


@dataclasses.dataclass(frozen=True)
class Postgres:
    name: str = "postgres"
    packages: tuple[str, ...] = ("postgresql",)
    about: str = "PostgreSQL under pgbench: selects, then tpc-b, four clients"

    def prepare(self, work: Path) -> None:
        give(work)
        cluster = work / "cluster"
        if cluster.exists():
            return
        bin_, partial = programs(), work / "partial"
        reachable("-w", work)
        as_server("rm", "-rf", partial)
        as_server(bin_ / "initdb", "-D", partial, "-U", "owner", "-A", "trust", "-E", "UTF8",
                  "--no-locale", "--no-sync", "--wal-segsize=1")  # fmt: skip
        libc = Library("libc", None)
        with running(libc, partial) as (_, socket):
            client(
                self.name,
                [
                    bin_ / "pgbench",
                    "-h",
                    socket,
                    "-U",
                    "owner",
                    "-i",
                    "-q",
                    "-s",
                    str(BANK),
                    "postgres",
                ],
                libc,
            )
        partial.rename(cluster)

    def run(self, library: Library, work: Path, scale: float) -> Sample:
        bin_ = programs()
        prove(self.name, "postgres", [bin_ / "postgres", "--version"], library)
        reachable("-x", common.compile_program(HERE / "launch.c", "launch"))
        if library.path is not None:
            reachable("-r", library.path)
        copy = work / f"copy-{os.getpid()}"
        for old in work.glob("copy-*"):
            if old == copy or not Path("/proc", old.name.removeprefix("copy-")).exists():
                as_server("rm", "-rf", old)  # of a run that was killed
        try:
            as_server("cp", "-a", work / "cluster", copy)
            with running(library, copy) as (pid, socket):
                always = len(tree_of(pid))
                before = Usage.of(tree_of(pid))
                pgbench: Words = [
                    bin_ / "pgbench",
                    "-h",
                    socket,
                    "-U",
                    "owner",
                    "-n",
                    "-c",
                    "4",
                    "-j",
                    "1",
                ]
                with Watch(pid) as watch:
                    seconds = 0.0
                    for kind, count in (("select-only", SELECTS), ("tpcb-like", TRANSACTIONS)):
                        number = scaled(count, scale)
                        words = [*pgbench, "-b", kind, "-t", str(number), "postgres"]
                        more, text = client(self.name, words, library)
                        if f"processed: {4 * number}/{4 * number}" not in text:
                            raise RuntimeError(
                                f"pgbench under {library.name} did not do {4 * number} of {kind}: "
                                f"{text[-400:]}"
                            )
                        seconds += more
                wait_for_end_of_backends(pid, always, library)
                used = Usage.of(tree_of(pid)) - before
                settled = private_kib(pid)
        finally:
            as_server("rm", "-rf", copy)
        return Sample(
            seconds, used.cpu_seconds, watch.peak, settled, used.minor_faults, used.major_faults
        )
