"""Reads tables: CSV after RFC 4180, whose cells may be quoted and then hold line ends, and TSV without quotes."""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import chain

from app.bulk.errors import BulkError
from app.bulk.options import BulkOptions
from app.bulk.rows import MAX_LINE_BYTES, BadRow, Item, LineRows, Lines, TextRow, find_column

Record = tuple[int, list[str]]
"""A line, from 1, and the cells of the record that begins there."""


class Table(LineRows, ABC):
    """Records of cells, below the names of their columns: what CSV and TSV share."""

    def __init__(self, lines: Lines, options: BulkOptions) -> None:
        super().__init__(lines, options)
        self._records = self._read()
        first = next(self._records, None)
        if first is None or isinstance(first, BadRow):
            reason = "the file is empty" if first is None else first.reason
            raise BulkError(f"{options.input_name}, line 1: {reason}, so there are no columns")
        place, cells = first
        self._pending: list[Record] = [] if options.has_header else [first]
        names = cells if options.has_header else [str(number) for number in range(1, len(cells) + 1)]
        self._width = len(names)
        where = f"{options.input_name}, line {place}"
        self._column = find_column(names, options.column, where)
        self._kept = [find_column(names, name, where) for name in options.keep]

    @abstractmethod
    def _read(self) -> Iterator[Record | BadRow]:
        """Give every record that is not blank, with its line."""

    def __iter__(self) -> Iterator[Item]:
        """Give every record behind the header."""
        for record in chain(self._pending, self._records):
            yield record if isinstance(record, BadRow) else self._row(*record)

    def _row(self, place: int, cells: list[str]) -> Item:
        if len(cells) != self._width:
            return BadRow(place, f"the record has {len(cells)} cells, the first one has {self._width}")
        return TextRow(place, cells[self._column], tuple(cells[index] for index in self._kept))


class Csv(Table):
    """Comma-separated values after RFC 4180."""

    def _read(self) -> Iterator[Record | BadRow]:
        csv.field_size_limit(MAX_LINE_BYTES)  # a quote that is never closed must not read the whole file into memory
        reader = csv.reader(_Decoded(self.lines), strict=True)
        while True:
            place = self.lines.number + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield BadRow(place, f"the record is not CSV ({error})")
                continue
            if not cells:
                continue
            try:
                "".join(cells).encode()
            except UnicodeEncodeError:  # what _Decoded makes of a bad byte
                yield BadRow(place, "the record is not UTF-8")
            else:
                yield place, cells


class _Decoded:
    """Lines as characters, for the csv module: a bad byte does not stop it, since a quoted cell may go on behind it.

    No generator, because that would end with the first exception it raises.
    """

    def __init__(self, lines: Lines) -> None:
        self._lines = iter(lines)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        if line is None:
            raise csv.Error(f"a line is longer than {MAX_LINE_BYTES} bytes")
        return line.decode(errors="surrogateescape")


class Tsv(Table):
    """Tab-separated values without quotes."""

    def _read(self) -> Iterator[Record | BadRow]:
        for line in self.lines:
            text = self.decoded(line)
            if isinstance(text, BadRow):
                yield text
            elif text:
                yield self.lines.number, text.split("\t")
