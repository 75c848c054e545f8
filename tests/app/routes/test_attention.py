"""POST /attention/heads through HTTP: what it answers, what it refuses, and how it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.schemas.attention import HeadDistancesResponse
from app.settings import ModelSpec
from model.contract import OutputSpec
from model.head_distance import HeadDistances
from tests.app.conftest import PROMPTS, Serve, Served
from tests.app.routes.test_encode import LONG, assert_problem
from tests.tiny import CONFIG, make_bert_folder

pytestmark = pytest.mark.anyio

TEXTS = ["The cat sat on the mat.", "A dog barked!", "", "hello world"]
LAYERS, HEADS = CONFIG["num_hidden_layers"], CONFIG["num_attention_heads"]
VALUES = [LAYERS * HEADS * length**2 for length in (9, 6, 2, 4)]


async def compare(server: Served, texts: Any, **fields: Any) -> dict[str, Any]:
    """Compare heads, expecting success."""
    response = await server.post("/attention/heads", {"texts": texts, **fields})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def expected_distances(server: Served, texts: list[Any], **options: Any) -> np.ndarray:
    """Distances from maps of each text by itself."""
    hides = options.pop("special", "keep") == "renormalize"
    collected = HeadDistances(LAYERS * HEADS)
    embedder = server.embedder
    for item in embedder.tokenizer.encode(texts, details=True, **options):
        [row] = embedder.run([item], [OutputSpec(attention=embedder.select_attention("all", "all"))])
        assert row.maps is not None
        assert item.tokens is not None
        collected.add(row.maps, item.tokens.special if hides else None)
    return collected.distances()


async def test_the_answer_field_by_field(server: Served) -> None:
    """Every head of every layer, its distances to all others, a place in the order, and one in the plane."""
    body = await compare(server, [*TEXTS, LONG])
    HeadDistancesResponse.model_validate(body, strict=True)
    names = ["model", "heads", "distances", "order", "layout", "explained", "num_tokens", "truncated"]
    assert list(body) == names
    assert body["heads"] == [[layer, head] for layer in range(LAYERS) for head in range(HEADS)]
    distances = np.array(body["distances"])
    assert distances.shape == (4, 4)
    assert sorted(body["order"]) == list(range(4))
    assert np.shape(body["layout"]) == (4, 2)
    assert 0 < body["explained"] <= 1
    assert body["num_tokens"] == [9, 6, 2, 4, 32]
    assert body["truncated"] == [False] * 4 + [True]


@pytest.mark.parametrize("special", ["keep", "renormalize"])
@pytest.mark.parametrize("texts", [TEXTS, ["hello world"], [["the cat", "a dog"], "xyz"]])
async def test_distances_are_those_of_the_maps(server: Served, special: str, texts: list[Any]) -> None:
    """Averaged over all rows of all texts, with and without special tokens, for pairs too."""
    expected = expected_distances(server, [tuple(text) if isinstance(text, list) else text for text in texts],
                                  special=special)  # fmt: skip
    body = await compare(server, texts, special=special)
    np.testing.assert_allclose(body["distances"], expected, rtol=0, atol=1e-5)
    places = np.array(body["layout"])
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1)
    assert (apart**2).sum() / (expected**2).sum() == pytest.approx(body["explained"], abs=1e-4)


async def test_one_text_needs_no_list(server: Served) -> None:
    """A bare string is a list of one."""
    assert await compare(server, TEXTS[0]) == await compare(server, [TEXTS[0]])


async def test_options_mean_what_they_mean_elsewhere(serve: Serve, tmp_path: Path) -> None:
    """Prompts stand before each text and are no special tokens; truncate and model are those of /encode."""
    other = ModelSpec("other", make_bert_folder(tmp_path / "other", seed=1))
    tiny = ModelSpec("tiny", make_bert_folder(tmp_path / "tiny", prompts=PROMPTS))
    async with serve(model=(tiny, other)) as server:
        typed = await compare(server, [PROMPTS["query"] + "the cat"], special="renormalize")
        named = await compare(server, ["the cat"], prompt_name="query", special="renormalize")
        assert named == typed
        response = await server.post("/attention/heads", {"texts": ["a", LONG], "truncate": False})
        assert_problem(response, 413, "text_too_long", "texts[1]")
        second = await compare(server, TEXTS, model="other")
        assert second["model"] == "other"
        assert second["distances"] != (await compare(server, TEXTS))["distances"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "texts"),
        ({"texts": []}, "texts"),
        ({"texts": "a", "special": "mask"}, "special"),
        ({"texts": "a", "layers": [0]}, "layers"),
        ({"texts": "", "special": "renormalize"}, "texts"),
        ({"texts": ["", "  "], "special": "renormalize"}, "texts"),
    ],
)
async def test_what_is_refused(server: Served, body: dict[str, Any], param: str) -> None:
    """What is no field, no value of one, or leaves nothing to compare on is 422 with the field; nothing is run."""
    assert_problem(await server.post("/attention/heads", body), 422, "invalid_request", param)
    assert server.embedder.batches == []


async def test_a_model_without_maps(server: Served) -> None:
    """A model that cannot give its attention is 501 before anything is run."""
    server.embedder.gives_attention = False
    response = await server.post("/attention/heads", {"texts": TEXTS})
    assert_problem(response, 501, "attention_not_supported", "model")
    assert server.embedder.batches == []


async def test_empty_texts_beside_others_are_welcome(server: Served) -> None:
    """A text of special tokens alone adds no row where those are left out."""
    with_empty = await compare(server, ["", "hello world", ""], special="renormalize")
    without = await compare(server, ["hello world"], special="renormalize")
    np.testing.assert_allclose(with_empty["distances"], without["distances"], atol=1e-5)


async def test_too_many_values(serve: Serve) -> None:
    """What is computed has a limit, checked before the forward pass, and the way out that is named works."""
    async with serve(max_attention_values_computed=sum(VALUES) - 1) as server:
        response = await server.post("/attention/heads", {"texts": TEXTS})
        problem = assert_problem(response, 413, "attention_too_large", "texts", sum(VALUES) - 1)
        assert problem["actual"] == sum(VALUES)
        assert problem["detail"].endswith(f": the first 3 texts give {sum(VALUES[:3])}")
        assert server.embedder.batches == []
        await compare(server, TEXTS[:3])
    async with serve(max_attention_values_computed=sum(VALUES)) as server:
        await compare(server, TEXTS)


async def test_texts_run_in_turns_within_the_budget(serve: Serve) -> None:
    """No more maps are held than the budget of one batch allows; the distances do not change, and all is counted."""
    async with serve() as server:
        whole = await compare(server, TEXTS)
        assert len(server.embedder.batches) == 1
    async with serve(batch_attention_values=1) as server:
        turns = await compare(server, TEXTS)
        assert [len(batch) for batch in server.embedder.batches] == [1] * 4
        assert server.sample("eyeline_texts_total", model="tiny", route="/attention/heads") == 4
        assert server.sample("eyeline_attention_values_total", model="tiny") == sum(VALUES)
        assert server.sample("eyeline_requests_total", route="/attention/heads", status=200) == 1
        assert server.sample("eyeline_stage_duration_seconds_count", model="tiny", stage="serialize") == 1
    np.testing.assert_allclose(turns["distances"], whole["distances"], atol=1e-5)
    assert turns["order"] == whole["order"]


async def test_timings_of_turns_add_up(serve: Serve) -> None:
    """Server-Timing's inference is that of all turns, and not more than the total."""
    async with serve(batch_attention_values=1) as server:
        response = await server.post("/attention/heads", {"texts": TEXTS})
        stages = dict(part.split(";dur=") for part in response.headers["server-timing"].split(", "))
        assert 0 < float(stages["inference"]) < float(stages["total"])
        parts = sum(float(stages[name]) for name in ("tokenize", "queue", "inference"))
        assert parts <= float(stages["total"]) + 0.001


async def test_before_the_models_are_warm_it_is_503(server: Served) -> None:
    """A request that comes too early is told to come back."""
    service, server.state.service = server.state.service, None
    assert_problem(await server.post("/attention/heads", {"texts": "a"}), 503, "not_ready")
    server.state.service = service
