"""CSV and TSV."""

from __future__ import annotations

from pathlib import Path

import pytest

import app.bulk.rows
import app.bulk.tables
from app.bulk.errors import BulkError
from app.bulk.rows import BadRow, TextRow
from tests.app.bulk.jobs import read_items, texts


def test_csv_cells_may_be_quoted(tmp_path: Path) -> None:
    """Commas, quotes and line ends inside a cell belong to the text; a record's line is where it begins."""
    content = b'id,text\r\n1,"a, ""b""\nc"\r\n\r\n2,d\r\n'
    items = read_items(tmp_path / "a.csv", content, keep=("id",))
    assert items == [TextRow(2, 'a, "b"\nc', ("1",)), TextRow(5, "d", ("2",))]


def test_tsv_knows_no_quotes(tmp_path: Path) -> None:
    """A quote is a character, so that text that was written without any care is read as it is."""
    assert texts(read_items(tmp_path / "a.tsv", b'id\ttext\n1\t"Hello," he said\n2\t"\n')) == ['"Hello," he said', '"']


def test_columns_without_a_header_are_numbered(tmp_path: Path) -> None:
    """From 1; the first record is a text like the others."""
    options = {"has_header": False, "column": "2", "keep": ("1",)}
    assert read_items(tmp_path / "a.csv", b"x,a\ny,b\n", **options) == [
        TextRow(1, "a", ("x",)),
        TextRow(2, "b", ("y",)),
    ]
    assert texts(read_items(tmp_path / "a.tsv", b"a\nb\n", has_header=False)) == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "record", "reason"),
    [
        ("a.csv", b"only\n", "the record has 1 cells, the first one has 2"),
        ("a.csv", b"1,2,3\n", "the record has 3 cells, the first one has 2"),
        ("a.csv", b'1,"a"b\n', "the record is not CSV"),
        ("a.csv", b"1,\xff\n", "the record is not UTF-8"),
        ("a.csv", b'1,"\xff\n and on"\n', "the record is not UTF-8"),
        ("a.tsv", b"only\n", "the record has 1 cells, the first one has 2"),
        ("a.tsv", b"1\t\xff\n", "byte 3 of the line is not UTF-8"),
    ],
)
def test_a_bad_record_stands_alone(tmp_path: Path, name: str, record: bytes, reason: str) -> None:
    """It is told with its line and the reason, and the next record is read as if nothing had been."""
    separator = b"," if name.endswith("csv") else b"\t"
    good = separator.join((b"2", b"good")) + b"\n"
    bad, after = read_items(tmp_path / name, separator.join((b"id", b"text")) + b"\n" + record + good)
    assert isinstance(bad, BadRow)
    assert bad.place == 2
    assert bad.reason.startswith(reason)
    assert after == TextRow(2 + record.count(b"\n"), "good")


def test_a_quote_that_is_never_closed_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends at the limit of a line, not with the file."""
    monkeypatch.setattr(app.bulk.tables, "MAX_LINE_BYTES", 100)
    items = read_items(tmp_path / "a.csv", b'text\n"open\n' + b"x\n" * 200)
    assert isinstance(items[0], BadRow)
    assert items[0].place == 2
    assert texts(items[1:])[-1] == "x"
    assert len(items) > 100


def test_a_file_that_ends_in_quotes_is_told(tmp_path: Path) -> None:
    """A file that was cut off is not taken for a whole one."""
    [bad] = read_items(tmp_path / "a.csv", b'text\n"open\nand on\n')
    assert isinstance(bad, BadRow)
    assert "unexpected end of data" in bad.reason


def test_a_long_line_of_csv_is_one_bad_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And reading goes on behind it."""
    monkeypatch.setattr(app.bulk.rows, "MAX_LINE_BYTES", 10)
    bad, after = read_items(tmp_path / "a.csv", b"text\n" + b"x" * 50 + b"\ny\n")
    assert isinstance(bad, BadRow)
    assert "longer than" in bad.reason
    assert after == TextRow(3, "y")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "line 1: the file is empty, so there are no columns"),
        (b"\xff\n", "line 1: the record is not UTF-8, so there are no columns"),
        (b"id,body\n", "line 1: there is no column 'text' among 'id', 'body'"),
    ],
)
def test_a_header_is_needed(tmp_path: Path, content: bytes, words: str) -> None:
    """A header that cannot be read, or has no such column, stops at once: with file and line."""
    with pytest.raises(BulkError) as caught:
        read_items(tmp_path / "a.csv", content)
    assert str(caught.value).startswith(f"{tmp_path / 'a.csv'}, {words}")
