"""Reranking through HTTP, in text-embeddings-inference's form and in Cohere's and Jina's, with each one's errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.schemas.body import MAX_QUERY_CHARACTERS
from app.schemas.rerank import RerankErrorResponse, RerankResponse
from app.schemas.tei import TeiErrorResponse
from tests.app.conftest import Serve, Served, until
from tests.app.routes.scoring import expected_scores, make_models

pytestmark = pytest.mark.anyio

TEI_PATHS = ("/rerank", "/models/reranker/rerank")
RERANK_PATHS = ("/rerank", "/v1/rerank", "/v2/rerank")
QUERY = "the cat sat"
TEXTS = ["a dog barked", "", "the cat sat on the mat", "hello world"]
PAIRS = [(QUERY, text) for text in TEXTS]
LONG = "dog " * 100
MARKER = "MARKER7"


@pytest.fixture
async def server(serve: Serve, tmp_path: Path) -> AsyncIterator[Served]:
    """A reranker, which is the default, and a model of each other kind."""
    async with serve(model=make_models(tmp_path, "reranker", "classifier", "embedding")) as served:
        yield served


async def ask(server: Served, path: str, **body: Any) -> Any:
    """Post a body, expecting success, and return the parsed answer."""
    response = await server.post(path, body)
    assert response.status_code == 200, response.text
    return response.json()


def assert_tei_error(response: httpx.Response, status: int, kind: str, *parts: str) -> None:
    """Two keys; the sentence has these parts, and nothing of the caller's."""
    assert response.status_code == status, response.text
    body = response.json()
    TeiErrorResponse.model_validate(body, strict=True)
    assert body["error_type"] == kind
    for part in parts:
        assert part in body["error"]
    assert MARKER not in response.text


def assert_error(response: httpx.Response, status: int, code: str, *parts: str) -> None:
    """What Cohere's and Jina's clients read, and the stable code."""
    assert response.status_code == status, response.text
    body = response.json()
    RerankErrorResponse.model_validate(body, strict=True)
    assert body["message"] == body["detail"]
    assert body["code"] == code
    for part in parts:
        assert part in body["message"]
    assert MARKER not in response.text


# ---- text-embeddings-inference


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("path", TEI_PATHS)
async def test_texts_are_ranked(server: Served, path: str, raw: bool) -> None:
    """The best first, each with its place and its score: the sigmoid of the pair's logit, or with raw_scores that."""
    scores = expected_scores(server.embedder, PAIRS, raw=raw)[:, 0]
    answer = await ask(server, path, query=QUERY, texts=TEXTS, raw_scores=raw)
    assert [rank["index"] for rank in answer] == sorted(range(4), key=lambda index: -scores[index])
    for rank in answer:
        assert list(rank) == ["index", "score"]
        assert rank["score"] == pytest.approx(scores[rank["index"]], abs=1e-6)


async def test_texts_are_returned_where_asked_for(server: Served) -> None:
    """Each beside its place."""
    answer = await ask(server, "/rerank", query=QUERY, texts=TEXTS, return_text=True)
    assert [list(rank) for rank in answer] == [["index", "text", "score"]] * 4
    assert [rank["text"] for rank in answer] == [TEXTS[rank["index"]] for rank in answer]


async def test_equal_texts_keep_their_order(server: Served) -> None:
    """The first among equals is first."""
    answer = await ask(server, "/rerank", query=QUERY, texts=["a dog"] * 5)
    assert [rank["index"] for rank in answer] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("direction", "kept"),
    [("Right", ("the cat sat", "a " + "dog " * 25)), ("left", ("the cat sat", "dog " * 26))],
)
async def test_a_long_pair_loses_tokens_of_the_longer_text(
    server: Served, direction: str, kept: tuple[str, str]
) -> None:
    """At the side that is asked for; headers and metrics say so."""
    texts = ["a dog", "a " + LONG]
    body = {"query": QUERY, "texts": texts, "truncate": True, "truncation_direction": direction, "raw_scores": True}
    response = await server.post("/rerank", body)
    scores = {rank["index"]: rank["score"] for rank in response.json()}
    assert scores[1] == pytest.approx(expected_scores(server.embedder, [kept], raw=True)[0, 0], abs=1e-5)
    assert (response.headers["x-truncated-count"], response.headers["x-truncated-texts"]) == ("1", "1")
    assert response.headers["x-compute-tokens"] == "40"
    assert response.headers["x-compute-characters"] == str(2 * len(QUERY) + sum(map(len, texts)))
    assert server.sample("eyeline_truncated_texts_total", model="reranker") == 1
    assert server.sample("eyeline_texts_total", model="reranker", route="/rerank") == 2


async def test_unknown_fields_are_named(server: Served) -> None:
    """As on every route of that API; it knows no prompts here."""
    response = await server.post("/rerank", {"query": "a", "texts": ["b"], "top_n": 1, "prompt_name": "x"})
    assert response.headers["x-ignored-fields"] == "top_n,prompt_name"


@pytest.mark.parametrize(
    ("body", "status", "kind", "parts"),
    [
        ({"query": "a", "texts": []}, 400, "Empty", ["texts"]),
        ({"query": "", "texts": ["a", ""]}, 400, "Empty", ["query"]),
        ({"query": "a", "texts": ["b", LONG]}, 413, "Validation", ["texts[1]", "104", "32"]),
        ({"query": "a", "texts": [LONG], "truncate": None}, 413, "Validation", ["texts[0]"]),
        ({"query": "a"}, 422, "Validation", ["texts", "required"]),
        ({"texts": ["a"]}, 422, "Validation", ["query", "required"]),
        ({"query": ["a"], "texts": ["b"]}, 422, "Validation", ["query"]),
        ({"query": "a", "texts": "b"}, 422, "Validation", ["texts"]),
        ({"query": "a", "texts": ["b", 5]}, 422, "Validation", ["texts[1]", "string"]),
        ({"query": "a", "texts": ["b"], "raw_scores": "yes"}, 422, "Validation", ["raw_scores"]),
        ({"query": "a", "texts": ["b"], "truncation_direction": MARKER}, 422, "Validation", ["truncation_direction"]),
        ({"query": "a" * 4_097, "texts": ["b"]}, 422, "Validation", ["query", "4096"]),
    ],
)
@pytest.mark.parametrize("path", TEI_PATHS)
async def test_what_tei_refuses(
    server: Served, path: str, body: dict[str, Any], status: int, kind: str, parts: list[str]
) -> None:
    """In its shape, with the place and the numbers, before anything is run."""
    assert_tei_error(await server.post(path, body), status, kind, *parts)
    assert server.embedder.batches == []


@pytest.mark.parametrize("kind", ["classifier", "embedding"])
async def test_only_a_reranker_ranks(server: Served, kind: str) -> None:
    """Any other model says what it is, in either shape."""
    assert_tei_error(
        await server.post(f"/models/{kind}/rerank", {"query": "a", "texts": ["b"]}), 422, "Validation", kind
    )
    response = await server.post("/v1/rerank", {"query": "a", "documents": ["b"], "model": kind})
    assert_error(response, 422, "wrong_model_kind", kind)
    assert server.embedders[kind].batches == []


# ---- Cohere and Jina


@pytest.mark.parametrize("path", RERANK_PATHS)
async def test_documents_are_ranked(server: Served, path: str) -> None:
    """By the same scores; documents are strings or objects; tokens are those processed, where each family looks."""
    scores = expected_scores(server.embedder, PAIRS)[:, 0]
    documents: list[Any] = [*TEXTS[:2], *({"text": text} for text in TEXTS[2:])]
    answer = await ask(server, path, model="reranker", query=QUERY, documents=documents)
    RerankResponse.model_validate(answer, strict=True)
    assert list(answer) == ["id", "model", "results", "usage", "meta"]
    assert [result["index"] for result in answer["results"]] == sorted(range(4), key=lambda index: -scores[index])
    for result in answer["results"]:
        assert list(result) == ["index", "relevance_score"]
        assert result["relevance_score"] == pytest.approx(scores[result["index"]], abs=1e-6)
    num_tokens = sum(item.num_tokens for item in server.embedder.tokenizer.encode(PAIRS))
    assert answer["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    assert answer["meta"] == {"tokens": {"input_tokens": num_tokens}}
    assert server.sample("eyeline_texts_total", model="reranker", route=path) == 4


async def test_the_best_are_returned_with_their_documents(server: Served) -> None:
    """top_n of them, or all where there are fewer; a document is an object, as both families return it."""
    whole = await ask(server, "/v1/rerank", query=QUERY, documents=TEXTS)
    body = {"query": QUERY, "documents": [{"text": text} for text in TEXTS], "top_n": 2, "return_documents": True}
    response = await server.post("/v1/rerank", body, x_request_id="my-id")
    answer = response.json()
    assert answer["id"] == response.headers["x-request-id"] == "my-id"
    assert answer["results"] == [
        {**result, "document": {"text": TEXTS[result["index"]]}} for result in whole["results"][:2]
    ]
    more = await ask(server, "/v1/rerank", query=QUERY, documents=TEXTS, top_n=100)
    assert more["results"] == whole["results"]


async def test_fields_that_clients_send_as_null_are_taken(server: Served) -> None:
    """Cohere's, which mean nothing then; with a value they would be ignored, so that is refused."""
    names = ("max_tokens_per_doc", "max_chunks_per_doc", "rank_fields", "priority", "top_n", "return_documents")
    await ask(server, "/v2/rerank", query="a", documents=["b"], **dict.fromkeys(names))
    for name in names[:4]:
        response = await server.post("/v2/rerank", {"query": "a", "documents": ["b"], name: 5})
        assert_error(response, 422, "invalid_request", f"{name}: should be null")


async def test_long_documents_are_cut_and_named(server: Served) -> None:
    """In the headers; with truncate false they are refused."""
    response = await server.post("/v1/rerank", {"query": "a", "documents": ["b", LONG, LONG]})
    assert (response.headers["x-truncated-count"], response.headers["x-truncated-texts"]) == ("2", "1-2")
    assert response.headers["server-timing"].startswith("tokenize;dur=")
    refused = await server.post("/v1/rerank", {"query": "a", "documents": ["b", LONG], "truncate": False})
    assert_error(refused, 413, "text_too_long", "documents[1]", "104", "32")


@pytest.mark.parametrize(
    ("body", "status", "code", "parts"),
    [
        ({"query": "a", "documents": []}, 400, "empty_input", ["documents"]),
        ({"query": "", "documents": ["a"]}, 422, "invalid_request", ["query", "1"]),
        ({"query": "a" * 4_097, "documents": ["a"]}, 422, "invalid_request", ["query", "4096"]),
        ({"documents": ["a"]}, 422, "invalid_request", ["query", "required"]),
        ({"query": "a", "documents": ["a", 5]}, 422, "invalid_request", ["documents[1]"]),
        ({"query": "a", "documents": [{"image": MARKER}]}, 422, "invalid_request", ["documents[0]"]),
        ({"query": "a", "documents": "a"}, 422, "invalid_request", ["documents"]),
        ({"query": "a", "documents": ["a"], "top_n": 0}, 422, "invalid_request", ["top_n"]),
        ({"query": "a", "documents": ["a"], "top_k": 1}, 422, "invalid_request", ["top_k"]),
        ({"query": "a", "documents": ["a"], "model": MARKER}, 404, "model_not_found", ["reranker"]),
    ],
)
@pytest.mark.parametrize("path", RERANK_PATHS)
async def test_what_is_refused(
    server: Served, path: str, body: dict[str, Any], status: int, code: str, parts: list[str]
) -> None:
    """In the shape that both families' clients read, with the place and the numbers, before anything is run."""
    assert_error(await server.post(path, body), status, code, *parts)
    assert server.embedder.batches == []


# ---- both


async def test_the_key_decides(server: Served) -> None:
    """Documents is Cohere's and Jina's; with both keys, or neither, the answer is text-embeddings-inference's."""
    both = await server.post("/rerank", {"query": "a", "documents": ["b"], "texts": ["c"]})
    assert_tei_error(both, 422, "Validation", "either documents or texts")
    assert_tei_error(await server.post("/rerank", {"query": "a"}), 422, "Validation", "texts")
    assert_error(await server.post("/rerank", {"documents": ["a"]}), 422, "invalid_request", "query")


@pytest.mark.parametrize("path", ["/rerank", "/models/reranker/rerank", "/v1/rerank", "/v2/rerank"])
async def test_errors_before_the_route_have_the_shape_too(serve: Serve, tmp_path: Path, path: str) -> None:
    """Malformed JSON, another content type, too many bytes, a wrong verb."""
    keys = {"message", "detail", "code"} if path.startswith("/v") else {"error", "error_type"}
    async with serve(model=make_models(tmp_path, "reranker"), max_body_bytes=100) as server:
        json = {"content-type": "application/json"}
        for response, status in (
            (await server.client.post(path, content=b'{"query": ', headers=json), 400),
            (await server.client.post(path, content=b"{}"), 415),
            (await server.post(path, {"query": "a" * 200}), 413),
            (await server.client.get(path), 405),
        ):
            assert response.status_code == status
            assert response.json().keys() == keys


async def test_limits_count_documents(serve: Serve, tmp_path: Path) -> None:
    """So many may be ranked at once; a pair has the characters of both its texts."""
    async with serve(model=make_models(tmp_path, "reranker"), max_texts=3, max_text_characters=50) as server:
        many = ["a"] * 4
        assert_tei_error(
            await server.post("/rerank", {"query": "a", "texts": many}), 413, "Validation", "texts", "3", "4"
        )
        response = await server.post("/v1/rerank", {"query": "a", "documents": many})
        assert_error(response, 413, "too_many_texts", "documents", "3", "4")
        response = await server.post("/v1/rerank", {"query": "a" * 26, "documents": ["a", "b" * 25]})
        assert_error(response, 413, "text_too_long", "documents[1]", "50", "51")


async def test_overload_is_429_with_a_time(serve: Serve, tmp_path: Path) -> None:
    """In either shape."""
    async with serve(model=make_models(tmp_path, "reranker"), max_queue_texts=1, max_texts=1) as server:
        server.embedder.gate.clear()
        bodies = {"/rerank": {"query": "a", "texts": ["b"]}, "/v1/rerank": {"query": "a", "documents": ["b"]}}
        running = asyncio.create_task(server.post("/rerank", bodies["/rerank"]))
        await until(lambda: bool(server.embedder.batches))
        waiting = asyncio.create_task(server.post("/rerank", bodies["/rerank"]))
        await until(lambda: server.sample("eyeline_queue_texts", model="reranker") == 1)
        for path, body in bodies.items():
            refused = await server.post(path, body)
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
        server.embedder.gate.set()
        assert [answer.status_code for answer in await asyncio.gather(running, waiting)] == [200, 200]


@pytest.mark.parametrize(("path", "key"), [("/rerank", "texts"), ("/rerank", "documents"), ("/v1/rerank", "documents")])
async def test_a_small_body_is_no_huge_amount_of_work(server: Served, path: str, key: str) -> None:
    """A query that is too long is refused before it is paired with anything; floods are answered in a few words."""
    began = time.thread_time()
    query = "a" * (MAX_QUERY_CHARACTERS + 1)
    response = await server.post(path, {"query": query, key: ["b"] * 1_024})
    assert response.status_code == 422
    for item in ('"a",', "5,", '{"text":"a"},', "[],"):
        content = f'{{"query":"a","{key}":[{item * 200_000}"a"]}}'.encode()
        response = await server.client.post(path, content=content, headers={"content-type": "application/json"})
        assert response.status_code in {413, 422}, response.text[:300]
        assert len(response.content) < 1_000
    assert time.thread_time() - began < 8.0
    assert server.embedder.batches == []
