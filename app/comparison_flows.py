"""Comparisons that look inside the model: why two texts are alike, and which heads do the same thing.

Their rows are large, so that a request runs in turns, and each turn's rows are let go before the next one runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from app.comparison_limits import check_heads, explained_units
from app.naming import name_in_pairs, naming
from app.schemas.attention import HeadDistancesRequest
from app.schemas.similarity import SimilarityRequest
from app.service import ServedModel, Service, Timings, record
from app.turns import cut_turns, run_in_turns
from model.contract import AttentionSelection, EncodeInput, OutputSpec, Row
from model.head_distance import HeadDistances, HeadPicture, draw
from model.maps import Units
from model.similarity import WideArray, merge
from model.tokenizer import Text


@dataclass(frozen=True, slots=True)
class Explained:
    """Pairs of texts, and what each pair of their tokens (or words) adds to their cosine.

    Attributes
    ----------
    model : ServedModel
    inputs : list of EncodeInput
        Of the pairs, one after the other: a1, b1, a2, b2, ...
    units : list of Units
        What the rows (of a) and the columns (of b) of the maps stand for, in the order of ``inputs``.
    maps : list of array, float64
        One per pair.
    timings : Timings
    """

    model: ServedModel
    inputs: list[EncodeInput]
    units: list[Units]
    maps: list[WideArray]
    timings: Timings


@dataclass(frozen=True, slots=True)
class ComparedHeads:
    """How far apart the heads of a model are, over some texts; ``selection`` has all of them, layer by layer."""

    model: ServedModel
    inputs: list[EncodeInput]
    selection: AttentionSelection
    picture: HeadPicture
    timings: Timings


async def explain(service: Service, request: SimilarityRequest, *, route: str) -> Explained:
    """Find what each pair of tokens adds to the cosines of a request's pairs.

    Raises
    ------
    ServiceError, InputError
        See ``app/errors.py``; the texts are called what the caller calls them.
    """
    with naming(name_in_pairs):
        return await _explain(service, request, route)


async def _explain(service: Service, request: SimilarityRequest, route: str) -> Explained:
    model = service.find_model(request.model)
    embedder = model.embedder
    embedder.check_kind("embedding")
    embedder.check_explainable()
    dimensions = embedder.check_dimensions(request.dimensions)
    texts = [text for pair in request.pairs or () for text in pair]
    inputs, tokenize_seconds = await service.tokenize_texts(model, texts, request, details=True)
    limit = service.limits.max_attention_values_list
    units = await asyncio.to_thread(explained_units, embedder, inputs, request.unit, limit)
    maps: list[WideArray] = []

    def add(turn: slice, rows: list[Row]) -> None:
        for first in range(0, len(rows), 2):
            pair = slice(turn.start + first, turn.start + first + 2)
            values = embedder.similarity_map(inputs[pair], rows[first : first + 2], dimensions)
            maps.append(merge(values, *units[pair]))

    specs = [OutputSpec(pooled=False, token_states=True)] * len(inputs)
    tokens = [a.num_tokens + b.num_tokens for a, b in zip(inputs[0::2], inputs[1::2], strict=True)]
    turns = [slice(2 * turn.start, 2 * turn.stop) for turn in cut_turns(tokens, model.limits.batch_tokens)]
    before = Timings(tokenize_seconds)
    timings = await run_in_turns(service, model, inputs, specs, turns, add, before, service.deadline())
    record(model, inputs, timings, route, service.caller.key)
    return Explained(model, inputs, units, maps, timings)


async def compare_heads(service: Service, request: HeadDistancesRequest, *, route: str) -> ComparedHeads:
    """Find out which heads of a model do the same thing on some texts."""
    model = service.find_model(request.model)
    texts: Sequence[Text] = [request.texts] if isinstance(request.texts, str) else request.texts
    selection = model.embedder.select_attention("all", "all", param="model")
    hides = request.special == "renormalize"
    inputs, tokenize_seconds = await service.tokenize_texts(model, texts, request, details=hides)
    hidden = [item.tokens.special if item.tokens is not None else None for item in inputs]
    values = [selection.num_values(item.num_tokens) for item in inputs]
    check_heads(hidden, values, service.limits.max_attention_values_computed)
    distances = HeadDistances(len(selection.layers) * len(selection.heads))

    def add(turn: slice, rows: list[Row]) -> None:
        for row, special in zip(rows, hidden[turn], strict=True):
            if row.maps is not None:
                distances.add(row.maps, special)

    specs = [OutputSpec(pooled=False, attention=selection)] * len(inputs)
    turns = cut_turns(values, model.limits.batch_attention_values)
    before = Timings(tokenize_seconds)
    timings = await run_in_turns(service, model, inputs, specs, turns, add, before, service.deadline())
    record(model, inputs, timings, route, service.caller.key)
    model.metrics.attention_values(sum(values))
    picture = await asyncio.to_thread(lambda: draw(distances.distances()))
    return ComparedHeads(model, inputs, selection, picture, timings)
