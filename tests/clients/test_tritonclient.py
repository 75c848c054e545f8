"""Triton's ``tritonclient.http``: the Open Inference Protocol, tensors behind the JSON or in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.clients.answers import LONG, MODEL_NAME, PROMPTED, TEXTS, TOLERANCE, assert_encoded
from tests.e2e.conftest import Server

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    """It wants an address without a scheme."""
    client = triton.InferenceServerClient(server.url.removeprefix("http://"))
    yield client
    client.close()


def text_input(texts: list[str], *, binary: bool = True, name: str = "text") -> triton.InferInput:
    """The one input."""
    tensor = triton.InferInput(name, [len(texts)], "BYTES")
    tensor.set_data_from_numpy(np.array(texts, dtype=object), binary_data=binary)
    return tensor


def test_vectors_are_those_of_encode(server: Server, client: triton.InferenceServerClient) -> None:
    """As it asks when told nothing: everything binary, no outputs named; and without waiting."""
    found = client.infer(MODEL_NAME, [text_input(TEXTS)]).as_numpy("embedding")
    assert found.dtype == np.float32
    assert_encoded(server, found, TEXTS)
    waiting = client.async_infer(MODEL_NAME, [text_input(TEXTS)])
    assert_encoded(server, waiting.get_result().as_numpy("embedding"), TEXTS)
    other = client.infer(PROMPTED, [text_input(["cat"])], model_version="1", parameters={"prompt_name": "query"})
    assert_encoded(server, other.as_numpy("embedding"), ["cat"], model=PROMPTED, prompt_name="query")
    assert_encoded(server, client.infer(MODEL_NAME, [text_input([""])]).as_numpy("embedding"), [""])


@pytest.mark.parametrize("input_is_binary", [True, False])
@pytest.mark.parametrize("output_is_binary", [True, False])
def test_every_output_is_that_of_encode(
    server: Server, client: triton.InferenceServerClient, input_is_binary: bool, output_is_binary: bool
) -> None:
    """Maps, counts and truncation, in JSON or behind it, whichever way the texts came."""
    texts = ["The cat sat.", "My sister lost her keys, so she called the landlord."]
    names = ("embedding", "attention", "num_tokens", "num_tokens_total", "truncated")
    outputs = [triton.InferRequestedOutput(name, binary_data=output_is_binary) for name in names]
    tensor = text_input(texts, binary=input_is_binary)
    answer = client.infer(MODEL_NAME, [tensor], outputs=outputs, request_id="7", parameters={"layers": "all"})
    native = server.encode(texts, attention={"layers": "all", "digits": 9})
    assert answer.get_response()["id"] == "7"
    assert_encoded(server, answer.as_numpy("embedding"), texts)
    maps = answer.as_numpy("attention")
    for one, described, length in zip(maps, native["attention"], native["num_tokens"], strict=True):
        np.testing.assert_allclose(one[:, :, :length, :length], described["maps"]["values"], atol=TOLERANCE)
    for name in ("num_tokens", "num_tokens_total", "truncated"):
        assert answer.as_numpy(name).tolist() == native[name]


def test_it_knows_what_is_served(client: triton.InferenceServerClient) -> None:
    """Health, readiness and metadata, and a compressed answer, which it may get plain."""
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready(MODEL_NAME)
    assert not client.is_model_ready("nothing")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    assert client.get_model_metadata(PROMPTED)["outputs"][0]["name"] == "embedding"
    answer = client.infer(MODEL_NAME, [text_input(["a"])], response_compression_algorithm="gzip")
    assert answer.as_numpy("embedding").shape == (1, 384)


@pytest.mark.parametrize(
    ("model", "texts", "options", "status", "words"),
    [
        ("nothing", ["a"], {}, "404", "no such model is served"),
        (MODEL_NAME, ["a"], {"model_version": "2"}, "404", "is served"),
        (MODEL_NAME, ["a", LONG], {"parameters": {"truncate": False}}, "413", "text[1]"),
        (MODEL_NAME, [LONG], {"outputs": [triton.InferRequestedOutput("logits")]}, "400", "outputs[0].name"),
        (MODEL_NAME, ["a"], {"parameters": {"dimensions": 385}}, "400", "parameters.dimensions"),
        (MODEL_NAME, ["a"], {"request_compression_algorithm": "gzip"}, "415", "Content-Encoding"),
    ],
)
def test_errors_are_its_own(
    client: triton.InferenceServerClient, model: str, texts: list[str], options: dict[str, Any], status: str, words: str
) -> None:
    """Its one class, with the status and the server's sentence."""
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, [text_input(texts)], **options)
    assert caught.value.status() == status
    assert words in caught.value.message()


def test_an_input_of_no_texts_is_an_error_of_its_own(client: triton.InferenceServerClient) -> None:
    """And one of another name."""
    for tensor in (text_input([]), text_input(["a"], name="texts")):
        with pytest.raises(InferenceServerException) as caught:
            client.infer(MODEL_NAME, [tensor])
        assert caught.value.status() == "400"
