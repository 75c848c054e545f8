"""What no honest client sends has its documented answer: never a 500, never an echo, never much of it."""

from __future__ import annotations

import gzip
import json
import random
import socket
import threading
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import httpx
import numpy as np
import pytest

from tests.e2e.conftest import PATIENCE_SECONDS, Server, wait_for

pytestmark = pytest.mark.e2e

MARKER = "MARKER77"
JSON = {"Content-Type": "application/json"}
MAX_ERROR_BYTES = 4_000


def assert_refused(response: httpx.Response, status: int, code: str) -> None:
    """One small problem document that repeats nothing."""
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert len(response.content) < MAX_ERROR_BYTES
    assert MARKER.lower() not in (response.text + str(response.headers)).lower()


@pytest.fixture(autouse=True)
def still_well(server: Server) -> Any:
    """After each attack the server serves, and has met no fault of its own."""
    yield
    assert server.client.get("/health").status_code == 200
    assert server.sample("eyeline_errors_total", code="internal_error") == 0
    assert server.sample("eyeline_queue_texts") == 0


STRANGE_TEXTS = {
    "empty": "",
    "spaces": "   \t\n  ",
    "zero-width space": "\u200b",
    "zero-width joiners": "\u200d" * 50,
    "NUL": "a\x00b",
    "control characters": "\x01\x02\x7f\x80\x9f",
    "right-to-left override": "\u202eabc",
    "combining marks": "e" + "\u0301" * 200,
    "emoji": "\U0001f469\u200d\U0001f680" * 20,
    "private use": "\ue000\U000f0000\uffff",
    "byte order mark": "\ufeffhello",
    "one long word": "a" * 10_000,
}


@pytest.mark.parametrize("text", STRANGE_TEXTS.values(), ids=STRANGE_TEXTS.keys())
def test_a_strange_text_is_a_text(server: Server, text: str) -> None:
    """It encodes to a finite unit vector, is the same alone and among others, and its tokens can be shown."""
    alone = np.array(server.encode(text)["embeddings"])
    body = server.encode(["hello", text, "world " * 50], attention={"items": [1]})
    assert np.isfinite(alone).all()
    assert np.linalg.norm(alone) == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(body["embeddings"][1], alone[0], atol=1e-5)
    tokens = body["attention"][1]["tokens"]
    assert all(0 <= start <= end <= len(text) for start, end in zip(tokens["start"], tokens["end"], strict=True))


def nested(depth: int) -> bytes:
    """Brackets in brackets."""
    return b'{"texts":' + b"[" * depth + b'"MARKER77"' + b"]" * depth + b"}"


ATTACKS: dict[str, tuple[bytes, dict[str, str], int, str]] = {
    "empty body": (b"", {}, 400, "malformed_json"),
    "no JSON": (b"MARKER77", {}, 400, "malformed_json"),
    "half a body": (b'{"texts":["MARKER77"', {}, 400, "malformed_json"),
    "trailing comma": (b'{"texts":["MARKER77",]}', {}, 400, "malformed_json"),
    "two values": (b'{"texts":["a"]}{"texts":["MARKER77"]}', {}, 400, "malformed_json"),
    "lone surrogate, escaped": (b'{"texts":"MARKER77 \\ud800"}', {}, 400, "malformed_json"),
    "lone surrogate, raw": (b'{"texts":"MARKER77 \xed\xa0\x80"}', {}, 400, "malformed_json"),
    "no UTF-8": (b'{"texts":"MARKER77 \xff\xfe"}', {}, 400, "malformed_json"),
    "UTF-16": ('{"texts":"MARKER77"}'.encode("utf-16"), {}, 400, "malformed_json"),
    "UTF-8 with a byte order mark": (b'\xef\xbb\xbf{"texts":"MARKER77"}', {}, 400, "malformed_json"),
    "raw control character": (b'{"texts":"MARKER77 \x00"}', {}, 400, "malformed_json"),
    "100,000 brackets": (nested(100_000), {}, 400, "malformed_json"),
    "brackets in brackets": (nested(50), {}, 422, "invalid_request"),
    "NaN": (b'{"texts":NaN}', {}, 422, "invalid_request"),
    "Infinity": (b'{"texts":["a"],"dimensions":Infinity}', {}, 422, "invalid_request"),
    "NaN in a reserved field": (b'{"texts":"a","attention":{"min_weight":NaN}}', {}, 422, "invalid_request"),
    "a number of 5,000 digits": (b'{"texts":["a"],"dimensions":' + b"7" * 5_000 + b"}", {}, 400, "malformed_json"),
    "a layer of 5,000 digits": (
        b'{"texts":["a"],"attention":{"layers":[' + b"7" * 5_000 + b"]}}",
        {},
        400,
        "malformed_json",
    ),
    "a layer of 20 digits": (
        b'{"texts":["a"],"attention":{"layers":[' + b"7" * 20 + b"]}}",
        {},
        422,
        "invalid_request",
    ),
    "a number instead of a text": (b'{"texts":5}', {}, 422, "invalid_request"),
    "null": (b'{"texts":["MARKER77",null]}', {}, 422, "invalid_request"),
    "a list instead of an object": (b'["MARKER77"]', {}, 422, "invalid_request"),
    "a string instead of an object": (b'"MARKER77"', {}, 422, "invalid_request"),
    "no texts": (b'{"texts":[]}', {}, 422, "invalid_request"),
    "a number instead of a switch": (b'{"texts":"MARKER77","normalize":1}', {}, 422, "invalid_request"),
    "an unknown value": (b'{"texts":"a","encoding_format":"MARKER77"}', {}, 422, "invalid_request"),
    "a huge field name": (b'{"texts":"a","' + b"x" * 100_000 + b'MARKER77":1}', {}, 422, "invalid_request"),
    "10,000 unknown fields": (
        json.dumps({"texts": "a", **{f"x{number}": MARKER for number in range(10_000)}}).encode(),
        {},
        422,
        "invalid_request",
    ),
    "another server's field": (b'{"inputs":"MARKER77"}', {}, 422, "invalid_request"),
    "an unknown model": (b'{"texts":"a","model":"MARKER77"}', {}, 404, "model_not_found"),
    "an unknown prompt": (b'{"texts":"a","prompt_name":"MARKER77"}', {}, 422, "unknown_prompt"),
    "2 MB in one text": (b'{"texts":"' + b"MARKER77 " * 233_000 + b'"}', {}, 413, "text_too_long"),
    "5 MB": (b'{"texts":"' + b"MARKER77 " * 580_000 + b'"}', {}, 413, "body_too_large"),
    "100,000 texts": (json.dumps({"texts": ["MARKER77"] * 100_000}).encode(), {}, 413, "too_many_texts"),
    "all maps of 100 long texts": (
        json.dumps({"texts": ["cat " * 300] * 100, "attention": {"layers": "all"}}).encode(),
        {},
        413,
        "attention_too_large",
    ),
    "no content type": (b'{"texts":"MARKER77"}', {"Content-Type": ""}, 415, "unsupported_media_type"),
    "a form": (b"texts=MARKER77", {"Content-Type": "application/x-www-form-urlencoded"}, 415, "unsupported_media_type"),
    "plain text": (b'{"texts":"MARKER77"}', {"Content-Type": "text/MARKER77"}, 415, "unsupported_media_type"),
    "gzip": (gzip.compress(b'{"texts":"MARKER77"}'), {"Content-Encoding": "gzip"}, 415, "unsupported_media_type"),
    "a gzip bomb": (gzip.compress(b" " * 100_000_000, 1), {"Content-Encoding": "gzip"}, 415, "unsupported_media_type"),
    "another bomb": (
        zlib.compress(b" " * 100_000_000, 1),
        {"Content-Encoding": "deflate"},
        415,
        "unsupported_media_type",
    ),
    "two encodings": (b"x", {"Content-Encoding": "identity, gzip"}, 415, "unsupported_media_type"),
    "a time-out in words": (b'{"texts":"a"}', {"X-Request-Timeout": "MARKER77"}, 422, "invalid_request"),
    "an unknown encoding": (b"x", {"Content-Encoding": "MARKER77"}, 415, "unsupported_media_type"),
    "an unknown Accept": (b'{"texts":"MARKER77"}', {"Accept": "text/MARKER77"}, 406, "not_acceptable"),
}


@pytest.mark.parametrize(("content", "headers", "status", "code"), ATTACKS.values(), ids=ATTACKS.keys())
def test_each_attack_has_its_answer(
    server: Server, content: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    """Status and code are as documented; the answer is small and holds nothing of what was sent."""
    assert_refused(server.client.post("/encode", content=content, headers=JSON | headers), status, code)


def test_duplicate_keys(server: Server) -> None:
    """The last one counts, as in most parsers; the first leaves no trace."""
    response = server.client.post("/encode", content=b'{"texts":"MARKER77","texts":"cat"}', headers=JSON)
    assert response.status_code == 200
    np.testing.assert_allclose(response.json()["embeddings"], server.encode("cat")["embeddings"], atol=1e-6)
    assert MARKER not in response.text


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/encode", 405, "method_not_allowed"),
        ("DELETE", "/encode", 405, "method_not_allowed"),
        ("POST", "/health", 405, "method_not_allowed"),
        ("PURGE", "/encode", 405, "method_not_allowed"),
        ("GET", f"/{MARKER}", 404, "not_found"),
        ("POST", f"/encode/{MARKER}", 404, "not_found"),
        ("GET", f"/encode%00{MARKER}", 404, "not_found"),
        ("GET", "/../../etc/passwd", 404, "not_found"),
        ("GET", f"/static-offline-docs/..%2f..%2f{MARKER}", 404, "not_found"),
        ("GET", "/" + MARKER * 1_000, 404, "not_found"),
    ],
)
def test_what_is_not_served(server: Server, method: str, path: str, status: int, code: str) -> None:
    """Wrong methods and unknown paths are problems like any other, and add no metric series."""
    response = server.client.request(method, path, content=b"{}", headers=JSON)
    assert_refused(response, status, code)
    if status == 405:
        assert response.headers["allow"]
    assert MARKER not in server.client.get("/metrics").text


def test_a_caller_cannot_write_into_the_log(server: Server) -> None:
    """Every line is JSON, whatever came in; no text and no path of a caller's is in any of them."""
    server.client.post("/encode", json={"texts": MARKER}, headers={"X-Request-ID": f"{MARKER}\t forged"})
    assert server.log_entries()
    assert MARKER not in server.log


def exchange(server: Server, request: bytes) -> bytes:
    """Send bytes and read until the server closes."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as connection:
        connection.sendall(request)
        with suppress(OSError):  # where the server has closed by now, the reading below finds out
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := connection.recv(65_536):
            answer += chunk
    return answer


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"MARKER77\r\n\r\n",
        b"POST /encode HTTP/9.9\r\nHost: x\r\n\r\nMARKER77",
        b"POST /encode HTTP/1.1\r\nHost: x\r\nContent-Length: MARKER77\r\n\r\n",
        b"POST /encode HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03MARKER77",
        b"POST /encode HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nMARKER77",
        b"POST /encode HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nMARKER",
        b"POST /encode HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nMARKER77\r\n",
        b"POST /encode HTTP/1.1\r\nHost: x\r\nX: a\r\n MARKER77: b\r\nContent-Length: -1\r\n\r\n",
    ],
    ids=[
        *("no HTTP", "a version of tomorrow", "a length that is no number", "a negative length", "TLS"),
        *("a length and chunks", "two lengths", "a chunk that is no number", "a folded header"),
    ],
)
def test_what_is_no_http(server: Server, request_bytes: bytes) -> None:
    """Answered with a 400 of the HTTP server, or not at all."""
    answer = exchange(server, request_bytes)
    assert answer.startswith(b"HTTP/1.1 400 ") or answer == b""
    assert MARKER.encode() not in answer


def test_a_caller_that_hangs_up_inside_the_body(server: Server) -> None:
    """Half of an announced body and no more: nobody is answered, and it counts as a caller that left."""
    left = {"route": "/encode", "status": "499"}
    try:
        before = server.sample("eyeline_requests_total", **left)
    except LookupError:
        before = 0.0
    head = b"POST /encode HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    exchange(server, head + b'{"texts":"MARKER77')

    def is_counted() -> bool:
        with suppress(LookupError):  # until the first has left
            return server.sample("eyeline_requests_total", **left) == before + 1
        return False

    wait_for(is_counted, "that he is counted")


def address_of(server: Server) -> tuple[str, int]:
    """Where the server listens."""
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)


HEAD = b"POST /encode HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
NUM_HOLDERS = 200


@contextmanager
def holding(server: Server, number: int, *, begun: bytes = b"", sending: bytes = b"") -> Iterator[None]:
    """Hold connections on which ``begun`` is sent, and then a byte of ``sending`` a second, or none at all."""
    done = threading.Event()
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_connection(address_of(server))) for _ in range(number)]

        for connection in held:
            connection.sendall(begun)

        def send() -> None:
            for byte in sending:
                for connection in held:
                    with suppress(OSError):  # let go in the meantime
                        connection.send(bytes([byte]))
                if done.wait(1.0):
                    return

        sender = threading.Thread(target=send)
        sender.start()
        try:
            yield
        finally:
            done.set()
            sender.join()


def test_connections_that_are_held_cost_others_nothing(server: Server) -> None:
    """200 that connect and send nothing, 200 that send a byte a second, in the head or in the body: meanwhile normal
    callers, each on a connection of its own, get their answers, and afterwards every descriptor is given back.
    """
    expected = server.encode(["The cat sat.", "A dog barked."])["embeddings"]
    descriptors = server.sample("process_open_fds")
    with (
        holding(server, NUM_HOLDERS),
        holding(server, NUM_HOLDERS // 2, sending=HEAD),
        holding(
            server, NUM_HOLDERS // 2, begun=HEAD + b"Content-Length: 1000\r\n\r\n", sending=b'{"texts": ["a", "b"]'
        ),
    ):
        wait_for(lambda: server.sample("process_open_fds") >= descriptors + 2 * NUM_HOLDERS, "that all are held")
        for connection in range(20):
            with httpx.Client(base_url=server.url, timeout=PATIENCE_SECONDS) as normal:
                assert normal.get("/health/ready").status_code == 200
                response = normal.post("/encode", json={"texts": ["The cat sat.", "A dog barked."]})
                assert response.status_code == 200, connection
                np.testing.assert_allclose(response.json()["embeddings"], expected, atol=1e-6)
    wait_for(lambda: server.sample("process_open_fds") <= descriptors + 5, "the end of the held connections")


def test_a_body_without_end(server: Server) -> None:
    """A gigabyte in chunks: refused once it is over the limit, while it still comes, and kept nowhere."""
    before = server.sample("process_resident_memory_bytes")
    piece = b"%x\r\n%b\r\n" % (2**20, b" " * 2**20)
    with socket.create_connection(address_of(server), timeout=PATIENCE_SECONDS) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        with suppress(OSError):  # the server may close the connection as soon as it has answered
            for _ in range(17):
                connection.sendall(piece)
        answer = connection.recv(65_536)
        with suppress(OSError):
            for _ in range(17, 1024):
                connection.sendall(piece)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"body_too_large" in answer
    assert server.sample("process_resident_memory_bytes") < before + 64 * 2**20


def test_many_headers(server: Server) -> None:
    """1,000 are an honest request's; 10,000, over 64 KB, are refused with 431 (or, as more of them still come, by the
    end of the connection), whatever they are called, and the request behind them is not run.
    """
    headers = {f"x-{index}": str(index) for index in range(1_000)}
    assert server.client.post("/encode", json={"texts": "a"}, headers=headers).status_code == 200
    before = server.sample("eyeline_requests_total", route="/encode", status="200")
    many = b"".join(b"x-%d: %d\r\n" % (index, index) for index in range(10_000))
    with suppress(ConnectionError):
        answer = exchange(server, HEAD + many + b'Content-Length: 13\r\n\r\n{"texts":"a"}')
        assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")
    assert server.sample("eyeline_requests_total", route="/encode", status="200") == before


def test_noise(server: Server) -> None:
    """Bytes of no protocol, drawn at random: each connection is answered with 400, or closed."""
    draw = random.Random(7)
    for _ in range(50):
        with suppress(ConnectionError):
            answer = exchange(server, draw.randbytes(draw.choice((1, 10, 1_000, 100_000))))
            assert answer == b"" or answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 "))
