"""What hostile callers send costs little, echoes nothing, and leaves nothing behind.

The first part speaks to the whole app, the second to one connection with a clock of the test's own.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import tokenizers
import uvicorn
from tokenizers import models, pre_tokenizers, processors
from uvicorn.server import ServerState

from app.connection import MAX_HEAD_BYTES, RECEIVE_SECONDS, STALL_SECONDS, Connection
from app.requests import MAX_FINDINGS
from app.service import LONG_CHARACTERS
from model.tokenizer import SLICE_CHARACTERS, Tokenizer, TokenizerConfig
from model.words import words_of
from tests.app.conftest import Served
from tests.doubles import WAIT_SECONDS

pytestmark = pytest.mark.anyio

MANY = 200_000  # faults in one body: some seconds, and hundreds of megabytes, for whoever looks at each
SOON_SECONDS = 3.0  # of processor time, which a crowded machine hardly changes, for what takes tens of milliseconds
NEVER_SECONDS = 0.2  # for what takes a millisecond where it happens, and must not
HUGE = 10**4000


async def send(server: Served, body: str, path: str = "/encode") -> dict[str, Any]:
    """Send a body as it is, and return the problem that it meets."""
    response = await server.client.post(path, content=body, headers={"content-type": "application/json"})
    assert response.headers["content-type"] == "application/problem+json", response.text[:500]
    problem: dict[str, Any] = response.json()
    assert len(response.content) < 1_000
    return problem


FLOODS = {
    "numbers for texts": ("/encode", '{"texts":[%s]}', "1", "texts[0]"),
    "numbers behind texts": ("/encode", '{"texts":["",%s]}', "1", "texts[1]"),
    "numbers for layers": ("/encode", '{"texts":"","attention":{"layers":[%s]}}', '""', "attention.layers[0]"),
    "numbers for pairs": ("/similarity", '{"pairs":[%s]}', "1", "pairs[0]"),
    "numbers in pairs": ("/similarity", '{"pairs":[%s]}', "[1,1]", "pairs[0][0]"),
    "lists for texts": ("/tokenize", '{"texts":[%s]}', "[[]]", "texts[0][0]"),
}


@pytest.mark.usefixtures("frozen_heap")
@pytest.mark.parametrize(("path", "body", "item", "param"), FLOODS.values(), ids=FLOODS)
async def test_a_flood_of_wrong_items(server: Served, path: str, body: str, item: str, param: str) -> None:
    """A body of nothing but wrong items is refused at the first: the others are not looked at."""
    started = time.process_time()
    problem = await send(server, body % ",".join([item] * MANY), path)
    assert (problem["status"], problem["param"]) == (422, param)
    assert time.process_time() - started < SOON_SECONDS


@pytest.mark.usefixtures("frozen_heap")
@pytest.mark.parametrize("body", ['{"texts":"",%s}', '{"texts":"","attention":{%s}}'])
async def test_a_flood_of_unknown_fields(server: Served, body: str) -> None:
    """Unknown fields are counted, not listed, where there are more of them than any honest mistake makes."""
    started = time.process_time()
    problem = await send(server, body % ",".join(f'"{number}":0' for number in range(MANY)))
    assert (problem["status"], problem["code"]) == (422, "invalid_request")
    assert str(MANY) in problem["detail"]
    assert time.process_time() - started < SOON_SECONDS
    few = await send(server, json.dumps({"texts": ""} | {f"f{number}": 0 for number in range(MAX_FINDINGS)}))
    assert few["param"] == "f0"


@pytest.mark.parametrize(
    "fields",
    [
        {"dimensions": HUGE},
        {"attention": {"items": [HUGE]}},
        {"attention": {"layers": [HUGE]}},
        {"attention": {"heads": [-HUGE]}},
        {"attention": {"digits": HUGE}},
        {"attention": {"items": [2**63]}},
        {"attention": {"layers": [-(2**63)]}},
    ],
    ids=str,
)
async def test_huge_numbers(server: Served, fields: dict[str, Any]) -> None:
    """A number that no JSON reader can hold is a wrong value, not a bug, and is not repeated."""
    problem = await send(server, json.dumps({"texts": "", **fields}))
    assert problem["status"] == 422
    assert "000000" not in json.dumps(problem)


@pytest.mark.parametrize("value", ["0", "0.0", "1", "1.0", '"true"', "null"])
@pytest.mark.parametrize("name", ["maps", "stats"])
async def test_numbers_are_no_truth_values(server: Served, name: str, value: str) -> None:
    """What looks like true or false to Python is still of the wrong kind."""
    problem = await send(server, f'{{"texts":"","attention":{{"{name}":{value}}}}}')
    assert (problem["status"], problem["param"]) == (422, f"attention.{name}")


@pytest.mark.parametrize("length", ["0" * 5_000, "0" * 5_000 + "2", "9" * 5_000, "\u00b2", "-1", "1e3"])
async def test_odd_content_lengths(server: Served, length: str) -> None:
    """A Content-Length that is no number, or one too long to convert, is no bug."""
    headers = {"content-type": "application/json", "content-length": length.encode()}
    response = await server.client.post("/encode", content=b"{}", headers=headers)
    assert response.status_code in (413, 422)
    assert len(response.content) < 1_000


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text;version=abc",
        "application/openmetrics-text;version=",
        "application/openmetrics-text;version=1.0.0;escaping=nothing",
        "text/plain;version=" + "9" * 5_000,
        ";;;=,,,",
    ],
)
async def test_odd_accept_headers_on_metrics(server: Served, accept: str) -> None:
    """Metrics are answered in some format, whatever nonsense the Accept header holds."""
    response = await server.client.get("/metrics", headers={"accept": accept})
    assert response.status_code == 200
    assert "eyeline_inflight_requests" in response.text


@pytest.mark.parametrize("path", ["/encode/", "/health/", "/docs/", "/metrics/", "/encode%2f"])
async def test_no_redirects(server: Served, path: str) -> None:
    """A slash too many is not found: a redirect would lead to whatever host the caller has named."""
    response = await server.client.get(path, headers={"host": "evil.example"})
    assert response.status_code == 404
    assert "evil" not in response.text + str(response.headers)


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready"])
async def test_allow_names_every_method(server: Served, path: str) -> None:
    """A probe with the wrong method is told both of the right ones."""
    response = await server.client.put(path)
    assert response.status_code == 405
    assert set(response.headers["allow"].split(", ")) == {"GET", "HEAD"}


@pytest.fixture
def backend() -> tokenizers.Tokenizer:
    """A word-level tokenizer that marks pairs."""
    backend = tokenizers.Tokenizer(models.WordLevel({"[CLS]": 0, "[SEP]": 1, "a": 2, "[UNK]": 3}, "[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    return backend


def test_long_pairs_do_not_multiply(backend: tokenizers.Tokenizer) -> None:
    """Cutting both texts of a pair leaves next to nothing behind: with every piece that the backend keeps of one
    joined to every piece of the other, 4 MB of text took 24 GB.
    """
    seen: list[int] = []

    class Recording(Tokenizer):
        def _assemble(self, *args: Any, **kwargs: Any) -> tuple[tokenizers.Encoding, int]:
            encoding, total = super()._assemble(*args, **kwargs)
            seen.append(len(encoding.overflowing))
            return encoding, total

    long = "a " * 3_000
    (row,) = Recording(backend, TokenizerConfig(max_length=32)).encode([(long, long)])
    assert (row.num_tokens, row.num_tokens_total) == (32, 6_003)
    assert row.token_type_ids == [0] * 16 + [1] * 16
    assert len(seen) == 1
    assert seen[0] <= 3


def test_long_texts_are_tokenized_one_after_the_other(backend: tokenizers.Tokenizer) -> None:
    """What is tokenized at once is bounded, whatever the request holds; the rows are the same, in order."""
    sizes: list[int] = []

    class Backend:
        def __getattr__(self, name: str) -> Any:
            return getattr(backend, name)

        def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
            sizes.append(sum(map(len, texts)))
            return backend.encode_batch_fast(texts, **options)

    tokenizer = Tokenizer(backend, TokenizerConfig(max_length=8))
    tokenizer._backend = Backend()  # type: ignore[assignment]  # the real one, watched
    words = SLICE_CHARACTERS // 2
    texts = ["a", "a " * words, ("a " * (words // 3), "a"), "a a", *["a " * (words // 2)] * 5]
    rows = tokenizer.encode(texts)
    assert [row.num_tokens_total - 2 for row in rows] == [1, words, words // 3 + 2, 2, *[words // 2] * 5]
    assert max(sizes) <= SLICE_CHARACTERS
    assert len(sizes) < len(texts)


class Counting:
    """A tokenizer that knows how many callers are in it at once; where they shall meet, each waits for another."""

    def __init__(self, inner: Tokenizer, *, meets: bool) -> None:
        self._inner = inner
        self._meeting = threading.Barrier(2 if meets else 1, timeout=60)  # as long as that only where none comes
        self._lock = threading.Lock()
        self._now = 0
        self.most = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def encode(self, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            self._meeting.wait()
            return self._inner.encode(*args, **kwargs)
        finally:
            with self._lock:
                self._now -= 1


@pytest.mark.parametrize(("characters", "is_alone"), [(LONG_CHARACTERS // 2, False), (LONG_CHARACTERS * 2, True)])
async def test_long_requests_take_turns(server: Served, characters: int, is_alone: bool) -> None:
    """Requests of very many characters are tokenized one at a time, so that their memory does not add up; others
    are not held up by one another.
    """
    counting = Counting(server.embedder.tokenizer, meets=not is_alone)
    server.embedder.tokenizer = cast(Tokenizer, counting)
    body = {"texts": ["a." * 25_000] * (characters // 50_000)}
    responses = await asyncio.gather(*(server.post("/tokenize", body) for _ in range(6)))
    assert [response.status_code for response in responses] == [200] * 6
    assert (counting.most == 1) is is_alone


@pytest.mark.parametrize("truncate", [True, False])
async def test_the_turn_of_a_caller_who_leaves_lasts_as_long_as_the_work(server: Served, truncate: bool) -> None:
    """A thread cannot be ended: whoever sends a long request and leaves, again and again, has one at work, whether it
    ends well or in an error; nobody hears of it, and the next caller is served.
    """
    gate, entered = threading.Event(), threading.Semaphore(0)

    class Gated(Counting):
        def encode(self, *args: Any, **kwargs: Any) -> Any:
            entered.release()
            assert gate.wait(WAIT_SECONDS)
            return super().encode(*args, **kwargs)

    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    counting = Gated(server.embedder.tokenizer, meets=False)
    server.embedder.tokenizer = cast(Tokenizer, counting)
    body = {"texts": ["a." * 25_000] * (LONG_CHARACTERS // 25_000), "truncate": truncate}
    left = [asyncio.create_task(server.post("/tokenize", body)) for _ in range(4)]
    assert await asyncio.to_thread(entered.acquire, timeout=WAIT_SECONDS)
    for caller in left:
        caller.cancel()
    await asyncio.wait(left)
    staying = asyncio.create_task(server.post("/tokenize", {**body, "truncate": True}))
    begun_beside = await asyncio.to_thread(entered.acquire, timeout=NEVER_SECONDS)
    gate.set()
    assert (await staying).status_code == 200
    del left, caller  # their tracebacks hold the work
    gc.collect()  # an error that nobody took is told when it goes
    assert (begun_beside, counting.most, complaints) == (False, 1, [])


def test_words_of_one_long_run() -> None:
    """A text of a million characters without a space costs its words no more than a short one does."""
    text = "a." * 500_000
    started = time.process_time()
    spans, words = words_of(text, [(start, start + 1) for start in range(10_000)], list(range(10_000)))
    assert time.process_time() - started < SOON_SECONDS  # a search of the run for each token takes a minute
    assert (len(spans), set(words)) == (1, {0})


# One connection.


@dataclass
class Timer:
    """A timer of the test's clock."""

    seconds: float
    callback: Callable[[], object]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Clock:
    """The loop of a connection: tasks run as ever, timers when the test says so."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def call_later(self, seconds: float, function: Callable[..., object], *arguments: object) -> Timer:
        self.timers.append(Timer(seconds, lambda: function(*arguments)))
        return self.timers[-1]

    def create_task(self, work: Any) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work)

    def running(self) -> list[float]:
        """The seconds of every timer that is set."""
        return [timer.seconds for timer in self.timers if not timer.is_cancelled]

    def ring(self, seconds: float) -> None:
        """Let the timers of so many seconds ring."""
        due = [timer for timer in self.timers if timer.seconds == seconds and not timer.is_cancelled]
        assert due, f"no timer of {seconds} s in {self.running()}"
        for timer in due:
            timer.is_cancelled = True
            timer.callback()


class Wire(asyncio.Transport):
    """The other end: keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.waiting_bytes = 0
        self.end: str | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.end == "lost":
            raise RuntimeError("the handler is closed")  # as uvloop's transports do
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes

    def is_closing(self) -> bool:
        return self.end is not None

    def close(self) -> None:
        self.end = self.end or "closed"

    def abort(self) -> None:
        self.end = "aborted"

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


@dataclass
class Caller:
    """A connection of which the test is the caller."""

    connection: Connection
    wire: Wire
    clock: Clock
    scopes: list[Any] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def send(self, data: bytes) -> None:
        self.connection.data_received(data)

    async def settle(self) -> None:
        """Let every task go as far as it can."""
        for _ in range(20):
            await asyncio.sleep(0)

    def lose(self) -> None:
        """Close the caller's end."""
        self.wire.end = "lost"
        self.connection.connection_lost(None)


@pytest.fixture
async def caller() -> Caller:
    """A new connection to an app that reads the body and, once the gate is open, answers 200."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        caller.scopes.append(scope)
        message = await receive()
        while message.get("more_body"):
            message = await receive()
        if message["type"] == "http.disconnect":
            caller.ends.append("disconnect")
            return
        leaving = asyncio.ensure_future(receive())
        opening = asyncio.ensure_future(caller.gate.wait())
        await asyncio.wait((leaving, opening), return_when=asyncio.FIRST_COMPLETED, timeout=WAIT_SECONDS)
        caller.ends.append("answer" if opening.done() else "disconnect")
        for task in (leaving, opening):
            task.cancel()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none", access_log=False)
    config.load()
    clock, wire = Clock(), Wire()
    connection = Connection(config, ServerState(), {}, asyncio.get_running_loop())
    connection.loop = clock  # type: ignore[assignment]  # has what the protocol uses
    caller = Caller(connection, wire, clock)
    connection.connection_made(wire)
    return caller


GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"

LARGE = {
    "many small headers": GET + b"A: b\r\n" * (MAX_HEAD_BYTES // 6 + 1),
    "one header that does not end": GET + b"A: " + b"b" * 4 * MAX_HEAD_BYTES,
    "one header that ends": GET + b"A: " + b"b" * MAX_HEAD_BYTES + b"\r\n\r\n",
    "a long address": b"GET /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\n\r\n",
    "a chunk's extensions": b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"a" * 4 * MAX_HEAD_BYTES,
    "trailers": b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"A: b\r\n" * (MAX_HEAD_BYTES // 6 + 1),
    "empty lines": b"\r\n" * MAX_HEAD_BYTES,
}


@pytest.mark.parametrize("size", [100, 65_536])
@pytest.mark.parametrize("sent", LARGE.values(), ids=LARGE)
async def test_heads_are_bounded(caller: Caller, sent: bytes, size: int) -> None:
    """Whatever is no body ends the connection once it is larger than a head may be, in whatever pieces it comes."""
    received = 0
    for start in range(0, len(sent), size):
        if caller.wire.is_closing():
            break
        caller.send(sent[start : start + size])
        received += size
    await caller.settle()
    assert caller.wire.written.startswith(b"HTTP/1.1 431 ")
    assert re.search(rb"\r\nX-Request-ID: [0-9a-f]{32}\r\n", caller.wire.written)
    assert caller.wire.end == "closed"
    assert received <= MAX_HEAD_BYTES + size * 2 + len(POST) * 2


async def test_honest_heads_and_bodies_pass(caller: Caller) -> None:
    """A head of half the limit, and a body of many times as much, are received; so are ten such requests in a row."""
    caller.gate.set()
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 400000\r\nA: " + b"b" * (MAX_HEAD_BYTES // 2) + b"\r\n\r\n"
    for number in range(1, 11):
        caller.send(head)
        for _ in range(4):
            caller.send(b" " * 100_000)
            await caller.settle()
        assert caller.wire.written.count(b"HTTP/1.1 200 OK") == number
    assert not caller.wire.is_closing()


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"GET", GET, GET + b"A:", POST, POST + b"12"])
async def test_whoever_does_not_send_is_let_go(caller: Caller, sent: bytes) -> None:
    """A request that is not complete in time, or not even begun, ends its connection; the app learns of it."""
    if sent:
        caller.send(sent)
    await caller.settle()
    caller.clock.ring(RECEIVE_SECONDS)
    assert caller.wire.end == "closed"
    caller.lose()
    await caller.settle()
    assert caller.ends == (["disconnect"] if sent.startswith(POST) else [])
    assert caller.clock.running() == []


async def test_waiting_for_an_answer_is_no_fault(caller: Caller) -> None:
    """Nothing runs out while a complete request is worked on, not even for a second one that has only begun."""
    caller.send(POST + b"1234")
    await caller.settle()
    assert caller.clock.running() == []
    caller.send(GET)
    caller.clock.ring(RECEIVE_SECONDS)
    assert not caller.wire.is_closing()
    caller.gate.set()
    await caller.settle()
    assert caller.ends == ["answer"]
    caller.clock.ring(RECEIVE_SECONDS)
    assert caller.wire.end == "closed"


async def test_whoever_does_not_read_is_let_go(caller: Caller) -> None:
    """An answer of which nothing has been taken for a while is dropped; one that is read slowly is not."""
    caller.wire.waiting_bytes = 1_000_000
    caller.connection.pause_writing()
    for waiting in (900_000, 800_000):
        caller.wire.waiting_bytes = waiting
        caller.clock.ring(STALL_SECONDS)
        assert not caller.wire.is_closing()
    caller.clock.ring(STALL_SECONDS)
    assert caller.wire.end == "aborted"


async def test_an_answer_that_was_read_is_not_watched(caller: Caller) -> None:
    """The watch ends with what it watches."""
    caller.connection.pause_writing()
    assert STALL_SECONDS in caller.clock.running()
    caller.connection.resume_writing()
    assert STALL_SECONDS not in caller.clock.running()


async def test_a_pipelining_caller_leaves(caller: Caller, caplog: pytest.LogCaptureFixture) -> None:
    """The request that runs hears of it, though another came after it; those behind it never start; no error is
    logged.
    """
    caller.send((POST + b"1234") * 3)
    await caller.settle()
    caller.lose()
    await caller.settle()
    assert (len(caller.scopes), caller.ends) == (1, ["disconnect"])
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"FOO / HTTP/1.1\r\n\r\n",
        b"GET /secret HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"GET /secret HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    ],
)
async def test_callers_cannot_flood_the_log(caller: Caller, sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """What anybody can send at will is logged at no level that is on, and an address at none at all."""
    with caplog.at_level(logging.DEBUG):
        caller.gate.set()
        caller.send(sent)
        await caller.settle()
    assert caller.wire.written.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 200 "))
    assert [record for record in caplog.records if record.levelno >= logging.INFO] == []
    assert "secret" not in caplog.text


async def test_a_connection_that_stops_is_closed_once(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the stop of a server one that nothing is answered on is closed, unless it is closing already: a second time,
    and TLS of newer Pythons forgets what it has not sent.
    """
    closed: list[str] = []
    monkeypatch.setattr(caller.wire, "close", lambda: closed.append("closed"))
    caller.connection.shutdown()
    assert closed == ["closed"]
    caller.wire.end = "closed"
    caller.connection.shutdown()
    assert closed == ["closed"]
