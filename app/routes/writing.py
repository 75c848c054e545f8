"""The end of a request, the same on every route: the answer is written, and what that took is recorded and told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from app.facts import note_stage
from app.service import ServedModel, Timings

INLINE_VALUES = 20_000
"""Up to so many numbers are written on the event loop (about a millisecond); more go to a thread."""

Written = TypeVar("Written")


async def written(model: ServedModel, write: Callable[[], Written], num_values: int | None = None) -> Written:
    """Write an answer, and record how long that took.

    Parameters
    ----------
    model : ServedModel
        Whose answer it is.
    write : callable
    num_values : int, optional
        The numbers that the answer holds. Unknown, or more than :data:`INLINE_VALUES`: it is written on a thread.
    """
    started = time.perf_counter()
    is_short = num_values is not None and num_values <= INLINE_VALUES
    content = write() if is_short else await asyncio.to_thread(write)
    ended = time.perf_counter()
    model.metrics.serialized(ended - started)
    note_stage("serialize", started, ended)
    return content


def server_timing(timings: Timings, started: float) -> str:
    """Write the ``Server-Timing`` header, in milliseconds; ``started`` is a reading of ``time.perf_counter``."""
    stages = {
        "tokenize": timings.tokenize,
        "queue": timings.queue,
        "inference": timings.inference,
        "total": time.perf_counter() - started,
    }
    return ", ".join(f"{stage};dur={seconds * 1000:.3f}" for stage, seconds in stages.items())
