"""OpenAI's API through HTTP: what its clients send, what they read, and its errors."""

from __future__ import annotations

import asyncio
import base64
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from app.schemas.openai import OpenAIEmbeddingsResponse, OpenAIErrorResponse, OpenAIModels
from app.settings import ModelSpec
from model.contract import EncodeInput
from tests.app.conftest import PROMPTS, Serve, Served, until
from tests.tiny import make_bert_folder

pytestmark = pytest.mark.anyio

PATHS = ("/v1/embeddings", "/embeddings")
TEXTS = ["The cat sat on the mat.", "A dog barked!", "hello world"]
LONG = "cat " * 100  # 102 tokens, the tiny model reads 32
MARKER = "MARKER7"


async def embed(server: Served, value: Any, path: str = "/v1/embeddings", **fields: Any) -> dict[str, Any]:
    """Embed, expecting success, and return the parsed answer."""
    response = await server.post(path, {"input": value, "model": "tiny", **fields})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    OpenAIEmbeddingsResponse.model_validate(body, strict=True)
    return body


def vectors(body: dict[str, Any]) -> Any:
    """Read the vectors, checking their places."""
    assert [entry["index"] for entry in body["data"]] == list(range(len(body["data"])))
    assert {entry["object"] for entry in body["data"]} == {"embedding"}
    return np.array([entry["embedding"] for entry in body["data"]])


def assert_error(
    response: httpx.Response, status: int, code: str, kind: str, param: str | None = None
) -> dict[str, Any]:
    """Check OpenAI's one shape: a nested object with four keys."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body: dict[str, Any] = response.json()
    OpenAIErrorResponse.model_validate(body, strict=True)
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert (body["error"]["type"], body["error"]["param"], body["error"]["code"]) == (kind, param, code)
    assert MARKER not in response.text
    return body


@pytest.mark.parametrize("path", PATHS)
async def test_texts_become_vectors(server: Served, path: str) -> None:
    """One or many; in the order sent; of unit length; the same as /encode gives."""
    many = await embed(server, TEXTS, path)
    assert (many["object"], many["model"]) == ("list", "tiny")
    np.testing.assert_allclose(vectors(many), server.embedder.encode(TEXTS), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors(many), axis=1), 1, atol=1e-6)
    one = await embed(server, TEXTS[0], path)
    np.testing.assert_allclose(vectors(one), vectors(many)[:1], atol=1e-6)


async def test_base64_holds_the_same_numbers(server: Served) -> None:
    """OpenAI's Python client asks for base64 unless told otherwise, and reads it as little-endian float32.

    https://github.com/huggingface/text-embeddings-inference/issues/288
    """
    listed = vectors(await embed(server, TEXTS, encoding_format="float")).astype(np.float32)
    body = await embed(server, TEXTS, encoding_format="base64", user="somebody")
    for entry, row in zip(body["data"], listed, strict=True):
        decoded = np.frombuffer(base64.b64decode(entry["embedding"], validate=True), dtype="<f4")
        np.testing.assert_array_equal(decoded, row)


async def test_nulls_are_defaults(server: Served) -> None:
    """Clients that write every field write null where nothing was said; the model may be left out."""
    nulls = {"encoding_format": None, "dimensions": None, "user": None, "model": None}
    response = await server.post("/v1/embeddings", {"input": "a", **nulls})
    assert response.json() == (await server.post("/v1/embeddings", {"input": "a"})).json()
    assert response.json()["model"] == "tiny"


async def test_token_ids_are_texts(server: Served) -> None:
    """A flat list is one text, a list of lists is many: langchain sends ids.

    https://github.com/langchain-ai/langchain/issues/30574
    """
    ids = [item.input_ids for item in server.embedder.tokenizer.encode(TEXTS)]
    expected = server.embedder.encode(TEXTS)
    np.testing.assert_allclose(vectors(await embed(server, ids)), expected, atol=1e-6)
    one = await embed(server, ids[1])
    np.testing.assert_allclose(vectors(one), expected[1:2], atol=1e-6)
    assert one["usage"] == {"prompt_tokens": len(ids[1]), "total_tokens": len(ids[1])}


async def test_usage_counts_tokens(server: Served) -> None:
    """Of all texts, special tokens included, after truncation: not characters, as elsewhere."""
    expected = sum(item.num_tokens for item in server.embedder.tokenizer.encode([*TEXTS, LONG]))
    assert (await embed(server, [*TEXTS, LONG]))["usage"] == {"prompt_tokens": expected, "total_tokens": expected}
    assert server.sample("eyeline_tokens_total", model="tiny", route="/v1/embeddings") == expected


async def test_dimensions_are_cut_and_scaled(server: Served) -> None:
    """https://github.com/michaelfeil/infinity/issues/538: cut vectors are of unit length again."""
    found = vectors(await embed(server, TEXTS, dimensions=5))
    np.testing.assert_allclose(found, server.embedder.encode(TEXTS, dimensions=5), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)


async def test_infinitys_own_client_is_understood(server: Served) -> None:
    """It sends a modality, and dimensions 0 for all of them: at its own path that is taken, elsewhere refused."""
    theirs = {"encoding_format": "float", "user": None, "dimensions": 0, "modality": "text"}
    found = vectors(await embed(server, TEXTS, "/embeddings", **theirs))
    np.testing.assert_allclose(found, server.embedder.encode(TEXTS), atol=1e-6)
    cut = vectors(await embed(server, TEXTS, "/embeddings", **{**theirs, "dimensions": 5}))
    np.testing.assert_allclose(cut, server.embedder.encode(TEXTS, dimensions=5), atol=1e-6)
    image = await server.post("/embeddings", {"input": "a", "modality": "image"})
    assert_error(image, 400, "invalid_request", "invalid_request_error", "modality")


async def test_truncation_is_told(server: Served) -> None:
    """The headers say how many texts were cut, and which; it is counted; and it can be forbidden."""
    response = await server.post("/v1/embeddings", {"input": ["a", LONG, "b", LONG, LONG]})
    assert response.headers["x-truncated-count"] == "3"
    assert response.headers["x-truncated-texts"] == "1,3-4"
    assert server.sample("eyeline_truncated_texts_total", model="tiny") == 3
    whole = await server.post("/v1/embeddings", {"input": ["a", "b"]})
    assert whole.headers["x-truncated-count"] == "0"
    assert "x-truncated-texts" not in whole.headers
    refused = await server.post("/v1/embeddings", {"input": ["a", LONG], "truncate": False})
    body = assert_error(refused, 400, "context_length_exceeded", "invalid_request_error", "input[1]")
    assert "102" in body["error"]["message"]
    assert "32" in body["error"]["message"]


async def test_prompts_are_ours(server: Served) -> None:
    """What models such as E5 need goes through the client's extra_body."""
    plain = server.embedder.encode("cat", prompt="query: ")
    for fields in ({"prompt_name": "query"}, {"prompt": PROMPTS["query"]}):
        np.testing.assert_allclose(vectors(await embed(server, "cat", **fields)), plain, atol=1e-6)
    refused = await server.post("/v1/embeddings", {"input": [[5]], "prompt_name": "query"})
    assert_error(refused, 400, "invalid_request", "invalid_request_error", "prompt_name")
    unknown = await server.post("/v1/embeddings", {"input": "a", "prompt_name": MARKER})
    assert_error(unknown, 400, "unknown_prompt", "invalid_request_error", "prompt_name")


@pytest.mark.parametrize(
    ("value", "param"),
    [("", "input"), ([], "input"), (["a", ""], "input[1]"), ([[]], "input[0]"), ([[5], []], "input[1]")],
)
async def test_nothing_is_no_input(server: Served, value: Any, param: str) -> None:
    """As OpenAI has it: 400, and here the place is named."""
    response = await server.post("/v1/embeddings", {"input": value})
    assert_error(response, 400, "empty_input", "invalid_request_error", param)
    assert server.embedder.batches == []


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "invalid_request", "input"),
        ({"input": None}, "invalid_request", "input"),
        ({"input": ["a", 5]}, "invalid_request", "input[1]"),
        ({"input": [[5], "a"]}, "invalid_request", "input[0]"),
        ({"input": [5.5]}, "invalid_request", "input[0]"),
        ({"input": [True]}, "invalid_request", "input[0]"),
        ({"input": {"text": MARKER}}, "invalid_request", "input"),
        ({"input": "a", "encoding_format": "md5"}, "invalid_request", "encoding_format"),
        ({"input": "a", "dimensions": 0}, "invalid_request", "dimensions"),
        ({"input": "a", "dimensions": "8"}, "invalid_request", "dimensions"),
        ({"input": "a", "dimensions": 17}, "dimensions_out_of_range", "dimensions"),
        ({"input": "a", "dimension": 8}, "invalid_request", "dimension"),
        ({"input": [[5], [-1]]}, "token_id_out_of_range", "input[1]"),
        ({"input": [10**6]}, "token_id_out_of_range", "input"),
    ],
)
async def test_what_is_wrong_is_400(server: Served, body: dict[str, Any], code: str, param: str) -> None:
    """In OpenAI's shape with its four keys; a field that is not known is refused, as OpenAI does."""
    response = await server.post("/v1/embeddings", body)
    assert_error(response, 400, code, "invalid_request_error", param)
    assert server.sample("eyeline_errors_total", code=code) == 1


async def test_an_unknown_model_is_404(server: Served) -> None:
    """Everywhere a model can be named; those that are served are named, not what was asked."""
    for response in (
        await server.post("/v1/embeddings", {"input": "a", "model": MARKER}),
        await server.client.get(f"/v1/models/{MARKER}"),
    ):
        body = assert_error(response, 404, "model_not_found", "invalid_request_error", "model")
        assert "tiny" in body["error"]["message"]


@pytest.mark.parametrize("path", PATHS)
async def test_errors_before_the_route_have_the_shape_too(server: Served, path: str) -> None:
    """Malformed JSON, another content type, a wrong verb; and a path under /v1 that is not served."""
    client, json = server.client, {"content-type": "application/json"}
    kind = "invalid_request_error"
    for content in (b'{"input": ', b'{"input": "a\\ud800b"}', b""):
        assert_error(await client.post(path, content=content, headers=json), 400, "malformed_json", kind)
    assert_error(await client.post(path, content=b"{}"), 415, "unsupported_media_type", kind)
    wrong_verb = await client.get(path)
    assert_error(wrong_verb, 405, "method_not_allowed", kind)
    assert wrong_verb.headers["allow"] == "POST"
    assert_error(await client.post(f"/v1/chat/{MARKER}", json={}), 404, "not_found", kind)


async def test_too_much_is_refused(serve: Serve) -> None:
    """Bytes and what the queue can never hold are 413; what OpenAI answers with 400 is 400."""
    async with serve(max_body_bytes=200, max_texts=3, max_text_characters=50) as server:
        kind = "invalid_request_error"
        assert_error(await server.post("/v1/embeddings", {"input": "a" * 300}), 413, "body_too_large", kind)
        many = await server.post("/v1/embeddings", {"input": ["a"] * 4})
        assert_error(many, 400, "too_many_texts", kind, "input")
        long = await server.post("/v1/embeddings", {"input": "a" * 51})
        assert_error(long, 400, "context_length_exceeded", kind, "input")
    async with serve(max_queue_tokens=32, batch_tokens=32) as server:
        large = await server.post("/v1/embeddings", {"input": [LONG, LONG]})
        assert_error(large, 413, "request_too_large", kind, "input")


async def test_a_full_queue_says_when_to_come_back(serve: Serve) -> None:
    """429 with Retry-After, which OpenAI's clients obey."""
    async with serve(max_queue_texts=1, max_texts=1) as server:
        server.embedder.gate.clear()
        running = asyncio.create_task(server.post("/v1/embeddings", {"input": "a"}))
        await until(lambda: bool(server.embedder.batches))
        waiting = asyncio.create_task(server.post("/v1/embeddings", {"input": "b"}))
        await until(lambda: server.sample("eyeline_queue_texts", model="tiny") == 1)
        refused = await server.post("/v1/embeddings", {"input": "c"})
        assert_error(refused, 429, "rate_limit_exceeded", "rate_limit_error")
        assert int(refused.headers["retry-after"]) >= 1
        server.embedder.gate.set()
        assert [answer.status_code for answer in await asyncio.gather(running, waiting)] == [200, 200]


async def test_a_server_that_cannot_answer_says_so(serve: Serve) -> None:
    """503 with Retry-After before it is ready, 504 past the deadline, 500 for what fails: in the same shape."""
    async with serve() as server:
        service, server.state.service = server.state.service, None
        early = await server.post("/v1/embeddings", {"input": "a"})
        assert_error(early, 503, "not_ready", "server_error")
        assert early.headers["retry-after"] == "1"
        assert_error(await server.client.get("/v1/models"), 503, "not_ready", "server_error")
        server.state.service = service

        def fail(inputs: list[EncodeInput]) -> None:
            raise RuntimeError(MARKER)

        server.embedder.before_run = fail  # type: ignore[assignment]
        failed = await server.post("/v1/embeddings", {"input": ["a"]})
        assert_error(failed, 500, "inference_failed", "server_error", "input[0]")
        server.embedder.before_run = None


@pytest.mark.parametrize("path", ["/v1/models", "/models"])
async def test_models_are_listed(serve: Serve, tmp_path: Path, path: str) -> None:
    """The default first, as /v1/embeddings takes their names; created is when the server started."""
    before = int(time.time())
    other = make_bert_folder(tmp_path / "other", seed=1)
    first = make_bert_folder(tmp_path / "first")
    async with serve(model=(ModelSpec("first", first), ModelSpec("text-embedding-3-small", other))) as server:
        body = (await server.client.get(path)).json()
        OpenAIModels.model_validate(body, strict=True)
        assert [entry["id"] for entry in body["data"]] == ["first", "text-embedding-3-small"]
        assert before <= body["data"][0]["created"] <= time.time()
        assert (await server.client.get("/v1/models/text-embedding-3-small")).json() == body["data"][1]
        answer = await embed(server, "cat", model="text-embedding-3-small")
        assert answer["model"] == "text-embedding-3-small"
        np.testing.assert_allclose(vectors(answer), server.embedders["text-embedding-3-small"].encode("cat"), atol=1e-6)


async def test_many_vectors_are_written_on_a_thread(serve: Serve) -> None:
    """1,300 vectors of 16 numbers are more than the event loop writes; nothing differs."""
    async with serve(max_texts=2_000) as server:
        body = await embed(server, ["cat", "dog"] * 650)
        np.testing.assert_allclose(vectors(body)[-2:], server.embedder.encode(["cat", "dog"]), atol=1e-6)


async def test_timings_and_ids_are_in_the_headers(server: Served) -> None:
    """As of every route."""
    response = await server.post("/v1/embeddings", {"input": "a"}, X_Request_ID="mine")
    assert response.headers["x-request-id"] == "mine"
    assert response.headers["server-timing"].startswith("tokenize;dur=")
