"""Texts out of a tensor, and the limits of attention that is padded."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from app.errors import AttentionTooLargeError, InvalidRequestError, TooManyTextsError
from app.limits import Limits
from app.oip_flow import check_padded, infer, read_texts
from app.schemas.oip import OIPInferRequest
from model.contract import AttentionSelection
from tests.app.conftest import Served

LIMITS = Limits(
    max_texts=3,
    max_text_characters=100,
    max_attention_values_list=1_000,
    max_attention_values_binary=4_000,
    max_attention_values_computed=5_000,
)
SELECTION = AttentionSelection((0, 1), (0, 1))


def read(section: bytes = b"", **fields: Any) -> list[str]:
    """Read the texts of a body."""
    item = {"name": "text", "datatype": "BYTES", **fields}
    return read_texts(OIPInferRequest.model_validate({"inputs": [item]}), memoryview(section), LIMITS)


def written(*texts: str) -> bytes:
    """A BYTES tensor."""
    return b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)


@pytest.mark.parametrize(
    ("shape", "data"),
    [([2], ["a", ""]), ([2, 1], ["a", ""]), ([2, 1], [["a"], [""]])],
)
def test_texts_in_json_are_flat_or_nested(shape: list[int], data: Any) -> None:
    """As the protocol allows; an empty one is a text."""
    assert read(shape=shape, data=data) == ["a", ""]


@pytest.mark.parametrize("shape", [[2], [2, 1]])
def test_texts_behind_the_json(shape: list[int]) -> None:
    """In as many bytes as are said; data may then be null, as KServe's client writes it."""
    section = written("ä", "")
    assert read(section, shape=shape, parameters={"binary_data_size": len(section)}, data=None) == ["ä", ""]


@pytest.mark.parametrize(
    ("section", "fields", "param"),
    [
        (b"", {"shape": [2], "data": ["a"]}, "inputs[0].data"),
        (b"", {"shape": [1], "data": ["a", "b"]}, "inputs[0].data"),
        (b"", {"shape": [1], "data": []}, "inputs[0].data"),
        (b"", {"shape": [1, 2], "data": ["a", "b"]}, "inputs[0].shape"),
        (b"", {"shape": [2], "data": [["a"], ["b"]]}, "inputs[0].data[0]"),
        (b"", {"shape": [2, 1], "data": [["a"], "b"]}, "inputs[0].data[1]"),
        (b"", {"shape": [2, 1], "data": ["a", ["b"]]}, "inputs[0].data[1]"),
        (b"", {"shape": [2, 1], "data": [["a"], ["b", "c"]]}, "inputs[0].data[1]"),
        (b"", {"shape": [1, 1], "data": [[]]}, "inputs[0].data[0]"),
        (b"", {"shape": [1]}, "inputs[0]"),
        (written("a"), {"shape": [1], "data": ["a"], "parameters": {"binary_data_size": 5}}, "inputs[0]"),
        (b"", {"shape": [1], "parameters": {"binary_data_size": 5}}, "inputs[0].parameters.binary_data_size"),
        (written("ab"), {"shape": [1], "parameters": {"binary_data_size": 5}}, "inputs[0].parameters.binary_data_size"),
        (b"rest", {"shape": [1], "data": ["a"]}, "inputs[0].parameters.binary_data_size"),
        (written("a"), {"shape": [2], "parameters": {"binary_data_size": 5}}, "text[1]"),
        (written("a", "b"), {"shape": [1], "parameters": {"binary_data_size": 10}}, "text"),
    ],
)
def test_parts_that_do_not_agree_are_refused(section: bytes, fields: dict[str, Any], param: str) -> None:
    """Shape, data, sizes and what really stands there; the error says where."""
    with pytest.raises(InvalidRequestError) as caught:
        read(section, **fields)
    assert caught.value.param == param


@pytest.mark.parametrize("section", [b"", b"\0" * 16])
def test_too_many_texts_are_refused_before_they_are_read(section: bytes) -> None:
    """By what shape says; so a body of millions of empty elements costs nothing."""
    fields: dict[str, Any] = {"parameters": {"binary_data_size": 16}} if section else {"data": ["a"] * 4}
    with pytest.raises(TooManyTextsError) as caught:
        read(section, shape=[4], **fields)
    assert (caught.value.param, caught.value.limit, caught.value.actual) == ("text", 3, 4)


def test_attention_that_fits_passes() -> None:
    """Exactly at each limit: 4 maps of 5 x 5 for ten texts in JSON, four times that behind it."""
    check_padded(SELECTION, [5] * 10, LIMITS, as_list=True)
    check_padded(SELECTION, [10] * 10, LIMITS, as_list=False)
    check_padded(SELECTION, [1] * 9 + [5], LIMITS, as_list=True)


def test_padding_counts() -> None:
    """One long text makes every text's maps as large: that is what is sent, and held."""
    with pytest.raises(AttentionTooLargeError) as caught:
        check_padded(SELECTION, [2] * 10 + [6], LIMITS, as_list=True)
    error = caught.value
    assert (error.param, error.limit, error.actual) == ("attention", 1_000, 4 * 36 * 11)
    assert error.message == (
        "padded to the longest text, the maps have 1584 values, this form may hold 1000: "
        "binary_data=true (which may hold 4000) gives 1584; layers=1 gives 792; heads=0 gives 792; "
        "the longest text alone gives 144"
    )


def test_only_what_would_fit_is_proposed() -> None:
    """A way out that ends at the next limit is none."""
    with pytest.raises(AttentionTooLargeError) as caught:
        check_padded(SELECTION, [50, 2], LIMITS, as_list=False)
    assert caught.value.limit == LIMITS.max_attention_values_computed
    assert "computed: send fewer or shorter texts" in caught.value.message
    with pytest.raises(AttentionTooLargeError) as caught:
        check_padded(SELECTION, [30], LIMITS, as_list=True)
    assert caught.value.message.endswith("hold 1000: binary_data=true (which may hold 4000) gives 3600")


def test_what_is_computed_counts_by_true_lengths() -> None:
    """The padding of an answer is never computed."""
    tight = replace(LIMITS, max_attention_values_computed=4 * (50 + 25), max_attention_values_binary=10_000)
    check_padded(SELECTION, [5, 7, 1], tight, as_list=False)
    with pytest.raises(AttentionTooLargeError, match=r"may have 300 computed: .*heads=0 gives 158") as caught:
        check_padded(SELECTION, [5, 7, 2, 1], tight, as_list=False)
    assert caught.value.actual == 4 * (25 + 49 + 4 + 1)


@pytest.mark.anyio
async def test_maps_are_computed_only_when_asked_for(server: Served) -> None:
    """A request without attention pays for none."""
    item = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}
    assert server.state.service is not None
    for outputs, expected in (([], False), ([{"name": "attention"}], True)):
        body = OIPInferRequest.model_validate({"inputs": [item], "outputs": outputs})
        encoded = await infer(server.state.service, body, ["a"], "tiny", route="/v2/models/{name}/infer")
        assert (encoded.rows[0].maps is not None) == expected
        assert encoded.embeddings.shape == (1, 16)
