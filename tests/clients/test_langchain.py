"""LangChain's ``OpenAIEmbeddings``, from ``langchain-openai``."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from langchain_openai import OpenAIEmbeddings

from tests.clients.answers import LONG, MODEL_NAME, TEXTS, assert_encoded
from tests.e2e.conftest import Server

pytestmark = pytest.mark.clients


def embeddings(server: Server, **options: Any) -> OpenAIEmbeddings:
    """As docs/compatibility.md has it: texts are sent, not another tokenizer's ids."""
    options = {"model": MODEL_NAME, "check_embedding_ctx_length": False, "max_retries": 0, **options}
    return OpenAIEmbeddings(base_url=f"{server.url}/v1", api_key="not needed", **options)


def test_vectors_are_those_of_encode(server: Server) -> None:
    """Documents in several requests, a query, both ways of waiting, dimensions."""
    found = embeddings(server, chunk_size=10)
    assert_encoded(server, found.embed_documents(TEXTS), TEXTS)
    assert_encoded(server, [found.embed_query(TEXTS[0])], TEXTS[:1])
    assert_encoded(server, asyncio.run(found.aembed_documents(TEXTS)), TEXTS)
    assert_encoded(server, embeddings(server, dimensions=64).embed_documents(TEXTS), TEXTS, dimensions=64)


@pytest.mark.parametrize(
    ("options", "text", "error"),
    [
        ({}, "", openai.BadRequestError),
        ({"model": "text-embedding-3-small"}, "a", openai.NotFoundError),
        ({"model_kwargs": {"extra_body": {"truncate": False}}}, LONG, openai.BadRequestError),
    ],
)
def test_errors_are_openais(server: Server, options: dict[str, Any], text: str, error: type[Exception]) -> None:
    """An empty text, a model that is not served, a text that is too long."""
    with pytest.raises(error):
        embeddings(server, **options).embed_documents(["a", text])
