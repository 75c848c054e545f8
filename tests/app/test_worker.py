"""One thread owns the models."""

from __future__ import annotations

import asyncio
import threading

import pytest

from app.worker import Worker

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
