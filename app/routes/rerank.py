"""Cohere's and Jina's rerank: ``POST /v1/rerank``, ``/v2/rerank``, and ``/rerank``, which they share with TEI.

There the key of the body decides which of the two answers, and words the errors: ``documents`` is Cohere's and Jina's.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from app.families import RERANK_KEY, Family, speaks
from app.log import request_id_var
from app.plain import truncation_headers
from app.plain_flows import rank
from app.requests import parse, read_json, while_connected
from app.routes import tei
from app.routes.direct import DirectRoute
from app.routes.encode import json_body
from app.routes.writing import server_timing, written
from app.schemas.rerank import RerankErrorResponse, RerankRequest, RerankResponse
from app.schemas.tei import TeiErrorResponse, TeiRank, TeiRerankRequest
from app.score_answers import write_results
from app.state import max_body_bytes, route_of, service_of

TEI_KEYS = frozenset({"texts"})
"""What bodies of text-embeddings-inference hold their texts in."""

router = APIRouter(tags=["rerank"], route_class=DirectRoute)

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {**described, "model": RerankErrorResponse} for status, described in tei.ERRORS.items()
}
ERRORS_OF_BOTH: dict[int | str, dict[str, Any]] = {
    status: {**described, "model": TeiErrorResponse | RerankErrorResponse} for status, described in tei.ERRORS.items()
}


@router.post(
    "/rerank",
    response_model=list[TeiRank] | RerankResponse,
    responses=ERRORS_OF_BOTH,
    openapi_extra=json_body(TeiRerankRequest, RerankRequest),
    summary="How well texts go with a query",
)
async def rerank(request: Request) -> Response:
    """Rank texts by a query, in the form of text-embeddings-inference, or of Cohere and Jina."""
    started = time.perf_counter()
    sent = await read_json(request, max_body_bytes(request))
    if speaks(request, sent, Family.RERANK, RERANK_KEY, TEI_KEYS):
        return await _rerank(request, sent, started)
    return await tei.rank(request, sent, started)


@router.post(
    "/v1/rerank",
    response_model=RerankResponse,
    responses=ERRORS,
    openapi_extra=json_body(RerankRequest),
    summary="How well documents go with a query, as Cohere's and Jina's clients ask",
)
@router.post(
    "/v2/rerank",
    response_model=RerankResponse,
    responses=ERRORS,
    openapi_extra=json_body(RerankRequest),
    summary="The same, at the path of Cohere's second version",
)
async def rerank_documents(request: Request) -> Response:
    """Rank documents by a query."""
    started = time.perf_counter()
    return await _rerank(request, await read_json(request, max_body_bytes(request)), started)


async def _rerank(request: Request, content: bytes, started: float) -> Response:
    body = parse(content, RerankRequest)
    scoring = rank(service_of(request), body.plain(), route=route_of(request))
    scored = await while_connected(request, scoring)
    documents = body.texts if body.return_documents else None
    write = partial(write_results, scored, documents, body.top_n, request_id_var.get())
    content = await written(scored.model, write, len(scored.rows))
    cut = truncation_headers(scored.inputs, scored.query)
    headers = {"Server-Timing": server_timing(scored.timings, started), **cut}
    return Response(content, headers=headers, media_type="application/json")
