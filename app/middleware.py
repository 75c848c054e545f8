"""What happens around every request: an id, a count, a duration, a log line, a span. Pure ASGI.

Starlette's ``BaseHTTPMiddleware`` hides a closed connection from the endpoint
(https://github.com/encode/starlette/discussions/2094), so that work for callers who left would go on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access_log import AccessLog
from app.errors import stopped_too_soon
from app.facts import RequestFacts, facts_var
from app.log import accept_request_id, request_id_var
from app.metrics import UNMATCHED, Metrics
from app.problems import ErrorHandler
from app.requests import CLIENT_GONE
from app.tracing import RequestTracer


class RequestRecord:
    """Gives each request an id, echoes it as ``X-Request-ID``, and counts and logs how the request ended.

    Parameters
    ----------
    app : ASGIApp
    metrics : Metrics
    answer : ErrorHandler
        Makes the answer of an error that nothing inside has answered.
    access_log : AccessLog
    tracer : RequestTracer or None
    is_draining : callable
        Whether the server stops: then callers are told to come back on another connection, before this one closes.
    is_cut_off : callable
        Whether the server has given up whoever still waits: a request that is cancelled then is answered.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        answer: ErrorHandler,
        access_log: AccessLog,
        tracer: RequestTracer | None = None,
        is_draining: Callable[[], bool] = lambda: False,
        is_cut_off: Callable[[], bool] = lambda: False,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._answer = answer
        self._access_log = access_log
        self._tracer = tracer
        self._is_draining = is_draining
        self._is_cut_off = is_cut_off

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event; anything but HTTP passes untouched."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        scope.setdefault("state", {})["arrived_at"] = started
        request_id = accept_request_id(Headers(scope=scope).get("x-request-id"))
        facts = RequestFacts()
        id_token, facts_token = request_id_var.set(request_id), facts_var.set(facts)
        status = CLIENT_GONE

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                if self._is_draining():
                    headers["Connection"] = "close"
            await send(message)

        self._metrics.request_started()
        try:
            await self._app(scope, receive, send_with_id)
        except BaseException as error:
            # A bug, or a panic of a library in Rust, which is no Exception. Answered here, as Starlette would only do
            # it outside of this, if at all: without an id, and uncounted.
            known = self._known(error)
            if known is None or status != CLIENT_GONE:
                raise  # where the answer has begun, a second one cannot follow
            response = await self._answer(Request(scope), known)
            await response(scope, receive, send_with_id)
        finally:
            seconds = time.perf_counter() - started
            route = getattr(scope.get("route"), "path", None)
            facts.key = scope.get("state", {}).get("key")
            self._metrics.request_finished(route, status, seconds, facts.key)
            self._access_log.write(request_id, scope["method"], route or UNMATCHED, status, seconds, facts)
            if self._tracer is not None:
                self._tracer.record(scope, request_id, route, status, started, facts)
            request_id_var.reset(id_token)
            facts_var.reset(facts_token)

    def _known(self, error: BaseException) -> Exception | None:
        """Return what is to be answered; None for what ends a request without an answer."""
        if isinstance(error, asyncio.CancelledError) and self._is_cut_off():
            return stopped_too_soon()
        if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit)):
            return None
        return error if isinstance(error, Exception) else _exception_of(error)


def _exception_of(panic: BaseException) -> Exception:
    """Return a panic as an exception that error handlers take, with its cause for the log."""
    error = RuntimeError(f"{type(panic).__name__} in a library")
    error.__cause__ = panic
    return error
