"""Texts from files: plain lines and JSON lines, gzip, standard input."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest

import app.bulk.rows
from app.bulk.errors import BulkError
from app.bulk.input import open_rows
from app.bulk.rows import BadRow, TextRow
from tests.app.bulk.jobs import make_options, read_items, texts


def test_each_line_is_a_text(tmp_path: Path) -> None:
    """An empty one too, so that row i is line i; spaces stay, line ends do not."""
    items = read_items(tmp_path / "a.txt", b" one \r\n\ntwo\rthree\n", keep=("text",))
    assert items == [TextRow(1, " one ", (" one ",)), TextRow(2, "", ("",)), TextRow(3, "two\rthree", ("two\rthree",))]


def test_gzip_is_read_by_its_name(tmp_path: Path) -> None:
    """Whatever the format below."""
    assert texts(read_items(tmp_path / "a.txt.gz", gzip.compress(b"one\ntwo\n"))) == ["one", "two"]
    assert texts(read_items(tmp_path / "a.csv.gz", gzip.compress(b"text\none\n"))) == ["one"]
    assert texts(read_items(tmp_path / "a.jsonl.gz", gzip.compress(b'{"text": "one"}\n'))) == ["one"]


def test_standard_input(tmp_path: Path) -> None:
    """In any format of lines."""
    for kind, content in (("text", b"one\n"), ("csv", b"text\none\n"), ("jsonl", b'{"text":"one"}')):
        options = make_options(None, tmp_path / "o.npy", input_kind=kind)
        with open_rows(options, io.BytesIO(content)) as rows:
            assert texts(list(rows)) == ["one"]
            assert rows.share() is None


def test_fields_of_json(tmp_path: Path) -> None:
    """The text is where it is said to be; kept values keep their kinds; blank lines are none."""
    content = '{"id": 7, "body": "é\\n", "tags": ["x"]}\n\n  \n{"body": "", "tags": null, "id": "8"}'.encode()
    items = read_items(tmp_path / "a.jsonl", content, column="body", keep=("id", "tags"))
    assert items == [TextRow(1, "é\n", (7, ["x"])), TextRow(4, "", ("8", None))]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "the line is not JSON"),
        (b'{"text": "a"} {}', "the line is not JSON"),
        (b'{"text": NaN}', "the line is not JSON"),
        (b'{"text": "\\ud800"}', "the line is not JSON"),
        (b'["a"]', "the line is a list, not an object"),
        (b'"a"', "the line is a string, not an object"),
        (b"{}", "there is no field 'text'"),
        (b'{"text": 1}', "field 'text' is a number, not a string"),
        (b'{"text": true}', "field 'text' is a boolean, not a string"),
        (b'{"text": null}', "field 'text' is null, not a string"),
        (b'{"text": {}}', "field 'text' is an object, not a string"),
        (b'{"text": "\xff"}', "byte 11 of the line is not UTF-8"),
    ],
)
def test_a_bad_line_of_json_stands_alone(tmp_path: Path, line: bytes, reason: str) -> None:
    """It is told with its number and the reason; the next line is read as usual."""
    items = read_items(tmp_path / "a.jsonl", b'{"text": "a"}\n' + line + b'\n{"text": "b"}\n')
    assert items == [TextRow(1, "a"), BadRow(2, reason), TextRow(3, "b")]


def test_a_kept_field_must_be_there(tmp_path: Path) -> None:
    """A misspelt name shall not fill a column with nothing."""
    assert read_items(tmp_path / "a.jsonl", b'{"text": "a"}', keep=("di",)) == [BadRow(1, "there is no field 'di'")]
    with pytest.raises(BulkError, match="no column 'id' to keep"):
        read_items(tmp_path / "a.txt", b"a", keep=("id",))


def test_a_bad_line_of_text_stands_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not UTF-8, or too long to be a text."""
    monkeypatch.setattr(app.bulk.rows, "MAX_LINE_BYTES", 20)
    items = read_items(tmp_path / "a.txt", b"a\nb\xe9\n" + b"x" * 100 + b"\nc\n")
    assert items == [
        TextRow(1, "a"),
        BadRow(2, "byte 2 of the line is not UTF-8"),
        BadRow(3, "the line is longer than 20 bytes"),
        TextRow(4, "c"),
    ]


def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    """One sentence with the system's reason."""
    with (
        pytest.raises(BulkError, match=r"a\.txt cannot be read \(No such file or directory\)"),
        open_rows(make_options(tmp_path / "a.txt", tmp_path / "o.npy"), io.BytesIO()),
    ):
        pass
