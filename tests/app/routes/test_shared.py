"""Paths that two APIs share: the body's key decides who answers, and in which shape errors are."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

from tests.app.conftest import Served

pytestmark = pytest.mark.anyio

COMPARISON = {"source_sentence": "the cat sat", "sentences": ["a dog barked", "the cat"]}
JSON = {"content-type": "application/json"}


def is_problem(response: httpx.Response) -> bool:
    """Whether an error has our shape."""
    return response.headers["content-type"] == "application/problem+json"


async def test_similarity_by_inputs(server: Served) -> None:
    """Cosines of the source with each sentence, as a bare list; the same as ours."""
    response = await server.post("/similarity", {"inputs": COMPARISON})
    vectors = server.embedder.encode([COMPARISON["source_sentence"], *COMPARISON["sentences"]])  # type: ignore[list-item]
    np.testing.assert_allclose(response.json(), vectors[1:] @ vectors[0], atol=1e-6)
    assert response.headers["x-compute-tokens"] == "14"
    native = await server.post("/similarity", {"texts": [COMPARISON["source_sentence"], *COMPARISON["sentences"]]})
    np.testing.assert_allclose(response.json(), native.json()["similarities"][0][1:], atol=1e-6)
    same = await server.post("/similarity", {"inputs": {"source_sentence": "cat", "sentences": ["cat"]}})
    assert same.json() == [pytest.approx(1, abs=1e-6)]
    assert same.json()[0] <= 1


async def test_parameters_of_similarity(server: Served) -> None:
    """truncate, direction and prompt stand in an object of their own."""
    long = "the cat " + "dog " * 100
    body: dict[str, Any] = {"inputs": {"source_sentence": "dog " * 30, "sentences": [long]}}
    refused = await server.post("/similarity", body)
    assert refused.status_code == 413
    assert refused.json()["error"].startswith("inputs.sentences[0]: the text has 104 tokens")
    body["parameters"] = {"truncate": True, "truncation_direction": "Left", "prompt_name": None}
    response = await server.post("/similarity", body)
    assert response.json() == [pytest.approx(1, abs=1e-6)]
    assert response.headers["x-truncated-texts"] == "1"
    body["parameters"] = {"truncate": True}
    assert (await server.post("/similarity", body)).json()[0] < 0.9999


async def test_tokens_by_inputs(server: Served) -> None:
    """One list a text; offsets are bytes of prompt and text, special tokens have none."""
    response = await server.post("/tokenize", {"inputs": "the café"})
    [tokens] = response.json()
    assert list(tokens[0]) == ["id", "text", "special", "start", "stop"]
    assert tokens[0] | {"id": 0} == {"id": 0, "text": "[CLS]", "special": True, "start": None, "stop": None}
    assert [(token["text"], token["start"], token["stop"]) for token in tokens[1:-1]] == [
        ("the", 0, 3),
        ("c", 4, 5),
        ("a", 5, 6),
        ("f", 6, 7),
        ("é", 7, 9),
    ]
    prompted = await server.post("/tokenize", {"inputs": ["the cat", "dog"], "prompt_name": "query"})
    last = [text[-2] for text in prompted.json()]
    assert [(token["text"], token["start"], token["stop"]) for token in last] == [("cat", 11, 14), ("dog", 7, 10)]
    bare = await server.post("/tokenize", {"inputs": "the cat", "add_special_tokens": False})
    assert [token["text"] for token in bare.json()[0]] == ["the", "cat"]


async def test_tokens_are_never_cut(server: Served) -> None:
    """By their key all 102 tokens; by ours the 32 that the model reads."""
    theirs = await server.post("/tokenize", {"inputs": "cat " * 100})
    assert len(theirs.json()[0]) == 102
    ours = await server.post("/tokenize", {"texts": "cat " * 100})
    assert ours.json()["texts"][0]["num_tokens"] == 32


@pytest.mark.parametrize(
    ("path", "ours", "theirs"),
    [
        ("/similarity", {"texts": ["a", 5]}, {"inputs": {"source_sentence": 5, "sentences": ["a"]}}),
        ("/similarity", {"pairs": []}, {"inputs": "a"}),
        ("/tokenize", {"texts": 5}, {"inputs": 5}),
        ("/tokenize", {"texts": "a", "prompt_name": "no"}, {"inputs": "a", "prompt_name": "no"}),
    ],
)
async def test_errors_have_the_shape_of_the_key(server: Served, path: str, ours: Any, theirs: Any) -> None:
    """Both are 422, each in its own words."""
    native, foreign = await server.post(path, ours), await server.post(path, theirs)
    assert native.status_code == foreign.status_code == 422
    assert is_problem(native)
    assert list(foreign.json()) == ["error", "error_type"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/similarity", {"inputs": COMPARISON, "texts": ["a"]}),
        ("/similarity", {"inputs": COMPARISON, "pairs": [["a", "b"]]}),
        ("/similarity", {}),
        ("/tokenize", {"inputs": "a", "texts": "a"}),
        ("/tokenize", {}),
    ],
)
async def test_both_keys_or_neither_is_422(server: Served, path: str, body: Any) -> None:
    """In our shape: nobody can tell which API was meant."""
    response = await server.post(path, body)
    assert response.status_code == 422
    assert is_problem(response)


@pytest.mark.parametrize("path", ["/similarity", "/tokenize"])
async def test_what_cannot_be_read_is_ours(server: Served, path: str) -> None:
    """Before the key is known errors have our shape."""
    malformed = await server.client.post(path, content=b'{"inputs": ', headers=JSON)
    assert (malformed.status_code, is_problem(malformed)) == (400, True)
    untyped = await server.client.post(path, content=b'{"inputs": "a"}')
    assert (untyped.status_code, is_problem(untyped)) == (415, True)


async def test_a_text_that_mentions_the_key_is_no_key(server: Served) -> None:
    """A native body whose text holds the word is a native body."""
    response = await server.post("/tokenize", {"texts": 'say "inputs" to them'})
    assert response.json()["texts"][0]["truncated"] is False
