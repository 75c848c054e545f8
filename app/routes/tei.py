"""text-embeddings-inference's API: ``/embed`` and its kin, ``/predict``, ``/rerank``, ``/similarity``, ``/tokenize``.

Its bodies name no model: each route is also under ``/models/{name}/``. ``app/routes/shared.py`` has the two paths that
our own API has too, ``app/routes/rerank.py`` the one that Cohere's and Jina's clients call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from app.limits import SPARSE_WEIGHT_VALUES, num_sparse_weights
from app.plain import PlainRequest
from app.plain_flows import decode, embed, embed_sparse, score, tokenize_whole
from app.plain_flows import rank as rank_texts
from app.requests import parse, read_body, read_json, while_connected
from app.routes.direct import DirectRoute
from app.routes.encode import json_body
from app.routes.writing import server_timing, written
from app.schemas.tei import (
    TeiBody,
    TeiDecodeRequest,
    TeiEmbedAllRequest,
    TeiEmbedRequest,
    TeiErrorResponse,
    TeiPrediction,
    TeiPredictRequest,
    TeiRank,
    TeiRerankRequest,
    TeiSimilarityRequest,
    TeiToken,
    TeiTokenizeRequest,
    ignored_fields,
)
from app.schemas.tei_sparse import TeiEmbedSparseRequest, TeiSparseValue
from app.score_answers import write_predictions, write_ranks
from app.service import Encoded
from app.state import max_body_bytes, route_of, service_of
from app.tei_answers import (
    headers_of,
    ignored_header,
    write_comparison,
    write_embeddings,
    write_sparse_vectors,
    write_texts,
    write_token_states,
    write_tokens,
)

router = APIRouter(tags=["text-embeddings-inference"], route_class=DirectRoute)

MODEL_IN_PATH = {"parameters": [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]}

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": TeiErrorResponse, "description": description}
    for status, description in (
        (400, "The body is not JSON, or a text is empty"),
        (404, "No such model"),
        (413, "Too large, or a text is too long and truncate is not true"),
        (415, "The body is not application/json"),
        (422, "A field's value"),
        (429, "The queue is full; see Retry-After"),
        (500, "A bug, or a result that is not finite"),
        (503, "Starting or shutting down; see Retry-After"),
        (504, "The deadline passed"),
    )
}
"""Also of the routes that this API shares with ours."""


@router.post(
    "/embed",
    response_model=list[list[float]],
    responses=ERRORS,
    openapi_extra=json_body(TeiEmbedRequest),
    summary="Embeddings, one per text",
)
@router.post(
    "/models/{name}/embed",
    response_model=list[list[float]],
    responses=ERRORS,
    openapi_extra=json_body(TeiEmbedRequest) | MODEL_IN_PATH,
    summary="The same, by that model",
)
@router.post("/", include_in_schema=False)
@router.post("/models/{name}", include_in_schema=False)  # to a client that is given a model's address, this is its /
async def embed_texts(request: Request) -> Response:
    """Encode texts or token ids."""
    started = time.perf_counter()
    body = await read_body(request, TeiEmbedRequest, max_body_bytes(request))
    return await _embed(request, body, body.plain(_model_of(request)), write_embeddings, started)


@router.post(
    "/embed_all",
    response_model=list[list[list[float]]],
    responses=ERRORS,
    openapi_extra=json_body(TeiEmbedAllRequest),
    summary="A vector for each token of each text",
)
@router.post(
    "/models/{name}/embed_all",
    response_model=list[list[list[float]]],
    responses=ERRORS,
    openapi_extra=json_body(TeiEmbedAllRequest) | MODEL_IN_PATH,
    summary="The same, by that model",
)
async def embed_tokens(request: Request) -> Response:
    """Give the last hidden state of every token, special tokens included; nothing is pooled or scaled.

    Of a late interaction model: the vectors that it compares, of a document (or a query, by prompt_name).
    """
    started = time.perf_counter()
    body = await read_body(request, TeiEmbedAllRequest, max_body_bytes(request))
    return await _embed(request, body, body.plain(_model_of(request)), write_token_states, started)


@router.post(
    "/embed_sparse",
    response_model=list[list[TeiSparseValue]],
    responses=ERRORS,
    openapi_extra=json_body(TeiEmbedSparseRequest),
    summary="Weights of the vocabulary's tokens, by a SPLADE model",
)
@router.post(
    "/models/{name}/embed_sparse",
    response_model=list[list[TeiSparseValue]],
    responses=ERRORS,
    openapi_extra=json_body(TeiEmbedSparseRequest) | MODEL_IN_PATH,
    summary="The same, by that model",
)
async def embed_texts_sparse(request: Request) -> Response:
    """Give the weights above 0 of each text."""
    started = time.perf_counter()
    body = await read_body(request, TeiEmbedSparseRequest, max_body_bytes(request))
    asked = body.plain(_model_of(request))
    work = embed_sparse(service_of(request), asked, route=route_of(request))
    return await _answered(request, body, asked, work, write_sparse_vectors, started)


@router.post(
    "/predict",
    response_model=list[TeiPrediction] | list[list[TeiPrediction]],
    responses=ERRORS,
    openapi_extra=json_body(TeiPredictRequest),
    summary="Scores of the labels of a classifier or a reranker",
)
@router.post(
    "/models/{name}/predict",
    response_model=list[TeiPrediction] | list[list[TeiPrediction]],
    responses=ERRORS,
    openapi_extra=json_body(TeiPredictRequest) | MODEL_IN_PATH,
    summary="The same, by that model",
)
async def predict(request: Request) -> Response:
    """Score texts and pairs."""
    started = time.perf_counter()
    body = await read_body(request, TeiPredictRequest, max_body_bytes(request))
    asked = body.plain(_model_of(request))
    write = partial(write_predictions, is_batch=body.is_batch, raw_scores=body.raw_scores)
    scoring = score(service_of(request), asked, "classifier", "reranker", route=route_of(request))
    return await _answered(request, body, asked, scoring, write, started)


@router.post(
    "/models/{name}/rerank",
    response_model=list[TeiRank],
    responses=ERRORS,
    openapi_extra=json_body(TeiRerankRequest) | MODEL_IN_PATH,
    summary="How well texts go with a query, by that model",
)
async def rerank_by_model(request: Request) -> Response:
    """Rank texts by a query."""
    started = time.perf_counter()
    return await rank(request, await read_json(request, max_body_bytes(request)), started)


@router.post(
    "/models/{name}/similarity",
    response_model=list[float],
    responses=ERRORS,
    openapi_extra=json_body(TeiSimilarityRequest) | MODEL_IN_PATH,
    summary="Cosines of one text with others, by that model",
)
async def compare_by_model(request: Request) -> Response:
    """Compare one text with others."""
    started = time.perf_counter()
    return await compare(request, await read_json(request, max_body_bytes(request)), started)


@router.post(
    "/models/{name}/tokenize",
    response_model=list[list[TeiToken]],
    responses=ERRORS,
    openapi_extra=json_body(TeiTokenizeRequest) | MODEL_IN_PATH,
    summary="Tokens of texts, as that model reads them",
)
async def tokenize_by_model(request: Request) -> Response:
    """Tokenize texts without encoding them."""
    return await tokenize(request, await read_json(request, max_body_bytes(request)))


@router.post(
    "/decode",
    response_model=list[str],
    responses=ERRORS,
    openapi_extra=json_body(TeiDecodeRequest),
    summary="Texts of token ids",
)
@router.post(
    "/models/{name}/decode",
    response_model=list[str],
    responses=ERRORS,
    openapi_extra=json_body(TeiDecodeRequest) | MODEL_IN_PATH,
    summary="The same, by that model",
)
async def decode_ids(request: Request) -> Response:
    """Turn token ids into texts."""
    body = await read_body(request, TeiDecodeRequest, max_body_bytes(request))
    reading = decode(service_of(request), body.plain(_model_of(request)), skip_special_tokens=body.skip_special_tokens)
    texts = await while_connected(request, reading)
    return _answer(write_texts(texts), ignored_header(ignored_fields(body)))


async def compare(request: Request, content: bytes, started: float) -> Response:
    """Answer ``/similarity`` to a body that speaks this API."""
    body = parse(content, TeiSimilarityRequest)
    return await _embed(request, body, body.plain(_model_of(request)), write_comparison, started)


async def tokenize(request: Request, content: bytes) -> Response:
    """Answer ``/tokenize`` to a body that speaks this API."""
    body = parse(content, TeiTokenizeRequest)
    tokenizing = tokenize_whole(service_of(request), body.plain(_model_of(request)))
    tokenized, texts = await while_connected(request, tokenizing)
    content = await asyncio.to_thread(write_tokens, tokenized, texts, add_special_tokens=body.add_special_tokens)
    return _answer(content, ignored_header(ignored_fields(body)))


async def rank(request: Request, content: bytes, started: float) -> Response:
    """Answer ``/rerank`` to a body that speaks this API."""
    body = parse(content, TeiRerankRequest)
    asked = body.plain(_model_of(request))
    write = partial(write_ranks, texts=body.texts if body.return_text else None, raw_scores=body.raw_scores)
    scoring = rank_texts(service_of(request), asked, route=route_of(request))
    return await _answered(request, body, asked, scoring, write, started)


async def _embed(
    request: Request,
    body: TeiBody,
    asked: PlainRequest,
    write: Callable[[Encoded], bytes],
    started: float,
) -> Response:
    """Answer with embeddings, or what is made of them."""
    embedding = embed(service_of(request), asked, route=route_of(request))
    return await _answered(request, body, asked, embedding, write, started)


async def _answered(
    request: Request,
    body: TeiBody,
    asked: PlainRequest,
    work: Coroutine[Any, Any, Encoded],
    write: Callable[[Encoded], bytes],
    started: float,
) -> Response:
    """Run a request, and write its answer with the headers that say what it took."""
    encoded = await while_connected(request, work)
    num_sparse_values = SPARSE_WEIGHT_VALUES * num_sparse_weights(encoded.rows)
    num_values = None if asked.token_states else encoded.embeddings.size + num_sparse_values
    content = await written(encoded.model, partial(write, encoded), num_values)
    headers = {"Server-Timing": server_timing(encoded.timings, started), **headers_of(encoded, asked, started)}
    return _answer(content, headers | ignored_header(ignored_fields(body)))


def _answer(content: bytes, headers: dict[str, str]) -> Response:
    return Response(content, headers=headers, media_type="application/json")


def _model_of(request: Request) -> str | None:
    """Return the model that the path names; None = the first one."""
    name: str | None = request.path_params.get("name")
    return name
