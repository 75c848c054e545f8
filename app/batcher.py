"""Who waits, who runs next, and who gets which row.

Requests are admitted and batches are cut on the event loop; one worker thread runs them. What a text costs and what a
batch does are functions passed in, so nothing here knows a tensor, a tokenizer or HTTP.

There is no timer. While a batch runs, texts gather; when the worker is free it takes what waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

import numpy as np

from app.budget import BatchShare
from app.errors import (
    ANSWERS,
    DeadlineExceededError,
    InferenceError,
    NonFiniteError,
    NotReadyError,
    OutOfMemoryError,
    QueueFullError,
    RequestTooLargeError,
    ServiceError,
    WorkerUnavailableError,
    stopped_too_soon,
)
from app.selection import MAX_CANDIDATES, Cost, select_batch
from app.shares import KeyShares, ShareLimits
from app.worker import RESTART_SECONDS, Worker
from model.contract import EncodeInput, OutputSpec, Row
from model.errors import InputError

logger = logging.getLogger("eyeline")

RunBatch = Callable[[Sequence[EncodeInput], Sequence[OutputSpec]], list[Row]]
"""Runs on the worker thread: one row per text, in order."""

RATE_WEIGHT = 0.2  # share of a full batch in the moving average of tokens per second; about ten batches to forget


CostFunction = Callable[[EncodeInput, OutputSpec], Cost]


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How much runs at once, and how much may wait.

    Attributes
    ----------
    batch_tokens, batch_attention_values : int
        Budgets of one batch. A single text over a budget runs alone.
    max_queue_texts, max_queue_tokens : int
        Waiting at any time; a request that would exceed them is refused as a whole.
    max_key_share : float
        How much of both one API key may fill, more than 0 and at most 1.
    """

    batch_tokens: int
    batch_attention_values: int
    max_queue_texts: int
    max_queue_tokens: int
    max_key_share: float = 1.0


class BatchObserver(Protocol):
    """Is told what happens, on the event loop; where the metrics are counted."""

    def queue_changed(self, texts: int, tokens: int) -> None:
        """Note what the queue holds now: called after every enqueue and every dequeue."""

    def key_queue_changed(self, key: str, texts: int, tokens: int) -> None:
        """Note what a key has waiting now."""

    def batch_finished(self, num_tokens: Sequence[int], seconds: float) -> None:
        """Count a batch that ran: the tokens of each of its texts, and its seconds."""

    def rejected(self, reason: str) -> None:
        """Count a refused request; the reason is its error's code."""

    def cancelled(self, texts: int) -> None:
        """Count the texts of a caller that left which had no row yet."""

    def batch_failed(self) -> None:
        """Count a run that raised: the batch, and then again each text that fails alone."""

    def out_of_memory(self) -> None:
        """Count a run that there was no memory for: the batch, and then again each part that does not fit."""

    def rows_not_finite(self, rows: int) -> None:
        """Count rows that held a NaN or an infinity."""

    def budget_changed(self, tokens: int) -> None:
        """Note how many tokens a batch may hold now."""


@dataclass(slots=True, eq=False)
class _Request:
    """A caller that waits. Its future is done when it has all its rows, has failed, or has left.

    What is logged about it alone is logged in its own context, which has its id.
    """

    future: asyncio.Future[list[Row]]
    num_texts: int
    deadline: float | None
    key: str | None
    rows: dict[int, Row] = field(default_factory=dict)
    context: Context = field(default_factory=copy_context)

    @property
    def is_done(self) -> bool:
        return self.future.done()

    def fail(self, error: Exception) -> None:
        if not self.is_done:
            self.future.set_exception(error)

    def deliver(self, index: int, row: Row) -> None:
        self.rows[index] = row
        if len(self.rows) == self.num_texts:
            self.future.set_result([self.rows[i] for i in range(self.num_texts)])


@dataclass(slots=True, eq=False)
class _Text:
    """One text of a request, waiting or running."""

    request: _Request
    index: int
    input: EncodeInput
    spec: OutputSpec
    cost: Cost
    enqueued_at: float


@dataclass(frozen=True, slots=True)
class _Finished:
    """What the worker thread hands back: rows, which of them are finite, and when and how long they ran."""

    rows: list[Row]
    finite: list[bool]
    started_at: float
    seconds: float


class Batcher:
    """The queue of one model.

    Parameters
    ----------
    run : RunBatch
    cost : CostFunction
        Called on the event loop when a request arrives.
    worker : Worker
    limits : QueueLimits
    observer : BatchObserver
    tokens_per_second : float
        First guess of the drain rate, more than 0; finished batches correct it.
    clock : callable
        Seconds, monotonic. Called on the event loop and on the worker thread.
    """

    def __init__(
        self,
        *,
        run: RunBatch,
        cost: CostFunction,
        worker: Worker,
        limits: QueueLimits,
        observer: BatchObserver,
        tokens_per_second: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._run = run
        self._cost = cost
        self._worker = worker
        self._limits = limits
        self._observer = observer
        self._clock = clock
        self._tokens_per_second = tokens_per_second
        self._share = BatchShare(clock)
        self._num_faults = 0
        self._queue: dict[_Text, None] = {}  # an ordered set: arrival order, and a text can leave from anywhere
        self._queue_tokens = 0
        self._oldest_is_due = False  # because the last batch passed it over
        shares = ShareLimits.of(limits.max_key_share, limits.max_queue_texts, limits.max_queue_tokens)
        self._shares = KeyShares(shares, observer.key_queue_changed)
        self._requests: set[_Request] = set()  # whoever waits for an answer
        self._task: asyncio.Task[None] | None = None
        self._is_draining = False
        observer.budget_changed(limits.batch_tokens)

    @property
    def queue_texts(self) -> int:
        """Texts that wait, without the running batch."""
        return len(self._queue)

    @property
    def queue_tokens(self) -> int:
        """Tokens that wait, without the running batch."""
        return self._queue_tokens

    @property
    def tokens_per_second(self) -> float:
        """The drain rate as measured so far."""
        return self._tokens_per_second

    @property
    def full_batch_seconds(self) -> float:
        """How long a full batch takes, as measured so far."""
        return self._limits.batch_tokens / self._tokens_per_second

    @property
    def num_faults(self) -> int:
        """Runs that raised and rows that were not finite, so far: any more of them, and the model is worth a check."""
        return self._num_faults

    async def submit(
        self,
        inputs: Sequence[EncodeInput],
        specs: Sequence[OutputSpec],
        deadline: float | None = None,
        key: str | None = None,
    ) -> list[Row]:
        """Wait for one row per text, in the order of ``inputs``.

        Parameters
        ----------
        inputs, specs : sequences of equal length
        deadline : float, optional
            Reading of the clock after which no work is started for this request.
        key : str, optional
            The name of the caller's API key, whose share of the queue is bounded.

        Raises
        ------
        RequestTooLargeError, QueueFullError, KeyQueueFullError, NotReadyError, WorkerUnavailableError
            Not admitted.
        DeadlineExceededError, InferenceError, NonFiniteError, OutOfMemoryError, WorkerUnavailableError, InputError
            Admitted, but one of its texts has no row; none of the others is delivered then.
        """
        if not inputs:
            return []
        request = _Request(asyncio.get_running_loop().create_future(), len(inputs), deadline, key)
        now = self._clock()
        texts = [
            _Text(request, index, input_, spec, self._cost(input_, spec), now)
            for index, (input_, spec) in enumerate(zip(inputs, specs, strict=True))
        ]
        if deadline is not None and now >= deadline:
            raise self._refusal(DeadlineExceededError("the deadline passed before the texts were run"))
        self._admit(len(texts), sum(text.cost.tokens for text in texts), key)
        self._requests.add(request)
        try:
            self._enqueue(texts)
            return await request.future
        except asyncio.CancelledError:
            self._observer.cancelled(request.num_texts - len(request.rows))
            raise
        finally:
            self._requests.discard(request)
            self._dequeue(texts)  # of a caller that left or failed, the rest

    async def drain(self) -> None:
        """Refuse new requests and wait until every admitted one has its answer."""
        self._is_draining = True
        if self._task is not None:
            await asyncio.wait([self._task])

    def fail_as_hung(self) -> None:
        """Fail everybody who waits, as the worker hangs; should it still give rows, they are dropped."""
        self._fail_all(self._hung)

    def fail_as_stopping(self) -> None:
        """Refuse new requests and fail everybody who waits, as the server's time to stop is up."""
        self._is_draining = True
        self._fail_all(lambda: self._refusal(stopped_too_soon()))

    def _fail_all(self, make_error: Callable[[], ServiceError]) -> None:
        for request in self._requests:
            if not request.is_done:
                request.fail(make_error())

    def check_size(self, num_texts: int, num_tokens: int, key: str | None = None) -> None:
        """Refuse a request that would not fit an empty queue either; no waiting makes it fit.

        Raises
        ------
        RequestTooLargeError
        """
        limits = self._limits
        for unit, new, limit in (
            ("texts", num_texts, limits.max_queue_texts),
            ("tokens", num_tokens, limits.max_queue_tokens),
        ):
            if new > limit:
                message = f"a request may hold {limit} {unit}, this one holds {new}"
                raise self._refusal(RequestTooLargeError(message, param="texts", limit=limit, actual=new))
        try:
            self._shares.check_size(key, (num_texts, num_tokens))
        except ServiceError as error:
            raise self._refusal(error) from None

    def _admit(self, num_texts: int, num_tokens: int, key: str | None) -> None:
        """Refuse a request that cannot wait here, as a whole: never one of its texts."""
        limits = self._limits
        retry_after_seconds = self._queue_tokens / self._tokens_per_second
        if self._is_draining:
            raise self._refusal(NotReadyError("the server is shutting down", retry_after_seconds=retry_after_seconds))
        if self._worker.is_hung:
            raise self._hung()
        self.check_size(num_texts, num_tokens, key)
        try:
            self._shares.check(key, (num_texts, num_tokens), retry_after_seconds)
        except ServiceError as error:
            raise self._refusal(error) from None
        for unit, new, waiting, limit in (
            ("texts", num_texts, self.queue_texts, limits.max_queue_texts),
            ("tokens", num_tokens, self.queue_tokens, limits.max_queue_tokens),
        ):
            if waiting + new > limit:
                message = f"the queue holds {waiting} of at most {limit} {unit}, this request has {new}"
                raise self._refusal(
                    QueueFullError(message, limit=limit, actual=waiting + new, retry_after_seconds=retry_after_seconds)
                )

    def _hung(self) -> ServiceError:
        return self._refusal(WorkerUnavailableError("the worker thread hangs", retry_after_seconds=RESTART_SECONDS))

    def _refusal(self, error: ServiceError) -> ServiceError:
        """Tell the observer of a refusal, and return it."""
        self._observer.rejected(ANSWERS[type(error)].code)
        return error

    def _enqueue(self, texts: Sequence[_Text]) -> None:
        self._queue.update(dict.fromkeys(texts))
        self._queue_tokens += sum(text.cost.tokens for text in texts)
        self._shares.add((text.request.key, text.cost.tokens) for text in texts)
        if self._task is None or self._task.done():
            # In a context of its own, or all that it logs would have the id of whoever came first.
            self._task = asyncio.create_task(self._work(), context=Context())
        self._observer.queue_changed(self.queue_texts, self.queue_tokens)

    def _dequeue(self, texts: Sequence[_Text]) -> None:
        waiting = [text for text in texts if text in self._queue]
        for text in waiting:
            del self._queue[text]
            self._queue_tokens -= text.cost.tokens
        if waiting:
            self._shares.add(((text.request.key, text.cost.tokens) for text in waiting), -1)
            self._observer.queue_changed(self.queue_texts, self.queue_tokens)

    async def _work(self) -> None:
        """Run batches until nobody waits; the next request starts a new task."""
        try:
            while self._queue:
                async with self._worker.turn:
                    if batch := self._take_batch():
                        await self._run_batch(batch)
        except Exception:
            # A bug of ours or of the observer, since what a batch raises is caught below. Nobody may wait for ever.
            logger.exception("the batcher failed")
            for request in self._requests:
                request.fail(InferenceError("the batch could not be run"))

    def _take_batch(self) -> list[_Text]:
        """Cut the next batch from the oldest texts of the queue; empty if all of their callers have left."""
        self._expire(self._requests)
        oldest = list(islice(self._queue, MAX_CANDIDATES))
        waiting = [text for text in oldest if not text.request.is_done]
        self._dequeue([text for text in oldest if text.request.is_done])  # their callers left, or they failed
        if not waiting:
            return []
        costs = [text.cost for text in waiting]
        chosen = select_batch(costs, *self._budgets(), oldest_is_due=self._oldest_is_due)
        self._oldest_is_due = chosen[0] != 0
        batch = [waiting[index] for index in chosen]
        self._dequeue(batch)
        return batch

    def _budgets(self) -> tuple[int, int]:
        """Return the budgets of a batch, tokens and attention values: less for a while after memory ran out."""
        share = self._share.now()
        tokens = max(1, int(share * self._limits.batch_tokens))
        self._observer.budget_changed(tokens)
        return tokens, max(1, int(share * self._limits.batch_attention_values))

    def _expire(self, requests: Iterable[_Request]) -> None:
        """Fail those of the requests whose deadline has passed, wherever in the queue they are."""
        now = self._clock()
        for request in requests:
            if request.deadline is not None and now >= request.deadline and not request.is_done:
                request.fail(self._refusal(DeadlineExceededError("the deadline passed before the texts were run")))

    async def _run_batch(self, batch: Sequence[_Text]) -> None:
        inputs, specs = [text.input for text in batch], [text.spec for text in batch]
        try:
            finished = await self._worker.run(self._run_checked, inputs, specs)
        except MemoryError:
            await self._run_halves(batch)
        except Exception as error:
            # Whatever a batch raises is that batch's alone: the loop and the texts behind it go on.
            await self._retry(batch, error)
        else:
            self._deliver(batch, finished)

    def _run_checked(self, inputs: Sequence[EncodeInput], specs: Sequence[OutputSpec]) -> _Finished:
        """Run a batch on the worker thread, and check it there, before any row is delivered."""
        started_at = self._clock()
        rows = self._run(inputs, specs)
        seconds = self._clock() - started_at
        if len(rows) != len(inputs):
            raise RuntimeError(f"a batch of {len(inputs)} texts gave {len(rows)} rows")
        return _Finished(rows, [_is_finite(row) for row in rows], started_at, seconds)

    async def _run_halves(self, batch: Sequence[_Text]) -> None:
        """Run a batch that there was no memory for in two halves; fail a text that does not fit even alone."""
        self._observer.out_of_memory()
        _context_of(batch).run(logger.error, "there is not enough memory for a batch of %d texts", len(batch))
        if len(batch) == 1:
            name = f"texts[{batch[0].index}]"
            seconds = self._queue_tokens / self._tokens_per_second
            message = "there is not enough memory to encode this text"  # which the caller may know by another name
            batch[0].request.fail(OutOfMemoryError(message, param=name, retry_after_seconds=seconds))
            return
        self._share.shrink(self._share_of(batch))
        middle = len(batch) // 2
        for half in (batch[:middle], batch[middle:]):
            if wanted := self._still_wanted(half):
                await self._run_batch(wanted)

    def _share_of(self, batch: Sequence[_Text]) -> float:
        """Return how much of the budgets a batch uses; of the two, the one that it uses more of."""
        tokens = sum(text.cost.tokens for text in batch) / self._limits.batch_tokens
        return max(tokens, sum(text.cost.attention_values for text in batch) / self._limits.batch_attention_values)

    async def _retry(self, batch: Sequence[_Text], error: Exception) -> None:
        """Run a failed batch text by text, so that a bad text fails alone; fail a text that was alone."""
        self._observer.batch_failed()
        if not isinstance(error, InputError):
            self._num_faults += 1
            _context_of(batch).run(logger.error, "a batch of %d texts failed", len(batch), exc_info=error)
        if len(batch) == 1:
            request, name = batch[0].request, f"texts[{batch[0].index}]"
            known = isinstance(error, (InputError, ServiceError))
            request.fail(error if known else InferenceError("the encoder failed on this text", param=name))
            return
        for text in batch:
            if self._still_wanted([text]):
                await self._run_batch([text])

    def _still_wanted(self, texts: Sequence[_Text]) -> list[_Text]:
        """Return those whose callers wait: of the others one has left, is too late, or another text has failed."""
        self._expire({text.request for text in texts})
        return [text for text in texts if not text.request.is_done]

    def _deliver(self, batch: Sequence[_Text], finished: _Finished) -> None:
        """Hand out the rows of a batch to the requests that still want them."""
        if num_spoilt := finished.finite.count(False):
            self._num_faults += num_spoilt
            self._observer.rows_not_finite(num_spoilt)
        for text, row, is_finite in zip(batch, finished.rows, finished.finite, strict=True):
            if text.request.is_done:
                continue
            if not is_finite:
                name = f"texts[{text.index}]"
                text.request.context.run(logger.error, "the row of %s is not finite", name)
                text.request.fail(NonFiniteError("the encoder's result for this text is not finite", param=name))
                continue
            row.queue_seconds = finished.started_at - text.enqueued_at
            row.inference_seconds = finished.seconds
            text.request.deliver(text.index, row)
        self._measure(sum(text.cost.tokens for text in batch), finished.seconds)
        self._observer.batch_finished([text.input.num_tokens for text in batch], finished.seconds)

    def _measure(self, tokens: int, seconds: float) -> None:
        """Correct the drain rate. A full batch weighs most: a lone text says little about a full queue."""
        if seconds > 0:
            weight = RATE_WEIGHT * min(1.0, tokens / self._limits.batch_tokens)
            self._tokens_per_second += weight * (tokens / seconds - self._tokens_per_second)


def _context_of(batch: Sequence[_Text]) -> Context:
    """Return the context of the one request that a batch is of; an empty one where it is of several."""
    requests = {id(text.request): text.request for text in batch}
    return batch[0].request.context if len(requests) == 1 else Context()


def _is_finite(row: Row) -> bool:
    """Whether no array of the row holds a NaN or an infinity."""
    arrays = [row.embedding, row.chunks, row.token_states, row.token_vectors, row.logits, row.maps]
    arrays += [] if row.sparse_vector is None else [row.sparse_vector.value]
    if row.attention is not None:  # its statistics are NaN where one has no meaning
        arrays += [row.attention.rollout, row.attention.kept_mass]
    sums = None if row.attention is None or row.attention.sparse is None else row.attention.sparse.row_sum
    return all(bool(np.isfinite(array).all()) for array in (*arrays, sums) if array is not None)
