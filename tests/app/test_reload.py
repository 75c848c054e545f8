"""Another model takes the place of one that is being served, and no request notices."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.errors import NotReadyError, ReloadFailedError, ReloadRunningError, UnknownModelError, WorkerUnavailableError
from app.main import UNMEASURED_TOKENS_PER_SECOND
from app.reload import LoadedModel, Reloader, mark_files
from app.service import ServedModel
from app.settings import ModelSpec
from model.contract import EncodeInput, FloatArray, OutputSpec, Row
from model.embedder import Embedder
from model.errors import CheckpointError
from tests.app.conftest import Served, serving_alone, until
from tests.doubles import eventually
from tests.tiny import make_bert_folder

pytestmark = pytest.mark.anyio

TEXTS = ["the cat", "a dog barked", "hello world", "mat"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder that the test may write to."""
    return make_bert_folder(tmp_path / "models" / "one")


def reloader_of(server: Served) -> Reloader:
    """What the app reloads with."""
    assert server.state.reloader is not None
    return server.state.reloader


def embedder_of(server: Served, name: str | None = None) -> Embedder:
    """The model that a request which comes now would be run by."""
    assert server.state.service is not None
    return server.state.service.find_model(name).embedder


def expected(folder: Path) -> FloatArray:
    """The embeddings of :data:`TEXTS` by the model that is in the folder now."""
    return Embedder.load(folder, dtype="float32", device="cpu", threads=1).encode(TEXTS)


async def answered(server: Served, **fields: Any) -> FloatArray:
    """The embeddings of :data:`TEXTS` by the server."""
    return np.array((await server.encode(TEXTS, **fields))["embeddings"], dtype=np.float32)


class Held:
    """A model whose batches wait at a gate.

    Attributes
    ----------
    gate : threading.Event
        Closed at first.
    entered : threading.Event
        Set as soon as a batch is there.
    """

    def __init__(self, embedder: Embedder) -> None:
        self.gate = threading.Event()
        self.entered = threading.Event()
        self._run = embedder.run

    def __call__(self, inputs: list[EncodeInput], specs: list[OutputSpec]) -> list[Row]:
        self.entered.set()
        assert self.gate.wait(30)
        return self._run(inputs, specs)


def hold(server: Served) -> Held:
    """Hold up what the served model runs."""
    assert server.state.service is not None
    model = server.state.service.find_model(None)
    held = Held(model.embedder)
    model.batcher._run = held  # type: ignore[assignment]  # takes what a batch runner takes
    return held


async def test_the_new_model_answers_after_a_reload(folder: Path) -> None:
    """The folder's new weights are served; the answer says what changed, and so does the log's series."""
    async with serving_alone(folder) as server:
        old = expected(folder)
        np.testing.assert_allclose(await answered(server), old, atol=1e-5)
        make_bert_folder(folder, seed=1, max_length=24)
        [replaced] = await reloader_of(server).reload()
        new = expected(folder)
        assert np.abs(new - old).max() > 0.01
        np.testing.assert_allclose(await answered(server), new, atol=1e-5)
        assert replaced.model == "one"
        assert "model.safetensors" in replaced.files
        assert replaced.changes == {"max_length": (32, 24)}
        assert (await server.client.get("/info")).json()["max_input_length"] == 24
        assert server.sample("eyeline_reloads_total", result="succeeded") == 1
        text = server.state.metrics.render()[0].decode()
        assert [
            line for line in text.splitlines() if line.startswith("eyeline_model_info{") and 'length="32"' in line
        ] == []


async def test_a_reload_of_the_same_files_changes_nothing(folder: Path) -> None:
    """Nothing is said to have changed where nothing has."""
    async with serving_alone(folder) as server:
        before = await answered(server)
        [replaced] = await reloader_of(server).reload("one")
        assert (replaced.files, dict(replaced.changes)) == ((), {})
        assert (await answered(server) == before).all()


async def test_whoever_came_before_is_answered_by_the_old_model(folder: Path) -> None:
    """What runs and what waits when the models are switched is answered out of the old queue, in full; what comes
    afterwards by the new model; both queues are counted, and empty in the end.
    """
    async with serving_alone(folder, batch_tokens=32) as server:
        old = expected(folder)
        held = hold(server)
        before = [asyncio.create_task(answered(server)) for _ in range(6)]
        await eventually(held.entered.is_set)
        await until(lambda: server.sample("eyeline_queue_texts", model="one") > 10)
        make_bert_folder(folder, seed=1)
        new = expected(folder)
        await reloader_of(server).reload()
        after = [asyncio.create_task(answered(server)) for _ in range(6)]
        await until(lambda: server.sample("eyeline_queue_texts", model="one") > 30)
        held.gate.set()
        for found in await asyncio.gather(*before):
            np.testing.assert_allclose(found, old, atol=1e-5)
        for found in await asyncio.gather(*after):
            np.testing.assert_allclose(found, new, atol=1e-5)
        assert server.sample("eyeline_queue_texts", model="one") == 0
        assert server.sample("eyeline_queue_tokens", model="one") == 0


async def test_a_request_never_sees_two_models(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is still being tokenized when the models are switched is run by the model that tokenized it."""
    async with serving_alone(folder) as server:
        old = expected(folder)
        embedder = embedder_of(server)
        tokenize, gate, entered = embedder.tokenizer.encode, threading.Event(), threading.Event()

        def wait(*args: Any, **kwargs: Any) -> Any:
            entered.set()
            assert gate.wait(30)
            return tokenize(*args, **kwargs)

        monkeypatch.setattr(embedder.tokenizer, "encode", wait)
        long = [*TEXTS, "x" * 5_000]  # so long that it is tokenized on a thread
        asking = asyncio.create_task(server.encode(long))
        await eventually(entered.is_set)
        make_bert_folder(folder, seed=1)
        await reloader_of(server).reload()
        gate.set()
        np.testing.assert_allclose(np.array((await asking)["embeddings"][: len(TEXTS)]), old, atol=1e-5)


def take_weights_away(folder: Path) -> None:
    """Damage a folder: no weights."""
    (folder / "model.safetensors").unlink()


def cut_weights_short(folder: Path) -> None:
    """Damage a folder: a copy that was not finished."""
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(1_000)


def break_config(folder: Path) -> None:
    """Damage a folder: half a file of settings."""
    (folder / "config.json").write_text("{")


def read_longer_texts(folder: Path) -> None:
    """Put a model there that the server's settings do not allow."""
    make_bert_folder(folder, max_length=60, max_position_embeddings=64)


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (take_weights_away, "model.safetensors"),
        (cut_weights_short, "model.safetensors"),
        (break_config, "config.json"),
        (read_longer_texts, "--batch-tokens"),
    ],
)
async def test_a_folder_that_does_not_load_changes_nothing(
    folder: Path, damage: Callable[[Path], None], word: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The old model goes on, the reason is told and logged, and the next reload may well succeed."""
    async with serving_alone(folder, batch_tokens=40) as server:
        before = await answered(server)
        damage(folder)
        with pytest.raises(ReloadFailedError, match=word) as failed:
            await reloader_of(server).reload()
        assert (await answered(server) == before).all()
        assert server.sample("eyeline_reloads_total", result="failed") == 1
        assert any(word in record.getMessage() and record.levelname == "ERROR" for record in caplog.records)
        assert failed.value.param == "model"
        make_bert_folder(folder, seed=2)
        await reloader_of(server).reload()
        assert server.sample("eyeline_reloads_total", result="succeeded") == 1


async def test_whatever_goes_wrong_the_old_model_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory for a second model, a bug: the caller is told to look into the log, which has the traceback."""
    async with serving_alone(folder) as server:
        before = await answered(server)

        def fail(*args: Any, **kwargs: Any) -> Embedder:
            raise MemoryError("SECRET")

        monkeypatch.setattr(Embedder, "load", fail)
        with pytest.raises(ReloadFailedError) as failed:
            await reloader_of(server).reload()
        assert "SECRET" not in failed.value.message
        assert (await answered(server) == before).all()


async def test_all_models_or_none(folder: Path, tmp_path: Path) -> None:
    """Where one of two folders does not load, neither is switched; one of them can be reloaded by its name."""
    other = make_bert_folder(tmp_path / "models" / "other")
    models = (ModelSpec("one", folder), ModelSpec("other", other))
    async with serving_alone(folder, model=models) as server:
        before = await answered(server, model="one")
        make_bert_folder(folder, seed=1)
        break_config(other)
        with pytest.raises(ReloadFailedError, match="other"):
            await reloader_of(server).reload()
        assert (await answered(server, model="one") == before).all()
        assert [one.model for one in await reloader_of(server).reload("one")] == ["one"]
        np.testing.assert_allclose(await answered(server), expected(folder), atol=1e-5)
        assert (await answered(server, model="other") == before).all()  # made of the same seed


async def test_a_second_reload_is_refused_while_one_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is one of a model that is not served; both are counted, and the first goes on."""
    async with serving_alone(folder) as server:
        gate, load = threading.Event(), Embedder.load

        def wait(*args: Any, **kwargs: Any) -> Embedder:
            assert gate.wait(30)
            return load(*args, **kwargs)

        monkeypatch.setattr(Embedder, "load", wait)
        first = asyncio.create_task(reloader_of(server).reload())
        await asyncio.sleep(0)
        with pytest.raises(ReloadRunningError):
            await reloader_of(server).reload()
        with pytest.raises(UnknownModelError, match="one"):
            await reloader_of(server).reload("MARKER")
        assert (await server.client.get("/health")).status_code == 200
        gate.set()
        await first
        assert server.sample("eyeline_reloads_total", result="refused") == 2


async def test_a_stopping_server_reloads_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A reload that runs when the server begins to stop ends at once, without a switch, and without a word of an error;
    another one is refused and counted. What is being read is read to its end, which can be seen; it is not warmed up,
    and no other model is read after it.
    """
    gate, entered, load = threading.Event(), threading.Event(), Embedder.load
    folders: list[Path] = []
    models = (ModelSpec("one", folder), ModelSpec("other", make_bert_folder(tmp_path / "models" / "other")))

    def wait(folder: Path, **kwargs: Any) -> Embedder:
        folders.append(folder)
        entered.set()
        assert gate.wait(30)
        return load(folder, **kwargs)

    async with serving_alone(folder, model=models) as server:
        service = server.state.service
        reloader = reloader_of(server)
        monkeypatch.setattr(Embedder, "load", wait)
        assert not reloader.is_loading
        asked = asyncio.create_task(reloader.reload())
        await eventually(entered.is_set)
        assert reloader.is_loading
        server.state.begin_draining()
        with pytest.raises(NotReadyError):
            await asked
        with pytest.raises(NotReadyError):
            await reloader.reload()
        assert server.sample("eyeline_reloads_total", result="refused") == 1
    assert reloader.is_loading
    gate.set()
    await eventually(lambda: not reloader.is_loading)
    assert folders == [folder]
    assert server.state.service is service
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_a_worker_that_is_lost_meanwhile_is_no_fault_of_the_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What the server says of itself reaches whoever asked as it is, with when to come again; nothing has changed."""
    async with serving_alone(folder) as server:
        before = await answered(server)
        reloader = reloader_of(server)
        lost = WorkerUnavailableError("the worker thread has ended", retry_after_seconds=1)

        async def fail(model: LoadedModel) -> ServedModel:
            raise lost

        monkeypatch.setattr(reloader, "_serve", fail)
        with pytest.raises(WorkerUnavailableError) as told:
            await reloader.reload()
        assert told.value is lost
        assert (await answered(server) == before).all()
        assert server.sample("eyeline_reloads_total", result="failed") == 1
        assert any(record.getMessage().startswith("reload failed") for record in caplog.records)


async def test_a_new_model_is_warmed_up_between_the_batches_of_the_old_one(folder: Path) -> None:
    """While the old one's batch has the worker the new one waits for its turn, and is switched to when it is warm."""
    async with serving_alone(folder, warmup=True) as server:
        service = server.state.service
        held = hold(server)
        asking = asyncio.create_task(answered(server))
        await eventually(held.entered.is_set)
        worker = server.state.worker
        assert worker is not None
        reloading = asyncio.create_task(reloader_of(server).reload())
        await eventually(lambda: bool(worker.turn._waiters))
        assert not reloader_of(server).is_loading
        assert server.state.service is service
        held.gate.set()
        await asking
        await reloading
        assert server.state.service is not service
        batcher = server.state.service.find_model(None).batcher  # type: ignore[union-attr]
        assert batcher.tokens_per_second != UNMEASURED_TOKENS_PER_SECOND


async def test_the_signals_reload_is_told_in_the_log(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody waits for it: success and failure are lines in the log."""
    caplog.set_level(logging.INFO)
    async with serving_alone(folder) as server:
        reloader_of(server).begin()
        await eventually(lambda: server.sample("eyeline_reloads_total", result="succeeded") == 1)
        break_config(folder)
        reloader_of(server).begin()
        await eventually(lambda: server.sample("eyeline_reloads_total", result="failed") == 1)
    messages = [record.getMessage() for record in caplog.records]
    assert "reloaded one" in messages
    assert any(message.startswith("reload failed") and "config.json" in message for message in messages)


async def test_a_replaced_model_is_let_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as its last request is answered nobody holds it, the first one as any later one, without the collector's
    help; then memory is given back.
    """
    released = threading.Semaphore(0)
    monkeypatch.setattr("app.main.give_back_freed_memory", released.release)
    gc.disable()
    try:
        async with serving_alone(folder) as server:
            for _ in range(2):
                old = weakref.ref(embedder_of(server))
                held = hold(server)
                asking = asyncio.create_task(answered(server))
                await eventually(held.entered.is_set)
                await reloader_of(server).reload()
                assert old() is not None
                assert not released.acquire(blocking=False)
                held.gate.set()
                await asking
                del asking, held
                assert await asyncio.to_thread(released.acquire, timeout=30)
                assert old() is None
    finally:
        gc.enable()


def test_files_are_told_apart_by_what_a_write_changes(folder: Path) -> None:
    """A file that is written, replaced, new or gone is noticed, in the folder and in those of its modules."""
    before = mark_files(folder)
    assert {"config.json", "model.safetensors", "1_Pooling/config.json"} <= before.keys()
    assert mark_files(folder) == before
    (folder / "1_Pooling" / "config.json").touch()
    (folder / "new.txt").write_text("x")
    (folder / "tokenizer.json").unlink()
    after = mark_files(folder)
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} == {
        "1_Pooling/config.json",
        "new.txt",
        "tokenizer.json",
    }


def test_a_folder_that_cannot_be_looked_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence names it."""

    def fail(self: Path) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", fail)
    with pytest.raises(CheckpointError, match=r"one cannot be read: Permission denied"):
        mark_files(folder)
