"""Writes what was found: JSON, safetensors or npz, from arrays, without a detour through lists of Python numbers."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import orjson
import safetensors.numpy
from numpy.typing import NDArray

from app.attention_answers import attention_arrays, attention_parts, num_attention_values
from app.errors import NotAcceptableError
from app.numbers import to_base64
from app.schemas.encode import EncodeRequest
from app.service import Encoded, Tokenized
from model.contract import EncodeInput, FloatArray
from model.offsets import OffsetUnit, convert_offsets
from model.output_dtype import RANGED, convert, int8_range, num_clipped
from model.tokenizer import Text

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

TABLE_COLUMNS = 7
"""What :func:`text_tables` says of each token."""


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
        For ``output_dtype``, ``encoding_format`` and the attention options.
    form : Form

    Returns
    -------
    bytes
        In binary forms ``embeddings`` and the numbers of ``attention.{i}`` are arrays, and everything else is JSON:
        the metadata entry ``response`` of safetensors, the array ``response`` (uint8) of npz.
    """
    head = {"model": encoded.model.name, "dimensions": encoded.embeddings.shape[1]}
    counts: dict[str, Any] = {
        "num_tokens": [item.num_tokens for item in encoded.inputs],
        "num_tokens_total": [item.num_tokens_total for item in encoded.inputs],
        "truncated": [item.is_truncated for item in encoded.inputs],
    }
    if request.output_dtype in RANGED:
        counts["quantization"] = quantization(encoded.embeddings)
    if request.attention is not None:
        counts["attention"] = _attention(encoded, request, with_values=form == "json")
    embeddings = convert(encoded.embeddings, request.output_dtype)
    if form == "json":
        return dumps(head | {"embeddings": json_embeddings(embeddings, request.encoding_format)} | counts)
    body = head | counts
    arrays: dict[str, NDArray[Any]] = {"embeddings": embeddings}
    if request.attention is not None:
        for index, row in enumerate(encoded.rows):
            if row.attention is not None:
                parts = attention_arrays(row.attention, request.attention.dtype)
                arrays |= {f"attention.{index}.{name}": array for name, array in parts.items()}
    return write_binary(body, arrays, form)


def write_binary(
    body: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], form: Literal["safetensors", "npz"]
) -> bytes:
    """Write arrays, and everything else as JSON beside them."""
    if form == "safetensors":
        return safetensors.numpy.save(dict(arrays), metadata={"response": dumps(body).decode()})
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays, response=np.frombuffer(dumps(body), dtype=np.uint8))
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
    """Count the numbers an answer will hold, token tables included: what its writing costs."""
    described = sum(
        item.num_tokens
        for item, row in zip(encoded.inputs, encoded.rows, strict=True)
        if row.attention is not None and item.tokens is not None
    )
    return encoded.embeddings.size + TABLE_COLUMNS * described + sum(map(num_attention_values, encoded.rows))


def dumps(body: object) -> bytes:
    """Write JSON. A NaN becomes null: statistics that have no meaning; the batcher lets no other NaN pass."""
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


def json_embeddings(
    embeddings: NDArray[Any], encoding_format: Literal["float", "base64"] | None
) -> NDArray[Any] | list[str]:
    """Write embeddings for JSON, whatever their number type: as they are, or each as base64 of its bytes."""
    return [to_base64(row, row.dtype.str) for row in embeddings] if encoding_format == "base64" else embeddings


def quantization(embeddings: FloatArray) -> dict[str, Any]:
    """Say what int8 and uint8 make of embeddings: (n, D), float32."""
    return {"range": int8_range(embeddings.shape[1]), "clipped": num_clipped(embeddings)}


def _attention(encoded: Encoded, request: EncodeRequest, *, with_values: bool) -> list[dict[str, Any] | None]:
    """Describe the attention of each text; null where it was not asked for."""
    options, selection = request.attention, encoded.selection
    texts = [request.texts] if isinstance(request.texts, str) else request.texts
    return [
        None
        if row.attention is None or options is None or selection is None
        else text_tables(item, text, options.offset_unit)
        | attention_parts(item, row.attention, selection, options, with_values=with_values)
        for item, text, row in zip(encoded.inputs, texts, encoded.rows, strict=True)
    ]


def text_tables(item: EncodeInput, text: Text = "", unit: OffsetUnit = "codepoint") -> dict[str, Any]:
    """Write the token and word tables of a text.

    Parameters
    ----------
    item : EncodeInput
    text : str or (str, str)
        The caller's own; only units other than code points need it.
    unit : "codepoint", "utf16" or "byte"
        Of ``start`` and ``end``.
    """
    if item.tokens is None or item.words is None:
        return {}
    tokens, words = item.tokens, item.words
    return {
        "tokens": {
            "id": tokens.ids,
            "text": tokens.texts,
            "start": _offsets(tokens.starts, tokens.segments, text, unit),
            "end": _offsets(tokens.ends, tokens.segments, text, unit),
            "special": tokens.special,
            "segment": tokens.segments,
            "word": tokens.words,
        },
        "words": {
            "text": words.texts,
            "start": _offsets(words.starts, words.segments, text, unit),
            "end": _offsets(words.ends, words.segments, text, unit),
            "segment": words.segments,
        },
    }


def _offsets(offsets: list[int], segments: Sequence[int | None], text: Text, unit: OffsetUnit) -> list[int]:
    """Convert offsets, each into the text of its own segment."""
    if unit == "codepoint":
        return offsets
    if isinstance(text, str):
        return convert_offsets(text, offsets, unit)
    converted = list(offsets)  # special tokens and those of the prompt stand at 0, whatever is counted
    for side, part in enumerate(text):
        places = [place for place, segment in enumerate(segments) if segment == side]
        for place, offset in zip(places, convert_offsets(part, [offsets[i] for i in places], unit), strict=True):
            converted[place] = offset
    return converted
