"""Settings become objects: what is loaded, warmed up, served, drained."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import safetensors.numpy
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from app.budget import DEFAULT_BATCH_TOKENS
from app.main import (
    UNMEASURED_TOKENS_PER_SECOND,
    _watchdog,
    cost,
    create_app,
    default_queue_tokens,
    load_models,
    warm_up,
)
from app.metrics import Metrics
from app.reload import LoadedModel
from app.selection import Cost
from app.service import Service
from app.settings import ModelSpec
from app.state import ServerState
from app.watchdog import Watchdog
from app.worker import CLOSE_SECONDS, Worker
from model.contract import AttentionSelection, EncodeInput, OutputSpec
from model.embedder import Embedder
from model.errors import CheckpointError
from model.lanes import Lanes
from tests.app.conftest import RecordingEmbedder, Serve, Served, load, make_settings, routes_of, until
from tests.doubles import WAIT_SECONDS, eventually
from tests.tiny import make_bert_folder

pytestmark = pytest.mark.anyio


@pytest.fixture
def overflowing_folder(tmp_path: Path) -> Path:
    """A folder whose numbers are all finite, and whose embeddings are not."""
    folder = make_bert_folder(tmp_path / "overflowing")
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    tensors["encoder.layer.1.output.LayerNorm.bias"][3] = 3e38
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture
def worker() -> Iterator[Worker]:
    """A worker thread."""
    worker = Worker("inference")
    yield worker
    worker.close()


# ---- loading


def test_models_are_loaded_as_the_settings_say(tiny_folder: Path, tmp_path: Path) -> None:
    """Each named folder becomes a model under its name, in order, with dtype, threads and special tokens as set."""
    other = make_bert_folder(tmp_path / "other", seed=1)
    settings = make_settings(
        tiny_folder,
        model=(ModelSpec("a", tiny_folder), ModelSpec("b", other)),
        dtype="bfloat16",
        special_tokens="parse",
    )
    models = load_models(settings)
    assert [(model.name, model.embedder.info.folder) for model in models] == [("a", tiny_folder), ("b", other)]
    for model in models:
        info = model.embedder.info
        assert (info.dtype, info.device, info.threads, info.special_tokens) == ("bfloat16", "cpu", 1, "parse")


def test_a_folder_that_cannot_be_served_stops_the_start(tmp_path: Path) -> None:
    """The error names the folder."""
    missing = tmp_path / "missing"
    with pytest.raises(CheckpointError, match=re.escape(str(missing))):
        load_models(make_settings(missing))


def test_a_batch_must_hold_the_longest_text(tiny_folder: Path) -> None:
    """A token budget under the model's maximum is refused with both numbers; one of exactly the maximum is fine."""
    with pytest.raises(ValueError, match=r"31.*tiny.*32"):
        load_models(make_settings(tiny_folder, batch_tokens=31))
    assert len(load_models(make_settings(tiny_folder, batch_tokens=32))) == 1


async def test_the_default_budget_holds_the_longest_text(serve: Serve, tmp_path: Path) -> None:
    """Where a model reads more than the default budget, the budget is what it reads."""
    long = make_bert_folder(tmp_path / "long", max_length=4_000, max_position_embeddings=4_000)
    async with serve(model=(ModelSpec("long", long),)) as server:
        assert (await server.client.get("/info")).json()["max_batch_tokens"] == 4_000 > DEFAULT_BATCH_TOKENS["cpu"]


def test_what_a_text_costs() -> None:
    """Its tokens, the values of its maps where maps are asked for, and the vocabulary where a sparse vector is."""
    text = EncodeInput([1] * 5, [0] * 5, 9)
    maps = AttentionSelection((0, 1), (0, 1, 2))
    assert cost(text, OutputSpec(), 100) == Cost(5, 0)
    assert cost(text, OutputSpec(attention=maps), 100) == Cost(5, 2 * 3 * 5 * 5)
    assert cost(text, OutputSpec(sparse_vector=True), 100) == Cost(5, 100)
    assert cost(text, OutputSpec(sparse_vector=True, attention=maps), 100) == Cost(5, 2 * 3 * 5 * 5 + 100)


# ---- warming up


@pytest.mark.parametrize("labels", [("a",), ("a", "b")])
async def test_models_that_score_are_loaded_and_warmed_up(
    tmp_path: Path, worker: Worker, labels: tuple[str, ...]
) -> None:
    """With their own output; one that is not finite stops the start."""
    folder = make_bert_folder(tmp_path / "model", labels=labels)
    [model] = load_models(make_settings(folder))
    assert await warm_up(model.embedder, 64, worker) > 0
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    tensors["classifier.bias"][:] = 3e38
    tensors["classifier.weight"][:] = 3e38
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="not finite"):
        load_models(make_settings(folder))


async def test_warm_up_runs_one_text_and_full_batches(tiny_folder: Path, worker: Worker) -> None:
    """One text, then twice a batch of the whole budget; what comes back is a speed."""
    embedder = RecordingEmbedder.load(tiny_folder, dtype="float32", device="cpu", threads=1)
    tokens_per_second = await warm_up(embedder, 320, worker)
    assert [len(batch) for batch in embedder.batches] == [1, 10, 10]
    assert sum(item.num_tokens for item in embedder.batches[-1]) == 320
    assert 0 < tokens_per_second < 1e9


async def test_a_budget_under_one_text_still_warms_up(tiny_folder: Path, worker: Worker) -> None:
    """A batch has at least one text."""
    embedder = RecordingEmbedder.load(tiny_folder, dtype="float32", device="cpu", threads=1)
    assert await warm_up(embedder, 1, worker) > 0


async def test_warming_up_takes_turns(tiny_folder: Path, worker: Worker) -> None:
    """Whoever waits for the worker gets it between two runs of a warm-up, not after the last one."""
    embedder = RecordingEmbedder.load(tiny_folder, dtype="float32", device="cpu", threads=1)
    seen: list[int] = []

    async def somebody() -> None:
        for _ in range(3):
            async with worker.turn:
                seen.append(len(embedder.batches))
                await worker.run(int)

    await asyncio.gather(somebody(), warm_up(embedder, 64, worker))
    assert seen == [0, 1, 2]


def test_a_folder_that_is_being_written_is_refused(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of an old model and half of a new one must not be served: the folder is looked at before and after."""
    load_folder = Embedder.load

    def write_meanwhile(folder: Path, **options: Any) -> Embedder:
        embedder = load_folder(folder, **options)
        (tiny_folder / "config.json").touch()
        return embedder

    monkeypatch.setattr(Embedder, "load", write_meanwhile)
    with pytest.raises(CheckpointError, match="written to while it was read"):
        load_models(make_settings(tiny_folder))


def test_a_model_that_gives_no_numbers_is_refused(overflowing_folder: Path) -> None:
    """NaN for a plain text means that the folder or the number type is unusable: said at the start, not per request."""
    with pytest.raises(CheckpointError, match=r"overflowing.*not finite"):
        load_models(make_settings(overflowing_folder))


async def test_the_queue_holds_what_the_machine_works_off(serve: Serve) -> None:
    """Without a setting the capacity is 30 seconds of the measured speed, or of the guess without warm-up; and a few
    full batches at least.
    """
    async with serve() as server:
        batcher = server.state.service.find_model(None).batcher  # type: ignore[union-attr]
        assert batcher._limits.max_queue_tokens == 30 * UNMEASURED_TOKENS_PER_SECOND
    async with serve(warmup=True) as server:
        assert len(server.embedder.batches) == 3
        batcher = server.state.service.find_model(None).batcher  # type: ignore[union-attr]
        assert batcher._limits.max_queue_tokens == default_queue_tokens(
            DEFAULT_BATCH_TOKENS["cpu"], batcher._tokens_per_second
        )
    async with serve(max_queue_tokens=5_000) as server:
        batcher = server.state.service.find_model(None).batcher  # type: ignore[union-attr]
        assert batcher._limits.max_queue_tokens == 5_000


@pytest.mark.parametrize(
    ("batch_tokens", "tokens_per_second", "expected"),
    [
        (2_048, 10_000.0, 300_000),
        (2_048, 547.0, 16_410),
        (2_048, 40.0, 16_384),
        (16_384, 1e6, 30_000_000),
        (4_000, 0.01, 32_000),
    ],
)
def test_a_start_on_a_starved_machine_leaves_a_queue(
    batch_tokens: int, tokens_per_second: float, expected: int
) -> None:
    """However slow it seemed when it was measured, eight full batches may wait: 128 texts of 128 tokens, for one."""
    assert default_queue_tokens(batch_tokens, tokens_per_second) == expected


async def test_a_moderate_request_is_let_in_after_a_starved_start(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 texts are no more than the queue may hold, though half a minute at the measured speed is 30 tokens."""

    async def measure(*args: Any) -> float:
        return 1.0

    monkeypatch.setattr("app.main.warm_up", measure)
    async with serve(warmup=True) as server:
        assert len((await server.encode(["the cat sat on the mat"] * 100))["embeddings"]) == 100


# ---- the app


async def test_settings_reach_what_they_limit(serve: Serve) -> None:
    """Each limit of the settings is the one that a request meets."""
    async with serve(
        max_texts=2,
        max_queue_texts=5,
        max_queue_tokens=50,
        batch_tokens=40,
        batch_attention_values=7,
        max_body_bytes=300,
        max_text_characters=9,
        max_attention_values_list=11,
        max_attention_values_binary=13,
        max_attention_values_computed=17,
        request_timeout_seconds=8.0,
    ) as server:
        info = (await server.client.get("/info")).json()
        assert info["max_client_batch_size"] == 2
        assert info["max_batch_tokens"] == 40
        assert info["max_body_bytes"] == 300
        assert info["max_text_characters"] == 9
        assert (info["max_attention_values_list"], info["max_attention_values_binary"]) == (11, 13)
        assert info["max_attention_values_computed"] == 17
        service = server.state.service
        assert service is not None
        assert service.timeout_seconds == 8.0
        limits = service.find_model(None).batcher._limits
        assert limits.batch_attention_values == 7
        assert (limits.max_queue_texts, limits.max_queue_tokens) == (5, 50)
        response = await server.post("/encode", {"texts": "a" * 300})
        assert (response.status_code, response.json()["limit"]) == (413, 300)


async def test_series_stand_at_zero_from_the_start(server: Served) -> None:
    """Routes that take texts, errors and rejections can be alerted on before the first of them happens."""
    posts = {path for method, path in routes_of(server) if method == "POST"}
    assert {"/encode", "/models/{name}", "/v2/models/{name}/infer"} <= posts
    for route in posts - {"/tokenize", "/models/{name}/tokenize", "/decode", "/models/{name}/decode"}:
        assert server.sample("eyeline_texts_total", model="tiny", route=route) == 0
        assert server.sample("eyeline_requests_total", route=route, status=500) == 0
    assert server.sample("eyeline_errors_total", code="queue_full") == 0
    assert server.sample("eyeline_rejected_total", model="tiny", reason="queue_full") == 0
    assert server.sample("eyeline_ready") == 1


async def test_two_apps_in_one_process(serve: Serve) -> None:
    """Apps share nothing: not metrics, not readiness, not models."""
    async with serve() as first, serve() as second:
        await first.encode("a")
        second.state.begin_draining()
        assert first.state.is_ready
        assert first.sample("eyeline_texts_total", model="tiny", route="/encode") == 1
        assert second.sample("eyeline_texts_total", model="tiny", route="/encode") == 0


async def test_the_framework_records_nothing(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment says, and whoever has set OpenTelemetry up in this process."""
    recorded = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(recorded))
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: provider)
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")
    async with serve() as server:
        await server.encode("the cat sat")
        assert (await server.client.get("/nowhere")).status_code == 404
    assert recorded.get_finished_spans() == ()


async def test_the_documentation_needs_no_network(server: Served) -> None:
    """Whatever /docs makes a browser load comes from the server itself."""
    page = (await server.client.get("/docs")).text
    loaded = re.findall(r"""(?:src|href|url)\s*[=:]\s*["']([^"']+)["']""", page)
    assert len(loaded) >= 4
    for address in loaded:
        assert re.match(r"/[^/]", address), address
        assert (await server.client.get(address)).status_code == 200
    assert not re.search(r"https?://", page)
    style = next(address for address in loaded if address.endswith(".css"))
    assert not re.search(r"url\(\s*[\"']?https?://|@import", (await server.client.get(style)).text)


@pytest.mark.parametrize(("devices", "is_read"), [(["cpu"], True), (["cpu", "cuda"], False), ([], True)])
async def test_the_watchdog_reads_processor_time_of_cpus(
    tiny_folder: Path, worker: Worker, devices: list[str], is_read: bool
) -> None:
    """Not where a GPU does the work of one of the models: its worker's thread may turn in a circle while it waits."""
    models = {
        str(index): SimpleNamespace(embedder=SimpleNamespace(device=SimpleNamespace(type=name)))
        for index, name in enumerate(devices)
    }
    state = ServerState(Metrics(), max_body_bytes=1, service=cast(Service, SimpleNamespace(models=models)))
    await worker.run(int)
    watchdog = _watchdog(make_settings(tiny_folder), state, worker)
    assert (watchdog._read_cpu_seconds() is not None) == is_read


async def test_the_watchdog_reads_processor_time_of_lanes(tiny_folder: Path, worker: Worker) -> None:
    """The worker's thread waits while lanes compute for it, be their model served or about to be: that is work."""
    lanes, end = Lanes(2), threading.Event()
    state = ServerState(Metrics(), max_body_bytes=1)
    watchdog = _watchdog(make_settings(tiny_folder), state, worker)
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run(lanes.run, lambda _: [None for _ in iter(end.is_set, True)], [0]))
        try:
            await eventually(lambda: worker.is_busy)
            before = watchdog._read_cpu_seconds()
            assert before is not None
            await eventually(lambda: (watchdog._read_cpu_seconds() or 0.0) > before + 0.05)
        finally:
            end.set()


# ---- draining


async def test_the_worker_thread_lives_as_long_as_the_app(serve: Serve) -> None:
    """One thread runs the model, and ends with the app."""

    def workers() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.startswith("inference")]

    seen: set[threading.Thread] = set()
    async with serve() as server:
        server.embedder.before_run = lambda inputs: seen.add(threading.current_thread())
        await asyncio.gather(*(server.encode(f"text {number}") for number in range(20)))
        assert list(seen) == workers()
    assert workers() == []


class Draining:
    """An app that stops while one text runs and another waits."""

    def __init__(self, tiny_folder: Path, grace: float, monkeypatch: pytest.MonkeyPatch) -> None:
        settings = make_settings(tiny_folder, shutdown_grace_seconds=grace)
        self.models: list[LoadedModel] = load(settings)
        self.app = create_app(settings, self.models)
        self.embedder = self.models[0].embedder
        assert isinstance(self.embedder, RecordingEmbedder)
        self.lifespan = self.app.router.lifespan_context(self.app)
        transport = httpx.ASGITransport(self.app)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://eyeline", timeout=10)
        self.ends: list[tuple[float, bool]] = []  # how long the worker is waited for, whether the watchdog has ended
        self.watching: asyncio.Task[Any] | None = None
        watch, close = Watchdog.watch, Worker.close

        async def note_watch(watchdog: Watchdog) -> None:
            self.watching = asyncio.current_task()
            await watch(watchdog)

        def note_close(worker: Worker, timeout_seconds: float = CLOSE_SECONDS) -> None:
            self.ends.append((timeout_seconds, self.watching is not None and self.watching.cancelling() > 0))
            close(worker, timeout_seconds)

        monkeypatch.setattr(Watchdog, "watch", note_watch)
        monkeypatch.setattr(Worker, "close", note_close)

    def send(self, text: str) -> asyncio.Task[httpx.Response]:
        """Encode a text, without waiting for it."""
        return asyncio.create_task(self.client.post("/encode", json={"texts": text}))

    async def begin(self) -> tuple[asyncio.Task[httpx.Response], asyncio.Task[httpx.Response]]:
        """Start, and let one text run into the gate, and one wait behind it."""
        await self.lifespan.__aenter__()
        self.embedder.gate.clear()
        running = self.send("running")
        await asyncio.to_thread(self.embedder.entered.acquire)
        waiting = self.send("waiting")
        batcher = self.app.state.server.service.find_model(None).batcher
        await until(lambda: batcher.queue_texts == 1)
        return running, waiting

    async def stop(self) -> None:
        """Stop as the server does."""
        await self.lifespan.__aexit__(None, None, None)


async def test_stopping_answers_whoever_was_admitted(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs and what waits is answered; what comes later is 503; then the app is gone. The watchdog looks until
    then, and no longer: it would put a new thread in the place of the one that ends.
    """
    draining = Draining(tiny_folder, grace=10, monkeypatch=monkeypatch)
    running, waiting = await draining.begin()
    stopping = asyncio.create_task(draining.stop())
    await until(lambda: draining.app.state.server.is_draining)
    await asyncio.sleep(0)
    assert draining.ends == []
    late = await draining.send("late")
    assert (late.status_code, late.json()["code"]) == (503, "not_ready")
    assert int(late.headers["retry-after"]) >= 1
    assert not stopping.done()
    draining.embedder.gate.set()
    await stopping
    assert [(await task).status_code for task in (running, waiting)] == [200, 200]
    assert draining.ends == [(CLOSE_SECONDS, True)]
    await draining.client.aclose()


@pytest.mark.parametrize("by_server", [False, True])
async def test_the_grace_ends_the_wait(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, by_server: bool) -> None:
    """After the grace, its own or that of the server that runs it, the app stops without what runs and what waits;
    their callers are told why, and to come again.
    """
    draining = Draining(tiny_folder, grace=3_600 if by_server else 0, monkeypatch=monkeypatch)
    answers = await draining.begin()
    worker = draining.app.state.server.worker
    stopping = asyncio.create_task(draining.stop())
    if by_server:
        await until(lambda: draining.app.state.server.is_draining)
        draining.app.state.server.end_grace()
    await asyncio.wait_for(stopping, WAIT_SECONDS)
    assert draining.ends == [(0, True)]  # nobody waits for what has nobody who waits for it
    assert worker.is_busy  # a batch cannot be stopped on its thread
    for answer in await asyncio.gather(*answers):
        assert (answer.status_code, answer.json()["code"]) == (503, "server_stopping")
        assert answer.headers["retry-after"] == "1"
    late = await draining.send("late")
    assert (late.status_code, late.json()["code"]) == (503, "not_ready")
    draining.embedder.gate.set()
    await eventually(lambda: not worker.is_busy)
    assert [len(batch) for batch in draining.embedder.batches] == [1]
    await draining.client.aclose()


async def test_the_log_says_what_is_served_and_no_text(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """Start and stop are logged with the models' names; what callers send is logged at no level."""
    with caplog.at_level(logging.DEBUG):
        async with serve(warmup=True) as server:
            await server.encode("MARKER")
            await server.post("/encode", {"texts": ["MARKER"], "MARKER": 1})
    messages = [record.getMessage() for record in caplog.records]
    assert "ready" in messages
    assert "stopped" in messages
    assert "MARKER" not in str([vars(record) for record in caplog.records if record.name != "httpx"])
