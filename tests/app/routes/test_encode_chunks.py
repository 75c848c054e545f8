"""Chunks through HTTP: ``chunks`` of /encode. Where texts are cut, and late chunking: tests/model/test_chunks.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.schemas.chunks import ChunksResponse
from tests.app.conftest import Served
from tests.app.routes.test_encode import DIMENSIONS, assert_problem

pytestmark = pytest.mark.anyio

TEXTS = ["The cat sat on the mat. A dog barked! Hello world.", "", "Hello world, " + "a cat on a mat, " * 12 + "a dog."]
SENTENCES = {"unit": "sentence", "size": 1}


@pytest.mark.parametrize("mode", ["separate", "late"])
async def test_the_answer_field_by_field(server: Served, mode: str) -> None:
    """One entry per text, columns with one entry per chunk; counts are of what was run."""
    body = await server.encode(TEXTS, chunks={"unit": "token", "size": 10, "overlap": 2, "mode": mode})
    ChunksResponse.model_validate(body, strict=True)
    assert list(body) == ["model", "dimensions", "chunks", "num_tokens", "num_tokens_total", "truncated"]
    assert [list(entry) for entry in body["chunks"]] == [["start", "end", "num_tokens", "truncated", "embeddings"]] * 3
    assert [len(entry["start"]) for entry in body["chunks"]] == [2, 1, 10]
    assert all(np.shape(entry["embeddings"]) == (len(entry["end"]), DIMENSIONS) for entry in body["chunks"])
    assert body["chunks"][1]["num_tokens"] == [0]
    assert sum(body["num_tokens"]) == sum(sum(item.num_tokens for item in batch) for batch in server.embedder.batches)
    whole = await server.encode(TEXTS)
    assert body["num_tokens_total"] == whole["num_tokens_total"]
    assert body["truncated"] == [False] * 3


async def test_a_separate_chunk_is_a_text(server: Served) -> None:
    """Its embedding is that of its text, sliced by its offsets."""
    body = await server.encode(TEXTS[0], chunks=SENTENCES)
    [entry] = body["chunks"]
    texts = [TEXTS[0][start:end] for start, end in zip(entry["start"], entry["end"], strict=True)]
    assert texts == ["The cat sat on the mat.", "A dog barked!", "Hello world."]
    np.testing.assert_allclose(entry["embeddings"], (await server.encode(texts))["embeddings"], atol=1e-5)


async def test_a_late_chunk_has_seen_its_text(server: Served) -> None:
    """One pass over the text, and the states of a chunk's tokens pooled; other than by itself."""
    late = await server.encode(TEXTS[0], chunks=SENTENCES | {"mode": "late"})
    assert [[item.num_tokens for item in batch] for batch in server.embedder.batches] == [[14 + 2]]
    separate = await server.encode(TEXTS[0], chunks=SENTENCES)
    assert late["chunks"][0]["end"] == separate["chunks"][0]["end"]
    assert np.abs(np.subtract(late["chunks"][0]["embeddings"], separate["chunks"][0]["embeddings"])).max() > 0.01


async def test_a_chunk_that_was_cut_says_so(server: Served) -> None:
    """And so does its text, and the metric; without truncation it is 413 with the numbers."""
    text = f"Hello. {'A cat ' * 20}sat. World."
    for mode in ("separate", "late"):
        body = await server.encode(["a", text], chunks=SENTENCES | {"mode": mode})
        assert body["chunks"][1]["truncated"] == [False, True, False]
        assert body["truncated"] == [False, True]
        sent = {"texts": ["a", text], "truncate": False, "chunks": SENTENCES | {"mode": mode}}
        problem = assert_problem(await server.post("/encode", sent), 413, "text_too_long", "texts[1]", 30)
        assert problem["actual"] == 42
    assert server.sample("eyeline_truncated_texts_total", model="tiny") == 2


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"chunks": {"unit": "token", "size": 4, "overlap": 4}}, "chunks.overlap", "chunks_not_possible"),
        ({"chunks": {"unit": "token", "size": 31}}, "chunks.size", "chunks_not_possible"),
        ({"chunks": {"unit": "token"}}, "chunks.size", "invalid_request"),
        ({"chunks": {"unit": "word", "size": 3}}, "chunks.unit", "invalid_request"),
        ({"chunks": SENTENCES, "texts": ["a", ["a", "b"]]}, "texts[1]", "invalid_request"),
        ({"chunks": SENTENCES, "attention": {}}, "attention", "invalid_request"),
        ({"chunks": SENTENCES, "dimensions": 17}, "dimensions", "dimensions_out_of_range"),
        ({"chunks": SENTENCES, "output_dtype": "binary", "dimensions": 7}, "output_dtype", "output_dtype_not_possible"),
        ({"chunks": SENTENCES, "prompt_name": "no"}, "prompt_name", "unknown_prompt"),
    ],
)
async def test_what_has_no_meaning_is_refused(server: Served, fields: dict[str, Any], param: str, code: str) -> None:
    """Named, before any work."""
    assert_problem(await server.post("/encode", {"texts": "a", **fields}), 422, code, param)
    assert server.embedder.batches == []
