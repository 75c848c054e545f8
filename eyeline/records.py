"""What a client's calls return: numpy arrays, and the tables beside them.

Names are those of the wire; ``docs/api.md`` says what each number means. ``n`` is the number of texts, ``D`` the length
of an embedding.
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
class Quantization:
    """What int8 and uint8 made of numbers: ``x`` is about ``value * range / 127``, of uint8 less 128 before.

    Attributes
    ----------
    range : float
        The largest number that is told apart; the same for all texts.
    clipped : array, shape (n,), int64
        How many numbers of each embedding lay beyond it.
    """

    range: float
    clipped: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """Embeddings of texts, in the order given.

    Attributes
    ----------
    model : str
        What answered.
    embeddings : array, shape (n, D), float32; or of the ``output_dtype`` asked for, packed bits of shape (n, D / 8)
    num_tokens, num_tokens_total : array, shape (n,), int64
        Tokens processed, special tokens included, and tokens before truncation.
    truncated : array, shape (n,), bool
    quantization : Quantization or None
        Of int8 and uint8.
    """

    model: str
    embeddings: NDArray[Any]
    num_tokens: IntArray
    num_tokens_total: IntArray
    truncated: BoolArray
    quantization: Quantization | None = None

    def __len__(self) -> int:
        """Count the texts."""
        return len(self.embeddings)


@dataclass(frozen=True, slots=True, eq=False)
class ChunkedText:
    """One text in chunks; ``c`` is their number.

    Attributes
    ----------
    model : str
    start, end : array, shape (c,), int64
        Where each chunk is in the text.
    embeddings : array, shape (c, D), float32 or the ``output_dtype`` asked for
    chunk_tokens : array, shape (c,), int64
        Tokens of the text in each chunk.
    chunk_truncated : array, shape (c,), bool
        Whether a chunk alone is longer than the model reads.
    quantization : Quantization or None
        Of int8 and uint8.
    num_tokens, num_tokens_total : int
        Tokens processed for all chunks, and tokens of the text as a whole.
    truncated : bool
        Whether one of the chunks was cut.
    """

    model: str
    start: IntArray
    end: IntArray
    embeddings: NDArray[Any]
    chunk_tokens: IntArray
    chunk_truncated: BoolArray
    quantization: Quantization | None
    num_tokens: int
    num_tokens_total: int
    truncated: bool

    def __len__(self) -> int:
        """Count the chunks."""
        return len(self.start)


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
