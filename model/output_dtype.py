"""The number type of embeddings as they are sent or stored: narrower than what the model computes in, or packed bits.

Of the numbers that come out, never of the weights. What becomes of a row depends on that row alone: no range is taken
from the texts that happen to be there.

=================  ====================================================================================================
float32, float16   the numbers themselves
int8               round(127 x / r), -127 to 127; r is :func:`int8_range`, the same for every text and dimension
uint8              the same plus 128, 1 to 255
ubinary            a bit a dimension, 1 where x > 0, eight of them in a uint8, the first in the highest bit
binary             the same minus 128, as int8
=================  ====================================================================================================

References
----------
Binary types as ``quantize_embeddings`` of sentence-transformers packs them, and Cohere's and Voyage's APIs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.contract import FloatArray
from model.errors import OutputDtypeError
from model.output_types import OutputDtype

NUMPY_DTYPES: dict[OutputDtype, str] = {
    "float32": "<f4",
    "float16": "<f2",
    "int8": "|i1",
    "uint8": "|u1",
    "binary": "|i1",
    "ubinary": "|u1",
}
"""As numpy writes them into files: little-endian."""

RANGED: frozenset[OutputDtype] = frozenset({"int8", "uint8"})
PACKED: frozenset[OutputDtype] = frozenset({"binary", "ubinary"})

BITS = 8
"""Dimensions in a number of a packed type."""

INT8_SPREAD = 6.0
"""The range in standard deviations: the numbers of a unit vector of D have 1 / sqrt(D). Of 384,000 numbers of each of
three models the largest was 5.35."""

_MAX_INT8 = 127
_ZERO_UINT8 = 128


def int8_range(dimensions: int) -> float:
    """Return r, up to which int8 and uint8 tell the numbers of a unit vector apart; what is beyond is clipped to it."""
    return min(1.0, INT8_SPREAD / math.sqrt(dimensions))


def num_values(dimensions: int, output_dtype: OutputDtype) -> int:
    """Count the numbers that an embedding takes."""
    return dimensions // BITS if output_dtype in PACKED else dimensions


def check_output_dtype(output_dtype: OutputDtype, dimensions: int, *, normalize: bool) -> None:
    """Refuse a type that has no meaning for embeddings of this kind.

    Raises
    ------
    OutputDtypeError
        If bits do not fill whole numbers, or the range of int8 is not that of the embeddings.
    """
    if output_dtype in PACKED and dimensions % BITS:
        raise OutputDtypeError(
            f"{output_dtype} packs {BITS} dimensions into a number, and {dimensions} dimensions are no multiple of "
            f"{BITS}: {dimensions % BITS} would be left over",
            param="output_dtype",
            limit=BITS,
            actual=dimensions,
        )
    if output_dtype in RANGED and not normalize:
        raise OutputDtypeError(
            f"{output_dtype} has a range that is that of unit vectors: it needs normalize true", param="output_dtype"
        )


def convert(embeddings: FloatArray, output_dtype: OutputDtype) -> NDArray[Any]:
    """Turn embeddings into another number type.

    Parameters
    ----------
    embeddings : array, shape (n, D), float32
        Finite; of unit length for int8 and uint8.
    output_dtype : OutputDtype
        One that :func:`check_output_dtype` takes.

    Returns
    -------
    array, shape (n, D), or (n, D / 8) of a packed type, C-contiguous

    Raises
    ------
    OutputDtypeError
        If a number is too large for float16.
    """
    if output_dtype == "float32":
        return np.ascontiguousarray(embeddings)
    if output_dtype == "float16":
        return _as_float16(embeddings)
    if output_dtype in RANGED:
        scaled = np.rint(embeddings * (_MAX_INT8 / int8_range(embeddings.shape[1])))
        levels: NDArray[np.int16] = np.clip(scaled, -_MAX_INT8, _MAX_INT8).astype(np.int16)
        return levels.astype(np.int8) if output_dtype == "int8" else (levels + _ZERO_UINT8).astype(np.uint8)
    packed = np.packbits(embeddings > 0, axis=1)
    return packed if output_dtype == "ubinary" else (packed.astype(np.int16) - _ZERO_UINT8).astype(np.int8)


def num_clipped(embeddings: FloatArray) -> NDArray[np.int64]:
    """Count the numbers of each embedding that lie beyond :func:`int8_range`: (n, D) -> (n,)."""
    beyond = np.abs(embeddings) > int8_range(embeddings.shape[1])
    return np.asarray(beyond.sum(axis=1), dtype=np.int64)


def _as_float16(embeddings: FloatArray) -> NDArray[np.float16]:
    """Round to float16; a number that would become infinite is an error."""
    with np.errstate(over="ignore"):
        rounded = embeddings.astype(np.float16)
    for index in np.flatnonzero(~np.isfinite(rounded).all(axis=1))[:1]:
        raise OutputDtypeError(
            f"float16 holds numbers up to {np.finfo(np.float16).max:.0f}, and an embedding has one of "
            f"{np.abs(embeddings[index]).max():.0f}: set normalize to true, or ask for float32",
            param=f"texts[{index}]",
        )
    return rounded
