"""The wire contract of the native API: defaults, strictness, nothing unknown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from app.schemas.body import MAX_PROMPT_CHARACTERS
from app.schemas.encode import AttentionOptions, EncodeRequest, TokenizeRequest

REQUESTS: tuple[type[BaseModel], ...] = (EncodeRequest, TokenizeRequest)

DOCUMENTED: dict[str, Any] = {
    "texts": ["The cat sat.", "A dog barked."],
    "model": None,
    "normalize": True,
    "dimensions": None,
    "truncate": True,
    "prompt_name": None,
    "prompt": None,
    "output_dtype": "float32",
    "encoding_format": "float",
    "attention": {
        "items": None,
        "layers": [-1],
        "heads": "all",
        "reduce_heads": None,
        "unit": "token",
        "special": "keep",
        "rollout": None,
        "top_k": None,
        "min_weight": 0,
        "maps": True,
        "stats": False,
        "dtype": "float16",
        "encoding": "list",
        "digits": 4,
        "offset_unit": "codepoint",
    },
    "chunks": None,
}
"""The body as the documentation prints it: every field at its default."""


def test_the_documented_body_is_the_default() -> None:
    """Every documented field exists, and leaving it out means what is documented."""
    whole = EncodeRequest.model_validate_json(json.dumps(DOCUMENTED))
    short = EncodeRequest.model_validate_json(json.dumps({"texts": DOCUMENTED["texts"], "attention": {}}))
    assert whole == short
    assert whole.model_dump() == DOCUMENTED
    assert set(EncodeRequest.model_fields) == set(DOCUMENTED)
    assert set(AttentionOptions.model_fields) == set(DOCUMENTED["attention"])


def test_no_attention_by_default() -> None:
    """Maps cost time: they come only where they are asked for."""
    assert EncodeRequest.model_validate_json('{"texts":"a"}').attention is None


@pytest.mark.parametrize("schema", REQUESTS)
def test_nothing_unknown_is_accepted(schema: type[BaseModel]) -> None:
    """A misspelt field is an error, not a silent default."""
    with pytest.raises(ValidationError, match="extra_forbidden"):
        schema.model_validate_json('{"texts":["a"],"normalise":true}')


@pytest.mark.parametrize("schema", REQUESTS)
@pytest.mark.parametrize("fields", [{"truncate": 1}, {"truncate": "yes"}, {"model": 5}, {"prompt": ["a"]}])
def test_nothing_is_coerced(schema: type[BaseModel], fields: dict[str, Any]) -> None:
    """A number is no switch and no name."""
    with pytest.raises(ValidationError):
        schema.model_validate_json(json.dumps({"texts": ["a"], **fields}))


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "1.001", "-0.1", '"0"', "true"])
def test_min_weight_is_a_weight(value: str) -> None:
    """From 0 to 1: not even NaN, which compares with nothing, slips through."""
    with pytest.raises(ValidationError):
        AttentionOptions.model_validate_json(f'{{"min_weight":{value}}}')


@pytest.mark.parametrize("value", ["0", "0.0", "1", "0.25"])
def test_a_weight_may_be_written_as_an_integer(value: str) -> None:
    """However it is written."""
    assert AttentionOptions.model_validate_json(f'{{"min_weight":{value}}}').min_weight == float(value)


def test_a_rollout_has_defaults_of_its_own() -> None:
    """An empty object is the usual rollout; its fields are as strict as the others."""
    rollout = AttentionOptions.model_validate_json('{"rollout":{}}').rollout
    assert rollout is not None
    assert rollout.model_dump() == {"residual": 0.5, "heads": "mean", "from_layer": 0}
    for wrong in ('{"residual":NaN}', '{"residual":-0.1}', '{"heads":null}', '{"from_layer":0.0}', '{"layers":[0]}'):
        with pytest.raises(ValidationError):
            AttentionOptions.model_validate_json(f'{{"rollout":{wrong}}}')


@pytest.mark.parametrize(("length", "is_accepted"), [(MAX_PROMPT_CHARACTERS, True), (MAX_PROMPT_CHARACTERS + 1, False)])
def test_a_prompt_has_a_limit(length: int, is_accepted: bool) -> None:
    """A prompt stands before every text, so that its length multiplies."""
    body = json.dumps({"texts": ["a"], "prompt": "p" * length})
    if is_accepted:
        assert EncodeRequest.model_validate_json(body).prompt == "p" * length
    else:
        with pytest.raises(ValidationError):
            EncodeRequest.model_validate_json(body)


@pytest.mark.parametrize("texts", ['"a"', '["a"]', '[["a","b"]]', '["a",["b","c"],""]', '""'])
def test_texts_pairs_and_one_text(texts: str) -> None:
    """One text, texts, pairs, or a mixture; an empty text is a text."""
    request = EncodeRequest.model_validate_json(f'{{"texts":{texts}}}')
    assert json.loads(json.dumps(request.texts)) == json.loads(texts)


@pytest.mark.parametrize(
    "texts", ["[]", "null", "5", "{}", '[["a"]]', '[["a","b","c"]]', "[[]]", "[null]", '[["a",1]]']
)
def test_what_is_no_text(texts: str) -> None:
    """No texts at all, numbers, and pairs of another size are refused."""
    with pytest.raises(ValidationError):
        EncodeRequest.model_validate_json(f'{{"texts":{texts}}}')


def test_requests_cannot_be_changed() -> None:
    """What was validated stays as it was."""
    request = EncodeRequest.model_validate_json('{"texts":"a"}')
    with pytest.raises(ValidationError, match="frozen"):
        request.normalize = False  # type: ignore[misc]
