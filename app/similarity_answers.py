"""Writes the answers of comparisons: ``/similarity`` and ``/attention/heads``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from app.answers import dumps, text_tables
from app.comparison_flows import ComparedHeads, Explained
from app.numbers import round_wide
from app.service import Encoded
from model.contract import EncodeInput, Unit
from model.maps import Units
from model.similarity import WideArray, strongest_pairs

DISTANCE_DIGITS = 6
"""Significant digits of distances and places: float32 maps hold no more."""

DIGITS = 9
"""Significant digits of a similarity map's values: the sum of a million of them is still right to 1e-6."""

T = TypeVar("T")


def write_similarity(encoded: Encoded, *, is_pairs: bool) -> bytes:
    """Write the answer of ``/similarity`` from unit vectors: a matrix, or one number per pair."""
    vectors = encoded.embeddings.astype(np.float64)
    similarities = np.einsum("ij,ij->i", vectors[0::2], vectors[1::2]) if is_pairs else vectors @ vectors.T
    return dumps(_head(encoded.model.name, similarities, encoded.inputs, is_pairs=is_pairs))


def write_explained(explained: Explained, unit: Unit) -> bytes:
    """Write the answer of ``/similarity`` with explanations: each similarity is the sum of its map."""
    sums = np.array([values.sum() for values in explained.maps])
    sides = list(zip(explained.inputs, explained.units, strict=True))
    explanations = [
        _explanation(values, a, b, unit) for values, (a, b) in zip(explained.maps, _in_pairs(sides), strict=True)
    ]
    body = _head(explained.model.name, sums, explained.inputs, is_pairs=True)
    return dumps(body | {"explanations": explanations})


def _head(name: str, similarities: WideArray, inputs: Sequence[EncodeInput], *, is_pairs: bool) -> dict[str, Any]:
    """Write what all answers of ``/similarity`` have."""
    num_tokens = [item.num_tokens for item in inputs]
    truncated = [item.is_truncated for item in inputs]
    return {
        "model": name,
        # float32, as the vectors are; rounding may leave a little more than 1
        "similarities": np.clip(similarities, -1.0, 1.0).astype(np.float32),
        "num_tokens": _in_pairs(num_tokens) if is_pairs else num_tokens,
        "truncated": _in_pairs(truncated) if is_pairs else truncated,
    }


def _in_pairs(flat: Sequence[T]) -> list[tuple[T, T]]:
    return list(zip(flat[0::2], flat[1::2], strict=True))


def _explanation(
    values: WideArray, a: tuple[EncodeInput, Units], b: tuple[EncodeInput, Units], unit: Unit
) -> dict[str, Any]:
    """Write one map, with what its rows and columns stand for."""
    return {
        "a": text_tables(a[0]),
        "b": text_tables(b[0]),
        "unit": unit,
        "rows": {"token": a[1].tokens, "word": a[1].words},
        "columns": {"token": b[1].tokens, "word": b[1].words},
        "shape": values.shape,
        "values": round_wide(np.ascontiguousarray(values), DIGITS),
        "row_sums": round_wide(values.sum(axis=1), DIGITS),
        "column_sums": round_wide(values.sum(axis=0), DIGITS),
        "strongest": [
            {"row": row, "column": column, "value": float(round_wide(np.array(value), DIGITS))}
            for row, column, value in strongest_pairs(values)
        ],
        "sum": float(round_wide(values.sum(), DIGITS)),
    }


def write_head_distances(compared: ComparedHeads) -> bytes:
    """Write the answer of ``/attention/heads``."""
    picture, selection = compared.picture, compared.selection
    body = {
        "model": compared.model.name,
        "heads": [(layer, head) for layer in selection.layers for head in selection.heads],
        "distances": round_wide(picture.distances, DISTANCE_DIGITS),
        "order": picture.order,
        "layout": round_wide(picture.layout, DISTANCE_DIGITS),
        "explained": float(round_wide(np.array(picture.explained), DISTANCE_DIGITS)),
        "num_tokens": [item.num_tokens for item in compared.inputs],
        "truncated": [item.is_truncated for item in compared.inputs],
    }
    return dumps(body)
