"""What comes over the wire is right, for one caller and for many at once."""

from __future__ import annotations

import base64
import http.client
import io
import json
import random
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from tests.e2e.conftest import MAX_LENGTH, PATIENCE_SECONDS, TEST_SCALE, Server, StartServer

pytestmark = pytest.mark.e2e

REFERENCE = Path(__file__).parents[1] / "reference"
ROWS: list[dict[str, Any]] = json.loads((REFERENCE / "minilm.json").read_text())
TEXTS = [row["text"] for row in ROWS]
TYPED_SPECIAL = 20
"""The row whose text holds special tokens: the reference read them as such."""
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    """The right answers."""
    with np.load(REFERENCE / "minilm.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def parsing_server(start_server: StartServer) -> Server:
    """A server that reads typed special tokens as such; started as a pod whose Service is called eyeline."""
    injected = {
        "EYELINE_SERVICE_HOST": "10.0.0.7",
        "EYELINE_SERVICE_PORT": "8080",
        "EYELINE_SERVICE_PORT_HTTP": "8080",
        "EYELINE_PORT_8080_TCP": "tcp://10.0.0.7:8080",
        "EYELINE_PORT_8080_TCP_ADDR": "10.0.0.7",
    }
    return start_server("--special-tokens", "parse", "--no-warmup", environ=injected)


@pytest.mark.parametrize("together", [True, False])
def test_embeddings_are_the_references(server: Server, reference: dict[str, Any], together: bool) -> None:
    """Texts sent one by one, and all in one request, give what sentence-transformers gives for each alone."""
    if together:
        embeddings = np.array(server.encode(TEXTS)["embeddings"])
    else:
        embeddings = np.concatenate([server.encode(text)["embeddings"] for text in TEXTS])
    others = [index for index in range(len(TEXTS)) if index != TYPED_SPECIAL]
    np.testing.assert_allclose(embeddings[others], reference["embeddings"][others], atol=TOLERANCE, rtol=0)


def test_ids_are_the_references(server: Server) -> None:
    """The tokens are those of the reference, text by text."""
    texts = server.client.post("/tokenize", json={"texts": TEXTS}).json()["texts"]
    for index, (text, row) in enumerate(zip(texts, ROWS, strict=True)):
        assert (text["tokens"]["id"] == row["input_ids"]) == (index != TYPED_SPECIAL)


def test_attention_is_the_references(server: Server, reference: dict[str, Any]) -> None:
    """All maps of all layers are those of eager attention, and asking for them changes no embedding."""
    asked = [int(name.removeprefix("attention_")) for name in reference if name.startswith("attention_")]
    asked.remove(TYPED_SPECIAL)
    assert len(asked) >= 3
    attention = {"layers": "all", "encoding": "base64", "dtype": "float32"}
    body = server.encode([TEXTS[index] for index in asked], attention=attention)
    plain = server.encode([TEXTS[index] for index in asked])
    np.testing.assert_allclose(body["embeddings"], plain["embeddings"], atol=1e-6)
    for entry, index in zip(body["attention"], asked, strict=True):
        maps = np.frombuffer(base64.b64decode(entry["maps"]["data"]), "<f4").reshape(entry["maps"]["shape"])
        np.testing.assert_allclose(maps, reference[f"attention_{index}"], atol=TOLERANCE, rtol=0)
        np.testing.assert_allclose(maps.sum(axis=-1), 1, atol=TOLERANCE)


def test_typed_special_tokens_are_text(server: Server, reference: dict[str, Any]) -> None:
    """By default what a user types is text: no token of it is special, and the sentence keeps its structure."""
    body = server.encode(TEXTS[TYPED_SPECIAL], attention={})
    tokens = body["attention"][0]["tokens"]
    assert tokens["special"] == [True, *[False] * (len(tokens["id"]) - 2), True]
    assert tokens["id"].count(101) == tokens["id"].count(102) == 1
    assert np.abs(np.array(body["embeddings"][0]) - reference["embeddings"][TYPED_SPECIAL]).max() > 1e-3


def test_typed_special_tokens_can_be_parsed(parsing_server: Server, reference: dict[str, Any]) -> None:
    """With the other setting they are what sentence-transformers makes of them, maps included."""
    attention = {"layers": "all", "encoding": "base64", "dtype": "float32"}
    body = parsing_server.encode(TEXTS[TYPED_SPECIAL], attention=attention)
    [entry] = body["attention"]
    assert entry["tokens"]["id"] == ROWS[TYPED_SPECIAL]["input_ids"]
    np.testing.assert_allclose(body["embeddings"][0], reference["embeddings"][TYPED_SPECIAL], atol=TOLERANCE, rtol=0)
    maps = np.frombuffer(base64.b64decode(entry["maps"]["data"]), "<f4").reshape(entry["maps"]["shape"])
    np.testing.assert_allclose(maps, reference[f"attention_{TYPED_SPECIAL}"], atol=TOLERANCE, rtol=0)
    # what the template added is special, what was typed is not
    assert entry["tokens"]["special"] == [True, *[False] * (len(maps[0, 0]) - 2), True]


def test_variables_of_kubernetes_are_ignored(parsing_server: Server) -> None:
    """A Service called eyeline injects variables that look like ours: the server started, on its own port."""
    assert parsing_server.client.get("/health").status_code == 200
    assert "10.0.0.7" not in parsing_server.url


@pytest.mark.parametrize(
    ("words", "num_tokens", "total", "truncated"),
    [
        (MAX_LENGTH - 2, MAX_LENGTH, MAX_LENGTH, False),
        (MAX_LENGTH - 1, MAX_LENGTH, MAX_LENGTH + 1, True),
        (10 * MAX_LENGTH - 2, MAX_LENGTH, 10 * MAX_LENGTH, True),
    ],
)
def test_at_and_over_the_maximum(server: Server, words: int, num_tokens: int, total: int, truncated: bool) -> None:
    """Exactly the maximum is whole; one token more, and ten times as many, are cut, and say so, or are refused."""
    text = "cat " * words
    body = server.encode([text, "cat"])
    assert body["num_tokens"] == [num_tokens, 3]
    assert body["num_tokens_total"] == [total, 3]
    assert body["truncated"] == [truncated, False]
    whole = server.encode("cat " * (MAX_LENGTH - 2))
    np.testing.assert_allclose(body["embeddings"][0], whole["embeddings"][0], atol=TOLERANCE)
    response = server.client.post("/encode", json={"texts": ["cat", text], "truncate": False})
    if truncated:
        assert response.status_code == 413
        problem = response.json()
        assert (problem["code"], problem["param"]) == ("text_too_long", "texts[1]")
        assert (problem["limit"], problem["actual"]) == (MAX_LENGTH, total)
    else:
        assert response.status_code == 200


def test_binary_answers(server: Server) -> None:
    """Safetensors and npz hold the numbers of JSON's base64, bit for bit."""
    texts = TEXTS[:4]
    encoded = server.encode(texts, encoding_format="base64")["embeddings"]
    expected = np.stack([np.frombuffer(base64.b64decode(text), "<f4") for text in encoded])
    body = {"texts": texts}
    response = server.client.post("/encode", json=body, headers={"Accept": "application/vnd.safetensors"})
    np.testing.assert_array_equal(safetensors.numpy.load(response.content)["embeddings"], expected)
    response = server.client.post("/encode", json=body, headers={"Accept": "application/x-npz"})
    with np.load(io.BytesIO(response.content), allow_pickle=False) as file:
        np.testing.assert_array_equal(file["embeddings"], expected)


def curl(*arguments: str) -> str:
    """Run curl as a user would, failing on an HTTP error."""
    done = subprocess.run(
        ["curl", "--silent", "--show-error", "--fail", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    return done.stdout


def test_curl_checks_health(server: Server) -> None:
    """The health check of a compose file: one line, exit code 0; HEAD works as well."""
    assert curl(f"{server.url}/health") == '{"status":"ready"}\n'
    assert "200 OK" in curl("--head", f"{server.url}/health/ready")


def test_curl_encodes(server: Server) -> None:
    """One command, and the embedding is there."""
    body = json.loads(curl(f"{server.url}/encode", "--json", '{"texts": "hello world"}'))
    np.testing.assert_allclose(body["embeddings"], server.encode("hello world")["embeddings"], atol=TOLERANCE)


NUM_CLIENTS = 64
NUM_TEXTS = int(50 * TEST_SCALE)
WORDS = ("the", "a", "cat", "dog", "sat", "ran", "on", "under", "quick", "brown", "fox", "zürich", "42", "don't")


def make_pool(draw: random.Random, size: int) -> list[str]:
    """Draw distinct texts, most of them short, some long, as callers send them."""
    pool: dict[str, None] = {}
    while len(pool) < size:
        length = min(int(draw.lognormvariate(1.8, 0.8)) + 1, 120)
        pool[" ".join(draw.choices(WORDS, k=length))] = None
    return list(pool)


def test_many_clients_get_their_own_answers(server: Server) -> None:
    """64 clients at once, each sending its texts one after the other: every answer is that of the text alone."""
    draw = random.Random(20)
    pool = make_pool(draw, 300)
    alone = np.stack([server.encode(text)["embeddings"][0] for text in pool])
    plans = [[draw.randrange(len(pool)) for _ in range(NUM_TEXTS)] for _ in range(NUM_CLIENTS)]

    def client(plan: list[int]) -> float:
        """Send one plan over a connection of its own, and return the largest error of any answer."""
        draw, error = random.Random(plan[0]), 0.0
        # the standard library's client: a heavier one would take the machine from the server
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=PATIENCE_SECONDS)
        with closing(connection):
            position = 0
            while position < len(plan):
                chosen = plan[position : position + draw.choice((1, 1, 1, 2, 5))]
                position += len(chosen)
                body = json.dumps({"texts": [pool[index] for index in chosen], "encoding_format": "base64"})
                connection.request("POST", "/encode", body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                answer = json.loads(response.read())
                assert response.status == 200, answer
                rows = np.stack([np.frombuffer(base64.b64decode(row), "<f4") for row in answer["embeddings"]])
                error = max(error, float(np.abs(rows - alone[chosen]).max()))
        return error

    before = server.sample("eyeline_texts_total", route="/encode")
    with ThreadPoolExecutor(NUM_CLIENTS) as threads:
        errors = list(threads.map(client, plans))
    # two texts of the pool are never so near to each other that a swap would pass
    distances = np.linalg.norm(alone[:, None] - alone[None], axis=-1) + 10 * np.eye(len(pool))
    assert distances.min() > 10 * TOLERANCE
    assert max(errors) < TOLERANCE
    assert server.sample("eyeline_texts_total", route="/encode") - before == NUM_CLIENTS * NUM_TEXTS
    assert server.sample("eyeline_queue_texts") == 0
    assert server.sample("eyeline_batch_texts_sum") / server.sample("eyeline_batch_texts_count") > 1
