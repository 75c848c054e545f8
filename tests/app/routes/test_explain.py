"""POST /similarity with explain, through HTTP: what it answers, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.schemas.similarity import SimilarityResponse
from app.settings import ModelSpec
from tests.app.conftest import PROMPTS, Serve, Served
from tests.app.routes.test_encode import assert_problem
from tests.tiny import make_bert_folder

pytestmark = pytest.mark.anyio

PAIRS = [
    ["the cat sat", "xyz dog"],
    ["hello world", "hello world"],
    ["", "the cat"],
    ["", ""],
    ["cat " * 100, "a dog barked!"],
]


async def explain(server: Served, pairs: list[list[str]], **fields: Any) -> dict[str, Any]:
    """Explain pairs, expecting success."""
    response = await server.post("/similarity", {"pairs": pairs, "explain": True, **fields})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def test_an_explanation_field_by_field(server: Served) -> None:
    """Each pair has its map, what its rows and columns stand for, its sums and its strongest entries."""
    body = await explain(server, PAIRS)
    SimilarityResponse.model_validate(body, strict=True)
    assert list(body) == ["model", "similarities", "num_tokens", "truncated", "explanations"]
    assert body["num_tokens"][0] == [5, 6]
    assert body["truncated"][4] == [True, False]
    first = body["explanations"][0]
    assert list(first) == [
        "a", "b", "unit", "rows", "columns", "shape", "values", "row_sums", "column_sums", "strongest", "sum"
    ]  # fmt: skip
    tokenized = (await server.post("/tokenize", {"texts": PAIRS[0]})).json()["texts"]
    for side, text in zip("ab", tokenized, strict=True):
        assert first[side] == {"tokens": text["tokens"], "words": text["words"]}
    assert first["unit"] == "token"
    assert first["rows"] == {"token": [0, 1, 2, 3, 4], "word": [None, 0, 1, 2, None]}
    assert first["columns"] == {"token": [0, 1, 2, 3, 4, 5], "word": [None, 0, 0, 0, 1, None]}
    values = np.array(first["values"])
    assert first["shape"] == [5, 6] == list(values.shape)
    np.testing.assert_allclose(first["row_sums"], values.sum(axis=1), atol=1e-8)
    np.testing.assert_allclose(first["column_sums"], values.sum(axis=0), atol=1e-8)
    assert first["sum"] == pytest.approx(values.sum(), abs=1e-7)
    strongest = first["strongest"]
    assert len(strongest) == 10
    assert [abs(pair["value"]) for pair in strongest] == sorted(np.abs(values).ravel(), reverse=True)[:10]
    assert all(values[pair["row"], pair["column"]] == pair["value"] for pair in strongest)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fields", [{}, {"dimensions": 3}, {"prompt_name": "query"}, {"unit": "word"}])
async def test_maps_sum_to_the_similarity(serve: Serve, dtype: str, fields: dict[str, Any]) -> None:
    """The values sum to the similarity beside them, and to that of the same request without explain, within 1e-6."""
    async with serve(dtype=dtype) as server:
        body = await explain(server, PAIRS, **fields)
        plain_fields = {name: value for name, value in fields.items() if name != "unit"}
        plain = (await server.post("/similarity", {"pairs": PAIRS, **plain_fields})).json()
    assert {name: body[name] for name in ("num_tokens", "truncated")} == {
        name: plain[name] for name in ("num_tokens", "truncated")
    }
    for index, explanation in enumerate(body["explanations"]):
        total = np.sum(explanation["values"])
        assert total == pytest.approx(body["similarities"][index], abs=1e-6)
        assert total == pytest.approx(plain["similarities"][index], abs=1e-6)
        assert explanation["sum"] == pytest.approx(total, abs=1e-6)
    assert body["similarities"][1] == pytest.approx(1, abs=1e-6)
    assert body["similarities"][0] < 0.9999


async def test_words_are_blocks_of_tokens(server: Served) -> None:
    """A word's entries are the sums over its pieces; special tokens stay rows of their own."""
    [tokens], [words] = [
        (await explain(server, [["the xyz cat", "xyz dog"]], unit=unit))["explanations"] for unit in ("token", "word")
    ]
    assert words["rows"] == {"token": [0, 1, 2, 5, 6], "word": [None, 0, 1, 2, None]}
    assert words["columns"] == {"token": [0, 1, 4, 5], "word": [None, 0, 1, None]}
    assert words["shape"] == [5, 4]
    values = np.array(tokens["values"])
    merged = np.add.reduceat(np.add.reduceat(values, words["rows"]["token"], 0), words["columns"]["token"], 1)
    np.testing.assert_allclose(words["values"], merged, atol=1e-8)
    assert (words["a"], words["b"]) == (tokens["a"], tokens["b"])


def folder_with(path: Path, *, include_prompt: bool = True, pooling: str = "mean_tokens") -> ModelSpec:
    """A tiny model that pools so."""
    folder = make_bert_folder(path / "m", prompts=PROMPTS, pooling=pooling)
    pooling_file = folder / "1_Pooling" / "config.json"
    pooling_file.write_text(json.dumps(json.loads(pooling_file.read_text()) | {"include_prompt": include_prompt}))
    return ModelSpec("tiny", folder)


@pytest.mark.parametrize("unit", ["token", "word"])
async def test_a_prompt_that_is_not_pooled_has_no_rows(serve: Serve, tmp_path: Path, unit: str) -> None:
    """Where pooling leaves the prompt out there is no row for it, and the sum is still the similarity."""
    async with serve(model=(folder_with(tmp_path, include_prompt=False),)) as server:
        body = await explain(server, PAIRS, unit=unit, prompt_name="query")
        plain = (await server.post("/similarity", {"pairs": PAIRS, "prompt_name": "query"})).json()
    first = body["explanations"][0]
    assert first["a"]["tokens"]["text"][:3] == ["[CLS]", "query", ":"]
    assert first["rows"]["token"] == [3, 4, 5, 6]
    assert first["columns"]["token"] == ([3, 4, 5, 6, 7] if unit == "token" else [3, 6, 7])
    for explanation, similarity in zip(body["explanations"], plain["similarities"], strict=True):
        assert np.sum(explanation["values"]) == pytest.approx(similarity, abs=1e-6)


@pytest.mark.parametrize("pooling", ["cls_token", "max_tokens", "lasttoken"])
async def test_only_the_mean_can_be_explained(serve: Serve, tmp_path: Path, pooling: str) -> None:
    """Another pooling is 501 with the reason, before any work; without explain it answers as ever."""
    async with serve(model=(folder_with(tmp_path, pooling=pooling),)) as server:
        response = await server.post("/similarity", {"pairs": PAIRS, "explain": True})
        problem = assert_problem(response, 501, "explanation_not_supported", "explain")
        assert f"pools by {pooling.removesuffix('_token').removesuffix('_tokens')}" in problem["detail"]
        assert server.embedder.batches == []
        assert (await server.post("/similarity", {"pairs": PAIRS})).status_code == 200


async def test_explanations_are_of_pairs(server: Served) -> None:
    """With texts, explain is 422 and names the field; explain false is as if it were left out."""
    response = await server.post("/similarity", {"texts": ["a", "b"], "explain": True})
    problem = assert_problem(response, 422, "invalid_request", "explain")
    assert "pairs" in problem["detail"]
    plain = await server.post("/similarity", {"pairs": PAIRS, "explain": False})
    assert "explanations" not in plain.json()
    assert plain.json() == (await server.post("/similarity", {"pairs": PAIRS})).json()


@pytest.mark.parametrize("body", [{"pairs": PAIRS}, {"pairs": PAIRS, "explain": False}, {"texts": ["a", "b"]}])
async def test_a_unit_without_an_explanation(server: Served, body: dict[str, Any]) -> None:
    """There is nothing that unit could change: 422 names it, before any work."""
    for unit in ("token", "word"):
        problem = assert_problem(
            await server.post("/similarity", {**body, "unit": unit}), 422, "invalid_request", "unit"
        )
        assert problem["detail"] == "unit: goes with explain"
    assert server.embedder.batches == []


async def test_too_many_values(serve: Serve) -> None:
    """Rows times columns, summed over pairs, have a limit, checked before the forward pass, with ways out that work."""
    pairs = [["xyz xyz", "xyz"], ["xyz", "cat"]]  # 8 x 5 and 5 x 3 tokens, 4 x 3 and 3 x 3 words
    async with serve(max_attention_values_list=54) as server:
        response = await server.post("/similarity", {"pairs": pairs, "explain": True})
        problem = assert_problem(response, 413, "attention_too_large", "explain", 54)
        assert problem["actual"] == 55
        assert problem["detail"].endswith(": unit=word gives 21; the first 1 pairs give 40")
        assert server.embedder.batches == []
        assert (await explain(server, pairs, unit="word"))["explanations"][0]["shape"] == [4, 3]
        assert (await explain(server, pairs[:1]))["explanations"][0]["shape"] == [8, 5]
    async with serve(max_attention_values_list=55) as server:
        await explain(server, pairs)


async def test_a_fault_is_named_as_the_caller_knows_it(server: Served) -> None:
    """The fourth text of two pairs is pairs[1][1], whatever turn it is run in."""
    body = {"pairs": [["a", "b"], ["c", "cat " * 100]], "explain": True, "truncate": False}
    assert_problem(await server.post("/similarity", body), 413, "text_too_long", "pairs[1][1]")


async def test_a_text_that_fails_late_is_named(serve: Serve) -> None:
    """Pairs run in turns of one batch each; a failure in the second turn names its text of the whole request."""

    def refuse(inputs: Any) -> None:
        if any(item.num_tokens == 7 for item in inputs):
            raise ValueError("broken")

    async with serve(batch_tokens=32) as server:
        server.embedder.before_run = refuse
        pairs = [["cat " * 14, "dog " * 13], ["cat", "cat cat cat cat cat"]]
        response = await server.post("/similarity", {"pairs": pairs, "explain": True})
        assert_problem(response, 500, "inference_failed", "pairs[1][1]")
        assert len(server.embedder.batches) > 1


async def test_turns_change_nothing(serve: Serve) -> None:
    """Pairs that are run in many turns have the explanations that they have in one, in their order."""
    async with serve() as server:
        whole = await explain(server, PAIRS)
        assert len(server.embedder.batches) == 1
    async with serve(batch_tokens=32) as server:
        turns = await explain(server, PAIRS)
        assert len(server.embedder.batches) >= 3
        assert server.sample("eyeline_texts_total", model="tiny", route="/similarity") == 10
        assert server.sample("eyeline_stage_duration_seconds_count", model="tiny", stage="serialize") == 1
    for one, other in zip(whole["explanations"], turns["explanations"], strict=True):
        np.testing.assert_allclose(one["values"], other["values"], atol=1e-5)
        assert one["a"] == other["a"]
