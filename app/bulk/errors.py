"""What ``eyeline encode`` ends with when it cannot go on: one sentence, and the exit code it stands for."""

from __future__ import annotations

from pathlib import Path


class BulkError(Exception):
    """A file that cannot be read, encoded or written. The message is one sentence with the file and the line."""

    exit_code = 1


class BulkUsageError(BulkError):
    """Options that contradict one another or the model, before anything was read or written."""

    exit_code = 2


class BulkStoppedError(BulkError):
    """Somebody pressed Ctrl-C or sent SIGTERM.

    Parameters
    ----------
    part : Path
    num_rows : int
        Rows that are complete in it.
    """

    exit_code = 130  # what a shell reports for a command ended by Ctrl-C

    def __init__(self, part: Path, num_rows: int) -> None:
        super().__init__(f"stopped: {num_rows} rows are complete in {part}, and the same command goes on from there")


def write_failure(path: Path, error: OSError, *, num_rows: int | None = None) -> BulkError:
    """Say that a file could not be written.

    Parameters
    ----------
    path : Path
    error : OSError
    num_rows : int, optional
        Rows that are complete on the disk and will be taken up again.
    """
    kept = "" if num_rows is None else f"; {num_rows} rows are complete, and the same command goes on from there"
    return BulkError(f"{path} could not be written ({error.strerror or error}){kept}")
