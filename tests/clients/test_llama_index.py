"""LlamaIndex: ``OpenAILikeEmbedding`` and the ``OpenAIEmbedding`` that it builds on."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

from tests.clients.answers import LONG, MODEL_NAME, TEXTS, assert_encoded
from tests.e2e.conftest import Server

pytestmark = pytest.mark.clients


def embedding(kind: type[OpenAIEmbedding], server: Server, **options: Any) -> OpenAIEmbedding:
    """One with this server's address."""
    options = {"model_name": MODEL_NAME, "max_retries": 0, **options}
    return kind(api_base=f"{server.url}/v1", api_key="not needed", **options)


@pytest.mark.parametrize("kind", [OpenAILikeEmbedding, OpenAIEmbedding])
def test_vectors_are_those_of_encode(server: Server, kind: type[OpenAIEmbedding]) -> None:
    """Texts in batches, a query, both ways of waiting, dimensions."""
    texts = [text.replace("\n", " ") for text in TEXTS]  # as it does itself
    found = embedding(kind, server, embed_batch_size=10)
    assert_encoded(server, found.get_text_embedding_batch(TEXTS), texts)
    assert_encoded(server, [found.get_query_embedding(TEXTS[0])], texts[:1])
    assert_encoded(server, asyncio.run(found.aget_text_embedding_batch(TEXTS)), texts)
    assert_encoded(server, embedding(kind, server, dimensions=64).get_text_embedding_batch(TEXTS), texts, dimensions=64)


@pytest.mark.parametrize("kind", [OpenAILikeEmbedding, OpenAIEmbedding])
@pytest.mark.parametrize(
    ("options", "text", "error"),
    [
        ({}, "", openai.BadRequestError),
        ({"model_name": "nothing"}, "a", openai.NotFoundError),
        ({"additional_kwargs": {"extra_body": {"truncate": False}}}, LONG, openai.BadRequestError),
    ],
)
def test_errors_are_openais(
    server: Server, kind: type[OpenAIEmbedding], options: dict[str, Any], text: str, error: type[Exception]
) -> None:
    """An empty text, a model that is not served, a text that is too long."""
    with pytest.raises(error):
        embedding(kind, server, **options).get_text_embedding_batch(["a", text])
