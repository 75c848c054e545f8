"""Pairs of texts that belong together, with texts that do not: from TSV, JSON lines or Parquet.

===========  ======================================================================================
``.tsv``     anchor, positive, and hard negatives in any further columns; no header
``.jsonl``   an object a line with ``anchor``, ``positive`` and, if there are any, ``negatives`` (a list)
``.parquet`` columns of these names
===========  ======================================================================================

The first two may be gzip files. Parquet needs ``pyarrow``, which the ``training`` extra installs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.errors import CorpusError
from training.lines import read_lines

PAIR_SUFFIXES = (".tsv", ".jsonl", ".parquet")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts that belong together.

    Attributes
    ----------
    anchor, positive : str
    negatives : tuple of str
        Texts that look as if they belonged to the anchor, and do not.
    """

    anchor: str
    positive: str
    negatives: tuple[str, ...] = ()


def read_pairs(path: Path) -> list[Pair]:
    """Read every pair of a file.

    Raises
    ------
    CorpusError
        If the file cannot be read, holds no pair, or a row is not a pair.
    """
    kind = Path(path.name.removesuffix(".gz")).suffix
    readers = {".tsv": _tsv, ".jsonl": _json_lines, ".parquet": _parquet}
    if kind not in readers:
        raise CorpusError(f"{path}: pairs are read from {', '.join(PAIR_SUFFIXES)}, not from {kind or 'such a file'}")
    pairs = list(readers[kind](path))
    if not pairs:
        raise CorpusError(f"{path} holds no pair")
    return pairs


def _tsv(path: Path) -> Iterator[Pair]:
    for number, line in read_lines(path):
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) < 2 or not all(cells):
            raise CorpusError(f"{path}, line {number}: a pair is two or more columns, none of them empty")
        yield Pair(cells[0], cells[1], tuple(cells[2:]))


def _json_lines(path: Path) -> Iterator[Pair]:
    for number, line in read_lines(path):
        try:
            row = json.loads(line)
        except ValueError:
            raise CorpusError(f"{path}, line {number} is not JSON") from None
        yield _pair(row, f"{path}, line {number}")


def _parquet(path: Path) -> Iterator[Pair]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise CorpusError(f"{path}: reading Parquet needs pyarrow, which the training extra installs") from None
    try:
        rows = parquet.read_table(path).to_pylist()
    except (OSError, ArrowException) as error:
        raise CorpusError(f"{path} cannot be read as Parquet: {error}") from error
    for number, row in enumerate(rows, start=1):
        yield _pair(row, f"{path}, row {number}")


def _pair(row: Any, where: str) -> Pair:  # noqa: ANN401 - whatever JSON holds
    """Check the fields of one row."""
    if not isinstance(row, dict):
        raise CorpusError(f"{where} is not an object with anchor and positive")
    anchor, positive, negatives = row.get("anchor"), row.get("positive"), row.get("negatives") or []
    texts = [anchor, positive, *negatives] if isinstance(negatives, list) else [None]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise CorpusError(f"{where}: anchor and positive must be texts, and negatives a list of texts")
    return Pair(str(anchor), str(positive), tuple(negatives))
