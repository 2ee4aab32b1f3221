"""Serves metrics over HTTP. Used by: the command exporter."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import click
from prometheus_client import CollectorRegistry, make_wsgi_app

from lanemalloc.ui import Problem

PATH = "/metrics"


class Server(ThreadingMixIn, WSGIServer):
    """A thread for each scrape."""

    daemon_threads = True


class ServerOfSix(Server):
    """Listens on IPv6, and by it on IPv4 too."""

    address_family = socket.AF_INET6


class Quiet(WSGIRequestHandler):
    """Writes no line for each scrape."""

    timeout = 30

    def log_message(self, format: str, *args: Any) -> None:
        pass


def metrics_alone(app: Any) -> Any:
    """Answers at /metrics, and says so anywhere else."""

    def answer(environment: dict[str, Any], start: Any) -> Iterable[bytes]:
        if environment.get("PATH_INFO") == PATH:
            found: Iterable[bytes] = app(environment, start)
            return found
        start("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
        return [f"The metrics are at {PATH}.\n".encode()]

    return answer


def serve(host: str, port: int, registry: CollectorRegistry) -> None:
    """Until it is told to end."""
    kind = ServerOfSix if ":" in host else Server
    app = metrics_alone(make_wsgi_app(registry))
    try:
        server = make_server(host, port, app, server_class=kind, handler_class=Quiet)
    except (OSError, OverflowError) as error:
        raise Problem(
            f"cannot listen at {host}:{port}: {error}",
            "another exporter may run there: choose another --listen",
        ) from None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    click.echo(f"serving http://{host or 'localhost'}:{server.server_port}{PATH}", err=True)
    server.serve_forever(poll_interval=0.2)
    server.server_close()
