"""The small files of a run: whole or not at all, and what is read of one that is something else."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from app.bulk.records import as_stored, difference, read_record, write_record

RECORD = {"version": 1, "sizes": [1, 2], "name": "naïve", "rows": None}


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    """And replaces the one before; nothing else is left beside it."""
    write_record(tmp_path / "a.json", {"version": 0})
    write_record(tmp_path / "a.json", RECORD)
    assert read_record(tmp_path / "a.json") == RECORD
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_record_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, at any moment: it is written beside the old one, and takes its place when it is whole."""
    write_record(tmp_path / "a.json", RECORD)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space left"):
        write_record(tmp_path / "a.json", {"version": 2})
    monkeypatch.undo()
    assert read_record(tmp_path / "a.json") == RECORD
    write_record(tmp_path / "a.json", {"version": 2})
    assert read_record(tmp_path / "a.json") == {"version": 2}


def test_a_record_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a power cut could leave a file of that name that is empty."""
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (calls.append("fsync"), fsync(descriptor)))
    monkeypatch.setattr(os, "replace", lambda old, new: (calls.append("replace"), replace(old, new)))
    write_record(tmp_path / "a.json", RECORD)
    assert calls == ["fsync", "replace"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"5", b"\xff", b'"a"', b"[" * 100_000, b"7" * 10_000],
    ids=["empty", "cut", "list", "null", "number", "no UTF-8", "string", "deep", "digits"],
)
def test_what_is_no_record_has_no_fields(tmp_path: Path, content: bytes) -> None:
    """So whoever reads it misses one, and says which file to delete."""
    (tmp_path / "a.json").write_bytes(content)
    assert read_record(tmp_path / "a.json") == {}


def test_a_record_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """Which is not the same as one of something else."""
    with pytest.raises(FileNotFoundError):
        read_record(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("stored", "wanted", "said"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, None),
        ({"a": 1, "b": 2}, {"a": 1}, None),
        ({"a": 1}, {"a": 1, "b": 2}, "b (null, now 2)"),
        ({"a": 1, "b": 2}, {"a": 3, "b": 4}, "a (1, now 3)"),
        ({"a": True}, {"a": "true"}, 'a (true, now "true")'),
        ({"model": "digest"}, {"model": "other"}, "model"),
        ({}, {"model": "other"}, "model"),
    ],
)
def test_a_difference_is_said_with_both_values(
    stored: dict[str, Any], wanted: dict[str, Any], said: str | None
) -> None:
    """The first one; of a digest its name alone."""
    assert difference(stored, wanted, digests=frozenset({"model"})) == said


def test_types_that_json_lacks_are_compared_as_they_come_back() -> None:
    """A tuple is a list on the disk, a key that is a number a string."""
    content = {"keep": ("a", "b"), "sizes": {1: 2}}
    assert as_stored(content) == {"keep": ["a", "b"], "sizes": {"1": 2}} == json.loads(json.dumps(content))
