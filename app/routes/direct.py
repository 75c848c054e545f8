"""Routes that are called without a detour.

FastAPI reads parameters from a request, validates them and turns what an endpoint returns into a response. Most of our
endpoints take the request and return the response, so there is nothing of that to do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute


class DirectRoute(APIRoute):
    """Calls an endpoint of ``(request: Request) -> Response`` itself; any other as FastAPI does.

    So is one with dependencies, which only FastAPI calls.

    Use it as ``APIRouter(route_class=DirectRoute)``. Description, path and methods are FastAPI's as ever.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request of this route."""
        return self.endpoint if _is_direct(self.endpoint) and not self.dependencies else super().get_route_handler()


def _is_direct(endpoint: Callable[..., Any]) -> bool:
    """Whether an endpoint is a coroutine that takes the request alone and returns a response."""
    signature = inspect.signature(endpoint, eval_str=True)
    parameters = [parameter.annotation for parameter in signature.parameters.values()]
    return inspect.iscoroutinefunction(endpoint) and parameters == [Request] and signature.return_annotation is Response
