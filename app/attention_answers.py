"""Writes what was made of a text's attention: lists, base64, or arrays beside the JSON of a binary answer."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from app.numbers import round_significant, to_base64
from app.schemas.encode import AttentionOptions
from model.contract import AttentionSelection, EncodeInput, FloatArray, Row, SparseMaps, TextAttention
from model.maps import units_of

AXES = ("layer", "head", "query", "key")

ROW_SUM_ERROR = 1e-5
"""How far a row of maps is from its sum before it is written (float32)."""

Arrays = dict[str, NDArray[Any]]


def attention_parts(
    item: EncodeInput,
    attended: TextAttention,
    selection: AttentionSelection,
    options: AttentionOptions,
    *,
    with_values: bool,
) -> dict[str, Any]:
    """Write ``maps``, ``stats`` and ``rollout`` of one text, each where it was asked for.

    Parameters
    ----------
    item : EncodeInput
        With its token table.
    attended : TextAttention
    selection : AttentionSelection
    options : AttentionOptions
        For encoding, dtype and digits.
    with_values : bool
        False for binary answers: only what the numbers are, which :func:`attention_arrays` gives.
    """
    parts: dict[str, Any] = {}
    form: Literal["list", "base64", "arrays"] = options.encoding if with_values else "arrays"
    writer = _Writer(item, selection, options, form)
    whole = attended.maps if attended.sparse is None else attended.sparse
    if whole is not None:
        parts["maps"] = writer.maps(whole, attended.kept_mass)
    if attended.stats is not None:
        parts["stats"] = writer.stats(attended)
    if attended.rollout is not None:
        parts["rollout"] = writer.rollout(attended, attended.rollout)
    return parts


def attention_arrays(attended: TextAttention, dtype: str) -> Arrays:
    """Return the arrays of one text by the names they have behind ``attention.{i}.`` in a binary answer."""
    arrays: Arrays = {}
    if attended.maps is not None:
        arrays["maps"] = attended.maps.astype(dtype)
    if attended.sparse is not None:
        weight = attended.sparse.weight.astype(dtype)
        arrays |= {
            "maps.row_start": attended.sparse.row_start,
            "maps.index": attended.sparse.index,
            "maps.weight": weight,
            "maps.rest": rest_of_rows(attended.sparse, weight).astype(np.float32),
        }
    if attended.kept_mass is not None:
        arrays["kept_mass"] = attended.kept_mass
    if attended.stats is not None:
        arrays |= {f"stats.{name}": values for name, values in attended.stats.items()}
    if attended.rollout is not None:
        arrays["rollout"] = attended.rollout.astype(dtype)
    if attended.rollout_kept_mass is not None:
        arrays["rollout.kept_mass"] = attended.rollout_kept_mass
    return arrays


def num_attention_values(row: Row) -> int:
    """Count the numbers that a text's attention holds."""
    attended = row.attention
    if attended is None:
        return 0
    sparse = attended.sparse
    arrays = (attended.maps, attended.kept_mass, attended.rollout, attended.rollout_kept_mass)
    thin = 0 if sparse is None else 2 * sparse.weight.size + sparse.row_sum.size
    statistics = sum(values.size for values in (attended.stats or {}).values())
    return thin + statistics + sum(array.size for array in arrays if array is not None)


def rest_of_rows(sparse: SparseMaps, weight: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return what is missing to the sum of each row once its weights are written as ``weight``: rounding and all."""
    before = np.concatenate([[0.0], weight.astype(np.float64).cumsum()])
    sent = before[sparse.row_start[1:]] - before[sparse.row_start[:-1]]
    rest: NDArray[np.float64] = sparse.row_sum - sent
    return rest


def row_sum_tolerance(options: AttentionOptions, num_keys: int, form: str) -> float:
    """Bound how far rounding may move the sum of a row of ``num_keys`` weights, to two digits, upwards."""
    if form == "list":
        error = 5.0 * 10.0**-options.digits  # half of the last digit, at worst of a number that begins with 1
    elif options.dtype == "float16":
        error = 2.0**-11 + num_keys * 2.0**-25  # relative, and where float16 has no more exponents absolute
    else:
        error = 0.0
    bound = error + ROW_SUM_ERROR
    scale = 10.0 ** (1 - np.floor(np.log10(bound)))
    return float(np.ceil(bound * scale - 1e-9) / scale)  # 1e-9: a whole number in decimals is none in binary


class _Writer:
    """Writes the parts of one text in one form."""

    def __init__(
        self,
        item: EncodeInput,
        selection: AttentionSelection,
        options: AttentionOptions,
        form: Literal["list", "base64", "arrays"],
    ) -> None:
        self._selection = selection
        self._options = options
        self._form = form
        self._units: dict[str, Any] = {}
        if item.tokens is not None:
            units = units_of(item.tokens, selection.unit, selection.special)
            self._units = {"token": units.tokens, "word": units.words}

    def maps(self, whole: FloatArray | SparseMaps, kept_mass: FloatArray | None) -> dict[str, Any]:
        """Write the maps."""
        selection = self._selection
        body: dict[str, Any] = {
            "layers": selection.layers,
            "heads": selection.reduce_heads or selection.heads,
            "axes": AXES,
            "shape": whole.shape,
            **self._frame(whole.shape[-1]),
        }
        if kept_mass is not None and self._form != "arrays":
            body["kept_mass"] = round_significant(kept_mass, self._options.digits)
        return body | (self._sparse(whole) if isinstance(whole, SparseMaps) else self._numbers(whole))

    def stats(self, attended: TextAttention) -> dict[str, Any]:
        """Write the statistics."""
        selection = self._selection
        body: dict[str, Any] = {
            "layers": selection.layers,
            "heads": selection.heads,
            "special": "keep" if selection.special == "keep" else "renormalize",
        }
        return body if self._form == "arrays" else body | (dict(attended.stats) if attended.stats else {})

    def rollout(self, attended: TextAttention, values: FloatArray) -> dict[str, Any]:
        """Write the rollout."""
        asked = self._selection.rollout
        body: dict[str, Any] = {
            **({} if asked is None else {"residual": asked.residual, "heads": asked.heads, "layers": asked.layers}),
            "shape": values.shape,
            **self._frame(values.shape[-1]),
        }
        if attended.rollout_kept_mass is not None and self._form != "arrays":
            body["kept_mass"] = round_significant(attended.rollout_kept_mass, self._options.digits)
        return body | self._numbers(values)

    def _frame(self, num_keys: int) -> dict[str, Any]:
        """Say what rows and columns are."""
        return {
            "unit": self._selection.unit,
            "special": self._selection.special,
            "units": self._units,
            "row_sum_tolerance": row_sum_tolerance(self._options, num_keys, self._form),
        }

    def _numbers(self, values: FloatArray) -> dict[str, Any]:
        """Write an array."""
        if self._form == "list":
            return {"values": round_significant(values, self._options.digits)}
        body: dict[str, Any] = self._layout()
        if self._form == "base64":
            body["data"] = to_base64(values, self._options.dtype)
        return body

    def _layout(self) -> dict[str, Any]:
        return {"dtype": self._options.dtype, "order": "C", "endian": "little"}

    def _sparse(self, sparse: SparseMaps) -> dict[str, Any]:
        """Write compressed rows: as lists of lists, or each array in base64."""
        if self._form == "arrays":
            return self._layout()
        if self._form == "base64":
            weight = sparse.weight.astype(self._options.dtype)
            rows = {
                "row_start": to_base64(sparse.row_start, "int32"),
                "index": to_base64(sparse.index, "int32"),
                "weight": to_base64(weight, self._options.dtype),
                "rest": to_base64(rest_of_rows(sparse, weight), "float32"),
            }
            return self._layout() | {"sparse": rows}
        weight = round_significant(sparse.weight, self._options.digits)
        rest = rest_of_rows(sparse, weight).astype(np.float32)
        return {
            "sparse": {
                "index": _nested(sparse, sparse.index),
                "weight": _nested(sparse, weight),
                "rest": rest.reshape(sparse.shape[:3]),
            }
        }


def _nested(sparse: SparseMaps, values: NDArray[Any]) -> list[list[list[NDArray[Any]]]]:
    """Cut an array into its rows: [layer][head][query]."""
    layers, heads, queries, _ = sparse.shape
    starts = sparse.row_start.tolist()
    rows = [values[start:stop] for start, stop in pairwise(starts)]
    return [
        [
            rows[first : first + queries]
            for first in range(layer * heads * queries, (layer + 1) * heads * queries, queries)
        ]
        if queries
        else [[]] * heads
        for layer in range(layers)
    ]
