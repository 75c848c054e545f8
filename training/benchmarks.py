"""Labelled data that embeddings are measured with: scored pairs (STS) and retrieval sets in BEIR's layout.

============================  ==============================================================================
STS                           ``NAME.tsv``: sentence1, sentence2, score under a header line
retrieval                     a folder with ``corpus.jsonl`` (``_id``, ``title``, ``text``), ``queries.jsonl``
                              (``_id``, ``text``) and ``qrels.tsv`` (query, document, relevance under a header line)
============================  ==============================================================================

Each file may also be a gzip file, with ``.gz`` behind its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model.contract import FloatArray
from training.errors import CorpusError
from training.lines import read_lines
from training.scores import average_precision, ndcg, spearman

Encode = Callable[[Sequence[str]], FloatArray]
"""Texts -> array (texts, D), float32; unit length is not needed."""

RANKED = 1000
"""Documents that count for a query, as in BEIR and TREC."""


@dataclass(frozen=True, slots=True)
class ScoredPairs:
    """An STS set.

    Attributes
    ----------
    name : str
    first, second : list of str
    scores : list of float
        What people said; more is more alike.
    """

    name: str
    first: list[str]
    second: list[str]
    scores: list[float]


@dataclass(frozen=True, slots=True)
class Retrieval:
    """A retrieval set.

    Attributes
    ----------
    name : str
    documents, queries : dict of str to str
        Id -> text; a document's title stands before its text.
    relevant : dict of str to dict
        Query -> document -> relevance above 0; only queries that have one.
    """

    name: str
    documents: dict[str, str]
    queries: dict[str, str]
    relevant: dict[str, dict[str, float]]


def read_scored_pairs(path: Path) -> ScoredPairs:
    """Read an STS file.

    Raises
    ------
    CorpusError
        If it cannot be read, or a line is not two sentences and a number.
    """
    rows = list(read_lines(path))[1:]
    pairs = ScoredPairs(path.name.removesuffix(".gz").removesuffix(".tsv"), [], [], [])
    for number, line in rows:
        try:
            first, second, score = line.split("\t")
            pairs.scores.append(float(score))
        except ValueError:
            raise CorpusError(f"{path}, line {number} is not sentence1, sentence2, score") from None
        pairs.first.append(first)
        pairs.second.append(second)
    if not rows:
        raise CorpusError(f"{path} holds no pair")
    return pairs


def read_retrieval(folder: Path) -> Retrieval:
    """Read a retrieval set.

    Raises
    ------
    CorpusError
        If a file is missing or a line of it is not as it should be.
    """
    documents = _read_texts(_file(folder, "corpus.jsonl"))
    queries = _read_texts(_file(folder, "queries.jsonl"))
    qrels = _file(folder, "qrels.tsv")
    relevant: dict[str, dict[str, float]] = {}
    for number, line in list(read_lines(qrels))[1:]:
        try:
            query, document, relevance = line.split("\t")
            value = float(relevance)
        except ValueError:
            raise CorpusError(f"{qrels}, line {number} is not query, document, relevance") from None
        if value > 0 and query in queries:
            relevant.setdefault(query, {})[document] = value
    if not relevant:
        raise CorpusError(f"{qrels} names no document for any of the queries")
    return Retrieval(folder.name, documents, queries, relevant)


def is_retrieval(folder: Path) -> bool:
    """Whether a folder looks like a retrieval set."""
    return any((folder / f"corpus.jsonl{ending}").exists() for ending in ("", ".gz"))


def _file(folder: Path, name: str) -> Path:
    packed = folder / f"{name}.gz"
    return packed if packed.exists() else folder / name


def _read_texts(path: Path) -> dict[str, str]:
    """Read ids and texts, the title first where there is one."""
    texts = {}
    for number, line in read_lines(path):
        try:
            row = json.loads(line)
            texts[str(row["_id"])] = f"{row.get('title') or ''} {row['text']}".strip()
        except (ValueError, KeyError, TypeError, AttributeError):
            raise CorpusError(f"{path}, line {number} is not an object with _id and text") from None
    return texts


def unit(embeddings: FloatArray, dimensions: int | None = None) -> FloatArray:
    """Cut to the first dimensions, then scale to unit length; a zero vector stays zero."""
    cut = embeddings[:, :dimensions]
    return np.asarray(cut / np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), 1e-12), dtype=np.float32)


def score_pairs(pairs: ScoredPairs, encode: Encode, dimensions: Sequence[int | None]) -> list[float]:
    """Correlate cosines with what people said.

    Returns
    -------
    list of float
        Spearman times 100, one for each of ``dimensions``; None among them = all.
    """
    texts = list(dict.fromkeys(pairs.first + pairs.second))
    place = {text: index for index, text in enumerate(texts)}
    embeddings = encode(texts)
    first, second = ([place[text] for text in side] for side in (pairs.first, pairs.second))
    scores = []
    for width in dimensions:
        rows = unit(embeddings, width)
        scores.append(100 * spearman((rows[first] * rows[second]).sum(axis=1), pairs.scores))
    return scores


def score_retrieval(data: Retrieval, encode: Encode, dimensions: Sequence[int | None]) -> list[tuple[float, float]]:
    """Rank the documents for every query by cosine.

    Returns
    -------
    list of (float, float)
        nDCG at 10 and mean average precision over the first 1,000, each times 100, averaged over the queries that
        have a relevant document; one for each of ``dimensions``.
    """
    ids = list(data.documents)
    documents = encode(list(data.documents.values()))
    asked = list(data.relevant)
    queries = encode([data.queries[query] for query in asked])
    scores = []
    for width in dimensions:
        cosines = unit(queries, width) @ unit(documents, width).T
        measured = [_score_query(ids, row, data.relevant[query]) for query, row in zip(asked, cosines, strict=True)]
        means = 100 * np.mean(measured, axis=0)
        scores.append((float(means[0]), float(means[1])))
    return scores


def _score_query(ids: Sequence[str], cosines: NDArray[np.float32], relevant: dict[str, float]) -> tuple[float, float]:
    """Measure one ranking: nDCG at 10, average precision."""
    ranking = np.argsort(-cosines, kind="stable")[:RANKED]
    gains = [relevant.get(ids[place], 0.0) for place in ranking]
    return ndcg(gains, list(relevant.values())), average_precision([gain > 0 for gain in gains], len(relevant))
