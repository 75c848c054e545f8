"""Measures of embeddings: rank correlation of similarities, and quality of rankings. Pure functions on arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def ranks(values: ArrayLike) -> Floats:
    """Rank values from 1; equal ones share the average of their ranks."""
    array = np.asarray(values, dtype=np.float64)
    order = np.argsort(array, kind="stable")
    _, starts, counts = np.unique(array[order], return_index=True, return_counts=True)
    ranked = np.empty(len(array))
    ranked[order] = np.repeat(starts + (counts + 1) / 2, counts)
    return ranked


def spearman(first: ArrayLike, second: ArrayLike) -> float:
    """Correlate the ranks of two lists: -1 to 1; NaN where one of them is constant."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.corrcoef(ranks(first), ranks(second))[0, 1])


def ndcg(gains: Sequence[float], ideal: Sequence[float], depth: int = 10) -> float:
    """Compute the normalised discounted cumulative gain of a ranking.

    Parameters
    ----------
    gains : sequence of float
        Relevance of the ranked documents, best first; at least the first ``depth`` of them.
    ideal : sequence of float
        Relevance of all documents that have one, at least one of them above 0.
    depth : int

    Returns
    -------
    float
        0 to 1.

    References
    ----------
    Järvelin and Kekäläinen 2002, with linear gain as trec_eval has it.
    """
    best = sorted(ideal, reverse=True)[:depth]
    return _discounted(gains[:depth]) / _discounted(best)


def _discounted(gains: Sequence[float]) -> float:
    return sum(gain / float(np.log2(place + 2)) for place, gain in enumerate(gains))


def average_precision(relevant: Sequence[bool], num_relevant: int) -> float:
    """Average the precision at the place of every relevant document; those that are not ranked count as 0.

    Parameters
    ----------
    relevant : sequence of bool
        Of the ranked documents, best first.
    num_relevant : int
        All relevant documents, at least one.
    """
    hits = np.flatnonzero(np.asarray(relevant, dtype=bool))
    return float((np.arange(1, len(hits) + 1) / (hits + 1)).sum() / num_relevant)
