"""Hand-made stand-ins for the slow and the uncontrollable: a model that waits for its cue, a clock, an observer."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from model.contract import EncodeInput, OutputSpec, Row

WAIT_SECONDS = 10.0  # for what happens at once; only a broken test ever waits so long


def make_input(num_tokens: int, mark: int = 0) -> EncodeInput:
    """Make a text of ``num_tokens`` tokens that its row can be recognised by: every id is ``mark``."""
    return EncodeInput([mark] * num_tokens, [0] * num_tokens, num_tokens)


def echo_rows(inputs: Sequence[EncodeInput], specs: Sequence[OutputSpec]) -> list[Row]:
    """Answer each text with its own mark and its number of tokens."""
    return [Row(embedding=np.array([text.input_ids[0], text.num_tokens], dtype=np.float32)) for text in inputs]


def marks(rows: Sequence[Row]) -> list[int]:
    """Read the marks back from rows that :func:`echo_rows` made."""
    return [int(row.embedding[0]) for row in rows if row.embedding is not None]


def kill_thread(thread: threading.Thread) -> None:
    """Have a thread end as soon as it next runs Python: what it takes up then is lost."""
    assert thread.ident is not None
    found = ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
    assert found == 1


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does at once."""
    give_up = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError("what was waited for never happened")
        await asyncio.sleep(0.001)  # lets the other thread run; an event would have to be set by what is tested


class GatedRunner:
    """A model for the worker thread: records each batch it gets, then blocks until it is let through.

    Attributes
    ----------
    batches : list of list of EncodeInput
        What was run, in order.
    answer : callable
        Makes the rows; may raise.
    """

    def __init__(self, answer: Callable[[Sequence[EncodeInput], Sequence[OutputSpec]], list[Row]] = echo_rows) -> None:
        self.batches: list[list[EncodeInput]] = []
        self.answer = answer
        self._is_open = False
        self._gate = threading.Semaphore(0)
        self._entered = threading.Semaphore(0)

    def __call__(self, inputs: Sequence[EncodeInput], specs: Sequence[OutputSpec]) -> list[Row]:
        self.batches.append(list(inputs))
        self._entered.release()
        if not self._is_open and not self._gate.acquire(timeout=WAIT_SECONDS):
            raise TimeoutError("nobody opened the gate")
        return self.answer(inputs, specs)

    async def entered(self) -> None:
        """Wait until one more batch is at the gate."""
        if not await asyncio.to_thread(self._entered.acquire, timeout=WAIT_SECONDS):
            raise TimeoutError("no batch came")

    def let_one_through(self) -> None:
        """Open the gate for one batch."""
        self._gate.release()

    def open(self) -> None:
        """Open the gate for good."""
        self._is_open = True
        self._gate.release()

    @property
    def batch_marks(self) -> list[list[int]]:
        """The marks of each batch that was run."""
        return [[text.input_ids[0] for text in batch] for batch in self.batches]


class FakeClock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class RecordingObserver:
    """A BatchObserver that keeps what it is told."""

    def __init__(self) -> None:
        self.queue: list[tuple[int, int]] = []
        self.keys: dict[str, tuple[int, int]] = {}
        self.batches: list[tuple[list[int], float]] = []
        self.rejections: list[str] = []
        self.num_cancelled = 0
        self.num_failed = 0
        self.num_shortages = 0
        self.num_not_finite = 0
        self.budgets: list[int] = []

    def queue_changed(self, texts: int, tokens: int) -> None:
        self.queue.append((texts, tokens))

    def key_queue_changed(self, key: str, texts: int, tokens: int) -> None:
        self.keys[key] = (texts, tokens)

    def batch_finished(self, num_tokens: Sequence[int], seconds: float) -> None:
        self.batches.append((list(num_tokens), seconds))

    def rejected(self, reason: str) -> None:
        self.rejections.append(reason)

    def cancelled(self, texts: int) -> None:
        self.num_cancelled += texts

    def batch_failed(self) -> None:
        self.num_failed += 1

    def out_of_memory(self) -> None:
        self.num_shortages += 1

    def rows_not_finite(self, rows: int) -> None:
        self.num_not_finite += rows

    def budget_changed(self, tokens: int) -> None:
        self.budgets.append(tokens)
