"""Rows of every compatible API's table that no test of its own file has: what comes too late, or is not finite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from app.settings import ModelSpec
from tests.app.conftest import Serve, Served
from tests.tiny import make_bert_folder

pytestmark = pytest.mark.anyio

INFER = "/v2/models/tiny/infer"
TENSOR = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["cat"]}
FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "openai": (
        "/v1/embeddings",
        {"input": ["cat"]},
        {"type": "server_error", "param": None, "code": "deadline_exceeded"},
        {"type": "server_error", "param": "input[0]", "code": "non_finite_output"},
    ),
    "tei": ("/embed", {"inputs": ["cat"]}, {"error_type": "Overloaded"}, {"error_type": "Backend"}),
    "oip": (INFER, {"inputs": [TENSOR]}, {}, {}),
}
"""Path, body, and what stands beside the sentence for each of the two rows."""


def beside_the_sentence(body: dict[str, Any]) -> dict[str, Any]:
    """Take an error apart: everything but its words."""
    nested = body["error"]
    if isinstance(nested, str):
        return {key: value for key, value in body.items() if key != "error"}
    return {key: value for key, value in nested.items() if key != "message"}


@pytest.mark.parametrize("family", FAMILIES)
async def test_too_late_is_504(serve: Serve, family: str) -> None:
    """In each API's shape; nothing is run."""
    path, body, late, _ = FAMILIES[family]
    async with serve(request_timeout_seconds=1e-6) as server:
        response = await server.post(path, body)
        assert response.status_code == 504
        assert beside_the_sentence(response.json()) == late
        assert server.embedder.batches == []


@pytest.mark.parametrize("family", FAMILIES)
async def test_what_is_not_finite_is_500(serve: Serve, tmp_path: Path, family: str) -> None:
    """Never vectors of nulls.

    https://github.com/huggingface/text-embeddings-inference/issues/644
    """
    path, body, _, withheld = FAMILIES[family]
    folder = make_bert_folder(tmp_path / "tiny")
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    tensors["encoder.layer.1.output.LayerNorm.bias"][3] = 3e38  # finite, but no two of them can be added
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    async with serve(model=(ModelSpec("tiny", folder),)) as server:
        response = await server.post(path, body)
        assert response.status_code == 500, response.text[:200]
        assert beside_the_sentence(response.json()) == withheld


@pytest.mark.parametrize(("shape", "data"), [([2, 1], [["a"], ["b"]]), ([2, 1], ["a", "b"]), ([2], ["a", "b"])])
async def test_data_may_be_nested_or_flat(server: Served, shape: list[int], data: list[Any]) -> None:
    """As the Open Inference Protocol allows."""
    response = await server.post(INFER, {"inputs": [{**TENSOR, "shape": shape, "data": data}]})
    [output] = response.json()["outputs"]
    found = np.array(output["data"]).reshape(output["shape"])
    np.testing.assert_allclose(found, server.embedder.encode(["a", "b"]), atol=1e-6)
