"""Number types of embeddings through HTTP: ``output_dtype`` of /encode and of OpenAI's route."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from app.schemas.encode import EncodeResponse
from model.contract import FloatArray
from model.output_dtype import NUMPY_DTYPES, convert, int8_range
from model.output_types import OutputDtype
from tests.app.conftest import Serve, Served, make_settings, serving
from tests.app.routes.test_encode import DIMENSIONS, NPZ, SAFETENSORS, TEXTS, assert_problem
from tests.tiny import make_bert_folder

pytestmark = pytest.mark.anyio


async def plain(server: Served, texts: list[str] = TEXTS) -> FloatArray:
    """The embeddings in float32."""
    return np.array((await server.encode(texts))["embeddings"], np.float32)


@pytest.mark.parametrize("output_dtype", NUMPY_DTYPES)
async def test_every_type_in_every_form(server: Served, output_dtype: OutputDtype) -> None:
    """JSON has the numbers, base64 their bytes, safetensors and npz arrays of the type: all the same."""
    expected = convert(await plain(server), output_dtype)
    options = {"texts": TEXTS, "output_dtype": output_dtype}
    body = await server.encode(TEXTS, output_dtype=output_dtype)
    EncodeResponse.model_validate(body, strict=True)
    assert body["dimensions"] == DIMENSIONS
    found: list[Any] = [np.array(body["embeddings"], expected.dtype)]
    if expected.dtype.kind != "f":
        assert {type(value) for row in body["embeddings"] for value in row} == {int}
    encoded = await server.encode(TEXTS, output_dtype=output_dtype, encoding_format="base64")
    found.append(
        np.stack([np.frombuffer(base64.b64decode(row), NUMPY_DTYPES[output_dtype]) for row in encoded["embeddings"]])
    )
    response = await server.post("/encode", options, Accept=SAFETENSORS)
    found.append(safetensors.numpy.load(response.content)["embeddings"])
    response = await server.post("/encode", options, Accept=NPZ)
    found.append(np.load(io.BytesIO(response.content))["embeddings"])
    for array in found:
        assert array.dtype == expected.dtype
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("output_dtype", ["int8", "uint8"])
async def test_the_range_is_said(server: Served, output_dtype: OutputDtype) -> None:
    """With it a reader has the numbers back; float types have none."""
    body = await server.encode(TEXTS, output_dtype=output_dtype)
    assert body["quantization"] == {"range": int8_range(DIMENSIONS), "clipped": [0] * len(TEXTS)}
    zero = 128 if output_dtype == "uint8" else 0
    back = (np.array(body["embeddings"]) - zero) * body["quantization"]["range"] / 127
    np.testing.assert_allclose(back, await plain(server), atol=0.5 / 127 * 1.01)
    assert "quantization" not in await server.encode(TEXTS, output_dtype="float16")


async def test_what_is_clipped_is_counted(tmp_path: Any) -> None:
    """Of a model with one outsized dimension each text says that it lost it, on both routes."""
    folder = make_bert_folder(tmp_path / "wide", hidden_size=64)
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    tensors["encoder.layer.1.output.LayerNorm.bias"][5] = 100
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    async with serving(make_settings(folder)) as server:
        body = await server.encode(TEXTS, output_dtype="int8")
        assert body["quantization"] == {"range": 0.75, "clipped": [1] * len(TEXTS)}
        assert [row[5] for row in body["embeddings"]] == [127] * len(TEXTS)
        response = await server.post("/v1/embeddings", {"input": ["a", "b"], "output_dtype": "uint8"})
        assert response.headers["x-clipped-count"] == "2"


async def test_a_text_is_the_same_beside_any_other(server: Served) -> None:
    """No range is taken from the texts of a request."""
    alone = await server.encode([TEXTS[0]], output_dtype="int8")
    beside = await server.encode(TEXTS, output_dtype="int8")
    np.testing.assert_allclose(alone["embeddings"][0], beside["embeddings"][0], atol=1)


async def test_what_has_no_meaning_is_refused(server: Served) -> None:
    """int8 of vectors of any length, bits that do not fill a number, a type that is none: named, before any work."""
    for options, limit in (
        ({"output_dtype": "int8", "normalize": False}, None),
        ({"output_dtype": "binary", "dimensions": 12}, 8),
    ):
        response = await server.post("/encode", {"texts": "a", **options})
        body = assert_problem(response, 422, "output_dtype_not_possible", "output_dtype", limit)
        assert body.get("actual") == options.get("dimensions")
    response = await server.post("/encode", {"texts": "a", "output_dtype": "float"})
    assert_problem(response, 422, "invalid_request", "output_dtype")
    assert server.embedder.batches == []


async def test_float16_that_would_be_infinite_is_refused(serve: Serve, tmp_path: Any) -> None:
    """Where vectors keep their length, a number over 65,504 is the caller's to know of."""
    folder = make_bert_folder(tmp_path / "large")
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    tensors["encoder.layer.1.output.LayerNorm.bias"][5] = 1e6
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    async with serving(make_settings(folder)) as server:
        options = {"texts": ["a", "b"], "output_dtype": "float16"}
        response = await server.post("/encode", {**options, "normalize": False})
        assert_problem(response, 422, "output_dtype_not_possible", "texts[0]")
        assert (await server.post("/encode", options)).status_code == 200


@pytest.mark.parametrize("output_dtype", NUMPY_DTYPES)
async def test_openais_route_knows_them(server: Served, output_dtype: OutputDtype) -> None:
    """As numbers and as base64; a header counts what int8 and uint8 clipped; OpenAI's own answer is as it was."""
    expected = convert(await plain(server, TEXTS[:2]), output_dtype)
    for encoding_format in ("float", "base64"):
        sent = {"input": TEXTS[:2], "output_dtype": output_dtype, "encoding_format": encoding_format}
        response = await server.post("/v1/embeddings", sent)
        assert response.status_code == 200, response.text
        rows = [entry["embedding"] for entry in response.json()["data"]]
        if encoding_format == "base64":
            rows = [np.frombuffer(base64.b64decode(row), expected.dtype) for row in rows]
        np.testing.assert_array_equal(np.array(rows, expected.dtype), expected)
        assert response.headers.get("x-clipped-count") == ("0" if output_dtype in {"int8", "uint8"} else None)


async def test_openais_errors_name_the_numbers(server: Served) -> None:
    """In OpenAI's own shape."""
    response = await server.post("/v1/embeddings", {"input": "a", "output_dtype": "ubinary", "dimensions": 12})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("output_dtype", "output_dtype_not_possible")
    assert "12 dimensions are no multiple of 8" in error["message"]
