"""Each rule of the queue has a test; where the rule was learned from a public bug, the test links it."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest

from app.batcher import RATE_WEIGHT, Batcher, QueueLimits
from app.errors import (
    DeadlineExceededError,
    InferenceError,
    KeyQueueFullError,
    NonFiniteError,
    NotReadyError,
    OutOfMemoryError,
    QueueFullError,
    RequestTooLargeError,
    ServerStoppingError,
    WorkerUnavailableError,
)
from app.log import request_id_var
from app.selection import MAX_CANDIDATES, WINDOW_BUDGETS, Cost
from app.worker import Worker
from model.contract import AttentionSelection, EncodeInput, OutputSpec, Row, SparseMaps, SparseVector, TextAttention
from model.errors import TokenIdError
from tests.doubles import FakeClock, GatedRunner, RecordingObserver, echo_rows, make_input, marks

pytestmark = pytest.mark.anyio

BAD = 666  # the mark of a text that the model of a test cannot run
PLAIN = OutputSpec()
LIMITS = QueueLimits(batch_tokens=100, batch_attention_values=1_000, max_queue_texts=1_000, max_queue_tokens=10_000)


def cost_of(text: EncodeInput, spec: OutputSpec) -> Cost:
    """Count tokens, and the values of the maps that were asked for."""
    return Cost(text.num_tokens, spec.attention.num_values(text.num_tokens) if spec.attention else 0)


@dataclass
class Bench:
    """A batcher with a gated model, and a shorthand for callers."""

    runner: GatedRunner = field(default_factory=GatedRunner)
    limits: QueueLimits = LIMITS
    worker: Worker = field(default_factory=Worker)
    observer: RecordingObserver = field(default_factory=RecordingObserver)
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.batcher = Batcher(
            run=self.runner,
            cost=cost_of,
            worker=self.worker,
            limits=self.limits,
            observer=self.observer,
            tokens_per_second=10.0,
            clock=self.clock,
        )

    async def call(
        self,
        *texts: EncodeInput,
        spec: OutputSpec = PLAIN,
        deadline: float | None = None,
        key: str | None = None,
    ) -> asyncio.Task[list[Row]]:
        """Send a request and return when it is in the queue, or refused."""
        task = asyncio.create_task(self.batcher.submit(texts, [spec] * len(texts), deadline, key))
        await settle()
        return task

    async def occupy(self) -> asyncio.Task[list[Row]]:
        """Send one text and return when the model holds it, so that all later ones wait."""
        task = await self.call(make_input(1, mark=-1))
        await self.runner.entered()
        return task


async def settle() -> None:
    """Let every task that can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)


async def within(awaitable: Any) -> Any:
    """Await what must come at once; a future that is never resolved fails the test instead of hanging it."""
    return await asyncio.wait_for(awaitable, timeout=10)


def refusing(mark: int, error: Exception) -> Callable[[Sequence[EncodeInput], Sequence[OutputSpec]], list[Row]]:
    """Make a model that raises when a batch holds ``mark``."""

    def answer(inputs: Sequence[EncodeInput], specs: Sequence[OutputSpec]) -> list[Row]:
        if any(text.input_ids[0] == mark for text in inputs):
            raise error
        return echo_rows(inputs, specs)

    return answer


# ---- what runs next


async def test_no_timer() -> None:
    """A text alone runs at once, and what gathered meanwhile is the next batch, in order of arrival."""
    bench = Bench()
    first = await bench.occupy()
    second = await bench.call(make_input(3, mark=1))
    third = await bench.call(make_input(4, mark=2), make_input(5, mark=3))
    bench.runner.open()
    await within(asyncio.gather(first, second, third))
    assert bench.runner.batch_marks == [[-1], [1, 2, 3]]


async def test_a_batch_is_cut_by_tokens() -> None:
    """A request larger than a batch runs in several, and its rows come back in its own order."""
    bench = Bench()
    await bench.occupy()
    task = await bench.call(*(make_input(40 + mark, mark=mark) for mark in range(5)))
    bench.runner.open()
    assert marks(await within(task)) == [0, 1, 2, 3, 4]
    assert bench.runner.batch_marks == [[-1], [0, 1], [2, 3], [4]]


async def test_a_batch_is_cut_by_map_values() -> None:
    """Maps are counted as the cost function says: 2 layers x 2 heads x 10 x 10 twice is within 1,000, not thrice."""
    bench = Bench()
    await bench.occupy()
    spec = OutputSpec(attention=AttentionSelection((0, 1), (0, 1)))
    task = await bench.call(*(make_input(10, mark=mark) for mark in range(3)), spec=spec)
    bench.runner.open()
    await within(task)
    assert bench.runner.batch_marks == [[-1], [0, 1], [2]]


@pytest.mark.parametrize("num_tokens", [LIMITS.batch_tokens + 1, WINDOW_BUDGETS * LIMITS.batch_tokens + 1])
async def test_a_text_over_the_budget_runs(num_tokens: int) -> None:
    """A text larger than a batch's budget, or than the whole window, runs alone instead of waiting for ever.

    https://github.com/huggingface/text-embeddings-inference/issues/723
    """
    bench = Bench()
    await bench.occupy()
    task = await bench.call(make_input(1, mark=0), make_input(num_tokens, mark=1), make_input(2, mark=2))
    bench.runner.open()
    assert marks(await within(task)) == [0, 1, 2]
    assert [1] in bench.runner.batch_marks


async def test_a_late_text_overtakes_within_the_window_only() -> None:
    """Similar length is looked for among the oldest texts, four budgets of them, and not beyond."""
    bench = Bench()
    await bench.occupy()
    long_ones = [make_input(95, mark=9) for _ in range(WINDOW_BUDGETS)]
    task = await bench.call(make_input(10, mark=0), make_input(10, mark=1), *long_ones, make_input(10, mark=2))
    bench.runner.open()
    await within(task)
    assert bench.runner.batch_marks[1] == [0, 1]


async def test_short_texts_overtake_long_ones_once() -> None:
    """Short texts run before long ones that came first; whoever comes then waits for one batch of long ones."""
    bench = Bench()
    await bench.occupy()
    await bench.call(*(make_input(48, mark=mark) for mark in range(4)))
    await bench.call(make_input(5, mark=7))
    for _ in range(2):  # the text that occupied the model, and the short one
        bench.runner.let_one_through()
        await bench.runner.entered()
    await bench.call(make_input(5, mark=8))
    bench.runner.open()
    await within(bench.batcher.drain())
    assert bench.runner.batch_marks == [[-1], [7], [0, 1], [8], [2, 3]]


async def test_who_was_overtaken_is_next() -> None:
    """While a short text that overtook is run another one comes: the oldest text goes before that one."""
    bench = Bench()
    await bench.occupy()
    await bench.call(*(make_input(48, mark=mark) for mark in range(4)))
    await bench.call(make_input(5, mark=7))
    bench.runner.let_one_through()
    await bench.runner.entered()  # the short text is at the gate
    await bench.call(make_input(5, mark=8))
    bench.runner.open()
    await within(bench.batcher.drain())
    assert bench.runner.batch_marks == [[-1], [7], [0, 1], [8], [2, 3]]


async def test_a_long_queue_is_not_looked_through() -> None:
    """A batch is chosen among the oldest texts, as many as have been settled on: a short text overtakes if it is the
    last of those, and not if it comes behind them.
    """
    for num_before, expected in ((MAX_CANDIDATES - 1, [7]), (MAX_CANDIDATES, [0] * 5)):
        bench = Bench(limits=QueueLimits(100, 1_000, max_queue_texts=10_000, max_queue_tokens=1_000_000))
        first = await bench.occupy()
        waiting = [await bench.call(*[make_input(20)] * num_before), await bench.call(make_input(5, mark=7))]
        bench.runner.let_one_through()
        await bench.runner.entered()
        assert bench.runner.batch_marks == [[-1], expected]
        for task in waiting:
            task.cancel()
        bench.runner.open()
        await within(asyncio.gather(first, *waiting, return_exceptions=True))


async def test_callers_that_left_do_not_hold_up_a_long_queue() -> None:
    """Where all the texts that are looked at are of a caller who has just left, the next ones are, at once."""
    bench = Bench(limits=QueueLimits(100, 1_000, max_queue_texts=10_000, max_queue_tokens=1_000_000))
    bench.runner.open()
    gone = asyncio.create_task(bench.batcher.submit([make_input(20)] * MAX_CANDIDATES, [PLAIN] * MAX_CANDIDATES))
    stays = asyncio.create_task(bench.batcher.submit([make_input(20, mark=1)], [PLAIN]))
    asyncio.get_running_loop().call_soon(gone.cancel)  # after both have queued, before the batch is cut
    assert marks(await within(stays)) == [1]
    assert bench.runner.batch_marks == [[1]]


async def test_many_callers_get_their_own_rows() -> None:
    """64 callers with 50 texts each at once: every row is the caller's own, in the caller's order.

    https://github.com/huggingface/text-embeddings-inference/issues/557
    """
    bench = Bench(limits=QueueLimits(700, 1, 10_000, 10_000_000))
    bench.runner.open()

    async def caller(number: int) -> None:
        texts = [make_input(1 + (7 * number + 13 * index) % 60, mark=50 * number + index) for index in range(50)]
        rows = await bench.batcher.submit(texts, [PLAIN] * 50)
        assert marks(rows) == [50 * number + index for index in range(50)]

    await within(asyncio.gather(*(caller(number) for number in range(64))))
    assert sum(len(batch) for batch in bench.runner.batches) == 64 * 50
    assert max(sum(text.num_tokens for text in batch) for batch in bench.runner.batches) <= 700


async def test_no_texts_no_rows() -> None:
    """A request without texts is answered without the model."""
    bench = Bench()
    assert await within(bench.batcher.submit([], [])) == []
    assert bench.runner.batches == []


async def test_each_text_needs_its_spec() -> None:
    """Texts and specs of different number are refused, instead of answering fewer rows than texts."""
    with pytest.raises(ValueError, match="shorter"):
        await within(Bench().batcher.submit([make_input(1), make_input(1)], [PLAIN]))


async def test_nothing_is_kept_of_a_request() -> None:
    """When its caller has its rows, the batcher lets go of them.

    https://github.com/huggingface/text-embeddings-inference/issues/156
    """
    bench = Bench()
    bench.runner.open()
    [row] = await within(bench.batcher.submit([make_input(1)], [PLAIN]))
    kept = weakref.ref(row.embedding)
    del row
    await settle()
    gc.collect()
    assert kept() is None


# ---- admission


async def test_a_request_enters_whole_or_not_at_all() -> None:
    """A request that does not fit now is refused as a whole, and those that wait are none the worse.

    https://github.com/huggingface/text-embeddings-inference/issues/470 died of a full queue.
    """
    bench = Bench(limits=QueueLimits(100, 1_000, max_queue_texts=4, max_queue_tokens=100))
    await bench.occupy()
    waiting = await bench.call(*(make_input(2, mark=mark) for mark in range(3)))
    refused = await bench.call(make_input(2), make_input(2))
    with pytest.raises(QueueFullError) as caught:
        await within(refused)
    assert (caught.value.limit, caught.value.actual) == (4, 5)
    assert (bench.batcher.queue_texts, bench.batcher.queue_tokens) == (3, 6)
    assert bench.observer.rejections == ["queue_full"]
    bench.runner.open()
    assert marks(await within(waiting)) == [0, 1, 2]


async def test_one_key_cannot_fill_the_queue() -> None:
    """A key that has its share waiting is refused, while another, and whoever shows none, still gets in; what it has
    waiting falls as texts run, and as their callers leave.
    """
    shared = QueueLimits(100, 1_000, max_queue_texts=8, max_queue_tokens=100, max_key_share=0.5)
    bench = Bench(limits=shared)
    await bench.occupy()
    waiting = [await bench.call(*[make_input(2)] * 3, key="a"), await bench.call(make_input(2), key="a")]
    refused = await bench.call(make_input(2), key="a")
    with pytest.raises(KeyQueueFullError, match="4 of at most 4 texts of your key") as caught:
        await within(refused)
    assert (caught.value.limit, caught.value.actual) == (4, 5)
    assert caught.value.retry_after_seconds == pytest.approx(0.8)
    assert bench.observer.rejections == ["key_queue_full"]
    assert bench.observer.keys == {"a": (4, 8)}
    others = [await bench.call(make_input(2), key="b"), await bench.call(make_input(2))]
    waiting.pop().cancel()
    await settle()
    assert bench.observer.keys == {"a": (3, 6), "b": (1, 2)}
    again = await bench.call(make_input(2), key="a")
    bench.runner.open()
    await within(asyncio.gather(*waiting, *others, again))
    assert bench.observer.keys == {"a": (0, 0), "b": (0, 0)}


@pytest.mark.parametrize(("num_texts", "num_tokens", "unit"), [(5, 1, "texts"), (2, 30, "tokens")])
async def test_a_request_over_its_key_s_share_is_no_429(num_texts: int, num_tokens: int, unit: str) -> None:
    """No waiting makes it fit, so it is told at once, and before what else it costs is looked at."""
    bench = Bench(limits=QueueLimits(100, 1_000, max_queue_texts=8, max_queue_tokens=100, max_key_share=0.5))
    texts = [make_input(num_tokens)] * num_texts
    refused = await bench.call(*texts, key="a")
    with pytest.raises(RequestTooLargeError, match=f"with your key may hold .* {unit}"):
        await within(refused)
    with pytest.raises(RequestTooLargeError):
        bench.batcher.check_size(num_texts, num_texts * num_tokens, "a")
    bench.batcher.check_size(num_texts, num_texts * num_tokens)
    bench.runner.open()
    await within(await bench.call(*texts))


async def test_a_deadline_that_has_passed_is_not_admitted() -> None:
    """Nobody waits for the running batch to be told that it is too late."""
    bench = Bench()
    await bench.occupy()
    late = await bench.call(make_input(1), deadline=bench.clock())
    with pytest.raises(DeadlineExceededError):
        await within(late)
    assert bench.batcher.queue_texts == 0
    assert bench.observer.rejections == ["deadline_exceeded"]
    bench.runner.open()


@pytest.mark.parametrize("sizes", [[1] * 6, [2] * 3, [3, 3], [5, 1]])
async def test_singles_and_batches_count_alike(sizes: list[int]) -> None:
    """The limit counts texts, however they are spread over requests.

    https://github.com/huggingface/text-embeddings-inference/issues/662
    """
    bench = Bench(limits=QueueLimits(100, 1_000, max_queue_texts=6, max_queue_tokens=100))
    await bench.occupy()
    tasks = [await bench.call(*[make_input(1)] * size) for size in sizes]
    assert bench.batcher.queue_texts == 6
    with pytest.raises(QueueFullError):
        await within(await bench.call(make_input(1)))
    bench.runner.open()
    await within(asyncio.gather(*tasks))


async def test_tokens_are_limited_too() -> None:
    """A queue of few long texts is full as well."""
    bench = Bench(limits=QueueLimits(100, 1_000, max_queue_texts=100, max_queue_tokens=50))
    await bench.occupy()
    waiting = await bench.call(make_input(30))
    with pytest.raises(QueueFullError) as caught:
        await within(await bench.call(make_input(21)))
    assert (caught.value.limit, caught.value.actual) == (50, 51)
    bench.runner.open()
    await within(waiting)


@pytest.mark.parametrize(
    ("texts", "limit", "actual"), [([make_input(1)] * 5, 4, 5), ([make_input(60), make_input(41)], 100, 101)]
)
async def test_a_request_over_the_capacity_is_not_a_full_queue(
    texts: list[EncodeInput], limit: int, actual: int
) -> None:
    """What would not fit into an empty queue is too large (413): waiting would not help.

    https://github.com/huggingface/text-embeddings-inference/issues/662
    """
    bench = Bench(limits=QueueLimits(100, 1_000, max_queue_texts=4, max_queue_tokens=100))
    with pytest.raises(RequestTooLargeError) as caught:
        await within(await bench.call(*texts))
    assert (caught.value.limit, caught.value.actual) == (limit, actual)
    assert bench.observer.rejections == ["request_too_large"]


async def test_retry_after_is_the_time_to_drain() -> None:
    """A full queue says when it will be empty: queued tokens by the measured rate, at first by the given one."""
    bench = Bench(limits=QueueLimits(100, 1_000, max_queue_texts=1_000, max_queue_tokens=100))
    await bench.occupy()
    waiting = await bench.call(make_input(80))
    with pytest.raises(QueueFullError) as caught:
        await within(await bench.call(make_input(30)))
    assert caught.value.retry_after_seconds == pytest.approx(80 / 10.0)
    bench.runner.open()
    await within(waiting)


async def test_the_rate_follows_the_batches() -> None:
    """Full batches of 100 tokens in half a second bring the rate from 10 to about 200 tokens a second."""
    bench = Bench(limits=QueueLimits(100, 1_000, max_queue_texts=1_000, max_queue_tokens=100))

    def half_a_second(inputs: Sequence[EncodeInput], specs: Sequence[OutputSpec]) -> list[Row]:
        bench.clock.advance(0.5)
        return echo_rows(inputs, specs)

    bench.runner.answer = half_a_second
    for _ in range(40):
        bench.runner.let_one_through()
        await within(await bench.call(make_input(100)))
        await bench.runner.entered()
    await bench.occupy()
    waiting = await bench.call(make_input(80))
    with pytest.raises(QueueFullError) as caught:
        await within(await bench.call(make_input(30)))
    assert caught.value.retry_after_seconds == pytest.approx(80 / 200.0, rel=0.01)
    bench.runner.open()
    await within(waiting)


async def test_a_small_batch_hardly_moves_the_rate() -> None:
    """A lone text of one token, a hundredth of a batch, has a hundredth of a full batch's weight."""
    bench = Bench()

    def two_seconds(inputs: Sequence[EncodeInput], specs: Sequence[OutputSpec]) -> list[Row]:
        bench.clock.advance(2)
        return echo_rows(inputs, specs)

    bench.runner.answer = two_seconds
    bench.runner.open()
    await within(await bench.call(make_input(1)))
    assert bench.batcher.tokens_per_second == pytest.approx(10 - RATE_WEIGHT * 0.01 * (10 - 0.5))


async def test_a_cost_that_cannot_be_told_is_the_callers_alone() -> None:
    """A failing cost function fails its request and leaves nothing in the queue."""
    bench = Bench()

    def fail(text: EncodeInput, spec: OutputSpec) -> Cost:
        raise OverflowError

    bench.batcher._cost = fail
    with pytest.raises(OverflowError):
        await within(await bench.call(make_input(1)))
    assert bench.batcher.queue_texts == 0


# ---- callers that leave, deadlines


async def test_a_caller_that_left_is_not_run() -> None:
    """A cancelled text is skipped, its share is given back at once, and its neighbour gets its row.

    https://github.com/ray-project/ray/issues/50046
    """
    bench = Bench()
    first = await bench.occupy()
    gone = await bench.call(make_input(5, mark=1), make_input(5, mark=2))
    stays = await bench.call(make_input(5, mark=3))
    gone.cancel()
    await settle()
    assert (bench.batcher.queue_texts, bench.batcher.queue_tokens) == (1, 5)
    assert bench.observer.queue[-1] == (1, 5)
    assert bench.observer.num_cancelled == 2
    bench.runner.open()
    assert marks(await within(stays)) == [3]
    await within(first)
    assert bench.runner.batch_marks == [[-1], [3]]


async def test_a_caller_that_has_just_left_is_not_run() -> None:
    """Who leaves in the same turn of the loop in which the batch is cut is not in it, but its neighbour is.

    https://github.com/ray-project/ray/issues/50046
    """
    bench = Bench()
    gone = asyncio.create_task(bench.batcher.submit([make_input(5, mark=1)], [PLAIN]))
    stays = asyncio.create_task(bench.batcher.submit([make_input(5, mark=2)], [PLAIN]))
    asyncio.get_running_loop().call_soon(gone.cancel)  # after both have queued, before the batch is cut
    bench.runner.open()
    assert marks(await within(stays)) == [2]
    assert bench.runner.batch_marks == [[2]]
    assert gone.cancelled()


async def test_nothing_runs_for_nobody() -> None:
    """When the only caller has left by the time the batch is cut, the model is not called, and later callers are."""
    bench = Bench()
    bench.runner.open()
    gone = asyncio.create_task(bench.batcher.submit([make_input(5, mark=1)], [PLAIN], bench.clock() + 1))
    asyncio.get_running_loop().call_soon(gone.cancel)
    asyncio.get_running_loop().call_soon(bench.clock.advance, 1)
    await settle()
    assert gone.cancelled()
    assert bench.runner.batches == []
    assert (bench.observer.num_cancelled, bench.observer.rejections) == (1, [])  # left, not late
    assert marks(await within(await bench.call(make_input(5, mark=2)))) == [2]


async def test_a_caller_that_leaves_half_served() -> None:
    """Of a request whose first batch has run, only the texts without a row count as cancelled."""
    bench = Bench()
    task = await bench.call(make_input(90, mark=1), make_input(90, mark=2), make_input(90, mark=3))
    await bench.runner.entered()
    bench.runner.let_one_through()
    await bench.runner.entered()
    task.cancel()
    await settle()
    assert bench.observer.num_cancelled == 2
    bench.runner.open()
    await within(bench.batcher.drain())
    assert bench.runner.batch_marks == [[1], [2]]


async def test_a_caller_that_leaves_while_it_runs() -> None:
    """A row for a caller that has left is dropped, and its neighbour in the same batch gets its own.

    https://github.com/ray-project/ray/pull/41199
    """
    bench = Bench()
    first = await bench.occupy()
    gone = await bench.call(make_input(5, mark=1))
    stays = await bench.call(make_input(5, mark=2))
    bench.runner.let_one_through()
    await bench.runner.entered()
    gone.cancel()
    await settle()
    bench.runner.open()
    assert marks(await within(stays)) == [2]
    await within(first)
    assert bench.runner.batch_marks == [[-1], [1, 2]]
    assert bench.observer.num_failed == 0
    assert bench.observer.num_cancelled == 1


async def test_a_deadline_that_passes_in_the_queue() -> None:
    """No work is started after the deadline: the caller is told, wherever it waits, and its neighbours are run.

    https://github.com/michaelfeil/infinity/issues/546
    """
    bench = Bench()
    first = await bench.occupy()
    stays = await bench.call(*(make_input(90, mark=mark) for mark in range(9)))
    late = await bench.call(make_input(5, mark=BAD), deadline=bench.clock() + 2)
    patient = await bench.call(make_input(5, mark=77), deadline=bench.clock() + 9)
    bench.clock.advance(2)
    bench.runner.let_one_through()
    await bench.runner.entered()
    with pytest.raises(DeadlineExceededError):
        await within(late)
    assert not stays.done()
    assert bench.observer.rejections == ["deadline_exceeded"]
    bench.runner.open()
    assert marks(await within(patient)) == [77]
    assert marks(await within(stays)) == list(range(9))
    await within(first)
    assert [BAD] not in bench.runner.batch_marks


# ---- batches that fail


async def test_a_bad_text_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    """A failing batch is run again text by text: the bad one's caller is told which, the neighbours get their rows.

    https://github.com/michaelfeil/infinity/issues/242
    """
    bench = Bench(GatedRunner(refusing(BAD, ValueError("broken"))))
    await bench.occupy()
    good = await bench.call(make_input(5, mark=1), make_input(5, mark=2))
    bad = await bench.call(make_input(5, mark=3), make_input(5, mark=BAD))
    also_good = await bench.call(make_input(5, mark=4))
    with caplog.at_level(logging.ERROR, logger="eyeline"):
        bench.runner.open()
        with pytest.raises(InferenceError) as caught:
            await within(bad)
        assert marks(await within(good)) == [1, 2]
        assert marks(await within(also_good)) == [4]
    assert caught.value.param == "texts[1]"
    assert caught.value.message == "the encoder failed on this text"  # its caller may know it by another name
    assert caplog.records[0].exc_info is not None
    assert "broken" in caplog.text
    assert bench.runner.batch_marks == [[-1], [1, 2, 3, BAD, 4], [1], [2], [3], [BAD], [4]]
    assert bench.observer.num_failed == 2


async def test_what_is_logged_has_the_id_of_the_request_it_is_about() -> None:
    """A failure of one request's texts is logged in that request's context; one that many share, in nobody's: the task
    that runs the batches was begun by whoever came first, which says nothing about whose they are.
    """
    seen: list[str | None] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(request_id_var.get())

    bench = Bench(runner=GatedRunner(answer=refusing(BAD, RuntimeError("no"))))
    logger, handler = logging.getLogger("eyeline"), Listening()
    logger.addHandler(handler)
    try:
        tasks = [await in_request("first", bench.occupy)]
        for name, mark in (("good", 1), ("bad", BAD)):
            tasks.append(await in_request(name, partial(bench.call, make_input(3, mark=mark))))
        bench.runner.open()
        await within(asyncio.gather(*tasks, return_exceptions=True))
    finally:
        logger.removeHandler(handler)
    assert seen == [None, "bad"]  # the batch of both, and then the bad one alone


async def in_request(name: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Do what a request of that id does."""
    token = request_id_var.set(name)
    try:
        return await work()
    finally:
        request_id_var.reset(token)


async def test_the_queue_lives_on_after_a_failure() -> None:
    """Requests that come after a failed batch are answered.

    https://github.com/ray-project/ray/issues/66140
    """
    bench = Bench(GatedRunner(refusing(BAD, ValueError("broken"))))
    bench.runner.open()
    with pytest.raises(InferenceError):
        await within(await bench.call(make_input(5, mark=BAD)))
    assert marks(await within(await bench.call(make_input(5, mark=1)))) == [1]


async def test_a_text_alone_is_not_run_twice() -> None:
    """A failing batch of one text is not tried again."""
    bench = Bench(GatedRunner(refusing(BAD, ValueError("broken"))))
    bench.runner.open()
    with pytest.raises(InferenceError):
        await within(await bench.call(make_input(5, mark=BAD)))
    assert bench.runner.batch_marks == [[BAD]]


@pytest.mark.parametrize("error", [ValueError("broken"), MemoryError()])
async def test_a_deadline_that_passes_while_a_batch_is_run_again(error: Exception) -> None:
    """Nor is a text of a failed batch, or of one without memory, run again after its deadline; its neighbours are."""
    bench = Bench()

    def answer(inputs: Sequence[EncodeInput], specs: Sequence[OutputSpec]) -> list[Row]:
        bench.clock.advance(1)
        if len(inputs) > 1:
            raise error
        return echo_rows(inputs, specs)

    bench.runner.answer = answer
    await bench.occupy()
    patient = await bench.call(make_input(5, mark=1))
    late = await bench.call(make_input(5, mark=2), deadline=bench.clock() + 2)
    bench.runner.open()
    assert marks(await within(patient)) == [1]
    with pytest.raises(DeadlineExceededError):
        await within(late)
    assert bench.runner.batch_marks == [[-1], [1, 2], [1]]
    assert bench.observer.rejections == ["deadline_exceeded"]


@pytest.mark.parametrize(("error", "expected"), [(ValueError("broken"), [1] * 10), (MemoryError(), [1] * 8)])
async def test_a_failed_batch_looks_for_deadlines_in_itself_alone(error: Exception, expected: list[int]) -> None:
    """While it is run again text by text, or in halves, each request of it is looked at once with however many texts,
    and none that waits in the queue.
    """
    bench = Bench(GatedRunner(refusing(BAD, error)))
    looked_at: list[int] = []
    expire = bench.batcher._expire
    bench.batcher._expire = lambda requests: expire(count(requests))  # type: ignore[method-assign]

    def count(requests: Collection[Any]) -> Collection[Any]:
        if requests is not bench.batcher._requests:  # which are looked through once, when a batch is cut
            looked_at.append(len(requests))
        return requests

    first = await bench.occupy()
    failing = await bench.call(*[make_input(10)] * 4, make_input(10, mark=BAD))
    beside = await bench.call(*[make_input(10)] * 5)
    waiting = [await bench.call(make_input(90, mark=mark)) for mark in range(3)]
    bench.runner.open()
    with pytest.raises((InferenceError, OutOfMemoryError)):
        await within(failing)
    await within(asyncio.gather(first, beside, *waiting))
    assert looked_at == expected


async def test_an_input_error_passes_through(caplog: pytest.LogCaptureFixture) -> None:
    """What the model says about an input reaches its caller unchanged, and nobody else, and fills no log."""
    error = TokenIdError("a sentence", param="texts[0]", limit=10, actual=11)
    bench = Bench(GatedRunner(refusing(BAD, error)))
    await bench.occupy()
    bad = await bench.call(make_input(5, mark=BAD))
    good = await bench.call(make_input(5, mark=1))
    bench.runner.open()
    with pytest.raises(TokenIdError) as caught:
        await within(bad)
    assert caught.value is error
    assert marks(await within(good)) == [1]
    assert not caplog.records


async def test_stop_iteration_does_not_hang() -> None:
    """StopIteration, which no future can hold, fails the batch like any other exception."""
    bench = Bench(GatedRunner(refusing(BAD, StopIteration())))
    bench.runner.open()
    with pytest.raises(InferenceError):
        await within(await bench.call(make_input(5, mark=BAD)))


async def test_after_a_failure_the_rest_of_the_request_is_dropped() -> None:
    """When one text of a request has failed, its others, retried or still queued, are not run."""
    bench = Bench(GatedRunner(refusing(BAD, ValueError("broken"))))
    await bench.occupy()
    bad = await bench.call(*(make_input(30, mark=mark) for mark in (BAD, 1, 2, 3, 4)))
    good = await bench.call(make_input(30, mark=9))
    bench.runner.open()
    with pytest.raises(InferenceError):
        await within(bad)
    assert marks(await within(good)) == [9]
    assert bench.runner.batch_marks == [[-1], [BAD, 1, 2], [BAD], [9]]
    assert (bench.batcher.queue_texts, bench.batcher.queue_tokens) == (0, 0)


@pytest.mark.parametrize("change", [lambda rows: rows[:-1], lambda rows: [*rows, rows[0]], lambda rows: None])
async def test_the_rows_are_counted_before_any_is_delivered(change: Callable[[list[Row]], Any]) -> None:
    """A batch that gives too few or too many rows delivers none of them: whose they are is unknown."""

    def miscount(inputs: Sequence[EncodeInput], specs: Sequence[OutputSpec]) -> list[Row]:
        rows = echo_rows(inputs, specs)
        return rows if len(rows) == 1 else change(rows[::-1])

    bench = Bench(GatedRunner(miscount))
    await bench.occupy()
    tasks = [await bench.call(make_input(5, mark=mark)) for mark in range(3)]
    bench.runner.open()
    assert [marks(await within(task)) for task in tasks] == [[0], [1], [2]]
    assert bench.observer.num_failed == 1


def attended(name: str, spoilt: np.ndarray) -> TextAttention:
    """Attention of which one part is spoilt; statistics without meaning are NaN in any answer."""
    none = {"entropy": np.array([[np.nan]], dtype=np.float32)}
    if name != "row_sum":
        return TextAttention(stats=none, **{name: spoilt})
    places = np.zeros(1, np.int32)
    return TextAttention(stats=none, sparse=SparseMaps((1, 1, 2, 2), places, places, np.ones(1, np.float32), spoilt))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.5])
@pytest.mark.parametrize("name", ["kept_mass", "rollout", "row_sum"])
async def test_attention_that_is_not_finite_is_withheld(name: str, value: float) -> None:
    """Nor does a NaN leave in what is made of maps; statistics that have no meaning are no such fault."""

    def answer(inputs: Sequence[EncodeInput], specs: Sequence[OutputSpec]) -> list[Row]:
        rows = echo_rows(inputs, specs)
        rows[0].attention = attended(name, np.array([0.0, value], dtype=np.float32))
        return rows

    bench = Bench(GatedRunner(answer))
    bench.runner.open()
    asked = await bench.call(make_input(5, mark=3))
    if value == 0.5:
        assert marks(await within(asked)) == [3]
    else:
        with pytest.raises(NonFiniteError):
            await within(asked)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["embedding", "chunks", "attention", "token_states", "logits", "sparse_vector"])
async def test_a_row_that_is_not_finite_is_withheld(name: str, value: float) -> None:
    """NaN and infinity never leave: the caller is told which text, and the neighbours get their rows.

    https://github.com/huggingface/text-embeddings-inference/issues/644
    """

    def spoil(inputs: Sequence[EncodeInput], specs: Sequence[OutputSpec]) -> list[Row]:
        rows = echo_rows(inputs, specs)
        for text, row in zip(inputs, rows, strict=True):
            if text.input_ids[0] == BAD:
                numbers = np.array([0.0, value], dtype=np.float32)
                spoilt = {
                    "attention": TextAttention(maps=numbers),
                    "sparse_vector": SparseVector(np.arange(2, dtype=np.int32), numbers),
                }
                setattr(row, name, spoilt.get(name, numbers))
        return rows

    bench = Bench(GatedRunner(spoil))
    await bench.occupy()
    bad = await bench.call(make_input(5, mark=3), make_input(5, mark=BAD))
    good = await bench.call(make_input(5, mark=1))
    bench.runner.open()
    with pytest.raises(NonFiniteError) as caught:
        await within(bad)
    assert caught.value.param == "texts[1]"
    assert caught.value.message == "the encoder's result for this text is not finite"
    assert marks(await within(good)) == [1]
    assert bench.runner.batch_marks == [[-1], [3, BAD, 1]]


async def test_rows_that_are_not_finite_are_counted() -> None:
    """Each of them, whoever still wants it, and as a fault that is worth a check of the model; the others are not."""

    def spoil(inputs: Sequence[EncodeInput], specs: Sequence[OutputSpec]) -> list[Row]:
        rows = echo_rows(inputs, specs)
        for text, row in zip(inputs, rows, strict=True):
            if text.input_ids[0] == BAD:
                row.embedding = np.array([np.nan], dtype=np.float32)
        return rows

    bench = Bench(GatedRunner(spoil))
    await bench.occupy()
    bad = await bench.call(make_input(5, mark=BAD), make_input(5, mark=BAD))
    good = await bench.call(make_input(5, mark=1))
    gone = await bench.call(make_input(5, mark=BAD))
    bench.runner.let_one_through()
    await bench.runner.entered()
    gone.cancel()
    bench.runner.open()
    with pytest.raises(NonFiniteError):
        await within(bad)
    assert marks(await within(good)) == [1]
    assert (bench.observer.num_not_finite, bench.batcher.num_faults) == (3, 3)
    await within(await bench.call(make_input(5, mark=1)))
    assert (bench.observer.num_not_finite, bench.batcher.num_faults) == (3, 3)


# ---- memory that runs out


def short_of_memory(most_tokens: int) -> Callable[[Sequence[EncodeInput], Sequence[OutputSpec]], list[Row]]:
    """Make a model that has memory for so many tokens."""

    def answer(inputs: Sequence[EncodeInput], specs: Sequence[OutputSpec]) -> list[Row]:
        if sum(text.num_tokens for text in inputs) > most_tokens:
            raise MemoryError
        return echo_rows(inputs, specs)

    return answer


async def test_memory_that_runs_out_halves_the_batch() -> None:
    """The batch is run in halves until it fits, every caller gets its rows, and later batches are cut smaller at once.

    https://github.com/huggingface/text-embeddings-inference/issues/350
    """
    bench = Bench(GatedRunner(short_of_memory(30)))
    await bench.occupy()
    tasks = [await bench.call(make_input(10, mark=mark)) for mark in range(8)]
    bench.runner.open()
    assert [marks(await within(task)) for task in tasks] == [[mark] for mark in range(8)]
    assert bench.runner.batch_marks == [[-1], [*range(8)], [0, 1, 2, 3], [0, 1], [2, 3], [4, 5, 6, 7], [4, 5], [6, 7]]
    assert bench.observer.num_shortages == 3
    assert (bench.observer.num_failed, bench.batcher.num_faults) == (0, 0)

    again = await bench.call(*(make_input(10, mark=mark) for mark in range(4)))
    await within(again)
    assert bench.runner.batch_marks[8:] == [[0, 1], [2, 3]]
    assert bench.observer.num_shortages == 3
    assert bench.observer.budgets[0] == 100
    assert bench.observer.budgets[-1] == 20


async def test_the_budget_comes_back() -> None:
    """After a while without a shortage batches are whole again."""
    bench = Bench(GatedRunner(short_of_memory(50)))
    await bench.occupy()
    task = await bench.call(*(make_input(10, mark=mark) for mark in range(6)))
    bench.runner.open()
    await within(task)
    assert bench.runner.batch_marks[1:] == [[*range(6)], [0, 1, 2], [3, 4, 5]]
    bench.runner.answer = echo_rows
    for seconds, batches in ((59.0, [3, 3]), (1.0, [6]), (60.0, [10])):
        bench.clock.advance(seconds)
        before = len(bench.runner.batches)
        await within(await bench.call(*(make_input(10, mark=mark) for mark in range(sum(batches)))))
        assert [len(batch) for batch in bench.runner.batches[before:]] == batches


async def test_maps_that_take_the_memory_are_halved_too() -> None:
    """What a batch uses more of, tokens or maps, is what is halved."""

    def answer(inputs: Sequence[EncodeInput], specs: Sequence[OutputSpec]) -> list[Row]:
        if sum(cost_of(text, spec).attention_values for text, spec in zip(inputs, specs, strict=True)) > 400:
            raise MemoryError
        return echo_rows(inputs, specs)

    bench = Bench(GatedRunner(answer))
    await bench.occupy()
    spec = OutputSpec(attention=AttentionSelection((0, 1), (0, 1)))
    tasks = [await bench.call(make_input(10, mark=mark), spec=spec) for mark in range(4)]
    bench.runner.open()
    assert [marks(await within(task)) for task in tasks] == [[0], [1], [2], [3]]
    assert bench.runner.batch_marks == [[-1], [0, 1], [0], [1], [2], [3]]
    assert bench.observer.budgets[-1] == 40


async def test_a_text_without_memory_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    """A text that does not fit even by itself is named to its caller; its neighbours get their rows.

    It is not run again, and as it says nothing about batches, they stay as large as they were.
    """
    bench = Bench(GatedRunner(short_of_memory(50)))
    bench.runner.open()
    with pytest.raises(OutOfMemoryError) as caught:
        await within(await bench.call(make_input(60, mark=BAD)))
    assert (caught.value.param, caught.value.message) == ("texts[0]", "there is not enough memory to encode this text")
    assert caught.value.retry_after_seconds is not None
    assert bench.observer.budgets[-1] == 100

    bench = Bench(GatedRunner(short_of_memory(50)))
    await bench.occupy()
    bad = await bench.call(make_input(5, mark=3), make_input(60, mark=BAD), make_input(5, mark=4))
    good = await bench.call(make_input(5, mark=1))
    bench.runner.open()
    with pytest.raises(OutOfMemoryError) as caught:
        await within(bad)
    assert caught.value.param == "texts[1]"
    assert marks(await within(good)) == [1]
    assert bench.runner.batch_marks == [[-1], [3, BAD, 4, 1], [3, BAD], [3], [BAD], [1]]
    assert "memory" in caplog.text


# ---- a worker that is lost or hangs


async def test_whoever_waits_for_a_hung_worker_is_told() -> None:
    """Abandoned requests fail at once with when to come back, and no new one is let in; a late row is dropped."""
    bench = Bench()
    first = await bench.occupy()
    second = await bench.call(make_input(5, mark=1))
    bench.worker.is_hung = True
    bench.batcher.fail_as_hung()
    for task in (first, second, await bench.call(make_input(5, mark=2))):
        with pytest.raises(WorkerUnavailableError) as told:
            await within(task)
        assert told.value.retry_after_seconds is not None
    assert bench.observer.rejections == ["worker_unavailable"] * 3
    assert (bench.batcher.queue_texts, bench.batcher.queue_tokens) == (0, 0)
    bench.worker.is_hung = False
    bench.runner.open()
    assert marks(await within(await bench.call(make_input(5, mark=3)))) == [3]
    assert bench.runner.batch_marks == [[-1], [3]]


async def test_a_closed_worker_answers_a_running_batch() -> None:
    """A batch whose thread is replaced fails with an error that says so, not as a fault of the text."""
    bench = Bench()
    task = await bench.occupy()
    bench.worker.restart()
    with pytest.raises(WorkerUnavailableError):
        await within(task)
    bench.runner.open()
    assert marks(await within(await bench.call(make_input(5, mark=1)))) == [1]


async def test_a_broken_observer_leaves_nobody_waiting() -> None:
    """Even where our own code fails between batches, every caller is answered and later ones are served."""
    bench = Bench()
    await bench.occupy()
    waiting = await bench.call(make_input(5, mark=1))
    bench.observer.queue_changed = fail_to_observe  # type: ignore[method-assign]
    bench.runner.open()
    with pytest.raises(InferenceError):
        await within(waiting)
    bench.observer.queue_changed = lambda texts, tokens: None  # type: ignore[method-assign]
    assert marks(await within(await bench.call(make_input(5, mark=2)))) == [2]


def fail_to_observe(texts: int, tokens: int) -> None:
    """Stand in for a bug."""
    raise RuntimeError


# ---- what is reported


async def test_the_queue_is_reported_in_and_out() -> None:
    """The gauges move when texts enter the queue and when they leave it.

    https://github.com/huggingface/text-embeddings-inference/issues/880
    """
    bench = Bench()
    first = await bench.occupy()
    second = await bench.call(make_input(3), make_input(4))
    bench.runner.open()
    await within(asyncio.gather(first, second))
    assert bench.observer.queue == [(1, 1), (0, 0), (2, 7), (0, 0)]


async def test_a_row_carries_its_timings() -> None:
    """A row says how long its text waited and how long its batch ran, and the batch is reported once."""
    bench = Bench()

    def run_for_a_quarter(inputs: Sequence[EncodeInput], specs: Sequence[OutputSpec]) -> list[Row]:
        bench.clock.advance(0.25)
        return echo_rows(inputs, specs)

    bench.runner.answer = run_for_a_quarter
    await bench.occupy()
    waiting = await bench.call(make_input(3), make_input(4))
    bench.clock.advance(2)
    bench.runner.open()
    rows = await within(waiting)
    assert [row.queue_seconds for row in rows] == [2.25, 2.25]
    assert [row.inference_seconds for row in rows] == [0.25, 0.25]
    assert bench.observer.batches == [([1], 2.25), ([3, 4], 0.25)]


# ---- the worker, and the end


async def test_two_models_take_turns() -> None:
    """With two models on one worker each gets a batch in turn, and a waiting model's batch is cut at its turn."""
    order: list[str] = []

    def note(name: str) -> GatedRunner:
        def answer(inputs: Sequence[EncodeInput], specs: Sequence[OutputSpec]) -> list[Row]:
            order.append(f"{name}{len(inputs)}")
            return echo_rows(inputs, specs)

        return GatedRunner(answer)

    first = Bench(note("a"))
    second = Bench(note("b"), worker=first.worker)
    tasks = [await first.occupy(), await second.call(make_input(60)), await second.call(make_input(40))]
    tasks += [await first.call(make_input(100)), await second.call(make_input(100))]
    second.runner.open()
    first.runner.open()
    await within(asyncio.gather(*tasks))
    assert order == ["a1", "b2", "a1", "b1"]


async def test_draining_answers_everybody() -> None:
    """After drain begins, what is admitted is finished, what comes is refused, and nobody is left waiting."""
    bench = Bench()
    tasks = [await bench.occupy()]
    tasks += [await bench.call(*(make_input(70, mark=mark) for mark in range(3)))]
    draining = asyncio.create_task(bench.batcher.drain())
    await settle()
    with pytest.raises(NotReadyError) as caught:
        await within(await bench.call(make_input(1)))
    assert caught.value.retry_after_seconds == pytest.approx(210 / 10.0)
    assert bench.observer.rejections == ["not_ready"]
    assert not draining.done()
    bench.runner.open()
    await within(draining)
    await settle()
    assert [task.done() for task in tasks] == [True, True]
    assert marks(tasks[1].result()) == [0, 1, 2]


async def test_the_end_of_the_grace_is_told_to_everybody() -> None:
    """At the end of a stopping server's time whoever runs or waits is told at once, and nobody is let in any more."""
    bench = Bench()
    tasks = [await bench.occupy(), await bench.call(make_input(5, mark=1))]
    bench.batcher.fail_as_stopping()
    for task in tasks:
        with pytest.raises(ServerStoppingError) as told:
            await within(task)
        assert told.value.retry_after_seconds == 1
    assert bench.observer.rejections == ["server_stopping"] * 2
    with pytest.raises(NotReadyError):
        await within(await bench.call(make_input(1)))
    bench.runner.open()
    await within(bench.batcher.drain())
    assert bench.runner.batch_marks == [[-1]]


async def test_draining_an_idle_queue_returns() -> None:
    """A batcher that never ran drains at once."""
    await within(Bench().batcher.drain())


async def test_a_closed_worker_fails_its_callers() -> None:
    """A request that meets a closed worker is told so, and to come again, instead of waiting for ever."""
    bench = Bench()
    bench.worker.close()
    with pytest.raises(WorkerUnavailableError):
        await within(await bench.call(make_input(1)))
