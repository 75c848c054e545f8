"""A running server, spoken to as Triton's and KServe's clients speak: raw HTTP as they write and read it."""

from __future__ import annotations

import http.client
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from tests.e2e.conftest import MAX_LENGTH, Server

pytestmark = pytest.mark.e2e

REFERENCE = Path(__file__).parents[1] / "reference"
ROWS: list[dict[str, Any]] = json.loads((REFERENCE / "minilm.json").read_text())
TYPED_SPECIAL = 20
"""The row whose text holds special tokens: the reference read them as such."""
PLAIN = [index for index in range(len(ROWS)) if index != TYPED_SPECIAL]
MODEL_NAME = "all-MiniLM-L6-v2"
INFER = f"/v2/models/{MODEL_NAME}/infer"
LENGTH_HEADER = "Inference-Header-Content-Length"
NUMPY = {"FP32": np.float32, "INT32": np.int32, "BOOL": np.bool_}


class Answer:
    """What came back, as Triton's client takes it apart: the JSON, then each tensor at its place behind it."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        content = response.read()
        length = self.headers.get(LENGTH_HEADER)
        self.head = json.loads(content if length is None else content[: int(length)])
        self._buffer = b"" if length is None else content[int(length) :]
        self._places: dict[str, int] = {}
        place = 0
        for output in self.head.get("outputs", []):
            size = output.get("parameters", {}).get("binary_data_size")
            if size is not None:
                self._places[output["name"]] = place
                place += size
        assert place == len(self._buffer)

    def as_numpy(self, name: str) -> Any:
        """Read one tensor."""
        [output] = [output for output in self.head["outputs"] if output["name"] == name]
        dtype = NUMPY[output["datatype"]]
        if name not in self._places:
            return np.array(output["data"], dtype=dtype).reshape(output["shape"])
        place = self._places[name]
        size = output["parameters"]["binary_data_size"]
        return np.frombuffer(self._buffer[place : place + size], dtype=dtype).reshape(output["shape"])


def post(server: Server, content: bytes, headers: dict[str, str], path: str = INFER) -> Answer:
    """Send a body with exactly these headers: Triton's client sends no content type."""
    url = urlsplit(server.url)
    connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=120)
    try:
        connection.request("POST", path, body=content, headers=headers)
        return Answer(connection.getresponse())
    finally:
        connection.close()


def triton(server: Server, texts: Sequence[str], *outputs: str, shape: Any = None, **parameters: Any) -> Answer:
    """Infer as Triton's client does: an object array as BYTES behind the JSON, all outputs binary."""
    section = b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)
    item = {"name": "text", "shape": shape or [len(texts)], "datatype": "BYTES"}
    body: dict[str, Any] = {"id": "7", "inputs": [{**item, "parameters": {"binary_data_size": len(section)}}]}
    if outputs:
        body["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
    else:
        parameters["binary_data_output"] = True
    if parameters:
        body["parameters"] = parameters
    head = json.dumps(body).encode()
    return post(server, head + section, {LENGTH_HEADER: str(len(head))})


def kserve(server: Server, texts: Sequence[str], outputs: Sequence[str] = (), **parameters: Any) -> Answer:
    """Infer as KServe's client does: JSON, with the name of the model in the body too."""
    item = {"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)}
    body: dict[str, Any] = {"id": "7f0c", "model_name": MODEL_NAME, "inputs": [item]}
    if outputs:
        body["outputs"] = [{"name": name} for name in outputs]
    if parameters:
        body["parameters"] = parameters
    return post(server, json.dumps(body).encode(), {"content-type": "application/json"})


@pytest.fixture(scope="module")
def expected() -> Any:
    """The right embeddings; an empty text is among them."""
    with np.load(REFERENCE / "minilm.npz") as file:
        return file["embeddings"][PLAIN]


def test_both_clients_get_the_references_vectors(server: Server, expected: Any) -> None:
    """In JSON and behind it, the same to the last bit."""
    texts = [ROWS[index]["text"] for index in PLAIN]
    binary, listed = triton(server, texts), kserve(server, texts)
    assert (binary.status, listed.status) == (200, 200)
    assert binary.as_numpy("embedding").shape == (len(texts), 384)
    np.testing.assert_allclose(binary.as_numpy("embedding"), expected, atol=1e-5, rtol=0)
    np.testing.assert_array_equal(binary.as_numpy("embedding"), listed.as_numpy("embedding"))
    assert (binary.head["id"], listed.head["id"]) == ("7", "7f0c")
    assert binary.headers["content-type"] == "application/octet-stream"
    assert listed.headers["content-type"] == "application/json"
    assert listed.headers[LENGTH_HEADER] is None
    [cut] = [place for place, index in enumerate(PLAIN) if len(ROWS[index]["input_ids"]) == MAX_LENGTH]
    assert binary.head["parameters"] == {"truncated_count": 1, "truncated_texts": str(cut)}


def test_attention_is_that_of_encode(server: Server) -> None:
    """Of all 72 heads, padded; true lengths beside it; equal to the native answer, and rows sum to 1."""
    texts = ["The cat sat.", "My sister lost her keys, so she called the landlord."]
    answer = triton(server, texts, "attention", "num_tokens", "embedding", layers="all", heads="all")
    maps, lengths = answer.as_numpy("attention"), answer.as_numpy("num_tokens")
    native = server.encode(texts, attention={"layers": "all", "digits": 9})
    assert lengths.tolist() == native["num_tokens"]
    assert maps.shape == (2, 6, 12, max(lengths), max(lengths))
    for one, described, length in zip(maps, native["attention"], lengths, strict=True):
        np.testing.assert_allclose(one[:, :, :length, :length], described["maps"]["values"], atol=1e-5)
        np.testing.assert_allclose(one[:, :, :length].sum(-1), 1, atol=1e-5)
        assert not one[:, :, length:].any()
        assert not one[..., length:].any()
    np.testing.assert_allclose(answer.as_numpy("embedding"), native["embeddings"], atol=1e-6)
    last = kserve(server, texts, ["attention"], heads=7)
    np.testing.assert_allclose(last.as_numpy("attention"), maps[:, 5:, 7:8], atol=1e-6)
    [output] = last.head["outputs"]
    assert output["parameters"] == {"layers": "5", "heads": "7"}


def test_parameters_and_outputs(server: Server) -> None:
    """Shape [n, 1] as batching servers have it; dimensions; only what was asked for, in that order."""
    answer = triton(server, ["a b", "c"], "num_tokens", "embedding", shape=[2, 1], dimensions=64)
    assert [output["name"] for output in answer.head["outputs"]] == ["num_tokens", "embedding"]
    native = server.encode(["a b", "c"], dimensions=64)
    np.testing.assert_allclose(answer.as_numpy("embedding"), native["embeddings"], atol=1e-6)
    raw = kserve(server, ["a b"], normalize=False).as_numpy("embedding")
    np.testing.assert_allclose(raw, server.encode(["a b"], normalize=False)["embeddings"], atol=1e-5)


def test_a_long_text_is_cut_and_told_or_refused(server: Server) -> None:
    """Never in silence."""
    texts = ["short", "word " * 1_000]
    told = triton(server, texts, "truncated", "num_tokens", "num_tokens_total")
    assert told.head["parameters"] == {"truncated_count": 1, "truncated_texts": "1"}
    assert told.as_numpy("truncated").tolist() == [False, True]
    assert told.as_numpy("num_tokens").tolist() == [3, MAX_LENGTH]
    assert told.as_numpy("num_tokens_total").tolist() == [3, 1_002]
    refused = triton(server, texts, truncate=False)
    assert refused.status == 413
    assert refused.head.keys() == {"error"}
    assert "text[1]" in refused.head["error"]


def test_health_and_metadata_lead_to_a_request(server: Server) -> None:
    """What a client reads before it asks, and a request made of nothing else."""
    get = server.client.get
    assert get("/v2/health/live").json() == {"live": True}
    assert get("/v2/health/ready").json() == {"ready": True}
    assert get(f"/v2/models/{MODEL_NAME}/ready").json() == {"name": MODEL_NAME, "ready": True}
    assert "binary_tensor_data" in get("/v2").json()["extensions"]
    described = get(f"/v2/models/{MODEL_NAME}").json()
    [tensor], [version] = described["inputs"], described["versions"]
    item = {"name": tensor["name"], "datatype": tensor["datatype"], "shape": [1], "data": ["hello"]}
    outputs = [{"name": output["name"]} for output in described["outputs"]]
    path = f"/v2/models/{described['name']}/versions/{version}/infer"
    answer = server.client.post(path, json={"inputs": [item], "outputs": outputs}).json()
    for said, sent in zip(described["outputs"], answer["outputs"], strict=True):
        assert (said["name"], said["datatype"]) == (sent["name"], sent["datatype"])
        assert all(one in (-1, other) for one, other in zip(said["shape"], sent["shape"], strict=True))


SECTION = struct.pack("<I", 5) + b"hello"


@pytest.mark.parametrize(
    ("item", "section", "length", "status"),
    [
        ({"shape": [1], "parameters": {"binary_data_size": 9}}, SECTION, None, 200),
        ({"shape": [1], "parameters": {"binary_data_size": 9}}, SECTION, "0", 400),
        ({"shape": [1], "parameters": {"binary_data_size": 9}}, SECTION, "99999999999", 400),
        ({"shape": [1], "parameters": {"binary_data_size": 9}}, SECTION, "-5", 400),
        ({"shape": [1], "parameters": {"binary_data_size": 9}}, SECTION[:-1], None, 400),
        ({"shape": [1], "parameters": {"binary_data_size": 8}}, SECTION, None, 400),
        ({"shape": [2], "parameters": {"binary_data_size": 9}}, SECTION, None, 400),
        ({"shape": [1], "parameters": {"binary_data_size": 9}}, b"\xff" * 9, None, 400),
        ({"shape": [1], "parameters": {"binary_data_size": 9}}, SECTION[:-1] + b"\xff", None, 400),
        ({"shape": [1], "data": ["a"]}, SECTION, None, 400),
        ({"shape": [1, 2], "data": ["a", "b"]}, b"", None, 400),
        ({"shape": [1], "datatype": "FP32", "data": [1.5]}, b"", None, 400),
        ({"shape": [2_000], "data": ["a"] * 2_000}, b"", None, 413),
        ({"shape": [1], "data": ["a" * 250_000]}, b"", None, 413),
        ({"shape": [1], "parameters": {"binary_data_size": 4_300_004}}, b"a" * 4_300_004, None, 413),
    ],
)
def test_errors_are_the_protocols(
    server: Server, item: dict[str, Any], section: bytes, length: str | None, status: int
) -> None:
    """A short sentence under one key, and the next request is served."""
    head = json.dumps({"inputs": [{"name": "text", "datatype": "BYTES", **item}]}).encode()
    answer = post(server, head + section, {LENGTH_HEADER: str(len(head)) if length is None else length})
    assert answer.status == status
    if status != 200:
        assert answer.head.keys() == {"error"}
        assert 10 < len(answer.head["error"]) < 300
        assert "hello" not in answer.head["error"]
    assert kserve(server, ["a"]).status == 200


def test_attention_over_the_limit_is_refused_with_ways_out(server: Server) -> None:
    """Before any work; and what is proposed works."""
    texts = ["word " * 300, "short"]
    refused = kserve(server, texts, ["attention"], layers="all")
    assert refused.status == 413
    assert "binary_data=true (which may hold 32000000) gives 9437184" in refused.head["error"]
    answer = triton(server, texts, "attention", layers="all")
    assert answer.as_numpy("attention").shape == (2, 6, 12, MAX_LENGTH, MAX_LENGTH)
