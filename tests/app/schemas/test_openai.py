"""The wire contract of OpenAI's embeddings. What comes of it: tests/app/routes/test_openai.py."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from app.plain import PlainRequest
from app.schemas.openai import OpenAIEmbeddingsRequest


def plain(**body: Any) -> PlainRequest:
    """What a body asks for, in the server's own words."""
    return OpenAIEmbeddingsRequest.model_validate_json(json.dumps(body)).plain()


def test_a_body_becomes_a_plain_request() -> None:
    """Each field has its place; vectors are always of unit length, long texts are cut at their end."""
    asked = plain(input=["a", "b"], model="m", dimensions=3, user="u", truncate=False, prompt="p", prompt_name="n")
    assert asked.texts == ["a", "b"]
    assert (asked.model, asked.dimensions, asked.truncate, asked.prompt, asked.prompt_name) == ("m", 3, False, "p", "n")
    assert (asked.normalize, asked.side, asked.token_states) == (True, "right", False)
    assert asked.rename("texts[1]") == "input[1]"


@pytest.mark.parametrize(("sent", "texts"), [("a", ["a"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])])
def test_the_four_forms_of_input(sent: Any, texts: list[Any]) -> None:
    """A text, ids, lists of ids; the list of texts is above."""
    assert plain(input=sent).texts == texts


@pytest.mark.parametrize("fields", [{"extra_field": 1}, {"normalize": True}, {"encoding_format": "hex"}])
def test_unknown_fields_are_refused(fields: dict[str, Any]) -> None:
    """A misspelt option never goes unnoticed."""
    with pytest.raises(ValidationError):
        plain(input="a", **fields)


def test_the_schema_says_that_nothing_may_be_empty() -> None:
    """Although the place that is empty is found elsewhere."""
    forms = OpenAIEmbeddingsRequest.model_json_schema()["properties"]["input"]["anyOf"]
    assert [form.get("minLength", form.get("minItems")) for form in forms] == [1, 1, 1, 1]
