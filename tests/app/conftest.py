"""A whole app over a tiny model, spoken to through HTTP without a socket."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import Mount, Route

from app.main import create_app, load_models
from app.reload import LoadedModel
from app.settings import ModelSpec, Settings
from app.state import ServerState
from model.contract import EncodeInput, OutputSpec, Row
from model.embedder import Embedder
from tests.doubles import WAIT_SECONDS
from tests.tiny import make_bert_folder

PROMPTS = {"query": "query: ", "passage": "passage: "}


@pytest.fixture
def anyio_backend() -> str:
    """Run on asyncio only."""
    return "asyncio"


@pytest.fixture(autouse=True)
def watchdog_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no watchdog look by itself while a test runs: a test that is about it makes it look."""
    monkeypatch.setattr("app.watchdog.LOOK_SECONDS", 1e6)


@pytest.fixture
def frozen_heap() -> Iterator[None]:
    """Keep the collector from what the other tests left behind: with it, 200,000 new lists cost seconds."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@contextmanager
def restored_logging() -> Iterator[None]:
    """Put back what ``configure_logging`` changes in the whole process, and what a test has changed beside it."""
    names = (None, "py.warnings", "uvicorn", "uvicorn.error", "uvicorn.asgi", "uvicorn.access")
    loggers = [logging.getLogger(name) for name in names]
    before = [(logger, list(logger.handlers), logger.level, logger.propagate) for logger in loggers]
    captured = warnings.showwarning is logging._showwarning  # type: ignore[attr-defined]  # nothing public tells it
    try:
        yield
    finally:
        logging.captureWarnings(captured)
        for logger, handlers, level, propagate in before:
            logger.handlers[:] = handlers
            logger.setLevel(level)
            logger.propagate = propagate


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    """Let a test configure logging: afterwards it is as it was."""
    with restored_logging():
        yield


class RecordingEmbedder(Embedder):
    """A real embedder that keeps what it was asked to run, and can be held at a gate.

    Attributes
    ----------
    batches : list of list of EncodeInput
    gate : threading.Event
        Open at first.
    before_run : callable or None
        Called on the worker thread with each batch; may raise.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.batches: list[list[EncodeInput]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.before_run: Callable[[Sequence[EncodeInput]], None] | None = None

    def run(self, inputs: Sequence[EncodeInput], specs: Sequence[OutputSpec]) -> list[Row]:
        self.batches.append(list(inputs))
        self.entered.release()
        if not self.gate.wait(WAIT_SECONDS):
            raise TimeoutError("nobody opened the gate")
        if self.before_run is not None:
            self.before_run(inputs)
        return super().run(inputs, specs)


@dataclass
class Served:
    """An app between start and stop, and a client that speaks to it."""

    app: FastAPI
    client: httpx.AsyncClient
    embedders: dict[str, RecordingEmbedder]

    @property
    def embedder(self) -> RecordingEmbedder:
        """The default model's."""
        return next(iter(self.embedders.values()))

    @property
    def state(self) -> ServerState:
        """What the app holds."""
        return cast(ServerState, self.app.state.server)

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        """Send a JSON body; underscores in header names become dashes."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(path, json=body, headers=named)

    async def encode(self, texts: Any, **fields: Any) -> dict[str, Any]:
        """Encode, expecting success, and return the parsed answer."""
        response = await self.post("/encode", {"texts": texts, **fields})
        assert response.status_code == 200, response.text
        return cast(dict[str, Any], response.json())

    def sample(self, name: str, **labels: str | int) -> float:
        """Read one metric of the registry, which must be there."""
        value = self.state.metrics.registry.get_sample_value(name, {key: str(label) for key, label in labels.items()})
        assert value is not None, f"no series {name} {labels}"
        return value


def routes_of(served: Served) -> list[tuple[str, str]]:
    """Every method and path that the app knows, and where a folder is mounted."""
    found: list[tuple[str, str]] = []
    pending = list(served.app.routes)
    while pending:
        route = pending.pop()
        if isinstance(route, APIRoute | Route):
            found += [(method, route.path) for method in route.methods or ()]
        elif isinstance(route, Mount):
            found.append(("GET", route.path + "/{name}"))
        else:
            pending += list(getattr(route, "routes", None) or route.original_router.routes)  # type: ignore[attr-defined]
    return found


async def until(condition: Callable[[], bool]) -> None:
    """Let the tasks of the event loop run until ``condition`` holds, which no wait for real time is needed for."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise TimeoutError("what was waited for never happened")


def make_settings(folder: Path, **changes: Any) -> Settings:
    """Settings for one tiny model called tiny: one thread, float32, no warm-up, so that every run is a request's."""
    values = {
        "model": (ModelSpec("tiny", folder),),
        "dtype": "float32",
        "device": "cpu",
        "threads": 1,
        "warmup": False,
        "weights_dir": folder.parent,
        **changes,
    }
    return Settings(**values)


def load(settings: Settings) -> list[LoadedModel]:
    """Load what the settings name, into embedders that record."""
    return [
        LoadedModel(
            spec.name,
            RecordingEmbedder.load(
                spec.folder, dtype=settings.dtype, device="cpu", threads=1, special_tokens=settings.special_tokens
            ),
        )
        for spec in settings.model
    ]


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[Served]:
    """Start an app with ``settings``, and stop it at the end."""
    models = load(settings)
    app = create_app(settings, models)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://eyeline", timeout=WAIT_SECONDS) as client,
    ):
        yield Served(app, client, {model.name: cast(RecordingEmbedder, model.embedder) for model in models})


@asynccontextmanager
async def serving_alone(folder: Path, **changes: Any) -> AsyncIterator[Served]:
    """Start an app as the command does: it alone holds its models, so that a replaced one is let go."""
    settings = make_settings(folder, **{"model": (ModelSpec(folder.name, folder),), **changes})
    app = create_app(settings, load_models(settings))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://eyeline", timeout=WAIT_SECONDS) as client,
    ):
        yield Served(app, client, {})


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with prompts: 2 layers, 2 heads, 16 dimensions, 32 tokens."""
    return make_bert_folder(tmp_path_factory.mktemp("models") / "tiny", prompts=PROMPTS)


Serve = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def serve(tiny_folder: Path) -> Serve:
    """Start an app over the tiny model with settings that differ from :func:`make_settings`."""

    def start(**changes: Any) -> AbstractAsyncContextManager[Served]:
        return serving(make_settings(tiny_folder, **changes))

    return start


@pytest.fixture
async def server(serve: Serve) -> AsyncIterator[Served]:
    """An app over the tiny model with default settings."""
    async with serve() as served:
        yield served
