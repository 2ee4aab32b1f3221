"""lanemalloc exporter: the figures of all processes of this host, for Prometheus."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from lanemalloc.ui import need

FILE = click.Path(dir_okay=False, path_type=Path)


def parse_listen(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, int]:
    """`:9464`, `127.0.0.1:9464`, `[::1]:9464`."""
    host, colon, port = value.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise click.BadParameter(f"{value!r}: that is no port; for example 127.0.0.1:9464")
    return host.strip("[]"), int(port)


@click.command(
    epilog="""\b
Examples:
  lanemalloc exporter
  lanemalloc exporter --listen 127.0.0.1:9464 --processes 20
  lanemalloc exporter --listen :9464 --tls-cert host.pem --tls-key host.key --passwords scrapers
  lanemalloc exporter --once | grep resident
"""
)
@click.option(
    "--listen",
    callback=parse_listen,
    default="127.0.0.1:9464",
    show_default=True,
    metavar="[HOST]:PORT",
    help="Where to serve; without a host, everywhere: other hosts can ask then.",
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
@click.option(
    "--tls-cert", type=FILE, metavar="FILE", help="Serve over HTTPS, with this certificate (PEM)."
)
@click.option("--tls-key", type=FILE, metavar="FILE", help="The certificate's key, if apart.")
@click.option(
    "--tls-client-ca",
    type=FILE,
    metavar="FILE",
    help="Serve those alone who have a certificate of this authority.",
)
@click.option(
    "--passwords",
    type=FILE,
    metavar="FILE",
    help="Serve those alone who know one of its lines, NAME:PASSWORD (basic authentication).",
)
@click.option("--once", is_flag=True, help="Print the metrics once and leave.")
def exporter(
    listen: tuple[str, int],
    processes: int,
    seconds: float,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    passwords: Path | None,
    once: bool,
) -> None:
    """Serve the figures of all processes of this host that run with lanemalloc as OpenMetrics, at
    /metrics.

    One exporter serves the whole host. As root it reads the processes of all users,
    else those of its own.
    """
    if tls_cert is None and (tls_key or tls_client_ca):
        raise click.UsageError("--tls-key and --tls-client-ca need --tls-cert")
    need("exporter", "exporter")
    from prometheus_client import CollectorRegistry, generate_latest

    from lanemalloc.metrics import Processes

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Processes(processes, seconds))
    if once:
        sys.stdout.buffer.write(generate_latest(registry))
        return
    from lanemalloc.serving import Doors, serve

    serve(*listen, registry, Doors(tls_cert, tls_key, tls_client_ca, passwords), seconds)
