"""The wire contract of /attention/heads. What it does: tests/app/routes/test_attention.py."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from app.schemas.attention import HeadDistancesRequest


def test_defaults() -> None:
    """Only the texts are required; special tokens are kept unless told otherwise."""
    request = HeadDistancesRequest.model_validate_json('{"texts":"a"}')
    assert (request.texts, request.special, request.model, request.truncate) == ("a", "keep", None, True)


@pytest.mark.parametrize(
    "fields", [{"special": "mask"}, {"special": None}, {"special": True}, {"layers": "all"}, {"attention": {}}]
)
def test_what_is_no_option(fields: dict[str, Any]) -> None:
    """Other treatments of special tokens, and options of other routes, are refused."""
    with pytest.raises(ValidationError):
        HeadDistancesRequest.model_validate_json(json.dumps({"texts": ["a"], **fields}))
