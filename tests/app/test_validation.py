"""Pydantic's findings become one sentence about one field, without the caller's input."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from app.errors import InvalidRequestError
from app.validation import from_validation


class Attention(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    layers: list[int] | Literal["all"] = "all"
    top_k: Annotated[int, Field(ge=1, le=5)] | None = None


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    texts: str | Annotated[list[str | list[str]], Field(min_length=1, max_length=3)]
    attention: Attention | None = None
    dimensions: int | None = None

    @model_validator(mode="after")
    def refuse_both(self) -> Body:
        if self.dimensions is not None and self.attention is not None:
            raise ValueError("dimensions and attention exclude each other")
        return self


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


def finding_of(value: object, schema: type[BaseModel] = Body) -> InvalidRequestError:
    """Validate what cannot be valid, and return the error made of the findings."""
    with pytest.raises(ValidationError) as caught:
        schema.model_validate(value)
    return from_validation(caught.value)


@pytest.mark.parametrize(
    ("value", "param", "message"),
    [
        ({}, "texts", "texts: is required"),
        ({"texts": 5}, "texts", "texts: should be a valid string or a valid list"),
        ({"texts": ["a", 3]}, "texts[1]", "texts[1]: should be a valid string or a valid list"),
        ({"texts": ["a", ["b", 3]]}, "texts[1][1]", "texts[1][1]: should be a valid string"),
        ({"texts": "a", "attention": 1}, "attention", "attention: should be an object"),
        (
            {"texts": "a", "attention": {"layers": ["x"]}},
            "attention.layers[0]",
            "attention.layers[0]: should be a valid integer",
        ),
        (
            {"texts": "a", "attention": {"layers": 1}},
            "attention.layers",
            "attention.layers: should be a valid list or 'all'",
        ),
        ({"texts": "a", "dimension": 3}, "dimension", "dimension: is not a field of this request"),
        ([], None, "the body: should be an object"),
        (
            {"texts": "a", "dimensions": 3, "attention": {}},
            None,
            "the body: dimensions and attention exclude each other",
        ),
    ],
)
def test_a_finding_in_the_words_of_the_wire(value: object, param: str | None, message: str) -> None:
    """Param is spelled as the wire spells it, without pydantic's union branches, and the message names it."""
    error = finding_of(value)
    assert (error.param, error.message) == (param, message)


@pytest.mark.parametrize(
    ("value", "param", "limit", "actual"),
    [
        ({"texts": ["a"] * 7}, "texts", 3, 7),
        ({"texts": []}, "texts", 1, 0),
        ({"texts": "a", "attention": {"top_k": 9}}, "attention.top_k", 5, None),
        ({"texts": "a", "attention": {"top_k": 0}}, "attention.top_k", 1, None),
    ],
)
def test_a_limit_is_a_number(value: object, param: str, limit: int, actual: int | None) -> None:
    """A broken limit is in the answer as a number, and beside other branches of a union it is what counts."""
    error = finding_of(value)
    assert (error.param, error.limit, error.actual) == (param, limit, actual)
    assert str(limit) in error.message
    assert "string" not in error.message
    assert "validation" not in error.message


def test_the_first_field_at_fault_is_named() -> None:
    """With several fields at fault, the answer is about the first, even where another's finding is deeper."""
    assert finding_of({"texts": 5, "attention": {"layers": ["x"]}}).param == "texts"


def test_a_name_of_the_caller_is_cut_and_cleaned() -> None:
    """Of a field name that the caller made up, 64 characters at most are repeated, and only printable ones."""
    error = finding_of({"texts": "a", "a\n\x1b\u202e" + "b" * 100: 1})
    assert error.param == "a" + "b" * 60
    assert error.message.isprintable()


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (Annotated[Cat | Dog, Field(discriminator="kind")], {"kind": "SECRET"}),
        (dict[str, int], {"SECRET" * 20: "SECRET"}),
        (dict[str, int], {"secret" * 20: "SECRET"}),
        (int, "SECRET"),
        (Literal["a", "b"], "SECRET"),
    ],
    ids=["union tag", "dictionary key", "long dictionary key", "number", "choice"],
)
def test_the_value_is_never_in_the_message(schema: Any, value: object) -> None:
    """No kind of finding quotes the value, not even where pydantic's own message does."""
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(schema).validate_python(value)
    error = from_validation(caught.value)
    assert "secret" not in error.message.lower()
    assert "secret" not in (error.param or "").lower()


def test_a_parsers_complaint_is_not_passed_on() -> None:
    """A parser says which character of the value stopped it, so its words are replaced."""
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(UUID).validate_python("SECRET")
    assert from_validation(caught.value).message == "the body: is not valid"


def test_a_list_of_errors_is_taken_too() -> None:
    """Findings may come as the plain list that FastAPI keeps; two branches with one complaint make one."""
    finding = {"type": "int_type", "loc": ("texts", 3), "msg": "Input should be a valid integer"}
    assert from_validation([finding, finding]).message == "texts[3]: should be a valid integer"
