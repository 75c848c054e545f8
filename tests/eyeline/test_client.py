"""The client that waits."""

from __future__ import annotations

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
    TruncationWarning,
    UnreachableError,
)
from tests.eyeline.fake_server import FakeServer, problem


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
        chunked = client.encode_chunks(["1", "3"], unit="token", size=1)
        assert [len(text) for text in chunked] == [1, 3]
        assert chunked[1].embeddings.tolist() == [[3, 0], [3, 1], [3, 2]]
        assert len(client.encode_chunks("2", unit="sentence", size=1)) == 1
        heads = client.attention_heads(["1", "2"])
        assert (heads.heads, heads.order, heads.distances.shape) == ([(0, 0), (0, 1)], [1, 0], (2, 2))
        assert len(client.attention_heads("1")) == 1
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


def test_heads_are_compared_over_all_texts_together() -> None:
    """One request, however long the list; special tokens as the caller says."""
    server = FakeServer()
    with client_of(server, max_texts_per_request=1) as client:
        assert client.attention_heads(["1", ("2", "x")], special="renormalize", truncate=False).explained == 1
    assert server.bodies == [{"texts": ["1", ["2", "x"]], "truncate": False, "special": "renormalize"}]
    assert server.requests[0].url.path == "/attention/heads"


def test_chunks_are_asked_for_beside_other_options() -> None:
    """A long list goes in parts, and comes back in order."""
    server = FakeServer()
    with client_of(server, max_texts_per_request=2) as client:
        options: Any = {"overlap": 1, "mode": "late", "output_dtype": "float32"}
        chunked = client.encode_chunks(["1", "2", "3"], unit="sentence", size=2, **options)
    assert [len(text) for text in chunked] == [1, 2, 3]
    chunks = {"unit": "sentence", "size": 2, "overlap": 1, "mode": "late"}
    sent = [{"texts": texts, "output_dtype": "float32", "chunks": chunks} for texts in (["1", "2"], ["3"])]
    assert sorted(server.bodies, key=lambda body: body["texts"][0]) == sent


def test_cut_texts_are_told_where_the_call_is() -> None:
    """The warning points at the caller's line, once for each call; it can be switched off."""
    server = FakeServer()
    with client_of(server, max_texts_per_request=1) as client:
        for call in (
            lambda: client.encode(["1", "cut 2"]),
            lambda: client.attention(["1", "cut 2"]),
            lambda: client.attention_heads(["1", "cut 2"]),
            lambda: client.encode_chunks(["1", "cut 2"], unit="token", size=1),
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
