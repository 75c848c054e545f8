"""KServe's ``InferenceRESTClient``: the Open Inference Protocol, tensors in JSON or behind it."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import numpy as np
import pytest
from kserve import InferenceRESTClient, InferInput, InferRequest, InferResponse, RESTConfig

from tests.clients.answers import LONG, MODEL_NAME, TEXTS, assert_encoded
from tests.e2e.conftest import Server

pytestmark = pytest.mark.clients


def infer(
    server: Server, texts: list[str], *, model: str = MODEL_NAME, binary: bool = False, **options: Any
) -> InferResponse:
    """Ask once."""
    tensor = InferInput("text", [len(texts)], "BYTES")
    tensor.set_data_from_numpy(np.array(texts, dtype=object), binary_data=binary)
    asked = InferRequest(model, [tensor], **options)

    async def ask() -> Any:
        client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
        try:
            return await client.infer(server.url, asked, model_name=model)
        finally:
            await client.close()

    return asyncio.run(ask())


@pytest.mark.parametrize("binary", [False, True])
def test_vectors_are_those_of_encode(server: Server, binary: bool) -> None:
    """Either way, with the id and what became of long texts."""
    answer = infer(server, [*TEXTS, LONG], binary=binary, request_id="7f0c")
    assert_encoded(server, answer.outputs[0].as_numpy(), [*TEXTS, LONG])
    assert (answer.id, answer.model_name) == ("7f0c", MODEL_NAME)
    assert answer.parameters == {"truncated_count": 1, "truncated_texts": str(len(TEXTS))}
    raw = infer(server, TEXTS, binary=binary, parameters={"dimensions": 64})
    assert_encoded(server, raw.outputs[0].as_numpy(), TEXTS, dimensions=64)


def test_it_knows_what_is_ready(server: Server) -> None:
    """Server and model."""

    async def ask() -> list[bool]:
        client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
        try:
            return [
                await client.is_server_live(server.url),
                await client.is_server_ready(server.url),
                await client.is_model_ready(server.url, MODEL_NAME),
            ]
        finally:
            await client.close()

    assert asyncio.run(ask()) == [True, True, True]


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        ({"texts": ["a"], "model": "nothing"}, 404, "no such model is served"),
        ({"texts": ["a", LONG], "parameters": {"truncate": False}}, 413, "text[1]"),
        ({"texts": []}, 400, "inputs[0].shape[0]"),
    ],
)
@pytest.mark.parametrize("binary", [False, True])
def test_errors_are_its_own(server: Server, options: dict[str, Any], status: int, words: str, binary: bool) -> None:
    """The one of httpx, as it raises it, with the server's sentence."""
    with pytest.raises(httpx.HTTPStatusError) as caught:
        infer(server, binary=binary, **options)
    assert caught.value.response.status_code == status
    assert words in str(caught.value)
