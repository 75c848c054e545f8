"""How texts are cut into chunks, apart from torch, so that a command line knows it at once; ``chunks.py`` cuts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from model.errors import ChunkingError

if TYPE_CHECKING:  # it imports torch
    from model.pooling import PoolingMode

ChunkUnit = Literal["token", "sentence"]
ChunkMode = Literal["separate", "late"]

LATE_POOLING: frozenset[PoolingMode] = frozenset({"mean", "max"})
"""What is made of all tokens of a chunk. The first or last one of a stretch in the middle stands for nothing."""


@dataclass(frozen=True, slots=True)
class Chunking:
    """How texts are cut.

    Attributes
    ----------
    unit : "token" or "sentence"
    size, overlap : int
        Units of a chunk, and how many of them the next chunk begins with; 0 <= overlap < size.
    mode : "separate" or "late"
    """

    unit: ChunkUnit
    size: int
    overlap: int = 0
    mode: ChunkMode = "separate"


def check_chunking(chunking: Chunking, pooling: PoolingMode) -> None:
    """Refuse what has no meaning.

    Raises
    ------
    ChunkingError
        If chunks would overlap in all of their units, or the model pools so that late chunks have no embedding.
    """
    if chunking.overlap >= chunking.size:
        raise ChunkingError(
            f"the overlap of chunks must be less than their size of {chunking.size}, not {chunking.overlap}",
            param="chunks.overlap",
            limit=chunking.size - 1,
            actual=chunking.overlap,
        )
    if chunking.mode == "late" and pooling not in LATE_POOLING:
        raise ChunkingError(
            f"this model pools by {pooling}, which late chunking has no use for: it needs the mean or the maximum of a "
            "chunk's tokens; use mode separate",
            param="chunks.mode",
        )
