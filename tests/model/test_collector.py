"""Claims about collecting: what comes layer by layer is what all layers at once would give, and no map is held."""

from __future__ import annotations

import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from model.collector import AttentionCollector
from model.contract import AttentionSelection, RolloutSelection, TextAttention, TokenTable
from model.head_statistics import STATISTICS, head_statistics
from model.maps import (
    hide,
    mean_of_pieces,
    membership,
    merge_words,
    reduce_heads,
    rollout_step,
)
from tests.model.test_maps import KEPT, SPECIAL, TABLE, WORDS, make_maps, make_table

CPU = torch.device("cpu")
LAYERS, HEADS, LENGTH = 4, 3, 8
MAPS = make_maps(LAYERS, HEADS, LENGTH, LENGTH)
ALL = AttentionSelection(tuple(range(LAYERS)), tuple(range(HEADS)))
ROLLOUT = RolloutSelection(0.5, "mean", (0, 1, 2, 3), HEADS)
WORD_OF = membership([0, 0, 0, 1, 2, 2], 3)  # of the tokens that are no special ones


def collect(selection: AttentionSelection, table: TokenTable | None = TABLE, maps: Tensor = MAPS) -> TextAttention:
    """Hand over every layer as the encoder does: only the heads that are wanted, from the first layer to the last."""
    collector = AttentionCollector(selection, 5, maps.shape[-1], table, CPU)
    for layer in range(len(maps)):
        wanted = collector.wanted(layer)
        assert (wanted.start, wanted.length) == (5, maps.shape[-1])
        if wanted.heads:
            collector.take(layer, maps[layer, list(wanted.heads)])
    return collector.finish()


def test_plain_maps_are_the_layers_maps() -> None:
    """Nothing asked but layers and heads: their maps, in the asked order, and nothing else. No table is needed."""
    found = collect(AttentionSelection((3, 0), (2, 0)), None)
    np.testing.assert_array_equal(found.maps, MAPS[[3, 0]][:, [2, 0]])
    assert found == TextAttention(maps=found.maps)


@pytest.mark.parametrize("reduce", [None, "mean", "max"])
@pytest.mark.parametrize("special", ["keep", "mask", "renormalize"])
@pytest.mark.parametrize("unit", ["token", "word"])
def test_steps_are_taken_in_the_documented_order(reduce: str | None, special: str, unit: str) -> None:
    """Heads first, of those asked; then special tokens; then words: each on all layers at once gives the same."""
    selection = AttentionSelection((2, 1), (1, 0), reduce, unit, special)  # type: ignore[arg-type]
    expected, mass = MAPS[[2, 1]][:, [1, 0]], None
    if reduce is not None:
        expected = reduce_heads(expected, reduce)  # type: ignore[arg-type]
    if special != "keep":
        expected, mass = hide(expected, KEPT, renormalize=special == "renormalize")
    if unit == "word":
        member_of = WORD_OF if special != "keep" else membership([0, 1, 1, 1, 2, 3, 3, 4], 5)
        expected = merge_words(expected, member_of)
        mass = None if mass is None else mass @ mean_of_pieces(member_of).T
    found = collect(selection)
    np.testing.assert_allclose(found.maps, expected, rtol=0, atol=1e-7)
    assert (found.kept_mass is None) == (mass is None)
    if mass is not None:
        np.testing.assert_allclose(found.kept_mass, mass, rtol=0, atol=1e-7)
    if special == "mask" and found.kept_mass is not None and found.maps is not None:
        np.testing.assert_allclose(found.maps.sum(-1), found.kept_mass, rtol=0, atol=1e-6)


def test_the_kept_mass_of_a_word_is_the_mean_of_its_pieces() -> None:
    """As the rows of its pieces are averaged."""
    pieces = collect(replace(ALL, special="renormalize")).kept_mass
    words = collect(replace(ALL, special="renormalize", unit="word")).kept_mass
    assert pieces is not None
    assert words is not None
    np.testing.assert_allclose(words[..., 0], pieces[..., :3].mean(-1), rtol=0, atol=1e-6)
    np.testing.assert_allclose(words[..., 1], pieces[..., 3], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("top_k", "min_weight"), [(2, 0.0), (None, 0.1), (3, 0.2), (100, 0.0)])
def test_sparse_rows_are_the_largest_of_the_dense_ones(top_k: int | None, min_weight: float) -> None:
    """Rows stand in C order of (layer, head, query), layers in the asked order, with the sum of the whole row."""
    wish = AttentionSelection((3, 1), (0, 2), unit="word", special="mask")
    dense = collect(wish).maps
    found = collect(replace(wish, top_k=top_k, min_weight=min_weight))
    sparse = found.sparse
    assert dense is not None
    assert sparse is not None
    assert found.maps is None
    assert sparse.shape == dense.shape == (2, 2, 3, 3)
    assert len(sparse.row_start) == 13
    for place, row in enumerate(dense.reshape(12, 3)):
        part = slice(sparse.row_start[place], sparse.row_start[place + 1])
        keys = [key for key in np.argsort(-row) if row[key] >= min_weight][:top_k]
        assert sparse.index[part].tolist() == keys
        np.testing.assert_array_equal(sparse.weight[part], row[keys])
        assert sparse.row_sum[place] == pytest.approx(row.sum(dtype=np.float64), abs=1e-12)


def test_statistics_are_of_the_asked_heads_in_the_asked_order() -> None:
    """Of single heads on tokens, whatever is done to the maps; with special tokens hidden, of what is left."""
    wish = AttentionSelection((3, 0), (2, 0), "mean", "word", "keep", maps=False, stats=True)
    cases: tuple[tuple[str, Tensor | None], ...] = (("keep", None), ("mask", KEPT), ("renormalize", KEPT))
    for special, kept in cases:
        found = collect(replace(wish, special=special))  # type: ignore[arg-type]
        expected = head_statistics(MAPS[[3, 0]][:, [2, 0]], cls=0, separators=[7], kept=kept)
        assert found.stats is not None
        assert set(found.stats) == {*STATISTICS, *(["kept_mass"] if kept is not None else [])}
        for name, values in found.stats.items():
            assert values.dtype == np.float32
            np.testing.assert_allclose(values, expected[name], rtol=1e-6, atol=1e-6)
        assert (found.maps, found.sparse, found.kept_mass, found.rollout) == (None, None, None, None)


def test_a_template_without_an_opening_token() -> None:
    """Where the first token is no special one there is no opening one, and where none is, no closing one either."""
    wish = replace(ALL, stats=True, maps=False)
    closing = collect(wish, make_table([0, 0, 0, 0, 1, 2, 2, None], [*[False] * 7, True])).stats
    bare = collect(wish, make_table([0, 0, 0, 0, 1, 2, 2, 3], [False] * 8)).stats
    assert closing is not None
    assert bare is not None
    assert np.isnan(closing["to_cls"]).all()
    np.testing.assert_allclose(closing["to_sep"], MAPS[..., 7].mean(-1), rtol=0, atol=1e-6)
    assert np.isnan(bare["to_cls"]).all()
    assert np.isnan(bare["to_sep"]).all()


def test_a_rollout_is_over_all_heads_layers_and_tokens() -> None:
    """Whatever layers and heads are asked for, the product is the whole one; then special tokens, then words."""
    joint = None
    for layer in MAPS:
        joint = rollout_step(joint, layer, 0.5, "mean")
    assert joint is not None
    wish = AttentionSelection((1,), (2,), rollout=ROLLOUT)
    found = collect(wish, None)
    np.testing.assert_array_equal(found.rollout, joint)
    np.testing.assert_array_equal(found.maps, MAPS[1:2, 2:3])
    rows, mass = hide(joint, KEPT, renormalize=True)
    found = collect(replace(wish, maps=False, special="renormalize", unit="word"))
    np.testing.assert_allclose(found.rollout, merge_words(rows, WORD_OF), rtol=0, atol=1e-7)
    np.testing.assert_allclose(found.rollout_kept_mass, mass @ mean_of_pieces(WORD_OF).T, rtol=0, atol=1e-7)
    assert found.maps is None


def test_a_rollout_may_begin_later() -> None:
    """From layer 2 on the product has two factors, and earlier layers are not even asked for."""
    wish = AttentionSelection((0,), (0,), maps=False, rollout=replace(ROLLOUT, layers=(2, 3)))
    expected = rollout_step(rollout_step(None, MAPS[2], 0.5, "mean"), MAPS[3], 0.5, "mean")
    np.testing.assert_array_equal(collect(wish, None).rollout, expected)
    assert [wish.heads_of(layer) for layer in range(LAYERS)] == [(), (), (0, 1, 2), (0, 1, 2)]


def test_nothing_asked_is_nothing_found() -> None:
    """Neither maps nor statistics nor rollout: only the tokens are wanted, and no layer is asked."""
    assert collect(replace(ALL, maps=False)) == TextAttention()


def test_a_text_of_special_tokens_alone() -> None:
    """Without them nothing is left: empty maps and rollout, statistics without meaning, no error."""
    table, maps = make_table([None, None], [True, True]), make_maps(LAYERS, HEADS, 2, 2)
    for unit in ("token", "word"):
        wish = replace(ALL, special="renormalize", unit=unit, stats=True, rollout=ROLLOUT)  # type: ignore[arg-type]
        found = collect(wish, table, maps)
        assert found.maps is not None
        assert found.maps.shape == (LAYERS, HEADS, 0, 0)
        assert found.rollout is not None
        assert found.rollout.shape == (0, 0)
        assert found.stats is not None
        assert all(np.isnan(values).all() for values in found.stats.values())
        thin = collect(replace(wish, top_k=3), table, maps).sparse
        assert thin is not None
        assert (thin.shape, thin.row_start.tolist()) == ((LAYERS, HEADS, 0, 0), [0])


@pytest.mark.parametrize("changes", [{"special": "mask"}, {"unit": "word"}, {"stats": True}])
def test_special_tokens_and_words_need_the_table(changes: dict[str, object]) -> None:
    """What cannot be known is an error before anything is run."""
    with pytest.raises(ValueError, match="details"):
        AttentionCollector(replace(ALL, **changes), 0, LENGTH, None, CPU)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wish",
    [
        replace(ALL, maps=False, stats=True, rollout=ROLLOUT, special="renormalize"),
        replace(ALL, reduce_heads="max", unit="word"),
        replace(ALL, top_k=2),
        ALL,
    ],
)
def test_a_layers_maps_are_not_held(wish: AttentionSelection) -> None:
    """After its turn nothing of a layer's tensor is referred to, and what was kept does not change with it."""
    collector = AttentionCollector(wish, 0, LENGTH, TABLE, CPU)
    for layer in range(LAYERS):
        weights = MAPS[layer].clone()
        untouched = weights.clone()
        alive = weakref.ref(weights)
        collector.take(layer, weights)
        torch.testing.assert_close(weights, untouched, rtol=0, atol=0)
        weights.zero_()
        del weights
        assert alive() is None
    found, expected = collector.finish(), collect(wish)
    for name in ("maps", "kept_mass", "rollout", "rollout_kept_mass"):
        actual = getattr(found, name)
        if actual is not None:
            np.testing.assert_array_equal(actual, getattr(expected, name))


def test_what_is_kept_is_no_larger_than_the_answer() -> None:
    """Arrays own their memory, and only that of the units, heads and layers asked for."""
    found = collect(AttentionSelection((1,), (0, 1), "mean", "word", "mask", rollout=ROLLOUT))
    for array, size in ((found.maps, 9), (found.kept_mass, 3), (found.rollout, 9), (found.rollout_kept_mass, 3)):
        assert array is not None
        assert array.size == size
        assert array.flags.c_contiguous
        assert isinstance(array.base, Tensor)
        assert array.base.untyped_storage().nbytes() == array.nbytes


def test_the_table_of_these_tests() -> None:
    """[CLS], a word of three pieces, one of one, one of two, [SEP]."""
    assert (TABLE.words, TABLE.special) == (WORDS, SPECIAL)
