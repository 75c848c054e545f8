"""The wire contract of text-embeddings-inference. What comes of it: tests/app/routes/test_tei.py."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from app.plain import PlainRequest
from app.schemas.tei import (
    TeiDecodeRequest,
    TeiEmbedAllRequest,
    TeiEmbedRequest,
    TeiSimilarityRequest,
    TeiTokenizeRequest,
    ignored_fields,
)


def plain(schema: Any, **body: Any) -> PlainRequest:
    """What a body asks of the model ``m``, in the server's own words."""
    request: PlainRequest = schema.model_validate_json(json.dumps(body)).plain("m")
    assert request.model == "m"
    return request


def test_defaults_are_theirs() -> None:
    """Unit length, all dimensions; a long text is refused; the folder's default prompt."""
    asked = plain(TeiEmbedRequest, inputs="a")
    assert (asked.normalize, asked.dimensions, asked.truncate, asked.side) == (True, None, False, "right")
    assert (asked.prompt_name, asked.prompt, asked.token_states) == (None, None, False)


def test_each_field_has_its_place() -> None:
    """None is lost on the way."""
    fields = {"truncate": True, "truncation_direction": "Left", "prompt_name": "n", "normalize": False, "dimensions": 3}
    asked = plain(TeiEmbedRequest, inputs=["a", [5]], **fields)
    assert asked.texts == ["a", [5]]
    assert (asked.normalize, asked.dimensions, asked.truncate, asked.side) == (False, 3, True, "left")
    assert asked.prompt_name == "n"
    assert asked.rename("texts[1]") == "inputs[1]"
    assert plain(TeiEmbedAllRequest, inputs=[5, 6]).token_states
    assert plain(TeiEmbedAllRequest, inputs=[5, 6]).texts == [[5, 6]]
    assert plain(TeiDecodeRequest, ids=[[5], [6]]).texts == [[5], [6]]
    assert plain(TeiTokenizeRequest, inputs="a", prompt_name="n").prompt_name == "n"


def test_a_comparison_has_its_source_first() -> None:
    """And errors name both parts; without sentences there is nothing to compare."""
    inputs = {"source_sentence": "a", "sentences": ["b", "c"]}
    asked = plain(TeiSimilarityRequest, inputs=inputs, parameters={"truncate": True, "truncation_direction": "left"})
    assert asked.texts == ["a", "b", "c"]
    assert (asked.truncate, asked.side) == (True, "left")
    names = [asked.rename(param) for param in ("texts", "texts[0]", "texts[2]", "prompt_name")]
    assert names == ["inputs.sentences", "inputs.source_sentence", "inputs.sentences[1]", "prompt_name"]
    assert plain(TeiSimilarityRequest, inputs={"source_sentence": "a", "sentences": []}).texts == []
    assert plain(TeiSimilarityRequest, inputs=inputs, parameters=None).truncate is False


@pytest.mark.parametrize(
    "body",
    [{"inputs": [5, "a"]}, {"inputs": [True]}, {"inputs": 5}, {"inputs": "a", "normalize": 1}, {"inputs": [["a"]]}],
)
def test_nothing_is_coerced(body: dict[str, Any]) -> None:
    """As there: a number is no text, a 1 is no true, integers and texts do not mix."""
    with pytest.raises(ValidationError):
        TeiEmbedRequest.model_validate_json(json.dumps(body))


def test_unknown_fields_are_known_by_name() -> None:
    """At the top and inside of parameters and inputs."""
    body = {"inputs": {"source_sentence": "a", "sentences": ["b"], "x": 1}, "parameters": {"y": 1}, "z": 1}
    assert ignored_fields(TeiSimilarityRequest.model_validate(body)) == ["z", "inputs.x", "parameters.y"]
    assert ignored_fields(TeiEmbedRequest(inputs="a")) == []
