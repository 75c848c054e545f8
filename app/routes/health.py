"""For operators: ``/health``, ``/health/live``, ``/health/ready``, ``/metrics``, ``/info``."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from app.schemas.body import MAX_PROMPT_CHARACTERS
from app.schemas.info import EmbeddingType, Health, InfoResponse, LabelledType, ServedModelInfo
from app.schemas.tei import TeiErrorResponse
from app.service import ServedModel
from app.state import ServerState, service_of, state_of
from app.version import VERSION
from model.embedder import ModelInfo
from model.labels import ModelKind

router = APIRouter(tags=["operation"])

PROBE_METHODS = ["GET", "HEAD"]
"""Served by one route, so that ``Allow`` names both; GET's own route below describes it."""

NOT_READY: dict[int | str, dict[str, Any]] = {503: {"model": Health, "description": "Loading, draining or failing"}}
NOT_LIVE: dict[int | str, dict[str, Any]] = {503: {"model": Health, "description": "A new process is needed"}}


@router.get("/health", response_model=Health, responses=NOT_READY, operation_id="health")
@router.get("/health/ready", response_model=Health, responses=NOT_READY, operation_id="health_ready")
@router.api_route("/health", methods=PROBE_METHODS, include_in_schema=False)
@router.api_route("/health/ready", methods=PROBE_METHODS, include_in_schema=False)
async def ready(request: Request) -> Response:
    """Whether a request that comes now will be served: 200 or 503, which says why not."""
    state = state_of(request)
    return _health(_readiness(state), 200 if state.is_ready else 503)


@router.get("/health/live", response_model=Health, responses=NOT_LIVE)
@router.api_route("/health/live", methods=PROBE_METHODS, include_in_schema=False)
async def live(request: Request) -> Response:
    """Whether the process answers, and can serve or will be able to: 503 is for a supervisor to replace it."""
    state = state_of(request)
    return _health(Health(status="live") if state.is_live else _failure(state), 200 if state.is_live else 503)


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Prometheus metrics."""
    content, media_type = await state_of(request).scrape(request.headers.get("accept"))
    return Response(content, headers={"Content-Type": media_type})


@router.get("/info")
async def info(request: Request) -> InfoResponse:
    """Say what is served, and the limits."""
    return _info(request, None)


@router.get("/models/{name}/info", responses={404: {"model": TeiErrorResponse, "description": "No such model"}})
async def info_of_model(request: Request, name: str) -> InfoResponse:
    """Say the same with another model than the first as the one that the first fields describe."""
    return _info(request, name)


def _info(request: Request, name: str | None) -> InfoResponse:
    service = service_of(request)
    model = service.find_model(name)
    described = model.embedder.info
    return InfoResponse(
        model_id=model.name,
        model_dtype=described.dtype,
        model_type=_model_type(described),
        served_model_name=model.name,
        max_concurrent_requests=model.limits.max_queue_texts,
        max_input_length=described.max_length,
        max_batch_tokens=model.limits.batch_tokens,
        max_client_batch_size=service.limits.max_texts,
        auto_truncate=False,
        tokenization_workers=described.threads,
        version=VERSION,
        threads=described.threads,
        batch_attention_values=model.limits.batch_attention_values,
        max_queue_texts=model.limits.max_queue_texts,
        max_queue_tokens=model.limits.max_queue_tokens,
        max_prompt_characters=MAX_PROMPT_CHARACTERS,
        request_timeout_seconds=service.timeout_seconds,
        max_text_characters=service.limits.max_text_characters,
        max_body_bytes=state_of(request).max_body_bytes,
        max_attention_values_list=service.limits.max_attention_values_list,
        max_attention_values_binary=service.limits.max_attention_values_binary,
        max_attention_values_computed=service.limits.max_attention_values_computed,
        max_token_values=service.limits.max_token_values,
        models=[_model_info(one) for one in service.models.values()],
    )


def _readiness(state: ServerState) -> Health:
    if state.is_draining:
        return Health(status="draining")
    if state.faults:
        return _failure(state)
    return Health(status="ready" if state.is_ready else "loading")


def _failure(state: ServerState) -> Health:
    """Say what is wrong, the worst first."""
    fault = state.worst_fault
    return Health(status="failing", reason=fault, detail=None if fault is None else state.faults[fault])


def _health(health: Health, code: int) -> Response:
    """Answer in one line, for curl and for probes."""
    return Response(orjson.dumps(health.model_dump(exclude_none=True)) + b"\n", code, media_type="application/json")


def _model_type(info: ModelInfo) -> dict[ModelKind, EmbeddingType | LabelledType]:
    """Describe a model in text-embeddings-inference's words: what gives vectors embeds, and pools in its own way."""
    if info.kind in ("embedding", "sparse", "late_interaction"):
        return {"embedding": EmbeddingType(pooling=info.pooling)}
    numbered = list(enumerate(info.labels))
    labelled = LabelledType(
        id2label={str(index): label for index, label in numbered}, label2id={label: index for index, label in numbered}
    )
    return {info.kind: labelled}


def _model_info(model: ServedModel) -> ServedModelInfo:
    info = model.embedder.info
    return ServedModelInfo(
        name=model.name,
        kind=info.kind,
        labels=list(info.labels),
        format=info.format,
        dimensions=info.dimensions,
        max_length=info.max_length,
        pooling=info.pooling,
        hidden_size=info.hidden_size,
        num_hidden_layers=info.num_hidden_layers,
        num_attention_heads=info.num_attention_heads,
        vocab_size=info.vocab_size,
        num_parameters=info.num_parameters,
        num_ignored_tensors=info.num_ignored_tensors,
        dtype=info.dtype,
        device=info.device,
        special_tokens=info.special_tokens,
        prompts=list(info.prompts),
        attention=model.embedder.gives_attention,
    )
