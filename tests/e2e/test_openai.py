"""A running server, spoken to as OpenAI's Python client and langchain speak: raw HTTP as they write it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.e2e.conftest import MAX_LENGTH, Server

pytestmark = pytest.mark.e2e

REFERENCE = Path(__file__).parents[1] / "reference"
ROWS: list[dict[str, Any]] = json.loads((REFERENCE / "minilm.json").read_text())
TYPED_SPECIAL = 20
"""The row whose text holds special tokens: the reference read them as such."""
FILLED = [index for index, row in enumerate(ROWS) if row["text"] and index != TYPED_SPECIAL]
CLIENT_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "gzip, deflate",
    "Authorization": "Bearer not-needed",
    "Content-Type": "application/json",
    "User-Agent": "OpenAI/Python 2.8.1",
    "X-Stainless-Lang": "python",
    "x-stainless-read-timeout": "600",
    "x-stainless-retry-count": "0",
}
MODEL_NAME = "all-MiniLM-L6-v2"


def post(server: Server, body: dict[str, Any]) -> httpx.Response:
    """Send a body with the client's own headers."""
    return server.client.post("/v1/embeddings", content=json.dumps(body).encode(), headers=CLIENT_HEADERS)


def decode(response: httpx.Response) -> Any:
    """Read base64 vectors as the client does: native float32 on a little-endian machine."""
    assert response.status_code == 200, response.text
    data = sorted(response.json()["data"], key=lambda entry: int(entry["index"]))
    return np.stack([np.frombuffer(base64.b64decode(entry["embedding"]), dtype="<f4") for entry in data])


@pytest.fixture(scope="module")
def expected() -> Any:
    """The right embeddings of the texts that are not empty."""
    with np.load(REFERENCE / "minilm.npz") as file:
        return file["embeddings"][FILLED]


def test_the_client_gets_the_references_vectors(server: Server, expected: Any) -> None:
    """As it asks by default: a list of texts, base64."""
    texts = [ROWS[index]["text"] for index in FILLED]
    response = post(server, {"input": texts, "model": MODEL_NAME, "encoding_format": "base64"})
    np.testing.assert_allclose(decode(response), expected, atol=1e-5, rtol=0)
    num_tokens = sum(len(ROWS[index]["input_ids"]) for index in FILLED)
    assert response.json()["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    assert response.json()["model"] == MODEL_NAME
    [cut] = [place for place, index in enumerate(FILLED) if len(ROWS[index]["input_ids"]) == MAX_LENGTH]
    assert (response.headers["x-truncated-count"], response.headers["x-truncated-texts"]) == ("1", str(cut))


def test_langchain_gets_them_by_token_ids(server: Server, expected: Any) -> None:
    """A list of lists of ids, special tokens among them; a flat list is one text.

    https://github.com/langchain-ai/langchain/issues/30574
    """
    ids = [ROWS[index]["input_ids"] for index in FILLED]
    response = post(server, {"input": ids, "model": MODEL_NAME, "encoding_format": "base64"})
    np.testing.assert_allclose(decode(response), expected, atol=1e-5, rtol=0)
    one = post(server, {"input": [101, 7592, 102], "model": MODEL_NAME, "encoding_format": "base64"})
    np.testing.assert_allclose(decode(one)[0], server.encode("hello")["embeddings"][0], atol=1e-6)
    assert one.json()["usage"]["prompt_tokens"] == 3


def test_numbers_and_base64_are_the_same(server: Server) -> None:
    """To the last bit of a float32, on both paths, with dimensions."""
    for fields in ({}, {"dimensions": 64, "user": "u"}):
        body = {"input": "The cat sat.", "model": MODEL_NAME, **fields}
        numbers = server.client.post("/embeddings", json={**body, "encoding_format": "float"}).json()
        listed = np.array([entry["embedding"] for entry in numbers["data"]], dtype=np.float32)
        np.testing.assert_array_equal(decode(post(server, {**body, "encoding_format": "base64"})), listed)
        assert np.linalg.norm(listed) == pytest.approx(1, abs=1e-5)


def test_a_long_text_is_cut_and_told_or_refused(server: Server) -> None:
    """Never in silence."""
    body = {"input": ["short", "word " * 1_000], "model": MODEL_NAME}
    told = post(server, body)
    assert (told.headers["x-truncated-count"], told.headers["x-truncated-texts"]) == ("1", "1")
    assert told.json()["usage"]["prompt_tokens"] == 3 + MAX_LENGTH
    refused = post(server, {**body, "truncate": False})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["code"], error["param"], error["type"]) == (
        "context_length_exceeded",
        "input[1]",
        "invalid_request_error",
    )


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({"input": ""}, 400, "empty_input", "input"),
        ({"input": []}, 400, "empty_input", "input"),
        ({"input": ["a", ""]}, 400, "empty_input", "input[1]"),
        ({"input": [[999_999_999]]}, 400, "token_id_out_of_range", "input[0]"),
        ({"input": [[-1]]}, 400, "token_id_out_of_range", "input[0]"),
        ({"input": "a", "encoding_format": "md5"}, 400, "invalid_request", "encoding_format"),
        ({"input": "a", "dimensions": 385}, 400, "dimensions_out_of_range", "dimensions"),
        ({"input": "a", "model": "gpt-5"}, 404, "model_not_found", "model"),
        ({"input": "a" * 5_000_000}, 413, "body_too_large", None),
    ],
)
def test_errors_are_openais(server: Server, body: dict[str, Any], status: int, code: str, param: str | None) -> None:
    """A nested object with four keys, and the next request is served."""
    response = post(server, {"model": MODEL_NAME, **body})
    assert response.status_code == status
    error = response.json()["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert (error["code"], error["param"]) == (code, param)
    assert len(response.content) < 1_000
    assert post(server, {"input": "a", "model": MODEL_NAME}).status_code == 200


def test_models_are_listed(server: Server) -> None:
    """As the client's models.list() and models.retrieve() read them."""
    [listed] = server.client.get("/v1/models").json()["data"]
    assert (listed["id"], listed["object"]) == (MODEL_NAME, "model")
    assert server.client.get(f"/v1/models/{MODEL_NAME}").json() == listed
    assert server.client.get("/v1/models/nothing").json()["error"]["code"] == "model_not_found"
