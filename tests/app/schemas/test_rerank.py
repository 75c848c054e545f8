"""The wire contract of Cohere's and Jina's rerank. What comes of it: tests/app/routes/test_rerank.py."""

from __future__ import annotations

import json
from typing import Any

from app.plain import PlainRequest
from app.schemas.rerank import RerankRequest


def plain(**body: Any) -> PlainRequest:
    """What a body asks for, in the server's own words."""
    return RerankRequest.model_validate_json(json.dumps(body)).plain()


def test_each_document_is_a_pair_with_the_query() -> None:
    """The query first; long documents are cut at their end, unless that is refused."""
    asked = plain(query="q", documents=["a", {"text": "b"}], model="m", top_n=1)
    assert asked.texts == [("q", "a"), ("q", "b")]
    assert (asked.model, asked.truncate, asked.side) == ("m", True, "right")
    assert not plain(query="q", documents=["a"], truncate=False).truncate


def test_errors_name_documents() -> None:
    """As the caller sent them."""
    asked = plain(query="q", documents=["a"])
    assert (asked.rename("texts[0]"), asked.rename("texts"), asked.rename("model")) == (
        "documents[0]",
        "documents",
        "model",
    )
