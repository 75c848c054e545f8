"""How a server stops: nobody who was admitted is left without an answer, unless somebody asks twice."""

from __future__ import annotations

import shutil
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import (
    DEFAULT_MODEL,
    PATIENCE_SECONDS,
    Server,
    StartServer,
    start_faulty,
    wait_for,
)
from tests.e2e.faulty_server import HOLD

pytestmark = pytest.mark.e2e

KEY = "admin-key-of-the-tests"


@contextmanager
def in_flight(server: Server, num_requests: int, num_texts: int) -> Iterator[list[Future[httpx.Response]]]:
    """Send requests to a faulty server from threads, and go on when all of their texts wait: its worker is held."""
    limits = httpx.Limits(max_connections=num_requests)
    with (
        httpx.Client(base_url=server.url, timeout=2 * PATIENCE_SECONDS, limits=limits) as client,
        ThreadPoolExecutor(num_requests) as threads,
        server.held(),
    ):
        body = {"texts": ["The cat sat."] * num_texts}
        futures = [threads.submit(client.post, "/encode", json=body) for _ in range(num_requests)]
        wait_for(lambda: server.sample("eyeline_queue_texts") == num_requests * num_texts, "the texts' arrival")
        yield futures


def refuses_connections(server: Server) -> bool:
    """Whether the port is closed."""
    host, port = server.url.removeprefix("http://").split(":")
    try:
        with closing(socket.create_connection((host, int(port)), timeout=5)):
            return False
    except OSError:
        return True


def test_a_stop_answers_everyone(start_server: StartServer) -> None:
    """SIGTERM with 50 requests in flight: all of them are answered in full, whoever comes meanwhile is refused, and the
    exit code is 0.
    """
    server = start_faulty(start_server, "--shutdown-grace-seconds", 600)
    with in_flight(server, num_requests=50, num_texts=1) as futures:
        server.signal()
        wait_for(lambda: refuses_connections(server), "the closing of the port")
        assert not any(future.done() for future in futures)
        server.open_gate()
        responses = [future.result(2 * PATIENCE_SECONDS) for future in futures]
    assert [response.status_code for response in responses] == [200] * 50
    assert all(len(response.json()["embeddings"]) == 1 for response in responses)
    assert server.wait() == 0
    assert refuses_connections(server)
    assert {entry["level"] for entry in server.log_entries()} == {"info"}


def test_a_second_signal_does_not_wait(start_server: StartServer) -> None:
    """Asked twice, the server gives up what it holds and exits with 1."""
    server = start_faulty(start_server, "--shutdown-grace-seconds", 600)
    with in_flight(server, num_requests=8, num_texts=10) as futures:
        server.signal()
        wait_for(lambda: "stopping" in server.log, "the first signal's effect")
        server.signal(signal.SIGINT)
        assert server.wait() == 1
        outcomes: list[Any] = [future.exception(PATIENCE_SECONDS) or future.result().status_code for future in futures]
    assert all(outcome != 200 for outcome in outcomes)


def test_what_the_grace_is_not_enough_for_is_told(start_server: StartServer) -> None:
    """When the grace ends, whoever has no answer yet is told that the server stops, and to come again, in the shape of
    an error; nobody gets a bare 500 or a closed connection. The exit code says that something was lost.
    """
    server = start_faulty(start_server, "--shutdown-grace-seconds", 1.5)
    with in_flight(server, num_requests=20, num_texts=10) as futures:
        server.signal()
        assert server.wait() == 1
        responses = [future.result(PATIENCE_SECONDS) for future in futures]
    for response in responses:
        assert (response.status_code, response.json()["code"]) == (503, "server_stopping")
        assert response.headers["retry-after"] == "1"
        assert "x-request-id" in response.headers
    assert "giving up 21 requests and 0 unread answers" in server.log  # these, and the one at the gate
    assert "Traceback" not in server.log


@pytest.mark.parametrize(("again", "code"), [(False, 0), (True, 1)])
def test_a_reload_that_reads_holds_up_no_stop(
    start_server: StartServer, tmp_path: Path, again: bool, code: int
) -> None:
    """A thread that reads weights cannot be stopped, and is not waited for, though here it never comes to an end."""
    folder = tmp_path / "mine"
    shutil.copytree(DEFAULT_MODEL, folder)
    delay = 600 if again else 0
    server = start_faulty(start_server, "--model", f"mine={folder}", "--drain-delay-seconds", delay)
    (folder / HOLD).touch()
    server.signal(signal.SIGHUP)
    wait_for(lambda: "held" in server.log, "the reload")
    server.signal()
    wait_for(lambda: "stopping" in server.log, "the first signal's effect")
    if again:
        server.signal(signal.SIGINT)
    assert server.wait() == code
    assert "stopped while a reload was reading" in server.log


def test_who_waits_for_a_reload_holds_up_no_stop(start_server: StartServer, tmp_path: Path) -> None:
    """Whoever asked for it over HTTP is told that the server stops, long before the grace ends; nothing is lost."""
    folder = tmp_path / "mine"
    shutil.copytree(DEFAULT_MODEL, folder)
    arguments = ("--model", f"mine={folder}", "--shutdown-grace-seconds", 600)
    server = start_faulty(start_server, *arguments, environ={"EYELINE_ADMIN_KEY": KEY})
    (folder / HOLD).touch()
    with ThreadPoolExecutor(1) as threads:
        headers = {"Authorization": f"Bearer {KEY}"}
        url = f"{server.url}/admin/reload"
        asking = threads.submit(httpx.post, url, headers=headers, timeout=PATIENCE_SECONDS)
        wait_for(lambda: "held" in server.log, "the reload")
        server.signal()
        assert server.wait() == 0
        response = asking.result(PATIENCE_SECONDS)
    assert (response.status_code, response.json()["code"]) == (503, "not_ready")


def test_the_drain_delay_keeps_the_door_open(start_server: StartServer) -> None:
    """For the delay the server says that it is not ready, and serves whoever comes all the same."""
    server = start_server("--no-warmup", "--drain-delay-seconds", 600)
    server.signal()
    wait_for(lambda: "stopping" in server.log, "the signal's effect")
    for path in ("/health", "/health/ready"):
        response = server.client.get(path)
        assert (response.status_code, response.json()) == (503, {"status": "draining"})
        assert response.headers["connection"] == "close"
    assert server.client.get("/health/live").status_code == 200
    assert server.sample("eyeline_ready") == 0
    assert server.encode("still served")["num_tokens"] == [4]
    server.close()


def test_ctrl_c_is_a_clean_stop(start_server: StartServer) -> None:
    """SIGINT with nobody there: exit code 0, no traceback."""
    server = start_server("--no-warmup")
    server.signal(signal.SIGINT)
    assert server.wait() == 0
    assert "Traceback" not in server.log
