"""Claims about a window of encoded rows."""

from __future__ import annotations

import numpy as np
import pytest

from app.bulk.encoded import Encoded, RowShape, Tokenized
from app.bulk.rows import TextRow
from model.contract import EncodeInput
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


def test_what_stands_beside_an_embedding() -> None:
    """Statistics of heads, or where a chunk is, or nothing: the same array in its description and in the window."""
    assert RowShape(16, (), 2, 3).second is None
    stats = RowShape(16, ("entropy",), 2, 3).second
    chunks = RowShape(16, (), 2, 3, is_chunk=True).second
    assert stats is not None
    assert chunks is not None
    assert (stats.name, stats.shape, stats.dtype) == ("attention_stats", (1, 2, 3), "<f4")
    assert (chunks.name, chunks.shape, chunks.dtype) == ("chunks", (6,), "<i8")
    assert chunks.described["columns"] == '["row", "chunk", "start", "end", "num_tokens", "truncated"]'
    embeddings, columns = np.zeros((2, 16), np.float32), np.zeros((2, 6), np.int64)
    assert Encoded(ROWS, embeddings, None).second is None
    assert Encoded(ROWS, embeddings, None, columns).second is columns


def test_truncated_rows_are_counted() -> None:
    """Texts that lost tokens, or chunks that say so: of the same inputs, since one may hold several chunks."""
    inputs = [EncodeInput([1, 2], [0, 0], 5), EncodeInput([1], [0], 1)]
    assert Tokenized(ROWS, inputs, [], range(2), range(3)).num_truncated == 1
    columns = np.zeros((2, 6), np.int64)
    columns[:, 5] = 1
    assert Tokenized(ROWS, inputs[:1], [], [0], [0, 2], [(range(1), range(1, 2))], columns).num_truncated == 2
