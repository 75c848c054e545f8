"""The composition root: the one place where settings become objects.

``create_app`` builds the app; its lifespan warms the models up, serves, and drains.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import numpy as np
from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig
from fastapi_offline import FastAPIOffline
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from app.access import AccessControl, AccessRules
from app.access_log import AccessLog
from app.batcher import Batcher, QueueLimits
from app.budget import batch_budget
from app.callers import TIMEOUT_HEADER
from app.errors import error_codes
from app.families import write_error
from app.keys import KeyRing, NamedKey
from app.limits import Limits
from app.metrics import Metrics
from app.middleware import RequestRecord
from app.openapi import describe
from app.problems import install_handlers
from app.reload import LoadedModel, Reloader, mark_files
from app.requests import install_client_gone
from app.routes import admin, attention, encode, health, oip, openai, rerank, shared, tei, viewer
from app.selection import Cost
from app.service import ServedModel, Service
from app.settings import ModelSpec, Settings
from app.state import FAULTS, ServerState
from app.tracing import RequestTracer
from app.version import VERSION
from app.watchdog import Watchdog
from app.worker import CLOSE_SECONDS, Worker, cpu_seconds_of
from model.contract import EncodeInput, OutputSpec
from model.device import give_back_freed_memory
from model.embedder import Embedder
from model.errors import CheckpointError
from model.lanes import lane_threads

log = logging.getLogger("eyeline")

DRAIN_SECONDS = 30.0
"""The queue holds what the machine works off in so long, unless a setting says otherwise."""
MIN_QUEUE_BATCHES = 8
"""And so many full batches at least: who is measured while other programs have the processors seems slow for good."""
UNMEASURED_TOKENS_PER_SECOND = 2_000.0
"""What a server without warm-up assumes of its speed until batches have run: less than any machine we measured."""

CROSS_ORIGIN_HEADERS = (
    *("Authorization", "X-API-Key", "Api-Key", "Content-Type", "X-Request-ID", TIMEOUT_HEADER),
    "Inference-Header-Content-Length",
)
"""What a page of another origin may send beside what every page may."""
EXPOSED_HEADERS = (
    *("X-Request-ID", "Server-Timing", "Retry-After", "WWW-Authenticate", "Inference-Header-Content-Length"),
    *("X-Truncated-Count", "X-Truncated-Texts", "X-Clipped-Count", "X-Ignored-Fields"),
    *("x-compute-type", "x-compute-characters", "x-compute-tokens", "x-compute-time"),
    *("x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time"),
)
"""What it may read beside what every page may."""

NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
"""FastAPI's own, which a variable of the environment could turn on, sends exceptions away with what they say, and asks
at each request whether it is on. Ours is ``app/tracing.py``."""

TEXT_ROUTERS = tuple(module.router for module in (encode, shared, attention, openai, tei, rerank, oip))
NOT_RUN = ("/tokenize", "/decode")
"""What these paths take is read, and not run: it counts as no texts."""


def load_models(settings: Settings) -> list[LoadedModel]:
    """Load every model that the settings name.

    Raises
    ------
    CheckpointError
        If a folder cannot be served, or the model's output is not finite.
    ValueError
        If device or dtype are not there, or a model reads longer texts than a batch may hold.
    """
    return [_load_model(spec, settings) for spec in settings.model]


def _load_model(spec: ModelSpec, settings: Settings) -> LoadedModel:
    """Load and check one model; raises what :func:`load_models` raises."""
    started = time.perf_counter()
    files = mark_files(spec.folder)
    embedder = Embedder.load(
        spec.folder,
        dtype=settings.dtype,
        device=settings.device,
        threads=settings.threads,
        special_tokens=settings.special_tokens,
    )
    budget = _batch_tokens(settings, embedder)
    if embedder.info.max_length > budget:
        raise ValueError(
            f"--batch-tokens is {budget}, but {spec.name} reads texts of up to {embedder.info.max_length} tokens"
        )
    if not gives_finite_output(embedder):
        raise CheckpointError(f"{embedder.info.folder}: the model's output for a plain text is not finite")
    if mark_files(spec.folder) != files:
        raise CheckpointError(f"{spec.folder} was written to while it was read")
    log.info("loaded %s", spec.name, extra={"seconds": round(time.perf_counter() - started, 3)})
    return LoadedModel(spec.name, embedder, files)


def create_app(settings: Settings, models: Sequence[LoadedModel], tracer: RequestTracer | None = None) -> FastAPI:
    """Build the app that serves ``models``, and closes ``tracer`` at its end.

    Returns
    -------
    FastAPI
        Its ``state.server`` is a :class:`~app.state.ServerState`; not ready before its lifespan has begun.
    """
    routers = [*TEXT_ROUTERS, health.router]
    if settings.viewer:
        routers.append(viewer.router)
    rules = access_rules(settings)
    if rules.admin is not None:
        routers.append(admin.router)
    routes = {str(getattr(route, "path", "")) for router in routers for route in router.routes}
    key_names = () if rules.api is None else rules.api.names
    metrics = Metrics(routes=sorted(routes), error_codes=error_codes(), keys=key_names, faults=FAULTS)
    state = ServerState(metrics, settings.max_body_bytes)
    app_class = FastAPIOffline if settings.docs else FastAPI  # the first serves /docs from the package, not from a CDN
    app = app_class(
        title="Eyeline",
        version=VERSION,
        summary="A sentence-embedding server that shows where it looked.",
        lifespan=_lifespan(settings, list(models), state, key_names, tracer),
        docs_url="/docs" if settings.docs else None,
        redoc_url=None,
        openapi_url="/openapi.json" if settings.docs else None,
        redirect_slashes=False,  # a redirect would be to whatever host the caller named
        telemetry=NO_TELEMETRY,
    )
    app.state.server = state
    for router in routers:
        app.include_router(router)
    answer = install_handlers(app, metrics.error, write_error)
    install_client_gone(app)
    app.add_middleware(AccessControl, rules=rules, answer=answer)
    if settings.cors_origins:
        app.add_middleware(  # around the keys: a browser asks what it may send before it sends one
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=CROSS_ORIGIN_HEADERS,
            expose_headers=EXPOSED_HEADERS,
        )
    access_log = AccessLog(settings.access_log_sample, settings.slow_request_seconds)
    app.add_middleware(
        RequestRecord,
        metrics=metrics,
        answer=answer,
        access_log=access_log,
        tracer=tracer,
        is_draining=lambda: state.is_draining,
        is_cut_off=lambda: state.is_cut_off,
    )
    describe(app, rules)
    return app


def access_rules(settings: Settings) -> AccessRules:
    """Read the keys, and say what each opens; raises :class:`~app.keys.KeysError`."""

    def ring(keys: list[NamedKey]) -> KeyRing | None:
        return KeyRing(keys) if keys else None

    return AccessRules(
        api=ring(settings.read_api_keys()),
        admin=ring(settings.read_admin_keys()),
        metrics_without_key=settings.metrics_without_key,
    )


def _lifespan(
    settings: Settings,
    models: list[LoadedModel],
    state: ServerState,
    key_names: Sequence[str],
    tracer: RequestTracer | None,
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Own what lives as long as the server: the worker thread, the queues, readiness."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker = state.worker = Worker("inference")
        await _begin(settings, models, state, worker)
        watching = asyncio.create_task(_watchdog(settings, state, worker).watch())
        log.info("ready", extra={"models": [spec.name for spec in settings.model], "api_keys": list(key_names)})
        try:
            yield
        finally:
            state.begin_draining()
            is_drained = await _drain(state, settings.shutdown_grace_seconds)
            watching.cancel()  # or it would put a new thread in the place of the one that ends now
            # On a thread: meanwhile answers leave.
            await asyncio.to_thread(worker.close, CLOSE_SECONDS if is_drained else 0)
            if tracer is not None:
                await tracer.close()
            log.info("stopped")

    return lifespan


async def _drain(state: ServerState, shutdown_grace_seconds: float) -> bool:
    """Answer whoever waits, with rows while the grace lasts; return whether nothing runs any more.

    Where a server of our own runs the app, its grace has begun earlier, and ends this one.
    """
    drains = [asyncio.create_task(batcher.drain()) for batcher in state.batchers]
    drained = asyncio.create_task(asyncio.wait(drains))
    over = asyncio.create_task(state.grace_is_over.wait())
    await asyncio.wait((drained, over), timeout=shutdown_grace_seconds, return_when=asyncio.FIRST_COMPLETED)
    for waiting in (drained, over):
        waiting.cancel()
    state.end_grace()
    return all(drain.done() for drain in drains)


async def _begin(settings: Settings, models: list[LoadedModel], state: ServerState, worker: Worker) -> None:
    """Serve ``models``, which is emptied: nothing but the state may hold a model, or one that is replaced stays."""

    async def serve(model: LoadedModel) -> ServedModel:
        served = await _serve(model, worker, settings, state.metrics)
        state.batchers.add(served.batcher)
        return served

    def switch(served: Sequence[ServedModel]) -> None:
        if state.service is not None:
            state.service = state.service.with_models(served)
        for model in served:
            _describe_model(model, state.metrics)

    specs = {spec.name: spec for spec in settings.model}
    served = [await serve(model) for model in models]
    state.reloader = Reloader(
        list(zip(models, served, strict=True)),
        load=lambda name: _load_model(specs[name], settings),
        serve=serve,
        switch=switch,
        release=give_back_freed_memory,
        metrics=state.metrics,
    )
    models.clear()
    limits = Limits(
        max_texts=settings.max_texts,
        max_text_characters=settings.max_text_characters,
        max_attention_values_list=settings.max_attention_values_list,
        max_attention_values_binary=settings.max_attention_values_binary,
        max_attention_values_computed=settings.max_attention_values_computed,
        max_token_values=settings.max_token_values,
    )
    switch(served)
    state.begin_serving(Service(served, limits, settings.request_timeout_seconds))


def _watchdog(settings: Settings, state: ServerState, worker: Worker) -> Watchdog:
    def check() -> list[str]:
        return [] if state.service is None else not_finite(state.service.models.values())

    def cpu_seconds() -> float | None:
        models = [] if state.service is None else state.service.models.values()
        if any(model.embedder.device.type != "cpu" for model in models):
            return None  # where a GPU does the work, the thread that waits for it may turn in a circle
        # Of all lanes: a call may be that of a model that is not served yet, or not any more.
        threads = [worker.cpu_seconds(), *map(cpu_seconds_of, lane_threads())]
        return None if None in threads else sum(seconds or 0.0 for seconds in threads)

    return Watchdog(state, worker, state.batchers, check, settings.hang_seconds, cpu_seconds)


async def _serve(model: LoadedModel, worker: Worker, settings: Settings, metrics: Metrics) -> ServedModel:
    """Warm one model up, and give it a queue and metrics."""
    embedder = model.embedder
    batch_tokens = _batch_tokens(settings, embedder)
    tokens_per_second = UNMEASURED_TOKENS_PER_SECOND
    if settings.warmup:
        tokens_per_second = await warm_up(embedder, batch_tokens, worker)
        log.info("warmed up %s", model.name, extra={"tokens_per_second": round(tokens_per_second)})
    limits = QueueLimits(
        batch_tokens=batch_tokens,
        batch_attention_values=settings.batch_attention_values,
        max_queue_texts=settings.max_queue_texts,
        max_queue_tokens=settings.max_queue_tokens or default_queue_tokens(batch_tokens, tokens_per_second),
        max_key_share=settings.max_key_share,
    )
    observer = metrics.for_model(model.name, padding_ratio=embedder.padding_ratio, routes=text_routes())
    batcher = Batcher(
        run=embedder.run,
        cost=partial(cost, vocab_size=embedder.info.vocab_size),
        worker=worker,
        limits=limits,
        observer=observer,
        tokens_per_second=tokens_per_second,
    )
    return ServedModel(model.name, embedder, batcher, observer, limits)


def text_routes() -> list[str]:
    """Return the templates of the routes whose texts are run."""
    found = [route for router in TEXT_ROUTERS for route in router.routes if isinstance(route, Route)]
    paths = {route.path for route in found if "POST" in (route.methods or ())}
    return sorted(path for path in paths if not path.endswith(NOT_RUN))


def default_queue_tokens(batch_tokens: int, tokens_per_second: float) -> int:
    """Return how many tokens may wait where no setting says so: half a minute of work, but a few full batches."""
    return max(MIN_QUEUE_BATCHES * batch_tokens, int(DRAIN_SECONDS * tokens_per_second))


def _describe_model(model: ServedModel, metrics: Metrics) -> None:
    """Say in the metrics what is served under a name."""
    info = model.embedder.info
    metrics.set_model_info(
        model.name,
        format=info.format,
        dtype=info.dtype,
        device=info.device,
        hidden_size=info.hidden_size,
        num_hidden_layers=info.num_hidden_layers,
        num_attention_heads=info.num_attention_heads,
        max_length=info.max_length,
        pooling=info.pooling,
    )


def cost(item: EncodeInput, spec: OutputSpec, vocab_size: int) -> Cost:
    """Say what a text takes of a batch; a sparse vector as if none of its weights were 0."""
    values = 0 if spec.attention is None else spec.attention.num_values(item.num_tokens)
    return Cost(item.num_tokens, values + (vocab_size if spec.sparse_vector else 0))


async def warm_up(embedder: Embedder, batch_tokens: int, worker: Worker) -> float:
    """Run one text, then full batches, so that the first request meets no first time.

    Each takes its turn on the worker, so that of another model that is being served no batch waits for more than one.

    Returns
    -------
    float
        Tokens per second of a full batch.
    """
    length = min(32, embedder.info.max_length)
    text = embedder.tokenizer.from_ids([0] * length)
    batch = [text] * max(1, batch_tokens // length)
    seconds = 0.0
    for inputs in ([text], batch, batch):
        async with worker.turn:
            seconds = await worker.run(_time_run, embedder, inputs, slow=True)
    return len(batch) * length / seconds


def _time_run(embedder: Embedder, inputs: Sequence[EncodeInput]) -> float:
    """Run a batch, and return the seconds it took."""
    started = time.perf_counter()
    embedder.run(inputs, [embedder.own_output] * len(inputs))
    return time.perf_counter() - started


def gives_finite_output(embedder: Embedder) -> bool:
    """Whether plain texts, of different length so that one is padded, come out as numbers.

    Where they do not, the weights, the number type or the machine are unusable.
    """
    inputs = embedder.tokenizer.encode(["Eyeline", "Eyeline shows where it looked."])
    rows = embedder.run(inputs, [embedder.own_output] * len(inputs))
    found = [part for row in rows for part in (row.embedding, row.logits, row.token_vectors) if part is not None]
    found += [row.sparse_vector.value for row in rows if row.sparse_vector is not None]
    return all(bool(np.isfinite(part).all()) for part in found)


def not_finite(models: Iterable[ServedModel]) -> list[str]:
    """Return the names of the models whose output is not finite; called on the worker."""
    return [model.name for model in models if not gives_finite_output(model.embedder)]


def _batch_tokens(settings: Settings, embedder: Embedder) -> int:
    return batch_budget(settings.batch_tokens, embedder.device.type, embedder.info.max_length)
