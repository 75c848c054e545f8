"""OpenAI's embeddings: ``POST /v1/embeddings`` (and ``/embeddings``, where infinity has it), ``GET /v1/models``."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from app.answers import dumps
from app.openai_answers import clipping_headers, describe_models, write_embeddings
from app.plain import truncation_headers
from app.plain_flows import embed
from app.requests import read_body, while_connected
from app.routes.direct import DirectRoute
from app.routes.encode import json_body
from app.routes.writing import server_timing, written
from app.schemas.openai import (
    InfinityEmbeddingsRequest,
    OpenAIEmbeddingsRequest,
    OpenAIEmbeddingsResponse,
    OpenAIErrorResponse,
    OpenAIModel,
    OpenAIModels,
)
from app.state import max_body_bytes, route_of, service_of, state_of

router = APIRouter(tags=["OpenAI"], route_class=DirectRoute)


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the errors of a route."""
    descriptions = {
        400: "The body is not JSON, a field's value, an empty text, or with truncate false one that is too long",
        404: "No such model",
        413: "Too large",
        415: "The body is not application/json",
        429: "The queue is full; see Retry-After",
        500: "A bug, or a result that is not finite",
        503: "Starting or shutting down; see Retry-After",
        504: "The deadline passed",
    }
    return {status: {"model": OpenAIErrorResponse, "description": descriptions[status]} for status in statuses}


@router.post(
    "/v1/embeddings",
    response_model=OpenAIEmbeddingsResponse,
    responses=errors(400, 404, 413, 415, 429, 500, 503, 504),
    openapi_extra=json_body(OpenAIEmbeddingsRequest),
    summary="Embeddings, as OpenAI's clients ask for them",
)
async def embeddings(request: Request) -> Response:
    """Encode texts or token ids."""
    return await _embeddings(request, OpenAIEmbeddingsRequest)


@router.post(
    "/embeddings",
    response_model=OpenAIEmbeddingsResponse,
    responses=errors(400, 404, 413, 415, 429, 500, 503, 504),
    openapi_extra=json_body(InfinityEmbeddingsRequest),
    summary="The same, at infinity's path",
)
async def embeddings_of_infinity(request: Request) -> Response:
    """Encode texts or token ids."""
    return await _embeddings(request, InfinityEmbeddingsRequest)


@router.get("/v1/models", response_model=OpenAIModels, responses=errors(503), summary="What is served")
@router.get("/models", response_model=OpenAIModels, responses=errors(503), summary="The same, at infinity's path")
async def models(request: Request) -> Response:
    """List the served models, the default first."""
    listed = describe_models(service_of(request).models, state_of(request).started_at)
    return Response(dumps({"object": "list", "data": listed}), media_type="application/json")


@router.get("/v1/models/{name}", response_model=OpenAIModel, responses=errors(404, 503), summary="One of them")
async def model(request: Request, name: str) -> Response:
    """Describe one model."""
    found = service_of(request).find_model(name)
    [described] = describe_models([found.name], state_of(request).started_at)
    return Response(dumps(described), media_type="application/json")


async def _embeddings(request: Request, schema: type[OpenAIEmbeddingsRequest]) -> Response:
    started = time.perf_counter()
    body = await read_body(request, schema, max_body_bytes(request))
    encoded = await while_connected(request, embed(service_of(request), body.plain(), route=route_of(request)))
    write = partial(write_embeddings, encoded, body.encoding_format, body.output_dtype)
    content = await written(encoded.model, write, encoded.embeddings.size)
    headers = {
        "Server-Timing": server_timing(encoded.timings, started),
        **truncation_headers(encoded.inputs),
        **clipping_headers(encoded, body.output_dtype),
    }
    return Response(content, headers=headers, media_type="application/json")
