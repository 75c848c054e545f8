"""Attention over many texts: ``POST /attention/heads``."""

from __future__ import annotations

import time
from functools import partial

from fastapi import APIRouter, Request, Response

from app.comparison_flows import compare_heads
from app.requests import read_body, while_connected
from app.routes.direct import DirectRoute
from app.routes.encode import PROBLEMS, json_body, not_supported
from app.routes.writing import server_timing, written
from app.schemas.attention import HeadDistancesRequest, HeadDistancesResponse
from app.similarity_answers import write_head_distances
from app.state import max_body_bytes, service_of

router = APIRouter(tags=["attention"], route_class=DirectRoute)


@router.post(
    "/attention/heads",
    response_model=HeadDistancesResponse,
    responses=PROBLEMS | not_supported("This model gives no attention maps"),
    openapi_extra=json_body(HeadDistancesRequest),
    summary="Which heads do the same thing: distances of all heads over some texts",
)
async def heads(request: Request) -> Response:
    """Compare heads."""
    started = time.perf_counter()
    body = await read_body(request, HeadDistancesRequest, max_body_bytes(request))
    comparing = compare_heads(service_of(request), body, route="/attention/heads")
    compared = await while_connected(request, comparing)
    content = await written(compared.model, partial(write_head_distances, compared))
    headers = {"Server-Timing": server_timing(compared.timings, started)}
    return Response(content, headers=headers, media_type="application/json")
