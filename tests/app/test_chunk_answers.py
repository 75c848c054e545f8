"""How chunks are written: forms, number types, units of offsets."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import pytest
import safetensors.numpy

from app.schemas.chunks import ChunksResponse
from tests.app.conftest import Served
from tests.app.routes.test_encode import NPZ, SAFETENSORS
from tests.app.routes.test_encode_chunks import SENTENCES, TEXTS

pytestmark = pytest.mark.anyio


async def test_every_form_has_the_same_numbers(server: Served) -> None:
    """JSON, base64, and arrays of each text in safetensors and npz, of the number type asked for."""
    options = {"texts": TEXTS, "chunks": SENTENCES | {"mode": "late"}, "output_dtype": "int8"}
    body = (await server.post("/encode", options)).json()
    ChunksResponse.model_validate(body, strict=True)
    assert [entry["quantization"]["clipped"] for entry in body["chunks"]] == [[0, 0, 0], [0], [0]]
    coded = (await server.post("/encode", {**options, "encoding_format": "base64"})).json()
    response = await server.post("/encode", options, Accept=SAFETENSORS)
    arrays = safetensors.numpy.load(response.content)
    header = json.loads(response.content[8 : 8 + int.from_bytes(response.content[:8], "little")])
    rest = json.loads(header["__metadata__"]["response"])
    npz = np.load(io.BytesIO((await server.post("/encode", options, Accept=NPZ)).content))
    assert json.loads(npz["response"].tobytes()) == rest
    assert arrays.keys() == {f"chunks.{index}.embeddings" for index in range(3)}
    for index, entry in enumerate(body["chunks"]):
        embeddings = entry.pop("embeddings")
        assert rest["chunks"][index] == entry
        for array in (
            arrays[f"chunks.{index}.embeddings"],
            npz[f"chunks.{index}.embeddings"],
            np.stack([np.frombuffer(base64.b64decode(row), "i1") for row in coded["chunks"][index]["embeddings"]]),
        ):
            assert array.dtype == np.int8
            np.testing.assert_array_equal(array, embeddings)


@pytest.mark.parametrize(("unit", "encoding", "width"), [("utf16", "utf-16-le", 2), ("byte", "utf-8", 1)])
async def test_offsets_count_what_the_caller_slices_by(server: Served, unit: str, encoding: str, width: int) -> None:
    """As those of attention do."""
    text = "👩‍🚀 café. Hello é world!"
    [entry] = (await server.encode(text, chunks=SENTENCES | {"offset_unit": unit}))["chunks"]
    sent = text.encode(encoding)
    slices = [
        sent[start * width : end * width].decode(encoding)
        for start, end in zip(entry["start"], entry["end"], strict=True)
    ]
    assert slices == ["👩‍🚀 café.", "Hello é world!"]
