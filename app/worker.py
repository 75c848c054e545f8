"""The one thread that may touch the models."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TypeVar, TypeVarTuple

from app.errors import WorkerUnavailableError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

RETRY_SECONDS = 1.0
"""When to ask again after the thread has died: a new one is there as soon as that is noticed."""

RESTART_SECONDS = 10.0
"""When to ask again while the thread hangs: by then a supervisor has started another process."""

CLOSE_SECONDS = 5.0
"""How long the end waits for what still runs; by then whoever was admitted has been waited for already."""


class Worker:
    """The one thread that may touch the models, shared by all batchers.

    ``app/watchdog.py`` looks after it: a thread that has died is replaced, one that hangs cannot be.

    Attributes
    ----------
    turn : asyncio.Lock
        Held from cutting a batch until it is finished, so that a batch is cut only when the thread is free. It is
        fair: with several models, each gets a batch in turn.
    is_hung : bool
        Set by the watchdog while a call takes far too long: nothing new should wait for this thread.
    """

    def __init__(self, thread_name_prefix: str = "worker") -> None:
        self._name = thread_name_prefix
        self.turn = asyncio.Lock()
        self.is_hung = False
        self._is_closed = False
        self._numbers = count()
        self._call: int | None = None
        self._is_slow = False
        self._waiting: set[asyncio.Future[None]] = set()  # done when the thread they wait for is lost
        self._begin()

    def _begin(self) -> None:
        """Have a new thread made when the next call comes."""
        self._thread: threading.Thread | None = None
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=self._name, initializer=self._note_thread)

    def _note_thread(self) -> None:
        self._thread = threading.current_thread()

    @property
    def is_alive(self) -> bool:
        """Whether a call would be run: False after the thread has ended by itself."""
        return self._thread is None or self._thread.is_alive()

    @property
    def is_busy(self) -> bool:
        """Whether a call is on the thread now."""
        return self._call is not None and self.is_alive

    @property
    def call(self) -> int | None:
        """The number of the call that is on the thread now; None where there is none."""
        return self._call

    @property
    def is_slow(self) -> bool:
        """Whether the call that is on the thread now may take minutes."""
        return self._is_slow

    async def run(self, function: Callable[[*Ts], T], *args: *Ts, slow: bool = False) -> T:
        """Call ``function(*args)`` on the thread and return, or raise, what it does.

        Parameters
        ----------
        slow : bool
            For what may take minutes, such as warming a model up: it is not soon taken for hung.

        Raises
        ------
        WorkerUnavailableError
            If the thread has died meanwhile, or was closed.
        """
        if self._is_closed:
            raise WorkerUnavailableError("the worker thread has ended", retry_after_seconds=RETRY_SECONDS)
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._executor, self._run, slow, function, *args)
        lost: asyncio.Future[None] = loop.create_future()
        self._waiting.add(lost)
        try:
            await asyncio.wait((work, lost), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting.discard(lost)
        if not work.done() or work.cancelled():
            raise WorkerUnavailableError("the worker thread has ended", retry_after_seconds=RETRY_SECONDS)
        return work.result()

    def _run(self, slow: bool, function: Callable[[*Ts], T], *args: *Ts) -> T:
        self._is_slow, self._call = slow, next(self._numbers)
        try:
            return _call(function, *args)
        finally:
            self._call = None

    def restart(self) -> None:
        """Put a new thread in the place of one that has died; whoever waits for that one is told."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._call = None
        self._begin()
        for lost in self._waiting:
            if not lost.done():
                lost.set_result(None)

    def stack(self) -> str:
        """Where in the code the thread is now, innermost call last; empty where there is no thread."""
        frame = None if self._thread is None else sys._current_frames().get(self._thread.ident or 0)
        return "" if frame is None else "".join(traceback.format_stack(frame))

    def cpu_seconds(self) -> float | None:
        """Return the processor time of the thread so far; None where there is no thread, or the system does not say."""
        return None if self._thread is None else cpu_seconds_of(self._thread.native_id)

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """Wait for what runs, up to a limit, and end the thread; what is called afterwards fails."""
        self._is_closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)
        if self._thread is not None:
            self._thread.join(timeout_seconds)


def cpu_seconds_of(native_id: int | None) -> float | None:
    """Return the processor time that a thread of this process has taken, in steps of a hundredth of a second.

    Read where Linux writes it: the C library's clock of a thread that has just ended may crash the process.
    """
    try:
        with open(f"/proc/self/task/{native_id}/stat", "rb") as file:
            stat = file.read()
    except OSError:  # another system, or the thread has ended
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()  # behind the name, which may hold anything; see proc(5)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _call(function: Callable[[*Ts], T], *args: *Ts) -> T:
    """Call ``function``, but let nothing out that is no plain error.

    A future cannot hold a StopIteration; a CancelledError would look as if its caller had left; SystemExit would end
    the event loop; and a library in Rust panics with an exception of its own kind. Callers would hang.
    """
    try:
        return function(*args)
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, (StopIteration, concurrent.futures.CancelledError)):
            raise
        raise RuntimeError(f"{type(error).__name__} on the worker thread") from error
