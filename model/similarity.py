"""Which tokens make two texts alike: a cosine written as a sum over all pairs of their tokens.

Where a model pools by the mean and has nothing but linear layers behind it, an embedding is the mean of one vector per
token, ``u = mean_i(u_i)`` with ``u_i = W x_i + b``. Then, with n tokens on one side and m on the other, ::

    cos(u, v) = sum_ij (u_i . v_j) / (n m |u| |v|)

exactly, and the terms are the map: what tokens i and j add to the cosine, or take from it. Nothing is approximated, so
the terms may be summed over the tokens of a word as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.contract import FloatArray
from model.maps import Units

WideArray = NDArray[np.float64]

SMALLEST_NORM = 1e-12
"""Shorter vectors are divided by this instead, as :func:`~model.pooling.finish` does: a zero vector has cosine 0."""


@dataclass(frozen=True, slots=True)
class Projection:
    """What stands between a token's last hidden state and its share of the embedding: ``W x + b``.

    Attributes
    ----------
    weight : array, shape (dimensions, D), float64, or None
        None where the embedding is the mean of the hidden states themselves.
    bias : array, shape (dimensions,), float64, or None
    """

    weight: WideArray | None = None
    bias: WideArray | None = None

    @classmethod
    def compose(cls, layers: Sequence[tuple[FloatArray, FloatArray | None]]) -> Projection:
        """Make one projection of linear layers, each a weight (out, in) and perhaps a bias (out,), first one first."""
        weight: WideArray | None = None
        bias: WideArray | None = None
        for next_weight, next_bias in layers:
            wide = next_weight.astype(np.float64)
            weight = wide if weight is None else wide @ weight  # (out, D)
            moved = None if bias is None else wide @ bias
            if next_bias is not None:
                moved = next_bias.astype(np.float64) if moved is None else moved + next_bias
            bias = moved
        return cls(weight, bias)

    def project(self, token_states: FloatArray, dimensions: int | None = None) -> WideArray:
        """Return each token's share of the embedding: (L, D) -> (L, dimensions).

        Parameters
        ----------
        token_states : array, shape (L, D)
        dimensions : int, optional
            Keep the first so many.
        """
        states = token_states.astype(np.float64)
        if self.weight is None:
            return states[:, :dimensions]
        shares = states @ self.weight[:dimensions].T  # (L, dimensions)
        return shares if self.bias is None else shares + self.bias[:dimensions]


def similarity_map(
    first: FloatArray, second: FloatArray, projection: Projection, dimensions: int | None = None
) -> WideArray:
    """Compute what each pair of tokens adds to the cosine of two texts.

    Parameters
    ----------
    first, second : arrays, shapes (n, D) and (m, D)
        Last hidden states of the tokens that are pooled, at least one each.
    projection : Projection
    dimensions : int, optional
        Of the embeddings that are compared.

    Returns
    -------
    array, shape (n, m), float64
        Its sum is the cosine of the two embeddings, within rounding (1e-12 for vectors that do not cancel).
    """
    u, v = projection.project(first, dimensions), projection.project(second, dimensions)
    norms = [max(float(np.linalg.norm(side.mean(axis=0))), SMALLEST_NORM) for side in (u, v)]
    scaled: WideArray = (u / (len(u) * norms[0])) @ (v / (len(v) * norms[1])).T
    return scaled


def merge(values: WideArray, rows: Units, columns: Units) -> WideArray:
    """Sum the blocks of a map that belong together: (n, m) -> (row units, column units), with the same sum."""
    by_row = np.zeros((rows.num_units, values.shape[1]))
    np.add.at(by_row, rows.members, values)
    by_column = np.zeros((columns.num_units, rows.num_units))
    np.add.at(by_column, columns.members, by_row.T)
    return by_column.T


def strongest_pairs(values: WideArray, count: int = 10) -> list[tuple[int, int, float]]:
    """Return (row, column, value) of the pairs that move the sum most, up or down, the strongest first.

    Of equal ones the first row, then the first column.
    """
    flat = values.ravel()
    order = np.argsort(-np.abs(flat), kind="stable")[:count]
    rows, columns = np.unravel_index(order, values.shape)
    return [
        (int(row), int(column), float(value)) for row, column, value in zip(rows, columns, flat[order], strict=True)
    ]
