"""Reads the texts of a file one after another, each with the place that a complaint about it must name.

=========  ==========================================================================================================
text       each line is a text, an empty one too, so that row i belongs to line i
csv, tsv   see :mod:`app.bulk.tables`
jsonl      an object a line; blank lines are none
parquet    see :mod:`app.bulk.parquet`
=========  ==========================================================================================================

All but Parquet are UTF-8, plain or gzip, with or without a byte order mark.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import BinaryIO, cast

import orjson

from app.bulk.errors import BulkError
from app.bulk.options import BulkOptions
from app.bulk.rows import DEFAULT_COLUMN, BadRow, Item, LineRows, Lines, Rows, TextRow
from app.bulk.tables import Csv, Tsv


@contextmanager
def open_rows(options: BulkOptions, stdin: BinaryIO) -> Iterator[Rows]:
    """Open the input.

    Raises
    ------
    BulkError
        If it cannot be read, or has no such column; also while its rows are read.
    """
    if options.input_kind == "parquet":
        # pyarrow is an extra, and only for this
        from app.bulk.parquet import open_parquet

        with open_parquet(options) as rows:
            yield rows
        return
    with ExitStack() as stack:
        raw = stdin
        if options.input is not None:
            try:
                raw = stack.enter_context(options.input.open("rb"))
            except OSError as error:
                raise BulkError(f"{options.input_name} cannot be read ({error.strerror or error})") from error
        stream = raw
        if options.input is not None and options.input.suffix == ".gz":
            stream = cast(BinaryIO, stack.enter_context(gzip.open(raw)))
        yield _LINE_FORMATS[options.input_kind](Lines(stream, raw, options.input_name), options)


class PlainLines(LineRows):
    """Each line is a text."""

    def __init__(self, lines: Lines, options: BulkOptions) -> None:
        super().__init__(lines, options)
        for name in options.keep:
            if name != DEFAULT_COLUMN:
                raise BulkError(f"{options.input_name}: no column {name!r} to keep; plain text has only 'text'")

    def __iter__(self) -> Iterator[Item]:
        """Give every line."""
        for line in self.lines:
            text = self.decoded(line)
            if isinstance(text, BadRow):
                yield text
            else:
                yield TextRow(self.lines.number, text, (text,) * len(self.options.keep))


class JsonLines(LineRows):
    """Each line is an object."""

    def __iter__(self) -> Iterator[Item]:
        """Give every line that is not blank."""
        for line in self.lines:
            text = self.decoded(line)
            if isinstance(text, BadRow):
                yield text
            elif text.strip():
                yield self._read(text)

    def _read(self, line: str) -> Item:
        place, column = self.lines.number, self.options.column or DEFAULT_COLUMN
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            return BadRow(place, "the line is not JSON")
        if not isinstance(record, dict):
            return BadRow(place, f"the line is {_kind(record)}, not an object")
        for name in (column, *self.options.keep):
            if name not in record:
                return BadRow(place, f"there is no field {name!r}")
        text = record[column]
        if not isinstance(text, str):
            return BadRow(place, f"field {column!r} is {_kind(text)}, not a string")
        return TextRow(place, text, tuple(record[name] for name in self.options.keep))


def _kind(value: object) -> str:
    """Say what kind of JSON value this is."""
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")


_LINE_FORMATS: dict[str, Callable[[Lines, BulkOptions], Rows]] = {
    "text": PlainLines,
    "csv": Csv,
    "tsv": Tsv,
    "jsonl": JsonLines,
}
