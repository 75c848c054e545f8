"""Tensors as the Open Inference Protocol's binary extension sends them: behind the JSON of a body, little-endian.

An element of type BYTES is its length (4 bytes, unsigned) and then its bytes; numbers stand without gaps, the last axis
running fastest; a BOOL is one byte.

References
----------
The binary tensor data extension of the protocol, as Triton and KServe describe it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidRequestError

LENGTH_HEADER = "Inference-Header-Content-Length"
"""Of requests and answers: how many bytes of the body are JSON."""

LENGTH = struct.Struct("<I")
DECIMAL = re.compile(r"[0-9]{1,15}")  # more than any body has, and every JSON reader can hold the number

DATATYPES: Mapping[str, str] = {"float32": "FP32", "int32": "INT32", "bool": "BOOL"}
"""The protocol's names of the number types that we send."""


def split_body(body: bytes, lengths: Sequence[str]) -> tuple[bytes, memoryview]:
    """Cut a body into its JSON and what stands behind it.

    Parameters
    ----------
    body : bytes
    lengths : sequence of str
        Every value of the header :data:`LENGTH_HEADER`; without one, all of the body is JSON.

    Raises
    ------
    InvalidRequestError
        If the header is no number, stands there twice, or is more than the body has.
    """
    if not lengths:
        return body, memoryview(b"")
    if len(lengths) > 1 or not DECIMAL.fullmatch(lengths[0]):
        raise InvalidRequestError("should be one number of bytes", param=LENGTH_HEADER)
    length = int(lengths[0])
    if length > len(body):
        raise InvalidRequestError(
            f"says {length} bytes of JSON, the body has {len(body)} bytes in all",
            param=LENGTH_HEADER,
            limit=len(body),
            actual=length,
        )
    return body[:length], memoryview(body)[length:]


def decode_texts(section: memoryview, count: int, name: str) -> list[str]:
    """Read a tensor of type BYTES whose elements are texts in UTF-8.

    Parameters
    ----------
    section : memoryview
        The tensor's bytes, all of them.
    count : int
        How many elements its shape says.
    name : str
        Of the tensor, for errors: ``name[3]``.

    Raises
    ------
    InvalidRequestError
        If there are fewer or more elements, one is longer than what is left, or one is not UTF-8.
    """
    texts = []
    place = 0
    for index in range(count):
        param = f"{name}[{index}]"
        begin = place + LENGTH.size
        if begin > len(section):
            raise InvalidRequestError(
                f"the binary data ends before this element: shape says {count}", param=param, limit=count, actual=index
            )
        (size,) = LENGTH.unpack_from(section, place)
        left = len(section) - begin
        if size > left:
            raise InvalidRequestError(
                f"its length is {size} bytes, {left} are left", param=param, limit=left, actual=size
            )
        place = begin + size
        try:
            texts.append(str(section[begin:place], "utf-8"))
        except UnicodeDecodeError:
            raise InvalidRequestError("is not UTF-8", param=param) from None
    if place < len(section):
        raise InvalidRequestError(
            f"the binary data goes on for {len(section) - place} bytes behind the {count} elements that shape says",
            param=name,
            limit=place,
            actual=len(section),
        )
    return texts


def encode_array(array: NDArray[Any]) -> memoryview:
    """Return the bytes of an array of one of :data:`DATATYPES`; no copy where it has them already."""
    contiguous = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return contiguous.reshape(-1).view(np.uint8).data
