"""Bytes of each format, read back by the libraries that people read them with."""

from __future__ import annotations

import json
import os
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet
from safetensors import safe_open
from safetensors.numpy import load_file

from app.bulk.encoded import Encoded, RowShape
from app.bulk.errors import BulkError
from app.bulk.options import CHUNK_COLUMNS, BulkOptions
from app.bulk.output import Layout, make_layout, npy_head
from app.bulk.rows import TextRow
from model.chunking import Chunking
from model.contract import FloatArray
from tests.app.bulk.jobs import make_options

NAMES = ("entropy", "to_cls")
CHUNKED = [[0, 0, 0, 9, 3, 0], [0, 1, 10, 4_000_000_000, 7, 1], [2, 0, 0, 0, 0, 0]]
DRAW = np.random.default_rng(0)


def make_encoded(count: int, first: int = 0, *, with_stats: bool = True) -> Encoded:
    """Rows of three numbers, of two statistics of 2 layers with 3 heads, and of a number and a text to keep."""
    rows = [TextRow(index, f"t{index}", (index, f"é{index}")) for index in range(first, first + count)]
    stats = DRAW.standard_normal((count, 2, 2, 3)).astype(np.float32) if with_stats else None
    if stats is not None:
        stats[:, 1, 0, 0] = np.nan
    return Encoded(rows, DRAW.standard_normal((count, 3)).astype(np.float32), stats)


def write(options: BulkOptions, layout: Layout, windows: list[Encoded]) -> None:
    """Write windows as a run does: append, count, finish, rename."""
    total = 0
    for path, head in zip(layout.parts, layout.heads(0), strict=True):
        path.write_bytes(head)
    for window in windows:
        total += len(window.rows)
        for path, body, head in zip(layout.parts, layout.bodies(window), layout.heads(total), strict=True):
            with path.open("r+b") as stream:
                stream.write(head)
                stream.seek(0, os.SEEK_END)
                stream.write(body)
    for source, target in layout.finish(total):
        os.replace(source, target)


def made(output: Path, windows: list[Encoded], kept_types: Any = None) -> BulkOptions:
    """An output of a format's layout."""
    keeps = output.suffix in {".jsonl", ".parquet"}
    with_stats = windows[0].stats is not None
    options = make_options(Path("a.txt"), output, keep=("n", "s") if keeps else (), attention_stats=with_stats)
    layout = make_layout(options, RowShape(3, NAMES if with_stats else (), 2, 3), kept_types)
    write(options, layout, windows)
    return options


def joined(windows: list[Encoded]) -> tuple[FloatArray, FloatArray]:
    """All rows of windows."""
    stats = [window.stats for window in windows if window.stats is not None]
    return np.concatenate([window.embeddings for window in windows]), np.concatenate(stats)


@pytest.fixture
def windows() -> list[Encoded]:
    """Seven rows."""
    return [make_encoded(4), make_encoded(3, first=4)]


def test_npy(tmp_path: Path, windows: list[Encoded]) -> None:
    """One array a file, mapped or read; the statistics beside it."""
    options = made(tmp_path / "o.npy", windows)
    embeddings, stats = joined(windows)
    for mode in (None, "r"):
        np.testing.assert_array_equal(np.load(options.output, mmap_mode=mode), embeddings)
        np.testing.assert_array_equal(np.load(options.second_output, mmap_mode=mode), stats)


@pytest.mark.parametrize("count", [0, 1, 7, 10**15])
def test_the_head_of_npy_keeps_its_length(count: int) -> None:
    """However many rows there are."""
    assert len(npy_head((count, 10, 100, 100), "<f4")) == 128
    assert len(npy_head((count, 4096), "<f4")) % 64 == 0


def test_safetensors(tmp_path: Path, windows: list[Encoded]) -> None:
    """Two tensors, and what the axes of the second are."""
    options = made(tmp_path / "o.safetensors", windows)
    embeddings, stats = joined(windows)
    found = load_file(options.output)
    assert found.keys() == {"embeddings", "attention_stats"}
    np.testing.assert_array_equal(found["embeddings"], embeddings)
    np.testing.assert_array_equal(found["attention_stats"], stats)
    with safe_open(options.output, "numpy") as opened:
        metadata = opened.metadata()
    assert json.loads(metadata["statistics"]) == ["entropy", "to_cls"]
    assert json.loads(metadata["axes"]) == ["text", "statistic", "layer", "head"]


def test_safetensors_alone(tmp_path: Path) -> None:
    """Without statistics there is one tensor."""
    windows = [make_encoded(2, with_stats=False)]
    options = made(tmp_path / "o.safetensors", windows)
    np.testing.assert_array_equal(load_file(options.output)["embeddings"], windows[0].embeddings)


@pytest.mark.parametrize("name", ["o.npy", "o.safetensors"])
def test_a_part_is_a_file_of_its_format(tmp_path: Path, name: str) -> None:
    """What is complete can be read before all is."""
    options = make_options(Path("a.txt"), tmp_path / name)
    layout = make_layout(options, RowShape(3, (), 2, 3), None)
    window = make_encoded(5, with_stats=False)
    options.part.write_bytes(layout.heads(5)[0] + layout.bodies(window)[0])
    found = np.load(options.part) if name == "o.npy" else load_file(options.part)["embeddings"]
    np.testing.assert_array_equal(found, window.embeddings)


def test_jsonl(tmp_path: Path, windows: list[Encoded]) -> None:
    """A line for each row: kept values, shortest digits that give the very number back, null where there is none."""
    options = made(tmp_path / "o.jsonl", windows)
    embeddings, stats = joined(windows)
    records = [json.loads(line) for line in options.output.read_text().splitlines()]
    assert [list(record) for record in records] == [["n", "s", "embedding", "attention_stats"]] * 7
    assert [(record["n"], record["s"]) for record in records] == [(index, f"é{index}") for index in range(7)]
    np.testing.assert_array_equal(np.array([record["embedding"] for record in records], np.float32), embeddings)
    for record, expected in zip(records, stats, strict=True):
        assert list(record["attention_stats"]) == ["entropy", "to_cls"]
        found = np.array([record["attention_stats"][name] for name in NAMES], dtype=np.float32)  # null becomes NaN
        np.testing.assert_array_equal(found, expected)
    assert '"to_cls":[[null,' in options.output.read_text()


def test_jsonl_spells_what_parquet_has() -> None:
    """Dates, decimals and durations are strings; bytes have no form in JSON, and are refused with their row."""
    options = make_options(Path("a.txt"), Path("o.jsonl"), keep=("x",))
    layout = make_layout(options, RowShape(1, (), 0, 0), None)

    def line(value: object) -> Any:
        rows = [TextRow(9, "t", (value,))]
        return json.loads(layout.bodies(Encoded(rows, np.zeros((1, 1), np.float32), None))[0])["x"]

    assert line(date(2026, 11, 30)) == "2026-11-30"
    assert line(Decimal("1.50")) == "1.50"
    assert line(timedelta(days=1)) == "1 day, 0:00:00"
    with pytest.raises(BulkError, match="input row 9 cannot be written as JSON"):
        line(b"bytes")


def test_parquet(tmp_path: Path, windows: list[Encoded]) -> None:
    """Columns of kept values, of embeddings, and of statistics by name; nothing else is left in the folder."""
    options = made(tmp_path / "o.parquet", windows)
    embeddings, stats = joined(windows)
    table = parquet.read_table(options.output)
    assert table.column_names == ["n", "s", "embedding", "attention_stats"]
    assert table["n"].to_pylist() == [str(index) for index in range(7)]  # of kinds that differ: as JSON
    assert table["s"].to_pylist() == [f"é{index}" for index in range(7)]
    np.testing.assert_array_equal(np.array(table["embedding"].to_pylist(), np.float32), embeddings)
    found = [[record[name] for name in NAMES] for record in table["attention_stats"].to_pylist()]
    np.testing.assert_array_equal(np.array(found, np.float32), stats)
    options.part.unlink()
    assert [path.name for path in tmp_path.iterdir()] == ["o.parquet"]


@pytest.mark.parametrize("name", ["o.npy", "o.safetensors", "o.jsonl", "o.parquet"])
def test_chunks_say_where_they_are(tmp_path: Path, name: str) -> None:
    """Beside their embeddings: as an array of integers, or in columns of which the last one is true or false."""
    columns = np.array(CHUNKED, np.int64)
    rows = [TextRow(1, "a", ("x",)), TextRow(1, "a", ("x",)), TextRow(3, "b", ("y",))]
    window = Encoded(rows, DRAW.standard_normal((3, 3)).astype(np.float32), None, columns)
    chunking = Chunking("token", 8)
    keep = ("id",) if name in {"o.jsonl", "o.parquet"} else ()
    options = make_options(Path("a.txt"), tmp_path / name, chunking=chunking, keep=keep)
    layout = make_layout(options, RowShape(3, (), 2, 3, is_chunk=True), None)
    pieces = [Encoded(rows[:2], window.embeddings[:2], None, columns[:2])]
    pieces.append(Encoded(rows[2:], window.embeddings[2:], None, columns[2:]))
    write(options, layout, pieces)
    if name == "o.npy":
        np.testing.assert_array_equal(np.load(options.output), window.embeddings)
        np.testing.assert_array_equal(np.load(tmp_path / "o.chunks.npy"), columns)
        return
    if name == "o.safetensors":
        found = load_file(options.output)
        np.testing.assert_array_equal(found["embeddings"], window.embeddings)
        np.testing.assert_array_equal(found["chunks"], columns)
        with safe_open(options.output, "numpy") as opened:
            assert json.loads(opened.metadata()["columns"]) == list(CHUNK_COLUMNS)
        return
    if name == "o.jsonl":
        records = [json.loads(line) for line in options.output.read_text().splitlines()]
    else:
        records = parquet.read_table(options.output).to_pylist()
    assert [list(record) for record in records] == [["id", *CHUNK_COLUMNS, "embedding"]] * 3
    assert [record["id"] for record in records] == ["x", "x", "y"]
    assert [[record[column] for column in CHUNK_COLUMNS] for record in records] == CHUNKED
    assert [record["truncated"] for record in records] == [False, True, False]
    embeddings = np.array([record["embedding"] for record in records], np.float32)
    np.testing.assert_array_equal(embeddings, window.embeddings)


@pytest.mark.parametrize("name", ["o.npy", "o.safetensors", "o.jsonl", "o.parquet"])
def test_no_rows_are_a_file_too(tmp_path: Path, name: str) -> None:
    """An empty input gives an empty output, not a broken one."""
    options = made(tmp_path / name, [make_encoded(0)])
    if name == "o.npy":
        assert np.load(options.output).shape == (0, 3)
    elif name == "o.safetensors":
        assert load_file(options.output)["attention_stats"].shape == (0, 2, 2, 3)
    elif name == "o.jsonl":
        assert options.output.read_bytes() == b""
    else:
        assert parquet.read_table(options.output).num_rows == 0


def test_the_first_text_that_is_not_finite() -> None:
    """It is found wherever it stands; statistics may be NaN."""
    encoded = make_encoded(4)
    assert encoded.first_not_finite() is None
    encoded.embeddings[2, 1] = np.inf
    encoded.embeddings[3, 0] = np.nan
    assert encoded.first_not_finite() == encoded.rows[2]
    assert make_encoded(0).first_not_finite() is None
