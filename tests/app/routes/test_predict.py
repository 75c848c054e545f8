"""text-embeddings-inference's /predict through HTTP: its forms of input, its two shapes of answer, its errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model.tokenizer import Text
from tests.app.conftest import Serve, Served
from tests.app.routes.scoring import LABELS, expected_scores, make_models
from tests.app.routes.test_rerank import LONG, MARKER, ask, assert_tei_error
from tests.tiny import make_bert_folder

pytestmark = pytest.mark.anyio

PATHS = ("/predict", "/models/classifier/predict")


@pytest.fixture
async def server(serve: Serve, tmp_path: Path) -> AsyncIterator[Served]:
    """A classifier, which is the default, and a model of each other kind."""
    async with serve(model=make_models(tmp_path, "classifier", "reranker", "embedding")) as served:
        yield served


def check(predictions: list[dict[str, Any]], scores: Any, names: tuple[str, ...] = LABELS["classifier"]) -> None:
    """Every label with its score, the best first."""
    assert [list(one) for one in predictions] == [["score", "label"]] * len(names)
    found = {one["label"]: one["score"] for one in predictions}
    np.testing.assert_allclose([found[name] for name in names], scores, atol=1e-6)
    assert list(found.values()) == sorted(found.values(), reverse=True)


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ("the cat", "the cat"),
        (["the cat"], "the cat"),
        (["the cat", "a dog"], ("the cat", "a dog")),
        (["the cat", ""], ("the cat", "")),
    ],
)
@pytest.mark.parametrize("path", PATHS)
async def test_one_text_or_pair_is_answered_with_one_list(server: Served, path: str, inputs: Any, text: Text) -> None:
    """A list of two strings is a pair, not a batch."""
    check(await ask(server, path, inputs=inputs), expected_scores(server.embedder, [text])[0])


async def test_a_batch_is_answered_with_a_list_of_lists(server: Served) -> None:
    """Texts and pairs side by side, in the order that was sent; of one as well."""
    texts: list[Text] = ["the cat", ("the cat", "a dog"), "hello"]
    sent = [["the cat"], ["the cat", "a dog"], ["hello"]]
    answer = await ask(server, "/predict", inputs=sent)
    for predictions, scores in zip(answer, expected_scores(server.embedder, texts), strict=True):
        check(predictions, scores)
        assert sum(one["score"] for one in predictions) == pytest.approx(1, abs=1e-6)
    [alone] = await ask(server, "/predict", inputs=sent[:1])
    check(alone, expected_scores(server.embedder, texts[:1])[0])
    assert server.sample("eyeline_texts_total", model="classifier", route="/predict") == 4


async def test_raw_scores_are_logits(server: Served) -> None:
    """As the classification head gives them."""
    predictions = await ask(server, "/predict", inputs="the cat", raw_scores=True)
    check(predictions, expected_scores(server.embedder, ["the cat"], raw=True)[0])


async def test_a_reranker_predicts_its_one_label(server: Served) -> None:
    """With the sigmoid that /rerank gives."""
    predictions = await ask(server, "/models/reranker/predict", inputs=["the cat", "a dog"])
    expected = expected_scores(server.embedders["reranker"], [("the cat", "a dog")])[0]
    check(predictions, expected, LABELS["reranker"])


async def test_labels_that_do_not_exclude_each_other(serve: Serve, tmp_path: Path) -> None:
    """Each has a sigmoid of its own, by problem_type of config.json."""
    [spec] = make_models(tmp_path, "classifier")
    make_bert_folder(spec.folder, labels=LABELS["classifier"], problem_type="multi_label_classification")
    async with serve(model=(spec,)) as server:
        logits = expected_scores(server.embedder, ["the cat"], raw=True)[0]
        check(await ask(server, "/predict", inputs="the cat"), 1 / (1 + np.exp(-logits)))


async def test_long_texts_are_cut_where_asked_for(server: Served) -> None:
    """And named by their place in the batch."""
    response = await server.post("/predict", {"inputs": [["a"], [LONG], ["b", LONG]], "truncate": True})
    assert (response.headers["x-truncated-count"], response.headers["x-truncated-texts"]) == ("2", "1-2")
    assert response.headers["x-compute-characters"] == str(2 + 2 * len(LONG))


@pytest.mark.parametrize(
    ("body", "status", "kind", "parts"),
    [
        ({"inputs": ""}, 400, "Empty", ["inputs:"]),
        ({"inputs": [""]}, 400, "Empty", ["inputs:"]),
        ({"inputs": ["", ""]}, 400, "Empty", ["inputs:"]),
        ({"inputs": [["a"], [""]]}, 400, "Empty", ["inputs[1]"]),
        ({"inputs": LONG}, 413, "Validation", ["inputs:", "102", "32"]),
        ({"inputs": [["a"], ["b", LONG]]}, 413, "Validation", ["inputs[1]", "104", "32"]),
        ({}, 422, "Validation", ["inputs", "required"]),
        ({"inputs": 5}, 422, "Validation", ["inputs", "string"]),
        ({"inputs": []}, 422, "Validation", ["inputs", "1", "0"]),
        ({"inputs": [[]]}, 422, "Validation", ["inputs[0]", "1", "0"]),
        ({"inputs": ["a", "b", "c"]}, 422, "Validation", ["inputs:", "2", "3"]),
        ({"inputs": [["a", "b", "c"]]}, 422, "Validation", ["inputs[0]", "2", "3"]),
        ({"inputs": ["a", [MARKER]]}, 422, "Validation", ["inputs[1]", "string"]),
        ({"inputs": [["a"], MARKER]}, 422, "Validation", ["inputs[1]", "array"]),
        ({"inputs": [["a"], [5]]}, 422, "Validation", ["inputs[1][0]", "string"]),
        ({"inputs": "a", "raw_scores": 1}, 422, "Validation", ["raw_scores"]),
    ],
)
@pytest.mark.parametrize("path", PATHS)
async def test_what_is_refused(
    server: Served, path: str, body: dict[str, Any], status: int, kind: str, parts: list[str]
) -> None:
    """In two keys, with the place and the numbers, before anything is run."""
    assert_tei_error(await server.post(path, body), status, kind, *parts)
    assert server.embedder.batches == []


async def test_an_embedding_model_predicts_nothing(server: Served) -> None:
    """And says what it is; a name that is not served is 404."""
    response = await server.post("/models/embedding/predict", {"inputs": "a"})
    assert_tei_error(response, 422, "Validation", "an embedding model")
    assert_tei_error(await server.post(f"/models/{MARKER}/predict", {"inputs": "a"}), 404, "Validation", "classifier")


async def test_too_many_texts_are_413(serve: Serve, tmp_path: Path) -> None:
    """With the limit and the number."""
    async with serve(model=make_models(tmp_path, "classifier"), max_texts=2) as server:
        assert_tei_error(await server.post("/predict", {"inputs": [["a"]] * 3}), 413, "Validation", "inputs", "2", "3")


FLOODS = {
    "texts": ('{"inputs":[%s"a"]}', '"a",', 422),
    "pairs": ('{"inputs":[%s["a"]]}', '["a","b"],', 413),
    "empty lists": ('{"inputs":[["a"],%s[]]}', "[],", 422),
    "numbers": ('{"inputs":[["a"],%s5]}', "5,", 422),
    "nesting": ('{"inputs":%s}', "[", 400),
}


@pytest.mark.parametrize(("body", "item", "status"), FLOODS.values(), ids=FLOODS)
async def test_a_flood_is_answered_in_a_few_words(server: Served, body: str, item: str, status: int) -> None:
    """200,000 items."""
    content = (body % (item * 200_000)).encode()
    response = await server.client.post("/predict", content=content, headers={"content-type": "application/json"})
    assert response.status_code == status, response.text[:300]
    assert len(response.content) < 1_000
    assert server.embedder.batches == []
