"""Lines of text files."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from training.errors import CorpusError
from training.lines import read_lines


def test_lines_are_numbered_as_an_editor_does(tmp_path: Path) -> None:
    """Blank lines are left out, and still counted."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\r\n\n  two \n\t\nthree")
    assert list(read_lines(path)) == [(1, "one"), (3, "two"), (5, "three")]


def test_gzip_and_plain_are_alike(tmp_path: Path) -> None:
    """A file that ends in .gz is unpacked; a byte order mark is no part of the text."""
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress("\ufeffGrüße\n北京\n".encode()))
    assert list(read_lines(path)) == [(1, "Grüße"), (2, "北京")]


def test_empty_columns_stay(tmp_path: Path) -> None:
    """Tabs at the ends of a line are columns, not space."""
    path = tmp_path / "a.tsv"
    path.write_text("a\t\n\tb\n")
    assert [line for _, line in read_lines(path)] == ["a\t", "\tb"]


def test_bad_utf8_is_found_by_file_and_line(tmp_path: Path) -> None:
    """One sentence says where the byte is."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"good\nbad \xff here\n")
    with pytest.raises(CorpusError, match=r"a\.txt, line 2: byte 5 of the line is not UTF-8$"):
        list(read_lines(path))


@pytest.mark.parametrize(
    "content", [b"no gzip", gzip.compress(b"cut short " * 99, mtime=0)[:-9], gzip.compress(b"x", mtime=0)[:4]]
)
def test_a_damaged_gzip_file_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    """What is no gzip file, or half of one, is named."""
    path = tmp_path / "a.txt.gz"
    path.write_bytes(content)
    with pytest.raises(CorpusError, match=r"a\.txt\.gz cannot be read: "):
        list(read_lines(path))


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    """A file that is not there is named."""
    with pytest.raises(CorpusError, match=r"a\.txt is missing$"):
        list(read_lines(tmp_path / "a.txt"))
