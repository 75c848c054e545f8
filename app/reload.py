"""Puts another model in the place of one that is being served, without a request that notices.

The new model is loaded on a thread of its own and warmed up between the batches of the old one. Then one assignment
switches: a request holds its service, and with it its models, from beginning to end, so whoever came before is answered
by the old model, out of the old queue, and whoever comes after by the new one. The old model goes when the last request
that holds it does.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from app.errors import NotReadyError, ReloadFailedError, ReloadRunningError, ServiceError, UnknownModelError
from app.metrics import Metrics
from app.service import ServedModel
from model.embedder import Embedder
from model.errors import CheckpointError

log = logging.getLogger("eyeline")

T = TypeVar("T")

FileMarks = Mapping[str, tuple[int, int, int]]
"""Files of a model folder, by their path in it: size, time of the last change in nanoseconds, inode."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory, under the name that callers use.

    Attributes
    ----------
    name : str
    embedder : Embedder
    files : FileMarks
        What the folder held when it was read.
    """

    name: str
    embedder: Embedder
    files: FileMarks = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Replaced:
    """What a reload did to one model.

    Attributes
    ----------
    model : str
    files : tuple of str
        Those that are new, gone, or written since the old model was read.
    changes : mapping of str to (before, after)
        What is said of the model, where it differs.
    """

    model: str
    files: tuple[str, ...]
    changes: Mapping[str, tuple[Any, Any]]


class Reloader:
    """Reloads served models, one reload at a time. Used on the event loop alone.

    Parameters
    ----------
    models : sequence of (LoadedModel, ServedModel)
        What is served now.
    load : callable
        Reads the model of a name from its folder, and checks it; called on a thread. Raises CheckpointError or
        ValueError with a sentence for people.
    serve : callable
        Warms a loaded model up and gives it a queue.
    switch : callable
        Makes these models the served ones, all at once.
    release : callable
        Gives memory back to the system; called on a thread, after a replaced model is gone.
    metrics : Metrics
    """

    def __init__(
        self,
        models: Sequence[tuple[LoadedModel, ServedModel]],
        *,
        load: Callable[[str], LoadedModel],
        serve: Callable[[LoadedModel], Awaitable[ServedModel]],
        switch: Callable[[Sequence[ServedModel]], None],
        release: Callable[[], None],
        metrics: Metrics,
    ) -> None:
        self._files = {loaded.name: loaded.files for loaded, _ in models}
        self._served = {served.name: served for _, served in models}
        self._load = load
        self._serve = serve
        self._switch = switch
        self._release = release
        self._metrics = metrics
        self._is_running = False
        self._is_closed = False
        self._is_loading = False
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def is_loading(self) -> bool:
        """Whether a thread reads a model now. Nothing stops it, not even :meth:`close`."""
        return self._is_loading

    def begin(self) -> None:
        """Start to reload every model, as a signal asks; how it goes is told in the log."""
        self._start(self._reload_quietly())

    def close(self) -> None:
        """Let no reload change anything any more, and nobody wait for one: the server stops."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()

    async def reload(self, name: str | None = None) -> list[Replaced]:
        """Load a model, or all of them, from the folders they came from, and switch when all are ready to serve.

        Parameters
        ----------
        name : str, optional
            Default: every served model.

        Raises
        ------
        UnknownModelError
            If no model of that name is served.
        ReloadRunningError
            If another reload runs.
        ReloadFailedError
            If a folder cannot be served. Nothing has changed then.
        NotReadyError
            If the server stops.
        WorkerUnavailableError
            If the worker's thread is lost while it warms a model up. Nothing has changed then, either.
        """
        names = self._names(name)
        self._is_running = True
        result = "failed"
        try:
            replaced = await self._until_closed(self._replace(names))
            result = "succeeded"
            return replaced
        except ServiceError as error:
            if not self._is_closed:
                log.error("reload failed, what was served still is: %s", error.message, extra={"models": names})
                asyncio.get_running_loop().call_soon(self._begin_release)  # of what had been loaded
            raise
        finally:
            self._is_running = False
            self._metrics.reloaded(result)

    def _names(self, name: str | None) -> list[str]:
        """Return the names of the models to reload, or refuse to begin."""
        refusal: ServiceError | None = None
        if self._is_closed:
            refusal = _shutting_down()
        elif name is not None and name not in self._served:
            refusal = UnknownModelError(f"no such model is served; served are {', '.join(self._served)}", param="model")
        elif self._is_running:
            refusal = ReloadRunningError("a reload is running; ask again when it is done", retry_after_seconds=1)
        if refusal is not None:
            self._metrics.reloaded("refused")
            log.warning("reload refused: %s", refusal.message)
            raise refusal
        return list(self._served) if name is None else [name]

    async def _until_closed(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for ``work`` or for the close, whichever is first; raises :class:`NotReadyError` after the second."""
        task = self._start(work)
        try:
            return await task
        except asyncio.CancelledError:
            self._check_open()
            raise
        finally:
            del task  # or a failure, which holds this frame, would keep itself, and the models that were loaded

    async def _replace(self, names: Sequence[str]) -> list[Replaced]:
        started = time.perf_counter()
        loop = asyncio.get_running_loop()
        new: dict[str, tuple[LoadedModel, ServedModel]] = {}
        for name in names:
            prepared = await self._prepare(name)
            if isinstance(prepared, str):
                raise ReloadFailedError(f"{name}: {prepared}", param="model")
            new[name] = prepared
        self._check_open()
        replaced = [self._compare(*new[name]) for name in names]
        for name, (loaded, served) in new.items():
            weakref.finalize(self._served[name].embedder, self._model_is_gone, loop).atexit = False
            self._files[name], self._served[name] = loaded.files, served
        self._switch(list(self._served.values()))
        seconds = round(time.perf_counter() - started, 3)
        for one in replaced:
            log.info("reloaded %s", one.model, extra={"seconds": seconds, "files": one.files, "changes": one.changes})
        return replaced

    async def _prepare(self, name: str) -> tuple[LoadedModel, ServedModel] | str:
        """Load a model and warm it up; where that fails, say why, and keep nothing of the failure."""
        self._check_open()
        # A thread by itself: those of the event loop tokenize texts and write answers.
        thread = ThreadPoolExecutor(1, thread_name_prefix="reload")
        try:
            loaded = await asyncio.get_running_loop().run_in_executor(thread, self._read, name)
            self._check_open()
            return loaded, await self._serve(loaded)
        except ServiceError:
            raise  # it says by itself what is the matter, and when to come again
        except (CheckpointError, ValueError) as error:
            return str(error)
        except Exception as error:
            # Whatever it is, no memory for two models perhaps: the one that is being served goes on.
            log.error("unexpected error while %s was reloaded", name, exc_info=error)
            return "an unexpected error, which is in the log"
        finally:
            thread.shutdown(wait=False)

    def _read(self, name: str) -> LoadedModel:
        """Load a model, on the thread."""
        self._is_loading = True
        try:
            return self._load(name)
        finally:
            self._is_loading = False

    def _check_open(self) -> None:
        """Begin nothing for a server that stops; raises :class:`NotReadyError`."""
        if self._is_closed:
            raise _shutting_down()

    def _compare(self, loaded: LoadedModel, served: ServedModel) -> Replaced:
        """Say how a new model differs from the one that is served under its name."""
        old_files = self._files[loaded.name]
        names = sorted(old_files.keys() | loaded.files.keys())
        before, after = asdict(self._served[loaded.name].embedder.info), asdict(served.embedder.info)
        return Replaced(
            loaded.name,
            tuple(name for name in names if old_files.get(name) != loaded.files.get(name)),
            {key: (before[key], after[key]) for key in after if before[key] != after[key]},
        )

    def _model_is_gone(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give memory back; called by whichever thread let the old model go, perhaps after the loop has ended."""
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._begin_release)

    def _begin_release(self) -> None:
        if not self._is_closed:  # the end gives back everything
            self._start(asyncio.to_thread(self._release))

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``work`` beside everything else; a task that nobody holds could be collected."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _reload_quietly(self) -> None:
        """Reload every model; what went wrong is in the log by then."""
        with suppress(ServiceError):
            await self.reload()


def _shutting_down() -> NotReadyError:
    return NotReadyError("the server is shutting down", retry_after_seconds=1)


def mark_files(folder: Path) -> FileMarks:
    """Note what tells a file of a model folder from one that was written or put there since.

    Raises
    ------
    CheckpointError
        If the folder, or a file of it, cannot be looked at.
    """
    try:
        files = [file for pattern in ("*", "*/*") for file in folder.glob(pattern) if file.is_file()]
        marks = [(file, file.stat()) for file in files]
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error.strerror}") from error
    return {str(file.relative_to(folder)): (mark.st_size, mark.st_mtime_ns, mark.st_ino) for file, mark in marks}
