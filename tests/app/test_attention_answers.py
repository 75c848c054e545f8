"""How attention is written: what is sent of a row and what is not add up, and no form loses more than it says."""

from __future__ import annotations

import base64
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.attention_answers import (
    attention_arrays,
    attention_parts,
    num_attention_values,
    rest_of_rows,
    row_sum_tolerance,
)
from app.schemas.encode import AttentionOptions, TextAttention
from model.collector import AttentionCollector
from model.contract import AttentionSelection, EncodeInput, RolloutSelection, Row, SparseMaps
from model.contract import TextAttention as Attended
from tests.app.test_limits import make_text
from tests.model.test_maps import make_maps

LAYERS, HEADS = 2, 3
TEXT = make_text(3)  # 8 tokens: [CLS], three words of two pieces, [SEP]
ROLLOUT = RolloutSelection(0.25, "max", (0, 1), HEADS)
ALL = AttentionSelection((1, 0), (2, 0, 1))
DTYPES = {"float16": "<f2", "float32": "<f4"}


def collect(selection: AttentionSelection, maps: torch.Tensor | None = None, text: EncodeInput = TEXT) -> Attended:
    """What the encoder would give."""
    maps = make_maps(LAYERS, HEADS, text.num_tokens, text.num_tokens) if maps is None else maps
    collector = AttentionCollector(selection, 0, text.num_tokens, text.tokens, maps.device)
    for layer in range(LAYERS):
        heads = list(selection.heads_of(layer))
        if heads:
            collector.take(layer, maps[layer, heads])
    return collector.finish()


def write(selection: AttentionSelection, attended: Attended, text: EncodeInput = TEXT, **options: Any) -> Any:
    """The parts of a text as a reader of the JSON sees them."""
    parts = attention_parts(text, attended, selection, AttentionOptions(**options), with_values=True)
    return orjson.loads(orjson.dumps(parts, option=orjson.OPT_SERIALIZE_NUMPY))


def decode(text: str, dtype: str) -> NDArray[Any]:
    """Read base64."""
    return np.frombuffer(base64.b64decode(text, validate=True), dtype)


def sparse_rows(maps: dict[str, Any], dtype: str) -> list[tuple[list[int], list[float], float]]:
    """Keys, weights and rest of each row, from either form of JSON, in C order of (layer, head, query)."""
    sparse = maps["sparse"]
    if isinstance(sparse["index"], str):
        start = decode(sparse["row_start"], "<i4")
        index, weight = decode(sparse["index"], "<i4"), decode(sparse["weight"], DTYPES[dtype]).astype(np.float64)
        rest = decode(sparse["rest"], "<f4").tolist()
        return [(index[a:b].tolist(), weight[a:b].tolist(), rest[row]) for row, (a, b) in enumerate(pairwise(start))]
    assert "row_start" not in sparse
    return [
        row
        for layers in zip(sparse["index"], sparse["weight"], sparse["rest"], strict=True)
        for heads in zip(*layers, strict=True)
        for row in zip(*heads, strict=True)
    ]


FORMS = [("list", "float16", 1), ("list", "float16", 4), ("list", "float32", 9)] + [
    ("base64", dtype, 4) for dtype in DTYPES
]


@pytest.mark.parametrize(("encoding", "dtype", "digits"), FORMS)
@pytest.mark.parametrize("special", ["keep", "mask", "renormalize"])
@pytest.mark.parametrize("changes", [{"top_k": 1}, {"top_k": 3}, {"top_k": 99}, {"min_weight": 0.2}])
def test_sent_weights_and_rest_are_the_row(
    encoding: str, dtype: str, digits: int, special: str, changes: dict[str, Any]
) -> None:
    """The weights of a row as they are written, rounding and all, plus its rest, are the sum of the whole row."""
    selection = replace(ALL, special=special, unit="word", **changes)
    whole = collect(replace(selection, top_k=None, min_weight=0.0)).maps
    body = write(selection, collect(selection), encoding=encoding, dtype=dtype, digits=digits)
    assert whole is not None
    expected = whole.reshape(-1, whole.shape[-1]).astype(np.float64)
    rows = sparse_rows(body["maps"], dtype)
    assert len(rows) == len(expected)
    for (index, weight, rest), row in zip(rows, expected, strict=True):
        assert sum(weight) + rest == pytest.approx(row.sum(), abs=1e-6)
        assert weight == sorted(weight, reverse=True)
        np.testing.assert_allclose(weight, row[index], rtol=0.51 * 10.0 ** (1 - digits) + 2.0**-11, atol=2.0**-25)
        assert len(index) == min(selection.top_k or len(row), len(row)) or selection.min_weight
    if selection.top_k == 99 and (dtype, digits) != ("float16", 1):
        rounding = {"float16": 5e-4, "float32": 1e-6}[dtype]
        assert max(abs(rest) for _, _, rest in rows) <= rounding  # nothing is left out


def test_the_rest_is_what_is_missing() -> None:
    """By hand: two rows, one of them thinned out, the other whole."""
    sparse = SparseMaps(
        (1, 1, 2, 3),
        np.array([0, 2, 5], np.int32),
        np.array([2, 0, 0, 1, 2], np.int32),
        np.array([0.5, 0.25, 0.5, 0.25, 0.25], np.float32),
        np.array([1.0, 1.0]),
    )
    assert rest_of_rows(sparse, sparse.weight).tolist() == [0.25, 0.0]
    assert rest_of_rows(sparse, np.array([0.5, 0.2, 0.5, 0.25, 0.24])) == pytest.approx([0.3, 0.01])


def uniform(length: int) -> torch.Tensor:
    """Rows of equal weights: the worst there is for rounding to decimals."""
    return torch.full((LAYERS, HEADS, length, length), 1 / length)


@given(
    st.sampled_from([1, 2, 7, 99, 500, 512]),
    st.integers(0, 99),
    st.sampled_from([("list", digits) for digits in (1, 2, 3, 4, 6, 9)] + [("float16", 4), ("float32", 4)]),
)
@settings(deadline=None, max_examples=40)
def test_rows_sum_to_one_as_closely_as_is_said(length: int, seed: int, form: tuple[str, int]) -> None:
    """Uniform rows, sharp rows, short and long: summed in float64, no row as sent leaves its stated tolerance."""
    maps = uniform(length) if seed % 2 else make_maps(LAYERS, HEADS, length, length, seed=seed)
    name, digits = form
    text = EncodeInput([0] * length, [0] * length, length)
    options: dict[str, Any] = {"digits": digits} if name == "list" else {"encoding": "base64", "dtype": name}
    body = write(ALL, collect(ALL, maps, text), text, **options)["maps"]
    if name == "list":
        sent = np.array(body["values"])
    else:
        sent = decode(body["data"], DTYPES[name]).astype(np.float64).reshape(body["shape"])
    assert np.abs(sent.sum(axis=-1, dtype=np.float64) - 1).max() <= body["row_sum_tolerance"]


@pytest.mark.parametrize(
    ("options", "form", "expected"),
    [
        ({}, "list", 5.1e-4),
        ({"digits": 2}, "list", 5.1e-2),
        ({"digits": 9}, "list", 1.1e-5),
        ({}, "base64", 5.2e-4),
        ({"dtype": "float32"}, "base64", 1e-5),
        ({"dtype": "float32"}, "arrays", 1e-5),
    ],
)
def test_the_tolerance_is_a_number_to_compare_with(options: dict[str, Any], form: str, expected: float) -> None:
    """For 512 keys, to two digits."""
    assert row_sum_tolerance(AttentionOptions(**options), 512, form) == pytest.approx(expected, rel=1e-9)


def test_a_uniform_row_of_512_survives_every_form() -> None:
    """In float16 exactly 1, with 4 significant digits within 2e-4; 4 decimals would have said 1.024."""
    text = EncodeInput([0] * 512, [0] * 512, 512)
    attended = collect(ALL, uniform(512), text)
    halves = decode(write(ALL, attended, text, encoding="base64")["maps"]["data"], "<f2")
    assert halves.reshape(-1, 512).sum(axis=-1, dtype=np.float64).tolist() == [1.0] * (6 * 512)
    listed = np.array(write(ALL, attended, text)["maps"]["values"])
    assert np.abs(listed.sum(axis=-1) - 1).max() <= 2e-4
    assert np.round(1 / 512, 4) * 512 == pytest.approx(1.024)


@pytest.mark.parametrize("encoding", ["list", "base64"])
def test_parts_say_what_their_numbers_are(encoding: str) -> None:
    """Axes, true numbers, units, modes: what a reader needs to label every row, in the shape of the contract."""
    selection = replace(ALL, special="mask", unit="word", reduce_heads="max", stats=True, rollout=ROLLOUT)
    attended = collect(selection)
    body = write(selection, attended, encoding=encoding)
    tables = {
        "tokens": {name: [] for name in ("id", "text", "start", "end", "special", "segment", "word")},
        "words": {name: [] for name in ("text", "start", "end", "segment")},
    }
    TextAttention.model_validate(tables | body, strict=True)
    maps, rollout, stats = body["maps"], body["rollout"], body["stats"]
    units = {"token": [1, 3, 5], "word": [0, 1, 2]}
    assert (maps["layers"], maps["heads"], maps["shape"]) == ([1, 0], "max", [2, 1, 3, 3])
    assert (maps["unit"], maps["special"], maps["units"]) == ("word", "mask", units)
    assert np.shape(maps["kept_mass"]) == (2, 1, 3)
    assert (rollout["residual"], rollout["heads"], rollout["layers"]) == (0.25, "max", [0, 1])
    assert (rollout["unit"], rollout["special"], rollout["units"], rollout["shape"]) == ("word", "mask", units, [3, 3])
    assert np.shape(rollout["kept_mass"]) == (3,)
    assert (stats["layers"], stats["heads"], stats["special"]) == ([1, 0], [2, 0, 1], "renormalize")
    assert all(np.shape(stats[name]) == (2, 3) for name in stats.keys() - {"layers", "heads", "special"})
    assert attended.rollout is not None
    if encoding == "base64":
        np.testing.assert_array_equal(decode(rollout["data"], "<f2"), attended.rollout.astype(np.float16).ravel())
    else:
        np.testing.assert_allclose(rollout["values"], attended.rollout, rtol=5.1e-4)


def test_what_has_no_meaning_is_null() -> None:
    """JSON knows no NaN."""
    empty = make_text(0)
    selection = replace(ALL, special="renormalize", unit="word", stats=True, rollout=ROLLOUT)
    body = write(selection, collect(selection, text=empty), empty)
    assert body["stats"]["entropy"] == [[None] * 3] * 2
    assert body["maps"]["values"] == [[[]] * 3] * 2
    assert (body["maps"]["shape"], body["rollout"]["shape"], body["rollout"]["values"]) == ([2, 3, 0, 0], [0, 0], [])
    thin = replace(selection, top_k=2)
    assert write(thin, collect(thin, text=empty), empty)["maps"]["sparse"] == {
        name: [[[]] * 3] * 2 for name in ("index", "weight", "rest")
    }


def test_arrays_hold_what_the_json_leaves_out() -> None:
    """A binary answer's arrays and its JSON together are the JSON answer."""
    selection = replace(ALL, special="mask", stats=True, rollout=ROLLOUT)
    options = AttentionOptions(encoding="base64", dtype="float32")
    for wish in (selection, replace(selection, top_k=2)):
        attended = collect(wish)
        arrays = attention_arrays(attended, "float32")
        described = attention_parts(TEXT, attended, wish, options, with_values=False)
        whole = write(wish, attended, encoding="base64", dtype="float32")
        rest = orjson.loads(orjson.dumps(described, option=orjson.OPT_SERIALIZE_NUMPY))
        stats = whole["stats"]
        for name in [name for name in stats if name not in ("layers", "heads", "special")]:
            np.testing.assert_allclose(arrays.pop(f"stats.{name}"), stats.pop(name), rtol=1e-6)
        kept = (("kept_mass", whole["maps"]), ("rollout.kept_mass", whole["rollout"]))
        for name, part in kept:
            np.testing.assert_allclose(arrays.pop(name), part.pop("kept_mass"), rtol=5.1e-4)
        np.testing.assert_array_equal(arrays.pop("rollout").ravel(), decode(whole["rollout"].pop("data"), "<f4"))
        if wish.is_sparse:
            for name, text in whole["maps"].pop("sparse").items():
                array = arrays.pop(f"maps.{name}")
                assert array.dtype == (np.int32 if name in ("row_start", "index") else np.float32)
                np.testing.assert_array_equal(array, decode(text, array.dtype.newbyteorder("<")))
        else:
            np.testing.assert_array_equal(arrays.pop("maps").ravel(), decode(whole["maps"].pop("data"), "<f4"))
        assert arrays == {}
        assert rest == whole


def test_half_precision_is_of_weights_alone() -> None:
    """Maps, sparse weights and rollout have the number type asked; masses, rests and statistics are float32."""
    selection = replace(ALL, special="mask", stats=True, rollout=ROLLOUT)
    for wish in (selection, replace(selection, top_k=2)):
        for name, array in attention_arrays(collect(wish), "float16").items():
            is_weight = name in ("maps", "maps.weight", "rollout")
            is_place = name in ("maps.row_start", "maps.index")
            assert array.dtype == (np.float16 if is_weight else np.int32 if is_place else np.float32), name


def test_the_cost_of_writing_counts_every_number() -> None:
    """Whole maps, thin ones, masses, statistics and rollout; a text without attention costs nothing."""
    assert num_attention_values(Row()) == 0
    selection = replace(ALL, special="mask", stats=True, rollout=ROLLOUT)
    whole = 6 * 36 + 6 * 6 + 6 * 11 + 36 + 6
    assert num_attention_values(Row(attention=collect(selection))) == whole
    thin = replace(selection, top_k=2)
    assert num_attention_values(Row(attention=collect(thin))) == whole - 6 * 36 + 6 * 6 * 5
