"""What a client's calls return: numpy arrays, and the tables beside them.

Names are those of the wire; ``docs/api.md`` says what each number means. ``n`` is the number of texts, ``L`` the tokens
of one text (or its words, or what is left of them, as ``units`` says), ``D`` the length of an embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Text: TypeAlias = str | tuple[str, str]
"""What is encoded: one text, or a pair, which is encoded together."""

FloatArray: TypeAlias = NDArray[np.floating[Any]]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """Embeddings of texts, in the order given.

    Attributes
    ----------
    model : str
        What answered.
    embeddings : array, shape (n, D), float32
    num_tokens, num_tokens_total : array, shape (n,), int64
        Tokens processed, special tokens included, and tokens before truncation.
    truncated : array, shape (n,), bool
    """

    model: str
    embeddings: NDArray[np.float32]
    num_tokens: IntArray
    num_tokens_total: IntArray
    truncated: BoolArray

    def __len__(self) -> int:
        """Count the texts."""
        return len(self.embeddings)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a text, column by column; ``word`` and ``segment`` are None of special and prompt tokens."""

    id: list[int]
    text: list[str]
    start: list[int]
    end: list[int]
    special: list[bool]
    segment: list[int | None]
    word: list[int | None]


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a text, column by column."""

    text: list[str]
    start: list[int]
    end: list[int]
    segment: list[int]


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """A text as the model reads it."""

    tokens: Tokens
    words: Words
    num_tokens: int
    num_tokens_total: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class Units:
    """What rows and columns stand for: the first token of each, and its word or None."""

    token: list[int]
    word: list[int | None]


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
    embedding : array, shape (D,), float32
        The text's, of the same pass.
    num_tokens, num_tokens_total : int
    truncated : bool
    tokens : Tokens
    words : Words
    maps, stats, rollout : optional
        Each where it was asked for.
    """

    model: str
    embedding: NDArray[np.float32]
    num_tokens: int
    num_tokens_total: int
    truncated: bool
    tokens: Tokens
    words: Words
    maps: Maps | None
    stats: Stats | None
    rollout: Rollout | None


@dataclass(frozen=True, slots=True)
class ExplainedText:
    """One side of an explained pair."""

    tokens: Tokens
    words: Words


@dataclass(frozen=True, slots=True)
class StrongPair:
    """One of the largest values of an explanation."""

    row: int
    column: int
    value: float


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """What each pair of tokens (or words) of two texts adds to their cosine.

    Attributes
    ----------
    a, b : ExplainedText
    unit : str
    rows, columns : Units
        Of ``a`` and of ``b``.
    values : array, shape (rows, columns), float64
        They sum to the cosine.
    row_sums, column_sums : array, float64
    strongest : list of StrongPair
        At most ten, by absolute value.
    sum : float
        The cosine.
    """

    a: ExplainedText
    b: ExplainedText
    unit: str
    rows: Units
    columns: Units
    values: NDArray[np.float64]
    row_sums: NDArray[np.float64]
    column_sums: NDArray[np.float64]
    strongest: list[StrongPair]
    sum: float


@dataclass(frozen=True, slots=True, eq=False)
class Similarity:
    """Cosines.

    Attributes
    ----------
    model : str
    similarities : array, shape (n, n) of texts or (n,) of pairs, float32
    num_tokens : array, shape (n,) or (n, 2), int64
    truncated : array, shape (n,) or (n, 2), bool
    explanations : list of Explanation, or None
        One per pair, where they were asked for.
    """

    model: str
    similarities: NDArray[np.float32]
    num_tokens: IntArray
    truncated: BoolArray
    explanations: list[Explanation] | None

    def __len__(self) -> int:
        """Count the texts, or the pairs."""
        return len(self.similarities)
