"""The package ``tei-client``: text-embeddings-inference, route by route."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tei_client import HttpClient

from tests.clients.answers import LONG, MODEL_NAME, PROMPTED, TEXTS, assert_encoded
from tests.e2e.conftest import Server

pytestmark = pytest.mark.clients


@pytest.fixture
def client(server: Server) -> HttpClient:
    """At the server's address."""
    return HttpClient(server.url)


def test_vectors_are_those_of_encode(server: Server, client: HttpClient) -> None:
    """Many texts or one, not scaled, both ways of waiting, and by a model's own address."""
    assert_encoded(server, client.embed(TEXTS), TEXTS)
    assert_encoded(server, client.embed(TEXTS[0], normalize=False), TEXTS[:1], normalize=False)
    assert_encoded(server, client.embed(LONG, truncate=True), [LONG])
    assert_encoded(server, asyncio.run(client.async_embed(TEXTS)), TEXTS)
    other = HttpClient(f"{server.url}/models/{PROMPTED}")
    assert_encoded(server, other.embed("cat", prompt_name="query"), ["cat"], model=PROMPTED, prompt_name="query")


def test_it_reads_tokens_and_back(server: Server, client: HttpClient) -> None:
    """Its records hold what the server says; a vector for each token; ids give the text again."""
    text = "hello world"
    [tokenized] = client.tokenize(text)
    ids = tokenized.get_ids()
    assert ids == server.client.post("/tokenize", json={"texts": text}).json()["texts"][0]["tokens"]["id"]
    assert len(client.embed_all(text)[0]) == len(ids)
    assert client.decode(ids) == [text]
    assert [token.text for token in client.tokenize(text, add_special_tokens=False)[0].tokens] == ["hello", "world"]


def test_it_knows_what_is_served(server: Server, client: HttpClient) -> None:
    """It checks /info against its own record, and finds the names of prompts in the error for a wrong one."""
    info = client.info()
    assert (info.server_model_id, info.server_model_type.value, info.max_input_length) == (MODEL_NAME, "embedding", 256)
    assert client.health()
    assert HttpClient(f"{server.url}/models/{PROMPTED}").prompt_names() == ["passage", "query"]


@pytest.mark.parametrize(
    ("text", "kind"), [("", "Empty"), (["a", ""], "Empty"), (LONG, "Validation"), ([[10**9]], "Validation")]
)
def test_errors_are_teis(client: HttpClient, text: Any, kind: str) -> None:
    """It raises nothing: it hands the two keys to its caller."""
    found = client.embed(text)
    assert isinstance(found, dict)
    assert (list(found), found["error_type"]) == (["error", "error_type"], kind)
