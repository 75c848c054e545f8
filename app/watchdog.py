"""Notices within seconds when the worker is gone, hangs, or gives nothing that is fit to send.

A thread that has died is replaced. One that hangs in native code cannot be stopped from Python: its callers are told,
and after a last chance the process ends, for its supervisor to start another. A model whose runs fail or give no finite
numbers is checked with a text of our own, so that no caller's odd text can turn the server's readiness off.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection

from app.batcher import Batcher
from app.errors import WorkerUnavailableError
from app.state import ServerState
from app.worker import Worker

logger = logging.getLogger("eyeline")

LOOK_SECONDS = 1.0
"""Between two looks."""

LONGEST_STEP = 2 * LOOK_SECONDS
"""A look counts no more than this, however long ago the last one was: in a process that was stopped, or a machine that
slept, time passed for the worker as little as for the watchdog."""

SLOW_FACTOR = 10.0
"""A call may take so many times a full batch at the measured speed, whatever the setting: slow is not hung. What is
known to be slow, such as warming up, may take so many times longer still."""

WORKING_FACTOR = 5.0
"""A call may last so many times longer while its thread takes processor time: it is slow, on a machine that has little
time for it. Unless it turns in a circle, which this ends as well."""

LAST_CHANCE_SECONDS = 5.0
"""Between the verdict that the worker hangs and the end of the process: for answers to leave, probes to see it, and the
call to end after all."""

Check = Callable[[], list[str]]
"""Runs a text of our own through every model, on the worker; returns the names of those whose output is not finite."""


class Watchdog:
    """Looks after the worker, once a second.

    Parameters
    ----------
    state : ServerState
        Where faults are reported.
    worker : Worker
    batchers : collection of Batcher
        The queues that wait for the worker; may change between two looks.
    check : Check
    hang_seconds : float
        A call whose thread takes no processor time for longer is taken for hung.
    cpu_seconds : callable
        The processor time of the worker's thread so far; None where it says nothing of the call, as on a GPU: then all
        of a call's time counts.
    clock : callable
        Seconds, monotonic.
    """

    def __init__(
        self,
        state: ServerState,
        worker: Worker,
        batchers: Collection[Batcher],
        check: Check,
        hang_seconds: float,
        cpu_seconds: Callable[[], float | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._worker = worker
        self._batchers = batchers
        self._check = check
        self._hang_seconds = hang_seconds
        self._read_cpu_seconds = cpu_seconds
        self._clock = clock
        self._looked_at = clock()
        self._call: int | None = None
        self._call_seconds = 0.0
        self._idle_seconds = 0.0  # since the thread was last seen to have taken processor time
        self._cpu_seconds: float | None = None
        self._last_chance_ends = math.inf
        self._num_faults = 0
        self._checking: asyncio.Task[None] | None = None

    async def watch(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                self.look()
            except Exception:
                # A bug of ours. A watchdog that is dead itself would be noticed by nobody.
                logger.exception("the watchdog failed")

    def look(self) -> None:
        """Look once: at the thread, at the call that is on it, at what the runs have given."""
        now = self._clock()
        step = min(now - self._looked_at, LONGEST_STEP)
        self._looked_at = now
        if not self._worker.is_alive:
            self._replace_worker()
        self._look_at_call(step)
        num_faults = sum(batcher.num_faults for batcher in self._batchers)
        if num_faults != self._num_faults or self._state.faults:
            self._num_faults = num_faults
            self._begin_check()

    def _replace_worker(self) -> None:
        """Let a new thread take over. What the dead one ran fails, or is run again text by text."""
        logger.critical("the worker thread has died; a new one takes over")
        self._state.begin_fault("worker_dead", "the worker thread has died, a new one takes over")
        self._state.metrics.worker_restarted()
        self._worker.restart()

    def _look_at_call(self, step: float) -> None:
        """Add up how long the call on the thread has run; a verdict is taken back when it ends after all."""
        call, has_worked = self._worker.call, self._has_worked()
        if call is None or call != self._call:
            self._call, self._call_seconds, self._idle_seconds = call, 0.0, 0.0
            if self._worker.is_hung:
                logger.warning("the worker thread goes on: it was slow, not hung")
                self._worker.is_hung, self._last_chance_ends = False, math.inf
                self._state.end_fault("worker_hung")
            return
        self._call_seconds += step
        self._idle_seconds = 0.0 if has_worked else self._idle_seconds + step
        if not self._worker.is_hung and self._has_hung():
            self._declare_hung()
        elif self._call_seconds >= self._last_chance_ends:
            self._last_chance_ends = math.inf
            logger.critical("the worker thread still hangs: the process ends")
            self._state.end_process_if_ours()

    def _has_worked(self) -> bool:
        """Whether the thread has taken processor time since the last look."""
        before, self._cpu_seconds = self._cpu_seconds, self._read_cpu_seconds()
        return before is not None and self._cpu_seconds is not None and self._cpu_seconds > before

    def _has_hung(self) -> bool:
        """Whether the call that is on the thread has done nothing for too long, or lasts as no slow one does."""
        longest = self._longest_call()
        return self._idle_seconds >= longest or self._call_seconds >= WORKING_FACTOR * longest

    def _longest_call(self) -> float:
        """Return the seconds without work after which the call that is on the thread is taken for hung."""
        full_batches = [SLOW_FACTOR * batcher.full_batch_seconds for batcher in self._batchers]
        return max(self._hang_seconds, *full_batches, 0.0) * (SLOW_FACTOR if self._worker.is_slow else 1)

    def _declare_hung(self) -> None:
        """Say so everywhere, and let nobody wait any longer."""
        seconds = self._call_seconds
        self._last_chance_ends = seconds + LAST_CHANCE_SECONDS
        told = {"seconds": round(seconds), "idle_seconds": round(self._idle_seconds), "stack": self._worker.stack()}
        logger.critical("the worker thread hangs", extra=told)
        self._worker.is_hung = True
        self._state.begin_fault("worker_hung", f"a batch has run for {seconds:.0f} seconds")
        for batcher in self._batchers:
            batcher.fail_as_hung()

    def _begin_check(self) -> None:
        """Run the check, unless one is waiting for the worker already."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._run_check())

    async def _run_check(self) -> None:
        """Find out whether the models are fit to serve, and say so."""
        state = self._state
        try:
            broken = await self._worker.run(self._check)
        except WorkerUnavailableError:
            return  # the thread has died again, or the server ends
        except Exception as error:
            logger.error("the self-check failed", exc_info=error)
            state.begin_fault("self_check_failed", "a text of the server's own cannot be encoded")
            return
        state.end_fault("worker_dead")
        state.end_fault("self_check_failed")
        if broken:
            names = ", ".join(broken)
            state.begin_fault("non_finite_output", f"what {names} makes of a text of the server's own is not finite")
        else:
            state.end_fault("non_finite_output")
