"""Writes what clients of the Open Inference Protocol read: metadata, and tensors in JSON or behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.answers import dumps
from app.plain import truncation_headers
from app.schemas.oip import INPUT, OIPInferRequest, OutputName
from app.service import Encoded, ServedModel
from app.tensors import DATATYPES, encode_array
from app.version import VERSION
from model.contract import FloatArray

MODEL_VERSION = "1"
"""A name stands for one folder; who changes the folder changes the name."""

PLATFORM = "pytorch_safetensors"


def describe_server() -> dict[str, Any]:
    """Describe the server, and what it can beyond the protocol."""
    return {"name": "eyeline", "version": VERSION, "extensions": ["binary_tensor_data", "parameters"]}


def describe_model(model: ServedModel) -> dict[str, Any]:
    """Describe the tensors that a model takes and gives; -1 is what depends on the request."""
    shapes: dict[OutputName, tuple[str, list[int]]] = {}
    if model.embedder.info.kind == "embedding":
        shapes["embedding"] = "FP32", [-1, model.embedder.info.dimensions]
    if model.embedder.gives_attention:
        shapes["attention"] = "FP32", [-1, -1, -1, -1, -1]
    shapes |= {"num_tokens": ("INT32", [-1]), "num_tokens_total": ("INT32", [-1]), "truncated": ("BOOL", [-1])}
    return {
        "name": model.name,
        "versions": [MODEL_VERSION],
        "platform": PLATFORM,
        "inputs": [{"name": INPUT, "datatype": "BYTES", "shape": [-1]}],
        "outputs": [{"name": name, "datatype": kind, "shape": shape} for name, (kind, shape) in shapes.items()],
    }


def write_inference(
    encoded: Encoded, request: OIPInferRequest, wanted: Mapping[OutputName, bool]
) -> tuple[bytes, int | None]:
    """Write the answer of ``/infer``.

    Parameters
    ----------
    encoded : Encoded
    request : OIPInferRequest
        For its id.
    wanted : mapping of str to bool
        The outputs in order, and of each whether it stands behind the JSON.

    Returns
    -------
    bytes
        The body.
    int or None
        How much of it is JSON, where tensors stand behind that.
    """
    outputs: list[dict[str, Any]] = []
    sections: list[memoryview] = []
    for name, is_binary in wanted.items():
        array = _tensor(encoded, name)
        parameters: dict[str, Any] = {}
        if name == "attention" and encoded.selection is not None:
            # strings: the protocol's parameters are no lists
            parameters["layers"] = ",".join(map(str, encoded.selection.layers))
            parameters["heads"] = ",".join(map(str, encoded.selection.heads))
        output: dict[str, Any] = {"name": name, "shape": array.shape, "datatype": DATATYPES[array.dtype.name]}
        if is_binary:
            sections.append(encode_array(array))
            parameters["binary_data_size"] = sections[-1].nbytes
        else:
            output["data"] = array.reshape(-1)
        outputs.append(output | ({"parameters": parameters} if parameters else {}))
    head: dict[str, Any] = {"model_name": encoded.model.name, "model_version": MODEL_VERSION}
    if request.id is not None:
        head["id"] = request.id
    content = dumps(head | {"parameters": _truncation(encoded), "outputs": outputs})
    if not sections:
        return content, None
    return b"".join([content, *sections]), len(content)


def num_values(encoded: Encoded, wanted: Mapping[OutputName, bool]) -> int:
    """Count the numbers of an answer: what its writing costs."""
    if encoded.selection is None or "attention" not in wanted:
        return encoded.embeddings.size
    longest = max(item.num_tokens for item in encoded.inputs)
    return encoded.embeddings.size + len(encoded.rows) * encoded.selection.num_values(longest)


def _tensor(encoded: Encoded, name: OutputName) -> NDArray[Any]:
    """Return an output; each has one entry per text."""
    if name == "embedding":
        return np.ascontiguousarray(encoded.embeddings)
    if name == "attention":
        return pad([row.maps for row in encoded.rows if row.maps is not None])
    if name == "truncated":
        return np.array([item.is_truncated for item in encoded.inputs], dtype=bool)
    return np.array([getattr(item, name) for item in encoded.inputs], dtype=np.int32)


def pad(maps: list[FloatArray]) -> FloatArray:
    """Put the maps of texts into one tensor: behind the tokens of a shorter text, rows and columns are 0.

    Parameters
    ----------
    maps : list of array, shape (layers, heads, L, L)
        At least one.

    Returns
    -------
    array, shape (texts, layers, heads, L, L), float32
        L of the longest.
    """
    layers, heads = maps[0].shape[:2]
    longest = max(one.shape[-1] for one in maps)
    padded = np.zeros((len(maps), layers, heads, longest, longest), dtype=np.float32)
    for place, one in zip(padded, maps, strict=True):
        place[:, :, : one.shape[-1], : one.shape[-1]] = one
    return padded


def _truncation(encoded: Encoded) -> dict[str, Any]:
    """Say in the answer itself what the headers say of every compatible API."""
    headers = truncation_headers(encoded.inputs)
    found: dict[str, Any] = {"truncated_count": int(headers["X-Truncated-Count"])}
    if "X-Truncated-Texts" in headers:
        found["truncated_texts"] = headers["X-Truncated-Texts"]
    return found
