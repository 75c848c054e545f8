"""text-embeddings-inference's /embed_sparse through HTTP: its vectors, its options, its errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
import safetensors.numpy

from app.routes.writing import INLINE_VALUES
from app.settings import ModelSpec
from model.contract import FloatArray
from model.tokenizer import Text, TokenIds
from tests.app.conftest import Serve, Served
from tests.app.routes.scoring import make_models
from tests.app.routes.test_rerank import LONG, MARKER, ask, assert_tei_error
from tests.tiny import make_bert_folder

pytestmark = pytest.mark.anyio

PATHS = ("/embed_sparse", "/models/sparse/embed_sparse")
TEXTS = ["The cat sat on the mat.", "A dog barked!", "hello world"]


@pytest.fixture
async def server(serve: Serve, tmp_path: Path) -> AsyncIterator[Served]:
    """A sparse model, which is the default, and a model of each other kind."""
    async with serve(model=make_models(tmp_path, "sparse", "embedding", "classifier", "reranker")) as served:
        yield served


def written_out(server: Served, answer: list[list[dict[str, Any]]]) -> FloatArray:
    """Check the form of an answer and write its vectors out: (texts, vocabulary)."""
    vectors = np.zeros((len(answer), server.embedder.info.vocab_size), dtype=np.float32)
    for vector, weights in zip(vectors, answer, strict=True):
        assert {tuple(weight) for weight in weights} <= {("index", "value")}
        indices = [weight["index"] for weight in weights]
        assert indices == sorted(set(indices))
        vector[indices] = [weight["value"] for weight in weights]
        assert (vector[indices] > 0).all()
    return vectors


def expected(server: Served, texts: list[Text | TokenIds], **options: Any) -> FloatArray:
    """The same from the library."""
    embedder = server.embedder
    inputs = embedder.tokenizer.encode(texts, **options)
    vectors = np.zeros((len(texts), embedder.info.vocab_size), dtype=np.float32)
    for vector, row in zip(vectors, embedder.run(inputs, [embedder.own_output] * len(inputs)), strict=True):
        assert row.sparse_vector is not None
        vector[row.sparse_vector.index] = row.sparse_vector.value
    return vectors


@pytest.mark.parametrize("path", PATHS)
async def test_texts_become_lists_of_weights(server: Served, path: str) -> None:
    """Of one text too; what is 0 is left out; ids in place of a text are taken as they are."""
    found = written_out(server, await ask(server, path, inputs=TEXTS))
    np.testing.assert_allclose(found, expected(server, list(TEXTS)), atol=1e-5)
    assert 0 < np.count_nonzero(found) < found.size / 2
    alone = written_out(server, await ask(server, path, inputs=TEXTS[0]))
    np.testing.assert_allclose(alone, found[:1], atol=1e-5)
    [item] = server.embedder.tokenizer.encode(TEXTS[:1])
    by_ids = written_out(server, await ask(server, path, inputs=[item.input_ids, TEXTS[1]]))
    np.testing.assert_allclose(by_ids, found[:2], atol=1e-5)
    assert server.sample("eyeline_texts_total", model="sparse", route=path.replace("/sparse/", "/{name}/")) == 6


async def test_numbers_are_float32s_own(server: Served) -> None:
    """As short as they can be written, and exact."""
    response = await server.post("/embed_sparse", {"inputs": "the cat"})
    [row] = server.embedder.run(server.embedder.tokenizer.encode(["the cat"]), [server.embedder.own_output])
    assert row.sparse_vector is not None
    [weights] = response.json()
    assert np.array([one["value"] for one in weights], dtype=np.float32).tolist() == row.sparse_vector.value.tolist()
    assert max(len(str(one["value"])) for one in weights) < 14
    headers = response.headers
    assert (headers["x-compute-tokens"], headers["x-compute-characters"], headers["x-truncated-count"]) == (
        "4",
        "7",
        "0",
    )


async def test_a_long_text_is_cut_where_it_may_be(server: Served) -> None:
    """At either end, and the headers say so; else it is 413, and nothing is run."""
    for direction, side in (("Right", "right"), ("Left", "left")):
        body = {"inputs": ["a", LONG], "truncate": True, "truncation_direction": direction}
        response = await server.post("/embed_sparse", body)
        found = written_out(server, response.json())
        np.testing.assert_allclose(found, expected(server, ["a", LONG], side=side), atol=1e-5)
        assert response.headers["x-truncated-texts"] == "1"
    server.embedder.batches.clear()
    refused = await server.post("/embed_sparse", {"inputs": ["a", LONG]})
    assert_tei_error(refused, 413, "Validation", "inputs[1]", "32")
    assert server.embedder.batches == []


async def test_unknown_fields_are_named(server: Served) -> None:
    """``normalize`` among them, which means nothing here."""
    response = await server.post("/embed_sparse", {"inputs": "a", "normalize": True})
    assert response.headers["x-ignored-fields"] == "normalize"


@pytest.mark.parametrize("kind", ["embedding", "classifier", "reranker"])
async def test_only_a_sparse_model_weighs(server: Served, kind: str) -> None:
    """Any other says what it is, and that is no fault of the server's."""
    response = await server.post(f"/models/{kind}/embed_sparse", {"inputs": "a"})
    article = "an" if kind == "embedding" else "a"
    assert_tei_error(response, 422, "Validation", f"this model is {article} {kind}")
    assert server.embedders[kind].batches == []
    assert server.sample("eyeline_errors_total", code="wrong_model_kind") == 1


@pytest.mark.parametrize("path", ["/predict", "/rerank", "/v1/rerank"])
async def test_a_sparse_model_scores_nothing(server: Served, path: str) -> None:
    """And names the route that it is there for."""
    body = {"/predict": {"inputs": "a"}, "/rerank": {"query": "a", "texts": ["b"]}}
    response = await server.post(path, body.get(path, {"query": "a", "documents": ["b"]}))
    assert response.status_code == 422
    assert "this model is a sparse model" in response.text
    assert "/embed_sparse" in response.text


@pytest.mark.parametrize(
    ("body", "status", "kind", "parts"),
    [
        ({"inputs": ""}, 400, "Empty", ["inputs"]),
        ({"inputs": ["a", ""]}, 400, "Empty", ["inputs[1]"]),
        ({"inputs": []}, 400, "Empty", ["inputs"]),
        ({"inputs": [10**6]}, 422, "Validation", ["inputs"]),
        ({"inputs": ["a"], "prompt_name": MARKER}, 422, "Validation", ["prompt_name"]),
        ({}, 422, "Validation", ["inputs"]),
    ],
)
async def test_errors_are_teis(server: Served, body: dict[str, Any], status: int, kind: str, parts: list[str]) -> None:
    """In its two keys, with the place."""
    assert_tei_error(await server.post("/embed_sparse", body), status, kind, *parts)
    assert server.embedder.batches == []


async def test_too_many_weights_are_refused(serve: Serve, tmp_path: Path) -> None:
    """413 (answer_too_large) with the limit and the number: exactly as many are answered, one more is not."""
    models = make_models(tmp_path, "sparse")
    async with serve(model=models) as server:
        number = sum(map(len, await ask(server, "/embed_sparse", inputs=TEXTS)))
    async with serve(model=models, max_token_values=3 * number) as server:
        await ask(server, "/embed_sparse", inputs=TEXTS)
    async with serve(model=models, max_token_values=3 * number - 1) as server:
        response = await server.post("/embed_sparse", {"inputs": TEXTS})
        assert_tei_error(response, 413, "Validation", "inputs", str(number), str(number - 1))
        assert server.sample("eyeline_errors_total", code="answer_too_large") == 1


async def test_a_vector_takes_its_vocabulary_of_a_batch(serve: Serve, tmp_path: Path) -> None:
    """As if none of its weights were 0: with room for two of them, five texts run in three batches."""
    models = make_models(tmp_path, "sparse")
    async with serve(model=models) as server:
        vocab_size = server.embedder.info.vocab_size
    async with serve(model=models, batch_attention_values=2 * vocab_size) as server:
        await ask(server, "/embed_sparse", inputs=["a", "cat", "dog", "mat", "sat"])
        assert [len(batch) for batch in server.embedder.batches] == [2, 2, 1]


async def test_weights_that_are_not_finite_are_withheld(serve: Serve, tmp_path: Path) -> None:
    """500, never a null."""
    folder = make_bert_folder(tmp_path / "sparse", splade=True)
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    tensors["cls.predictions.transform.LayerNorm.bias"][:] = 3e38  # finite, but no two of them can be added
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    async with serve(model=(ModelSpec("sparse", folder),)) as server:
        assert_tei_error(await server.post("/embed_sparse", {"inputs": ["a"]}), 500, "Backend", "inputs[0]")


async def test_many_weights_are_written_on_a_thread(server: Served) -> None:
    """More than the event loop writes; nothing differs."""
    many = await ask(server, "/embed_sparse", inputs=TEXTS * 300)
    assert 3 * sum(map(len, many)) > INLINE_VALUES
    np.testing.assert_allclose(written_out(server, many[-3:]), expected(server, list(TEXTS)), atol=1e-5)


async def test_examples_are_taken_as_they_are(server: Served) -> None:
    """What /docs offers to try works, is valid, and is answered as described; what is refused is not valid."""
    schema = (await server.client.get("/openapi.json")).json()
    body = jsonschema_rs.Draft202012Validator({"$ref": "#/components/schemas/TeiEmbedSparseRequest", **schema})
    examples = schema["components"]["schemas"]["TeiEmbedSparseRequest"]["examples"]
    assert len(examples) > 2
    for path in ("/embed_sparse", "/models/{name}/embed_sparse"):
        answer = schema["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
        described = jsonschema_rs.Draft202012Validator({**answer, "components": schema["components"]})
        for example in examples:
            body.validate(example)
            described.validate(await ask(server, path.format(name="sparse"), **example))
    for wrong in ({"inputs": ""}, {"inputs": []}, {"inputs": ["a", ""]}, {"inputs": 5}, {"inputs": "a", "truncate": 1}):
        assert not body.is_valid(wrong)
        assert (await server.post("/embed_sparse", wrong)).status_code in {400, 422}
