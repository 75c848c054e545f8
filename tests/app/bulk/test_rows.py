"""Numbered lines, and columns by name."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path
from typing import BinaryIO, cast

import pytest

import app.bulk.rows
from app.bulk.errors import BulkError
from app.bulk.rows import Lines, find_column


def read(stream: io.BytesIO) -> list[bytes | None]:
    """All lines of a stream."""
    return list(Lines(stream, stream, "x"))


def test_lines_keep_their_ends() -> None:
    """Whatever they are, since a quoted cell holds them; the last line may have none."""
    assert read(io.BytesIO(b"a\r\nb\n\nc")) == [b"a\r\n", b"b\n", b"\n", b"c"]
    assert read(io.BytesIO(b"")) == []


def test_only_a_line_feed_ends_a_line() -> None:
    """Not what Unicode calls a line separator, nor a form feed: they are characters of a text."""
    content = "a\u2028b\x0cc\x85d\n".encode()
    assert read(io.BytesIO(content)) == [content]


def test_a_byte_order_mark_is_no_text() -> None:
    """It is dropped at the beginning, and only there."""
    mark = b"\xef\xbb\xbf"
    assert read(io.BytesIO(mark + b"a\n" + mark + b"b\n")) == [b"a\n", mark + b"b\n"]


def test_a_line_without_end_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line above the limit is passed over piece by piece, counted, and the next one is read as usual."""
    monkeypatch.setattr(app.bulk.rows, "MAX_LINE_BYTES", 10)
    longest = 0

    class Watched(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            nonlocal longest
            line = super().readline(size)
            longest = max(longest, len(line))
            return line

    stream = Watched(b"x" * 1000 + b"\n" + b"y" * 9 + b"\n" + b"z" * 11)
    lines = Lines(stream, stream, "x")
    assert list(lines) == [None, b"y" * 9 + b"\n", None]
    assert lines.number == 3
    assert longest <= 11


def test_a_damaged_gzip_file_is_one_sentence() -> None:
    """Cut off, or no gzip at all: with the file and the line it came to."""
    whole = gzip.compress(b"".join(b"%d\n" % number for number in range(10_000)))
    for content, line in ((whole[:2000], "line "), (b"plain text", "line 1:")):
        raw = io.BytesIO(content)
        with (
            gzip.open(raw) as stream,
            pytest.raises(BulkError, match=rf"^f\.gz, {line}.*the gzip file is damaged"),
        ):
            list(Lines(cast(BinaryIO, stream), raw, "f.gz"))


def test_a_failing_disk_is_one_sentence() -> None:
    """What the system says, and the file."""

    class Failing(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(BulkError, match=r"^f cannot be read \(Input/output error\)$"):
        list(Lines(Failing(), io.BytesIO(), "f"))


def test_the_share_is_of_bytes_on_the_disk(tmp_path: Path) -> None:
    """It goes from 0 to 1; a pipe has none."""
    path = tmp_path / "f"
    path.write_bytes(b"aaaa\nbbbb\n")
    with path.open("rb") as stream:
        lines = Lines(stream, stream, "f")
        assert [lines.share(), *(lines.share() for _ in lines)] == [0.0, 0.5, 1.0]
    reading, writing = os.pipe()
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert Lines(pipe, pipe, "-").share() is None


@pytest.mark.parametrize(
    ("names", "wanted", "place"),
    [(["id", "text"], None, 1), (["title"], None, 0), (["text"], None, 0), (["id", "body"], "body", 1)],
)
def test_a_column_is_found(names: list[str], wanted: str | None, place: int) -> None:
    """By its name; without one it is text, or the only one."""
    assert find_column(names, wanted, "f, line 1") == place


@pytest.mark.parametrize(
    ("names", "wanted", "words"),
    [
        (["id", "body"], None, "f, line 1: there is no column 'text' among 'id', 'body'; name one with --column"),
        (["id", "body"], "txt", "f, line 1: there is no column 'txt' among 'id', 'body'"),
        (["a", "a"], "a", "f, line 1: more than one column is called 'a'"),
        ([str(number) for number in range(30)], "a", "'18', '19', ..."),
    ],
)
def test_a_missing_column_is_refused(names: list[str], wanted: str | None, words: str) -> None:
    """With the columns that there are, as many as a line can hold."""
    with pytest.raises(BulkError) as caught:
        find_column(names, wanted, "f, line 1")
    assert str(caught.value).startswith("f, line 1: ")
    assert words in str(caught.value)
