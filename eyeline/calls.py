"""Builds requests, and puts their answers together: one implementation for both clients, without a connection.

A method of a client is an :class:`Operation`: the calls it takes, and what is made of their results. Encoding 1,000
texts takes several calls, tokenizing one text takes one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import httpx

from eyeline.attention_records import HeadDistances, TextAttention
from eyeline.merge import merge_chunks, merge_encoded, merge_lists, merge_similarities
from eyeline.options import (
    AttentionOptions,
    ChunkOptions,
    EncodeOptions,
    TextOptions,
    VectorOptions,
    attention_fields,
    chunk_fields,
    text_fields,
)
from eyeline.records import ChunkedText, Encoded, Similarity, Text, TokenizedText
from eyeline.replies import (
    parse_attention,
    parse_chunks,
    parse_encoded,
    parse_head_distances,
    parse_health,
    parse_json,
    parse_similarity,
    parse_tokenized,
    read,
)

P = TypeVar("P")
R = TypeVar("R")
S = TypeVar("S", bound=Sized)

SAFETENSORS = "application/vnd.safetensors"
JSON = "application/json"

MAX_REQUEST_BYTES = 2 * 1024 * 1024
"""Texts of one request, as JSON: half of what the server takes by default, so that many long texts are no error."""


@dataclass(frozen=True, slots=True)
class Call(Generic[P]):
    """One request.

    Attributes
    ----------
    path : str
    read : callable
        Makes the result of a whole answer, or raises.
    fields : mapping, optional
        The body; without one it is a GET.
    accept : str
    """

    path: str
    read: Callable[[httpx.Response], P]
    fields: Mapping[str, Any] | None = None
    accept: str = JSON

    @property
    def method(self) -> str:
        """GET or POST."""
        return "GET" if self.fields is None else "POST"

    def content(self) -> bytes | None:
        """Write the body, when it is sent: a long list's bodies need not all be in memory."""
        return None if self.fields is None else _dumps(self.fields)

    def headers(self) -> dict[str, str]:
        """Say what is sent and what is wanted."""
        return {"Accept": self.accept} | ({} if self.fields is None else {"Content-Type": JSON})


@dataclass(frozen=True, slots=True)
class Operation(Generic[P, R]):
    """The calls of one method, and what is made of their results, which come in the order of the calls."""

    calls: Sequence[Call[P]]
    merge: Callable[[Sequence[P]], R]


def split(items: Iterable[Any], size: int | None, name: str) -> Iterator[tuple[int, list[Any]]]:
    """Cut a list into what goes into one request each.

    Parameters
    ----------
    items : iterable of str or pair of str
    size : int or None
        Most items in a request; fewer where they would be over :data:`MAX_REQUEST_BYTES`. None: all in one.
    name : str
        Of the list, for errors.

    Yields
    ------
    (int, list)
        Index of the first item, and the items; of an empty list one empty part, which the server refuses.

    Raises
    ------
    TypeError
        If an item is neither a text nor a pair.
    ValueError
        If one is no Unicode text (a lone surrogate).
    """
    part: list[Any] = []
    first = num_bytes = 0
    for index, item in enumerate(items):
        item_bytes = _num_bytes(item, f"{name}[{index}]")
        if size is not None and part and (len(part) == size or num_bytes + item_bytes > MAX_REQUEST_BYTES):
            yield first, part
            first, part, num_bytes = index, [], 0
        part.append(item)
        num_bytes += item_bytes
    yield first, part


def encode_operation(texts: str | Iterable[Text], options: EncodeOptions, size: int) -> Operation[Encoded, Encoded]:
    """Build what ``encode`` sends: at most ``size`` texts in a request."""
    fields = text_fields(options, EncodeOptions)
    calls = [
        Call("/encode", _reader(parse_encoded, first, len(part)), {"texts": part} | fields, SAFETENSORS)
        for first, part in split(_listed(texts), size, "texts")
    ]
    return Operation(calls, merge_encoded)


def chunks_operation(
    texts: str | Iterable[str], unit: Literal["token", "sentence"], size: int, options: ChunkOptions, max_texts: int
) -> Operation[list[ChunkedText], list[ChunkedText]]:
    """Build what ``encode_chunks`` sends."""
    fields, chunks = chunk_fields(options)
    fields["chunks"] = {"unit": unit, "size": size} | chunks
    calls = [
        Call("/encode", _reader(parse_chunks, first, len(part)), {"texts": part} | fields, SAFETENSORS)
        for first, part in split(_listed(texts), max_texts, "texts")
    ]
    return Operation(calls, merge_chunks)


def attention_operation(
    texts: str | Iterable[Text], options: AttentionOptions
) -> Operation[list[TextAttention], list[TextAttention]]:
    """Build what ``attention`` sends: a request for each text, so that limits on maps are each text's."""
    fields, attention = attention_fields(options)
    fields["attention"] = attention
    calls = [
        Call("/encode", _reader(parse_attention, first, len(part)), {"texts": part} | fields, SAFETENSORS)
        for first, part in split(_listed(texts), 1, "texts")
    ]
    return Operation(calls, merge_lists)


def attention_heads_operation(
    texts: str | Iterable[Text], options: TextOptions, special: Literal["keep", "renormalize"]
) -> Operation[HeadDistances, HeadDistances]:
    """Build what ``attention_heads`` sends: one request, as distances are over all texts together."""
    fields = text_fields(options, TextOptions) | {"special": special}
    [(first, part)] = split(_listed(texts), None, "texts")
    read_all = _reader(parse_head_distances, first, len(part))
    return Operation([Call("/attention/heads", read_all, {"texts": part} | fields)], _only)


def tokenize_operation(
    texts: str | Iterable[Text], options: TextOptions, size: int
) -> Operation[list[TokenizedText], list[TokenizedText]]:
    """Build what ``tokenize`` sends."""
    fields = text_fields(options, TextOptions)
    calls = [
        Call("/tokenize", _reader(parse_tokenized, first, len(part)), {"texts": part} | fields)
        for first, part in split(_listed(texts), size, "texts")
    ]
    return Operation(calls, merge_lists)


def similarity_operation(
    texts: Iterable[str] | None,
    pairs: Iterable[tuple[str, str]] | None,
    options: VectorOptions,
    size: int,
    *,
    explain: bool,
    unit: Literal["token", "word"],
) -> Operation[Similarity, Similarity]:
    """Build what ``similarity`` sends: one request for a matrix, several for many pairs, one for each explained pair.

    Raises
    ------
    ValueError
        If there are not either texts or pairs, or texts are to be explained.
    """
    if (texts is None) == (pairs is None):
        raise ValueError("give either texts or pairs")
    if texts is not None and explain:
        raise ValueError("explain goes with pairs, not with texts")
    fields = text_fields(options, VectorOptions)
    if explain:
        fields |= {"explain": True, "unit": unit}
    # Each text of a matrix meets every other: it cannot be split.
    name, parts = (
        ("texts", split(texts, None, "texts"))
        if texts is not None
        else ("pairs", split(pairs or (), 1 if explain else size, "pairs"))
    )
    calls = [
        Call("/similarity", _reader(parse_similarity, first, len(part)), {name: part} | fields) for first, part in parts
    ]
    return Operation(calls, merge_similarities)


def info_operation() -> Operation[dict[str, Any], dict[str, Any]]:
    """Build what ``info`` sends."""
    return Operation([Call("/info", _reader(parse_json, 0, None))], _only)


HEALTH: Call[str] = Call("/health", parse_health)
"""Answered by a server that is not ready, too: with 503, and why."""


def _only(results: Sequence[P]) -> P:
    [result] = results
    return result


def _reader(parse: Callable[[httpx.Response], S], first: int, count: int | None) -> Callable[[httpx.Response], S]:
    """Read an answer about ``count`` texts, the first of which is the caller's number ``first``."""

    def parse_all(response: httpx.Response) -> S:
        parsed = parse(response)
        if count is not None and len(parsed) != count:
            raise ValueError(f"{len(parsed)} results for {count} texts")
        return parsed

    return lambda response: read(response, parse_all, first)


def _listed(texts: str | Iterable[Text]) -> Iterable[Text]:
    return [texts] if isinstance(texts, str) else texts


def _dumps(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _num_bytes(item: object, param: str) -> int:
    parts = item if isinstance(item, (tuple, list)) else [item]
    for part in parts:
        if not isinstance(part, str):
            raise TypeError(f"{param} holds {type(part).__name__}, where a text or a pair of texts was expected")
    if isinstance(item, (tuple, list)) and len(item) != 2:
        raise TypeError(f"{param} is a sequence of {len(item)}, where a text or a pair of texts was expected")
    try:
        return len(_dumps(item)) + 1  # the comma
    except UnicodeEncodeError:
        raise ValueError(f"{param} is no text: it holds a lone surrogate") from None
