"""What happens around every request: its id, its count, its log line."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Response
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access_log import AccessLog
from app.errors import ServerStoppingError
from app.facts import facts_var
from app.log import request_id_var
from app.metrics import Metrics
from app.middleware import RequestRecord
from app.service import INLINE_CHARACTERS
from tests.app.conftest import Served, until
from tests.doubles import WAIT_SECONDS, eventually

pytestmark = pytest.mark.anyio

GOOD_ID = "order-66/a.b_c~d"
BAD_IDS = ("", "two words", 'a"quote', "x" * 129, "tab\there", "caf\u00e9")


class Wrapped:
    """A :class:`RequestRecord` around a bare ASGI app, with its metrics and what it sent."""

    def __init__(self, inner: ASGIApp) -> None:
        self.metrics = Metrics(routes=["/known"])
        self.answered: list[Exception] = []
        self.is_draining = False
        self.is_cut_off = False
        self.record = RequestRecord(
            inner,
            self.metrics,
            self._answer,
            AccessLog(),
            is_draining=lambda: self.is_draining,
            is_cut_off=lambda: self.is_cut_off,
        )
        self.sent: list[Message] = []

    async def _answer(self, request: Request, error: Exception) -> Response:
        self.answered.append(error)
        return Response("broken", 500)

    async def request(self, headers: dict[str, str] | None = None, kind: str = "http") -> None:
        """Send one request through."""
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
        scope: Scope = {"type": kind, "method": "POST", "path": "/secret-path", "headers": raw}
        await self.record(scope, _no_receive, self._send)

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def start(self) -> Message:
        """The message that began the answer."""
        return next(message for message in self.sent if message["type"] == "http.response.start")

    @property
    def answered_id(self) -> str:
        """The ``X-Request-ID`` of the answer."""
        return dict(self.start["headers"])[b"x-request-id"].decode()

    def count(self, route: str, status: int) -> float | None:
        """Requests counted for a route and a status."""
        labels = {"route": route, "status": str(status)}
        return self.metrics.registry.get_sample_value("eyeline_requests_total", labels)

    @property
    def inflight(self) -> float | None:
        """The gauge of requests in progress."""
        return self.metrics.registry.get_sample_value("eyeline_inflight_requests")


async def _no_receive() -> Message:
    raise AssertionError("nothing here reads a body")


def answering(status: int = 200, during: Callable[[], Any] = lambda: None, route: str | None = "/known") -> ASGIApp:
    """Make an app that answers with ``status`` after calling ``during``."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if route is not None:
            scope["route"] = SimpleNamespace(path=route)
        during()
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return app


async def test_a_valid_id_is_echoed() -> None:
    """The caller's id comes back, and is the id of the log lines written meanwhile."""
    seen: list[str | None] = []
    wrapped = Wrapped(answering(during=lambda: seen.append(request_id_var.get())))
    await wrapped.request({"X-Request-ID": GOOD_ID})
    assert wrapped.answered_id == GOOD_ID
    assert seen == [GOOD_ID]
    assert request_id_var.get() is None


async def test_each_request_has_facts_of_its_own() -> None:
    """Whoever works for a request finds where to note what became of it; afterwards nobody does."""
    seen: list[Any] = []
    wrapped = Wrapped(answering(during=lambda: seen.append(facts_var.get())))
    await wrapped.request()
    await wrapped.request()
    assert None not in seen
    assert seen[0] is not seen[1]
    assert facts_var.get() is None


@pytest.mark.parametrize("bad", BAD_IDS)
async def test_an_invalid_id_is_replaced(bad: str) -> None:
    """An id that could break a log line or a header is not taken over."""
    wrapped = Wrapped(answering())
    await wrapped.request({"X-Request-ID": bad})
    assert wrapped.answered_id != bad
    assert len(wrapped.answered_id) == 32


async def test_each_request_without_an_id_gets_its_own() -> None:
    """Two requests never share a made-up id."""
    first, second = Wrapped(answering()), Wrapped(answering())
    await first.request()
    await second.request()
    assert first.answered_id != second.answered_id


async def test_a_stopping_server_keeps_no_connection() -> None:
    """Whoever is answered while it stops comes back on another connection, which it does not get here."""
    wrapped = Wrapped(answering())
    await wrapped.request()
    assert b"connection" not in dict(wrapped.start["headers"])
    wrapped.sent.clear()
    wrapped.is_draining = True
    await wrapped.request()
    assert dict(wrapped.start["headers"])[b"connection"] == b"close"


async def test_requests_are_counted_by_template_and_status() -> None:
    """The template is the label, never the path; nothing is in flight afterwards."""
    seen: list[float | None] = []
    wrapped = Wrapped(answering(422, during=lambda: seen.append(wrapped.inflight)))
    await wrapped.request()
    assert wrapped.count("/known", 422) == 1
    assert seen == [1]
    assert wrapped.inflight == 0
    assert b"secret-path" not in wrapped.metrics.render()[0]


async def test_a_request_without_a_route_is_unmatched() -> None:
    """A path that nobody serves adds no series of its own."""
    wrapped = Wrapped(answering(404, route=None))
    await wrapped.request()
    assert wrapped.count("unmatched", 404) == 1


class PanicException(BaseException):
    """What libraries in Rust raise when they fail badly: no Exception, so that few handlers see it."""


async def test_a_panic_is_answered() -> None:
    """A panic in a library, such as a tokenizer's, is answered and counted as a bug is; its cause is kept for the log.

    https://github.com/huggingface/text-embeddings-inference/issues/424
    """
    panic = PanicException("index out of range")

    def fail() -> None:
        raise panic

    wrapped = Wrapped(answering(during=fail))
    await wrapped.request()
    assert wrapped.start["status"] == 500
    assert wrapped.count("/known", 500) == 1
    assert wrapped.inflight == 0
    [error] = wrapped.answered
    assert error.__cause__ is panic


@pytest.mark.parametrize("leaving", [asyncio.CancelledError, KeyboardInterrupt, SystemExit])
async def test_what_ends_a_task_is_no_panic(leaving: type[BaseException]) -> None:
    """A task that is cancelled, or a process that is told to end, is not answered with an error."""

    def leave() -> None:
        raise leaving

    wrapped = Wrapped(answering(during=leave))
    with pytest.raises(leaving):
        await wrapped.request()
    assert wrapped.answered == []
    assert wrapped.inflight == 0


async def test_what_is_cut_off_is_told() -> None:
    """A request that is cancelled as the server's time to stop is up is answered, once; one whose answer has begun is
    not.
    """
    for has_begun in (False, True):

        async def wait(scope: Scope, receive: Receive, send: Send, has_begun: bool = has_begun) -> None:
            scope["route"] = SimpleNamespace(path="/known")
            if has_begun:
                await send({"type": "http.response.start", "status": 200, "headers": []})
            await asyncio.Event().wait()

        wrapped = Wrapped(wait)
        wrapped.is_cut_off = True
        task = asyncio.create_task(wrapped.request({"X-Request-ID": GOOD_ID}))
        await asyncio.sleep(0)
        task.cancel()
        if has_begun:
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            await task
        assert [type(error) for error in wrapped.answered] == [ServerStoppingError] * (not has_begun)
        assert wrapped.answered_id == GOOD_ID
        assert wrapped.inflight == 0


async def test_whatever_a_request_that_is_cut_off_waits_for(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a batch, or for its text to be cut into tokens on a thread: 503 that says that the server stops, in the shape
    of the API that was spoken; nothing of it is left in the queue, and its text is not run.
    """
    gate, encode = threading.Event(), server.embedder.tokenizer.encode
    entered = threading.Semaphore(0)

    def hold(texts: list[str], **options: Any) -> Any:
        if len(texts[0]) > INLINE_CHARACTERS:
            entered.release()
            assert gate.wait(WAIT_SECONDS)
        return encode(texts, **options)

    monkeypatch.setattr(server.embedder.tokenizer, "encode", hold)
    server.embedder.gate.clear()
    running = asyncio.create_task(server.post("/encode", {"texts": "a"}))
    await eventually(lambda: bool(server.embedder.batches))
    waiting = asyncio.create_task(server.post("/embed", {"inputs": "b"}))
    await until(lambda: server.sample("eyeline_queue_texts", model="tiny") == 1)
    reading = asyncio.create_task(server.post("/encode", {"texts": "c" * (INLINE_CHARACTERS + 1)}))
    assert await asyncio.to_thread(entered.acquire, timeout=WAIT_SECONDS)
    server.state.is_cut_off = True
    for task in (running, waiting, reading):
        task.cancel()
    told = await asyncio.gather(running, waiting, reading)
    assert [response.status_code for response in told] == [503] * 3
    assert [response.headers["retry-after"] for response in told] == ["1"] * 3
    assert told[0].json()["code"] == told[2].json()["code"] == "server_stopping"
    assert told[1].json()["error_type"] == "Unhealthy"
    assert server.sample("eyeline_errors_total", code="server_stopping") == 3
    assert server.sample("eyeline_queue_texts", model="tiny") == 0
    gate.set()
    server.embedder.gate.set()
    await eventually(lambda: server.state.worker is not None and not server.state.worker.is_busy)
    assert len(server.embedder.batches) == 1


async def test_a_request_that_is_never_answered_counts_as_left() -> None:
    """When nothing was sent, the caller had gone: 499."""

    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = SimpleNamespace(path="/known")

    wrapped = Wrapped(silent)
    await wrapped.request()
    assert wrapped.count("/known", 499) == 1
    assert wrapped.sent == []


async def test_a_bug_is_answered_counted_and_carries_the_id() -> None:
    """An error that nothing inside answered becomes a 500 with the caller's id, and is counted as one."""
    bug = RuntimeError("bug")

    def raise_bug() -> None:
        raise bug

    wrapped = Wrapped(answering(during=raise_bug))
    await wrapped.request({"X-Request-ID": GOOD_ID})
    assert wrapped.answered == [bug]
    assert wrapped.start["status"] == 500
    assert wrapped.answered_id == GOOD_ID
    assert wrapped.count("/known", 500) == 1
    assert wrapped.inflight == 0


async def test_a_bug_after_the_answer_began_is_not_answered_again() -> None:
    """A second start of an answer would break the connection's protocol: the error goes on to the server."""

    async def half(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("bug")

    wrapped = Wrapped(half)
    with pytest.raises(RuntimeError, match="bug"):
        await wrapped.request()
    assert wrapped.answered == []
    assert len(wrapped.sent) == 1
    assert wrapped.inflight == 0
    assert request_id_var.get() is None


async def test_what_is_not_http_passes_untouched() -> None:
    """The lifespan's events are no requests."""
    kinds: list[str] = []

    async def lifespan(scope: Scope, receive: Receive, send: Send) -> None:
        kinds.append(scope["type"])

    wrapped = Wrapped(lifespan)
    await wrapped.request(kind="lifespan")
    assert kinds == ["lifespan"]
    assert wrapped.metrics.registry.get_sample_value("eyeline_request_duration_seconds_count", {"route": "/known"}) == 0


async def test_a_served_bug_is_a_500_with_an_id_and_one_log_entry(
    server: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Through the whole app: the body is a problem, the log has the traceback once, the text is in neither."""

    async def bug(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("bug")

    monkeypatch.setattr(type(server.state.service), "encode", bug)
    with caplog.at_level(logging.INFO):
        response = await server.post("/encode", {"texts": "MARKER"}, x_request_id=GOOD_ID)
    assert response.status_code == 500
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["x-request-id"] == GOOD_ID
    assert response.json()["code"] == "internal_error"
    assert server.sample("eyeline_requests_total", route="/encode", status=500) == 1
    assert server.sample("eyeline_errors_total", code="internal_error") == 1
    assert sum(record.exc_info is not None for record in caplog.records) == 1
    assert "MARKER" not in response.text + caplog.text
