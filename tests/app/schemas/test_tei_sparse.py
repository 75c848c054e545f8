"""The wire contract of /embed_sparse. What comes of it: tests/app/routes/test_embed_sparse.py."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from app.schemas.tei import ignored_fields
from app.schemas.tei_sparse import TeiEmbedSparseRequest, TeiSparseValue


def test_each_field_has_its_place() -> None:
    """None is lost on the way, and no token states are asked for."""
    body = {"inputs": ["a", [5]], "truncate": True, "truncation_direction": "Left", "prompt_name": "n"}
    asked = TeiEmbedSparseRequest.model_validate_json(json.dumps(body)).plain("m")
    assert (asked.model, asked.texts, asked.truncate, asked.side) == ("m", ["a", [5]], True, "left")
    assert (asked.prompt_name, asked.token_states, asked.rename("texts[1]")) == ("n", False, "inputs[1]")


def test_what_means_nothing_here_is_no_field() -> None:
    """Unit length and dimensions are of embeddings; they are named as ignored."""
    body = TeiEmbedSparseRequest.model_validate_json('{"inputs": "a", "normalize": false, "dimensions": 3}')
    assert ignored_fields(body) == ["normalize", "dimensions"]


@pytest.mark.parametrize("fields", [{"index": -1, "value": 1.0}, {"index": 1, "value": 0.0}])
def test_a_weight_is_above_0(fields: dict[str, float]) -> None:
    """And its index is one of the vocabulary's."""
    with pytest.raises(ValidationError):
        TeiSparseValue.model_validate(fields)
