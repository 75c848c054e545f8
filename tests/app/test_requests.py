"""Bodies are read within their limits, and work ends with the caller."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.types import Message

from app.errors import BodyTooLargeError, InvalidRequestError, MalformedBodyError, UnsupportedMediaTypeError
from app.requests import ClientGoneError, parse, read_body, read_json, read_tensors, while_connected
from tests.app.conftest import Served, until
from tests.doubles import WAIT_SECONDS

pytestmark = pytest.mark.anyio

JSON = {"content-type": "application/json"}
MARKER = "MARKER"


class Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    texts: list[str]


class Caller:
    """The receiving end of a request: hands out chunks, then, when told to, the end of the connection."""

    def __init__(self, chunks: Sequence[bytes] = (), *, leaves_early: bool = False) -> None:
        self.messages: list[Message] = [
            {"type": "http.request", "body": chunk, "more_body": leaves_early or index < len(chunks) - 1}
            for index, chunk in enumerate(chunks)
        ]
        self.num_received = 0
        self.left = asyncio.Event()
        if leaves_early:
            self.left.set()

    async def __call__(self) -> Message:
        if self.messages:
            self.num_received += 1
            return self.messages.pop(0)
        await self.left.wait()
        return {"type": "http.disconnect"}

    def request(self, headers: dict[str, str] | None = None) -> Request:
        """The request that this caller sends."""
        raw = [
            (name.lower().encode(), value.encode()) for name, value in (JSON if headers is None else headers).items()
        ]
        return Request({"type": "http", "method": "POST", "path": "/", "headers": raw}, self)


async def read(content: bytes, headers: dict[str, str] | None = None, max_bytes: int = 1_000) -> Body:
    """Read a body that comes in one piece."""
    return await read_body(Caller([content]).request(headers), Body, max_bytes)


async def test_a_body_can_be_read_before_it_is_parsed() -> None:
    """For routes where the body itself says what it is: the bytes first, then one of several schemas."""
    content = b'{"texts": ["a"]}'
    assert await read_json(Caller([content]).request(), 1_000) == content
    assert parse(content, Body).texts == ["a"]
    assert await read_json(Caller([b"{"]).request(), 1_000) == b"{"
    with pytest.raises(MalformedBodyError):
        parse(b"{", Body)
    with pytest.raises(UnsupportedMediaTypeError):
        await read_json(Caller([content]).request({}), 1_000)


@pytest.mark.parametrize(
    "content_type", ["application/octet-stream", "application/json", "application/a+json", "", None]
)
async def test_tensors_come_as_bytes_or_as_json(content_type: str | None) -> None:
    """Or without a word about what they are, as Triton's client sends them; within the same limit, uncompressed."""
    headers = {} if content_type is None else {"content-type": content_type}
    assert await read_tensors(Caller([b"{}", b"\0"]).request(headers), 3) == b"{}\0"
    with pytest.raises(BodyTooLargeError):
        await read_tensors(Caller([b"{}", b"\0"]).request(headers), 2)
    with pytest.raises(UnsupportedMediaTypeError, match="Content-Encoding"):
        await read_tensors(Caller([b"{}"]).request({**headers, "content-encoding": "gzip"}), 3)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_what_a_form_sends_is_no_tensor(content_type: str) -> None:
    """A page elsewhere can send these in a visitor's name."""
    with pytest.raises(UnsupportedMediaTypeError):
        await read_tensors(Caller([b"{}"]).request({"content-type": content_type}), 3)


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        "Application/JSON",
        " application/json ;x=y",
        "application/vnd.api+json",
    ],
)
async def test_json_by_any_of_its_names(content_type: str) -> None:
    """Parameters, capitals and +json types are JSON."""
    assert await read(b'{"texts":["a"]}', {"content-type": content_type}) == Body(texts=["a"])


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": ""},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/jsonp"},
        {"content-type": "text/x+json"},
        {**JSON, "content-encoding": "gzip"},
        {**JSON, "content-encoding": "br"},
    ],
)
async def test_anything_else_is_415_unread(headers: dict[str, str]) -> None:
    """What is not JSON, or is compressed, is refused before its body is taken."""
    caller = Caller([b'{"texts":["a"]}'])
    with pytest.raises(UnsupportedMediaTypeError):
        await read_body(caller.request(headers), Body, 1_000)
    assert caller.num_received == 0


async def test_identity_is_no_encoding() -> None:
    """A client that says it did not compress is believed."""
    assert await read(b'{"texts":[]}', {**JSON, "content-encoding": "identity"}) == Body(texts=[])


async def test_a_body_of_exactly_the_limit_is_read() -> None:
    """The limit is the largest size, not the first refused, announced or not."""
    content = b'{"texts":["abc"]}'
    assert await read(content, {**JSON, "content-length": str(len(content))}, len(content)) == Body(texts=["abc"])
    assert await read(content, None, len(content)) == Body(texts=["abc"])


async def test_an_announced_size_is_refused_unread() -> None:
    """A Content-Length over the limit is answered before a single byte is taken."""
    caller = Caller([b"x" * 11])
    with pytest.raises(BodyTooLargeError) as refused:
        await read_body(caller.request({**JSON, "content-length": "11"}), Body, 10)
    assert caller.num_received == 0
    assert (refused.value.limit, refused.value.actual) == (10, 11)


async def test_a_chunked_body_is_dropped_at_the_limit() -> None:
    """Without a Content-Length no more than the limit and one chunk is ever taken."""
    caller = Caller([b"x" * 6] * 1_000)
    with pytest.raises(BodyTooLargeError) as refused:
        await read_body(caller.request(), Body, 10)
    assert caller.num_received == 2
    assert (refused.value.limit, refused.value.actual) == (10, 12)


async def test_a_chunked_body_is_put_together() -> None:
    """A character may be cut in two by the chunks."""
    content = json.dumps({"texts": ["Zürich"]}, ensure_ascii=False).encode()
    chunks = [content[i : i + 1] for i in range(len(content))]
    assert await read_body(Caller(chunks).request(), Body, 1_000) == Body(texts=["Zürich"])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not json MARKER",
        b'{"texts":["MARKER"',
        b'{"texts":["MARKER"]} trailing',
        b'\xef\xbb\xbf{"texts":["MARKER"]}',
        '{"texts":["MARKER"]}'.encode("utf-16"),
        b'{"texts":["MARKER \xff"]}',
        b'{"texts":["MARKER \xed\xa0\x80"]}',
        b'{"texts":["MARKER \\ud800"]}',
        b'{"texts":' + b"[" * 400 + b"]" * 400 + b"}",
        b"{'texts':['MARKER']}",
    ],
)
async def test_what_is_no_json_in_utf_8_is_malformed(content: bytes) -> None:
    """Broken JSON, other encodings, a byte order mark and lone surrogates are all 400, without an echo."""
    with pytest.raises(MalformedBodyError) as refused:
        await read(content)
    assert MARKER not in refused.value.message


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b"[]", None),
        (b"null", None),
        (b"{}", "texts"),
        (b'{"texts":"MARKER"}', "texts"),
        (b'{"texts":["a", 5]}', "texts[1]"),
        (b'{"texts":[NaN]}', "texts[0]"),
        (b'{"texts":[' + b"9" * 900 + b"]}", "texts[0]"),
        (b'{"texts":[],"txets":["MARKER"]}', "txets"),
    ],
)
async def test_json_of_the_wrong_shape_names_the_field(content: bytes, param: str | None) -> None:
    """A wrong value is 422 with the path of the field, and the value is not repeated."""
    with pytest.raises(InvalidRequestError) as refused:
        await read(content)
    assert refused.value.param == param
    assert MARKER not in refused.value.message


async def test_a_caller_that_leaves_while_sending_is_gone() -> None:
    """Half a body is no malformed one: there is nobody to tell."""
    with pytest.raises(ClientGoneError):
        await read_body(Caller([b'{"texts":'], leaves_early=True).request(), Body, 1_000)


async def test_work_of_a_connected_caller_is_returned() -> None:
    """Work that ends first is the answer."""

    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    caller = Caller()
    assert await while_connected(caller.request(), work()) == "done"


async def test_an_error_of_the_work_goes_through() -> None:
    """What the work raises is raised, as it is."""

    async def work() -> None:
        raise InvalidRequestError("no")

    with pytest.raises(InvalidRequestError, match="no"):
        await while_connected(Caller().request(), work())


async def test_work_is_cancelled_when_the_caller_leaves() -> None:
    """The work has ended, and cleaned up, before the request ends."""
    ended: list[str] = []
    caller = Caller()

    async def work() -> None:
        caller.left.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(10):  # an end that takes its time
                await asyncio.sleep(0)
            ended.append("cancelled")

    with pytest.raises(ClientGoneError):
        await while_connected(caller.request(), work())
    assert ended == ["cancelled"]


async def test_work_is_cancelled_with_its_request() -> None:
    """When the server cancels the request itself, no work is left behind, and no watcher of the connection."""
    started = asyncio.Event()
    ended: list[str] = []

    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    before = asyncio.all_tasks()
    task = asyncio.create_task(while_connected(Caller().request(), work()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert ended == ["cancelled"]
    assert asyncio.all_tasks() == before


async def test_a_request_that_is_cancelled_while_its_caller_leaves_is_cancelled() -> None:
    """Whoever cancels the request is not told of the caller instead."""
    caller = Caller()
    ending = asyncio.Event()

    async def work() -> None:
        caller.left.set()
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await asyncio.sleep(0)

    task = asyncio.create_task(while_connected(caller.request(), work()))
    await ending.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def call(server: Served, caller: Caller, content: bytes, *, more_body: bool = False) -> list[Message]:
    """Call the whole app as a server would, and return what it sent."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    caller.messages = [{"type": "http.request", "body": content, "more_body": more_body}]
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/encode",
        "raw_path": b"/encode",
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    await asyncio.wait_for(server.app(scope, caller, send), WAIT_SECONDS)
    return sent


async def test_a_caller_that_leaves_takes_its_queued_texts_along(server: Served) -> None:
    """Texts that wait for a batch when their caller leaves are never run; they count as cancelled, the request as 499.

    https://github.com/vllm-project/vllm/issues/10087
    """
    embedder = server.embedder
    embedder.gate.clear()
    first = asyncio.create_task(server.encode("the cat"))
    await asyncio.to_thread(embedder.entered.acquire)  # the first text is on the worker thread, whatever comes waits
    caller = Caller()
    second = asyncio.create_task(call(server, caller, b'{"texts":["a dog barked","hello"]}'))
    await until(lambda: server.sample("eyeline_queue_texts", model="tiny") == 2)
    caller.left.set()
    await second
    assert server.sample("eyeline_queue_texts", model="tiny") == 0
    embedder.gate.set()
    await first
    assert [[item.num_tokens for item in batch] for batch in embedder.batches] == [[4]]
    assert server.sample("eyeline_cancelled_total", model="tiny") == 2
    assert server.sample("eyeline_requests_total", route="/encode", status=499) == 1
    assert server.sample("eyeline_inflight_requests") == 0


async def test_a_caller_that_leaves_while_sending_is_counted(server: Served) -> None:
    """A connection that ends inside the body is a 499 and no error."""
    caller = Caller(leaves_early=True)
    await call(server, caller, b'{"texts":', more_body=True)
    assert server.sample("eyeline_requests_total", route="/encode", status=499) == 1
    assert server.sample("eyeline_inflight_requests") == 0


async def test_a_large_body_is_refused_over_http(server: Served) -> None:
    """Announced or chunked, a body over the limit is a 413 with the limit."""
    limit = server.state.max_body_bytes
    content = b'{"texts":["' + b"a" * limit + b'"]}'

    async def chunks() -> Any:
        for start in range(0, len(content), 65_536):
            yield content[start : start + 65_536]

    for body in (content, chunks()):
        response = await server.client.post("/encode", content=body, headers=JSON)
        assert response.status_code == 413
        assert response.json()["code"] == "body_too_large"
        assert response.json()["limit"] == limit
        assert response.json()["actual"] > limit
    assert server.embedder.batches == []
