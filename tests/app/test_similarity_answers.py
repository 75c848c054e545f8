"""How comparisons are written. Whole answers: tests/app/routes/test_encode.py and test_attention.py."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import orjson

from app.service import Encoded, Timings
from app.similarity_answers import write_similarity
from model.contract import EncodeInput


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
