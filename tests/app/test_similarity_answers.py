"""How comparisons are written. Whole answers: tests/app/routes/test_explain.py and test_attention.py."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import orjson
import pytest

from app.comparison_flows import ComparedHeads, Explained
from app.service import Encoded, Timings
from app.similarity_answers import write_explained, write_head_distances, write_similarity
from model.contract import AttentionSelection, EncodeInput
from model.head_distance import draw
from model.maps import Units


def encoded(embeddings: np.ndarray) -> Encoded:
    """An answer of one token a text, by a model of which only the name is looked at."""
    inputs = [EncodeInput([1], [0], 1) for _ in embeddings]
    return Encoded(SimpleNamespace(name="m"), inputs, embeddings, [], None, Timings(0.0))  # type: ignore[arg-type]


def test_cosines_never_leave_their_range() -> None:
    """Rounding may make a product of unit vectors larger than 1: it is cut off, or acos would fail at the caller's."""
    vector = np.array([0.6, 0.8000001], dtype=np.float32)
    vectors = np.stack([vector, vector, -vector])
    body = orjson.loads(write_similarity(encoded(vectors), is_pairs=False))
    assert float(vector @ vector) > 1
    assert body["similarities"][0][:2] == [1.0, 1.0]
    assert body["similarities"][0][2] == -1.0


def explained(maps: list[np.ndarray]) -> Explained:
    """Explanations by a model of which only the name is looked at, of texts as long as the maps are wide."""
    inputs, units = [], []
    for values in maps:
        for length in values.shape:
            inputs.append(EncodeInput([1] * length, [0] * length, length))
            units.append(Units(list(range(length)), [None] * length, list(range(length)), list(range(length))))
    return Explained(SimpleNamespace(name="m"), inputs, units, maps, Timings(0.0))  # type: ignore[arg-type]


def test_written_values_still_sum_to_the_cosine() -> None:
    """Nine digits of each of a million values leave the sum right to 1e-6; the sum and the similarity agree."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((1000, 1000)) * 1e-4
    values += (0.7 - values.sum()) / values.size
    body = orjson.loads(write_explained(explained([values, values[:2]]), "token"))
    written = np.array(body["explanations"][0]["values"])
    assert written.shape == (1000, 1000)
    assert written.sum() == pytest.approx(0.7, abs=1e-6)
    assert body["explanations"][0]["sum"] == pytest.approx(0.7, abs=1e-8)
    assert body["similarities"][0] == pytest.approx(0.7, abs=1e-6)
    assert body["explanations"][1]["shape"] == [2, 1000]


def test_an_explained_similarity_never_leaves_its_range() -> None:
    """Rounding may make the sum of a text's map with itself larger than 1: the similarity is cut off."""
    values = np.full((1, 3), 1 / 3 + 1e-16)
    assert values.sum() > 1
    body = orjson.loads(write_explained(explained([values]), "token"))
    assert body["similarities"] == [1.0]
    assert body["explanations"][0]["sum"] == 1.0
    assert body["num_tokens"] == [[1, 3]]


def test_columns_of_a_map_are_not_mixed_up_with_rows() -> None:
    """However a map lies in memory it is written row by row."""
    values = np.arange(6.0).reshape(3, 2).T
    body = orjson.loads(write_explained(explained([values]), "word"))
    [explanation] = body["explanations"]
    assert explanation["values"] == values.tolist()
    assert explanation["row_sums"] == values.sum(axis=1).tolist()
    assert explanation["column_sums"] == values.sum(axis=0).tolist()
    assert explanation["strongest"][0] == {"row": 1, "column": 2, "value": 5.0}
    assert explanation["unit"] == "word"


def test_heads_are_listed_layer_by_layer() -> None:
    """The order of the heads is that of the maps' axes, and distances have six digits."""
    distances = np.array([[0, 0.123456789], [0.123456789, 0]])
    selection = AttentionSelection((0, 1), (0,))
    inputs = [EncodeInput([1], [0], 2)]
    model = SimpleNamespace(name="m")
    compared = ComparedHeads(model, inputs, selection, draw(distances), Timings(0.0))  # type: ignore[arg-type]
    body = orjson.loads(write_head_distances(compared))
    assert body["heads"] == [[0, 0], [1, 0]]
    assert body["distances"] == [[0, 0.123457], [0.123457, 0]]
    assert body["truncated"] == [True]
    assert body["explained"] == 1
