"""The wire contract of /similarity. What it does: tests/app/routes/test_encode.py and test_explain.py."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from app.schemas.similarity import SimilarityRequest


def test_defaults() -> None:
    """Nothing is explained unless asked, and then by tokens."""
    request = SimilarityRequest.model_validate_json('{"pairs":[["a","b"]]}')
    assert (request.explain, request.unit, request.dimensions, request.texts) == (False, "token", None, None)


@given(st.booleans(), st.booleans())
def test_either_texts_or_pairs(has_texts: bool, has_pairs: bool) -> None:
    """Exactly one of the two."""
    body = {
        "texts": ["a"] if has_texts else None,
        "pairs": [["a", "b"]] if has_pairs else None,
    }
    if has_texts != has_pairs:
        SimilarityRequest.model_validate_json(json.dumps(body))
    else:
        with pytest.raises(ValidationError, match="either texts or pairs"):
            SimilarityRequest.model_validate_json(json.dumps(body))


def test_an_explanation_is_of_pairs() -> None:
    """Explain goes with pairs; with texts the finding names the field, with false it passes."""
    assert SimilarityRequest.model_validate_json('{"pairs":[["a","b"]],"explain":true}').explain
    assert not SimilarityRequest.model_validate_json('{"texts":["a"],"explain":false}').explain
    with pytest.raises(ValidationError) as refused:
        SimilarityRequest.model_validate_json('{"explain":true,"texts":["a"]}')
    [finding] = refused.value.errors()
    assert finding["loc"] == ("explain",)


@pytest.mark.parametrize("unit", ["token", "word"])
@pytest.mark.parametrize("rest", [{"pairs": [["a", "b"]]}, {"pairs": [["a", "b"]], "explain": False}, {"texts": ["a"]}])
def test_a_unit_is_of_an_explanation(unit: str, rest: dict[str, Any]) -> None:
    """Unit goes with explain, wherever it stands in the body; without, the finding names the field."""
    for body in ({**rest, "unit": unit}, {"unit": unit, **rest}):
        with pytest.raises(ValidationError) as refused:
            SimilarityRequest.model_validate_json(json.dumps(body))
        [finding] = refused.value.errors()
        assert finding["loc"] == ("unit",)
    explained = {"unit": unit, "pairs": [["a", "b"]], "explain": True}
    assert SimilarityRequest.model_validate_json(json.dumps(explained)).unit == unit


@pytest.mark.parametrize(
    ("fields", "at_fault"),
    [
        ({"explain": 1}, "explain"),
        ({"explain": None}, "explain"),
        ({"explain": "true", "unit": "word"}, "explain"),
        ({"explain": True, "unit": "piece"}, "unit"),
        ({"explain": True, "unit": None}, "unit"),
        ({"explain": True, "top": 3}, "top"),
    ],
)
def test_what_is_no_option(fields: dict[str, Any], at_fault: str) -> None:
    """Nothing is coerced, and an unknown field is an error; only the field at fault is named."""
    with pytest.raises(ValidationError) as refused:
        SimilarityRequest.model_validate_json(json.dumps({"pairs": [["a", "b"]], **fields}))
    assert [finding["loc"] for finding in refused.value.errors()] == [(at_fault,)]


def test_a_request_is_strict() -> None:
    """A request cannot be changed, and needs texts or pairs."""
    request = SimilarityRequest.model_validate_json('{"texts":["a"]}')
    with pytest.raises(ValidationError, match="frozen"):
        request.explain = True  # type: ignore[misc]
    with pytest.raises(ValidationError, match="either texts or pairs"):
        SimilarityRequest.model_validate_json("{}")
