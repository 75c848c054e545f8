"""The texts that the benchmarks encode: three sets of different length, and a mix of them."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

FOLDER = Path(__file__).parent / "texts"

FILES = {"10": "sentences-10.txt", "25": "sentences-25.txt", "200": "paragraphs-200.txt"}
"""Tokens of a text, about -> file."""

MIXED = "mixed"
"""Takes a text from each file in turn, as a server that several applications use would see them."""

TEXT_SETS = (*FILES, MIXED)

NUM_TEXTS = 1000


def read_texts(name: str, num_texts: int = NUM_TEXTS) -> list[str]:
    """Read the first texts of a set.

    Parameters
    ----------
    name : str
        One of :data:`TEXT_SETS`.
    num_texts : int
        At most :data:`NUM_TEXTS`.
    """
    if name == MIXED:
        return list(chain.from_iterable(zip(*map(read_texts, FILES), strict=True)))[:num_texts]
    return (FOLDER / FILES[name]).read_text(encoding="utf-8").splitlines()[:num_texts]
