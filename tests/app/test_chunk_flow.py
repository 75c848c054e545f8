"""The flow of a request for chunks: limits, names, metrics."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.conftest import Serve, Served
from tests.app.routes.test_encode import assert_problem
from tests.app.routes.test_encode_chunks import SENTENCES, TEXTS

pytestmark = pytest.mark.anyio


async def test_chunks_count_against_the_texts_of_a_request(serve: Serve) -> None:
    """All texts together: 413 with the limit, and how far the texts have come; nothing is run."""
    async with serve(max_texts=5) as server:
        chunks = {"unit": "token", "size": 3}
        sent = {"texts": ["cat " * 9, "cat " * 9], "chunks": chunks}
        problem = assert_problem(await server.post("/encode", sent), 413, "too_many_chunks", "texts[1]", 5)
        assert problem["actual"] == 6
        assert server.embedder.batches == []
        assert (await server.post("/encode", {**sent, "texts": ["cat " * 9, "cat " * 6]})).status_code == 200


async def test_tokens_count_against_the_queue(serve: Serve) -> None:
    """Chunks that overlap are more tokens than their text has: what would not fit an empty queue is 413."""
    async with serve(max_queue_tokens=2048) as server:
        sent = {"texts": "cat " * 600, "chunks": {"unit": "token", "size": 30, "overlap": 28}}
        problem = assert_problem(await server.post("/encode", sent), 413, "request_too_large", "texts", 2048)
        assert problem["actual"] == 286 * 32


async def test_an_error_while_running_names_the_callers_text(server: Served) -> None:
    """Not the place of the chunk among all that is run."""

    def fail(inputs: Any) -> None:
        if any(item.num_tokens == 3 for item in inputs):
            raise RuntimeError("a bug")

    server.embedder.before_run = fail
    sent = {"texts": ["The cat sat. A dog barked.", "cat"], "chunks": SENTENCES}
    assert_problem(await server.post("/encode", sent), 500, "inference_failed", "texts[1]")


async def test_metrics_count_what_is_run(server: Served) -> None:
    """Each chunk by itself is a text to the model, a late text is one."""
    await server.encode(TEXTS[0], chunks=SENTENCES)
    assert server.sample("eyeline_texts_total", model="tiny", route="/encode") == 3
    await server.encode(TEXTS[0], chunks=SENTENCES | {"mode": "late"})
    assert server.sample("eyeline_texts_total", model="tiny", route="/encode") == 4
