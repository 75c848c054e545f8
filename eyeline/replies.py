"""Reads answers: safetensors and JSON into records, errors into exceptions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import httpx
import numpy as np
from numpy.typing import NDArray

from eyeline.attention_records import HeadDistances, Maps, Rollout, SparseRows, Stats, TextAttention
from eyeline.errors import UnexpectedAnswerError, answer_error
from eyeline.records import (
    ChunkedText,
    Encoded,
    ExplainedText,
    Explanation,
    Quantization,
    Similarity,
    StrongPair,
    TokenizedText,
    Tokens,
    Units,
    Words,
)

T = TypeVar("T")
Arrays = dict[str, NDArray[Any]]

DTYPES: Mapping[str, str] = {"F16": "<f2", "F32": "<f4", "I8": "|i1", "I32": "<i4", "U8": "|u1"}
"""The number types of ``/encode``, as safetensors names them -> as numpy does."""


def read(response: httpx.Response, parse: Callable[[httpx.Response], T], first: int = 0) -> T:
    """Read an answer.

    Parameters
    ----------
    response : httpx.Response
        Whole.
    parse : callable
        For an answer of success.
    first : int
        Where the texts of this request begin among all that the caller gave: an error names the text by its own index.

    Raises
    ------
    AnswerError
        If the status is not one of success.
    UnexpectedAnswerError
        If ``parse`` cannot make sense of it.
    """
    if not response.is_success:
        raise answer_error(response, first)
    try:
        return parse(response)
    except (LookupError, TypeError, ValueError) as error:  # JSON and Unicode errors are ValueErrors
        kind = response.headers.get("Content-Type", "no content type")
        raise UnexpectedAnswerError(
            f"an answer that cannot be read, {len(response.content)} bytes of {kind}"
        ) from error


def undecodable(error: httpx.DecodingError) -> UnexpectedAnswerError:
    """Make the exception of an answer that is not in the coding that its Content-Encoding says."""
    return UnexpectedAnswerError(f"an answer that cannot be decoded ({error})")


def read_arrays(content: bytes) -> tuple[dict[str, Any], Arrays]:
    """Take a safetensors answer apart: the JSON beside the arrays, and the arrays, each a copy that may be written to.

    Raises
    ------
    LookupError, TypeError or ValueError
        If it is no such file, or not one of Eyeline's.

    References
    ----------
    The format: 8 bytes of length, JSON of that length, then the numbers without gaps, little-endian.
    """
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    body = json.loads(header.pop("__metadata__")["response"])
    arrays = {}
    for name, entry in header.items():
        start, stop = entry["data_offsets"]
        array = np.frombuffer(content[begin + start : begin + stop], DTYPES[entry["dtype"]])
        arrays[name] = array.reshape(entry["shape"]).copy()
    return body, arrays


def parse_encoded(response: httpx.Response) -> Encoded:
    """Read an answer of ``/encode`` in safetensors."""
    body, arrays = read_arrays(response.content)
    return _encoded(body, arrays["embeddings"])


def parse_attention(response: httpx.Response) -> list[TextAttention]:
    """Read an answer of ``/encode`` in safetensors, each text with its attention."""
    body, arrays = read_arrays(response.content)
    encoded = _encoded(body, arrays["embeddings"])
    return [
        TextAttention(
            model=encoded.model,
            embedding=encoded.embeddings[index],
            num_tokens=int(encoded.num_tokens[index]),
            num_tokens_total=int(encoded.num_tokens_total[index]),
            truncated=bool(encoded.truncated[index]),
            tokens=_tokens(parts["tokens"]),
            words=_words(parts["words"]),
            **_attention(parts, arrays, f"attention.{index}."),
        )
        for index, parts in enumerate(body["attention"])
    ]


def parse_head_distances(response: httpx.Response) -> HeadDistances:
    """Read an answer of ``/attention/heads``."""
    body = response.json()
    return HeadDistances(
        model=body["model"],
        heads=[(layer, head) for layer, head in body["heads"]],
        distances=np.array(body["distances"], np.float64),
        order=body["order"],
        layout=np.array(body["layout"], np.float64),
        explained=body["explained"],
        num_tokens=np.array(body["num_tokens"], np.int64),
        truncated=np.array(body["truncated"], np.bool_),
    )


def parse_chunks(response: httpx.Response) -> list[ChunkedText]:
    """Read an answer of ``/encode`` with chunks in safetensors."""
    body, arrays = read_arrays(response.content)
    return [
        ChunkedText(
            model=body["model"],
            start=np.array(columns["start"], np.int64),
            end=np.array(columns["end"], np.int64),
            embeddings=arrays[f"chunks.{index}.embeddings"],
            chunk_tokens=np.array(columns["num_tokens"], np.int64),
            chunk_truncated=np.array(columns["truncated"], np.bool_),
            quantization=_quantization(columns),
            num_tokens=body["num_tokens"][index],
            num_tokens_total=body["num_tokens_total"][index],
            truncated=body["truncated"][index],
        )
        for index, columns in enumerate(body["chunks"])
    ]


def parse_tokenized(response: httpx.Response) -> list[TokenizedText]:
    """Read an answer of ``/tokenize``."""
    return [
        TokenizedText(
            _tokens(text["tokens"]),
            _words(text["words"]),
            text["num_tokens"],
            text["num_tokens_total"],
            text["truncated"],
        )
        for text in response.json()["texts"]
    ]


def parse_similarity(response: httpx.Response) -> Similarity:
    """Read an answer of ``/similarity``."""
    body = response.json()
    explanations = body.get("explanations")
    return Similarity(
        model=body["model"],
        similarities=np.array(body["similarities"], np.float32),
        num_tokens=np.array(body["num_tokens"], np.int64),
        truncated=np.array(body["truncated"], np.bool_),
        explanations=None if explanations is None else [_explanation(one) for one in explanations],
    )


def parse_json(response: httpx.Response) -> dict[str, Any]:
    """Read an object as it stands."""
    body = response.json()
    if not isinstance(body, dict):
        raise TypeError(f"a JSON object was expected, not {type(body).__name__}")
    return body


def parse_health(response: httpx.Response) -> str:
    """Read an answer of ``/health``, which is one at 503, too."""
    try:
        status = response.json()["status"]
        if not isinstance(status, str):  # of a problem, the number
            raise TypeError("status is no word")
        return status
    except (LookupError, TypeError, ValueError) as error:
        if response.is_success:
            raise UnexpectedAnswerError("an answer that is not Eyeline's") from error
        raise answer_error(response) from error


def _encoded(body: Mapping[str, Any], embeddings: NDArray[Any]) -> Encoded:
    return Encoded(
        model=body["model"],
        embeddings=embeddings,
        num_tokens=np.array(body["num_tokens"], np.int64),
        num_tokens_total=np.array(body["num_tokens_total"], np.int64),
        truncated=np.array(body["truncated"], np.bool_),
        quantization=_quantization(body),
    )


def _quantization(body: Mapping[str, Any]) -> Quantization | None:
    ranged = body.get("quantization")
    return ranged and Quantization(ranged["range"], np.array(ranged["clipped"], np.int64))


def _tokens(columns: Mapping[str, Any]) -> Tokens:
    return Tokens(**{name: columns[name] for name in Tokens.__slots__})


def _words(columns: Mapping[str, Any]) -> Words:
    return Words(**{name: columns[name] for name in Words.__slots__})


def _units(columns: Mapping[str, Any]) -> Units:
    return Units(columns["token"], columns["word"])


def _attention(parts: Mapping[str, Any], arrays: Arrays, prefix: str) -> dict[str, Any]:
    """Read ``maps``, ``stats`` and ``rollout`` of one text, each None where it was not asked for."""
    maps, stats, rollout = (parts.get(name) for name in ("maps", "stats", "rollout"))
    return {
        "maps": maps and _maps(maps, arrays, prefix),
        "stats": stats and _stats(stats, arrays, f"{prefix}stats."),
        "rollout": rollout and _rollout(rollout, arrays, prefix),
    }


def _maps(parts: Mapping[str, Any], arrays: Arrays, prefix: str) -> Maps:
    values = arrays.get(f"{prefix}maps")
    sparse = None
    if values is None:
        sparse = SparseRows(*(arrays[f"{prefix}maps.{name}"] for name in SparseRows.__slots__))
    return Maps(
        layers=parts["layers"],
        heads=parts["heads"],
        unit=parts["unit"],
        special=parts["special"],
        units=_units(parts["units"]),
        values=values,
        sparse=sparse,
        shape=tuple(parts["shape"]),
        kept_mass=arrays.get(f"{prefix}kept_mass"),
        row_sum_tolerance=parts["row_sum_tolerance"],
    )


def _stats(parts: Mapping[str, Any], arrays: Arrays, prefix: str) -> Stats:
    values = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    return Stats(parts["layers"], parts["heads"], parts["special"], values)


def _rollout(parts: Mapping[str, Any], arrays: Arrays, prefix: str) -> Rollout:
    return Rollout(
        residual=parts["residual"],
        heads=parts["heads"],
        layers=parts["layers"],
        unit=parts["unit"],
        special=parts["special"],
        units=_units(parts["units"]),
        values=arrays[f"{prefix}rollout"],
        kept_mass=arrays.get(f"{prefix}rollout.kept_mass"),
        row_sum_tolerance=parts["row_sum_tolerance"],
    )


def _explanation(parts: Mapping[str, Any]) -> Explanation:
    return Explanation(
        a=ExplainedText(_tokens(parts["a"]["tokens"]), _words(parts["a"]["words"])),
        b=ExplainedText(_tokens(parts["b"]["tokens"]), _words(parts["b"]["words"])),
        unit=parts["unit"],
        rows=_units(parts["rows"]),
        columns=_units(parts["columns"]),
        values=np.array(parts["values"], np.float64).reshape(parts["shape"]),
        row_sums=np.array(parts["row_sums"], np.float64),
        column_sums=np.array(parts["column_sums"], np.float64),
        strongest=[StrongPair(**pair) for pair in parts["strongest"]],
        sum=parts["sum"],
    )
