"""Pairs from TSV, JSON lines and Parquet."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from training.errors import CorpusError
from training.pairs import Pair, read_pairs

PAIRS = [Pair("a", "b"), Pair("c", "d", ("e", "f"))]


def test_all_three_formats_hold_the_same(tmp_path: Path) -> None:
    """Hard negatives are optional in each of them."""
    (tmp_path / "p.tsv").write_text("a\tb\nc\td\te\tf\n")
    rows = [
        {"anchor": "a", "positive": "b", "negatives": None},
        {"anchor": "c", "positive": "d", "negatives": ["e", "f"]},
    ]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "p.parquet")
    assert [read_pairs(tmp_path / f"p.{ending}") for ending in ("tsv", "jsonl", "parquet")] == [PAIRS] * 3


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.tsv", "a\tb\nlonely\n", "line 2: a pair is two or more columns"),
        ("p.tsv", "a\t\n", "line 1: a pair is two or more columns"),
        ("p.tsv", "\n", "holds no pair"),
        ("p.jsonl", "{\n", "line 1 is not JSON"),
        ("p.jsonl", "[1]\n", "line 1 is not an object"),
        ("p.jsonl", '{"anchor": "a"}\n', "line 1: anchor and positive must be texts"),
        ("p.jsonl", '{"anchor": "a", "positive": "b", "negatives": "c"}\n', "negatives a list of texts"),
        ("p.jsonl", '{"anchor": "a", "positive": "b", "negatives": [3]}\n', "negatives a list of texts"),
        ("p.parquet", "no parquet", "cannot be read as Parquet"),
        ("p.csv", "a,b\n", "not from .csv"),
    ],
)
def test_what_is_no_pair_is_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    """One sentence with the file, and the line where there is one."""
    (tmp_path / name).write_text(content)
    with pytest.raises(CorpusError, match=rf"{name}.*{message}"):
        read_pairs(tmp_path / name)
