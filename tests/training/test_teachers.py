"""Teachers' embeddings across corpora."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from model.embedder import Embedder
from training.data import Corpus
from training.teachers import Targets, split_places, teach


def test_places_are_split_by_their_owners() -> None:
    """Number of the array, where the places stand, and the array's own rows; empty arrays own nothing."""
    found = split_places(np.array([5, 0, 3, 2]), [3, 0, 3])
    assert [(number, where.tolist(), rows.tolist()) for number, where, rows in found] == [
        (0, [1, 3], [0, 2]),
        (2, [0, 2], [2, 0]),
    ]


def test_targets_are_found_across_corpora() -> None:
    """Places count through all corpora, in any order."""
    first, second = np.arange(6, dtype=np.float16).reshape(3, 2), np.arange(10, 14, dtype=np.float16).reshape(2, 2)
    rows = Targets([first, second]).rows(np.array([4, 0, 3, 2, 4]))
    assert rows.tolist() == [[12, 13], [0, 1], [10, 11], [4, 5], [12, 13]]


def test_a_teachers_rows_are_its_embeddings_to_half_precision(teacher: Path, tmp_path: Path) -> None:
    """Of unit length, in the order of the corpora, as the folder itself embeds."""
    corpora = [Corpus("a", ["the cat", "a dog sat"], 1.0), Corpus("b", ["hello world"], 1.0)]
    targets = teach(teacher, corpora, tmp_path / "cache", dtype="float32", device="cpu", threads=1)
    expected = Embedder.load(teacher, dtype="float32", device="cpu", threads=1).encode(
        ["the cat", "a dog sat", "hello world"]
    )
    assert targets.width == 16
    assert np.abs(targets.rows(np.arange(3)).numpy() - expected).max() < 1e-3
    assert sorted(path.name for path in (tmp_path / "cache" / "teacher").iterdir()) == ["a", "b"]
