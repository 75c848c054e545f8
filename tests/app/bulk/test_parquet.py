"""Parquet in and out."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import app.bulk.parquet
from app.bulk.errors import BulkError
from app.bulk.parquet import ArrowBatches, count_rows, open_parquet
from app.bulk.rows import BadRow, Item, TextRow
from tests.app.bulk.jobs import make_options, texts


def read(source: Path, columns: dict[str, Any], **changes: Any) -> list[Item]:
    """Write columns as Parquet and read texts."""
    parquet.write_table(pa.table(columns), source)
    with open_parquet(make_options(source, source.with_suffix(".npy"), **changes)) as rows:
        items = list(rows)
        assert rows.share() in {1.0, None}
    return items


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())], ids=str
)
def test_every_kind_of_string_is_a_text(tmp_path: Path, kind: Any) -> None:
    """However a file stores them."""
    assert texts(read(tmp_path / "a.parquet", {"text": pa.array(["a", "é"]).cast(kind)})) == ["a", "é"]


def test_kept_values_and_rows(tmp_path: Path) -> None:
    """Places are rows from 1; kept values are of their own types; null is no text."""
    columns = {"day": [date(2026, 11, 30)] * 3, "body": ["a", None, "c"], "n": [1, 2, 3]}
    items = read(tmp_path / "a.parquet", columns, column="body", keep=("n", "day"))
    day = date(2026, 11, 30)
    assert items == [
        TextRow(1, "a", (1, day)),
        BadRow(2, "column 'body' is null, not a string"),
        TextRow(3, "c", (3, day)),
    ]


def test_more_rows_than_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches and row groups leave no seam."""
    monkeypatch.setattr(app.bulk.parquet, "READ_ROWS", 7)
    source, many = tmp_path / "a.parquet", [f"t{index}" for index in range(100)]
    parquet.write_table(pa.table({"text": many}), source, row_group_size=30)
    shares = []
    with open_parquet(make_options(source, tmp_path / "o.npy")) as rows:
        found = []
        for item in rows:
            found.append(item)
            shares.append(rows.share())
    assert texts(found) == many
    assert [item.place for item in found] == list(range(1, 101))
    assert shares == [index / 100 for index in range(1, 101)]


@pytest.mark.parametrize("rows", [range(100), range(1), range(29, 31), range(30, 60), range(45, 100), range(95, 99)])
def test_a_range_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: range) -> None:
    """A piece of a file, wherever row groups and batches begin, with the places that its rows have in the file."""
    monkeypatch.setattr(app.bulk.parquet, "READ_ROWS", 7)
    source, many = tmp_path / "a.parquet", [f"t{index}" for index in range(100)]
    parquet.write_table(pa.table({"text": many}), source, row_group_size=30)
    with open_parquet(make_options(source, tmp_path / "o.npy", rows=rows)) as found:
        items = list(found)
        assert found.share() == 1.0
    assert texts(items) == many[rows.start : rows.stop]
    assert [item.place for item in items] == [row + 1 for row in rows]


def test_only_the_row_groups_of_a_range_are_read(tmp_path: Path) -> None:
    """A piece costs what it holds, not what stands before it: damage elsewhere is not even seen."""
    source = tmp_path / "a.parquet"
    many = [f"text {index}" for index in range(9_000)]
    parquet.write_table(pa.table({"text": many}), source, row_group_size=3_000, compression="gzip")
    content = bytearray(source.read_bytes())
    content[100:2_000] = b"\xee" * 1_900
    source.write_bytes(content)
    with open_parquet(make_options(source, tmp_path / "o.npy", rows=range(3_000, 6_001))) as found:
        assert texts(list(found)) == many[3_000:6_001]


def test_a_range_beyond_the_file_is_refused(tmp_path: Path) -> None:
    """A file that has become shorter loses no row in silence."""
    with pytest.raises(BulkError, match=r"a\.parquet has 3 rows, none up to 4"):
        read(tmp_path / "a.parquet", {"text": ["a", "b", "c"]}, rows=range(2, 4))


def test_rows_are_counted_from_the_footer(tmp_path: Path) -> None:
    """And a file without one is told by its name."""
    source = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": ["a", "b"]}), source)
    assert count_rows(source) == 2
    source.write_bytes(b"not Parquet")
    with pytest.raises(BulkError, match=r"a\.parquet cannot be read as Parquet"):
        count_rows(source)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    """A string column with bad UTF-8, which Arrow does not check, gives a bad row."""
    broken = pa.StringArray.from_buffers(2, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"a\xff"))
    assert read(tmp_path / "a.parquet", {"text": broken}) == [TextRow(1, "a"), BadRow(2, "the text is not UTF-8")]


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    """No Parquet, no such column, a column of numbers."""
    source = tmp_path / "a.parquet"
    with pytest.raises(BulkError, match="there is no column 'text' among 'a', 'b'; name one"):
        read(source, {"a": ["x"], "b": ["y"]})
    with pytest.raises(BulkError, match="column 'a' is int64, not string"):
        read(source, {"a": [1]})
    source.write_bytes(b"not Parquet")
    with (
        pytest.raises(BulkError, match=r"a\.parquet cannot be read as Parquet"),
        open_parquet(make_options(source, tmp_path / "o.npy")),
    ):
        pass


def test_a_damaged_row_is_told(tmp_path: Path) -> None:
    """A page that does not decode: the file and the row it came to."""
    source = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": [f"text {index}" for index in range(5000)]}), source, compression="gzip")
    content = bytearray(source.read_bytes())
    content[100:2000] = b"\xee" * 1900
    source.write_bytes(content)
    with (
        pytest.raises(BulkError, match=r"a\.parquet, row 1 cannot be read"),
        open_parquet(make_options(source, tmp_path / "o.npy")) as rows,
    ):
        list(rows)


def test_kept_columns_keep_their_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From Parquet to Parquet a kept column is what it was, null included; row groups follow their size."""
    monkeypatch.setattr(app.bulk.parquet, "ROW_GROUP_BYTES", 1)
    kinds = [pa.int8(), pa.timestamp("ms", "UTC"), pa.list_(pa.string())]
    batches = ArrowBatches(["a", "b", "c"], kinds, 2, None, np.dtype("<f4"))
    stream, output = tmp_path / "stream", tmp_path / "o.parquet"
    moment = pa.scalar(0, kinds[1]).as_py()
    pieces: list[list[tuple[Any, ...]]] = [[(1, moment, ["x"])], [(None, None, None), (3, moment, [])]]
    bodies = [batches.batch(kept, np.ones((len(kept), 2), np.float32), None) for kept in pieces]
    stream.write_bytes(batches.head() + b"".join(bodies))
    batches.to_parquet(stream, output)
    table = parquet.read_table(output)
    assert table.schema.types[:3] == kinds
    assert table["a"].to_pylist() == [1, None, 3]
    assert table["c"].to_pylist() == [["x"], None, []]
    assert parquet.ParquetFile(output).num_row_groups == 2


def test_json_values_are_strings_in_parquet() -> None:
    """A field of JSON may change its kind from line to line, a column may not: a string as it is, the rest as JSON."""
    batches = ArrowBatches(["x"], None, 1, None, np.dtype("<f4"))
    kept = [("7",), (7,), ({"a": [1]},), (None,)]
    content = batches.head() + batches.batch(kept, np.zeros((4, 1), np.float32), None)
    assert pa.ipc.open_stream(content).read_all()["x"].to_pylist() == ["7", "7", '{"a":[1]}', None]
