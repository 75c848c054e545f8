"""Faults at the steps of the flow that are not the queue's: reading a text, and the clock.

Those of the queue and of the worker are in test_batcher.py, test_worker.py and test_watchdog.py, and each in a real
process in tests/e2e/test_faults.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from app.service import INLINE_CHARACTERS, LONG_CHARACTERS
from model.contract import EncodeInput
from tests.app.conftest import Served, until

pytestmark = pytest.mark.anyio

YEAR_SECONDS = 365 * 86_400.0


class PanicException(BaseException):
    """What libraries in Rust raise; no Exception."""


def failing_on(cue: str, encode: Callable[..., list[EncodeInput]], error: BaseException) -> Callable[..., Any]:
    """Make a tokenizer that fails on texts with the cue."""

    def wrapped(texts: Sequence[str], **options: Any) -> list[EncodeInput]:
        if any(cue in text for text in texts):
            raise error
        return encode(texts, **options)

    return wrapped


@pytest.mark.parametrize("length", [1, INLINE_CHARACTERS + 1, LONG_CHARACTERS - 100])
@pytest.mark.parametrize("error", [ValueError("no"), MemoryError(), PanicException("unwrap on None")])
async def test_a_tokenizer_that_fails(
    server: Served, monkeypatch: pytest.MonkeyPatch, length: int, error: BaseException
) -> None:
    """On the event loop or on a thread, raised or panicked: its caller gets a 500, the others their own answers."""
    right = (await server.encode("the cat sat"))["embeddings"]
    encode = server.embedder.tokenizer.encode
    monkeypatch.setattr(server.embedder.tokenizer, "encode", failing_on("dog", encode, error))
    bad, *good = await asyncio.gather(
        server.post("/encode", {"texts": "dog" + " a" * (length // 2)}),
        *(server.encode("the cat sat") for _ in range(3)),
    )
    assert (bad.status_code, bad.json()["code"]) == (500, "internal_error")
    assert "x-request-id" in bad.headers
    for answer in good:
        np.testing.assert_allclose(answer["embeddings"], right, atol=1e-6)
    assert server.sample("eyeline_errors_total", code="internal_error") == 1
    assert server.sample("eyeline_requests_total", route="/encode", status=500) == 1
    assert server.sample("eyeline_inflight_requests") == 0
    assert server.sample("eyeline_queue_texts", model="tiny") == 0
    assert server.state.is_ready
    await server.encode("the cat sat")


@pytest.mark.parametrize("jump", [YEAR_SECONDS, -YEAR_SECONDS])
async def test_a_clock_that_jumps(server: Served, monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    """Setting the machine's clock a year forth or back while texts run and wait fails nobody and delays nobody."""
    service = server.state.service
    assert service is not None
    service.timeout_seconds = 60.0
    server.embedder.gate.clear()
    tasks = [asyncio.create_task(server.post("/encode", {"texts": text})) for text in ("the cat", "a dog")]
    await until(lambda: server.sample("eyeline_inflight_requests") == 2)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + jump)
    server.embedder.gate.set()
    for response in await asyncio.gather(*tasks):
        assert response.status_code == 200
        timings = [float(part.partition("dur=")[2]) for part in response.headers["server-timing"].split(",")]
        assert all(0 <= milliseconds < 60_000 for milliseconds in timings)
    assert (await server.client.get("/health/ready")).status_code == 200
    assert server.sample("eyeline_rejected_total", model="tiny", reason="deadline_exceeded") == 0
