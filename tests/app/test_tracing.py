"""One span for each request, its stages as children, and nothing of a text in any of them."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from app.facts import RequestFacts
from app.main import create_app
from app.requests import CLIENT_GONE
from app.tracing import RequestTracer, TracingError, open_tracer, wants_traces
from tests.app.conftest import load, make_settings

pytestmark = pytest.mark.anyio

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
STAGES = ["tokenize", "queue", "inference", "serialize"]


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    """Where the spans of the test arrive."""
    exporter = InMemorySpanExporter()
    yield exporter
    exporter.shutdown()


def tracer_to(exporter: InMemorySpanExporter, **options: Any) -> RequestTracer:
    """A tracer whose spans arrive at once."""
    provider = TracerProvider(shutdown_on_exit=False, **options)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return RequestTracer(provider)


@asynccontextmanager
async def traced(folder: Path, exporter: InMemorySpanExporter, **changes: Any) -> AsyncIterator[httpx.AsyncClient]:
    """An app over the tiny model that is traced."""
    settings = make_settings(folder, **changes)
    app = create_app(settings, load(settings), tracer_to(exporter))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://eyeline", timeout=10) as client,
    ):
        yield client


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    """The spans so far, none of which shares a name."""
    spans = exporter.get_finished_spans()
    assert len({span.name for span in spans}) == len(spans)
    return {span.name: span for span in spans}


def times(span: ReadableSpan) -> tuple[int, int]:
    """Beginning and end, in nanoseconds since 1970."""
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time, span.end_time


async def test_a_request_is_a_span_with_its_stages(tiny_folder: Path, exporter: InMemorySpanExporter) -> None:
    """The stages follow one another inside the request's span, whose attributes say what it was made of."""
    async with traced(tiny_folder, exporter) as client:
        await client.post("/encode", json={"texts": ["the cat", "dog " * 40]}, headers={"X-Request-ID": "order-66"})
    spans = by_name(exporter)
    request = spans.pop("POST /encode")
    assert request.kind is SpanKind.SERVER
    assert request.parent is None
    assert request.attributes == {
        "http.request.method": "POST",
        "http.route": "/encode",
        "http.response.status_code": 200,
        "http.response.header.x-request-id": ("order-66",),
        "network.protocol.version": "1.1",
        "url.scheme": "http",
        "eyeline.model": "tiny",
        "eyeline.num_texts": 2,
        "eyeline.num_tokens": 36,
        "eyeline.truncated": 1,
    }
    assert request.status.status_code is StatusCode.UNSET
    assert list(spans) == STAGES
    ends = [times(request)[0]]
    for span in spans.values():
        assert span.parent == request.context
        assert times(span)[0] >= ends[-1] - 1_000  # two roundings of a nanosecond clock
        assert times(span)[1] >= times(span)[0]
        ends.append(times(span)[1])
    assert ends[-1] <= times(request)[1]


async def test_the_callers_trace_goes_on(tiny_folder: Path, exporter: InMemorySpanExporter) -> None:
    """With ``traceparent`` the span is a child of the caller's, in the caller's trace."""
    async with traced(tiny_folder, exporter) as client:
        await client.post("/encode", json={"texts": "a"}, headers={"traceparent": TRACEPARENT})
    span = by_name(exporter)["POST /encode"]
    assert span.parent is not None
    assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
    assert {f"{one.context.trace_id:032x}" for one in exporter.get_finished_spans() if one.context} == {TRACE}


@pytest.mark.parametrize("flags", ["00", "02"])
async def test_a_trace_that_the_caller_does_not_sample_is_not_sent(
    tiny_folder: Path, exporter: InMemorySpanExporter, flags: str
) -> None:
    """Whoever began the trace has decided."""
    async with traced(tiny_folder, exporter) as client:
        await client.post("/encode", json={"texts": "a"}, headers={"traceparent": TRACEPARENT[:-2] + flags})
    assert exporter.get_finished_spans() == ()


@pytest.mark.parametrize("header", ["", "MARKER", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", TRACEPARENT * 100, "\xff"])
async def test_a_broken_traceparent_begins_a_new_trace(
    tiny_folder: Path, exporter: InMemorySpanExporter, header: str
) -> None:
    """It fails no request, and is in no span."""
    async with traced(tiny_folder, exporter) as client:
        sent = {b"traceparent": header.encode("latin-1")}
        assert (await client.post("/encode", json={"texts": "a"}, headers=sent)).status_code == 200
    span = by_name(exporter)["POST /encode"]
    assert span.parent is None
    assert "MARKER" not in span.to_json()


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready", "/metrics", "/v2/health/ready"])
async def test_probes_make_no_span(tiny_folder: Path, exporter: InMemorySpanExporter, path: str) -> None:
    """They are asked for every few seconds by every orchestrator."""
    async with traced(tiny_folder, exporter) as client:
        assert (await client.get(path, headers={"traceparent": TRACEPARENT})).status_code == 200
    assert exporter.get_finished_spans() == ()


async def test_nothing_of_a_caller_is_in_a_span(tiny_folder: Path, exporter: InMemorySpanExporter) -> None:
    """No text, no path, no query, no header, no name of a method that he made up; also where the request is refused."""
    async with traced(tiny_folder, exporter, api_keys="search:MARKER-key-of-the-tests") as client:
        known = {"Authorization": "Bearer MARKER-key-of-the-tests"}
        await client.post("/encode?MARKER=1", json={"texts": "MARKER"}, headers={**known, "User-Agent": "MARKER"})
        await client.post("/models/MARKER/embed", json={"inputs": "MARKER"}, headers=known)
        await client.post("/MARKER", json={"texts": "MARKER"}, headers=known)
        await client.request("MARKER", "/encode", headers=known)
        await client.post("/encode", json={"texts": "MARKER"}, headers={"Authorization": "Bearer MARKER"})
    written = [span.to_json() for span in exporter.get_finished_spans()]
    names = [span.name for span in exporter.get_finished_spans() if span.kind is SpanKind.SERVER]
    assert names == ["POST /encode", "POST /models/{name}/embed", "POST", "HTTP /encode", "POST"]
    assert "MARKER" not in "".join(written)
    first = next(span for span in exporter.get_finished_spans() if span.name == "POST /encode")
    assert first.attributes is not None
    assert first.attributes["eyeline.key"] == "search"


def record(exporter: InMemorySpanExporter, status: int, **options: Any) -> None:
    """Make the span of a request that ended with a status."""
    scope = {"type": "http", "method": "POST", "http_version": "1.1", "scheme": "http", "headers": []}
    tracer_to(exporter, **options).record(scope, "a", "/encode", status, 0.0, RequestFacts())


@pytest.mark.parametrize(
    ("status", "code", "attributes"),
    [
        (422, StatusCode.UNSET, {"http.response.status_code": 422}),
        (501, StatusCode.UNSET, {"http.response.status_code": 501}),
        (503, StatusCode.ERROR, {"http.response.status_code": 503, "error.type": "503"}),
        (CLIENT_GONE, StatusCode.UNSET, {"error.type": "client_gone"}),
    ],
)
async def test_how_a_request_ended(
    exporter: InMemorySpanExporter, status: int, code: StatusCode, attributes: Mapping[str, object]
) -> None:
    """A caller's fault is no error of the server's; a caller who left was sent no status."""
    record(exporter, status)
    [span] = exporter.get_finished_spans()
    assert span.status.status_code is code
    assert span.attributes is not None
    shown = {name: span.attributes.get(name) for name in ("http.response.status_code", "error.type")}
    assert {name: value for name, value in shown.items() if value is not None} == attributes


async def test_the_sampler_is_the_sdks(exporter: InMemorySpanExporter) -> None:
    """What it leaves out has no children either."""
    record(exporter, 200, sampler=ALWAYS_OFF)
    assert exporter.get_finished_spans() == ()


async def test_closing_waits_for_the_last_spans_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector that takes nothing does not hold up the server's end."""
    gate, begun = threading.Event(), threading.Event()

    class Stuck(TracerProvider):
        def shutdown(self) -> None:
            begun.set()
            gate.wait(60)

    monkeypatch.setattr("app.tracing.FLUSH_SECONDS", 0.05)
    await asyncio.wait_for(RequestTracer(Stuck(shutdown_on_exit=False)).close(), timeout=30)
    assert begun.is_set()
    gate.set()


@pytest.mark.parametrize(
    ("endpoint", "environ", "wanted"),
    [
        (None, {}, False),
        ("http://a:4318", {}, True),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318"}, True),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://a:4318/v1/traces"}, True),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, False),
        (None, {"OTEL_SERVICE_NAME": "x"}, False),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
        ("http://a:4318", {"OTEL_SDK_DISABLED": "TRUE"}, False),
    ],
)
def test_when_traces_are_wanted(endpoint: str | None, environ: dict[str, str], wanted: bool) -> None:
    """By the setting or by an endpoint of OpenTelemetry's own variables; its switches turn them off."""
    assert wants_traces(endpoint, environ) is wanted


@pytest.mark.parametrize(("endpoint", "named"), [("http://a:4318", "--otlp-endpoint"), (None, "OTEL_EXPORTER_OTLP")])
def test_without_the_extra_it_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, endpoint: str | None, named: str
) -> None:
    """It says what asked for traces, and what to install."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(TracingError, match=r"not installed: pip install '\.\[otel\]'") as refused:
        open_tracer(endpoint, {})
    assert str(refused.value).startswith(named)


def test_another_protocol_is_refused() -> None:
    """GRPC at the port of gRPC would fail with every batch: said at the start instead."""
    with pytest.raises(TracingError, match="OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'"):
        open_tracer(None, {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
