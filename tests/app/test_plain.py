"""What the compatible APIs ask for, and which texts were cut. The flows: tests/app/test_plain_flows.py."""

from __future__ import annotations

from typing import Any

import pytest

from app.errors import EmptyInputError, InvalidRequestError
from app.plain import MAX_LIST_CHARACTERS, PlainRequest, as_list, check, is_one, truncation_headers
from model.contract import EncodeInput


@pytest.mark.parametrize(
    ("sent", "texts", "one"),
    [
        ("a", ["a"], True),
        ("", [""], True),
        (["a"], ["a"], False),
        (["a", ""], ["a", ""], False),
        ([101, 7, 102], [[101, 7, 102]], True),
        ([[101, 102]], [[101, 102]], False),
        ([[1], "a", [2, 3]], [[1], "a", [2, 3]], False),
        ([[]], [[]], False),
        ([], [], False),
    ],
)
def test_a_flat_list_of_integers_is_one_text(sent: Any, texts: list[Any], one: bool) -> None:
    """Not a batch: https://github.com/huggingface/text-embeddings-inference/issues/273."""
    assert as_list(sent) == texts
    assert is_one(sent) is one


@pytest.mark.parametrize(
    ("texts", "param"),
    [([], "texts"), ([""], "texts[0]"), (["a", ""], "texts[1]"), (["a", [1], []], "texts[2]")],
)
def test_an_empty_text_is_named(texts: list[Any], param: str) -> None:
    """Wherever it stands; spaces are a text."""
    with pytest.raises(EmptyInputError) as refused:
        check(PlainRequest(texts))
    assert refused.value.param == param
    check(PlainRequest([" ", "a", [1]]))


@pytest.mark.parametrize("name", ["prompt_name", "prompt"])
def test_no_prompt_goes_before_token_ids(name: str) -> None:
    """It would have to be guessed where; before texts it does go."""
    fields: dict[str, Any] = {name: "query"}
    with pytest.raises(InvalidRequestError) as refused:
        check(PlainRequest(["a", [1]], **fields))
    assert refused.value.param == name
    check(PlainRequest(["a"], **fields))


@pytest.mark.parametrize(
    ("cut", "listed"),
    [((), None), ((0,), "0"), ((0, 1), "0-1"), ((0, 2, 3, 4, 6), "0,2-4,6"), ((5, 6), "5-6")],
)
def test_headers_name_the_texts_that_were_cut(cut: tuple[int, ...], listed: str | None) -> None:
    """By their places, runs as ranges; where none was cut there is no list."""
    inputs = [EncodeInput([1, 2], [0, 0], 3 if index in cut else 2) for index in range(7)]
    headers = truncation_headers(inputs)
    assert headers.pop("X-Truncated-Count") == str(len(cut))
    assert headers == ({} if listed is None else {"X-Truncated-Texts": listed})


def test_a_query_that_was_cut_is_said_of_every_text() -> None:
    """Each of them was compared with less than was sent; a whole query changes nothing."""
    inputs = [EncodeInput([1, 2], [0, 0], 2 + index) for index in range(3)]
    cut = truncation_headers(inputs, EncodeInput([1], [0], 2))
    assert cut == {"X-Truncated-Count": "3", "X-Truncated-Texts": "0-2"}
    assert truncation_headers(inputs, EncodeInput([1], [0], 1)) == truncation_headers(inputs)


def test_a_long_list_of_cut_texts_ends_early() -> None:
    """A header that proxies refuse would lose the whole answer; the count stays right."""
    inputs = [EncodeInput([1], [0], 1 + index % 2) for index in range(16_384)]
    headers = truncation_headers(inputs)
    assert headers["X-Truncated-Count"] == "8192"
    assert headers["X-Truncated-Texts"].startswith("1,3,5,")
    assert headers["X-Truncated-Texts"].endswith(",...")
    assert len(headers["X-Truncated-Texts"]) <= MAX_LIST_CHARACTERS + 10
