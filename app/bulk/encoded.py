"""A window of encoded rows: what the encoder of windows makes, and the layouts write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.bulk.rows import TextRow
from model.contract import FloatArray
from model.output_dtype import RANGED, convert, num_clipped, num_values
from model.output_types import OutputDtype


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
    """

    dimensions: int
    statistics: tuple[str, ...]
    layers: int
    heads: int
    output_dtype: OutputDtype = "float32"

    @property
    def embedding(self) -> tuple[int]:
        """Shape of a row's embedding."""
        return (num_values(self.dimensions, self.output_dtype),)

    @property
    def stats(self) -> tuple[int, int, int]:
        """Shape of a row's statistics."""
        return len(self.statistics), self.layers, self.heads


@dataclass(frozen=True, slots=True)
class Encoded:
    """A window of rows.

    Attributes
    ----------
    rows : sequence of n TextRow
    embeddings : array, shape (n, D), float32; or what :meth:`converted` made of it
    stats : array, shape (n, statistics, layers, heads), float32, or None
        NaN where one has no meaning.
    """

    rows: Sequence[TextRow]
    embeddings: NDArray[Any]
    stats: FloatArray | None

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
