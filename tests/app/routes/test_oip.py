"""The Open Inference Protocol through HTTP: what KServe's and Triton's clients send, what they read, its errors."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from app.schemas.oip import OIPErrorResponse, OIPInferResponse, OIPModelMetadata
from app.settings import ModelSpec
from app.tensors import LENGTH_HEADER
from model.contract import EncodeInput
from tests.app.conftest import PROMPTS, Serve, Served, until
from tests.tiny import make_bert_folder

pytestmark = pytest.mark.anyio

INFER = "/v2/models/tiny/infer"
TEXTS = ["The cat sat on the mat.", "A dog barked!", "hello world"]
LONG = "cat " * 100  # 102 tokens, the tiny model reads 32
MARKER = "MARKER7"
NUMPY = {"FP32": "<f4", "INT32": "<i4", "BOOL": "?"}


def ask(texts: Sequence[str], *outputs: str, **fields: Any) -> dict[str, Any]:
    """A body with its texts in JSON."""
    item = {"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)}
    named = {"outputs": [{"name": name} for name in outputs]} if outputs else {}
    return {"inputs": [item], **named, **fields}


def ask_binary(texts: Sequence[str], **fields: Any) -> tuple[bytes, dict[str, str]]:
    """A body with its texts behind the JSON, and the headers of Triton's client: no content type."""
    section = b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)
    item = {"name": "text", "shape": [len(texts), 1], "datatype": "BYTES"}
    head = json.dumps({"inputs": [{**item, "parameters": {"binary_data_size": len(section)}}], **fields}).encode()
    return head + section, {LENGTH_HEADER: str(len(head))}


def tensors(response: httpx.Response) -> dict[str, Any]:
    """Read the outputs as clients do, wherever they stand."""
    assert response.status_code == 200, response.text
    length = response.headers.get(LENGTH_HEADER)
    content = response.content
    head = json.loads(content if length is None else content[: int(length)])
    place = len(content) if length is None else int(length)
    OIPInferResponse.model_validate(head)
    found = {}
    for output in head["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        dtype = NUMPY[output["datatype"]]
        array = np.array(output["data"], dtype) if size is None else np.frombuffer(content[place : place + size], dtype)
        place += size or 0
        found[output["name"]] = array.reshape(output["shape"])
    assert place == len(content)
    expected = "application/json" if length is None else "application/octet-stream"
    assert response.headers["content-type"] == expected
    return found


def assert_error(response: httpx.Response, status: int, words: str) -> None:
    """Check the protocol's one shape: a sentence."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    OIPErrorResponse.model_validate(body, strict=True)
    assert body.keys() == {"error"}
    assert words in body["error"]
    assert MARKER not in response.text


@pytest.mark.parametrize("path", [INFER, "/v2/models/tiny/versions/1/infer"])
async def test_texts_become_a_tensor(server: Served, path: str) -> None:
    """In the order sent, as /encode has them; by name or by version."""
    response = await server.post(path, ask(TEXTS, id="42"))
    found = tensors(response)
    assert list(found) == ["embedding"]
    assert found["embedding"].dtype == np.float32
    np.testing.assert_allclose(found["embedding"], server.embedder.encode(TEXTS), atol=1e-6)
    assert (response.json()["id"], response.json()["model_name"]) == ("42", "tiny")
    template = path.replace("tiny", "{name}").replace("/1/", "/{version}/")
    assert server.sample("eyeline_texts_total", model="tiny", route=template) == 3


async def test_texts_and_tensors_behind_the_json(server: Served) -> None:
    """As Triton's client sends them unless told otherwise: no content type, all outputs binary."""
    content, headers = ask_binary(TEXTS, parameters={"binary_data_output": True})
    response = await server.client.post(INFER, content=content, headers=headers)
    np.testing.assert_array_equal(
        tensors(response)["embedding"], tensors(await server.post(INFER, ask(TEXTS)))["embedding"]
    )
    assert LENGTH_HEADER in response.headers
    kserve = {**headers, "Content-Type": "application/octet-stream"}
    again = await server.client.post(INFER, content=content, headers=kserve)
    assert (
        again.content[: int(again.headers[LENGTH_HEADER])] == response.content[: int(response.headers[LENGTH_HEADER])]
    )


async def test_one_side_binary_the_other_not(server: Served) -> None:
    """Each tensor says for itself where it stands."""
    content, headers = ask_binary(TEXTS, outputs=[{"name": "embedding"}])
    listed = tensors(await server.client.post(INFER, content=content, headers=headers))
    outputs = [{"name": "num_tokens"}, {"name": "embedding", "parameters": {"binary_data": True}}]
    mixed = tensors(await server.post(INFER, {**ask(TEXTS), "outputs": outputs}))
    np.testing.assert_array_equal(listed["embedding"], mixed["embedding"])
    assert mixed["num_tokens"].tolist() == [item.num_tokens for item in server.embedder.tokenizer.encode(TEXTS)]


@pytest.mark.parametrize("is_binary", [False, True])
async def test_attention_is_an_output(server: Served, is_binary: bool) -> None:
    """[texts, layers, heads, L, L], padded with zeros to the longest text; the same numbers as /encode's; the embedding
    does not change.
    """
    asked = ask(TEXTS, "embedding", "attention", "num_tokens", parameters={"layers": "all", "heads": "1,0"})
    asked["parameters"]["binary_data_output"] = is_binary
    response = await server.post(INFER, asked)
    found = tensors(response)
    native = await server.encode(TEXTS, attention={"layers": "all", "heads": [1, 0], "digits": 9})
    longest = max(native["num_tokens"])
    assert found["attention"].shape == (3, 2, 2, longest, longest)
    for maps, described, length in zip(found["attention"], native["attention"], found["num_tokens"], strict=True):
        np.testing.assert_allclose(maps[:, :, :length, :length], described["maps"]["values"], atol=1e-6)
        np.testing.assert_allclose(maps.sum(-1)[:, :, :length], 1, atol=1e-5)
        assert not maps[:, :, length:].any()
        assert not maps[..., length:].any()
    np.testing.assert_allclose(found["embedding"], native["embeddings"], atol=1e-6)
    plain = tensors(await server.post(INFER, ask(TEXTS)))
    np.testing.assert_allclose(found["embedding"], plain["embedding"], atol=1e-6)


async def test_the_last_layer_by_default(server: Served) -> None:
    """With all its heads; and attention alone needs no embedding beside it."""
    response = await server.post(INFER, ask(["cat"], "attention"))
    [output] = response.json()["outputs"]
    assert output["parameters"] == {"layers": "1", "heads": "0,1"}
    assert tensors(response)["attention"].shape == (1, 1, 2, 3, 3)


async def test_parameters_are_those_of_encode(server: Served) -> None:
    """Cut to dimensions and scaled anew, not scaled, behind prompts."""
    for parameters, options in (
        ({"dimensions": 5}, {"dimensions": 5}),
        ({"normalize": False}, {"normalize": False}),
        ({"prompt_name": "query"}, {"prompt": PROMPTS["query"]}),
        ({"prompt": "passage: ", "dimensions": None}, {"prompt": "passage: "}),
    ):
        found = tensors(await server.post(INFER, ask(TEXTS, parameters=parameters)))
        np.testing.assert_allclose(found["embedding"], server.embedder.encode(TEXTS, **options), atol=1e-6)


async def test_an_empty_text_is_a_text(server: Served) -> None:
    """As on /encode: it is its special tokens; in JSON and behind it."""
    expected = server.embedder.encode([""])
    found = tensors(await server.post(INFER, ask([""], "embedding", "num_tokens")))
    np.testing.assert_allclose(found["embedding"], expected, atol=1e-6)
    assert found["num_tokens"].tolist() == [2]
    content, headers = ask_binary([""])
    found = tensors(await server.client.post(INFER, content=content, headers=headers))
    np.testing.assert_allclose(found["embedding"], expected, atol=1e-6)


async def test_truncation_is_told(server: Served) -> None:
    """In the answer's parameters, in the headers, and as outputs; and it can be forbidden."""
    texts = ["a", LONG, "b", LONG, LONG]
    response = await server.post(INFER, ask(texts, "truncated", "num_tokens", "num_tokens_total"))
    assert response.json()["parameters"] == {"truncated_count": 3, "truncated_texts": "1,3-4"}
    assert response.headers["x-truncated-texts"] == "1,3-4"
    found = tensors(response)
    assert found["truncated"].tolist() == [False, True, False, True, True]
    assert found["num_tokens"].tolist() == [3, 32, 3, 32, 32]
    assert found["num_tokens_total"].tolist() == [3, 102, 3, 102, 102]
    whole = await server.post(INFER, ask(["a"]))
    assert whole.json()["parameters"] == {"truncated_count": 0}
    refused = await server.post(INFER, ask(["a", LONG], parameters={"truncate": False}))
    assert_error(refused, 413, "text[1]")
    assert "102" in refused.text


async def test_what_is_not_known_is_named(server: Served) -> None:
    """KServe's own fields are known; what is not is taken, and told."""
    known = ask(["a"], id="5", model_name="other", model_version="")
    assert "x-ignored-fields" not in (await server.post(INFER, known)).headers
    odd = ask(["a"], parameters={"timeout": 5, f"{MARKER} ": 1})
    response = await server.post(INFER, odd)
    assert response.headers["x-ignored-fields"] == "parameters.timeout,?"


def with_input(**fields: Any) -> dict[str, Any]:
    """A body whose input is odd."""
    return {"inputs": [{**ask([MARKER])["inputs"][0], **fields}]}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "inputs: is required"),
        ({"inputs": []}, "inputs"),
        (with_input(name=MARKER), "inputs[0].name"),
        (with_input(datatype="FP32"), "inputs[0].datatype: should be 'BYTES'"),
        (with_input(shape=[2]), "inputs[0].data: has 1 elements, shape says 2"),
        (with_input(shape=[1, 2]), "inputs[0].shape: should be [n] or [n, 1]"),
        (with_input(shape=[0]), "inputs[0].shape[0]"),
        (with_input(shape=[1, 1, 1]), "inputs[0].shape"),
        (with_input(data=[5]), "inputs[0].data[0]"),
        (with_input(data=None), "inputs[0]: should have either data or"),
        (with_input(parameters={"binary_data_size": 5}), "inputs[0]: should have either data or"),
        (with_input(data=None, parameters={"binary_data_size": 5}), "0 bytes stand behind the JSON"),
        (ask([MARKER], "logits"), "outputs[0].name"),
        (ask([MARKER], "embedding", "embedding"), "outputs[1].name: is named twice"),
        (ask([MARKER], id=5), "id"),
        (ask([MARKER], parameters={"dimensions": 17}), "parameters.dimensions: dimensions must be from 1 to 16"),
        (ask([MARKER], parameters={"dimensions": "8"}), "parameters.dimensions"),
        (ask([MARKER], parameters={"prompt_name": MARKER}), "parameters.prompt_name"),
        (ask([MARKER], parameters={"layers": 0}), "parameters.layers: chooses from the output attention"),
        (ask([MARKER], "attention", parameters={"layers": 2}), "parameters.layers"),
        (ask([MARKER], "attention", parameters={"heads": "0,2"}), "parameters.heads"),
        (ask([MARKER], "attention", parameters={"heads": [0, 0]}), "parameters.heads"),
        (ask([MARKER], "attention", parameters={"heads": MARKER}), "parameters.heads"),
    ],
)
async def test_what_is_wrong_is_400(server: Served, body: dict[str, Any], words: str) -> None:
    """In the protocol's shape, with the place and without what was sent; before any forward pass."""
    assert_error(await server.post(INFER, body), 400, words)
    assert server.embedder.batches == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content, length: (content, length + len(content)), LENGTH_HEADER),
        (lambda content, length: (content, "ten"), LENGTH_HEADER),
        (lambda content, length: (content, -1), LENGTH_HEADER),
        (lambda content, length: (content, length - 1), "not valid JSON"),
        (lambda content, length: (content, length + 1), "not valid JSON"),
        (lambda content, length: (content, 0), "not valid JSON"),
        (lambda content, length: (content, None), "not valid JSON"),
        (lambda content, length: (content[:length], length), "0 bytes stand behind the JSON"),
        (lambda content, length: (content[:-1], length), "bytes stand behind the JSON"),
        (lambda content, length: (content + b"x", length), "bytes stand behind the JSON"),
        (lambda content, length: (content.replace(b"[2, 1]", b"[3, 1]"), length), "text[2]"),
        (lambda content, length: (content.replace(b"[2, 1]", b"[1, 1]"), length), "goes on for"),
        (lambda content, length: (content.replace(b"\x07\0\0\0", b"\x07\0\0\x01"), length), "text[0]: its length is"),
        (lambda content, length: (content.replace(MARKER.encode(), b"MARKER\xff"), length), "text[0]: is not UTF-8"),
    ],
)
async def test_binary_that_does_not_fit_is_400(server: Served, change: Any, words: str) -> None:
    """Wrong lengths in header, parameters and elements; bytes too few or too many."""
    content, headers = ask_binary([MARKER, "b"])
    changed, length = change(content, int(headers[LENGTH_HEADER]))
    named = {} if length is None else {LENGTH_HEADER: str(length)}
    assert_error(await server.client.post(INFER, content=changed, headers=named), 400, words)
    assert server.embedder.batches == []


async def test_errors_before_the_route_have_the_shape_too(server: Served) -> None:
    """Malformed JSON, another content type, compression, a wrong verb, a path that is not served, no such model."""
    client, json_type = server.client, {"content-type": "application/json"}
    for content in (b'{"inputs": ', b'{"id": "a\\ud800b"}', b""):
        assert_error(await client.post(INFER, content=content, headers=json_type), 400, "not valid JSON")
    text = await client.post(INFER, content=b"{}", headers={"content-type": "text/plain"})
    assert_error(text, 415, "application/octet-stream")
    packed = await client.post(INFER, content=b"{}", headers={**json_type, "content-encoding": "gzip"})
    assert_error(packed, 415, "Content-Encoding")
    wrong_verb = await client.get(INFER)
    assert_error(wrong_verb, 405, "")
    assert wrong_verb.headers["allow"] == "POST"
    assert_error(await client.get(f"/v2/{MARKER}"), 404, "")
    for path in (f"/v2/models/{MARKER}", f"/v2/models/{MARKER}/ready", "/v2/models/tiny/versions/2/ready"):
        assert_error(await client.get(path), 404, "is served")
    for path in (f"/v2/models/{MARKER}/infer", f"/v2/models/tiny/versions/{MARKER}/infer"):
        assert_error(await server.post(path, ask(["a"])), 404, "is served")


async def test_too_much_is_refused(serve: Serve) -> None:
    """Every limit of the other routes: bytes, texts, characters, attention, the queue."""
    async with serve(max_body_bytes=400, max_texts=3, max_text_characters=50) as server:
        assert_error(await server.post(INFER, ask(["a" * 500])), 413, "may have 400")
        assert_error(await server.post(INFER, ask(["a"] * 4)), 413, "a request may hold 3 texts")
        content, headers = ask_binary(["a"] * 4)
        assert_error(await server.client.post(INFER, content=content, headers=headers), 413, "may hold 3 texts")
        assert_error(await server.post(INFER, ask(["a", "b" * 51])), 413, "text[1]")
    async with serve(max_attention_values_list=50, max_attention_values_binary=200) as server:
        asked = ask(["cat", "cat cat cat"], "attention")
        assert_error(await server.post(INFER, asked), 413, "binary_data=true (which may hold 200) gives 100")
        asked["parameters"] = {"binary_data_output": True}
        assert tensors(await server.post(INFER, asked))["attention"].size == 100
        assert_error(await server.post(INFER, ask(["cat " * 9], "attention")), 413, "attention")
    async with serve(max_queue_tokens=32, batch_tokens=32) as server:
        assert_error(await server.post(INFER, ask([LONG, LONG])), 413, "")


async def test_a_full_queue_says_when_to_come_back(serve: Serve) -> None:
    """429 with Retry-After."""
    async with serve(max_queue_texts=1, max_texts=1) as server:
        server.embedder.gate.clear()
        running = asyncio.create_task(server.post(INFER, ask(["a"])))
        await until(lambda: bool(server.embedder.batches))
        waiting = asyncio.create_task(server.post(INFER, ask(["b"])))
        await until(lambda: server.sample("eyeline_queue_texts", model="tiny") == 1)
        refused = await server.post(INFER, ask(["c"]))
        assert_error(refused, 429, "")
        assert int(refused.headers["retry-after"]) >= 1
        server.embedder.gate.set()
        assert [answer.status_code for answer in await asyncio.gather(running, waiting)] == [200, 200]


async def test_a_server_that_cannot_answer_says_so(server: Served) -> None:
    """500 for what fails, with the text; 501 where a model gives no maps."""

    def fail(inputs: Sequence[EncodeInput]) -> None:
        raise RuntimeError(MARKER)

    server.embedder.before_run = fail
    assert_error(await server.post(INFER, ask(["a"])), 500, "text[0]")
    server.embedder.before_run = None
    server.embedder.gives_attention = False
    assert_error(await server.post(INFER, ask(["a"], "attention")), 501, "cannot be given as maps")
    assert tensors(await server.post(INFER, ask(["a"])))["embedding"].shape == (1, 16)


async def test_health_and_readiness(server: Served) -> None:
    """200 with true; a server that drains is alive and not ready; one that loads knows no model yet."""
    get = server.client.get
    expected: Mapping[str, Any] = {
        "/v2/health/live": {"live": True},
        "/v2/health/ready": {"ready": True},
        "/v2/models/tiny/ready": {"name": "tiny", "ready": True},
        "/v2/models/tiny/versions/1/ready": {"name": "tiny", "ready": True},
    }
    for path, body in expected.items():
        response = await get(path)
        assert (response.status_code, response.json()) == (200, body)
    for path in ("/v2/health/live", "/v2/health/ready"):
        assert (await server.client.head(path)).status_code == 200
    server.state.is_draining = True
    for path in list(expected)[1:]:
        response = await get(path)
        assert (response.status_code, response.json()["ready"]) == (503, False)
    assert (await get("/v2/health/live")).status_code == 200
    server.state.service, service = None, server.state.service
    assert (await get("/v2/health/ready")).json() == {"ready": False}
    early = await get("/v2/models/tiny/ready")
    assert_error(early, 503, "is being loaded")
    assert early.headers["retry-after"] == "1"
    assert_error(await server.post(INFER, ask(["a"])), 503, "is being loaded")
    server.state.service, server.state.is_draining = service, False


async def test_each_model_by_its_name(serve: Serve, tmp_path: Path) -> None:
    """Metadata and vectors are its own."""
    other = make_bert_folder(tmp_path / "other", seed=1)
    first = make_bert_folder(tmp_path / "first")
    async with serve(model=(ModelSpec("first", first), ModelSpec("other", other))) as server:
        for path in ("/v2/models/other", "/v2/models/other/versions/1"):
            body = (await server.client.get(path)).json()
            OIPModelMetadata.model_validate(body, strict=True)
            assert body["name"] == "other"
        response = await server.post("/v2/models/other/infer", ask(["cat"], model_name="first"))
        np.testing.assert_allclose(tensors(response)["embedding"], server.embedders["other"].encode(["cat"]), atol=1e-6)
        assert (await server.client.get("/v2")).json()["name"] == "eyeline"


async def test_large_answers_are_written_on_a_thread(server: Served) -> None:
    """Nothing differs."""
    texts = [LONG] * 12
    found = tensors(await server.post(INFER, ask(texts, "embedding", "attention", parameters={"layers": "all"})))
    assert found["attention"].shape == (12, 2, 2, 32, 32)
    np.testing.assert_allclose(found["embedding"], server.embedder.encode(texts), atol=1e-6)


async def test_timings_and_ids_are_in_the_headers(server: Served) -> None:
    """As of every route."""
    response = await server.post(INFER, ask(["a"]), X_Request_ID="mine")
    assert response.headers["x-request-id"] == "mine"
    assert response.headers["server-timing"].startswith("tokenize;dur=")
