"""Tensors behind the JSON of a body: what a client writes is read, and nothing else."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidRequestError
from app.tensors import DATATYPES, LENGTH_HEADER, decode_texts, encode_array, split_body

MARKER = "MARKER7"
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)


def written(*elements: bytes) -> bytes:
    """Write a BYTES tensor as clients do."""
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


@given(st.lists(TEXT, max_size=20))
def test_texts_come_back(texts: list[str]) -> None:
    """Whatever is in them: every length, every code point that UTF-8 has, none at all."""
    section = written(*(text.encode() for text in texts))
    assert decode_texts(memoryview(section), len(texts), "text") == texts


@given(st.binary(max_size=60), st.integers(0, 6))
def test_garbage_is_refused_or_is_a_tensor(section: bytes, count: int) -> None:
    """Any bytes either are exactly so many texts, or an error with a place; no other exception, no text left out."""
    texts, place = None, None
    try:
        texts = decode_texts(memoryview(section), count, "text")
    except InvalidRequestError as error:
        place = error.param
    if texts is None:
        assert place in {"text", *(f"text[{index}]" for index in range(count))}
    else:
        assert written(*(text.encode() for text in texts)) == section
        assert len(texts) == count


@given(st.lists(TEXT, min_size=1, max_size=5), st.data())
def test_a_tensor_that_is_cut_is_refused(texts: list[str], data: st.DataObject) -> None:
    """At whatever byte it ends; and so is one with a byte too many."""
    section = written(*(text.encode() for text in texts))
    cut = data.draw(st.integers(0, len(section) - 1))
    with pytest.raises(InvalidRequestError):
        decode_texts(memoryview(section)[:cut], len(texts), "text")
    with pytest.raises(InvalidRequestError, match="goes on for 1 bytes"):
        decode_texts(memoryview(section + b"\0"), len(texts), "text")


@pytest.mark.parametrize(
    ("section", "count", "param", "words"),
    [
        (b"", 1, "text[0]", "ends before this element: shape says 1"),
        (written(b"a"), 2, "text[1]", "ends before this element: shape says 2"),
        (written(b"a") + b"\1\0\0", 2, "text[1]", "ends before this element"),
        (written(b"a") + struct.pack("<I", 5) + b"four", 2, "text[1]", "its length is 5 bytes, 4 are left"),
        (b"\xff\xff\xff\xff" + MARKER.encode(), 1, "text[0]", "its length is 4294967295 bytes, 7 are left"),
        (struct.pack(">I", 1) + b"a", 1, "text[0]", "its length is 16777216 bytes"),
        (written(b"a", b"b"), 1, "text", "goes on for 5 bytes behind the 1 elements"),
        (written(MARKER.encode() + b"\xff"), 1, "text[0]", "is not UTF-8"),
        (written(b"\xed\xa0\x80"), 1, "text[0]", "is not UTF-8"),
    ],
)
def test_errors_name_the_place(section: bytes, count: int, param: str, words: str) -> None:
    """The element, what it says and what there is; never what stands in it. A surrogate is no UTF-8 either."""
    with pytest.raises(InvalidRequestError, match=words.replace("[", r"\[")) as caught:
        decode_texts(memoryview(section), count, "text")
    assert caught.value.param == param
    assert MARKER not in caught.value.message


@given(st.binary(max_size=50), st.data())
def test_a_body_is_cut_where_the_header_says(body: bytes, data: st.DataObject) -> None:
    """The two parts are the body, and the first has that length."""
    length = data.draw(st.integers(0, len(body)))
    head, section = split_body(body, [str(length)])
    assert (len(head), head + bytes(section)) == (length, body)


def test_without_the_header_all_is_json() -> None:
    """As of a plain request."""
    head, section = split_body(b"{}", [])
    assert (head, bytes(section)) == (b"{}", b"")


@pytest.mark.parametrize(
    "lengths",
    [["3"], ["999999999999999"], ["9" * 400], ["-1"], [""], ["1.0"], ["+1"], ["0x1"], ["1_0"], ["²"], ["1", "1"]],
)
def test_a_wrong_length_is_refused(lengths: list[str]) -> None:
    """Over the body's, no decimal number, or said twice."""
    with pytest.raises(InvalidRequestError) as caught:
        split_body(b"{}", lengths)
    assert caught.value.param == LENGTH_HEADER


@pytest.mark.parametrize("dtype", DATATYPES)
def test_numbers_stand_little_endian_in_c_order(dtype: str) -> None:
    """As NumPy reads them back; also of an array that is no contiguous piece of memory."""
    array = np.arange(24).reshape(2, 3, 4).astype(dtype).transpose(2, 0, 1)
    sent = encode_array(array)
    assert sent.nbytes == array.size * array.itemsize
    np.testing.assert_array_equal(np.frombuffer(sent, np.dtype(dtype).newbyteorder("<")).reshape(4, 2, 3), array)
    assert bytes(encode_array(np.array([1], dtype=dtype)))[:1] == (b"\0" if dtype == "float32" else b"\1")


def test_big_endian_numbers_are_turned() -> None:
    """What is sent does not depend on how it lies in memory."""
    assert bytes(encode_array(np.array([1.5], dtype=">f4"))) == struct.pack("<f", 1.5)
