"""Files that nobody vouches for: only those that end are read, and only inside the folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from model.errors import CheckpointError
from model.files import (
    MAX_NAME_CHARACTERS,
    MAX_SHOWN_CHARACTERS,
    check_file,
    inside,
    is_there,
    read_json_value,
    read_text,
    shown,
)


@pytest.mark.parametrize("target", ["/dev/zero", "/dev/null", "fifo", "folder", "loop", "none"])
def test_what_does_not_end_is_not_opened(tmp_path: Path, target: str) -> None:
    """A device, a pipe, a folder, a link to itself or to nothing: one sentence, and nobody waits."""
    path = tmp_path / "file"
    if target == "fifo":
        os.mkfifo(path)
    elif target == "folder":
        path.mkdir()
    else:
        path.symlink_to(path.name if target == "loop" else target)
    for read in (check_file, read_text, read_json_value):
        with pytest.raises(CheckpointError, match=r"is no regular file|is missing|cannot be read: "):
            read(path)


def test_a_link_to_a_file_is_that_file(tmp_path: Path) -> None:
    """The Hub's cache is made of links that lead out of the folder."""
    (tmp_path / "blob").write_text('{"a": 1}')
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").symlink_to("../blob")
    assert read_json_value(folder / "config.json") == {"a": 1}


def test_a_file_has_a_size(tmp_path: Path) -> None:
    """At the limit it is read, one byte more is refused with both numbers."""
    file = tmp_path / "file"
    file.write_text("abcd")
    assert read_text(file, 4) == "abcd"
    with pytest.raises(CheckpointError, match="has 4 bytes, and at most 3 are read"):
        read_text(file, 3)
    assert check_file(file) == 4


def test_a_file_that_has_grown_is_refused(tmp_path: Path) -> None:
    """Half of what somebody is writing is not read as the whole; nor is one more byte read than shows it."""
    with pytest.raises(CheckpointError, match="status has more than the 0 bytes that it had"):
        read_text(Path("/proc/self/status"))  # a kernel's file says that it has 0

    class Growing(type(tmp_path)):  # type: ignore[misc]  # the class of this system's paths
        """A file to which two bytes are added once its size is known."""

        def open(self, *args: Any, **kwargs: Any) -> Any:
            with Path(self).open("ab") as writer:
                writer.write(b"ef")
            return super().open(*args, **kwargs)

    file = tmp_path / "file"
    file.write_text("abcd")
    with pytest.raises(CheckpointError, match="file has more than the 4 bytes that it had"):
        read_text(Growing(file))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (5, "5"),
        (1e30, "1e+30"),
        (float("nan"), "nan"),
        ("a\0", r"'a\x00'"),
        (None, "None"),
        ([1, "a"], "[1, 'a']"),
        ({"a": [1]}, "{'a': [1]}"),
        ("x" * 98, repr("x" * 98)),
    ],
)
def test_a_value_of_a_file_is_repeated(value: object, said: str) -> None:
    """As Python spells it, so that what cannot be seen can be."""
    assert shown(value) == said


def deep(levels: int) -> object:
    """A list in a list in a list."""
    value: object = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "begin"),
    [
        (10**400, "10000"),
        (-(10**400), "-10000"),
        ("x" * 100_000, "'xxxx"),
        (["x" * 100_000] * 50, "['xxxx"),
        (dict.fromkeys(range(50), "x" * 90), "{0: 'xxxx"),
        (deep(50_000), "[["),
    ],
    ids=["number", "negative", "string", "list", "object", "deep"],
)
def test_a_long_value_is_repeated_in_part(value: object, begin: str) -> None:
    """Whatever a file holds, a message stays a sentence: a number that no float holds, a list that no stack can."""
    assert shown(value).startswith(begin)
    assert "..." in shown(value)
    assert len(shown(value)) <= MAX_SHOWN_CHARACTERS + len("...")


def test_text_and_json_are_told_apart(tmp_path: Path) -> None:
    """What is no UTF-8, no JSON, and JSON that no parser can hold."""
    file = tmp_path / "file"
    for content, complaint in (
        (b"\xff", "is not text in UTF-8"),
        (b"{", "is not valid JSON"),
        (b"[" * 100_000, "is nested too deeply"),
        (b"1" * 10_000, "is not valid JSON"),
    ):
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match=complaint):
            read_json_value(file)


@pytest.mark.parametrize("name", ["", ".", "a", "a/b", "1_Pooling", "a..b", "..a"])
def test_a_name_inside(tmp_path: Path, name: str) -> None:
    """Of the folder itself, of a file, of one in a folder."""
    assert inside(tmp_path, name, tmp_path / "modules.json") == tmp_path / name


@pytest.mark.parametrize(
    "name", ["..", "../a", "a/../b", "/etc/passwd", "/", "a/..", "a\0b", "a\nb", "x" * 256, 5, None]
)
def test_a_name_that_leads_out_is_refused(tmp_path: Path, name: object) -> None:
    """By the file that gives it, in one sentence of bounded length."""
    assert len(str(name)) <= MAX_NAME_CHARACTERS + 1
    with pytest.raises(CheckpointError, match=r"modules\.json names") as caught:
        inside(tmp_path, name, tmp_path / "modules.json")
    assert str(caught.value).isprintable()


def test_whether_anything_is_there(tmp_path: Path) -> None:
    """What cannot be looked at is there: reading it says what is wrong."""
    assert not is_there(tmp_path / "none")
    assert is_there(tmp_path)
    assert is_there(tmp_path / ("x" * 300))
