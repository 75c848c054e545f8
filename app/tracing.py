"""Traces by OpenTelemetry: one span for each request, with its stages as children. Off unless an endpoint is named.

A span is made when its request has ended, out of what was noted on the way (``app/facts.py``), so that tracing costs a
request nothing while it runs, and no span is left open by a caller who goes. It holds what the access log holds: the
route's template and counts, never a text, a raw path or an address. Health and metrics, which probes ask for all day
long, have none.

The packages are those of the extra ``otel``. They read the ``OTEL_*`` variables themselves: sampler, headers, limits,
service name. What leaves the process goes by OTLP over HTTP in protobuf, in batches, from a thread of its own.

References
----------
OpenTelemetry semantic conventions for HTTP spans; W3C Trace Context.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.types import Scope

from app.access import HEALTH_PATHS, METRICS_PATH
from app.access_log import NOT_SUPPORTED
from app.facts import RequestFacts
from app.requests import CLIENT_GONE
from app.version import VERSION

if TYPE_CHECKING:  # an extra, which need not be there
    from opentelemetry.sdk.trace import TracerProvider

ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"
TRACES_PATH = "/v1/traces"

KNOWN_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"})
"""Any other is ``_OTHER`` in a span, as the conventions have it: a caller may invent as many as he likes."""

UNTRACED_ROUTES = HEALTH_PATHS | {METRICS_PATH}

FLUSH_SECONDS = 5.0
"""How long a server that stops waits for its last spans to be taken; a collector that is down must not hold it up."""


class TracingError(Exception):
    """Traces are asked for and cannot be had. The message is one sentence."""


class RequestTracer:
    """Makes the spans of requests.

    Parameters
    ----------
    provider : TracerProvider
        Of the OpenTelemetry SDK; shut down by :meth:`close`.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("eyeline", VERSION)

    def record(
        self, scope: Scope, request_id: str, route: str | None, status: int, started: float, facts: RequestFacts
    ) -> None:
        """Make the span of a request that has just ended, as a child of the one that its ``traceparent`` names.

        Parameters
        ----------
        scope : Scope
        request_id : str
        route : str or None
            The matched route's template.
        status : int
            499 for a caller that left.
        started : float
            A reading of ``time.perf_counter``.
        facts : RequestFacts
        """
        if route in UNTRACED_ROUTES:
            return
        from opentelemetry import propagate, trace

        now, now_ns = time.perf_counter(), time.time_ns()

        def to_ns(reading: float) -> int:
            """Turn a reading of the clock that never jumps into nanoseconds since 1970."""
            return now_ns - round((now - min(now, max(started, reading))) * 1e9)

        headers = Headers(scope=scope)
        sent = {name: headers[name] for name in propagate.get_global_textmap().fields if name in headers}
        method = scope["method"] if scope["method"] in KNOWN_METHODS else "_OTHER"
        span = self._tracer.start_span(
            " ".join(filter(None, ("HTTP" if method == "_OTHER" else method, route))),
            context=propagate.extract(sent),
            kind=trace.SpanKind.SERVER,
            attributes=_attributes(scope, method, request_id, route, status, facts),
            start_time=to_ns(started),
        )
        if span.is_recording():
            inside = trace.set_span_in_context(span)
            for stage in facts.stages:
                child = self._tracer.start_span(stage.stage, context=inside, start_time=to_ns(stage.started))
                child.end(to_ns(stage.ended))
            if _is_fault(status):
                span.set_status(trace.StatusCode.ERROR)
        span.end(now_ns)

    async def close(self) -> None:
        """Send what has not been sent, for :data:`FLUSH_SECONDS` at most."""
        # A daemon: neither the event loop's end nor the interpreter's waits for it.
        thread = threading.Thread(target=self._provider.shutdown, name="tracing-shutdown", daemon=True)
        thread.start()
        await asyncio.to_thread(thread.join, FLUSH_SECONDS)


def _attributes(
    scope: Scope, method: str, request_id: str, route: str | None, status: int, facts: RequestFacts
) -> dict[str, str | int | list[str]]:
    attributes: dict[str, str | int | list[str]] = {
        "http.request.method": method,
        "http.response.header.x-request-id": [request_id],
        "network.protocol.version": scope["http_version"],
        "url.scheme": scope["scheme"],
    }
    if route is not None:
        attributes["http.route"] = route
    if status != CLIENT_GONE:
        attributes["http.response.status_code"] = status
    if _is_fault(status) or status == CLIENT_GONE:
        attributes["error.type"] = "client_gone" if status == CLIENT_GONE else str(status)
    if facts.key is not None:
        attributes["eyeline.key"] = facts.key
    if facts.model is not None:
        attributes |= {
            "eyeline.model": facts.model,
            "eyeline.num_texts": facts.num_texts,
            "eyeline.num_tokens": facts.num_tokens,
            "eyeline.truncated": facts.truncated,
        }
    return attributes


def _is_fault(status: int) -> bool:
    """Whether a status is an error of the server's, not one that any caller may ask for."""
    return status >= 500 and status != NOT_SUPPORTED


def wants_traces(endpoint: str | None, environ: Mapping[str, str]) -> bool:
    """Whether traces are asked for: by the setting, or by OpenTelemetry's own variables.

    Parameters
    ----------
    endpoint : str or None
        The setting.
    environ : mapping of str to str
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if endpoint is not None:
        return True
    is_named = any(environ.get(name, "").strip() for name in ENDPOINT_VARIABLES)
    return is_named and environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() != "none"


def open_tracer(endpoint: str | None, environ: Mapping[str, str]) -> RequestTracer:
    """Start to send traces.

    Parameters
    ----------
    endpoint : str or None
        Base address of a collector, such as ``http://collector:4318``; None: as the ``OTEL_*`` variables say.
    environ : mapping of str to str
        Where those variables are; the SDK reads the process's own.

    Raises
    ------
    TracingError
        If OpenTelemetry is not installed, or another protocol than OTLP over HTTP is asked for.
    """
    for name in PROTOCOL_VARIABLES:
        if environ.get(name, PROTOCOL).strip() not in {"", PROTOCOL}:
            raise TracingError(f"{name} is {environ[name][:40]!r}, but traces are sent as {PROTOCOL} alone")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        origin = "--otlp-endpoint" if endpoint is not None else " or ".join(ENDPOINT_VARIABLES)
        raise TracingError(
            f"{origin} asks for traces, but OpenTelemetry is not installed: "
            "pip install '.[otel]' in the project's folder, or requirements/otel.txt"
        ) from error
    ours = Resource.create().merge(Resource({"service.name": "eyeline", "service.version": VERSION}))
    provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
    address = None if endpoint is None else endpoint.rstrip("/") + TRACES_PATH
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=address)))
    return RequestTracer(provider)
