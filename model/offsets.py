"""Offsets into a text in the unit a caller slices by: Python counts code points, JavaScript UTF-16 units, Go bytes."""

from __future__ import annotations

from typing import Literal

import numpy as np

OffsetUnit = Literal["codepoint", "utf16", "byte"]


def convert_offsets(text: str, offsets: list[int], unit: OffsetUnit) -> list[int]:
    """Count in another unit what was counted in code points.

    Parameters
    ----------
    text : str
    offsets : list of int
        Code points from the start of ``text``, 0 to its length.
    unit : "codepoint", "utf16" or "byte"
        UTF-16 units, or bytes of UTF-8.

    Returns
    -------
    list of int
        Linear in the part of the text that the offsets reach, not in their number times its length.
    """
    if unit == "codepoint" or text.isascii():
        return offsets
    reached = text[: max(offsets, default=0)]
    points = np.frombuffer(reached.encode("utf-32-le"), dtype="<u4")
    sizes = 1 + (points > 0xFFFF).astype(np.int64)
    if unit == "byte":
        sizes += (points > 0x7F).astype(np.int64) + (points > 0x7FF)  # 4 bytes are the 2 above and these 2
    before = np.concatenate([[0], sizes.cumsum()])
    return [int(offset) for offset in before[offsets]]
