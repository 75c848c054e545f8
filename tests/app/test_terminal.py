"""What the commands of the first day take and print. Run from end to end: tests/app/test_cli.py."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.bulk.errors import BulkError, BulkUsageError
from app.bulk.search import Found, Hit
from app.terminal import (
    add_search_arguments,
    check_similarity,
    describe_found,
    describe_similarity,
    search_options,
    shortened,
)

VECTORS = np.array([[1, 0], [0.6, 0.8], [0, 1]], np.float32)


def parsed(*argv: str) -> Any:
    """Arguments of search."""
    parser = argparse.ArgumentParser()
    add_search_arguments(parser)
    return parser.parse_args(argv)


def test_two_texts_are_one_number_and_more_a_table() -> None:
    """Numbered, with each text beside its row."""
    assert describe_similarity("m", ["a", "b"], VECTORS[:2], as_json=False) == "0.600"
    table = describe_similarity("m", ["a", "b", "c"], VECTORS, as_json=False).splitlines()
    assert [line.split() for line in table] == [
        ["1", "2", "3"],
        ["1", "1.000", "0.600", "0.000", "a"],
        ["2", "0.600", "1.000", "0.800", "b"],
        ["3", "0.000", "0.800", "1.000", "c"],
    ]


def test_json_has_every_number() -> None:
    """For programs: cosines, hits with place, score and whole text."""
    body = json.loads(describe_similarity("m", ["a", "b"], VECTORS[:2], as_json=True))
    assert body == {"model": "m", "similarities": [[1, 0.6], [0.6, 1]]}
    found = Found("row", [Hit(7, 0.25, "é" * 200)], 9, 1)
    body = json.loads(describe_found("m", found, as_json=True))
    assert body["hits"] == [{"row": 7, "score": 0.25, "text": "é" * 200}]
    assert (body["model"], body["num_texts"], body["num_truncated"]) == ("m", 9, 1)


def test_hits_are_lines() -> None:
    """Score, place and text, and how many there were."""
    found = Found("line", [Hit(12, 0.5, "b"), Hit(3, -0.25, "c")], 40, 2)
    assert describe_found("m", found, as_json=False).splitlines() == [
        " 0.500  line 12  b", "-0.250  line  3  c", "the best 2 of 40 texts, 2 truncated",
    ]  # fmt: skip
    assert describe_found("m", Found("line", [], 0, 0), as_json=False) == "the best 0 of 0 texts"


def test_a_text_cannot_write_to_the_terminal() -> None:
    """Line ends and escape sequences are spaces, and a long text ends with an ellipsis."""
    assert shortened("a\n\tb \x1b[31mc") == "a b [31mc"
    assert shortened("x" * 300) == "x" * 99 + "…"


def test_bad_usage(tmp_path: Path) -> None:
    """Found before a model is loaded."""
    with pytest.raises(BulkUsageError, match="two texts or more, not 1"):
        check_similarity(["a"])
    with pytest.raises(BulkUsageError, match="text 2 is not UTF-8"):
        check_similarity(["a", "\udcff"])
    path = tmp_path / "a.csv"
    path.write_text("text\na\n")
    assert search_options(parsed(str(path), "q", "--prompt", "p")).input_kind == "csv"
    for argv, reason in (
        (("--top", "0"), "--top must be at least 1"),
        (("--prompt", "a", "--prompt-name", "b"), "not both"),
        (("--input-format", "text", "--column", "c"), "no meaning"),
    ):
        with pytest.raises(BulkUsageError, match=reason):
            search_options(parsed(str(path), "q", *argv))
    with pytest.raises(BulkUsageError, match="the query is not UTF-8"):
        search_options(parsed(str(path), "\udcff"))
    with pytest.raises(BulkError, match="is missing"):
        search_options(parsed(str(tmp_path / "b.txt"), "q"))
