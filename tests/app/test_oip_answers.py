"""Answers of the Open Inference Protocol: metadata, and tensors in JSON or behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from app.oip_answers import describe_model, describe_server, num_values, pad, write_inference
from app.oip_flow import infer
from app.schemas.oip import OIPInferRequest, OIPInferResponse, OIPModelMetadata, OIPServerMetadata
from app.service import Encoded
from app.version import VERSION
from tests.app.conftest import Served

pytestmark = pytest.mark.anyio

ALL = ["truncated", "attention", "num_tokens_total", "embedding", "num_tokens"]
TEXTS = ["cat", "A dog barked!", "cat " * 100]
NUMPY = {"FP32": "<f4", "INT32": "<i4", "BOOL": "?"}


async def encode(server: Served, *outputs: str, **fields: Any) -> tuple[Encoded, OIPInferRequest]:
    """Run the texts through the tiny model."""
    item = {"name": "text", "shape": [3], "datatype": "BYTES", "data": TEXTS}
    body = OIPInferRequest.model_validate({"inputs": [item], "outputs": [{"name": name} for name in outputs], **fields})
    assert server.state.service is not None
    return await infer(server.state.service, body, TEXTS, "tiny", route="/v2/models/{name}/infer"), body


async def test_the_same_tensors_in_json_and_behind_it(server: Served) -> None:
    """Bit for bit, in the order asked, with the shapes and types that the metadata have."""
    encoded, body = await encode(server, *ALL)
    listed, nothing = write_inference(encoded, body, dict.fromkeys(body.wanted(), False))
    assert nothing is None
    written, length = write_inference(encoded, body, dict.fromkeys(body.wanted(), True))
    assert length is not None
    head = orjson.loads(written[:length])
    place = length
    for one, other in zip(orjson.loads(listed)["outputs"], head["outputs"], strict=True):
        size = other["parameters"].pop("binary_data_size")
        array = np.frombuffer(written[place : place + size], NUMPY[other["datatype"]]).reshape(other["shape"])
        place += size
        assert "data" not in other
        data = np.array(one.pop("data"), NUMPY[one["datatype"]])
        assert data.ndim == 1
        np.testing.assert_array_equal(data.reshape(one["shape"]), array)
        assert one.get("parameters", {}) == other["parameters"]
    assert place == len(written)
    assert [output["name"] for output in head["outputs"]] == ALL
    assert [output["datatype"] for output in head["outputs"]] == ["BOOL", "FP32", "INT32", "FP32", "INT32"]
    described = {one["name"]: one for one in describe_model(encoded.model)["outputs"]}
    for output in head["outputs"]:
        shape = described[output["name"]]["shape"]
        assert output["datatype"] == described[output["name"]]["datatype"]
        assert all(said in (-1, is_so) for said, is_so in zip(shape, output["shape"], strict=True))


async def test_the_head_says_what_answered(server: Served) -> None:
    """Model, version, id where there was one, what was cut; layers and heads by their true numbers, as strings."""
    encoded, body = await encode(server, "attention", id="42", parameters={"layers": -1, "heads": "1,0"})
    answer = orjson.loads(write_inference(encoded, body, body.wanted())[0])
    OIPInferResponse.model_validate(answer)
    assert (answer["model_name"], answer["model_version"], answer["id"]) == ("tiny", "1", "42")
    assert answer["parameters"] == {"truncated_count": 1, "truncated_texts": "2"}
    [output] = answer["outputs"]
    assert output["parameters"] == {"layers": "1", "heads": "1,0"}
    assert output["shape"] == [3, 1, 2, 32, 32]
    encoded, body = await encode(server)
    assert "id" not in orjson.loads(write_inference(encoded, body, body.wanted())[0])


async def test_only_some_behind_the_json(server: Served) -> None:
    """Each output as it asks."""
    encoded, body = await encode(server, "num_tokens", "embedding")
    written, length = write_inference(encoded, body, {"num_tokens": False, "embedding": True})
    assert length is not None
    tokens, embedding = orjson.loads(written[:length])["outputs"]
    assert tokens["data"] == [item.num_tokens for item in encoded.inputs]
    assert "parameters" not in tokens
    assert embedding["parameters"] == {"binary_data_size": 3 * 16 * 4}
    assert written[length:] == encoded.embeddings.tobytes()


def test_padding_is_zero_behind_each_text() -> None:
    """Rows and columns; the maps themselves are untouched."""
    maps = [np.full((2, 3, length, length), length, dtype=np.float32) for length in (2, 4, 1)]
    padded = pad(maps)
    assert (padded.shape, padded.dtype) == ((3, 2, 3, 4, 4), np.float32)
    for place, one in zip(padded, maps, strict=True):
        length = one.shape[-1]
        np.testing.assert_array_equal(place[..., :length, :length], one)
        assert not place[..., length:, :].any()
        assert not place[..., length:].any()


async def test_the_cost_of_writing_is_known(server: Served) -> None:
    """Padding counts."""
    encoded, body = await encode(server, "attention")
    assert num_values(encoded, body.wanted()) == 3 * 16 + 3 * 1 * 2 * 32 * 32
    assert num_values(encoded, {"embedding": False}) == 3 * 16


async def test_metadata(server: Served) -> None:
    """Of the server and of a model; one that gives no maps does not say that it does."""
    assert server.state.service is not None
    OIPServerMetadata.model_validate(describe_server(), strict=True)
    assert describe_server()["version"] == VERSION
    assert "binary_tensor_data" in describe_server()["extensions"]
    model = server.state.service.find_model(None)
    described = describe_model(model)
    OIPModelMetadata.model_validate(described, strict=True)
    assert (described["name"], described["versions"]) == ("tiny", ["1"])
    assert described["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    assert described["outputs"][0] == {"name": "embedding", "datatype": "FP32", "shape": [-1, 16]}
    assert {one["name"] for one in described["outputs"]} == set(ALL)
    model.embedder.gives_attention = False
    assert {one["name"] for one in describe_model(model)["outputs"]} == set(ALL) - {"attention"}
