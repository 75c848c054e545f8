"""Paths that our API shares with text-embeddings-inference: ``POST /similarity``, ``/tokenize``.

The key of the body decides which of the two answers, and words the errors: ``inputs`` is theirs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

from fastapi import APIRouter, Request, Response

from app.answers import write_tokenized
from app.comparison_flows import Explained, explain
from app.families import TEI_KEY, Family, speaks
from app.requests import parse, read_json, while_connected
from app.routes import tei
from app.routes.direct import DirectRoute
from app.routes.encode import PROBLEMS, json_body, not_supported
from app.routes.writing import server_timing, written
from app.schemas.encode import TokenizeRequest, TokenizeResponse
from app.schemas.similarity import SimilarityRequest, SimilarityResponse
from app.schemas.tei import TeiSimilarityRequest, TeiToken, TeiTokenizeRequest
from app.service import Encoded
from app.similarity_answers import write_explained, write_similarity
from app.state import max_body_bytes, service_of

SIMILARITY_KEYS = frozenset({"texts", "pairs"})
TOKENIZE_KEYS = frozenset({"texts"})
"""What our own bodies hold their texts in."""

router = APIRouter(tags=["texts"], route_class=DirectRoute)


@router.post(
    "/similarity",
    response_model=SimilarityResponse | list[float],
    responses=PROBLEMS | not_supported("This model's cosines cannot be explained"),
    openapi_extra=json_body(SimilarityRequest, TeiSimilarityRequest),
    summary="Cosines of texts, each with all or two by two",
)
async def similarity(request: Request) -> Response:
    """Compare texts."""
    started = time.perf_counter()
    sent = await read_json(request, max_body_bytes(request))
    if speaks(request, sent, Family.TEI, TEI_KEY, SIMILARITY_KEYS):
        return await tei.compare(request, sent, started)
    body = parse(sent, SimilarityRequest)
    service = service_of(request)
    found: Encoded | Explained
    write: Callable[[], bytes]
    if body.explain:
        found = await while_connected(request, explain(service, body, route="/similarity"))
        write = partial(write_explained, found, body.unit)
    else:
        found = await while_connected(request, service.similarity(body, route="/similarity"))
        write = partial(write_similarity, found, is_pairs=body.pairs is not None)
    content = await written(found.model, write)
    headers = {"Server-Timing": server_timing(found.timings, started)}
    return Response(content, headers=headers, media_type="application/json")


@router.post(
    "/tokenize",
    response_model=TokenizeResponse | list[list[TeiToken]],
    responses=PROBLEMS,
    openapi_extra=json_body(TokenizeRequest, TeiTokenizeRequest),
    summary="Tokens and words of texts, as the model reads them",
)
async def tokenize(request: Request) -> Response:
    """Tokenize texts without encoding them."""
    started = time.perf_counter()
    sent = await read_json(request, max_body_bytes(request))
    if speaks(request, sent, Family.TEI, TEI_KEY, TOKENIZE_KEYS):
        return await tei.tokenize(request, sent)
    body = parse(sent, TokenizeRequest)
    tokenized = await while_connected(request, service_of(request).tokenize(body))
    content = await asyncio.to_thread(write_tokenized, tokenized)
    headers = {"Server-Timing": server_timing(tokenized.timings, started)}
    return Response(content, headers=headers, media_type="application/json")
