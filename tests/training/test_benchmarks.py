"""Labelled data and what is measured with it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from model.contract import FloatArray
from training.benchmarks import (
    is_retrieval,
    read_retrieval,
    read_scored_pairs,
    score_pairs,
    score_retrieval,
    unit,
)
from training.errors import CorpusError


def letters(texts: Sequence[str]) -> FloatArray:
    """Embed a text as how often it has each of a, b and c."""
    return np.array([[text.count(letter) for letter in "abc"] for text in texts], dtype=np.float32)


def write_retrieval(folder: Path) -> Path:
    """Write four documents and three queries; one query has no relevant document."""
    folder.mkdir()
    documents = [
        {"_id": "d1", "title": "a", "text": "a"},
        {"_id": "d2", "title": "", "text": "ab"},
        {"_id": "d3", "text": "b"},
        {"_id": "d4", "title": None, "text": "c"},
    ]
    lines = "".join(json.dumps(document) + "\n" for document in documents)
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    queries = [{"_id": "q1", "text": "a"}, {"_id": "q2", "text": "c"}, {"_id": "q3", "text": "b"}]
    (folder / "queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    qrels = ["q1\td2\t1", "q1\td1\t2", "q1\td4\t0", "q2\td3\t1", "elsewhere\td1\t1"]
    (folder / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *qrels]) + "\n")
    return folder


def test_unit_cuts_before_it_scales() -> None:
    """A cut vector has unit length, and a zero vector stays zero."""
    rows = unit(np.array([[3, 4, 12], [0, 0, 5]], dtype=np.float32), 2)
    assert rows == pytest.approx(np.array([[0.6, 0.8], [0, 0]]))


def test_scored_pairs_are_read_and_scored(tmp_path: Path) -> None:
    """Cosines 1, 1/sqrt 2, 0 against 5, 3, 1: the same order; with the first dimension alone, ties."""
    path = tmp_path / "mine.tsv"
    path.write_text("sentence1\tsentence2\tscore\na\ta\t5\na\tab\t3.0\nb\tac\t1\n")
    pairs = read_scored_pairs(path)
    assert (pairs.name, pairs.scores) == ("mine", [5, 3, 1])
    assert score_pairs(pairs, letters, [None, 3]) == pytest.approx([100, 100])
    assert score_pairs(pairs, letters, [1]) == pytest.approx([100 * np.sqrt(0.75)])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("h\n", "holds no pair"),
        ("h\na\tb\n", "line 2 is not sentence1, sentence2, score"),
        ("h\na\tb\tmuch\n", "line 2 is not"),
    ],
)
def test_files_without_scored_pairs_are_named(tmp_path: Path, content: str, message: str) -> None:
    """One sentence with the file, and the line where there is one."""
    (tmp_path / "s.tsv").write_text(content)
    with pytest.raises(CorpusError, match=rf"s\.tsv.*{message}"):
        read_scored_pairs(tmp_path / "s.tsv")


def test_a_retrieval_set_is_read(tmp_path: Path) -> None:
    """Titles stand before texts; relevance of 0, and of queries that are not there, is left out."""
    folder = write_retrieval(tmp_path / "r")
    assert is_retrieval(folder)
    assert not is_retrieval(tmp_path)
    data = read_retrieval(folder)
    assert data.documents == {"d1": "a a", "d2": "ab", "d3": "b", "d4": "c"}
    assert data.relevant == {"q1": {"d2": 1, "d1": 2}, "q2": {"d3": 1}}


def test_a_retrieval_set_is_scored_as_by_hand(tmp_path: Path) -> None:
    """q1 ranks d1, d2 first and is perfect; q2 ranks d4 first, then the rest in the corpus's order: d3 is fourth."""
    data = read_retrieval(write_retrieval(tmp_path / "r"))
    (gain, precision), *_ = score_retrieval(data, letters, [None])
    assert gain == pytest.approx(100 * (1 + 1 / np.log2(5)) / 2)
    assert precision == pytest.approx(100 * (1 + 1 / 4) / 2)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("queries.jsonl", '{"_id": "q1"}\n', r"queries\.jsonl, line 1 is not an object with _id and text"),
        ("queries.jsonl", "[]\n", r"queries\.jsonl, line 1 is not an object"),
        ("qrels.tsv", "h\nq1\td1\n", r"qrels\.tsv, line 2 is not query, document, relevance"),
        ("qrels.tsv", "h\nq1\td1\t0\n", r"qrels\.tsv names no document"),
        ("qrels.tsv", None, r"qrels\.tsv is missing"),
    ],
)
def test_faults_of_a_retrieval_set_are_named(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    """One sentence with the file and the line."""
    folder = write_retrieval(tmp_path / "r")
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    with pytest.raises(CorpusError, match=message):
        read_retrieval(folder)
