"""Faults at every step of the flow, in a real process: neighbours are right, counters are right, and it recovers.

At the end of the module a table says how long after each fault a right answer came again.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import httpx
import numpy as np
import pytest

from tests.e2e.conftest import MAX_LENGTH, PATIENCE_SECONDS, Server, StartServer, start_faulty, wait_for
from tests.e2e.faulty_server import CUES

pytestmark = pytest.mark.e2e

NEIGHBOURS = ("The cat sat.", "A dog barked at the moon.", "Where are my keys?")
HANG_SECONDS = 5
SMALL_BATCHES = ("--batch-tokens", MAX_LENGTH)  # ten full batches, at any speed, are fewer seconds than --hang-seconds
TOLERANCE = 1e-4  # a text alone and among others differ by rounding

Recovery = Callable[[str, float], None]


@pytest.fixture(scope="module")
def recovery(request: pytest.FixtureRequest) -> Iterator[Recovery]:
    """Note how long after a fault a right answer came again; printed at the end of the module."""
    noted: list[tuple[str, float]] = []
    yield lambda fault, seconds: noted.append((fault, seconds))
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and noted:
        reporter.write_line("")
        for fault, seconds in noted:
            reporter.write_line(f"{fault:32} a right answer after {seconds:6.2f} s")


@pytest.fixture(scope="module")
def faulty(start_server: StartServer) -> Server:
    """A server that fails on cue, and outlives what the tests of this fixture do to it."""
    return start_faulty(start_server, "--threads", 1)


@pytest.fixture(scope="module")
def expected(faulty: Server) -> np.ndarray:
    """What the neighbours get from a server that is well, one by one."""
    return np.array([faulty.encode(text)["embeddings"][0] for text in NEIGHBOURS])


def samples(server: Server, *names: str) -> dict[str, float]:
    """Read counters and gauges without labels but the model's."""
    return {name: server.sample(f"eyeline_{name}") for name in names}


def assert_well(server: Server, expected: np.ndarray) -> float:
    """Wait until the server is ready and answers right; nothing is left over. Returns the seconds it took."""
    started = time.perf_counter()

    def answers() -> bool:
        response = server.client.post("/encode", json={"texts": list(NEIGHBOURS)})
        if response.status_code != 200:
            assert response.status_code in (500, 503), response.text
            return False
        np.testing.assert_allclose(response.json()["embeddings"], expected, atol=TOLERANCE)
        return True

    wait_for(answers, "a right answer")
    seconds = time.perf_counter() - started
    wait_for(lambda: server.client.get("/health/ready").status_code == 200, "readiness")
    assert samples(server, "queue_texts", "queue_tokens") == {"queue_texts": 0, "queue_tokens": 0}
    assert server.sample("eyeline_inflight_requests") == 1  # this very one
    return seconds


def send_together(server: Server, *texts: str) -> list[httpx.Response]:
    """Send each text as a request of its own while the worker is held, so that all that wait run in one batch."""

    async def send() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_SECONDS) as http:
            with server.held():
                tasks = [asyncio.create_task(http.post("/encode", json={"texts": text})) for text in texts]

                def are_there() -> bool:
                    return server.sample("eyeline_queue_texts") + sum(task.done() for task in tasks) == len(texts)

                await asyncio.to_thread(wait_for, are_there, "the arrival of every text")
                server.open_gate()
                return list(await asyncio.gather(*tasks))

    return asyncio.run(send())


def test_every_cue_is_one_token(faulty: Server) -> None:
    """The words that these tests speak to the model with are words that it knows."""
    tokens = faulty.client.post("/tokenize", json={"texts": list(CUES)}).json()["texts"]
    assert [text["num_tokens"] for text in tokens] == [3] * len(CUES)


@pytest.mark.parametrize(
    ("cue", "status", "code", "counts"),
    [  # of batches that end well the first is the one that the others wait for
        ("explode", 500, "inference_failed", {"batch_failures_total": 2, "batch_texts_count": 1 + 3}),
        ("shrink", 500, "inference_failed", {"batch_failures_total": 2, "batch_texts_count": 1 + 3}),
        ("ghost", 500, "non_finite_output", {"non_finite_rows_total": 1, "batch_texts_count": 1 + 1}),
        ("heavy", 200, None, {"out_of_memory_total": 2, "batch_texts_count": 1 + 3}),
        ("panic", 500, "internal_error", {"batch_texts_count": 1 + 1}),
    ],
)
def test_a_bad_text_harms_no_neighbour(
    faulty: Server,
    expected: np.ndarray,
    recovery: Recovery,
    cue: str,
    status: int,
    code: str | None,
    counts: dict[str, int],
) -> None:
    """Its caller is told; the others of its batch, which was one, get their own embeddings; what failed is counted,
    the batch and then the text alone; the server stays ready.
    """
    before = samples(faulty, *counts)
    answered = faulty.sample("eyeline_requests_total", route="/encode", status=str(status))
    errors = 0.0 if code is None else faulty.sample("eyeline_errors_total", code=code)
    first, bad, *rest = send_together(faulty, NEIGHBOURS[0], f"It may {cue} now", *NEIGHBOURS[1:])
    assert samples(faulty, *counts) == {name: before[name] + count for name, count in counts.items()}
    recovery(f"a text that makes it {cue}", assert_well(faulty, expected))
    assert bad.status_code == status, bad.text
    if code is not None:
        assert bad.json()["code"] == code
        assert faulty.sample("eyeline_errors_total", code=code) == errors + 1
    embeddings = [response.json()["embeddings"][0] for response in (first, *rest)]
    np.testing.assert_allclose(embeddings, expected, atol=TOLERANCE)
    assert faulty.sample("eyeline_requests_total", route="/encode", status=str(status)) > answered
    assert faulty.client.get("/health/live").status_code == 200


def test_output_that_stays_not_finite(faulty: Server, expected: np.ndarray, recovery: Recovery) -> None:
    """Readiness goes off, with the reason, and comes back when the server's own text is finite again."""
    spoilt = faulty.client.post("/encode", json={"texts": "poison"})
    assert (spoilt.status_code, spoilt.json()["code"]) == (500, "non_finite_output")
    wait_for(lambda: faulty.client.get("/health/ready").status_code == 503, "readiness to go off")
    health = faulty.client.get("/health/ready").json()
    assert (health["status"], health["reason"]) == ("failing", "non_finite_output")
    assert faulty.client.get("/health/live").status_code == 200
    assert faulty.sample("eyeline_fault", reason="non_finite_output") == 1
    assert faulty.client.post("/encode", json={"texts": NEIGHBOURS[0]}).json()["code"] == "non_finite_output"
    faulty.encode("medicine")
    started = time.perf_counter()
    assert_well(faulty, expected)
    recovery("output not finite, then cured", time.perf_counter() - started)
    assert faulty.sample("eyeline_fault", reason="non_finite_output") == 0


def test_a_dead_worker_is_replaced(faulty: Server, expected: np.ndarray, recovery: Recovery) -> None:
    """Who sends to a dead thread is told to come again within seconds, and is right to.

    https://github.com/michaelfeil/infinity/issues/242
    """
    restarts = faulty.sample("eyeline_worker_restarts_total")
    faulty.encode("murder")
    wait_for(lambda: "doomed" in faulty.log, "the end of the thread")
    started = time.perf_counter()
    lost = faulty.client.post("/encode", json={"texts": NEIGHBOURS[0]})
    assert (lost.status_code, lost.json()["code"]) == (503, "worker_unavailable")
    assert int(lost.headers["retry-after"]) >= 1
    assert_well(faulty, expected)
    recovery("worker thread died", time.perf_counter() - started)
    assert faulty.sample("eyeline_worker_restarts_total") == restarts + 1


def test_callers_that_leave(faulty: Server, expected: np.ndarray, recovery: Recovery) -> None:
    """Before their text is read, while it runs, while it waits and after it: the others are served as ever."""
    host, port = faulty.url.removeprefix("http://").split(":")
    body = b'{"texts": "wait"}'
    head = b"POST /encode HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(
        body
    )

    def leave(sent: bytes, until: Callable[[], bool]) -> None:
        with closing(socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)) as connection:
            connection.sendall(sent)
            wait_for(until, "the moment to leave")

    def num_left() -> float:
        with suppress(LookupError):  # until the first has left
            return faulty.sample("eyeline_requests_total", route="/encode", status="499")
        return 0.0

    def is_answered() -> bool:
        return faulty.sample("eyeline_requests_total", route="/encode", status="200") > answered

    cancelled = faulty.sample("eyeline_cancelled_total")
    with faulty.gate_shut():
        leave(head + body[:5], lambda: faulty.sample("eyeline_inflight_requests") == 2)
        leave(head + body, faulty.is_at_gate)
        leave(head + body, lambda: faulty.sample("eyeline_queue_texts") == 1)
        wait_for(lambda: num_left() == 3, "that all of them are noticed")
        assert samples(faulty, "queue_texts", "cancelled_total") == {"queue_texts": 0, "cancelled_total": cancelled + 2}
    answered = faulty.sample("eyeline_requests_total", route="/encode", status="200")
    leave(head + body, is_answered)
    recovery("callers left", assert_well(faulty, expected))
    assert num_left() == 3  # the fourth had its answer


def test_a_hung_worker_ends_the_process(start_server: StartServer, recovery: Recovery) -> None:
    """Readiness and liveness go off with the reason, everybody who waits gets 503, and the process exits with 1.

    https://github.com/huggingface/text-embeddings-inference/issues/694
    """
    server = start_faulty(start_server, "--threads", 1, *SMALL_BATCHES, "--hang-seconds", HANG_SECONDS)
    server.encode(NEIGHBOURS[0])
    started = time.perf_counter()
    probes: list[tuple[int, dict[str, Any]]] = []

    async def everyone() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_SECONDS) as http:
            tasks = [asyncio.create_task(http.post("/encode", json={"texts": "It may freeze now"}))]
            await asyncio.to_thread(wait_for, server.is_at_gate, "the batch that hangs")
            tasks += [asyncio.create_task(http.post("/encode", json={"texts": text})) for text in NEIGHBOURS]
            responses = list(await asyncio.gather(*tasks))
            for path in ("/health/ready", "/health/live"):
                probe = await http.get(path)
                probes.append((probe.status_code, probe.json()))
            return responses

    responses = asyncio.run(everyone())
    noticed = time.perf_counter() - started
    assert {(response.status_code, response.json()["code"]) for response in responses} == {(503, "worker_unavailable")}
    assert all(int(response.headers["retry-after"]) >= 1 for response in responses)
    assert {(status, body["status"], body["reason"]) for status, body in probes} == {(503, "failing", "worker_hung")}
    assert server.wait() == 1
    assert "faulty_server" in server.log  # the stack of the thread that hangs
    recovery(f"worker hung ({HANG_SECONDS} s allowed): told", noticed)
    recovery("worker hung: the process ended", time.perf_counter() - started)
    again = start_faulty(start_server, "--threads", 1)
    again.encode(NEIGHBOURS[0])
    recovery("worker hung: the next one serves", time.perf_counter() - started)
