"""The native API: ``POST /encode``; what its other routes share with it."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from app.answers import CONTENT_TYPES, negotiate, num_values, write_encoded
from app.chunk_answers import num_chunk_values, write_chunks
from app.chunk_flow import EncodedChunks, encode_chunks
from app.requests import read_body, while_connected
from app.routes.direct import DirectRoute
from app.routes.writing import server_timing, written
from app.schemas.chunks import ChunksResponse
from app.schemas.encode import EncodeRequest, EncodeResponse, ProblemResponse
from app.service import Encoded
from app.state import max_body_bytes, service_of

router = APIRouter(tags=["texts"], route_class=DirectRoute)


def json_body(*schemas: type[BaseModel]) -> dict[str, Any]:
    """Describe a body, one of ``schemas``: routes read it themselves, so FastAPI does not see it."""
    references = [{"$ref": f"#/components/schemas/{schema.__name__}"} for schema in schemas]
    schema = references[0] if len(references) == 1 else {"anyOf": references}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": ProblemResponse, "description": description}
    for status, description in (
        (400, "The body is not JSON"),
        (404, "No such model"),
        (406, "No such response format"),
        (413, "Too large"),
        (415, "The body is not application/json"),
        (422, "A field's value"),
        (429, "The queue is full; see Retry-After"),
        (500, "A bug, or a result that is not finite"),
        (503, "Starting or shutting down; see Retry-After"),
        (504, "The deadline passed"),
    )
}


def not_supported(description: str) -> dict[int | str, dict[str, Any]]:
    """Describe what some models cannot do."""
    return {501: {"model": ProblemResponse, "description": description}}


@router.post(
    "/encode",
    response_model=EncodeResponse | ChunksResponse,
    responses=PROBLEMS
    | not_supported("This model gives no attention maps")
    | {200: {"content": {CONTENT_TYPES[form]: {} for form in ("safetensors", "npz")}}},
    openapi_extra=json_body(EncodeRequest),
    summary="Sentence embeddings and, on request, attention maps",
)
async def encode(request: Request) -> Response:
    """Encode texts; ``Accept`` chooses JSON, safetensors or npz."""
    started = time.perf_counter()
    form = negotiate(request.headers.get("accept"))
    body = await read_body(request, EncodeRequest, max_body_bytes(request))
    service = service_of(request)
    found: Encoded | EncodedChunks
    if body.chunks is not None:
        found = await while_connected(request, encode_chunks(service, body, body.chunks, route="/encode"))
        write, count = partial(write_chunks, found, body, body.chunks, form), num_chunk_values(found)
    else:
        found = await while_connected(request, service.encode(body, binary=form != "json", route="/encode"))
        write, count = partial(write_encoded, found, body, form), num_values(found)
    content = await written(found.model, write, count)
    headers = {"Server-Timing": server_timing(found.timings, started)}
    return Response(content, headers=headers, media_type=CONTENT_TYPES[form])
