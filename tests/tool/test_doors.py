"""The exporter's doors: who may ask, over what, and what askers may cost."""

from __future__ import annotations

import base64
import errno
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from wsgiref.simple_server import make_server

import pytest
from conftest import CLEAN, TOOL, tool

from lanemalloc import serving
from lanemalloc.serving import MOST_CONNECTIONS, Quiet, Server, read_passwords
from lanemalloc.ui import Problem


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Starts one; its address, and what it says."""
    started: list[subprocess.Popen[str]] = []

    def go(*options: object, listen: str = "127.0.0.1:0", notes: int = 0) -> str:
        command = [str(TOOL), "exporter", "--listen", listen, *map(str, options)]
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=CLEAN))
        assert started[-1].stderr is not None
        said = [started[-1].stderr.readline() for _ in range(notes + 1)]
        assert said[-1].startswith("serving "), said
        go.notes = said[:-1]  # type: ignore[attr-defined]
        return said[-1].split()[1]

    yield go
    for process in started:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert process.stderr is not None and process.stderr.read() == ""


def status(url: str, login: str = "", context: ssl.SSLContext | None = None) -> int:
    request = urllib.request.Request(url)
    if login:
        request.add_header("Authorization", "Basic " + base64.b64encode(login.encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=20, context=context) as answer:
            assert "# TYPE lanemalloc_processes" in answer.read().decode()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_it_is_open_to_this_host_alone_unless_told_otherwise(serve: Callable[..., str]) -> None:
    help_text = tool("exporter", "--help").stdout
    assert "[default: 127.0.0.1:9464]" in " ".join(help_text.split())
    url = serve(listen=":0", notes=2)
    assert "everybody who reaches this host can read the metrics" in serve.notes[1]  # type: ignore
    assert "without TLS figures can be read on the way" in serve.notes[0]  # type: ignore
    assert status(url) == 200
    serve(listen="[::1]:0")


def test_passwords(serve: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "scrapers"
    file.write_text("# who may\n\nprometheus:s3cret:with colon\nother:pä\n")
    file.chmod(0o600)
    url = serve("--passwords", file)
    assert status(url, "prometheus:s3cret:with colon") == 200 == status(url, "other:pä")
    for wrong in ("", "prometheus:s3cret", "prometheus:", "other:s3cret:with colon", "x:y", ":"):
        assert status(url, wrong) == 401, wrong
    assert status(url.replace("/metrics", "/"), "") == 401  # tells nothing
    assert status(url.replace("/metrics", "/"), "other:pä") == 404
    for odd in ("Basic", "Basic %%%", "Basic " + "A" * 9999, "Bearer x", "basic Og=="):
        request = urllib.request.Request(url, headers={"Authorization": odd})
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(request, timeout=20)
        assert raised.value.code == 401
        assert raised.value.headers["WWW-Authenticate"].startswith("Basic ")


def test_a_file_of_passwords_is_not_believed(tmp_path: Path) -> None:
    file = tmp_path / "scrapers"

    def refused(words: str, text: str = "a:b\n", mode: int = 0o600) -> None:
        file.write_text(text)
        file.chmod(mode)
        with pytest.raises(Problem, match=words):
            read_passwords(file)

    refused("open to others", mode=0o644)
    refused("open to others", mode=0o620)
    refused("line 2: that is not NAME:PASSWORD", "a:b\nc\n")
    refused("line 1: that is not", ":b\n")
    refused("line 1: that is not", "a:\n")
    refused("has no password", "# none\n")
    refused("no file of passwords", "a:" + "b" * (64 << 10))
    file.write_text("a:b\n")
    assert list(read_passwords(file)) == [b"a"]
    if os.geteuid() == 0:
        os.chown(file, 65534, 65534)
        with pytest.raises(Problem, match="another user"):
            read_passwords(file)
    os.mkfifo(tmp_path / "fifo", 0o600)
    for odd, words in (("fifo", "no file"), ("none", "No such file"), (".", "Is a directory")):
        with pytest.raises(Problem, match=words):
            read_passwords(tmp_path / odd)
    done = tool("exporter", "--listen", "127.0.0.1:0", "--passwords", tmp_path / "fifo")
    assert done.returncode == 3 and "no file of passwords" in done.stderr


def certificate(folder: Path, name: str, *extra: str) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not there")
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
        "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
        "-out", str(cert), "-keyout", str(key), *extra,
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


def test_tls(serve: Callable[..., str], tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "host")
    url = serve("--tls-cert", cert, "--tls-key", key)
    assert url.startswith("https://127.0.0.1:")
    trusting = ssl.create_default_context(cafile=str(cert))
    assert status(url, context=trusting) == 200
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        status(url)
    # Those who do not speak it are no trouble, nor is anything else that they may send.
    port = int(url.split(":")[2].split("/")[0])
    for sent in (b"GET /metrics HTTP/1.0\r\n\r\n", b"\x16\x03\x01" + b"\xff" * 500, b""):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as one:
            one.sendall(sent)
            try:
                one.shutdown(socket.SHUT_WR)
                while one.recv(4096):
                    pass
            except OSError as error:  # it may be closed at once
                assert error.errno in (errno.ENOTCONN, errno.ECONNRESET, errno.EPIPE)
    # More of these than there may be connections: none is left behind.
    for _ in range(2 * MOST_CONNECTIONS):
        with pytest.raises(ssl.SSLError):
            ssl.create_default_context().wrap_socket(
                socket.create_connection(("127.0.0.1", port), timeout=20),
                server_hostname="127.0.0.1",
            )
    assert status(url, context=trusting) == 200


def test_clients_with_a_certificate_alone(serve: Callable[..., str], tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "host")
    mine, my_key = certificate(tmp_path, "prometheus")
    url = serve("--tls-cert", cert, "--tls-key", key, "--tls-client-ca", mine)
    trusting = ssl.create_default_context(cafile=str(cert))
    with pytest.raises((urllib.error.URLError, OSError)):
        status(url, context=trusting)
    trusting.load_cert_chain(mine, my_key)
    assert status(url, context=trusting) == 200


def test_files_that_are_no_certificates(tmp_path: Path) -> None:
    cert, _ = certificate(tmp_path, "one")
    _, other = certificate(tmp_path, "two")
    (tmp_path / "odd").write_bytes(b"\x00" * 100)
    for argv in (
        ("--tls-cert", tmp_path / "none"),
        ("--tls-cert", tmp_path / "odd"),
        ("--tls-cert", cert),
        ("--tls-cert", cert, "--tls-key", other),
    ):
        done = tool("exporter", "--listen", "127.0.0.1:0", *argv)
        assert done.returncode == 3 and "no TLS by" in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
    done = tool("exporter", "--tls-key", other)
    assert done.returncode == 2 and "need --tls-cert" in done.stderr


# --- What askers may cost.


class Slow:
    """A server in this process, whose connections may last for a second."""

    def __init__(self) -> None:
        self.server = make_server(
            "127.0.0.1", 0, self.answer, server_class=Server, handler_class=Quiet
        )
        self.server.longest = 1.0
        self.port = self.server.server_port
        self.thread = threading.Thread(
            target=lambda: self.server.serve_forever(poll_interval=0.05), daemon=True
        )
        self.thread.start()

    @staticmethod
    def answer(environment: dict, start: Callable) -> list[bytes]:
        start("200 OK", [])
        return [b"done"]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def ask(self) -> bytes:
        with self.connect() as one:
            one.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            text = b""
            while piece := one.recv(4096):
                text += piece
            return text

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join(20)
        self.server.server_close()


@pytest.fixture
def slow() -> Iterator[Slow]:
    one = Slow()
    yield one
    one.close()


def connections(slow: Slow) -> int:
    return len(slow.server._open)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_there_are_so_many_connections_and_no_more(slow: Slow) -> None:
    slow.server.longest = 1e9
    silent = [slow.connect() for _ in range(MOST_CONNECTIONS)]
    wait_until(lambda: connections(slow) == MOST_CONNECTIONS)
    threads = threading.active_count()
    for _ in range(3):
        assert slow.ask().startswith(b"HTTP/1.1 503 ")
    assert threading.active_count() == threads
    silent.pop().close()
    wait_until(lambda: connections(slow) < MOST_CONNECTIONS)
    assert slow.ask().endswith(b"done")
    for one in silent:
        one.close()
    wait_until(lambda: connections(slow) == 0)


def test_slow_ones_are_closed_whatever_they_send(slow: Slow) -> None:
    silent, dripping = slow.connect(), slow.connect()
    end = time.monotonic() + 20
    with pytest.raises(OSError):
        while time.monotonic() < end:
            dripping.sendall(b"X")
            time.sleep(0.05)
    wait_until(lambda: connections(slow) == 0)
    assert silent.recv(10) == b""
    assert slow.ask().endswith(b"done")
    for one in (silent, dripping):
        one.close()


def test_what_is_local() -> None:
    assert (
        serving.is_local("127.0.0.9") and serving.is_local("::1") and serving.is_local("localhost")
    )
    assert not serving.is_local("") and not serving.is_local("10.0.0.1")
