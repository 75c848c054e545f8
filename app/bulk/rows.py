"""What every reader of ``eyeline encode`` gives, and the numbered lines that most of them read."""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

from app.bulk.errors import BulkError
from app.bulk.options import BulkOptions

MAX_LINE_BYTES = 16 * 1024 * 1024
"""A longer line is no text but a broken file, and is not held in memory."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

DEFAULT_COLUMN = "text"

MAX_NAMED_COLUMNS = 20
"""A complaint names so many of the columns that there are."""


@dataclass(frozen=True, slots=True)
class TextRow:
    """A text, and where it was.

    Attributes
    ----------
    place : int
        Its line, or its row in a Parquet file, from 1.
    text : str
    kept : tuple
        Values of the columns to keep.
    """

    place: int
    text: str
    kept: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class BadRow:
    """What is no text, and why: a half-sentence that follows the name and the place."""

    place: int
    reason: str


Item = TextRow | BadRow


class Rows(Protocol):
    """The texts of one file.

    Attributes
    ----------
    unit : str
        What a place counts: "line" or "row".
    """

    unit: str

    def __iter__(self) -> Iterator[Item]:
        """Give every text once, in order."""

    def share(self) -> float | None:
        """Tell how much of the file has been read, 0 to 1; None where its end is not known."""

    def kept_types(self) -> Sequence[Any] | None:
        """Return the Arrow types of the kept columns, where the file has such."""


class Lines:
    """The lines of a byte stream, numbered, none longer than :data:`MAX_LINE_BYTES`.

    Parameters
    ----------
    stream : BinaryIO
        Plain bytes.
    raw : BinaryIO
        What is on the disk: another stream where that is compressed.
    name : str
        How messages call it.
    """

    def __init__(self, stream: BinaryIO, raw: BinaryIO, name: str) -> None:
        self._stream, self._raw, self._name = stream, raw, name
        self._size = _size(raw)
        self.number = 0

    def __iter__(self) -> Iterator[bytes | None]:
        """Give each line with its end; None for one that is too long."""
        while line := self._read(MAX_LINE_BYTES + 1):
            self.number += 1
            if self.number == 1:
                line = line.removeprefix(BYTE_ORDER_MARK)
            if len(line) <= MAX_LINE_BYTES:
                yield line
                continue
            while line and not line.endswith(b"\n"):
                line = self._read(MAX_LINE_BYTES)
            yield None

    def _read(self, limit: int) -> bytes:
        """Read on to the end of a line."""
        try:
            return self._stream.readline(limit)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise BulkError(f"{self._name}, line {self.number + 1}: the gzip file is damaged ({error})") from error
        except OSError as error:
            raise BulkError(f"{self._name} cannot be read ({error.strerror or error})") from error

    def share(self) -> float | None:
        """Tell how much has been read."""
        return self._raw.tell() / self._size if self._size else None


class LineRows:
    """What the formats of lines share: where they are, and what has been read."""

    unit = "line"

    def __init__(self, lines: Lines, options: BulkOptions) -> None:
        self.lines, self.options = lines, options

    def share(self) -> float | None:
        """Tell how much has been read."""
        return self.lines.share()

    def kept_types(self) -> None:
        """Return None: values have no Arrow types."""
        return

    def decoded(self, line: bytes | None) -> str | BadRow:
        """Turn a line into characters, without its end."""
        place = self.lines.number
        if line is None:
            return BadRow(place, f"the line is longer than {MAX_LINE_BYTES} bytes")
        try:
            return line.removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            return BadRow(place, f"byte {error.start + 1} of the line is not UTF-8")


def find_column(names: Sequence[str], wanted: str | None, where: str) -> int:
    """Find a column by its name.

    Parameters
    ----------
    names : sequence of str
    wanted : str or None
        None is ``text``, or the only column there is.
    where : str
        The beginning of a complaint.

    Raises
    ------
    BulkError
        If there is none of that name, or more than one.
    """
    if wanted is None and len(names) == 1:
        return 0
    name = DEFAULT_COLUMN if wanted is None else wanted
    if names.count(name) == 1:
        return names.index(name)
    if name in names:
        raise BulkError(f"{where}: more than one column is called {name!r}")
    listed = ", ".join(repr(column) for column in names[:MAX_NAMED_COLUMNS])
    more = ", ..." if len(names) > MAX_NAMED_COLUMNS else ""
    hint = "; name one with --column" if wanted is None else ""
    raise BulkError(f"{where}: there is no column {name!r} among {listed}{more}{hint}")


def _size(raw: BinaryIO) -> int:
    """Return the size of a plain file in bytes, 0 for a pipe and the like."""
    try:
        status = os.fstat(raw.fileno())
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
