"""A running server, spoken to as clients of text-embeddings-inference speak: raw HTTP as they write it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.conftest import MAX_LENGTH, MODEL, Server, StartServer
from tests.tiny import make_bert_folder

pytestmark = pytest.mark.e2e

REFERENCE = Path(__file__).parents[1] / "reference"
ROWS: list[dict[str, Any]] = json.loads((REFERENCE / "minilm.json").read_text())
TYPED_SPECIAL = 20
"""The row whose text holds special tokens: the reference read them as such."""
FILLED = [index for index, row in enumerate(ROWS) if row["text"] and index != TYPED_SPECIAL]
TEXTS = [ROWS[index]["text"] for index in FILLED]
LONG = "word " * 1_000
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def expected() -> Any:
    """The right embeddings of the texts that are not empty."""
    with np.load(REFERENCE / "minilm.npz") as file:
        return file["embeddings"][FILLED]


def ask(server: Server, path: str, body: dict[str, Any]) -> Any:
    """Post a body, expecting success, and return the parsed answer."""
    response = server.client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("path", ["/embed", "/", f"/models/{MODEL.name}/embed"])
def test_embeddings_are_the_references(server: Server, expected: Any, path: str) -> None:
    """Texts, token ids, and both in one list, in the order sent."""
    ids = [ROWS[index]["input_ids"] for index in FILLED]
    mixed = [text if index % 2 else ids[index] for index, text in enumerate(TEXTS)]
    for inputs in (TEXTS, ids, mixed):
        answer = ask(server, path, {"inputs": inputs, "truncate": True})
        np.testing.assert_allclose(answer, expected, atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(ask(server, path, {"inputs": ids[0]}), expected[:1], atol=TOLERANCE, rtol=0)


def test_token_vectors_average_to_the_embedding(server: Server, expected: Any) -> None:
    """A vector for each id of the reference; mean and length make the reference's embedding."""
    few = slice(0, 8)
    answer = ask(server, "/embed_all", {"inputs": TEXTS[few], "truncate": True})
    assert [len(vectors) for vectors in answer] == [len(ROWS[index]["input_ids"]) for index in FILLED[few]]
    pooled = np.array([np.mean(vectors, axis=0) for vectors in answer])
    pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
    np.testing.assert_allclose(pooled, expected[few], atol=TOLERANCE, rtol=0)


def test_a_long_text_is_refused_or_cut_where_it_is_said(server: Server) -> None:
    """On every route; a cut on the left keeps the end."""
    for path in ("/embed", "/embed_all"):
        refused = server.client.post(path, json={"inputs": ["a", LONG]})
        assert refused.status_code == 413
        assert list(refused.json()) == ["error", "error_type"]
        assert "inputs[1]" in refused.json()["error"]
    ends = "cat " * 254
    for direction, text in (("Right", ends + LONG), ("Left", LONG + ends)):
        body = {"inputs": text, "truncate": True, "truncation_direction": direction, "dimensions": 8}
        response = server.client.post("/embed", json=body)
        assert response.headers["x-truncated-texts"] == "0"
        assert response.headers["x-compute-tokens"] == str(MAX_LENGTH)
        np.testing.assert_allclose(
            response.json(), ask(server, "/embed", {"inputs": ends, "dimensions": 8}), atol=TOLERANCE
        )


def test_tokens_and_back(server: Server) -> None:
    """Ids are the reference's, bytes cut the text, and ids give the text again."""
    texts = ["Hello world", "ein Café, 東京"]
    answer = ask(server, "/tokenize", {"inputs": texts})
    for text, tokens in zip(texts, answer, strict=True):
        for token in tokens[1:-1]:
            assert text.encode()[token["start"] : token["stop"]].decode() == token["text"]
    ids = [[token["id"] for token in tokens] for tokens in answer]
    assert ids[0] == [101, 7592, 2088, 102]
    assert ask(server, "/decode", {"ids": ids[0]}) == ["hello world"]
    assert ask(server, "/decode", {"ids": ids, "skip_special_tokens": False})[0] == "[CLS] hello world [SEP]"


def test_similarity_by_either_key(server: Server) -> None:
    """The same path answers in the form of the key."""
    sentences = ["A dog barked.", "The cat was sitting."]
    theirs = ask(server, "/similarity", {"inputs": {"source_sentence": "The cat sat.", "sentences": sentences}})
    ours = ask(server, "/similarity", {"texts": ["The cat sat.", *sentences]})
    np.testing.assert_allclose(theirs, ours["similarities"][0][1:], atol=TOLERANCE)
    assert theirs[1] > theirs[0]


def test_headers_are_true(server: Server) -> None:
    """Times add up within the total, counts are those of the request."""
    response = server.client.post("/embed", json={"inputs": TEXTS[:5]})
    headers = response.headers
    parts = [int(headers[f"x-{name}-time"]) for name in ("tokenization", "queue", "inference")]
    assert 0 < sum(parts) <= int(headers["x-total-time"]) == int(headers["x-compute-time"])
    assert int(headers["x-total-time"]) <= response.elapsed.total_seconds() * 1_000
    assert headers["x-compute-characters"] == str(sum(map(len, TEXTS[:5])))
    assert headers["x-compute-tokens"] == str(sum(len(ROWS[index]["input_ids"]) for index in FILLED[:5]))


def test_info_says_what_their_clients_ask(server: Server) -> None:
    """The first fields, true for this server."""
    info = server.client.get("/info").json()
    assert (info["model_id"], info["max_input_length"], info["auto_truncate"]) == (MODEL.name, MAX_LENGTH, False)
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert server.client.get(f"/models/{MODEL.name}/info").json() == info


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/embed", {"inputs": ""}, 400, "Empty"),
        ("/embed", {"inputs": ["a", ""]}, 400, "Empty"),
        ("/embed", {"inputs": [[999_999_999]]}, 422, "Validation"),
        ("/embed", {"inputs": "a", "dimensions": 385}, 422, "Validation"),
        ("/embed", {"inputs": "a" * 5_000_000}, 413, "Validation"),
        ("/models/nothing/embed", {"inputs": "a"}, 404, "Validation"),
        ("/similarity", {"inputs": "a"}, 422, "Validation"),
        ("/tokenize", {"inputs": []}, 400, "Empty"),
    ],
)
def test_errors_are_theirs(server: Server, path: str, body: dict[str, Any], status: int, kind: str) -> None:
    """Two keys, and the next request is served."""
    response = server.client.post(path, json=body)
    assert response.status_code == status
    assert list(response.json()) == ["error", "error_type"]
    assert response.json()["error_type"] == kind
    assert len(response.content) < 1_000
    assert len(ask(server, "/embed", {"inputs": "a"})[0]) == 384


def test_a_model_by_its_path(start_server: StartServer, tmp_path: Path) -> None:
    """Two models, each a server of its own to a client that is given its address."""
    other = make_bert_folder(tmp_path / "other", max_length=16)
    server = start_server("--model", f"other={other}", "--no-warmup")
    assert len(ask(server, "/embed", {"inputs": "the cat"})[0]) == 384
    assert len(ask(server, "/models/other/embed", {"inputs": "the cat"})[0]) == 16
    assert server.client.get("/models/other/info").json()["max_input_length"] == 16
    assert ask(server, "/models/other/tokenize", {"inputs": "the cat"}) != ask(
        server, f"/models/{MODEL.name}/tokenize", {"inputs": "the cat"}
    )
