"""The package ``openai``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.clients.answers import LONG, MODEL_NAME, TEXTS, assert_encoded
from tests.e2e.conftest import Server

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    """As the documentation has it, but that nothing is tried twice."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="not needed", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("fields", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}])
def test_vectors_are_those_of_encode(server: Server, client: openai.OpenAI, fields: dict[str, Any]) -> None:
    """As it asks when told nothing (base64, decoded by itself), and as numbers; places and usage are true."""
    answer = client.embeddings.create(model=MODEL_NAME, input=TEXTS, **fields)
    assert [entry.index for entry in answer.data] == list(range(len(TEXTS)))
    if fields != {"encoding_format": "base64"}:  # then it leaves decoding to the caller
        assert_encoded(server, [entry.embedding for entry in answer.data], TEXTS)
    num_tokens = sum(server.encode(TEXTS)["num_tokens"])
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens, answer.model) == (num_tokens, num_tokens, MODEL_NAME)


def test_options_are_understood(server: Server, client: openai.OpenAI) -> None:
    """One text, dimensions, user, and ours through extra_body."""
    create = client.embeddings.create
    one = create(model=MODEL_NAME, input=TEXTS[0], dimensions=64, user="somebody")
    assert_encoded(server, [one.data[0].embedding], TEXTS[0], dimensions=64)
    prompted = create(model=MODEL_NAME, input=TEXTS, extra_body={"prompt": "query: "})
    assert_encoded(server, [entry.embedding for entry in prompted.data], TEXTS, prompt="query: ")
    read = server.client.post("/tokenize", json={"texts": TEXTS}).json()["texts"]
    by_ids = create(model=MODEL_NAME, input=[text["tokens"]["id"] for text in read])
    assert_encoded(server, [entry.embedding for entry in by_ids.data], TEXTS)


def test_a_cut_text_is_in_the_headers(client: openai.OpenAI) -> None:
    """Which it shows on its raw responses."""
    raw = client.embeddings.with_raw_response.create(model=MODEL_NAME, input=["a", LONG])
    assert (raw.headers["x-truncated-count"], raw.headers["x-truncated-texts"]) == ("1", "1")
    assert len(raw.parse().data) == 2


def test_it_is_asynchronous_too(server: Server) -> None:
    """Ten requests at once."""

    async def ask() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="not needed", max_retries=0) as client:
            create = client.embeddings.create
            return await asyncio.gather(*(create(model=MODEL_NAME, input=text) for text in TEXTS[:10]))

    assert_encoded(server, [answer.data[0].embedding for answer in asyncio.run(ask())], TEXTS[:10])


@pytest.mark.parametrize(
    ("fields", "error", "code", "param"),
    [
        ({"input": ""}, openai.BadRequestError, "empty_input", "input"),
        ({"input": []}, openai.BadRequestError, "empty_input", "input"),
        ({"input": ["a", ""]}, openai.BadRequestError, "empty_input", "input[1]"),
        ({"model": "text-embedding-3-small"}, openai.NotFoundError, "model_not_found", "model"),
        (
            {"input": ["a", LONG], "extra_body": {"truncate": False}},
            openai.BadRequestError,
            "context_length_exceeded",
            "input[1]",
        ),
        ({"dimensions": 385}, openai.BadRequestError, "dimensions_out_of_range", "dimensions"),
        ({"input": [[10**9]]}, openai.BadRequestError, "token_id_out_of_range", "input[0]"),
    ],
)
def test_errors_are_its_own(
    client: openai.OpenAI, fields: dict[str, Any], error: type[openai.APIStatusError], code: str, param: str
) -> None:
    """Of the class that programs catch, with the code and the field."""
    with pytest.raises(error) as caught:
        client.embeddings.create(**{"model": MODEL_NAME, "input": "a", **fields})
    assert (caught.value.code, caught.value.param, caught.value.type) == (code, param, "invalid_request_error")
    assert caught.value.request_id


def test_models_are_listed(client: openai.OpenAI) -> None:
    """And found by name."""
    listed = list(client.models.list())
    assert listed[0].id == MODEL_NAME
    assert client.models.retrieve(MODEL_NAME) == listed[0]
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing")
