"""Errors name fields as the caller knows them."""

from __future__ import annotations

import pytest

from app.errors import ServiceError, TooManyTextsError
from app.naming import name_in_pairs, named, naming, shifted
from model.errors import InputError, TextTooLongError


@pytest.mark.parametrize(
    "error", [TooManyTextsError("many", param="texts[3]"), TextTooLongError("long", param="texts[3]")]
)
def test_errors_of_both_trees_are_renamed(error: ServiceError | InputError) -> None:
    """On their way out, and go on."""
    with pytest.raises(type(error)) as raised, naming(lambda param: param.upper()):
        raise error
    assert raised.value is error
    assert error.param == "TEXTS[3]"


def test_what_has_no_field_is_left_alone() -> None:
    """An error without a field, and one that is not ours."""
    with pytest.raises(TooManyTextsError) as raised, naming(str.upper):
        raise TooManyTextsError("many")
    assert raised.value.param is None
    with pytest.raises(KeyError), naming(str.upper):
        raise KeyError("texts")


def test_a_stretch_knows_its_place() -> None:
    """The third text of a stretch that begins at 10 is text 12; other fields stay."""
    assert shifted("texts[2]", by=10) == "texts[12]"
    assert shifted("texts", by=10) == "texts"
    assert shifted("prompt_name", by=10) == "prompt_name"


@pytest.mark.parametrize(
    ("param", "name"),
    [("texts", "pairs"), ("texts[0]", "pairs[0][0]"), ("texts[3]", "pairs[1][1]"), ("model", "model")],
)
def test_texts_of_pairs(param: str, name: str) -> None:
    """They run one after the other, and are named two by two."""
    assert name_in_pairs(param) == name


@pytest.mark.parametrize(
    ("param", "as_one", "as_many"),
    [
        ("texts", "input", "input"),
        ("texts[0]", "input", "input[0]"),
        ("texts[3]", "input[3]", "input[3]"),
        ("dimensions", "dimensions", "dimensions"),
    ],
)
def test_texts_have_the_callers_name(param: str, as_one: str, as_many: str) -> None:
    """A field that holds one text is named as a whole."""
    assert named("input", is_list=False)(param) == as_one
    assert named("input", is_list=True)(param) == as_many
