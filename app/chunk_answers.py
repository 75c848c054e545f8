"""Writes the answer of ``/encode`` with chunks: JSON, safetensors or npz."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from app.answers import Form, dumps, json_embeddings, quantization, write_binary
from app.chunk_flow import EncodedChunks
from app.schemas.chunks import ChunkOptions
from app.schemas.encode import EncodeRequest
from model.chunks import ChunkedText
from model.offsets import convert_offsets
from model.output_dtype import RANGED, convert


def write_chunks(encoded: EncodedChunks, request: EncodeRequest, options: ChunkOptions, form: Form) -> bytes:
    """Write the answer; in binary forms the embeddings of text i are the array ``chunks.{i}.embeddings``.

    Parameters
    ----------
    encoded : EncodedChunks
    request : EncodeRequest
        For ``output_dtype`` and ``encoding_format``.
    options : ChunkOptions
        For ``offset_unit``.
    form : Form
    """
    arrays: dict[str, NDArray[Any]] = {}
    chunks: list[dict[str, Any]] = []
    for index, (text, chunked, found) in enumerate(
        zip(encoded.texts, encoded.chunked, encoded.embeddings, strict=True)
    ):
        columns = _columns(text, chunked, options)
        if request.output_dtype in RANGED:
            columns["quantization"] = quantization(found)
        embeddings = convert(found, request.output_dtype)
        if form == "json":
            columns["embeddings"] = json_embeddings(embeddings, request.encoding_format)
        arrays[f"chunks.{index}.embeddings"] = embeddings
        chunks.append(columns)
    body = {
        "model": encoded.model.name,
        "dimensions": encoded.embeddings[0].shape[1],
        "chunks": chunks,
        "num_tokens": [sum(item.num_tokens for item in text.inputs) for text in encoded.chunked],
        "num_tokens_total": [text.num_tokens_total for text in encoded.chunked],
        "truncated": [any(chunk.is_truncated for chunk in text.chunks) for text in encoded.chunked],
    }
    return dumps(body) if form == "json" else write_binary(body, arrays, form)


def num_chunk_values(encoded: EncodedChunks) -> int:
    """Count the numbers that an answer will hold: what its writing costs."""
    return sum(found.size for found in encoded.embeddings)


def _columns(text: str, chunked: ChunkedText, options: ChunkOptions) -> dict[str, Any]:
    """Describe the chunks of a text."""
    return {
        "start": convert_offsets(text, [chunk.start for chunk in chunked.chunks], options.offset_unit),
        "end": convert_offsets(text, [chunk.end for chunk in chunked.chunks], options.offset_unit),
        "num_tokens": [len(chunk.tokens) for chunk in chunked.chunks],
        "truncated": [chunk.is_truncated for chunk in chunked.chunks],
    }
