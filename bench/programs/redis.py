"""redis-server under redis-benchmark: set, get, lpush and lpop of 200-byte values, pipelined so
that the server is what limits.

Debian's redis-server is linked with jemalloc; a preload comes before it, and the C library's malloc
is reached by a forwarder. seconds are the client's, for all four commands; the rest is of the
server, its end figure with the data in it.
"""

import contextlib
import csv
import dataclasses
import socket
import tempfile
from pathlib import Path

from common import Library

from .program import Sample, Usage, client, prove, scaled, server, shimmed, status_kib

OPERATIONS = 250_000  # of each command
COMMANDS = ("set", "get", "lpush", "lpop")
CLIENT = ("-r", "100000", "-d", "200", "-c", "16", "-P", "64", "--csv")


def answers(path: Path) -> bool:
    with (
        socket.socket(socket.AF_UNIX) as connection,
        contextlib.suppress(FileNotFoundError, ConnectionError, TimeoutError),
    ):
        connection.settimeout(1.0)
        connection.connect(str(path))
        connection.sendall(b"PING\r\n")
        return connection.recv(64).startswith(b"+PONG")
    return False


@dataclasses.dataclass(frozen=True)
class Redis:
    name: str = "redis"
    packages: tuple[str, ...] = ("redis-server", "redis-tools")
    about: str = "redis-server: set, get, lpush, lpop of 200 bytes, pipelined"

    def prepare(self, work: Path) -> None:
        pass

    def run(self, library: Library, work: Path, scale: float) -> Sample:
        library = shimmed(library)
        prove(self.name, "redis-server", ["redis-server", "--version"], library)
        with tempfile.TemporaryDirectory(prefix="lanemalloc-bench-") as text:
            directory = Path(text)
            path = directory / "socket"
            command = [
                "redis-server",
                "--port",
                "0",
                "--unixsocket",
                str(path),
                "--save",
                "",
                "--appendonly",
                "no",
            ]
            command += ["--dir", str(directory), "--daemonize", "no"]
            with server(self.name, command, library, directory, lambda: answers(path)) as pid:
                before = Usage.of([pid])
                count = str(scaled(OPERATIONS, scale))
                words = [
                    "redis-benchmark",
                    "-s",
                    str(path),
                    "-t",
                    ",".join(COMMANDS),
                    "-n",
                    count,
                    *CLIENT,
                ]
                seconds, output = client(self.name, words, library)
                used = Usage.of([pid]) - before
                tests = [
                    row["test"].split()[0].lower() for row in csv.DictReader(output.splitlines())
                ]
                if tests != list(COMMANDS):
                    raise RuntimeError(f"redis-benchmark ran {tests}, not {COMMANDS}")
                peak, settled = status_kib(pid, "VmHWM"), status_kib(pid, "VmRSS")
        return Sample(
            seconds, used.cpu_seconds, peak, settled, used.minor_faults, used.major_faults
        )
