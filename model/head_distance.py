"""Which heads do the same thing: how far apart the attention of all heads is, over some texts, and how to show it.

The distance of two heads is Hellinger's, squared and averaged over query rows: with the rows p and q of two heads, ::

    d^2 = mean over rows of (1 - sum_k sqrt(p_k q_k))

Each row's square roots make a unit vector, so d is a Euclidean distance between heads: 0 where two always look at the
same tokens alike, 1 where they never share one. It needs all inner products of the heads' square roots (a Gram matrix),
which texts add to one after the other: whatever the number of texts, one text's maps are in memory at a time.

References: Clark et al. 2019, section 6, who draw heads by the distance of their attention; Sokal and Michener 1958
(average linkage); Torgerson 1952 (classical scaling).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model.contract import FloatArray

WideArray = NDArray[np.float64]

BLOCK_VALUES = 2_000_000
"""Weights that are widened to float64 at a time: 16 MB."""

NEAR_TIE = 1e-9
"""Relative size below which two coordinates count as equally large, so that rounding decides no sign."""


class HeadDistances:
    """Collects texts, and gives the distances of all heads.

    Parameters
    ----------
    num_heads : int
        Layers x heads.

    Attributes
    ----------
    num_rows : int
        Query rows added so far.
    """

    def __init__(self, num_heads: int) -> None:
        self.num_rows = 0
        self._gram = np.zeros((num_heads, num_heads))

    def add(self, maps: FloatArray, hidden: Sequence[bool] | None = None) -> None:
        """Add the maps of one text.

        Parameters
        ----------
        maps : array, shape (N, H, L, L)
        hidden : sequence of L bools, optional
            Tokens whose rows and columns are left out; what is left of each row is scaled to sum to 1 again. A row that
            has nothing left looks nowhere: it is like another such row, and unlike any other.
        """
        length = maps.shape[-1]
        seen = np.arange(length) if hidden is None else np.flatnonzero(~np.asarray(hidden, dtype=bool))
        heads = maps.reshape(len(self._gram), length, length)
        step = max(1, BLOCK_VALUES // max(1, heads.shape[0] * len(seen)))
        for first in range(0, len(seen), step):
            rows = seen[first : first + step]
            weights = heads[:, rows[:, None], seen].astype(np.float64)  # (heads, rows, seen)
            kept = weights.sum(axis=-1, keepdims=True)  # (heads, rows, 1)
            weights /= np.where(kept > 0, kept, 1.0)
            roots = np.sqrt(weights, out=weights).reshape(len(heads), -1)  # (heads, rows * seen)
            nowhere = (kept[..., 0] == 0).astype(np.float64)  # (heads, rows)
            self._gram += roots @ roots.T + nowhere @ nowhere.T
        self.num_rows += len(seen)

    def distances(self) -> WideArray:
        """Return the distances of all heads: (heads, heads), 0 to 1, symmetric, 0 on the diagonal.

        Raises
        ------
        ValueError
            If no row was added.
        """
        if not self.num_rows:
            raise ValueError("no row was added: there is nothing to compare")
        own = np.diag(self._gram)
        # not 1 - mean: so what rounding did to a row's own product cancels, and like heads are at 0
        squared = (own[:, None] + own - self._gram - self._gram.T) / (2 * self.num_rows)
        distances: WideArray = np.sqrt(np.clip(squared, 0.0, 1.0))
        np.fill_diagonal(distances, 0.0)
        return distances


@dataclass(frozen=True, slots=True)
class Merge:
    """Two clusters that became one: their items in leaf order, and the mean distance between them."""

    first: tuple[int, ...]
    second: tuple[int, ...]
    height: float

    @property
    def joined(self) -> tuple[int, ...]:
        """The items of both, so turned that the two ends that meet are the nearest."""
        return self.first + self.second


def average_linkage(distances: WideArray) -> list[Merge]:
    """Join the nearest two clusters until one is left; the distance of clusters is the mean over their items.

    Parameters
    ----------
    distances : array, shape (n, n)
        Symmetric.

    Returns
    -------
    list of n - 1 Merge
        In the order of joining. Of equally near clusters those with the lowest numbers are joined first.
    """
    between = distances.astype(np.float64)
    np.fill_diagonal(between, np.inf)
    leaves: list[tuple[int, ...]] = [(index,) for index in range(len(between))]
    merges = []
    for _ in range(len(between) - 1):
        low, high = sorted(divmod(int(between.argmin()), len(between)))
        height = float(between[low, high])
        sizes = len(leaves[low]), len(leaves[high])
        merges.append(_turned(leaves[low], leaves[high], height, distances))
        leaves[low] = merges[-1].joined
        mean = (sizes[0] * between[low] + sizes[1] * between[high]) / sum(sizes)
        between[low, :] = between[:, low] = mean  # infinite at low itself, as it was
        between[high, :] = between[:, high] = np.inf
    return merges


def _turned(first: tuple[int, ...], second: tuple[int, ...], height: float, distances: WideArray) -> Merge:
    """Turn either cluster round where that brings nearer items together."""
    turns = [(a, b) for a in (first, first[::-1]) for b in (second, second[::-1])]
    a, b = min(turns, key=lambda turn: distances[turn[0][-1], turn[1][0]])
    return Merge(a, b, height)


def leaf_order(distances: WideArray) -> list[int]:
    """Order items so that like ones are neighbours: the leaves of :func:`average_linkage`'s tree."""
    merges = average_linkage(distances)
    return list(merges[-1].joined) if merges else list(range(len(distances)))


def lay_out(distances: WideArray) -> tuple[WideArray, float]:
    """Place items in a plane so that their distances are as near to the true ones as two axes can be.

    Parameters
    ----------
    distances : array, shape (n, n)
        Euclidean, in however many dimensions.

    Returns
    -------
    coordinates : array, shape (n, 2)
        Centred; the first axis is the longer one. On each axis the largest coordinate is positive, the first of equals.
    explained : float
        Share of all squared distances that the two axes hold, 0 to 1; 1 where there is no distance to hold.
    """
    centred = -0.5 * distances**2
    centred -= centred.mean(axis=0)
    centred -= centred.mean(axis=1, keepdims=True)
    sizes, axes = np.linalg.eigh(centred)
    sizes, axes = np.clip(sizes[::-1], 0.0, None), axes[:, ::-1]  # the largest first; rounding may leave -1e-17
    coordinates = np.zeros((len(distances), 2))
    num_axes = min(2, len(distances))
    coordinates[:, :num_axes] = axes[:, :num_axes] * np.sqrt(sizes[:num_axes])
    for axis in coordinates.T:
        large = np.abs(axis) >= np.abs(axis).max() * (1 - NEAR_TIE)
        axis *= -1.0 if axis[large.argmax()] < 0 else 1.0
    total = float(sizes.sum())
    return coordinates, float(sizes[:2].sum()) / total if total > 0 else 1.0


@dataclass(frozen=True, slots=True)
class HeadPicture:
    """Distances of heads, and how to show them.

    Attributes
    ----------
    distances : array, shape (heads, heads)
    order : list of int
        See :func:`leaf_order`.
    layout : array, shape (heads, 2)
    explained : float
        See :func:`lay_out`.
    """

    distances: WideArray
    order: list[int]
    layout: WideArray
    explained: float


def draw(distances: WideArray) -> HeadPicture:
    """Find an order and a layout for distances of heads."""
    layout, explained = lay_out(distances)
    return HeadPicture(distances, leaf_order(distances), layout, explained)
