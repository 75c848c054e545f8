"""Traces reach a collector; without the extra, or without a collector, that is said and nothing else changes."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.e2e.conftest import MODEL, StartServer, run_command, wait_for

pytestmark = pytest.mark.e2e

WITH_THE_EXTRA = [sys.executable, "-m", "app.cli"]  # the tests' environment has it, the server's own has not
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Collector:
    """A server that takes OTLP over HTTP.

    Attributes
    ----------
    requests : list of (path, content type, body)
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, bytes]] = []
        requests = self.requests

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                requests.append((self.path, self.headers["Content-Type"], body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector on this machine."""
    running = Collector()
    yield running
    running.close()


@pytest.mark.parametrize("by_variable", [False, True])
def test_traces_reach_a_collector(start_server: StartServer, collector: Collector, by_variable: bool) -> None:
    """One request: five spans in the caller's trace, in protobuf at /v1/traces, sent before the server has ended;
    nothing of the text is among them, and probes make none.
    """
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_SERVICE_NAME": "search"} if by_variable else {}
    flags = () if by_variable else ("--otlp-endpoint", collector.url)
    server = start_server("--no-warmup", *flags, environ=environ, prefix=WITH_THE_EXTRA)
    server.client.get("/health")
    server.client.post("/encode", json={"texts": "MARKER"}, headers={"traceparent": TRACEPARENT})
    server.signal()
    assert server.wait() == 0
    assert {(path, kind) for path, kind, _ in collector.requests} == {("/v1/traces", "application/x-protobuf")}
    received = [ExportTraceServiceRequest.FromString(body) for _, _, body in collector.requests]
    resources = [resource for request in received for resource in request.resource_spans]
    spans = [span for resource in resources for scope in resource.scope_spans for span in scope.spans]
    assert sorted(span.name for span in spans) == ["POST /encode", "inference", "queue", "serialize", "tokenize"]
    assert {span.trace_id.hex() for span in spans} == {TRACEPARENT.split("-")[1]}
    services = {
        pair.value.string_value for one in resources for pair in one.resource.attributes if "e.name" in pair.key
    }
    assert ("search" if by_variable else "eyeline") in services
    assert not any(b"MARKER" in body for _, _, body in collector.requests)


def test_a_collector_that_is_down_changes_nothing(start_server: StartServer) -> None:
    """Requests are answered, the log says that spans could not be sent, and the stop is clean."""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    environ = {"OTEL_BSP_SCHEDULE_DELAY": "100"}
    server = start_server(
        "--no-warmup", "--otlp-endpoint", f"http://127.0.0.1:{port}", environ=environ, prefix=WITH_THE_EXTRA
    )
    for _ in range(3):
        server.encode("hello")
    wait_for(lambda: "opentelemetry" in server.log, "a word about it")
    server.signal()
    assert server.wait() == 0
    assert {entry["level"] for entry in server.log_entries()} <= {"info", "warning", "error"}  # each line is JSON


def test_without_the_extra_the_start_fails_in_one_sentence() -> None:
    """Before a model is loaded, and with what to install."""
    flags = ("--model", MODEL, "--port", 0, "--otlp-endpoint", "http://127.0.0.1:4318")
    done = run_command("serve", *flags)
    assert done.returncode == 2
    assert done.stderr.startswith("eyeline: --otlp-endpoint asks for traces, but OpenTelemetry is not installed: ")
    assert done.stderr.count("\n") == 1
