"""Writes what clients of text-embeddings-inference read: bare lists, and the rest in headers."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from app.plain import PlainRequest, truncation_headers
from app.service import Encoded, Tokenized, num_characters
from model.contract import EncodeInput
from model.offsets import convert_offsets

MAX_NAMES = 8
SHOWN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""Names of fields that may stand in a header; others are only counted."""


def write_embeddings(encoded: Encoded) -> bytes:
    """Write the answer of ``/embed``: a list of vectors, for one text too."""
    return _dumps(np.ascontiguousarray(encoded.embeddings))


def write_token_states(encoded: Encoded) -> bytes:
    """Write the answer of ``/embed_all``: of each text a vector per token, special tokens included."""
    return _dumps([row.token_states if row.token_vectors is None else row.token_vectors for row in encoded.rows])


def write_sparse_vectors(encoded: Encoded) -> bytes:
    """Write the answer of ``/embed_sparse``: of each text its weights above 0, by ascending index.

    Text by text, as the objects that a weight is made of are ten times as large as what is written of it.
    """
    answer = bytearray()
    for row in encoded.rows:
        if (vector := row.sparse_vector) is not None:
            pairs = zip(vector.index.tolist(), vector.value, strict=True)
            answer += b"," if answer else b"["
            answer += _dumps([{"index": index, "value": value} for index, value in pairs])
    answer += b"]" if answer else b"[]"
    return bytes(answer)


def write_comparison(encoded: Encoded) -> bytes:
    """Write the answer of ``/similarity``: cosines of the first text with the others."""
    vectors = encoded.embeddings.astype(np.float64)
    # float32, as the vectors are; rounding may leave a little more than 1
    return _dumps(np.clip(vectors[1:] @ vectors[0], -1, 1).astype(np.float32))


def write_tokens(tokenized: Tokenized, texts: Sequence[str], *, add_special_tokens: bool) -> bytes:
    """Write the answer of ``/tokenize``.

    Parameters
    ----------
    tokenized : Tokenized
        With token tables.
    texts : sequence of str
        What was tokenized, prompts among it: offsets are bytes of these.
    add_special_tokens : bool
    """
    pairs = zip(tokenized.inputs, texts, strict=True)
    return _dumps([_tokens(item, text, add_special_tokens=add_special_tokens) for item, text in pairs])


def write_texts(texts: Sequence[str]) -> bytes:
    """Write the answer of ``/decode``."""
    return _dumps(list(texts))


def headers_of(encoded: Encoded, request: PlainRequest, started: float) -> dict[str, str]:
    """Say what a request took, as text-embeddings-inference does: whole milliseconds, rounded down.

    Queue and inference are those of the text whose row came last, so that with the time before them they are within
    the total. Characters are of texts, not of token ids; tokens are those processed, special tokens included.
    """
    slowest = max(encoded.rows, key=lambda row: row.queue_seconds + row.inference_seconds)
    total = time.perf_counter() - started
    characters = sum(num_characters(text) for text in request.texts if not isinstance(text, list))
    if encoded.query is not None and isinstance(request.texts[0], tuple):  # read once, and sent in every pair
        characters -= (len(request.texts) - 1) * len(request.texts[0][0])
    seconds = {
        "x-compute-time": total,
        "x-total-time": total,
        "x-tokenization-time": encoded.timings.tokenize,
        "x-queue-time": slowest.queue_seconds,
        "x-inference-time": slowest.inference_seconds,
    }
    return {
        "x-compute-type": encoded.model.embedder.info.device,
        "x-compute-characters": str(characters),
        "x-compute-tokens": str(encoded.num_tokens),
        **{name: str(int(value * 1_000)) for name, value in seconds.items()},
        **truncation_headers(encoded.inputs, encoded.query),
    }


def ignored_header(names: Sequence[str]) -> dict[str, str]:
    """Name the fields of a body that were not known, where there are such; at most eight, odd names as ``?``."""
    if not names:
        return {}
    shown = [name if SHOWN_NAME.fullmatch(name) else "?" for name in names[:MAX_NAMES]]
    return {"X-Ignored-Fields": ",".join([*shown, *(["..."] if len(names) > MAX_NAMES else [])])}


def _tokens(item: EncodeInput, text: str, *, add_special_tokens: bool) -> list[dict[str, Any]]:
    """Describe the tokens of one text."""
    table = item.tokens
    if table is None:
        return []
    starts = convert_offsets(text, table.starts, "byte")
    stops = convert_offsets(text, table.ends, "byte")
    tokens: list[dict[str, Any]] = []
    for index, (token, is_special) in enumerate(zip(table.ids, table.special, strict=True)):
        if is_special:
            if add_special_tokens:
                name = table.texts[index]
                tokens.append({"id": token, "text": name, "special": True, "start": None, "stop": None})
        else:
            part = text[table.starts[index] : table.ends[index]]
            place = {"start": starts[index], "stop": stops[index]}
            tokens.append({"id": token, "text": part, "special": False, **place})
    return tokens


def _dumps(body: object) -> bytes:
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
