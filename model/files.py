"""Reads the files of a folder that nobody vouches for: files that end, of bounded size, at names inside the folder.

A symbolic link is followed, as the Hub's cache is made of them; what it leads to must be such a file all the same.
"""

from __future__ import annotations

import json
import reprlib
import stat
from pathlib import Path, PurePosixPath
from typing import Any

from model.errors import CheckpointError

MAX_JSON_BYTES = 64 * 1024 * 1024
"""The largest index of a sharded model is a few megabytes."""
MAX_TOKENIZER_BYTES = 256 * 1024 * 1024
"""Fifteen times the tokenizer of a model for a hundred languages."""
MAX_NAME_CHARACTERS = 255
MAX_SHOWN_CHARACTERS = 100
"""A message may repeat a value of a file, which may be of any length."""


def check_file(path: Path, max_bytes: int | None = None) -> int:
    """Refuse what cannot be read to its end.

    Returns
    -------
    int
        How many bytes it has.

    Raises
    ------
    CheckpointError
        If it is missing, no regular file (a folder, a pipe, a device), or larger than ``max_bytes``.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {_reason(error)}") from error
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path} is no regular file")
    if max_bytes is not None and status.st_size > max_bytes:
        raise CheckpointError(f"{path} has {status.st_size} bytes, and at most {max_bytes} are read")
    return status.st_size


def shown(value: object) -> str:
    """Return a value of a file as a message repeats it: as Python spells it, shortened where it is long or deep.

    No format of numbers: of a whole number of hundreds of digits, which JSON allows, no float can be made.
    """
    spelling = reprlib.Repr()
    spelling.maxlong = spelling.maxstring = spelling.maxother = MAX_SHOWN_CHARACTERS
    spelling.maxlevel = 3
    spelled = spelling.repr(value)
    return spelled if len(spelled) <= MAX_SHOWN_CHARACTERS else f"{spelled[:MAX_SHOWN_CHARACTERS]}..."


def is_there(path: Path) -> bool:
    """Whether there is anything of that name, be it readable or not."""
    try:
        return path.exists()
    except OSError:
        return True  # whoever reads it says what is wrong


def read_text(path: Path, max_bytes: int = MAX_JSON_BYTES) -> str:
    """Read a whole text file.

    Raises
    ------
    CheckpointError
        As :func:`check_file`, or if it is not UTF-8, or has more bytes than it said: it grew meanwhile, and half of a
        file would be read, or it is one of a kernel's, which says 0.
    """
    size = check_file(path, max_bytes)
    try:
        with path.open("rb") as file:
            content = file.read(size + 1)
        if len(content) > size:
            raise CheckpointError(
                f"{path} has more than the {size} bytes that it had when it was opened: it is growing"
            )
        return content.decode("utf-8")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {_reason(error)}") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not text in UTF-8") from error


def read_json_value(path: Path) -> object:
    """Read one JSON value.

    Raises
    ------
    CheckpointError
        As :func:`read_text`, or if it is no JSON, or nested more deeply than the parser goes.
    """
    text = read_text(path)
    try:
        return json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON") from error
    except RecursionError:
        raise CheckpointError(f"{path} is nested too deeply") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object.

    Raises
    ------
    CheckpointError
        If the file is missing, unreadable or no JSON object; the three are told apart.
    """
    parsed = read_json_value(path)
    if not isinstance(parsed, dict):
        raise CheckpointError(f"{path} holds {type(parsed).__name__}, not a JSON object")
    return parsed


def read_optional_json(path: Path) -> dict[str, Any]:
    """Read one JSON object, or nothing where there is no file."""
    return read_json(path) if is_there(path) else {}


def inside(folder: Path, name: object, named_by: Path) -> Path:
    """Return the path of a name that one of the folder's files gives.

    Parameters
    ----------
    folder : Path
    name : object
        What the file says; "" is the folder itself.
    named_by : Path
        The file, for the error.

    Raises
    ------
    CheckpointError
        If it is no name of something inside the folder: absolute, with ``..``, or one that no file can have.
    """
    if not isinstance(name, str) or len(name) > MAX_NAME_CHARACTERS or not name.isprintable():
        raise CheckpointError(f"{named_by} names a file by {type(name).__name__} or characters that no name has")
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts:
        raise CheckpointError(f"{named_by} names {name!r}, which is outside of the folder")
    return folder / pure


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "no file can have this name"
