"""What the bodies of several routes are made of."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from app.schemas.body import MAX_INTEGER, MAX_PROMPT_CHARACTERS, Body, Dimensions, Index, TextOptions


class Numbers(BaseModel):
    index: Index
    dimensions: Dimensions


def test_a_body_takes_what_it_names_and_nothing_else() -> None:
    """Neither an unknown field nor a value of another type, however near."""
    assert TextOptions.model_validate_json("{}") == TextOptions()
    for sent in ('{"truncated":true}', '{"truncate":1}', '{"truncate":"true"}', '{"model":3}'):
        with pytest.raises(ValidationError):
            TextOptions.model_validate_json(sent)
    assert issubclass(TextOptions, Body)


def test_numbers_fit_every_reader() -> None:
    """32 bits; there is no embedding of no dimensions."""
    assert Numbers(index=-MAX_INTEGER - 1, dimensions=MAX_INTEGER).index == -(2**31)
    for index, dimensions in ((2**31, 1), (0, 0), (0, 2**31)):
        with pytest.raises(ValidationError):
            Numbers(index=index, dimensions=dimensions)


def test_a_prompt_has_an_end() -> None:
    """It is put before every text."""
    TextOptions(prompt="a" * MAX_PROMPT_CHARACTERS)
    with pytest.raises(ValidationError):
        TextOptions(prompt="a" * (MAX_PROMPT_CHARACTERS + 1))
