"""Which requests get a line in the log, and what stands in it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.access_log import AccessLog, is_sampled
from app.facts import RequestFacts
from app.log import configure_logging, new_request_id
from tests.app.conftest import Serve

pytestmark = pytest.mark.usefixtures("logging_as_before")

IDS = [new_request_id() for _ in range(4_000)]


def logged(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The lines of the log since the last call."""
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def write(log: AccessLog, status: int = 200, seconds: float = 0.1, request_id: str = "a") -> None:
    """Log a request of which nothing else is known."""
    log.write(request_id, "POST", "/encode", status, seconds, RequestFacts())


@pytest.mark.parametrize("status", [200, 204, 304, 400, 404, 413, 422, 429, 499, 501, 503, 504])
def test_floods_do_not_reach_the_log(status: int, capsys: pytest.CaptureFixture[str]) -> None:
    """What callers, overload or a draining server cause at will is a line at debug only."""
    configure_logging("info")
    write(AccessLog(), status)
    assert logged(capsys) == []
    configure_logging("debug")
    write(AccessLog(), status)
    assert logged(capsys)[0]["level"] == "debug"


@pytest.mark.parametrize("status", [500, 502])
def test_faults_are_errors(status: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A fault of the server's own is an error, sample or not, with method, route template, status and seconds."""
    configure_logging("error")
    AccessLog().write("a", "POST", "/models/{name}/encode", status, 0.12345678, RequestFacts())
    (line,) = logged(capsys)
    assert line["level"] == "error"
    assert line["message"] == f"POST /models/{{name}}/encode {status}"
    fields = {"method": "POST", "route": "/models/{name}/encode", "status": status, "seconds": 0.123457}
    assert fields.items() <= line.items()


def test_a_slow_request_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    """Longer than the setting, not as long; without the setting none is slow."""
    configure_logging("info")
    log = AccessLog(slow_seconds=0.5)
    write(log, seconds=0.5)
    assert logged(capsys) == []
    write(log, seconds=0.51)
    assert [line["level"] for line in logged(capsys)] == ["warning"]
    write(AccessLog(), seconds=1e6)
    assert logged(capsys) == []


def test_the_line_says_what_the_request_was_made_of(capsys: pytest.CaptureFixture[str]) -> None:
    """Key's name, model, texts, tokens, cuts, seconds of each stage, of a request that ran; of others, none of them."""
    configure_logging("info")
    facts = RequestFacts(key="search")
    facts.took("tokenize", 1.0, 1.25)
    facts.took("queue", 2.0, 2.5)
    facts.took("queue", 3.0, 3.5)
    facts.ran("base", 3, 40, 1)
    AccessLog(sample=1).write("a", "POST", "/encode", 200, 2.0, facts)
    (line,) = logged(capsys)
    counts = {"key": "search", "model": "base", "num_texts": 3, "num_tokens": 40, "truncated": 1}
    assert {**counts, "tokenize_seconds": 0.25, "queue_seconds": 1.0, "level": "info"}.items() <= line.items()
    write(AccessLog(sample=1), 404)
    (line,) = logged(capsys)
    assert not {"key", "model", "num_texts", "tokenize_seconds"} & line.keys()


def test_a_sample_is_about_its_share() -> None:
    """0 holds nothing, 1 everything, a tenth about a tenth."""
    assert not any(is_sampled(name, 0.0) for name in IDS)
    assert all(is_sampled(name, 1.0) for name in IDS)
    assert 0.07 < sum(is_sampled(name, 0.1) for name in IDS) / len(IDS) < 0.13


def test_a_sample_is_the_same_everywhere() -> None:
    """The id alone decides, in every process and forever; a larger sample holds a smaller one."""
    assert [is_sampled(name, 0.5) for name in ("a", "b", "order-66", "0" * 32)] == [False, True, True, False]
    small = {name for name in IDS if is_sampled(name, 0.01)}
    large = {name for name in IDS if is_sampled(name, 0.2)}
    assert small < large


@pytest.mark.anyio
async def test_a_served_request_is_logged_without_its_text(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    """Through the whole app, with every request in the sample: template, counts, the caller's id; no text, no path."""
    configure_logging("info")
    async with serve(access_log_sample=1.0) as server:
        await server.post("/encode", {"texts": ["MARKER", "dog " * 40]}, x_request_id="order-66")
        await server.post("/MARKER", {"texts": "MARKER"})
        await server.post("/models/MARKER/embed", {"inputs": "MARKER"})
    lines = [line for line in logged(capsys) if line["logger"] == "app.requests"]
    assert [(line["route"], line["status"]) for line in lines] == [
        ("/encode", 200),
        ("unmatched", 404),
        ("/models/{name}/embed", 404),
    ]
    assert lines[0]["request_id"] == "order-66"
    assert (lines[0]["num_texts"], lines[0]["truncated"], lines[0]["model"]) == (2, 1, "tiny")
    assert {"tokenize_seconds", "queue_seconds", "inference_seconds", "serialize_seconds"} <= lines[0].keys()
    assert "MARKER" not in str(lines)
