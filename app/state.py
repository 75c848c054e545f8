"""What one running app holds, and how a route gets at it. Typed, so that no route touches ``app.state`` itself."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import cast, get_args
from weakref import WeakSet

from fastapi import Request

from app.batcher import Batcher
from app.callers import caller_of
from app.errors import NotReadyError
from app.metrics import Metrics
from app.reload import Reloader
from app.schemas.info import Fault
from app.service import Service
from app.worker import Worker

logger = logging.getLogger("eyeline")

FAULTS: tuple[Fault, ...] = get_args(Fault)
"""Worst first."""

FATAL: frozenset[Fault] = frozenset({"worker_dead", "worker_hung", "self_check_failed"})
"""Faults that a new process would not have: liveness is off as well."""

Scrape = Callable[[str | None], Awaitable[tuple[bytes, str]]]
"""The ``Accept`` header -> the page of metrics and its content type."""


@dataclass(slots=True)
class ServerState:
    """What one running app holds.

    Attributes
    ----------
    metrics : Metrics
    max_body_bytes : int
    service : Service or None
        None until the models are warm.
    reloader : Reloader or None
        Likewise.
    is_draining : bool
        Set when the server begins to stop; readiness is off from then on.
    is_cut_off : bool
        Set when a stopping server gives somebody up: when its grace ends, or at a second signal.
    grace_is_over : asyncio.Event
        Set when a stopping server waits for nothing any more.
    batchers : set of Batcher
        The queues, that of a replaced model for as long as somebody waits in it.
    started_at : float
        Seconds since 1970.
    faults : dict of Fault to str
        Why the server is not ready though it is neither loading nor draining: each with a sentence for people.
    worker : Worker or None
        The thread that runs the models; None before the lifespan has begun.
    end_process : callable or None
        Ends the process at once with a code that is not 0; None where the process is not ours to end.
    scrape_all : Scrape or None
        Writes the metrics of all replicas, where one address stands for several; None: of this process alone.
    """

    metrics: Metrics
    max_body_bytes: int
    service: Service | None = None
    reloader: Reloader | None = None
    is_draining: bool = False
    is_cut_off: bool = False
    grace_is_over: asyncio.Event = field(default_factory=asyncio.Event)
    batchers: WeakSet[Batcher] = field(default_factory=WeakSet)
    started_at: float = field(default_factory=time.time)
    faults: dict[Fault, str] = field(default_factory=dict)
    worker: Worker | None = None
    end_process: Callable[[], None] | None = None
    scrape_all: Scrape | None = None

    @property
    def is_ready(self) -> bool:
        """Whether a request that comes now will be served."""
        return self.service is not None and not self.is_draining and not self.faults

    @property
    def is_live(self) -> bool:
        """Whether this process can still serve, or will be able to, without being replaced."""
        return FATAL.isdisjoint(self.faults)

    @property
    def worst_fault(self) -> Fault | None:
        """The fault that is told where there is room for one."""
        return next((fault for fault in FAULTS if fault in self.faults), None)

    def begin_serving(self, service: Service) -> None:
        """Serve with warm models from now on; ready, unless the server has begun to stop meanwhile, or has a fault."""
        self.service = service
        if self.is_draining:
            self._close_reloader()
        self._tell()

    def begin_fault(self, fault: Fault, sentence: str) -> None:
        """Be not ready for a reason, until it is gone."""
        if fault not in self.faults:
            logger.error("not ready: %s", sentence, extra={"reason": fault})
        self.faults[fault] = sentence
        self._tell()

    def end_fault(self, fault: Fault) -> None:
        """Take a reason back; without effect where there was none."""
        if self.faults.pop(fault, None) is not None:
            logger.warning("recovered", extra={"reason": fault})
            self._tell()

    def _tell(self) -> None:
        """Bring the metrics up to date: here alone."""
        self.metrics.set_ready(ready=self.is_ready)
        for fault in FAULTS:
            self.metrics.set_fault(fault, present=fault in self.faults)

    def end_process_if_ours(self) -> None:
        """End the process, where it is ours: it cannot serve any more, and a new one can."""
        if self.end_process is not None:
            self.end_process()

    async def scrape(self, accept: str | None) -> tuple[bytes, str]:
        """Return the page of metrics and its content type."""
        return self.metrics.render(accept) if self.scrape_all is None else await self.scrape_all(accept)

    def begin_draining(self) -> None:
        """Say "not ready" from now on; requests that come all the same are still served."""
        self.is_draining = True
        self._close_reloader()
        self._tell()

    def end_grace(self) -> None:
        """Tell everybody in the queues that the server's time to stop is up; nothing is waited for any more."""
        self.grace_is_over.set()
        for batcher in self.batchers:
            batcher.fail_as_stopping()

    def _close_reloader(self) -> None:
        if self.reloader is not None:
            self.reloader.close()


def state_of(request: Request) -> ServerState:
    """Return the state of the app that serves ``request``."""
    return cast(ServerState, request.app.state.server)


def service_of(request: Request) -> Service:
    """Return the service, as it serves whoever sends ``request``.

    Raises
    ------
    NotReadyError
        If the models are not loaded.
    InvalidRequestError
        If the caller's time-out is none.
    """
    service = state_of(request).service
    if service is None:
        raise NotReadyError("the model is being loaded", retry_after_seconds=1)
    return service.for_caller(caller_of(request))


def reloader_of(request: Request) -> Reloader:
    """Return what reloads models; raises what :func:`service_of` raises."""
    reloader = state_of(request).reloader
    if reloader is None:
        raise NotReadyError("the model is being loaded", retry_after_seconds=1)
    return reloader


def max_body_bytes(request: Request) -> int:
    """Return the largest body that is read."""
    return state_of(request).max_body_bytes


def route_of(request: Request) -> str:
    """Return the template of the route that serves ``request``, which holds nothing of the caller's."""
    return str(request.scope["route"].path)
