"""The order in which a server stops, and its exit codes. With a real process: tests/e2e/test_stop.py."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
import uvicorn
from fastapi import FastAPI, Response

from app.connection import STALL_SECONDS
from app.metrics import Metrics
from app.reload import Reloader
from app.server import (
    ANSWER_SECONDS,
    RELOAD_SIGNAL,
    STOP_SIGNALS,
    YOUNG_OBJECTS,
    Server,
    TLSError,
    check_address,
    serve,
    tls_context,
)
from app.state import ServerState
from tests.app.conftest import Serve, Served, until
from tests.doubles import WAIT_SECONDS, eventually


@pytest.fixture
async def served(serve: Serve) -> AsyncIterator[Served]:
    """An app over the tiny model."""
    async with serve() as app:
        yield app


LARGE_BYTES = 50_000_000
"""More than the sockets of this machine hold."""


def make_app(on_start: Callable[[], Any] = lambda: None) -> FastAPI:
    """An app without routes that calls ``on_start`` when it begins."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        on_start()
        yield

    app = FastAPI(lifespan=lifespan)
    app.state.server = ServerState(Metrics(), 1)
    return app


def make_server(drain_delay_seconds: float) -> tuple[Server, ServerState]:
    """A server that is not running."""
    app = make_app()
    state: ServerState = app.state.server
    return Server(uvicorn.Config(app), state, drain_delay_seconds, shutdown_grace_seconds=0.0), state


@pytest.mark.anyio
async def test_first_not_ready_then_stop_accepting() -> None:
    """At the first signal readiness is off at once, and the listeners stay open for the delay."""
    server, state = make_server(drain_delay_seconds=3_600)
    server._stop(signal.SIGTERM)
    for _ in range(20):
        await asyncio.sleep(0)
    assert state.is_draining
    assert not server.should_exit
    assert not server.force_exit


@pytest.mark.anyio
async def test_without_a_delay_it_stops_at_once() -> None:
    """A delay of 0 closes the listeners right after."""
    server, _ = make_server(drain_delay_seconds=0)
    server._stop(signal.SIGTERM)
    await until(lambda: server.should_exit)
    assert not server.force_exit


@pytest.mark.anyio
async def test_a_second_signal_ends_everything() -> None:
    """Whoever asks twice does not want to wait: no delay, no drain."""
    server, state = make_server(drain_delay_seconds=3_600)
    server._stop(signal.SIGTERM)
    assert not state.is_cut_off
    server._stop(signal.SIGINT)
    assert server.should_exit
    assert server.force_exit
    assert state.is_cut_off
    assert state.grace_is_over.is_set()


@pytest.mark.anyio
@pytest.mark.parametrize("number", STOP_SIGNALS)
async def test_signals_are_taken_and_given_back(number: signal.Signals) -> None:
    """While it runs both signals stop the server and do nothing else; afterwards they are as they were."""
    before = signal.getsignal(number)
    server, state = make_server(drain_delay_seconds=0)
    with server.capture_signals():
        os.kill(os.getpid(), number)
        await until(lambda: state.is_draining)
    assert signal.getsignal(number) == before


class FakeReloader:
    """Counts what it is asked to do."""

    num_begun = 0

    def begin(self) -> None:
        self.num_begun += 1

    def close(self) -> None:
        pass


@pytest.mark.anyio
async def test_the_reload_signal_reloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reaches the reloader and stops nothing; before the models are there it is refused and counted, and afterwards
    it is as it was.
    """
    monkeypatch.setattr("app.server.has_terminal", lambda: False)
    before = signal.getsignal(RELOAD_SIGNAL)
    server, state = make_server(drain_delay_seconds=0)
    reloader = FakeReloader()
    with server.capture_signals():
        os.kill(os.getpid(), RELOAD_SIGNAL)
        for _ in range(20):
            await asyncio.sleep(0)
        assert reloader.num_begun == 0
        assert state.metrics.registry.get_sample_value("eyeline_reloads_total", {"result": "refused"}) == 1
        state.reloader = cast(Reloader, reloader)
        os.kill(os.getpid(), RELOAD_SIGNAL)
        await until(lambda: reloader.num_begun == 1)
    assert signal.getsignal(RELOAD_SIGNAL) == before
    assert not state.is_draining
    assert not server.should_exit


@pytest.mark.anyio
@pytest.mark.parametrize("is_closed", [True, False])
async def test_a_closed_terminal_stops_the_server(monkeypatch: pytest.MonkeyPatch, is_closed: bool) -> None:
    """A terminal that is closed sends the signal that reloads, more than once; it means stop, but not at once. With the
    terminal still there it does not.
    """
    monkeypatch.setattr("app.server.has_terminal", lambda: True)
    server, state = make_server(drain_delay_seconds=0)
    reloader = FakeReloader()
    state.reloader = cast(Reloader, reloader)
    monkeypatch.setattr("app.server.has_terminal", lambda: not is_closed)
    for _ in range(2):
        server._reload()
    assert state.is_draining == is_closed
    assert not state.is_cut_off
    assert reloader.num_begun == 2 * (not is_closed)


def run(app: FastAPI, port: int = 0) -> int:
    """Serve on a loopback port until the app's own signal comes."""
    return serve(app, host="127.0.0.1", port=port, drain_delay_seconds=0, shutdown_grace_seconds=1)


def test_a_clean_stop_is_0() -> None:
    """One signal: exit code 0, and the signal is not raised again."""
    app = make_app(lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert run(app) == 0
    assert app.state.server.is_draining


def test_the_collector_passes_over_what_the_start_made() -> None:
    """What was there when serving began is frozen, and the young are looked at more rarely than by default."""
    before = gc.get_threshold()
    gc.unfreeze()
    gc.set_threshold(700)
    try:
        assert run(make_app(lambda: os.kill(os.getpid(), signal.SIGTERM))) == 0
        assert gc.get_freeze_count() > 1_000
        assert gc.get_threshold()[0] == YOUNG_OBJECTS
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def test_a_forced_stop_is_1() -> None:
    """A second signal: exit code 1."""

    def twice() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(os.kill, os.getpid(), signal.SIGTERM)
        loop.call_soon(os.kill, os.getpid(), signal.SIGINT)

    assert run(make_app(twice)) == 1


def test_a_port_in_use_is_1() -> None:
    """Uvicorn would end the process itself; here it is an exit code."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert run(make_app(), port=taken.getsockname()[1]) == 1


def test_a_failed_start_is_1() -> None:
    """When warming up fails nothing is served."""

    def fail() -> None:
        raise RuntimeError("no")

    assert run(make_app(fail)) == 1


def test_an_address_is_checked_before_anything_is_loaded() -> None:
    """A taken port is found out; a free one, and port 0, are fine, and stay free."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            check_address("127.0.0.1", port)
    check_address("127.0.0.1", port)
    check_address("127.0.0.1", port)
    check_address("127.0.0.1", 0)


class _EndedError(Exception):
    """Stands in for the end of the process."""


def end_with(code: int) -> NoReturn:
    """Note the code instead of ending this process."""
    raise _EndedError(code)


def test_a_batch_that_never_ends_does_not_hold_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python would wait for the worker thread at its end; a process whose worker is busy is ended without, with 1."""
    monkeypatch.setattr(os, "_exit", end_with)
    app = make_app(lambda: os.kill(os.getpid(), signal.SIGTERM))
    app.state.server.worker = SimpleNamespace(is_busy=True)
    with pytest.raises(_EndedError, match="1"):
        run(app)


def test_ending_the_process_ends_it_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the watchdog asks for: at once, whatever its threads do, and not with 0."""
    monkeypatch.setattr(os, "_exit", end_with)
    app = make_app(lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert run(app) == 0
    with pytest.raises(_EndedError, match="1"):
        app.state.server.end_process_if_ours()


@pytest.mark.parametrize(("second_signal", "code"), [(False, "0"), (True, "1")])
def test_a_reload_that_reads_does_not_hold_the_process(
    monkeypatch: pytest.MonkeyPatch, second_signal: bool, code: str
) -> None:
    """Python would wait for the thread that reads weights, minutes perhaps; the process is ended, with its own code."""
    monkeypatch.setattr(os, "_exit", end_with)

    def stop() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(1 + second_signal):
            loop.call_soon(os.kill, os.getpid(), signal.SIGTERM)

    app = make_app(stop)
    app.state.server.reloader = SimpleNamespace(is_loading=True, close=lambda: None)
    with pytest.raises(_EndedError, match=code):
        run(app)


Caller = Callable[[socket.socket, threading.Event], None]
"""What a caller does on his connection; the event is set when the server has stopped."""


def serve_to(caller: Caller, add_routes: Callable[[FastAPI], None], grace: float) -> int:
    """Serve to one caller, on a thread of his own."""
    stopped = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()

    def call() -> None:
        while not stopped.is_set():
            with suppress(ConnectionRefusedError), socket.create_connection(address) as connection:
                caller(connection, stopped)
                return

    app = make_app()
    add_routes(app)
    with ThreadPoolExecutor(1) as threads:
        calling = threads.submit(call)
        try:
            return serve(app, host=address[0], port=address[1], drain_delay_seconds=0, shutdown_grace_seconds=grace)
        finally:
            stopped.set()
            calling.result(WAIT_SECONDS)


def test_what_is_in_flight_when_the_grace_ends_is_told() -> None:
    """At the end of the grace, to the fraction of a second, a request that nobody has answered is cancelled, with a
    moment for its answer to leave; and as something was lost the exit code is 1.
    """
    told: list[bytes] = []

    def add_routes(app: FastAPI) -> None:
        @app.get("/slow")
        async def slow() -> Response:
            os.kill(os.getpid(), signal.SIGTERM)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                assert app.state.server.is_cut_off
            return Response("told", 503)

    def call(connection: socket.socket, stopped: threading.Event) -> None:
        connection.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
        told.append(connection.makefile("rb").read())

    assert serve_to(call, add_routes, grace=0.3) == 1
    assert told[0].startswith(b"HTTP/1.1 503 ")
    assert told[0].endswith(b"told")


def add_large(app: FastAPI) -> None:
    """Answer with more than sockets hold."""

    @app.get("/large")
    async def large() -> Response:
        return Response(bytes(LARGE_BYTES))


@pytest.mark.parametrize(("reads", "code"), [(True, 0), (False, 1)])
def test_an_answer_that_is_not_read_is_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, reads: bool, code: int
) -> None:
    """The server has written it, but its caller has half of it when the grace ends: no clean stop. A caller who has all
    of it and keeps the connection holds nothing up.
    """
    monkeypatch.setattr("app.server.ANSWER_SECONDS", 0.1)

    def call(connection: socket.socket, stopped: threading.Event) -> None:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        file = connection.makefile("rb")
        while file.readline() != b"\r\n":
            pass
        if reads:
            assert len(file.read(LARGE_BYTES)) == LARGE_BYTES
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopped.wait(WAIT_SECONDS)

    assert serve_to(call, add_large, grace=0.3) == code
    assert ("giving up 0 requests and 1 unread answers" in caplog.text) == (not reads)


def test_who_does_not_read_does_not_hold_a_second_signal() -> None:
    """Nor does the answer to what is cut off, which waits behind another one that is not read."""

    def add_routes(app: FastAPI) -> None:
        add_large(app)

        @app.get("/slow")
        async def slow() -> Response:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return Response("told", 503)

    def call(connection: socket.socket, stopped: threading.Event) -> None:
        connection.sendall(
            b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\nGET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        assert stopped.wait(2 * STALL_SECONDS)

    started = time.monotonic()
    assert serve_to(call, add_routes, grace=600) == 1
    assert time.monotonic() - started < STALL_SECONDS / 2


def test_answers_have_a_moment_to_leave() -> None:
    """Before uvicorn lets go of the connections, which it does on its own clock of whole seconds."""
    server = Server(uvicorn.Config(make_app()), make_app().state.server, 0.0, shutdown_grace_seconds=7.5)
    timeout = server.config.timeout_graceful_shutdown
    assert timeout is not None
    assert timeout >= 7.5 + ANSWER_SECONDS


@pytest.mark.anyio
@pytest.mark.parametrize("is_asked_twice", [False, True])
async def test_who_is_given_up_is_counted_so(served: Served, is_asked_twice: bool) -> None:
    """Who runs and who waits when the grace ends, or at a second signal, is told by the queue: refused because the
    server stops, and no caller who left.
    """
    server = Server(uvicorn.Config(served.app), served.state, 3_600, shutdown_grace_seconds=0.0)
    served.embedder.gate.clear()
    running = asyncio.create_task(served.post("/encode", {"texts": "a"}))
    await eventually(lambda: bool(served.embedder.batches))
    waiting = asyncio.create_task(served.post("/encode", {"texts": "b"}))
    await until(lambda: served.sample("eyeline_queue_texts", model="tiny") == 1)
    server.server_state.tasks.update((running, waiting))
    if is_asked_twice:
        server._stop(signal.SIGTERM)
        server._stop(signal.SIGTERM)
    else:
        server._end_grace()
    told = await asyncio.gather(running, waiting)
    assert [response.json()["code"] for response in told] == ["server_stopping"] * 2
    assert served.sample("eyeline_rejected_total", model="tiny", reason="server_stopping") == 2
    assert served.sample("eyeline_cancelled_total", model="tiny") == 0
    assert served.state.is_cut_off
    served.embedder.gate.set()


def make_certificate(folder: Path, *options: str) -> tuple[Path, Path]:
    """Make a key and a certificate of this machine, signed by itself."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", *(options or ["-nodes"])]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", "-x509", *kind, *subject, *files], check=True, capture_output=True)
    return certificate, key


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """Let a server and a client agree, in memory; returns the client's side."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    serving = server.wrap_bio(to_server, to_client, server_side=True)
    asking = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    pending = [asking, serving]
    for _ in range(10):
        for side in list(pending):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            pending.remove(side)
    assert pending == []
    return asking


def test_a_certificate_is_served_with(tmp_path: Path) -> None:
    """A client that trusts it agrees on TLS 1.3, or on 1.2 with a cipher that is not broken; none does on 1.1."""
    server = tls_context(*make_certificate(tmp_path))
    client = ssl.create_default_context(cafile=tmp_path / "certificate.pem")
    assert shake_hands(server, client).version() == "TLSv1.3"
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    old = shake_hands(server, client)
    cipher = old.cipher()
    assert old.version() == "TLSv1.2"
    assert cipher is not None
    assert cipher[0].startswith("ECDHE-")
    assert cipher[0].endswith(("GCM-SHA384", "GCM-SHA256", "POLY1305"))
    assert server.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_what_cannot_be_served_with_is_said(tmp_path: Path) -> None:
    """One sentence that names the file, before anything is loaded, and without a question on the terminal."""
    certificate, key = make_certificate(tmp_path)
    (tmp_path / "other").mkdir()
    _, other = make_certificate(tmp_path / "other")
    (tmp_path / "locked").mkdir()
    locked = make_certificate(tmp_path / "locked", "-passout", "pass:secret77")
    (tmp_path / "text").write_text("no certificate")
    for files, complaint in (
        ((tmp_path / "none", key), "none cannot be read: No such file"),
        ((certificate, tmp_path), "cannot be read: Is a directory"),
        ((certificate, other), "KEY_VALUES_MISMATCH"),
        ((tmp_path / "text", key), "cannot be served with"),
        ((certificate, tmp_path / "text"), "cannot be served with"),
        (locked, "has a password"),
    ):
        with pytest.raises(TLSError, match=complaint) as caught:
            tls_context(*files)
        assert "secret77" not in str(caught.value)


def test_with_a_certificate_it_speaks_tls(tmp_path: Path) -> None:
    """The port that is opened answers in TLS."""
    spoken: list[str | None] = []
    certificate, key = make_certificate(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    async def ask() -> None:
        context = ssl.create_default_context(cafile=certificate)
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            except ConnectionRefusedError:
                await asyncio.sleep(0)
                continue
            writer.write(b"GET /none HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            spoken.append((await reader.readline()).decode())
            writer.close()
            os.kill(os.getpid(), signal.SIGTERM)
            return

    tasks: list[asyncio.Task[None]] = []
    app = make_app(lambda: tasks.append(asyncio.get_running_loop().create_task(ask())))
    tls = tls_context(certificate, key)
    assert serve(app, host="127.0.0.1", port=port, drain_delay_seconds=0, shutdown_grace_seconds=1, tls=tls) == 0
    assert spoken == ["HTTP/1.1 404 Not Found\r\n"]
