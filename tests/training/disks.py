"""Disks that are full from a given write on."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import BinaryIO

from training.files import write_synced


class FullDisk:
    """Writes files until ``room`` of them are written; then half of one, and the error of a full disk."""

    def __init__(self, room: int) -> None:
        self._room = room

    def __call__(self, path: Path, content: bytes) -> None:
        """As :func:`training.files.write_synced`."""
        if self._room == 0:
            path.write_bytes(content[: len(content) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        self._room -= 1
        write_synced(path, content)


class FullDiskWhileAppending:
    """Adds to a file ``room`` times; then half, and the error of a full disk."""

    def __init__(self, room: int) -> None:
        self._room = room

    def __call__(self, stream: BinaryIO, content: bytes) -> None:
        """As :func:`training.cache.append_synced`."""
        if self._room == 0:
            stream.write(content[: len(content) // 2])
            stream.flush()
            raise OSError(errno.ENOSPC, "No space left on device")
        self._room -= 1
        stream.write(content)
