"""How numbers are written: significant digits, and bytes."""

from __future__ import annotations

import base64
from decimal import Decimal

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.numbers import round_significant, round_wide, to_base64

WEIGHTS = st.floats(min_value=0, max_value=1, width=32, allow_subnormal=False)


@given(st.lists(WEIGHTS, min_size=1, max_size=20), st.integers(1, 9))
def test_rounding_is_decimal_rounding(values: list[float], digits: int) -> None:
    """Every weight becomes a float32 nearest to a decimal of so many digits, no further away than half of its last."""
    rounded = round_significant(np.array(values, dtype=np.float32), digits)
    assert rounded.dtype == np.float32
    for value, result in zip(values, rounded, strict=True):
        assert np.float32(f"{result:.{digits - 1}e}") == result
        half_a_step = Decimal(5).scaleb(Decimal(value).adjusted() - digits) if value else Decimal(0)
        float_rounding = Decimal(value) * Decimal(2) ** -23
        assert abs(Decimal(float(result)) - Decimal(value)) <= half_a_step + float_rounding


@given(WEIGHTS, st.integers(1, 6))
def test_json_shows_no_more_digits(value: float, digits: int) -> None:
    """What orjson writes of a rounded weight has at most the digits asked."""
    text = orjson.dumps(round_significant(np.array([value], np.float32), digits), option=orjson.OPT_SERIALIZE_NUMPY)
    mantissa = text.decode().strip("[]").lower().partition("e")[0].replace(".", "").lstrip("0").rstrip("0")
    assert len(mantissa) <= digits


def test_zero_stays_zero() -> None:
    """A weight that underflowed has no magnitude to round to, and no warning comes of it."""
    values = np.array([0.0, 1.0, 1e-38, 0.33333334], dtype=np.float32)
    np.testing.assert_array_equal(round_significant(values, 2), np.array([0, 1, 1e-38, 0.33], dtype=np.float32))


def test_rows_of_any_length_still_sum_to_one() -> None:
    """Four significant digits keep the sum of a long row within 1e-4, where four decimals would lose it whole."""
    row = np.full((1, 512), 1 / 512, dtype=np.float32)
    assert round_significant(row, 4).sum() == pytest.approx(1, abs=1e-4)
    assert np.round(row, 2).sum() == 0


def test_wide_numbers_keep_nine_digits() -> None:
    """What is rounded in float64 has all the digits asked, which float32 could not hold."""
    assert round_wide(np.array([0.123456789123, -1.5e-7]), 9).tolist() == [0.123456789, -1.5e-7]


@pytest.mark.parametrize(("dtype", "size"), [("float16", 2), ("float32", 4), ("int32", 4)])
def test_base64_is_little_endian_in_c_order(dtype: str, size: int) -> None:
    """The bytes are those of the numbers one after the other, whatever the array's own order and type."""
    array = np.asfortranarray(np.arange(6).reshape(2, 3), dtype=">f8")
    raw = base64.b64decode(to_base64(array, dtype), validate=True)
    assert len(raw) == 6 * size
    assert np.frombuffer(raw, np.dtype(dtype).newbyteorder("<")).tolist() == [0, 1, 2, 3, 4, 5]
