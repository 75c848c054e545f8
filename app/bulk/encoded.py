"""A window of rows: as the model takes it, and as it comes out, for the layouts to write."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.bulk.options import CHUNK_COLUMNS, CHUNKS, STATS
from app.bulk.rows import BadRow, TextRow
from model.contract import EncodeInput, FloatArray
from model.output_dtype import NUMPY_DTYPES, RANGED, convert, num_clipped, num_values
from model.output_types import OutputDtype

WideArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SecondArray:
    """What stands beside the embeddings, with a row for each of theirs.

    Attributes
    ----------
    name : str
    shape : tuple of int
        Of a row.
    dtype : str
        As numpy spells it, ``<f4``.
    described : mapping of str to str
        JSON: what is where on its axes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    described: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RowShape:
    """What each row of an output holds.

    Attributes
    ----------
    dimensions : int
    statistics : tuple of str
        Names of the statistics of attention heads; empty where none are written.
    layers, heads : int
    output_dtype : OutputDtype
        Of the embedding.
    is_chunk : bool
        It is of a chunk of a text, and says which.
    """

    dimensions: int
    statistics: tuple[str, ...]
    layers: int
    heads: int
    output_dtype: OutputDtype = "float32"
    is_chunk: bool = False

    @property
    def embedding(self) -> tuple[int]:
        """Shape of a row's embedding."""
        return (num_values(self.dimensions, self.output_dtype),)

    @property
    def stats(self) -> tuple[int, int, int]:
        """Shape of a row's statistics."""
        return len(self.statistics), self.layers, self.heads

    @property
    def second(self) -> SecondArray | None:
        """What a row holds beside its embedding, if something."""
        if self.statistics:
            axes = {"statistics": json.dumps(self.statistics), "axes": '["text", "statistic", "layer", "head"]'}
            return SecondArray(STATS, self.stats, NUMPY_DTYPES["float32"], axes)
        if self.is_chunk:
            axes = {"columns": json.dumps(CHUNK_COLUMNS), "axes": '["chunk", "column"]'}
            return SecondArray(CHUNKS, (len(CHUNK_COLUMNS),), "<i8", axes)
        return None


@dataclass(frozen=True, slots=True)
class Tokenized:
    """A window of texts, ready for the model.

    Attributes
    ----------
    rows : list of n TextRow
        A text for each row of the output; where that is a chunk, the text that it is of.
    inputs : list of m EncodeInput
        What is run: a text each, and where texts are cut a chunk, or a stretch of several.
    bad : list of BadRow
        Texts that cannot be encoded, in order.
    text_of : sequence of m int
        Which text of the window an input is of, from 0.
    firsts : sequence of m + 1 int
        The rows that input i gives are those from ``firsts[i]`` to before ``firsts[i + 1]``.
    pooled : list of m tuple of range, or None
        The chunks of each input: in the order of ``inputs`` they are those of ``rows``.
    chunks : array, shape (n, columns), int64, or None
        :data:`~app.bulk.options.CHUNK_COLUMNS`.
    """

    rows: list[TextRow]
    inputs: list[EncodeInput]
    bad: list[BadRow]
    text_of: Sequence[int]
    firsts: Sequence[int]
    pooled: list[tuple[range, ...]] | None = None
    chunks: WideArray | None = None

    @property
    def num_truncated(self) -> int:
        """How many rows lost tokens."""
        if self.chunks is not None:
            return int(self.chunks[:, CHUNK_COLUMNS.index("truncated")].sum())
        return sum(item.is_truncated for item in self.inputs)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A window of rows.

    Attributes
    ----------
    rows : sequence of n TextRow
    embeddings : array, shape (n, D), float32; or what :meth:`converted` made of it
    stats : array, shape (n, statistics, layers, heads), float32, or None
        NaN where one has no meaning.
    chunks : array, shape (n, columns), int64, or None
        :data:`~app.bulk.options.CHUNK_COLUMNS`.
    """

    rows: Sequence[TextRow]
    embeddings: NDArray[Any]
    stats: FloatArray | None
    chunks: WideArray | None = None

    @property
    def second(self) -> NDArray[Any] | None:
        """What stands beside the embeddings: :attr:`RowShape.second` of each row."""
        return self.stats if self.stats is not None else self.chunks

    def first_not_finite(self) -> TextRow | None:
        """Return the first text whose embedding is not finite."""
        finite = np.isfinite(self.embeddings).all(axis=1)
        return None if finite.all() else self.rows[int(np.argmin(finite))]

    def converted(self, output_dtype: OutputDtype) -> Encoded:
        """Return the rows as they are written; raises as :func:`model.output_dtype.convert` does."""
        return replace(self, embeddings=convert(self.embeddings, output_dtype))

    def num_clipped(self, output_dtype: OutputDtype) -> int:
        """Count the numbers that :meth:`converted` will clip."""
        return int(num_clipped(self.embeddings).sum()) if output_dtype in RANGED else 0
