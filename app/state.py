"""What one running app holds, and how a route gets at it. Typed, so that no route touches ``app.state`` itself."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import cast

from fastapi import Request

from app.errors import NotReadyError
from app.metrics import Metrics
from app.reload import Reloader
from app.service import Service


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
    started_at : float
        Seconds since 1970.
    """

    metrics: Metrics
    max_body_bytes: int
    service: Service | None = None
    reloader: Reloader | None = None
    is_draining: bool = False
    started_at: float = field(default_factory=time.time)

    @property
    def is_ready(self) -> bool:
        """Whether a request that comes now will be served."""
        return self.service is not None and not self.is_draining

    def begin_draining(self) -> None:
        """Say "not ready" from now on; requests that come all the same are still served."""
        self.is_draining = True
        self.metrics.set_ready(ready=False)


def state_of(request: Request) -> ServerState:
    """Return the state of the app that serves ``request``."""
    return cast(ServerState, request.app.state.server)


def service_of(request: Request) -> Service:
    """Return the service.

    Raises
    ------
    NotReadyError
        If the models are not loaded.
    """
    service = state_of(request).service
    if service is None:
        raise NotReadyError("the model is being loaded", retry_after_seconds=1)
    return service


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
