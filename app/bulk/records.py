"""The small JSON files of a run, which say what is done: written whole or not at all, and read with suspicion."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    """Write a record in place of the one that is there; a kill leaves the one or the other.

    Raises
    ------
    OSError
    """
    temporary = path.with_name(f"{path.name}.new")
    with temporary.open("wb") as stream:
        stream.write(json.dumps(content, indent=2).encode())
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)


def read_record(path: Path) -> dict[str, Any]:
    """Read what :func:`write_record` wrote.

    Returns
    -------
    dict
        Empty where the file is something else: no program here writes such a record, so that whoever reads it misses a
        field and says what to do.

    Raises
    ------
    OSError
        If there is none, or it cannot be read.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def as_stored(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record as it comes back from the disk: what JSON has no type for is another type then."""
    stored: dict[str, Any] = json.loads(json.dumps(content))
    return stored


def difference(stored: Mapping[str, Any], wanted: Mapping[str, Any], *, digests: frozenset[str]) -> str | None:
    """Say in what a record differs from what is wanted now: the first such field and both values, or None.

    Parameters
    ----------
    stored, wanted : mapping
        Only the fields of ``wanted`` are compared.
    digests : frozenset of str
        Fields whose values say nothing to a reader.
    """
    for name, now in wanted.items():
        before = stored.get(name)
        if before != now:
            return name if name in digests else f"{name} ({json.dumps(before)}, now {json.dumps(now)})"
    return None
