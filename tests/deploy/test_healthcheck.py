"""The image's health check says what the server says, and no more."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy/healthcheck.py"


@contextmanager
def answering(answer: bytes, tls: ssl.SSLContext | None = None) -> Iterator[tuple[int, list[bytes]]]:
    """Answer one connection with these bytes; yields the port, and what was asked."""
    asked: list[bytes] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def serve() -> None:
            accepted, _ = listener.accept()
            with tls.wrap_socket(accepted, server_side=True) if tls else accepted as connection:
                asked.append(connection.recv(1000))
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1], asked
        thread.join(10)


def check(port: int, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the check as the image does, with a proxy set that leads nowhere."""
    environ = {**os.environ, "EYELINE_PORT": str(port), "http_proxy": "http://127.0.0.1:1", **variables}
    return subprocess.run(
        [sys.executable, "-IS", SCRIPT], env=environ, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(("status", "exit_code"), [("200 OK", 0), ("503 Service Unavailable", 1), ("404 Not Found", 1)])
def test_ready_is_200(status: str, exit_code: int) -> None:
    """Only 200 from /health/ready is healthy."""
    with answering(f"HTTP/1.1 {status}\r\n\r\n200".encode()) as (port, asked):
        done = check(port)
    assert (done.returncode, done.stdout) == (exit_code, f"status {status[:3]}\n")
    assert asked == [b"GET /health/ready HTTP/1.0\r\n\r\n"]


def test_a_server_with_a_certificate_is_asked_over_tls(tmp_path: Path) -> None:
    """Where EYELINE_TLS_CERTIFICATE is set the check speaks HTTPS, whoever signed the certificate."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=elsewhere", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with answering(b"HTTP/1.1 200 OK\r\n\r\n", context) as (port, asked):
        done = check(port, EYELINE_TLS_CERTIFICATE=str(certificate))
    assert (done.returncode, done.stdout) == (0, "status 200\n")
    assert asked == [b"GET /health/ready HTTP/1.0\r\n\r\n"]


def test_nobody_is_not_ready() -> None:
    """A closed port is one line and exit code 1, not a traceback."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
    done = check(port)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith(f"port {port}: ")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1", b"\xff\xfe \xff"])
def test_nonsense_is_not_ready(answer: bytes) -> None:
    """An answer that is no HTTP is not healthy."""
    with answering(answer) as (port, _):
        done = check(port)
    assert (done.returncode, done.stderr) == (1, "")
