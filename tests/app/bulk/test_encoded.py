"""Claims about a window of encoded rows."""

from __future__ import annotations

import numpy as np
import pytest

from app.bulk.encoded import Encoded, RowShape
from app.bulk.rows import TextRow
from model.errors import OutputDtypeError
from model.output_dtype import convert

ROWS = [TextRow(line, f"t{line}") for line in (3, 5)]


def test_a_row_that_is_not_finite_is_found_by_its_text() -> None:
    """The first of them; None where all is well."""
    assert Encoded(ROWS, np.zeros((2, 3), np.float32), None).first_not_finite() is None
    faulty = Encoded(ROWS, np.array([[0, 1], [np.nan, 0]], np.float32), None).first_not_finite()
    assert faulty is ROWS[1]


def test_rows_are_converted_and_nothing_else_changes() -> None:
    """Embeddings have the type asked for; texts and statistics are those of before."""
    stats = np.zeros((2, 1, 1, 1), np.float32)
    encoded = Encoded(ROWS, np.eye(2, 16, dtype=np.float32), stats)
    converted = encoded.converted("ubinary")
    np.testing.assert_array_equal(converted.embeddings, convert(encoded.embeddings, "ubinary"))
    assert (converted.rows, converted.stats) == (encoded.rows, stats)


def test_only_ranged_types_clip() -> None:
    """A number of 100 dimensions is clipped beyond 0.6."""
    encoded = Encoded(ROWS, np.eye(2, 100, dtype=np.float32), None)
    assert [encoded.num_clipped(dtype) for dtype in ("float32", "int8", "uint8", "binary")] == [0, 2, 2, 0]


def test_a_number_too_large_for_float16_is_an_error() -> None:
    """Never an infinity in a file."""
    with pytest.raises(OutputDtypeError):
        Encoded(ROWS, np.full((2, 3), 1e5, np.float32), None).converted("float16")


def test_a_shape_counts_the_numbers_of_a_row() -> None:
    """Packed bits are an eighth of the dimensions."""
    assert RowShape(16, (), 2, 2).embedding == (16,)
    assert RowShape(16, (), 2, 2, "binary").embedding == (2,)
