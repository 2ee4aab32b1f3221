"""Serves metrics over HTTP, or HTTPS; who may ask can be a matter of a password or a certificate.

What comes from outside costs a bounded number of threads for a bounded time: a connection is closed
when it is older than that, however slowly its request comes in.

Used by: the command exporter.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import ipaddress
import os
import signal
import socket
import ssl
import stat
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import click
from prometheus_client import CollectorRegistry, make_wsgi_app

from lanemalloc.ui import Problem

PATH = "/metrics"
MOST_CONNECTIONS = 8  # at a time; scrapes at the same time share one answer
LONGEST = 20.0  # seconds of a connection, beside those for a scrape
MOST_BYTES = 64 << 10  # of a file of passwords
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True)
class Doors:
    """Who may come in, and how."""

    certificate: Path | None = None
    key: Path | None = None
    client_authority: Path | None = None
    passwords: Path | None = None


class Server(ThreadingMixIn, WSGIServer):
    """A thread for each connection."""

    daemon_threads = True
    block_on_close = False
    longest = LONGEST
    context: ssl.SSLContext | None = None

    def __init__(self, *given: Any) -> None:
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._open: dict[Any, float] = {}  # by when each was accepted
        super().__init__(*given)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            with contextlib.suppress(OSError):
                if self.context is None:
                    request.send(BUSY, socket.MSG_DONTWAIT)
            self.shutdown_request(request)
            return
        self._open[request] = time.monotonic()
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._done(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            with contextlib.suppress(
                OSError
            ):  # ssl's errors too: it does not speak TLS, or is gone
                request.settimeout(self.longest)
                if self.context is not None:
                    request = self._encrypted(request)
                super().process_request_thread(request, client_address)
                return
            self.shutdown_request(request)
        finally:
            self._done(request)

    def _encrypted(self, request: Any) -> Any:
        """In the connection's own thread: the other side may take its time."""
        assert self.context is not None
        began = self._open.pop(request, time.monotonic())
        wrapped = self.context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        self._open[wrapped] = began
        try:
            wrapped.do_handshake()
        except BaseException:
            self._open.pop(wrapped, None)
            wrapped.close()
            raise
        return wrapped

    def _done(self, request: Any) -> None:
        self._open.pop(request, None)
        self._free.release()

    def service_actions(self) -> None:
        """Several times a second: wakes the threads of connections that take too long."""
        now = time.monotonic()
        for request, began in list(self._open.items()):
            if now - began > self.longest:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(request, socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is no fault."""


class ServerOfSix(Server):
    """Listens on IPv6, and by it on IPv4 too."""

    address_family = socket.AF_INET6


class Quiet(WSGIRequestHandler):
    """Writes no line for each scrape, and closes the connection after it."""

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def address_string(self) -> str:
        return str(self.client_address[0])  # no look-up of names


App = Callable[[dict[str, Any], Any], Iterable[bytes]]


def metrics_alone(app: App) -> App:
    """Answers at /metrics, and says so anywhere else."""

    def answer(environment: dict[str, Any], start: Any) -> Iterable[bytes]:
        if environment.get("PATH_INFO") != PATH:
            start("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
            return [f"The metrics are at {PATH}.\n".encode()]
        if environment.get("REQUEST_METHOD") not in ("GET", "HEAD"):
            start("405 Method Not Allowed", [("Allow", "GET, HEAD")])
            return []
        found = app(environment, start)
        return found

    return answer


def with_password(app: App, known: dict[bytes, bytes]) -> App:
    """For those alone who know one. `known`: names, with what digest() makes of their passwords."""

    def answer(environment: dict[str, Any], start: Any) -> Iterable[bytes]:
        kind, _, text = environment.get("HTTP_AUTHORIZATION", "").partition(" ")
        name, password = b"", b""
        with contextlib.suppress(binascii.Error, ValueError):
            name, _, password = base64.b64decode(text, validate=True).partition(b":")
        # As long for a name that is not known.
        is_right = hmac.compare_digest(known.get(name, bytes(32)), digest(password))
        if kind.lower() == "basic" and name in known and is_right:
            return app(environment, start)
        start(
            "401 Unauthorized",
            [
                ("Content-Type", "text/plain; charset=utf-8"),
                ("WWW-Authenticate", 'Basic realm="lanemalloc", charset="UTF-8"'),
            ],
        )
        return [b"A name and a password are needed.\n"]

    return answer


def digest(password: bytes) -> bytes:
    return hashlib.sha256(password).digest()


def read_passwords(path: Path) -> dict[bytes, bytes]:
    """Lines of NAME:PASSWORD; empty ones and those that begin with # are left out."""
    next_step = "each of its lines is NAME:PASSWORD; chmod 600 keeps it from others"
    try:
        with open(path, "rb", opener=opened_at_once) as stream:
            facts = os.fstat(stream.fileno())
            if not stat.S_ISREG(facts.st_mode) or facts.st_size > MOST_BYTES:
                raise Problem(f"{path} is no file of passwords", next_step)
            if facts.st_uid not in (0, os.geteuid()):
                raise Problem(f"{path} belongs to another user", next_step)
            if facts.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
                raise Problem(f"{path} is open to others", next_step)
            lines = stream.read(MOST_BYTES + 1).splitlines()
    except OSError as error:
        raise Problem(f"{path} cannot be read: {error.strerror}", next_step) from None
    known = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith(b"#"):
            continue
        name, colon, password = line.partition(b":")
        if not name or not colon or not password:
            raise Problem(f"{path}, line {number}: that is not NAME:PASSWORD", next_step)
        known[name] = digest(password)
    if not known:
        raise Problem(f"{path} has no password", next_step)
    return known


def opened_at_once(path: str, flags: int) -> int:
    """A pipe has no writer to wait for."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def context_of(doors: Doors) -> ssl.SSLContext | None:
    if doors.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a terminal nobody can be asked for a key's password.
        context.load_cert_chain(doors.certificate, doors.key, password=lambda: b"")
        if doors.client_authority is not None:
            context.load_verify_locations(doors.client_authority)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        files = [doors.certificate, doors.key, doors.client_authority]
        raise Problem(
            f"no TLS by {', '.join(str(one) for one in files if one)}: {error}",
            "certificate and key are PEM files that belong together; the key has no password",
        ) from None
    return context


def is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def serve(
    host: str, port: int, registry: CollectorRegistry, doors: Doors, seconds: float = 0
) -> None:
    """Until it is told to end. `seconds`: of a scrape."""
    kind = ServerOfSix if ":" in host else Server
    app = metrics_alone(make_wsgi_app(registry))
    if doors.passwords is not None:
        app = with_password(app, read_passwords(doors.passwords))
    context = context_of(doors)
    try:
        server = make_server(host, port, app, server_class=kind, handler_class=Quiet)
    except (OSError, OverflowError) as error:
        raise Problem(
            f"cannot listen at {host}:{port}: {error}",
            "another exporter may run there: choose another --listen",
        ) from None
    server.context = context
    server.longest = LONGEST + seconds
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    if not is_local(host):
        open_to = f"everybody who reaches {host or 'this host'}"
        if context is None:
            secret = "passwords" if doors.passwords is not None else "figures"
            click.echo(f"note: without TLS {secret} can be read on the way", err=True)
        if doors.passwords is None and doors.client_authority is None:
            click.echo(f"note: {open_to} can read the metrics", err=True)
    protocol = "https" if context is not None else "http"
    name = f"[{host}]" if ":" in host else host or "localhost"
    click.echo(f"serving {protocol}://{name}:{server.server_port}{PATH}", err=True)
    server.serve_forever(poll_interval=0.2)
    server.server_close()
