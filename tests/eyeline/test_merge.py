"""Results of several requests as one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from eyeline.errors import UnexpectedAnswerError
from eyeline.merge import merge_chunks, merge_encoded, merge_lists, merge_similarities
from eyeline.records import ChunkedText, Encoded, Quantization, Similarity


def encoded(numbers: list[list[int]], quantization: Quantization | None = None, model: str = "m") -> Encoded:
    """Embeddings, and a count for each."""
    counts = np.arange(len(numbers))
    return Encoded(model, np.array(numbers, np.int8), counts, counts, counts > 0, quantization)


def chunked(model: str) -> ChunkedText:
    """A text of one chunk."""
    one: Any = np.zeros(1, np.int64)
    return ChunkedText(model, one, one, np.zeros((1, 2)), one, one > 0, None, 1, 1, truncated=False)


def test_embeddings_keep_their_type_and_their_counts() -> None:
    """One after the other; the range is the same, what was clipped has an entry per text."""
    merged = merge_encoded(
        [
            encoded([[1, 2], [3, 4]], Quantization(0.5, np.array([0, 1]))),
            encoded([[5, 6]], Quantization(0.5, np.array([2]))),
        ]
    )
    assert merged.embeddings.dtype == np.int8
    assert merged.embeddings.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert merged.num_tokens.tolist() == [0, 1, 0]
    assert merged.quantization is not None
    assert (merged.quantization.range, merged.quantization.clipped.tolist()) == (0.5, [0, 1, 2])
    assert merge_encoded([encoded([[1, 2]])]).quantization is None


def test_models_and_lengths_are_not_mixed() -> None:
    """Behind one address a new version may be on its way."""
    with pytest.raises(UnexpectedAnswerError, match="different models answered: m, n"):
        merge_encoded([encoded([[1]]), encoded([[1]], model="n")])
    with pytest.raises(UnexpectedAnswerError, match="different lengths were answered: 1, 2"):
        merge_encoded([encoded([[1]]), encoded([[1, 2]])])
    with pytest.raises(UnexpectedAnswerError, match="different models answered: a, b"):
        merge_chunks([[chunked("b")], [chunked("a")]])


def test_lists_are_joined() -> None:
    """In order; nothing is a list of nothing."""
    assert merge_lists([[1, 2], [], [3]]) == [1, 2, 3]
    assert merge_chunks([[]]) == []
    assert [text.model for text in merge_chunks([[chunked("a")], [chunked("a")]])] == ["a", "a"]


def test_cosines_are_joined() -> None:
    """With the counts of both texts of a pair."""
    pair: Any = np.array([[1, 2]])
    part = Similarity("m", np.array([0.5], np.float32), pair, pair > 1, None)
    merged = merge_similarities([part, part])
    assert (merged.similarities.tolist(), merged.num_tokens.tolist()) == ([0.5, 0.5], [[1, 2], [1, 2]])
    assert merged.explanations is None
