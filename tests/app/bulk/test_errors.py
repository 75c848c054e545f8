"""How a bulk job that cannot go on says so."""

from __future__ import annotations

import errno
from pathlib import Path

from app.bulk.errors import BulkError, BulkStoppedError, BulkUsageError, write_failure


def test_each_end_has_its_exit_code() -> None:
    """1 for what is wrong with files, 2 for options, 130 for an interrupt, as shells have it."""
    codes = [BulkError("x").exit_code, BulkUsageError("x").exit_code, BulkStoppedError(Path("o.part"), 3).exit_code]
    assert codes == [1, 2, 130]


def test_a_full_disk_is_one_sentence() -> None:
    """The file, the system's reason, and what is not lost."""
    full = OSError(errno.ENOSPC, "No space left on device")
    assert str(write_failure(Path("o.part"), full)) == "o.part could not be written (No space left on device)"
    assert str(write_failure(Path("o.part"), full, num_rows=8)) == (
        "o.part could not be written (No space left on device); "
        "8 rows are complete, and the same command goes on from there"
    )
    assert "(strange)" in str(write_failure(Path("o.part"), OSError("strange")))


def test_a_stop_says_what_is_complete() -> None:
    """How many rows, where, and how to go on."""
    assert str(BulkStoppedError(Path("o.npy.part"), 7)) == (
        "stopped: 7 rows are complete in o.npy.part, and the same command goes on from there"
    )
