"""What clients of text-embeddings-inference read. Through HTTP: tests/app/routes/test_tei.py, test_shared.py."""

from __future__ import annotations

import json
import time
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from app.plain import PlainRequest
from app.plain_flows import embed, tokenize_whole
from app.service import Service
from app.tei_answers import (
    MAX_NAMES,
    headers_of,
    ignored_header,
    write_comparison,
    write_embeddings,
    write_sparse_vectors,
    write_texts,
    write_token_states,
    write_tokens,
)
from model.contract import Row, SparseVector
from tests.app.conftest import Served

pytestmark = pytest.mark.anyio

SPARSE_ROWS = [
    Row(sparse_vector=SparseVector(np.array(index, dtype=np.int32), np.array(value, dtype=np.float32)))
    for index, value in (([3, 30521], [0.1, 2.0]), ([], []))
]
PARTS = ("x-tokenization-time", "x-queue-time", "x-inference-time")


def service_of(server: Served) -> Service:
    """The running service."""
    assert server.state.service is not None
    return server.state.service


async def test_answers_are_bare_lists(server: Served) -> None:
    """No object around them; numbers are float32's own."""
    encoded = await embed(service_of(server), PlainRequest(["a", "b", "a"]), route="/embed")
    vectors = json.loads(write_embeddings(encoded))
    np.testing.assert_array_equal(np.array(vectors, dtype=np.float32), encoded.embeddings)
    assert json.loads(write_comparison(encoded)) == [
        pytest.approx(float(encoded.embeddings[0] @ encoded.embeddings[1]), abs=1e-6),
        pytest.approx(1, abs=1e-6),
    ]
    states = await embed(service_of(server), PlainRequest(["a"], token_states=True), route="/embed_all")
    np.testing.assert_array_equal(
        np.array(json.loads(write_token_states(states))[0], dtype=np.float32), states.rows[0].token_states
    )
    assert json.loads(write_sparse_vectors(replace(encoded, rows=SPARSE_ROWS))) == [
        [{"index": 3, "value": 0.1}, {"index": 30521, "value": 2.0}],
        [],
    ]
    assert write_sparse_vectors(replace(encoded, rows=[])) == b"[]"


async def test_sparse_vectors_are_written_without_an_object_for_each_weight(server: Served) -> None:
    """What is held at the most is a few times the answer, not the objects of all its weights, ten times it."""
    encoded = await embed(service_of(server), PlainRequest(["a"]), route="/embed")
    vector = SparseVector(np.arange(100, dtype=np.int32), np.linspace(0.1, 2, 100, dtype=np.float32))
    many = replace(encoded, rows=[Row(sparse_vector=vector)] * 1_000)
    write_sparse_vectors(many)
    tracemalloc.start()
    try:
        answer = write_sparse_vectors(many)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(answer)
    assert write_texts(["a", "é"]) == '["a","é"]'.encode()


async def test_times_are_of_the_text_that_came_last(server: Served) -> None:
    """Its waiting and its running, not the longest of each: together they are within the total."""
    request = PlainRequest(["a", "b"])
    encoded = await embed(service_of(server), request, route="/embed")
    encoded.rows[0].queue_seconds, encoded.rows[0].inference_seconds = 0.0105, 0.0059
    encoded.rows[1].queue_seconds, encoded.rows[1].inference_seconds = 0.0109, 0.0039
    headers = headers_of(encoded, request, started=time.perf_counter() - 2.0)
    assert (headers["x-queue-time"], headers["x-inference-time"]) == ("10", "5")
    assert 2_000 <= int(headers["x-total-time"]) < 60_000
    assert int(headers["x-total-time"]) >= sum(int(headers[name]) for name in PARTS)


async def test_offsets_are_bytes_of_what_was_tokenized(server: Served) -> None:
    """Slicing the bytes by them gives each token's text."""
    texts = ["ab é", "the 👩 cat"]
    tokenized, whole = await tokenize_whole(service_of(server), PlainRequest(texts, prompt="ü: "))
    assert whole == ["ü: ab é", "ü: the 👩 cat"]
    for text, tokens in zip(whole, json.loads(write_tokens(tokenized, whole, add_special_tokens=False)), strict=True):
        assert len(tokens) > 2
        for token in tokens:
            assert text.encode()[token["start"] : token["stop"]].decode() == token["text"]


@pytest.mark.parametrize(
    ("names", "header"),
    [
        ([], None),
        (["a", "parameters.b-c_9"], "a,parameters.b-c_9"),
        (["", "a b", "x" * 65, "ü", "a\r\nSet-Cookie: b"], "?,?,?,?,?"),
        ([f"f{index}" for index in range(MAX_NAMES)], ",".join(f"f{index}" for index in range(MAX_NAMES))),
        (["f"] * 1_000, "f,f,f,f,f,f,f,f,..."),
    ],
)
def test_ignored_fields_are_named_safely(names: list[str], header: str | None) -> None:
    """A few of them, and none that could break a header."""
    assert ignored_header(names) == ({} if header is None else {"X-Ignored-Fields": header})
