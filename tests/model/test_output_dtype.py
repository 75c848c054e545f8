"""Claims about the number types of embeddings, against numpy and the definitions."""

from __future__ import annotations

import numpy as np
import pytest

from model.contract import FloatArray
from model.errors import OutputDtypeError
from model.output_dtype import NUMPY_DTYPES, check_output_dtype, convert, int8_range, num_clipped, num_values
from model.output_types import OutputDtype

DRAW = np.random.default_rng(0)


def unit_vectors(count: int = 50, dimensions: int = 64) -> FloatArray:
    """Random directions."""
    vectors = DRAW.standard_normal((count, dimensions)).astype(np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


@pytest.mark.parametrize("output_dtype", NUMPY_DTYPES)
def test_every_type_has_its_numpy_type_and_length(output_dtype: OutputDtype) -> None:
    """What comes out is what the tables promise to whoever writes headers before there is a row."""
    converted = convert(unit_vectors(), output_dtype)
    assert converted.dtype == np.dtype(NUMPY_DTYPES[output_dtype])
    assert converted.shape == (50, num_values(64, output_dtype))
    assert converted.flags.c_contiguous


@pytest.mark.parametrize("output_dtype", NUMPY_DTYPES)
def test_a_row_does_not_depend_on_its_neighbours(output_dtype: OutputDtype) -> None:
    """Alone and beside numbers a thousand times larger a row is the same, bit for bit."""
    vectors = unit_vectors()
    vectors[1:] *= 1000
    np.testing.assert_array_equal(convert(vectors, output_dtype)[:1], convert(vectors[:1], output_dtype))


def test_float32_is_left_alone() -> None:
    """The default costs nothing and changes nothing."""
    vectors = unit_vectors()
    assert convert(vectors, "float32") is vectors


def test_bits_are_those_of_packbits() -> None:
    """Type ubinary is numpy's packing of the signs, zero counting as not above zero; binary is that minus 128."""
    vectors = unit_vectors()
    vectors[0, :4] = [0.0, -0.0, 1e-30, -1e-30]
    bits = np.packbits(vectors > 0, axis=-1)
    np.testing.assert_array_equal(convert(vectors, "ubinary"), bits)
    np.testing.assert_array_equal(convert(vectors, "binary").astype(int), bits.astype(int) - 128)
    by_hand = [int("".join("1" if x > 0 else "0" for x in vectors[0, i : i + 8]), 2) for i in range(0, 64, 8)]
    assert convert(vectors, "ubinary")[0].tolist() == by_hand


def test_int8_rounds_within_the_range() -> None:
    """Every number is told to within half a step; zero is 0, so that a product of two rows is a cosine, scaled."""
    vectors = unit_vectors(200, 384)
    vectors[0, 0] = 0
    converted, step = convert(vectors, "int8"), int8_range(384) / 127
    assert converted[0, 0] == 0
    assert num_clipped(vectors).sum() == 0
    np.testing.assert_allclose(converted * step, vectors, atol=step / 2 * 1.001, rtol=0)
    cosines = vectors @ vectors.T
    np.testing.assert_allclose((converted.astype(int) @ converted.T.astype(int)) * step**2, cosines, atol=0.005)


def test_uint8_is_int8_plus_128() -> None:
    """The two hold the same."""
    vectors = unit_vectors()
    np.testing.assert_array_equal(convert(vectors, "uint8").astype(int), convert(vectors, "int8").astype(int) + 128)


def test_what_is_beyond_the_range_is_clipped_and_counted() -> None:
    """A number beyond the range becomes its end, of either sign, and its row says how many there were."""
    vectors = np.zeros((3, 100), np.float32)
    vectors[1, :2] = [0.8, -0.6]  # the range of 100 dimensions is 0.6
    vectors[2, 0] = -1
    assert int8_range(100) == pytest.approx(0.6)
    assert convert(vectors, "int8")[:, :2].tolist() == [[0, 0], [127, -127], [-127, 0]]
    assert num_clipped(vectors).tolist() == [0, 1, 1]


@pytest.mark.parametrize("dimensions", [1, 8, 36])
def test_a_short_vector_is_never_clipped(dimensions: int) -> None:
    """No number of a unit vector is over 1, so the range never is."""
    assert int8_range(dimensions) == 1


@pytest.mark.parametrize("output_dtype", ["binary", "ubinary"])
def test_bits_fill_whole_numbers(output_dtype: OutputDtype) -> None:
    """Twelve dimensions are a number and a half: refused, with the numbers."""
    check_output_dtype(output_dtype, 16, normalize=False)
    with pytest.raises(OutputDtypeError, match="12 dimensions are no multiple of 8: 4 would be left over") as caught:
        check_output_dtype(output_dtype, 12, normalize=True)
    assert (caught.value.param, caught.value.limit, caught.value.actual) == ("output_dtype", 8, 12)


@pytest.mark.parametrize("output_dtype", ["int8", "uint8"])
def test_a_range_needs_unit_length(output_dtype: OutputDtype) -> None:
    """Nobody knows the range of vectors of any length, so it is not guessed."""
    check_output_dtype(output_dtype, 12, normalize=True)
    with pytest.raises(OutputDtypeError, match="needs normalize true"):
        check_output_dtype(output_dtype, 12, normalize=False)


@pytest.mark.parametrize("output_dtype", ["float32", "float16"])
def test_floats_take_anything(output_dtype: OutputDtype) -> None:
    """Any length, any number of dimensions."""
    check_output_dtype(output_dtype, 3, normalize=False)


def test_float16_never_becomes_infinite() -> None:
    """A number that float16 has no room for is an error that names the text, the limit and the number."""
    vectors = np.array([[1.0, 2.0], [-70_000.0, 0.0]], np.float32)
    with pytest.raises(OutputDtypeError, match="up to 65504, and an embedding has one of 70000") as caught:
        convert(vectors, "float16")
    assert caught.value.param == "texts[1]"
    np.testing.assert_array_equal(convert(vectors[:1], "float16"), vectors[:1])
