"""Which routes each kind of model answers, and what it says on the others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from app.schemas.info import InfoResponse
from tests.app.conftest import Serve, Served
from tests.app.routes.scoring import LABELS, make_models
from tests.tiny import TOKEN_DIMENSIONS

pytestmark = pytest.mark.anyio

WITHOUT_EMBEDDINGS = (*LABELS, "sparse", "late_interaction")
LAST_LAYER = {"layers": [-1]}


@pytest.fixture
async def kinds(serve: Serve, tmp_path: Path) -> AsyncIterator[Served]:
    """A server of each kind of model, named by it; the embedding model is the default."""
    async with serve(model=make_models(tmp_path, "embedding", *WITHOUT_EMBEDDINGS)) as server:
        yield server


def assert_refused(response: httpx.Response, status: int, kind: str) -> None:
    """The status, and a sentence that names the kind."""
    assert response.status_code == status, response.text
    assert f"this model is a {kind.replace('_', ' ')}" in response.text


NO_EMBEDDINGS: list[tuple[str, dict[str, Any], int]] = [
    ("/encode", {"texts": "a", "model": "{kind}"}, 422),
    ("/encode", {"texts": "a", "model": "{kind}", "attention": LAST_LAYER, "dimensions": 1}, 422),
    ("/encode", {"texts": "a", "model": "{kind}", "attention": LAST_LAYER, "output_dtype": "int8"}, 422),
    ("/similarity", {"texts": ["a", "b"], "model": "{kind}"}, 422),
    ("/similarity", {"pairs": [["a", "b"]], "model": "{kind}", "explain": True}, 422),
    ("/v1/embeddings", {"input": "a", "model": "{kind}"}, 400),
    ("/models/{kind}/embed", {"inputs": "a"}, 422),
    ("/models/{kind}/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}, 422),
    (
        "/v2/models/{kind}/infer",
        {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}]},
        400,
    ),
]


@pytest.mark.parametrize("kind", WITHOUT_EMBEDDINGS)
@pytest.mark.parametrize(("path", "body", "status"), NO_EMBEDDINGS)
async def test_no_embeddings_of_another_kind(
    kinds: Served, path: str, body: dict[str, Any], status: int, kind: str
) -> None:
    """Every route that answers with embeddings refuses such a model with its kind, before anything is run."""
    named = {**body, "model": kind} if "model" in body else body
    response = await kinds.post(path.format(kind=kind), named)
    assert_refused(response, status, kind)
    assert kinds.embedders[kind].batches == []
    assert kinds.sample("eyeline_errors_total", code="wrong_model_kind") == 1


@pytest.mark.parametrize("kind", [*LABELS, "sparse"])
async def test_no_vectors_of_tokens(kinds: Served, kind: str) -> None:
    """Only an embedding model's states and late interaction's vectors mean something by themselves."""
    assert_refused(await kinds.post(f"/models/{kind}/embed_all", {"inputs": "a"}), 422, kind)
    assert kinds.embedders[kind].batches == []


@pytest.mark.parametrize("kind", WITHOUT_EMBEDDINGS)
async def test_the_attention_of_a_pair(kinds: Served, kind: str) -> None:
    """/encode gives the maps of any model; of one without embeddings each is of length 0, in every form."""
    body = {"texts": [["the cat", "a dog"], "a"], "model": kind, "attention": {"layers": "all"}}
    response = await kinds.post("/encode", body)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert (answer["dimensions"], answer["embeddings"]) == (0, [[], []])
    [first, second] = answer["attention"]
    prefix = [None] * (kind == "late_interaction")
    assert first["maps"]["shape"] == [2, 2, 7 + len(prefix), 7 + len(prefix)]
    assert first["tokens"]["segment"] == [None, *prefix, 0, 0, None, 1, 1, None]
    np.testing.assert_allclose(np.sum(first["maps"]["values"], axis=-1), 1, atol=first["maps"]["row_sum_tolerance"])
    assert second["maps"]["shape"] == [2, 2, 3 + len(prefix), 3 + len(prefix)]
    for accept in ("application/vnd.safetensors", "application/x-npz"):
        assert (await kinds.post("/encode", body, accept=accept)).status_code == 200
    text = await kinds.post("/encode", {**body, "encoding_format": "base64"})
    assert text.json()["embeddings"] == ["", ""]


@pytest.mark.parametrize("kind", ["embedding", *WITHOUT_EMBEDDINGS])
async def test_what_every_model_answers(kinds: Served, kind: str) -> None:
    """Tokens, likeness of heads, and in the Open Inference Protocol all but embeddings."""
    for path, body in (("/tokenize", {"texts": [["a", "b"]]}), ("/attention/heads", {"texts": [["the cat", "a dog"]]})):
        assert (await kinds.post(path, {**body, "model": kind})).status_code == 200
    described = (await kinds.client.get(f"/v2/models/{kind}")).json()
    outputs = [output["name"] for output in described["outputs"]]
    assert ("embedding" in outputs) == (kind == "embedding")
    body = {
        "inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["the cat"]}],
        "outputs": [{"name": name} for name in outputs],
    }
    response = await kinds.post(f"/v2/models/{kind}/infer", body)
    assert response.status_code == 200, response.text
    assert [output["name"] for output in response.json()["outputs"]] == outputs


async def test_info_says_the_kind(kinds: Served) -> None:
    """In text-embeddings-inference's words for one model, and for each of all."""
    expected = {
        "embedding": {"embedding": {"pooling": "mean"}},
        "sparse": {"embedding": {"pooling": "splade"}},
        "late_interaction": {"embedding": {"pooling": "none"}},
        "reranker": {"reranker": {"id2label": {"0": "relevance"}, "label2id": {"relevance": 0}}},
        "classifier": {
            "classifier": {
                "id2label": {"0": "joy", "1": "anger", "2": "fear"},
                "label2id": {"joy": 0, "anger": 1, "fear": 2},
            }
        },
    }
    for kind, model_type in expected.items():
        body = (await kinds.client.get(f"/models/{kind}/info")).json()
        InfoResponse.model_validate(body, strict=True)
        assert body["model_type"] == model_type
        [one] = [model for model in body["models"] if model["name"] == kind]
        assert (one["kind"], tuple(one["labels"])) == (kind, LABELS.get(kind, ()))
        assert one["dimensions"] == {"embedding": 16, "late_interaction": TOKEN_DIMENSIONS}.get(kind, 0)
