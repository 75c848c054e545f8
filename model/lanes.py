"""Runs the parts of a batch side by side, each on one core.

PyTorch spreads every product over all cores, and they wait for one another some hundred times a batch. When one of them
also has an event loop to serve, or another program, all wait for that one, turning in a circle meanwhile. Cores that
work on different texts meet once, at the end of the batch.

OpenVINO has the same idea under the name of throughput streams.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar
from weakref import WeakSet

import torch

T = TypeVar("T")
R = TypeVar("R")

PARTS_PER_LANE = 2
"""Of a large batch, so that a lane that is held up leaves its second part to another one."""

SMALLEST_OF_SEVERAL = 256
"""Tokens of a part below which a lane gets no second one: the products of small parts are slow."""

MAX_UNEVENNESS = 1.25
"""Tokens of the lane with most to do, as a multiple of an even share, up to which a batch is cut and not run whole on
all cores: chosen from the times of lone texts on one and two cores of Zen 4, and not tuned."""


START_SECONDS = 60.0
"""For the threads to begin; where the system refuses one, those that are there must not wait for ever."""

_alive: WeakSet[Lanes] = WeakSet()
_alive_lock = threading.Lock()
"""Held by whoever adds lanes, or looks at all of them: a set must not grow under who looks."""


class Lanes:
    """Threads that each do the work of one core, and know no other.

    Parameters
    ----------
    num_threads : int
        How many; with 1 there are none, and everything runs where it is called.

    Raises
    ------
    RuntimeError
        If the system gives no more threads.

    Attributes
    ----------
    native_ids : tuple of int
        What the system calls the threads.
    """

    def __init__(self, num_threads: int) -> None:
        self.native_ids: tuple[int, ...] = ()
        if num_threads == 1:
            return
        # Each thread has a number of its own, set once: to change it costs the compiled products of the whole process.
        # The last number that was set anywhere is what threads begin with that come later, so that is ours again.
        own = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(num_threads, "lane", _use_one_core)
        all_there = threading.Barrier(num_threads, timeout=START_SECONDS)

        def begin(_: int) -> int:
            all_there.wait()
            return threading.get_native_id()

        try:
            self.native_ids = tuple(self._pool.map(begin, range(num_threads)))
        except RuntimeError:  # of those that did begin, none shall wait for the rest
            all_there.abort()
            self._pool.shutdown(wait=False)
            raise
        finally:
            torch.set_num_threads(own)
        with _alive_lock:
            _alive.add(self)

    def __len__(self) -> int:
        """How many lanes there are: 0 or at least 2."""
        return len(self.native_ids)

    def run(self, function: Callable[[T], R], parts: Sequence[T]) -> list[R]:
        """Call ``function`` for each part, on whichever lane is free, in the order of ``parts``.

        Returns
        -------
        list of R
            In the order of ``parts``.

        Raises
        ------
        Exception
            What a part that fails raises, the first in order, once nothing runs any more. Parts that wait when one
            fails are not begun.
        """
        futures = [self._pool.submit(function, part) for part in parts]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            for future in futures:
                future.cancel()
            wait(futures)
        return [future.result() for future in futures if not future.cancelled()]  # none was, where none has failed

    def split(self, texts: Sequence[list[int]]) -> list[list[int]]:
        """Cut a batch into parts for the lanes, or leave it whole where they would have too unequal shares.

        Parameters
        ----------
        texts : sequence of list of int
            The ids of each text's tokens.

        Returns
        -------
        list of list of int
            Indices of the texts of each part, longest texts first; one part where the batch is to be run whole. Equal
            texts are in the same part, or their rows might differ in the last bit.
        """
        everything = list(range(len(texts)))
        if not self or len(texts) < 2:
            return [everything]
        num_tokens = sum(map(len, texts))
        is_large = num_tokens >= len(self) * PARTS_PER_LANE * SMALLEST_OF_SEVERAL
        part_tokens = num_tokens / (len(self) * PARTS_PER_LANE if is_large else len(self))
        parts: list[list[int]] = []
        tokens = 0
        before: list[int] = []
        for index in sorted(everything, key=lambda index: (-len(texts[index]), texts[index])):
            text = texts[index]
            if tokens + len(text) / 2 >= len(parts) * part_tokens and text != before:
                parts.append([])
            parts[-1].append(index)
            tokens += len(text)
            before = text
        sizes = [sum(len(texts[index]) for index in part) for part in parts]
        return parts if self._most(sizes) <= MAX_UNEVENNESS * num_tokens / len(self) else [everything]

    def _most(self, sizes: Sequence[int]) -> int:
        """Return how much the lane with most to do has, of parts of these sizes that are taken in turn."""
        loads = [0] * len(self)
        for size in sizes:
            heapq.heapreplace(loads, loads[0] + size)
        return max(loads)


def lane_threads() -> list[int]:
    """Return what the system calls the threads of all lanes of this process, whichever model they compute for."""
    with _alive_lock:
        return [native_id for lanes in _alive for native_id in lanes.native_ids]


def _use_one_core() -> None:
    """Have the calling thread compute alone; it must have begun to count, or it would begin anew with the default."""
    torch.get_num_threads()
    torch.set_num_threads(1)
