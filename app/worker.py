"""The one thread that may touch the models."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Worker:
    """The one thread that may touch the models, shared by all batchers.

    Attributes
    ----------
    turn : asyncio.Lock
        Held from cutting a batch until it is finished, so that a batch is cut only when the thread is free. It is
        fair: with several models, each gets a batch in turn.
    """

    def __init__(self, thread_name_prefix: str = "worker") -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=thread_name_prefix)
        self.turn = asyncio.Lock()

    async def run(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call ``function(*args)`` on the thread and return, or raise, what it does."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, _call, function, *args)

    def close(self) -> None:
        """Wait for what runs and end the thread; what is called afterwards fails."""
        self._executor.shutdown(cancel_futures=True)


def _call(function: Callable[[*Ts], T], *args: *Ts) -> T:
    """Call ``function``, but let no StopIteration out: a future cannot hold one, and its caller would hang."""
    try:
        return function(*args)
    except StopIteration as error:
        raise RuntimeError("StopIteration on the worker thread") from error
