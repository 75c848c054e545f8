"""Parquet, read and written a batch of rows at a time. The only module that imports pyarrow, which is an extra.

A Parquet file is whole only with its last byte, so rows first gather as an Arrow stream, to which one can append; what
is in it is written as Parquet when all are there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from app.bulk.encoded import WideArray
from app.bulk.errors import BulkError
from app.bulk.options import CHUNK_COLUMNS, EMBEDDING, STATS, BulkOptions
from app.bulk.rows import BadRow, Item, TextRow, find_column
from model.contract import FloatArray

READ_ROWS = 1_024
"""Rows that are held as Arrow arrays at a time."""

READ_BUFFER_BYTES = 1024 * 1024
"""Of each column; without a buffer pyarrow reads a whole row group, which may be the whole file."""

ROW_GROUP_BYTES = 64 * 1024 * 1024
"""Rows of a row group that is written, as long as they are in memory."""


class ParquetRows:
    """The texts of a Parquet file, or of a range of its rows."""

    unit = "row"

    def __init__(self, file: Any, options: BulkOptions) -> None:  # noqa: ANN401 - pyarrow ships no types
        self._file, self._name = file, options.input_name
        schema = file.schema_arrow
        index = find_column(schema.names, options.column, self._name)
        kept = [find_column(schema.names, name, self._name) for name in options.keep]
        if not _is_string(schema.types[index]):
            raise BulkError(f"{self._name}: column {schema.names[index]!r} is {schema.types[index]}, not string")
        self._column, self._kept = schema.names[index], [schema.names[place] for place in kept]
        self._types = [schema.types[place] for place in kept]
        self._range = range(file.metadata.num_rows) if options.rows is None else options.rows
        if self._range.stop > file.metadata.num_rows:
            raise BulkError(f"{self._name} has {file.metadata.num_rows} rows, none up to {self._range.stop}")
        self._done = self._range.start

    def kept_types(self) -> Sequence[Any]:
        """Return the Arrow types of the kept columns."""
        return self._types

    def share(self) -> float | None:
        """Tell how much has been read."""
        total = len(self._range)
        return (self._done - self._range.start) / total if total else None

    def __iter__(self) -> Iterator[Item]:
        """Give every row."""
        names = list(dict.fromkeys([self._column, *self._kept]))
        place, groups = self._groups()
        batches = self._file.iter_batches(batch_size=READ_ROWS, row_groups=groups, columns=names, use_threads=False)
        while self._done < self._range.stop:
            try:
                batch = next(batches, None)
            except (OSError, pa.ArrowException) as error:
                raise BulkError(f"{self._name}, row {self._done + 1} cannot be read ({error})") from error
            if batch is None:
                return
            begin, place = place, place + batch.num_rows
            # what a range leaves of its first and of its last batch
            batch = batch.slice(max(0, self._range.start - begin), self._range.stop - max(begin, self._range.start))
            columns = {name: batch.column(name) for name in names}
            for index in range(batch.num_rows):
                self._done += 1
                yield self._row(columns, index)

    def _groups(self) -> tuple[int, list[int]]:
        """Return the row groups that hold the range, and the row that the first of them begins with."""
        metadata = self._file.metadata
        groups: list[int] = []
        first = place = 0
        for index in range(metadata.num_row_groups):
            end = place + metadata.row_group(index).num_rows
            if end > self._range.start and place < self._range.stop:
                first = first if groups else place
                groups.append(index)
            place = end
        return first, groups

    def _row(self, columns: Mapping[str, Any], index: int) -> Item:
        try:
            text = columns[self._column][index].as_py()
            kept = tuple(columns[name][index].as_py() for name in self._kept)
        except UnicodeDecodeError:
            return BadRow(self._done, "the text is not UTF-8")
        except (pa.ArrowException, ValueError, OverflowError) as error:  # a date beyond Python's years
            return BadRow(self._done, f"a value cannot be read ({error})")
        if text is None:
            return BadRow(self._done, f"column {self._column!r} is null, not a string")
        return TextRow(self._done, text, kept)


@contextmanager
def open_parquet(options: BulkOptions) -> Iterator[ParquetRows]:
    """Open a Parquet file.

    Raises
    ------
    BulkError
        If it is none, or has no such column of strings; also while its rows are read.
    """
    try:
        file = parquet.ParquetFile(options.input, buffer_size=READ_BUFFER_BYTES, pre_buffer=False)
    except (OSError, pa.ArrowException) as error:
        raise BulkError(f"{options.input_name} cannot be read as Parquet ({error})") from error
    with file:
        yield ParquetRows(file, options)


def count_rows(path: Path) -> int:
    """Read from a file's footer how many rows it has; raises :class:`BulkError`."""
    try:
        return int(parquet.read_metadata(path).num_rows)
    except (OSError, pa.ArrowException) as error:
        raise BulkError(f"{path} cannot be read as Parquet ({error})") from error


class ArrowBatches:
    """Turns rows into pieces of an Arrow stream, and the whole stream into a Parquet file.

    Parameters
    ----------
    keep : sequence of str
        Names of the kept columns.
    kept_types : sequence or None
        Their Arrow types; None = strings, and what is no string as JSON.
    dimensions : int
        Numbers of an embedding.
    stats_shape : tuple of str tuple and two ints, or None
        Names of the statistics, layers and heads.
    dtype : numpy.dtype
        Of the embeddings.
    is_chunk : bool
        A row is a chunk, and says where it is: numbers, and of ``truncated`` whether it is so.
    """

    def __init__(
        self,
        keep: Sequence[str],
        kept_types: Sequence[Any] | None,
        dimensions: int,
        stats_shape: tuple[tuple[str, ...], int, int] | None,
        dtype: np.dtype[Any],
        *,
        is_chunk: bool = False,
    ) -> None:
        self._types, self._is_typed = list(kept_types or [pa.string()] * len(keep)), kept_types is not None
        self._stats_shape = stats_shape
        fields = [pa.field(name, kind) for name, kind in zip(keep, self._types, strict=True)]
        if is_chunk:
            fields.extend(pa.field(name, _chunk_type(name)) for name in CHUNK_COLUMNS)
        fields.append(pa.field(EMBEDDING, pa.list_(pa.from_numpy_dtype(dtype), dimensions)))
        if stats_shape is not None:
            names, layers, heads = stats_shape
            per_layer = pa.list_(pa.list_(pa.float32(), heads), layers)
            fields.append(pa.field(STATS, pa.struct([(name, per_layer) for name in names])))
        self.schema = pa.schema(fields)
        self._keep = list(keep)

    def head(self) -> bytes:
        """Return what an Arrow stream begins with."""
        return bytes(self.schema.serialize())

    def batch(
        self,
        kept: Sequence[Sequence[Any]],
        embeddings: NDArray[Any],
        stats: FloatArray | None,
        chunks: WideArray | None = None,
    ) -> bytes:
        """Return the next piece of the stream.

        Parameters
        ----------
        kept : sequence of n sequences
            Values of the kept columns, row by row.
        embeddings : array, shape (n, dimensions)
        stats : array, shape (n, statistics, layers, heads), float32, or None
        chunks : array, shape (n, columns), int64, or None

        Raises
        ------
        BulkError
            If a kept value does not fit its column.
        """
        columns = list(zip(*kept, strict=True)) if kept else [()] * len(self._keep)
        arrays = []
        for name, kind, values in zip(self._keep, self._types, columns, strict=True):
            try:
                arrays.append(pa.array(values if self._is_typed else [_as_string(value) for value in values], kind))
            except (pa.ArrowException, OverflowError) as error:
                raise BulkError(f"kept column {name!r} cannot be written as Parquet ({error})") from error
        if chunks is not None:
            for name, numbers in zip(CHUNK_COLUMNS, chunks.T, strict=True):
                arrays.append(pa.array(numbers).cast(_chunk_type(name)))
        arrays.append(_nested(embeddings))
        if stats is not None and self._stats_shape is not None:
            parts = [_nested(np.ascontiguousarray(stats[:, place])) for place in range(stats.shape[1])]
            arrays.append(pa.StructArray.from_arrays(parts, list(self._stats_shape[0])))
        return bytes(pa.RecordBatch.from_arrays(arrays, schema=self.schema).serialize())

    def to_parquet(self, stream: Path, output: Path) -> None:
        """Write a whole stream as Parquet, and wait for the disk.

        Raises
        ------
        OSError
        """
        plain = [name for name in self._keep if name not in {EMBEDDING, STATS}]
        with output.open("wb") as sink:
            with (
                pa.OSFile(str(stream)) as source,
                pa.ipc.open_stream(source) as batches,
                # a dictionary of floats that never repeat is only longer
                parquet.ParquetWriter(sink, self.schema, compression="zstd", use_dictionary=plain) as writer,
            ):
                gathered: list[Any] = []
                for batch in batches:
                    gathered.append(batch)
                    if sum(piece.nbytes for piece in gathered) >= ROW_GROUP_BYTES:
                        writer.write_table(pa.Table.from_batches(gathered))
                        gathered = []
                if gathered:
                    writer.write_table(pa.Table.from_batches(gathered))
            sink.flush()
            os.fsync(sink.fileno())


def _chunk_type(name: str) -> Any:  # noqa: ANN401 - pyarrow ships no types
    """Return the type of a column that says where a chunk is."""
    return pa.bool_() if name == "truncated" else pa.int64()


def _nested(array: NDArray[Any]) -> Any:  # noqa: ANN401 - pyarrow ships no types
    """Make lists of fixed lengths of all axes but the first."""
    nested = pa.array(array.reshape(-1))
    for length in reversed(array.shape[1:]):
        nested = pa.FixedSizeListArray.from_arrays(nested, length)
    return nested


def _as_string(value: object) -> str | None:
    """Return a JSON value as a string: itself, or its JSON."""
    if value is None or isinstance(value, str):
        return value
    return orjson.dumps(value).decode()


def _is_string(kind: Any) -> bool:  # noqa: ANN401 - pyarrow ships no types
    """Tell whether values of a type are strings."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
