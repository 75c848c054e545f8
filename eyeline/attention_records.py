"""What calls about attention return; ``docs/api.md`` says what each number means.

``L`` is the number of tokens of one text (or its words, or what is left of them, as ``units`` says).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eyeline.records import BoolArray, FloatArray, IntArray, Tokens, Units, Words


@dataclass(frozen=True, slots=True, eq=False)
class SparseRows:
    """The largest weights of each row, as compressed rows in the order (layer, head, query).

    Attributes
    ----------
    row_start : array, shape (rows + 1,), int32
        Row r has ``index[row_start[r]:row_start[r + 1]]``.
    index : array, int32
        Keys.
    weight : array, float32 or float16
        The largest first within a row.
    rest : array, shape (rows,), float32
        The sum of what was left out of each row.
    """

    row_start: NDArray[np.int32]
    index: NDArray[np.int32]
    weight: FloatArray
    rest: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Maps:
    """Attention weights of one text: row = query (who looks), column = key (looked at).

    Attributes
    ----------
    layers : list of int
        True numbers; ``values[i, j]`` is the map of ``layers[i]`` and ``heads[j]``.
    heads : list of int, or "mean" or "max"
        As many as the axis is long; or how they were taken together, and the axis has length 1.
    unit, special : str
        As asked.
    units : Units
    values : array, shape (layers, heads, L, L), or None
        None where only the largest weights were asked for.
    sparse : SparseRows or None
    shape : tuple of int
        (layers, heads, L, L), of sparse rows too.
    kept_mass : array, shape (layers, heads, L), float32, or None
        What each row kept, where special tokens left.
    row_sum_tolerance : float
        How far the sum of a row may be from 1 by rounding.
    """

    layers: list[int]
    heads: list[int] | str
    unit: str
    special: str
    units: Units
    values: FloatArray | None
    sparse: SparseRows | None
    shape: tuple[int, ...]
    kept_mass: NDArray[np.float32] | None
    row_sum_tolerance: float


@dataclass(frozen=True, slots=True, eq=False)
class Stats:
    """Numbers that describe heads.

    Attributes
    ----------
    layers, heads : list of int
        What rows and columns stand for.
    special : str
        "keep" or "renormalize".
    values : dict of str to array, shape (layers, heads), float32
        ``entropy``, ``to_cls`` and the others by the name that the API gives them; NaN where one has no meaning.
    """

    layers: list[int]
    heads: list[int]
    special: str
    values: dict[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """Attention multiplied through the layers: row = token of the last layer, column = token of the input.

    Attributes
    ----------
    residual : float
    heads : str
        "mean" or "max".
    layers : list of int
        Those multiplied.
    unit, special, units, row_sum_tolerance
        As of :class:`Maps`.
    values : array, shape (L, L)
    kept_mass : array, shape (L,), float32, or None
    """

    residual: float
    heads: str
    layers: list[int]
    unit: str
    special: str
    units: Units
    values: FloatArray
    kept_mass: NDArray[np.float32] | None
    row_sum_tolerance: float


@dataclass(frozen=True, slots=True, eq=False)
class TextAttention:
    """One text, and where the model looked in it.

    Attributes
    ----------
    model : str
    embedding : array, shape (D,), float32 or the ``output_dtype`` asked for
        The text's, of the same pass.
    num_tokens, num_tokens_total : int
    truncated : bool
    tokens : Tokens
    words : Words
    maps, stats, rollout : optional
        Each where it was asked for.
    """

    model: str
    embedding: NDArray[Any]
    num_tokens: int
    num_tokens_total: int
    truncated: bool
    tokens: Tokens
    words: Words
    maps: Maps | None
    stats: Stats | None
    rollout: Rollout | None


@dataclass(frozen=True, slots=True, eq=False)
class HeadDistances:
    """How far apart the heads of a model are, over some texts; ``h`` is the number of heads of all layers.

    Attributes
    ----------
    model : str
    heads : list of (int, int)
        Layer and head: what rows and columns of ``distances`` stand for.
    distances : array, shape (h, h), float64
        Hellinger distances, 0 to 1.
    order : list of int
        Indices into ``heads`` in which like heads are neighbours.
    layout : array, shape (h, 2), float64
        A place in the plane for each head.
    explained : float
        Share of the squared distances that the plane holds, 0 to 1.
    num_tokens : array, shape (n,), int64
    truncated : array, shape (n,), bool
    """

    model: str
    heads: list[tuple[int, int]]
    distances: NDArray[np.float64]
    order: list[int]
    layout: NDArray[np.float64]
    explained: float
    num_tokens: IntArray
    truncated: BoolArray

    def __len__(self) -> int:
        """Count the texts."""
        return len(self.num_tokens)
