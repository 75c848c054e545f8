"""What OpenAI's clients read. Through HTTP: tests/app/routes/test_openai.py."""

from __future__ import annotations

import json
from typing import Literal

import pytest

from app.openai_answers import describe_models, write_embeddings
from app.plain import PlainRequest
from app.plain_flows import embed
from tests.app.conftest import Served

pytestmark = pytest.mark.anyio


async def test_the_answer_has_openais_keys(server: Served) -> None:
    """Those and no others, so that strict readers take it."""
    assert server.state.service is not None
    encoded = await embed(server.state.service, PlainRequest(["a", "b c"]), route="/embeddings")
    formats: tuple[Literal["float", "base64"] | None, ...] = ("float", "base64", None)
    for encoding_format in formats:
        body = json.loads(write_embeddings(encoded, encoding_format, "float32"))
        assert list(body) == ["object", "data", "model", "usage"]
        assert [list(entry) for entry in body["data"]] == [["object", "index", "embedding"]] * 2
        assert all(isinstance(entry["embedding"], str) == (encoding_format == "base64") for entry in body["data"])
        assert body["usage"] == {"prompt_tokens": 7, "total_tokens": 7}


def test_models_are_described() -> None:
    """In order, with whole seconds."""
    assert describe_models(["b", "a"], 12.9) == [
        {"id": "b", "object": "model", "created": 12, "owned_by": "eyeline"},
        {"id": "a", "object": "model", "created": 12, "owned_by": "eyeline"},
    ]
