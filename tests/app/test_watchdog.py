"""What the watchdog sees when it looks, second by second; nothing here waits for real time."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from app.batcher import Batcher, Cost, QueueLimits
from app.errors import InferenceError, NonFiniteError, WorkerUnavailableError
from app.metrics import Metrics
from app.service import Service
from app.state import FAULTS, ServerState
from app.watchdog import LAST_CHANCE_SECONDS, LONGEST_STEP, SLOW_FACTOR, WORKING_FACTOR, Watchdog
from app.worker import Worker
from model.contract import EncodeInput, OutputSpec, Row
from tests.doubles import (
    WAIT_SECONDS,
    FakeClock,
    GatedRunner,
    RecordingObserver,
    echo_rows,
    eventually,
    kill_thread,
    make_input,
)

pytestmark = pytest.mark.anyio

HANG_SECONDS = 30


class Watched:
    """A server of one model with a gated runner, and its watchdog, which looks when told to."""

    def __init__(self, hang_seconds: float = HANG_SECONDS, tokens_per_second: float = 1e6) -> None:
        self.clock = FakeClock()
        self.runner = GatedRunner()
        self.worker = Worker("watched")
        self.observer = RecordingObserver()
        self.state = ServerState(Metrics(faults=FAULTS), max_body_bytes=1)
        self.num_ended = 0
        self.state.end_process = self._end
        self.cpu_seconds: float | None = 3.0
        self.broken: list[str] = []
        self.num_checks = 0
        self.batcher = Batcher(
            run=self.runner,
            cost=lambda text, spec: Cost(text.num_tokens),
            worker=self.worker,
            limits=QueueLimits(100, 100, 1_000, 10_000),
            observer=self.observer,
            tokens_per_second=tokens_per_second,
            clock=self.clock,
        )
        self.state.service = cast(Service, object())
        self.watchdog = Watchdog(
            self.state, self.worker, [self.batcher], self._check, hang_seconds, lambda: self.cpu_seconds, self.clock
        )

    def _end(self) -> None:
        self.num_ended += 1

    def _check(self) -> list[str]:
        self.num_checks += 1
        return self.broken

    def call(self, *texts: EncodeInput) -> asyncio.Task[list[Row]]:
        """Send a request."""
        return asyncio.create_task(self.batcher.submit(texts, [OutputSpec()] * len(texts)))

    def look(self, seconds: float = 1) -> None:
        """Let time pass and look."""
        self.clock.advance(seconds)
        self.watchdog.look()

    async def look_and_check(self) -> None:
        """Look, and wait for the check that this begins."""
        self.look()
        checking = self.watchdog._checking
        assert checking is not None
        await asyncio.wait_for(checking, WAIT_SECONDS)

    async def hang(self) -> asyncio.Task[list[Row]]:
        """Send a text that stays at the gate, and look until the verdict has been given."""
        task = self.call(make_input(5, mark=1))
        await self.runner.entered()
        for _ in range(HANG_SECONDS + 1):
            self.look()
        return task

    def sample(self, name: str, **labels: str) -> float | None:
        """Read a metric."""
        return self.state.metrics.registry.get_sample_value(name, labels)


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    """A watched server whose gate is opened at the end."""
    server = Watched()
    yield server
    server.runner.open()
    server.worker.close()


async def test_a_server_that_is_well_is_left_alone(watched: Watched) -> None:
    """Idle or busy, with batches that end, nothing is found and nothing is run."""
    watched.runner.open()
    for _ in range(3):
        watched.look()
        await asyncio.wait_for(watched.call(make_input(5)), WAIT_SECONDS)
    assert watched.state.faults == {}
    assert watched.state.is_ready
    assert watched.num_checks == 0
    assert watched.watchdog._checking is None


# ---- a thread that has died


async def test_a_dead_worker_is_replaced(watched: Watched) -> None:
    """At the next look readiness is off, a new thread takes over, and once it has run the check all is well again.

    The text that was lost is told to come again; who sends later is served.

    https://github.com/michaelfeil/infinity/issues/242
    """
    watched.runner.open()
    thread = await watched.worker.run(threading.current_thread)
    kill_thread(thread)
    lost = watched.call(make_input(5))
    await asyncio.to_thread(thread.join, WAIT_SECONDS)
    watched.look()
    assert not watched.state.is_ready
    assert not watched.state.is_live
    assert watched.sample("eyeline_fault", reason="worker_dead") == 1
    assert watched.sample("eyeline_worker_restarts_total") == 1
    with pytest.raises(WorkerUnavailableError) as told:
        await asyncio.wait_for(lost, WAIT_SECONDS)
    assert told.value.retry_after_seconds is not None
    await eventually(lambda: watched.state.is_ready)
    assert watched.state.is_live
    assert watched.sample("eyeline_fault", reason="worker_dead") == 0
    assert await asyncio.wait_for(watched.call(make_input(5)), WAIT_SECONDS)
    watched.look()
    assert watched.sample("eyeline_worker_restarts_total") == 1


async def test_neighbours_of_a_lost_batch_are_run_again(watched: Watched) -> None:
    """A batch that dies with its thread is run again, text by text, on the next one."""
    watched.runner.open()
    thread = await watched.worker.run(threading.current_thread)
    kill_thread(thread)
    tasks = [watched.call(make_input(5, mark=mark)) for mark in (1, 2, 3)]
    await asyncio.to_thread(thread.join, WAIT_SECONDS)
    watched.look()
    rows = await asyncio.wait_for(asyncio.gather(*tasks), WAIT_SECONDS)
    assert [int(row.embedding[0]) for [row] in rows if row.embedding is not None] == [1, 2, 3]
    assert watched.runner.batch_marks == [[1], [2], [3]]


async def test_a_thread_that_dies_while_idle_harms_nobody(watched: Watched) -> None:
    """It is replaced before anybody has sent a text."""
    watched.runner.open()
    thread = await watched.worker.run(threading.current_thread)
    kill_thread(thread)
    watched.worker._executor.submit(int)  # idle, it would only notice when something comes
    await asyncio.to_thread(thread.join, WAIT_SECONDS)
    watched.look()
    assert await asyncio.wait_for(watched.call(make_input(5)), WAIT_SECONDS)


# ---- a call that hangs


async def test_a_call_that_hangs_is_noticed(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """After the time set nobody waits any longer, no one is let in, readiness and liveness are off, the log says where.

    https://github.com/huggingface/text-embeddings-inference/issues/694
    """
    running = watched.call(make_input(5, mark=1))
    await watched.runner.entered()
    waiting = watched.call(make_input(5, mark=2))
    for _ in range(HANG_SECONDS):
        watched.look()
        assert watched.state.is_ready
    watched.look()
    assert (watched.state.is_ready, watched.state.is_live) == (False, False)
    assert watched.state.worst_fault == "worker_hung"
    for task in (running, waiting, watched.call(make_input(5, mark=3))):
        with pytest.raises(WorkerUnavailableError) as told:
            await asyncio.wait_for(task, WAIT_SECONDS)
        assert told.value.retry_after_seconds is not None
    assert watched.observer.rejections == ["worker_unavailable"] * 3
    assert (watched.batcher.queue_texts, watched.batcher.queue_tokens) == (0, 0)
    [record] = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert "__call__" in record.stack
    assert watched.num_ended == 0


async def test_a_call_that_still_hangs_ends_the_process_once(watched: Watched) -> None:
    """After the last chance the process is ended, which a supervisor answers with a new one."""
    task = await watched.hang()
    for _ in range(int(LAST_CHANCE_SECONDS) - 1):
        watched.look()
        assert watched.num_ended == 0
    for _ in range(5):
        watched.look()
    assert watched.num_ended == 1
    with pytest.raises(WorkerUnavailableError):
        await task


async def test_a_call_that_ends_after_all_was_slow(watched: Watched) -> None:
    """The verdict is taken back: the late row is dropped, and who comes next is served by the same thread."""
    task = await watched.hang()
    with pytest.raises(WorkerUnavailableError):
        await task
    watched.runner.open()
    await eventually(lambda: not watched.worker.is_busy)
    watched.look()
    assert (watched.state.is_ready, watched.state.is_live) == (True, True)
    assert watched.sample("eyeline_fault", reason="worker_hung") == 0
    assert await asyncio.wait_for(watched.call(make_input(5)), WAIT_SECONDS)
    for _ in range(2 * HANG_SECONDS):
        watched.look()
    assert watched.num_ended == 0


async def test_many_short_calls_are_no_hang(watched: Watched) -> None:
    """What counts is one call's time: a worker that is always busy, with one batch after the other, is fine."""
    tasks = [watched.call(make_input(100, mark=mark)) for mark in range(5)]
    for _ in tasks:
        await watched.runner.entered()
        for _ in range(HANG_SECONDS - 5):
            watched.look()
        watched.runner.let_one_through()
    await asyncio.wait_for(asyncio.gather(*tasks), WAIT_SECONDS)
    assert watched.state.faults == {}


@pytest.mark.parametrize("pause", [3_600.0, 1e9])
async def test_a_process_that_was_stopped_is_no_hang(watched: Watched, pause: float) -> None:
    """SIGSTOP, a machine that slept: the clock has run on, the worker has not. One look counts two seconds at most."""
    task = watched.call(make_input(5))
    await watched.runner.entered()
    watched.look()
    watched.look(pause)
    watched.look(pause)
    assert watched.state.is_ready
    assert watched.watchdog._call_seconds <= 1 + 2 * LONGEST_STEP
    watched.runner.open()
    assert await asyncio.wait_for(task, WAIT_SECONDS)


async def test_a_slow_machine_is_no_hang() -> None:
    """Where a full batch is known to take a minute, ten minutes are waited before it is taken for hung."""
    slow = Watched(hang_seconds=2, tokens_per_second=100 / 60)
    task = slow.call(make_input(100))
    await slow.runner.entered()
    for _ in range(int(60 * SLOW_FACTOR)):
        slow.look()
    assert slow.state.is_ready
    for _ in range(3):
        slow.look()
    assert not slow.state.is_ready
    slow.runner.open()
    with pytest.raises(WorkerUnavailableError):
        await task
    slow.worker.close()


async def work_and_look(watched: Watched, num_looks: int, work_every: int = 1) -> None:
    """Look once a second; at every so many looks the thread has got a hundredth of a second of the processor."""
    for number in range(num_looks):
        assert watched.cpu_seconds is not None
        watched.cpu_seconds += 0.01 if number % work_every == 0 else 0.0
        watched.look()


async def test_a_starved_call_is_no_hang(watched: Watched) -> None:
    """A batch that takes minutes, as other programs have the processors, goes on: all that counts is time in which its
    thread got nothing at all. When it does get nothing for as long as was set, it hangs.
    """
    task = watched.call(make_input(5, mark=1))
    await watched.runner.entered()
    await work_and_look(watched, 3 * HANG_SECONDS, work_every=HANG_SECONDS)
    assert watched.state.is_ready
    watched.cpu_seconds = 17.0
    watched.look()
    for _ in range(HANG_SECONDS - 1):
        watched.look()
        assert watched.state.is_ready
    watched.look()
    assert watched.state.worst_fault == "worker_hung"
    with pytest.raises(WorkerUnavailableError):
        await task


async def test_a_hang_that_turns_in_a_circle_is_noticed(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    """Processor time is no proof of progress: five times as long, and it hangs as well, and so the process ends."""
    task = watched.call(make_input(5, mark=1))
    await watched.runner.entered()
    await work_and_look(watched, int(WORKING_FACTOR * HANG_SECONDS))
    assert watched.state.is_ready
    await work_and_look(watched, 1)
    assert watched.state.worst_fault == "worker_hung"
    [record] = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert (record.seconds, record.idle_seconds) == (WORKING_FACTOR * HANG_SECONDS, 0)
    await work_and_look(watched, int(LAST_CHANCE_SECONDS))
    assert watched.num_ended == 1
    with pytest.raises(WorkerUnavailableError):
        await task


async def test_where_processor_time_is_not_known_all_time_counts(watched: Watched) -> None:
    """On another system than Linux, or with a GPU, a call is judged by the clock; also where it is told for once."""
    task = watched.call(make_input(5, mark=1))
    await watched.runner.entered()
    for number in range(HANG_SECONDS + 1):
        watched.cpu_seconds = 100.0 if number == 7 else None
        watched.look()
    assert watched.state.worst_fault == "worker_hung"
    with pytest.raises(WorkerUnavailableError):
        await task


async def test_warming_up_is_no_hang(watched: Watched) -> None:
    """A call that is known to be slow has ten times the time."""
    gate = threading.Event()
    task = asyncio.create_task(watched.worker.run(gate.wait, WAIT_SECONDS, slow=True))
    await eventually(lambda: watched.worker.is_busy)
    for _ in range(int(SLOW_FACTOR * HANG_SECONDS)):
        watched.look()
    assert watched.state.is_ready
    watched.look()
    watched.look()
    assert not watched.state.is_ready
    gate.set()
    await task


# ---- runs that give nothing fit to send


async def spoil(watched: Watched) -> None:
    """Meet a row that is not finite."""

    def answer(inputs: Any, specs: Any) -> list[Row]:
        rows = echo_rows(inputs, specs)
        rows[0].embedding[:] = float("nan")  # type: ignore[index]
        return rows

    watched.runner.open()
    watched.runner.answer = answer
    with pytest.raises(NonFiniteError):
        await asyncio.wait_for(watched.call(make_input(5)), WAIT_SECONDS)
    watched.runner.answer = echo_rows


async def test_an_odd_text_does_not_turn_readiness_off(watched: Watched) -> None:
    """After a row that was not finite the server checks itself, once, and stays ready as its own text is fine."""
    await spoil(watched)
    await watched.look_and_check()
    assert watched.state.is_ready
    watched.look()
    watched.look()
    assert watched.num_checks == 1
    assert watched.observer.num_not_finite == 1


async def test_output_that_stays_not_finite_turns_readiness_off(watched: Watched) -> None:
    """Where the server's own text fails too it is not ready, says why, and looks each second until it passes.

    https://github.com/huggingface/text-embeddings-inference/issues/644
    """
    await spoil(watched)
    watched.broken = ["m"]
    for number in range(1, 4):
        await watched.look_and_check()
        assert (watched.num_checks, watched.state.worst_fault) == (number, "non_finite_output")
    assert "m" in watched.state.faults["non_finite_output"]
    assert watched.state.is_live
    assert watched.sample("eyeline_ready") == 0
    watched.broken = []
    await watched.look_and_check()
    assert watched.state.is_ready
    assert watched.sample("eyeline_ready") == 1
    watched.look()
    assert watched.num_checks == 4


async def test_a_model_that_always_raises_is_not_live(watched: Watched) -> None:
    """After a failed run the check finds out whether all fail, as after a fault of a GPU: a new process is needed."""

    def fail(inputs: Any, specs: Any) -> list[Row]:
        raise ValueError("broken")

    watched.runner.open()
    watched.runner.answer = fail
    with pytest.raises(InferenceError):
        await asyncio.wait_for(watched.call(make_input(5)), WAIT_SECONDS)
    watched.broken = None  # type: ignore[assignment]  # iterating it raises
    watched.watchdog._check = lambda: list(watched.broken)
    await watched.look_and_check()
    assert watched.state.worst_fault == "self_check_failed"
    assert not watched.state.is_live
    watched.broken = []
    await watched.look_and_check()
    assert (watched.state.is_ready, watched.state.is_live) == (True, True)


async def test_checks_do_not_pile_up(watched: Watched) -> None:
    """While the worker is busy one check waits for it, however often the watchdog looks."""
    await spoil(watched)
    gate = threading.Event()
    task = asyncio.create_task(watched.worker.run(gate.wait, WAIT_SECONDS))
    await eventually(lambda: watched.worker.is_busy)
    for _ in range(10):
        watched.state.begin_fault("non_finite_output", "again")
        watched.look()
    gate.set()
    assert await task
    assert watched.watchdog._checking is not None
    await asyncio.wait_for(watched.watchdog._checking, WAIT_SECONDS)
    assert watched.num_checks == 1


# ---- the watchdog itself


async def test_a_watchdog_that_fails_goes_on(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug in one look is logged, and the next look is taken."""
    looks = 0

    def fail() -> None:
        nonlocal looks
        looks += 1
        raise RuntimeError("a bug")

    monkeypatch.setattr("app.watchdog.LOOK_SECONDS", 0)
    monkeypatch.setattr(watched.watchdog, "look", fail)
    watching = asyncio.create_task(watched.watchdog.watch())
    await eventually(lambda: looks > 2)
    watching.cancel()
    assert "a bug" in caplog.text


async def test_nothing_to_look_at_before_the_models_are_there() -> None:
    """While the models load, a look finds nothing."""
    server = Watched()
    server.watchdog._batchers = []
    server.look()
    assert server.state.faults == {}
