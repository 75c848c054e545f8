"""Writes what was found: JSON, safetensors or npz, from arrays, without a detour through lists of Python numbers."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import orjson
import safetensors.numpy
from numpy.typing import NDArray

from app.errors import NotAcceptableError
from app.schemas.encode import AttentionOptions, EncodeRequest
from app.service import Encoded, Tokenized
from model.contract import AttentionSelection, EncodeInput, FloatArray, TokenTable, WordTable

Form = Literal["json", "safetensors", "npz"]

MEDIA_TYPES: Mapping[str, Form] = {
    "application/json": "json",
    "*/*": "json",
    "application/*": "json",
    "application/vnd.safetensors": "safetensors",
    "application/octet-stream": "safetensors",
    "application/x-npz": "npz",
}
"""What ``Accept`` may ask for -> what is written."""

CONTENT_TYPES: Mapping[Form, str] = {
    "json": "application/json",
    "safetensors": "application/vnd.safetensors",
    "npz": "application/x-npz",
}

AXES = ("layer", "head", "query", "key")


def negotiate(accept: str | None) -> Form:
    """Choose the form of an answer.

    Parameters
    ----------
    accept : str or None
        The header; None or empty means anything.

    Returns
    -------
    Form
        Of the known media types, the one with the highest quality; the first named among equals.

    Raises
    ------
    NotAcceptableError
        If the header names none of them.

    References
    ----------
    RFC 9110, section 12.5.1.
    """
    if not accept:
        return "json"
    best: tuple[float, Form] | None = None
    for part in accept.split(","):
        media_type, *parameters = (piece.strip().lower() for piece in part.split(";"))
        form = MEDIA_TYPES.get(media_type)
        quality = _quality(parameters)
        if form is not None and quality > (best[0] if best else 0.0):
            best = quality, form
    if best is None:
        raise NotAcceptableError(f"the Accept header names none of {', '.join(CONTENT_TYPES.values())}")
    return best[1]


def _quality(parameters: list[str]) -> float:
    """Read ``q``; 1 where there is none, 0 where it is no number."""
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def write_encoded(encoded: Encoded, request: EncodeRequest, form: Form) -> bytes:
    """Write the answer of ``/encode``.

    Parameters
    ----------
    encoded : Encoded
    request : EncodeRequest
        For ``encoding_format`` and the attention options.
    form : Form

    Returns
    -------
    bytes
        In binary forms ``embeddings`` and ``attention.{i}.maps`` are arrays, and everything else is JSON: the
        metadata entry ``response`` of safetensors, the array ``response`` (uint8) of npz.
    """
    head = {"model": encoded.model.name, "dimensions": encoded.embeddings.shape[1]}
    counts: dict[str, Any] = {
        "num_tokens": [item.num_tokens for item in encoded.inputs],
        "num_tokens_total": [item.num_tokens_total for item in encoded.inputs],
        "truncated": [item.is_truncated for item in encoded.inputs],
    }
    if request.attention is not None:
        counts["attention"] = _attention(encoded, request.attention, with_values=form == "json")
    if form == "json":
        return dumps(head | {"embeddings": _embeddings(encoded.embeddings, request.encoding_format)} | counts)
    body = head | counts
    arrays: dict[str, NDArray[Any]] = {"embeddings": encoded.embeddings}
    if request.attention is not None:
        for index, row in enumerate(encoded.rows):
            if row.attention is not None:
                arrays[f"attention.{index}.maps"] = row.attention.astype(request.attention.dtype)
    if form == "safetensors":
        return safetensors.numpy.save(arrays, metadata={"response": dumps(body).decode()})
    buffer = io.BytesIO()
    arrays["response"] = np.frombuffer(dumps(body), dtype=np.uint8)
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def write_tokenized(tokenized: Tokenized) -> bytes:
    """Write the answer of ``/tokenize``."""
    texts = [
        text_tables(item)
        | {
            "num_tokens": item.num_tokens,
            "num_tokens_total": item.num_tokens_total,
            "truncated": item.is_truncated,
        }
        for item in tokenized.inputs
    ]
    return dumps({"model": tokenized.model.name, "texts": texts})


def num_values(encoded: Encoded) -> int:
    """Count the numbers an answer will hold: what its writing costs."""
    return encoded.embeddings.size + sum(row.attention.size for row in encoded.rows if row.attention is not None)


def dumps(body: Mapping[str, Any]) -> bytes:
    """Write JSON. Arrays are finite by now (the batcher refuses others), or orjson would write null for a NaN."""
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


def _embeddings(embeddings: FloatArray, encoding_format: Literal["float", "base64"]) -> FloatArray | list[str]:
    if encoding_format == "float":
        return np.ascontiguousarray(embeddings)
    return [_base64(row.astype("<f4")) for row in embeddings]


def _base64(array: NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")


def _attention(encoded: Encoded, options: AttentionOptions, *, with_values: bool) -> list[dict[str, Any] | None]:
    """Describe the maps of each text; null where they were not asked for."""
    return [
        None
        if row.attention is None or encoded.selection is None
        else text_tables(item) | {"maps": _maps(row.attention, encoded.selection, options, with_values=with_values)}
        for item, row in zip(encoded.inputs, encoded.rows, strict=True)
    ]


def text_tables(item: EncodeInput) -> dict[str, Any]:
    """Write the token and word tables of a text."""
    return (
        {}
        if item.tokens is None or item.words is None
        else {"tokens": _tokens(item.tokens), "words": _words(item.words)}
    )


def _tokens(table: TokenTable) -> dict[str, Any]:
    return {
        "id": table.ids,
        "text": table.texts,
        "start": table.starts,
        "end": table.ends,
        "special": table.special,
        "segment": table.segments,
        "word": table.words,
    }


def _words(table: WordTable) -> dict[str, Any]:
    return {"text": table.texts, "start": table.starts, "end": table.ends, "segment": table.segments}


def _maps(
    weights: FloatArray, selection: AttentionSelection, options: AttentionOptions, *, with_values: bool
) -> dict[str, Any]:
    """Write the maps of one text, as lists, as base64, or (binary answers) only what they are."""
    body: dict[str, Any] = {
        "layers": selection.layers,
        "heads": selection.heads,
        "axes": AXES,
        "shape": weights.shape,
    }
    if with_values and options.encoding == "list":
        return body | {"values": round_significant(weights, options.digits)}
    body |= {"dtype": options.dtype, "order": "C", "endian": "little"}
    if with_values:
        body["data"] = _base64(weights.astype(np.dtype(options.dtype).newbyteorder("<")))
    return body


def round_significant(values: FloatArray, digits: int) -> FloatArray:
    """Round to so many significant digits: decimals would break the sums of long rows, digits do not.

    Returns
    -------
    array, same shape, float32
        The float32 nearest to the rounded number, which JSON then shows with those digits.
    """
    return round_wide(values, digits).astype(np.float32)


def round_wide(values: NDArray[np.floating[Any]], digits: int) -> NDArray[np.float64]:
    """Round to so many significant digits, in float64."""
    wide = values.astype(np.float64)
    with np.errstate(divide="ignore"):
        magnitude = np.floor(np.log10(np.abs(wide)))
    # numbers under 1e-290 do not come from float32; a zero has no magnitude and stays zero
    scale = 10.0 ** (digits - 1 - np.where(np.isfinite(magnitude), magnitude, 0.0))
    return np.round(wide * scale) / scale
