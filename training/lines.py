"""Lines of UTF-8 text files, plain or gzip, with the number of each for whoever must complain about it."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from training.errors import CorpusError


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Read a UTF-8 text file, plain or gzip, without its blank lines.

    Yields
    ------
    tuple of int and str
        Number of the line, from 1, and the line without the space around it.

    Raises
    ------
    CorpusError
        If the file is missing, damaged, or not UTF-8.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip("\r\n")
                except UnicodeDecodeError as error:
                    raise CorpusError(
                        f"{path}, line {number}: byte {error.start + 1} of the line is not UTF-8"
                    ) from None
                if text.strip():
                    yield number, text.strip(" ")
    except FileNotFoundError:
        raise CorpusError(f"{path} is missing") from None
    except (OSError, EOFError, zlib.error) as error:  # gzip's own faults are among these
        raise CorpusError(f"{path} cannot be read: {error}") from error
