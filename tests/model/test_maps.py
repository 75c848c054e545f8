"""Claims about what is made of maps: each function against a slow one with loops, and the traps of the field."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from model.contract import EncodeInput, SpecialMode, TokenTable, Unit, WordTable
from model.maps import (
    hide,
    largest_weights,
    membership,
    merge_words,
    num_units,
    reduce_heads,
    rollout_step,
    units_of,
)

Rows = list[list[float]]


def make_maps(*shape: int, seed: int = 0) -> Tensor:
    """Maps whose rows are softmaxes, some flat and some sharp."""
    generator = torch.Generator().manual_seed(seed)
    return (4 * torch.randn(shape, generator=generator)).softmax(dim=-1)


def make_table(words: list[int | None], special: list[bool]) -> TokenTable:
    """A token table of which only words and special tokens are looked at."""
    n = len(words)
    return TokenTable([0] * n, [""] * n, [0] * n, [0] * n, special, [None] * n, words)


# [CLS] w0 w0 w0 w1 w2 w2 [SEP]
WORDS: list[int | None] = [None, 0, 0, 0, 1, 2, 2, None]
SPECIAL = [True, *[False] * 6, True]
TABLE = make_table(WORDS, SPECIAL)
KEPT = torch.arange(1, 7)


# --- heads ---


@pytest.mark.parametrize("shape", [(3, 5, 5), (2, 3, 5, 5)])
@pytest.mark.parametrize("how", ["mean", "max"])
def test_heads_taken_together_have_rows_that_sum_to_one(how: str, shape: tuple[int, ...]) -> None:
    """The mean of the heads, or their maxima divided by their sum row by row: the head axis keeps length 1."""
    maps = make_maps(*shape)
    taken = reduce_heads(maps, how)  # type: ignore[arg-type]
    assert taken.shape == (*shape[:-3], 1, 5, 5)
    torch.testing.assert_close(taken.sum(-1), torch.ones(taken.shape[:-1]), rtol=0, atol=1e-6)
    array = maps.numpy().astype(np.float64)
    expected = array.mean(-3) if how == "mean" else array.max(-3) / array.max(-3).sum(-1)[..., None]
    np.testing.assert_allclose(taken.squeeze(-3), expected, rtol=0, atol=1e-6)


def test_maxima_are_divided_row_by_row() -> None:
    """Each row by its own sum, not by its column's: the rows' sums differ, and one factor for all would show."""
    maps = torch.tensor([[[0.9, 0.1], [0.5, 0.5]], [[0.1, 0.9], [0.5, 0.5]]])
    assert reduce_heads(maps, "max").squeeze(0).tolist() == [[0.5, 0.5], [0.5, 0.5]]
    maps = torch.tensor([[[1.0, 0.0], [0.25, 0.75]], [[0.5, 0.5], [0.75, 0.25]]])
    expected = torch.tensor([[[1 / 1.5, 0.5 / 1.5], [0.5, 0.5]]])
    torch.testing.assert_close(reduce_heads(maps, "max"), expected)


# --- units ---


def test_tokens_are_their_own_units() -> None:
    """With unit token every token that stays has a row, and knows its word."""
    units = units_of(TABLE, "token", "keep")
    assert (units.tokens, units.words, units.kept) == (list(range(8)), WORDS, list(range(8)))
    for special in ("mask", "renormalize"):
        units = units_of(TABLE, "token", special)  # type: ignore[arg-type]
        assert (units.tokens, units.words) == ([1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 2, 2])


def test_words_and_lone_tokens_are_units() -> None:
    """With unit word each special token that stays, and each token of a prompt, is a unit of its own."""
    units = units_of(TABLE, "word", "keep")
    assert (units.tokens, units.words) == ([0, 1, 4, 5, 7], [None, 0, 1, 2, None])
    assert units.members == [0, 1, 1, 1, 2, 3, 3, 4]
    prompted = make_table([None, None, None, 0, 0, None], [True, False, False, False, False, True])
    assert units_of(prompted, "word", "keep").tokens == [0, 1, 2, 3, 5]
    hidden = units_of(prompted, "word", "mask")
    assert (hidden.tokens, hidden.words, hidden.kept) == ([1, 2, 3], [None, None, 0], [1, 2, 3, 4])


def test_the_same_word_in_both_texts_of_a_pair_is_two() -> None:
    """("the cat", "the cat"): words are numbered through the pair, so that no word of one text joins the other's."""
    table = make_table([None, 0, 1, None, 2, 3, None], [True, False, False, True, False, False, True])
    assert units_of(table, "word", "renormalize").words == [0, 1, 2, 3]


def test_a_text_of_no_word() -> None:
    """An empty text has its special tokens or nothing."""
    table = make_table([None, None], [True, True])
    assert units_of(table, "word", "keep").tokens == [0, 1]
    assert units_of(table, "word", "mask").num_units == 0
    assert units_of(table, "token", "mask").num_units == 0


@given(st.lists(st.sampled_from(["word", "prompt", "special"]), max_size=12), st.data())
def test_units_are_counted_without_being_listed(kinds: list[str], data: st.DataObject) -> None:
    """What limits are checked against is the length of the axes, for every unit and mode."""
    words: list[int | None] = []
    for kind in kinds:
        last = max([-1, *(word for word in words if word is not None)])
        new = last + (last < 0 or data.draw(st.booleans()))
        words.append(new if kind == "word" else None)
    table = make_table(words, [kind == "special" for kind in kinds])
    count = max([-1, *(word for word in words if word is not None)]) + 1
    names = WordTable([""] * count, [0] * count, [0] * count, [0] * count)
    text = EncodeInput([0] * len(kinds), [0] * len(kinds), len(kinds), tokens=table, words=names)
    units: tuple[Unit, ...] = ("token", "word")
    modes: tuple[SpecialMode, ...] = ("keep", "mask", "renormalize")
    for unit in units:
        for special in modes:
            assert num_units(text, unit, special) == units_of(table, unit, special).num_units


def test_units_need_the_token_table() -> None:
    """Without it only plain tokens can be counted."""
    text = EncodeInput([1, 2, 3], [0, 0, 0], 3)
    assert num_units(text, "token", "keep") == 3
    for unit, special in (("word", "keep"), ("token", "mask")):
        with pytest.raises(ValueError, match="details"):
            num_units(text, unit, special)  # type: ignore[arg-type]


# --- special tokens ---


def test_hidden_tokens_leave_rows_and_columns() -> None:
    """Mask: the weights that stay are unchanged, and each row sums to what it kept."""
    maps = make_maps(2, 3, 8, 8)
    rows, mass = hide(maps, KEPT, renormalize=False)
    torch.testing.assert_close(rows, maps[..., 1:7, 1:7], rtol=0, atol=0)
    torch.testing.assert_close(mass, rows.sum(-1))
    assert (mass < 1).all()


def test_renormalised_rows_sum_to_one_and_tell_what_they_kept() -> None:
    """Each row is divided by its own kept mass."""
    maps = make_maps(2, 3, 8, 8)
    masked, mass = hide(maps, KEPT, renormalize=False)
    rows, same_mass = hide(maps, KEPT, renormalize=True)
    torch.testing.assert_close(same_mass, mass, rtol=0, atol=0)
    torch.testing.assert_close(rows, masked / mass.unsqueeze(-1))
    torch.testing.assert_close(rows.sum(-1), torch.ones(2, 3, 6))


def test_an_idle_head_is_told_by_its_kept_mass() -> None:
    """A row with 0.999999994 on [SEP] is blank when masked, flat when renormalised: the kept mass says it is idle."""
    scores = torch.full((4, 4), -20.4)
    scores[:, 3] = 0.0
    maps = scores.double().softmax(-1).float()
    kept = torch.tensor([1, 2])
    masked, mass = hide(maps, kept, renormalize=False)
    assert masked.sum(-1).max() < 6e-9
    flat, _ = hide(maps, kept, renormalize=True)
    torch.testing.assert_close(flat, torch.full((2, 2), 0.5))
    assert mass == pytest.approx(2 * math.exp(-20.4), rel=1e-5)


def test_a_row_that_kept_nothing_stays_nothing() -> None:
    """Zero kept mass gives zeros, no NaN."""
    maps = torch.zeros(3, 3)
    maps[:, 2] = 1.0
    rows, mass = hide(maps, torch.tensor([0, 1]), renormalize=True)
    assert rows.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert mass.tolist() == [0.0, 0.0]


# --- words ---


def merge_slowly(rows: Rows, members: list[int], count: int) -> Rows:
    """Sum the key pieces, average the query pieces, one number at a time."""
    merged = [[0.0] * count for _ in range(count)]
    for query, row in enumerate(rows):
        for key, weight in enumerate(row):
            merged[members[query]][members[key]] += weight / members.count(members[query])
    return merged


@pytest.mark.parametrize("members", [[0, 1, 1, 1, 2, 3, 4], [0, 0, 1, 2, 2], [0, 1, 0, 1], [0]])
def test_words_sum_keys_and_average_queries(members: list[int]) -> None:
    """A map of pieces becomes one of words whose rows still sum to 1; pieces need not stand together."""
    count = max(members) + 1
    maps = make_maps(2, 3, len(members), len(members))
    merged = merge_words(maps, membership(members, count))
    assert merged.shape == (2, 3, count, count)
    torch.testing.assert_close(merged.sum(-1), torch.ones(2, 3, count), rtol=0, atol=1e-6)
    for layer in range(2):
        for head in range(3):
            expected = merge_slowly(maps[layer, head].tolist(), members, count)
            np.testing.assert_allclose(merged[layer, head], expected, rtol=0, atol=1e-6)


def test_unsplit_words_keep_their_weights() -> None:
    """Between words of one piece nothing changes, whatever happens to their neighbours."""
    maps = make_maps(7, 7)
    merged = merge_words(maps, membership([0, 1, 1, 1, 2, 3, 4], 5))
    whole, pieces = [0, 2, 3, 4], [0, 4, 5, 6]
    torch.testing.assert_close(merged[whole][:, whole], maps[pieces][:, pieces])
    torch.testing.assert_close(merged[whole][:, 1], maps[pieces][:, 1:4].sum(1))
    torch.testing.assert_close(merged[1, whole], maps[1:4][:, pieces].mean(0))


def test_one_piece_a_word_changes_nothing() -> None:
    """Where no word is split, the map of words is the map of tokens."""
    maps = make_maps(3, 6, 6)
    torch.testing.assert_close(merge_words(maps, membership(range(6), 6)), maps, rtol=0, atol=0)


def test_nothing_merges_to_nothing() -> None:
    """No token gives an empty map, not an error."""
    assert merge_words(torch.zeros(2, 3, 0, 0), membership([], 0)).shape == (2, 3, 0, 0)


# --- sparse rows ---


@pytest.mark.parametrize("bound", [1, 3, 8])
@pytest.mark.parametrize("min_weight", [0.0, 0.05, 0.4])
def test_the_largest_of_each_row_stand_first(bound: int, min_weight: float) -> None:
    """Of each row so many at most, none smaller than asked, descending; with no limit in force, all of them."""
    maps = make_maps(2, 3, 8, 8)
    counts, index, weight = (part.tolist() for part in largest_weights(maps, bound, min_weight))
    start = 0
    for count, row in zip(counts, maps.flatten(0, -2).tolist(), strict=True):
        expected = sorted((value for value in row if value >= min_weight), reverse=True)[:bound]
        assert weight[start : start + count] == expected
        assert [row[key] for key in index[start : start + count]] == expected
        assert len(set(index[start : start + count])) == count
        start += count
    assert start == len(weight) == len(index)
    if bound == 8 and not min_weight:
        assert counts == [8] * 48


def test_no_rows_have_no_weights() -> None:
    """A text of no unit has nothing to select from."""
    counts, index, weight = largest_weights(torch.zeros(2, 3, 0, 0), 0, 0.0)
    assert (len(counts), len(index), len(weight)) == (0, 0, 0)


# --- rollout ---


def roll_out_slowly(maps: np.ndarray, residual: float, how: str) -> np.ndarray:
    """The product of residual I + (1 - residual) A over layers, in float64."""
    product = np.eye(maps.shape[-1])
    for layer in maps.astype(np.float64):
        joined = layer.mean(0) if how == "mean" else layer.max(0)
        joined /= joined.sum(-1, keepdims=True)
        product = (residual * np.eye(len(joined)) + (1 - residual) * joined) @ product
    return product


@pytest.mark.parametrize("how", ["mean", "max"])
@pytest.mark.parametrize("residual", [0.0, 0.5, 1.0])
def test_rollout_multiplies_layers(how: str, residual: float) -> None:
    """Later layers stand on the left, rows sum to 1 with maxima too; the maps themselves are left alone."""
    maps = make_maps(4, 3, 6, 6)
    untouched = maps.clone()
    joint = None
    for layer in maps:
        joint = rollout_step(joint, layer, residual, how)  # type: ignore[arg-type]
    assert joint is not None
    np.testing.assert_allclose(joint, roll_out_slowly(maps.numpy(), residual, how), rtol=0, atol=1e-6)
    np.testing.assert_allclose(joint.sum(-1), 1, rtol=0, atol=1e-6)
    torch.testing.assert_close(maps, untouched, rtol=0, atol=0)
    backwards = roll_out_slowly(maps.numpy()[::-1], residual, how)
    assert residual == 1.0 or np.abs(joint.numpy() - backwards).max() > 0.01


def test_a_rollout_of_one_layer() -> None:
    """With residual 0.5 it is half identity, half the mean head."""
    maps = make_maps(3, 5, 5)
    torch.testing.assert_close(rollout_step(None, maps, 0.5, "mean"), (torch.eye(5) + maps.mean(0)) / 2)


def test_words_come_after_the_rollout() -> None:
    """Merging words first is another thing: the product of word maps is not the word map of the product."""
    maps = make_maps(3, 2, 7, 7)
    member_of = membership([0, 1, 1, 1, 2, 3, 4], 5)
    after = before = None
    for layer in maps:
        after = rollout_step(after, layer, 0.5, "mean")
        before = rollout_step(before, merge_words(layer, member_of), 0.5, "mean")
    assert after is not None
    assert before is not None
    assert (merge_words(after, member_of) - before).abs().max() > 1e-3
