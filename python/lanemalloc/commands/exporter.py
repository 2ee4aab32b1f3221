"""lanemalloc exporter: the figures of all processes of this host, for Prometheus."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import click

from lanemalloc.ui import Problem


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


@click.command()
@click.option(
    "--listen",
    default=":9464",
    show_default=True,
    metavar="[HOST]:PORT",
    help="Where to serve; without a host, everywhere.",
)
@click.option(
    "--processes",
    default=100,
    show_default=True,
    type=click.IntRange(1, 10000),
    help="How many at most: the largest.",
)
@click.option(
    "--seconds",
    default=5.0,
    show_default=True,
    type=click.FloatRange(0.1, 60),
    help="How long a scrape may take.",
)
@click.option("--once", is_flag=True, help="Print the metrics once and leave.")
def exporter(listen: str, processes: int, seconds: float, once: bool) -> None:
    """Serve the figures of all processes of this host that run with lanemalloc as OpenMetrics, at
    /metrics.

    One exporter serves the whole host. As root it reads the processes of all users,
    else those of its own.
    """
    from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app

    from lanemalloc.metrics import Processes

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Processes(processes, seconds))
    if once:
        sys.stdout.buffer.write(generate_latest(registry))
        return
    host, port = parse_listen(listen)
    serve(host, port, make_wsgi_app(registry))


def parse_listen(text: str) -> tuple[str, int]:
    """`:9464`, `127.0.0.1:9464`, `[::1]:9464`."""
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise Problem(f"--listen {text}: that is no port", "for example --listen 127.0.0.1:9464")
    return host.strip("[]"), int(port)


def serve(host: str, port: int, app: Any) -> None:
    """Until it is told to end."""
    kind = ServerOfSix if ":" in host else Server
    try:
        server = make_server(host, port, app, server_class=kind, handler_class=Quiet)
    except (OSError, OverflowError) as error:
        raise Problem(
            f"cannot listen at {host}:{port}: {error}",
            "another exporter may run there: choose another --listen",
        ) from None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    click.echo(f"serving http://{host or 'localhost'}:{server.server_port}/metrics", err=True)
    server.serve_forever(poll_interval=0.2)
    server.server_close()
