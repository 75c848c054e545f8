"""The Python client against a running server."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from eyeline import (
    AsyncClient,
    Client,
    InvalidRequestError,
    NotFoundError,
    RetryPolicy,
    TooLargeError,
    TruncationWarning,
    UnreachableError,
)
from tests.e2e.conftest import MAX_LENGTH, PATIENCE_SECONDS, Server, StartServer, start_faulty

pytestmark = pytest.mark.e2e

REFERENCE = Path(__file__).parents[1] / "reference"
ROWS: list[dict[str, Any]] = json.loads((REFERENCE / "minilm.json").read_text())
TYPED_SPECIAL = 20
"""The row whose text holds special tokens: the reference read them as such."""
OTHERS = [index for index in range(len(ROWS)) if index != TYPED_SPECIAL]
TEXTS = [ROWS[index]["text"] for index in OTHERS]


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """A client that splits even short lists."""
    with Client(server.url, max_texts_per_request=7, timeout_seconds=PATIENCE_SECONDS) as made:
        made.wait_until_ready(PATIENCE_SECONDS)
        yield made


def test_embeddings_are_the_references(client: Client) -> None:
    """In several requests, in order, with the one text that is cut told."""
    with np.load(REFERENCE / "minilm.npz") as file:
        expected = file["embeddings"][OTHERS]
    [cut] = [place for place, index in enumerate(OTHERS) if len(ROWS[index]["input_ids"]) == MAX_LENGTH]
    with pytest.warns(TruncationWarning, match=rf"1 of {len(TEXTS)} texts .*texts\[{cut}\]"):
        encoded = client.encode(TEXTS)
    np.testing.assert_allclose(encoded.embeddings, expected, atol=1e-5, rtol=0)
    assert encoded.num_tokens.tolist() == [len(ROWS[index]["input_ids"]) for index in OTHERS]
    assert np.flatnonzero(encoded.truncated).tolist() == [cut]
    assert encoded.num_tokens_total[cut] > MAX_LENGTH


def test_both_clients_and_plain_json_agree(client: Client, server: Server) -> None:
    """Each option reaches the server; the asynchronous client gives the same."""
    options: dict[str, Any] = {"dimensions": 8, "normalize": False, "prompt": "query: ", "model": "all-MiniLM-L6-v2"}
    texts = ["The cat sat.", "A dog barked."]
    encoded = client.encode(texts, **options)
    plain = server.encode(texts, **options)
    np.testing.assert_allclose(encoded.embeddings, np.array(plain["embeddings"]), atol=1e-6, rtol=0)
    assert encoded.num_tokens.tolist() == plain["num_tokens"]

    async def awaited() -> Any:
        async with AsyncClient(server.url, timeout_seconds=PATIENCE_SECONDS) as other:
            await other.wait_until_ready(PATIENCE_SECONDS)
            return await other.encode(texts, **options), await other.attention(texts[0]), await other.info()

    same, view, info = asyncio.run(awaited())
    np.testing.assert_allclose(same.embeddings, encoded.embeddings, atol=1e-6, rtol=0)
    assert view.tokens == client.tokenize(texts[0]).tokens
    assert info["models"] == client.info()["models"]
    pair = client.encode([("The cat sat.", "A dog barked.")])
    np.testing.assert_allclose(pair.embeddings, server.encode([texts])["embeddings"], atol=1e-6, rtol=0)


def test_attention_is_what_the_page_of_the_api_says(client: Client, server: Server) -> None:
    """Rows sum to 1; sparse rows, statistics and rollout are those of the JSON answer."""
    view = client.attention("The cat sat.", layers="all", stats=True, rollout=True)
    assert view.maps is not None
    assert view.maps.values is not None
    assert view.maps.values.shape == view.maps.shape == (6, 12, 6, 6)
    np.testing.assert_allclose(view.maps.values.sum(axis=-1), 1, atol=view.maps.row_sum_tolerance)
    assert view.tokens.text == ["[CLS]", "the", "cat", "sat", ".", "[SEP]"]
    attention = {"layers": "all", "stats": True, "rollout": {}, "digits": 7}
    [plain] = server.encode("The cat sat.", attention=attention)["attention"]
    np.testing.assert_allclose(view.maps.values, plain["maps"]["values"], atol=1e-6)
    assert view.stats is not None
    for name, values in view.stats.values.items():
        np.testing.assert_allclose(values, plain["stats"][name], atol=1e-5, rtol=1e-5)
    assert len(view.stats.values) == 10
    assert view.rollout is not None
    np.testing.assert_allclose(view.rollout.values, plain["rollout"]["values"], atol=1e-6)

    first, second = client.attention(["The cat sat.", "b"], heads=[1], top_k=2, special="mask", unit="word")
    assert first.maps is not None
    assert first.maps.sparse is not None
    assert first.maps.kept_mass is not None
    sparse = first.maps.sparse
    sums = np.add.reduceat(sparse.weight, sparse.row_start[:-1]) + sparse.rest
    np.testing.assert_allclose(sums, first.maps.kept_mass.ravel(), atol=1e-6)
    assert second.words.text == ["b"]


def test_cosines_and_their_explanations(client: Client) -> None:
    """Those of the embeddings; an explanation sums to its cosine; pairs stay in order over several requests."""
    texts = ["The cat sat.", "A dog barked.", "Stocks fell."]
    vectors = client.encode(texts).embeddings
    matrix = client.similarity(texts)
    np.testing.assert_allclose(matrix.similarities, vectors @ vectors.T, atol=1e-5)
    pairs = [(texts[i % 3], texts[i % 2]) for i in range(9)]
    cosines = client.similarity(pairs=pairs)
    np.testing.assert_allclose(cosines.similarities, [matrix.similarities[i % 3, i % 2] for i in range(9)], atol=1e-5)
    explained = client.similarity(pairs=pairs[:2], explain=True, unit="word")
    assert explained.explanations is not None
    for cosine, explanation in zip(explained.similarities, explained.explanations, strict=True):
        assert explanation.values.sum() == pytest.approx(cosine, abs=1e-6)
        assert explanation.values.shape == (len(explanation.rows.token), len(explanation.columns.token))


def test_errors_are_the_servers(client: Client) -> None:
    """Typed, with what was exceeded, and with the caller's index though the text went in the third request."""
    with pytest.raises(TooLargeError) as too_long:
        client.encode(["a"] * 16 + ["word " * 500], truncate=False)
    said = too_long.value
    assert (said.status, said.code, said.param, said.limit) == (413, "text_too_long", "texts[16]", MAX_LENGTH)
    assert said.actual == 502
    assert said.request_id
    with pytest.raises(InvalidRequestError) as invalid:
        client.encode("a", dimensions=1_000)
    assert (invalid.value.code, invalid.value.param) == ("dimensions_out_of_range", "dimensions")
    with pytest.raises(NotFoundError, match="model_not_found"):
        client.encode("a", model="gpt-5")
    assert client.health() == "ready"


def test_a_small_queue_is_no_error(start_server: StartServer) -> None:
    """Five requests at once, of which the queue holds one: all are answered, some after a 429."""
    crowded = start_faulty(start_server, "--max-queue-texts", 4, "--max-texts", 4)
    texts = [f"sentence number {number} " * 60 for number in range(20)]
    refused: list[int] = []

    class Counting(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            response = super().handle_request(request)
            if response.status_code == 429:
                crowded.open_gate()  # till then the queue is full, however fast the server is
                refused.append(response.status_code)
            return response

    patient = RetryPolicy(deadline_seconds=PATIENCE_SECONDS)
    settings: dict[str, Any] = {"timeout_seconds": PATIENCE_SECONDS, "retry": patient, "max_texts_per_request": 4}
    with Client(crowded.url, max_concurrency=5, transport=Counting(), **settings) as client, crowded.held():
        client.wait_until_ready(PATIENCE_SECONDS)
        crowd = client.encode(texts).embeddings
        alone = client.encode([texts[0], texts[-1]]).embeddings
    assert refused
    assert crowd.shape == (20, 384)
    np.testing.assert_allclose(crowd[[0, -1]], alone, atol=1e-5)


def test_no_server_is_said_soon() -> None:
    """With the reason; the port is bound, and nobody listens."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        client = Client(f"http://127.0.0.1:{silent.getsockname()[1]}", retry=RetryPolicy(max_connection_retries=1))
        with client, pytest.raises(UnreachableError, match=r"ConnectError: .*, 2 times"):
            client.encode("a")


def test_number_types_are_the_servers(client: Client) -> None:
    """Arrays of the type asked for, over several requests; int8 with its range and one count for each text."""
    texts = TEXTS[:9]
    whole = client.encode(texts, truncate=True).embeddings
    encoded = client.encode(texts, output_dtype="int8")
    assert encoded.embeddings.dtype == np.int8
    assert encoded.quantization is not None
    assert encoded.quantization.clipped.shape == (9,)
    step = encoded.quantization.range / 127
    np.testing.assert_allclose(encoded.embeddings * step, whole, atol=step / 2 * 1.01)
    bits = client.encode(texts, output_dtype="ubinary").embeddings
    assert (bits.dtype, bits.shape) == (np.uint8, (9, whole.shape[1] // 8))
    np.testing.assert_array_equal(bits, np.packbits(whole > 0, axis=1))
    with pytest.raises(InvalidRequestError, match="needs normalize true"):
        client.encode("a", output_dtype="uint8", normalize=False)


def test_heads_are_compared(client: Client) -> None:
    """All of the model, each at no distance from itself."""
    found = client.attention_heads(["The cat sat.", "A dog barked."], special="renormalize")
    assert found.distances.shape == (72, 72)
    assert sorted(found.order) == list(range(72))
    assert found.heads[13] == (1, 1)
    np.testing.assert_allclose(np.diag(found.distances), 0, atol=1e-3)


def test_chunks_are_the_servers(client: Client) -> None:
    """A chunk by itself has the embedding of its text, a late one another; int8 has its range."""
    text = "My sister lost her keys. She called the landlord! Nobody answered."
    [chunked] = client.encode_chunks(text, unit="sentence", size=1)
    texts = [text[start:end] for start, end in zip(chunked.start, chunked.end, strict=True)]
    assert texts == ["My sister lost her keys.", "She called the landlord!", "Nobody answered."]
    np.testing.assert_allclose(chunked.embeddings, client.encode(texts).embeddings, atol=1e-5)
    [late] = client.encode_chunks([text], unit="sentence", size=1, mode="late", output_dtype="int8")
    assert late.embeddings.dtype == np.int8
    assert late.quantization is not None
    assert np.abs(late.embeddings * late.quantization.range / 127 - chunked.embeddings).max() > 0.05
    with pytest.raises(InvalidRequestError, match="overlap"):
        client.encode_chunks(text, unit="token", size=1, overlap=1)
