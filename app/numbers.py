"""How arrays are written into JSON: rounded to significant digits, or as base64."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.contract import FloatArray


def round_significant(values: FloatArray, digits: int) -> FloatArray:
    """Round to so many significant digits: decimals would break the sums of long rows, digits do not.

    Returns
    -------
    array, same shape, float32
        The float32 nearest to the rounded number, which JSON then shows with those digits.
    """
    return round_wide(values, digits).astype(np.float32)


def round_wide(values: NDArray[np.floating[Any]], digits: int) -> NDArray[np.float64]:
    """Round to so many significant digits, in float64."""
    wide = values.astype(np.float64)
    with np.errstate(divide="ignore"):
        magnitude = np.floor(np.log10(np.abs(wide)))
    # numbers under 1e-290 do not come from float32; a zero has no magnitude and stays zero
    scale = 10.0 ** (digits - 1 - np.where(np.isfinite(magnitude), magnitude, 0.0))
    return np.round(wide * scale) / scale


def to_base64(array: NDArray[Any], dtype: str) -> str:
    """Write an array's bytes: little-endian, of this dtype, in C order."""
    return base64.b64encode(array.astype(np.dtype(dtype).newbyteorder("<")).tobytes()).decode("ascii")
