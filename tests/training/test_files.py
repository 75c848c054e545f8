"""Files that are there whole or as they were."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.training.disks import FullDisk
from training.files import replace_file, write_folder


def everything(folder: Path) -> dict[str, bytes]:
    """What a folder holds."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    """The old content is there, and nothing beside it."""
    file = tmp_path / "a"
    replace_file(file, b"old")
    with pytest.raises(OSError, match="No space left"):
        replace_file(file, b"newer", FullDisk(0))
    assert everything(tmp_path) == {"a": b"old"}
    replace_file(file, b"newer")
    assert everything(tmp_path) == {"a": b"newer"}


@pytest.mark.parametrize("room", [0, 1])
def test_a_full_disk_leaves_the_folder_as_it_was(tmp_path: Path, room: int) -> None:
    """At whichever file it happens, what was there stays and nothing is left over."""
    write_folder(tmp_path / "f", {"a": b"1", "b/c": b"2"})
    with pytest.raises(OSError, match="No space left"):
        write_folder(tmp_path / "f", {"a": b"3", "b/c": b"4"}, replace=True, write=FullDisk(room))
    assert everything(tmp_path) == {"f/a": b"1", "f/b/c": b"2"}


def renaming_that_fails(*sources: str) -> Callable[[Path, Path], None]:
    """Rename, but not what has one of these names."""
    rename = os.rename

    def fail(source: Path, destination: Path) -> None:
        if source.name in sources:
            raise OSError(errno.EIO, "Input/output error")
        rename(source, destination)

    return fail


def test_a_rename_that_fails_leaves_the_folder_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was moved out of the way comes back, and nothing is left over."""
    write_folder(tmp_path / "f", {"a": b"1"})
    monkeypatch.setattr(os, "rename", renaming_that_fails("new"))
    with pytest.raises(OSError, match="Input/output error"):
        write_folder(tmp_path / "f", {"a": b"2"}, replace=True)
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert everything(tmp_path) == {"f/a": b"1"}


def test_what_cannot_be_moved_back_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays where it is, in the hidden folder."""
    write_folder(tmp_path / "f", {"a": b"1"})
    monkeypatch.setattr(os, "rename", renaming_that_fails("new", "old"))
    with pytest.raises(OSError, match="Input/output error"):
        write_folder(tmp_path / "f", {"a": b"2"}, replace=True)
    assert [path.read_bytes() for path in tmp_path.glob(".f.*/old/a")] == [b"1"]


def test_a_folder_takes_the_place_of_another_only_when_asked(tmp_path: Path) -> None:
    """Without replace, what is there stays; an empty folder is taken."""
    (tmp_path / "f").mkdir()
    write_folder(tmp_path / "f", {"a": b"1"})
    with pytest.raises(OSError, match="not empty"):
        write_folder(tmp_path / "f", {"b": b"2"})
    assert everything(tmp_path) == {"f/a": b"1"}
    write_folder(tmp_path / "f", {"b": b"2"}, replace=True)
    assert everything(tmp_path) == {"f/b": b"2"}
