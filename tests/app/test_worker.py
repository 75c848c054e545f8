"""One thread owns the models."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time

import pytest

from app.errors import WorkerUnavailableError
from app.worker import Worker, cpu_seconds_of
from tests.doubles import WAIT_SECONDS, eventually, kill_thread

pytestmark = pytest.mark.anyio


async def test_one_thread_for_all() -> None:
    """Everything runs on one thread, whichever batcher it comes from.

    Models shared between threads mixed up their tensors: https://github.com/michaelfeil/infinity/issues/163
    """
    worker = Worker("model")

    def name_of_thread() -> str:
        sum(range(10_000))  # long enough for a second thread, were there one, to take the next call
        return threading.current_thread().name

    names = await asyncio.gather(*(worker.run(name_of_thread) for _ in range(50)))
    assert len(set(names)) == 1
    assert names[0].startswith("model")
    worker.close()


async def test_a_stop_iteration_reaches_the_caller() -> None:
    """A function that raises StopIteration, which no future can hold, fails its caller; nobody hangs."""
    worker = Worker()

    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(worker.run(next, iter(())), timeout=10)

    worker.close()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), concurrent.futures.CancelledError()])
async def test_what_is_no_plain_error_becomes_one(error: BaseException) -> None:
    """Nothing that runs on the thread can end the event loop, or look as if its caller had left."""
    worker = Worker()

    def leave() -> None:
        raise error

    with pytest.raises(RuntimeError, match=type(error).__name__) as caught:
        await asyncio.wait_for(worker.run(leave), WAIT_SECONDS)
    assert caught.value.__cause__ is error
    assert await asyncio.wait_for(worker.run(int, "7"), WAIT_SECONDS) == 7
    worker.close()


async def test_a_dead_thread_is_noticed_and_replaced() -> None:
    """Whoever waits for a thread that has died is told once it is replaced, and the new one runs what comes.

    https://github.com/michaelfeil/infinity/issues/242
    """
    worker = Worker()
    first = await worker.run(threading.current_thread)
    assert worker.is_alive
    kill_thread(first)
    lost = [asyncio.create_task(worker.run(int, "1")) for _ in range(3)]
    await asyncio.to_thread(first.join, WAIT_SECONDS)
    assert not worker.is_alive
    assert not worker.is_busy
    assert not any(task.done() for task in lost)
    worker.restart()
    for task in lost:
        with pytest.raises(WorkerUnavailableError) as told:
            await asyncio.wait_for(task, WAIT_SECONDS)
        assert told.value.retry_after_seconds == 1
    assert worker.is_alive
    second = await asyncio.wait_for(worker.run(threading.current_thread), WAIT_SECONDS)
    assert second is not first
    worker.close()


async def test_what_is_on_the_thread_can_be_seen() -> None:
    """Each call has a number of its own while it runs, says whether it is known to be slow, and where it is."""
    worker = Worker()
    begun, gate = threading.Event(), threading.Event()

    def wait_at_the_gate() -> None:
        begun.set()
        gate.wait(WAIT_SECONDS)

    assert (worker.call, worker.is_busy, worker.stack()) == (None, False, "")
    numbers = []
    for slow in (False, True):
        begun.clear()
        gate.clear()
        task = asyncio.create_task(worker.run(wait_at_the_gate, slow=slow))
        await asyncio.to_thread(begun.wait, WAIT_SECONDS)
        numbers.append(worker.call)
        assert worker.is_busy
        assert worker.is_slow == slow
        assert "wait_at_the_gate" in worker.stack()
        gate.set()
        await task
        assert (worker.call, worker.is_busy) == (None, False)
    assert None not in numbers
    assert numbers[0] != numbers[1]
    worker.close()


async def test_the_threads_processor_time_can_be_seen() -> None:
    """It grows while the thread computes, whatever else the process does, and not while it waits."""
    worker = Worker()
    assert worker.cpu_seconds() is None
    gate = threading.Event()

    def compute() -> int:
        return sum(range(100_000))

    await worker.run(compute)
    before = worker.cpu_seconds()
    assert before is not None
    give_up = time.monotonic() + WAIT_SECONDS
    while worker.cpu_seconds() == before and time.monotonic() < give_up:
        await worker.run(compute)
    task = asyncio.create_task(worker.run(gate.wait, WAIT_SECONDS))
    await eventually(lambda: worker.is_busy)
    waiting = worker.cpu_seconds()
    assert waiting is not None
    assert before < waiting < before + WAIT_SECONDS
    own = time.thread_time()
    while time.thread_time() < own + 0.05:
        pass
    assert (worker.cpu_seconds() or 0) - waiting < 0.02  # it is told in steps of 0.01
    gate.set()
    await task
    worker.close()


@pytest.mark.parametrize("native_id", [None, 0])
def test_a_thread_that_is_not_there_has_no_processor_time(native_id: int | None) -> None:
    """Nor has any on a system that does not tell it."""
    assert cpu_seconds_of(native_id) is None


async def test_closing_does_not_wait_for_ever() -> None:
    """A call that never ends holds up the end for a limited time; it is still on the thread then."""
    worker = Worker()
    gate = threading.Event()
    task = asyncio.create_task(worker.run(gate.wait, WAIT_SECONDS))
    await eventually(lambda: worker.is_busy)
    worker.close(timeout_seconds=0)
    assert worker.is_busy
    gate.set()
    assert await task
    worker.close()
    assert not worker.is_busy


async def test_what_had_not_begun_when_it_closed_is_told() -> None:
    """A call that waited for the thread when it was closed fails, instead of looking as if its caller had left."""
    worker = Worker()
    gate = threading.Event()
    running = asyncio.create_task(worker.run(gate.wait, WAIT_SECONDS))
    await eventually(lambda: worker.is_busy)
    waiting = asyncio.create_task(worker.run(int, "1"))
    await asyncio.sleep(0)
    worker.close(timeout_seconds=0)
    with pytest.raises(WorkerUnavailableError):
        await asyncio.wait_for(waiting, WAIT_SECONDS)
    gate.set()
    assert await running


@pytest.mark.parametrize("restarted", [False, True])
async def test_what_comes_after_it_was_closed_is_told(restarted: bool) -> None:
    """That there is no thread any more, as to whoever waited for one that died; nothing brings a closed one back."""
    worker = Worker()
    assert await worker.run(int, "7") == 7
    worker.close()
    if restarted:
        worker.restart()
    with pytest.raises(WorkerUnavailableError) as told:
        await asyncio.wait_for(worker.run(int, "7"), WAIT_SECONDS)
    assert told.value.retry_after_seconds == 1
