"""How calls are made: attempts, waits, parts of a long list; through the client, which has no other way."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import pytest

from eyeline import (
    Client,
    NoAnswerInTimeError,
    OverloadedError,
    RetryPolicy,
    TooLargeError,
    UnexpectedAnswerError,
    UnreachableError,
)
from tests.doubles import WAIT_SECONDS
from tests.eyeline.fake_server import FakeServer, answer_badly, answer_encode, problem
from tests.eyeline.test_client import client_of


def test_no_room_is_waited_for() -> None:
    """As long as the server says, then the same request once more; also while it starts."""
    server = FakeServer(problem(429, "queue_full", {"Retry-After": "3"}), problem(503, "not_ready"))
    with client_of(server) as client:
        assert client.encode("1").embeddings[0, 0] == 1
    assert server.bodies == [{"texts": ["1"]}] * 3
    first, second = server.waits
    assert 3 <= first <= 3.25
    assert 0.25 <= second <= 0.5


def test_a_lost_connection_is_made_again() -> None:
    """Refused, broken before the answer, or broken within it."""
    errors = (httpx.ConnectError("refused"), httpx.RemoteProtocolError("closed"), httpx.ReadError("reset"))
    server = FakeServer(*errors)
    with client_of(server) as client:
        assert client.encode("1").embeddings[0, 0] == 1
    assert (len(server.requests), len(server.waits)) == (4, 3)


@pytest.mark.parametrize("status", [400, 404, 413, 422, 500, 501, 502, 504])
def test_other_errors_are_raised_at_once(status: int) -> None:
    """What failed for a reason would fail again."""
    server = FakeServer(problem(status, headers={"Retry-After": "1"}))
    with client_of(server) as client, pytest.raises(Exception, match=rf"^{status} some_code: why"):
        client.encode("1")
    assert (len(server.requests), server.waits) == (1, [])


def test_patience_ends_at_the_deadline() -> None:
    """With the server's last answer; waits and attempts together never take longer."""
    server = FakeServer(*[problem(429, "queue_full", {"Retry-After": "4"}) for _ in range(10)])
    with client_of(server, retry=RetryPolicy(deadline_seconds=10)) as client:
        with pytest.raises(OverloadedError) as caught:
            client.encode("1")
        assert caught.value.code == "queue_full"
    assert len(server.waits) == 2
    assert server.clock.now <= 110


def test_a_server_that_is_not_there_is_told_apart_from_a_slow_one() -> None:
    """The first after a few attempts, the second after one."""
    gone = FakeServer(*[httpx.ConnectError("refused")] * 9)
    with client_of(gone, retry=RetryPolicy(max_connection_retries=2)) as client:
        with pytest.raises(UnreachableError, match="refused, 3 times"):
            client.encode("1")
        with pytest.raises(UnreachableError):
            client.health()
    assert len(gone.requests) == 4
    slow = FakeServer(httpx.ReadTimeout("slow"))
    with client_of(slow) as client, pytest.raises(NoAnswerInTimeError):
        client.encode("1")


def test_an_answer_that_cannot_be_decoded_is_no_answer_of_eyelines() -> None:
    """Something in between says gzip of what is none: an error of ours, at once, whatever is asked."""
    server = FakeServer()
    server.routes["/encode"] = server.routes["/health"] = answer_badly
    with client_of(server) as client:
        for ask in (lambda: client.encode("1"), client.health):
            with pytest.raises(UnexpectedAnswerError, match="cannot be decoded"):
                ask()
    assert (len(server.requests), server.waits) == (2, [])


def test_an_attempt_has_what_is_left_of_the_deadline() -> None:
    """So that a server which hangs at the second attempt does not hold the caller for longer than agreed."""
    server = FakeServer(problem(503, headers={"Retry-After": "4"}))
    with client_of(server, timeout_seconds=8, retry=RetryPolicy(deadline_seconds=10)) as client:
        client.encode("1")
    first, second = (request.extensions["timeout"]["read"] for request in server.requests)
    assert first == 8
    assert 5.7 <= second <= 6


def test_a_long_list_is_sent_in_parts_and_comes_back_in_order() -> None:
    """Though the first part is answered last."""
    server = FakeServer()
    others_done = threading.Event()
    finished: list[str] = []

    def answer(body: dict[str, Any]) -> httpx.Response:
        if body["texts"][0] == "0":
            assert others_done.wait(WAIT_SECONDS)
        finished.append(body["texts"][0])
        if len(finished) == 4:
            others_done.set()
        return answer_encode(body)

    server.routes["/encode"] = answer
    texts = [str(number) for number in range(50)]
    with client_of(server, max_texts_per_request=10, max_concurrency=2) as client:
        encoded = client.encode(texts)
    assert encoded.embeddings[:, 0].tolist() == list(range(50))
    assert finished[-1] == "0"
    assert sorted(len(body["texts"]) for body in server.bodies) == [10] * 5


def test_so_many_requests_are_under_way_and_no_more() -> None:
    """Three meet at the barrier each time: fewer would never pass it, a fourth would be counted."""
    server = FakeServer()
    barrier = threading.Barrier(3, timeout=WAIT_SECONDS)
    lock = threading.Lock()
    under_way: list[int] = [0]
    seen: list[int] = []

    def answer(body: dict[str, Any]) -> httpx.Response:
        with lock:
            under_way[0] += 1
            seen.append(under_way[0])
        barrier.wait()
        with lock:
            under_way[0] -= 1
        barrier.wait()
        return answer_encode(body)

    server.routes["/encode"] = answer
    with client_of(server, max_texts_per_request=1, max_concurrency=3) as client:
        assert len(client.encode([str(number) for number in range(9)])) == 9
    assert max(seen) == 3


def test_one_failed_part_fails_the_call_and_spares_the_rest() -> None:
    """The error names the caller's text; parts that were not sent yet never are, and nobody waits out a Retry-After."""
    server = FakeServer()
    waiting = threading.Event()

    def answer(body: dict[str, Any]) -> httpx.Response:
        if body["texts"] == ["0"]:
            waiting.set()
            return problem(503, headers={"Retry-After": "3000"})
        assert waiting.wait(WAIT_SECONDS)
        return problem(413, "text_too_long", param="texts[0]")

    server.routes["/encode"] = answer
    patient = RetryPolicy(deadline_seconds=100_000)
    client = Client(transport=server.transport, max_texts_per_request=1, max_concurrency=2, retry=patient)
    with client, pytest.raises(TooLargeError) as caught:
        client.encode([str(number) for number in range(100)])
    assert caught.value.param == "texts[1]"
    assert len(server.requests) == 2


def test_a_failed_call_leaves_no_request_behind() -> None:
    """What is under way is waited for: the client may be closed next, and no connection under a thread that reads."""
    server = FakeServer()
    under_way, failed = threading.Event(), threading.Event()
    ended: list[str] = []

    def answer(body: dict[str, Any]) -> httpx.Response:
        [text] = body["texts"]
        if text == "0":
            assert under_way.wait(WAIT_SECONDS)
            failed.set()
            return problem(413, "text_too_long")
        under_way.set()
        assert failed.wait(WAIT_SECONDS)
        time.sleep(0.05)  # by now the call has failed
        ended.append(text)
        return answer_encode(body)

    server.routes["/encode"] = answer
    with client_of(server, max_texts_per_request=1, max_concurrency=2) as client:
        with pytest.raises(TooLargeError):
            client.encode(["0", "1", "2"])
        assert ended == ["1"]
    assert len(server.requests) == 2


def test_closing_closes_the_connections() -> None:
    """At the end of the block; the client is of no use after it."""
    with client_of(FakeServer()) as client:
        client.health()
    with pytest.raises(RuntimeError, match="closed"):
        client.health()
