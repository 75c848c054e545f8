"""How the demonstration's files are made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import training.demo.make as make
from training.benchmarks import read_scored_pairs


def test_every_sentence_meets_its_nearest_and_another() -> None:
    """No pair twice, none with itself, and the score is the cosine."""
    rows = np.random.default_rng(0).normal(size=(30, 5)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    names = [str(number) for number in range(30)]
    pairs = make.score_dev_pairs(names, rows, seed=1)
    cosines = rows @ rows.T
    found = {(int(first), int(second)) for first, second, _ in pairs}
    assert len(found) == len(pairs)
    assert all(first < second for first, second in found)
    np.fill_diagonal(cosines, -1)
    for number, nearest in enumerate(cosines.argmax(axis=1).tolist()):
        assert (min(number, nearest), max(number, nearest)) in found
    for first, second, score in pairs:
        assert score == pytest.approx(cosines[int(first), int(second)], abs=1e-4)


def test_files_are_written_whole_and_the_same_each_time(
    teacher: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sentences to train on, and pairs of others."""
    monkeypatch.setattr(make, "NUM_SENTENCES", 40)
    monkeypatch.setattr(make, "NUM_DEV_SENTENCES", 12)
    written = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        assert make.main([str(corpus), str(teacher), "--out", str(tmp_path / name)]) == 0
        written.append([(tmp_path / name / file).read_bytes() for file in ("sentences.txt", "dev.tsv")])
    assert written[0] == written[1]
    sentences = (tmp_path / "one" / "sentences.txt").read_text().splitlines()
    pairs = read_scored_pairs(tmp_path / "one" / "dev.tsv")
    assert len(sentences) == 40
    assert not set(sentences) & {*pairs.first, *pairs.second}
