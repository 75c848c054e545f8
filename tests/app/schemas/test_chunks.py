"""The wire contract of chunks. What they are: tests/app/routes/test_encode_chunks.py."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from app.schemas.chunks import ChunkOptions
from model.chunking import Chunking


def test_defaults() -> None:
    """A unit and a size are required; chunks touch, stand by themselves, and are counted in code points."""
    options = ChunkOptions.model_validate_json('{"unit":"token","size":3}')
    assert options.chunking() == Chunking("token", 3, 0, "separate")
    assert options.offset_unit == "codepoint"


def test_every_field_reaches_the_model() -> None:
    """By the same names."""
    fields = {"unit": "sentence", "size": 3, "overlap": 2, "mode": "late"}
    assert ChunkOptions.model_validate_json(json.dumps(fields)).chunking() == Chunking("sentence", 3, 2, "late")


@pytest.mark.parametrize(
    "fields",
    [{"size": 0}, {"size": None}, {"size": 2.0}, {"size": 2**31}, {"overlap": -1}, {"unit": "word"}, {"mode": "early"},
     {"offset_unit": "char"}, {"lap": 1}],
)  # fmt: skip
def test_what_is_no_option(fields: dict[str, Any]) -> None:
    """Nothing is coerced or ignored."""
    with pytest.raises(ValidationError):
        ChunkOptions.model_validate_json(json.dumps({"unit": "token", "size": 3, **fields}))
