"""The client that waits."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import httpx
import numpy as np
import pytest

from eyeline import (
    Client,
    InferenceFailedError,
    InvalidRequestError,
    NoAnswerInTimeError,
    OverloadedError,
    RetryPolicy,
    TooLargeError,
    TruncationWarning,
    UnreachableError,
)
from tests.doubles import WAIT_SECONDS
from tests.eyeline.fake_server import FakeServer, answer_encode, problem


def client_of(server: FakeServer, **settings: Any) -> Client:
    """A client of a fake, on whose clock it waits."""
    return Client(transport=server.transport, wait=server.wait, clock=server.clock, **settings)


def test_every_method_returns_its_records() -> None:
    """Over one connection; a single text gives a single view and a single table, a list a list."""
    with client_of(FakeServer()) as client:
        encoded = client.encode(["1", ("2", "x")])
        np.testing.assert_array_equal(encoded.embeddings, np.array([[1, 1 / 3], [2, 1 / 3]], np.float32))
        assert client.encode("7").embeddings.shape == (1, 2)
        view = client.attention("7", layers=[5], dtype="float32")
        assert view.maps is not None
        assert view.maps.shape == (1, 2, 3, 3)
        assert [one.embedding[0] for one in client.attention(["1", "2"])] == [1, 2]
        assert client.tokenize("4").num_tokens == 4
        assert [text.num_tokens for text in client.tokenize(["4", "5"])] == [4, 5]
        np.testing.assert_array_equal(client.similarity(["1", "2"]).similarities, np.eye(2))
        explained = client.similarity(pairs=[("7", "x")], explain=True, unit="word").explanations
        assert explained is not None
        assert (explained[0].sum, explained[0].unit) == (0.07, "word")
        assert client.info() == {"model_id": "fake"}
        assert client.health() == "ready"


def test_options_and_headers_are_sent() -> None:
    """A gateway's key with every request, a path in front of every route."""
    server = FakeServer()
    server.routes["/models/a/encode"] = server.routes["/encode"]
    with client_of(server, base_url="http://gateway/models/a", headers={"Authorization": "Bearer k"}) as client:
        client.encode("1", dimensions=2, normalize=False, prompt_name="query")
    [request] = server.requests
    assert request.headers["Authorization"] == "Bearer k"
    assert str(request.url) == "http://gateway/models/a/encode"
    assert server.bodies == [{"texts": ["1"], "dimensions": 2, "normalize": False, "prompt_name": "query"}]


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


def test_cut_texts_are_told_where_the_call_is() -> None:
    """The warning points at the caller's line, once for each call; it can be switched off."""
    server = FakeServer()
    with client_of(server, max_texts_per_request=1) as client:
        for call in (
            lambda: client.encode(["1", "cut 2"]),
            lambda: client.attention(["1", "cut 2"]),
            lambda: client.similarity(["1", "cut 2"]),
            lambda: client.similarity(pairs=[("1", "1"), ("1", "cut 2")]),
        ):
            with pytest.warns(TruncationWarning, match=r"1 of 2 .*\[1\]") as caught:
                call()
            assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings(), client_of(server, warn_on_truncation=False) as client:
        warnings.simplefilter("error")
        assert client.encode(["1", "cut 2"]).truncated.tolist() == [False, True]


def test_a_mistake_is_found_before_anything_is_sent() -> None:
    """Of the whole list, not of its first part."""
    server = FakeServer()
    with client_of(server, max_texts_per_request=1) as client:
        with pytest.raises(TypeError, match=r"texts\[1\]"):
            client.encode(["1", None])  # type: ignore[list-item] # what a data frame may hold
        with pytest.raises(TypeError, match="normalise"):
            client.encode("1", normalise=True)  # type: ignore[call-arg] # what a hurried caller may write
    assert server.requests == []


def test_health_says_what_the_server_says() -> None:
    """Once, without retrying: a probe that waits is none."""
    server = FakeServer(httpx.Response(503, json={"status": "draining"}), problem(500))
    with client_of(server) as client:
        assert client.health() == "draining"
        with pytest.raises(InferenceFailedError):
            client.health()
    assert server.waits == []


def test_waiting_until_ready() -> None:
    """Through refused connections, a gateway's errors and loading; or an error with the last reason."""
    loading = httpx.Response(503, json={"status": "loading"})
    server = FakeServer(httpx.ConnectError("refused"), httpx.Response(502), httpx.Response(200, content=b"?"), loading)
    with client_of(server) as client:
        client.wait_until_ready()
    assert (len(server.requests), len(server.waits)) == (5, 4)
    never = FakeServer(*[httpx.ConnectError("refused")] * 99)
    reason = r"not ready in 2 seconds: .*refused"
    with client_of(never) as client, pytest.raises(NoAnswerInTimeError, match=reason) as caught:
        client.wait_until_ready(2)
    assert isinstance(caught.value.__cause__, UnreachableError)
    assert never.clock.now <= 102
    slow = FakeServer(*[httpx.Response(503, json={"status": "loading"}) for _ in range(99)])
    with client_of(slow) as client, pytest.raises(NoAnswerInTimeError, match="seconds: loading"):
        client.wait_until_ready(2)


def test_an_empty_list_is_the_servers_to_refuse() -> None:
    """Nobody but the model knows how long an embedding of no text would be."""
    server = FakeServer(problem(422, "invalid_request", param="texts"))
    with client_of(server) as client, pytest.raises(InvalidRequestError):
        client.encode([])
    assert server.bodies == [{"texts": []}]


def test_closing_closes_the_connections() -> None:
    """At the end of the block; the client is of no use after it."""
    with client_of(FakeServer()) as client:
        client.health()
    with pytest.raises(RuntimeError, match="closed"):
        client.health()
