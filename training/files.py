"""Writing files so that a kill or a full disk leaves what was there before, or what is new, and nothing between.

One moment is not covered: a kill between the two renames by which a folder takes the place of another leaves both in
a hidden folder beside it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

WriteBytes = Callable[[Path, bytes], None]
"""Writes one new file. Passed in, so that a test can have a full disk."""


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and wait until the disk has it.

    Raises
    ------
    OSError
        If the disk is full, say.
    """
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def replace_file(path: Path, content: bytes, write: WriteBytes = write_synced) -> None:
    """Write ``path`` whole or leave it as it was.

    Raises
    ------
    OSError
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        write(temporary, content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_folder(
    destination: Path, files: Mapping[str, bytes], *, replace: bool = False, write: WriteBytes = write_synced
) -> None:
    """Write every file of a folder into a temporary one beside it, then rename that.

    Parameters
    ----------
    destination : Path
    files : mapping of str to bytes
        Path within the folder -> content.
    replace : bool
        Take the place of a folder that is there; without it, only of an empty one.
    write : WriteBytes

    Raises
    ------
    OSError
        ``destination`` is as it was before; where not even that can be, what it held is in a hidden folder beside it.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
    new, old = temporary / "new", temporary / "old"
    try:
        for name, content in files.items():
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            write(new / name, content)
        if replace and destination.exists():
            os.rename(destination, old)
        os.rename(new, destination)
    finally:
        if old.exists() and not destination.exists():
            os.rename(old, destination)  # if that fails too, nothing is deleted
        shutil.rmtree(temporary, ignore_errors=True)
