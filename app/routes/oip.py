"""The Open Inference Protocol, version 2, as KServe and Triton speak it: ``/v2/...``, with binary tensors."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from app.answers import dumps
from app.errors import UnknownModelError
from app.oip_answers import MODEL_VERSION, describe_model, describe_server, num_values, write_inference
from app.oip_flow import infer, read_texts
from app.plain import truncation_headers
from app.requests import parse, read_tensors, while_connected
from app.routes.direct import DirectRoute
from app.routes.encode import json_body
from app.routes.health import PROBE_METHODS
from app.routes.writing import server_timing, written
from app.schemas.oip import (
    OIPErrorResponse,
    OIPInferRequest,
    OIPInferResponse,
    OIPLive,
    OIPModelMetadata,
    OIPModelReady,
    OIPReady,
    OIPServerMetadata,
    ignored_fields,
)
from app.service import ServedModel
from app.state import max_body_bytes, route_of, service_of, state_of
from app.tei_answers import ignored_header
from app.tensors import LENGTH_HEADER, split_body

router = APIRouter(tags=["Open Inference Protocol"], route_class=DirectRoute)

BINARY = "application/octet-stream"

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": OIPErrorResponse, "description": description}
    for status, description in (
        (400, "The body is not JSON, its parts do not agree, or a field's value"),
        (404, "No such model, or no such version"),
        (413, "Too large, or with truncate false a text that is too long"),
        (415, "The body is neither application/json nor application/octet-stream"),
        (429, "The queue is full; see Retry-After"),
        (500, "A bug, or a result that is not finite"),
        (501, "This model gives no attention maps"),
        (503, "Starting or shutting down; see Retry-After"),
        (504, "The deadline passed"),
    )
}
OF_A_MODEL: dict[int | str, dict[str, Any]] = {status: ERRORS[status] for status in (404, 503)}
NOT_READY: dict[int | str, dict[str, Any]] = {503: {"model": OIPReady, "description": "Loading or draining"}}
MODEL_NOT_READY: dict[int | str, dict[str, Any]] = {
    404: ERRORS[404],
    503: {"model": OIPModelReady | OIPErrorResponse, "description": "Draining or loading"},
}

LENGTH_PARAMETER = {
    "name": LENGTH_HEADER,
    "in": "header",
    "required": False,
    "description": "How many bytes of the body are JSON; without it, all of them.",
    "schema": {"type": "integer", "minimum": 0},
}


def infer_body() -> dict[str, Any]:
    """Describe the body: JSON, or JSON with tensors behind it."""
    described = json_body(OIPInferRequest)
    described["requestBody"]["content"][BINARY] = {"schema": {"type": "string", "format": "binary"}}
    return {**described, "parameters": [LENGTH_PARAMETER]}


ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {BINARY: {"schema": {"type": "string", "format": "binary"}}},
        "headers": {
            LENGTH_HEADER: {
                "description": "How many bytes of the body are JSON, where tensors stand behind it.",
                "schema": {"type": "string"},
            }
        },
    }
}


@router.get("/v2", response_model=OIPServerMetadata, summary="What this server is")
async def server_metadata() -> Response:
    """Describe the server."""
    return _json(describe_server())


@router.get("/v2/health/live", response_model=OIPLive, summary="Whether the process answers at all")
@router.api_route("/v2/health/live", methods=PROBE_METHODS, include_in_schema=False)
async def live() -> Response:
    """Answer."""
    return _json({"live": True})


@router.get(
    "/v2/health/ready",
    response_model=OIPReady,
    responses=NOT_READY,
    summary="Whether a request that comes now will be served",
)
@router.api_route("/v2/health/ready", methods=PROBE_METHODS, include_in_schema=False)
async def ready(request: Request) -> Response:
    """Say so with the status, too: 200 or 503."""
    is_ready = state_of(request).is_ready
    return _json({"ready": is_ready}, 200 if is_ready else 503)


@router.get("/v2/models/{name}", response_model=OIPModelMetadata, responses=OF_A_MODEL, summary="Tensors of that model")
async def model_metadata(request: Request, name: str) -> Response:
    """Describe what a model takes and gives."""
    return _json(describe_model(_find(request, name)))


@router.get(
    "/v2/models/{name}/versions/{version}",
    response_model=OIPModelMetadata,
    responses=OF_A_MODEL,
    summary="The same, by version",
)
async def version_metadata(request: Request, name: str, version: str) -> Response:
    """Describe what a model takes and gives."""
    return _json(describe_model(_find(request, name, version)))


@router.get(
    "/v2/models/{name}/ready",
    response_model=OIPModelReady,
    responses=MODEL_NOT_READY,
    summary="Whether that model serves a request that comes now",
)
async def model_ready(request: Request, name: str) -> Response:
    """Say so with the status, too: 200 or 503."""
    return _ready(request, _find(request, name))


@router.get(
    "/v2/models/{name}/versions/{version}/ready",
    response_model=OIPModelReady,
    responses=MODEL_NOT_READY,
    summary="The same, by version",
)
async def version_ready(request: Request, name: str, version: str) -> Response:
    """Say so with the status, too: 200 or 503."""
    return _ready(request, _find(request, name, version))


@router.post(
    "/v2/models/{name}/infer",
    response_model=OIPInferResponse,
    responses=ERRORS | ANSWER,
    openapi_extra=infer_body(),
    summary="Embeddings and, on request, attention maps, as tensors",
)
async def infer_texts(request: Request, name: str) -> Response:
    """Encode texts; tensors come and go in the JSON or behind it."""
    return await _infer(request, name)


@router.post(
    "/v2/models/{name}/versions/{version}/infer",
    response_model=OIPInferResponse,
    responses=ERRORS | ANSWER,
    openapi_extra=infer_body(),
    summary="The same, by version",
)
async def infer_texts_by_version(request: Request, name: str, version: str) -> Response:
    """Encode texts; tensors come and go in the JSON or behind it."""
    return await _infer(request, name, version)


async def _infer(request: Request, name: str, version: str = MODEL_VERSION) -> Response:
    started = time.perf_counter()
    content = await read_tensors(request, max_body_bytes(request))
    head, section = split_body(content, request.headers.getlist(LENGTH_HEADER))
    body = parse(head, OIPInferRequest)
    wanted = body.wanted()
    service = service_of(request)
    model = _find(request, name, version)
    texts = read_texts(body, section, service.limits)
    encoded = await while_connected(request, infer(service, body, texts, model.name, route=route_of(request)))
    write = partial(write_inference, encoded, body, wanted)
    answer, json_bytes = await written(encoded.model, write, num_values(encoded, wanted))
    headers = {
        "Server-Timing": server_timing(encoded.timings, started),
        **truncation_headers(encoded.inputs),
        **ignored_header(list(ignored_fields(body))),
    }
    if json_bytes is None:
        return Response(answer, headers=headers, media_type="application/json")
    return Response(answer, headers={**headers, LENGTH_HEADER: str(json_bytes)}, media_type=BINARY)


def _ready(request: Request, model: ServedModel) -> Response:
    is_ready = state_of(request).is_ready
    return _json({"name": model.name, "ready": is_ready}, 200 if is_ready else 503)


def _find(request: Request, name: str, version: str = MODEL_VERSION) -> ServedModel:
    """Return a model; each has one version."""
    model = service_of(request).find_model(name)
    if version != MODEL_VERSION:
        raise UnknownModelError(f"no such version of the model is served; served is {MODEL_VERSION}", param="version")
    return model


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return Response(dumps(body), status, media_type="application/json")
