"""How ``eyeline encode`` is told to cut texts into chunks."""

from __future__ import annotations

import argparse
from typing import get_args

from app.bulk.errors import BulkUsageError
from model.chunking import Chunking, ChunkMode, ChunkUnit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments to ``parser``."""
    group = parser.add_argument_group("chunks", "a row for each chunk of a text, as chunks of POST /encode has them")
    group.add_argument("--chunks", choices=get_args(ChunkUnit), help="cut texts by tokens or by sentences")
    group.add_argument("--chunk-size", type=int, metavar="N", help="tokens or sentences in a chunk")
    group.add_argument("--chunk-overlap", type=int, metavar="N", help="how many the next one begins with (default: 0)")
    group.add_argument(
        "--chunk-mode",
        choices=get_args(ChunkMode),
        help="encode each by itself, or read the text as a whole and cut late (default: separate)",
    )


def read_chunking(arguments: argparse.Namespace) -> Chunking | None:
    """Turn parsed arguments into how texts are cut, if they are.

    Raises
    ------
    BulkUsageError
        If one is missing, out of range, or has no meaning without the others.
    """
    size, overlap, mode = arguments.chunk_size, arguments.chunk_overlap, arguments.chunk_mode
    if arguments.chunks is None:
        for flag, value in (("--chunk-size", size), ("--chunk-overlap", overlap), ("--chunk-mode", mode)):
            if value is not None:
                raise BulkUsageError(f"{flag} has no meaning without --chunks")
        return None
    if size is None:
        raise BulkUsageError(f"--chunks {arguments.chunks} needs --chunk-size, the {arguments.chunks}s of a chunk")
    if size < 1:
        raise BulkUsageError(f"--chunk-size must be at least 1, not {size}")
    if overlap is not None and not 0 <= overlap < size:
        raise BulkUsageError(f"--chunk-overlap must be from 0 to {size - 1}, less than --chunk-size, not {overlap}")
    return Chunking(arguments.chunks, size, overlap or 0, mode or "separate")
