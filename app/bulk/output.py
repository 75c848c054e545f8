"""How encoded rows become bytes: what each format appends for a window of rows, and what makes the whole of it.

Rows gather in part files, to which bytes are only appended; a part begins with a head of a fixed length, which is
written again whenever the count of rows has changed. So the part of an npy, safetensors or JSONL output is at every
mark of progress a file of that format, with the rows that are complete.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import orjson

from app.bulk.encoded import Encoded, RowShape
from app.bulk.errors import BulkError
from app.bulk.options import CHUNK_COLUMNS, EMBEDDING, STATS, BulkOptions
from model.output_dtype import NUMPY_DTYPES

NPY_HEAD_BYTES = 128
SAFETENSORS_HEAD_BYTES = 4_096
"""Room for any count of rows; a multiple of 8, so that the numbers behind it are aligned."""

SAFETENSORS_DTYPES = {"<f4": "F32", "<f2": "F16", "|i1": "I8", "|u1": "U8", "<i8": "I64"}

Paths = tuple[Path, ...]
Moves = tuple[tuple[Path, Path], ...]


class Layout(Protocol):
    """One format.

    Attributes
    ----------
    parts : tuple of Path
        The files in which rows gather, the main one first.
    outputs : tuple of Path
        What there will be when all is done.
    """

    parts: Paths
    outputs: Paths

    def heads(self, num_rows: int) -> tuple[bytes, ...]:
        """Return what each part begins with; the length does not depend on ``num_rows``."""

    def bodies(self, encoded: Encoded) -> tuple[bytes, ...]:
        """Return what each part gets for a window of rows."""

    def finish(self, num_rows: int) -> Moves:
        """Make whole files of the parts, on the disk, and say which of them becomes what by a rename."""


class NpyLayout:
    """One array a file: what stands beside the embeddings is in a file of its own."""

    def __init__(self, options: BulkOptions, shape: RowShape) -> None:
        self._shapes: list[tuple[tuple[int, ...], str]] = [(shape.embedding, NUMPY_DTYPES[shape.output_dtype])]
        self.parts: Paths = (options.part,)
        self.outputs: Paths = (options.output,)
        if shape.second is not None:
            path = options.second_output
            self.parts, self.outputs = (*self.parts, _part_of(path)), (*self.outputs, path)
            self._shapes.append((shape.second.shape, shape.second.dtype))

    def heads(self, num_rows: int) -> tuple[bytes, ...]:
        """Return version 1.0 headers."""
        return tuple(npy_head((num_rows, *shape), dtype) for shape, dtype in self._shapes)

    def bodies(self, encoded: Encoded) -> tuple[bytes, ...]:
        """Return the numbers."""
        return _numbers(encoded)

    def finish(self, num_rows: int) -> Moves:
        """Leave all as it is: the heads are right already."""
        return tuple(zip(self.parts, self.outputs, strict=True))


class SafetensorsLayout:
    """Two tensors in a file, one behind the other: until the end the second gathers in a part of its own."""

    def __init__(self, options: BulkOptions, shape: RowShape) -> None:
        self._shape = shape
        self.parts: Paths = (options.part,)
        self.outputs: Paths = (options.output,)
        if shape.second is not None:
            self.parts = (*self.parts, options.part.with_name(f"{options.output.name}.{shape.second.name}.part"))

    def heads(self, num_rows: int) -> tuple[bytes, ...]:
        """Describe the embeddings alone."""
        return tuple([self._head(num_rows, with_second=False), b""][: len(self.parts)])

    def bodies(self, encoded: Encoded) -> tuple[bytes, ...]:
        """Return the numbers."""
        return _numbers(encoded)

    def finish(self, num_rows: int) -> Moves:
        """Append the second tensor to the embeddings."""
        main, *rest = self.parts
        if rest:
            with main.open("r+b") as stream, rest[0].open("rb") as second:
                stream.seek(0, os.SEEK_END)
                shutil.copyfileobj(second, stream, 1024 * 1024)
                stream.seek(0)
                stream.write(self._head(num_rows, with_second=True))
                stream.flush()
                os.fsync(stream.fileno())
        return ((main, self.outputs[0]),)

    def _head(self, num_rows: int, *, with_second: bool) -> bytes:
        tensors: dict[str, tuple[tuple[int, ...], str]] = {
            "embeddings": ((num_rows, *self._shape.embedding), NUMPY_DTYPES[self._shape.output_dtype])
        }
        described: dict[str, Any] = {}
        second = self._shape.second
        if with_second and second is not None:
            tensors[second.name] = ((num_rows, *second.shape), second.dtype)
            described["__metadata__"] = second.described
        begin = 0
        for name, (shape, dtype) in tensors.items():
            end = begin + np.dtype(dtype).itemsize * math.prod(shape)
            described[name] = {"dtype": SAFETENSORS_DTYPES[dtype], "shape": shape, "data_offsets": [begin, end]}
            begin = end
        room = SAFETENSORS_HEAD_BYTES - 8
        return room.to_bytes(8, "little") + json.dumps(described).encode().ljust(room)


class JsonLayout:
    """A line for each row: what is kept, where a chunk is, the embedding, the statistics by name."""

    def __init__(self, options: BulkOptions, shape: RowShape) -> None:
        self.parts: Paths = (options.part,)
        self.outputs: Paths = (options.output,)
        self._keep, self._statistics = options.keep, shape.statistics

    def heads(self, num_rows: int) -> tuple[bytes, ...]:
        """Return nothing: lines need no head."""
        return (b"",)

    def bodies(self, encoded: Encoded) -> tuple[bytes, ...]:
        """Return the lines."""
        lines = []
        for index, row in enumerate(encoded.rows):
            record: dict[str, Any] = dict(zip(self._keep, row.kept, strict=True))
            if encoded.chunks is not None:
                record.update(zip(CHUNK_COLUMNS, encoded.chunks[index].tolist(), strict=True))
                record["truncated"] = bool(record["truncated"])
            record[EMBEDDING] = encoded.embeddings[index]
            if encoded.stats is not None:
                record[STATS] = dict(zip(self._statistics, encoded.stats[index], strict=True))
            lines.append(_json_line(record, row.place))
        return (b"".join(lines),)

    def finish(self, num_rows: int) -> Moves:
        """Leave all as it is."""
        return ((self.parts[0], self.outputs[0]),)


class ParquetLayout:
    """Columns: what is kept, where a chunk is, the embedding, a struct of statistics. Gathers as an Arrow stream."""

    def __init__(self, options: BulkOptions, shape: RowShape, kept_types: Sequence[Any] | None) -> None:
        # pyarrow is an extra, and only for this
        from app.bulk.parquet import ArrowBatches

        self.parts: Paths = (options.part,)
        self.outputs: Paths = (options.output,)
        self._new = options.part.with_name(f"{options.part.name}.new")
        stats_shape = (shape.statistics, shape.layers, shape.heads) if shape.statistics else None
        dtype = np.dtype(NUMPY_DTYPES[shape.output_dtype])
        self._batches = ArrowBatches(
            options.keep, kept_types, *shape.embedding, stats_shape, dtype, is_chunk=shape.is_chunk
        )

    def heads(self, num_rows: int) -> tuple[bytes, ...]:
        """Return the schema."""
        return (self._batches.head(),)

    def bodies(self, encoded: Encoded) -> tuple[bytes, ...]:
        """Return a record batch."""
        kept = [row.kept for row in encoded.rows]
        return (self._batches.batch(kept, encoded.embeddings, encoded.stats, encoded.chunks),)

    def finish(self, num_rows: int) -> Moves:
        """Write the stream anew as Parquet."""
        try:
            self._batches.to_parquet(self.parts[0], self._new)
        except BaseException:
            self._new.unlink(missing_ok=True)
            raise
        return ((self._new, self.outputs[0]),)


def make_layout(options: BulkOptions, shape: RowShape, kept_types: Sequence[Any] | None) -> Layout:
    """Choose the layout of an output.

    Parameters
    ----------
    options : BulkOptions
    shape : RowShape
    kept_types : sequence or None
        Arrow types of the kept columns, where the input has such.
    """
    if options.output_kind == "parquet":
        return ParquetLayout(options, shape, kept_types)
    layouts: Mapping[str, type[NpyLayout | SafetensorsLayout | JsonLayout]] = {
        "npy": NpyLayout,
        "safetensors": SafetensorsLayout,
        "jsonl": JsonLayout,
    }
    return layouts[options.output_kind](options, shape)


def npy_head(shape: tuple[int, ...], dtype: str) -> bytes:
    """Return the header of an npy file, version 1.0, in C order; ``dtype`` as numpy spells it, ``<f4``."""
    described = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    room = NPY_HEAD_BYTES - 10
    return b"\x93NUMPY\x01\x00" + room.to_bytes(2, "little") + described.ljust(room - 1) + b"\n"


def _numbers(encoded: Encoded) -> tuple[bytes, ...]:
    """Return embeddings and, where there is something, what stands beside them, little-endian."""
    arrays = [encoded.embeddings] if encoded.second is None else [encoded.embeddings, encoded.second]
    return tuple(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes() for array in arrays)


def _json_line(record: Mapping[str, Any], place: int) -> bytes:
    """Write a line; NaN becomes null."""
    try:
        return orjson.dumps(record, _plain, orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)
    except orjson.JSONEncodeError as error:
        raise BulkError(f"what is kept of input row {place} cannot be written as JSON ({error})") from error


def _plain(value: object) -> str:
    """Spell what Parquet has and JSON has not."""
    if isinstance(value, Decimal | timedelta):
        return str(value)
    raise TypeError


def _part_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")
