"""Whatever callers do and however batches end, in any order: the rules of the queue hold after every step.

hypothesis draws the steps and shrinks what fails to the few that are needed. No thread and no clock of the machine: the
test itself says when a batch ends and how. ``TEST_SCALE=20`` runs twenty times as many.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.batcher import Batcher, QueueLimits
from app.errors import (
    DeadlineExceededError,
    InferenceError,
    NonFiniteError,
    NotReadyError,
    OutOfMemoryError,
    QueueFullError,
    RequestTooLargeError,
    WorkerUnavailableError,
)
from app.selection import Cost
from app.worker import Worker
from model.contract import EncodeInput, OutputSpec, Row
from model.errors import TokenIdError
from tests.doubles import FakeClock, RecordingObserver, echo_rows, marks

TEST_SCALE = float(os.environ.get("TEST_SCALE", "1"))
LIMITS = QueueLimits(batch_tokens=40, batch_attention_values=40, max_queue_texts=25, max_queue_tokens=150)

FAULTS: dict[str, type[Exception] | None] = {
    "fine": None,
    "raises": InferenceError,
    "refused": TokenIdError,
    "spoilt": NonFiniteError,
    "unfit": OutOfMemoryError,
}
"""What is wrong with a text, and what its caller is told for it."""

KINDS = st.sampled_from(["fine"] * 6 + [*FAULTS])
TEXTS = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 30), KINDS), min_size=1, max_size=7)


class SteppedWorker:
    """A worker whose thread is the test: it holds a call until it is told how that ends."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.is_hung = False
        self.held: tuple[asyncio.Future[Any], Callable[[], Any], list[EncodeInput]] | None = None

    async def run(self, function: Callable[..., Any], inputs: list[EncodeInput], specs: list[OutputSpec]) -> Any:
        assert self.held is None, "two calls at once on one thread"
        future = asyncio.get_running_loop().create_future()
        self.held = (future, lambda: function(inputs, specs), inputs)
        return await future

    def finish(self, error: Exception | None) -> None:
        """End the call that is held: with an error, or with what its function gives."""
        assert self.held is not None
        (future, call, _), self.held = self.held, None
        try:
            if error is not None:
                raise error
            future.set_result(call())
        except Exception as raised:
            future.set_exception(raised)


@dataclass
class Caller:
    """One request, and what may be told to it."""

    task: asyncio.Task[list[Row]]
    marks: list[int]
    kinds: list[str]
    deadline: float | None
    may_be: set[type[Exception]] = field(default_factory=set)
    has_left: bool = False


class Queue(RuleBasedStateMachine):
    """Callers come, wait, leave and are late; batches end well, fail, spoil rows, find no memory, lose their thread."""

    @initialize()
    def begin(self) -> None:
        """Start with an empty queue."""
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        self.worker = SteppedWorker()
        self.observer = RecordingObserver()
        self.kinds: dict[int, str] = {}
        self.callers: list[Caller] = []
        self.owners: dict[int, Caller] = {}
        self.cuts: dict[int, int] = {}  # of a text that waits: how many more batches may be cut without it
        self.done: set[int] = set()
        self.is_draining = False
        self.batcher = Batcher(
            run=self._run,
            cost=lambda text, spec: Cost(text.num_tokens, text.num_tokens_total),
            worker=cast(Worker, self.worker),
            limits=LIMITS,
            observer=self.observer,
            tokens_per_second=10.0,
            clock=self.clock,
        )
        cut = self.batcher._take_batch
        self.batcher._take_batch = lambda: self._check_cut(cut())  # type: ignore[method-assign]

    def _run(self, inputs: Sequence[EncodeInput], specs: Sequence[OutputSpec]) -> list[Row]:
        """Answer as the kinds of the texts say."""
        kinds = [self.kinds[text.input_ids[0]] for text in inputs]
        if "unfit" in kinds:
            raise MemoryError
        if "refused" in kinds:
            raise TokenIdError("no such id", param="texts[0]")
        if "raises" in kinds:
            raise ValueError("broken")
        rows = echo_rows(inputs, specs)
        for row, kind in zip(rows, kinds, strict=True):
            if kind == "spoilt":
                row.embedding = np.array([np.nan], dtype=np.float32)
        return rows

    def _check_cut(self, batch: list[Any]) -> list[Any]:
        """A batch is within its budget, holds nobody who is done with, and nobody is passed over for ever."""
        names = {text.input.input_ids[0] for text in batch}
        budget = self.observer.budgets[-1]
        assert 1 <= budget <= LIMITS.batch_tokens
        if len(batch) > 1:
            assert sum(text.cost.tokens for text in batch) <= budget
            assert sum(text.cost.attention_values for text in batch) <= LIMITS.batch_attention_values
        if batch:
            waiting = {text.input.input_ids[0] for text in self.batcher._queue}
            self.cuts = {name: left - 1 for name, left in self.cuts.items() if name in waiting}
            assert all(left > 0 for left in self.cuts.values()), "a text was passed over too often"
        for text in batch:
            assert not text.request.is_done
            assert text.request.deadline is None or self.clock() < text.request.deadline
        self.done -= names
        return batch

    def _settle(self) -> None:
        """Let every task that can go on do so."""

        async def turns() -> None:
            for _ in range(12):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turns())

    # ---- what callers do

    @rule(texts=TEXTS, patience=st.sampled_from([None, None, 1.0, 30.0]), leaves_at_once=st.booleans())
    def send(self, texts: list[tuple[int, int, str]], patience: float | None, leaves_at_once: bool) -> None:
        """A request is admitted whole, or refused for a reason that is true."""
        first = len(self.kinds)
        inputs = [
            EncodeInput([first + index] * tokens, [0] * tokens, values)
            for index, (tokens, values, _) in enumerate(texts)
        ]
        names = [first + index for index in range(len(texts))]
        self.kinds |= {name: kind for name, (_, _, kind) in zip(names, texts, strict=True)}
        deadline = None if patience is None else self.clock() + patience
        before, tokens = (self.batcher.queue_texts, self.batcher.queue_tokens), sum(item.num_tokens for item in inputs)
        refusals = len(self.observer.rejections)
        specs = [OutputSpec()] * len(inputs)
        task = self.loop.create_task(self.batcher.submit(inputs, specs, deadline))
        self.loop.run_until_complete(asyncio.sleep(0))
        fits_at_all = len(texts) <= LIMITS.max_queue_texts and tokens <= LIMITS.max_queue_tokens
        fits_now = before[0] + len(texts) <= LIMITS.max_queue_texts and before[1] + tokens <= LIMITS.max_queue_tokens
        if self.is_draining or self.worker.is_hung or not fits_at_all or not fits_now:
            self._settle()
            reason = (
                NotReadyError
                if self.is_draining
                else WorkerUnavailableError
                if self.worker.is_hung
                else QueueFullError
                if fits_at_all
                else RequestTooLargeError
            )
            assert isinstance(task.exception(), reason)
            assert len(self.observer.rejections) == refusals + 1
            return
        caller = Caller(task, names, [kind for _, _, kind in texts], deadline)
        caller.may_be = {error for kind in caller.kinds if (error := FAULTS[kind]) is not None}
        self.callers.append(caller)
        self.owners |= dict.fromkeys(names, caller)
        self.cuts |= {name: 2 * (before[0] + index + 1) + 1 for index, name in enumerate(names)}
        if leaves_at_once:  # in the very turn of the loop in which the batch is cut
            caller.has_left = caller.task.cancel()
        self._settle()

    @precondition(lambda self: any(not caller.task.done() for caller in self.callers))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """A caller closes its connection."""
        caller = data.draw(st.sampled_from([caller for caller in self.callers if not caller.task.done()]))
        caller.has_left = True
        caller.task.cancel()
        self._settle()

    @rule(seconds=st.sampled_from([0.5, 5.0, 61.0]))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.clock.advance(seconds)

    # ---- how a batch ends

    @precondition(lambda self: self.worker.held is not None)
    @rule()
    def finish(self) -> None:
        """The batch ends as its texts have it."""
        self._finish(None)

    @precondition(lambda self: self.worker.held is not None)
    @rule()
    def lose_the_thread(self) -> None:
        """The thread dies under the batch; a text that was alone on it is told so."""
        assert self.worker.held is not None
        _, _, inputs = self.worker.held
        if len(inputs) == 1:
            self.owners[inputs[0].input_ids[0]].may_be.add(WorkerUnavailableError)
        self._finish(WorkerUnavailableError("the worker thread has ended"))

    @precondition(lambda self: self.worker.held is not None and len(self.worker.held[2]) > 1)
    @rule()
    def run_out_of_memory(self) -> None:
        """There is no memory for a batch of several texts this time."""
        self._finish(MemoryError())

    def _finish(self, error: Exception | None) -> None:
        assert self.worker.held is not None
        _, _, inputs = self.worker.held
        names = [text.input_ids[0] for text in inputs]
        assert len(names) == len(set(names))
        if error is None and not {"raises", "refused", "unfit"} & {self.kinds[name] for name in names}:
            assert not self.done & set(names), "a text that has been run was run again"
            self.done |= set(names)
        self.worker.finish(error)
        self._settle()

    @precondition(lambda self: self.worker.held is not None and not self.worker.is_hung)
    @rule()
    def hang(self) -> None:
        """The watchdog finds that the batch hangs: everybody is told."""
        self.worker.is_hung = True
        for caller in self.callers:
            caller.may_be.add(WorkerUnavailableError)
        self.batcher.fail_as_hung()
        self._settle()
        assert all(caller.task.done() for caller in self.callers)
        assert self.batcher.queue_texts == 0

    @precondition(lambda self: self.worker.is_hung)
    @rule()
    def go_on(self) -> None:
        """It was slow, not hung."""
        self.worker.is_hung = False
        if self.worker.held is not None:
            self._finish(None)

    @precondition(lambda self: len(self.callers) > 8 and not self.is_draining)
    @rule()
    def stop(self) -> None:
        """The server begins to stop."""
        self.is_draining = True
        self.draining = self.loop.create_task(self.batcher.drain())
        self._settle()

    # ---- what always holds

    @invariant()
    def the_gauges_say_what_waits(self) -> None:
        """They are the queue's own numbers, never under 0 and never over the limits."""
        if not hasattr(self, "batcher"):
            return
        texts, tokens = self.batcher.queue_texts, self.batcher.queue_tokens
        assert 0 <= texts <= LIMITS.max_queue_texts
        assert 0 <= tokens <= LIMITS.max_queue_tokens
        assert tokens == sum(text.cost.tokens for text in self.batcher._queue)
        assert (self.observer.queue or [(0, 0)])[-1] == (texts, tokens)

    @invariant()
    def the_worker_is_busy_while_anybody_waits(self) -> None:
        """Nothing waits beside a free worker."""
        if hasattr(self, "batcher"):
            assert self.worker.held is not None or self.batcher.queue_texts == 0

    @invariant()
    def every_answer_is_the_callers_own(self) -> None:
        """Rows in the caller's order, or an error that one of its own texts, its deadline or the worker explains."""
        for caller in getattr(self, "callers", []):
            if not caller.task.done():
                continue
            if caller.task.cancelled():
                assert caller.has_left
            elif (error := caller.task.exception()) is None:
                assert marks(caller.task.result()) == caller.marks
                assert set(caller.kinds) == {"fine"}
            elif isinstance(error, DeadlineExceededError):
                assert caller.deadline is not None
                assert self.clock() >= caller.deadline
            else:
                assert type(error) in caller.may_be

    def teardown(self) -> None:
        """In the end everybody has exactly one answer, the queue is empty, and a drain returns."""
        if not hasattr(self, "batcher"):
            return
        self.worker.is_hung = False
        draining = self.loop.create_task(self.batcher.drain())
        self._settle()
        for _ in range(10_000):
            if self.worker.held is None:
                break
            self._finish(None)
        self._settle()
        assert draining.done()
        assert all(caller.task.done() for caller in self.callers)
        self.every_answer_is_the_callers_own()
        assert self.batcher._requests == set()
        assert (self.batcher.queue_texts, self.batcher.queue_tokens) == (0, 0)
        assert (self.observer.queue or [(0, 0)])[-1] == (0, 0)
        self.loop.close()


TestQueue = Queue.TestCase
TestQueue.settings = settings(
    max_examples=int(60 * TEST_SCALE),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
