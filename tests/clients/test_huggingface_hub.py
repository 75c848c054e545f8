"""``InferenceClient`` of ``huggingface_hub``, which speaks text-embeddings-inference."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import BadRequestError, HfHubHTTPError

from tests.clients.answers import LONG, MODEL_NAME, PROMPTED, TEXTS, TOLERANCE, assert_encoded
from tests.e2e.conftest import Server

pytestmark = pytest.mark.clients


@pytest.mark.parametrize("path", ["", "/embed", f"/models/{MODEL_NAME}", f"/models/{MODEL_NAME}/embed"])
def test_vectors_are_those_of_encode(server: Server, path: str) -> None:
    """Many texts or one; at the server's address, at a model's, at a route's."""
    extract = InferenceClient(model=server.url + path).feature_extraction
    assert_encoded(server, extract(TEXTS), TEXTS)
    assert_encoded(server, extract(TEXTS[0]), TEXTS[:1])


def test_it_is_asynchronous_too(server: Server) -> None:
    """With the same answer."""
    assert_encoded(server, asyncio.run(AsyncInferenceClient(model=server.url).feature_extraction(TEXTS)), TEXTS)


def test_options_are_understood(server: Server) -> None:
    """normalize, truncate and its direction, prompt_name, dimensions."""
    extract = InferenceClient(model=server.url).feature_extraction
    assert_encoded(server, extract(TEXTS, normalize=False), TEXTS, normalize=False)
    assert_encoded(server, extract(TEXTS, dimensions=64), TEXTS, dimensions=64)
    assert_encoded(server, extract(LONG, truncate=True), [LONG])
    left = extract("cat " + LONG, truncate=True, truncation_direction="left")
    assert_encoded(server, left, [LONG])
    prompted = InferenceClient(model=f"{server.url}/models/{PROMPTED}").feature_extraction
    assert_encoded(server, prompted("cat", prompt_name="query"), ["cat"], model=PROMPTED, prompt_name="query")


@pytest.mark.parametrize("path", ["/similarity", f"/models/{MODEL_NAME}/similarity"])
def test_similarities_are_those_of_encode(server: Server, path: str) -> None:
    """Cosines of one sentence with the others, at the address of the route."""
    found = InferenceClient(model=server.url + path).sentence_similarity(TEXTS[0], other_sentences=TEXTS[1:])
    vectors = np.array(server.encode(TEXTS)["embeddings"])
    np.testing.assert_allclose(found, vectors[1:] @ vectors[0], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("path", "text", "options", "status", "words"),
    [
        ("", "", {}, 400, "inputs: a text must not be empty"),
        ("", ["a", ""], {}, 400, "inputs[1]: a text must not be empty"),
        ("/models/nothing", "a", {}, 404, f"no such model is served; served are {MODEL_NAME}"),
        ("", LONG, {"truncate": False}, 413, "the model reads 256"),
        ("", LONG, {}, 413, "the model reads 256"),
        ("", "a", {"prompt_name": "query"}, 422, "prompt_name: no prompt has this name"),
    ],
)
def test_errors_are_its_own(
    server: Server, path: str, text: Any, options: dict[str, Any], status: int, words: str
) -> None:
    """Of its classes, with the server's sentence in the message."""
    with pytest.raises(BadRequestError if status == 400 else HfHubHTTPError) as caught:
        InferenceClient(model=server.url + path).feature_extraction(text, **options)
    assert caught.value.response.status_code == status
    assert words in str(caught.value)
