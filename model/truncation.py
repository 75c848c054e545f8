"""Which tokens of a text that is too long stay."""

from __future__ import annotations

from typing import Literal

import tokenizers

Side = Literal["left", "right"]
"""Where a text that is too long loses tokens: at its beginning, or (as nearly everywhere) at its end."""


def cut(encoding: tokenizers.Encoding, length: int, side: Side = "right") -> None:
    """Keep ``length`` tokens of an encoding: the first ones, or with ``side`` "left" the last ones.

    Notes
    -----
    The backend keeps what it cuts off as further pieces of that length, and joins every piece of one text of a pair
    with every piece of the other: gigabytes, for long texts. A cut forgets the pieces of the cut before it, so that
    the second cut here leaves one piece of one token.
    """
    encoding.truncate(length + 1, direction=side)
    encoding.truncate(length, direction=side)


def cut_ids(ids: list[int], length: int, side: Side = "right") -> list[int]:
    """Return the first ``length`` ids, or with ``side`` "left" the last ones; a list of its own."""
    return ids[:length] if side == "right" else ids[max(0, len(ids) - length) :]


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Share ``room`` tokens between two texts: the longer one gives until both are of one length.

    Returns
    -------
    tuple of int
        Tokens kept of the first and of the second text.
    """
    if first + second <= room:
        return first, second
    shorter = min(first, second, room // 2)
    return (room - shorter, shorter) if first > second else (shorter, room - shorter)
